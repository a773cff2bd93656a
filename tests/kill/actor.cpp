// SPDX-License-Identifier: BSD-3-Clause
// A process of the kill rounds: does what its orders on the board say, and judges every call of the
// library that it makes. It ends with a message where something is wrong.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e/ranks.h"
#include "kill/board.h"
#include "kill/script.h"
#include "support/entries.h"

using namespace kill_rounds;

namespace
{

// What a call may take beyond its deadline, on a busy machine. Asking a silent peer takes a second.
const int64_t SLACK_MS = 5000;
const int64_t CONTEXT_MS = 3000;   // the contexts' deadline
const int64_t PATIENCE_MS = 30000; // of retries, of streams: everybody is continued long before
const size_t SLOT_SIZE = 12288;
const int STAGES = 8;
const int FRESH_MOST = 48;

enum Op : uint64_t { OP_MEET = 1, OP_GROUP = 2, OP_EXCHANGE = 3, OP_DATA = 10, OP_ANSWER = 20 };

// Parts of a peer's share of the memory.
enum Part {
    PART_OUT,
    PART_IN = PART_OUT + VARIANTS,
    PART_ANSWER_OUT = PART_IN + VARIANTS,
    PART_ANSWER_IN = PART_ANSWER_OUT + VARIANTS,
    PART_GROUP_OUT = PART_ANSWER_IN + VARIANTS,
    PART_GROUP_IN,
    PART_MEET_OUT,
    PART_MEET_IN,
    PARTS
};

struct Wish {
    ph_operation operation;
    ph_channel *channel;
};

// A message that will have come once the streams are done.
struct Expected {
    ph_channel *channel, *other; // both must be whole then
    const void *memory;
    int sender;
    uint64_t sequence;
    size_t size;
    bool graph; // by a graph that still lives
};

struct Leaks {
    int descriptors = 0, threads = 0, mappings = 0;

    bool more_than(const Leaks &other) const
    {
        return descriptors > other.descriptors || threads > other.threads ||
               mappings > other.mappings;
    }
};

// Threads by name: a driver begins its own when it first needs them.
int count_threads(const char *prefix)
{
    int n = 0;
    DIR *directory = opendir("/proc/self/task");
    for (dirent *entry; directory && (entry = readdir(directory)) != nullptr;) {
        std::string path = std::string("/proc/self/task/") + entry->d_name + "/comm";
        char name[64] = "";
        FILE *file = entry->d_name[0] == '.' ? nullptr : fopen(path.c_str(), "r");
        n += file && fgets(name, sizeof name, file) && strncmp(name, prefix, strlen(prefix)) == 0;
        if (file)
            fclose(file);
    }
    if (directory)
        closedir(directory);
    return n;
}

Leaks count_leaks()
{
    Leaks leaks;
    leaks.descriptors = entries("/proc/self/fd");
    leaks.threads = count_threads("peerhop");
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    while (maps && fgets(line, sizeof line, maps))
        leaks.mappings += strstr(line, "memfd:peerhop") != nullptr;
    if (maps)
        fclose(maps);
    return leaks;
}

class Actor
{
  public:
    Actor(Rank &process, Board &board, Slot &slot)
        : process_(process), board_(board), slot_(slot), device_(*process.device)
    {
    }
    void run();

  private:
    [[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 2, 3)));
    int timed(const char *what, int64_t limit_ms, const std::function<int()> &call);
    std::string sentence()
    {
        return process_.error();
    }
    bool doomed(int rank) const
    {
        return board_.doomed.load() >> rank & 1;
    }

    void join();
    void act();
    void meet();
    void destroy();
    void leave();
    void check_leaks();

    void warm_up();
    void allocate();
    void *part(int peer, int which)
    {
        return at(memory_, (peer * PARTS + which) * SLOT_SIZE);
    }
    void *stage(int which)
    {
        return at(memory_, (order_.ranks * PARTS + which) * SLOT_SIZE);
    }
    static void *at(void *memory, size_t offset)
    {
        return static_cast<char *>(memory) + offset;
    }
    void *fresh(uint64_t choice);

