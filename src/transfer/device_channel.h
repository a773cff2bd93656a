// SPDX-License-Identifier: BSD-3-Clause
// Channels in the hands of kernels of the application. A device channel pins its channel as a
// captured graph does, until it is given back.
#ifndef PHI_TRANSFER_DEVICE_CHANNEL_H
#define PHI_TRANSFER_DEVICE_CHANNEL_H

#include <peerhop/device_types.h>

struct ph_channel;
struct phi_self;

// All without the lock.

// phi_device_channel_open fills device and pins the channel. -ENOTSUP (a host context), PH_ENOPATH
// (over the net), PH_EKIND (host memory), or why the channel cannot be used.
int phi_device_channel_open(struct ph_channel *channel, struct ph_device_channel *device);

// phi_device_channel_release takes one pin back. -EINVAL: there is none.
int phi_device_channel_release(struct ph_channel *channel);

// phi_device_channels_none returns 0, or -EBUSY with a sentence that names a channel of which there
// are device channels.
int phi_device_channels_none(struct phi_self *self);

#endif
