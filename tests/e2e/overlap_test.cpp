// SPDX-License-Identifier: BSD-3-Clause
// Operations of one stream over the net that touch the same bytes, here or at the peer: each finds
// what those before it have left, though they would be under way together, and a provider may carry
// them out in any order and read what is written last of all. Ranks are threads of one process, so
// that the strict libfabric can be between them (conformance/net_strict.h: disorder).
#include <random>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"
#include "support/strict_net.h"

static const size_t SIZE = 8192, MOST = 3000; // of a buffer; of what one operation moves

enum Kind { PUT, GET, FILL, COPY, KINDS };

// `from` and `to` are offsets: of PUT and COPY `to` is at the peer, of GET and COPY `from`. FILL is
// the stream's own work, as of a program that uses its buffer again.
struct Step {
    Kind kind;
    size_t from, to, size;
    uint8_t value;

    std::string text() const
    {
        const char *const names[] = {"put", "get", "fill", "copy"};
        return std::string(names[kind]) + " " + std::to_string(from) + " -> " + std::to_string(to) +
               ", " + std::to_string(size) + " bytes; ";
    }
};

// What rank 0 has and what the peer has.
struct Memory {
    std::vector<uint8_t> own = std::vector<uint8_t>(SIZE), peers = std::vector<uint8_t>(SIZE);

    void apply(const Step &step)
    {
        std::vector<uint8_t> bytes(step.size, step.value);
        const std::vector<uint8_t> &from = step.kind == PUT ? own : peers;
        std::vector<uint8_t> &to = step.kind == PUT || step.kind == COPY ? peers : own;
        if (step.kind != FILL)
            memcpy(bytes.data(), &from[step.from], step.size);
        memcpy(&to[step.to], bytes.data(), step.size);
    }
};

static Step any_step(std::mt19937 &random, Kind kind)
{
    Step step = {kind, random() % (SIZE - MOST), random() % (SIZE - MOST), 1 + random() % MOST,
                 uint8_t(random())};
    if (kind == COPY) { // the two may not overlap
        step.from = random() % (SIZE / 2 - MOST);
        step.to = SIZE / 2 + step.from;
    }
    return step;
}

// What the two threads know of each other.
struct Meeting {
    std::atomic<uint8_t *> peers{nullptr};
    std::atomic<int> left{0};
    std::vector<uint8_t> seen = std::vector<uint8_t>(SIZE); // by the peer, when it was signalled
};

struct Fill {
    uint8_t *at;
    size_t size;
    uint8_t value;
};

static void fill(void *opaque)
{
    const Fill *what = static_cast<Fill *>(opaque);
    memset(what->at, what->value, what->size);
}

class Leader
{
  public:
    Leader(ph_channel *channel, uint8_t *own, ph_queue *queue, Meeting &meeting)
        : channel_(channel), own_(own), queue_(queue), meeting_(meeting)
    {
    }

    // One round: the steps, and a put that tells the peer.
    void round(const std::vector<Step> &steps)
    {
        Memory memory;
        std::string text;
        uint8_t *peers = meeting_.peers;
        for (size_t i = 0; i < SIZE; i++) {
            own_[i] = memory.own[i] = uint8_t(random_());
            peers[i] = memory.peers[i] = uint8_t(random_());
        }
        fills_.assign(steps.size(), {});
        for (size_t i = 0; i < steps.size(); i++) {
            issue(steps[i], i);
            memory.apply(steps[i]);
            text += steps[i].text();
        }
        const Step last = any_step(random_, PUT);
        memory.apply(last);
        ASSERT_EQ(ph_put_signal(channel_, last.to, last.from, last.size, queue_), 0);
        ASSERT_EQ(ph_wait(channel_, 0, queue_), 0);
        ASSERT_EQ(ph_queue_synchronize(queue_, patience(20000).count()), 0);
        text += last.text();
        ASSERT_TRUE(memory.own == std::vector<uint8_t>(own_, own_ + SIZE)) << "here: " << text;
        ASSERT_TRUE(memory.peers == std::vector<uint8_t>(peers, peers + SIZE)) << "there: " << text;
        ASSERT_TRUE(memory.peers == meeting_.seen) << "when the peer was told: " << text;
    }

