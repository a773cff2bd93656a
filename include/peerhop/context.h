// SPDX-License-Identifier: BSD-3-Clause
// A context is a rank's membership of a job: its device, its store, its threads and everything it
// owns.
#ifndef PEERHOP_CONTEXT_H
#define PEERHOP_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

#include <peerhop/error.h>
#include <peerhop/log.h>
#include <peerhop/store.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ph_context;

// The parameters of a context. A member that is zero takes its value from the environment and then
// from its default; `peerhop-info --config` prints every variable with its range. Strings are
// copied.
struct ph_context_params {
    size_t struct_size; // sizeof(struct ph_context_params); 0 means the first published layout

    // This rank and how many there are. ranks == 0: both from PEERHOP_RANK and PEERHOP_RANKS, else
    // from the launcher: torchrun, Open MPI, MPICH and others with PMI, PMIx, srun
    // (docs/launchers.md). Of both variables one alone is taken only with a launcher that says the
    // same of it, or nothing: create fails where it says another.
    int rank;
    int ranks;

    // "host", "cuda" (the calling thread's current device, else the local rank's) or "cuda:N".
    // NULL: PEERHOP_DEVICE, else "cuda" where there is a driver with a device, else "host".
    const char *device;

    // redis://[user:password@]host[:port][/db], unix:///path[?db=N], or, for ranks of one node,
    // file:/directory. NULL: PEERHOP_STORE. Not used where callbacks are given.
    const char *store;
    const struct ph_store_callbacks *store_callbacks; // copied; its opaque must outlive the context

    // Names the job in the store. NULL: PEERHOP_JOB, else what the launcher set. With a store that
    // others may share and no name, create fails. epoch (0: PEERHOP_EPOCH) parts runs of one job
    // that are not to meet, and must be the same for all its ranks. Lives of a rank need none: the
    // latest takes the place of others.
    const char *job;
    uint64_t epoch;

    int64_t deadline_ms; // of calls that take none themselves; 0: PEERHOP_DEADLINE_MS, else 60000

    ph_log_fn log; // NULL: stderr
    void *log_opaque;
    enum ph_log_level log_level; // 0: PEERHOP_LOG, else PH_LOG_WARN

    // Overrides of configuration variables for this context, "PEERHOP_NAME=value" each, ended by
    // NULL.
    const char *const *settings;

    // Create writes the sentence that explains its failure here (there is no context to ask). May
    // be NULL.
    char *error;
    size_t error_size;
};

// ph_context_create makes this process (or a part of it) a rank of the job: opens device and store,
// loads kernels, starts the service thread and publishes the member record. It does not wait for
// other ranks. Any thread; several contexts may live in one process.
//
// The caller owns *context and ends it with ph_context_destroy. On failure *context is untouched.
//
// Blocks at most the deadline. Where it fails, it takes one second more for the store and two for
// the device, to end what was opened.
//
// Errors:
// - -EINVAL: a parameter or variable is out of range.
// - -ENODEV: no such device.
// - -ETIMEDOUT: the store does not answer, or a stream of this process waits, behind which the
//   driver loads no kernels.
// - -EAGAIN: no more threads.
// - -ENOENT, -EACCES and the like: of the password's file and of PEERHOP_TABLE's.
// - PH_ESTORE, PH_EDRIVER, PH_EFENCED, -ENOMEM, -EMFILE.
// Since 0.1.
PH_API int ph_context_create(const struct ph_context_params *params, struct ph_context **context);

