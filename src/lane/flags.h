// SPDX-License-Identifier: BSD-3-Clause
// The flags of a channel (semaphore/flags.h), in the memory of both ranks (lane/flag_memory.h). If
// both ends have flags, the channel's messages move by ll, by sm or by words, by their size
// and the sender's table. Without flags all messages move by words.
#ifndef PHI_LANE_FLAGS_H
#define PHI_LANE_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "peer/channel.h"
#include "semaphore/words.h"
#include "transport/transport.h"

struct phi_peer;

struct phi_limits;

// phi_flags_table returns the table of a buffer of this rank with these limits. The table depends
// on nothing else that changes in the peer's life.
struct phi_flag_table phi_flags_table(const struct phi_peer *peer, const struct phi_limits *own);

// phi_flags_give lets a new channel use flags, as far as these parts have those of its line. Both
// ends confirmed that they have the parts (a bit for each).
void phi_flags_give(struct ph_channel *channel, uint32_t parts);

// phi_flags_ring lets a new unbound channel use its bounce buffers as rings, where the tables of
// its senders allow it. Both ends confirmed that they have flags, and both reach the other's
// buffer.
void phi_flags_ring(struct ph_channel *channel);

// phi_flags_lane_of is where the lane of a direction's word lies among those of either end, in
// bytes.
size_t phi_flags_lane_of(const struct ph_channel *channel, bool outgoing, enum phi_word word);

// phi_flags_here returns whether a message of that size is in the lane of an ended channel. No
// stream of ours touches that channel any more, and the peer cannot write there again. The message
// stays there. Without the lock; reads device memory.
bool phi_flags_here(const struct ph_channel *channel, bool outgoing, enum phi_word word,
                    enum phi_method method, size_t size);

// phi_flags_take_moved takes a message by sm that phi_flags_here has found; one by ll is taken
// by a stream. Without the lock; writes device memory.
bool phi_flags_take_moved(const struct ph_channel *channel, bool outgoing, enum phi_word word);

// phi_flags_count counts a step that is on a stream now, while its caller is inside the channel.
void phi_flags_count(struct ph_channel *channel, bool outgoing, const struct phi_step *step);

// phi_flags_rest returns whether the lanes are as they were before any message, but for their
// numbers: each message was given and taken. Another channel may go on from there. phi_flags_rest
// does not look at the work that this end still has on streams. phi_flags_stuck returns whether the
// lanes will never rest again.
bool phi_flags_rest(struct ph_channel *channel);
bool phi_flags_stuck(struct ph_channel *channel);

// phi_flags_end ends the waits of a channel for flags that do not come any more.
void phi_flags_end(struct ph_channel *channel);

// phi_flags_method returns how a message of a channel moves. phi_flags_signal_lines returns up to
// how many bytes signals go by ll; the channel's table has that number for sends.
enum phi_method phi_flags_method(const struct ph_channel *channel, bool outgoing,
                                 enum phi_call call, size_t size);
uint64_t phi_flags_signal_lines(const struct ph_channel *channel, bool outgoing);

// phi_flags_none returns why a channel without PH_ZERO_SM has no flags.
enum phi_reason phi_flags_none(const struct ph_channel *channel);

// phi_flags_not_ring returns why a direction of an unbound channel is no ring.
enum phi_reason phi_flags_not_ring(const struct ph_channel *channel);

// phi_flags_not_wide returns why what this rank sends does not go by wide lines.
enum phi_reason phi_flags_not_wide(const struct ph_channel *channel);

#endif
