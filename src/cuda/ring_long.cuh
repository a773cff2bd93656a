// SPDX-License-Identifier: BSD-3-Clause
// Long messages of unbound channels, by a ring (kernel_args.h). Part of hop.cuh.
//
// A first launch has a warp for each message, its lead, which waits for the peer and moves unit 0.
// When one of them may go on, a second launch comes, with the hands of all: the first hand of a
// message waits where it has to, the others leave if they may not begin soon. Warps draw rows in
// rising order, and the least row that is not pushed may be. A lead stays until a hand of its
// message is on the device that will finish it, and moves rows itself where none comes. So each
// message that has begun is finished by what has a place on either device, however little it is,
// and waits for no other one of its launch, nor for a block that has no place.
#ifndef PHI_CUDA_RING_LONG_CUH
#define PHI_CUDA_RING_LONG_CUH

static __device__ uint64_t begin_of(const ring_span &span)
{
    return span.end - span.units;
}

static __device__ uint32_t rows_of(const ring_span &span)
{
    return (span.units - 1 + PHI_RING_ROW - 1) / PHI_RING_ROW;
}

// stamp_of also takes row -1, which is unit 0 alone.
static __device__ uint64_t stamp_of(const ring_span &span, uint32_t row)
{
    return begin_of(span) + 1 + PHI_RING_ROW * (row + 1);
}

static __device__ uint64_t *stamps_of(uint64_t pushed)
{
    return reinterpret_cast<uint64_t *>(pushed + PHI_RING_STAMPS);
}

// As unit_of(), for any number of laps.
static __device__ ring_unit long_unit_of(const phi_hop_item &item, const ring_span &span,
                                         uint32_t unit)
{
    const uint32_t at = span.first + unit, laps = at / PHI_RING_UNITS;
    uint4 *slots = reinterpret_cast<uint4 *>(item.slots) + threadIdx.x % 32;
    return {slots + 64 * (at - laps * PHI_RING_UNITS), span.lap + laps};
}

// store_taken stores the two halves that a thread has taken of a unit to their place in the
// message.
static __device__ void store_taken(const phi_hop_item &item, const wide_place &place, uint32_t unit,
                                   uint4 a, uint4 b)
{
    const uint32_t at = unit * PHI_WIDE_UNIT;
    wide_store<false>(item, at + place.first, place.keeps ? make_uint4(a.x, a.y, b.x, b.y) : a);
    if (!place.keeps)
        wide_store<false>(item, at + place.second, b);
}

// ---- The lead: unit 0, by one warp

// mark_of returns the mark of a long message: its first unit and 1. The lane's words name a long
// message by its mark.
static __device__ uint64_t mark_of(const ring_span &span)
{
    return begin_of(span) + 1;
}

static __device__ bool is_push(const phi_hop_item &item)
{
    return item.kind == PHI_STEP_ROOM || item.kind == PHI_STEP_PUSH;
}

// The words that the lead looks at. It loads them all at once, as each look takes 0.6 us. `led`:
// unit 0 is moved. `begun` of a push: the take has begun, so that all units before the message were
// read; pairs with tell_begun(). `begun` of a take is the same as `led`.
struct lead_words {
    uint64_t led, begun;
    uint32_t place; // of a message that is not alone, enum lead_place
    bool ended;
};

// One of two warps leads each of several messages: the lead of the first launch, or the first warp
// of the first hand of the second launch. That hand says that it is there, and leads when the lead
// of the first launch has left. The value is in full[0]; it is 0 between messages.
enum lead_place { LEAD_IS_HERE, HAND_IS_HERE, LEAD_HAS_LEFT };

static __device__ lead_words look(const phi_hop_item &item)
{
    const phi_flag_lane *own = reinterpret_cast<const phi_flag_lane *>(item.own);
    const uint64_t led = load_relaxed_64(&own->led), begun = load_relaxed_64(&own->begun);
    return {led, is_push(item) ? begun : led, load_relaxed(&own->full[0]), has_ended(item)};
}

// has_begun is also true if the take of a later message has begun: hands may have pushed all of
// this message, and the peer may have taken it, before another warp looks again.
static __device__ bool has_begun(const lead_words &words, const ring_span &span)
{
    return words.begun >= mark_of(span);
}

static __device__ void tell_begun(const phi_hop_item &item, const ring_span &span)
{
    if (threadIdx.x % 32 == 0 && item.peer != 0)
        store_relaxed_64(&reinterpret_cast<phi_flag_lane *>(item.peer)->begun, mark_of(span));
}

