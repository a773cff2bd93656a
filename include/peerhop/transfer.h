// SPDX-License-Identifier: BSD-3-Clause
// Moving data on a channel, ordered on the caller's stream.
//
// Stream. `stream` is a CUstream/cudaStream_t of the context's device in a device context (NULL is
// the legacy stream, CU_STREAM_PER_THREAD the per-thread one), and a struct ph_queue * in a host
// context (NULL is its default queue, which the context's worker runs and ph_context_destroy
// drains). Everything here only enqueues: what was enqueued on the stream before happens before,
// what is enqueued after happens after, and nothing of it has happened when the call returns. A
// stream is done also where the peer has ended before: what came whole ph_channel_status says. A
// stream that captures takes the operation into its graph, which may be replayed any number of
// times, by one rank or both. What one stream captured must stay in its order: dependencies set by
// hand (cudaStreamUpdateCaptureDependencies) may add to it, and take nothing from it; and of the
// executables of one graph one may run at a time, as of one executable CUDA runs one launch at a
// time. Else copies of ours meet at the same words of the device, and their data is undefined.
//
// Threads. Any thread; calls on one direction of one channel must be ordered (one stream, or events
// between streams).
//
// Errors of all: -EINVAL (range, role, stream), PH_EBROKEN, PH_EPEER, PH_EABORTED (the channel has
// ended), PH_ENOPATH (this end has not the import that the call needs), -EALREADY (a post before
// the complete of the one before), -EAGAIN (too many streams wait: 48, PEERHOP_KERNEL_WAITS (64)
// less PEERHOP_GRAPH_BRANCHES (16), which are left to graphs: no more of their branches may run at
// once; fewer of both on devices of less than 128 multiprocessors; or a host queue is full: 262144
// steps wait in it), -ENOTSUP (PH_ZERO_SM, see channel.h), PH_EDRIVER, PH_EFORKED. On an error
// nothing was enqueued, unless the channel's status says that it broke half-way. No call takes a
// lock that another rank can hold, allocates (but for a host queue that gets deeper than it was:
// -ENOMEM), or makes a system call of its own after the first use of a stream (of threads that call
// on one stream at once, one may yield the core to another; the first large groups that several
// threads make at the same time take memory, which the context keeps: -ENOMEM). A call that is
// captured takes a lock of the context, and is noted in memory for as long as its graph lives; a
// replay runs nothing of the library.
#ifndef PEERHOP_TRANSFER_H
#define PEERHOP_TRANSFER_H

#include <stddef.h>

#include <peerhop/channel.h>
#include <peerhop/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

// ph_put copies size bytes (0 is fine) from local_offset of this rank's buffer to peer_offset of
// the peer's. Needs the sender's role. The peer learns nothing: order it by ph_signal. Between
// devices over the net it shows with the peer's ph_wait for that signal; where it is staged (method
// "staged") the stream may have to wait until the peer waits. Since 0.1.
PH_API int ph_put(struct ph_channel *channel, size_t peer_offset, size_t local_offset, size_t size,
                  void *stream);

// ph_get copies size bytes from peer_offset of the peer's buffer to local_offset of this rank's.
// Needs the receiver's role. PH_ENOPATH where the channel is staged over the net (method "staged"):
// there the peer has to send. Since 0.1.
PH_API int ph_get(struct ph_channel *channel, size_t local_offset, size_t peer_offset, size_t size,
                  void *stream);

