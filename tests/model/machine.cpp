// SPDX-License-Identifier: BSD-3-Clause
#include "model/machine.h"
#include "model/space.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace model
{

static const int STREAMS = 6;
static const int CHANNELS = 3;
static const int VERSIONS =
    4; // versions are counted modulo this; one message is in flight at a time
static const uint8_t GARBAGE = 7;

Tables::Tables()
{
    memcpy(programs, phi_programs, sizeof(programs));
    memcpy(start, phi_word_start, sizeof(start));
}

void Tables::remove(int call, int step)
{
    phi_program &program = programs[call];
    for (int i = step; i + 1 < program.count; i++)
        program.steps[i] = program.steps[i + 1];
    program.count--;
}

void Tables::swap(int call, int step)
{
    std::swap(programs[call].steps[step], programs[call].steps[step + 1]);
}

// A channel's words in one number: both directions, 4 bits each.
static const int WORD_BITS = 4;
static const int WORDS = 2 * PHI_WORD_COUNT;
static const unsigned WORD_MASK = (1u << WORD_BITS) - 1;
static_assert(PHI_BIT_FREE < 1 << WORD_BITS, "the bits fit");
static_assert(WORDS * WORD_BITS <= 16, "the words fit");

// Both ends look at the same word, which is that of the direction.
static int word_index(int direction, int word)
{
    return direction * PHI_WORD_COUNT + word;
}

static unsigned value(uint16_t words, int index)
{
    return words >> index * WORD_BITS & WORD_MASK;
}

static void store(uint16_t *words, int index, unsigned value)
{
    unsigned shift = unsigned(index) * WORD_BITS;
    *words = uint16_t((*words & ~(WORD_MASK << shift)) | (value & WORD_MASK) << shift);
}

// The rule of each word: what may replace what. It is not derived from the programs.
static bool in_turn(int word, unsigned before, unsigned after)
{
    if (word == PHI_WORD_TURN)
        return after == PHI_BIT_READY ? before == 0 || before == PHI_BIT_FULL
                                      : after == PHI_BIT_FULL && before == PHI_BIT_READY;
    return after == PHI_BIT_NOTED ? before == PHI_BIT_FREE
                                  : after == PHI_BIT_FREE && before == PHI_BIT_NOTED;
}

static bool at_rest(int word, unsigned value)
{
    return word == PHI_WORD_TURN ? value == 0 || value == PHI_BIT_FULL : value == PHI_BIT_FREE;
}

int Machine::channel(int a, int b, Protocol forth, Protocol back)
{
    if (channels_.size() == CHANNELS)
        throw std::length_error("channels");
    channels_.push_back({{a, b}, {forth, back}});
    return int(channels_.size()) - 1;
}

int Machine::stream(int rank, bool cyclic)
{
    if (streams_.size() == STREAMS)
        throw std::length_error("streams");
    streams_.push_back({rank, cyclic, {}});
    return int(streams_.size()) - 1;
}

bool Machine::active(int stream, int channel, int direction) const
{
    bool sender = out(stream, channel) == direction;
    return sender == (channels_[channel].protocol[direction] == Protocol::PUT);
}

void Machine::call(int stream, int call, int channel, int direction, int slot)
{
    const phi_program &program = tables_.programs[call];
    for (int i = 0; i < program.count; i++) {
        Step step = {};
        step.channel = int8_t(channel);
        step.direction = int8_t(direction);
        step.slot = int8_t(slot);
        step.windowed = call == PHI_CALL_TRANSFER;
        step.opens = call == PHI_CALL_POST && i == 0;
        step.closes = call == PHI_CALL_COMPLETE && i + 1 == program.count;
        step.word = int8_t(word_index(direction, program.steps[i].word));
        step.bit = program.steps[i].bit;
        switch (program.steps[i].kind) {
        case PHI_STEP_WAIT:
            step.kind = Kind::WAIT;
            break;
        case PHI_STEP_POST:
            step.kind = Kind::POST;
            step.behind = program.steps[0].kind == PHI_STEP_WAIT;
            break;
        default:
            step.kind = Kind::COPY;
            break;
        }
        streams_[stream].steps.push_back(step);
    }
    if (streams_[stream].steps.size() > UINT8_MAX)
        throw std::length_error("steps");
}

void Machine::local(int stream, Kind kind, int channel, int direction, int slot)
{
    Step step = {};
    step.kind = kind;
    step.channel = int8_t(channel);
    step.direction = int8_t(direction);
    step.slot = int8_t(slot);
    streams_[stream].steps.push_back(step);
}

void Machine::produce(int stream, int channel, int slot)
{
    local(stream, Kind::PRODUCE, channel, out(stream, channel), slot);
}

void Machine::consume(int stream, int channel, int slot)
{
    local(stream, Kind::CONSUME, channel, 1 - out(stream, channel), slot);
}

void Machine::send_only(int stream, int channel)
{
    int direction = out(stream, channel);
    bool is_active = active(stream, channel, direction);
    call(stream, is_active ? PHI_CALL_TRANSFER : PHI_CALL_POST, channel, direction);
}

void Machine::recv_only(int stream, int channel)
{
    int direction = 1 - out(stream, channel);
    bool is_active = active(stream, channel, direction);
    call(stream, is_active ? PHI_CALL_TRANSFER : PHI_CALL_POST, channel, direction);
}

void Machine::complete_recv(int stream, int channel)
{
    int direction = 1 - out(stream, channel);
    if (!active(stream, channel, direction))
        call(stream, PHI_CALL_COMPLETE, channel, direction);
}

void Machine::send(int stream, int channel)
{
    produce(stream, channel);
    send_only(stream, channel);
    if (!active(stream, channel, out(stream, channel)))
        call(stream, PHI_CALL_COMPLETE, channel, out(stream, channel));
}

void Machine::recv(int stream, int channel)
{
    recv_only(stream, channel);
    complete_recv(stream, channel);
    consume(stream, channel);
}

void Machine::put_signal(int stream, int channel, int slot)
{
    produce(stream, channel, slot);
    call(stream, PHI_CALL_PUT_SIGNAL, channel, out(stream, channel), slot);
}

void Machine::wait(int stream, int channel)
{
    call(stream, PHI_CALL_WAIT, channel, 1 - out(stream, channel));
}

void Machine::signal(int stream, int channel)
{
    call(stream, PHI_CALL_SIGNAL, channel, out(stream, channel));
}

void Machine::put(int stream, int channel)
{
    call(stream, PHI_CALL_PUT, channel, out(stream, channel));
}

void Machine::get(int stream, int channel)
{
    call(stream, PHI_CALL_GET, channel, 1 - out(stream, channel));
}

// Operations of a group have no order, so each kind has data of its own.
static int slot_of(GroupKind kind)
{
    return kind == GroupKind::SEND || kind == GroupKind::RECV ? 0 : 1;
}

void Machine::calls_of(int stream, const GroupOp &op, std::vector<Call> *calls) const
{
    int forth = out(stream, op.channel);
    bool receives =
        op.kind == GroupKind::RECV || op.kind == GroupKind::GET || op.kind == GroupKind::WAIT;
    int direction = receives ? 1 - forth : forth;
    int slot = slot_of(op.kind);
    auto add = [&](int which) { calls->push_back({which, op.channel, direction, slot}); };
    switch (op.kind) {
    case GroupKind::SEND:
    case GroupKind::RECV:
        if (active(stream, op.channel, direction)) {
            add(PHI_CALL_TRANSFER);
        } else {
            add(PHI_CALL_POST);
            add(PHI_CALL_COMPLETE);
        }
        break;
    case GroupKind::PUT:
        add(PHI_CALL_PUT);
        break;
    case GroupKind::GET:
        add(PHI_CALL_GET);
        break;
    case GroupKind::PUT_SIGNAL:
        add(PHI_CALL_PUT_SIGNAL);
        break;
    case GroupKind::SIGNAL:
        add(PHI_CALL_SIGNAL);
        break;
    case GroupKind::WAIT:
        add(PHI_CALL_WAIT);
        break;
    }
}

// The kernels before a group produce what it sends, those after it consume what it received.
void Machine::group(int stream, const std::vector<GroupOp> &ops)
{
    int rank = streams_[stream].rank;
    std::vector<Call> calls;
    for (const GroupOp &op : ops) {
        if (op.kind == GroupKind::SEND || op.kind == GroupKind::PUT_SIGNAL ||
            op.kind == GroupKind::PUT)
            produce(stream, op.channel, slot_of(op.kind));
        calls_of(stream, op, &calls);
    }
    auto key = [&](const Call &c) {
        int phase = tables_.programs[c.call].phase;
        uint32_t turn =
            phi_group_rank(uint32_t(rank), uint32_t(peer(rank, c.channel)), uint32_t(ranks_));
        return std::make_pair(phase, phase == 1 ? turn : 0);
    };
    std::stable_sort(calls.begin(), calls.end(),
                     [&](const Call &a, const Call &b) { return key(a) < key(b); });
    for (const Call &c : calls)
        call(stream, c.call, c.channel, c.direction, c.slot);

    // Whether a wait brings data, only the scenario knows.
    for (const GroupOp &op : ops)
        if (op.kind == GroupKind::RECV || op.kind == GroupKind::GET)
            consume(stream, op.channel, slot_of(op.kind));
}

void Machine::mortal(int rank, bool kernel_waits)
{
    mortal_ = rank;
    kernel_waits_ = kernel_waits;
}

// One buffer: the version it holds and who touches it.
struct Buffer {
    uint8_t version : 3;
    uint8_t writers : 2;
    uint8_t readers : 2;
};

// A state. Compared as bytes, so every byte is always set.
struct State {
    uint8_t at[STREAMS];    // next step
    uint8_t began[STREAMS]; // a two-part step has begun
    uint8_t skips[STREAMS]; // the next copy is skipped, and the post behind: its wait got nothing
    uint16_t words[CHANNELS];
    uint8_t windows[CHANNELS][2];
    uint8_t produced[CHANNELS][2][2];
    uint8_t consumed[CHANNELS][2][2];
    Buffer buffers[CHANNELS][2][2][2]; // channel, direction, slot, source or destination
    uint8_t dead;
    // a bit for each word: its bit was added, and no post has replaced that
    uint8_t added[CHANNELS];
    uint8_t lifted[CHANNELS]; // ... was added once
    uint8_t undone, noted;    // a bit for each channel: a wait got nothing; that is known
    uint8_t pad;
};
static_assert(sizeof(Buffer) == 1, "one byte");

// A breadth-first search, so that the trace of a failure is a shortest one.
class Search
{
  public:
    explicit Search(const Machine &machine) : m_(machine)
    {
    }

    Result run()
    {
        space_.add(start(), 0, 0);
        for (size_t i = 0; i < space_.size() && result_.ok(); i++)
            expand(i);
        result_.states = space_.size();
        return result_;
    }

  private:
    static const int DIES = STREAMS, RELEASES = STREAMS + 1;

    State start() const
    {
        State s;
        memset(&s, 0, sizeof(s));
        for (size_t c = 0; c < m_.channels_.size(); c++)
            s.words[c] = start_words();
        return s;
    }

    uint16_t start_words() const
    {
        uint16_t words = 0;
        for (int i = 0; i < WORDS; i++)
            store(&words, i, m_.tables_.start[i % PHI_WORD_COUNT]);
        return words;
    }

    // The shortest way to the state at index, then the line that says what failed there.
    void fail(const char *kind, size_t index, const std::string &last)
    {
        result_.failure = kind;
        for (const auto &origin : space_.path(index))
            result_.trace += describe(origin.parent, origin.move) + "\n";
        result_.trace += last + "\n";
    }

    bool doomed(int channel) const // one of its ends may die
    {
        return m_.channels_[channel].rank[0] == m_.mortal_ ||
               m_.channels_[channel].rank[1] == m_.mortal_;
    }

    void expand(size_t index)
    {
        State s = space_[index];
        bool moved = false, finished = true;
        for (size_t i = 0; i < m_.streams_.size() && result_.ok(); i++) {
            const Stream &stream = m_.streams_[i];
            if (s.dead && stream.rank == m_.mortal_)
                continue;
            if (s.at[i] == stream.steps.size())
                continue;
            finished = false;
            moved |= step(index, s, int(i));
        }
        if (m_.mortal_ >= 0)
            moved |= die(index, s);
        if (s.dead)
            moved |= release(index, s);
        if (!result_.ok())
            return;
        if (finished)
            check_end(index, s);
        else if (!moved)
            fail("deadlock", index, "no stream can move");
    }

    // The channels between live ranks are at rest: the next message finds them as the first did.
    void check_end(size_t index, const State &s)
    {
        for (size_t c = 0; c < m_.channels_.size(); c++) {
            if (s.dead && doomed(int(c)))
                continue;
            for (int i = 0; i < WORDS; i++)
                if (!at_rest(i % PHI_WORD_COUNT, value(s.words[c], i)))
                    fail("word not at rest", index, "end");
            if (s.windows[c][0] || s.windows[c][1])
                fail("window left open", index, "end");
        }
        if (s.dead && !m_.release_everything_)
            check_status(index, s);
    }

    // What the status says at the end is what has happened: of the waits of who lives.
    void check_status(size_t index, State s)
    {
        settle(&s);
        if (s.undone & ~s.noted)
            fail("status is 0 of what did not come", index, "end");
        else if (s.noted & ~s.undone)
            fail("status is not 0 of what came", index, "end");
    }

    bool die(size_t index, const State &s)
    {
        if (s.dead)
            return false;
        State next = s;
        next.dead = 1;
        space_.add(next, index, DIES);
        return true;
    }

    // The release loop of the survivors: it adds the bits that own streams wait for at some time,
    // again and again, to the words of the channels with the dead peer.
    bool release(size_t index, const State &s)
    {
        bool moved = false;
        for (size_t i = 0; i < m_.streams_.size(); i++) {
            const Stream &stream = m_.streams_[i];
            for (const Step &step : stream.steps) {
                if (stream.rank == m_.mortal_)
                    break;
                bool released = doomed(step.channel) || m_.release_everything_;
                if (step.kind != Kind::WAIT || !released)
                    continue;
                State next = s;
                add_bit(&next, step);
                if (memcmp(&next, &s, sizeof(s)) == 0)
                    continue;
                space_.add(next, index, RELEASES);
                moved = true;
            }
        }
        return moved;
    }

    // lane/lift.c: add_bit, behind a look at what has taken the bits that were added before.
    void add_bit(State *next, const Step &step)
    {
        const unsigned word = value(next->words[step.channel], step.word);
        const auto way = uint8_t(1u << step.word);
        if (m_.notes_.settles)
            settle(next);
        if ((word & step.bit) && !m_.notes_.adds_only)
            next->lifted[step.channel] |= way;
        if (word & step.bit)
            return;
        store(&next->words[step.channel], step.word, word | step.bit);
        next->added[step.channel] |= way;
        next->lifted[step.channel] |= way;
        if (step.bit == PHI_BIT_FULL && (word & PHI_BIT_READY) && m_.notes_.completes)
            next->noted |= uint8_t(1u << step.channel);
    }

    // A bit that was added and is not there any more was taken by a wait, whose post has replaced
    // it.
    void settle(State *s) const
    {
        for (const Stream &stream : m_.streams_)
            for (const Step &step : stream.steps)
                if (step.kind == Kind::WAIT && stream.rank != m_.mortal_ && doomed(step.channel) &&
                    (s->lifted[step.channel] >> step.word & 1) && !satisfied(*s, step))
                    s->noted |= uint8_t(1u << step.channel);
    }

    static bool satisfied(const State &s, const Step &step)
    {
        return value(s.words[step.channel], step.word) & step.bit;
    }

    // One step of a stream. Returns false where it must wait.
    bool step(size_t index, const State &s, int i)
    {
        const Stream &stream = m_.streams_[i];
        const Step &step = stream.steps[s.at[i]];
        State next = s;
        const char *failure = nullptr;
        bool broken = s.dead && doomed(step.channel);
        switch (step.kind) {
        case Kind::WAIT:
            if (!satisfied(s, step) && (!broken || !m_.kernel_waits_))
                return false;
            next.skips[i] = !note_wait(&next, s, step) && m_.kernel_waits_;
            break;
        case Kind::POST:
            if (!step.behind || !next.skips[i])
                failure = post(&next, step, broken);
            break;
        default:
            failure = two_part(&next, step, i, broken);
            break;
        }
        if (!failure && !broken && next.began[i] == 0)
            failure = window(&next, step);
        if (failure) {
            fail(failure, index, describe(index, i));
            return true;
        }
        if (next.began[i] == 0)
            advance(&next, i, step);
        space_.add(next, index, i);
        return true;
    }

    // A wait that is over: notes what it does by itself. Returns whether it has what it waited for,
    // as far as it sees.
    bool note_wait(State *next, const State &s, const Step &step) const
    {
        const bool added = s.added[step.channel] >> step.word & 1;
        const bool sees = m_.kernel_waits_ && (!added || m_.notes_.marks);
        const auto channel = uint8_t(1u << step.channel);
        if (satisfied(s, step) && !added)
            return true;
        next->undone |= channel;
        if (sees)
            next->noted |= channel;
        return !sees;
    }

    void advance(State *next, int i, const Step &step)
    {
        const Stream &stream = m_.streams_[i];
        next->at[i]++;
        if (step.kind == Kind::POST)
            next->skips[i] = 0;
        if (stream.cyclic && next->at[i] == stream.steps.size())
            next->at[i] = 0;
    }

    // The two ends take turns, or somebody has lost something.
    const char *post(State *next, const Step &step, bool broken)
    {
        uint16_t *words = &next->words[step.channel];
        if (!broken && !in_turn(step.word % PHI_WORD_COUNT, value(*words, step.word), step.bit))
            return "word posted out of turn";
        store(words, step.word, step.bit);
        next->added[step.channel] &= uint8_t(~(1u << step.word));
        return nullptr;
    }

    const char *window(State *next, const Step &step)
    {
        uint8_t *open = &next->windows[step.channel][step.direction];
        if (step.opens) {
            if (*open)
                return "window opened twice";
            *open = 1;
        }
        if (step.closes)
            *open = 0;
        return nullptr;
    }

    // Copies, producers and consumers: begin, then end.
    const char *two_part(State *next, const Step &step, int i, bool broken)
    {
        bool ends = next->began[i];
        if (broken && next->skips[i] && step.kind == Kind::COPY && !ends)
            return nullptr; // skipped: it is over at once
        next->began[i] = !ends;
        if (broken)
            return nullptr; // data of a broken channel is undefined
        Buffer *source = &next->buffers[step.channel][step.direction][step.slot][0];
        Buffer *destination = &next->buffers[step.channel][step.direction][step.slot][1];
        switch (step.kind) {
        case Kind::PRODUCE:
            return produce(next, step, source, ends);
        case Kind::CONSUME:
            return consume(next, step, destination, ends);
        default:
            break;
        }
        if (step.windowed && !next->windows[step.channel][step.direction])
            return "copy outside the window";
        const char *failure = read(source, ends);
        return failure ? failure : write(destination, ends, source->version);
    }

    const char *read(Buffer *buffer, bool ends)
    {
        if (ends) {
            buffer->readers--;
            return nullptr;
        }
        if (buffer->writers)
            return "read during a write";
        buffer->readers++;
        return nullptr;
    }

    const char *write(Buffer *buffer, bool ends, uint8_t version)
    {
        if (ends) {
            buffer->writers--;
            buffer->version = version;
            return nullptr;
        }
        if (buffer->writers || buffer->readers)
            return "write during a use";
        buffer->writers++;
        buffer->version = GARBAGE;
        return nullptr;
    }

    const char *produce(State *next, const Step &step, Buffer *buffer, bool ends)
    {
        uint8_t *count = &next->produced[step.channel][step.direction][step.slot];
        if (ends)
            *count = uint8_t((*count + 1) % VERSIONS);
        return write(buffer, ends, *count);
    }

    const char *consume(State *next, const Step &step, Buffer *buffer, bool ends)
    {
        uint8_t *count = &next->consumed[step.channel][step.direction][step.slot];
        if (ends) {
            *count = uint8_t((*count + 1) % VERSIONS);
            if (buffer->version != *count)
                return "wrong data";
        }
        return read(buffer, ends);
    }

    std::string describe(size_t index, int move) const
    {
        static const char *const kinds[] = {"wait", "post", "copy", "produce", "consume"};
        static const char *const words[] = {"turn", "note"};
        static const char *const bits[] = {"0", "ready", "full", "", "noted", "", "", "", "free"};
        if (move == DIES)
            return "the mortal rank dies; broken := 1";
        if (move == RELEASES)
            return "the release loop stores every bit";
        const State &s = space_[index];
        const Step &step = m_.streams_[move].steps[s.at[move]];
        std::string what = "rank " + std::to_string(m_.streams_[move].rank) + " step " +
                           std::to_string(s.at[move]) + ": " + kinds[int(step.kind)];
        if (step.kind == Kind::WAIT || step.kind == Kind::POST)
            what += std::string(" ") + words[step.word % PHI_WORD_COUNT] + " " + bits[step.bit];
        else
            what += s.began[move] ? " ends" : " begins";
        return what + ", channel " + std::to_string(step.channel) + " direction " +
               std::to_string(step.direction);
    }

    const Machine &m_;
    Space<State> space_;
    Result result_;
};

Result Machine::explore() const
{
    return Search(*this).run();
}

} // namespace model
