// SPDX-License-Identifier: BSD-3-Clause
// The host executor: who runs what and when, what it refuses, and what it says at a deadline. The
// programs themselves are in tests/conformance/words_test.cpp.
#include "support/atomic_compat.h"
#include "support/patience.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <malloc.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "support/plain_context.h"
#include "support/system_calls.h"

extern "C" {
#include "base/clock.h"
#include "cuda/kernel_args.h"
#include "semaphore/executor.h"
#include "semaphore/words.h"
}

namespace
{

const size_t LARGE = 256 << 10; // no enqueue copies this much
const int RING = 1 << 18;       // items, at most; 8192 at first
#if defined(__SANITIZE_THREAD__)
const bool TSAN = true;
#elif defined(__has_feature)
const bool TSAN = __has_feature(thread_sanitizer);
#else
const bool TSAN = false;
#endif

phi_work wait(uint32_t *word, uint32_t *broken = nullptr)
{
    phi_work work{};
    work.kind = PHI_STEP_WAIT;
    work.call = PHI_CALL_COMPLETE;
    work.peer = 3;
    work.op_id = 42;
    work.word.host = word;
    work.word.value = 1;
    work.over.broken = broken;
    return work;
}

phi_work reset(uint32_t *word)
{
    phi_work work = wait(word);
    work.kind = PHI_STEP_POST;
    work.word.value = 0;
    return work;
}

phi_work post(uint32_t *word, uint32_t *broken = nullptr)
{
    phi_work work = wait(word, broken);
    work.kind = PHI_STEP_POST;
    return work;
}

phi_work copy(void *to, const void *from, size_t size, uint32_t *broken = nullptr)
{
    phi_work work{};
    work.kind = PHI_STEP_COPY;
    work.call = PHI_CALL_PUT;
    work.span.destination = to;
    work.span.source = from;
    work.span.size = size;
    work.over.broken = broken;
    return work;
}

uint32_t look(uint32_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

void store(uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

// Memory that nothing has touched yet: a copy into it takes its time.
class Fresh
{
  public:
    static const size_t SIZE = 256 << 20;
    char *const at;

    Fresh()
        : at((char *)mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                          0))
    {
    }
    ~Fresh()
    {
        munmap(at, SIZE);
    }
    // Whether a copy into it has begun.
    bool begun() const
    {
        unsigned char there = 0;
        return mincore(at, 1, &there) == 0 && (there & 1);
    }
};

// Whether `condition` becomes true within some seconds.
template <typename Condition> bool soon(Condition condition)
{
    for (int64_t end = phi_deadline(kWait); phi_now() < end;) {
        if (condition())
            return true;
        usleep(100);
    }
    return false;
}

// Whether all workers of this process are there, and sleep.
bool workers_sleep()
{
    int workers = 0;
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name, stat;
        std::getline(std::ifstream(task.path() / "comm"), name);
        std::getline(std::ifstream(task.path() / "stat"), stat);
        if (name != "peerhop-queues")
            continue;
        if (stat.find(") S ") == std::string::npos)
            return false;
        workers++;
    }
    return workers > 0;
}

phi_progress progress_of(const ph_queue *queue)
{
    phi_progress progress;
    phi_queue_progress(queue, &progress);
    return progress;
}

int wait_all(ph_queue *queue, int64_t deadline)
{
    return phi_queue_wait(queue, progress_of(queue).issued, deadline);
}

class QueueBase : public testing::Test
{
  protected:
    std::unique_ptr<PlainContext> context;
    phi_executor *executor = nullptr;
    ph_queue *queue = nullptr;
    std::vector<uint32_t> words = std::vector<uint32_t>(64);
    uint32_t *word = words.data();

