// SPDX-License-Identifier: BSD-3-Clause
// What tests of copies between two other ranks share. Rank 0 copies, rank 1 has the source, and the
// last rank the target; of two ranks rank 1 has both.
#ifndef TESTS_E2E_THIRD_H
#define TESTS_E2E_THIRD_H

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

inline const size_t BIG = (4 << 20) + 3; // more than what passes at once over the net

// What a rank has of a copy: the channel with the source's owner, and that with the target's.
struct Third {
    explicit Third(Rank &owner, size_t bytes = BIG + 8192)
        : rank(owner), size(bytes), target_rank(owner.ranks - 1), copies(owner.rank == 0),
          has_source(owner.rank == 1), has_target(owner.rank == target_rank),
          source(owner, has_source ? size : 64, 333), target(owner, has_target ? size : 64, 4097),
          stream(owner.device->stream())
    {
        std::vector<ph_operation> ops;
        source.poison(source.size);
        target.poison(target.size);
        if (copies || has_source)
            ops.push_back(operation(1, copies ? 1 : 0, PH_ROLE_BOTH, source.data, source.size));
        if (copies || has_target)
            ops.push_back(
                operation(2, copies ? target_rank : 0, PH_ROLE_BOTH, target.data, target.size));
        auto channels = exchange_all(rank, ops);
        from = copies || has_source ? channels[0] : nullptr;
        to = copies || has_target ? channels.back() : nullptr;
    }

    // The buffers of rank 0 itself are no part of a copy.
    void check_own()
    {
        if (!copies)
            return;
        source.check(0, 0, source.size, "rank 0's own buffer towards the source");
        target.check(0, 0, target.size, "rank 0's own buffer towards the target");
    }

    Rank &rank;
    size_t size;
    int target_rank;
    bool copies, has_source, has_target;
    Buffer source, target;
    void *stream;
    ph_channel *from, *to;
};

// The owner that gives its buffer back, or dies, or stops.
inline int who_goes(const Rank &rank)
{
    return rank.argument.find("source") == 0 ? 1 : 2;
}

// The channel with an owner that is still there can be used.
inline void expect_good(Third &third, bool source)
{
    Rank &rank = third.rank;
    ph_channel *good = source ? third.from : third.to;
    CHECK_OK(ph_channel_ended(good));
    if (source)
        CHECK_OK(ph_get(good, 0, 0, 8, third.stream));
    else
        CHECK_OK(ph_put(good, 0, 0, 8, third.stream));
    rank.synchronize(third.stream);
}

#endif
