// SPDX-License-Identifier: BSD-3-Clause
// Every trouble that a store may have, in every phase in which ranks use it. Each ends in an error
// that names the store within the deadline, or is not noticed; and when the store is well again
// everything goes on. The ranks are threads of this process, on host memory.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "e2e/exchanging.h"
#include "support/memory_store.h"
#include "support/store_proxy.h"

namespace
{

const int64_t REFUSED_MS = 3000; // deadline where the store's refusal ends a call, at once
const int64_t SHORT_MS = 150;    // deadline where the trouble is to end a call
const int64_t LONG_MS = patience(20000).count();  // and where it is not
const int64_t SLACK_MS = patience(10000).count(); // beyond a deadline, on a busy machine
const size_t SIZE = 3000;

enum class Trouble {
    ABSENT,
    LATE,
    KILLED,
    EMPTY,
    READ_ONLY,
    FULL,
    SLOW,
    SILENT,
    HALF,
    GARBAGE,
    CLOSING,
    PASSWORD,
    // of a store of the user's own
    FAILS,
    BLOCKS,
    LATE_SETS,
    LOSES,
    FORGETS,
    NOTHING,
    STRANGE,
};

struct Row {
    Trouble trouble;
    const char *name;
    bool survived;
    int code;         // of calls that need the store
    const char *says; // their sentence
    bool either;      // or they may come through
};

const Row redis_rows[] = {
    {Trouble::ABSENT, "Absent", false, -ETIMEDOUT, "the store at unix://", false},
    {Trouble::LATE, "Late", true, 0, "", false},
    {Trouble::KILLED, "KilledConnections", true, 0, "", false},
    {Trouble::EMPTY, "RestartedEmpty", true, 0, "", false},
    {Trouble::READ_ONLY, "ReadOnly", false, PH_ESTORE, "READONLY", false},
    {Trouble::FULL, "OutOfMemory", false, PH_ESTORE, "OOM", false},
    {Trouble::SLOW, "Slow", true, 0, "", false},
    {Trouble::SILENT, "NeverAnswers", false, -ETIMEDOUT, "the store", false},
    {Trouble::HALF, "HalfAnswers", false, -ETIMEDOUT, "the store", false},
    {Trouble::GARBAGE, "Garbage", false, PH_ESTORE, "does not speak as Redis does", false},
    {Trouble::CLOSING, "ClosesConnections", false, -ETIMEDOUT, "store", false},
    {Trouble::PASSWORD, "OtherPassword", false, PH_ESTORE, "NOAUTH", false},
};

const Row callback_rows[] = {
    {Trouble::FAILS, "Fails", false, PH_ESTORE, "Input/output error", false},
    {Trouble::BLOCKS, "Blocks", false, -ETIMEDOUT, "the store", false},
    {Trouble::LATE_SETS, "StoresAndTimesOut", false, -ETIMEDOUT, "the store", false},
    {Trouble::GARBAGE, "Garbage", false, PH_ESTORE, "none of ours", true},
    {Trouble::NOTHING, "NoValue", false, PH_ESTORE, "none of ours", true},
    {Trouble::STRANGE, "StrangeResults", false, PH_ESTORE, "the store's", false},
    {Trouble::SLOW, "Slow", true, 0, "", false},
    {Trouble::LOSES, "LosesWhatIsSet", false, -ETIMEDOUT, "waits for rank", true},
    {Trouble::FORGETS, "LostItsKeys", false, -ETIMEDOUT, "waits for rank", true},
};

// A dictionary that can be told to be ill.
class IllStore
{
  public:
    ph_store_callbacks callbacks()
    {
        well_ = store_.callbacks();
        return {set, get, remove, this};
    }
    void fall(Trouble trouble)
    {
        if (trouble == Trouble::FORGETS)
            store_.clear();
        trouble_ = trouble;
        ill_ = true;
    }
    void recover()
    {
        ill_ = false;
    }
    void before_set(std::function<void()> function)
    {
        std::lock_guard<std::mutex> hold(lock_);
        function_ = std::move(function);
    }

