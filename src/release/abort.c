// SPDX-License-Identifier: BSD-3-Clause
#include "release/abort.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "lane/flags.h"
#include "lane/lift.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "release/spent.h"
#include "release/start.h"

enum {
    LOOK_MS = 250,   // for messages of another size
    RESEND_MS = 100, // until the peer's channel has ended, too
    LIFT_MS = 10,
};

// Lets all waits of an ended channel go. No peer has an address of the caller's memory, and late
// data may be written into a bounce buffer.
static void let_go(struct ph_channel *channel)
{
    atomic_store(&channel->fixed.own.line->broken, 1);
    phi_flags_end(channel);
    phi_lift_all(channel, false);
}

// Gives both bounce buffers back. The next exchange of the operation begins with new ones.
static void give_back(struct ph_channel *channel)
{
    struct phi_own_buffer *own = phi_key_mine(channel->kept.key, channel->fixed.own.number);
    struct phi_peer_buffer *theirs =
        phi_key_theirs(channel->kept.key, channel->fixed.theirs.number);
    if (own != NULL && !own->released)
        phi_release_buffer(channel->kept.key, own);
    if (theirs != NULL)
        theirs->released = true;
}

static void tell(struct ph_channel *channel, int64_t now)
{
    struct phi_node_message message;
    phi_peer_message(channel->peer, PHI_NODE_ABORT, &message);
    message.a = channel->fixed.index;
    message.b = (uint64_t)channel->fixed.own.number << 32 | channel->fixed.theirs.number;
    message.c = (uint64_t) - (int64_t)channel->kept.abort.code;
    message.bytes_size = (uint32_t)strlen(channel->live.why);
    memcpy(message.bytes, channel->live.why, message.bytes_size);
    const bool sent = phi_peer_tell(channel->peer, &message) != -EAGAIN;
    channel->kept.abort.sent = channel->kept.abort.sent || sent;
    channel->kept.abort.tell_at = sent ? now + RESEND_MS * PHI_MS : 0;
}

// A call that failed half-way leaves waits, too: these end, and the status is what it was. The end
// of the peer's bounce buffer may have been seen before the message that says why.
static bool may_end(const struct ph_channel *channel)
{
    const int status = atomic_load(&channel->live.status);
    return channel->kept.abort.code == 0 && !channel->kept.retired &&
           (status == 0 || status == PH_EBROKEN || status == -ESTALE);
}

static void end(struct ph_channel *channel, int code, const char *why)
{
    int whole = 0, stale = -ESTALE;
    snprintf(channel->live.why, sizeof channel->live.why, "%s",
             why); // before the status, which tells of it
    atomic_compare_exchange_strong(&channel->live.status, &whole, code);
    atomic_compare_exchange_strong(&channel->live.status, &stale, code);
    phi_log(channel->self->report, PH_LOG_WARN, "operation %llu with rank %d has ended: %s",
            (unsigned long long)channel->op_id, channel->peer->rank, why);
    if (channel->fixed.loopback) // nobody else is to know, and no stream waits
        return;
    channel->kept.abort.code = code;
    channel->peer->channels.ending++;
    tell(channel, phi_now()); // before the end of the bounce buffer, of which it is told, too
    give_back(channel);
    phi_revoke_channel(channel);
    let_go(channel);
    phi_service_wake(channel->self);
    phi_self_changed(channel->self);
}

void phi_channel_abort(struct ph_channel *channel, int code, const char *why)
{
    if (may_end(channel))
        end(channel, code, why);
}

static void say_sizes(char *text, size_t size, int sender, uint64_t got, int receiver,
                      uint64_t expected)
{
    snprintf(text, size, "rank %d sent %" PRIu64 " bytes where rank %d named %" PRIu64, sender, got,
             receiver, expected);
}

void phi_channel_mismatch(struct ph_channel *channel)
{
    struct phi_line *mine = channel->fixed.own.line;
    char why[sizeof channel->live.why];
    // The acquire pairs with the release store of the one that found the mismatch.
    if (channel->kept.retired || atomic_load_explicit(&mine->mismatch, memory_order_acquire) == 0)
        return;
    say_sizes(why, sizeof why, channel->peer->rank, atomic_load(&mine->got), channel->self->rank,
              atomic_load(&mine->expected));
    phi_channel_abort(channel, PH_EMISMATCH, why);
}

void phi_peer_mismatches(struct phi_peer *peer)
{
    for (struct ph_channel *c = peer->channels.first; peer->channels.unbound > 0 && c != NULL;
         c = c->kept.next)
        if (c->fixed.unbound)
            phi_channel_mismatch(c);
}

// ---- messages from the peer

