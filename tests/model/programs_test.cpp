// SPDX-License-Identifier: BSD-3-Clause
// The programs of semaphore/words.h in every interleaving, and mutations of them, each of which
// must be caught.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "model/scenarios.h"

using namespace model;

class Programs : public testing::TestWithParam<Scenario>
{
};

TEST_P(Programs, NoInterleavingFails)
{
    Result result = GetParam().make(Tables()).explore();
    EXPECT_TRUE(result.ok()) << result.failure << " after " << result.states << " states\n"
                             << result.trace;
    EXPECT_GT(result.states, 10u) << "nothing was explored";
    printf("%zu states\n", result.states);
}

static std::string scenario_name(const testing::TestParamInfo<Scenario> &info)
{
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Model, Programs, testing::ValuesIn(scenarios()), scenario_name);

// The failures that the small scenarios show with these tables, e.g. "send_put: deadlock".
static std::vector<std::string> failures(const Tables &tables)
{
    std::vector<std::string> found;
    for (const Scenario &scenario : small_scenarios()) {
        Result result = scenario.make(tables).explore();
        if (!result.ok())
            found.push_back(std::string(scenario.name) + ": " + result.failure);
    }
    return found;
}

TEST(Mutations, NoneNoFailure)
{
    EXPECT_EQ(failures(Tables()), std::vector<std::string>());
}

// Every single step is needed: each wait, post and copy.
TEST(Mutations, EveryStepRemoved)
{
    for (int call = 0; call < PHI_CALL_COUNT; call++)
        for (int step = 0; step < phi_programs[call].count; step++) {
            Tables tables;
            tables.remove(call, step);
            EXPECT_FALSE(failures(tables).empty())
                << phi_programs[call].name << " without its step " << step << " was not caught";
        }
}

// The order matters everywhere. A signal that waits behind its post would keep the turns too, but
// hold its own stream until the peer has consumed it: two that signal each other would deadlock.
TEST(Mutations, NeighboursSwapped)
{
    for (int call = 0; call < PHI_CALL_COUNT; call++)
        for (int step = 0; step + 1 < phi_programs[call].count; step++) {
            Tables tables;
            tables.swap(call, step);
            EXPECT_FALSE(failures(tables).empty())
                << phi_programs[call].name << " with steps " << step << " and " << step + 1
                << " swapped was not caught";
        }
}

static const uint8_t bits[] = {PHI_BIT_READY, PHI_BIT_FULL, PHI_BIT_NOTED, PHI_BIT_FREE};

// Calls a function for every wait and post of every program.
template <class Function> static void for_each_word_step(Function function)
{
    for (int call = 0; call < PHI_CALL_COUNT; call++)
        for (int step = 0; step < phi_programs[call].count; step++)
            if (phi_programs[call].steps[step].kind != PHI_STEP_COPY)
                function(call, step);
}

TEST(Mutations, EveryWrongBit)
{
    for_each_word_step([](int call, int step) {
        for (uint8_t bit : bits) {
            Tables tables;
            phi_step &mutated = tables.programs[call].steps[step];
            if (mutated.bit == bit)
                continue;
            mutated.bit = bit;
            EXPECT_FALSE(failures(tables).empty())
                << phi_programs[call].name << " step " << step << " with bit " << int(bit);
        }
    });
}

TEST(Mutations, EveryWrongWord)
{
    for_each_word_step([](int call, int step) {
        Tables tables;
        phi_step &mutated = tables.programs[call].steps[step];
        mutated.word = uint8_t(PHI_WORD_COUNT - 1 - mutated.word);
        EXPECT_FALSE(failures(tables).empty())
            << phi_programs[call].name << " step " << step << " with the other word";
    });
}

// A turn that starts at FULL is the turn after any message: the one other value that is right.
TEST(Mutations, StartValues)
{
    for (int word = 0; word < PHI_WORD_COUNT; word++)
        for (uint32_t start = 0; start <= PHI_BIT_FREE; start = start ? start * 2 : 1) {
            Tables tables;
            bool right =
                tables.start[word] == start || (word == PHI_WORD_TURN && start == PHI_BIT_FULL);
            tables.start[word] = start;
            EXPECT_EQ(failures(tables).empty(), right) << "word " << word << " from " << start;
        }
}

