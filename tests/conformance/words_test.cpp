// SPDX-License-Identifier: BSD-3-Clause
// Every program of the tables, run between two ends by each executor: who waits for whom, what is
// copied when, and that after each round the next one may begin.
#include "conformance/words_ends.h"
#include "support/patience.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "base/clock.h"
}

namespace
{

const EndsEntry EXECUTORS[] = {
    {"host", make_host_ends},
    {"cuda_kernel", make_cuda_kernel_ends},
    {"cuda_memory_operation", make_cuda_memory_operation_ends},
    {"cuda_peer", make_cuda_peer_ends},
};

const int SENDER = 0, RECEIVER = 1;
const size_t SIZE = 64 << 10;

const uint32_t EVERY_BIT = UINT32_MAX; // satisfies any wait

class Words : public testing::TestWithParam<EndsEntry>
{
  protected:
    std::unique_ptr<Ends> ends;
    char *buffer[2] = {nullptr, nullptr};
    std::unique_ptr<phi_uses> uses[2] = {std::make_unique<phi_uses>(),
                                         std::make_unique<phi_uses>()};
    bool gets = false; // get protocol: the roles of the ends in send/recv are exchanged

    void SetUp() override
    {
        ends = GetParam().make();
        std::string why = ends->open();
        if (!why.empty())
            GTEST_SKIP() << why;
        for (int end = 0; end < 2; end++) {
            buffer[end] = (char *)ends->allocate(SIZE);
            for (int which = 0; which < PHI_WORD_COUNT; which++)
                store(&ends->line[end]->word[which], phi_word_start[which]);
        }
    }
    void TearDown() override
    {
        // Whatever a failed test has left in the streams is let go.
        for (int end = 0; end < 2 && ends->executor[end]; end++) {
            int64_t until = phi_deadline(kWait);
            store(&ends->line[end]->broken, 1);
            while (ends->executor[end]->ops->busy(ends->executor[end], nullptr, 0) &&
                   phi_now() < until) {
                for (int which = 0; which < PHI_WORD_COUNT; which++)
                    store(word(which), EVERY_BIT);
                ends->executor[end]->ops->flush(ends->executor[end], phi_deadline(10));
            }
        }
    }
    static uint32_t look(uint32_t *word)
    {
        return atomic_load_explicit(word, memory_order_acquire);
    }
    static void store(uint32_t *word, uint32_t value)
    {
        atomic_store_explicit(word, value, memory_order_release);
    }