  private:
    void issue(const Step &step, size_t number)
    {
        switch (step.kind) {
        case PUT:
            ASSERT_EQ(ph_put(channel_, step.to, step.from, step.size, queue_), 0);
            break;
        case GET:
            ASSERT_EQ(ph_get(channel_, step.to, step.from, step.size, queue_), 0);
            break;
        case COPY:
            ASSERT_EQ(ph_copy(channel_, step.to, channel_, step.from, step.size, queue_), 0);
            break;
        default:
            fills_[number] = {own_ + step.to, step.size, step.value};
            ASSERT_EQ(ph_queue_host(queue_, fill, &fills_[number]), 0);
        }
    }

    ph_channel *channel_;
    uint8_t *own_;
    ph_queue *queue_;
    Meeting &meeting_;
    std::vector<Fill> fills_;
    std::mt19937 random_{4};
};

static void follow(ph_channel *channel, const uint8_t *own, ph_queue *queue, Meeting &meeting)
{
    ASSERT_EQ(ph_wait(channel, 0, queue), 0);
    ASSERT_EQ(ph_queue_synchronize(queue, patience(20000).count()), 0);
    meeting.seen.assign(own, own + SIZE);
    ASSERT_EQ(ph_signal(channel, queue), 0);
    ASSERT_EQ(ph_queue_synchronize(queue, patience(20000).count()), 0);
}

using Program = std::vector<std::vector<Step>>;

// Over one rail writes may keep their order by themselves. In parts of 128 bytes the larger moves
// have more than can carry a post.
enum Rails { ONE_RAIL, TWO_RAILS };

// Both ranks, with a channel between their buffers.
static void
in_two_threads(const std::string &store, Rails rails,
               const std::function<void(int, uint8_t *, ph_channel *, ph_queue *)> &body)
{
    const char *const one[] = {"PEERHOP_PATH=net", "PEERHOP_NET_PROVIDER=tcp",
                               "PEERHOP_NET_PART=128", nullptr};
    const char *const two[] = {"PEERHOP_PATH=net", "PEERHOP_NET_PROVIDER=tcp",
                               "PEERHOP_NET_RAILS=2", nullptr};
    const auto begin = [&](int rank, ph_context *context) {
        void *memory = nullptr;
        ph_channel *channel = nullptr;
        ph_queue *queue = nullptr;
        ASSERT_EQ(ph_host_alloc(context, SIZE, &memory), 0);
        const ph_operation op = operation(1, !rank, PH_ROLE_BOTH, memory, SIZE);
        ASSERT_EQ(ph_exchange(context, &op, 1, &channel), 0);
        ASSERT_EQ(ph_queue_create(context, &queue), 0);
        body(rank, static_cast<uint8_t *>(memory), channel, queue);
        EXPECT_EQ(ph_queue_destroy(&queue), 0);
    };
    as_threads(2, begin, [&](ph_context_params &params) {
        params.store = store.c_str();
        params.settings = rails == ONE_RAIL ? one : two;
    });
}

static void run(const Program &program, const std::string &store, Rails rails)
{
    Meeting meeting;
    in_two_threads(store, rails, [&](int rank, uint8_t *own, ph_channel *channel, ph_queue *queue) {
        Leader leader(channel, own, queue, meeting);
        Stopwatch watch;
        if (rank == 1)
            meeting.peers = own;
        while (!meeting.peers && watch.ms() < patience(20000).count())
            sleep_ms(1);
        for (size_t i = 0; i < program.size() && !testing::Test::HasFatalFailure(); i++)
            rank == 0 ? leader.round(program[i]) : follow(channel, own, queue, meeting);
        for (meeting.left++; meeting.left < 2 && watch.ms() < patience(60000).count();)
            sleep_ms(1);
    });
}

class Overlap : public OverNet, public testing::WithParamInterface<Rails>
{
  protected:
    void SetUp() override
    {
        OverNet::SetUp();
        if (!IsSkipped())
            redis.start();
    }
    void TearDown() override
    {
        expect_nothing_refused();
    }
    RedisServer redis;
    std::mt19937 random{7};
};

