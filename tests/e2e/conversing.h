// SPDX-License-Identifier: BSD-3-Clause
// What tests of paths share: two ranks that exchange one buffer each way, say which path they take,
// and send each other data.
#ifndef TESTS_E2E_CONVERSING_H
#define TESTS_E2E_CONVERSING_H

#include <algorithm>
#include <string>
#include <vector>

#include "e2e/exchanging.h"

static const size_t size = 5000;

static const char *const not_needed = "on one node only where ipc is known not to serve, or "
                                      "PEERHOP_PATH=net asks for it";

inline void check_report(ph_channel *channel, int outgoing, const char *path, const char *why)
{
    ph_path_report report;
    CHECK(ph_channel_path(channel, outgoing, &report, sizeof report) == 0);
    CHECK(std::string(report.path) == path);
    for (size_t i = 0; i < report.rejected_count; i++)
        if (std::string(report.rejected[i].reason).find(why) != std::string::npos)
            return;
    rank_failed(__FILE__, __LINE__, std::string("the report does not say ") + why);
}

// A message by send and recv.
inline void send_or_receive(Rank &rank, ph_channel *channel, ph_role role, void *buffer,
                            uint64_t seed, void *stream)
{
    if (role == PH_ROLE_SENDER)
        rank.device->fill(buffer, size, seed);
    CHECK_OK(role == PH_ROLE_SENDER ? ph_send(channel, size, stream)
                                    : ph_recv(channel, size, stream));
    CHECK_OK(ph_complete(channel, stream));
    rank.synchronize(stream);
    if (role == PH_ROLE_RECEIVER)
        rank.verify(buffer, size, seed, "received");
}

inline std::vector<ph_operation> both_ways(int peer, char *own)
{
    return {operation(1, peer, PH_ROLE_SENDER, own, size),
            operation(1, peer, PH_ROLE_RECEIVER, own + size, size)};
}

// Both ways at once, one after the other by put, and by send.
inline void converse(Rank &rank, int peer, const std::vector<ph_channel *> &channels, char *own)
{
    void *stream = rank.device->stream();
    rank.device->fill(own, size, rank.rank);
    ph_group_op group[] = {{PH_GROUP_SEND, channels[0], 0, 0, size},
                           {PH_GROUP_RECV, channels[1], 0, 0, size}};
    CHECK_OK(ph_group(group, 2, stream));
    rank.synchronize(stream);
    rank.verify(own + size, size, peer, "from a peer");
    CHECK_OK(ph_put_signal(channels[0], 0, 0, 0, stream)); // it may be overwritten now
    CHECK_OK(ph_wait(channels[1], 0, stream));
    rank.synchronize(stream);
    for (int sender : {std::min(rank.rank, peer), std::max(rank.rank, peer)}) {
        const ph_role role = role_of(rank, sender);
        const int incoming = role == PH_ROLE_RECEIVER;
        pass(rank, channels[incoming], role, own + incoming * size, size, 10 + sender, stream);
        send_or_receive(rank, channels[incoming], role, own + incoming * size, 20 + sender, stream);
    }
}

#endif
