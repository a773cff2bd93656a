// SPDX-License-Identifier: BSD-3-Clause
// A rank that lies to two others. Neither crashes nor waits past its deadline, each says who it
// was, and the two go on with each other.
#include <algorithm>
#include <csignal>
#include <set>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"
#include "e2e/hostile_lies.h"

extern "C" {
#include "peer/node.h"
}

#define TEXT(what)  TEXT_(what)
#define TEXT_(what) #what

namespace
{

const size_t size = 5000;
const int64_t deadline_ms = 400;
enum { DONE, MET, TOLD, RC = 4, MS = 10, LIED = 20, SENTENCE = 16, LOG = 32 };

// What the liar does beside lying in its answers, records and offers.
enum Deed {
    NOTHING,
    MEETS_FIRST,
    OWN_CONFIRM,
    OWN_NUMBER,
    STALE_ROUND,
    RANDOM_WORDS,
    STEALS,
    STAYS_AWAY
};

struct Lie {
    const char *name;
    int liar; // 0 makes the segments, 2 does not
    std::set<int> results;
    const char
        *sentence; // part of what an honest rank says; RANK stands for "rank" and the liar's number
    Deed deed = NOTHING;
    uint32_t value = 0;
};

const char *const dropped = "RANK: operation 2";
const char *const unusable = "rank 0 (process";

const Lie lies[] = {
    // What must not matter.
    {"nothing", 0, {0}, ""},
    {"what rings is a full pipe", 0, {0, -ETIMEDOUT}, ""},
    {"what rings is a full pipe", 2, {0, -ETIMEDOUT}, ""},
    {"what rings is a pipe that nobody reads", 2, {0, -ETIMEDOUT}, ""},
    {"what rings is a closed socket", 2, {0, -ETIMEDOUT}, ""},
    {"what rings is a directory", 2, {0, -ETIMEDOUT}, ""},
    {"the process is a full pipe", 2, {0, -ETIMEDOUT}, ""},
    {"the process is a directory", 2, {0, -ETIMEDOUT}, ""},
    {"the process is a folder of proc", 0, {0, -ETIMEDOUT}, ""},
    {"the process is a folder of proc", 2, {0, -ETIMEDOUT}, ""},
    // First contact.
    {"the process is missing", 2, {-EBADMSG}, "cannot reach RANK"},
    {"what rings is missing", 2, {-ETIMEDOUT}, dropped},
    {"another nonce", 2, {-ETIMEDOUT}, dropped},
    {"another size of segments", 2, {PH_EMISMATCH}, "RANK has PEERHOP_CHANNELS=16385"},
    {"no answer", 2, {-ETIMEDOUT}, "RANK"},
    {"half an answer", 2, {-EBADMSG}, "cannot reach RANK"},
    {"an answer and a half", 2, {-EBADMSG}, "cannot reach RANK"},
    {"an answer with another magic", 2, {-EBADMSG}, "cannot reach RANK"},
    {"an answer of another version",
     2,
     {PH_EMISMATCH},
     "RANK speaks version 999 of the calls between ranks, and not " TEXT(PHI_NODE_VERSION)},
    {"an answer that is neither", 2, {-EBADMSG}, "cannot reach RANK"},
    {"a flood of answers", 2, {-ETIMEDOUT, PH_ENOPATH}, "RANK"},
    {"a flood of answers with descriptors", 2, {-ETIMEDOUT, PH_ENOPATH}, "RANK"},
    // Segments.
    {"the segment is missing", 0, {-EBADMSG}, "cannot reach RANK"},
    {"the segment is a full pipe", 0, {-EBADMSG}, unusable},
    {"the segment is a directory", 0, {-EBADMSG}, unusable},
    {"the segment is small", 0, {-EBADMSG}, unusable},
    {"the segment is huge and sparse", 0, {-EBADMSG}, unusable},
    {"the segment is cut off later", 0, {-EBADMSG}, unusable},
    // Mapping.
    {"a probe record of nonsense", 2, {PH_ENOPATH}, "RANK by ipc: the export record is malformed"},
    {"a probe record that is too long", 2, {PH_ENOPATH, -ETIMEDOUT}, "RANK"},
    {"no probe is ever seen", 2, {PH_ENOPATH}, "RANK by ipc: the probe found other bytes"},
    {"the memory is missing", 2, {PH_ENOPATH}, "RANK by ipc: the descriptor did not come"},
    {"the memory is a full pipe", 2, {PH_ENOPATH}, "RANK by ipc: the export record is malformed"},
    {"the memory is a directory", 2, {PH_ENOPATH}, "RANK by ipc: the export record is malformed"},
    {"the memory is small", 2, {PH_ENOPATH}, "RANK by ipc: the export record is malformed"},
    {"the memory is huge and sparse",
     2,
     {PH_ENOPATH},
     "RANK by ipc: the export record is malformed"},
    {"the memory is cut off later", 2, {PH_ENOPATH}, "RANK by ipc: the export record is malformed"},
    {"a record larger than its file",
     2,
     {PH_ENOPATH},
     "RANK by ipc: the export record is malformed"},
    {"a record of another kind",
     2,
     {PH_ENOPATH},
     "RANK by ipc: this rank cannot import memory of that kind"},
    // Records and offers: dropped with a warning.
    {"a record of 0 bytes", 2, {-ETIMEDOUT}, dropped},
    {"a record of 2^63 bytes", 2, {-ETIMEDOUT}, dropped},
    {"a record that wraps around", 2, {-ETIMEDOUT}, dropped},
    {"a record of an unknown kind", 0, {-ETIMEDOUT}, dropped},
    {"an offset past the allocation", 2, {-ETIMEDOUT}, dropped},
    {"an offset that wraps around", 2, {-ETIMEDOUT}, dropped},
    {"a buffer of 0 bytes", 2, {-ETIMEDOUT}, dropped},
    {"a buffer of 2^63 bytes", 0, {-ETIMEDOUT}, dropped},
    {"a buffer that ends past the allocation", 2, {-ETIMEDOUT}, dropped},
    {"a foreign export", 2, {-ETIMEDOUT}, dropped},
    {"an unknown role", 2, {-ETIMEDOUT}, dropped},
    {"an unknown protocol", 2, {-ETIMEDOUT}, dropped},
    {"a bounce buffer of another size", 2, {-ETIMEDOUT}, dropped},
    {"a slot out of range", 0, {-ETIMEDOUT}, dropped},
    {"number 0", 2, {-ETIMEDOUT}, dropped},
    {"no range", 2, {-ETIMEDOUT}, dropped},
    {"1025 ranges", 2, {-ETIMEDOUT}, dropped},
    {"2^32 - 1 ranges", 2, {-ETIMEDOUT}, dropped},
    {"a range more than there is", 2, {-ETIMEDOUT}, dropped},
    {"a second range past the allocation", 2, {-ETIMEDOUT}, dropped},
    {"a second range of 0 bytes", 2, {-ETIMEDOUT}, dropped},
    {"a second range of a foreign export", 2, {-ETIMEDOUT}, dropped},
    {"a bounce buffer of two ranges", 2, {-ETIMEDOUT}, dropped},
    {"half an offer", 2, {-ETIMEDOUT}, dropped},
    {"more than a FIFO holds", 2, {-ETIMEDOUT}, dropped},
    {"no message in the FIFO", 2, {-ETIMEDOUT}, dropped},
    {"no offer", 2, {-ETIMEDOUT}, dropped},
    {"a flood of offers", 2, {0, -ETIMEDOUT}, ""},
    // Words.
    {"a line outside the segment",
     0,
     {-EBADMSG},
     "RANK confirmed a channel outside the segment",
     OWN_CONFIRM,
     0x80000000},
    {"a reason that nobody knows", 0, {PH_ENOPATH}, "RANK", OWN_CONFIRM, 200},
    {"a round that is over", 0, {-ETIMEDOUT, PH_EPEER}, "RANK", STALE_ROUND, 0},
    {"a round from the future", 0, {-ETIMEDOUT, PH_EPEER}, "RANK", STALE_ROUND, 7},
    {"a number that was never offered", 0, {-ETIMEDOUT, PH_EPEER}, "RANK", OWN_NUMBER, 4242},
    {"a round that was never taken", 2, {PH_EPEER}, "RANK broke the rules of exchange", STAYS_AWAY},
    {"random words", 0, {}, "", RANDOM_WORDS},
    {"random words", 2, {}, "", RANDOM_WORDS},
};

const Lie &lie_of(const Rank &rank)
{
    return lies[std::stoul(rank.argument)];
}

ph_operation with(Rank &rank, uint64_t op_id, int peer, void *memory)
{
    return operation(op_id, peer, rank.rank < peer ? PH_ROLE_SENDER : PH_ROLE_RECEIVER, memory,
                     size);
}

std::vector<int> honest(const Lie &lie)
{
    std::vector<int> ranks;
    for (int rank = 0; rank < 3; rank++)
        if (rank != lie.liar)
            ranks.push_back(rank);
    return ranks;
}

// A FIFO is for those who have met: before, an offer goes through the store, and is right.
bool meets_first(const Lie &lie)
{
    return lie.deed != NOTHING || std::string(lie.name).find("FIFO") != std::string::npos;
}

// Whether an honest rank drops what the liar sends through the store, and says so.
bool is_dropped(const Lie &lie)
{
    const std::string name = lie.name;
    return lie.sentence == dropped && lie.deed == NOTHING && name != "no offer" &&
           name != "another nonce" && name != "what rings is missing";
}

bool has_dropped(const std::string &log, const Lie &lie)
{
    return log.find("of rank " + std::to_string(lie.liar) + " dropped") != std::string::npos;
}

// ---- the liar

void by_hand(Rank &rank, const Lie &lie, void *memory)
{
    std::vector<ph_exchange_request *> requests;
    for (int peer : honest(lie)) {
        ph_exchange_request *request;
        auto op = with(rank, 2, peer, memory);
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        if (lie.deed == OWN_CONFIRM)
            lie_confirm(rank.context, peer, 2, 1, lie.value >> 31 ? 0xfffff : 0, lie.value & 0xff);
        else
            lie_publish(rank.context, peer, 2, lie.deed == OWN_NUMBER ? 1 : lie.value,
                        lie.deed == OWN_NUMBER ? lie.value : 1);
    }
}

} // namespace