// ph_context_destroy ends the membership. It waits until this rank's operations are done and until
// no peer's stream touches this rank's buffers any more, unmaps what was imported, removes this
// rank's store keys and ends the threads. The ranks may come in any order. Must not run while
// another thread uses the context.
//
// Channels, pending exchanges, and host memory of the context end with it. Clears *context. NULL
// and *context == NULL are fine.
//
// Blocks at most deadline_ms (0: the context's), and two seconds each for store and device.
//
// It says to each peer whose pair with this rank has ended, or ends meanwhile, that the application
// knows of that. So copies of such a peer that were held (see ph_context_abort, ph_context_expel)
// may still come into this rank's buffers until destroy returns 0, while its own operations are
// finished, too. Its own copies that are held go on when the peer's application knows, or the peer
// leaves or exits; until then destroy returns -ETIMEDOUT.
//
// Errors:
// - -ETIMEDOUT: the sentence names what still runs and where: operations, peers, or a stream of the
//   application's behind which the driver unmaps nothing. Or graphs are left which captured calls
//   on its channels: they and their executables must be destroyed before. The context lives on and
//   may be destroyed again.
// - -EBUSY: at once, where device channels of the context have not been given back
//   (ph_channel_device_release). The context lives on and may be destroyed again.
// Since 0.1.
PH_API int ph_context_destroy(struct ph_context **context, int64_t deadline_ms);

// ph_context_abort breaks every channel of this rank and tells its peers. Later calls return
// PH_EABORTED here and PH_EBROKEN at the peers. Waits for no rank. Any thread. Destroy is still
// owed.
//
// Streams that wait are released; the data that they copy afterwards is undefined. But waits of
// this rank's streams stay where a copy into a peer's memory would follow them, until a call has
// told the peer's application, or it leaves or exits.
//
// Over the net it ends what peers read and write here before it returns, by closing the memory
// regions. Since 0.1.
PH_API int ph_context_abort(struct ph_context *context, const char *reason);

// The states of a rank, as this rank knows them.
enum ph_peer_state {
    PH_PEER_UNKNOWN = 0, // no member record of it was read (it is read when an exchange names it)
    PH_PEER_KNOWN = 1,   // its record was read; not connected
    PH_PEER_LIVE = 2,    // connected
    // connected, and silent for PEERHOP_SUSPECT_MS: its process is stopped, starved or stuck. Its
    // device may still write: nothing is released or reused. It is LIVE again by itself when its
    // heartbeats resume
    PH_PEER_SUSPECT = 3,
    // over for this rank, see `code`, but its process has not been seen to exit
    PH_PEER_BROKEN = 4,
    PH_PEER_EXPELLED = 5, // the same, by expulsion
    PH_PEER_GONE = 6,     // it exited or left
};

// This rank's knowledge of another.
struct ph_peer_report {
    enum ph_peer_state state;
    int code;             // what calls that need it return, 0 while it can be used
    int64_t silent_ms;    // since its last heartbeat; -1: it has not beaten yet
    uint64_t incarnation; // tells lives of the rank apart; 0: unknown
    uint32_t process;     // its id, in its own PID namespace; 0: unknown
};

// ph_context_peer reports what this rank knows of another. report_size is sizeof(struct
// ph_peer_report) of the caller. It is no answer to "may I reuse a buffer that the rank was reading
// or writing?": a code from a call on the channel is (ph_channel_ended), which the rank can see,
// and fails by.
// Errors: -EINVAL (no such rank, or the own one), PH_EFORKED. Does not block; any thread. Since
// 0.1.
PH_API int ph_context_peer(struct ph_context *context, int rank, struct ph_peer_report *report,
                           size_t report_size);