  private:
    bool has(Trouble trouble) const
    {
        return ill_ && trouble_ == trouble;
    }
    // 1: go on. Else the result.
    int enter(int64_t ms)
    {
        if (has(Trouble::SLOW))
            sleep_ms(5);
        if (has(Trouble::FAILS))
            return -EIO;
        if (has(Trouble::STRANGE))
            return 7;
        if (!has(Trouble::BLOCKS))
            return 1;
        for (Stopwatch watch; watch.ms() < ms;)
            sleep_ms(1);
        return -ETIMEDOUT;
    }
    static int set(void *opaque, const char *key, const void *value, size_t size, int64_t ms)
    {
        auto *self = static_cast<IllStore *>(opaque);
        std::function<void()> function;
        {
            std::lock_guard<std::mutex> hold(self->lock_);
            std::swap(function, self->function_);
        }
        if (function)
            function();
        int rc = self->enter(ms);
        if (rc != 1 || self->has(Trouble::LOSES))
            return rc == 1 ? 0 : rc;
        rc = self->well_.set(self->well_.opaque, key, value, size, ms);
        return self->has(Trouble::LATE_SETS) ? -ETIMEDOUT : rc;
    }
    static int get(void *opaque, const char *key, void **value, size_t *size, int64_t ms)
    {
        auto *self = static_cast<IllStore *>(opaque);
        int rc = self->enter(ms);
        if (rc != 1)
            return rc;
        if (self->has(Trouble::NOTHING)) {
            *value = nullptr;
            *size = 100;
            return 0;
        }
        if (self->has(Trouble::GARBAGE)) {
            *size = 60;
            *value = malloc(*size);
            memset(*value, 0x5a, *size);
            return 0;
        }
        return self->well_.get(self->well_.opaque, key, value, size, ms);
    }
    static int remove(void *opaque, const char *key, int64_t ms)
    {
        auto *self = static_cast<IllStore *>(opaque);
        int rc = self->enter(ms);
        return rc == 1 ? self->well_.remove(self->well_.opaque, key, ms) : rc;
    }

    MemoryStore store_;
    ph_store_callbacks well_ = {};
    std::atomic<Trouble> trouble_{Trouble::FAILS};
    std::atomic<bool> ill_{false};
    std::mutex lock_;
    std::function<void()> function_;
};

// Two ranks, each with a thread of its own for what both do at once.
class Two
{
  public:
    struct End {
        ph_context *context = nullptr;
        ph_queue *queue = nullptr;
        char *memory = nullptr;
        int64_t start_ms = 0; // the context's deadline
        std::string sentence;
    };
    End ends[2];

    // A Redis server's URI, or callbacks.
    Two(std::string uri, const ph_store_callbacks *callbacks)
        : uri_(std::move(uri)), callbacks_(callbacks)
    {
    }
    ~Two()
    {
        both([&](int rank) { destroy(rank, 2000); });
    }
    Two(const Two &) = delete;

    void both(const std::function<void(int)> &body)
    {
        std::thread other([&] { body(1); });
        body(0);
        other.join();
    }

    int create(int rank, int64_t deadline_ms)
    {
        char text[512] = "";
        ph_context_params params = {};
        params.struct_size = sizeof params;
        params.rank = rank;
        params.ranks = 2;
        params.device = "host";
        params.store = callbacks_ ? nullptr : uri_.c_str();
        params.store_callbacks = callbacks_;
        params.epoch = epoch;
        params.job = "trouble";
        params.deadline_ms = deadline_ms;
        params.error = text;
        params.error_size = sizeof text;
        End &end = ends[rank];
        end.start_ms = deadline_ms;
        Stopwatch watch;
        int rc = ph_context_create(&params, &end.context);
        EXPECT_LT(watch.ms(), deadline_ms + 1000 + SLACK_MS); // what was begun is taken back
        end.sentence = text;
        if (rc)
            return rc;
        void *memory = nullptr;
        EXPECT_EQ(ph_host_alloc(end.context, 8 * SIZE, &memory), 0);
        EXPECT_EQ(ph_queue_create(end.context, &end.queue), 0);
        end.memory = static_cast<char *>(memory);
        return 0;
    }

    // The next buffers are in an allocation that no peer knows.
    void renew_memory()
    {
        for (End &end : ends) {
            void *memory = nullptr;
            EXPECT_EQ(ph_host_alloc(end.context, 8 * SIZE, &memory), 0);
            end.memory = static_cast<char *>(memory);
        }
    }

    // On a machine that is too busy for the deadline, with the least that is enough.
    int destroy_in_the_end(int rank, int64_t deadline_ms)
    {
        int rc;
        Stopwatch watch;
        do
            rc = destroy(rank, std::min(deadline_ms, LONG_MS));
        while (rc == -ETIMEDOUT && (deadline_ms *= 2) && watch.ms() < LONG_MS);
        return rc;
    }

