// SPDX-License-Identifier: BSD-3-Clause
// A request marks a place on a stream, so that the host can ask whether all that the library
// enqueued before that place is done.
//
// A request is a small value of the caller's. It takes no memory of the library's, there is nothing
// to free, and it may be copied. It costs the stream nothing. It may be recorded again at any time,
// and is valid until its context is destroyed. A request of zeros is done.
//
// What a done operation of this rank brought is there: a get or a receive is in the buffer, and of
// a put or a send the source may be written again. Between ranks of one node, and between hosts
// over the net, a done put is also in the peer's buffer. Over the net, where a rank has a device,
// it shows there with the peer's ph_wait for the signal behind it.
//
// End of a peer. Operations get done also where the peer has ended. ph_channel_status then says
// whether everything came whole.
#ifndef PEERHOP_REQUEST_H
#define PEERHOP_REQUEST_H

#include <stdint.h>

#include <peerhop/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// The members are the library's.
struct ph_request {
    struct ph_context *context;
    const void *done;
    uint64_t number;
    uint32_t index;
    uint32_t reserved;
};

// ph_request_record marks all that was enqueued by the library on `stream` (transfer.h) so far. It
// enqueues nothing and does not block. A stream that the library has not used gives a request that
// is done. Work of others on the stream does not count, unless operations of the library stand
// behind it. Any thread that may enqueue on the stream.
//
// Errors:
// - -EINVAL: no request, or not a stream of this context.
// - -ENOTSUP: the stream captures. What a graph will do has not been done once, so it has no place.
// - PH_EDRIVER, PH_EFORKED.
// Since 0.1.
PH_API int ph_request_record(struct ph_context *context, void *stream, struct ph_request *request);

// ph_request_test returns 0 where the request is done and -EAGAIN where it is not. It takes some
// nanoseconds: it looks at one word, makes no call of the driver, runs nothing, and writes no
// sentence. So on a queue (queue.h) something else has to run the operations: the queue's worker
// does. Any thread. Errors: -EINVAL (NULL), PH_EFORKED. Since 0.1.
PH_API int ph_request_test(const struct ph_request *request);

// ph_request_wait waits until the request is done. On a queue it runs operations as ph_queue_wait
// does. At the deadline (0: the context's) it returns -ETIMEDOUT, the sentence names what the
// stream waits for, and the stream goes on. It tells of pairs that have ended as
// ph_queue_synchronize does. Any thread; any number of threads may wait.
//
// Errors: -EINVAL, -ETIMEDOUT, PH_EPEER, PH_EBROKEN, PH_EFENCED, PH_EFORKED, PH_EDRIVER (the device
// runs nothing any more). Since 0.1.
PH_API int ph_request_wait(const struct ph_request *request, int64_t deadline_ms);

// ph_request_wait_on lets what is enqueued on `stream` from now on begin when the request is done.
// It only enqueues. A request that is done enqueues nothing. `stream` is a stream of the request's
// context, and may be the one of the request. The wait is one of the library's operations on
// `stream`.
//
// A stream of a device waits by a memory operation, which takes no multiprocessor. 16 streams may
// wait so at once, those of operations with PH_ZERO_SM among them.
//
// Errors:
// - -EINVAL: no request, or not a stream of the request's context.
// - -EAGAIN: 16 streams wait already, or a queue is full.
// - -ENOTSUP: the stream captures, or the device has no memory operations.
// - -ENOMEM: a queue gets deeper than it was.
// - PH_EDRIVER, PH_EFORKED.
// Since 0.1.
PH_API int ph_request_wait_on(const struct ph_request *request, void *stream);

#ifdef __cplusplus
}
#endif
#endif
