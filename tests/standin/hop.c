// SPDX-License-Identifier: BSD-3-Clause
// phi_hop as a C function: its items go on in turn, each as far as it can, as blocks of a grid
// would. The hands of an item do all of it, or leave it to the second launch: where they may not
// begin, and with each third message, as if they had found no place.
#include "standin.h"

#include "cuda/kernel_args.h"

#include <string.h>

// The last of an item's progress values.
#define OVER UINT32_MAX

static uint32_t load32(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store32(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static struct phi_flag_lane *own(const struct phi_hop_item *item)
{
    return (struct phi_flag_lane *)item->own;
}

static struct phi_flag_lane *peer(const struct phi_hop_item *item)
{
    return (struct phi_flag_lane *)item->peer;
}

static bool broken(const struct phi_hop_item *item)
{
    return item->broken && load32((const uint32_t *)item->broken);
}

// The wait of an item that is not ready; the end of the item where it is given up.
static enum si_progress wait(const struct phi_hop_item *item, bool over, uint32_t *at)
{
    if (!over)
        return SI_WAITING;
    if (item->kind != PHI_STEP_HELP)
        store32((uint32_t *)item->broken, PHI_GIVEN_UP);
    *at = OVER;
    return SI_MOVED;
}

// ---- ll: *at is 1 when the wait is over

static size_t lines_of(const struct phi_hop_item *item)
{
    size_t lines = (item->size + 7) / 8 + item->signal;
    return lines ? lines : 1;
}

static uint32_t *line_of(const struct phi_hop_item *item, uint32_t message, size_t line)
{
    return (uint32_t *)(item->slots + (message & (PHI_LL_SLOTS - 1)) * (size_t)PHI_LL_SLOT +
                        line * 16);
}

static void write_line(uint32_t *line, uint64_t data, uint32_t message)
{
    line[0] = (uint32_t)data;
    line[2] = (uint32_t)(data >> 32);
    store32(&line[1], message);
    store32(&line[3], message);
}

static void push(const struct phi_hop_item *item, uint32_t message)
{
    size_t lines = lines_of(item);
    for (size_t i = 0; i < lines; i++) {
        uint64_t data = 0;
        size_t at = 8 * (i - item->signal);
        if (item->signal && i == 0)
            data = item->offset;
        else if (at < item->size)
            memcpy(&data, (const uint8_t *)item->source + at,
                   item->size - at < 8 ? item->size - at : 8);
        write_line(line_of(item, message, i), data, message);
    }
    if (message % PHI_LL_REFRESH < PHI_LL_SLOTS)
        for (size_t i = lines; i < PHI_LL_SLOT / 16; i++)
            write_line(line_of(item, message, i), 0, message);
    own(item)->pushed = message;
}

// By a ring numbers count units, and credit those that were taken.
static bool is_ring(const struct phi_hop_item *item)
{
    return item->wide >= 2;
}

static bool is_long(const struct phi_hop_item *item)
{
    return item->wide == 3;
}

static size_t units_of(const struct phi_hop_item *item)
{
    const size_t units = PHI_WIDE_UNITS(item->size);
    return is_ring(item) && units == 0 ? 1 : units;
}

static bool may_push(const struct phi_hop_item *item)
{
    if (is_ring(item))
        return (int32_t)(load32(&own(item)->credit) + PHI_RING_UNITS -
                         (uint32_t)(own(item)->wide_pushed + units_of(item))) >= 0;
    return (int32_t)(load32(&own(item)->credit) + PHI_LL_SLOTS - (own(item)->pushed + 1)) >= 0;
}

static bool is_here(const struct phi_hop_item *item)
{
    uint32_t message = own(item)->taken + 1;
    for (size_t i = 0; i < lines_of(item); i++) {
        const uint32_t *line = line_of(item, message, i);
        if (load32(&line[1]) != message || load32(&line[3]) != message)
            return false;
    }
    return true;
}

static uint64_t read_line(const uint32_t *line)
{
    return (uint64_t)line[2] << 32 | line[0];
}

static void take(const struct phi_hop_item *item, uint32_t message)
{
    uint64_t offset = item->signal ? read_line(line_of(item, message, 0)) : 0;
    bool fits = item->size <= item->offset && offset <= item->offset - item->size;
    for (size_t at = 0; fits && at < item->size; at += 8) {
        uint64_t data = read_line(line_of(item, message, at / 8 + item->signal));
        memcpy((uint8_t *)item->destination + offset + at, &data,
               item->size - at < 8 ? item->size - at : 8);
    }
    own(item)->taken = message;
}

// Wide: in each unit eight lines, of which four begin with the same halves of 16 bytes.
// before: of the direction's messages, or units, before this one.
static uint8_t *unit_of(const struct phi_hop_item *item, uint64_t before, size_t unit)
{
    if (is_ring(item))
        return (uint8_t *)item->slots + 1024 * ((before + unit) % PHI_RING_UNITS);
    return (uint8_t *)item->slots + ((before + 1) & (PHI_LL_SLOTS - 1)) * (size_t)PHI_WIDE_SLOT +
           1024 * unit;
}

static uint64_t *number_in(uint8_t *unit, size_t line)
{
    return (uint64_t *)(unit + 128 * line + 120);
}

static uint64_t message_size(const struct phi_hop_item *item)
{
    return item->kind == PHI_STEP_TAKE || item->kind == PHI_STEP_MESSAGE ? item->source
                                                                         : item->destination;
}

static uint64_t number_of(const struct phi_hop_item *item, uint64_t before, size_t unit,
                          size_t line)
{
    if (!is_ring(item))
        return before + 1;
    const uint64_t lap = (before + unit) / PHI_RING_UNITS + 1, size = message_size(item);
    return (line % 2 ? size >> 32 : size & UINT32_MAX) << 32 | (uint32_t)lap;
}

// By a ring the upper half says something else.
static bool has_number(const struct phi_hop_item *item, uint64_t before, size_t line)
{
    const uint64_t found =
        __atomic_load_n(number_in(unit_of(item, before, line / 8), line % 8), __ATOMIC_ACQUIRE);
    const uint64_t wanted = number_of(item, before, line / 8, line % 8);
    return is_ring(item) ? (uint32_t)found == (uint32_t)wanted : found == wanted;
}

static bool is_unit_here(const struct phi_hop_item *item, size_t unit)
{
    for (size_t line = 8 * unit; line < 8 * unit + 8; line++)
        if (!has_number(item, own(item)->wide_taken, line))
            return false;
    return true;
}

static bool is_wide_here(const struct phi_hop_item *item)
{
    for (size_t unit = 0; unit < units_of(item); unit++)
        if (!is_unit_here(item, unit))
            return false;
    return true;
}

// Of a message by a ring whose first lines are here, or was found so before.
static bool is_mismatch(const struct phi_hop_item *item)
{
    if (!is_ring(item) || !has_number(item, own(item)->wide_taken, 0) ||
        !has_number(item, own(item)->wide_taken, 1))
        return is_ring(item) && own(item)->moved;
    uint8_t *unit = unit_of(item, own(item)->wide_taken, 0);
    const uint64_t got = *number_in(unit, 0) >> 32 | *number_in(unit, 1) >> 32 << 32;
    if (got == message_size(item) && !own(item)->moved)
        return false;
    if (!own(item)->moved)
        si_note_mismatch(item->broken - PHI_FLAGS_OVER_BEHIND, message_size(item), got);
    own(item)->moved = 1;
    return true;
}

// Where the data of thread `thread`'s half of four lines lies in the unit's 960 bytes; bytes: how
// many there are in the line.
static size_t place_of(size_t thread, size_t four, size_t *bytes)
{
    *bytes = thread % 8 == 7 ? 8 : 16;
    if (thread % 8 == 7)
        return 16 * thread + 8 * four;
    return four == 0 ? 16 * thread : 16 * (32 + thread - thread / 8);
}

static void move_unit(const struct phi_hop_item *item, bool pushes, size_t unit)
{
    const struct phi_flag_lane *lane = own(item);
    const uint64_t before = pushes ? lane->wide_pushed : lane->wide_taken;
    uint8_t *lines = unit_of(item, before, unit);
    for (size_t i = 0; i < 64; i++) {
        size_t bytes, at = unit * PHI_WIDE_UNIT + place_of(i % 32, i / 32, &bytes);
        if (at >= item->size)
            continue;
        if (bytes > item->size - at)
            bytes = item->size - at;
        if (pushes)
            memcpy(lines + 16 * i, (const uint8_t *)item->source + at, bytes);
        else
            memcpy((uint8_t *)item->destination + at, lines + 16 * i, bytes);
    }
    for (size_t line = 0; pushes && line < 8; line++)
        __atomic_store_n(number_in(lines, line), number_of(item, before, unit, line),
                         __ATOMIC_RELEASE);
}

static void move_wide(const struct phi_hop_item *item, bool pushes)
{
    const struct phi_flag_lane *lane = own(item);
    for (size_t unit = 0; unit < units_of(item); unit++)
        move_unit(item, pushes, unit);
    const uint32_t message = lane->pushed + 1;
    if (pushes && !is_ring(item) && message % PHI_LL_REFRESH < PHI_LL_SLOTS)
        for (size_t i = 0; i < PHI_LL_SLOT / 16; i++)
            write_line((uint32_t *)(item->offset +
                                    (message & (PHI_LL_SLOTS - 1)) * (size_t)PHI_LL_SLOT + i * 16),
                       0, message);
}

static void count_wide(const struct phi_hop_item *item, bool pushes)
{
    struct phi_flag_lane *lane = own(item);
    *(pushes ? &lane->wide_pushed : &lane->wide_taken) += is_ring(item) ? units_of(item) : 1;
    ++*(pushes ? &lane->pushed : &lane->taken);
    if (!pushes && is_ring(item) && units_of(item) > PHI_RING_UNTOLD && item->peer)
        store32(&peer(item)->credit, (uint32_t)lane->wide_taken);
}

static void tell_credit(const struct phi_hop_item *item)
{
    if (item->peer)
        store32(&peer(item)->credit,
                is_ring(item) ? (uint32_t)own(item)->wide_taken : own(item)->taken);
}

static enum si_progress do_lines(const struct phi_hop_item *item, bool hands, uint32_t *at)
{
    if (item->kind == PHI_STEP_TAKE && !hands && *at == 0)
        tell_credit(item);
    bool over = broken(item); // first: what came before it was set is taken
    bool ready = item->kind == PHI_STEP_PUSH ? may_push(item)
                 : item->wide                ? is_wide_here(item)
                                             : is_here(item);
    if (item->kind == PHI_STEP_TAKE && is_mismatch(item))
        return wait(item, true, at);
    if (!ready)
        return wait(item, over, at);
    // The engine takes its lock between the wait and what follows.
    if (*at == 0) {
        *at = 1;
        return SI_MOVED;
    }
    if (item->wide) {
        move_wide(item, item->kind == PHI_STEP_PUSH);
        count_wide(item, item->kind == PHI_STEP_PUSH);
    } else if (item->kind == PHI_STEP_PUSH) {
        push(item, own(item)->pushed + 1);
    } else {
        take(item, own(item)->taken + 1);
    }
    *at = OVER;
    return SI_MOVED;
}

// ---- sm: *at is 0, then the chunks copied and 1

static bool has_leave(const struct phi_hop_item *item)
{
    return (int32_t)(load32(&own(item)->go) - own(item)->moved) > 0;
}

// Whether there was something to copy.
static bool copy_chunk(const struct phi_hop_item *item, uint32_t *at)
{
    size_t from = (size_t)(*at - 1) * SI_MIB;
    if (from >= item->size)
        return false;
    size_t part = item->size - from < SI_MIB ? item->size - from : SI_MIB;
    memcpy((uint8_t *)item->destination + from, (const uint8_t *)item->source + from, part);
    si_lose_store((uint8_t *)item->destination + from, part);
    ++*at;
    return true;
}

static void tell_full(const struct phi_hop_item *item, uint32_t shares)
{
    for (uint32_t i = 0; i < shares; i++)
        store32(&peer(item)->full[i], shares);
}

static enum si_progress do_move(const struct phi_hop_item *item, uint32_t *at)
{
    bool over = broken(item);
    if (*at == 0 && !has_leave(item))
        return wait(item, over, at);
    if (*at == 0) {
        *at = 1;
        return SI_MOVED;
    }
    if (copy_chunk(item, at))
        return SI_MOVED;
    own(item)->moved++;
    tell_full(item, 1);
    *at = OVER;
    return SI_MOVED;
}

// ---- Hands of a PUSH or a MOVE, and the waits for hands

static bool is_claimed(const struct phi_hop_item *item)
{
    return own(item)->claimed[0] == own(item)->handed + 1;
}

// *at: 0, then 1 and the chunks of a MOVE. Who comes last counts the message.
static enum si_progress do_hands(const struct phi_hop_item *item, uint32_t *at)
{
    const bool pushes = item->kind == PHI_STEP_PUSH || item->kind == PHI_STEP_ROOM;
    const bool first = item->kind != PHI_STEP_ROOM && item->hands != PHI_HANDS_SECOND;
    struct phi_flag_lane *lane = own(item);
    if (*at == 0) {
        const bool may = pushes ? may_push(item) : has_leave(item);
        const bool begins = may && !is_claimed(item) && !(first && lane->handed % 3 == 0);
        if (begins)
            lane->claimed[0] = lane->handed + 1;
        *at = begins ? 1 : OVER;
    } else if (pushes) {
        move_wide(item, true);
        *at = OVER;
    } else if (!copy_chunk(item, at)) {
        tell_full(item, item->blocks);
        *at = OVER;
    }
    if (*at == OVER && !first) {
        if (is_claimed(item) && pushes)
            count_wide(item, true);
        else if (is_claimed(item))
            lane->moved++;
        lane->handed++;
    }
    return SI_MOVED;
}

static bool has_come(const struct phi_hop_item *item)
{
    return has_number(item, own(item)->wide_taken, 0);
}

// The first block leaves, too.
static enum si_progress give_up_left(const struct phi_hop_item *item, uint32_t *at)
{
    own(item)->handed++;
    return wait(item, true, at);
}

static enum si_progress await_hands(const struct phi_hop_item *item, uint32_t *at)
{
    bool over = broken(item);
    if (item->kind == PHI_STEP_MESSAGE)
        tell_credit(item);
    bool may = item->kind == PHI_STEP_ROOM    ? may_push(item)
               : item->kind == PHI_STEP_LEAVE ? has_leave(item)
                                              : has_come(item);
    if (*at == 0 && !may)
        return item->hands == PHI_HANDS_ONLY && over ? give_up_left(item, at)
                                                     : wait(item, over, at);
    if (item->hands == PHI_HANDS_ONLY)
        return do_hands(item, at);
    *at = OVER;
    return SI_MOVED;
}

// ---- long ones by a ring: *at is 1 when unit 0 is moved, and the peer is there

static uint64_t *stamp(const void *pushed, size_t row)
{
    return (uint64_t *)((uint8_t *)pushed + PHI_RING_STAMPS) + row % PHI_RING_ROWS;
}

static size_t rows_of(const struct phi_hop_item *item)
{
    return (units_of(item) - 1 + PHI_RING_ROW - 1) / PHI_RING_ROW;
}

// Units of the direction up to the end of a row, of which there is one before the first.
static uint64_t end_of_row(uint64_t before, size_t rows)
{
    return before + 1 + PHI_RING_ROW * rows;
}

// The take of this message, or of a later one: hands may have pushed all of it before the lead
// looks.
static bool has_begun(const struct phi_hop_item *item)
{
    return __atomic_load_n(&own(item)->begun, __ATOMIC_ACQUIRE) >= own(item)->wide_pushed + 1;
}

// A wait that is given up ends the lane: its hands move nothing.
static enum si_progress end_lane(const struct phi_hop_item *item, uint32_t *at)
{
    own(item)->moved = 1;
    return wait(item, true, at);
}

static bool is_led(const struct phi_hop_item *item, bool pushes)
{
    const uint64_t first = pushes ? own(item)->wide_pushed : own(item)->wide_taken;
    return own(item)->led == first + 1 && (!pushes || has_begun(item));
}

static bool lead_push(const struct phi_hop_item *item)
{
    if (own(item)->led == own(item)->wide_pushed + 1 ||
        (int32_t)(load32(&own(item)->credit) + PHI_RING_UNITS -
                  (uint32_t)(own(item)->wide_pushed + 1)) < 0)
        return false;
    move_unit(item, true, 0);
    own(item)->led = own(item)->wide_pushed + 1;
    return true;
}

static bool lead_take(const struct phi_hop_item *item)
{
    if (item->peer)
        __atomic_store_n(&peer(item)->begun, own(item)->wide_taken + 1, __ATOMIC_RELEASE);
    if (!is_unit_here(item, 0))
        return false;
    move_unit(item, false, 0);
    own(item)->led = own(item)->wide_taken + 1;
    if (item->peer && rows_of(item) >= PHI_RING_ROWS)
        __atomic_store_n(stamp(peer(item), PHI_RING_ROWS - 1), end_of_row(own(item)->wide_taken, 0),
                         __ATOMIC_RELEASE);
    return true;
}

// *at is 1 when it is led.
static enum si_progress lead(const struct phi_hop_item *item, bool pushes, uint32_t *at)
{
    const bool over = broken(item);
    if (own(item)->moved || (!pushes && is_mismatch(item)))
        return end_lane(item, at);
    if (is_led(item, pushes)) {
        *at = 1;
        return SI_MOVED;
    }
    if (pushes ? lead_push(item) : lead_take(item))
        return SI_MOVED;
    return over ? end_lane(item, at) : SI_WAITING;
}

// Whether a row can be moved.
static bool may_move_row(const struct phi_hop_item *item, size_t row)
{
    if (item->kind == PHI_STEP_PUSH || item->kind == PHI_STEP_ROOM)
        return row + 1 < PHI_RING_ROWS ||
               __atomic_load_n(stamp(own(item), row), __ATOMIC_ACQUIRE) ==
                   end_of_row(own(item)->wide_pushed, row + 1 - PHI_RING_ROWS);
    for (size_t unit = 1 + row * PHI_RING_ROW;
         unit < units_of(item) && unit <= (row + 1) * PHI_RING_ROW; unit++)
        if (!is_unit_here(item, unit))
            return false;
    return true;
}

static void move_row(const struct phi_hop_item *item, size_t row)
{
    const bool pushes = item->kind == PHI_STEP_PUSH || item->kind == PHI_STEP_ROOM;
    for (size_t unit = 1 + row * PHI_RING_ROW;
         unit < units_of(item) && unit <= (row + 1) * PHI_RING_ROW; unit++)
        move_unit(item, pushes, unit);
    if (!pushes && item->peer && row + PHI_RING_ROWS < rows_of(item))
        __atomic_store_n(stamp(peer(item), row), end_of_row(own(item)->wide_taken, row + 1),
                         __ATOMIC_RELEASE);
}

static enum si_progress move_rows(const struct phi_hop_item *item, uint32_t *at)
{
    const bool over = broken(item);
    uint32_t *row = &own(item)->drawn;
    bool moved = false;
    for (; *row < rows_of(item) && may_move_row(item, *row); ++*row) {
        move_row(item, *row);
        moved = true;
    }
    if (*row < rows_of(item) && !moved)
        return over ? end_lane(item, at) : SI_WAITING;
    if (*row == rows_of(item))
        *at = OVER;
    return SI_MOVED;
}

// An item of the first launch is over when one of them is led. Of one alone, where places are
// counted, when all its rows are moved: the second launch comes here when the first is over, and
// may find none.
static enum si_progress lead_first(const struct phi_hop_args *args, const uint32_t *all,
                                   const struct phi_hop_item *item, uint32_t *at)
{
    for (uint32_t i = 0; i < args->waits; i++)
        if (all[i] == OVER) {
            *at = OVER;
            return SI_MOVED;
        }
    if (*at != 0)
        return move_rows(item, at);
    const enum si_progress progress = lead(item, item->kind == PHI_STEP_ROOM, at);
    if (*at == 1 && (args->waits > 1 || si.multiprocessors == 0))
        *at = OVER;
    return progress;
}

// Hands of the first launch leave each third message, as if they had found no place; those of the
// second one count it.
static enum si_progress do_long_hands(const struct phi_hop_item *item, uint32_t *at)
{
    const bool pushes = item->kind == PHI_STEP_PUSH;
    if (*at == 0 && item->hands == PHI_HANDS_FIRST) {
        *at = has_begun(item) && !own(item)->moved && own(item)->wide_pushed % 3 != 0 ? 1 : OVER;
        return SI_MOVED;
    }
    if (*at == 0)
        return lead(item, pushes, at);
    const enum si_progress progress = move_rows(item, at);
    if (*at == OVER && item->hands != PHI_HANDS_FIRST && !own(item)->moved) {
        own(item)->drawn = 0;
        count_wide(item, pushes);
    }
    return progress;
}

static void do_go(const struct phi_hop_item *item)
{
    if (item->peer)
        store32(&peer(item)->go, ++own(item)->allowed);
}

static enum si_progress do_arrive(const struct phi_hop_item *item, uint32_t *at)
{
    bool over = broken(item);
    uint32_t blocks = load32(&own(item)->full[0]), here = 0;
    if (blocks > PHI_MOVE_BLOCKS)
        blocks = PHI_MOVE_BLOCKS;
    while (here < blocks && load32(&own(item)->full[here]))
        here++;
    if (blocks == 0 || here < blocks)
        return wait(item, over, at);
    memset(own(item)->full, 0, blocks * sizeof own(item)->full[0]);
    if (item->signal)
        do_go(item);
    *at = OVER;
    return SI_MOVED;
}

// ---- staged: *at is twice the record of the message, and 1 more when its wait is over

static struct phi_stage_lane *lane(const struct phi_hop_item *item)
{
    return (struct phi_stage_lane *)item->own;
}

static uint8_t *slot_of(const struct phi_hop_item *item, uint32_t record)
{
    return (uint8_t *)item->slots +
           ((record - 1) & (PHI_STAGE_SLOTS - 1)) * PHI_STAGE_SLOT_SIZE(item->peer);
}

// All blocks at once.
static void show_record(const struct phi_hop_item *item, uint32_t record)
{
    for (uint32_t i = 0; i < item->blocks; i++)
        store32(&lane(item)->done[i], record);
}

static struct phi_stage_line *short_line(const struct phi_hop_item *item, uint32_t record)
{
    return &lane(item)->lines[(record - 1) & (PHI_STAGE_SLOTS - 1)];
}

static void fill_short(const struct phi_hop_item *item, uint32_t record)
{
    struct phi_stage_short what = {{item->offset, (uint32_t)item->size, item->signal}, {0}};
    uint32_t data[PHI_STAGE_LINE_WORDS];
    if (item->size)
        memcpy(what.data, (const void *)item->source, item->size);
    memcpy(data, &what, sizeof data);
    for (uint32_t i = 0; i < PHI_STAGE_LINE_WORDS; i++)
        __atomic_store_n(&short_line(item, record)->words[i], PHI_STAGE_WORD(record, data[i]),
                         __ATOMIC_RELAXED);
}

static bool read_short(const struct phi_hop_item *item, uint32_t record,
                       struct phi_stage_short *what)
{
    uint32_t data[PHI_STAGE_LINE_WORDS];
    for (uint32_t i = 0; i < PHI_STAGE_LINE_WORDS; i++) {
        const uint64_t word =
            __atomic_load_n(&short_line(item, record)->words[i], __ATOMIC_RELAXED);
        if ((uint32_t)(word >> 32) != record)
            return false;
        data[i] = (uint32_t)word;
    }
    memcpy(what, data, sizeof *what);
    return true;
}

// What a slot has is put to its place in the message; of no bytes there may be no place.
static void put(const struct phi_hop_item *item, struct phi_stage_record head, const void *data)
{
    if (head.size > 0)
        memcpy((uint8_t *)item->destination + head.offset, data, head.size);
}

// Those below return whether the record was the last of its message.
static bool fill_slot(const struct phi_hop_item *item, uint32_t record, uint64_t from)
{
    uint32_t chunk = PHI_STAGE_CHUNK(item->peer);
    uint64_t left = item->size - from, bytes = left < chunk ? left : chunk;
    struct phi_stage_record head = {item->offset + from, (uint32_t)bytes,
                                    item->signal && bytes == left};
    uint8_t *slot = slot_of(item, record);
    if (item->size <= PHI_STAGE_SHORT) {
        fill_short(item, record);
        return true;
    }
    memcpy(slot, &head, sizeof head);
    memcpy(slot + PHI_STAGE_HEAD, (const uint8_t *)item->source + from, bytes);
    return bytes == left;
}

// end: of the last record of a message.
static void check_size(const struct phi_hop_item *item, uint64_t end)
{
    const uint64_t broken = item->broken - PHI_FLAGS_OVER_BEHIND;
    if (item->signal && end != item->offset &&
        !load32((const uint32_t *)(broken + PHI_MISMATCH_BEHIND)))
        si_note_mismatch(broken, item->offset, end);
}

static bool empty_short(const struct phi_hop_item *item, const struct phi_stage_short *line)
{
    const struct phi_stage_record head = line->head;
    if (head.size <= PHI_STAGE_SHORT && head.size <= item->offset &&
        head.offset <= item->offset - head.size)
        put(item, head, line->data);
    if (head.last)
        check_size(item, head.offset + head.size);
    return head.last != 0;
}

static bool empty_slot(const struct phi_hop_item *item, uint32_t record)
{
    const uint8_t *slot = slot_of(item, record);
    const struct phi_stage_record *there = (const struct phi_stage_record *)slot;
    // Each member once: the peer may write them again at any time.
    const struct phi_stage_record head = {__atomic_load_n(&there->offset, __ATOMIC_RELAXED),
                                          __atomic_load_n(&there->size, __ATOMIC_RELAXED),
                                          __atomic_load_n(&there->last, __ATOMIC_RELAXED)};
    if (head.size <= PHI_STAGE_CHUNK(item->peer) && head.size <= item->offset &&
        head.offset <= item->offset - head.size)
        put(item, head, slot + PHI_STAGE_HEAD);
    if (head.last)
        check_size(item, head.offset + head.size);
    return head.last != 0;
}

static void set_over(const struct phi_hop_item *item, uint32_t value)
{
    for (uint32_t i = 0; i < item->blocks; i++)
        store32(&lane(item)->over[i], value);
}

static bool is_nothing(const struct phi_hop_item *item)
{
    bool over = load32(&lane(item)->over[0]) != 0;
    if (item->kind == PHI_STEP_STAGE)
        return over || (item->size == 0 && !item->signal);
    if (over && item->kind == PHI_STEP_UNSTAGE)
        set_over(item, 0);
    return over;
}

// others: a HELP has nothing left to wait for.
static enum si_progress do_staged(const struct phi_hop_item *item, bool others, uint32_t *at)
{
    uint32_t record = lane(item)->done[0] + 1;
    bool stages = item->kind == PHI_STEP_STAGE, helps = item->kind == PHI_STEP_HELP;
    bool over = broken(item) || (helps && others); // first: what came before it was set is taken
    if (*at == 0 && is_nothing(item)) {
        *at = OVER;
        return SI_MOVED;
    }
    struct phi_stage_short line;
    const bool in_line = !stages && read_short(item, record, &line);
    if (!in_line && (int32_t)(load32(&lane(item)->reach) - record) < 0) {
        if (over && stages)
            set_over(item, 1);
        return wait(item, over, at);
    }
    // The engine takes its lock between the wait and what follows.
    if (*at % 2 == 0) {
        ++*at;
        return SI_MOVED;
    }
    const uint64_t from = (uint64_t)(*at / 2) * PHI_STAGE_CHUNK(item->peer);
    bool last = stages    ? fill_slot(item, record, from)
                : in_line ? empty_short(item, &line)
                          : empty_slot(item, record);
    if (helps && last)
        set_over(item, 1);
    show_record(item, record);
    *at = last ? OVER : *at + 1;
    return SI_MOVED;
}

// ---- bells: *at is 1 when the word allows it

static void ring(const struct phi_hop_item *item, uint32_t record)
{
    const struct phi_stage_bell what = {item->source, item->offset, item->size,
                                        (uint32_t)item->peer, item->signal};
    memcpy((uint8_t *)item->slots + ((record - 1) & (PHI_STAGE_SLOTS - 1)) * PHI_STAGE_HEAD, &what,
           sizeof what);
    if (PHI_BELL_VALUE(item->peer))
        store32((uint32_t *)item->destination, PHI_BELL_VALUE(item->peer));
    store32(&lane(item)->done[0], record);
}

static void break_bells(const struct phi_hop_item *item)
{
    store32((uint32_t *)(item->broken + PHI_UNDONE_BEHIND), 1);
    store32((uint32_t *)item->broken, PHI_GIVEN_UP);
}

// It is not rung. The next wait is not to find what came for this one.
static void void_bell(const struct phi_hop_item *item, bool came)
{
    const uint32_t value = PHI_BELL_VALUE(item->peer);
    if (!came || (item->peer & PHI_BELL_TELLS))
        store32((uint32_t *)(item->broken + PHI_UNDONE_BEHIND), 1);
    else if (value)
        store32((uint32_t *)item->destination, value);
}

static enum si_progress do_bell(const struct phi_hop_item *item, uint32_t *at)
{
    uint32_t record = lane(item)->done[0] + 1, bit = PHI_BELL_BIT(item->peer);
    bool over = broken(item); // first: what came before it was set is taken
    const uint32_t word = bit ? load32((const uint32_t *)item->destination) : 0;
    if (*at == 0 && bit && !(word & bit) && !over)
        return SI_WAITING;
    const bool came = (word & (bit | PHI_BIT_ADDED(bit))) == bit;
    if (*at == 0 && (!came || over)) {
        void_bell(item, came);
        *at = OVER;
        return SI_MOVED;
    }
    if (*at == 0 && item->signal) {
        // The engine takes its lock between the wait and what follows.
        *at = 1;
        return SI_MOVED;
    }
    const uint32_t reach = load32(&lane(item)->reach);
    if (*at == 1 && !PHI_BELL_REACHED(reach, record))
        return SI_WAITING;
    if (*at == 1 && PHI_BELL_VOID(reach, record))
        break_bells(item); // the link has ended
    else if (*at == 1)
        ring(item, record);
    *at = OVER;
    return SI_MOVED;
}

static enum si_progress do_land(const struct phi_hop_item *item, uint32_t *at)
{
    const uint32_t reach = load32(&lane(item)->reach), rung = lane(item)->done[0];
    if (!PHI_BELL_REACHED(reach, PHI_BELLS_REACH(rung)))
        return SI_WAITING;
    if (PHI_BELLS_LOST(reach, rung)) // rung while the link ended
        break_bells(item);
    *at = OVER;
    return SI_MOVED;
}

// Whether no STAGE is under way.
static bool all_staged(const struct phi_hop_args *args, const uint32_t *at)
{
    for (uint32_t i = 0; i < args->count; i++)
        if (args->items[i].kind == PHI_STEP_STAGE && at[i] != OVER)
            return false;
    return true;
}

// Whether an item before i of its lane has its blocks.
static bool behind(const struct phi_hop_args *args, const uint32_t *at, uint32_t i)
{
    if (args->items[i].kind < PHI_STEP_STAGE)
        return false;
    for (uint32_t j = 0; j < i; j++)
        if (at[j] != OVER && args->items[j].first == args->items[i].first)
            return true;
    return false;
}

static enum si_progress do_item(const struct phi_hop_args *args, uint32_t i, const uint32_t *all,
                                uint32_t *at)
{
    const struct phi_hop_item *item = &args->items[i];
    const bool hands = i >= args->waits;
    // The first block of a launch without a second one does what its hands leave.
    if (item->kind == PHI_STEP_ROOM && item->hands == PHI_HANDS_ONLY && at[1] != OVER)
        return SI_WAITING;
    if (is_long(item))
        return hands ? do_long_hands(item, at) : lead_first(args, all, item, at);
    switch (item->kind) {
    case PHI_STEP_PUSH:
        return hands ? do_hands(item, at) : do_lines(item, hands, at);
    case PHI_STEP_TAKE:
        return do_lines(item, hands, at);
    case PHI_STEP_ROOM:
    case PHI_STEP_LEAVE:
    case PHI_STEP_MESSAGE:
        return await_hands(item, at);
    case PHI_STEP_STAGE:
    case PHI_STEP_UNSTAGE:
    case PHI_STEP_HELP:
        return do_staged(item, all_staged(args, all), at);
    case PHI_STEP_BELL:
        return do_bell(item, at);
    case PHI_STEP_LAND:
        return do_land(item, at);
    case PHI_STEP_MOVE:
        return hands ? do_hands(item, at) : do_move(item, at);
    case PHI_STEP_ARRIVE:
        return do_arrive(item, at);
    default:
        do_go(item);
        *at = OVER;
        return SI_MOVED;
    }
}

// Hands that have left give their places back.
static void leave_places(const struct phi_hop_args *args, const uint32_t *at)
{
    for (uint32_t i = args->waits; i < args->count; i++)
        if (args->items[i].kind >= PHI_STEP_STAGE || at[i] != OVER)
            return;
    si_grid_shrink(si_running, 1);
}

// state: a progress value of 32 bits for each item.
enum si_progress si_hop(const void *data, uint64_t state[SI_KERNEL_STATE])
{
    const struct phi_hop_args *args = data;
    uint32_t *at = (uint32_t *)state;
    bool waiting = false, moved = false;
    _Static_assert(SI_KERNEL_STATE * 2 >= PHI_HOP_ENTRIES, "a value for each item");
    for (uint32_t i = 0; i < args->count; i++) {
        if (at[i] == OVER || behind(args, at, i))
            continue;
        enum si_progress progress = do_item(args, i, at, &at[i]);
        waiting = waiting || progress == SI_WAITING;
        moved = moved || progress == SI_MOVED;
    }
    leave_places(args, at);
    if (moved || waiting)
        return moved ? SI_MOVED : SI_WAITING;
    if (args->done && args->tells)
        __atomic_store_n((uint64_t *)args->done, args->number, __ATOMIC_RELEASE);
    return SI_DONE;
}

unsigned si_hop_touches(const void *data, const uint64_t state[SI_KERNEL_STATE],
                        struct si_touch touches[SI_TOUCHES], uint64_t *part)
{
    const struct phi_hop_args *args = data;
    const uint32_t *at = (const uint32_t *)state;
    for (uint32_t i = 0; i < args->count; i++) {
        const struct phi_hop_item *item = &args->items[i];
        if (item->kind != PHI_STEP_MOVE || at[i] == 0 || at[i] == OVER ||
            (size_t)(at[i] - 1) * SI_MIB >= item->size)
            continue; // it waits, or is about to tell the peer
        touches[0] = (struct si_touch){item->destination, item->size, true};
        touches[1] = (struct si_touch){item->source, item->size, false};
        *part = i + 1;
        return 2;
    }
    return 0;
}

// ---- What is no launch of a kernel

static bool by_lines(const struct phi_hop_item *item)
{
    return item->kind == PHI_STEP_PUSH || item->kind == PHI_STEP_TAKE;
}

static bool is_move(const struct phi_hop_item *item)
{
    return item->kind == PHI_STEP_MOVE;
}

static bool awaits_hands(const struct phi_hop_item *item)
{
    return item->kind >= PHI_STEP_ROOM && item->kind <= PHI_STEP_MESSAGE;
}

static bool is_staged(const struct phi_hop_item *item)
{
    return item->kind >= PHI_STEP_STAGE;
}

static const char *refuse_item(const struct phi_hop_item *item)
{
    const bool wide = by_lines(item) && item->wide;
    if (wide &&
        ((item->size == 0 && !is_ring(item)) || (item->signal && item->kind == PHI_STEP_TAKE)))
        return "a signal, or nothing, by wide lines";
    if (by_lines(item) && !item->wide && item->size > PHI_LL_PIECE)
        return "a message by ll that does not fit a slot";
    return NULL;
}

// The items of the first block: each has warps of its own, or, alone, all.
static const char *refuse_waits(const struct phi_hop_args *args, unsigned threads)
{
    unsigned warps = 0, barriers = 0;
    if (args->waits > args->count)
        return "more waits than items";
    for (uint32_t i = 0; i < args->waits; i++) {
        const struct phi_hop_item *item = &args->items[i];
        if (args->count > 1 && (item->blocks == 0 || item->first != warps))
            return "an item without warps of its own";
        if (item->kind == PHI_STEP_PUSH && item->wide && item->size > PHI_WIDE_ALONE)
            return "a message that one block takes too long for";
        const unsigned own_warps = item->hands == PHI_HANDS_ONLY ? 1 : item->blocks;
        warps += own_warps;
        barriers += own_warps > 1;
    }
    if (args->count > 1 && warps > threads / 32)
        return "an item has warps that the block has not";
    return args->count > 1 && barriers > 15 ? "more barriers than a block has" : NULL;
}

// Each block is one item's, or the first block; items that are staged have the blocks of their
// lane.
static const char *refuse_blocks(const struct phi_hop_args *args, unsigned blocks)
{
    for (unsigned block = args->waits > 0; block < blocks; block++) {
        const struct phi_hop_item *owner = NULL;
        for (uint32_t i = args->waits; i < args->count; i++) {
            const struct phi_hop_item *item = &args->items[i];
            if (block - item->first >= item->blocks)
                continue;
            if (owner && (!is_staged(item) || item->own != owner->own))
                return "a block has two items";
            owner = item;
        }
        if (!owner)
            return "a block has no item";
    }
    for (uint32_t i = args->waits; i < args->count; i++) {
        const struct phi_hop_item *item = &args->items[i];
        if (item->blocks == 0 || item->first > blocks || item->blocks > blocks - item->first ||
            (args->waits > 0 && item->first == 0))
            return "an item has blocks that the grid has not";
        if (!is_staged(item) && !is_move(item) && !(by_lines(item) && item->wide))
            return "hands for what the first block does";
    }
    return NULL;
}

static const char *refuse(const struct phi_hop_args *args, unsigned blocks, unsigned threads,
                          bool (*is_own)(const struct phi_hop_args *args, uint32_t i))
{
    const char *why = args->count > PHI_HOP_ENTRIES ? "so many items" : NULL;
    if (args->count == 0) // of a kernel that is made ready
        return NULL;
    for (uint32_t i = 0; !why && i < args->count; i++)
        why = is_own(args, i) ? refuse_item(&args->items[i]) : "an item is another kernel's";
    if (!why)
        why = refuse_waits(args, threads);
    if (!why)
        why = refuse_blocks(args, blocks);
    return !why && threads % 32 ? "half a warp" : why;
}

static bool is_of_staged(const struct phi_hop_args *args, uint32_t i)
{
    return is_staged(&args->items[i]) && args->waits == 0;
}

static bool is_of_ring(const struct phi_hop_args *args, uint32_t i)
{
    return is_ring(&args->items[i]) && !is_long(&args->items[i]) &&
           (by_lines(&args->items[i]) || awaits_hands(&args->items[i]));
}

static bool is_of_spread(const struct phi_hop_args *args, uint32_t i)
{
    return !is_ring(&args->items[i]) && !is_staged(&args->items[i]) &&
           !(i >= args->waits && is_move(&args->items[i]) && args->items[i].size > 24 * SI_MIB);
}

static bool is_of_large(const struct phi_hop_args *args, uint32_t i)
{
    return !is_staged(&args->items[i]);
}

static bool is_of_first_block(const struct phi_hop_args *args, uint32_t i)
{
    const struct phi_hop_item *item = &args->items[i];
    return i < args->waits && !is_staged(item) && !is_move(item) && !is_ring(item) &&
           !(by_lines(item) && item->wide);
}

static bool is_of_wide(const struct phi_hop_args *args, uint32_t i)
{
    const struct phi_hop_item *item = &args->items[i];
    if (is_ring(item))
        return false;
    if (i < args->waits && (args->count > 1 || item->kind == PHI_STEP_MESSAGE))
        return awaits_hands(item) && item->kind != PHI_STEP_LEAVE;
    return by_lines(item) && item->wide &&
           (item->kind == PHI_STEP_PUSH ? item->source : item->destination) % 16 == 0;
}

const char *si_hop_refuse(const void *args, unsigned blocks, unsigned threads)
{
    return refuse(args, blocks, threads, is_of_first_block);
}

const char *si_hop_spread_refuse(const void *args, unsigned blocks, unsigned threads)
{
    return refuse(args, blocks, threads, is_of_spread);
}

const char *si_hop_large_refuse(const void *args, unsigned blocks, unsigned threads)
{
    return refuse(args, blocks, threads, is_of_large);
}

const char *si_hop_wide_refuse(const void *args, unsigned blocks, unsigned threads)
{
    return refuse(args, blocks, threads, is_of_wide);
}

const char *si_ring_refuse(const void *args, unsigned blocks, unsigned threads)
{
    return refuse(args, blocks, threads, is_of_ring);
}

static bool is_of_long(const struct phi_hop_args *args, uint32_t i)
{
    const struct phi_hop_item *item = &args->items[i];
    const bool hands = i >= args->waits;
    return is_long(item) && item->size > PHI_RING_WHOLE &&
           (hands ? by_lines(item) : awaits_hands(item) && item->kind != PHI_STEP_LEAVE);
}

const char *si_ring_long_refuse(const void *args, unsigned blocks, unsigned threads)
{
    return refuse(args, blocks, threads, is_of_long);
}

const char *si_hop_staged_refuse(const void *args, unsigned blocks, unsigned threads)
{
    return refuse(args, blocks, threads, is_of_staged);
}