// ph_copy copies size bytes (0 is fine) from from_offset of the buffer of from's peer to to_offset
// of the buffer of to's peer: both are remote to the caller, and its own buffers are no part of it.
// Needs the sender's role on `to` and the receiver's on `from`, which are channels of one context,
// and may be one and the same where it has both roles. -EINVAL also where the two ranges overlap in
// one peer's memory. The peers learn nothing: order it by signals and waits on the two channels, as
// a put on `to` and a get on `from`. Until it is done, or as long as a graph has it, it holds both
// channels: neither peer's release of its buffer is DRAINED before. PH_ENOPATH names the end that
// has no import here, or is over the net where this rank has a device, or is staged there (method
// "staged"): what is staged moves only to and from its owner's streams.
// Over the net, between host memories, the bytes pass through 4 MiB of this rank's for each queue
// (the default one, too), which the first such copy of a queue takes (-ENOMEM) and the provider may
// pin; they are in the target when the copy is done. A channel that has ended says why, `to` before
// `from`; of one that ends meanwhile the other one stays good, and what the copy has brought it is
// undefined. Since 0.1.
PH_API int ph_copy(struct ph_channel *to, size_t to_offset, struct ph_channel *from,
                   size_t from_offset, size_t size, void *stream);

// ph_put_signal is ph_put, then a signal that the peer's ph_wait(size) waits for. Few signals are
// in flight per direction: the next one waits on the stream until the peer has consumed the one
// before, or, of small messages between GPUs (PEERHOP_LL_MAX, 8192 bytes at most), the one before
// that; between devices over the net 16 parts of messages are in flight. When the peer's buffer may
// be written is the caller's affair: the data is there when the ph_wait that takes the signal is
// over, and may come then or earlier, so that puts to the same place have no order before that.
// Needs the sender's role. Since 0.1.
PH_API int ph_put_signal(struct ph_channel *channel, size_t peer_offset, size_t local_offset,
                         size_t size, void *stream);

// ph_signal signals without data: it pairs with ph_wait(0). Needs the sender's role. On an unbound
// channel, too, where its order with messages is not told. Since 0.1.
PH_API int ph_signal(struct ph_channel *channel, void *stream);

// ph_wait lets the stream wait for the peer's next signal and consumes it. size is what the
// put_signal carried (0 for a bare signal). Needs the receiver's role. A signal that came before
// the peer left the job is still there for it, once the waits of the channel before it are over: a
// call waits for those, 2 s at most. So does each that takes what came before. Since 0.1.
PH_API int ph_wait(struct ph_channel *channel, size_t size, void *stream);

// ph_send and ph_recv move size bytes from the start of the sender's buffer to the start of the
// receiver's, and ph_complete lets the passive end wait until the copy is done. Portable code calls
// ph_complete after every ph_send and ph_recv; at the active end it enqueues nothing.
// - put protocol: recv says that the buffer may be written; send waits for that on its stream,
//   copies, tells; the receiver's complete waits.
// - get protocol: send says that the buffer may be read; recv waits for that, copies, tells; the
//   sender's complete waits.
//
// Both name the same size, by which both know how the message goes: where they differ, what comes
// is undefined, then and later. A copy that was done before the peer left the job is still there
// for ph_complete. Two ranks that both issue their active call first on one stream deadlock, as
// blocking sends do: ph_group does not. Between devices over the net a send waits for nobody until
// 16 parts of messages are in flight; what is larger than these moves on with the peer's ph_recv
// (get protocol) or ph_complete (put). Since 0.1.
PH_API int ph_send(struct ph_channel *channel, size_t size, void *stream);
PH_API int ph_recv(struct ph_channel *channel, size_t size, void *stream);
PH_API int ph_complete(struct ph_channel *channel, void *stream);

// ph_send_from and ph_recv_into move size bytes (0 is fine) on an unbound channel, from and into
// memory of the caller's: in a device context any that kernels of the device reach (cudaMalloc,
// pools, mapped segments, pinned host memory), in a host context any. It needs no exchange, and no
// peer ever has its address: what was enqueued behind ph_send_from may write it, what was enqueued
// behind ph_recv_into finds the message there. Messages of a direction match in order. Both ends
// name the same size; where they differ the channel ends at both with PH_EMISMATCH, whose sentence
// names both sizes, and what was delivered is undefined, but lies within the size that was named. A
// send may wait on its stream for the peer's receive, and does for what is larger than the library
// holds: two ranks that both send first on one stream may deadlock, and ph_group does not. When the
// peer has left, ph_recv_into takes what it had sent over the net where one of the ranks has a
// device. By a ring (the path report says so) it does not so far, although a send there waits for
// no receive while the ring has room: who sends last is to hear of it, by an answer or a barrier,
// before it leaves. In a host context a message takes some places of the queue for each MiB: where
// it has too few (a message of tens of GiB, or many that wait) the call is -EAGAIN, and may break
// the channel. Errors, beside those of all: -EINVAL (the channel has buffers, data is NULL where
// there is a size). Since 0.1.
PH_API int ph_send_from(struct ph_channel *channel, const void *data, size_t size, void *stream);
PH_API int ph_recv_into(struct ph_channel *channel, void *data, size_t size, void *stream);

