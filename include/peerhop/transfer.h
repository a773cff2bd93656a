// SPDX-License-Identifier: BSD-3-Clause
// Moving data on a channel, ordered on the caller's stream.
//
// Stream. In a device context `stream` is a CUstream or cudaStream_t of the context's device; NULL
// is the legacy stream, CU_STREAM_PER_THREAD the per-thread one. In a host context it is a struct
// ph_queue *; NULL is the context's default queue, which the context's worker runs and
// ph_context_destroy drains.
//
// Order. Every call here only enqueues. Work that was enqueued on the stream before happens before,
// work that is enqueued after happens after. Nothing of the call has happened when it returns.
//
// End of a peer. A stream gets done even where the peer has ended before. ph_channel_status then
// says whether everything came whole.
//
// Graphs. A stream that captures takes the operation into its graph. The graph may be replayed any
// number of times, by one rank or both. Work that one stream captured must stay in its order:
// dependencies set by hand (cudaStreamUpdateCaptureDependencies) may add to it, and take nothing
// from it. Of the executables of one graph one may run at a time, as CUDA runs one launch of an
// executable at a time. Else copies of ours meet at the same words of the device, and their data is
// undefined. A captured call takes a lock of the context, and is noted in memory for as long as its
// graph lives. A replay runs nothing of the library.
//
// Threads. Any thread. Calls on one direction of one channel must be ordered (one stream, or events
// between streams).
//
// Errors. On an error nothing was enqueued, unless the channel's status says that it broke
// half-way. Errors of all calls:
// - -EINVAL: range, role, stream.
// - PH_EBROKEN, PH_EPEER, PH_EABORTED: the channel has ended.
// - PH_ENOPATH: this end has not the import that the call needs.
// - -EALREADY: a post before the complete of the one before.
// - -EAGAIN: too many streams wait. At most 48 may: PEERHOP_KERNEL_WAITS (64) less
//   PEERHOP_GRAPH_BRANCHES (16). The 16 are left to graphs, of which no more branches may run at
//   once. Both are fewer on devices of less than 128 multiprocessors. Or a host queue is full:
//   262144 steps wait in it.
// - -ENOTSUP: PH_ZERO_SM, see channel.h.
// - -ENOMEM: a host queue gets deeper than it was, or several threads make their first large groups
//   at the same time.
// - PH_EDRIVER, PH_EFORKED.
//
// Cost. No call takes a lock that another rank can hold. No call allocates, but for these:
// - A host queue that gets deeper than it was takes memory.
// - The first large groups that several threads make at the same time take memory, which the
//   context keeps.
// - The first ph_copy of a queue over the net takes memory, as ph_copy says.
// - A captured call is noted in memory, as above.
//
// After the first use of a stream no call makes a system call of its own, but for these:
// - Of threads that call on one stream at once, one may yield the core to another. So may a thread
//   whose copy goes over the net, while another thread polls the net.
// - A call that takes what came before the peer ended may sleep, as ph_wait says.
// - A call that allocates, as above.
#ifndef PEERHOP_TRANSFER_H
#define PEERHOP_TRANSFER_H

#include <stddef.h>

#include <peerhop/channel.h>
#include <peerhop/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

// ph_put copies size bytes (0 is fine) from local_offset of this rank's buffer to peer_offset of
// the peer's. Needs the sender's role.
//
// The peer learns nothing: order the copy by ph_signal. Between devices over the net the data shows
// with the peer's ph_wait for that signal. Where the channel is staged (method "staged") the stream
// may have to wait until the peer waits. Since 0.1.
PH_API int ph_put(struct ph_channel *channel, size_t peer_offset, size_t local_offset, size_t size,
                  void *stream);

// ph_get copies size bytes from peer_offset of the peer's buffer to local_offset of this rank's.
// Needs the receiver's role. PH_ENOPATH where the channel is staged over the net (method "staged"):
// there the peer has to send. Since 0.1.
PH_API int ph_get(struct ph_channel *channel, size_t local_offset, size_t peer_offset, size_t size,
                  void *stream);

