// SPDX-License-Identifier: BSD-3-Clause
// Whether a channel can be used, and why not.
#ifndef PHI_ENDING_USABLE_H
#define PHI_ENDING_USABLE_H

struct ph_channel;

// phi_channel_check returns 0 or why the channel cannot be used, and notes that the application was
// told.
int phi_channel_check(struct ph_channel *channel);

// phi_channel_status is phi_channel_check for who wants to know whether what came is whole: it also
// looks whether the peer has ended its use of the channel, which this rank may not have noticed.
int phi_channel_status(struct ph_channel *channel);

#endif
