// SPDX-License-Identifier: BSD-3-Clause
#include "lane/lift.h"

#include <errno.h>

#include "cuda/kernel_args.h"
#include "lane/flags.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/record.h"
#include "semaphore/segment.h"

bool phi_revoke_key(const struct phi_key *key)
{
    const struct phi_segment *segment = key->peer->segment;
    const uint32_t number = key->agreement.theirs;
    const struct phi_peer_buffer *buffer = phi_key_theirs(key, number);
    // The peer stored `released` before it told us of the release, so the store is there when the
    // message has been taken. Whichever comes first under the lock, this look or the message, the
    // other sees it.
    return atomic_load(&phi_segment_slot(segment, !segment->side, key->slot)->released) == number ||
           (buffer != NULL && (buffer->released || phi_peer_ranges_has(&buffer->ranges, NULL)));
}

// Returns the bit of a word that this end waits for. *copies: whether a copy into the peer's buffer
// follows.
static uint32_t awaited_bit(const struct ph_channel *channel, int outgoing, int word, bool *copies)
{
    bool active = outgoing ? channel->fixed.protocol[1] == PH_PROTOCOL_PUT
                           : channel->fixed.protocol[0] == PH_PROTOCOL_GET;
    *copies = word == PHI_WORD_TURN ? active : outgoing != 0;
    if (word == PHI_WORD_TURN)
        return active ? PHI_BIT_READY : PHI_BIT_FULL;
    return outgoing ? PHI_BIT_FREE : PHI_BIT_NOTED;
}

// A word that this end has waited for, and the bit that it waited for.
struct awaited {
    _Atomic uint32_t *word;
    uint32_t bit;   // what was waited for
    uint32_t way;   // its bit in `awaited` and `lifted`
    bool copies;    // a copy into the peer's buffer follows
    bool completes; // the wait leaves the word as it is
};

enum { AWAITED_COUNT = 2 * PHI_WORD_COUNT };

static struct awaited awaited_word(struct ph_channel *channel, int i)
{
    const int outgoing = i / PHI_WORD_COUNT, word = i % PHI_WORD_COUNT;
    struct phi_line *line = outgoing ? channel->fixed.own.line : channel->fixed.theirs.line;
    struct awaited a = {.word = &line->word[word], .way = 1u << i};
    a.bit = awaited_bit(channel, outgoing, word, &a.copies);
    a.completes = a.bit == PHI_BIT_FULL;
    return a;
}

// Returns whether this end has waited for a word that does not show its bit. A post of send or recv
// without its complete counts as well: a complete before it may wait still.
static bool is_missing(const struct ph_channel *channel, const struct awaited *a)
{
    return (atomic_load(&channel->live.awaited) & a->way) && !(atomic_load(a->word) & a->bit);
}

// Looks for each word that this end may wait for and that does not show what it waits for.
static bool any_missing(struct ph_channel *channel)
{
    for (int i = 0; i < AWAITED_COUNT; i++) {
        const struct awaited a = awaited_word(channel, i);
        if (is_missing(channel, &a))
            return true;
    }
    return false;
}

// This end does not know which messages by flags have come: all of them may be missing.
bool phi_revoke_may_wait(struct ph_channel *channel)
{
    return (atomic_load(&channel->live.flagged) &&
            !atomic_load(&channel->fixed.own.line->flags_over)) ||
           any_missing(channel);
}

// The operations behind the wait worked on undefined data, so the channel is broken.
static void set_broken(struct ph_channel *channel)
{
    int stale = -ESTALE;
    atomic_compare_exchange_strong(&channel->live.status, &stale, PH_EBROKEN);
}

// Sets a word so that a wait for it ends. A kernel or a queue that waits finds the mark beside the
// bit. A memory operation does not find the mark. The post behind it replaces the word, which shows
// afterwards that the operation has taken the bit. A complete leaves the word, so there any receive
// counts that was begun.
static void add_bit(struct ph_channel *channel, const struct awaited *a)
{
    const uint32_t before = atomic_load(&channel->live.lifted),
                   added = a->bit | PHI_BIT_ADDED(a->bit);
    // A READY with the mark is not this end's receive. The peer, whose use has ended too, waits no
    // more.
    const uint32_t own_ready = PHI_BIT_READY | PHI_BIT_ADDED(PHI_BIT_READY);
    uint32_t word = atomic_load(a->word);
    if (word & a->bit)
        return;
    atomic_store(&channel->live.lifted, before | a->way); // first: a wait that is done finds it
    while (!atomic_compare_exchange_weak(a->word, &word, word | added))
        if (word & a->bit) { // it has come
            atomic_store(&channel->live.lifted, before);
            return;
        }
    if (a->completes && (word & own_ready) == PHI_BIT_READY)
        atomic_store(&channel->live.undone, 1);
}

static void lift_word(struct ph_channel *channel, const struct awaited *a)
{
    // In these cases nobody would see the mark: a complete leaves the word, a kernel that waits by
    // itself looks for the bit alone, and a queue leaves out the work behind `broken`. The last
    // case is a second wait, behind one that took the first bit.
    if (a->completes || atomic_load(&channel->live.uses.devices) != 0 ||
        atomic_load(&channel->fixed.own.line->broken) != 0 ||
        (atomic_load(&channel->live.lifted) & a->way))
        set_broken(channel);
    add_bit(channel, a);
}

void phi_revoke_lift(struct ph_channel *channel, bool hold)
{
    if (atomic_load(&channel->live.flagged))
        phi_flags_end(channel);
    for (int i = 0; i < AWAITED_COUNT; i++) {
        const struct awaited a = awaited_word(channel, i);
        if (is_missing(channel, &a) && !(hold && a.copies))
            lift_word(channel, &a);
    }
}

static bool is_undone(struct ph_channel *channel)
{
    struct phi_line *mine = channel->fixed.own.line;
    if (atomic_load(&mine->undone) || atomic_load(&mine->flags_over) == PHI_GIVEN_UP)
        return true;
    for (int i = 0; i < AWAITED_COUNT; i++) {
        const struct awaited a = awaited_word(channel, i);
        if ((atomic_load(&channel->live.lifted) & a.way) && !(atomic_load(a.word) & a.bit))
            return true;
    }
    return false;
}

bool phi_lift_undone(struct ph_channel *channel)
{
    // The line of a retired channel belongs to another channel.
    if (!channel->kept.retired && is_undone(channel))
        atomic_store(&channel->live.undone, 1);
    return atomic_load(&channel->live.undone) != 0;
}

void phi_lift_all(struct ph_channel *channel, bool hold)
{
    phi_lift_undone(channel); // notes the waits that took the bits added before: we add them again
    for (int i = 0; i < AWAITED_COUNT; i++) {
        const struct awaited a = awaited_word(channel, i);
        if (!(hold && a.copies))
            add_bit(channel, &a);
    }
}

void phi_revoke_settle(struct ph_channel *channel)
{
    if (phi_lift_undone(channel))
        set_broken(channel);
}

// Over the net a copy is under way for a while after its wait is over: the peer may have all of it,
// and be done with it, before this end is.
bool phi_revoke_waits(const struct ph_channel *channel)
{
    struct phi_executor *executor = channel->self->executor;
    struct phi_progress progress;
    struct phi_wait_note note;
    if (!channel->fixed.by_net)
        return true;
    for (uint32_t i = 0; executor->ops->progress(executor, i, &progress, &note); i++)
        if (note.number != 0 && note.op_id == channel->op_id && note.peer == channel->peer->rank)
            return true;
    return false;
}