    void open(int64_t park_us)
    {
        context = std::make_unique<PlainContext>();
        context->config.worker_park_us = park_us;
        phi_executor_params params{&context->report, &context->counters, &context->config};
        ASSERT_EQ(phi_host_executor_open(&params, &executor), 0);
        ASSERT_EQ(phi_queue_create(executor, &queue), 0);
    }
    void TearDown() override
    {
        // Whatever a failed test has left waits for words.
        for (uint32_t &each : words)
            store(&each, 1);
        if (executor) {
            executor->ops->flush(executor, phi_deadline(kWait));
            executor->ops->close(executor);
        }
    }
    int issue(const std::vector<phi_work> &work, void *stream)
    {
        bool partial = true;
        int rc = executor->ops->issue(executor, stream, work.data(), work.size(), &partial);
        EXPECT_FALSE(partial);
        return rc;
    }
    int issue(const std::vector<phi_work> &work)
    {
        return issue(work, queue);
    }
    int synchronize(int64_t ms = kWait)
    {
        return wait_all(queue, phi_deadline(ms));
    }
    phi_progress progress() const
    {
        return progress_of(queue);
    }
    bool busy(std::string *why = nullptr)
    {
        char text[64] = "";
        bool is = executor->ops->busy(executor, text, sizeof(text));
        if (why)
            *why = text;
        return is;
    }
};

// With a worker that parks so long that it takes no part.
class Queue : public QueueBase
{
  protected:
    void SetUp() override
    {
        open(3600 * int64_t{1000000});
        ASSERT_TRUE(soon([] { return workers_sleep(); })); // its first look is behind it
    }
};

// With the worker as it is.
class Worker : public QueueBase
{
  protected:
    void SetUp() override
    {
        open(1000);
    }
};

TEST_F(Queue, RunsAtOnceWhatNeedsNoWait)
{
    uint64_t from = 7, to = 0;
    ASSERT_EQ(issue({copy(&to, &from, 8), post(&word[0])}), 0);
    EXPECT_EQ(to, 7u);
    EXPECT_EQ(word[0], 1u);
    EXPECT_FALSE(busy());

    store(&word[1], 1);
    ASSERT_EQ(issue({wait(&word[1]), reset(&word[1]), post(&word[2])}), 0);
    EXPECT_EQ(word[1], 0u);
    EXPECT_EQ(word[2], 1u);
    EXPECT_EQ(context->counters.in_flight, 0u);
}

TEST_F(Queue, KeepsTheOrderBehindAWait)
{
    uint64_t a = 1, b = 2, to = 0;
    ASSERT_EQ(issue({wait(&word[0]), reset(&word[0]), copy(&to, &a, 8), post(&word[1])}), 0);
    ASSERT_EQ(issue({copy(&to, &b, 8)}), 0);
    ASSERT_EQ(issue({post(&word[2])}), 0);
    EXPECT_EQ(to, 0u);
    EXPECT_EQ(word[2], 0u);
    EXPECT_EQ(context->counters.in_flight, 3u);
    std::string why;
    EXPECT_TRUE(busy(&why));
    EXPECT_EQ(why, "1 queue");

    store(&word[0], 1);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(to, 2u);
    EXPECT_EQ(word[0], 0u);
    EXPECT_EQ(word[1], 1u);
    EXPECT_EQ(word[2], 1u);
    EXPECT_EQ(context->counters.in_flight, 0u);
    EXPECT_FALSE(busy());
}

// A later enqueue runs what has become possible, before its own operation.
TEST_F(Queue, AnEnqueueRunsWhatIsPossible)
{
    ASSERT_EQ(issue({wait(&word[0]), post(&word[1])}), 0);
    store(&word[0], 1);
    ASSERT_EQ(issue({post(&word[2])}), 0);
    EXPECT_EQ(word[1], 1u);
    EXPECT_EQ(word[2], 1u);
    EXPECT_FALSE(busy());
}

TEST_F(Queue, TheDeadlineNamesWordPeerAndOperation)
{
    ASSERT_EQ(issue({wait(&word[0])}), 0);
    ASSERT_EQ(issue({post(&word[1])}), 0);
    int64_t before = phi_now();
    EXPECT_EQ(synchronize(30), -ETIMEDOUT);
    EXPECT_GE(phi_now() - before, 30 * PHI_MS);
    std::string error = context->error();
    EXPECT_NE(error.find("rank 3 has not written 'full' for operation 42 (complete) for 0."),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("2 operations are left"), std::string::npos) << error;

    store(&word[0], 1); // the queue goes on
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(word[1], 1u);
}

TEST_F(Queue, ADeadlineInThePastStillRunsWhatIsPossible)
{
    ASSERT_EQ(issue({wait(&word[0])}), 0);
    store(&word[0], 1);
    EXPECT_EQ(wait_all(queue, phi_now() - 1), 0);
    ASSERT_EQ(issue({reset(&word[0])}), 0);
    ASSERT_EQ(issue({wait(&word[0])}), 0);
    EXPECT_EQ(wait_all(queue, phi_now() - 1), -ETIMEDOUT);
}

TEST_F(Queue, AWaitForANumberLeavesWhatIsBehindIt)
{
    ASSERT_EQ(issue({wait(&word[0]), post(&word[1])}), 0);
    const uint64_t first = progress().issued;
    ASSERT_EQ(issue({wait(&word[2]), post(&word[3])}), 0);
    EXPECT_EQ(phi_queue_wait(queue, first, phi_deadline(20)), -ETIMEDOUT);
    EXPECT_EQ(progress().done, first - 1);
    store(&word[0], 1);
    EXPECT_EQ(phi_queue_wait(queue, first, phi_deadline(kWait)), 0);
    EXPECT_EQ(word[1], 1u);
    EXPECT_EQ(progress().done, first);
    EXPECT_EQ(synchronize(20), -ETIMEDOUT);
    store(&word[2], 1);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(progress().done, progress().issued);
}

// Who waits for what is in front is not held up by who waits for what is behind it.
TEST_F(Queue, TwoThreadsWaitForNumbersOfTheirOwn)
{
    ASSERT_EQ(issue({wait(&word[0])}), 0);
    const uint64_t first = progress().issued;
    ASSERT_EQ(issue({wait(&word[1])}), 0);
    int later = 1;
    std::thread behind([&] { later = synchronize(); });
    int sooner = 1;
    std::thread front([&] { sooner = phi_queue_wait(queue, first, phi_deadline(kWait)); });
    store(&word[0], 1);
    front.join();
    EXPECT_EQ(sooner, 0);
    EXPECT_EQ(progress().done, first);
    store(&word[1], 1);
    behind.join();
    EXPECT_EQ(later, 0);
}

TEST_F(Queue, BrokenEndsTheWaitAndSkipsCopyAndPost)
{
    uint64_t from = 7, to = 0, other = 0;
    uint32_t *broken = &word[8];
    ASSERT_EQ(issue({wait(&word[0], broken), reset(&word[0]), copy(&to, &from, 8, broken),
                     post(&word[1], broken), copy(&other, &from, 8), post(&word[2])}),
              0);
    store(broken, 1);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(to, 0u) << "copied behind a wait that was not satisfied";
    EXPECT_EQ(word[1], 0u) << "the peer was told of bytes that were not copied";
    EXPECT_EQ(other, 7u) << "another channel of the same operation is not broken";
    EXPECT_EQ(word[2], 1u);
}

TEST_F(Queue, BrokenReleasesAThreadThatWaits)
{
    ASSERT_EQ(issue({wait(&word[0], &word[8])}), 0);
    std::thread breaker([&] {
        usleep(20000);
        store(&word[8], 1);
    });
    EXPECT_EQ(synchronize(), 0);
    breaker.join();
}

TEST_F(Queue, LargeCopiesAreNotRunByTheEnqueue)
{
    std::vector<char> from(LARGE, 'x'), to(LARGE);
    ASSERT_EQ(issue({copy(to.data(), from.data(), LARGE), post(&word[0])}), 0);
    EXPECT_EQ(to[0], 0);
    EXPECT_EQ(word[0], 0u);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(to, from);
    EXPECT_EQ(word[0], 1u);

    ASSERT_EQ(issue({copy(to.data(), from.data(), LARGE - 1)}), 0);
    EXPECT_FALSE(busy());
}

TEST_F(Queue, ManySmallCopiesOfOneCallAreBounded)
{
    std::vector<char> from(100 << 10, 'x'), to(100 << 10);
    std::vector<phi_work> work(5, copy(to.data(), from.data(), to.size()));
    ASSERT_EQ(issue(work), 0);
    EXPECT_TRUE(busy());
    EXPECT_EQ(synchronize(), 0);
}

TEST_F(Queue, CopiesAllSizes)
{
    std::vector<char> from(3 * LARGE + 17), to(from.size() + 2);
    for (size_t i = 0; i < from.size(); i++)
        from[i] = (char)(i * 7 + i / 251);
    for (size_t size : {(size_t)0, (size_t)1, (size_t)4095, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE,
                        from.size()}) {
        std::fill(to.begin(), to.end(), 'z');
        ASSERT_EQ(issue({copy(&to[1], from.data(), size)}), 0);
        ASSERT_EQ(synchronize(), 0);
        EXPECT_EQ(memcmp(&to[1], from.data(), size), 0) << size;
        EXPECT_EQ(to[0], 'z') << size;
        EXPECT_EQ(to[1 + size], 'z') << size;
    }
}

// More than 32 bits can count. The source is untouched memory (the zero page), the target one small
// file mapped over and over, so that this runs anywhere: what is checked is that the copy ends at
// its last byte.
TEST_F(Queue, CopiesMoreThanFourGiB)
{
    if (TSAN)
        GTEST_SKIP() << "the sanitizer's shadow of 8 GiB does not fit";
    const size_t size = (4ull << 30) + 1, piece = 2 << 20, reserved = size + piece;
    const int private_memory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *source = (char *)mmap(nullptr, size, PROT_READ | PROT_WRITE, private_memory, -1, 0);
    char *target = (char *)mmap(nullptr, reserved, PROT_NONE, private_memory, -1, 0);
    int fd = memfd_create("target", MFD_CLOEXEC);
    ASSERT_NE(source, MAP_FAILED);
    ASSERT_NE(target, MAP_FAILED);
    ASSERT_EQ(ftruncate(fd, (off_t)piece), 0);
    // Without a fault for each page: those took longer than the copy.
    madvise(source, size, MADV_HUGEPAGE);
    for (size_t at = 0; at + piece <= reserved; at += piece)
        ASSERT_NE(mmap(target + at, piece, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0),
                  MAP_FAILED);

    source[size - 1] = 'e';
    ASSERT_EQ(issue({copy(target, source, size), post(&word[0])}), 0);
    EXPECT_EQ(synchronize(6 * kWait), 0);
    EXPECT_EQ(target[size - 1], 'e');
    EXPECT_EQ(context->counters.ipc_bytes, size);
    munmap(target, reserved);
    munmap(source, size);
    close(fd);
}

// A channel that breaks in the middle of a large copy ends it between two pieces.
TEST_F(Queue, ALargeCopyNoticesABrokenChannel)
{
    bool noticed = false;
    for (int i = 0; i < 10 && !noticed; i++) { // on a busy machine it may break too late
        Fresh from, to;
        from.at[Fresh::SIZE - 1] = 'e';
        store(&word[0], 0);
        store(&word[8], 0);
        ASSERT_EQ(issue({copy(to.at, from.at, Fresh::SIZE, &word[8]), post(&word[0], &word[8])}),
                  0);
        std::thread breaker([&] {
            while (!to.begun())
                std::this_thread::yield();
            store(&word[8], 1);
        });
        EXPECT_EQ(synchronize(), 0);
        breaker.join();
        noticed = to.at[Fresh::SIZE - 1] == 0;
        EXPECT_TRUE(!noticed || look(&word[0]) == 0) << "the peer was told of half a copy";
    }
    EXPECT_TRUE(noticed);
}

// A deadline in the middle of one as well; the queue goes on later.
TEST_F(Queue, ADeadlinePassesDuringALargeCopy)
{
    Fresh from, to;
    ASSERT_EQ(issue({copy(to.at, from.at, Fresh::SIZE), post(&word[0])}), 0);
    EXPECT_EQ(synchronize(2), -ETIMEDOUT);
    EXPECT_NE(context->error().find("a queue still runs"), std::string::npos) << context->error();
    EXPECT_EQ(word[0], 0u);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(word[0], 1u);
}

// The peer's word shows that a part came. Where this end's next post is left out, as the channel
// has ended meanwhile, that is no other one.
TEST_F(Queue, APartIsTakenOnceWhereTheChannelEnds)
{
    struct {
        uint64_t size = 16;
        char rest[PHI_BOUNCE_HEAD - 8] = {};
        char bytes[8] = {'c', 'a', 'm', 'e'};
    } slot;
    alignas(64) uint32_t line[16] = {}; // struct phi_line
    uint32_t *const word = line, *const broken = line + 2;
    uint32_t *const undone = broken + PHI_UNDONE_BEHIND / 4;
    char first[8] = {}, second[8] = {};
    const auto part = [&](char *to) {
        phi_work ready = post(word, broken), full = wait(word, broken);
        phi_work take = copy(to, slot.bytes, 8, broken);
        full.word.value = take.word.value = PHI_BIT_FULL;
        take.head = PHI_HEAD_CHECK;
        take.span.message = slot.size;
        take.word = full.word;
        ready.over.undone = full.over.undone = take.over.undone = undone;
        ASSERT_EQ(issue(std::vector<phi_work>{ready, full, take}), 0);
    };
    part(first);
    part(second);
    store(word, PHI_BIT_FULL); // it came, and the channel has ended
    store(broken, 1);
    ASSERT_EQ(synchronize(), 0);
    EXPECT_EQ(memcmp(first, slot.bytes, 8), 0);
    EXPECT_NE(memcmp(second, slot.bytes, 8), 0) << "copied twice";
}

TEST_F(Queue, AFullRingIsRefusedAndLosesNothing)
{
    ASSERT_EQ(issue({wait(&word[0])}), 0);
    uint64_t from = 0, to = 0;
    int rc, n = 0, lines = 0;
    context->report.log = [](void *opaque, ph_log_level, const char *) {
        ++*static_cast<int *>(opaque);
    };
    context->report.log_opaque = &lines;
    context->report.level = PH_LOG_DEBUG;
    while ((rc = issue({copy(&to, &from, 8), post(&word[1])})) == 0)
        n++;
    EXPECT_EQ(rc, -EAGAIN);
    EXPECT_EQ(lines, 0) << "the caller tries again: no line each time";
    EXPECT_EQ(n, (RING - 1) / 2);
    EXPECT_NE(context->error().find("full"), std::string::npos) << context->error();
    EXPECT_EQ(issue({post(&word[2])}), 0) << "one place is left";
    EXPECT_EQ(issue({post(&word[3])}), -EAGAIN);
    EXPECT_EQ(context->counters.in_flight, (uint64_t)n + 2);

    store(&word[0], 1); // now the next enqueue makes room
    EXPECT_EQ(issue({post(&word[3])}), 0);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(word[2], 1u);
    EXPECT_EQ(word[3], 1u);
    EXPECT_EQ(context->counters.ipc_operations, (uint64_t)n);
}

TEST_F(Queue, AnOperationLargerThanTheRingIsRefused)
{
    std::vector<phi_work> work(RING + 1, post(&word[0]));
    EXPECT_EQ(issue(work), -EINVAL);
    work.pop_back();
    EXPECT_EQ(issue(work), 0);
    EXPECT_EQ(synchronize(), 0);
}

TEST_F(Queue, TheRingGoesRoundManyTimes)
{
    uint64_t sum = 0;
    for (uint64_t i = 1; i <= 3 * RING; i++) {
        static uint64_t values[3 * RING + 1];
        values[i] = i;
        if (i % 100 == 1) {
            ASSERT_EQ(issue({wait(&word[0]), reset(&word[0])}), 0);
        }
        ASSERT_EQ(issue({copy(&sum, &values[i], 8), post(&word[1])}), 0);
        if (i % 100 == 0) {
            store(&word[0], 1);
            ASSERT_EQ(synchronize(), 0);
            ASSERT_EQ(sum, i);
        }
    }
    // What is left still names `sum`.
    store(&word[0], 1);
    ASSERT_EQ(synchronize(), 0);
    EXPECT_EQ(sum, 3 * (uint64_t)RING);
}

TEST_F(Queue, GarbageIsNotAStream)
{
    alignas(256) char elsewhere[256] = {};
    for (void *stream :
         {(void *)elsewhere, (void *)1, (void *)((char *)queue + 8), (void *)((char *)queue + 256),
          (void *)UINTPTR_MAX, (void *)((char *)executor - 256)}) {
        EXPECT_EQ(issue({post(&word[0])}, stream), -EINVAL);
        EXPECT_NE(context->error().find("not a queue of this context"), std::string::npos);
    }
    EXPECT_EQ(word[0], 0u);
}

TEST_F(Queue, AQueueOfAnotherExecutorIsNotAStream)
{
    phi_executor_params params{&context->report, &context->counters, &context->config};
    phi_executor *other;
    ph_queue *theirs;
    ASSERT_EQ(phi_host_executor_open(&params, &other), 0);
    ASSERT_EQ(phi_queue_create(other, &theirs), 0);
    EXPECT_EQ(phi_queue_executor(theirs), other);
    EXPECT_EQ(issue({post(&word[0])}, theirs), -EINVAL);
    other->ops->close(other);
}

TEST_F(Queue, NullIsTheDefaultQueue)
{
    ASSERT_EQ(issue({wait(&word[0]), post(&word[1])}, nullptr), 0);
    EXPECT_TRUE(busy());
    store(&word[0], 1);
    EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0);
    EXPECT_EQ(word[1], 1u);
}

