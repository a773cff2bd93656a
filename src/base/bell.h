// SPDX-License-Identifier: BSD-3-Clause
// A bell lets one side of shared memory sleep until the other has stored something, without a system call on the
// storing side unless somebody sleeps. The bell may lie in memory that two processes map (shared futex).
//
//   waiter: phi_bell_register(b); loop { seen = phi_bell_read(b); condition met? leave the loop;
//           phi_bell_sleep(b, seen, deadline) }; phi_bell_unregister(b)
//   storer: store the condition; phi_bell_ring(b)
//
// The seq_cst operations on `sleepers` (waiter: +1 then look at `rings`; storer: the store of the condition, then read
// `sleepers`) are the two halves of a store-buffering pattern: at least one sees the other, so no ring is lost.
#ifndef PHI_BASE_BELL_H
#define PHI_BASE_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct phi_bell {
    _Atomic uint32_t rings;    // futex word
    _Atomic uint32_t sleepers; // waiters in or before the futex call
};

static inline uint32_t phi_bell_read(struct phi_bell *bell)
{
    return atomic_load_explicit(&bell->rings, memory_order_acquire);
}

// phi_bell_ring wakes all sleepers; costs one locked instruction where there are none. A `rings` that is not counted
// up without sleepers is right, because a waiter that registers later looks at the condition again after registering.
void phi_bell_ring(struct phi_bell *bell);

// phi_bell_register tells storers that this thread is about to sleep; look at the condition once more after it, then
// phi_bell_sleep (0, or -ETIMEDOUT at the deadline), then phi_bell_unregister.
void phi_bell_register(struct phi_bell *bell);
int phi_bell_sleep(struct phi_bell *bell, uint32_t seen, int64_t deadline);
void phi_bell_unregister(struct phi_bell *bell);

#endif
