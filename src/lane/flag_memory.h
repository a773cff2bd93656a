// SPDX-License-Identifier: BSD-3-Clause
// The memory of a pair's flags (semaphore/flags.h): which rank has which parts, and which rank maps
// them. Each rank makes the first part when it connects to the peer. It makes more parts with its
// offers, as the pair gets channels, out of PEERHOP_DEVICE_BYTES. It tells the peer of each part in
// an offer, once, and maps the peer's parts before it confirms a channel. A confirm names the parts
// that this end has of both ranks. All parts are kept until the pair is over.
//
// With the peers' lock, but for what is said to be otherwise.
#ifndef PHI_LANE_FLAG_MEMORY_H
#define PHI_LANE_FLAG_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/table.h"
#include "peer/channel.h"
#include "semaphore/flags.h"

struct phi_peer;
struct phi_reader;
struct phi_remote_export;
struct phi_writer;

// phi_flag_pair: the two devices, as a table of sizes knows them.
struct phi_table_pair phi_flag_pair(const struct phi_peer *peer);

// phi_flag_memory_is returns whether an id of a peer's export is that of a part. The peer gives
// such an id to nothing else.
static inline bool phi_flag_memory_is(uint32_t id)
{
    return id > UINT32_MAX - PHI_FLAG_PARTS;
}

// phi_flag_memory_open makes this rank's first part for a peer where both can have flags; else, or
// where it cannot be made, there are none. Without the lock. -ENOMEM.
int phi_flag_memory_open(struct phi_peer *peer);

// phi_flag_memory_grow makes the parts that the pair's channels and `more` new ones have need of,
// as far as the rank's budget goes. bound: some of these have buffers. Gives up the lock: a key of
// the peer is in an exchange of the caller's. Blocks until the deadline, not behind the
// application's streams. short: whether it would make one for one channel more.
// grows: whether it may make one for any, or another thread does; else nobody need count channels.
void phi_flag_memory_grow(struct phi_peer *peer, uint32_t more, bool bound, int64_t deadline);
bool phi_flag_memory_short(const struct phi_peer *peer, bool bound);
bool phi_flag_memory_grows(const struct phi_peer *peer);

// phi_flag_memory_close ends both ranks' parts: the memory by the device's closer. reap does so for
// a life that is over, where no handle is left by which somebody could still take what that life
// sent, as phi_reap says; it gives up the lock. forget: the peer's were those of a former life,
// never mapped.
void phi_flag_memory_close(struct phi_peer *peer);
bool phi_flag_memory_reap(struct phi_peer *peer, bool blocking);
void phi_flag_memory_forget(struct phi_peer *peer);

// When one rank tells of a part, the other one answers before it confirms a channel: with its own
// part, or with word that it makes none. owes: this rank has something to tell, with an offer.
// awaits: the peer has to answer.
bool phi_flag_memory_owes(const struct phi_peer *peer);
bool phi_flag_memory_awaits(const struct phi_peer *peer);

// The parts in an offer. encode returns the parts that it tells of, a bit for each. sent: that
// offer is under way. file: -EBADMSG, -ENOMEM.
uint32_t phi_flag_memory_encode(const struct phi_peer *peer, struct phi_writer *writer);
void phi_flag_memory_sent(struct phi_peer *peer, uint32_t parts);
int phi_flag_memory_file(struct phi_peer *peer, struct phi_reader *reader);

// phi_flag_memory_wanted is a part of the peer's that is to be mapped before a confirm, or NULL.
// importing: whether a thread maps one now, without the lock.
struct phi_remote_export *phi_flag_memory_wanted(const struct phi_peer *peer);
bool phi_flag_memory_importing(const struct phi_peer *peer);

// phi_flag_memory_usable returns the parts that this end has of both ranks, a bit for each. Without
// the first part it returns none.
uint32_t phi_flag_memory_usable(const struct phi_peer *peer);

// phi_flag_memory_own returns the addresses of a line's flags in the own memory,
// phi_flag_memory_peer those in the peer's. The parts are usable. wide: the wide slots, too.
struct phi_flag_end phi_flag_memory_own(const struct phi_peer *peer, uint32_t line, bool wide);
struct phi_flag_end phi_flag_memory_peer(const struct phi_peer *peer, uint32_t line, bool wide);

#endif