    int destroy(int rank, int64_t deadline_ms)
    {
        Stopwatch watch;
        int rc = ph_context_destroy(&ends[rank].context, deadline_ms);
        EXPECT_LT(watch.ms(), deadline_ms + 2000 + SLACK_MS);
        return rc;
    }

    // One exchange, without waiting longer than ms.
    int exchange(int rank, uint64_t op, int64_t ms, ph_channel **channel)
    {
        End &end = ends[rank];
        auto wanted = operation(op, !rank, PH_ROLE_BOTH, end.memory + op % 4 * 2 * SIZE, SIZE);
        ph_exchange_request *request = nullptr;
        char text[1024] = "";
        Stopwatch watch;
        int rc = ph_exchange_start(end.context, &wanted, 1, &request);
        if (rc == 0)
            rc = ph_exchange_finish(&request, channel, ms);
        EXPECT_LT(watch.ms(), end.start_ms + ms + SLACK_MS);
        ph_context_error(end.context, text, sizeof text);
        end.sentence = text;
        return rc;
    }

    // Both come to an operation, again and again until they have met, and pass data both ways. An
    // exchange may end well at one rank, and at its deadline at the other: then that one comes
    // alone, unless the first one comes again as well.
    void meet(uint64_t op, const Row *row)
    {
        ph_channel *channels[2] = {};
        std::atomic<int> met{0};
        both([&](int rank) {
            Stopwatch watch;
            int first = -1; // 0 once it has ended well
            while (met < 2 && watch.ms() < LONG_MS && !testing::Test::HasFailure()) {
                const int rc = exchange(rank, op, 400, &channels[rank]);
                EXPECT_TRUE(rc == 0 || rc == -ETIMEDOUT || (row && rc == row->code))
                    << ph_strerror(rc) << ": " << ends[rank].sentence;
                met += rc == 0 && first != 0;
                first = first != 0 ? rc : first;
                for (Stopwatch since; rc == 0 && met < 2 && since.ms() < 1000;)
                    usleep(1000);
            }
            EXPECT_EQ(first, 0) << "operation " << op << ": " << ends[rank].sentence;
        });
        if (channels[0] && channels[1])
            pass_both_ways(channels, op);
    }

    void pass_both_ways(ph_channel *channels[2], uint64_t op)
    {
        both([&](int rank) {
            End &end = ends[rank];
            size_t size = ph_channel_local_size(channels[rank]);
            char *buffer = end.memory + op % 4 * 2 * SIZE;
            // The peer's half is written while the own one is read: halves of the buffer.
            memset(buffer + rank * size / 2, static_cast<int>(10 * op + rank), size / 2);
            EXPECT_EQ(ph_put_signal(channels[rank], rank * size / 2, rank * size / 2, size / 2,
                                    end.queue),
                      0);
            EXPECT_EQ(ph_wait(channels[rank], size / 2, end.queue), 0);
            EXPECT_EQ(ph_queue_synchronize(end.queue, LONG_MS), 0);
            for (size_t i = 0; i < size / 2; i++)
                if (buffer[!rank * size / 2 + i] != static_cast<char>(10 * op + !rank)) {
                    ADD_FAILURE() << "wrong byte " << i;
                    break;
                }
        });
    }

    uint64_t epoch = 1;

  private:
    std::string uri_;
    const ph_store_callbacks *callbacks_;
};

class Phases : public testing::TestWithParam<Row>
{
  protected:
    virtual void begin() = 0;
    virtual void end() = 0;
    virtual void before_write(std::function<void()> function) = 0;

    // Between ranks of a node offers need no store: they meet over the net.
    void set_up(const std::string &uri, const ph_store_callbacks *callbacks)
    {
        setenv("PEERHOP_PATH", "net", 1);
        two_ = std::make_unique<Two>(uri, callbacks);
        bool refused = row_.code == PH_ESTORE && !row_.either;
        deadline_ = row_.survived ? LONG_MS : refused ? REFUSED_MS : SHORT_MS;
    }
    void TearDown() override
    {
        if (!two_)
            return;
        end();
        two_.reset();
        unsetenv("PEERHOP_PATH");
    }

