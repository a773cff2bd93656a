// SPDX-License-Identifier: BSD-3-Clause
// Crossed orders are named, and only those: not where a rank that has what it waits for has no
// core.
#include "e2e/crossed_pause.h"
#include "e2e/exchanging.h"

class Crossed : public testing::Test
{
  protected:
    void SetUp() override
    {
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
    }
};

static const size_t size = 5000;

// ---- crossed

static int exchange_for(Rank &rank, const ph_operation &op, int64_t ms)
{
    ph_exchange_request *request = nullptr;
    ph_channel *channel = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    return ph_exchange_finish(&request, &channel, patience(ms).count());
}

// The keys of a ring: op i between rank i and rank i + 1. Each rank exchanges the one with the next
// rank first. On a busy machine one may come when another's time is over: then all try again.
// value[i]: how many ranks have named the cycle in try i.
static std::string cross(Rank &rank, const ph_operation &out)
{
    for (int i = 0; i < 20; i++) {
        rank.barrier();
        const int rc = exchange_for(rank, out, 600 << i / 4);
        CHECK(rc == PH_ECROSSED || rc == -ETIMEDOUT);
        std::string sentence = rank.error();
        rank.shared->value[i] += rc == PH_ECROSSED;
        rank.barrier();
        if (rank.shared->value[i] == static_cast<uint64_t>(rank.ranks))
            return sentence;
    }
    return "nobody found it";
}

RANK_FUNCTION(crossed_ring)
{
    rank.open();
    const int n = rank.ranks, next = (rank.rank + 1) % n, last = (rank.rank + n - 1) % n;
    void *memory = rank.device->alloc(2 * size);
    char *second = static_cast<char *>(memory) + size;
    uint64_t to_next = 10 + rank.rank, to_last = 10 + last;
    auto out = operation(to_next, next, PH_ROLE_SENDER, memory, size);
    auto in = operation(to_last, last, PH_ROLE_RECEIVER, second, size);
    std::string sentence = cross(rank, out);
    CHECK_SAYS(sentence, "crossed exchange order");
    CHECK_SAYS(sentence, "rank " + std::to_string(rank.rank) + " waits for rank " +
                             std::to_string(next) + " (operation " + std::to_string(to_next) + ")");
    for (int i = 1; i < n; i++) { // the rest of the cycle, back to this rank
        int from = (rank.rank + i) % n;
        CHECK_SAYS(sentence, "rank " + std::to_string(from) + " waits for rank " +
                                 std::to_string((from + 1) % n) + " (operation " +
                                 std::to_string(10 + from) + ")");
    }
    rank.barrier();

    // In two halves it is free of order.
    ph_exchange_request *first_half, *second_half;
    ph_channel *to, *from;
    CHECK_OK(ph_exchange_start(rank.context, &out, 1, &first_half));
    CHECK_OK(ph_exchange_start(rank.context, &in, 1, &second_half));
    CHECK_OK(ph_exchange_finish(&first_half, &to, patience(20000).count()));
    CHECK(first_half == nullptr);
    CHECK_OK(ph_exchange_finish(&second_half, &from, patience(20000).count()));
    void *stream = rank.device->stream();
    rank.device->fill(memory, size, rank.rank);
    CHECK_OK(ph_put_signal(to, 0, 0, size, stream));
    CHECK_OK(ph_wait(from, size, stream));
    rank.synchronize(stream);
    rank.verify(second, size, last, "from the last rank");
    rank.barrier();
}

TEST_F(Crossed, OrderOfTwoRanksIsNamed)
{
    Job job("host", 2);
    EXPECT_EQ(job.run("crossed_ring"), "");
}

TEST_F(Crossed, OrderOfThreeRanksIsNamed)
{
    Job job("host", 3);
    EXPECT_EQ(job.run("crossed_ring"), "");
}

// Whether ipc serves them is tried first.
TEST_F(Crossed, OrderOfRanksThatSeeTheirOwnDevicesOnlyIsNamed)
{
    std::string why;
    if (!net_available() || !device_available("standin", &why))
        GTEST_SKIP() << "needs libfabric and the stand-in. " << why;
    Job job("standin", 3);
    job.environment("PEERHOP_STANDIN_DEVICES", "3");
    for (int rank = 0; rank < 3; rank++)
        job.environment(rank, "CUDA_VISIBLE_DEVICES", std::to_string(rank));
    EXPECT_EQ(job.run("crossed_ring"), "");
}

// ---- not crossed: whoever seems to be in a cycle has all that it waits for, or will have it

static Rank *here;

// value[0]: a rank has come to its wait; value[1]: it may go on.
static void without_a_core()
{
    here->shared->value[0] = 1;
    if (!reaches(here->shared->value[1], 1, 30000))
        rank_failed(__FILE__, __LINE__, "the test does not go on");
}

static void open_slow(Rank &rank)
{
    here = &rank;
    rank.open({"PEERHOP_SPIN_US=0"});
}

