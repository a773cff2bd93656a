// SPDX-License-Identifier: BSD-3-Clause
// The end of one unbound channel, at both ends: one of them aborts it, or takes a message of
// another size than it named. The waits of streams go on, and the bounce buffers are given back. An
// exchange of the operation yields another channel. All with the lock.
#ifndef PHI_RELEASE_ABORT_H
#define PHI_RELEASE_ABORT_H

#include <stdbool.h>

struct ph_channel;
struct phi_key;
struct phi_node_message;
struct phi_peer;

// phi_channel_abort ends a channel with a code (PH_EABORTED, PH_EMISMATCH) and the sentence that
// calls have from then on, and tells the peer. It changes nothing of a channel that has ended
// already.
void phi_channel_abort(struct ph_channel *channel, int code, const char *why);

// phi_channel_mismatch looks whether a message of another size has come, and ends the channel then.
// phi_peer_mismatches does so for all channels of a peer.
void phi_channel_mismatch(struct ph_channel *channel);
void phi_peer_mismatches(struct phi_peer *peer);

// phi_abort_file is a PHI_NODE_ABORT of the peer.
int phi_abort_file(struct phi_peer *peer, const struct phi_node_message *message);

// phi_abort_early returns whether the peer, whose exchange was over before this rank's, has ended
// the channel that the open round of the key is to make. phi_abort_made ends it then, once it is
// made.
bool phi_abort_early(const struct phi_key *key);
void phi_abort_made(struct ph_channel *channel);

// phi_abort_untold returns whether the peer is still to be told of such an end. The peer is told of
// it before it is told of the end of a bounce buffer.
bool phi_abort_untold(const struct phi_peer *peer);

// phi_abort_tick looks for mismatches, tells what is to be told, and lets waits go that came since;
// returns in how many ms to call it again, -1: not by the clock.
int phi_abort_tick(struct phi_peer *peer);

#endif