    // What a call that needs the store has to return while the trouble lasts.
    void judge(int rank, int rc, const char *what)
    {
        const std::string &sentence = two_->ends[rank].sentence;
        if (row_.survived || (row_.either && rc == 0)) {
            EXPECT_EQ(rc, 0) << what << ": " << sentence;
            return;
        }
        // It may also be the other rank only that needs what the store does not give.
        if (row_.either && rc == -ETIMEDOUT && sentence.find("waits for rank") != std::string::npos)
            return;
        EXPECT_EQ(rc, row_.code) << what << ": " << ph_strerror(rc) << ": " << sentence;
        EXPECT_NE(sentence.find(row_.says), std::string::npos) << what << ": " << sentence;
    }

    // Until it ends for the trouble: on a busy machine the deadline may pass while one of the two
    // has not even begun.
    void judge_exchange(uint64_t op)
    {
        two_->both([&](int rank) { judge(rank, exchange(rank, op), "exchange"); });
    }
    int exchange(int rank, uint64_t op)
    {
        const std::string &sentence = two_->ends[rank].sentence;
        int rc;
        Stopwatch watch;
        do {
            ph_channel *channel = nullptr;
            rc = two_->exchange(rank, op, deadline_, &channel);
        } while (rc == -ETIMEDOUT && !row_.either && !row_.survived && watch.ms() < LONG_MS &&
                 sentence.find(row_.says) == std::string::npos);
        return rc;
    }

    // With the deadline of the test, or, on a machine that is too busy for it, with the least that
    // is enough.
    void create_both()
    {
        two_->both([&](int rank) {
            Stopwatch watch;
            for (int64_t ms = deadline_;
                 two_->ends[rank].context == nullptr && watch.ms() < LONG_MS; ms *= 2) {
                int rc = two_->create(rank, std::min(ms, LONG_MS));
                EXPECT_TRUE(rc == 0 || rc == -ETIMEDOUT || rc == row_.code)
                    << ph_strerror(rc) << ": " << two_->ends[rank].sentence;
            }
        });
        ASSERT_NE(two_->ends[0].context, nullptr) << two_->ends[0].sentence;
        ASSERT_NE(two_->ends[1].context, nullptr) << two_->ends[1].sentence;
    }

    // The trouble comes with the first write of what attempt does with a deadline. On a busy
    // machine that may pass before anything is written: then with a longer one.
    void at_a_write(const std::function<void(int64_t)> &attempt)
    {
        began_ = NOT;
        before_write([this] {
            began_ = BEGINS;
            begin();
            began_ = BEGAN;
        });
        Stopwatch watch;
        for (int64_t ms = deadline_; began_ == NOT && watch.ms() < LONG_MS; ms *= 2)
            attempt(std::min(ms, LONG_MS));
        before_write(nullptr);
        EXPECT_NE(began_, NOT) << "nothing was written";
        while (began_ == BEGINS) // before it ends
            sleep_ms(1);
    }

    // The store is well again, and contexts are made anew: in a store that sets a key once, under
    // another epoch.
    void begin_anew()
    {
        end();
        bool any = two_->ends[0].context || two_->ends[1].context;
        if (!any)
            two_->epoch++;
    }

    // Runs a function after a while.
    struct Later {
        explicit Later(const std::function<void()> &function)
            : thread([function] {
                  sleep_ms(100);
                  function();
              })
        {
        }
        ~Later()
        {
            thread.join();
        }
        std::thread thread;
    };

    void WhenAContextIsMade_phase();
    void WhenTheMemberRecordIsPublished_phase();
    void OffersOnOneNodeNeedNone_phase();
    void AtTheFirstOffer_phase();
    void AtLaterOffers_phase();
    void WhileAnOfferIsSent_phase();
    void BetweenExchanges_phase();
    void WhileOneWaits_phase();
    void WhenContextsEnd_phase();

