// SPDX-License-Identifier: BSD-3-Clause
// What came before a channel ended: whether a message is here, and taking it.
#ifndef PHI_TRANSFER_TAKE_H
#define PHI_TRANSFER_TAKE_H

#include <stdbool.h>

struct phi_channel_call;

// phi_channel_take takes the message that the call would wait for, if it came before the channel
// ended: true where the wait is over already. Only of a channel that the peer left, or whose buffer
// was released. Takes the peers' lock, and waits up to 2 s for what of the channel is on a stream.
// begun: others of its group are enqueued, so that it is too late to refuse, and what was taken of
// other channels is not waited for: phi_channel_here has done so.
bool phi_channel_take(const struct phi_channel_call *call, void *stream, bool begun);

// phi_channel_here: whether phi_channel_take would find the message, of a channel that has ended;
// of a TRANSFER or COMPLETE, one that its sender could send alone, by lines or slots. It stays
// there.
bool phi_channel_here(const struct phi_channel_call *call);

#endif