// ph_copy copies size bytes (0 is fine) from the buffer of one peer to that of another: from
// from_offset of the buffer of from's peer to to_offset of the buffer of to's peer. Both are remote
// to the caller, and its own buffers are no part of the copy.
//
// Needs the sender's role on `to` and the receiver's on `from`. They are channels of one context,
// and may be one and the same where it has both roles.
//
// The peers learn nothing: order the copy by signals and waits on the two channels, as a put on
// `to` and a get on `from`.
//
// Until the copy is done, or as long as a graph has it, it holds both channels: neither peer's
// release of its buffer is DRAINED before.
//
// Over the net, between host memories, the bytes pass through 4 MiB of this rank's for each queue
// (the default one, too). The first such copy of a queue takes this memory, and the provider may
// pin it. The bytes are in the target when the copy is done.
//
// A channel that has ended says why, `to` before `from`. Where one channel ends meanwhile the other
// one stays good, and the data that the copy has brought to it is undefined.
//
// Errors, beside those of all:
// - -EINVAL: the two ranges overlap in one peer's memory.
// - PH_ENOPATH: an end has no import here, or is over the net where this rank has a device, or is
//   staged there (method "staged"). The sentence names the end. Staged data moves only to and from
//   its owner's streams.
// - -ENOMEM: the 4 MiB of a queue.
// Since 0.1.
PH_API int ph_copy(struct ph_channel *to, size_t to_offset, struct ph_channel *from,
                   size_t from_offset, size_t size, void *stream);

// ph_put_signal is ph_put, then a signal that the peer's ph_wait(size) waits for. Needs the
// sender's role.
//
// Few signals are in flight per direction. The next signal waits on the stream until the peer has
// consumed the one before. Of small messages between GPUs (PEERHOP_LL_MAX, 8192 bytes at most) it
// waits for the one before that. Between devices over the net 16 parts of messages are in flight.
//
// The caller sees to it that the peer's buffer may be written. The data is there when the ph_wait
// that takes the signal is over, and may come then or earlier. So puts to the same place have no
// order before that. Since 0.1.
PH_API int ph_put_signal(struct ph_channel *channel, size_t peer_offset, size_t local_offset,
                         size_t size, void *stream);

// ph_signal signals without data: it pairs with ph_wait(0). Needs the sender's role. An unbound
// channel takes it, too; its order with the channel's messages is not told. Since 0.1.
PH_API int ph_signal(struct ph_channel *channel, void *stream);

// ph_wait lets the stream wait for the peer's next signal and consumes it. size is that of the
// put_signal (0 for a bare signal). Needs the receiver's role.
//
// A signal that came before the peer left the job is still there for ph_wait. To take it, the call
// itself waits until the earlier waits of the channel are over, 2 s at most. ph_complete, ph_recv,
// ph_recv_into and ph_group wait in the same way, and as long, where they take what came before the
// peer left. Since 0.1.
PH_API int ph_wait(struct ph_channel *channel, size_t size, void *stream);

// ph_send and ph_recv move size bytes from the start of the sender's buffer to the start of the
// receiver's, and ph_complete lets the passive end wait until the copy is done. Portable code calls
// ph_complete after every ph_send and ph_recv; at the active end it enqueues nothing.
// - put protocol: recv says that the buffer may be written. send waits for that on its stream,
//   copies, and tells the receiver. The receiver's complete waits.
// - get protocol: send says that the buffer may be read. recv waits for that, copies, and tells the
//   sender. The sender's complete waits.
//
// Both ends name the same size, by which both know how the message goes. Where the sizes differ,
// the data that comes is undefined, then and later.
//
// A copy that was done before the peer left the job is still there for ph_complete.
//
// Two ranks that both issue their active call first on one stream deadlock, as blocking sends do:
// ph_group does not.
//
// Between devices over the net a send waits for nobody until 16 parts of messages are in flight. A
// larger message moves on with the peer's ph_recv (get protocol) or ph_complete (put). Since 0.1.
PH_API int ph_send(struct ph_channel *channel, size_t size, void *stream);
PH_API int ph_recv(struct ph_channel *channel, size_t size, void *stream);
PH_API int ph_complete(struct ph_channel *channel, void *stream);