TEST_F(Queue, DestroyRefusesWhatIsBusy)
{
    ASSERT_EQ(issue({wait(&word[0])}), 0);
    EXPECT_EQ(phi_queue_destroy(queue), -EBUSY);
    store(&word[0], 1);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(phi_queue_destroy(queue), 0);
    EXPECT_EQ(issue({post(&word[1])}), -EINVAL) << "a destroyed queue is no stream";

    ph_queue *again;
    ASSERT_EQ(phi_queue_create(executor, &again), 0);
    EXPECT_EQ(again, queue);
    EXPECT_EQ(issue({post(&word[1])}, again), 0);
    EXPECT_EQ(word[1], 1u);
}

TEST_F(Queue, TooManyQueuesAreRefused)
{
    std::vector<ph_queue *> queues;
    ph_queue *one;
    int rc;
    while ((rc = phi_queue_create(executor, &one)) == 0)
        queues.push_back(one);
    EXPECT_EQ(rc, -EAGAIN);
    EXPECT_EQ(queues.size(), (size_t)PHI_STREAMS_MAX - 2); // the default queue and the fixture's
    EXPECT_EQ(issue({post(&word[0])}, queues.back()), 0);
    EXPECT_EQ(word[0], 1u);
    for (ph_queue *each : queues)
        EXPECT_EQ(phi_queue_destroy(each), 0);
}