    void point(int step, Point point);
    void play(const Step &step, int index);
    void play_exchange(const Step &step);
    void play_group(const Step &step, int index);
    void play_pair(const Step &step, int index);
    void play_release(const Step &step);
    bool enqueue(const Step &step, const std::vector<Wish> &wishes, const void *buffer, void *copy,
                 void *stream);
    void play_graph(const Step &step, int index, const std::vector<Wish> &wishes, void *buffer,
                    void *stream);

    Wish wish(int peer, uint64_t op_id, ph_role role, void *buffer, const Step *step = nullptr);
    void exchange(std::vector<Wish> &wishes, bool halves, int64_t deadline_ms, bool meeting);
    int exchange_once(std::vector<Wish> &wishes, bool halves, int64_t deadline_ms);
    void drop_lost(std::vector<Wish> &wishes);
    void judge_exchange(const std::vector<Wish> &wishes, int rc, bool meeting);
    bool transfer(const char *what, int peer, int rc);
    void lose(int rank, const std::string &why);
    // Whether a call or a channel may end so once this peer's life does. Who aborts breaks its
    // channels.
    bool is_end(int rc, int peer) const
    {
        return rc == PH_EPEER || (rc == PH_EBROKEN && doomed(peer));
    }
    bool lost(int rank) const
    {
        return lost_ >> rank & 1;
    }

    void write(void *to, int receiver, uint64_t sequence, size_t size);
    void occupy(const void *buffer);
    void synchronize(void *stream);
    void flush();
    void close_handles();
    void verify(const Expected &expected);
    uint64_t sequence(int step, int replay) const
    {
        return static_cast<uint64_t>(order_.session) << 40 |
               static_cast<uint64_t>(order_.round) << 20 | static_cast<uint64_t>(step) << 8 |
               static_cast<uint64_t>(replay);
    }

    Rank &process_;
    Board &board_;
    Slot &slot_;
    Device &device_;
    Order order_ = {};
    void *memory_ = nullptr;
    void *streams_[2] = {};
    std::vector<void *> fresh_;
    std::vector<void *> used_; // of fresh_, since this context began
    uint32_t lost_ = 0;        // peers whose life of this round is over, as the library told
    std::vector<Expected> expected_;
    std::vector<const void *> busy_; // buffers of deferred steps
    std::vector<ph_channel *> handles_;
    int stages_ = 0;
    bool compared_ = false;
    Leaks before_;
};

void Actor::fail(const char *format, ...)
{
    char text[1500];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char whole[2000];
    snprintf(whole, sizeof whole, "rank %d of session %u, round %u, %s: %s", order_.rank,
             order_.session, order_.round, slot_.where, text);
    rank_failed("kill", 0, whole);
}

int Actor::timed(const char *what, int64_t limit_ms, const std::function<int()> &call)
{
    snprintf(slot_.where, sizeof slot_.where, "step %d, %s", slot_.step.load(), what);
    uint64_t stopped = slot_.stopped_us.load();
    int64_t begin = now_us();
    int rc = call();
    int64_t over = now_us() - begin - limit_ms * 1000 -
                   static_cast<int64_t>(slot_.stopped_us.load() - stopped);
    uint64_t worst = board_.worst_us.load();
    while (over > static_cast<int64_t>(worst) &&
           !board_.worst_us.compare_exchange_weak(worst, over))
        ;
    if (over > SLACK_MS * 1000)
        fail("took %lld ms beyond its deadline of %lld ms, and ended with %s: %s",
             static_cast<long long>(over / 1000), static_cast<long long>(limit_ms), ph_strerror(rc),
             process_.context ? sentence().c_str() : "");
    return rc;
}

// ---- contexts

