// SPDX-License-Identifier: BSD-3-Clause
// Notifications (peerhop/notify.h): the peer's host hears when data is there.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include <poll.h>

#include "e2e/held.h"

class Notify : public EveryDevice
{
  protected:
    static const char *argument()
    {
        return on_net() && !on_host() ? "signals" : "";
    }
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Notify);

static const size_t most = 1000003;

static size_t poll_for(Rank &rank, ph_notification *list, size_t n)
{
    size_t count = 77;
    CHECK_OK(ph_notifications(rank.context, list, n, &count));
    CHECK(count <= n);
    return count;
}

static ph_notification next(Rank &rank)
{
    ph_notification one;
    size_t count = 0;
    CHECK_OK(ph_notifications_wait(rank.context, &one, 1, &count, kWait));
    CHECK_EQUAL(count, 1u);
    return one;
}

static void give(Rank &rank, ph_channel *channel, uint64_t number, void *stream)
{
    CHECK_OK(ph_notify(channel, &number, sizeof number, stream));
}

static uint64_t number_of(const ph_notification &one)
{
    uint64_t number = 0;
    CHECK(one.size == sizeof number);
    memcpy(&number, one.bytes, sizeof number);
    return number;
}

static bool is_readable(int fd, int64_t ms)
{
    pollfd any = {fd, POLLIN, 0};
    return poll(&any, 1, static_cast<int>(ms)) == 1 && any.revents == POLLIN;
}

// A put that the peer finds in its buffer when it is notified. Over the net, where a rank has a
// device, a signal goes with it: the argument says so. The data shows with the peer's wait for
// that, which waits for nobody.
static void put(Rank &rank, ph_channel *channel, size_t size, void *stream)
{
    CHECK_OK(rank.argument == "signals" ? ph_put_signal(channel, 0, 0, size, stream)
                                        : ph_put(channel, 0, 0, size, stream));
}

static void is_there(Rank &rank, ph_channel *channel, void *memory, size_t size, uint64_t seed,
                     void *stream)
{
    if (rank.argument == "signals") {
        CHECK_OK(ph_wait(channel, size, stream));
        rank.synchronize(stream);
    }
    rank.verify(memory, size, seed, "what the notification told of");
}

// Rank 0 puts and notifies, and rank 1 looks at the data at once; it answers when it has.
RANK_FUNCTION(tells)
{
    rank.open();
    void *memory = rank.device->alloc(most), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 4711, PH_ROLE_BOTH, memory, most);
    const size_t sizes[] = {8, 5000, most};
    for (uint64_t round = 1; round <= 30; round++) {
        const size_t size = sizes[round % 3];
        if (rank.rank == 1) {
            const ph_notification one = next(rank);
            is_there(rank, channel, memory, size, round, stream);
            CHECK(one.peer == 0 && one.op_id == 4711 && number_of(one) == round);
            give(rank, channel, round, stream);
            continue;
        }
        rank.device->fill(memory, size, round);
        if (round % 4 == 0)
            rank.device->call(stream, [] { sleep_ms(3); });
        put(rank, channel, size, stream);
        give(rank, channel, round, stream);
        CHECK_EQUAL(number_of(next(rank)), round);
    }
    rank.synchronize(stream);
    rank.barrier();
}
TEST_P(Notify, ComesBehindItsData)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("tells", argument()), "");
}
TEST_P(Notify, ComesBehindItsDataBetweenKindsOfMemory)
{
    if (GetParam() != "standinnet" && GetParam() != "standin")
        GTEST_SKIP() << "ranks of the stand-in and of host memory";
    Job job(GetParam(), 2);
    job.environment(1, "PEERHOP_TEST_DEVICE", "host");
    EXPECT_EQ(job.run("tells", "signals"), ""); // also where there is no more than one node
}

