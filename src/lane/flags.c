// SPDX-License-Identifier: BSD-3-Clause
#include "lane/flags.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/table.h"
#include "lane/flag_memory.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/flags.h"
#include "semaphore/segment.h"
#include "transport/slab.h"

_Static_assert(PHI_FLAG_LINES == 128, "as PHI_REASON_LINES says");
_Static_assert(PHI_TABLE_LL_MAX == PHI_WIDE_PIECE && PHI_TABLE_LL == PHI_LL_PIECE,
               "what one push takes");

struct phi_flag_table phi_flags_table(const struct phi_peer *peer, const struct phi_limits *own)
{
    const struct phi_self *self = peer->self;
    const struct phi_table_pair pair = phi_flag_pair(peer);
    const int64_t most = phi_table_wide(self->flags.sizes, pair) ? PHI_WIDE_PIECE : PHI_LL_PIECE;
    struct phi_limits limits;
    switch (self->config->method) {
    case PHI_METHOD_LL:
        return (struct phi_flag_table){(uint64_t)most, UINT64_MAX};
    case PHI_METHOD_SM:
        return (struct phi_flag_table){0, UINT64_MAX};
    case PHI_METHOD_AUTO:
        limits = phi_table_limits(self->flags.sizes, self->config, pair);
        if (own->ll_max >= 0)
            limits.ll_max = own->ll_max;
        if (own->sm_max >= 0)
            limits.sm_max = own->sm_max;
        if (limits.ll_max > most)
            limits.ll_max = most;
        return (struct phi_flag_table){(uint64_t)limits.ll_max, (uint64_t)limits.sm_max};
    default:
        return (struct phi_flag_table){0, 0};
    }
}

// Returns up to how many bytes messages of a word go by ll. The sender's table limits them, and
// so does the size of the slots.
static uint64_t limited(const struct ph_channel *channel, bool outgoing, enum phi_word word)
{
    const uint64_t lines = channel->fixed.table[outgoing].ll_max;
    const size_t piece =
        phi_flag_piece(word == PHI_WORD_TURN && channel->fixed.own.flags.wide != 0);
    return lines < piece ? lines : piece;
}

uint64_t phi_flags_signal_lines(const struct ph_channel *channel, bool outgoing)
{
    return limited(channel, outgoing, PHI_WORD_NOTE);
}

void phi_flags_give(struct ph_channel *channel, uint32_t parts)
{
    const struct phi_peer *peer = channel->peer;
    const uint32_t line = channel->fixed.index;
    channel->kept.flag_parts = parts;
    channel->fixed.linked = channel->fixed.own.kind != PHI_KIND_HOST &&
                            channel->fixed.theirs.kind != PHI_KIND_HOST && !phi_flag_pair(peer).bus;
    // If one end takes no multiprocessor for the channel, its messages go by words at both ends.
    // So do they if an end has several ranges: flags know one address for an end.
    if (line >= PHI_FLAG_LINES || channel->fixed.own.zero_sm || channel->fixed.theirs.zero_sm ||
        channel->fixed.ranged || !(parts & 1u << phi_flag_slots_part(line)))
        return;
    const bool wide = line < PHI_FLAG_WIDE && (parts & 1u << phi_flag_wide_part(line));
    channel->fixed.own.flags = phi_flag_memory_own(peer, line, wide);
    channel->fixed.theirs.flags = phi_flag_memory_peer(peer, line, wide);
    channel->fixed.table[true] =
        phi_flags_table(peer, &phi_key_mine(channel->kept.key, channel->fixed.own.number)->limits);
    channel->fixed.table[false] =
        phi_key_theirs(channel->kept.key, channel->fixed.theirs.number)->table;
    for (int outgoing = 0; outgoing < 2; outgoing++)
        channel->fixed.table[outgoing].ll_max = limited(channel, outgoing, PHI_WORD_TURN);
}

void phi_flags_ring(struct ph_channel *channel)
{
    const struct phi_flag_table out = phi_flags_table(
        channel->peer, &phi_key_mine(channel->kept.key, channel->fixed.own.number)->limits);
    const struct phi_flag_table in =
        phi_key_theirs(channel->kept.key, channel->fixed.theirs.number)->table;
    const bool large =
        channel->fixed.own.size == PHI_RING_BYTES && channel->fixed.theirs.size == PHI_RING_BYTES;
    const bool devices =
        channel->fixed.own.kind != PHI_KIND_HOST && channel->fixed.theirs.kind != PHI_KIND_HOST;
    if (!large || !devices || channel->fixed.own.reach || channel->fixed.theirs.reach)
        return;
    channel->fixed.ring[true] = out.ll_max > PHI_LL_PIECE;
    channel->fixed.ring[false] = in.ll_max > PHI_LL_PIECE;
}