// What a driver and the memory of a process take once for all.
void Actor::warm_up()
{
    for (int i = 0; i < FRESH_MOST; i++)
        fresh_.push_back(device_.alloc(SLOT_SIZE));
    for (void *stream : streams_) {
        auto copy = [&] { device_.copy(stream, memory_, fresh_[0], 1); };
        copy();
        device_.synchronize(stream, 10000);
        void *graph = device_.capture(stream, copy);
        device_.launch(graph, stream);
        device_.synchronize(stream, 10000);
        device_.destroy(graph);
    }
}

void Actor::allocate()
{
    bool first = memory_ == nullptr;
    if (!device_.host() && !first)
        return; // memory and streams of a device outlive contexts
    fresh_.clear();
    memory_ = device_.alloc((RANKS_MOST * PARTS + STAGES) * SLOT_SIZE);
    for (void *&stream : streams_)
        stream = device_.stream();
    if (!device_.host())
        warm_up();
}

void Actor::join()
{
    lost_ = 0;
    used_.clear();
    if (device_.host() && !compared_) {
        before_ = count_leaks();
        compared_ = true;
    }
    // So few that channels make way for others.
    std::vector<const char *> settings = {"PEERHOP_CHANNELS=64", nullptr};
    char error[1024] = "";
    struct ph_context_params params = {};
    params.struct_size = sizeof params;
    params.rank = order_.rank;
    params.ranks = order_.ranks;
    params.device = device_.wish();
    params.job = order_.job;
    params.deadline_ms = CONTEXT_MS;
    params.settings = settings.data();
    params.error = error;
    params.error_size = sizeof error;
    int rc = 0;
    for (int64_t end = now_us() + PATIENCE_MS * 1000;;) {
        rc = timed("create", CONTEXT_MS,
                   [&] { return ph_context_create(&params, &process_.context); });
        if (rc != -ETIMEDOUT || now_us() > end)
            break;
        board_.timeouts++;
    }
    if (rc)
        fail("%s: %s", ph_strerror(rc), error);
    allocate();
}

void Actor::check_leaks()
{
    // A thread that was joined may still be seen for a moment.
    Leaks now = count_leaks();
    for (int i = 0; i < 1000 && compared_ && now.more_than(before_); i++) {
        usleep(1000);
        now = count_leaks();
    }
    if (!compared_) { // a driver keeps what it made for the first context
        before_ = now;
        compared_ = true;
    }
    if (now.more_than(before_))
        fail("left: %d descriptors, %d threads, %d mappings; before: %d, %d, %d", now.descriptors,
             now.threads, now.mappings, before_.descriptors, before_.threads, before_.mappings);
    if (waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD)
        fail("has a child");
}

void Actor::destroy()
{
    expected_.clear(); // of host memory nothing can be looked at afterwards
    busy_.clear();
    handles_.clear(); // they end with the context
    int64_t end = now_us() + PATIENCE_MS * 1000;
    while (process_.context) {
        // The store is given two seconds more.
        int rc = timed("destroy", 400 + 2000,
                       [&] { return ph_context_destroy(&process_.context, 400); });
        if (rc == 0)
            break;
        std::string why = sentence();
        // A peer, or what still runs here.
        bool named = why.find("rank ") != std::string::npos ||
                     why.find("not done in time") != std::string::npos;
        if (rc != -ETIMEDOUT || !named)
            fail("%s: %s", ph_strerror(rc), why.c_str());
        if (now_us() > end)
            fail("cannot be destroyed: %s", why.c_str());
        board_.timeouts++;
    }
    check_leaks();
}

// Ends this life, at times by abort, and begins another one, while the others go on.
void Actor::leave()
{
    board_.doomed.fetch_or(1u << order_.rank);
    board_.leaves++;
    if (mix(order_.seed, 11) % 2 == 0) {
        board_.aborts++;
        int rc = timed("abort", 0, [&] { return ph_context_abort(process_.context, "at random"); });
        if (rc)
            fail("%s: %s", ph_strerror(rc), sentence().c_str());
    }
    destroy();
    join();
}

// ---- exchange

