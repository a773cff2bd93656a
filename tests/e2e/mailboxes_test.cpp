// SPDX-License-Identifier: BSD-3-Clause
// What others put into the mailboxes of ranks: it is dropped, or ends in an error at the deadline.
#include <cstdlib>

#include "support/atomic_compat.h"

#include "e2e/exchanging.h"

extern "C" {
#include "base/wire.h"
#include "memory/memory.h"
#include "store/envelope.h"
}

class Mailboxes : public testing::Test
{
  protected:
    void SetUp() override
    {
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
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

class Writer
{
  public:
    ~Writer()
    {
        phi_writer_fini(&writer_);
    }
    Writer &u8(uint8_t value)
    {
        return phi_put_u8(&writer_, value), *this;
    }
    Writer &u16(uint16_t value)
    {
        return phi_put_u16(&writer_, value), *this;
    }
    Writer &u32(uint32_t value)
    {
        return phi_put_u32(&writer_, value), *this;
    }
    Writer &u64(uint64_t value)
    {
        return phi_put_u64(&writer_, value), *this;
    }
    Writer &blob(const std::string &bytes)
    {
        return phi_put_blob(&writer_, bytes.data(), bytes.size()), *this;
    }
    std::string text() const
    {
        return std::string(reinterpret_cast<char *>(writer_.bytes), writer_.size);
    }

  private:
    phi_writer writer_ = {};
};

static std::string export_record(unsigned kind = 1, uint64_t bytes = 4096, unsigned version = 1)
{
    std::string inside =
        Writer().u64(1).u64(bytes).u64(0).text(); // inode, size, offset of a memory file
    return Writer()
        .u32(0x58454850)
        .u16(version)
        .u16(kind)
        .u64(0x10000)
        .u64(bytes)
        .u64(77)
        .blob(inside)
        .text();
}

static std::string descriptor(uint64_t op, unsigned role, uint32_t slot, uint32_t number,
                              uint32_t id, uint64_t offset, uint64_t bytes, unsigned protocol = 1,
                              unsigned unbound = 0)
{
    return Writer()
        .u64(op)
        .u8(role)
        .u32(slot)
        .u32(0) // the slot's life
        .u32(number)
        .u32(1) // range
        .u32(id)
        .u64(offset)
        .u64(bytes)
        .u8(protocol)
        .u64(8192) // by ll
        .u64(65536)
        .u8(unbound)
        .u8(0) // kernels may take part
        .text();
}

const uint32_t OFFER_VERSION = 14; // of the library

static std::string offer(uint32_t exports, const std::string &records, uint32_t count,
                         const std::string &descriptors, uint32_t version = OFFER_VERSION)
{
    return Writer().u32(0x464f4850).u32(version).u8(0).u32(exports).text() + records +
           Writer().u32(count).text() + descriptors;
}

// An export in an offer, without a region of the net.
static std::string exported(uint32_t id, const std::string &record)
{
    return Writer().u32(id).blob(record).u8(0).text();
}

static std::string good_offer()
{
    return offer(1, exported(0, export_record()), 1, descriptor(1, 1, UINT32_MAX, 1, 0, 0, 10));
}

// Offers that must be dropped, whoever sends them.
static std::vector<std::string> malformed_offers()
{
    const uint32_t none = UINT32_MAX;
    std::string good_record = exported(0, export_record()), good = good_offer();
    auto described = [&](const std::string &one) { return offer(1, good_record, 1, one); };
    std::vector<std::string> all = {
        "",
        "x",
        std::string(100, '\0'),
        std::string(70000, '\xff'),
        good + "x",
        offer(1, good_record, 1, descriptor(1, 1, none, 1, 0, 0, 10), OFFER_VERSION + 1),
        offer(UINT32_MAX, good_record, 0, ""),
        offer(1, good_record, UINT32_MAX, descriptor(1, 1, none, 1, 0, 0, 10)),
        offer(0, "", 1, descriptor(1, 1, none, 1, 99, 0, 10)), // an allocation that nobody told of
        offer(1, exported(5, export_record(200)), 0, ""),      // a foreign kind
        offer(1, exported(5, export_record(1, 0)), 0, ""),     // of no bytes
        offer(1, exported(5, export_record(1, UINT64_MAX)), 0, ""), // of too many
        offer(1, exported(5, export_record(1, 4096, 9)), 0, ""),    // of another version
        offer(1, exported(5, "short"), 0, ""),
        offer(1, Writer().u32(5).u32(UINT32_MAX).text(), 0, ""),
        described(descriptor(1, 1, none, 1, 0, 4000, 97)), // past the end
        described(descriptor(1, 1, none, 1, 0, UINT64_MAX - 5, 10)),
        described(descriptor(1, 1, none, 1, 0, 0, UINT64_MAX)),
        described(descriptor(1, 1, none, 1, 0, 0, 0)),
        described(descriptor(1, 0, none, 1, 0, 0, 10)),
        described(descriptor(1, 9, none, 1, 0, 0, 10)),
        described(descriptor(1, 1, none, 0, 0, 0, 10)),
        described(descriptor(1, 1, none, UINT32_MAX, 0, 0, 10)),
        described(descriptor(1, 1, none, 1, 0, 0, 10, 0)),
        described(descriptor(1, 1, none, 1, 0, 0, 10, 7)),
        described(descriptor(1, 1, none, 1, 0, 0, 10, 1, 1)), // no bounce buffer is so small
        offer(1, exported(0, export_record(1, 1 << 20)), 1,
              descriptor(1, 1, none, 1, 0, 0, 1 << 20, 2, 1)), // nor does its peer read one
    };
    for (size_t cut = 1; cut < good.size(); cut += 7)
        all.push_back(good.substr(0, cut));
    return all;
}

static std::string envelope(phi_envelope_kind kind, uint32_t source, uint32_t destination,
                            uint64_t life, uint64_t to_life, uint64_t sequence,
                            const std::string &payload)
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
        phi_reader_init(&reader, reinterpret_cast<const uint8_t *>(text.data()) + at + 8,
                        text.size() - at - 8);
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
        // Reads what "rank 2" says, whose process nobody can reach, until it has come.
        auto op = operation(1, 2, PH_ROLE_RECEIVER, memory, size);
        size_t dropped = 0;
        for (Stopwatch watch; dropped < rank.shared->value[4] && watch.ms() < 20000;) {
            ph_exchange_request *request;
            ph_channel *channel = nullptr;
            CHECK_OK(ph_exchange_start(rank.context, &op, 1, &request));
            CHECK_RC(ph_exchange_finish(&request, &channel, 300), -ETIMEDOUT);
            CHECK_SAYS(rank.error(), "rank 1 still waits for rank 2: operation 1");
            dropped = 0;
            for (size_t at = 0; (at = rank.log.find("of rank 2 dropped", at)) != std::string::npos;
                 at++)
                dropped++;
        }
        rank.shared->value[2] = dropped;
        // So the others were dropped for what they say.
        CHECK(rank.log.find("offer 1 of rank 2 dropped") == std::string::npos);
    }
    for (uint64_t op = 0; op < 5; op++)
        send_one(rank, op);
    rank.shared->value[3]++;
    CHECK(reaches(rank.shared->value[3], 2));
}

