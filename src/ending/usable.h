// SPDX-License-Identifier: BSD-3-Clause
// The state of a channel: whether it can be used, and why not; and whether it did what it was used
// for.
#ifndef PHI_ENDING_USABLE_H
#define PHI_ENDING_USABLE_H

#include <stdbool.h>

struct ph_channel;

// phi_channel_check returns 0 or why the channel cannot be used, and notes that the application was
// told.
int phi_channel_check(struct ph_channel *channel);

// phi_channel_ended is phi_channel_check for a caller that asks nothing else. It also looks whether
// the peer has ended its use of the channel, which this rank may not have noticed.
int phi_channel_ended(struct ph_channel *channel);

// phi_channel_status returns 0 or, with a sentence, why not all work of the operations that are
// done was done.
int phi_channel_status(struct ph_channel *channel);

// phi_channel_whole (with the lock) returns whether all work of this end's operations that are done
// was done, as far as that is known by now.
bool phi_channel_whole(struct ph_channel *channel);

// phi_channel_why returns the sentence for a result with which the channel has ended.
const char *phi_channel_why(const struct ph_channel *channel, int code);

#endif