enum phi_reason phi_flags_none(const struct ph_channel *channel)
{
    return channel->fixed.ranged                   ? PHI_REASON_RANGES
           : channel->kept.flag_parts == 0         ? PHI_REASON_FLAGS
           : channel->fixed.index < PHI_FLAG_LINES ? PHI_REASON_BUDGET
                                                   : PHI_REASON_LINES;
}

enum phi_reason phi_flags_not_ring(const struct ph_channel *channel)
{
    const struct phi_table_pair pair = phi_flag_pair(channel->peer);
    if (channel->fixed.own.kind == PHI_KIND_HOST || channel->fixed.theirs.kind == PHI_KIND_HOST)
        return PHI_REASON_HOST;
    if (channel->fixed.own.size != PHI_RING_BYTES || channel->fixed.theirs.size != PHI_RING_BYTES)
        return PHI_REASON_BUDGET;
    if (!phi_flag_memory_usable(channel->peer))
        return PHI_REASON_FLAGS;
    if (channel->fixed.own.reach || channel->fixed.theirs.reach)
        return (enum phi_reason)(channel->fixed.own.reach ? channel->fixed.own.reach
                                                          : channel->fixed.theirs.reach);
    if (!phi_table_wide(channel->self->flags.sizes, pair))
        return pair.bus ? PHI_REASON_WIDE_BUS : PHI_REASON_WIDE_TABLE;
    return PHI_REASON_USER;
}

enum phi_reason phi_flags_not_wide(const struct ph_channel *channel)
{
    const struct phi_table_pair pair = phi_flag_pair(channel->peer);
    if (!phi_table_wide(channel->self->flags.sizes, pair))
        return pair.bus ? PHI_REASON_WIDE_BUS : PHI_REASON_WIDE_TABLE;
    return channel->fixed.own.flags.wide != 0      ? PHI_REASON_USER
           : channel->fixed.index >= PHI_FLAG_WIDE ? PHI_REASON_WIDE_SLOTS
                                                   : PHI_REASON_BUDGET;
}

size_t phi_flags_lane_of(const struct ph_channel *channel, bool outgoing, enum phi_word word)
{
    const int side = channel->peer->segment->side;
    return phi_flag_lane(channel->fixed.index, outgoing ? side : !side, word);
}

static bool read_own(const struct ph_channel *channel, uint64_t at, void *into, size_t size,
                     int64_t deadline)
{
    return phi_slab_read(channel->self->device, at, into, size, deadline) == 0;
}

// Returns whether so many lines of a slot, of `words` words of 4 bytes each, have a number. Its low
// half is in the word that is `low` from the end of a line, its high half in the last word. All
// lines are looked at: a pusher that died, or gave up, may have written some of them.
static bool has_numbers(const struct ph_channel *channel, uint64_t at, size_t lines, size_t words,
                        size_t low, uint64_t number, int64_t deadline)
{
    uint32_t piece[1024];
    const size_t room = sizeof piece / sizeof *piece / words;
    for (size_t left = lines, n; left > 0; left -= n, at += n * words * sizeof *piece) {
        n = left < room ? left : room;
        if (!read_own(channel, at, piece, n * words * sizeof *piece, deadline))
            return false;
        for (size_t i = 1; i <= n; i++) {
            const uint32_t *end = piece + i * words;
            if (*(end - low) != (uint32_t)number || *(end - 1) != (uint32_t)(number >> 32))
                return false;
        }
    }
    return true;
}

static bool is_pushed(const struct ph_channel *channel, const struct phi_flag_lane *lane,
                      bool outgoing, enum phi_word word, size_t size, int64_t deadline)
{
    const uint32_t message = lane->taken + 1;
    const uint64_t number = lane->wide_taken + 1;
    const size_t data = (size + 7) / 8 + (word == PHI_WORD_NOTE);
    if (word == PHI_WORD_TURN && phi_flag_is_wide(channel->fixed.table[outgoing].ll_max, size))
        return has_numbers(
            channel, channel->fixed.own.flags.wide + (number & (PHI_LL_SLOTS - 1)) * PHI_WIDE_SLOT,
            (size_t)8 * PHI_WIDE_UNITS(size), 32, 2, number, deadline);
    return has_numbers(channel,
                       channel->fixed.own.flags.slots[word] +
                           (size_t)(message & (PHI_LL_SLOTS - 1)) * PHI_LL_SLOT,
                       data ? data : 1, 4, 3, (uint64_t)message << 32 | message, deadline);
}

