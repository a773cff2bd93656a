// SPDX-License-Identifier: BSD-3-Clause
// What src/cuda/ring_long.cuh does by a warp is one block here, so that a hand moves one row at a
// time; but the leads of a launch of several messages are warps of one block, which has one place.
// What a block stores that others look at is a step, and so is each unit.
#include "model/ring_model.h"

#include <cstdint>

#include "model/space.h"

namespace ring_model
{

namespace
{

enum { ROWS = 2, LIVE = 3, BLOCKS = 4, MOST_HANDS = 3, NONE = 15 };

enum Phase {
    AWAY,
    FOLLOWS, // on the device, until the launch before it is over
    LEADS,   // its item
    LOOKS,   // whether it may begin; else it leaves
    MOVES,   // rows
    LAST,    // of the second launch: counts the message, or all of several
    GONE,
};

enum { BEGAN = 1, LEFT = 2, MISSED = 8 }; // of a hand; in the count of hands

struct Block { // or a warp that leads one of several
    uint8_t phase : 4, let_in : 1, failed : 1, drawn : 1, told : 1;
    uint8_t row : 4, next : 4;
    uint8_t unit : 2, item : 2, counted : 2, half : 1, spare : 1; // item: of the row of a lead
    uint8_t pad;
};

struct End { // of a direction: the lane of its pusher, or of its taker
    uint8_t count, led, drawn, left, ended;
};

struct Lanes {
    uint16_t pushed, taken; // bits: units of the direction
    End push, take;
    uint8_t credit, begun, posted;
    uint8_t stamps[ROWS], full[MOST_HANDS];
    uint8_t done; // bits: messages of the job that were counted as taken
    uint8_t pad;
};

template <int RANKS, int STREAMS, int RINGS> struct State {
    Block blocks[RANKS][STREAMS][LIVE][BLOCKS];
    Lanes lanes[RINGS];
    uint8_t at[RANKS][STREAMS]; // the first launch that is not over
    uint8_t broken[RANKS], dead;
    uint8_t pad[8 - (RANKS * STREAMS + RANKS + 1) % 8];
};

// A stream's launches: part 0 and 1 of an operation with messages; of the application part 0.
struct Launch {
    const Op *op;
    int part;
};

template <int RANKS, int STREAMS, int RINGS> class Machine
{
    using S = State<RANKS, STREAMS, RINGS>;

  public:
    Machine(const Rules &rules, const Job &job) : rules_(rules), job_(job)
    {
        for (int rank = 0; rank < RANKS; rank++)
            for (int stream = 0; stream < STREAMS; stream++)
                for (const Op &op : job_.ops[rank][stream])
                    for (int part = 0; part < (op.items.empty() ? 1 : 2); part++)
                        launches_[rank][stream].push_back({&op, part});
    }

    Outcome explore()
    {
        S first = {};
        settle(first);
        space_.add(first, 0, 0);
        for (at_ = 0; at_ < space_.size() && wrong_.empty(); at_++) {
            const S s = space_[at_];
            moved_ = false;
            step(s);
            if (!wrong_.empty())
                return {wrong_, trace(at_) + "  " + last_ + "\n", space_.size(), most_waiting_};
            if (!moved_)
                wrong_ = is_end(s) ? check_end(s) : "stuck";
            if (wrong_.empty())
                wrong_ = check_waits(s);
            if (!wrong_.empty())
                return {wrong_, trace(at_) + text(s), space_.size(), most_waiting_};
        }
        return {"", "", space_.size(), most_waiting_};
    }

  private:
    // A block of a live launch, and what it is for.
    struct Place {
        int rank, stream, launch, block;
    };

    // ---- what is where

    const Launch *launch_of(const S &s, int rank, int stream, int launch) const
    {
        const size_t i = size_t(s.at[rank][stream] + launch);
        return i < launches_[rank][stream].size() ? &launches_[rank][stream][i] : nullptr;
    }
    const Launch &launch_of(const S &s, const Place &p) const
    {
        return *launch_of(s, p.rank, p.stream, p.launch);
    }
    static Block &block_of(S &s, const Place &p)
    {
        return s.blocks[p.rank][p.stream][p.launch][p.block];
    }
    static const Block &block_of(const S &s, const Place &p)
    {
        return s.blocks[p.rank][p.stream][p.launch][p.block];
    }
    const Message &message_of(const Launch &launch, int item) const
    {
        return job_.messages[size_t(launch.op->items[size_t(item)])];
    }
    bool pushes(int rank, const Message &message) const
    {
        return job_.rings[size_t(message.ring)].from == rank;
    }
    static int items_of(const Launch &launch)
    {
        return int(launch.op->items.size());
    }
    bool is_alone(const Launch &launch) const
    {
        return items_of(launch) == 1;
    }
    bool has_early(int rank, const Launch &launch) const
    {
        return launch.part == 0 && is_alone(launch) && pushes(rank, message_of(launch, 0));
    }
    int count_blocks(int rank, const Launch &launch) const
    {
        if (launch.op->items.empty())
            return 1;
        if (launch.part == 0)
            return items_of(launch) + (has_early(rank, launch) ? job_.hands : 0);
        return items_of(launch) * job_.hands;
    }
    bool is_lead(const Launch &launch, int block) const
    {
        return launch.part == 0 && block < items_of(launch);
    }
    // Which item a block moves rows of.
    int item_of(const S &s, const Place &p, const Launch &launch) const
    {
        if (launch.part == 0)
            return is_lead(launch, p.block) ? block_of(s, p).item : 0;
        return p.block / job_.hands;
    }
    int hand_of(const Launch &launch, int block) const
    {
        return launch.part == 0 ? block - 1 : block % job_.hands;
    }
    // The first hand of each of several messages.
    bool is_waiter(const Launch &launch, int block) const
    {
        return launch.part == 1 && !is_alone(launch) && hand_of(launch, block) == 0;
    }
    // Of a lead: the first hand of its message is on the device.
    bool is_relieved(const S &s, const Place &p, const Launch &launch) const
    {
        return !is_alone(launch) && p.launch + 1 < LIVE &&
               s.blocks[p.rank][p.stream][p.launch + 1][p.block * job_.hands].phase != AWAY;
    }
    int ring_units() const
    {
        return ROWS * job_.row;
    }
    int rows_of(const Message &message) const
    {
        return (message.units - 1 + job_.row - 1) / job_.row;
    }
    int stamp_of(int begin, int row) const
    {
        return begin + 1 + job_.row * (row + 1);
    }
    static End &end_of(S &s, const Message &message, bool push)
    {
        return push ? s.lanes[message.ring].push : s.lanes[message.ring].take;
    }
    static const End &end_of(const S &s, const Message &message, bool push)
    {
        return push ? s.lanes[message.ring].push : s.lanes[message.ring].take;
    }
    static bool has(uint16_t bits, int bit)
    {
        return bits >> bit & 1;
    }
    int on_device(const S &s, int rank) const
    {
        int n = 0;
        for (int stream = 0; stream < STREAMS; stream++)
            for (int i = 0; i < LIVE && launch_of(s, rank, stream, i); i++)
                n += on_device(s.blocks[rank][stream][i], *launch_of(s, rank, stream, i));
        return n;
    }
    int on_device(const Block (&blocks)[BLOCKS], const Launch &launch) const
    {
        int n = 0;
        bool leads = false;
        for (int i = 0; i < BLOCKS; i++) {
            const bool there = blocks[i].phase != AWAY && blocks[i].phase != GONE;
            if (is_lead(launch, i))
                leads = leads || there;
            else
                n += there;
        }
        return n + leads;
    }
    bool is_end(const S &s) const
    {
        for (int rank = 0; rank < RANKS; rank++)
            for (int stream = 0; stream < STREAMS; stream++)
                if (!has(s.dead, rank) && launch_of(s, rank, stream, 0))
                    return false;
        return true;
    }

    // ---- steps

    // The first step that is wrong ends the search.
    void go(S &next, const Place &p, const char *what)
    {
        moved_ = true;
        settle(next);
        if (!found_.empty() && wrong_.empty()) {
            wrong_ = found_;
            last_ = name(space_[at_], p, what);
        }
        space_.add(next, at_, move_of(p, what));
    }
    int move_of(const Place &p, const char *what)
    {
        size_t i = 0;
        while (i < names_.size() && names_[i] != what)
            i++;
        if (i == names_.size())
            names_.push_back(what);
        return int(i) << 12 | p.rank << 9 | p.stream << 8 | p.launch << 4 | p.block;
    }

    void step(const S &s)
    {
        for (int rank = 0; rank < RANKS; rank++) {
            if (has(s.dead, rank))
                continue;
            for (int stream = 0; stream < STREAMS; stream++)
                for (int launch = 0; launch < LIVE && launch_of(s, rank, stream, launch); launch++)
                    step_launch(s, rank, stream, launch);
            make_trouble(s, rank);
        }
    }
    void make_trouble(const S &s, int rank)
    {
        const Place p = {rank, 0, 0, 0};
        if (job_.trouble == QUIET || s.broken[rank])
            return;
        if (job_.trouble == ABORT || s.dead != 0) {
            S next = s;
            next.broken[rank] = 1;
            go(next, p, "is told that the channels have ended");
        }
        if (job_.trouble == DEATH && s.dead == 0 && !is_end(s)) {
            S next = s;
            next.dead = uint8_t(1 << rank);
            go(next, p, "dies");
        }
    }
    void step_launch(const S &s, int rank, int stream, int launch)
    {
        const Launch &l = *launch_of(s, rank, stream, launch);
        const int blocks = count_blocks(rank, l);
        for (int i = 0; i < blocks; i++) {
            const Place p = {rank, stream, launch, i};
            const Block &block = block_of(s, p);
            if (block.phase == AWAY) { // in their order
                place(s, p, l);
                break;
            }
            step_block(s, p, l, block);
        }
    }
    void step_block(const S &s, const Place &p, const Launch &l, const Block &block)
    {
        if (l.op->items.empty())
            return block.phase == MOVES ? end(s, p, "of the application ends") : void();
        switch (block.phase) {
        case LEADS:
            return lead(s, p, l);
        case LOOKS:
            return l.part == 0   ? look_early(s, p, l)
                   : is_alone(l) ? relieve(s, p, l)
                                 : look(s, p, l);
        case MOVES:
            return block.row == NONE ? choose(s, p, l) : move(s, p, l);
        case LAST:
            return count(s, p, l);
        default:
            return;
        }
    }
    void end(const S &s, const Place &p, const char *what)
    {
        S next = s;
        leave(block_of(next, p));
        go(next, p, what);
    }
    static void leave(Block &block)
    {
        block = {};
        block.phase = GONE;
        block.let_in = 1;
    }

    // ---- onto the device

    bool is_let_in(const S &s, const Place &p, const Launch &l) const
    {
        if (p.launch == 0)
            return true;
        const Launch &before = *launch_of(s, p.rank, p.stream, p.launch - 1);
        if (l.op->items.empty() || before.op->items.empty())
            return false; // such a launch waits for the end of the one before, or lets nobody in
        for (int i = 0; i < count_blocks(p.rank, before); i++)
            if (!s.blocks[p.rank][p.stream][p.launch - 1][i].let_in)
                return false;
        return true;
    }
    void place(const S &s, const Place &p, const Launch &l)
    {
        if (on_device(s, p.rank) >= job_.places || !is_let_in(s, p, l))
            return;
        S next = s;
        for (int i = p.block; i == p.block || is_lead(l, i); i++)
            put(next, {p.rank, p.stream, p.launch, i}, l);
        if (is_lead(l, p.block) && is_alone(l) && !pushes(p.rank, message_of(l, 0)))
            post(next, l);
        go(next, p, "comes onto the device");
    }
    void put(S &next, const Place &p, const Launch &l) const
    {
        Block &block = block_of(next, p);
        block.row = block.next = NONE;
        block.phase = l.op->items.empty()     ? MOVES
                      : l.part == 0           ? FOLLOWS
                      : is_waiter(l, p.block) ? LEADS
                                              : LOOKS;
        if (is_lead(l, p.block)) {
            block.item = uint8_t(p.block & 3);
            block.let_in = !rules_.lets_in_late;
        }
        if (l.part == 1)
            block.let_in = block.phase == LOOKS;
    }
    void post(S &next, const Launch &l) const
    {
        Lanes &lanes = next.lanes[message_of(l, 0).ring];
        lanes.posted = 1;
        if (!rules_.tells_in_turn)
            lanes.begun = uint8_t(first_of(message_of(l, 0)) + 1);
    }

    // What a block does by itself, and nobody can keep it from, is done at once: then fewer blocks
    // are there to do what others wait for.
    void settle(S &s) const
    {
        for (int rank = 0; rank < RANKS; rank++)
            for (int stream = 0; stream < STREAMS; stream++)
                for (bool any = true; any && !has(s.dead, rank);)
                    any = settle(s, rank, stream);
    }
    bool settle(S &s, int rank, int stream) const
    {
        bool any = false;
        for (int i = 0; i < LIVE && launch_of(s, rank, stream, i); i++)
            for (int b = 0; b < count_blocks(rank, *launch_of(s, rank, stream, i)); b++)
                any = settle_block(s, {rank, stream, i, b}) || any;
        if (!launch_of(s, rank, stream, 0) || !is_over(s, rank, stream))
            return any;
        for (int i = 0; i < LIVE; i++)
            for (int b = 0; b < BLOCKS; b++)
                s.blocks[rank][stream][i][b] =
                    i + 1 < LIVE ? s.blocks[rank][stream][i + 1][b] : Block{};
        s.at[rank][stream]++;
        return true;
    }
    bool is_over(const S &s, int rank, int stream) const
    {
        for (int i = 0; i < count_blocks(rank, *launch_of(s, rank, stream, 0)); i++)
            if (s.blocks[rank][stream][0][i].phase != GONE)
                return false;
        return true;
    }
    bool settle_block(S &s, const Place &p) const
    {
        const Launch &l = launch_of(s, p);
        Block &block = block_of(s, p);
        if (block.phase == FOLLOWS && (p.launch == 0 || !rules_.follows)) {
            block.phase = is_lead(l, p.block) ? LEADS : LOOKS;
            return true;
        }
        if (block.phase != MOVES || block.row != NONE || l.op->items.empty())
            return false;
        if (is_lead(l, p.block))
            return settle_lead(s, p, l);
        if (l.part == 0)
            leave(block);
        else
            finish(s, p, l);
        return true;
    }

    // The block ends when no warp has a row.
    bool settle_lead(S &s, const Place &p, const Launch &l) const
    {
        for (int i = 0; i < items_of(l); i++)
            if (!is_idle(s.blocks[p.rank][p.stream][p.launch][i]))
                return false;
        leave(block_of(s, p));
        return true;
    }
    static bool is_idle(const Block &block)
    {
        return block.phase == GONE || (block.phase == MOVES && block.row == NONE && block.drawn);
    }

    // ---- the lead

    bool has_room(const Lanes &lanes) const
    {
        return !rules_.awaits_room || lanes.credit + ring_units() >= lanes.push.count + 1;
    }
    bool has_begun(const Lanes &lanes) const
    {
        const int mark = lanes.push.count + 1;
        return lanes.begun == mark || !rules_.awaits_begun ||
               (lanes.begun > mark && rules_.later_counts);
    }
    // One look of a lead; true: its wait is over.
    bool is_led(const S &s, int rank, const Message &message) const
    {
        const Lanes &lanes = s.lanes[message.ring];
        if (pushes(rank, message))
            return lanes.push.led == lanes.push.count + 1 && has_begun(lanes);
        return lanes.take.led == lanes.take.count + 1;
    }
    bool may_lead(const S &s, int rank, const Message &message) const
    {
        const Lanes &lanes = s.lanes[message.ring];
        if (pushes(rank, message))
            return lanes.push.led != lanes.push.count + 1 && has_room(lanes);
        return is_here(lanes, lanes.take.count);
    }
    // Moves unit 0, then notes that it has.
    void lead_unit(const S &s, const Place &p, const Message &message, bool push)
    {
        S next = s;
        Lanes &lanes = next.lanes[message.ring];
        Block &block = block_of(next, p);
        block.half = !block.half;
        if (block.half) {
            move_unit(next, message, push, 0);
            return go(next, p, push ? "pushes unit 0" : "takes unit 0");
        }
        End &end = push ? lanes.push : lanes.take;
        end.led = uint8_t(end.count + 1);
        if (!push && rows_of(message) >= ROWS && rules_.stamps_first)
            lanes.stamps[ROWS - 1] = uint8_t(stamp_of(end.count, -1));
        go(next, p, "notes that");
    }
    // Of a first hand: the lead of its message.
    bool has_left(const S &s, const Place &p) const
    {
        const int item = p.block / job_.hands;
        return p.launch == 0 || s.blocks[p.rank][p.stream][p.launch - 1][item].phase == GONE;
    }
    void tell_begun(S &next, const Message &message) const
    {
        Lanes &lanes = next.lanes[message.ring];
        lanes.begun = uint8_t(lanes.take.count + 1);
        if (rules_.unposts)
            lanes.posted = 0;
    }
    void lead(const S &s, const Place &p, const Launch &l)
    {
        const Message &message = message_of(l, item_of(s, p, l));
        const bool push = pushes(p.rank, message);
        const bool ended = end_of(s, message, push).ended;
        S next = s;
        if (is_lead(l, p.block) && is_relieved(s, p, l) && !block_of(s, p).half && rules_.yields)
            end(s, p, "yields to the hand");
        if (!push && !block_of(s, p).told) {
            tell_begun(next, message);
            block_of(next, p).told = 1;
            return go(next, p, "tells that the take has begun");
        }
        if (ended || is_led(s, p.rank, message))
            return end_wait(s, p, l, !ended && rules_.lead_stays);
        if (!is_lead(l, p.block) && !has_left(s, p) && rules_.awaits_lead)
            return;
        if (block_of(s, p).half || may_lead(s, p.rank, message))
            return lead_unit(s, p, message, push);
        if (!s.broken[p.rank])
            return;
        if (rules_.lead_ends_lane)
            end_of(next, message, push).ended = 1;
        end_wait(next, p, l, false);
    }
    // Lets the hands in.
    void end_wait(const S &s, const Place &p, const Launch &l, bool stays)
    {
        S next = s;
        if (!is_lead(l, p.block)) {
            Block &hand = block_of(next, p);
            hand.let_in = 1;
            hand.told = 0;
            hand.phase = MOVES;
            if (stays)
                draw_first(next, p, l);
            return go(next, p, "begins");
        }
        if (rules_.first_come || p.block == 0)
            for (int i = 0; i < items_of(l); i++)
                next.blocks[p.rank][p.stream][p.launch][i].let_in = 1;
        Block &block = block_of(next, p);
        block.told = 0;
        block.phase = MOVES;
        block.drawn = !stays;
        go(next, p, stays ? "has led its message" : "leads no more");
    }
    // Of a lead that has led: it draws, unless it has seen that a hand has.
    void choose(const S &s, const Place &p, const Launch &l)
    {
        const Message &message = message_of(l, p.block);
        const End &end_of_it = end_of(s, message, pushes(p.rank, message));
        if (block_of(s, p).drawn)
            return;
        S next = s;
        draw_first(next, p, l);
        go(next, p, "draws its first row");
        if (end_of_it.drawn != 0 || end_of_it.ended)
            end(s, p, "leaves the rows to who has drawn");
    }

    // ---- hands

    // The next row of a message for a block; NONE: there is none.
    int draw(S &next, const Place &p, const Launch &l) const
    {
        const Message &message = message_of(l, item_of(next, p, l));
        End &end = end_of(next, message, pushes(p.rank, message));
        const int rows = rows_of(message);
        if (!rules_.draws) {
            const Block &block = block_of(next, p);
            const int first = is_lead(l, p.block) ? job_.hands : hand_of(l, p.block);
            const int row = block.drawn ? block.row + job_.hands + 1 : first;
            return row < rows ? row : int(NONE);
        }
        const int row = end.drawn;
        end.drawn = uint8_t(row + (row < rows));
        return row < rows ? row : int(NONE);
    }
    void draw_first(S &next, const Place &p, const Launch &l) const
    {
        const Message &message = message_of(l, item_of(next, p, l));
        Block &block = block_of(next, p);
        const bool ended = end_of(next, message, pushes(p.rank, message)).ended;
        block.phase = MOVES;
        block.row = uint8_t(draw(next, p, l) & NONE);
        block.drawn = 1;
        if (ended && rules_.looks_at_end)
            block.row = NONE;
    }
    bool may_begin(const S &s, int rank, const Message &message) const
    {
        const Lanes &lanes = s.lanes[message.ring];
        if (pushes(rank, message))
            return has_begun(lanes);
        return lanes.take.led == lanes.take.count + 1;
    }
    // Of the first launch.
    void look_early(const S &s, const Place &p, const Launch &l)
    {
        const Message &message = message_of(l, 0);
        const Lanes &lanes = s.lanes[message.ring];
        bool left = false;
        if (may_begin(s, p.rank, message) && !lanes.push.ended) {
            for (int i = 0; i < job_.hands; i++)
                left = left || (lanes.full[i] == LEFT && rules_.left_is_seen);
            begin_early(s, p, l, false);
            if (rules_.holds && !left) // at its first look
                begin_early(s, p, l, true);
        } else if (rules_.leaves || lanes.push.ended) {
            S next = s;
            next.lanes[message.ring].full[hand_of(l, p.block)] = LEFT;
            leave(block_of(next, p));
            go(next, p, "leaves");
        }
    }
    void begin_early(const S &s, const Place &p, const Launch &l, bool holds)
    {
        S next = s;
        Block &block = block_of(next, p);
        next.lanes[message_of(l, 0).ring].full[hand_of(l, p.block)] = BEGAN;
        block.let_in = !holds;
        block.phase = MOVES;
        block.row = uint8_t(draw(next, p, l) & NONE);
        block.drawn = 1;
        go(next, p, holds ? "begins at once" : "begins");
    }
    // Of the second launch of a message that is alone.
    void relieve(const S &s, const Place &p, const Launch &l)
    {
        const Message &message = message_of(l, 0);
        const int hand = hand_of(l, p.block);
        S next = s;
        uint8_t &full = next.lanes[message.ring].full[hand];
        bool relieved = false;
        if (pushes(p.rank, message)) {
            relieved = full == BEGAN || (full == LEFT && !rules_.left_counts);
            relieved = relieved && rules_.relieves;
            if (rules_.forgets_hands)
                full = 0;
        }
        if (relieved)
            block_of(next, p).phase = MOVES;
        else
            draw_first(next, p, l);
        go(next, p, relieved ? "is relieved" : "begins");
    }
    // ... of several.
    void look(const S &s, const Place &p, const Launch &l)
    {
        const Message &message = message_of(l, item_of(s, p, l));
        const bool ended = end_of(s, message, pushes(p.rank, message)).ended;
        S next = s;
        if (may_begin(s, p.rank, message) && !ended)
            draw_first(next, p, l);
        else if (rules_.leaves || ended)
            block_of(next, p).phase = MOVES; // has no row
        else
            return;
        go(next, p, block_of(next, p).row == NONE ? "leaves" : "begins");
    }

    // ---- rows

    bool is_here(const Lanes &lanes, int unit) const
    {
        return has(lanes.pushed, unit) && !has(lanes.pushed, unit + ring_units());
    }
    // All that is stored into the ring, or taken from it, of a message with these units.
    void move_unit(S &next, const Message &message, bool push, int i)
    {
        Lanes &lanes = next.lanes[message.ring];
        const int unit = (push ? lanes.push.count : lanes.take.count) + i;
        uint16_t &bits = push ? lanes.pushed : lanes.taken;
        if (has(bits, unit))
            found_ = push ? "pushed twice" : "taken twice";
        if (unit < first_of(message) || unit >= first_of(message) + message.units)
            found_ = push ? "pushed as another message" : "taken as another message";
        if (push && unit >= ring_units() && !has(lanes.taken, unit - ring_units()))
            found_ = "overwritten";
        bits = uint16_t(bits | 1 << unit);
    }
    int first_of(const Message &message) const
    {
        int first = 0;
        for (const Message *m = job_.messages.data(); m != &message; m++)
            first += m->ring == message.ring ? m->units : 0;
        return first;
    }
    // Whether the next unit of a hand's row may be moved.
    bool may_move(const S &s, const Message &message, bool push, int row, int unit) const
    {
        const Lanes &lanes = s.lanes[message.ring];
        if (!push)
            return is_here(lanes, lanes.take.count + 1 + row * job_.row + unit);
        const int free = rules_.place_of_first ? ROWS - 1 : int(ROWS);
        return row < free || !rules_.awaits_stamp ||
               lanes.stamps[row % ROWS] == stamp_of(lanes.push.count, row - ROWS);
    }
    void move(const S &s, const Place &p, const Launch &l)
    {
        const Message &message = message_of(l, item_of(s, p, l));
        const bool push = pushes(p.rank, message);
        const Block &block = block_of(s, p);
        S next = s;
        if (job_.ahead && block.next == NONE && block.drawn) {
            block_of(next, p).next = uint8_t(draw(next, p, l) & NONE);
            block_of(next, p).drawn = 0;
            return go(next, p, "draws its next row");
        }
        if (!may_move(s, message, push, block.row, block.unit))
            return s.broken[p.rank] ? give_up(s, p, l) : void();
        move_part(next, p, l, message, push);
        go(next, p, push ? "pushes a unit" : "takes a unit");
    }
    void move_part(S &next, const Place &p, const Launch &l, const Message &message, bool push)
    {
        Block &block = block_of(next, p);
        const int row = block.row, unit = 1 + row * job_.row + block.unit;
        const bool stamps = !push && row + ROWS < rows_of(message);
        const bool last = unit + 1 == message.units || block.unit + 1 == job_.row;
        uint8_t &stamp = next.lanes[message.ring].stamps[row % ROWS];
        const uint8_t value = uint8_t(stamp_of(next.lanes[message.ring].take.count, row));
        if (stamps && !rules_.stamp_behind && stamp != value) {
            stamp = value; // a step of its own
            return;
        }
        move_unit(next, message, push, unit);
        if (stamps && (last || !rules_.whole_row))
            stamp = value;
        block.unit = uint8_t(last ? 0 : block.unit + 1);
        if (!last)
            return;
        if (!job_.ahead) {
            block.row = uint8_t(draw(next, p, l) & NONE);
            return;
        }
        block.row = block.next;
        block.next = NONE;
        block.drawn = 1;
    }
    void give_up(const S &s, const Place &p, const Launch &l)
    {
        const Message &message = message_of(l, item_of(s, p, l));
        S next = s;
        Block &block = block_of(next, p);
        block.row = block.next = NONE;
        block.unit = 0;
        block.failed = block.drawn = 1;
        if (l.part == 0)
            end_early(next, p, l, message);
        go(next, p, "gives up");
    }

    void end_early(S &next, const Place &p, const Launch &l, const Message &message) const
    {
        if (is_lead(l, p.block) ? rules_.mover_ends_lane : rules_.early_ends_lane)
            end_of(next, message, pushes(p.rank, message)).ended = 1;
    }

    // ---- the end of a message

    // Of a hand of the second launch that has nothing to do any more.
    void finish(S &next, const Place &p, const Launch &l) const
    {
        const Message &message = message_of(l, item_of(next, p, l));
        End &end = end_of(next, message, pushes(p.rank, message));
        Block &block = block_of(next, p);
        if (block.failed && rules_.hand_ends_lane)
            end.ended = 1;
        const int before = end.left;
        const bool missed = block.failed && rules_.counts_missed;
        end.left = uint8_t((before + 1) | (missed ? int(MISSED) : 0));
        if (!pushes(p.rank, message) && !rules_.tells_last && next.lanes[message.ring].posted)
            next.lanes[message.ring].begun = uint8_t(end.count + message.units + 1);
        if (before % MISSED == job_.hands - 1)
            block.phase = LAST;
        else
            leave(block);
    }
    void count(const S &s, const Place &p, const Launch &l)
    {
        if (p.launch != 0 && rules_.awaits_first)
            return;
        const Message &message = message_of(l, item_of(s, p, l));
        const bool push = pushes(p.rank, message);
        S next = s;
        End &end = end_of(next, message, push);
        const bool missed = end.left >= MISSED || (end.ended && rules_.looks_last);
        end.left = 0;
        leave(block_of(next, p));
        if (missed)
            return go(next, p, "leaves last");
        count_message(next, l.op->items[size_t(item_of(s, p, l))], push);
        go(next, p, "counts the message");
    }
    void count_message(S &next, int number, bool push)
    {
        const Message &message = job_.messages[size_t(number)];
        Lanes &lanes = next.lanes[message.ring];
        End &end = push ? lanes.push : lanes.take;
        const uint16_t bits = push ? lanes.pushed : lanes.taken;
        for (int unit = first_of(message); unit < first_of(message) + message.units; unit++)
            if (!has(bits, unit))
                found_ = push ? "pushed, and is not whole" : "taken, and is not whole";
        end.count = uint8_t(end.count + message.units);
        if (rules_.puts_back)
            end.drawn = 0;
        if (push)
            return;
        if (lanes.posted && rules_.tells_posted)
            lanes.begun = uint8_t(end.count + 1);
        lanes.done = uint8_t(lanes.done | 1 << number);
        if (rules_.gives_credit)
            lanes.credit = end.count;
    }

    // ---- what must hold

    // Whether a block of hands, or any warp of a lead, waits for a peer that may not be there yet.
    bool awaits_peer(const S &s, const Place &p, const Launch &l) const
    {
        const Block &block = block_of(s, p);
        if (block.phase != LOOKS && block.phase != LEADS)
            return false;
        if (is_lead(l, p.block) && is_relieved(s, p, l))
            return false; // it leaves
        const Message &message = message_of(l, item_of(s, p, l));
        if (block.phase == LOOKS)
            return !rules_.leaves && !may_begin(s, p.rank, message);
        return !is_led(s, p.rank, message) && !may_lead(s, p.rank, message);
    }
    // How many blocks of a launch do, or wait for those of the launch before.
    int count_waiting(const S &s, int rank, int stream, int launch, bool behind) const
    {
        const Launch &l = *launch_of(s, rank, stream, launch);
        int waiting = 0;
        bool leads = false;
        for (int i = 0; i < count_blocks(rank, l); i++) {
            const Place p = {rank, stream, launch, i};
            const bool waits = awaits_peer(s, p, l) || (behind && block_of(s, p).phase == LAST);
            if (is_lead(l, i))
                leads = leads || waits;
            else
                waiting += waits;
        }
        return waiting + leads;
    }
    // A hand that has a row waits for one of a message that the peer is at.
    bool is_attended(const S &s, const Place &p, const Launch &l) const
    {
        const int number = l.op->items[size_t(item_of(s, p, l))];
        const Ring &ring = job_.rings[size_t(job_.messages[size_t(number)].ring)];
        const int other = ring.from == p.rank ? ring.to : ring.from;
        for (int stream = 0; stream < STREAMS; stream++)
            for (size_t i = 0; i < launches_[other][stream].size(); i++)
                if (launches_[other][stream][i].part == 0)
                    for (const int item : launches_[other][stream][i].op->items)
                        if (item == number)
                            return is_there(s, other, stream, int(i) - s.at[other][stream]);
        return false;
    }
    static bool is_there(const S &s, int rank, int stream, int launch)
    {
        return launch < 0 || (launch < LIVE && s.blocks[rank][stream][launch][0].phase != AWAY);
    }
    // Nothing of a later operation is on the device while a block waits for a peer that may not be
    // there. As many blocks wait as the launch has messages.
    std::string check_waits(const S &s)
    {
        for (int rank = 0; rank < RANKS && job_.trouble == QUIET; rank++)
            for (int stream = 0; stream < STREAMS; stream++) {
                int waiting = 0;
                for (int i = 0; i < LIVE && launch_of(s, rank, stream, i); i++) {
                    const Launch &l = *launch_of(s, rank, stream, i);
                    if (waiting > 0 && l.part == 0 && s.blocks[rank][stream][i][0].phase != AWAY)
                        return "is there before its time";
                    if (l.op->items.empty())
                        continue;
                    const int more = count_waiting(s, rank, stream, i, waiting > 0);
                    waiting += more;
                    if (more > 0 && waiting > (is_alone(l) ? 1 : items_of(l)))
                        return "several blocks wait";
                    if (!are_attended(s, rank, stream, i))
                        return "a hand waits for what may never come";
                }
                most_waiting_ = waiting > most_waiting_ ? waiting : most_waiting_;
            }
        return "";
    }
    bool are_attended(const S &s, int rank, int stream, int launch) const
    {
        const Launch &l = *launch_of(s, rank, stream, launch);
        for (int i = 0; i < count_blocks(rank, l); i++) {
            const Place p = {rank, stream, launch, i};
            const Block &block = block_of(s, p);
            if (block.phase == MOVES && block.row != NONE && !is_attended(s, p, l))
                return false;
        }
        return true;
    }
    std::string check_end(const S &s) const
    {
        for (size_t i = 0; i < job_.messages.size(); i++) {
            const Message &message = job_.messages[i];
            const Lanes &lanes = s.lanes[message.ring];
            const int to = job_.rings[size_t(message.ring)].to;
            if (!has(lanes.done, int(i)) && !lanes.take.ended && !has(s.dead, to))
                return "did not come, and nobody says so";
            if (job_.trouble == QUIET && (lanes.push.ended || lanes.take.ended))
                return "has ended";
        }
        for (size_t i = 0; i < job_.rings.size() && job_.trouble == QUIET; i++)
            if (!is_at_rest(s.lanes[i]))
                return "is not at rest";
        return "";
    }
    static bool is_at_rest(const Lanes &lanes)
    {
        return lanes.push.drawn == 0 && lanes.take.drawn == 0 && lanes.push.left == 0 &&
               lanes.take.left == 0 && lanes.posted == 0 && lanes.credit == lanes.take.count &&
               lanes.push.count == lanes.take.count;
    }

    // ---- for who reads it

    static std::string name(const S &s, const Place &p, const char *what)
    {
        return "rank " + std::to_string(p.rank) + ", stream " + std::to_string(p.stream) +
               ", launch " + std::to_string(s.at[p.rank][p.stream] + p.launch) + ", block " +
               std::to_string(p.block) + ": " + what;
    }
    std::string trace(size_t at) const
    {
        std::string out = "\n";
        for (const auto &origin : space_.path(at)) {
            const int move = origin.move;
            const Place p = {move >> 9 & 7, move >> 8 & 1, move >> 4 & 15, move & 15};
            out += "  " + name(space_[origin.parent], p, names_[size_t(move >> 12)]) + "\n";
        }
        return out;
    }
    std::string text(const S &s) const
    {
        static const char *const phases[] = {"away",  "follows", "leads", "looks",
                                             "moves", "last",    "gone"};
        std::string out;
        for (int rank = 0; rank < RANKS; rank++)
            for (int stream = 0; stream < STREAMS; stream++)
                for (int i = 0; i < LIVE && launch_of(s, rank, stream, i); i++) {
                    out += "  rank " + std::to_string(rank) + ", stream " + std::to_string(stream) +
                           ", launch " + std::to_string(s.at[rank][stream] + i) + ":";
                    for (const Block &block : s.blocks[rank][stream][i])
                        out += std::string(" ") + phases[block.phase];
                    out += "\n";
                }
        return out;
    }

    const Rules rules_;
    const Job job_;
    std::vector<Launch> launches_[RANKS][STREAMS];
    model::Space<S> space_;
    std::vector<const char *> names_;
    size_t at_ = 0;
    int most_waiting_ = 0;
    bool moved_ = false;
    std::string wrong_, found_, last_;
};

template <int RANKS, int STREAMS, int RINGS> Outcome run(const Job &job, const Rules &rules)
{
    return Machine<RANKS, STREAMS, RINGS>(rules, job).explore();
}

} // namespace

// A state has room for what there is, and little more.
Outcome explore(const Job &job, const Rules &rules)
{
    const size_t rings = job.rings.size();
    if (job.ranks == 3)
        return rings <= 3 ? run<3, 1, 3>(job, rules) : run<3, 1, 6>(job, rules);
    if (!job.ops[0][1].empty() || !job.ops[1][1].empty())
        return rings <= 2 ? run<2, 2, 2>(job, rules) : run<2, 2, 4>(job, rules);
    return rings == 1 ? run<2, 1, 1>(job, rules) : run<2, 1, 3>(job, rules);
}

} // namespace ring_model