TEST_F(Queue, HostCallsRunInOrder)
{
    struct Call {
        std::vector<int> *log;
        int value;
    };
    std::vector<int> log;
    Call first{&log, 1}, second{&log, 2};
    auto fn = [](void *opaque) {
        Call *call = (Call *)opaque;
        call->log->push_back(call->value);
    };
    ASSERT_EQ(phi_queue_host(queue, fn, &first), 0);
    EXPECT_EQ(log, std::vector<int>({1}));
    ASSERT_EQ(issue({wait(&word[0])}), 0);
    ASSERT_EQ(phi_queue_host(queue, fn, &second), 0);
    EXPECT_EQ(log.size(), 1u);
    store(&word[0], 1);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(log, std::vector<int>({1, 2}));
    EXPECT_EQ(phi_queue_host(queue, nullptr, nullptr), -EINVAL);
    EXPECT_EQ(context->counters.ipc_operations, 0u);
}

TEST_F(Queue, CountersAreExact)
{
    char from[100] = {}, to[100];
    store(&word[0], 1);
    ASSERT_EQ(issue({copy(to, from, 100), copy(to, from, 0)}), 0);
    ASSERT_EQ(issue({wait(&word[0]), copy(to, from, 11), wait(&word[0])}), 0);
    EXPECT_EQ(context->counters.ipc_operations, 3u);
    EXPECT_EQ(context->counters.ipc_bytes, 111u);
    EXPECT_EQ(context->counters.waits_host, 2u);
}

