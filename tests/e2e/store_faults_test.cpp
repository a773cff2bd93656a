// SPDX-License-Identifier: BSD-3-Clause
// Stores that are absent, late, closed, forgetful, stopped, full or full of nonsense, as ranks meet them.
#include <csignal>
#include <cstdlib>

#include <unistd.h>

#include "support/atomic_compat.h"

#include "e2e/exchanging.h"
#include "support/memory_store.h"

extern "C" {
#include "base/wire.h"
#include "memory/memory.h"
#include "store/envelope.h"
}

class StoreFaults : public testing::Test
{
protected:
    void SetUp() override
    {
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
        ASSERT_EQ(signal(SIGPIPE, SIG_DFL), SIG_DFL); // a library that raised it would end the test here
    }
};

static const size_t size = 2000;

// One message from rank 0 to rank 1 under an id, on new memory.
static void send_one(Rank &rank, uint64_t op_id)
{
    void *memory = rank.device->alloc(size);
    ph_channel *channel = rank.channel(!rank.rank, op_id, role_of(rank, 0), memory, size);
    pass(rank, channel, role_of(rank, 0), memory, size, op_id, rank.device->stream());
}

// ---- absent, late, closed

RANK_FUNCTION(meets_an_absent_store)
{
    std::string sentence;
    Stopwatch watch;
    CHECK_RC(rank.try_open({}, 250, &sentence), -ETIMEDOUT);
    CHECK(watch.ms() >= 240 && watch.ms() < 1500);
    CHECK_SAYS(sentence, getenv("PEERHOP_STORE"));
}

TEST_F(StoreFaults, AnAbsentStoreIsNamed)
{
    RedisServer absent; // never started
    Job job("host", 2, absent.uri());
    EXPECT_EQ(job.run("meets_an_absent_store"), "");
}

RANK_FUNCTION(sends_one)
{
    rank.open();
    send_one(rank, 1);
    rank.barrier();
}