// Every kind behind every other one, between the same bytes, from any or to any.
TEST_P(Overlap, OfTwo)
{
    Program program;
    for (int first = PUT; first < KINDS; first++)
        for (int second = PUT; second < KINDS; second++)
            for (int i = 0; i < 20; i++)
                program.push_back({any_step(random, Kind(first)), any_step(random, Kind(second))});
    run(program, redis.uri(), GetParam());
}

// More than may be under way.
TEST_P(Overlap, OfMany)
{
    Program program(100);
    for (std::vector<Step> &steps : program)
        for (size_t n = 3 + random() % 14; n > 0; n--)
            steps.push_back(
                any_step(random, Kind(random() % 10 < 8 ? random() % 2 : random() % KINDS)));
    run(program, redis.uri(), GetParam());
}

// The last parts of what tells the peer may go late, as they carry the post: what is written behind
// them to the same bytes stays.
TEST_P(Overlap, APutBehindAPutThatTells)
{
    enum { ROUNDS = 50 };
    std::atomic<uint8_t *> peers{nullptr};
    std::atomic<int> left{0};
    in_two_threads(redis.uri(), GetParam(),
                   [&](int rank, uint8_t *own, ph_channel *channel, ph_queue *queue) {
                       Stopwatch watch;
                       if (rank == 1)
                           peers = own;
                       while (!peers && watch.ms() < patience(20000).count())
                           sleep_ms(1);
                       for (int i = 0; i < ROUNDS && !HasFatalFailure(); i++) {
                           if (rank == 0) {
                               memset(own, 2 * i, SIZE / 2);
                               memset(own + SIZE / 2, 2 * i + 1, SIZE / 2);
                               ASSERT_EQ(ph_put_signal(channel, 0, 0, SIZE / 2, queue), 0);
                               ASSERT_EQ(ph_put(channel, 0, SIZE / 2, SIZE / 2, queue), 0);
                           }
                           ASSERT_EQ(ph_wait(channel, 0, queue), 0);
                           ASSERT_EQ(ph_queue_synchronize(queue, patience(20000).count()), 0);
                           for (size_t at = 0; rank == 0 && at < SIZE / 2; at++)
                               ASSERT_EQ(peers[at], uint8_t(2 * i + 1)) << i << ", byte " << at;
                           if (rank == 1) {
                               ASSERT_EQ(ph_signal(channel, queue), 0);
                           }
                           ASSERT_EQ(ph_queue_synchronize(queue, patience(20000).count()), 0);
                       }
                       for (left++; left < 2 && watch.ms() < patience(60000).count();)
                           sleep_ms(1);
                   });
}

// A stream that is done says nothing of its data; the channel's status does, at once.
TEST_P(Overlap, WhatFailedShowsWhenTheStreamIsDone)
{
    auto *fail_next = strict_function<void(int)>("strict_fail_next");
    if (!fail_next)
        GTEST_SKIP() << "only over the strict libfabric";
    std::atomic<int> met{0}, left{0};
    const auto reach = [](std::atomic<int> &count) {
        Stopwatch watch;
        for (count++; count < 2 && watch.ms() < patience(20000).count();)
            sleep_ms(1);
    };
    in_two_threads(redis.uri(), GetParam(),
                   [&](int rank, uint8_t *, ph_channel *channel, ph_queue *queue) {
                       reach(met);
                       if (rank == 0) {
                           fail_next(1);
                           EXPECT_EQ(ph_get(channel, 0, 0, SIZE, queue), 0);
                           EXPECT_EQ(ph_queue_synchronize(queue, patience(20000).count()), 0);
                           EXPECT_EQ(ph_channel_status(channel), PH_EPEER);
                       }
                       reach(left);
                   });
}

INSTANTIATE_TEST_SUITE_P(Over, Overlap, testing::Values(ONE_RAIL, TWO_RAILS), [](const auto &info) {
    return info.param == ONE_RAIL ? "one_rail" : "two_rails";
});
