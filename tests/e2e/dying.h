// SPDX-License-Identifier: BSD-3-Clause
// What tests of ranks that end, or fall silent, share: channels between all, how a rank sees
// another one, and how one is made to stop or to lose its connections.
#ifndef TESTS_E2E_DYING_H
#define TESTS_E2E_DYING_H

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <sys/socket.h>

#include "e2e/exchanging.h"

inline const size_t size = 40000;

// Fast heartbeats, for tests that wait for a SUSPECT.
inline const std::vector<std::string> fast = {"PEERHOP_HEARTBEAT_MS=20", "PEERHOP_SUSPECT_MS=400"};

// A direction each way with every other rank, in the order of ranks; one buffer of `size` for each.
struct Link {
    int peer;
    ph_channel *to, *from;
    char *out, *in;
};

inline Link meet(Rank &rank, int peer, uint64_t op_id, ph_protocol protocol = PH_PROTOCOL_PUT)
{
    char *memory = static_cast<char *>(rank.device->alloc(2 * size));
    auto channels = exchange_all(
        rank, {operation(op_id, peer, PH_ROLE_SENDER, memory, size, protocol),
               operation(op_id, peer, PH_ROLE_RECEIVER, memory + size, size, protocol)});
    return {peer, channels[0], channels[1], memory, memory + size};
}

inline std::vector<Link> meet_all(Rank &rank, uint64_t op_id = 1)
{
    std::vector<Link> links;
    for (int peer = 0; peer < rank.ranks; peer++)
        if (peer != rank.rank)
            links.push_back(meet(rank, peer, op_id));
    return links;
}

inline ph_peer_report report_of(Rank &rank, int peer)
{
    ph_peer_report report = {};
    CHECK_OK(ph_context_peer(rank.context, peer, &report, sizeof report));
    return report;
}

inline bool becomes(Rank &rank, int peer, ph_peer_state state)
{
    Stopwatch watch;
    while (report_of(rank, peer).state != state) {
        if (watch.ms() > patience(20000).count())
            return false;
        sleep_ms(1);
    }
    return true;
}

// What a thread of this process has done so far.
struct Work {
    uint64_t us = 0;     // time on a core
    uint64_t sleeps = 0; // how often it has gone to sleep by itself
};

// Of all threads of that name; zero: there is none.
inline Work work_of_thread(const std::string &name)
{
    Work work;
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream comm(task.path() / "comm"), stat(task.path() / "schedstat"),
            status(task.path() / "status");
        std::string text, line;
        uint64_t ns = 0;
        std::getline(comm, text);
        if (text != name || !(stat >> ns))
            continue;
        work.us += ns / 1000;
        while (std::getline(status, line))
            if (line.rfind("voluntary_ctxt_switches:", 0) == 0)
                work.sleeps += std::stoull(line.substr(line.find(':') + 1));
    }
    return work;
}

inline uint64_t sleeps_of_service()
{
    return work_of_thread("peerhop-service").sleeps;
}

// Waits for the silence of a rank that the test stops (stop_rank, value[10]): not for that of one
// that had no core before, and beats once more.
inline bool stops(Rank &rank, int peer)
{
    if (!reaches(rank.shared->value[10], 1))
        return false;
    sleep_ms(500); // its last beat has come
    // And is seen: between two sleeps the service thread looks.
    const uint64_t slept = sleeps_of_service();
    for (Stopwatch watch; sleeps_of_service() < slept + 3; sleep_ms(1))
        if (watch.ms() > kWait)
            return false;
    return becomes(rank, peer, PH_PEER_SUSPECT);
}

inline void stop_rank(Job &job, int rank)
{
    job.signal(rank, SIGSTOP);
    job.shared()->value[10] = 1;
}

// The connections of this process end, as when it exits, and nothing else.
inline void end_connections()
{
    int ended = 0;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        int fd = atoi(entry.path().filename().c_str()), type = 0, listens = 1;
        socklen_t size_of = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size_of) == 0 && type == SOCK_SEQPACKET &&
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size_of) == 0 && !listens)
            ended += shutdown(fd, SHUT_RDWR) == 0;
    }
    CHECK(ended > 0);
}

// What comes of a release that may be held up: by ph_release_test where the argument says so.
inline int is_released(Rank &rank, void *memory)
{
    if (rank.argument.find("release_test") == std::string::npos)
        return ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, 30000);
    Stopwatch watch;
    int rc;
    while ((rc = ph_release_test(rank.context, memory, size, PH_RELEASE_DRAINED)) == -EAGAIN &&
           watch.ms() < patience(20000).count())
        sleep_ms(1);
    return rc;
}

#endif
