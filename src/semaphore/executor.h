// SPDX-License-Identifier: BSD-3-Clause
// An executor runs work in the order of a stream: the host executor on ph_queues, the CUDA executor
// on the caller's streams. It knows nothing of channels: it gets addresses.
#ifndef PHI_SEMAPHORE_EXECUTOR_H
#define PHI_SEMAPHORE_EXECUTOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/counters.h"
#include "base/report.h"
#include "net/net.h"
#include "semaphore/pages.h"
#include "semaphore/words.h"

// Most streams (or queues) of a context with operations in flight at once.
#define PHI_STREAMS_MAX 256

// The users that an import, or the words of a pair, still has: for each stream record the number of
// the last operation that touches it, and the pins of graphs and of device channels. Under the
// record's lock an enqueue takes a number, stores it here (seq_cst), then looks at `revoked`
// (seq_cst). A revoker sets `revoked`, then reads the numbers. One of the two sees the other.
struct phi_uses {
    _Atomic uint64_t number[PHI_STREAMS_MAX]; // indexed by record
    _Atomic uint32_t pins;                    // live captured graphs that hold it
    _Atomic uint32_t devices;                 // device channels that do (ph_channel_device)
    _Atomic uint32_t revoked;
    _Atomic uint32_t captured; // 1: a graph has had messages by flags with it
};

// Most items of messages by flags, or staged, that go on at the same time.
#define PHI_TOGETHER_MAX 16

enum {
    PHI_ASK_SOURCE = 1,
    PHI_ASK_DESTINATION = 2,
    PHI_ASK_END = 4, // where the whole message, of which this is the first part, would end
};

enum phi_ring {
    PHI_RING_NONE,
    PHI_RING_SHORT, // it has room as a whole
    PHI_RING_DRAWN, // it goes through while it is taken
};

// The words that end an item before it is done: `broken` of the own line, at which every wait
// looks, and `undone`, or NULL. Kernels find `undone` by broken_device.
struct phi_over {
    _Atomic uint32_t *broken, *undone;
    uint64_t broken_device;
};

// A word, as the host and as the device see it. A wait is over when the word has a bit of `value`;
// a post makes it `value`.
struct phi_word_at {
    _Atomic uint32_t *host;
    uint64_t device;
    uint32_t value;
};

// Addresses that are valid in this process (host) or on this context's device (CUDA). size may be
// 0.
struct phi_span {
    void *destination;
    const void *source;
    size_t size;
    uint64_t message; // of an unbound channel: size of the whole message, of which this is a part
    // Which of the two is host memory, which kernels know by another address.
    uint8_t host_source, host_destination;
    // PHI_ASK_*: which addresses are the caller's, of memory that nobody has looked at. Kernels
    // must reach it.
    uint8_t asks;
};

// The net between the ranks (host executor only). A copy is a move between the local address (the
// source outgoing, the destination incoming; the other one is NULL) and `offset` of the peer's
// buffer. A post is also sent, as `immediate`. Whoever waits polls. NULL route: memory that is
// mapped.
struct phi_over_net {
    const struct phi_route *route;
    union {
        uint64_t offset;
        uint32_t immediate;
    };
};

// A message by ll, by sm, by a ring or staged: device addresses of the lane here and at the
// peer (0: it is told nothing), and of the slots of ll.
struct phi_in_lane {
    // staged: struct phi_stage_lane, as the executor's own processor or device sees it
    uint64_t own;
    uint64_t peer;  // staged: PHI_STAGE_LIKE
    uint64_t slots; // staged: as the executor's own processor or device sees them
    // PUSH of a signal, STAGE, BELL: of the peer's buffer. Wide PUSH: the peer's slots of lines
    // that are not wide. TAKE, UNSTAGE, HELP: size of the own buffer. MOVE: 1 where the source is
    // this end's.
    uint64_t offset;
    // 1: a lane of signals. STAGE: the message ends with this. UNSTAGE, HELP: it is to be of
    // `offset` bytes
    uint8_t signal;
    uint8_t wide; // PUSH, TAKE: by wide lines
    uint8_t ring; // ... through a ring: enum phi_ring
    // PUSH, GO: begins with a fence of system scope. What the stream has stored before may have
    // none: an application's kernel by a device channel, or any kernel into host memory.
    uint8_t fence_before;
};