TEST_F(StoreFaults, ALateStoreIsWaitedFor)
{
    RedisServer late;
    Job job("host", 2, late.uri());
    job.start("sends_one");
    sleep_ms(300);
    ASSERT_TRUE(late.start());
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(is_not_let_in)
{
    std::string sentence;
    Stopwatch watch;
    CHECK_RC(rank.try_open({}, 5000, &sentence), PH_ESTORE);
    CHECK(watch.ms() < 2000);
    CHECK_SAYS(sentence, rank.argument);
    CHECK(sentence.find("guess") == std::string::npos);
}

TEST_F(StoreFaults, PasswordsAreAsked)
{
    RedisServer closed({"--requirepass", "right"});
    ASSERT_TRUE(closed.start());
    std::string file = closed.socket() + ".password";
    FILE *out = fopen(file.c_str(), "w");
    fputs("right\n", out);
    fclose(out);
    Job right("host", 2, "unix://:right@" + closed.socket());
    EXPECT_EQ(right.run("sends_one"), "");
    Job from_file("host", 2, closed.uri());
    from_file.environment("PEERHOP_STORE_PASSWORD_FILE", file);
    EXPECT_EQ(from_file.run("sends_one"), "");
    Job wrong("host", 1, "unix://:guess@" + closed.socket());
    EXPECT_EQ(wrong.run("is_not_let_in", "WRONGPASS"), "");
    Job none("host", 1, closed.uri());
    EXPECT_EQ(none.run("is_not_let_in", "NOAUTH"), "");
    unlink(file.c_str());
}

// ---- forgets

RANK_FUNCTION(goes_on_after_a_restart)
{
    rank.open();
    rank.shared->value[0]++;
    if (rank.rank == 1)
        CHECK(reaches(rank.shared->value[1], 1)); // rank 0 has offered, and the store has forgotten it
    send_one(rank, 1);
    rank.barrier();
}

TEST_F(StoreFaults, ARestartInMidExchangeLosesNothing)
{
    for (bool early : {true, false}) { // whether rank 1 has come before the restart
        Job job("host", 2);
        job.start_rank(0, "goes_on_after_a_restart");
        if (early)
            job.start_rank(1, "goes_on_after_a_restart");
        ASSERT_TRUE(reaches(job.shared()->value[0], 1 + early)) << job.wait(100);
        sleep_ms(100);
        ASSERT_TRUE(job.redis().restart());
        job.shared()->value[1] = 1;
        if (!early)
            job.start_rank(1, "goes_on_after_a_restart");
        EXPECT_EQ(job.wait(), "");
        EXPECT_EQ(job.redis().cli("KEYS ph:*"), "");
    }
}

RANK_FUNCTION(sleeps_over_a_restart)
{
    rank.open();
    send_one(rank, 1);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    send_one(rank, 2);
    rank.barrier();
}

TEST_F(StoreFaults, ARestartBetweenExchangesIsSurvived)
{
    Job job("host", 2);
    job.start("sleeps_over_a_restart");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    ASSERT_TRUE(job.redis().restart());
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
}

RANK_FUNCTION(sends_many)
{
    rank.open();
    for (int op = 0; op < 150; op++)
        send_one(rank, op);
    rank.shared->value[0] = 1;
    rank.barrier();
}

TEST_F(StoreFaults, ManyRestartsInManyExchanges)
{
    Job job("host", 2);
    job.start("sends_many");
    int restarts = 0;
    while (restarts < 60 && job.shared()->value[0] == 0) {
        sleep_ms(15);
        EXPECT_TRUE(job.redis().restart());
        restarts++;
    }
    EXPECT_GT(restarts, 1);
    EXPECT_EQ(job.wait(), "");
}

// ---- stops

RANK_FUNCTION(meets_a_stopped_store)
{
    rank.open({}, 600);
    void *memory = rank.device->alloc(size);
    void *stream = rank.device->stream();
    ph_role role = role_of(rank, 0);
    ph_channel *channel = rank.channel(!rank.rank, 1, role, memory, size);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    // What is known needs no store ...
    CHECK(rank.channel(!rank.rank, 1, role, memory, size) == channel);
    pass(rank, channel, role, memory, size, 1, stream);
    // ... what is new cannot be told.
    Stopwatch watch;
    auto op = operation(2, !rank.rank, role, memory, size);
    std::string sentence = exchange_fails(rank, {op}, -ETIMEDOUT);
    CHECK(watch.ms() < 3000);
    rank.barrier();
    rank.shared->value[2]++;
    if (rank.argument == "destroy") {
        Stopwatch closing;
        rank.close();
        CHECK(closing.ms() < 5000);
        return;
    }
    CHECK(reaches(rank.shared->value[3], 1)); // the store goes on
    ph_exchange_request *request;
    CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
    CHECK_OK(ph_exchange_finish(&request, &channel, 10000));
    pass(rank, channel, role, memory, size, 2, stream);
    rank.barrier();
}

TEST_F(StoreFaults, AStoppedStoreEndsAtTheDeadline)
{
    Job job("host", 2);
    job.start("meets_a_stopped_store");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    job.redis().pause();
    job.shared()->value[1] = 1;
    EXPECT_TRUE(reaches(job.shared()->value[2], 2)) << job.wait(100);
    job.redis().resume();
    job.shared()->value[3] = 1;
    EXPECT_EQ(job.wait(), "");
}

TEST_F(StoreFaults, AStoppedStoreDoesNotHoldUpDestroyForLong)
{
    Job job("host", 2);
    job.start("meets_a_stopped_store", "destroy");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    job.redis().pause();
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
    job.redis().resume();
}

TEST_F(StoreFaults, AStoppedStoreThatGoesOnIsWaitedFor)
{
    Job job("host", 2);
    job.start_rank(0, "goes_on_after_a_restart");
    job.start_rank(1, "goes_on_after_a_restart");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    job.redis().pause();
    job.shared()->value[1] = 1;
    sleep_ms(300);
    job.redis().resume();
    EXPECT_EQ(job.wait(), "");
}

// ---- refuses

RANK_FUNCTION(meets_a_store_that_refuses)
{
    rank.open({}, 3000);
    send_one(rank, 1);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    void *memory = rank.device->alloc(size);
    auto op = operation(2, !rank.rank, role_of(rank, 0), memory, size);
    CHECK_SAYS(exchange_fails(rank, {op}, PH_ESTORE), rank.argument);
    rank.shared->value[2]++;
    CHECK(reaches(rank.shared->value[3], 1));
    send_one(rank, 2);
    rank.barrier();
}

static void refuses(const char *begin, const char *end, const char *word)
{
    Job job("host", 2);
    job.start("meets_a_store_that_refuses", word);
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    ASSERT_EQ(job.redis().cli(begin), "OK");
    job.shared()->value[1] = 1;
    EXPECT_TRUE(reaches(job.shared()->value[2], 2)) << job.wait(100);
    ASSERT_EQ(job.redis().cli(end), "OK");
    job.shared()->value[3] = 1;
    EXPECT_EQ(job.wait(), "");
}

TEST_F(StoreFaults, AReadOnlyStoreIsNamed)
{
    refuses("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY");
}

TEST_F(StoreFaults, AFullStoreIsNamed)
{
    refuses("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM");
}

RANK_FUNCTION(is_not_announced)
{
    std::string sentence;
    CHECK_RC(rank.try_open({}, 3000, &sentence), PH_ESTORE);
    CHECK_SAYS(sentence, "OOM");
}

TEST_F(StoreFaults, AFullStoreFailsCreation)
{
    Job job("host", 1);
    ASSERT_EQ(job.redis().cli("CONFIG SET maxmemory 1"), "OK");
    EXPECT_EQ(job.run("is_not_announced"), "");
}

// ---- nonsense in the mailboxes

class Writer
{
public:
    ~Writer() { phi_writer_fini(&writer_); }
    Writer &u8(uint8_t value) { return phi_put_u8(&writer_, value), *this; }
    Writer &u16(uint16_t value) { return phi_put_u16(&writer_, value), *this; }
    Writer &u32(uint32_t value) { return phi_put_u32(&writer_, value), *this; }
    Writer &u64(uint64_t value) { return phi_put_u64(&writer_, value), *this; }
    Writer &blob(const std::string &bytes) { return phi_put_blob(&writer_, bytes.data(), bytes.size()), *this; }
    std::string text() const { return std::string(reinterpret_cast<char *>(writer_.bytes), writer_.size); }

private:
    phi_writer writer_ = {};
};

static std::string export_record(unsigned kind = 0, uint64_t bytes = 4096, unsigned version = 1)
{
    std::string inside = Writer().u64(1).u64(bytes).u64(0).text(); // inode, size, offset of a memory file
    return Writer().u32(0x58454850).u16(version).u16(kind).u64(0x10000).u64(bytes).u64(77).blob(inside).text();
}

static std::string descriptor(uint64_t op, unsigned role, uint32_t slot, uint32_t number, uint32_t id, uint64_t offset,
                              uint64_t bytes, unsigned protocol = 1)
{
    return Writer().u64(op).u8(role).u32(slot).u32(number).u32(id).u64(offset).u64(bytes).u8(protocol).text();
}

static std::string offer(uint32_t exports, const std::string &records, uint32_t count, const std::string &descriptors,
                         uint32_t version = 1)
{
    return Writer().u32(0x464f4850).u32(version).u32(exports).text() + records + Writer().u32(count).text() + descriptors;
}

// Offers that must be dropped, whoever sends them.
static std::vector<std::string> malformed_offers()
{
    const uint32_t none = UINT32_MAX;
    auto record = [](uint32_t id, const std::string &bytes) { return Writer().u32(id).blob(bytes).text(); };
    std::string good_record = record(0, export_record()), good = offer(1, good_record, 1, descriptor(1, 1, none, 1, 0, 0, 10));
    auto described = [&](const std::string &one) { return offer(1, good_record, 1, one); };
    std::vector<std::string> all = {
        "", "x", std::string(100, '\0'), std::string(70000, '\xff'),
        good + "x", offer(1, good_record, 1, descriptor(1, 1, none, 1, 0, 0, 10), 2),
        offer(UINT32_MAX, good_record, 0, ""), offer(1, good_record, UINT32_MAX, descriptor(1, 1, none, 1, 0, 0, 10)),
        offer(0, "", 1, descriptor(1, 1, none, 1, 99, 0, 10)),               // an allocation that nobody told of
        offer(1, record(5, export_record(200)), 0, ""),                      // a foreign kind
        offer(1, record(5, export_record(0, 0)), 0, ""),                     // of no bytes
        offer(1, record(5, export_record(0, UINT64_MAX)), 0, ""),            // of too many
        offer(1, record(5, export_record(0, 4096, 9)), 0, ""),               // of another version
        offer(1, record(5, "short"), 0, ""), offer(1, Writer().u32(5).u32(UINT32_MAX).text(), 0, ""),
        described(descriptor(1, 1, none, 1, 0, 4000, 97)),                   // past the end
        described(descriptor(1, 1, none, 1, 0, UINT64_MAX - 5, 10)), described(descriptor(1, 1, none, 1, 0, 0, UINT64_MAX)),
        described(descriptor(1, 1, none, 1, 0, 0, 0)), described(descriptor(1, 0, none, 1, 0, 0, 10)),
        described(descriptor(1, 9, none, 1, 0, 0, 10)), described(descriptor(1, 1, none, 0, 0, 0, 10)),
        described(descriptor(1, 1, none, UINT32_MAX, 0, 0, 10)), described(descriptor(1, 1, none, 1u << 30, 0, 0, 10)),
        described(descriptor(1, 1, none, 1, 0, 0, 10, 0)), described(descriptor(1, 1, none, 1, 0, 0, 10, 7)),
        described(descriptor(1, 1, UINT32_MAX - 1, 1, 0, 0, 10)), described(descriptor(1, 1, 1u << 20, 1, 0, 0, 10)),
    };
    for (size_t cut = 1; cut < good.size(); cut += 7)
        all.push_back(good.substr(0, cut));
    return all;
}

static std::string envelope(phi_envelope_kind kind, uint32_t source, uint32_t destination, uint64_t life,
                            uint64_t to_life, uint64_t sequence, const std::string &payload)
{
    phi_envelope parts = {};
    parts.kind = kind;
    parts.source = source;
    parts.destination = destination;
    parts.source_incarnation = life;
    parts.destination_incarnation = to_life;
    parts.sequence = sequence;
    uint8_t *bytes = phi_envelope_encode(&parts, payload.data(), payload.size());
    std::string text(reinterpret_cast<char *>(bytes), PHI_ENVELOPE_SIZE + payload.size());
    free(bytes);
    return text;
}

// The incarnation of a rank, from the store; and the payload of its member record.
static uint64_t life_of(const Job &job, RedisServer &redis, uint32_t rank, std::string *record)
{
    std::string text = redis.command({"XRANGE", "ph:{" + job.name() + "}:0:members", "-", "+"});
    for (size_t at = 0; (at = text.find("PHPM", at)) != std::string::npos; at++) {
        phi_reader reader;
        phi_reader_init(&reader, reinterpret_cast<const uint8_t *>(text.data()) + at + 8, text.size() - at - 8);
        uint32_t source = phi_get_u32(&reader);
        phi_get_u32(&reader);
        uint64_t life = phi_get_u64(&reader);
        phi_get_u64(&reader);
        phi_get_u64(&reader);
        uint64_t length = phi_get_u64(&reader);
        if (source != rank || reader.error)
            continue;
        *record = text.substr(at + PHI_ENVELOPE_SIZE, length);
        return life;
    }
    return 0;
}

RANK_FUNCTION(is_told_nonsense)
{
    rank.open();
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    void *memory = rank.device->alloc(size);
    if (rank.rank == 1) {
        // Reads what "rank 2" says, whose process nobody can reach.
        ph_exchange_request *request;
        ph_channel *channel = nullptr;
        auto op = operation(1, 2, PH_ROLE_RECEIVER, memory, size);
        CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
        CHECK_RC(ph_exchange_finish(&request, &channel, 500), -ETIMEDOUT);
        CHECK_SAYS(rank.error(), "rank 1 still waits for rank 2: operation 1");
        size_t dropped = 0;
        for (size_t at = 0; (at = rank.log.find("of rank 2 dropped", at)) != std::string::npos; at++)
            dropped++;
        rank.shared->value[2] = dropped;
    }
    for (uint64_t op = 0; op < 5; op++)
        send_one(rank, op);
    rank.shared->value[3]++;
    CHECK(reaches(rank.shared->value[3], 2));
}

TEST_F(StoreFaults, MalformedOffersAreDropped)
{
    Job job("host", 3); // the third is played by the test
    job.start_rank(0, "is_told_nonsense");
    job.start_rank(1, "is_told_nonsense");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    RedisServer &redis = job.redis();
    std::string record, prefix = "ph:{" + job.name() + "}:0:";
    uint64_t life = life_of(job, redis, 1, &record), own = life + 5;
    ASSERT_NE(life, 0u);
    record.replace(record.find("@peerhop-") + 9, 4, "none"); // a socket where nobody listens
    redis.command({"XADD", prefix + "members", "*", "m",
                   envelope(PHI_ENVELOPE_MEMBER, 2, PHI_ENVELOPE_ALL, own, 0, 0, record)});
    uint64_t number = 0;
    auto offers = malformed_offers();
    for (const std::string &bytes : offers) {
        number++;
        std::string id = std::to_string(own) + "-" + std::to_string(number);
        ASSERT_EQ(redis.command({"XADD", prefix + "2>1", id, "m",
                                 envelope(PHI_ENVELOPE_MESSAGE, 2, 1, own, life, number, bytes)}), id);
    }
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
    EXPECT_EQ(job.shared()->value[2].load(), offers.size());
}

RANK_FUNCTION(is_forged)
{
    rank.open({}, 700);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    // Another wrote in rank 0's name: the exchange ends well, or at its deadline.
    void *memory = rank.device->alloc(size);
    auto op = operation(1, !rank.rank, role_of(rank, 0), memory, size);
    ph_channel *channel = nullptr;
    Stopwatch watch;
    int rc = ph_exchange(rank.context, &op, 1, &channel);
    CHECK(watch.ms() < 3000);
    CHECK(rc == 0 || rc == -ETIMEDOUT || rc == PH_EPEER || rc == PH_EFENCED || rc == PH_ENOPATH || rc == PH_ESTORE);
    CHECK(rc == 0 || rank.error() != "");
    rank.shared->value[2] += rc == 0;
    rank.barrier();
}

// What somebody writes in rank 0's name, before it says anything itself. ends_well: whether rank 1 can tell.
static void forge(const std::function<void(Job &, RedisServer &, const std::string &, uint64_t, uint64_t)> &write,
                  bool ends_well)
{
    Job job("host", 2);
    job.start("is_forged");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    std::string record;
    uint64_t from = life_of(job, job.redis(), 0, &record), to = life_of(job, job.redis(), 1, &record);
    write(job, job.redis(), "ph:{" + job.name() + "}:0:", from, to);
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
    if (ends_well) {
        EXPECT_EQ(job.shared()->value[2].load(), 2u);
    }
}

static std::string id_of(uint64_t life, uint64_t number)
{
    return std::to_string(life) + "-" + std::to_string(number);
}

TEST_F(StoreFaults, MessagesOfOtherLivesAreDropped)
{
    forge([](Job &, RedisServer &redis, const std::string &prefix, uint64_t from, uint64_t to) {
        // From a former life of rank 0, and for a former life of rank 1.
        redis.command({"XADD", prefix + "0>1", id_of(from - 9, 1), "m",
                       envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from - 9, to, 1, "an offer of old")});
        redis.command({"XADD", prefix + "0>1", id_of(from, 1), "m",
                       envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from, to - 9, 1, "for another")});
    }, true);
}