static struct ph_channel *find(const struct phi_peer *peer, const struct phi_node_message *message)
{
    for (struct ph_channel *c = peer->channels.first; c != NULL; c = c->kept.next)
        if (c->fixed.unbound && c->fixed.index == message->a &&
            message->b == ((uint64_t)c->fixed.theirs.number << 32 | c->fixed.own.number))
            return c;
    return NULL;
}

// The end of the channel that an open round is about to make here. The peer told of this end before
// the end of its bounce buffer, which would make the channel one whose buffer was released.
struct phi_early_end {
    uint32_t mine, theirs;
    int code;
    char why[sizeof((struct ph_channel *)0)->live.why];
};

static bool is_about(const struct phi_early_end *early, uint32_t mine, uint32_t theirs)
{
    return early != NULL && early->mine == mine && early->theirs == theirs;
}

// Notes an early end. If there is no memory for it, the peer tells of it again.
static void note_early(struct phi_peer *peer, const struct phi_early_end *end)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;) {
        const struct phi_agreement *round = &key->agreement;
        if (round->state != PHI_AGREEMENT_OPEN || round->mine != end->mine ||
            round->theirs != end->theirs || phi_key_channel(key, end->mine, end->theirs) != NULL)
            continue;
        if (key->made.early == NULL)
            key->made.early = malloc(sizeof *key->made.early);
        if (key->made.early != NULL)
            *key->made.early = *end;
    }
}

bool phi_abort_early(const struct phi_key *key)
{
    return is_about(key->made.early, key->agreement.mine, key->agreement.theirs);
}

void phi_abort_made(struct ph_channel *channel)
{
    const struct phi_early_end *early = channel->kept.key->made.early;
    if (!is_about(early, channel->fixed.own.number, channel->fixed.theirs.number))
        return;
    phi_channel_abort(channel, early->code, early->why);
    channel->kept.abort.heard = true;
    free(channel->kept.key->made.early);
    channel->kept.key->made.early = NULL;
}

int phi_abort_file(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct ph_channel *channel = find(peer, message);
    struct phi_early_end what = {.mine = (uint32_t)message->b,
                                 .theirs = (uint32_t)(message->b >> 32),
                                 .code = message->c == (uint64_t)-PH_EABORTED ? PH_EABORTED
                                                                              : PH_EMISMATCH};
    if (message->c != (uint64_t)-what.code || message->bytes_size >= sizeof what.why)
        return -EBADMSG;
    memcpy(what.why, message->bytes, message->bytes_size);
    for (char *at = what.why; *at != '\0'; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
    if (channel == NULL) {
        note_early(peer, &what);
        return 0;
    }
    phi_channel_abort(channel, what.code, what.why);
    if (channel->kept.abort.code != 0 && !channel->kept.abort.heard)
        channel->kept.abort.tell_at = 0; // our message tells the peer that we know
    channel->kept.abort.heard = true;
    return 0;
}

// ---- ticks

// Returns in how many ms to come again, -1: it is over.
static int tick_one(struct ph_channel *channel, int64_t now)
{
    struct phi_abort *abort = &channel->kept.abort;
    const bool told = abort->heard && abort->sent;
    if (abort->code == 0 || abort->over)
        return -1;
    if ((!told || abort->tell_at == 0) && now >= abort->tell_at)
        tell(channel, now);
    let_go(channel); // a stream may come to another wait
    if ((told || channel->peer->state != PHI_PEER_READY) && phi_revoke_drained(channel)) {
        abort->over = true;
        channel->peer->channels.ending--;
        return -1;
    }
    return LIFT_MS;
}

int phi_abort_tick(struct phi_peer *peer)
{
    const int64_t now = phi_now();
    int soon = -1;
    if (peer->channels.unbound == 0)
        return -1;
    const bool look = peer->state == PHI_PEER_READY && now >= peer->channels.mismatches_at;
    if (look) {
        peer->channels.mismatches_at = now + LOOK_MS * PHI_MS;
        phi_peer_mismatches(peer);
    }
    for (struct ph_channel *c = peer->channels.first; peer->channels.ending > 0 && c != NULL;
         c = c->kept.next)
        if (c->fixed.unbound)
            soon = phi_soon(soon, tick_one(c, now));
    // A heartbeat may be far away.
    return peer->state == PHI_PEER_READY
               ? phi_soon(soon, phi_remaining_ms(peer->channels.mismatches_at))
               : soon;
}

bool phi_abort_untold(const struct phi_peer *peer)
{
    for (const struct ph_channel *c = peer->channels.first; peer->channels.ending > 0 && c != NULL;
         c = c->kept.next)
        if (c->kept.abort.code != 0 && !c->kept.abort.sent && !c->kept.abort.over)
            return true;
    return false;
}