    // The words of the direction from SENDER to RECEIVER, the same for both ends.
    uint32_t *word(int which)
    {
        return &ends->line[SENDER]->word[which];
    }
    phi_work step(int end, phi_call call, const phi_step &step, size_t size)
    {
        phi_work work{};
        work.kind = step.kind;
        work.call = (uint8_t)call;
        work.peer = 1 - end;
        work.op_id = 77;
        work.over.broken = &ends->line[end]->broken;
        work.over.broken_device = ends->device_address(end, work.over.broken);
        work.over.undone = &ends->line[end]->undone;
        work.answers = step.bit == PHI_BIT_FREE;
        work.uses = uses[end].get();
        if (step.kind == PHI_STEP_COPY) {
            work.span.destination = buffer[RECEIVER];
            work.span.source = buffer[SENDER];
            work.span.size = size;
        } else {
            work.word.host = word(step.word);
            work.word.device = ends->device_address(end, work.word.host);
            work.word.value = step.bit;
        }
        return work;
    }
    std::vector<phi_work> program(int end, phi_call call, size_t size = 0)
    {
        std::vector<phi_work> work;
        for (int i = 0; i < phi_programs[call].count; i++)
            work.push_back(step(end, call, phi_programs[call].steps[i], size));
        return work;
    }
    int issue(int end, const std::vector<phi_work> &work)
    {
        bool partial = false;
        int rc = ends->executor[end]->ops->issue(ends->executor[end], ends->stream(end),
                                                 work.data(), work.size(), &partial);
        EXPECT_FALSE(partial);
        return rc;
    }
    int issue(int end, phi_call call, size_t size = 0)
    {
        return issue(end, program(end, call, size));
    }
    int synchronize(int end, int64_t ms = 20000)
    {
        return ends->synchronize(end, phi_deadline(ms));
    }
    bool drained(int end)
    {
        return ends->executor[end]->ops->drained(ends->executor[end], uses[end].get(), nullptr, 0);
    }
    void fill(int end, unsigned seed)
    {
        std::vector<char> bytes(SIZE);
        for (size_t i = 0; i < SIZE; i++)
            bytes[i] = (char)(seed * 131 + i * 7 + i / 256);
        ends->write(buffer[end], bytes.data(), SIZE);
    }
    // Whether the first `size` bytes of the receiver's buffer are those of the sender's and no
    // more.
    bool arrived(size_t size)
    {
        std::vector<char> from(SIZE), to(SIZE);
        ends->read(from.data(), buffer[SENDER], SIZE);
        ends->read(to.data(), buffer[RECEIVER], SIZE);
        return memcmp(from.data(), to.data(), size) == 0 &&
               (size == SIZE || memcmp(&from[size], &to[size], SIZE - size) != 0);
    }
    // No message is under way and a signal may be given.
    void all_is_settled()
    {
        uint32_t turn = look(word(PHI_WORD_TURN));
        EXPECT_TRUE(turn == 0 || turn == PHI_BIT_FULL) << turn;
        EXPECT_EQ(look(word(PHI_WORD_NOTE)), (uint32_t)PHI_BIT_FREE);
        for (int end = 0; end < 2; end++)
            EXPECT_EQ(look(&ends->line[end]->broken), 0u);
        // The words of the other direction are nobody's business.
        for (int which = 0; which < PHI_WORD_COUNT; which++)
            EXPECT_EQ(look(&ends->line[RECEIVER]->word[which]), phi_word_start[which]);
    }
    // In which end the active call of send/recv runs.
    int active() const
    {
        return gets ? RECEIVER : SENDER;
    }
};

TEST_P(Words, PutAndGetCopyAndTouchNoWord)
{
    for (phi_call call : {PHI_CALL_PUT, PHI_CALL_GET}) {
        for (size_t size : {(size_t)0, (size_t)1, (size_t)4097, SIZE}) {
            int end = call == PHI_CALL_PUT ? SENDER : RECEIVER;
            fill(SENDER, 1 + (unsigned)size);
            fill(RECEIVER, 200);
            ASSERT_EQ(issue(end, call, size), 0);
            ASSERT_EQ(synchronize(end), 0);
            EXPECT_TRUE(arrived(size)) << phi_programs[call].name << " " << size;
            all_is_settled();
        }
    }
}

TEST_P(Words, TransferWaitsForThePost)
{
    for (bool get : {false, true}) {
        gets = get;
        fill(SENDER, 5);
        fill(RECEIVER, 6);
        ASSERT_EQ(issue(active(), PHI_CALL_TRANSFER, SIZE), 0);
        EXPECT_EQ(synchronize(active(), 20), -ETIMEDOUT);
        EXPECT_FALSE(arrived(SIZE)) << "copied before the passive end had posted";
        EXPECT_FALSE(drained(active()));

        ASSERT_EQ(issue(1 - active(), PHI_CALL_POST), 0);
        ASSERT_EQ(synchronize(1 - active()), 0);
        ASSERT_EQ(synchronize(active()), 0);
        EXPECT_TRUE(arrived(SIZE));
        EXPECT_TRUE(drained(active()));
        ASSERT_EQ(issue(1 - active(), PHI_CALL_COMPLETE), 0);
        ASSERT_EQ(synchronize(1 - active()), 0);
        all_is_settled();
    }
}

TEST_P(Words, CompleteWaitsForTheCopy)
{
    fill(SENDER, 5);
    ASSERT_EQ(issue(RECEIVER, PHI_CALL_POST), 0);
    ASSERT_EQ(issue(RECEIVER, PHI_CALL_COMPLETE), 0);
    EXPECT_EQ(synchronize(RECEIVER, 20), -ETIMEDOUT);
    EXPECT_FALSE(drained(RECEIVER));
    ASSERT_EQ(issue(SENDER, PHI_CALL_TRANSFER, SIZE), 0);
    ASSERT_EQ(synchronize(RECEIVER), 0);
    EXPECT_TRUE(arrived(SIZE));
    ASSERT_EQ(synchronize(SENDER), 0);
    all_is_settled();
}

// Between two messages the word says FULL: the post before a complete has replaced that when the
// complete looks, in one operation (as a group makes it) as well as in two.
TEST_P(Words, CompleteIsNotMetByTheMessageBefore)
{
    for (unsigned round = 0; round < 20; round++) {
        fill(SENDER, round);
        std::vector<phi_work> work = program(RECEIVER, PHI_CALL_POST);
        std::vector<phi_work> complete = program(RECEIVER, PHI_CALL_COMPLETE);
        if (round % 2) {
            ASSERT_EQ(issue(RECEIVER, work), 0);
            work.clear();
        }
        work.insert(work.end(), complete.begin(), complete.end());
        ASSERT_EQ(issue(RECEIVER, work), 0);
        EXPECT_EQ(synchronize(RECEIVER, 3), -ETIMEDOUT) << "round " << round;
        ASSERT_EQ(issue(SENDER, PHI_CALL_TRANSFER, SIZE), 0);
        ASSERT_EQ(synchronize(RECEIVER), 0);
        EXPECT_TRUE(arrived(SIZE)) << "round " << round;
        ASSERT_EQ(synchronize(SENDER), 0);
    }
    all_is_settled();
}

TEST_P(Words, WaitConsumesASignal)
{
    ASSERT_EQ(issue(RECEIVER, PHI_CALL_WAIT), 0);
    EXPECT_EQ(synchronize(RECEIVER, 20), -ETIMEDOUT);
    ASSERT_EQ(issue(SENDER, PHI_CALL_SIGNAL), 0);
    ASSERT_EQ(synchronize(SENDER), 0);
    ASSERT_EQ(synchronize(RECEIVER), 0);
    all_is_settled();
}

TEST_P(Words, OneSignalIsInFlight)
{
    fill(SENDER, 1);
    ASSERT_EQ(issue(SENDER, PHI_CALL_PUT_SIGNAL, SIZE), 0);
    ASSERT_EQ(synchronize(SENDER), 0);
    EXPECT_TRUE(arrived(SIZE));
    fill(RECEIVER, 99);
    ASSERT_EQ(issue(SENDER, PHI_CALL_PUT_SIGNAL, SIZE), 0);
    EXPECT_EQ(synchronize(SENDER, 20), -ETIMEDOUT);
    EXPECT_FALSE(arrived(SIZE)) << "the one before was not consumed";

    ASSERT_EQ(issue(RECEIVER, PHI_CALL_WAIT), 0);
    ASSERT_EQ(synchronize(RECEIVER), 0);
    ASSERT_EQ(synchronize(SENDER), 0);
    EXPECT_TRUE(arrived(SIZE));
    ASSERT_EQ(issue(RECEIVER, PHI_CALL_WAIT), 0);
    ASSERT_EQ(synchronize(RECEIVER), 0);
    all_is_settled();
}

TEST_P(Words, TheDeadlineNamesWhatIsAwaited)
{
    struct {
        phi_call call;
        int end;
        phi_word word;
        uint32_t before;
        const char *awaited;
    } cases[] = {
        {PHI_CALL_WAIT, RECEIVER, PHI_WORD_NOTE, PHI_BIT_FREE, "'noted'"},
        {PHI_CALL_SIGNAL, SENDER, PHI_WORD_NOTE, PHI_BIT_NOTED, "'free'"},
        {PHI_CALL_TRANSFER, SENDER, PHI_WORD_TURN, PHI_BIT_FULL, "'ready'"},
        {PHI_CALL_COMPLETE, RECEIVER, PHI_WORD_TURN, PHI_BIT_READY, "'full'"},
    };
    for (auto &c : cases) {
        store(word(c.word), c.before);
        ASSERT_EQ(issue(c.end, c.call, SIZE), 0);
        phi_executor *executor = ends->executor[c.end];
        EXPECT_EQ(executor->ops->flush(executor, phi_deadline(20)), -ETIMEDOUT);
        std::string error = ends->context[c.end].error();
        EXPECT_NE(error.find(c.awaited), std::string::npos) << error;
        EXPECT_NE(error.find("operation 77"), std::string::npos) << error;
        EXPECT_NE(error.find("rank " + std::to_string(1 - c.end)), std::string::npos) << error;
        store(word(c.word), EVERY_BIT);
        EXPECT_EQ(synchronize(c.end), 0);
    }
}

TEST_P(Words, ABrokenLineReleasesAndCopiesNothing)
{
    fill(SENDER, 1);
    fill(RECEIVER, 2);
    ASSERT_EQ(issue(SENDER, PHI_CALL_TRANSFER, SIZE), 0);
    EXPECT_EQ(synchronize(SENDER, 10), -ETIMEDOUT);
    store(&ends->line[SENDER]->broken, 1);
    store(word(PHI_WORD_TURN), EVERY_BIT); // for waits that do not look at `broken`
    ASSERT_EQ(synchronize(SENDER), 0);
    EXPECT_TRUE(drained(SENDER));
    if (ends->skips_posts) {
        EXPECT_FALSE(arrived(SIZE));
        EXPECT_EQ(look(word(PHI_WORD_TURN)), EVERY_BIT) << "a post behind what was not copied";
        EXPECT_EQ(look(&ends->line[SENDER]->undone), 1u);
    }
}

// A wait that got nothing says so; what came before the end is taken, once.
TEST_P(Words, AWaitSaysThatItGotNothing)
{
    if (!ends->skips_posts)
        GTEST_SKIP() << "memory operations see the bit alone";
    const uint32_t added = PHI_BIT_FREE | PHI_BIT_NOTED | PHI_BIT_ADDED(PHI_BIT_NOTED);
    struct {
        uint32_t word, broken, then, undone;
    } cases[] = {
        {PHI_BIT_NOTED, 0, PHI_BIT_FREE, 0},
        {PHI_BIT_NOTED, 1, PHI_BIT_FREE, 0},
        {PHI_BIT_FREE, 1, PHI_BIT_FREE, 1},
        {added, 0, 0, 1}, // 0: either
        {added, 1, added, 1},
    };
    for (auto &c : cases) {
        Line *line = ends->line[RECEIVER];
        store(word(PHI_WORD_NOTE), c.word);
        store(&line->broken, c.broken);
        store(&line->undone, 0);
        ASSERT_EQ(issue(RECEIVER, PHI_CALL_WAIT), 0);
        ASSERT_EQ(synchronize(RECEIVER), 0);
        if (c.then != 0) {
            EXPECT_EQ(look(word(PHI_WORD_NOTE)), c.then) << c.word << " " << c.broken;
        }
        EXPECT_EQ(look(&line->undone), c.undone) << c.word << " " << c.broken;
    }
}

TEST_P(Words, RevokedUsesTakeNothing)
{
    fill(SENDER, 1);
    fill(RECEIVER, 2);
    atomic_store(&uses[SENDER]->revoked, 1u);
    EXPECT_EQ(issue(SENDER, PHI_CALL_PUT_SIGNAL, SIZE), PH_EBROKEN);
    EXPECT_EQ(synchronize(SENDER), 0);
    EXPECT_FALSE(arrived(SIZE));
    EXPECT_TRUE(drained(SENDER));
    all_is_settled();
}

// Rounds of every pattern with fresh data, each end in a thread of its own.
class Rounds : public Words
{
  protected:
    static const int ROUNDS = 300;
    std::atomic<int> failures{0};