class Uses : public Queue
{
  protected:
    std::unique_ptr<phi_uses> a = std::make_unique<phi_uses>(), b = std::make_unique<phi_uses>();

    phi_work with(phi_work work, phi_uses *uses)
    {
        work.uses = uses;
        return work;
    }
    bool drained(phi_uses *uses, std::string *why = nullptr)
    {
        char text[64] = "";
        bool is = executor->ops->drained(executor, uses, text, sizeof(text));
        if (why)
            *why = text;
        return is;
    }
};

TEST_F(Uses, AreDrainedWhenTheirLastOperationIsDone)
{
    EXPECT_TRUE(drained(a.get()));
    ASSERT_EQ(issue({with(post(&word[1]), a.get())}), 0);
    EXPECT_TRUE(drained(a.get()));

    ASSERT_EQ(issue({with(wait(&word[0]), a.get()), with(post(&word[1]), a.get())}), 0);
    ASSERT_EQ(issue({with(wait(&word[2]), b.get())}), 0);
    std::string why;
    EXPECT_FALSE(drained(a.get(), &why));
    EXPECT_EQ(why, "1 queue");
    EXPECT_FALSE(drained(b.get()));

    ASSERT_EQ(issue({with(wait(&word[0]), a.get())}, nullptr), 0);
    EXPECT_FALSE(drained(a.get(), &why));
    EXPECT_EQ(why, "2 queues");

    store(&word[0], 1);
    EXPECT_EQ(synchronize(1), -ETIMEDOUT); // word 2
    EXPECT_FALSE(drained(a.get())) << "the other queue waits yet";
    EXPECT_EQ(executor->ops->flush(executor, phi_now()), -ETIMEDOUT);
    EXPECT_TRUE(drained(a.get()));
    EXPECT_FALSE(drained(b.get()));
    store(&word[2], 1);
    EXPECT_EQ(synchronize(), 0);
    EXPECT_TRUE(drained(b.get()));
}