TEST(Mutations, NoteThatIsNotFreeDeadlocks)
{
    Tables tables;
    tables.start[PHI_WORD_NOTE] = 0;
    std::vector<std::string> found = failures(tables);
    EXPECT_NE(std::find(found.begin(), found.end(), "signal_wait: deadlock"), found.end());
}

TEST(Mutations, SignalThatDoesNotWaitForFreeLosesASignal)
{
    Tables tables;
    tables.remove(PHI_CALL_SIGNAL, 0);
    std::vector<std::string> found = failures(tables);
    EXPECT_NE(std::find(found.begin(), found.end(), "signal_wait: word posted out of turn"),
              found.end());
}

// Posts, active calls, completes: any other order of a group's phases deadlocks.
TEST(Mutations, GroupPhases)
{
    int orders[][3] = {{0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (auto &order : orders) {
        Tables tables;
        for (phi_program &program : tables.programs)
            program.phase = uint8_t(order[program.phase]);
        std::vector<std::string> found = failures(tables);
        EXPECT_NE(std::find(found.begin(), found.end(), "group_pair_put: deadlock"), found.end())
            << order[0] << order[1] << order[2];
    }
}

// As documented: two ranks that both begin with their active call wait for each other, group or no
// group.
TEST(Deadlock, TwoActiveCallsFirst)
{
    Machine m(2, Tables());
    int c = m.channel(0, 1);
    for (int rank = 0; rank < 2; rank++) {
        int s = m.stream(rank);
        m.send(s, c);
        m.recv(s, c);
    }
    EXPECT_EQ(m.explore().failure, "deadlock");
}

// A second post before the complete of the first is the -EALREADY of the API: the model shows why.
TEST(Misuse, TwoPostsBeforeOneComplete)
{
    Machine m(2, Tables());
    int c = m.channel(0, 1);
    int a = m.stream(0), b = m.stream(1);
    m.send(a, c);
    m.send(a, c);
    m.recv_only(b, c);
    m.recv_only(b, c);
    m.complete_recv(b, c);
    m.complete_recv(b, c);
    EXPECT_EQ(m.explore().failure, "word posted out of turn");
}

// The buffer of a put_signal is the caller's affair: one way without halves or answers overwrites
// it.
TEST(Misuse, PutSignalIntoABufferInUse)
{
    Machine m(2, Tables());
    int c = m.channel(0, 1);
    int a = m.stream(0, true), b = m.stream(1, true);
    m.put_signal(a, c);
    m.wait(b, c);
    m.consume(b, c);
    EXPECT_EQ(m.explore().failure, "read during a write");
}

// Programs made at random: every rank takes part in the same messages in the same order, by single
// calls or by groups whose members it names in an order of its own.
class RandomProgram
{
  public:
    explicit RandomProgram(unsigned seed) : random_(seed), machine_(3, Tables())
    {
        bool cyclic = random_() % 2;
        for (int i = 0; i < 3; i++) {
            machine_.channel(i, (i + 1) % 3, protocol(), protocol());
            machine_.stream(i, cyclic);
        }
        unsigned turns = 1 + random_() % 4;
        for (unsigned i = 0; i < turns; i++)
            turn();
    }

    Machine &machine()
    {
        return machine_;
    }

  private:
    Protocol protocol()
    {
        return random_() % 2 ? Protocol::GET : Protocol::PUT;
    }

    void turn()
    {
        int c = int(random_() % 3), forth = c, back = (c + 1) % 3; // ranks, and their streams
        if (random_() % 2)
            std::swap(forth, back);
        switch (random_() % 4) {
        case 0:
            machine_.send(forth, c);
            machine_.recv(back, c);
            break;
        case 1:
            machine_.signal(forth, c);
            machine_.wait(back, c);
            break;
        case 2: // answered, so that the buffer is free
            machine_.put_signal(forth, c, 1);
            machine_.wait(back, c);
            machine_.consume(back, c, 1);
            machine_.signal(back, c);
            machine_.wait(forth, c);
            break;
        default:
            group();
            break;
        }
    }

    void group()
    {
        std::vector<GroupOp> ops[3];
        for (int c = 0; c < 3; c++)
            for (int direction = 0; direction < 2; direction++) {
                int from = (c + direction) % 3, to = (c + 1 - direction) % 3;
                if (random_() % 2) {
                    ops[from].push_back({GroupKind::SEND, c});
                    ops[to].push_back({GroupKind::RECV, c});
                }
                if (random_() % 4 == 0) {
                    ops[from].push_back({GroupKind::SIGNAL, c});
                    ops[to].push_back({GroupKind::WAIT, c});
                }
            }
        for (int rank = 0; rank < 3; rank++) {
            std::shuffle(ops[rank].begin(), ops[rank].end(), random_);
            machine_.group(rank, ops[rank]);
        }
    }

    std::mt19937 random_;
    Machine machine_;
};

TEST(Random, NoInterleavingFails)
{
    size_t states = 0;
    for (unsigned seed = 0; seed < 400 && !HasFailure(); seed++) {
        RandomProgram program(seed);
        Result result = program.machine().explore();
        EXPECT_TRUE(result.ok()) << "seed " << seed << ": " << result.failure << "\n"
                                 << result.trace;
        states += result.states;
    }
    EXPECT_GT(states, 100000u);
    printf("%zu states\n", states);
}

// Three ranks, all-to-all by pairs of blocking calls and by groups; rank 2 dies at any moment.
static Machine with_a_death(bool kernel_waits)
{
    Machine m(3, Tables());
    int c[3] = {m.channel(0, 1), m.channel(1, 2, Protocol::GET), m.channel(2, 0)};
    int s[3] = {m.stream(0), m.stream(1), m.stream(2)};
    for (int rank = 0; rank < 3; rank++) {
        int right = c[rank], left = c[(rank + 2) % 3];
        m.group(s[rank], {{GroupKind::SEND, right}, {GroupKind::RECV, left}});
    }
    m.signal(s[2], c[2]);
    m.wait(s[0], c[2]);
    m.send(s[0], c[0]);
    m.recv(s[1], c[0]);
    m.mortal(2, kernel_waits);
    return m;
}

TEST(Death, SurvivorsEndByWordsAlone)
{
    Result result = with_a_death(false).explore();
    EXPECT_TRUE(result.ok()) << result.failure << "\n" << result.trace;
    printf("%zu states\n", result.states);
}

TEST(Death, SurvivorsEndByBroken)
{
    Result result = with_a_death(true).explore();
    EXPECT_TRUE(result.ok()) << result.failure << "\n" << result.trace;
}

// The small ones: streams that no peer holds back any more have many more interleavings.
TEST(Death, SurvivorsOfRandomPrograms)
{
    size_t states = 0;
    for (unsigned seed = 0; seed < 400 && !HasFailure(); seed++) {
        if (RandomProgram(seed).machine().explore().states > 200)
            continue;
        for (bool kernel_waits : {false, true}) {
            RandomProgram program(seed);
            program.machine().mortal(int(seed % 3), kernel_waits);
            Result result = program.machine().explore();
            EXPECT_TRUE(result.ok()) << "seed " << seed << ": " << result.failure << "\n"
                                     << result.trace;
            states += result.states;
        }
    }
    EXPECT_GT(states, 100000u);
    printf("%zu states\n", states);
}

// The first failure that is found with a mutation of what is noted, in small random programs, or
// "".
static std::string noted_wrongly(const Machine::Notes &notes, bool kernel_waits)
{
    for (unsigned seed = 0; seed < 400; seed++) {
        if (RandomProgram(seed).machine().explore().states > 200)
            continue;
        RandomProgram program(seed);
        program.machine().mortal(int(seed % 3), kernel_waits);
        program.machine().notes(notes);
        const Result result = program.machine().explore();
        if (!result.ok())
            return result.failure;
    }
    return "";
}

TEST(Death, EachNoteOfAWaitThatGotNothingIsNeeded)
{
    const std::string missed = "status is 0 of what did not come";
    Machine::Notes notes;
    notes.completes = false;
    EXPECT_EQ(noted_wrongly(notes, false), missed);
    notes = {};
    notes.settles = false;
    EXPECT_EQ(noted_wrongly(notes, false), missed);
    notes = {};
    notes.adds_only = false;
    EXPECT_EQ(noted_wrongly(notes, false), "status is not 0 of what came");
    // Marks are what queues and kernels need: their posts behind such a wait are left out, where
    // they see it. Without them they are as memory operations.
    notes = {};
    notes.marks = notes.settles = false;
    EXPECT_EQ(noted_wrongly(notes, true), missed);
    notes.marks = true;
    EXPECT_EQ(noted_wrongly(notes, true), "");
}

TEST(Death, WordsOfLivePeersMustNotBeReleased)
{
    Machine m = with_a_death(false);
    m.release_everything();
    EXPECT_FALSE(m.explore().ok());
}
