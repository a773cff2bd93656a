// SPDX-License-Identifier: BSD-3-Clause
// What came before its sender left the job is taken whenever the sender leaves: in the middle of
// the call that takes it, or while a stream still has the call before.
#include "e2e/exchanging.h"

class Late : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Late);

static const size_t size = 1000;

// ---- between the checks of a call and what it enqueues

static std::function<void()> before_issue; // once

extern "C" {
struct phi_self;
struct phi_channel_call;
struct phi_helps;
int __real_phi_issue(struct phi_self *peers, const struct phi_channel_call *calls, size_t n,
                     const struct phi_helps *helps, void *stream, bool *begun);
int __wrap_phi_issue(struct phi_self *peers, const struct phi_channel_call *calls, size_t n,
                     const struct phi_helps *helps, void *stream, bool *begun);
int __wrap_phi_issue(struct phi_self *peers, const struct phi_channel_call *calls, size_t n,
                     const struct phi_helps *helps, void *stream, bool *begun)
{
    if (before_issue)
        std::exchange(before_issue, nullptr)();
    return __real_phi_issue(peers, calls, n, helps, stream, begun);
}
}

// Rank 0 sends one message, by the call that rank 1 has for it, and leaves when rank 1 says so.
static void send_and_leave(Rank &rank, ph_channel *channel, void *memory, size_t bytes,
                           bool signals)
{
    void *stream = rank.device->stream();
    rank.device->fill(memory, bytes, 1);
    CHECK_OK(signals ? ph_put_signal(channel, 0, 0, bytes, stream)
                     : ph_send(channel, bytes, stream));
    rank.synchronize(stream);
    rank.shared->value[0] = 1;
    CHECK(reaches(rank.shared->value[1], 1));
    rank.close();
}

RANK_FUNCTION(is_left_during_a_call)
{
    const bool large = rank.argument.find("large") != std::string::npos;
    const size_t bytes = large ? 100000 : size; // by sm and by ll, where the devices can
    rank.open();
    const std::string how = rank.argument.substr(0, rank.argument.find(' '));
    const bool get = rank.argument.find("get") != std::string::npos;
    const bool signals = rank.argument.find("wait") != std::string::npos;
    const bool comes_first = !signals && how != "complete"; // before its receiver does anything
    void *memory = rank.device->alloc(bytes), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, bytes,
                                       get ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT);
    if (comes_first && !rank.sends_alone(channel, rank.rank == 0, bytes)) {
        fprintf(stderr, "%s: not here, a send waits for its receiver\n", rank.argument.c_str());
        return;
    }
    if (rank.rank == 0)
        return send_and_leave(rank, channel, memory, bytes, signals);
    if (how == "complete")
        CHECK_OK(ph_recv(channel, bytes, stream));
    CHECK(reaches(rank.shared->value[0], 1));
    before_issue = [&] {
        rank.shared->value[1] = 1;
        CHECK_RC(end_of(channel), PH_EPEER);
    };
    const ph_group_op op = {signals ? PH_GROUP_WAIT : PH_GROUP_RECV, channel, 0, 0, bytes};
    if (how == "group")
        CHECK_OK(ph_group(&op, 1, stream));
    else if (how == "wait")
        CHECK_OK(ph_wait(channel, bytes, stream));
    else if (how == "recv")
        CHECK_OK(ph_recv(channel, bytes, stream));
    else
        CHECK_OK(ph_complete(channel, stream));
    CHECK(!before_issue); // it has left by now
    if (how == "recv")
        CHECK_OK(ph_complete(channel, stream));
    rank.synchronize(stream);
    rank.verify(memory, bytes, 1, "what was sent");
}

TEST_P(Late, IsTakenByACallDuringWhichTheSenderLeaves)
{
    for (const char *how : {"wait", "group wait", "complete put", "complete put large", "recv put",
                            "recv get", "group put", "group get"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("is_left_during_a_call", how), "");
    }
}