TEST_F(Uses, RevokedOnesTakeNothingNew)
{
    ASSERT_EQ(issue({with(post(&word[0]), a.get())}), 0);
    uint64_t before[2] = {a->number[1], b->number[1]};
    atomic_store(&b->revoked, 1u);
    EXPECT_EQ(issue({with(post(&word[1]), a.get()), with(post(&word[2]), b.get())}), PH_EBROKEN);
    EXPECT_NE(context->error().find("operation 42 with rank 3"), std::string::npos)
        << context->error();
    EXPECT_EQ(word[1], 0u);
    EXPECT_EQ(word[2], 0u);
    EXPECT_EQ(a->number[1], before[0]);
    EXPECT_EQ(b->number[1], before[1]);
    EXPECT_TRUE(drained(a.get()));
    EXPECT_TRUE(drained(b.get()));
    EXPECT_EQ(issue({with(post(&word[1]), a.get())}), 0) << "the other is as usable as before";
}

TEST_F(Uses, RevokedBehindOtherOperationsKeepsItsNumber)
{
    ASSERT_EQ(issue({with(post(&word[0]), b.get())}), 0);
    ASSERT_EQ(issue({wait(&word[1])}), 0);
    atomic_store(&b->revoked, 1u);
    EXPECT_EQ(issue({with(post(&word[2]), b.get())}), PH_EBROKEN);
    EXPECT_TRUE(drained(b.get())) << "its last operation was done before the one that waits";
    EXPECT_TRUE(busy());
}

// The store of the number and the look at revoked against the store of revoked and the look at the
// numbers: never may an operation run after a revoker saw everything drained.
TEST_F(Uses, RevokeRaces)
{
    for (int round = 0; round < 300; round++) {
        auto uses = std::make_unique<phi_uses>();
        std::atomic<bool> closed{false};
        std::thread revoker([&] {
            std::this_thread::yield();
            atomic_store(&uses->revoked, 1u);
            while (!executor->ops->drained(executor, uses.get(), nullptr, 0))
                std::this_thread::yield();
            closed = true;
        });
        int rc = 0;
        while (rc == 0) {
            bool was_closed = closed;
            rc = issue({with(post(&word[1]), uses.get())});
            EXPECT_FALSE(rc == 0 && was_closed);
        }
        EXPECT_EQ(rc, PH_EBROKEN);
        revoker.join();
    }
}

