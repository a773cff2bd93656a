// SPDX-License-Identifier: BSD-3-Clause
// Every rank meets every other one, and has used what it met by.
#ifndef TESTS_E2E_MEETING_H
#define TESTS_E2E_MEETING_H

#include <vector>

#include "e2e/exchanging.h"

// A channel each way with every other rank, op 1, with buffers of `size` bytes, and one
// message on each.
inline std::vector<ph_channel *> meet_all(Rank &rank, size_t size, char *memory, void *stream)
{
    std::vector<ph_operation> ops;
    std::vector<ph_group_op> group;
    for (int peer = 0; peer < rank.ranks; peer++) {
        if (peer == rank.rank)
            continue;
        ops.push_back(operation(1, peer, PH_ROLE_SENDER, memory + 2 * peer * size, size));
        ops.push_back(operation(1, peer, PH_ROLE_RECEIVER, memory + (2 * peer + 1) * size, size));
        rank.device->fill(memory + 2 * peer * size, size, rank.rank);
    }
    auto channels = exchange_all(rank, ops);
    for (size_t i = 0; i < channels.size(); i++)
        group.push_back({i % 2 ? PH_GROUP_RECV : PH_GROUP_SEND, channels[i], 0, 0, size});
    CHECK_OK(ph_group(group.data(), group.size(), stream));
    rank.synchronize(stream);
    for (int peer = 0; peer < rank.ranks; peer++)
        if (peer != rank.rank)
            rank.verify(memory + (2 * peer + 1) * size, size, peer, "from a peer");
    return channels;
}

inline std::vector<ph_channel *> meet_all(Rank &rank, size_t size)
{
    return meet_all(rank, size, static_cast<char *>(rank.device->alloc(2 * rank.ranks * size)),
                    rank.device->stream());
}

#endif
