// SPDX-License-Identifier: BSD-3-Clause
// A queue is to a host context what a CUDA stream is to a device context: an ordered worker.
#ifndef PEERHOP_QUEUE_H
#define PEERHOP_QUEUE_H

#include <stdint.h>

#include <peerhop/context.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ph_queue;

// ph_queue_create makes a queue of a host context (-EINVAL in a device context). Operations
// enqueued on it run in order: at once where the queue is empty and nothing must be waited for, by
// the thread that synchronises, or by the queue's worker within a millisecond. The context owns
// what is left of it at its end. One thread at a time may use a queue; several queues may run at
// once. Since 0.1.
PH_API int ph_queue_create(struct ph_context *context, struct ph_queue **queue);

// ph_queue_synchronize runs and waits until everything enqueued is done. At the deadline (0: the
// context's) it returns -ETIMEDOUT, the sentence names the word and peer it waited for, and the
// queue goes on. It also tells of a pair that has ended while both ranks live (an expulsion, an
// abort, a lost connection), once, where no call has so far: operations of either rank may be held
// until it is known. The code is that of the pair (PH_EPEER, PH_EBROKEN), or PH_EFENCED where this
// rank is fenced. It comes at once where operations of this rank are held or it is fenced, else at
// the deadline in place of -ETIMEDOUT; the sentence names the rank, and the queue goes on: call
// again. Errors: -EINVAL, -ETIMEDOUT, PH_EPEER, PH_EBROKEN, PH_EFENCED, PH_EFORKED. Since 0.1.
PH_API int ph_queue_synchronize(struct ph_queue *queue, int64_t deadline_ms);

// ph_queue_progress tells how many operations were enqueued on the queue so far, and how many of
// these, in their order, are done; either may be NULL. A call that enqueues may add several. What a
// done operation brought is there. Does not block; any thread. Errors: -EINVAL (NULL), PH_EFORKED.
// Since 0.1.
PH_API int ph_queue_progress(struct ph_queue *queue, uint64_t *issued, uint64_t *done);

// ph_queue_wait is ph_queue_synchronize for the first `number` operations, as ph_queue_progress
// counts them: it waits for nothing that was enqueued behind them. Any number of threads may wait,
// also while another one enqueues. -EINVAL also where fewer were enqueued. Since 0.1.
PH_API int ph_queue_wait(struct ph_queue *queue, uint64_t number, int64_t deadline_ms);

// ph_queue_host enqueues a call of fn(opaque). It runs on the thread that runs the queue and must
// not use the queue. Errors: -EINVAL, -EAGAIN (the queue is full, see transfer.h), -ENOMEM. Since
// 0.1.
PH_API int ph_queue_host(struct ph_queue *queue, void (*fn)(void *opaque), void *opaque);

// ph_queue_destroy ends an idle queue and clears *queue; -EBUSY where operations are left. Since
// 0.1.
PH_API int ph_queue_destroy(struct ph_queue **queue);

#ifdef __cplusplus
}
#endif
#endif
