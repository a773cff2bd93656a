// SPDX-License-Identifier: BSD-3-Clause
// Exchange: ranks that name the same operations meet, and get a channel for each.
#ifndef PEERHOP_CHANNEL_H
#define PEERHOP_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#include <peerhop/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Which way data goes. The peer of a sender names itself receiver; both pairs with both.
enum ph_role {
    PH_ROLE_SENDER = 1,
    PH_ROLE_RECEIVER = 2,
    PH_ROLE_BOTH = 3,
};

// Which end of ph_send/ph_recv copies: put, the sender writes; get, the receiver reads. Fixed per
// direction by its sender; a receiver's choice is ignored. 0 takes PEERHOP_PROTOCOL, else put.
enum ph_protocol {
    PH_PROTOCOL_DEFAULT = 0,
    PH_PROTOCOL_PUT = 1,
    PH_PROTOCOL_GET = 2,
};

// Up to how many bytes messages between GPUs over ipc go by which method. 0: none does, not even
// one of 0 bytes. -1: as the context has it (PEERHOP_LL_MAX, PEERHOP_SM_MAX, PEERHOP_TABLE).
//
// ll takes messages of up to ll_max bytes, at most 1048576. It takes at most 8192 bytes of a
// signal, of a channel that is not on the first 16 lines of its pair, and between devices for which
// no table says `wide`: larger messages go by lines of 128 bytes, which not every link carries
// whole. The path report says so.
//
// sm takes messages of up to sm_max bytes, and ce larger ones.
struct ph_limits {
    int64_t ll_max;
    int64_t sm_max;
};

// The flags of an operation. The ranks need not ask for the same.
enum ph_operation_flags {
    // This rank's GPU computes nothing for the operation: its puts, gets and messages launch no
    // kernel. The copy engine moves the data, and streams wait by memory operations. A message
    // takes some 20 us instead of 5, and does not slow down what computes beside it
    // (docs/performance.md). The flag is for bound operations of which a buffer lies in a device.
    // (Between ranks that share a device the driver may copy by a kernel of its own.)
    //
    // Messages (send, recv, signals, waits) need CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA is
    // initialised. They need a process that has no more streams than that, branches of graphs that
    // run at once among them: a wait by a memory operation holds up the streams that share its
    // hardware queue.
    //
    // At most 16 streams of a context wait so (-EAGAIN); nobody counts graphs.
    //
    // Calls return -ENOTSUP with a sentence without these connections, without stream memory
    // operations of the device, over the net, between two buffers of host memory, and from a group
    // of such messages and others.
    PH_ZERO_SM = 1,
};

// A range of memory: device memory of the context's device from cudaMalloc, cuMemCreate or an
// exportable pool, or memory of ph_host_alloc/ph_host_register. It is any part of one allocation.
// Since 0.1.
struct ph_range {
    void *base;
    uint64_t size; // bytes, > 0
};

// One communication that both ranks name alike: by op_id, each other's rank and matching roles. The
// buffers may differ in size and place, and may be any part of an allocation: device memory of the
// context's device from cudaMalloc, cuMemCreate or an exportable pool, or memory of
// ph_host_alloc/ph_host_register. Without a buffer, at both ranks, the channel is unbound: each
// send and receive names its memory (ph_send_from, ph_recv_into), which may be any. An unbound
// operation of role both may name this rank itself as the peer: it needs no other rank, and yields
// a channel at once, one for each op_id, for the sends and receives of a ph_group.
//
// In the place of a buffer an operation may name up to 1024 ranges, e.g. the tensors of all layers
// of a cache. They lie in any allocations, but all in host memory or all in memory of the device.
// Offsets and sizes of calls on the channel count over all ranges in the order of the list, and a
// copy may cross from one into the next. The lists of the two ranks may differ, and a buffer is a
// list of one. Ranges may touch. Where they overlap a byte has several offsets, and copies of one
// call to it have no order. Where an end has more than one range, messages and signals between
// devices go by words, which takes longer than ll for small ones (ph_channel_path says so); there
// is no device channel (-ENOTSUP); and the exchange fails over the net (-ENOTSUP). The release of
// memory of one range ends the channel; other channels that have the other ranges go on.
struct ph_operation {
    uint64_t op_id;
    int peer;
    enum ph_role role;
    enum ph_protocol protocol;
    void *buffer; // or NULL
    size_t size;  // bytes, > 0; 0 without a buffer
    // The limits of this rank's messages. They are fixed per direction by its sender; a receiver's
    // are ignored. NULL: the context's. Read by the call. The same operation with other limits is
    // another channel. A PEERHOP_METHOD that is not auto comes before them.
    const struct ph_limits *limits;
    uint32_t flags; // enum ph_operation_flags. The same operation with others is another channel
    // The ranges in the place of a buffer: then buffer is NULL and size 0. Read by the call. The
    // same operation with other ranges is another channel. 0: a buffer, or none.
    uint32_t range_count; // at most 1024
    const struct ph_range *ranges;
};

struct ph_channel;
struct ph_exchange_request;