TEST_F(StoreFaults, EnvelopesThatAreNoneAreDropped)
{
    forge([](Job &, RedisServer &redis, const std::string &prefix, uint64_t from, uint64_t to) {
        std::string good = envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from, to, 1, "payload");
        std::string other_version = good, absurd = good;
        other_version[4] = 9;
        absurd.replace(40, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f");
        uint64_t number = 0;
        for (const std::string &bytes : {std::string(), std::string("x"), good.substr(0, 30), good.substr(0, 50),
                                         other_version, absurd, std::string(1 << 20, 'z'),
                                         envelope(PHI_ENVELOPE_MESSAGE, 7, 1, from, to, 1, "not a rank"),
                                         envelope(PHI_ENVELOPE_MESSAGE, 0, 0, from, to, 1, "not for us"),
                                         envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from, to, UINT64_MAX, "far ahead")}) {
            std::string id = id_of(from, ++number);
            ASSERT_EQ(redis.command({"XADD", prefix + "0>1", id, "m", bytes}), id);
        }
        redis.command({"XADD", prefix + "0>1", id_of(from, ++number), "not-m", "x", "more", "y"});
        redis.command({"XADD", prefix + "members", "*", "m", envelope(PHI_ENVELOPE_MEMBER, 0, PHI_ENVELOPE_ALL, from, 0, 0, "?")});
        redis.command({"XADD", prefix + "members", "*", "x", "y"});
    }, true);
}

