// SPDX-License-Identifier: BSD-3-Clause
// Kill rounds: ranks that are killed, stopped, continued and started again at random while they run
// a random program. Whatever happens to some, the others go on, and right.
//
// TEST_KILL_SEED     repeats what was planned (times still differ); printed
// TEST_KILL_ROUNDS   rounds in all, shared among 2, 3 and 8 ranks
// TEST_STORE         files: over a directory and not over Redis; it does not go away
// TEST_KILL_DEVICE   host, standin or gpu; hostnet, standinnet: over the net
#include <chrono>
#include <cstdlib>

#include "kill/referee.h"

using kill_rounds::Referee;

static std::string variable(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static uint64_t seed()
{
    static const std::string given = variable("TEST_KILL_SEED", "");
    static const uint64_t now = static_cast<uint64_t>(
        std::chrono::system_clock::now().time_since_epoch().count() / 1000 % 1000000000);
    return given.empty() ? now : std::stoull(given);
}

static bool over_the_net(const std::string &device)
{
    return device == "hostnet" || device == "standinnet";
}

// device, ranks
class KillRounds : public testing::TestWithParam<std::tuple<std::string, int>>
{
  protected:
    void SetUp() override
    {
        std::string why, device = std::get<0>(GetParam());
        bool asked = variable("TEST_KILL_DEVICE", "") == device;
        if (!store_available())
            GTEST_SKIP() << "no redis-server";
        if (!asked && (device == "gpu" || variable("TEST_KILL_DEVICE", "") != ""))
            GTEST_SKIP() << "TEST_KILL_DEVICE does not ask for " << device;
        if (over_the_net(device) && !net_available())
            GTEST_SKIP() << "libfabric is left out of this build";
        if (over_the_net(device))
            device.resize(device.size() - 3);
        if (!device_available(device, &why))
            GTEST_SKIP() << why;
    }
};

// Of 20 rounds, so many are of 2, 3 and 8 ranks; host memory gets a smaller part of the sample.
static int share(const std::string &device, int ranks)
{
    const bool whole = device == "standin" || !variable("TEST_KILL_DEVICE", "").empty();
    const char *usual = whole ? "200" : over_the_net(device) ? "20" : "40";
    int rounds = std::stoi(variable("TEST_KILL_ROUNDS", usual));
    return rounds * (ranks == 8 ? 4 : 8) / 20;
}

TEST_P(KillRounds, SurvivorsGoOn)
{
    auto [device, ranks] = GetParam();
    std::string repeat = "TEST_KILL_SEED=" + std::to_string(seed());
    std::cout << repeat << std::endl;
    Referee referee(device, ranks, seed() * 16 + static_cast<uint64_t>(ranks));
    auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(referee.run(share(device, ranks)), "") << repeat;
    EXPECT_EQ(referee.was_over_the_net(), over_the_net(device));
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::cout << referee.summary() << "; " << took.count() << " s" << std::endl;
}

INSTANTIATE_TEST_SUITE_P(Device, KillRounds,
                         testing::Combine(testing::Values("standin", "standinnet", "host",
                                                          "hostnet", "gpu"),
                                          testing::Values(2, 3, 8)),
                         [](const auto &info) {
                             return std::get<0>(info.param) + "_" +
                                    std::to_string(std::get<1>(info.param)) + "_ranks";
                         });