// One piece of work. A program of the tables becomes one item per step, in order. `word` is that of
// a WAIT, a POST or a BELL; `span` is what any other item copies. Copies that follow one another
// have no order. HOLD has only `uses`. RELAY (host executor only) is the copy of two peers, one of
// them over the net, with the HOLD that is the next item: the destination, or the route and offset,
// here, and the source, or the route and offset, there.
struct phi_work {
    uint8_t kind; // enum phi_step_kind
    uint8_t call; // enum phi_call it belongs to (for counters and errors)
    // of the first item: the operation before it on the stream was the first part of the same call
    uint8_t continues;
    // of the first of so many items, at most PHI_TOGETHER_MAX, that must go on at the same time
    uint8_t together;
    uint8_t engine;  // of a copy: by the copy engine, also behind a wait
    uint8_t zero_sm; // nothing of it by a kernel: of a wait, then none of the others' of its issue
    uint8_t linked;  // of a copy: between two devices that a link joins, as far as is known
    int32_t peer;    // rank (for errors)
    uint64_t op_id;  // (for errors)
    struct phi_uses *uses; // what the item touches, or NULL
    struct phi_over over;
    struct phi_word_at word;
    struct phi_span span;
    struct phi_over_net remote;
    // `lane` is first: an initializer that names none of them clears the first one alone.
    union {
        struct phi_in_lane lane; // phi_step_hops
        // POST: it only says that what its program has waited for was taken
        uint8_t answers;
        // COPY into a bounce buffer, or out of it: enum phi_head. With a head to check `word` is
        // that of the WAIT before it
        uint8_t head;
        // PAGES. An executor that does not take the list in the call holds it
        struct phi_page_list *pages;
    };
};

// The users that still touch an import, or the words of a pair.
struct phi_left {
    uint32_t streams, graphs; // with operations in flight; live captured ones
    uint32_t devices;         // device channels
    uint64_t graph;           // the id of the capture of one of the graphs, or 0
};

// How far a stream is: operations issued and done.
struct phi_progress {
    uint64_t issued, done;
};

struct phi_wait_note;
struct phi_executor;
struct phi_self;

// Contract of executors.
// - issue enqueues all n items (1 <= n) in order on `stream` as one operation: it gets one number,
//   and when its last item is done the stream's `done` word shows that number. Consecutive items
//   other than copies go to the device as one batch or one kernel (a brace). issue does not block,
//   allocates nothing and makes no system call after the first use of a stream. A wait that finds
//   `broken` set is over. Copies whose `broken` is set are skipped where the executor can (host,
//   copy kernels), and so are the posts behind them (host, kernels): a peer must not be told of
//   bytes that were not copied. Whoever ends a wait that got nothing, or skips a copy or a post,
//   says so in `undone` before the number. Returns 0; -EAGAIN (limits: nothing enqueued; those of
//   waiting streams do not stop work that continues); PH_EBROKEN (an item's uses are revoked:
//   nothing enqueued); -EINVAL (not a stream of this context: nothing enqueued); PH_EDRIVER:
//   *partial says whether something was enqueued.
// - capturing: issue on a stream that captures writes no number; it pins each `uses` once per graph
//   until the graph and all its executables are gone.
// - drained looks whether no stream touches `uses` any more (done >= number on every record, no
//   pins). Otherwise it writes into why (may be NULL) what is left, e.g. "2 streams, 1 graph".
//   Never blocks, makes no driver call.
// - left fills what stands in the way of drained. Never blocks, makes no driver call.
// - progress tells how far the stream of record `index` is; false: there is none. note (may be
//   NULL): its oldest wait that is not done, number 0 where there is none or the record is busy.
//   Never blocks, makes no driver call.
// - busy is the same for everything of the executor; flush waits until not busy (-ETIMEDOUT names
//   the oldest wait).
// - close frees the executor; nothing may be in flight. NULL-safe.
// Thread-safety: issue from any thread (one at a time per queue on the host); drained and busy from
// any thread.
struct phi_executor_ops {
    size_t size; // of this struct
    const char *name;
    int (*issue)(struct phi_executor *executor, void *stream, const struct phi_work *work, size_t n,
                 bool *partial);
    bool (*drained)(struct phi_executor *executor, struct phi_uses *uses, char *why,
                    size_t why_size);
    void (*left)(struct phi_executor *executor, struct phi_uses *uses, struct phi_left *left);
    bool (*progress)(struct phi_executor *executor, uint32_t index, struct phi_progress *progress,
                     struct phi_wait_note *note);
    bool (*busy)(struct phi_executor *executor, char *why, size_t why_size);
    int (*flush)(struct phi_executor *executor, int64_t deadline);
    void (*close)(struct phi_executor *executor);
};