Wish Actor::wish(int peer, uint64_t op_id, ph_role role, void *buffer, const Step *step)
{
    return {{op_id, peer, role, step ? step->protocol : PH_PROTOCOL_DEFAULT, buffer, SLOT_SIZE},
            nullptr};
}

void Actor::drop_lost(std::vector<Wish> &wishes)
{
    wishes.erase(std::remove_if(wishes.begin(), wishes.end(),
                                [&](const Wish &w) { return lost(w.operation.peer); }),
                 wishes.end());
}

void Actor::lose(int rank, const std::string &why)
{
    if (!doomed(rank))
        fail("rank %d is said to be gone, and lives: %s", rank, why.c_str());
    if (!lost(rank))
        board_.losses++;
    lost_ |= 1u << rank;
}

int Actor::exchange_once(std::vector<Wish> &wishes, bool halves, int64_t deadline_ms)
{
    std::vector<ph_operation> ops;
    std::vector<ph_channel *> channels(wishes.size(), nullptr);
    for (const Wish &w : wishes)
        ops.push_back(w.operation);
    int rc;
    if (halves) {
        ph_exchange_request *request = nullptr;
        rc = timed("exchange_start", CONTEXT_MS, [&] {
            return ph_exchange_start(process_.context, ops.data(), ops.size(), &request);
        });
        if (rc == 0)
            rc = timed("exchange_finish", deadline_ms,
                       [&] { return ph_exchange_finish(&request, channels.data(), deadline_ms); });
        if (request != nullptr)
            fail("the request is left");
    } else {
        rc = timed("exchange", CONTEXT_MS, [&] {
            return ph_exchange(process_.context, ops.data(), ops.size(), channels.data());
        });
    }
    for (size_t i = 0; i < wishes.size(); i++) {
        if ((rc == 0) != (channels[i] != nullptr))
            fail("result %s and channel %p", ph_strerror(rc), static_cast<void *>(channels[i]));
        wishes[i].channel = channels[i];
        if (channels[i])
            handles_.push_back(channels[i]);
    }
    return rc;
}

static bool names(const std::string &sentence, int rank)
{
    std::string wanted = "rank " + std::to_string(rank);
    for (size_t at = 0; (at = sentence.find(wanted, at)) != std::string::npos; at++)
        if (!isdigit(sentence[at + wanted.size()]))
            return true;
    return false;
}

// A failed exchange must be explained by somebody's death, or time must have passed.
void Actor::judge_exchange(const std::vector<Wish> &wishes, int rc, bool meeting)
{
    std::string why = sentence();
    bool named = false, over = rc == -ETIMEDOUT;
    for (const Wish &w : wishes) {
        int peer = w.operation.peer;
        if (!names(why, peer))
            continue;
        named = true;
        over = over || is_end(rc, peer);
        if (is_end(rc, peer) && (!meeting || !doomed(peer)))
            lose(peer, why);
    }
    if (!named)
        fail("%s: the sentence names no peer of the exchange: %s", ph_strerror(rc), why.c_str());
    if (!over)
        fail("%s: %s", ph_strerror(rc), why.c_str());
    if (rc == -ETIMEDOUT)
        board_.timeouts++;
    for (const Wish &w : wishes) // they will not come any more
        if (rc == -ETIMEDOUT && !meeting && doomed(w.operation.peer))
            lose(w.operation.peer, why);
}

void Actor::exchange(std::vector<Wish> &wishes, bool halves, int64_t deadline_ms, bool meeting)
{
    int64_t end = now_us() + PATIENCE_MS * 1000;
    for (;;) {
        drop_lost(wishes);
        if (wishes.empty())
            return;
        int rc = exchange_once(wishes, halves, deadline_ms);
        if (rc == 0)
            break;
        judge_exchange(wishes, rc, meeting);
        if (now_us() > end)
            fail("no success in %lld ms: %s", static_cast<long long>(PATIENCE_MS),
                 sentence().c_str());
        if (meeting && rc == PH_EPEER)
            usleep(2000); // a former life is not over yet
    }
    board_.exchanges++;
}