// Whichever queue it is in.
TEST_F(Queue, FlushNamesTheOldestWait)
{
    void *order[2][2] = {{queue, nullptr}, {nullptr, queue}};
    for (auto &streams : order) {
        phi_work older = wait(&word[0]), younger = wait(&word[1]);
        younger.peer = 9;
        ASSERT_EQ(issue({older}, streams[0]), 0);
        EXPECT_EQ(executor->ops->flush(executor, phi_deadline(5)), -ETIMEDOUT);
        ASSERT_EQ(issue({younger}, streams[1]), 0);
        EXPECT_EQ(executor->ops->flush(executor, phi_deadline(20)), -ETIMEDOUT);
        EXPECT_NE(context->error().find("rank 3"), std::string::npos) << context->error();
        store(&word[0], 1);
        EXPECT_EQ(executor->ops->flush(executor, phi_deadline(20)), -ETIMEDOUT);
        EXPECT_NE(context->error().find("rank 9"), std::string::npos) << context->error();
        store(&word[1], 1);
        EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0);
        store(&word[0], 0);
        store(&word[1], 0);
    }
}

// Also where another thread runs it.
TEST_F(Queue, FlushNamesTheWaitThatAnotherThreadIsOn)
{
    ASSERT_EQ(issue({wait(&word[0])}), 0);
    std::thread other([&] { EXPECT_EQ(synchronize(), 0); });
    EXPECT_TRUE(soon([&] {
        return executor->ops->flush(executor, phi_now()) == -ETIMEDOUT &&
               context->error().find("rank 3 has not written 'full' for operation 42") == 0 &&
               context->error().find("another thread runs the queue") != std::string::npos;
    })) << context->error();
    store(&word[0], 1);
    other.join();
}

TEST_F(Queue, SynchronizeNamesTheWaitThatAnotherThreadIsOn)
{
    ASSERT_EQ(issue({wait(&word[0])}), 0);
    std::thread other([&] { EXPECT_EQ(synchronize(), 0); });
    EXPECT_TRUE(soon([&] {
        return wait_all(queue, phi_now()) == -ETIMEDOUT &&
               context->error() ==
                   "another thread runs the queue: rank 3 has not written 'full' for operation 42 "
                   "(complete); 1 operations are left in it";
    })) << context->error();
    store(&word[0], 1);
    other.join();
}

// ---- copies between two peers

namespace
{
std::atomic<int64_t> pieces_left; // so often there is something to do, and it is not the end
}

extern "C" {
bool __real_phi_relay_run(ph_queue *queue, const phi_work *to, const phi_work *from);
bool __real_phi_relay_look(ph_queue *queue, const phi_work *to, const phi_work *from);
bool __wrap_phi_relay_run(ph_queue *queue, const phi_work *to, const phi_work *from);
bool __wrap_phi_relay_look(ph_queue *queue, const phi_work *to, const phi_work *from);

bool __wrap_phi_relay_run(ph_queue *queue, const phi_work *to, const phi_work *from)
{
    return pieces_left-- <= 0 && __real_phi_relay_run(queue, to, from);
}

bool __wrap_phi_relay_look(ph_queue *queue, const phi_work *to, const phi_work *from)
{
    return pieces_left > 0 || __real_phi_relay_look(queue, to, from);
}
}

// A deadline ends the wait for one that moves on all the time.
TEST_F(Queue, ADeadlineEndsTheWaitForALargeRelay)
{
    uint64_t from = 7, to = 0;
    phi_work relay = copy(&to, nullptr, 8), hold = copy(nullptr, &from, 8);
    relay.kind = PHI_STEP_RELAY;
    hold.kind = PHI_STEP_HOLD;
    relay.call = hold.call = PHI_CALL_COPY;
    relay.peer = 3;
    pieces_left = 30000000; // seconds
    ASSERT_EQ(issue({relay, hold}), 0);
    EXPECT_EQ(synchronize(20), -ETIMEDOUT);
    EXPECT_NE(context->error().find("1 operations are left in it"), std::string::npos)
        << context->error();
    pieces_left = 0;
    EXPECT_EQ(synchronize(), 0);
    EXPECT_EQ(to, 7u);
}

// Two queues that need each other go on although only one is waited for at a time.
TEST_F(Queue, FlushRunsQueuesThatNeedEachOther)
{
    ph_queue *other;
    ASSERT_EQ(phi_queue_create(executor, &other), 0);
    ASSERT_EQ(issue({wait(&word[0]), post(&word[1]), wait(&word[2]), post(&word[3])}), 0);
    ASSERT_EQ(issue({wait(&word[1]), post(&word[2]), wait(&word[3]), post(&word[4])}, other), 0);
    store(&word[0], 1);
    EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0);
    EXPECT_EQ(word[4], 1u);
}

// After the first use: no system call and no allocation, neither at once nor through the ring.
TEST_F(Queue, TheDataPathMakesNoSystemCall)
{
    uint64_t from = 1, to = 0;
    ASSERT_EQ(issue({copy(&to, &from, 8)}), 0);
    struct mallinfo2 before = mallinfo2();
    long calls = system_calls_of([&] {
        for (int i = 0; i < 2000; i++) {
            issue({wait(&word[0]), reset(&word[0]), copy(&to, &from, 8), post(&word[1])});
            issue({post(&word[2])});
            store(&word[0], 1);
            synchronize();
        }
    });
    if (calls < 0)
        GTEST_SKIP() << "system calls cannot be counted here";
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(mallinfo2().hblks, before.hblks);
}

