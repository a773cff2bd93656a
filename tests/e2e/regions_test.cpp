// SPDX-License-Identifier: BSD-3-Clause
// What the keys that a peer was given open over the net, and until when. A test keeps the route of
// a channel, as a peer would that does not keep to the book, and writes by it.
#include "support/atomic_compat.h"

#include "e2e/bytes.h"
#include "e2e/exchanging.h"
#include "support/strict_net.h"

extern "C" {
#include "net/net.h"

int __real_phi_link_route(struct phi_link *link, uint32_t id, struct phi_net_target *target,
                          uint64_t offset, struct phi_route *route);
int __wrap_phi_link_route(struct phi_link *link, uint32_t id, struct phi_net_target *target,
                          uint64_t offset, struct phi_route *route);
__attribute__((weak)) bool __real_phi_staging_go(struct phi_link *link); // no net: never called
bool __wrap_phi_staging_go(struct phi_link *link);
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

// What streams have rung for waits meanwhile.
static std::atomic<bool> bells_wait;

bool __wrap_phi_staging_go(struct phi_link *link)
{
    return !bells_wait && __real_phi_staging_go(link);
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

// What either end has posted, or is about to, may not be there yet when it learns that a buffer was
// given back.
RANK_FUNCTION(gives_back_many)
{
    const char *mode = getenv("TEST_NET_STRICT");
    const bool raw = mode != nullptr && strstr(mode, "raw") != nullptr;
    int others = 0; // keys that are mapped as long as the pair lives
    rank.open();
    void *stream = rank.device->stream();
    for (int round = 0; round < 60; round++) {
        void *memory = rank.device->alloc(SIZE);
        const ph_role role = role_of(rank, round % 2);
        ph_channel *channel = rank.channel(!rank.rank, 1, role, memory, SIZE);
        CHECK(strict_count("strict_mapped") >= others + raw); // and the own one, when data comes
        bells_wait = role == PH_ROLE_RECEIVER && round % 8 == 0;
        pass(rank, channel, role, memory, SIZE, round, stream);
        rank.barrier();
        std::thread later([] {
            sleep_ms(bells_wait ? 20 : 0);
            bells_wait = false;
        });
        release_to(rank, memory, SIZE, PH_RELEASE_CLOSED);
        later.join();
        rank.barrier();
        if (round == 0)
            others = strict_count("strict_mapped");
        CHECK_EQUAL(strict_count("strict_mapped"), others);
        rank.device->release(memory);
    }
}

class Keys : public EveryDevice
{
};
INSTANTIATE_TEST_SUITE_P(Device, Keys, testing::Values("hostnet", "standinhmem"),
                         [](const auto &info) { return info.param; });

// Of a pair that lives long; a buffer's end is no end of the link.
TEST_P(Keys, AreMappedAsLongAsTheirBuffersAreUsed)
{
    Job job(GetParam(), 2);
    job.environment("PEERHOP_NET_FLUSH", "read"); // by the own keys
    job.environment("TEST_NET_HMEM", "read");
    EXPECT_EQ(job.run("gives_back_many"), "");
}