TEST_F(StoreFaults, AForgedOfferEndsAtTheDeadline)
{
    // Takes the place of rank 0's first message: rank 1 cannot tell, but does not hang and maps nothing.
    forge([](Job &, RedisServer &redis, const std::string &prefix, uint64_t from, uint64_t to) {
        redis.command({"XADD", prefix + "0>1", id_of(from, 1), "m",
                       envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from, to, 1,
                                offer(1, Writer().u32(0).blob(export_record()).text(), 1, descriptor(1, 1, 0, 1, 0, 0, 10)))});
    }, false);
}

TEST_F(StoreFaults, MessagesThatComeTwiceAreTakenOnce)
{
    forge([](Job &, RedisServer &redis, const std::string &prefix, uint64_t from, uint64_t to) {
        for (int i = 1; i <= 3; i++) // empty ones that stand for a withdrawn message, under three numbers
            redis.command({"XADD", prefix + "1>0", id_of(to, i), "m", envelope(PHI_ENVELOPE_VOID, 1, 0, to, from, 1, "")});
    }, false);
}

TEST_F(StoreFaults, KeysOfAnotherTypeAreReplaced)
{
    forge([](Job &, RedisServer &redis, const std::string &prefix, uint64_t, uint64_t) {
        redis.command({"SET", prefix + "0>1", "a string"});
        redis.command({"RPUSH", prefix + "1>0", "a list"});
    }, true);
}