static __device__ void note_led(const phi_hop_item &item, const ring_span &span)
{
    __syncwarp(); // all have moved their part
    if (threadIdx.x % 32 == 0)
        store_relaxed_64(&reinterpret_cast<phi_flag_lane *>(item.own)->led, mark_of(span));
}

static __device__ bool end_lane(const phi_hop_item &item)
{
    store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.own)->moved, 1);
    return give_up(item.broken); // fences, before the hands look: pairs with draw_first()
}

static __device__ void set_place(const phi_hop_item &item, lead_place place)
{
    store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.own)->full[0], place);
}

// yields: to the first hand of the second launch, when that is there.
static __device__ bool lead_push(const phi_hop_item &item, const ring_span &span,
                                 hop_follower &next, bool yields)
{
    const wide_place place = wide_place_of();
    // on its way while others are looked at
    const wide_unit data = load_unit<false>(item, place, 0);
    bool led = false;
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        const bool room = has_room(item, begin_of(span) + 1);
        const lead_words words = look(item);
        if (__any_sync(~0u, words.ended))
            return end_lane(item);
        led = led || __all_sync(~0u, words.led == mark_of(span));
        // It does not wait for `begun`: it tells a taker who has named another size that.
        if (!led && __all_sync(~0u, room)) {
            if (item.fence & PHI_FENCE_BEFORE)
                fence_system(); // before the lines
            store_ring_unit(long_unit_of(item, span, 0), place, data, half_of(message_size(item)));
            note_led(item, span);
            led = true;
        }
        if (led && __all_sync(~0u, has_begun(words, span)))
            return true;
        if (__any_sync(~0u, yields && words.place == HAND_IS_HERE))
            return false;
        if (__all_sync(~0u, over)) // then all have looked once more since it was set
            return end_lane(item);
    }
}

static __device__ bool lead_take(const phi_hop_item &item, const ring_span &span,
                                 hop_follower &next, bool yields)
{
    const wide_place place = wide_place_of();
    const ring_unit from = long_unit_of(item, span, 0);
    tell_begun(item, span);
    if (place.thread == 0)
        store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.own)->posted, 0);
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        __syncwarp(); // a line is loaded by one instruction, too
        const uint4 a = load_line(from.slot), b = load_line(from.slot + 32);
        const lead_words words = look(item);
        if (__any_sync(~0u, words.ended))
            return end_lane(item);
        if (__all_sync(~0u, words.led == mark_of(span)))
            return true;
        if (__all_sync(~0u, !place.keeps || (a.z == from.lap && b.z == from.lap))) {
            if (is_mismatch(item, a, place.keeps))
                return end_lane(item);
            store_taken(item, place, 0, a, b);
            note_led(item, span);
            if (place.thread == 0 && item.peer != 0 && rows_of(span) >= PHI_RING_ROWS)
                store_relaxed_64(stamps_of(item.peer) + PHI_RING_ROWS - 1, stamp_of(span, ~0u));
            return true;
        }
        if (__any_sync(~0u, yields && words.place == HAND_IS_HERE))
            return false;
        if (__all_sync(~0u, over))
            return end_lane(item);
    }
}

static __device__ bool lead(const phi_hop_item &item, const ring_span &span, hop_follower &next,
                            bool yields)
{
    return is_push(item) ? lead_push(item, span, next, yields)
                         : lead_take(item, span, next, yields);
}

// ---- Hands

static __device__ uint32_t draw(const phi_hop_item &item)
{
    uint32_t *drawn = &reinterpret_cast<phi_flag_lane *>(item.own)->drawn;
    return threadIdx.x % 32 == 0 ? atomicAdd(drawn, 1) : 0;
}

// The number of times that a hand of a message that is not alone looks, unless it is the first
// hand. They take some 50 us, in which a peer that is at the same group comes.
#define LONG_PATIENCE 64

// By the first warp.
static __device__ bool may_begin_long(const phi_hop_item &item, const ring_span &span,
                                      hop_follower &next)
{
    const bool waits = blockIdx.x == item.first;
    for (uint32_t polls = 0; waits || polls < LONG_PATIENCE; polls++) {
        const lead_words words = look(item);
        const bool led = has_begun(words, span) && (!waits || words.led == mark_of(span));
        if (__all_sync(~0u, led || words.ended))
            return !__any_sync(~0u, words.ended);
        if (__all_sync(~0u, waits && words.place == LEAD_HAS_LEFT))
            return lead(item, span, next, false);
    }
    return false;
}

