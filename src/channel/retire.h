// SPDX-License-Identifier: BSD-3-Clause
// Room for new channels: channels and operation keys that neither rank needs make way for others.
// A line or a slot passes to another channel or key only by a handshake of the two service threads,
// which the lower rank begins (it gives lines and slots). docs/protocols.md has the rules,
// tests/model explores them with the functions of this file.
#ifndef PHI_CHANNEL_RETIRE_H
#define PHI_CHANNEL_RETIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/agreement.h"

enum phi_retire_answer {
    PHI_RETIRE_YES = 1,
    PHI_RETIRE_HELD,   // the application has a handle
    PHI_RETIRE_PINNED, // a captured graph or a device channel holds it, or its flags do not rest
    PHI_RETIRE_BUSY,   // a stream touches it
    PHI_RETIRE_ROUND,  // the key is in an exchange, or in another round
};

// What one rank sees of a channel, or of a key with all its channels.
struct phi_retire_view {
    bool exchanging; // see phi_retire_exchanging
    uint32_t round;  // the present one, or the next
    bool held, pinned, busy;
};

// phi_retire_exchanging: whether the key's exchange forbids it. A whole key: while an exchange
// names it, or a round is not over. A channel (mine, theirs): while the open round is about it;
// and the rank that asks has published nothing that its peer may take and it has not: until the
// answer it publishes nothing either, so both look a pair up with the same channels.
static inline bool phi_retire_exchanging(const struct phi_agreement *agreement, bool asks,
                                         uint32_t mine, uint32_t theirs)
{
    if (agreement->state == PHI_AGREEMENT_OPEN)
        return agreement->mine == mine && agreement->theirs == theirs;
    return asks && agreement->state != PHI_AGREEMENT_IDLE;
}

// phi_retire_ending: the same, on both ranks, of a channel with a released buffer (released: the
// own one). Nobody publishes that buffer again, so there is no later round about the channel, and
// the rank that asks may go on publishing: only the present round may still be about it.
static inline bool phi_retire_ending(const struct phi_agreement *agreement, bool released,
                                     uint32_t mine, uint32_t theirs)
{
    if (agreement->state == PHI_AGREEMENT_OPEN)
        return agreement->mine == mine && agreement->theirs == theirs;
    return released && agreement->state != PHI_AGREEMENT_IDLE && agreement->mine == mine;
}

// phi_retire_judge: whether this rank can do without, where the other one's round is `round`. With
// equal rounds both ranks have come out of the same exchanges, and have the same channels.
static inline enum phi_retire_answer phi_retire_judge(const struct phi_retire_view *view,
                                                      uint32_t round)
{
    if (view->exchanging || (view->round ? view->round : 1) != (round ? round : 1))
        return PHI_RETIRE_ROUND;
    return view->pinned ? PHI_RETIRE_PINNED
           : view->busy ? PHI_RETIRE_BUSY
           : view->held ? PHI_RETIRE_HELD
                        : PHI_RETIRE_YES;
}

struct phi_peer;
struct phi_key;
struct ph_channel;
struct phi_node_message;

// Beside the line in a question: the channel has a released buffer, see phi_retire_ending.
#define PHI_RETIRE_SPENT (UINT64_C(1) << 32)

// All with the peers' lock held.

// phi_retire_room (lower rank) makes room for a line, or a slot: 0 there is some; -EAGAIN: asked
// for, or to be tried again at peer->room_at; -ENOSPC: everything is held. request: the exchange
// that needs it.
int phi_retire_room(struct phi_peer *peer, bool slot, const void *request);

// phi_retire_hopeless (higher rank): whether every slot is taken by a key that this rank holds, so
// that the lower rank cannot give one.
bool phi_retire_hopeless(struct phi_peer *peer);

// phi_retire_full_tell (lower rank) tells the peer that an exchange of the key ends for want of a
// slot; phi_retire_full_file takes that up. phi_retire_refused (higher rank): whether the lower
// rank's exchange that this one would meet has ended so: its n-th meets this rank's n-th.
void phi_retire_full_tell(struct phi_key *key);
int phi_retire_full_file(struct phi_peer *peer, const struct phi_node_message *message);
bool phi_retire_refused(struct phi_key *key);

// phi_retire_explain writes what stands in the way, for a sentence.
void phi_retire_explain(struct phi_peer *peer, char *text, size_t size);

// Lines and slots, of the lower rank; there is room. The words of a line are at their start values.
uint32_t phi_retire_line(struct phi_peer *peer);
uint32_t phi_retire_slot(struct phi_peer *peer);

// phi_retire_drop_key takes a key out, with what it alone needs; its channels are gone.
void phi_retire_drop_key(struct phi_key *key);

// phi_retire_say sends what the peer's socket had no room for, answers and FULL; false: call it
// again soon.
bool phi_retire_say(struct phi_peer *peer);

// Messages of the peer.
int phi_retire_file(struct phi_peer *peer, const struct phi_node_message *message);
int phi_retire_answered(struct phi_peer *peer, const struct phi_node_message *message);

// phi_retire_spent (lower rank) asks the peer about a channel of which a buffer was released and
// that has no handle here: YES: it is asked, else why not (yet).
enum phi_retire_answer phi_retire_spent(struct ph_channel *channel);

#endif