// It waits for its stream, and others do not wait for it.
RANK_FUNCTION(waits)
{
    rank.open();
    void *memory = rank.device->alloc(most), *stream = rank.device->stream(),
         *other = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, most);
    if (rank.rank == 0) {
        rank.device->fill(memory, most, 5);
        Held held(rank, stream);
        put(rank, channel, most, stream);
        give(rank, channel, 1, stream);
        give(rank, channel, 2, stream);
        give(rank, channel, 3, other);
        CHECK(reaches(rank.shared->value[0], 1));
        sleep_ms(30); // in which a notification that waits for nothing would come
        rank.shared->value[1] = 1;
        CHECK(reaches(rank.shared->value[2], 1));
        held.let_go();
        rank.synchronize(stream);
    } else {
        CHECK_EQUAL(number_of(next(rank)), 3u);
        rank.shared->value[0] = 1;
        CHECK(reaches(rank.shared->value[1], 1));
        ph_notification one;
        CHECK_EQUAL(poll_for(rank, &one, 1), 0u);
        rank.shared->value[2] = 1;
        CHECK_EQUAL(number_of(next(rank)), 1u);
        is_there(rank, channel, memory, most, 5, stream);
        CHECK_EQUAL(number_of(next(rank)), 2u);
    }
    rank.barrier();
}
TEST_P(Notify, WaitsForItsStreamAlone)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("waits", argument()), "");
}

// Of a reader that lags nothing is lost: the giver is told.
RANK_FUNCTION(fills)
{
    rank.open();
    void *memory = rank.device->alloc(64), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 64);
    const uint64_t all = 500;
    if (rank.rank == 0) {
        uint64_t given = 0, refusals = 0;
        const auto end = std::chrono::steady_clock::now() + patience(20000);
        while (given < all && std::chrono::steady_clock::now() < end) {
            const int rc = ph_notify(channel, &given, sizeof given, stream);
            if (rc == 0) {
                given++;
                continue;
            }
            CHECK_RC(rc, -EAGAIN);
            CHECK_SAYS(rank.error(), "rank 1 has 64 notifications");
            CHECK(refusals > 0 || given == PH_NOTIFICATIONS_MAX);
            refusals++;
            rank.shared->value[0] = 1;
            sleep_ms(1);
        }
        CHECK_EQUAL(given, all);
        CHECK(refusals > 0);
        rank.synchronize(stream);
    } else {
        CHECK(reaches(rank.shared->value[0], 1));
        for (uint64_t i = 0; i < all; i++)
            CHECK_EQUAL(number_of(next(rank)), i);
        ph_notification one;
        CHECK_EQUAL(poll_for(rank, &one, 1), 0u);
    }
    rank.barrier();
}
TEST_P(Notify, IsRefusedWhereThePeerLagsAndNothingIsLost)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("fills"), "");
}

RANK_FUNCTION(has_descriptor)
{
    rank.open();
    void *memory = rank.device->alloc(64), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 64);
    if (rank.rank == 0) {
        for (int round = 0; round < 3; round++) {
            CHECK(reaches(rank.shared->value[0], static_cast<uint64_t>(round) + 1));
            rank.device->call(stream, [] { sleep_ms(5); });
            give(rank, channel, 1, stream);
            give(rank, channel, 2, stream);
        }
        rank.synchronize(stream);
        rank.barrier();
        return;
    }
    const int fd = ph_notifications_fd(rank.context);
    CHECK(fd >= 0);
    CHECK(ph_notifications_fd(rank.context) == fd);
    for (int round = 0; round < 3; round++) {
        CHECK(!is_readable(fd, 0));
        rank.shared->value[0]++;
        CHECK(is_readable(fd, kWait)); // nobody of the application's calls the library
        CHECK_EQUAL(number_of(next(rank)), 1u);
        CHECK_EQUAL(number_of(next(rank)), 2u);
        CHECK(!is_readable(fd, 0));
    }
    rank.barrier();
}
TEST_P(Notify, MakesADescriptorReadable)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("has_descriptor"), "");
}