RANK_FUNCTION(liar)
{
    const Lie &lie = lie_of(rank);
    if (!meets_first(lie))
        lie_choose(lie.name);
    rank.open({}, 3000);
    void *memory = rank.device->alloc(size);
    std::vector<ph_operation> first, second;
    for (int peer : honest(lie)) {
        first.push_back(with(rank, 1, peer, memory));
        second.push_back(with(rank, 2, peer, memory));
    }
    std::vector<ph_channel *> channels(second.size());
    if (meets_first(lie)) {
        exchange_all(rank, first);
        CHECK(reaches(rank.shared->value[MET], 2)); // they have read what they need of us
        lie_choose(lie.name);
    }
    rank.shared->value[LIED]++;
    if (lie.deed == RANDOM_WORDS)
        lie_words(rank.context, 1500, 7 + lie.liar);
    else if (lie.deed == OWN_CONFIRM || lie.deed == OWN_NUMBER || lie.deed == STALE_ROUND)
        by_hand(rank, lie, memory);
    while (lie.deed == NOTHING && rank.shared->value[TOLD] < 2)
        ph_exchange(rank.context, second.data(), second.size(), channels.data());
    reaches(rank.shared->value[DONE], 2, 60000);
    fflush(nullptr);
    _exit(0); // its context is none of ours
}