// ---- data

void Actor::occupy(const void *buffer)
{
    if (std::find(busy_.begin(), busy_.end(), buffer) != busy_.end())
        flush();
    busy_.push_back(buffer);
}

void Actor::write(void *to, int receiver, uint64_t sequence, size_t size)
{
    std::vector<uint8_t> bytes = make_message(order_.rank, receiver, sequence, size);
    device_.write(to, bytes.data(), size);
}

void *Actor::fresh(uint64_t choice)
{
    if (fresh_.size() < FRESH_MOST)
        fresh_.push_back(device_.alloc(SLOT_SIZE));
    void *memory = fresh_[fresh_.size() < FRESH_MOST ? fresh_.size() - 1 : choice % FRESH_MOST];
    if (std::find(used_.begin(), used_.end(), memory) == used_.end())
        used_.push_back(memory);
    return memory;
}

// Whether a call on a channel did what it should; else its peer must be gone.
bool Actor::transfer(const char *what, int peer, int rc)
{
    // A peer that has what it waited for may give its buffer back before this rank's last call.
    if (rc == 0 || (rc == -ESTALE && board_.released.load() >> peer & 1))
        return true;
    std::string why = sentence();
    if (!is_end(rc, peer) || !names(why, peer))
        fail("%s with rank %d: %s: %s", what, peer, ph_strerror(rc), why.c_str());
    lose(peer, why);
    return false;
}

void Actor::synchronize(void *stream)
{
    int64_t end = now_us() + PATIENCE_MS * 1000;
    for (;;) {
        int done =
            timed("synchronize", 250, [&] { return device_.synchronize(stream, 250) ? 1 : 0; });
        if (done)
            return;
        if (now_us() > end)
            fail("a stream is stuck: %s", sentence().c_str());
    }
}

void Actor::verify(const Expected &expected)
{
    ph_channel *both[] = {expected.channel, expected.other};
    for (ph_channel *channel : both) {
        int status = ph_channel_status(channel);
        if (is_end(status, ph_channel_peer(channel)) && doomed(ph_channel_peer(channel)))
            return; // undefined, as it said
        // A graph might be launched again and wait for who gave the buffer back: it is let go.
        if (status == PH_EBROKEN && expected.graph &&
            board_.released.load() >> ph_channel_peer(channel) & 1)
            return;
        if (status == -ESTALE && board_.released.load() >> ph_channel_peer(channel) & 1)
            continue; // after everything was done
        if (status)
            fail("the channel with rank %d: %s", ph_channel_peer(channel), ph_strerror(status));
    }
    std::vector<uint8_t> found(expected.size);
    device_.read(found.data(), expected.memory, expected.size);
    std::string wrong = describe_difference(
        found, make_message(expected.sender, order_.rank, expected.sequence, expected.size));
    if (!wrong.empty())
        fail("wrong bytes from rank %d: %s", expected.sender, wrong.c_str());
    board_.messages++;
}

void Actor::flush()
{
    for (void *stream : streams_)
        synchronize(stream);
    for (const Expected &expected : expected_)
        verify(expected);
    expected_.clear();
    busy_.clear();
    stages_ = 0;
}

// What was exchanged may make way for other channels from now on.
void Actor::close_handles()
{
    for (ph_channel *channel : handles_) {
        int rc = timed("close", 0, [&] { return ph_channel_close(channel); });
        if (rc)
            fail("%s: %s", ph_strerror(rc), sentence().c_str());
    }
    handles_.clear();
}

// ---- steps

void Actor::point(int step, Point point)
{
    int here = step * POINTS + point;
    if (order_.die_at == here) {
        board_.doomed.fetch_or(1u << order_.rank);
        kill(getpid(), SIGKILL);
    }
    if (order_.stop_at == here) {
        slot_.stopping.store(1);
        change(board_.progress);
        kill(getpid(), SIGSTOP);
        slot_.stopping.store(0);
    }
}