    Row row_ = GetParam();
    std::unique_ptr<Two> two_;
    int64_t deadline_ = 0;
    enum { NOT, BEGINS, BEGAN };
    std::atomic<int> began_{NOT};
};

void Phases::WhenAContextIsMade_phase()
{
    begin();
    two_->both([&](int rank) { judge(rank, two_->create(rank, deadline_), "create"); });
    begin_anew();
    create_both();
    two_->meet(1, &row_);
}

// The trouble comes when the ranks are connected and about to announce themselves.
void Phases::WhenTheMemberRecordIsPublished_phase()
{
    at_a_write([&](int64_t ms) {
        two_->both([&](int rank) {
            int rc = two_->create(rank, ms);
            if (began_ != NOT && (rc || row_.survived)) // the other one may have been faster
                judge(rank, rc, "create");
        });
    });
    begin_anew();
    create_both();
    two_->meet(1, &row_);
}

// Ranks that are connected by a segment hand new buffers, and new allocations, over there: as soon
// as each has taken what the other wrote to the store. On a busy machine that is more than the
// first offer, since an exchange that is repeated writes again.
void Phases::OffersOnOneNodeNeedNone_phase()
{
    unsetenv("PEERHOP_PATH");
    create_both();
    uint64_t op = 0;
    std::atomic<bool> wrote{true};
    Stopwatch watch;
    while (wrote && watch.ms() < LONG_MS && !HasFailure()) {
        wrote = false;
        before_write([&] { wrote = true; });
        two_->meet(++op, &row_);
    }
    before_write(nullptr);
    ASSERT_FALSE(wrote) << "offers go through the store";
    begin();
    two_->meet(++op, nullptr);
    two_->renew_memory();
    two_->meet(++op, nullptr);
    end();
    two_->meet(++op, nullptr);
}

void Phases::AtTheFirstOffer_phase()
{
    create_both();
    begin();
    judge_exchange(1);
    end();
    two_->meet(1, &row_);
    two_->meet(2, &row_);
}

void Phases::AtLaterOffers_phase()
{
    create_both();
    two_->meet(1, &row_);
    begin();
    judge_exchange(2);
    end();
    two_->meet(2, &row_);
    two_->meet(3, &row_);
}

// The trouble comes with the command that carries an offer: whether the store has it is not known.
void Phases::WhileAnOfferIsSent_phase()
{
    create_both();
    two_->meet(1, &row_);
    at_a_write([&](int64_t ms) {
        two_->both([&](int rank) {
            ph_channel *channel = nullptr;
            int rc = two_->exchange(rank, 2, ms, &channel);
            // One offer may have been in time; its sender waits for the other rank then.
            if (rc != -ETIMEDOUT)
                judge(rank, rc, "exchange");
        });
    });
    end();
    two_->meet(2, &row_);
    two_->meet(3, &row_);
}

void Phases::BetweenExchanges_phase()
{
    create_both();
    two_->meet(1, &row_);
    ph_counters before[2] = {}, after[2] = {};
    auto count = [&](ph_counters *counters) {
        for (int rank = 0; rank < 2; rank++)
            ph_context_counters(two_->ends[rank].context, &counters[rank], sizeof counters[rank]);
    };
    count(before);
    begin();
    for (int i = 0; i < 5; i++) // what is known needs no store
        two_->meet(1, nullptr);
    count(after);
    for (int rank = 0; rank < 2; rank++)
        EXPECT_EQ(after[rank].misses, before[rank].misses);
    end();
    two_->meet(2, &row_);
}

// An offer lies in the store, its sender waits, and the trouble comes before the peer does.
void Phases::WhileOneWaits_phase()
{
    create_both();
    two_->meet(1, &row_);
    ph_channel *channel = nullptr;
    ph_counters before = {}, now = {};
    ph_context_counters(two_->ends[0].context, &before, sizeof before);
    std::atomic<int> first{1};
    std::thread waits(
        [&] { first = two_->exchange(0, 2, row_.survived ? LONG_MS : 300, &channel); });
    Stopwatch watch;
    do {
        sleep_ms(1);
        ph_context_counters(two_->ends[0].context, &now, sizeof now);
    } while (now.offers == before.offers && watch.ms() < LONG_MS);
    begin();
    int second = exchange(1, 2);
    waits.join();
    if (row_.survived) {
        EXPECT_EQ(first, 0) << two_->ends[0].sentence;
        EXPECT_EQ(second, 0) << two_->ends[1].sentence;
    } else {
        EXPECT_TRUE(first == -ETIMEDOUT || first == row_.code || (row_.either && first == 0))
            << ph_strerror(first) << ": " << two_->ends[0].sentence;
        judge(1, second, "exchange");
    }
    end();
    two_->meet(2, &row_);
    two_->meet(3, &row_);
}

void Phases::WhenContextsEnd_phase()
{
    create_both();
    two_->meet(1, &row_);
    begin();
    two_->both([&](int rank) { EXPECT_EQ(two_->destroy_in_the_end(rank, deadline_), 0); });
    begin_anew();
    create_both(); // what was left is in nobody's way
    two_->meet(1, &row_);
    two_->both([&](int rank) { EXPECT_EQ(two_->destroy(rank, LONG_MS), 0); });
}

class StoreTrouble : public Phases
{
  protected:
    void SetUp() override
    {
        if (!RedisServer::available())
            GTEST_SKIP() << "no redis-server";
        ASSERT_TRUE(redis_.start());
        proxy_ = std::make_unique<StoreProxy>(redis_.socket());
        set_up(proxy_->uri(), nullptr);
    }