// ---- a store of the user's own

TEST_F(StoreFaults, ADictionaryIsAStore)
{
    MemoryStore dictionary;
    ph_store_callbacks callbacks = dictionary.callbacks();
    auto body = [](int rank, ph_context *context) {
        ph_queue *queue = nullptr;
        ASSERT_EQ(ph_queue_create(context, &queue), 0);
        for (int round = 0; round < 20; round++)
            all_to_all_of_threads(rank, 4, context, queue, round);
    };
    as_threads(4, body, [&](ph_context_params &params) {
        params.store_callbacks = &callbacks;
        params.job = nullptr; // the dictionary is the job's own
    });
    EXPECT_EQ(dictionary.keys(), "");
    EXPECT_FALSE(dictionary.overwritten());
}

TEST_F(StoreFaults, ADictionaryThatFailsIsNamed)
{
    MemoryStore dictionary;
    ph_store_callbacks callbacks = dictionary.callbacks();
    std::atomic<int> arrived{0};
    auto wait_for = [&](int count) {
        arrived++;
        while (arrived < count)
            sleep_ms(1);
    };
    auto body = [&](int rank, ph_context *context) {
        void *memory = nullptr;
        ASSERT_EQ(ph_host_alloc(context, 100, &memory), 0);
        auto op = operation(1, !rank, PH_ROLE_BOTH, memory, 100);
        ph_channel *channel = nullptr;
        char text[512] = "";
        wait_for(2);
        if (rank == 0)
            dictionary.fail_sets(2, -EIO, false); // one for each rank's offer
        wait_for(4);
        EXPECT_EQ(ph_exchange(context, &op, 1, &channel), PH_ESTORE);
        ph_context_error(context, text, sizeof text);
        EXPECT_NE(std::string(text).find("Input/output error"), std::string::npos) << text;
        wait_for(6);
        EXPECT_EQ(ph_exchange(context, &op, 1, &channel), 0);
        EXPECT_NE(channel, nullptr);
        wait_for(8);
    };
    as_threads(2, body, [&](ph_context_params &params) { params.store_callbacks = &callbacks; });
}

TEST_F(StoreFaults, ADictionaryThatCannotBeReadFailsTheExchange)
{
    MemoryStore dictionary;
    ph_store_callbacks callbacks = dictionary.callbacks();
    auto body = [&](int, ph_context *context) {
        void *memory = nullptr;
        ASSERT_EQ(ph_host_alloc(context, 100, &memory), 0);
        auto op = operation(1, 1, PH_ROLE_BOTH, memory, 100);
        ph_channel *channel = nullptr;
        dictionary.get_result = -EACCES;
        EXPECT_EQ(ph_exchange(context, &op, 1, &channel), PH_ESTORE);
        dictionary.get_result = 0;
    };
    as_threads(1, body, [&](ph_context_params &params) {
        params.store_callbacks = &callbacks;
        params.ranks = 2;
    });
}