// Of an unbound channel: where its messages go by slots a send waits for nobody.
RANK_FUNCTION(is_left_during_a_receive)
{
    const size_t bytes = 100000;
    rank.open();
    void *memory = rank.device->alloc(bytes), *stream = rank.device->stream();
    const ph_operation operation = {.op_id = 1, .peer = !rank.rank, .role = PH_ROLE_BOTH};
    ph_channel *channel;
    CHECK_OK(ph_exchange(rank.context, &operation, 1, &channel));
    if (rank.rank == 0) {
        rank.device->fill(memory, bytes, 1);
        CHECK_OK(ph_send_from(channel, memory, bytes, stream));
        rank.synchronize(stream);
        rank.shared->value[0] = 1;
        CHECK(reaches(rank.shared->value[1], 1));
        return rank.close();
    }
    CHECK(reaches(rank.shared->value[0], 1));
    before_issue = [&] {
        rank.shared->value[1] = 1;
        CHECK_RC(end_of(channel), PH_EPEER);
    };
    CHECK_OK(ph_recv_into(channel, memory, bytes, stream));
    CHECK(!before_issue);
    rank.synchronize(stream);
    rank.verify(memory, bytes, 1, "what was sent");
    CHECK_RC(ph_recv_into(channel, nullptr, bytes, stream), PH_EPEER);
}

TEST_P(Late, IsTakenByAReceiveIntoDuringWhichTheSenderLeaves)
{
    if (!on_net() || on_host())
        GTEST_SKIP() << "a send waits for its receiver";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_left_during_a_receive"), "");
}

// ---- behind a call that is not over

// Rank 0 waits in one operation for rank 1 and rank 2, and then for rank 1's second message. That
// one is there, and rank 1 leaves, before the operation is over.
RANK_FUNCTION(waits_behind_another)
{
    rank.open(rank.argument == "words"
                  ? std::vector<std::string>{"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"}
                  : std::vector<std::string>{});
    void *memory[] = {rank.device->alloc(size), rank.device->alloc(size)};
    void *stream = rank.device->stream();
    if (rank.rank > 0) {
        ph_channel *channel = rank.channel(0, 1, PH_ROLE_SENDER, memory[0], size);
        if (rank.rank == 1)
            CHECK_OK(ph_signal(channel, stream));
        else
            CHECK(reaches(rank.shared->value[0], 1));
        sleep_ms(rank.rank == 1 ? 0 : 50); // rank 0's call begins
        rank.device->fill(memory[0], size, static_cast<uint64_t>(rank.rank));
        CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
        rank.synchronize(stream);
        return; // and leaves
    }
    ph_channel *first = rank.channel(1, 1, PH_ROLE_RECEIVER, memory[0], size);
    ph_channel *other = rank.channel(2, 1, PH_ROLE_RECEIVER, memory[1], size);
    const ph_group_op both[] = {{PH_GROUP_WAIT, first, 0, 0, 0},
                                {PH_GROUP_WAIT, other, 0, 0, size}};
    CHECK_OK(ph_group(both, 2, stream));
    CHECK_RC(end_of(first), PH_EPEER);
    CHECK(!rank.device->synchronize(stream, 5));
    rank.shared->value[0] = 1;
    Stopwatch watch;
    int rc = ph_wait(first, size, stream);
    CHECK(rc == 0 || watch.ms() >= 1000); // it has waited for the operation, if in vain
    while (rc && watch.ms() < patience(20000).count())
        rc = ph_wait(first, size, stream);
    CHECK_RC(rc, 0);
    rank.synchronize(stream);
    rank.verify(memory[0], size, 1, "of rank 1");
    rank.verify(memory[1], size, 2, "of rank 2");
}

TEST_P(Late, IsTakenBehindWhatIsNotOver)
{
    for (const char *how : {"words", "flags"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 3);
        EXPECT_EQ(job.run("waits_behind_another", how), "");
    }
}

// ---- on its way while its buffer is given back

static std::atomic<bool> net_rests; // and takes none of what streams give it

extern "C" {
struct phi_link;
struct phi_route;
__attribute__((weak)) bool __real_phi_staging_go(struct phi_link *link);
__attribute__((weak)) void __real_phi_posts_go(struct phi_link *link);
__attribute__((weak)) void __real_phi_link_unhold(const struct phi_route *route);
bool __wrap_phi_staging_go(struct phi_link *link);
void __wrap_phi_posts_go(struct phi_link *link);
void __wrap_phi_link_unhold(const struct phi_route *route);

bool __wrap_phi_staging_go(struct phi_link *link)
{
    return !net_rests && __real_phi_staging_go(link);
}

void __wrap_phi_posts_go(struct phi_link *link)
{
    if (!net_rests)
        __real_phi_posts_go(link);
}

void __wrap_phi_link_unhold(const struct phi_route *route)
{
    if (!net_rests)
        __real_phi_link_unhold(route);
}
}

