// SPDX-License-Identifier: BSD-3-Clause
// A kernel's view of a channel, as plain structs that host and device code share. ph_channel_device
// (channel.h) makes them, kernels are passed them by value, and the functions of device.cuh use
// them. Addresses are those of the context's device. Only the member timeout_ns is the
// application's.
#ifndef PEERHOP_DEVICE_TYPES_H
#define PEERHOP_DEVICE_TYPES_H

#include <stdint.h>

// Results of device functions, as ph_strerror knows them.
enum ph_device_result {
    PH_DEVICE_OK = 0,
    PH_DEVICE_INVALID = -22,   // a range outside the buffers, a missing role, too large for lines
    PH_DEVICE_TIMEDOUT = -110, // timeout_ns has passed: nothing was sent or taken
    PH_DEVICE_NOPATH = -5001,  // a value (ll_signal) on a channel without flags
    PH_DEVICE_ENDED = -5005,   // the channel has ended: ph_channel_ended says why
};

// The most bytes that go by ll in one message.
#define PH_DEVICE_LL_MAX 8192

// Signals of one direction of a channel.
struct ph_device_way {
    uint64_t own, peer; // struct ph_device_lane here and at the peer; 0: the channel has no flags
    uint64_t slots;     // of lines: the peer's (outgoing), the own ones (incoming)
    uint64_t word;      // in host memory; 0: this rank has no part in the direction
    // Messages up to so many bytes go by ll, and by sm; larger ones by word.
    uint64_t ll_max, sm_max;
};

// A channel, as kernels know it.
struct ph_device_channel {
    uint64_t local, remote;           // the two buffers; remote 0: this end cannot reach it
    uint64_t local_size, remote_size; // in bytes
    uint64_t timeout_ns; // after so long a wait gives up; 0: never. Made: the context's deadline
    uint64_t over;       // a word, not 0 when the channel has ended
    struct ph_device_way out, in;
};

// Flags in device memory. docs/protocols.md, "Messages by flags", says who writes what.
#define PH_DEVICE_LL_SLOT    (2 * PH_DEVICE_LL_MAX + 128)
#define PH_DEVICE_LL_SLOTS   2
#define PH_DEVICE_LL_REFRESH (1u << 30)
#define PH_DEVICE_BLOCKS     128

// The flags of one direction.
struct ph_device_lane {
    uint32_t pushed, credit, taken;
    uint32_t moved, go, allowed;
    // the first ones are of messages of several blocks, which kernels have not
    uint32_t reserved[26];
    uint32_t full[PH_DEVICE_BLOCKS];
    uint64_t reserved_too[PH_DEVICE_BLOCKS];
};

// The bits of the word.
#define PH_DEVICE_NOTED 4u // a signal has come
#define PH_DEVICE_FREE  8u // the signal before was taken

#endif
