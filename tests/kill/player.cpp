// SPDX-License-Identifier: BSD-3-Clause
#include "kill/player.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <unistd.h>

namespace kill_rounds
{

// What a call may take beyond its deadline, on a busy machine, and longer by TEST_TIME_FACTOR.
// Asking a silent peer takes a second.
static const int64_t SLACK_MS = 5000;
static const int FRESH_MOST = 48;

void Player::fail(const char *format, ...)
{
    char text[1500];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char whole[2000];
    snprintf(whole, sizeof whole, "rank %d of session %u, round %u, thread %d, %s: %s",
             order().rank, order().session, order().round, number_, life_.slot.where[number_],
             text);
    rank_failed("kill", 0, whole);
}

// How long this process did not run at all since the last call began.
int64_t Player::stood_still_us() const
{
    // What was missed last is known with the next beat.
    std::this_thread::sleep_for(std::chrono::microseconds(5 * Pulse::BEAT_US));
    return life_.pulse.missed_us() - missed_us_;
}

int Player::timed(const char *what, int64_t limit_ms, const std::function<int()> &call)
{
    snprintf(life_.slot.where[number_], sizeof life_.slot.where[0], "step %d, %s",
             life_.slot.step[number_].load(), what);
    const int64_t slack = patience(SLACK_MS).count() * 1000;
    missed_us_ = life_.pulse.missed_us();
    int64_t begin = now_us();
    int rc = call();
    int64_t over = now_us() - begin - limit_ms * 1000;
    over -= over > slack ? stood_still_us() : life_.pulse.missed_us() - missed_us_;
    uint64_t worst = life_.board.worst_us.load();
    while (over > static_cast<int64_t>(worst) &&
           !life_.board.worst_us.compare_exchange_weak(worst, over))
        ;
    if (over > slack)
        fail("took %lld ms beyond its deadline of %lld ms, and ended with %s: %s",
             static_cast<long long>(over / 1000), static_cast<long long>(limit_ms), ph_strerror(rc),
             life_.process.context ? sentence().c_str() : "");
    bool expelled = life_.board.expelled.load() >> order().rank & 1;
    bool aborted = number_ > 0 && doomed(order().rank); // else it is a channel that was
    if ((rc == PH_EFENCED && expelled) || (rc == PH_EABORTED && aborted))
        throw Over();
    return rc;
}

// ---- memory

// What a driver and the memory of a process take once for all.
void Player::warm_up()
{
    for (int i = 0; i < FRESH_MOST; i++)
        fresh_.push_back(life_.device.alloc(SLOT_SIZE));
    for (void *stream : streams_) {
        auto copy = [&] { life_.device.copy(stream, memory_, fresh_[0], 1); };
        copy();
        life_.device.synchronize(stream, 10000);
        void *graph = life_.device.capture(stream, copy);
        life_.device.launch(graph, stream);
        life_.device.synchronize(stream, 10000);
        life_.device.destroy(graph);
    }
}

void Player::allocate()
{
    bool first = memory_ == nullptr;
    if (!life_.device.host() && !first)
        return; // memory and streams of a device outlive contexts
    fresh_.clear();
    loose_.clear();
    memory_ = life_.device.alloc((RANKS_MOST * PARTS + STAGES) * SLOT_SIZE);
    for (void *&stream : streams_)
        stream = life_.device.stream();
    if (life_.device.host())
        return;
    room_ = life_.device.alloc(ROOM);
    warm_up();
}

void Player::forget()
{
    expected_.clear(); // of host memory nothing can be looked at afterwards
    busy_.clear();
    handles_.clear();
    used_.clear();
    stages_ = 0;
    room_used_ = 0;
    lost_ = 0;
}

static void *at(void *memory, size_t offset)
{
    return static_cast<char *>(memory) + offset;
}

void *Player::part(int peer, int which)
{
    return at(memory_, (peer * PARTS + which) * SLOT_SIZE);
}

void *Player::stage(int which)
{
    return at(memory_, (RANKS_MOST * PARTS + which) * SLOT_SIZE);
}

uint64_t Player::sequence(int step, int replay) const
{
    return static_cast<uint64_t>(number_) << 63 | static_cast<uint64_t>(order().session) << 40 |
           static_cast<uint64_t>(order().round) << 20 | static_cast<uint64_t>(step) << 8 |
           static_cast<uint64_t>(replay);
}

// ---- exchange

Wish Player::wish(int peer, uint64_t op_id, ph_role role, void *buffer, const Step *step)
{
    return {{op_id + number_ * OPS_OF_A_PLAYER, peer, role,
             step ? step->protocol : PH_PROTOCOL_DEFAULT, buffer, buffer ? SLOT_SIZE : 0},
            nullptr};
}

void Player::drop_lost(std::vector<Wish> &wishes)
{
    wishes.erase(std::remove_if(wishes.begin(), wishes.end(),
                                [&](const Wish &w) { return lost(w.operation.peer); }),
                 wishes.end());
}

void Player::lose(int rank, const std::string &why)
{
    if (!doomed(rank))
        fail("rank %d is said to be gone, and lives: %s", rank, why.c_str());
    if (!lost(rank))
        life_.board.losses++;
    lost_ |= 1u << rank;
}

int Player::exchange_once(std::vector<Wish> &wishes, bool halves, int64_t deadline_ms)
{
    std::vector<ph_operation> ops;
    std::vector<ph_channel *> channels(wishes.size(), nullptr);
    for (const Wish &w : wishes)
        ops.push_back(w.operation);
    int rc;
    if (halves) {
        ph_exchange_request *request = nullptr;
        rc = timed("exchange_start", CONTEXT_MS, [&] {
            return ph_exchange_start(life_.process.context, ops.data(), ops.size(), &request);
        });
        if (rc == 0)
            rc = timed("exchange_finish", deadline_ms,
                       [&] { return ph_exchange_finish(&request, channels.data(), deadline_ms); });
        if (request != nullptr)
            fail("the request is left");
    } else {
        rc = timed("exchange", CONTEXT_MS, [&] {
            return ph_exchange(life_.process.context, ops.data(), ops.size(), channels.data());
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

// Whether a call or a channel may end so once this peer's life does. Who aborts breaks its
// channels.
bool Player::is_end(int rc, int peer) const
{
    return rc == PH_EPEER || (rc == PH_EBROKEN && doomed(peer));
}

// Whether the peer has aborted an unbound channel, as its group failed at somebody's death.
bool Player::is_half_way(const std::string &why) const
{
    return life_.board.doomed.load() != 0 &&
           (life_.several || why.find(HALF_WAY) != std::string::npos);
}

// Whether the error is this peer's. The sentence says so; of several threads it may be another's,
// and then it may be any peer's that is about to go.
bool Player::is_meant(int peer, int rc, const std::string &why)
{
    return life_.several ? rc == -ETIMEDOUT || doomed(peer) : names(why, peer);
}

// A store that lives answers in time, but where the machine stood still.
bool Player::is_of_store(const std::string &why) const
{
    return why.find("the store") != std::string::npos &&
           (life_.board.stores.load() > 0 || stood_still_us() > 0);
}

// A failed exchange must be explained by somebody's death, or time must have passed.
void Player::judge_exchange(const std::vector<Wish> &wishes, int rc, bool meeting)
{
    std::string why = sentence();
    bool named = rc == -ETIMEDOUT && is_of_store(why), over = rc == -ETIMEDOUT;
    for (const Wish &w : wishes) {
        int peer = w.operation.peer;
        if (!is_meant(peer, rc, why))
            continue;
        named = true;
        over = over || is_end(rc, peer);
        if (is_end(rc, peer) && (!meeting || !doomed(peer)))
            lose(peer, why);
    }
    if (!named)
        fail("%s: the sentence names no peer of the exchange: %s (the process stood still for %lld "
             "us)",
             ph_strerror(rc), why.c_str(), static_cast<long long>(stood_still_us()));
    if (!over)
        fail("%s: %s", ph_strerror(rc), why.c_str());
    if (rc == -ETIMEDOUT)
        life_.board.timeouts++;
    for (const Wish &w : wishes) // they will not come any more
        if (rc == -ETIMEDOUT && !meeting && doomed(w.operation.peer))
            lose(w.operation.peer, why);
}

void Player::exchange(std::vector<Wish> &wishes, bool halves, int64_t deadline_ms, bool meeting)
{
    const int64_t begin = now_us(), end = begin + PATIENCE_MS * 1000;
    for (;;) {
        drop_lost(wishes);
        if (wishes.empty())
            return;
        // A machine may be too busy for the script's deadline, however often it is tried.
        if (now_us() > begin + PATIENCE_MS * 1000 / 2)
            deadline_ms = std::max(deadline_ms, LONG_MS);
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
    life_.board.exchanges++;
}

// ---- data

void Player::occupy(const void *buffer)
{
    if (std::find(busy_.begin(), busy_.end(), buffer) != busy_.end())
        flush();
    busy_.push_back(buffer);
}

void Player::write(void *to, int receiver, uint64_t sequence, size_t size)
{
    std::vector<uint8_t> bytes = make_message(order().rank, receiver, sequence, size);
    life_.device.write(to, bytes.data(), size);
}

void *Player::fresh(uint64_t choice)
{
    if (fresh_.size() < FRESH_MOST)
        fresh_.push_back(life_.device.alloc(SLOT_SIZE));
    void *memory = fresh_[fresh_.size() < FRESH_MOST ? fresh_.size() - 1 : choice % FRESH_MOST];
    if (std::find(used_.begin(), used_.end(), memory) == used_.end())
        used_.push_back(memory);
    return memory;
}

// Before memory is taken for what is not waited for.
void Player::make_room(size_t size)
{
    if (room_used_ + size > ROOM)
        flush();
}

// Memory that no peer knows, until all streams are done; at any place, on the host new each time.
void *Player::loose(size_t size)
{
    const size_t lead = size % 8;
    room_used_ += lead + size;
    if (!life_.device.host())
        return at(room_, room_used_ - size);
    loose_.emplace_back(new uint8_t[lead + size]);
    return &loose_.back()[lead];
}

// Whether a call on a channel did what it should; else its peer must be gone.
bool Player::transfer(const char *what, const Wish &wish, int rc)
{
    const int peer = wish.operation.peer;
    // A peer that has what it waited for may give its buffer back before this rank's last call.
    if (rc == 0 || (rc == -ESTALE && wish.operation.buffer && released(peer)))
        return true;
    std::string why = sentence();
    if (!is_end(rc, peer) || !is_meant(peer, rc, why))
        fail("%s with rank %d: %s: %s", what, peer, ph_strerror(rc), why.c_str());
    lose(peer, why);
    return false;
}

void Player::synchronize(void *stream)
{
    int64_t end = now_us() + PATIENCE_MS * 1000;
    for (;;) {
        int done = timed("synchronize", 250,
                         [&] { return life_.device.synchronize(stream, 250) ? 1 : 0; });
        if (done)
            return;
        // Where this life is over, what it waits for may be held until everybody was told.
        if (!handles_.empty())
            timed("status", 0, [this] { return ph_channel_ended(handles_.back()); });
        if (now_us() > end)
            fail("a stream is stuck: %s", sentence().c_str());
    }
}

void Player::verify(const Expected &expected)
{
    ph_channel *both[] = {expected.channel, expected.other};
    for (ph_channel *channel : both) {
        int status = timed("status", 0, [channel] { return ph_channel_status(channel); });
        if (is_end(status, ph_channel_peer(channel)) && doomed(ph_channel_peer(channel)))
            return; // undefined, as it said
        // A graph might be launched again and wait for who gave the buffer back: it is let go.
        if (status == PH_EBROKEN && expected.graph && released(ph_channel_peer(channel)))
            return;
        if (status == PH_EABORTED && is_half_way(sentence()))
            return;
        if (status)
            fail("the channel with rank %d: %s", ph_channel_peer(channel), ph_strerror(status));
    }
    std::vector<uint8_t> found(expected.size);
    life_.device.read(found.data(), expected.memory, expected.size);
    std::string wrong = describe_difference(
        found, make_message(expected.sender, order().rank, expected.sequence, expected.size));
    if (!wrong.empty())
        fail("wrong bytes from rank %d: %s", expected.sender, wrong.c_str());
    life_.board.messages++;
    life_.board.unbound += ph_channel_local_size(expected.channel) == 0;
}

void Player::flush()
{
    for (void *stream : streams_)
        synchronize(stream);
    for (const Expected &expected : expected_)
        verify(expected);
    expected_.clear();
    busy_.clear();
    stages_ = 0;
    loose_.clear();
    room_used_ = 0;
}

// Streams of a device outlive contexts: behind waits that were let go of, the own copies still run.
void Player::come_to_rest()
{
    for (void *stream : streams_)
        if (!life_.device.host())
            synchronize(stream);
}

// What was exchanged may make way for other channels from now on.
void Player::close_handles()
{
    for (ph_channel *channel : handles_) {
        int rc = timed("close", 0, [&] { return ph_channel_close(channel); });
        if (rc)
            fail("%s: %s", ph_strerror(rc), sentence().c_str());
    }
    handles_.clear();
}

} // namespace kill_rounds