// Rank 0 signals, with data where that goes through slots, and releases its buffer at once; or does
// both before its stream comes to the signal.
static void signal_and_release(Rank &rank, ph_channel *channel, void *memory, size_t bytes)
{
    void *stream = rank.device->stream();
    std::atomic<bool> released{rank.argument.find("behind") == std::string::npos};
    rank.device->fill(memory, size, 1);
    if (!released)
        rank.device->call(stream, [&] {
            while (!released)
                sleep_ms(1);
        });
    net_rests = true;
    CHECK_OK(bytes ? ph_put_signal(channel, 0, 0, bytes, stream) : ph_signal(channel, stream));
    if (released)
        rank.synchronize(stream);
    CHECK_OK(ph_release_start(rank.context, memory, size));
    sleep_ms(200); // what is told too early comes first
    released = true;
    rank.synchronize(stream);
    sleep_ms(200);
    net_rests = false;
    CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, kWait));
}

RANK_FUNCTION(is_released_early)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
    const size_t bytes = rank.staged() ? size : 0;
    if (rank.rank == 1 && rank.argument != "after")
        CHECK_OK(ph_wait(channel, bytes, stream));
    rank.barrier();
    if (rank.rank == 0) {
        signal_and_release(rank, channel, memory, bytes);
    } else {
        CHECK_RC(end_of(channel), -ESTALE);
        if (rank.argument == "after")
            CHECK_OK(ph_wait(channel, bytes, stream));
        rank.synchronize(stream);
        CHECK_RC(ph_channel_ended(channel), -ESTALE); // no wait was given up
        if (bytes)
            rank.verify(memory, bytes, 1, "of a released buffer");
    }
    rank.barrier();
}

TEST_P(Late, IsTakenOfABufferThatIsGivenBackMeanwhile)
{
    for (const char *waits : {"before", "after", "before, behind"}) {
        if (on_host() && strstr(waits, "behind"))
            continue; // its function would run at once
        SCOPED_TRACE(waits);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("is_released_early", waits), "");
    }
}

// ---- told of after what its sender said later, or never

// What the net of a rank is told of posts that come, and what it takes down when its peer leaves,
// gives a buffer back or lets go of a channel: the posts that the peer had told by then.
static std::atomic<bool> posts_are_late;
static std::atomic<uint64_t> never_come; // so many more the peer claims to have told
static std::atomic<uint64_t> told;       // how often it took that down
static std::atomic<std::chrono::steady_clock::time_point> told_at;

extern "C" {
struct phi_net_told {
    uint64_t posts;
    int64_t until;
};
__attribute__((weak)) void __real_phi_posts_arrive(struct phi_link *link, uint64_t data);
__attribute__((weak)) void __real_phi_ports_check(struct phi_link *link);
__attribute__((weak)) void __real_phi_link_told(struct phi_link *link, struct phi_net_told *told);
void __wrap_phi_posts_arrive(struct phi_link *link, uint64_t data);
void __wrap_phi_ports_check(struct phi_link *link);
void __wrap_phi_link_told(struct phi_link *link, struct phi_net_told *told);

static std::vector<uint64_t> late_posts; // of a rank's one link; under its net's lock

void __wrap_phi_posts_arrive(struct phi_link *link, uint64_t data)
{
    if (posts_are_late || !late_posts.empty()) // in order
        late_posts.push_back(data);
    else
        __real_phi_posts_arrive(link, data);
}

void __wrap_phi_ports_check(struct phi_link *link) // with each poll
{
    if (!posts_are_late)
        for (uint64_t data : std::exchange(late_posts, {}))
            __real_phi_posts_arrive(link, data);
    __real_phi_ports_check(link);
}

void __wrap_phi_link_told(struct phi_link *link, struct phi_net_told *what)
{
    told_at = std::chrono::steady_clock::now();
    __real_phi_link_told(link, what);
    if (posts_are_late)
        what->until += int64_t(patience(60000).count()) * 1000000; // this process may stand still
    what->posts = what->posts + never_come < what->posts ? UINT64_MAX : what->posts + never_come;
    told++;
}
}