void Actor::play_exchange(const Step &step)
{
    std::vector<Wish> wishes;
    for (int peer = 0; peer < order_.ranks; peer++)
        if (peer != order_.rank && step.members >> peer & 1)
            wishes.push_back(
                wish(peer, OP_EXCHANGE, PH_ROLE_BOTH, part(peer, PART_OUT + step.variant)));
    exchange(wishes, step.halves, step.deadline_ms, false);
}

void Actor::play_group(const Step &step, int index)
{
    std::vector<Wish> wishes;
    for (int peer = 0; peer < order_.ranks; peer++) {
        if (peer == order_.rank || !(step.members >> peer & 1) || lost(peer))
            continue;
        wishes.push_back(wish(peer, OP_GROUP, PH_ROLE_SENDER, part(peer, PART_GROUP_OUT), &step));
        wishes.push_back(wish(peer, OP_GROUP, PH_ROLE_RECEIVER, part(peer, PART_GROUP_IN), &step));
        write(part(peer, PART_GROUP_OUT), peer, sequence(index, 0), step.size);
    }
    exchange(wishes, step.halves, step.deadline_ms, false);
    point(index, AFTER_EXCHANGE);
    for (int rc = -1; rc && !wishes.empty(); drop_lost(wishes)) {
        std::vector<ph_group_op> group;
        for (const Wish &w : wishes)
            group.push_back({w.operation.role == PH_ROLE_SENDER ? PH_GROUP_SEND : PH_GROUP_RECV,
                             w.channel, 0, 0, step.size});
        rc = timed("group", 0, [&] { return ph_group(group.data(), group.size(), streams_[0]); });
        if (rc)
            judge_exchange(wishes, rc, false);
    }
    for (const Wish &w : wishes)
        if (w.operation.role == PH_ROLE_RECEIVER)
            expected_.push_back({w.channel, w.channel, w.operation.buffer, w.operation.peer,
                                 sequence(index, 0), step.size, false});
    point(index, ENQUEUED);
    flush();
}

// One message of a step of two ranks, at this rank's end, and its answer. False: the peer is gone.
bool Actor::enqueue(const Step &step, const std::vector<Wish> &wishes, const void *buffer,
                    void *copy, void *stream)
{
    ph_channel *data = wishes[0].channel, *answer = wishes[1].channel;
    int peer = wishes[0].operation.peer;
    auto call = [&](const char *what, const std::function<int()> &function) {
        return transfer(what, peer, timed(what, 0, function));
    };
    size_t size = step.size;
    if (order_.rank == step.sender) {
        bool sent =
            step.kind == Kind::SEND
                ? call("send", [&] { return ph_send(data, size, stream); }) &&
                      call("complete", [&] { return ph_complete(data, stream); })
            : step.kind == Kind::PUT
                ? call("put", [&] { return ph_put(data, 0, 0, size, stream); }) &&
                      call("signal", [&] { return ph_signal(data, stream); })
            : step.kind == Kind::GET
                ? call("signal", [&] { return ph_signal(data, stream); })
                : call("put_signal", [&] { return ph_put_signal(data, 0, 0, size, stream); });
        return sent && call("wait", [&] { return ph_wait(answer, 0, stream); });
    }
    bool came =
        step.kind == Kind::SEND ? call("recv", [&] { return ph_recv(data, size, stream); }) &&
                                      call("complete", [&] { return ph_complete(data, stream); })
        : step.kind == Kind::PUT ? call("wait", [&] { return ph_wait(data, 0, stream); })
        : step.kind == Kind::GET ? call("wait", [&] { return ph_wait(data, 0, stream); }) &&
                                       call("get", [&] { return ph_get(data, 0, 0, size, stream); })
                                 : call("wait", [&] { return ph_wait(data, size, stream); });
    if (came)
        device_.copy(stream, copy, buffer, size);
    return came && call("signal", [&] { return ph_signal(answer, stream); });
}