// ph_send_from and ph_recv_into move size bytes (0 is fine) on an unbound channel, from and into
// memory of the caller's. In a device context this is any memory that kernels of the device reach
// (cudaMalloc, pools, mapped segments, pinned host memory), in a host context any memory. It needs
// no exchange, and no peer ever has its address.
//
// Work that is enqueued behind ph_send_from may write the memory. Work that is enqueued behind
// ph_recv_into finds the message there. Messages of a direction match in order.
//
// Both ends name the same size. Where the sizes differ the channel ends at both with PH_EMISMATCH,
// whose sentence names both sizes. The data that was delivered is then undefined, but lies within
// the size that was named.
//
// A send may wait on its stream for the peer's receive, and does so for a message that is larger
// than the library holds. Two ranks that both send first on one stream may deadlock; ph_group does
// not.
//
// When the peer has left, ph_recv_into takes what the peer had sent over the net where one of the
// ranks has a device. By a ring (the path report says so) it does not so far, although a send there
// waits for no receive while the ring has room. So the rank that sends last has to hear of the
// receipt, by an answer or a barrier, before it leaves.
//
// Errors, beside those of all:
// - -EINVAL: the channel has buffers, or data is NULL where there is a size.
// - -EAGAIN: in a host context the queue has too few places. A message takes some for each MiB, so
//   a message of tens of GiB, or many that wait, may be too much. The call may break the channel.
// Since 0.1.
PH_API int ph_send_from(struct ph_channel *channel, const void *data, size_t size, void *stream);
PH_API int ph_recv_into(struct ph_channel *channel, void *data, size_t size, void *stream);

// The kinds of operations of a group. Each does what the call of its name does.
enum ph_group_kind {
    PH_GROUP_SEND = 1, // ph_send and ph_complete
    PH_GROUP_RECV,     // ph_recv and ph_complete
    PH_GROUP_PUT,
    PH_GROUP_GET,
    PH_GROUP_PUT_SIGNAL,
    PH_GROUP_SIGNAL,
    PH_GROUP_WAIT,
    PH_GROUP_PUT_PAGES, // pages.h
    PH_GROUP_GET_PAGES,
};

// One operation of a group.
struct ph_group_op {
    enum ph_group_kind kind;
    struct ph_channel *channel;
    size_t peer_offset;  // put, get, put_signal
    size_t local_offset; // put, get, put_signal
    size_t size;
    // send, recv on an unbound channel: size bytes of the caller's; put_pages, get_pages: a struct
    // ph_pages; else NULL
    void *data;
};

// ph_group enqueues operations that have no order among themselves. It enqueues first everything
// that tells peers to go on, then the copies, then the waits. So matching groups of the ranks
// cannot deadlock, whatever the order inside them. A ring, an all-to-all and a pipeline stage are
// groups.
//
// One order is kept: a signal, or a put_signal, tells of the puts and gets that stand before it in
// the list, on its channel.
//
// All channels must belong to one context. A bound channel has at most one message per direction
// and kind.
//
// A put of one rank and the wait for it belong into matching groups, if other ranks wait for it
// there, too.
//
// A signal that a peer gave, or a message that it sent without waiting, before it left is still
// there for a group, too.
//
// Unbound channels. Sends and receives name their memory (data), and there may be any number on
// each channel. Those of a direction match in the order of the list, and as one after the other of
// ph_send_from and ph_recv_into.
//
// If an unbound channel ends while the group is enqueued the call may be PH_EBROKEN, half-way. The
// operations on bound channels were then enqueued as a whole where their ph_channel_ended is 0, and
// the unbound channels of the group are broken. ph_channel_abort lets the peers of those go on.
//
// A channel of this rank with itself. The n-th send of the group matches its n-th receive. The pair
// is a copy on the stream from the one's data to the other's, which may be the same address.
// Nothing else goes on such a channel.
//
// Puts and gets that follow one another go together, e.g. the pages of a cache or the tensors of a
// layer:
// - Copies of up to 512 KiB each go up to 96 in one launch. So do, over NVLink, copies of up to 32
//   MiB in all, and behind a wait copies of any size (a copy of more than 32 MiB has its own
//   launch). A launch has as many blocks as one copy would (PEERHOP_COPY_BLOCKS, 64), but at least
//   one for each copy.
// - Larger copies are the copy engine's. It takes up to 96 at once, or behind a wait a launch each.
//   Before driver and toolkit 13.0, on the legacy stream and in a graph it gets them one by one,
//   and over NVLink those of up to 8 MiB on average are a launch.
// - With PEERHOP_METHOD=ce all copies are the copy engine's, with copy_kernel none.
// - A lone copy is a launch, too, of up to 8 MiB over NVLink, and the copy engine's in a graph.
//
// Errors, beside those of all. With these two nothing is enqueued:
// - -EINVAL: the channels are of several contexts, or a bound channel has two messages of a
//   direction and kind. Of a channel of this rank with itself: a send or receive has no other end
//   in the group, or their sizes differ, or they overlap and are not at the same address.
// - -E2BIG: between devices over the net, more than 16 parts of messages go out on one channel
//   while more than 15 messages are waited for.
// Since 0.1.
PH_API int ph_group(const struct ph_group_op *ops, size_t n, void *stream);

#ifdef __cplusplus
}
#endif
#endif
