// SPDX-License-Identifier: BSD-3-Clause
#include "release/reply.h"

#include <errno.h>
#include <string.h>

#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "release/drop.h"
#include "release/view.h"
#include "rules/retire.h"
#include "semaphore/segment.h"

static int send_refusal(const struct phi_key *key)
{
    struct phi_node_message message;
    phi_peer_message(key->peer, PHI_NODE_REFUSED, &message);
    message.a = key->op_id;
    message.b = key->role;
    message.bytes_size = sizeof key->refusal;
    memcpy(message.bytes, &key->refusal, sizeof key->refusal);
    return phi_peer_tell(key->peer, &message);
}

void phi_retire_refuse(struct phi_key *key)
{
    struct phi_peer *peer = key->peer;
    if (!phi_peer_is_lower(peer))
        return;
    key->refusal =
        (struct phi_refusal){key->refusal.count + 1, peer->room.held_here, peer->room.held_there,
                             peer->room.pinned, peer->room.exchanging};
    // A refusal that is not sent yet is replaced: it has the number of them, so the latest says
    // all. Behind others it waits for its turn: the service thread comes again.
    if (peer->replies.refusals_unsent || send_refusal(key) == -EAGAIN) {
        key->refusal_unsent = peer->replies.refusals_unsent = true;
        phi_service_wake(peer->self);
    }
}

// Returns whether all were sent.
static bool send_refusals(struct phi_peer *peer)
{
    size_t cursor = 0;
    if (!peer->replies.refusals_unsent)
        return true;
    for (struct phi_key *key; (key = phi_map_next(&peer->keys.all, &cursor)) != NULL;) {
        if (key->refusal_unsent && send_refusal(key) == -EAGAIN)
            return false;
        key->refusal_unsent = false;
    }
    peer->replies.refusals_unsent = false;
    return true;
}

int phi_retire_refusal_file(struct phi_peer *peer, const struct phi_node_message *message)
{
    int rc = 0;
    if (phi_peer_is_lower(peer) || message->bytes_size != sizeof(struct phi_refusal) ||
        message->b < PH_ROLE_SENDER || message->b > PH_ROLE_BOTH)
        return -EBADMSG;
    struct phi_key *key =
        phi_key_get(peer, message->a, phi_role_opposite((uint8_t)message->b), &rc);
    if (key == NULL || key->slot != PHI_NO_SLOT)
        return rc;
    memcpy(&key->refusal, message->bytes, sizeof key->refusal);
    phi_self_changed(peer->self);
    phi_mailbox_wake(peer->self->mailbox);
    return 0;
}

bool phi_retire_refused(struct phi_key *key)
{
    struct phi_room *room = &key->peer->room;
    if (phi_peer_is_lower(key->peer) || key->refusal.count <= key->refused)
        return false;
    room->held_here = key->refusal.held_there;
    room->held_there = key->refusal.held_here;
    room->pinned = key->refusal.pinned;
    room->exchanging = key->refusal.exchanging;
    return true;
}

static enum phi_retire_answer judge(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_key *key = phi_peer_slot(peer, message->a);
    uint32_t round = (uint32_t)message->b;
    if (key == NULL) // its offers have not been read yet, or it was never exchanged
        return message->c != PHI_NO_LINE                         ? PHI_RETIRE_ROUND
               : phi_peer_slots_grow(peer, (uint32_t)message->a) ? PHI_RETIRE_YES
                                                                 : PHI_RETIRE_BUSY;
    struct ph_channel *channel = phi_key_channel_at(key, (uint32_t)message->c);
    if (message->c != PHI_NO_LINE && channel == NULL)
        return PHI_RETIRE_ROUND;
    struct phi_retire_view view =
        message->c & PHI_RETIRE_SPENT ? phi_view_spent(key, channel) : phi_view_of(key, channel);
    return phi_retire_judge(&view, round);
}

static void carry_out(struct phi_peer *peer, const struct phi_node_message *message)
{
    struct phi_key *key = peer->keys.slots[message->a]; // as judge() has seen
    if (message->c != PHI_NO_LINE) {
        phi_channel_drop(phi_key_channel_at(key, (uint32_t)message->c));
        return;
    }
    // Offers of this life of the slot that come late are of no use any more.
    peer->keys.slot_lives[message->a] = (uint32_t)(message->b >> 32);
    if (key == NULL)
        return;
    phi_key_drop_channels(key);
    phi_key_drop(key);
}

static int send_answer(struct phi_peer *peer, const struct phi_unsent *unsent)
{
    struct phi_node_message message;
    phi_peer_message(peer, PHI_NODE_RETIRED, &message);
    message.a = unsent->slot;
    message.b = unsent->answer;
    message.c = unsent->line;
    return phi_peer_tell(peer, &message);
}

bool phi_retire_send(struct phi_peer *peer)
{
    // If we are not connected yet, we say the answers then, and there is nothing to try before.
    if (!phi_peer_connected(peer) && peer->state < PHI_PEER_READY)
        return true;
    uint32_t sent = 0;
    while (sent < peer->replies.unsent_count &&
           send_answer(peer, &peer->replies.unsent[sent]) != -EAGAIN)
        sent++;
    peer->replies.unsent_count -= sent;
    for (uint32_t i = 0; sent > 0 && i < peer->replies.unsent_count; i++)
        peer->replies.unsent[i] = peer->replies.unsent[sent + i];
    return peer->replies.unsent_count == 0 && send_refusals(peer);
}

// Says yes or no, in this order: first what the answer promises, then the answer. It is sent in any
// case, later where the peer's socket is full: this is the service thread, which comes again.
int phi_retire_file(struct phi_peer *peer, const struct phi_node_message *message)
{
    if (phi_peer_is_lower(peer) || peer->segment == NULL || message->a >= peer->segment->capacity ||
        (message->c != PHI_NO_LINE &&
         (message->c & ~PHI_RETIRE_SPENT) >= peer->segment->capacity) ||
        peer->replies.unsent_count == PHI_RETIRE_ASKED)
        return -EBADMSG;
    enum phi_retire_answer verdict = judge(peer, message);
    if (verdict == PHI_RETIRE_YES)
        carry_out(peer, message);
    peer->replies.unsent[peer->replies.unsent_count++] =
        (struct phi_unsent){message->c, (uint32_t)message->a, verdict};
    phi_retire_send(peer);
    return 0;
}