TEST_F(Mailboxes, MalformedOffersAreDropped)
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
    offers.insert(offers.begin(), good_offer());
    for (const std::string &bytes : offers) {
        number++;
        std::string id = std::to_string(own) + "-" + std::to_string(number);
        ASSERT_EQ(redis.command({"XADD", prefix + "2>1", id, "m",
                                 envelope(PHI_ENVELOPE_MESSAGE, 2, 1, own, life, number, bytes)}),
                  id);
    }
    job.shared()->value[4] = offers.size() - 1;
    job.shared()->value[1] = 1;
    EXPECT_EQ(job.wait(), "");
    EXPECT_EQ(job.shared()->value[2].load(), offers.size() - 1);
}

RANK_FUNCTION(is_forged)
{
    rank.open({}, 2000);
    rank.shared->value[0]++;
    CHECK(reaches(rank.shared->value[1], 1));
    // Another wrote in rank 0's name: the exchange ends well, or at its deadline.
    void *memory = rank.device->alloc(size);
    auto op = operation(1, !rank.rank, role_of(rank, 0), memory, size);
    ph_channel *channel = nullptr;
    Stopwatch watch;
    int rc = ph_exchange(rank.context, &op, 1, &channel);
    CHECK(watch.ms() < 10000);
    CHECK(rc == 0 || rc == -ETIMEDOUT || rc == PH_EPEER || rc == PH_EFENCED || rc == PH_ENOPATH ||
          rc == PH_ESTORE);
    CHECK(rc == 0 || rank.error() != "");
    rank.shared->value[2] += rc == 0;
    rank.barrier();
}