static ph_operation op_with(Rank &rank, uint64_t id, int peer, void *memory)
{
    return operation(id, peer, rank.rank < peer ? PH_ROLE_SENDER : PH_ROLE_RECEIVER, memory, size);
}

// Rank 0 takes what rank 1 waits for, and goes on to what rank 1 has not come to.
RANK_FUNCTION(peer_has_what_it_waits_for)
{
    open_slow(rank);
    void *memory = rank.device->alloc(size);
    const ph_operation one = op_with(rank, 1, !rank.rank, memory);
    const ph_operation two = op_with(rank, 2, !rank.rank, memory);
    exchange_all(rank, {one});
    rank.barrier();
    if (rank.rank == 1) {
        pause_in_wait(without_a_core);
        exchange_all(rank, {one});
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        exchange_all(rank, {one});
        CHECK_RC(exchange_for(rank, two, 300), -ETIMEDOUT);
        rank.shared->value[1] = 1;
    }
    exchange_all(rank, {two});
    rank.barrier();
}

TEST_F(Crossed, NotWhereThePeerHasWhatItWaitsFor)
{
    Job job("host", 2);
    EXPECT_EQ(job.run("peer_has_what_it_waits_for"), "");
}

// Rank 0 waits for rank 1, that for rank 2, and that one for rank 0; but what rank 1 waits for is
// started there.
RANK_FUNCTION(started_by_a_third)
{
    open_slow(rank);
    void *memory = rank.device->alloc(size);
    const int a = rank.rank, peers[] = {(a + 1) % 3, (a + 2) % 3};
    exchange_all(rank, {op_with(rank, 9, peers[0], memory), op_with(rank, 9, peers[1], memory)});
    rank.barrier();
    ph_exchange_request *request = nullptr;
    ph_channel *channel = nullptr;
    if (rank.rank == 0) {
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK(reaches(rank.shared->value[2], 1));
        CHECK_RC(exchange_for(rank, op_with(rank, 1, 1, memory), 500), -ETIMEDOUT);
        rank.shared->value[1] = 1;
        exchange_all(rank, {op_with(rank, 1, 1, memory)});
        exchange_all(rank, {op_with(rank, 3, 2, memory)});
    } else if (rank.rank == 1) {
        CHECK(reaches(rank.shared->value[0], 1));
        const ph_operation with_2 = op_with(rank, 2, 2, memory);
        CHECK_OK(ph_exchange_start(rank.context, &with_2, 1, &request));
        rank.shared->value[2] = 1;
        CHECK_OK(ph_exchange_finish(&request, &channel, patience(20000).count()));
        exchange_all(rank, {op_with(rank, 1, 0, memory)});
    } else {
        const ph_operation with_1 = op_with(rank, 2, 1, memory);
        CHECK_OK(ph_exchange_start(rank.context, &with_1, 1, &request));
        pause_in_wait(without_a_core);
        exchange_all(rank, {op_with(rank, 3, 0, memory)});
        CHECK_OK(ph_exchange_finish(&request, &channel, patience(20000).count()));
    }
    rank.barrier();
}

TEST_F(Crossed, NotWhereItIsStartedElsewhere)
{
    Job job("host", 3);
    EXPECT_EQ(job.run("started_by_a_third"), "");
}

// The same three, but rank 2 comes to rank 1 and goes on to rank 0 after rank 1 was asked, and
// before rank 2 is.
static void let_rank_2_go_on()
{
    here->shared->value[3] = 1;
    if (!reaches(here->shared->value[4], 1))
        rank_failed(__FILE__, __LINE__, "rank 2 does not go on");
}

static void goes_on_waiting()
{
    here->shared->value[4] = 1;
    sleep_ms(1);
}

RANK_FUNCTION(a_third_goes_on)
{
    open_slow(rank);
    void *memory = rank.device->alloc(size);
    const int a = rank.rank, peers[] = {(a + 1) % 3, (a + 2) % 3};
    const uint64_t ids[] = {1 + 0 + 1, 1 + 0 + 2, 1 + 1 + 2}; // by the sum of the ranks
    std::vector<ph_operation> all;
    for (int peer : peers)
        all.push_back(op_with(rank, ids[a + peer - 1], peer, memory));
    exchange_all(rank, all);
    rank.barrier();
    if (rank.rank == 0) {
        CHECK(reaches(rank.shared->value[0], 1));
        act_between_questions(let_rank_2_go_on);
        CHECK_RC(exchange_for(rank, op_with(rank, ids[0], 1, memory), 500), -ETIMEDOUT);
        CHECK(rank.shared->value[4] == 1);
        rank.shared->value[1] = 1;
        exchange_all(rank, {op_with(rank, ids[0], 1, memory)});
        exchange_all(rank, {op_with(rank, ids[1], 2, memory)});
    } else if (rank.rank == 1) {
        pause_in_wait(without_a_core);
        exchange_all(rank, {op_with(rank, ids[2], 2, memory)});
        exchange_all(rank, {op_with(rank, ids[0], 0, memory)});
    } else {
        CHECK(reaches(rank.shared->value[3], 1));
        exchange_all(rank, {op_with(rank, ids[2], 1, memory)});
        pause_in_wait(goes_on_waiting);
        exchange_all(rank, {op_with(rank, ids[1], 0, memory)});
    }
    rank.barrier();
}