// As long as one is left; also where the descriptor is made when it is there.
RANK_FUNCTION(stays_readable)
{
    rank.open();
    void *memory = rank.device->alloc(64), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 64);
    if (rank.rank == 0) {
        for (uint64_t i = 0; i < 3; i++)
            give(rank, channel, i, stream);
        rank.synchronize(stream);
    } else {
        next(rank);
        ph_notification one;
        const auto end = std::chrono::steady_clock::now() + patience(20000);
        int fd;
        while (!is_readable(fd = ph_notifications_fd(rank.context), 1))
            CHECK(std::chrono::steady_clock::now() < end);
        CHECK_EQUAL(number_of(next(rank)), 1u);
        CHECK(is_readable(fd, kWait));
        CHECK_EQUAL(poll_for(rank, &one, 1), 1u);
        CHECK(!is_readable(fd, 0));
    }
    rank.barrier();
}
TEST_P(Notify, LeavesTheDescriptorReadableWhileOneIsLeft)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("stays_readable"), "");
}

RANK_FUNCTION(is_refused)
{
    rank.open();
    void *memory = rank.device->alloc(64), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 64);
    ph_channel *unbound = rank.channel(!rank.rank, 2, PH_ROLE_BOTH, nullptr, 0);
    ph_channel *self = rank.channel(rank.rank, 3, PH_ROLE_BOTH, nullptr, 0);
    ph_notification list[2];
    size_t count = 9;
    char bytes[PH_NOTIFICATION_SIZE + 1] = "";
    CHECK_RC(ph_notify(nullptr, bytes, 1, stream), -EINVAL);
    CHECK_RC(ph_notify(channel, bytes, sizeof bytes, stream), -EINVAL);
    CHECK_SAYS(rank.error(), "257 bytes: 256 are most");
    CHECK_RC(ph_notify(channel, nullptr, 1, stream), -EINVAL);
    CHECK_RC(ph_notify(self, bytes, 1, stream), -EINVAL);
    CHECK_RC(ph_notifications(nullptr, list, 2, &count), -EINVAL);
    CHECK_RC(ph_notifications(rank.context, nullptr, 2, &count), -EINVAL);
    CHECK_RC(ph_notifications(rank.context, list, 2, nullptr), -EINVAL);
    CHECK_RC(ph_notifications_wait(rank.context, list, 0, &count, 1), -EINVAL);
    CHECK_RC(ph_notifications_wait(rank.context, list, 2, &count, -1), -EINVAL);
    CHECK_RC(ph_notifications_fd(nullptr), -EINVAL);
    CHECK_RC(ph_notifications_wait(rank.context, list, 2, &count, 30), -ETIMEDOUT);
    CHECK_SAYS(rank.error(), "no notification has come");
    CHECK_EQUAL(count, 0u);
    CHECK_EQUAL(poll_for(rank, nullptr, 0), 0u);
    void *graph = rank.device->capture(stream, [&] {
        const ph_group_op both[] = {{PH_GROUP_SIGNAL, channel, 0, 0, 0},
                                    {PH_GROUP_NOTIFY, channel, 0, 0, 1, bytes}};
        CHECK_RC(ph_notify(channel, bytes, 1, stream), -ENOTSUP);
        CHECK_RC(ph_group(both, 2, stream), -ENOTSUP);
    });
    if (graph != nullptr)
        rank.device->destroy(graph);
    rank.barrier();
    // The most and the least, and an unbound channel: they come in order.
    memset(bytes, 0x5a, sizeof bytes);
    CHECK_OK(ph_notify(channel, bytes, PH_NOTIFICATION_SIZE, stream));
    CHECK_OK(ph_notify(unbound, nullptr, 0, stream));
    const ph_notification first = next(rank), second = next(rank);
    CHECK(first.size == PH_NOTIFICATION_SIZE && memcmp(first.bytes, bytes, first.size) == 0);
    CHECK(first.op_id == 1 && second.op_id == 2 && second.size == 0);
    rank.synchronize(stream);
    rank.barrier();
}
TEST_P(Notify, IsRefusedWithASentence)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("is_refused"), "");
}

