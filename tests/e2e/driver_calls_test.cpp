// SPDX-License-Identifier: BSD-3-Clause
// Which threads call the driver while data moves over the net, and how often a call of ours does,
// there and where a group has many copies. The stand-in tells of each.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstring>

#include "e2e/bytes.h"

class DriverCalls : public EveryDevice
{
};
INSTANTIATE_TEST_SUITE_P(Device, DriverCalls, testing::Values("standinnet", "standinhmem"),
                         [](const auto &info) { return info.param; });

static thread_local int own;                           // of the test's thread
static std::atomic<int> of_flusher, of_net, of_others; // of the library's

static void count_call()
{
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (strcmp(name, "peerhop-flush") == 0)
        of_flusher++;
    else if (strcmp(name, "peerhop-net") == 0)
        of_net++;
    else if (strncmp(name, "peerhop-", 8) == 0)
        of_others++;
    else
        own++;
}

static void begin_to_count([[maybe_unused]] Rank &rank)
{
    void *driver = dlopen(getenv("PEERHOP_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
    auto *on_call = reinterpret_cast<void (**)()>(driver ? dlsym(driver, "si_on_call") : nullptr);
    CHECK(on_call != nullptr);
    *on_call = count_call;
}

// How often the driver is called by what is done.
template <typename Function> static int calls_of(Function function)
{
    const int before = own;
    function();
    return own - before;
}

static int most;

// One message forth, which is one call at either end.
static void go_forth(Rank &rank, ph_channel *channel, size_t size, const std::string &kind,
                     void *stream)
{
    const int calls = calls_of([&] {
        if (kind == "put_signal" && rank.rank == 0)
            CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
        else if (kind == "put_signal")
            CHECK_OK(ph_wait(channel, size, stream));
        else if (rank.rank == 0)
            CHECK_OK(ph_send(channel, size, stream));
        else
            CHECK_OK(ph_recv(channel, size, stream));
    });
    most = calls > most ? calls : most;
    CHECK_OK(ph_complete(channel, stream));
    rank.synchronize(stream);
    rank.barrier(); // nobody sends into what is not taken
}

static const size_t SIZES[] = {1, 5000, 300000, 20 << 20};

RANK_FUNCTION(moves)
{
    begin_to_count(rank); // before the threads of the net begin
    rank.open();
    void *memory = rank.device->alloc(20 << 20), *stream = rank.device->stream();
    std::vector<ph_channel *> channels;
    for (ph_protocol protocol : {PH_PROTOCOL_PUT, PH_PROTOCOL_GET})
        channels.push_back(rank.channel(!rank.rank, 1 + channels.size(), PH_ROLE_BOTH, memory,
                                        20 << 20, protocol));
    rank.barrier();
    const int others = of_others; // the services', who map and register for an exchange
    for (size_t size : SIZES) {
        for (ph_channel *channel : channels)
            go_forth(rank, channel, size, "send", stream);
        go_forth(rank, channels[0], size, "put_signal", stream);
    }
    rank.barrier();
    CHECK(of_net == 0);
    CHECK(of_others == others);
    CHECK((of_flusher > 0) == !rank.staged());
    CHECK(most > 0); // they are counted
    if (most > 128)
        rank_failed(__FILE__, __LINE__,
                    std::to_string(most) + " calls of the driver by one of ours");
    rank.barrier();
}

TEST_P(DriverCalls, FewAndByTheApplicationsThreads)
{
    Job job(GetParam(), 2);
    if (GetParam() == "standinnet") // as many chunks as can be
        job.environment("PEERHOP_NET_CHUNK", "4096");
    EXPECT_EQ(job.run("moves"), "");
}

class EngineCalls : public EveryDevice
{
};
INSTANTIATE_TEST_SUITE_P(Device, EngineCalls, testing::Values("standin"),
                         [](const auto &info) { return info.param; });

RANK_FUNCTION(pages_by_the_engine)
{
    const size_t n = 300, page = 600000;
    const bool ce = rank.argument == "ce";
    begin_to_count(rank);
    rank.open({"PEERHOP_METHOD=" + rank.argument});
    void *memory = rank.device->alloc(2 * n * page), *stream = rank.device->stream();
    std::vector<ph_operation> ops; // the last of them has no lane for flags
    for (uint64_t i = 0; i < 130; i++)
        ops.push_back(
            {i, !rank.rank, PH_ROLE_BOTH, PH_PROTOCOL_PUT, memory, 2 * n * page, nullptr});
    std::vector<ph_channel *> channels(ops.size());
    CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    for (ph_channel *channel : {channels.front(), channels.back()}) {
        std::vector<ph_group_op> group;
        for (size_t i = 0; i < n; i++)
            group.push_back(
                {PH_GROUP_PUT, channel, (n + i) * page, i * page, i % 7 == 3 ? 0 : page});
        const auto give = [&](size_t some, void *on) {
            const int calls = calls_of([&] { CHECK_OK(ph_group(group.data(), some, on)); });
            rank.synchronize(on);
            return calls;
        };
        const int alone = give(1, stream), some = give(20, stream), all = give(n, stream),
                  legacy = give(n, nullptr);
        if (dlsym(dlopen(getenv("PEERHOP_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD),
                  "cuMemcpyBatchAsync_v2") == nullptr) {
            rank.shared->text[0][0] = '1';
            return;
        }
        // 257 are not empty. The legacy stream is not given many for the copy engine.
        if (alone == 0 || some > 2 * alone || all > 6 * alone ||
            (ce ? legacy < 257 : legacy > 6 * alone))
            rank_failed(__FILE__, __LINE__,
                        std::to_string(alone) + ", " + std::to_string(some) + ", " +
                            std::to_string(all) + ", " + std::to_string(legacy) +
                            " calls of the driver");
    }
    rank.barrier();
}

TEST_P(EngineCalls, ManyCopiesAreFewCalls)
{
    for (const char *method : {"ce", "auto"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("pages_by_the_engine", method), "") << method;
        if (job.shared()->text[0][0] == '1')
            GTEST_SKIP() << "built with a cuda.h before 13.0";
    }
}