// The state in `full` of a hand of the first launch of a push that is alone. 0: the hand is not
// there.
enum { HAND_BEGAN = 1, HAND_LEFT = 2 };

// is_relieved returns whether the hand of the first launch in whose place this hand of the second
// launch is has begun. By one thread.
static __device__ bool is_relieved(const phi_hop_item &item)
{
    uint32_t *hand = &reinterpret_cast<phi_flag_lane *>(item.own)->full[blockIdx.x - item.first];
    const bool began = load_relaxed(hand) == HAND_BEGAN;
    store_relaxed(hand, 0);
    return began;
}

// A row for each warp of the block, or none. By all threads. The first launch has led a message
// that was alone there.
static __device__ uint32_t draw_first(const phi_hop_item &item, const ring_span &span,
                                      hop_follower &next)
{
    const bool alone = item.hands == PHI_HANDS_SECOND;
    uint32_t row = NO_SHARE;
    if (threadIdx.x < 32)
        __threadfence(); // what the stream did before the launch that let this one in is seen
    if (threadIdx.x < 32 && (alone || may_begin_long(item, span, next))) {
        if (threadIdx.x == 0 && !(alone && is_push(item) && is_relieved(item))) {
            row = atomicAdd(&reinterpret_cast<phi_flag_lane *>(item.own)->drawn, blockDim.x / 32);
            row = has_ended(item) ? NO_SHARE : row;
        }
    }
    row = hand_out(row);
    return row == NO_SHARE ? row : row + threadIdx.x / 32;
}

// ... of the first launch of a push that is alone, where it may begin soon. Blocks that are on the
// device before their time take its multiprocessors from the application. So a hand that begins at
// once lets the next launch in only by its end, unless another one has left, whose place that
// takes.
static __device__ uint32_t draw_early(const phi_hop_item &item, const ring_span &span)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    uint32_t row = NO_SHARE;
    bool may = false, holds = false;
    if (threadIdx.x < 32) {
        bool ended = false;
        for (uint32_t polls = 0; !may && !ended && polls < PATIENCE; polls++) {
            const lead_words words = look(item);
            ended = __any_sync(~0u, words.ended);
            may = !ended && __all_sync(~0u, has_begun(words, span));
            holds = polls == 0;
        }
        const bool is_hand = threadIdx.x < item.blocks;
        const uint32_t other = is_hand ? load_relaxed(&own->full[threadIdx.x]) : 0;
        holds = holds && may && !__any_sync(~0u, other == HAND_LEFT);
        if (threadIdx.x == 0) {
            store_relaxed(&own->full[blockIdx.x - item.first], may ? HAND_BEGAN : HAND_LEFT);
            row = may ? atomicAdd(&own->drawn, blockDim.x / 32) : NO_SHARE;
            __threadfence(); // before the second launch looks: pairs with that of draw_first()
        }
    }
    row = hand_out(row);
    if (threadIdx.x == 0 && !holds)
        let_next_in();
    return row == NO_SHARE ? row : row + threadIdx.x / 32;
}

// is_plain returns whether 16 bytes may be moved at once in all of a row.
static __device__ bool is_plain(const phi_hop_item &item, uint64_t buffer, uint32_t unit)
{
    return (buffer & 15) == 0 && (unit + PHI_RING_ROW) * PHI_WIDE_UNIT <= item.size;
}

static __device__ bool await_place(const phi_hop_item &item, const ring_span &span, uint32_t row,
                                   hop_follower &next)
{
    if (row < PHI_RING_ROWS - 1) // `begun` says so
        return true;
    const uint64_t *stamp = stamps_of(item.own) + row % PHI_RING_ROWS;
    const uint64_t wanted = stamp_of(span, row - PHI_RING_ROWS);
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        if (__all_sync(~0u, load_relaxed_64(stamp) == wanted))
            return true;
        if (__all_sync(~0u, over))
            return give_up(item.broken);
    }
}

static __device__ uint32_t units_in_row(const ring_span &span, uint32_t unit)
{
    return span.units - unit < PHI_RING_ROW ? span.units - unit : PHI_RING_ROW;
}