TEST_F(Crossed, NotWhereOneHasGoneOnMeanwhile)
{
    Job job("host", 3);
    EXPECT_EQ(job.run("a_third_goes_on"), "");
}

// ---- roles

static void until_the_peer_waits_again(int value)
{
    if (!reaches(here->shared->value[value], 1))
        rank_failed(__FILE__, __LINE__, "rank 0 does not go on");
    sleep_ms(50);
}

// Rank 1 asks about its role, and rank 0 has come meanwhile: when it answers it waits in the
// operation again, in the other role.
RANK_FUNCTION(asks_late_about_roles)
{
    open_slow(rank);
    void *memory = rank.device->alloc(size);
    auto one = operation(6, !rank.rank, role_of(rank, 0), memory, size);
    auto back = operation(6, !rank.rank, role_of(rank, 1), memory, size);
    exchange_all(rank, {one, back});
    rank.barrier();
    if (rank.rank == 1) {
        pause_before_roles([] { until_the_peer_waits_again(0); });
        exchange_all(rank, {one});
        CHECK(rank.shared->value[0] == 1);
    } else {
        sleep_ms(100); // so that rank 1 asks
        exchange_all(rank, {one});
        rank.shared->value[0] = 1;
    }
    exchange_all(rank, {back});
    rank.barrier();
}

TEST_F(Crossed, RolesAreNotJudgedByAQuestionThatIsOver)
{
    for (const char *device : {"host", "hostnet"}) {
        SCOPED_TRACE(device);
        Job job(device, 2);
        EXPECT_EQ(job.run("asks_late_about_roles"), "");
    }
}

static void until_the_peer_has_left()
{
    here->shared->value[0] = 1;
    if (!reaches(here->shared->value[1], 1))
        rank_failed(__FILE__, __LINE__, "rank 0 does not leave");
    sleep_ms(100); // so that this rank knows
}

// Rank 0 is told of the roles and leaves, while rank 1, which is told so as well, has no core.
RANK_FUNCTION(leaves_for_its_roles)
{
    open_slow(rank);
    void *memory = rank.device->alloc(size);
    const auto sound = operation(5, !rank.rank, PH_ROLE_BOTH, memory, size);
    const auto wrong = operation(6, !rank.rank, PH_ROLE_SENDER, memory, size);
    exchange_all(rank, {sound});
    rank.barrier();
    if (rank.rank == 1)
        pause_in_wait(until_the_peer_has_left);
    else
        CHECK(reaches(rank.shared->value[0], 1));
    CHECK_RC(exchange_for(rank, wrong, patience(20000).count()), PH_EMISMATCH);
    CHECK_SAYS(rank.error(), "one must be the sender and the other the receiver");
    if (rank.rank == 0) {
        rank.close();
        rank.shared->value[1] = 1;
    }
}

TEST_F(Crossed, RolesAreToldAlsoWhereThePeerHasLeft)
{
    for (const char *device : {"host", "hostnet"}) {
        SCOPED_TRACE(device);
        Job job(device, 2);
        EXPECT_EQ(job.run("leaves_for_its_roles"), "");
    }
}

static void tell_held()
{
    here->shared->value[0] = 1;
}

// The question comes when rank 1 has given up to wait for its answer, and both have gone on: from
// before its first round ("1"), or from one that both of its words have forgotten.
RANK_FUNCTION(asks_too_late_about_roles)
{
    open_slow(rank);
    void *memory = rank.device->alloc(size);
    const int rounds = std::stoi(rank.argument);
    auto other = operation(5, !rank.rank, PH_ROLE_BOTH, memory, size);
    auto one = operation(6, !rank.rank, role_of(rank, 0), memory, size);
    auto back = operation(6, !rank.rank, role_of(rank, 1), memory, size);
    exchange_all(rank, {other});
    if (rounds > 1)
        exchange_all(rank, {one, back});
    rank.barrier();
    if (rank.rank == 1)
        hold_roles(tell_held);
    else
        CHECK(reaches(rank.shared->value[0], 1));
    for (int i = 0; i < rounds; i++)
        exchange_all(rank, {one});
    if (rank.rank == 1) {
        until_the_peer_waits_again(1);
        CHECK_OK(send_held_roles());
    } else {
        rank.shared->value[1] = 1;
    }
    exchange_all(rank, {back});
    rank.barrier();
}

TEST_F(Crossed, RolesAreNotJudgedByAQuestionOfLongAgo)
{
    for (const char *device : {"host", "hostnet"})
        for (const char *rounds : {"1", "3"}) {
            SCOPED_TRACE(std::string(device) + " " + rounds);
            Job job(device, 2);
            EXPECT_EQ(job.run("asks_too_late_about_roles", rounds), "");
        }
}
