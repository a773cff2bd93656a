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

// No peer has an address of the caller's, and a bounce buffer may be written by what is late.
static void let_go(struct ph_channel *channel)
{
    atomic_store(&channel->mine->broken, 1);
    phi_flags_end(channel);
    phi_lift_all(channel, false);
}

// An exchange of the operation begins with new bounce buffers.
static void give_back(struct ph_channel *channel)
{
    struct phi_own_buffer *own = phi_key_mine(channel->key, channel->mine_number);
    struct phi_peer_buffer *theirs = phi_key_theirs(channel->key, channel->theirs_number);
    if (own != NULL && !own->released)
        phi_release_buffer(channel->key, own);
    if (theirs != NULL)
        theirs->released = true;
}

static void tell(struct ph_channel *channel, int64_t now)
{
    struct phi_node_message message;
    phi_peer_message(channel->peer, PHI_NODE_ABORT, &message);
    message.a = channel->index;
    message.b = (uint64_t)channel->mine_number << 32 | channel->theirs_number;
    message.c = (uint64_t)-(int64_t)channel->abort.code;
    message.bytes_size = (uint32_t)strlen(channel->why);
    memcpy(message.bytes, channel->why, message.bytes_size);
    const bool sent = phi_peer_tell(channel->peer, &message) != -EAGAIN;
    channel->abort.sent = channel->abort.sent || sent;
    channel->abort.tell_at = sent ? now + RESEND_MS * PHI_MS : 0;
}

// A call that failed half-way leaves waits, too: these end, and the status is what it was. The end of
// the peer's bounce buffer may have been seen before the message that says why.
static bool may_end(const struct ph_channel *channel)
{
    const int status = atomic_load(&channel->status);
    return channel->abort.code == 0 && !channel->retired &&
           (status == 0 || status == PH_EBROKEN || status == -ESTALE);
}

static void end(struct ph_channel *channel, int code, const char *why)
{
    int whole = 0, stale = -ESTALE;
    snprintf(channel->why, sizeof channel->why, "%s", why); // before the status, which tells of it
    atomic_compare_exchange_strong(&channel->status, &whole, code);
    atomic_compare_exchange_strong(&channel->status, &stale, code);
    phi_log(channel->self->report, PH_LOG_WARN, "operation %llu with rank %d has ended: %s",
            (unsigned long long)channel->op_id, channel->peer->rank, why);
    if (channel->loopback) // nobody else is to know, and no stream waits
        return;
    channel->abort.code = code;
    channel->peer->aborts++;
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
    struct phi_line *mine = channel->mine;
    char why[sizeof channel->why];
    // Pairs with the release of who found it.
    if (channel->retired || atomic_load_explicit(&mine->mismatch, memory_order_acquire) == 0)
        return;
    say_sizes(why, sizeof why, channel->peer->rank, atomic_load(&mine->got), channel->self->rank,
              atomic_load(&mine->expected));
    phi_channel_abort(channel, PH_EMISMATCH, why);
}

void phi_peer_mismatches(struct phi_peer *peer)
{
    for (struct ph_channel *c = peer->channels; peer->unbound > 0 && c != NULL; c = c->next)
        if (c->unbound)
            phi_channel_mismatch(c);
}

// ---- messages from the peer

static struct ph_channel *find(const struct phi_peer *peer, const struct phi_node_message *message)
{
    for (struct ph_channel *c = peer->channels; c != NULL; c = c->next)
        if (c->unbound && c->index == message->a &&
            message->b == ((uint64_t)c->theirs_number << 32 | c->mine_number))
            return c;
    return NULL;
}

// Of the channel that an open round is about to make here. It was told of before the end of the
// peer's bounce buffer, by which the channel would be one whose buffer was released.
struct phi_early_end {
    uint32_t mine, theirs;
    int code;
    char why[sizeof((struct ph_channel *)0)->why];
};

static bool is_about(const struct phi_early_end *early, uint32_t mine, uint32_t theirs)
{
    return early != NULL && early->mine == mine && early->theirs == theirs;
}

// Without memory for it the peer tells of it again.
static void note_early(struct phi_peer *peer, const struct phi_early_end *end)
{
    size_t cursor = 0;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys, &cursor)) != NULL;) {
        const struct phi_agreement *round = &key->agreement;
        if (round->state != PHI_AGREEMENT_OPEN || round->mine != end->mine ||
            round->theirs != end->theirs || phi_key_channel(key, end->mine, end->theirs) != NULL)
            continue;
        if (key->early == NULL)
            key->early = malloc(sizeof *key->early);
        if (key->early != NULL)
            *key->early = *end;
    }
}

bool phi_abort_early(const struct phi_key *key)
{
    return is_about(key->early, key->agreement.mine, key->agreement.theirs);
}

void phi_abort_made(struct ph_channel *channel)
{
    const struct phi_early_end *early = channel->key->early;
    if (!is_about(early, channel->mine_number, channel->theirs_number))
        return;
    phi_channel_abort(channel, early->code, early->why);
    channel->abort.heard = true;
    free(channel->key->early);
    channel->key->early = NULL;
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
    if (channel->abort.code != 0 && !channel->abort.heard)
        channel->abort.tell_at = 0; // the peer knows by that that we do
    channel->abort.heard = true;
    return 0;
}

// ---- ticks

// Returns in how many ms to come again, -1: it is over.
static int tick_one(struct ph_channel *channel, int64_t now)
{
    struct phi_abort *abort = &channel->abort;
    const bool told = abort->heard && abort->sent;
    if (abort->code == 0 || abort->over)
        return -1;
    if ((!told || abort->tell_at == 0) && now >= abort->tell_at)
        tell(channel, now);
    let_go(channel); // a stream may come to another wait
    if ((told || channel->peer->state != PHI_PEER_READY) && phi_revoke_drained(channel)) {
        abort->over = true;
        channel->peer->aborts--;
        return -1;
    }
    return LIFT_MS;
}

int phi_abort_tick(struct phi_peer *peer)
{
    const int64_t now = phi_now();
    int soon = -1;
    if (peer->unbound == 0)
        return -1;
    const bool look = peer->state == PHI_PEER_READY && now >= peer->mismatches_at;
    if (look) {
        peer->mismatches_at = now + LOOK_MS * PHI_MS;
        phi_peer_mismatches(peer);
    }
    for (struct ph_channel *c = peer->channels; peer->aborts > 0 && c != NULL; c = c->next)
        if (c->unbound)
            soon = phi_soon(soon, tick_one(c, now));
    // A heartbeat may be far away.
    return peer->state == PHI_PEER_READY ? phi_soon(soon, phi_remaining_ms(peer->mismatches_at))
                                         : soon;
}

bool phi_abort_untold(const struct phi_peer *peer)
{
    for (const struct ph_channel *c = peer->channels; peer->aborts > 0 && c != NULL; c = c->next)
        if (c->abort.code != 0 && !c->abort.sent && !c->abort.over)
            return true;
    return false;
}
