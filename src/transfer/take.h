// SPDX-License-Identifier: BSD-3-Clause
// Messages that came before a channel ended: whether one is here, and taking it.
#ifndef PHI_TRANSFER_TAKE_H
#define PHI_TRANSFER_TAKE_H

#include <stdbool.h>

struct phi_channel_call;

// phi_channel_take takes the message that the call would wait for, if it came before the channel
// ended. It returns true if the wait is over already. Use it only for a channel that the peer left,
// or whose buffer was released. It takes the peers' lock, and waits up to 2 s for the channel's
// work on streams. begun: other calls of its group are enqueued, so it is too late to refuse. Then
// it does not wait for messages that were taken of other channels: phi_channel_here has done so.
bool phi_channel_take(const struct phi_channel_call *call, void *stream, bool begun);

// phi_channel_here returns whether phi_channel_take would find the message of a channel that has
// ended. For a TRANSFER or COMPLETE it finds only a message that its sender could send alone, by
// lines or slots. The message stays there.
bool phi_channel_here(const struct phi_channel_call *call);

#endif
