// SPDX-License-Identifier: BSD-3-Clause
// Nodes that are far apart: network namespaces whose frames a program carries from one to the
// other, later, and not all of them. That needs tap devices, and no netem in the kernel, which many
// lack.
#include <chrono>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <random>
#include <sched.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include "e2e/ranks.h"

namespace
{

using Clock = std::chrono::steady_clock;

// A device of this network namespace, whose frames come from and go to the descriptor; -1: none.
int open_tap()
{
    struct ifreq wish = {};
    const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    wish.ifr_flags = IFF_TAP | IFF_NO_PI;
    strcpy(wish.ifr_name, "far");
    if (fd >= 0 && ioctl(fd, TUNSETIFF, &wish) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

// What joins the devices of all nodes. It ends with the process.
class Hub
{
  public:
    // carried: counts the frames that it has taken and not lost; behind it: those that it has.
    Hub(std::vector<int> taps, std::chrono::microseconds delay, unsigned lost_of_1000,
        std::atomic<uint64_t> *carried)
        : taps_(std::move(taps)), delay_(delay), lost_(lost_of_1000), carried_(carried)
    {
        std::thread([this] {
            for (;;)
                carry();
        }).detach();
    }

  private:
    struct Frame {
        Clock::time_point due;
        size_t from;
        std::vector<char> bytes;
    };

    void carry()
    {
        std::vector<struct pollfd> ready;
        for (int tap : taps_)
            ready.push_back({tap, POLLIN, 0});
        struct timespec pause = {1, 0};
        if (!frames_.empty()) {
            const auto left = std::max(frames_.front().due - Clock::now(), Clock::duration(0));
            pause = {0, std::chrono::nanoseconds(left).count() % 1000000000};
        }
        ppoll(ready.data(), ready.size(), &pause, nullptr);
        for (size_t from = 0; from < taps_.size(); from++)
            if (ready[from].revents)
                take(from);
        for (; !frames_.empty() && frames_.front().due <= Clock::now(); frames_.pop_front())
            give(frames_.front());
    }
    void take(size_t from)
    {
        char bytes[65536];
        const ssize_t n = read(taps_[from], bytes, sizeof bytes);
        const bool lost = dice_() % 1000 < lost_;
        if (n <= 0)
            return;
        carried_[lost]++;
        if (!lost)
            frames_.push_back({Clock::now() + delay_, from, std::vector<char>(bytes, bytes + n)});
    }
    // To all others: each takes what has its address.
    void give(const Frame &frame)
    {
        for (size_t to = 0; to < taps_.size(); to++)
            if (to != frame.from && write(taps_[to], frame.bytes.data(), frame.bytes.size()) < 0)
                continue; // one more that is lost
    }

    const std::vector<int> taps_;
    const std::chrono::microseconds delay_;
    const unsigned lost_;
    std::atomic<uint64_t> *const carried_;
    std::deque<Frame> frames_;
    std::mt19937 dice_{1};
};

bool has_taps()
{
    if (system("unshare -n ip link show lo > /dev/null 2>&1") != 0)
        return false;
    bool is = false;
    std::thread([&] {
        const int tap = unshare(CLONE_NEWNET) == 0 ? open_tap() : -1;
        is = tap >= 0;
        if (is)
            close(tap);
    }).join();
    return is;
}

class Far : public EveryDevice
{
  protected:
    void SetUp() override
    {
        EveryDevice::SetUp();
        if (!IsSkipped() && !has_taps())
            GTEST_SKIP() << "no tap devices in network namespaces of one's own: they need root, "
                            "the ip command and /dev/net/tun";
    }
    void run(int nodes, unsigned delay, unsigned lost)
    {
        Job job(GetParam(), nodes);
        const std::string argument = std::to_string(delay) + " " + std::to_string(lost);
        EXPECT_EQ(job.run("far_apart", argument), "") << nodes << " nodes, " << argument;
        const auto us = [&](int i) { return std::to_string(job.shared()->value[300 + i].load()); };
        printf("%d nodes, %s us late and of 1000 lost: create %s us, contact %s us, 8 bytes to "
               "the next and on %s us, 1 MiB both ways %s us\n",
               nodes, argument.c_str(), us(0).c_str(), us(1).c_str(), us(2).c_str(), us(3).c_str());
    }
};
INSTANTIATE_TEST_SUITE_P(Device, Far, testing::Values("hostnet", "standinnet"),
                         [](const auto &info) { return info.param; });

// shared->value[100 + rank]: its pid, with the descriptor of its device in value[200 + rank].
void enter(Rank &rank, std::chrono::microseconds delay, unsigned lost)
{
    CHECK(unshare(CLONE_NEWNET) == 0);
    const int tap = open_tap();
    CHECK(tap >= 0);
    const std::string set = "ip link set lo up && ip addr add 10.79.0." +
                            std::to_string(rank.rank + 1) +
                            "/24 dev far && ip link set far up > /dev/null";
    CHECK(system(set.c_str()) == 0);
    rank.shared->value[100 + rank.rank] = static_cast<uint64_t>(getpid());
    rank.shared->value[200 + rank.rank] = static_cast<uint64_t>(tap);
    rank.barrier();
    if (rank.rank == 0) {
        std::vector<int> taps = {tap};
        for (int other = 1; other < rank.ranks; other++) {
            const auto process = static_cast<int>(
                syscall(SYS_pidfd_open, static_cast<pid_t>(rank.shared->value[100 + other]), 0));
            taps.push_back(static_cast<int>(syscall(
                SYS_pidfd_getfd, process, static_cast<int>(rank.shared->value[200 + other]), 0)));
            CHECK(taps.back() >= 0);
        }
        new Hub(taps, delay, lost, &rank.shared->value[310]);
    }
    rank.barrier();
}

const size_t large = 1 << 20;

struct Neighbours {
    std::vector<struct ph_channel *> channels;
    std::vector<int> peers;
    uint8_t *memory;
    void *stream;

    explicit Neighbours(Rank &rank)
        : memory(static_cast<uint8_t *>(rank.device->alloc(4 * large))),
          stream(rank.device->stream())
    {
        for (int peer : {(rank.rank + 1) % rank.ranks, (rank.rank + rank.ranks - 1) % rank.ranks})
            if (peers.empty() || peers[0] != peer)
                peers.push_back(peer);
        std::vector<ph_operation> ops;
        for (size_t i = 0; i < peers.size(); i++)
            ops.push_back(
                {1, peers[i], PH_ROLE_BOTH, PH_PROTOCOL_PUT, memory + 2 * i * large, 2 * large});
        channels.resize(peers.size());
        CHECK_OK(ph_exchange(rank.context, ops.data(), ops.size(), channels.data()));
    }
    // With all neighbours, both ways; the bytes are looked at.
    void talk(Rank &rank, size_t bytes, uint64_t seed) const
    {
        std::vector<ph_group_op> group;
        for (size_t i = 0; i < peers.size(); i++) {
            rank.device->fill(memory + 2 * i * large, bytes, seed + rank.rank);
            group.push_back({PH_GROUP_PUT_SIGNAL, channels[i], large, 0, bytes, nullptr});
            group.push_back({PH_GROUP_WAIT, channels[i], 0, 0, bytes, nullptr});
        }
        CHECK_OK(ph_group(group.data(), group.size(), stream));
        rank.synchronize(stream, 60000);
        for (size_t i = 0; i < peers.size(); i++)
            rank.verify(memory + (2 * i + 1) * large, bytes, seed + peers[i], "from far away");
        rank.barrier();
    }
};

// argument: by how many us what they send is late, and how many frames of 1000 are lost.
RANK_FUNCTION(far_apart)
{
    unsigned delay = 0, lost = 0;
    CHECK(sscanf(rank.argument.c_str(), "%u %u", &delay, &lost) == 2);
    enter(rank, std::chrono::microseconds(delay), lost);
    auto begin = Clock::now();
    int step = 0;
    const auto note = [&] {
        const auto now = Clock::now();
        if (rank.rank == 0)
            rank.shared->value[300 + step] = static_cast<uint64_t>(
                std::chrono::duration_cast<std::chrono::microseconds>(now - begin).count());
        step++;
        rank.barrier();
        begin = Clock::now();
    };
    rank.open({}, 60000);
    note();
    const Neighbours neighbours(rank);
    note();
    neighbours.talk(rank, 8, 1);
    note();
    neighbours.talk(rank, large, 100);
    note();
    ph_path_report report;
    CHECK_OK(ph_channel_path(neighbours.channels[0], 1, &report, sizeof report));
    CHECK(std::string(report.path) == "net");
    // A peer that is far is no suspect.
    for (int peer : neighbours.peers) {
        ph_peer_report state = {};
        CHECK_OK(ph_context_peer(rank.context, peer, &state, sizeof state));
        CHECK(state.state == PH_PEER_LIVE);
    }
    rank.barrier();
    rank.close(60000);
    rank.barrier(); // what carries the others' frames goes last
}

TEST_P(Far, TwoNodes)
{
    run(2, 0, 0);
    run(2, 20000, 0);
    run(2, 2000, 10);
}

TEST_P(Far, FourNodes)
{
    run(4, 0, 0);
    run(4, 2000, 10);
}

} // namespace
