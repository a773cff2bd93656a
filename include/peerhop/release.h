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
// whose own buffer overlaps it ends, at both ranks. From now on calls on these channels return
// -ESTALE here, and at the peers as soon as they have been told; what this rank sent before is
// still received. Channels on other parts of the same allocation go on. What this rank itself has
// enqueued is its own affair: release a buffer in the order of its streams, or after them. A later
// exchange of the same operations, with the same memory or with other, makes new channels.
// Releasing what is released already is fine. Does not wait for peers; any thread. Errors: -EINVAL
// (no buffer, or memory that the context does not know), -ENOMEM (start again), PH_EFORKED. Since
// 0.1.
PH_API int ph_release_start(struct ph_context *context, const void *buffer, size_t size);

// ph_release_test returns 0 where the releases that overlap [buffer, buffer + size) have reached
// the state, -EAGAIN where they have not, -EBUSY where nothing but captured graphs and device
// channels is in the way (the sentence names them), and -EINVAL where a channel on the range, or
// what an exchange that is not over or failed has told a peer of it, has never been released.
// Memory that no peer was told of has reached every state. Where the pair with a peer in the way
// has ended, whatever ended it (an abort, an expulsion, a later life, a lost connection), the peer
// may live on, and no call has told this application so far, the answer is the code of that, once
// (PH_EBROKEN, PH_EPEER): its streams may have been held until now, ask again. PH_EFENCED, each
// time, where the state is not reached and this rank is fenced: destroy the context. Never blocks;
// any thread. Since 0.1.
PH_API int ph_release_test(struct ph_context *context, const void *buffer, size_t size,
                           enum ph_release_state state);

// ph_release_wait waits until ph_release_test would return 0, at most deadline_ms (0: the
// context's). At the deadline -EBUSY where nothing but captured graphs and device channels is in
// the way, else -ETIMEDOUT; the sentence says how far the release has come and names the ranks,
// operations, streams and graphs that are missing. PH_EBROKEN, PH_EPEER and PH_EFENCED as
// ph_release_test, at once; PH_EBROKEN and PH_EPEER also at the deadline, in place of -ETIMEDOUT,
// of a pair that is not in the way. The release goes on, and may be waited for again. It needs no
// call of the peers' applications, but PH_RELEASE_CLOSED for memory of cudaMalloc and of pools
// does: they unmap it in ph_reap and ph_context_destroy, or by PEERHOP_REAP=idle. A peer's stream
// that waits for a word that only this rank could still send is let go: see docs/lifetime.md. Any
// thread. Since 0.1.
PH_API int ph_release_wait(struct ph_context *context, const void *buffer, size_t size,
                           enum ph_release_state state, int64_t deadline_ms);

// ph_reap unmaps what peers have released, and what no channel uses any more, and frees the device
// memory (44 MiB) of each life of a peer that is over, once a later life was met and the handles on
// its channels are closed. The driver does that for cudaMalloc, pool and host memory only when
// every stream of the device is done with what it had, and until then no thread of the process can
// launch anything: call it where the device is quiet. It is not begun while an operation of the
// library's is in flight. Blocks at most deadline_ms (0: the context's), then -ETIMEDOUT: the
// sentence says what is in the way (of the library's own operations, which word of which rank).
// What the driver has begun goes on by itself; call it again for the rest. While it waits it tells
// of pairs that have ended, as ph_queue_synchronize: call it again. Errors: -EINVAL, -ETIMEDOUT,
// PH_EPEER, PH_EBROKEN, PH_EFENCED, PH_EFORKED. Any thread. Since 0.1.
PH_API int ph_reap(struct ph_context *context, int64_t deadline_ms);

#ifdef __cplusplus
}
#endif
#endif