struct phi_executor {
    const struct phi_executor_ops *ops;
    const volatile uint8_t *life; // of the context, set by it: points to 0 in a forked child
    // Set by the context: for each rank 0, or when a SUSPECT was last heard of. NULL: nobody looks.
    const _Atomic int64_t *silent_since;
    // Likewise: whether a wait is to end, as the application must be told of something first. NULL:
    // never.
    const _Atomic bool *untold;
    struct phi_self *self; // who tells it. The executor itself knows nothing of them
    struct phi_skips skips;
};

// phi_executor_suspicion writes what is to be added to the sentence of a wait for a rank: "" or
// "; it is SUSPECT: ...". Never blocks.
void phi_executor_suspicion(const struct phi_executor *executor, int rank, char *text, size_t size);

// phi_executor_untold: whether a wait is to end, see struct phi_executor.
static inline bool phi_executor_untold(const struct phi_executor *executor)
{
    return executor->untold != NULL && atomic_load_explicit(executor->untold, memory_order_relaxed);
}

// The things from which every executor is made; all must outlive it.
struct phi_executor_params {
    struct phi_report *report;
    struct phi_counters *counters;
    const struct phi_config *config;
};

// The host executor: semaphore/host_executor.c. It owns the queues, including the default queue
// that stands for a NULL stream.
int phi_host_executor_open(const struct phi_executor_params *params,
                           struct phi_executor **executor);

struct ph_queue;
int phi_queue_create(struct phi_executor *executor, struct ph_queue **queue);
struct phi_executor *phi_queue_executor(struct ph_queue *queue);
struct phi_report *phi_queue_report(struct ph_queue *queue);
int64_t phi_queue_deadline(struct ph_queue *queue); // the configured one, from now
int phi_queue_host(struct ph_queue *queue, void (*fn)(void *), void *opaque);
// As ph_queue_wait; -EINTR where `untold` is set.
int phi_queue_wait(struct ph_queue *queue, uint64_t target, int64_t deadline);
void phi_queue_progress(const struct ph_queue *queue, struct phi_progress *progress);
int phi_queue_destroy(struct ph_queue *queue); // -EBUSY where operations are left

// The CUDA executor: semaphore/stream.c, or its stub where CUDA is left out (-ENOTSUP).
// device_shared: whether ranks share this device (the wait mode depends on it); may be raised
// later.
struct phi_device;
int phi_cuda_executor_open(const struct phi_executor_params *params, struct phi_device *device,
                           struct phi_executor **executor);
void phi_cuda_executor_share(struct phi_executor *executor, bool device_shared);
// quiet waits until no operation of a stream is in flight, false at the deadline; captured graphs
// do not count, as nobody sees whether they run. What can block behind streams is not begun before
// (cuda/device.h). explain writes what is in the way: the oldest wait of an operation, or that it
// is no operation of the library's.
bool phi_cuda_executor_quiet(struct phi_executor *executor, int64_t deadline);
void phi_cuda_executor_explain(struct phi_executor *executor, char *text, size_t size);

#endif
