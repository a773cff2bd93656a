// SPDX-License-Identifier: BSD-3-Clause
// Two ranks in network namespaces of their own, joined by a pair of virtual cables.
#ifndef TESTS_E2E_CABLE_H
#define TESTS_E2E_CABLE_H

#include <cstdlib>
#include <sched.h>
#include <string>
#include <thread>
#include <unistd.h>

#include "e2e/ranks.h"

inline bool has_network_namespaces()
{
    return system("unshare -n ip link show lo > /dev/null 2>&1") == 0;
}

constexpr size_t size = 9 << 20; // more than the slots of a channel hold

inline bool reaches(std::atomic<uint64_t> &value, uint64_t wanted, int ms = 30000)
{
    for (int i = 0; i < ms && value.load() < wanted; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return value.load() >= wanted;
}

inline void shell(const std::string &command)
{
    if (system((command + " > /dev/null").c_str()) != 0)
        rank_failed(__FILE__, __LINE__, command);
}

// Of this process, as /proc knows it: in a PID namespace of one's own getpid() is another.
inline uint64_t id_in_proc()
{
    char text[32] = "";
    CHECK(readlink("/proc/self", text, sizeof text - 1) > 0);
    return static_cast<uint64_t>(atoi(text));
}

// Between the namespaces of the two ranks. value[100]: the pid of rank 1, once it is in its own;
// value[101]: the cable is there.
inline void lay_cable(Rank &rank)
{
    if (rank.rank == 1) {
        rank.shared->value[100] = id_in_proc();
        CHECK(reaches(rank.shared->value[101], 1));
    } else {
        CHECK(reaches(rank.shared->value[100], 1));
        shell("ip link add cable1 type veth peer name cable2 netns /proc/" +
              std::to_string(rank.shared->value[100].load()) + "/ns/net");
        rank.shared->value[101] = 1;
    }
}

// Gives the two ranks namespaces of their own, and joins them.
inline void join(Rank &rank)
{
    CHECK(unshare(CLONE_NEWNET) == 0);
    const std::string own = rank.rank == 0 ? "1" : "2";
    lay_cable(rank);
    // Nobody waits until the cable is up, which takes the kernel a moment: until then providers see
    // no interface but loopback, or one with addresses of IPv6 that reach no further.
    shell("ip link set lo up && ip addr add 10.77.0." + own + "/24 dev cable" + own +
          " && ip link set cable" + own + " up");
    rank.barrier();
}

// Each rank puts bytes behind the other's own, again and again.
inline void put_both_ways(Rank &rank, struct ph_channel *channel, char *memory, void *stream,
                          int rounds)
{
    for (int round = 0; round < rounds; round++) {
        rank.device->fill(memory, size, 10 * round + rank.rank);
        struct ph_group_op ops[] = {{PH_GROUP_PUT_SIGNAL, channel, size, 0, size},
                                    {PH_GROUP_WAIT, channel, 0, 0, size}};
        CHECK_OK(ph_group(ops, 2, stream));
        rank.synchronize(stream);
        rank.verify(memory + size, size, 10 * round + !rank.rank, "put from the other node");
        rank.barrier();
    }
}

#endif
