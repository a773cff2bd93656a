// SPDX-License-Identifier: BSD-3-Clause
// The status of a channel after a stream is done: 0 where what it waited for came whole, whatever
// became of the peer since, and a code with a sentence where it did not.
#include <atomic>
#include <csignal>
#include <cstring>

#include <unistd.h>

#include "e2e/exchanging.h"

class Status : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Status);

static const size_t size = 3000;
static const uint64_t op_id = 4711;

// What rank 0, which sends, and rank 1 have of their channel. The words of the argument say how.
// value[0]: rank 0 is about to end; value[1]: rank 1's receives are enqueued; value[2]: and done,
// and its status was asked.
struct Meeting {
    Rank &rank;
    ph_channel *channel = nullptr;
    char *memory = nullptr;
    void *stream = nullptr;

    bool has(const char *word) const
    {
        return (" " + rank.argument + " ").find(" " + std::string(word) + " ") != std::string::npos;
    }
    std::vector<std::string> settings() const
    {
        if (has("words"))
            return {"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"};
        if (has("copy"))
            return {"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=1000000"};
        if (has("memory_operation"))
            return {"PEERHOP_WAIT=memory_operation"};
        return {};
    }
    explicit Meeting(Rank &of) : rank(of)
    {
        rank.open(settings());
        memory = static_cast<char *>(rank.device->alloc(size));
        stream = rank.device->stream();
        rank.device->fill(memory, size, rank.rank == 0 ? 1 : 99);
        channel = rank.channel(!rank.rank, op_id, role_of(rank, 0), memory, size,
                               has("get") ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT);
        rank.barrier();
    }
    // One message, at either end.
    void pass() const
    {
        const bool sends = rank.rank == 0, signals = has("signal");
        const ph_group_kind kind = signals ? (sends ? PH_GROUP_PUT_SIGNAL : PH_GROUP_WAIT)
                                           : (sends ? PH_GROUP_SEND : PH_GROUP_RECV);
        const ph_group_op op = {kind, channel, 0, 0, size};
        if (has("group")) {
            CHECK_OK(ph_group(&op, 1, stream));
        } else if (signals) {
            CHECK_OK(sends ? ph_put_signal(channel, 0, 0, size, stream)
                           : ph_wait(channel, size, stream));
        } else {
            CHECK_OK(sends ? ph_send(channel, size, stream) : ph_recv(channel, size, stream));
            CHECK_OK(ph_complete(channel, stream));
        }
    }
    // As it is now, and after the channel has ended.
    void is_whole() const
    {
        CHECK_OK(ph_channel_status(channel));
        CHECK(end_of(channel) != 0);
        CHECK_OK(ph_channel_status(channel));
    }
    void is_not_whole() const
    {
        const std::string who = "operation 4711 with rank " + std::to_string(!rank.rank) + ": ";
        for (int i = 0; i < 2; i++) {
            const int status = ph_channel_status(channel);
            CHECK(status == PH_EPEER || status == PH_EBROKEN);
            CHECK_SAYS(rank.error(), who);
            CHECK_SAYS(rank.error(), ph_strerror(status));
            CHECK(end_of(channel) != 0);
        }
    }
};

static void ends_as_it_is_told(const Meeting &m)
{
    Rank &rank = m.rank;
    CHECK(reaches(rank.shared->value[1], 1));
    // What was sent is over the net still; and reads must be asked for before an abort.
    if ((m.has("killed") || m.has("aborts")) && !m.has("unsent") && !m.has("half") &&
        !m.has("behind"))
        CHECK(reaches(rank.shared->value[2], 1));
    rank.shared->value[0] = 1;
    if (m.has("killed"))
        pause();
    if (m.has("aborts"))
        CHECK_OK(ph_context_abort(rank.context, "the test says so"));
    if (m.has("releases")) {
        release_to(rank, m.memory, size, PH_RELEASE_DRAINED);
        rank.barrier();
    }
    rank.close();
}

RANK_FUNCTION(receives)
{
    const Meeting m(rank);
    if (rank.rank == 0) {
        if (!m.has("unsent"))
            m.pass();
        rank.synchronize(m.stream);
        return ends_as_it_is_told(m);
    }
    std::atomic<bool> go{!m.has("behind")};
    if (!go)
        rank.device->call(m.stream, [&] {
            while (!go)
                sleep_ms(1);
        });
    const auto receive = [&] {
        m.pass();
        if (m.has("half"))
            m.pass();
    };
    void *graph = m.has("graph") ? rank.device->capture(m.stream, receive) : nullptr;
    if (graph != nullptr)
        rank.device->launch(graph, m.stream);
    else
        receive();
    rank.shared->value[1] = 1;
    if (!go)
        CHECK(end_of(m.channel) != 0);
    go = true;
    rank.goes_on_without(0, m.stream);
    if (m.has("unsent") || m.has("half")) {
        m.is_not_whole();
    } else {
        CHECK_OK(ph_channel_status(m.channel));
        rank.shared->value[2] = 1;
        m.is_whole();
        rank.verify(m.memory, size, 1, "what came whole");
    }
    if (graph != nullptr)
        rank.device->destroy(graph);
    if (m.has("releases"))
        rank.barrier();
}

static std::string play(const std::string &device, const char *function, const std::string &how)
{
    Job job(device, 2);
    job.start(function, how);
    if (how.find("killed") != std::string::npos) {
        if (!reaches(job.shared()->value[0], 1, 60000))
            return "rank 0 has not come so far: " + job.wait(1000);
        job.expect_failure(0);
        kill(job.pid(0), SIGKILL);
        job.status(0, 60000);
    }
    return job.wait();
}