TEST_F(Worker, TakesOverWhatNobodySynchronisesOn)
{
    uint64_t from = 7, to = 0;
    ASSERT_EQ(issue({wait(&word[0]), copy(&to, &from, 8), post(&word[1])}), 0);
    store(&word[0], 1);
    EXPECT_TRUE(soon([&] { return look(&word[1]) == 1; }));
    EXPECT_TRUE(soon([&] { return !busy(); }));
    EXPECT_EQ(to, 7u);
}

TEST_F(Worker, RunsLargeCopies)
{
    std::vector<char> from(8 * LARGE, 'x'), to(8 * LARGE);
    ASSERT_EQ(issue({copy(to.data(), from.data(), from.size()), post(&word[0])}), 0);
    EXPECT_TRUE(soon([&] { return look(&word[0]) == 1; }));
    EXPECT_EQ(to, from);
}

TEST_F(Worker, GivesALargeCopyToWhoeverSynchronises)
{
    std::thread::id runner;
    auto note = [](void *opaque) { *(std::thread::id *)opaque = std::this_thread::get_id(); };
    // On a busy machine the worker may be done before this thread has a core.
    for (int i = 0; i < 10 && runner != std::this_thread::get_id(); i++) {
        Fresh from, to;
        from.at[Fresh::SIZE - 1] = 'e';
        ASSERT_EQ(issue({copy(to.at, from.at, Fresh::SIZE)}), 0);
        ASSERT_EQ(phi_queue_host(queue, note, &runner), 0);
        ASSERT_TRUE(soon([&] { return to.begun(); })); // so the worker is at it
        EXPECT_EQ(synchronize(), 0);
        EXPECT_EQ(to.at[Fresh::SIZE - 1], 'e');
    }
    EXPECT_EQ(runner, std::this_thread::get_id());
}

TEST_F(Worker, RunsChainsOfWaits)
{
    const int links = 20;
    std::vector<phi_work> work;
    for (int i = 0; i < links; i++) {
        work.push_back(wait(&word[i]));
        work.push_back(post(&word[i + 1]));
    }
    ASSERT_EQ(issue(work), 0);
    store(&word[0], 1);
    EXPECT_TRUE(soon([&] { return look(&word[links]) == 1; }));
}

// Threads that each have a queue, and all of them the default one.
TEST_F(Worker, ManyThreads)
{
    enum { THREADS = 4, ROUNDS = 2000 };
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    std::vector<uint64_t> sums(THREADS);
    for (int t = 0; t < THREADS; t++) {
        threads.emplace_back([&, t] {
            ph_queue *own;
            uint64_t value, to = 0;
            if (phi_queue_create(executor, &own)) {
                failures++;
                return;
            }
            for (value = 1; value <= ROUNDS; value++) {
                phi_work steps[] = {wait(&word[t]), reset(&word[t]), copy(&to, &value, 8)};
                bool partial;
                phi_work mine = post(&word[32 + t]);
                failures += executor->ops->issue(executor, own, steps, 3, &partial) != 0;
                failures += executor->ops->issue(executor, nullptr, &mine, 1, &partial) != 0;
                store(&word[t], 1);
                failures += wait_all(own, phi_deadline(kWait)) != 0;
                failures += to != value;
            }
            sums[t] = to;
            failures += phi_queue_destroy(own) != 0;
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    EXPECT_EQ(failures, 0);
    for (uint64_t sum : sums)
        EXPECT_EQ(sum, (uint64_t)ROUNDS);
    EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0);
    EXPECT_EQ(context->counters.in_flight, 0u);
}

// Every operation of the default queue gets a number of its own, whoever issues it.
TEST_F(Queue, TheDefaultQueueIsForManyThreads)
{
    enum { THREADS = 4, EACH = 200000 };
    auto uses = std::make_unique<phi_uses>();
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (int t = 0; t < THREADS; t++) {
        threads.emplace_back([&, t] {
            phi_work work = post(&word[t]);
            work.uses = uses.get();
            for (int i = 0; i < EACH; i++)
                failures += issue({work}, nullptr) != 0;
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    EXPECT_EQ(failures, 0);
    EXPECT_EQ(uses->number[0], (uint64_t)THREADS * EACH);
    EXPECT_TRUE(executor->ops->drained(executor, uses.get(), nullptr, 0));
}

TEST_F(Queue, ClosesAtOnce)
{
    int64_t before = phi_now();
    phi_executor_params params{&context->report, &context->counters, &context->config};
    for (int i = 0; i < 20; i++) {
        phi_executor *one;
        ASSERT_EQ(phi_host_executor_open(&params, &one), 0);
        usleep(2000); // the worker has parked, for a second
        one->ops->close(one);
    }
    EXPECT_LT(phi_now() - before, 15000 * PHI_MS);
}

} // namespace