    void fail(const char *what, int round)
    {
        if (failures++ == 0)
            ADD_FAILURE() << what << " in round " << round;
    }
    void check(bool good, const char *what, int round)
    {
        if (!good)
            fail(what, round);
    }
    template <typename Sender, typename Receiver> void run(Sender sender, Receiver receiver)
    {
        std::thread other([&] {
            for (int round = 0; round < ROUNDS && failures == 0; round++)
                sender(round);
        });
        for (int round = 0; round < ROUNDS && failures == 0; round++)
            receiver(round);
        other.join();
        EXPECT_EQ(failures, 0);
        all_is_settled();
    }
    // The first and last byte tell the round.
    void mark(int end, int round)
    {
        char byte = (char)(round + 1);
        ends->write(buffer[end], &byte, 1);
        ends->write(buffer[end] + SIZE - 1, &byte, 1);
    }
    bool marked(int end, int round)
    {
        char first, last;
        ends->read(&first, buffer[end], 1);
        ends->read(&last, buffer[end] + SIZE - 1, 1);
        return first == (char)(round + 1) && last == first;
    }
};

TEST_P(Rounds, SendRecvPut)
{
    run(
        [&](int round) {
            mark(SENDER, round);
            check(!issue(SENDER, PHI_CALL_TRANSFER, SIZE), "transfer", round);
            check(!synchronize(SENDER), "synchronize of the sender", round);
        },
        [&](int round) {
            check(!issue(RECEIVER, PHI_CALL_POST), "post", round);
            check(!issue(RECEIVER, PHI_CALL_COMPLETE), "complete", round);
            check(!synchronize(RECEIVER), "synchronize of the receiver", round);
            check(marked(RECEIVER, round), "data", round);
        });
}

TEST_P(Rounds, SendRecvGet)
{
    gets = true;
    run(
        [&](int round) {
            mark(SENDER, round);
            check(!issue(SENDER, PHI_CALL_POST), "post", round);
            check(!issue(SENDER, PHI_CALL_COMPLETE), "complete", round);
            check(!synchronize(SENDER), "synchronize of the sender", round);
        },
        [&](int round) {
            check(!issue(RECEIVER, PHI_CALL_TRANSFER, SIZE), "transfer", round);
            check(!synchronize(RECEIVER), "synchronize of the receiver", round);
            check(marked(RECEIVER, round), "data", round);
        });
}

// When the buffer may be written again is not the words' affair: the threads settle that between
// them.
TEST_P(Rounds, PutSignalWait)
{
    std::atomic<int> read{0};
    run(
        [&](int round) {
            while (read < round && failures == 0)
                std::this_thread::yield();
            mark(SENDER, round);
            check(!issue(SENDER, PHI_CALL_PUT_SIGNAL, SIZE), "put_signal", round);
            check(!synchronize(SENDER), "synchronize of the sender", round);
        },
        [&](int round) {
            check(!issue(RECEIVER, PHI_CALL_WAIT), "wait", round);
            check(!synchronize(RECEIVER), "synchronize of the receiver", round);
            check(marked(RECEIVER, round), "data", round);
            read++;
        });
}

// Many rounds in the streams at once: the words alone keep the order.
TEST_P(Rounds, SignalsEnqueuedAhead)
{
    for (int round = 0; round < 50; round++) {
        ASSERT_EQ(issue(SENDER, PHI_CALL_SIGNAL), 0);
        ASSERT_EQ(issue(RECEIVER, PHI_CALL_WAIT), 0);
    }
    std::thread other([&] { check(!synchronize(SENDER), "synchronize of the sender", 0); });
    EXPECT_EQ(synchronize(RECEIVER), 0);
    other.join();
    all_is_settled();
}

static std::string name_of(const testing::TestParamInfo<EndsEntry> &info)
{
    return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Executor, Words, testing::ValuesIn(EXECUTORS), name_of);
INSTANTIATE_TEST_SUITE_P(Executor, Rounds, testing::ValuesIn(EXECUTORS), name_of);

} // namespace
