// SPDX-License-Identifier: BSD-3-Clause
// What the keys that a peer was given open over the net, and until when. The test keeps the route
// of a channel, as a peer would that does not keep to the book, and writes by it.
#include "support/atomic_compat.h"

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

extern "C" {
#include "net/net.h"

int __real_phi_link_route(struct phi_link *link, uint32_t id, struct phi_net_target *target,
                          uint64_t offset, struct phi_route *route);
int __wrap_phi_link_route(struct phi_link *link, uint32_t id, struct phi_net_target *target,
                          uint64_t offset, struct phi_route *route);
}

static struct phi_route kept; // the last one that was made in this process

int __wrap_phi_link_route(struct phi_link *link, uint32_t id, struct phi_net_target *target,
                          uint64_t offset, struct phi_route *route)
{
    int rc = __real_phi_link_route(link, id, target, offset, route);
    if (!rc)
        kept = *route;
    return rc;
}

static const size_t SIZE = 5000;

// Whether a write of SIZE bytes by the kept route is delivered.
static bool write_by_the_kept_route(const void *from)
{
    struct phi_move move = {};
    Stopwatch watch;
    int rc = -EAGAIN;
    move.route = &kept;
    move.local = const_cast<void *>(from);
    move.size = SIZE;
    while (rc == -EAGAIN && watch.ms() < patience(10000).count())
        rc = phi_move_start(&move);
    auto state = [&] { return atomic_load_explicit(&move.state, memory_order_acquire); };
    while (!rc && state() == PHI_MOVE_POSTED && watch.ms() < patience(10000).count())
        phi_route_poll(&kept);
    if (!rc && state() == PHI_MOVE_POSTED)
        phi_link_end(kept.link, false); // the move is on this stack
    return !rc && state() == PHI_MOVE_DONE;
}

class Regions : public OverNet
{
};

// Rank 0 owns the buffer.
RANK_FUNCTION(writes_after_the_release)
{
    rank.open();
    void *memory = rank.device->alloc(SIZE);
    rank.channel(!rank.rank, 1, role_of(rank, 1), memory, SIZE);
    rank.device->fill(memory, SIZE, 10 + rank.rank);
    rank.barrier();
    if (rank.rank == 1)
        CHECK(write_by_the_kept_route(memory)); // so that it is known to reach the buffer
    rank.barrier();
    if (rank.rank == 0) {
        rank.verify(memory, SIZE, 11, "what the channel's route writes");
        release_to(rank, memory, SIZE, PH_RELEASE_CLOSED);
        rank.device->fill(memory, SIZE, 20); // something else lies there now
    }
    rank.barrier();
    if (rank.rank == 1)
        CHECK(!write_by_the_kept_route(memory));
    rank.barrier();
    if (rank.rank == 0)
        rank.verify(memory, SIZE, 20, "what came after the release");
    rank.barrier();
}

TEST_F(Regions, AKeyOpensNothingOnceItsBufferWasGivenBack)
{
    Job job("hostnet", 2);
    EXPECT_EQ(job.run("writes_after_the_release"), "");
}