static __device__ bool push_plain_row(const phi_hop_item &item, const ring_span &span,
                                      const wide_place &place, uint32_t row, uint32_t half,
                                      hop_follower &next)
{
    const uint32_t unit = 1 + row * PHI_RING_ROW;
    const uint8_t *from = reinterpret_cast<const uint8_t *>(item.source) + unit * PHI_WIDE_UNIT;
    wide_unit data[PHI_RING_ROW];
#pragma unroll
    for (uint32_t i = 0; i < PHI_RING_ROW; i++) {
        data[i].a = *reinterpret_cast<const uint4 *>(from + i * PHI_WIDE_UNIT + place.first);
        data[i].b = {};
        if (!place.keeps)
            data[i].b = *reinterpret_cast<const uint4 *>(from + i * PHI_WIDE_UNIT + place.second);
    }
    if (!await_place(item, span, row, next))
        return false;
#pragma unroll
    for (uint32_t i = 0; i < PHI_RING_ROW; i++)
        store_ring_unit(long_unit_of(item, span, unit + i), place, data[i], half);
    return true;
}

static __device__ bool push_rows(const phi_hop_item &item, const ring_span &span, uint32_t row,
                                 hop_follower &next)
{
    const wide_place place = wide_place_of();
    const uint32_t half = half_of(message_size(item)), rows = rows_of(span);
    if (item.fence & PHI_FENCE_BEFORE)
        fence_system(); // before the lines of this warp
#pragma unroll 1
    while (row < rows) {
        const uint32_t drawn = draw(item), unit = 1 + row * PHI_RING_ROW;
        if (is_plain(item, item.source, unit)) {
            if (!push_plain_row(item, span, place, row, half, next))
                return false;
        } else {
            if (!await_place(item, span, row, next))
                return false;
            const uint32_t units = units_in_row(span, unit);
#pragma unroll 1
            for (uint32_t i = 0; i < units; i++)
                store_ring_unit(long_unit_of(item, span, unit + i), place,
                                load_unit<false>(item, place, unit + i), half);
        }
        row = __shfl_sync(~0u, drawn, 0);
    }
    return true;
}

static __device__ bool take_plain_row(const phi_hop_item &item, const ring_span &span,
                                      const wide_place &place, uint32_t unit, hop_follower &next)
{
    uint8_t *to = reinterpret_cast<uint8_t *>(item.destination) + unit * PHI_WIDE_UNIT;
    uint4 a[PHI_RING_ROW], b[PHI_RING_ROW];
    for (uint32_t polls = 0;; polls++) {
        const bool over = given_up(next, item.broken, polls);
        bool here = true;
        __syncwarp(); // a line is loaded by one instruction, too
#pragma unroll
        for (uint32_t i = 0; i < PHI_RING_ROW; i++) {
            const ring_unit from = long_unit_of(item, span, unit + i);
            a[i] = load_line(from.slot);
            b[i] = load_line(from.slot + 32);
        }
#pragma unroll
        for (uint32_t i = 0; i < PHI_RING_ROW; i++) {
            const uint32_t lap = long_unit_of(item, span, unit + i).lap;
            here = here && (!place.keeps || (a[i].z == lap && b[i].z == lap));
        }
        if (__all_sync(~0u, here))
            break;
        if (__all_sync(~0u, over))
            return give_up(item.broken);
    }
#pragma unroll
    for (uint32_t i = 0; i < PHI_RING_ROW; i++) {
        uint8_t *at = to + i * PHI_WIDE_UNIT;
        *reinterpret_cast<uint4 *>(at + place.first) =
            place.keeps ? make_uint4(a[i].x, a[i].y, b[i].x, b[i].y) : a[i];
        if (!place.keeps)
            *reinterpret_cast<uint4 *>(at + place.second) = b[i];
    }
    return true;
}

static __device__ bool take_units_of_row(const phi_hop_item &item, const ring_span &span,
                                         const wide_place &place, uint32_t unit, hop_follower &next)
{
    const uint32_t units = units_in_row(span, unit);
#pragma unroll 1
    for (uint32_t i = unit; i < unit + units; i++) {
        uint4 a, b;
        if (!take_ring_unit(item, long_unit_of(item, span, i), place.keeps, next, &a, &b))
            return false;
        store_taken(item, place, i, a, b);
    }
    return true;
}

// The size that unit 0 has told holds for the other units.
static __device__ bool take_rows(const phi_hop_item &item, const ring_span &span, uint32_t row,
                                 hop_follower &next)
{
    const wide_place place = wide_place_of();
    const uint32_t rows = rows_of(span);
#pragma unroll 1
    while (row < rows) {
        const uint32_t drawn = draw(item), unit = 1 + row * PHI_RING_ROW;
        const bool taken = is_plain(item, item.destination, unit)
                               ? take_plain_row(item, span, place, unit, next)
                               : take_units_of_row(item, span, place, unit, next);
        if (!taken)
            return false;
        __syncwarp(); // all have read their part
        if (place.thread == 0 && item.peer != 0 && row + PHI_RING_ROWS < rows)
            store_relaxed_64(stamps_of(item.peer) + row % PHI_RING_ROWS, stamp_of(span, row));
        row = __shfl_sync(~0u, drawn, 0);
    }
    return true;
}