// ---- who is lied to

static void note(Rank &rank, int rc, const Stopwatch &watch)
{
    rank.shared->value[RC + rank.rank] = static_cast<uint64_t>(static_cast<int64_t>(rc));
    rank.shared->value[MS + rank.rank] = static_cast<uint64_t>(watch.ms());
    snprintf(rank.shared->text[SENTENCE + rank.rank], sizeof rank.shared->text[0], "%s",
             rc ? rank.error().c_str() : "");
}

// Round after round while the words change; whatever comes of each, it comes in time.
static void exchange_on(Rank &rank, int liar, void *memory)
{
    for (int i = 0; i < 12; i++) {
        auto op = with(rank, 2 + i % 3, liar, memory);
        ph_exchange_request *request = nullptr;
        ph_channel *channel = nullptr;
        Stopwatch watch;
        int rc = ph_exchange_start(rank.context, &op, 1, &request);
        if (rc == 0)
            rc = ph_exchange_finish(&request, &channel, 60);
        if (rc && rank.error().find("rank " + std::to_string(liar)) == std::string::npos)
            rank_failed(__FILE__, __LINE__, "nobody is named: " + rank.error());
        CHECK(watch.ms() < patience(15000).count());
    }
}

RANK_FUNCTION(lied_to)
{
    const Lie &lie = lie_of(rank);
    rank.open({}, 20000);
    void *memory = rank.device->alloc(3 * size);
    if (meets_first(lie)) {
        auto op = with(rank, 1, lie.liar, memory);
        exchange_all(rank, {op});
        rank.shared->value[MET]++;
    }
    CHECK(reaches(rank.shared->value[LIED], 1, 60000));
    auto op = with(rank, 2, lie.liar, memory);
    ph_exchange_request *request = nullptr;
    ph_channel *channel = nullptr;
    if (lie.deed == RANDOM_WORDS) {
        exchange_on(rank, lie.liar, memory);
    } else {
        // On a busy machine a deadline may pass before the lie has come.
        for (int tries = 0; tries < 40; tries++) {
            Stopwatch watch;
            int rc = ph_exchange_start(rank.context, &op, 1, &request);
            if (rc == 0)
                rc = ph_exchange_finish(&request, &channel, deadline_ms);
            note(rank, rc, watch);
            if (lie.results.count(rc) && (!is_dropped(lie) || has_dropped(rank.log, lie)))
                break;
        }
    }
    // Of a long log the end: on a busy machine there are deadlines in it that passed before.
    const size_t most = sizeof rank.shared->text[0] - 1;
    snprintf(rank.shared->text[LOG + rank.rank], most + 1, "%s",
             rank.log.substr(rank.log.size() - std::min(rank.log.size(), most)).c_str());
    // The honest ones go on with each other, once both are done with the liar: else that is a
    // crossed order.
    rank.shared->value[TOLD]++;
    CHECK(reaches(rank.shared->value[TOLD], 2, 60000));
    auto pair = honest(lie);
    int other = pair[0] == rank.rank ? pair[1] : pair[0];
    char *third = static_cast<char *>(memory) + 2 * size;
    auto with_other = with(rank, 3, other, third);
    auto channels = exchange_all(rank, {with_other});
    pass(rank, channels[0], with_other.role, third, size, 5, rank.device->stream());
    rank.shared->value[DONE]++;
    CHECK(reaches(rank.shared->value[DONE], 2, 60000));
}