// Of a group: behind all of it.
RANK_FUNCTION(of_groups)
{
    rank.open();
    const bool signals = rank.argument == "signals"; // then no more than there are slots
    const size_t part = 4096, parts = signals ? 10 : 40;
    void *memory = rank.device->alloc(part * parts), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, part * parts);
    for (uint64_t round = 1; round <= 5; round++) {
        if (rank.rank == 0) {
            uint64_t numbers[2] = {round, 100 + round};
            std::vector<ph_group_op> group;
            rank.device->fill(memory, part * parts, round);
            for (size_t i = 0; i < parts; i++)
                group.push_back({PH_GROUP_PUT, channel, i * part, i * part, part});
            if (signals)
                group.push_back({PH_GROUP_SIGNAL, channel, 0, 0, 0});
            for (uint64_t &number : numbers)
                group.push_back({PH_GROUP_NOTIFY, channel, 0, 0, sizeof number, &number});
            rank.device->call(stream, [] { sleep_ms(2); });
            CHECK_OK(ph_group(group.data(), group.size(), stream));
        } else {
            CHECK_EQUAL(number_of(next(rank)), round);
            if (signals) {
                CHECK_OK(ph_wait(channel, 0, stream));
                rank.synchronize(stream);
            }
            rank.verify(memory, part * parts, round, "what the group has put");
            CHECK_EQUAL(number_of(next(rank)), 100 + round);
        }
        rank.synchronize(stream);
        rank.barrier();
    }
}
TEST_P(Notify, OfAGroupComesBehindIt)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("of_groups", argument()), "");
}

// A get of the peer's memory: its owner may write there when it is notified.
RANK_FUNCTION(gets)
{
    rank.open();
    void *memory = rank.device->alloc(most), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, most);
    for (uint64_t round = 1; round <= 10; round++) {
        if (rank.rank == 0) {
            rank.device->fill(memory, most, round);
            give(rank, channel, round, stream);
            CHECK_EQUAL(number_of(next(rank)), round);
            rank.device->fill(memory, most, 1000);
        } else {
            CHECK_EQUAL(number_of(next(rank)), round);
            CHECK_OK(ph_get(channel, 0, 0, most, stream));
            give(rank, channel, round, stream);
            rank.synchronize(stream);
            rank.verify(memory, most, round, "what was read");
        }
    }
    rank.synchronize(stream);
    rank.barrier();
}
TEST_P(Notify, TellsThatAGetHasRead)
{
    SKIP_GETS_OF_STAGED();
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("gets"), "");
}

// Three ranks give to one, on several streams each, and none of them has the room of another.
RANK_FUNCTION(of_many)
{
    rank.open();
    const uint64_t streams = 3, each = 60;
    void *memory = rank.device->alloc(64);
    if (rank.rank != 0) {
        ph_channel *channel = rank.channel(0, 1, PH_ROLE_SENDER, memory, 64);
        std::vector<void *> own;
        for (uint64_t i = 0; i < streams; i++)
            own.push_back(rank.device->stream());
        for (uint64_t i = 0; i < streams * each;) {
            const uint64_t number = (i % streams) << 32 | i / streams;
            const int rc = ph_notify(channel, &number, sizeof number, own[i % streams]);
            CHECK(rc == 0 || rc == -EAGAIN);
            if (rc == 0)
                i++;
            else
                sleep_ms(1);
        }
        for (void *stream : own)
            rank.synchronize(stream);
        rank.barrier();
        return;
    }
    std::vector<ph_operation> ops;
    for (int peer = 1; peer < rank.ranks; peer++)
        ops.push_back(operation(1, peer, PH_ROLE_RECEIVER, memory, 64));
    exchange_all(rank, ops);
    std::map<std::pair<int, uint64_t>, uint64_t> seen;
    const uint64_t all = 3 * streams * each;
    for (uint64_t taken = 0; taken < all;) {
        ph_notification list[7];
        size_t count;
        CHECK_OK(ph_notifications_wait(rank.context, list, 7, &count, kWait));
        for (size_t i = 0; i < count; i++) {
            const uint64_t number = number_of(list[i]), stream = number >> 32;
            CHECK_EQUAL((seen[{list[i].peer, stream}]++), number & 0xffffffff);
        }
        taken += count;
    }
    CHECK_EQUAL(seen.size(), 3 * streams);
    rank.barrier();
}
TEST_P(Notify, ComesOfManyRanksAndStreams)
{
    Job job(GetParam(), 4);
    EXPECT_EQ(job.run("of_many"), "");
}