// ph_exchange is a rendezvous with every peer named in ops. Each rank must name the same operations
// with that peer, in calls of any grouping; channels[i] answers ops[i]. Blocks at most the
// context's deadline. Any thread; exchanges of different keys (peer, op_id, role) may run at once.
//
// An operation that both ranks have exchanged before with the same two buffers yields the same
// channel again, without the store.
//
// Channels belong to the context; the caller has a handle on each that is returned
// (ph_channel_close).
//
// On failure no channel is written. Operations that both ranks completed are kept in the cache, and
// the others may be exchanged again.
//
// Errors:
// - -EINVAL: peer, role, size, flags, ranges (a count above 1024, one of no bytes, a buffer beside
//   them, a sum that does not fit into size_t).
// - -ENOTSUP: an end has several ranges, and the channel would go over the net.
// - -EALREADY: a key is in another unfinished exchange.
// - -ETIMEDOUT: a peer did not come. The sentence says which, and what was seen last.
// - PH_ECROSSED: the ranks wait for each other in a cycle. Not told of ranks that exchange in
//   several threads, one of which may come.
// - PH_ENOPATH: the sentence says why each path was not taken.
// - PH_EMISMATCH: the ranks have another number of ranks, PEERHOP_CHANNELS or version of the
//   library, or one names a buffer for an operation and the other none, or they name roles that do
//   not match. This comes at once. Where another thread of either process may come in the role that
//   does match, it comes at the deadline, and the log says it at once.
// - -EPERM: the peer's process is of another user.
// - -ENOSPC: all PEERHOP_CHANNELS channels or keys of a pair are held (the sentence says by what),
//   or all PEERHOP_NET_STAGING bytes are.
// - -ESTALE: a buffer was released meanwhile.
// - PH_EKIND, PH_EPEER, PH_ESTORE, PH_EDRIVER, -ENOMEM, -EMFILE, PH_EFORKED.
// Since 0.1.
PH_API int ph_exchange(struct ph_context *context, const struct ph_operation *ops, size_t n,
                       struct ph_channel **channels);

// ph_exchange_start sends this rank's half of an exchange and does not wait for peers; ops is
// copied. The caller owns *request until ph_exchange_finish or ph_context_destroy. Exchanges that
// are all started before any is finished cannot deadlock, in whatever order. Same errors as
// ph_exchange. Since 0.1.
PH_API int ph_exchange_start(struct ph_context *context, const struct ph_operation *ops, size_t n,
                             struct ph_exchange_request **request);

// ph_exchange_finish waits for the peers' halves, at most deadline_ms (0: the context's), writes
// channels as ph_exchange does, and always ends the request (clears *request), unless an argument
// is invalid (-EINVAL). Since 0.1.
PH_API int ph_exchange_finish(struct ph_exchange_request **request, struct ph_channel **channels,
                              int64_t deadline_ms);

// ph_channel_status says whether this end's operations on the channel did all of their work. Ask it
// when their stream (or queue) is done. Never waits for a peer; any thread.
//
// 0 says that every message for which they waited came whole, that what they had to copy was
// copied, and that what they had to tell the peer was told. It says so whatever became of the peer
// since, and whether or not the channel can still be used. It does not say that the peer took what
// was sent to it: only an answer of the peer's says that.
//
// If this end itself has read from the peer's mapped buffer (ph_get, ph_copy, ph_recv of the get
// protocol), it is 0 where the peer had not given the channel up when this was asked.
//
// Calls that were refused, and operations that kernels of the application do by a device channel,
// are no part of the answer: they have said so.
//
// Other answers come with a sentence (ph_context_error). Errors:
// - PH_EPEER, PH_EBROKEN: some of the work was left out, as the peer ended or released its buffer
//   before, or a call failed half-way. The answer stays so once it is given.
// - PH_EABORTED, PH_EFENCED: this rank gave up by itself, or was expelled. Nothing is said of its
//   messages.
// - PH_EABORTED, PH_EMISMATCH: an unbound channel was aborted, or had a message of two sizes.
//   Nothing is said of its messages.
// - -EINVAL: NULL.
// - PH_EFORKED.
// Since 0.1.
PH_API int ph_channel_status(struct ph_channel *channel);

// ph_channel_ended returns 0 as long as the channel can be used, or, with a sentence, why it cannot
// be used any more. It does not say which messages came before that. Never waits for a peer; any
// thread.
//
// Errors:
// - -ESTALE: a buffer was released.
// - PH_EPEER, PH_EBROKEN, PH_EABORTED, PH_EFENCED, PH_EMISMATCH: the channel has ended for this
//   reason.
// - -EINVAL: NULL.
// - PH_EFORKED.
// Since 0.1.
PH_API int ph_channel_ended(struct ph_channel *channel);