class Hostile : public testing::TestWithParam<size_t>
{
  protected:
    void SetUp() override
    {
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
    }
};

TEST_P(Hostile, RankIsNamedAndLeftBehind)
{
    const Lie &lie = lies[GetParam()];
    SCOPED_TRACE(std::string(lie.name) + ", told by rank " + std::to_string(lie.liar));
    Job job("host", 3);
    for (int rank = 0; rank < 3; rank++)
        job.start_rank(rank, rank == lie.liar ? "liar" : "lied_to", std::to_string(GetParam()));
    ASSERT_EQ(job.wait(120000), "");
    std::string said = lie.sentence;
    if (said.find("RANK") != std::string::npos)
        said.replace(said.find("RANK"), 4, "rank " + std::to_string(lie.liar));
    for (int rank : honest(lie)) {
        const Shared &shared = *job.shared();
        if (lie.deed == RANDOM_WORDS)
            continue;
        int rc = static_cast<int>(static_cast<int64_t>(shared.value[RC + rank].load()));
        std::string sentence = shared.text[SENTENCE + rank], log = shared.text[LOG + rank];
        EXPECT_EQ(lie.results.count(rc), 1u) << rc << ": " << sentence;
        EXPECT_NE(sentence.find(rc ? said : ""), std::string::npos) << sentence;
        EXPECT_LT(static_cast<int64_t>(shared.value[MS + rank].load()), patience(15000).count())
            << sentence;
        EXPECT_TRUE(!is_dropped(lie) || has_dropped(log, lie)) << log;
        EXPECT_EQ(log.find("cannot watch"), std::string::npos) << log;
    }
}

INSTANTIATE_TEST_SUITE_P(Lie, Hostile, testing::Range(size_t{0}, sizeof lies / sizeof lies[0]),
                         [](const auto &info) {
                             std::string name = lies[info.param].name;
                             for (char &c : name)
                                 c = isalnum(static_cast<unsigned char>(c)) ? c : '_';
                             return name + "_by_" + std::to_string(lies[info.param].liar);
                         });

