// SPDX-License-Identifier: BSD-3-Clause
// Giving buffers back: what a rank does before it reuses or frees memory that peers may reach
// through channels.
#ifndef PEERHOP_RELEASE_H
#define PEERHOP_RELEASE_H

#include <stddef.h>
#include <stdint.h>

#include <peerhop/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// How far a release has come.
enum ph_release_state {
    PH_RELEASE_REVOKED = 1, // no peer begins a new use of the buffer
    // No peer's stream touches it any more, and no captured graph or device channel will: reuse it.
    PH_RELEASE_DRAINED = 2,
    PH_RELEASE_CLOSED = 3, // no peer maps the allocations that it lies in: free them
};

// ph_release_start gives back the memory [buffer, buffer + size): every channel of this context
// whose own buffer overlaps it ends, at both ranks, of several ranges where one of them overlaps
// it. Channels on other parts of the same allocation go on. Memory of the other ranges of such a
// channel is not DRAINED before this one is. Does not wait for peers; any thread.
//
// From now on calls on these channels return -ESTALE here, and at the peers as soon as they have
// been told. Messages that this rank sent before are still received.
//
// Operations that this rank itself has enqueued are its own affair: release a buffer in the order
// of its streams, or after them.
//
// A later exchange of the same operations, with the same memory or with other, makes new channels.
// Releasing what is released already is fine.
//
// Errors:
// - -EINVAL: no buffer, or memory that the context does not know.
// - -ENOMEM: start again.
// - PH_EFORKED.
// Since 0.1.
PH_API int ph_release_start(struct ph_context *context, const void *buffer, size_t size);

// ph_release_test says whether the releases that overlap [buffer, buffer + size) have reached the
// state. Memory of which no peer was told has reached every state. Never blocks; any thread.
//
// It returns 0 where they have, and else:
// - -EAGAIN: they have not.
// - -EBUSY: nothing but captured graphs and device channels is in the way. The sentence names them.
// - -EINVAL: something on the range has never been released: a channel, or a buffer of which an
//   exchange that is not over, or failed, has told a peer.
// - PH_EBROKEN, PH_EPEER: the pair with a peer in the way has ended, whatever ended it (an abort,
//   an expulsion, a later life, a lost connection), the peer may live on, and no call has told this
//   application so far. The code is that of the end, and comes once: the peer's streams may have
//   been held until now, so ask again.
// - PH_EFENCED: the state is not reached and this rank is fenced. It comes each time: destroy the
//   context.
// Since 0.1.
PH_API int ph_release_test(struct ph_context *context, const void *buffer, size_t size,
                           enum ph_release_state state);

// ph_release_wait waits until ph_release_test would return 0, at most deadline_ms (0: the
// context's). Any thread.
//
// After an error the release goes on, and may be waited for again.
//
// The release needs no call of the peers' applications, with one exception: PH_RELEASE_CLOSED for
// memory of cudaMalloc and of pools. The peers unmap that in ph_reap and ph_context_destroy, or by
// PEERHOP_REAP=idle.
//
// A peer's stream that waits for a word that only this rank could still send is let go: see
// docs/lifetime.md.
//
// Errors:
// - -EBUSY: at the deadline, where nothing but captured graphs and device channels is in the way.
//   The sentence is as for -ETIMEDOUT.
// - -ETIMEDOUT: at the deadline, else. The sentence says how far the release has come and names the
//   ranks, operations, streams and graphs that are missing.
// - PH_EBROKEN, PH_EPEER, PH_EFENCED: as ph_release_test, at once.
// - PH_EBROKEN, PH_EPEER: also at the deadline, in place of -ETIMEDOUT, of a pair that is not in
//   the way.
// Since 0.1.
PH_API int ph_release_wait(struct ph_context *context, const void *buffer, size_t size,
                           enum ph_release_state state, int64_t deadline_ms);

// ph_reap unmaps what peers have released, and what no channel uses any more. It also frees the
// device memory of each life of a peer that is over (4 to 46 MiB, by the channels that the pair
// had), once a later life was met and the handles on its channels are closed. Any thread.
//
// The driver unmaps cudaMalloc, pool and host memory only when every stream of the device is done
// with what it had. Until then no thread of the process can launch anything: call ph_reap where the
// device is quiet. It is not begun while an operation of the library's is in flight.
//
// Blocks at most deadline_ms (0: the context's). What the driver has begun goes on by itself; call
// ph_reap again for the rest.
//
// While it waits it tells of pairs that have ended, as ph_queue_synchronize does: call it again.
//
// Errors:
// - -ETIMEDOUT: the sentence says what is in the way (of the library's own operations, which word
//   of which rank).
// - PH_EPEER, PH_EBROKEN, PH_EFENCED: a pair has ended, as above.
// - -EINVAL, PH_EFORKED.
// Since 0.1.
PH_API int ph_reap(struct ph_context *context, int64_t deadline_ms);

#ifdef __cplusplus
}
#endif
#endif