RANK_FUNCTION(leaves)
{
    rank.open();
    void *memory = rank.device->alloc(64), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, role_of(rank, 0), memory, 64);
    if (rank.rank == 0) {
        rank.device->call(stream, [] { sleep_ms(20); });
        give(rank, channel, 8, stream);
        CHECK_OK(ph_channel_close(channel)); // it is held as long as it is needed
        return rank.close();
    }
    CHECK_EQUAL(number_of(next(rank)), 8u);
    ph_notification one;
    size_t count;
    rank.ends_with(-ETIMEDOUT, "rank 0 has ended",
                   [&] { return ph_notifications_wait(rank.context, &one, 1, &count, 50); });
}
TEST_P(Notify, OfARankThatLeavesComes)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("leaves"), "");
}

// ---- a giver that is killed

RANK_FUNCTION(dies_behind)
{
    rank.open();
    void *memory = rank.device->alloc(most), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, most);
    if (rank.rank == 0) {
        rank.device->fill(memory, 5000, 3);
        put(rank, channel, 5000, stream);
        give(rank, channel, 1, stream);
        give(rank, channel, 2, stream);
        pause();
    }
    CHECK(is_readable(ph_notifications_fd(rank.context), kWait));
    CHECK_EQUAL(number_of(next(rank)), 1u);
    CHECK(is_readable(ph_notifications_fd(rank.context), kWait));
    rank.shared->value[0] = 1;
    CHECK(end_of(channel) != 0);
    // It was here, and so is its data.
    ph_notification list[2];
    CHECK_EQUAL(poll_for(rank, list, 2), 1u);
    CHECK_EQUAL(number_of(list[0]), 2u);
    is_there(rank, channel, memory, 5000, 3, stream);
    CHECK(!is_readable(ph_notifications_fd(rank.context), 0));
}
TEST_P(Notify, ThatHasComeOutlivesItsGiver)
{
    Job job(GetParam(), 2);
    job.start("dies_behind", argument());
    EXPECT_TRUE(reaches(job.shared()->value[0], 1, 40000));
    job.signal(0, SIGKILL);
    job.expect_failure(0);
    EXPECT_EQ(job.wait(), "");
}