// ---- memory of the importer's own

RANK_FUNCTION(claims_the_peers_memory)
{
    rank.open({}, 3000);
    const int peer = !rank.rank;
    void *memory = rank.device->alloc(size);
    exchange_all(rank, {with(rank, 1, peer, memory)});
    void *second = rank.device->alloc(3 * size);
    if (rank.rank == 1) {
        lie_steal(rank.context, 0);
        lie_choose("memory of the peer's own");
    }
    auto op = with(rank, 2, peer, second);
    op.size = 100; // inside what it claims
    if (rank.rank == 0) {
        std::string sentence = exchange_fails(rank, {op}, PH_ENOPATH);
        CHECK_SAYS(sentence, "rank 0 to rank 1 by ipc: the export record is malformed");
    } else {
        ph_channel *channel;
        ph_exchange(rank.context, &op, 1, &channel);
    }
    rank.barrier();
}

class HostileDevice : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(HostileDevice);

// Each export names its owner's process, so that ranks of one process use the pointer itself. A
// peer that names ours would have us copy into what we never exported.
TEST_P(HostileDevice, CannotPointUsAtOurOwnMemory)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("claims_the_peers_memory"), "");
}

// ---- places of staged messages: the lower rank says where in the memory of both a channel's slots
// are

enum { STUCK = 40, KILLED };
const size_t staged_size = 20000, around = 4096;

// Asks for what it can of both, whatever comes of it.
void disturb(Rank &rank, ph_channel *const channels[2], void *stream, int rounds)
{
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < 2; i++) {
            ph_put_signal(channels[i], 0, 0, round % 2 ? 100 : staged_size, stream);
            ph_wait(channels[!i], round % 2 ? 100 : staged_size, stream);
        }
    rank.device->synchronize(stream, 300);
}

std::vector<ph_operation> two_with(int peer, void *memory)
{
    std::vector<ph_operation> ops;
    for (int i = 0; i < 2; i++) {
        void *at = static_cast<char *>(memory) + around + i * (staged_size + around);
        ops.push_back(operation(1 + i, peer, PH_ROLE_BOTH, at, staged_size));
    }
    return ops;
}

RANK_FUNCTION(gives_places)
{
    lie_choose(rank.argument.c_str());
    rank.open();
    void *memory = rank.device->alloc(3 * around + 2 * staged_size);
    set_value(rank, memory, 3 * around + 2 * staged_size, 0x77);
    auto channels = exchange_all(rank, two_with(1, memory));
    for (;;) // until it is killed
        disturb(rank, channels.data(), rank.device->stream(), 3);
}

RANK_FUNCTION(takes_places)
{
    rank.open({"PEERHOP_HEARTBEAT_MS=50", "PEERHOP_SUSPECT_MS=500"});
    const int other = rank.rank == 1 ? 2 : 1;
    char *memory = static_cast<char *>(rank.device->alloc(3 * around + 3 * staged_size));
    char *third = memory + 3 * around + 2 * staged_size;
    std::vector<ph_channel *> channels;
    void *stream = rank.device->stream();
    // As the word of a lane a number of records that no stream can have moved.
    set_value(rank, memory, 3 * around + 2 * staged_size, 0x25);
    if (rank.rank == 1) {
        channels = exchange_all(rank, two_with(0, memory));
        // What lies outside is seen at once, and by name.
        const bool outside = rank.argument.find("slots") == std::string::npos &&
                             rank.argument.find("has") == std::string::npos;
        for (ph_channel *channel : channels)
            CHECK(!outside || ph_channel_ended(channel) == PH_EPEER);
        disturb(rank, channels.data(), stream, 12);
        if (rank.argument.find("slots") != std::string::npos) { // its words are data now
            CHECK_RC(end_of(channels[0]), PH_EPEER);
            CHECK_SAYS(rank.log, "the words of a staged lane make no sense");
        }
        rank.shared->value[STUCK] = 1;
    }
    auto op = operation(9, other, role_of(rank, 1), third, staged_size);
    auto with_other = exchange_all(rank, {op});
    for (int round = 0; round < 5; round++)
        pass(rank, with_other[0], op.role, third, staged_size, round, rank.device->stream());
    CHECK(reaches(rank.shared->value[KILLED], 1, 60000));
    rank.synchronize(stream);
    for (ph_channel *channel : channels)
        CHECK_RC(end_of(channel), PH_EPEER);
    for (int i = 0; rank.rank == 1 && i < 3; i++)
        check_value(rank, memory + i * (around + staged_size), around, 0x25, "beside the buffers");
}