// What somebody writes in rank 0's name, before it says anything itself. ends_well: whether rank 1
// can tell.
static void forge(
    const std::function<void(Job &, RedisServer &, const std::string &, uint64_t, uint64_t)> &write,
    bool ends_well)
{
    Job job("host", 2);
    job.start("is_forged");
    ASSERT_TRUE(reaches(job.shared()->value[0], 2)) << job.wait(100);
    std::string record;
    uint64_t from = life_of(job, job.redis(), 0, &record),
             to = life_of(job, job.redis(), 1, &record);
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

TEST_F(Mailboxes, MessagesOfOtherLivesAreDropped)
{
    forge(
        [](Job &, RedisServer &redis, const std::string &prefix, uint64_t from, uint64_t to) {
            // From a former life of rank 0, and for a former life of rank 1.
            redis.command(
                {"XADD", prefix + "0>1", id_of(from - 9, 1), "m",
                 envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from - 9, to, 1, "an offer of old")});
            redis.command({"XADD", prefix + "0>1", id_of(from, 1), "m",
                           envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from, to - 9, 1, "for another")});
        },
        true);
}

TEST_F(Mailboxes, EnvelopesThatAreNoneAreDropped)
{
    forge(
        [](Job &, RedisServer &redis, const std::string &prefix, uint64_t from, uint64_t to) {
            std::string good = envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from, to, 1, "payload");
            std::string other_version = good, absurd = good;
            other_version[4] = 9;
            absurd.replace(40, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f");
            uint64_t number = 0;
            for (const std::string &bytes :
                 {std::string(), std::string("x"), good.substr(0, 30), good.substr(0, 50),
                  other_version, absurd, std::string(1 << 20, 'z'),
                  envelope(PHI_ENVELOPE_MESSAGE, 7, 1, from, to, 1, "not a rank"),
                  envelope(PHI_ENVELOPE_MESSAGE, 0, 0, from, to, 1, "not for us"),
                  envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from, to, UINT64_MAX, "far ahead")}) {
                std::string id = id_of(from, ++number);
                ASSERT_EQ(redis.command({"XADD", prefix + "0>1", id, "m", bytes}), id);
            }
            redis.command(
                {"XADD", prefix + "0>1", id_of(from, ++number), "not-m", "x", "more", "y"});
            redis.command({"XADD", prefix + "members", "*", "m",
                           envelope(PHI_ENVELOPE_MEMBER, 0, PHI_ENVELOPE_ALL, from, 0, 0, "?")});
            redis.command({"XADD", prefix + "members", "*", "x", "y"});
        },
        true);
}

TEST_F(Mailboxes, AForgedOfferEndsAtTheDeadline)
{
    // Takes the place of rank 0's first message: rank 1 cannot tell, but does not hang and maps
    // nothing.
    forge(
        [](Job &, RedisServer &redis, const std::string &prefix, uint64_t from, uint64_t to) {
            redis.command({"XADD", prefix + "0>1", id_of(from, 1), "m",
                           envelope(PHI_ENVELOPE_MESSAGE, 0, 1, from, to, 1,
                                    offer(1, exported(0, export_record()), 1,
                                          descriptor(1, 1, 0, 1, 0, 0, 10)))});
        },
        false);
}

TEST_F(Mailboxes, MessagesThatComeTwiceAreTakenOnce)
{
    forge(
        [](Job &, RedisServer &redis, const std::string &prefix, uint64_t from, uint64_t to) {
            for (int i = 1; i <= 3;
                 i++) // empty ones that stand for a withdrawn message, under three numbers
                redis.command({"XADD", prefix + "1>0", id_of(to, i), "m",
                               envelope(PHI_ENVELOPE_VOID, 1, 0, to, from, 1, "")});
        },
        false);
}

TEST_F(Mailboxes, KeysOfAnotherTypeAreReplaced)
{
    forge(
        [](Job &, RedisServer &redis, const std::string &prefix, uint64_t, uint64_t) {
            redis.command({"SET", prefix + "0>1", "a string"});
            redis.command({"RPUSH", prefix + "1>0", "a list"});
        },
        true);
}