void Actor::play_graph(const Step &step, int index, const std::vector<Wish> &wishes, void *buffer,
                       void *stream)
{
    bool sending = order_.rank == step.sender, whole = false;
    flush();
    void *copy = stage(0);
    void *graph =
        device_.capture(stream, [&] { whole = enqueue(step, wishes, buffer, copy, stream); });
    for (int replay = 0; whole && replay < step.replays; replay++) {
        if (sending)
            write(buffer, step.receiver, sequence(index, replay), step.size);
        device_.launch(graph, stream);
        if (replay == 0)
            point(index, ENQUEUED);
        if (!sending)
            expected_.push_back({wishes[0].channel, wishes[1].channel, copy, step.sender,
                                 sequence(index, replay), step.size, true});
        flush();
        whole = ph_channel_status(wishes[0].channel) == 0;
    }
    device_.destroy(graph);
}

void Actor::play_pair(const Step &step, int index)
{
    bool sending = order_.rank == step.sender;
    int peer = sending ? step.receiver : step.sender;
    if (lost(peer))
        return;
    void *buffer = step.fresh[!sending] ? fresh(sequence(index, 0) + step.size)
                                        : part(peer, (sending ? PART_OUT : PART_IN) + step.variant);
    std::vector<Wish> wishes = {
        wish(peer, OP_DATA + step.variant, sending ? PH_ROLE_SENDER : PH_ROLE_RECEIVER, buffer,
             &step),
        wish(peer, OP_ANSWER + step.variant, sending ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
             part(peer, (sending ? PART_ANSWER_IN : PART_ANSWER_OUT) + step.variant))};
    occupy(buffer); // from the exchange on, the peer may write
    exchange(wishes, step.halves, step.deadline_ms, false);
    point(index, AFTER_EXCHANGE);
    if (wishes.empty())
        return;
    void *stream = streams_[step.variant % 2];
    if (step.kind == Kind::GRAPH && !device_.host()) {
        play_graph(step, index, wishes, buffer, stream);
        return;
    }
    if (stages_ == STAGES) {
        flush();
        occupy(buffer);
    }
    void *copy = stage(stages_++);
    if (sending)
        write(buffer, peer, sequence(index, 0), step.size);
    bool whole = enqueue(step, wishes, buffer, copy, stream);
    if (whole && !sending)
        expected_.push_back({wishes[0].channel, wishes[1].channel, copy, peer, sequence(index, 0),
                             step.size, false});
    point(index, ENQUEUED);
    if (!step.deferred)
        flush();
}

// Gives a buffer back that peers may have mapped, or still have in their caches of channels.
void Actor::play_release(const Step &step)
{
    flush();
    if (used_.empty())
        return;
    size_t which = step.size % used_.size();
    void *memory = used_[which];
    ph_release_state state =
        device_.host() && step.fresh[0] ? PH_RELEASE_CLOSED : PH_RELEASE_DRAINED;
    board_.released.fetch_or(1u << order_.rank);
    board_.releases++;
    int rc = timed("release_start", 0,
                   [&] { return ph_release_start(process_.context, memory, SLOT_SIZE); });
    if (rc)
        fail("%s: %s", ph_strerror(rc), sentence().c_str());
    // Long before the others give up waiting for this rank.
    for (int64_t end = now_us() + PATIENCE_MS * 1000 / 3;;) {
        rc = timed("release_wait", 300, [&] {
            return ph_release_wait(process_.context, memory, SLOT_SIZE, state, 300);
        });
        if (rc == 0)
            break;
        std::string why = sentence();
        if ((rc != -ETIMEDOUT && rc != -EBUSY) || why.find("rank ") == std::string::npos ||
            now_us() > end)
            fail("%s: %s", ph_strerror(rc), why.c_str());
        board_.timeouts++;
    }
    used_.erase(used_.begin() + static_cast<long>(which));
    if (state == PH_RELEASE_CLOSED) {
        device_.release(memory);
        fresh_.erase(std::find(fresh_.begin(), fresh_.end(), memory));
    }
}