// ph_context_expel ends the membership of a SUSPECT's present life, for all ranks. Returns 0 also
// where the rank exited, left or was expelled already. Blocks at most the context's deadline. Any
// thread.
//
// Survivors' channels with the suspect return PH_EPEER. Waits of their streams are released, but
// those of which a copy into the suspect's memory would follow stay until its application was told,
// or it exited.
//
// The suspect finds itself fenced as soon as it runs again. Every exchange, call on a channel,
// expulsion, and wait for a release there fails with PH_EFENCED, and tells its application.
// ph_queue_synchronize, ph_reap and ph_host_free do so, too, once, where they would wait.
// ph_context_destroy takes the application for told. Until then the streams of the suspect's peers
// may be held: an application that waits for streams of a device alone has to ask ph_channel_ended.
//
// The memory that the suspect shares is quarantined: a later life of the rank is met, and a
// survivor's destroy goes on, only after the suspect has acknowledged (none of its streams touches
// any of it) or exited.
//
// Two ranks that suspect each other may expel each other; who may expel whom is the application's
// to agree on.
//
// Errors:
// - -EINVAL: no such rank, or the own one.
// - -EBUSY: the rank is no SUSPECT.
// - -ENOTCONN: the rank was never connected.
// - -ETIMEDOUT, PH_ESTORE: all connected ranks know, but the store could not be told: call again.
// - PH_EFENCED, PH_EFORKED.
// Since 0.1.
PH_API int ph_context_expel(struct ph_context *context, int rank);

// ph_context_error copies the sentence of the context's last failure into text (at most size bytes,
// always ended by 0) and returns its length. A call that was given nothing of a context (a NULL
// context, channel, queue or request, or a group without any channel) fails with -EINVAL and leaves
// the sentence of the failure before it. In a forked child, where every call is refused, the
// sentence is that of PH_EFORKED. Does not block; any thread. Since 0.1.
PH_API size_t ph_context_error(struct ph_context *context, char *text, size_t size);

// Rank and number of ranks. Never block; any thread. Since 0.1.
PH_API int ph_context_rank(const struct ph_context *context);
PH_API int ph_context_ranks(const struct ph_context *context);

// ph_context_device names what the context runs on: "host" or e.g. "cuda:0 NVIDIA H200 GPU-<uuid>".
// Lives as long as the context. Since 0.1.
PH_API const char *ph_context_device(const struct ph_context *context);

// Counters of a context; they only grow, except in_flight and device_bytes. X(member, meaning).
#define PH_COUNTER_MAP(X)                                                                          \
    X(exchanges, "exchange calls that ended well")                                                 \
    X(hits, "operations found in the cache by both ranks")                                         \
    X(misses, "operations that went through the store")                                            \
    X(offers, "offer messages sent")                                                               \
    X(store_commands, "commands sent to the store, by any thread")                                 \
    X(imports, "peer allocations mapped, or reached by their regions over the net")                \
    X(import_bytes, "bytes of those peer allocations")                                             \
    X(channels, "channels made")                                                                   \
    X(retired, "channels that made way for others")                                                \
    X(ipc_operations, "copies issued on the ipc path")                                             \
    X(ipc_bytes, "bytes of those copies")                                                          \
    X(copy_kernels, "copies of the ipc path done by the plain copy kernel")                        \
    X(waits_memory_operation, "waits enqueued as stream memory operations")                        \
    X(waits_kernel, "waits enqueued as one-warp kernels")                                          \
    X(waits_host, "waits of host queues")                                                          \
    X(captured, "operations captured into graphs")                                                 \
    X(in_flight, "operations issued and not done")                                                 \
    X(net_operations, "copies issued on the net path")                                             \
    X(net_bytes, "bytes of those copies")                                                          \
    X(launches, "kernels launched, or captured to be")                                             \
    X(device_bytes, "bytes of device memory that the library has, as it asked the driver for "     \
                    "them")

// The counters that ph_context_counters copies.
struct ph_counters {
#define PH_COUNTER_MEMBER(member, meaning) uint64_t member;
    PH_COUNTER_MAP(PH_COUNTER_MEMBER)
#undef PH_COUNTER_MEMBER
};

// ph_context_counters copies the counters; each is exact, together they are no snapshot.
// counters_size is sizeof(struct ph_counters) of the caller. Never blocks; any thread. Since 0.1.
PH_API int ph_context_counters(struct ph_context *context, struct ph_counters *counters,
                               size_t counters_size);

#ifdef __cplusplus
}
#endif
#endif