// Of the ways in which messages move between devices, one each.
static std::vector<std::string> ways(bool between_devices)
{
    return between_devices
               ? std::vector<std::string>{"as_ever", "words", "copy", "memory_operation"}
               : std::vector<std::string>{"as_ever"};
}

static std::vector<std::string> calls(bool between_devices)
{
    std::vector<std::string> all = {"group signal", "group send"};
    for (const std::string &way : ways(between_devices))
        for (const char *call : {" signal", " send", " send get"})
            all.push_back(way + call);
    return all;
}

TEST_P(Status, IsWholeWhateverBecomesOfTheSender)
{
    for (const std::string &call : calls(!on_host() && !on_net()))
        for (const char *end : {"leaves", "killed", "aborts", "releases"}) {
            const std::string how = call + " " + end;
            SCOPED_TRACE(how);
            EXPECT_EQ(play(GetParam(), "receives", how), "");
        }
}

TEST_P(Status, SaysWhatDidNotCome)
{
    for (const std::string &call : calls(!on_host() && !on_net()))
        for (const char *end : {"unsent leaves", "unsent killed", "half killed", "half leaves",
                                "unsent aborts", "unsent releases"}) {
            const std::string how = call + " " + end;
            SCOPED_TRACE(how);
            EXPECT_EQ(play(GetParam(), "receives", how), "");
        }
}

// The stream comes to its wait after the peer has gone.
TEST_P(Status, IsWholeOfWhatIsTakenAfterwards)
{
    if (on_host())
        GTEST_SKIP() << "the function before it would run at once";
    for (const std::string &way : ways(!on_net()))
        for (const char *end : {"leaves", "killed", "aborts", "unsent killed", "half killed"}) {
            if (on_net() && (strcmp(end, "killed") == 0 || strcmp(end, "aborts") == 0))
                continue; // nobody knows when it has come
            const std::string how = "behind signal " + way + " " + end;
            SCOPED_TRACE(how);
            EXPECT_EQ(play(GetParam(), "receives", how), "");
        }
}

TEST_P(Status, OfReplayedGraphs)
{
    if (on_host())
        GTEST_SKIP() << "no graphs";
    for (const std::string &way : ways(!on_net()))
        for (const char *call : {"signal", "send"})
            for (const char *end : {"killed", "unsent killed", "half killed"}) {
                const std::string how = "graph " + way + " " + call + " " + end;
                SCOPED_TRACE(how);
                EXPECT_EQ(play(GetParam(), "receives", how), "");
            }
}

// ---- what this end sends, and reads

// Rank 0 ends; what rank 1 had for it is not taken.
RANK_FUNCTION(sends_in_vain)
{
    rank.open({"PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"});
    auto *memory = static_cast<char *>(rank.device->alloc(size));
    void *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, op_id, role_of(rank, 1), memory, size);
    if (rank.rank == 1)
        CHECK_OK(ph_send(channel, size, stream));
    rank.barrier();
    if (rank.rank == 0) {
        rank.shared->value[0] = 1;
        if (rank.argument == "killed")
            pause();
        return;
    }
    rank.goes_on_without(0, stream);
    CHECK_RC(ph_channel_status(channel), PH_EPEER);
    CHECK_SAYS(rank.error(), "operation 4711 with rank 0: ");
}

TEST_P(Status, SaysThatASendWasLeftOut)
{
    if (is_staged())
        GTEST_SKIP() << "what goes into slots waits for nobody";
    for (const char *how : {"killed", "leaves"})
        EXPECT_EQ(play(GetParam(), "sends_in_vain", how), "") << how;
}

// Rank 1 reads what lies at rank 0, which then gives up.
RANK_FUNCTION(reads)
{
    const Meeting m(rank);
    if (rank.rank == 0) {
        CHECK(reaches(rank.shared->value[0], 1));
        CHECK_OK(ph_context_abort(rank.context, "the test says so"));
        rank.close();
        return;
    }
    const bool over_net = rank.argument.find("net") != std::string::npos;
    CHECK_OK(ph_get(m.channel, 0, 0, size, m.stream));
    rank.synchronize(m.stream);
    if (m.has("asked"))
        CHECK_OK(ph_channel_status(m.channel));
    rank.shared->value[0] = 1;
    if (m.has("asked") || over_net) {
        CHECK_RC(end_of(m.channel), PH_EBROKEN);
        m.is_whole();
        rank.verify(m.memory, size, 1, "what was read");
        return;
    }
    CHECK_RC(end_of(m.channel), PH_EBROKEN);
    m.is_not_whole(); // it may have been read after the end
}

TEST_P(Status, OfWhatWasRead)
{
    SKIP_GETS_OF_STAGED();
    for (const char *how : {"asked", "late"})
        EXPECT_EQ(play(GetParam(), "reads", std::string(how) + (on_net() ? " net" : "")), "")
            << how;
}

// A rank that gives up by itself is told nothing of its messages.
RANK_FUNCTION(aborts_by_itself)
{
    const Meeting m(rank);
    m.pass();
    rank.synchronize(m.stream);
    CHECK_OK(ph_channel_status(m.channel));
    CHECK_OK(ph_channel_ended(m.channel));
    rank.barrier();
    if (rank.rank == 1) {
        CHECK_OK(ph_context_abort(rank.context, "the test says so"));
        CHECK_RC(ph_channel_status(m.channel), PH_EABORTED);
        CHECK_SAYS(rank.error(), "operation 4711 with rank 0: ");
        CHECK_RC(ph_channel_ended(m.channel), PH_EABORTED);
        CHECK_SAYS(rank.error(), "operation 4711 with rank 0: ");
    }
    rank.barrier();
}

TEST_P(Status, OfARankThatGivesUp)
{
    EXPECT_EQ(play(GetParam(), "aborts_by_itself", "signal"), "");
}