// The taker runs again only when the giver is dead: what it has been sent is in its socket.
RANK_FUNCTION(dies_unheard)
{
    rank.open();
    void *memory = rank.device->alloc(64), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 64);
    rank.barrier();
    rank.shared->value[rank.rank] = 1;
    if (rank.rank == 0) {
        CHECK(reaches(rank.shared->value[2], 1)); // rank 1 is stopped
        for (uint64_t i = 0; i < 40; i++)
            give(rank, channel, i, stream);
        // It has sent all of them before it waits for rank 1, which says nothing.
        rank.ends_with(-ETIMEDOUT, "rank 0 cannot leave: rank 1",
                       [&] { return ph_context_destroy(&rank.context, 100); });
        rank.shared->value[3] = 1;
        pause();
    }
    CHECK(reaches(rank.shared->value[2], 1));
    CHECK(end_of(channel) != 0);
    for (uint64_t i = 0; i < 40; i++)
        CHECK_EQUAL(number_of(next(rank)), i);
    ph_notification one;
    CHECK_EQUAL(poll_for(rank, &one, 1), 0u);
}
TEST_P(Notify, ThatWasSentIsReadWhenItsGiverIsDead)
{
    if (on_net())
        GTEST_SKIP() << "what a provider has not delivered dies with its sender";
    Job job(GetParam(), 2);
    job.start("dies_unheard");
    EXPECT_TRUE(reaches(job.shared()->value[0], 1, 40000));
    EXPECT_TRUE(reaches(job.shared()->value[1], 1, 40000));
    job.signal(1, SIGSTOP);
    job.shared()->value[2] = 1;
    EXPECT_TRUE(reaches(job.shared()->value[3], 1, 40000));
    job.signal(0, SIGKILL);
    job.expect_failure(0);
    job.status(0, patience(45000).count());
    job.signal(1, SIGCONT);
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(dies_before)
{
    rank.open();
    void *memory = rank.device->alloc(most), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, most);
    if (rank.rank == 0) {
        Held held(rank, stream);
        put(rank, channel, 5000, stream);
        give(rank, channel, 1, stream);
        rank.shared->value[0] = 1;
        pause();
    }
    CHECK(end_of(channel) != 0);
    ph_notification one;
    size_t count;
    CHECK_EQUAL(poll_for(rank, &one, 1), 0u);
    rank.ends_with(-ETIMEDOUT, "rank 0 has ended",
                   [&] { return ph_notifications_wait(rank.context, &one, 1, &count, 50); });
}
TEST_P(Notify, ThatWasNotThereDiesWithItsGiver)
{
    Job job(GetParam(), 2);
    job.start("dies_before", argument());
    EXPECT_TRUE(reaches(job.shared()->value[0], 1, 40000));
    job.signal(0, SIGKILL);
    job.expect_failure(0);
    EXPECT_EQ(job.wait(), "");
}

// The giver goes on where the taker dies, and is told by the channel.
RANK_FUNCTION(taker_dies)
{
    rank.open();
    void *memory = rank.device->alloc(64), *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 64);
    if (rank.rank == 1)
        pause();
    Held held(rank, stream);
    give(rank, channel, 1, stream);
    rank.shared->value[0] = 1;
    const int ended = end_of(channel);
    CHECK(ended != 0);
    CHECK_RC(ph_notify(channel, nullptr, 0, stream), ended);
    held.let_go();
    rank.goes_on_without(1, stream);
}
TEST_P(Notify, OfATakerThatDiesHoldsNobody)
{
    Job job(GetParam(), 2);
    job.start("taker_dies");
    EXPECT_TRUE(reaches(job.shared()->value[0], 1, 40000));
    job.signal(1, SIGKILL);
    job.expect_failure(1);
    EXPECT_EQ(job.wait(), "");
}

// ---- threads

RANK_FUNCTION(by_threads)
{
    rank.open();
    const uint64_t each = 100;
    void *memory = rank.device->alloc(64);
    ph_channel *channels[2] = {rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, 64),
                               rank.channel(!rank.rank, 2, PH_ROLE_BOTH, memory, 64)};
    std::atomic<uint64_t> taken{0};
    std::atomic<bool> failed{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++) {
        void *stream = rank.device->stream();
        threads.emplace_back([&, i, stream] {
            rank.device->enter_thread();
            for (uint64_t n = 0; n < each && !failed;) {
                const int rc = ph_notify(channels[i], &n, sizeof n, stream);
                n += rc == 0;
                if (rc == -EAGAIN)
                    sleep_ms(1);
                failed = failed || (rc != 0 && rc != -EAGAIN);
            }
        });
        threads.emplace_back([&] {
            ph_notification list[3];
            size_t count = 0;
            while (taken < 2 * each && !failed) {
                const int rc = ph_notifications_wait(rank.context, list, 3, &count, 100);
                failed = failed || (rc != 0 && rc != -ETIMEDOUT);
                taken += count;
            }
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    CHECK(!failed);
    CHECK_EQUAL(taken.load(), 2 * each);
    rank.barrier();
}
TEST_P(Notify, IsGivenAndTakenByThreads)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("by_threads"), "");
}