static bool is_moved(const struct phi_flag_lane *lane)
{
    const uint32_t blocks = lane->full[0] < PHI_MOVE_BLOCKS ? lane->full[0] : PHI_MOVE_BLOCKS;
    for (uint32_t i = 0; i < blocks; i++)
        if (lane->full[i] == 0)
            return false;
    return blocks > 0;
}

bool phi_flags_take_moved(const struct ph_channel *channel, bool outgoing, enum phi_word word)
{
    static const uint32_t zeros[PHI_MOVE_BLOCKS];
    const struct phi_self *self = channel->self;
    const uint64_t full = channel->fixed.own.flags.lanes +
                          phi_flags_lane_of(channel, outgoing, word) +
                          offsetof(struct phi_flag_lane, full);
    return phi_slab_write(self->device, full, zeros, sizeof zeros,
                          phi_deadline(self->config->deadline_ms)) == 0;
}

bool phi_flags_here(const struct ph_channel *channel, bool outgoing, enum phi_word word,
                    enum phi_method method, size_t size)
{
    const int64_t deadline = phi_deadline(channel->self->config->deadline_ms);
    const uint64_t at = channel->fixed.own.flags.lanes + phi_flags_lane_of(channel, outgoing, word);
    struct phi_flag_lane lane;
    if (!read_own(channel, at, &lane, sizeof lane, deadline))
        return false;
    return method == PHI_BY_LL ? is_pushed(channel, &lane, outgoing, word, size, deadline)
                               : is_moved(&lane);
}

void phi_flags_count(struct ph_channel *channel, bool outgoing, const struct phi_step *step)
{
    switch (step->kind) {
    case PHI_STEP_GO:
        atomic_fetch_add(&channel->live.leaves, 1);
        return;
    case PHI_STEP_ARRIVE:
        if (step->word == PHI_WORD_TURN)
            atomic_fetch_sub(&channel->live.leaves, 1);
        break;
    case PHI_STEP_PUSH:
    case PHI_STEP_TAKE:
    case PHI_STEP_MOVE:
        break;
    default:
        return;
    }
    atomic_fetch_add(&channel->fixed.own.line->messages[outgoing][step->word], 1);
}

// Nobody knows how often captured work ran. A wait that was given up left its message. A message
// that was taken late gave no credit.
bool phi_flags_stuck(struct ph_channel *channel)
{
    struct phi_line *mine = channel->fixed.own.line, *theirs = channel->fixed.theirs.line;
    if (atomic_load(&channel->live.uses.captured) || atomic_load(&channel->live.lost))
        atomic_store(&mine->uncounted, 1); // for the peer; nobody else stores it
    return atomic_load(&mine->uncounted) || atomic_load(&theirs->uncounted) ||
           atomic_load(&mine->flags_over) == PHI_GIVEN_UP ||
           atomic_load(&theirs->flags_over) == PHI_GIVEN_UP;
}

bool phi_flags_rest(struct ph_channel *channel)
{
    struct phi_line *mine = channel->fixed.own.line, *theirs = channel->fixed.theirs.line;
    if (phi_flags_stuck(channel) || atomic_load(&channel->live.posted) != 0 ||
        atomic_load(&channel->live.leaves) != 0)
        return false;
    for (int outgoing = 0; outgoing < 2; outgoing++)
        for (int word = 0; word < PHI_WORD_COUNT; word++)
            if (atomic_load(&mine->messages[outgoing][word]) !=
                atomic_load(&theirs->messages[!outgoing][word]))
                return false;
    return true;
}

void phi_flags_end(struct ph_channel *channel)
{
    uint32_t none = 0; // else PHI_GIVEN_UP may be there
    atomic_compare_exchange_strong(&channel->fixed.own.line->flags_over, &none, 1);
}

enum phi_method phi_flags_method(const struct ph_channel *channel, bool outgoing,
                                 enum phi_call call, size_t size)
{
    const struct phi_flag_table *table = &channel->fixed.table[outgoing];
    if (channel->fixed.stage.is && !channel->fixed.stage.bells)
        return PHI_BY_STAGED;
    if (channel->fixed.own.flags.lanes == 0)
        return PHI_BY_WORDS;
    const uint64_t lines =
        phi_call_signals(call) ? phi_flags_signal_lines(channel, outgoing) : table->ll_max;
    return size <= lines && lines > 0                   ? PHI_BY_LL
           : size <= table->sm_max && table->sm_max > 0 ? PHI_BY_SM
                                                        : PHI_BY_WORDS;
}
