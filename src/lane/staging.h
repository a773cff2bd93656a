// SPDX-License-Identifier: BSD-3-Clause
// Channels whose data is staged. If the net is between two ranks and one of them has a device, the
// streams of both work on slots in pinned memory of their own rank, and the net moves the slots
// (net/staging.h). The memory is part of the pair's mirrored segment. A channel has lanes in it,
// for each direction one of messages and one of signals, with slots at both ends. Both ends compute
// the size of the slots alike, from the sizes of the two buffers.
//
// If the memory of both ends is registered with the net (transport/way.h), nothing is staged. A
// rank with a device then has a lane of bells for each direction of a channel. Its streams say
// there which data the net is to move, between the buffers themselves, and which posts follow. All
// else is as between hosts: words, posts, regions.
//
// All with the peers' lock held, but for what the data path uses.
#ifndef PHI_LANE_STAGING_H
#define PHI_LANE_STAGING_H

#include <stdbool.h>
#include <stddef.h>

#include "peer/hello_wire.h"
#include "semaphore/words.h"

struct ph_channel;
struct phi_capabilities;
struct phi_channel_call;
struct phi_key;
struct phi_peer;
struct phi_stage_place;
struct phi_work;

struct phi_staging; // of a peer

// phi_staged returns whether two ranks that reach each other over the net stage their data.
bool phi_staged(const struct phi_capabilities *mine, const struct phi_capabilities *theirs);

// phi_staging_bytes of a pair's mirrored segment; 0 where it is not staged.
size_t phi_staging_bytes(const struct phi_peer *peer);

// phi_staging_open registers the memory of a new link with the device and the net. Gives up the
// lock (the peer is `preparing`). free: when no lane is left; the link stays.
int phi_staging_open(struct phi_peer *peer);
void phi_staging_free(struct phi_peer *peer);

// phi_staging_words returns the words that a hello has about staging. connect takes the peer's
// words.
struct phi_stage_words phi_staging_words(const struct phi_peer *peer);
int phi_staging_connect(struct phi_peer *peer, const struct phi_stage_words *theirs);

// phi_staging_may_register returns whether buffers that are exchanged with the peer are registered:
// always where nothing is staged. phi_staging_registered is the one place where the way of a
// channel is decided: whether the buffers of a key's open round are both registered, by what both
// ranks have said. Else it is staged.
bool phi_staging_may_register(const struct phi_peer *peer);
bool phi_staging_registered(const struct phi_key *key);

// phi_staging_make allocates what the channel of a key's open round needs; false: out of memory.
// reserve, at the lower rank, finds a place for it and publishes that in the key's slot; false:
// there is none. Both before the round is confirmed. free_place: nothing was made of it.
bool phi_staging_make(struct phi_key *key);
bool phi_staging_reserve(struct phi_key *key);
void phi_staging_free_place(struct phi_peer *peer, struct phi_stage_place *place);

// phi_staging_begin opens the lanes of a new channel, with what its key has; false: the lower rank
// has named no place. close ends them.
bool phi_staging_begin(struct ph_channel *channel, struct phi_key *key);
void phi_staging_close(struct ph_channel *channel);

// phi_staging_rests returns whether nothing of the channel is on its way, nor waits to be taken.
// For a channel that has ended it looks only at what is on its way. due returns whether a record
// came that nobody has taken.
bool phi_staging_rests(const struct ph_channel *channel);
bool phi_staging_due(const struct ph_channel *channel);

// phi_staging_sent returns whether the net has delivered all records that streams have filled, and
// carried out what they have rung for.
bool phi_staging_sent(const struct ph_channel *channel);

// The data path calls these functions without the lock, inside the channel. work fills in a step.
// kick tells the net of a call's steps.
void phi_staging_work(struct phi_work *work, const struct phi_channel_call *call,
                      const struct phi_step *step);
void phi_staging_kick(const struct phi_channel_call *call);
// phi_staging_lane: the lane of bells that a call goes by, as streams know it.
void phi_staging_lane(struct phi_work *work, const struct phi_channel_call *call);

// phi_staging_records returns how many records a call that fills slots fills.
size_t phi_staging_records(const struct phi_channel_call *call);

// phi_staging_here returns whether a whole message is here, of a channel that has ended and that no
// stream of ours touches.
bool phi_staging_here(const struct ph_channel *channel, enum phi_word word);

#endif