// Rank 0 gives its buffer back while its stream has a signal still to send, with data where that
// goes through slots: rank 1 hears that rank 0 lets go of the channel before it is told of the
// signal.
RANK_FUNCTION(is_let_go_early)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    void *other_memory = rank.device->alloc(size), *other_stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
    ph_channel *gate = rank.channel(!rank.rank, 2, role_of(rank, 1), other_memory, size);
    const size_t bytes = rank.staged() ? size : 0;
    if (rank.rank == 0) {
        rank.device->fill(memory, size, 1);
        CHECK_OK(ph_wait(gate, 0, stream));
        CHECK_OK(bytes ? ph_put_signal(channel, 0, 0, bytes, stream) : ph_signal(channel, stream));
        rank.barrier(); // a wait that comes after the release is refused
        CHECK_OK(ph_release_start(rank.context, memory, size));
        rank.barrier();
        CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, kWait));
        rank.synchronize(stream);
    } else {
        CHECK_OK(ph_wait(channel, bytes, stream));
        rank.barrier();
        rank.barrier();
        CHECK_RC(end_of(channel), -ESTALE);
        CHECK(reaches(told, 2)); // of the release, and of the end of the allocation
        posts_are_late = true;
        CHECK_OK(ph_signal(gate, other_stream));
        rank.synchronize(other_stream);
        CHECK(reaches(told, 3));
        sleep_ms(200); // the wait would be given up
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
        CHECK(!rank.device->synchronize(stream, 0));
        posts_are_late = false;
        rank.synchronize(stream);
        CHECK_RC(ph_channel_ended(channel), -ESTALE);
        if (bytes)
            rank.verify(memory, bytes, 1, "told of late");
    }
    rank.barrier();
}

TEST_P(Late, IsTakenWhereItsSenderHasLetGo)
{
    if (!on_net())
        GTEST_SKIP() << "words and messages take one way";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_let_go_early"), "");
}

// Rank 0 signals, with data where that goes through slots, and gives its buffer back: rank 1 hears
// of that before it is told of the signal, and only then calls for it.
RANK_FUNCTION(is_released_before_it_is_told)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
    const size_t bytes = rank.staged() ? size : 0;
    posts_are_late = rank.rank == 1;
    rank.barrier();
    if (rank.rank == 0) {
        rank.device->fill(memory, size, 1);
        CHECK_OK(bytes ? ph_put_signal(channel, 0, 0, bytes, stream) : ph_signal(channel, stream));
        rank.synchronize(stream);
        CHECK_OK(ph_release_start(rank.context, memory, size));
        CHECK_OK(ph_release_wait(rank.context, memory, size, PH_RELEASE_DRAINED, kWait));
    } else {
        const ph_group_op op = {PH_GROUP_WAIT, channel, 0, 0, bytes};
        CHECK(reaches(told, 1));
        sleep_ms(50);
        CHECK_OK(rank.argument == "group" ? ph_group(&op, 1, stream)
                                          : ph_wait(channel, bytes, stream));
        CHECK(!rank.device->synchronize(stream, 0));
        posts_are_late = false;
        rank.synchronize(stream);
        if (bytes)
            rank.verify(memory, bytes, 1, "told of late");
        CHECK_RC(end_of(channel), -ESTALE);
    }
    rank.barrier();
}

TEST_P(Late, IsTakenWhereItsSenderHasReleasedItsBuffer)
{
    if (!on_net())
        GTEST_SKIP() << "words and messages take one way";
    for (const char *how : {"wait", "group"}) {
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("is_released_before_it_is_told", how), "");
    }
}

// The same of a provider that is late by itself: over and over, with all that a release says.
RANK_FUNCTION(is_released_again_and_again)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    for (uint64_t round = 0; round < 20; round++) {
        ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
        rank.device->fill(memory, size, 1000);
        rank.barrier();
        if (rank.rank == 0) {
            rank.device->fill(memory, size, round);
            CHECK_OK(ph_put_signal(channel, 0, 0, size, stream));
            rank.synchronize(stream);
            CHECK_OK(ph_release_start(rank.context, memory, size));
            rank.shared->value[0] = round + 1;
        } else {
            CHECK(reaches(rank.shared->value[0], round + 1));
            sleep_ms(round % 4); // before it is told of the release, or after it
            CHECK_OK(ph_wait(channel, size, stream));
            rank.synchronize(stream);
            rank.verify(memory, size, round, "of a buffer that was released");
            CHECK_RC(end_of(channel), -ESTALE);
        }
        CHECK_OK(ph_channel_close(channel));
        rank.barrier();
    }
    rank.close();
}