static __device__ bool move_rows(const phi_hop_item &item, const ring_span &span, uint32_t row,
                                 hop_follower &next)
{
    return is_push(item) ? push_rows(item, span, row, next) : take_rows(item, span, row, next);
}

// ---- The first launch

// Looks, for some 5 us, at rows that nobody draws.
#define LEAD_LOOKS 8

// A lead whose message is led, by a whole warp: until a hand has drawn, which goes on until no row
// is left. A hand may have no place, where hands of other messages that wait for rows have all of
// them.
static __device__ void stay(const phi_hop_item &item, const ring_span &span, hop_follower &next)
{
    const uint32_t *drawn = &reinterpret_cast<const phi_flag_lane *>(item.own)->drawn;
#pragma unroll 1
    for (uint32_t looks = 0; looks < LEAD_LOOKS; looks++)
        if (__any_sync(~0u, load_relaxed(drawn) != 0 || has_ended(item)))
            return;
    if (!move_rows(item, span, __shfl_sync(~0u, draw(item), 0), next))
        end_lane(item);
}

// A warp for each item. The second launch comes when one of them is led, or has ended.
static __device__ void lead_items(const phi_hop_args &args, const phi_hop_item &first,
                                  hop_follower &next)
{
    const uint32_t mine = threadIdx.x / 32;
    if (mine >= args.waits)
        return;
    const phi_hop_item item = mine == 0 ? first : args.items[mine];
    const ring_span span = is_push(item) ? pushed_span(item) : taken_span(item);
    const bool led = lead(item, span, next, args.waits > 1);
    __threadfence(); // before the hands look whether it is led: pairs with may_begin_long()
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        if (!led && args.waits > 1)
            set_place(item, LEAD_HAS_LEFT);
        let_next_in();
    }
    if (led)
        stay(item, span, next);
}

// ---- The end

// This is stored before the launch waits for the one before it. If that one takes the message
// before this one of the lane, its end tells the pusher that this take has begun.
static __device__ void post_take(const phi_hop_item &item)
{
    if (item.kind == PHI_STEP_MESSAGE && threadIdx.x == 0)
        store_relaxed(&reinterpret_cast<phi_flag_lane *>(item.own)->posted, 1);
}

static __device__ void push_early(const phi_hop_item &item, hop_follower &next)
{
    const ring_span span = pushed_span(item);
    const uint32_t row = draw_early(item, span);
    if (row != NO_SHARE && !push_rows(item, span, row, next))
        end_lane(item);
}

// The last one to leave counts the message where none has failed: the others have left it, or done
// their part.
static __device__ void do_long_hand(const phi_hop_item &item, hop_follower &next)
{
    phi_flag_lane *own = reinterpret_cast<phi_flag_lane *>(item.own);
    if (item.hands == PHI_HANDS_FIRST)
        return push_early(item, next);
    const bool pushes = item.kind == PHI_STEP_PUSH;
    const ring_span span = pushes ? pushed_span(item) : taken_span(item);
    const bool waits = blockIdx.x == item.first && item.hands == PHI_HANDS_ONLY;
    if (!waits)
        let_next_in();
    else if (threadIdx.x == 0)
        set_place(item, HAND_IS_HERE);
    const uint32_t row = draw_first(item, span, next);
    if (waits)
        let_next_in();
    const bool mine = row == NO_SHARE || move_rows(item, span, row, next);
    // The barrier: all have read the number.
    const bool done = __syncthreads_and(mine);
    if (threadIdx.x != 0)
        return;
    // The message is not counted: the next one would have its units, and go on where it ended.
    if (!done)
        end_lane(item);
    const bool ended = has_ended(item), posted = load_relaxed(&own->posted) != 0;
    if (!is_whole(item, pushes ? &own->leaving : &own->taking, done && !ended) ||
        has_ended(item)) // in the first launch, which is over
        return;
    own->drawn = 0;
    if (item.hands == PHI_HANDS_ONLY)
        set_place(item, LEAD_IS_HERE);
    if (pushes) {
        own->wide_pushed = span.end;
        return;
    }
    if (posted && item.peer != 0)
        store_relaxed_64(&reinterpret_cast<phi_flag_lane *>(item.peer)->begun, span.end + 1);
    count_taken(item, span);
}

#endif