class HostilePlaces : public testing::TestWithParam<std::string>
{
};
INSTANTIATE_TEST_SUITE_P(Ranks, HostilePlaces, testing::Values("standinnet", "mixed"),
                         [](const auto &info) { return info.param; });

// Whatever it says: nothing beside the buffers is written, nobody crashes, streams go on when the
// liar ends, and the others go on all the time.
TEST_P(HostilePlaces, HurtOnlyTheLiarsOwnMessages)
{
    std::string why;
    if (!net_available() || !device_available("standin", &why))
        GTEST_SKIP() << "libfabric is left out of this build, or the stand-in: " << why;
    for (const char *lie :
         {"a place that another one has", "a place inside the slots of another one",
          "a place that is not all there", "a place far outside", "a place at an odd address"}) {
        SCOPED_TRACE(lie);
        Job job("standinnet", 3);
        if (GetParam() == "mixed")
            job.environment(1, "PEERHOP_TEST_DEVICE", "host");
        job.start_rank(0, "gives_places", lie);
        job.start_rank(1, "takes_places", lie);
        job.start_rank(2, "takes_places", lie);
        job.expect_failure(0);
        EXPECT_TRUE(reaches(job.shared()->value[STUCK], 1, 60000)) << job.wait(100);
        job.signal(0, SIGKILL);
        EXPECT_EQ(job.status(0, 60000), 128 + SIGKILL);
        job.shared()->value[KILLED] = 1;
        EXPECT_EQ(job.wait(), "");
    }
}

// ---- another user

static std::set<std::string> sockets_of(Job &job)
{
    const std::string members =
        job.redis().command({"XRANGE", "ph:{" + job.name() + "}:0:members", "-", "+"});
    std::set<std::string> names;
    for (size_t at = 0; (at = members.find("@peerhop-", at)) != std::string::npos; at++)
        names.insert(members.substr(at, 33));
    return names;
}

RANK_FUNCTION(is_visited)
{
    rank.open();
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    CHECK(reaches(rank.shared->value[0], static_cast<uint64_t>(rank.ranks)));
    char *memory = static_cast<char *>(rank.device->alloc(size));
    auto op = with(rank, 1, !rank.rank, memory);
    auto channels = exchange_all(rank, {op});
    pass(rank, channels[0], op.role, memory, size, 3, rank.device->stream());
    snprintf(rank.shared->text[LOG + rank.rank], sizeof rank.shared->text[0], "%s",
             rank.log.c_str());
    rank.barrier();
}

// Connects as nobody, many times, and sends what it likes. Exits with the number of answers.
static int visit(const std::string &name)
{
    int answers = 0;
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
        return 100;
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, name.data() + 1, name.size() - 1);
    for (int i = 0; i < 50; i++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        timeval longest = {0, 50000};
        char answer[16];
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
        if (connect(fd, reinterpret_cast<sockaddr *>(&address),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())) != 0)
            return 101;
        send(fd, &address, sizeof address, MSG_NOSIGNAL);
        answers += recv(fd, answer, sizeof answer, 0) > 0;
        close(fd);
    }
    return answers;
}

RANK_FUNCTION(awaits_one_that_was_refused)
{
    rank.open();
    rank.shared->value[0]++;
    if (rank.rank == 1)
        pause(); // killed by the test
    CHECK(reaches(rank.shared->value[1], 1));
    char *memory = static_cast<char *>(rank.device->alloc(size));
    ph_operation op = with(rank, 1, true, memory);
    ph_channel *channel = nullptr;
    ph_exchange_request *request = nullptr;
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    CHECK_RC(ph_exchange_finish(&request, &channel, 1000), -ETIMEDOUT);
    CHECK_SAYS(rank.error(), "nobody listens at its socket");
    CHECK_SAYS(rank.error(), "a connection of another user was refused (50 so far)");
}