// ph_channel_abort ends one unbound channel, at both ends. Calls on it return PH_EABORTED with the
// reason (up to 120 bytes; NULL: none). Waits for nobody; any thread.
//
// Streams that wait for its messages go on; the data that these were to bring is undefined. When
// this rank's streams are done nothing of the channel touches its memory, whatever the peer does.
//
// Other channels are not touched, and an exchange of the operation yields a new one. On a channel
// that has ended the call changes nothing.
//
// Errors:
// - -EINVAL: NULL, or a channel with buffers.
// - PH_EFORKED.
// Since 0.1.
PH_API int ph_channel_abort(struct ph_channel *channel, const char *reason);

// ph_channel_close lets go of one handle. Each channel that an exchange returns is a handle, also
// where it returns the same one again. Does not wait; any thread.
//
// A channel stays in the cache where neither rank has a handle, no stream uses it and no captured
// graph holds it. The next exchange of the operation with the same buffers finds it there. But it
// makes way where PEERHOP_CHANNELS of the pair are in use.
//
// After its last handle is closed a channel must not be used until an exchange has returned it
// again.
//
// Errors:
// - -EINVAL: NULL, or no handle left.
// - -EBUSY: this is the last handle, and device channels have not been given back.
// - PH_EFORKED.
// Since 0.1.
PH_API int ph_channel_close(struct ph_channel *channel);

// The peer and op id of a channel, and the sizes of the two buffers in bytes, of ranges their sum,
// 0 without any. Never block; any thread. Since 0.1.
PH_API int ph_channel_peer(const struct ph_channel *channel);
PH_API uint64_t ph_channel_op_id(const struct ph_channel *channel);
PH_API size_t ph_channel_local_size(const struct ph_channel *channel);
PH_API size_t ph_channel_peer_size(const struct ph_channel *channel);

// How one direction of a channel moves bytes, and why not otherwise. Strings live as long as the
// library.
struct ph_path_report {
    // "ipc", "net", "self" where the peer is this rank, or "none" where this end cannot reach the
    // peer's buffer
    const char *path;
    const char *method;   // "ce", "memcpy", "rma", "staged", ... what large copies use; of unbound
                          // channels "ring", "bounce" (slower), "staged"; "none" without a path
    const char *protocol; // "put" or "get": of ph_send/ph_recv in this direction; "none" without
                          // such a role
    // handle kind of the import: "memfd", "cuda-ipc", "vmm-fd", "pool", "region", "hmem", "dmabuf"
    // (this rank's memory, as it is registered), "slots"
    const char *kind;
    size_t rejected_count;
    struct {
        const char *name;   // of a path, method or handle kind; "wide": ll of more than 8192 bytes
        const char *reason; // e.g. "libfabric is not built in", "the probe read other bytes than
                            // were written"
    } rejected[16];
    const char *flush; // what makes data that came over the net visible to the receiver's streams:
                       // "none" where nothing is needed, "driver", "driver_all", "read"
    // Bytes up to which a message goes by ll (a signal: 8192 at most), and by sm: as its sender
    // says, and the channel has room; the receiver is told. 0: none does.
    uint64_t ll_max, sm_max;
};

// ph_channel_path describes the direction from this rank to the peer (outgoing != 0) or from the
// peer to this rank. report_size is sizeof(struct ph_path_report) of the caller. Never blocks; any
// thread. Since 0.1.
PH_API int ph_channel_path(struct ph_channel *channel, int outgoing, struct ph_path_report *report,
                           size_t report_size);

struct ph_device_channel;

// ph_channel_device fills *device (device_types.h), with which kernels of the application put, get,
// signal and wait on the channel (device.cuh). device_size is sizeof(struct ph_device_channel) of
// the caller. Does not wait; any thread.
//
// *device serves any number of launches and captured graphs. The caller owns it, may copy it, and
// gives it back by ph_channel_device_release once for each success.
//
// Until it is given back it pins the channel as a captured graph does: at both ranks the channel
// keeps its place, a release of a buffer is not DRAINED, the last handle cannot be closed, and the
// context not destroyed (-EBUSY).
//
// Errors; *device is untouched on failure:
// - -EINVAL: NULL; device_size is not this library's (build the kernels with its headers); the
//   channel is closed.
// - -ENOTSUP: a host context, an unbound channel, or one with several ranges at an end.
// - PH_ENOPATH: the channel goes over the net, or this end, a sender, cannot reach the peer's
//   buffer.
// - PH_EKIND: a buffer is host memory.
// - The reason why the channel has ended (ph_channel_ended).
// - PH_EFORKED.
// Since 0.1.
PH_API int ph_channel_device(struct ph_channel *channel, struct ph_device_channel *device,
                             size_t device_size);

// ph_channel_device_release gives a device channel back and clears *device. Does not wait; any
// thread.
//
// The caller sees to it that all kernels that were given the device channel are over, and that no
// graph with one runs again. Not after the last handle was closed, whatever became of the peer
// meanwhile.
//
// Errors:
// - -EINVAL: NULL, or nothing to give back.
// - PH_EFORKED.
// Since 0.1.
PH_API int ph_channel_device_release(struct ph_channel *channel, struct ph_device_channel *device);

#ifdef __cplusplus
}
#endif
#endif