void Actor::play(const Step &step, int index)
{
    if (!(step.members >> order_.rank & 1))
        return;
    if (step.kind == Kind::EXCHANGE)
        play_exchange(step);
    else if (step.kind == Kind::GROUP)
        play_group(step, index);
    else if (step.kind == Kind::RELEASE)
        play_release(step);
    else
        play_pair(step, index);
}

// ---- orders

void Actor::act()
{
    lost_ = 0;
    std::vector<Step> script = make_script(order_.seed, order_.ranks, order_.members);
    for (int i = 0; i < static_cast<int>(script.size()); i++) {
        slot_.step = i;
        point(i, BEFORE_EXCHANGE);
        if (order_.leave_at == i)
            return leave();
        play(script[i], i);
        point(i, SYNCHRONIZED);
    }
    flush();
    close_handles();
    slot_.step = -1;
}

// Everybody with everybody: channels, and a message each way.
void Actor::meet()
{
    lost_ = 0;
    slot_.step = -2;
    std::vector<Wish> wishes;
    std::vector<ph_group_op> group;
    size_t size = 1 + mix(order_.seed, 7) % 3000;
    uint64_t number = sequence(0xff, order_.members & 0xff);
    for (int peer = 0; peer < order_.ranks; peer++) {
        if (peer == order_.rank || !(order_.members >> peer & 1))
            continue;
        wishes.push_back(wish(peer, OP_MEET, PH_ROLE_SENDER, part(peer, PART_MEET_OUT)));
        wishes.push_back(wish(peer, OP_MEET, PH_ROLE_RECEIVER, part(peer, PART_MEET_IN)));
        write(part(peer, PART_MEET_OUT), peer, number, size);
    }
    if (wishes.empty())
        return;
    exchange(wishes, true, 1500, true);
    for (const Wish &w : wishes) {
        bool out = w.operation.role == PH_ROLE_SENDER;
        group.push_back({out ? PH_GROUP_SEND : PH_GROUP_RECV, w.channel, 0, 0, size});
        if (!out)
            expected_.push_back(
                {w.channel, w.channel, w.operation.buffer, w.operation.peer, number, size, false});
    }
    int rc = timed("group", 0, [&] { return ph_group(group.data(), group.size(), streams_[0]); });
    if (rc)
        fail("%s: %s", ph_strerror(rc), sentence().c_str());
    flush();
    int reaped = mix(order_.seed, order_.rank) % 4 == 0
                     ? timed("reap", 0, [&] { return ph_reap(process_.context); })
                     : 0;
    if (reaped)
        fail("%s: %s", ph_strerror(reaped), sentence().c_str());
    for (const Wish &w : wishes)
        if (ph_channel_status(w.channel))
            fail("the channel with rank %d: %s", w.operation.peer,
                 ph_strerror(ph_channel_status(w.channel)));
    close_handles();
}

void Actor::run()
{
    if (!device_.host())
        allocate();
    slot_.ready = 1;
    change(board_.progress);
    for (uint32_t seen = slot_.done.load();;) {
        while (slot_.given.load() == seen)
            wait_for_change(slot_.given, seen, 100000);
        order_ = slot_.order;
        switch (order_.task) {
        case Task::JOIN:
            join();
            break;
        case Task::ACT:
            act();
            break;
        case Task::MEET:
            meet();
            break;
        case Task::CLOSE:
            destroy();
            break;
        case Task::EXIT:
            return;
        }
        snprintf(slot_.where, sizeof slot_.where, "done");
        slot_.done = ++seen;
        change(board_.progress);
    }
}

} // namespace

RANK_FUNCTION(kill_actor)
{
    int fd = atoi(getenv(BOARD_VARIABLE));
    auto *board = static_cast<Board *>(
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    CHECK(board != MAP_FAILED);
    close(fd);
    Actor(rank, *board, board->slots[rank.rank]).run();
}