static void visit_all(Job &job)
{
    const std::set<std::string> names = sockets_of(job);
    EXPECT_EQ(names.size(), 2u);
    for (const std::string &name : names) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(visit(name));
        int status = 0;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0)
            << "100: no other user; 101: no socket";
    }
}

TEST(HostileUser, IsNamedWhereItMayHaveBeenThePeer)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    if (geteuid() != 0)
        GTEST_SKIP() << "only root can become another user";
    Job job("host", 2);
    job.expect_failure(1);
    job.start("awaits_one_that_was_refused");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    visit_all(job);
    job.signal(1, SIGKILL);
    EXPECT_EQ(job.status(1, 60000), 128 + SIGKILL);
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
}

TEST(HostileUser, IsTurnedAway)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    if (geteuid() != 0)
        GTEST_SKIP() << "only root can become another user";
    Job job("host", 2);
    job.start("is_visited");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    visit_all(job);
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
    std::string log = std::string(job.shared()->text[LOG]) + job.shared()->text[LOG + 1];
    EXPECT_NE(log.find("a connection of another user was refused"), std::string::npos) << log;
}

// Connects to the socket of a rank; what is read there has a deadline.
static void call_on(const std::string &name, int *fd)
{
    const timeval longest = {patience(20000).count() / 1000, 0};
    ASSERT_EQ(phi_node_connect(name.c_str(), fd), 0);
    ASSERT_EQ(fcntl(*fd, F_SETFL, 0), 0);
    setsockopt(*fd, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
}

// Of who has not said who it is, nothing is said but what it did.
TEST(HostileGarbage, IsNoRanks)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    Job job("host", 2);
    job.start("is_visited");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    for (const std::string &name : sockets_of(job)) {
        const std::vector<char> garbage(64, 'x');
        char answer[16];
        int fd = -1;
        ASSERT_NO_FATAL_FAILURE(call_on(name, &fd));
        ASSERT_EQ(send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL), 64);
        EXPECT_EQ(recv(fd, answer, sizeof answer, 0), 0); // it hangs up
        close(fd);
    }
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
    for (int rank : {0, 1})
        EXPECT_NE(std::string(job.shared()->text[LOG + rank])
                      .find("the connection of an unknown process is given up: its question"),
                  std::string::npos)
            << job.shared()->text[LOG + rank];
}

// ---- another version of the library

// What somebody of it sends first, whatever follows, and how that ends.
static void is_answered_with_a_version(const std::string &name, size_t bytes)
{
    std::vector<char> question(bytes), rest(2 * sizeof(phi_node_message));
    phi_node_message head = {}, answer = {};
    head.magic = PHI_NODE_MAGIC;
    head.version = PHI_NODE_VERSION + 1;
    memcpy(question.data(), &head, std::min(bytes, sizeof head));
    int fd = -1;
    ASSERT_NO_FATAL_FAILURE(call_on(name, &fd));
    ASSERT_EQ(send(fd, question.data(), bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
    EXPECT_EQ(recv(fd, &answer, sizeof answer, 0), static_cast<ssize_t>(sizeof answer));
    EXPECT_EQ(answer.magic, PHI_NODE_MAGIC);
    EXPECT_EQ(answer.version, PHI_NODE_VERSION);
    EXPECT_EQ(recv(fd, rest.data(), rest.size(), 0), 0); // it hangs up
    close(fd);
}

TEST(HostileVersion, IsToldTheOneThatIsSpoken)
{
    if (!RedisServer::available())
        GTEST_SKIP() << "no redis-server";
    Job job("host", 2);
    job.start("is_visited");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    const std::set<std::string> names = sockets_of(job);
    ASSERT_EQ(names.size(), 2u);
    const std::string name = *names.begin();
    for (size_t bytes : {sizeof(phi_node_message), size_t{6}, 2 * sizeof(phi_node_message)}) {
        SCOPED_TRACE(bytes);
        is_answered_with_a_version(name, bytes);
    }
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
    const std::string log = std::string(job.shared()->text[LOG]) + job.shared()->text[LOG + 1];
    EXPECT_NE(log.find("speaks version " + std::to_string(PHI_NODE_VERSION + 1) +
                       " of the calls between ranks, and not " + TEXT(PHI_NODE_VERSION)),
              std::string::npos)
        << log;
}