// What an operation of a group does: as the call of its name.
enum ph_group_kind {
    PH_GROUP_SEND = 1, // ph_send and ph_complete
    PH_GROUP_RECV,     // ph_recv and ph_complete
    PH_GROUP_PUT,
    PH_GROUP_GET,
    PH_GROUP_PUT_SIGNAL,
    PH_GROUP_SIGNAL,
    PH_GROUP_WAIT,
};

// One operation of a group.
struct ph_group_op {
    enum ph_group_kind kind;
    struct ph_channel *channel;
    size_t peer_offset;  // put, get, put_signal
    size_t local_offset; // put, get, put_signal
    size_t size;
    void *data; // send, recv on an unbound channel: size bytes of the caller's; else NULL
};

// ph_group enqueues operations that have no order among themselves: first everything that tells
// peers to go on, then the copies, then the waits, so that matching groups of the ranks cannot
// deadlock whatever the order inside them. A ring, an all-to-all and a pipeline stage are groups.
// What a peer signalled, or sent without waiting, before it left is still there for a group, too.
// One order is kept: a signal, or a put_signal, tells of the puts and gets that stand before it in
// the list, on its channel.
//
// Puts and gets that follow one another go together, the pages of a cache, the tensors of a layer:
// up to 96 in one launch, which has as many blocks as one copy would (PEERHOP_COPY_BLOCKS, 64), but
// one for each at least. That is so for copies of up to 512 KiB each; over NVLink up to 32 MiB in
// all, and behind a wait at any size (a copy of more than 32 MiB has its own launch). What is
// larger is the copy engine's, which takes up to 96 at once, or behind a wait a launch each; not
// before driver and toolkit 13.0, on the legacy stream, or in a graph: there it gets them one by
// one, and over NVLink a launch those of up to 8 MiB on average. With PEERHOP_METHOD=ce all are the
// copy engine's, and with copy_kernel none. (A lone one is a launch, too, up to 8 MiB over NVLink,
// and the copy engine's in a graph.)
//
// Of unbound channels sends and receives name their memory (data), and there may be any number on
// each: those of a direction match in the order of the list, and as one after the other of
// ph_send_from and ph_recv_into. Where one of these channels ends while the group is enqueued the
// call may be PH_EBROKEN, half-way: what the group has on bound channels was enqueued as a whole
// where their ph_channel_ended is 0, and its unbound channels are broken. ph_channel_abort lets the
// peers of those go on.
//
// On a channel of this rank with itself the n-th send of the group matches its n-th receive, and is
// a copy on the stream from the one's data to the other's, which may be the same address. -EINVAL,
// nothing is enqueued: one of them has no other end in the group, their sizes differ, or they
// overlap otherwise. Nothing else goes on such a channel.
//
// All channels must belong to one context; at most one message per bound channel, direction and
// kind, else -EINVAL and nothing is enqueued. -E2BIG, nothing is enqueued: between devices over the
// net, more than 16 parts of messages go out on one channel while more than 15 messages are waited
// for. What one rank puts and the wait for it belong into matching groups, if others wait for it
// there, too. Since 0.1.
PH_API int ph_group(const struct ph_group_op *ops, size_t n, void *stream);

#ifdef __cplusplus
}
#endif
#endif