    void begin() override
    {
        switch (row_.trouble) {
        case Trouble::ABSENT:
            return proxy_->set(StoreProxy::ABSENT);
        case Trouble::LATE:
            proxy_->set(StoreProxy::ABSENT);
            later_ = std::make_unique<Later>([this] { proxy_->set(StoreProxy::PASS); });
            return;
        case Trouble::KILLED:
            return proxy_->cut();
        case Trouble::EMPTY:
            redis_.cli("FLUSHALL");
            return proxy_->cut();
        case Trouble::READ_ONLY:
            EXPECT_EQ(redis_.cli("REPLICAOF 127.0.0.1 1"), "OK");
            return;
        case Trouble::FULL:
            EXPECT_EQ(redis_.cli("CONFIG SET maxmemory 1"), "OK");
            return;
        case Trouble::SLOW:
            return proxy_->set(StoreProxy::SLOW);
        case Trouble::SILENT:
            return proxy_->set(StoreProxy::SILENT);
        case Trouble::HALF:
            return proxy_->set(StoreProxy::HALF);
        case Trouble::GARBAGE:
            return proxy_->set(StoreProxy::GARBAGE);
        case Trouble::CLOSING:
            return proxy_->set(StoreProxy::CLOSING);
        case Trouble::PASSWORD:
            EXPECT_EQ(redis_.cli("CONFIG SET requirepass other"), "OK");
            redis_.set_password("other");
            return proxy_->cut(); // who is in stays in
        default:
            FAIL() << "not a trouble of servers";
        }
    }

    void end() override
    {
        later_.reset();
        proxy_->set(StoreProxy::PASS);
        std::string cure = row_.trouble == Trouble::READ_ONLY ? "REPLICAOF NO ONE"
                           : row_.trouble == Trouble::FULL    ? "CONFIG SET maxmemory 0"
                                                              : "PING";
        EXPECT_NE(redis_.cli(cure), "(no connection)");
        if (row_.trouble == Trouble::PASSWORD) {
            redis_.command({"CONFIG", "SET", "requirepass", ""});
            redis_.set_password("");
        }
    }

    void before_write(std::function<void()> function) override
    {
        proxy_->before("XADD", std::move(function));
    }

    RedisServer redis_;
    std::unique_ptr<StoreProxy> proxy_;
    std::unique_ptr<Later> later_;
};

class CallbackTrouble : public Phases
{
  protected:
    void SetUp() override
    {
        callbacks_ = store_.callbacks();
        set_up("", &callbacks_);
    }
    void begin() override
    {
        store_.fall(row_.trouble);
    }
    void end() override
    {
        store_.recover();
    }
    void before_write(std::function<void()> function) override
    {
        store_.before_set(std::move(function));
    }

    IllStore store_;
    ph_store_callbacks callbacks_ = {};
};

#define PHASE(name)                                                                                \
    TEST_P(StoreTrouble, name)                                                                     \
    {                                                                                              \
        name##_phase();                                                                            \
    }                                                                                              \
    TEST_P(CallbackTrouble, name)                                                                  \
    {                                                                                              \
        name##_phase();                                                                            \
    }
PHASE(WhenAContextIsMade)
PHASE(WhenTheMemberRecordIsPublished)
PHASE(OffersOnOneNodeNeedNone)
PHASE(AtTheFirstOffer)
PHASE(AtLaterOffers)
PHASE(WhileAnOfferIsSent)
PHASE(BetweenExchanges)
PHASE(WhileOneWaits)
PHASE(WhenContextsEnd)
#undef PHASE

INSTANTIATE_TEST_SUITE_P(Every, StoreTrouble, testing::ValuesIn(redis_rows),
                         [](const auto &info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Every, CallbackTrouble, testing::ValuesIn(callback_rows),
                         [](const auto &info) { return info.param.name; });

} // namespace