TEST_P(Late, IsTakenOfOneReleaseAfterAnother)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_released_again_and_again"), "");
}

// Posts are lost that have not come a second after the peer said that it leaves; of one that lies,
// too. It is kept for so long, and no longer.
RANK_FUNCTION(is_told_of_more_than_comes)
{
    rank.open();
    void *memory = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, size);
    if (rank.rank == 1) {
        never_come = strtoull(rank.argument.c_str(), nullptr, 10);
        CHECK_OK(ph_wait(channel, 0, stream));
    } else {
        CHECK_OK(ph_signal(channel, stream));
    }
    rank.synchronize(stream);
    rank.barrier();
    if (rank.rank == 1) {
        CHECK_RC(end_of(channel), PH_EPEER);
        CHECK(std::chrono::steady_clock::now() - told_at.load() >= std::chrono::seconds(1));
        CHECK(told == 1);
    }
    rank.close();
}

TEST_P(Late, NobodyIsKeptByPostsThatNeverCome)
{
    if (!on_net())
        GTEST_SKIP() << "words and messages take one way";
    for (const char *more : {"1", "18446744073709551615"}) {
        SCOPED_TRACE(more);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("is_told_of_more_than_comes", more), "");
    }
}

// ---- while a group of another context is refused, because it names the channel

struct Beside {
    std::atomic<uint64_t> ready{0}, refused{0};
    ph_channel *other = nullptr; // of rank 2's context; there when it is ready
};

// Rank 1 takes what rank 0 sent before it left, in a group with a signal to rank 2.
static void take_beside(Beside &beside, ph_channel *from, ph_channel *to, ph_queue *queue)
{
    const ph_group_op ops[] = {{PH_GROUP_WAIT, from, 0, 0, size}, {PH_GROUP_SIGNAL, to, 0, 0, 0}};
    ASSERT_EQ(end_of(from), PH_EPEER);
    ASSERT_TRUE(reaches(beside.ready, 1));
    int refused = 0;
    before_issue = [&] {
        const ph_group_op mixed[] = {{PH_GROUP_WAIT, beside.other, 0, 0, 0}, ops[0]};
        refused = ph_group(mixed, 2, nullptr);
        beside.refused = 1;
    };
    EXPECT_EQ(ph_group(ops, 2, queue), 0);
    EXPECT_EQ(refused, -EINVAL);
    EXPECT_EQ(ph_wait(from, size, queue), PH_EPEER); // it is taken
}

static void run_beside(Beside &beside, int rank, ph_context *context)
{
    void *memory = nullptr;
    ph_queue *queue = nullptr;
    ASSERT_EQ(ph_queue_create(context, &queue), 0);
    ASSERT_EQ(ph_host_alloc(context, 2 * size, &memory), 0);
    const ph_operation ops[] = {
        operation(1, !rank, rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, memory, size),
        operation(2, 3 - rank, rank == 1 ? PH_ROLE_SENDER : PH_ROLE_RECEIVER,
                  static_cast<char *>(memory) + size, size)};
    ph_channel *channels[2] = {};
    const size_t first = rank == 2, end = rank == 0 ? 1 : 2;
    ASSERT_EQ(ph_exchange(context, ops + first, end - first, channels + first), 0);
    if (rank == 0) {
        EXPECT_EQ(ph_put_signal(channels[0], 0, 0, size, queue), 0);
    } else if (rank == 1) {
        take_beside(beside, channels[0], channels[1], queue);
    } else {
        EXPECT_EQ(ph_wait(channels[1], 0, queue), 0);
        beside.other = channels[1];
        beside.ready = 1; // it calls nothing until rank 1's call has seen its channel
        EXPECT_TRUE(reaches(beside.refused, 1));
    }
    EXPECT_EQ(ph_queue_synchronize(queue, 20000), 0);
    EXPECT_EQ(ph_queue_destroy(&queue), 0);
}

TEST(LateBeside, IsTakenWhileAGroupOfAnotherContextIsRefused)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    RedisServer redis;
    ASSERT_TRUE(redis.start());
    const std::string uri = redis.uri();
    Beside beside;
    as_threads(
        3, [&](int rank, ph_context *context) { run_beside(beside, rank, context); },
        [&](ph_context_params &params) { params.store = uri.c_str(); });
}
