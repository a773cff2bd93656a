// SPDX-License-Identifier: BSD-3-Clause
// A stand-in for libcuda: enough of the driver API to run every CUDA path of the library, between
// several processes, on a machine without a GPU. Device memory is shared memory, streams are queues
// that one engine thread for each device works off, and it blocks, holds up and refuses where the
// real driver was measured to. For tests only.
//
// Its environment, read at cuInit but for UNFENCED:
//   PEERHOP_STANDIN_DEVICES      devices of the machine (2)
//   CUDA_VISIBLE_DEVICES         which of them this process sees, in which order ("1,0"; all)
//   PEERHOP_STANDIN_NO_PEER      "1": no device reaches another's memory; "0-1,2-3": these pairs do
//                                not
//   PEERHOP_STANDIN_BUS          set: a bus connects the devices, and no NVLink
//   PEERHOP_STANDIN_MULTIPROCESSORS
//                                of each device, on which blocks of grids need a place (see
//                                multiprocessor.c); unset: 132, and there is always one
//   PEERHOP_STANDIN_LOSES        "write 0-1", "read 0-1", "kernel 0-1": of 64 KiB and more that the
//                                copy engine of device 0 writes to memory of device 1 or reads
//                                from it, or that kernels of device 0 copy there, the last byte
//                                comes wrong
//   PEERHOP_STANDIN_CHECK=0      nothing of what check.c looks for ends the process
//   PEERHOP_STANDIN_UNFENCED     a kernel of ours: as if its blocks ended with no fence
//
//   CUDA_DEVICE_MAX_CONNECTIONS  hardware queues, as for the real driver (8)
//   PEERHOP_STANDIN_PTX          what every kernel was compiled for (90)
//
// Everything here is guarded by si.lock unless said otherwise. Across files: prefix si_.
#ifndef TESTS_STANDIN_STANDIN_H
#define TESTS_STANDIN_STANDIN_H

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define SI_EXPORT __attribute__((visibility("default")))

#define SI_DEVICES_MAX     16
#define SI_CONTEXT_STACK   64
#define SI_MIB             ((size_t)1 << 20)
#define SI_BLOCK           (2 * SI_MIB)  // physical memory comes in these
#define SI_UNIT            ((size_t)512) // small allocations are cut from a block in these
#define SI_STREAM_DEPTH    1020          // operations of a stream before enqueueing blocks
#define SI_BATCH_MAX       255           // memory operations in one call
#define SI_MULTIPROCESSORS 132           // of a device
#define SI_PAGEABLE_INLINE SI_MIB // pageable memory up to this is copied aside when it is enqueued

// ---- Memory

// What lies behind addresses: a memfd with `size` bytes of data and a trailer that tells other
// processes what is alive.
#define SI_UNITS      (SI_BLOCK / SI_UNIT)
#define SI_ACTIVE_MAX 64

// An operation that is the next of its stream: what it touches, as offsets in the memory.
struct si_active {
    uint64_t owner;   // cookie of its process; 0: free
    uint32_t version; // odd: the rest holds
    uint32_t writes, kernel;
    uint32_t pid;
    uint32_t late; // done, and no fence has followed
    uint64_t begin, end;
};

struct si_trailer {
    uint64_t magic;
    uint64_t cookie;         // of the exporting process
    uint64_t size;           // of the data
    uint32_t physical;       // device
    uint32_t types;          // CUmemAllocationHandleType bits
    uint64_t id;             // of this memory, among all of that process
    uint32_t life[SI_UNITS]; // of the allocation that begins in that unit: how often one was freed
    struct si_active active[SI_ACTIVE_MAX];
};

struct si_physical {
    int refs;
    int fd;
    size_t size;
    int physical; // device, as the whole machine counts them
    unsigned types;
    bool own; // made by this process
    struct si_trailer *trailer;
    uint64_t id; // as CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
};

enum si_kind {
    SI_LEGACY,  // cuMemAlloc
    SI_IMPORT,  // cuIpcOpenMemHandle
    SI_MAPPING, // cuMemMap
    SI_POOLED,  // cuMemAllocAsync
    SI_POOLED_IMPORT,
    SI_HOST,       // cuMemHostAlloc
    SI_REGISTERED, // cuMemHostRegister
};

struct si_allocation {
    uint64_t base;
    size_t size;
    enum si_kind kind;
    uint64_t id;
    struct si_context *context;
    struct si_physical *physical; // NULL: host memory
    size_t offset;                // of base in the physical memory
    uint32_t access;              // bit i: device ordinal i may access it
    struct si_pool *pool;
    unsigned char handle[64]; // imports: what was opened
    int opened;               // SI_IMPORT: how often
    uint32_t life;            // imports: si_life_of when it was opened
    bool freeing;             // the free is on its stream: nobody finds it any more
};

struct si_pool {
    struct si_pool *next;
    int device; // ordinal
    unsigned types;
    uint32_t access;
    bool imported, is_default, destroyed;
    int allocations; // live
    uint64_t cookie; // of the process that made it, where it is number id
    uint64_t id;
};

// ---- Operations

enum si_op_kind {
    SI_OP_COPY,
    SI_OP_FILL,
    SI_OP_MEMOPS,
    SI_OP_KERNEL,
    SI_OP_HOST,
    SI_OP_RECORD,
    SI_OP_AWAIT,
    SI_OP_GRAPH,
    SI_OP_FREE,
    SI_OP_NOTHING,
};

enum si_progress {
    SI_DONE,
    SI_MOVED,   // call again, others may go first
    SI_WAITING, // for a word or an event: nothing happened
};

// A point of a stream: an event's record, a synchronisation.
struct si_marker {
    int refs;
    bool done;
    struct timespec at;
};

struct si_memop {
    CUstreamBatchMemOpType type;
    unsigned flags;
    uint64_t address, value;
};

// A kernel as a C function: called again until it says SI_DONE. state is zero at the launch.
#define SI_KERNEL_STATE 16
typedef enum si_progress (*si_kernel)(const void *args, uint64_t state[SI_KERNEL_STATE]);
extern _Thread_local const struct si_op *si_running; // the launch whose kernel is called

struct CUfunc_st {
    const char *name;
    si_kernel run;
    size_t args;        // bytes of its one parameter
    unsigned threads;   // most of a block
    unsigned registers; // of a thread
    bool together;      // its blocks have different things to do
    // What is wrong with a launch, or NULL; may itself be NULL.
    const char *(*refuse)(const void *args, unsigned blocks, unsigned threads);
    struct si_context *context;
    unsigned shared; // bytes that a block may have, where that was set
};

// Bytes that an operation and its copies in graphs share.
struct si_blob {
    int refs;
    _Alignas(16) unsigned char data[];
};

// What a kernel has stored into another device's memory, or another process', with no fence of
// system scope behind it: the peer may see what its stream does next before it sees that.
struct si_late {
    struct si_active *active;
    struct si_physical *held;
};
#define SI_LATE_MAX 64

// Bytes that an operation reads or writes.
#define SI_TOUCHES 2
struct si_touch {
    uint64_t address;
    size_t size;
    bool write;
};

struct si_op {
    struct si_op *next;
    uint64_t number; // order of enqueueing in the context
    enum si_op_kind kind;
    union {
        struct {
            uint64_t destination, source;
            size_t size;
            bool peer; // between two devices
        } copy;
        struct {
            uint64_t destination;
            uint32_t value;
            unsigned width;
            size_t count;
        } fill;
        struct {
            unsigned count;
        } memops; // blob: struct si_memop[]
        struct {
            const struct CUfunc_st *function; // of si_kernels
            unsigned blocks, threads, shared;
            struct si_grid *grid;
        } kernel; // blob: arguments
        struct {
            CUhostFn call;
            void *data;
            struct si_marker *marker;
        } host;
        struct si_marker *marker;
        struct si_run *run;
        struct {
            uint64_t address, id;
        } free;
    } u;
    struct si_blob *blob;
    uint64_t state[SI_KERNEL_STATE]; // how far it has come
    bool started;
    // check.c: while it is announced, or a part of it
    bool checked;
    uint64_t part;
    unsigned touches;
    struct si_touch touch[SI_TOUCHES];
    struct si_active *active[SI_TOUCHES];
    struct si_physical *held[SI_TOUCHES];
};

// ---- Graphs

struct si_set {
    int *items;
    int count;
};

struct si_node {
    struct si_op op;
    struct si_set after; // indices of nodes
};

// Nodes and user objects; held by the graph, its executables and their launches.
struct si_body {
    int refs;
    struct si_node *nodes;
    int count;
    struct {
        CUuserObject object;
        unsigned count;
    } * objects;
    int object_count;
};

struct CUgraph_st {
    struct si_body *body;
    struct si_capture *capture; // not NULL while it is being captured
};

struct CUgraphExec_st {
    struct si_body *body;
    struct si_marker *last; // of its last launch
};

// One launch.
struct si_run {
    struct si_body *body;
    struct si_marker *before, *marker; // launches of one executable follow each other
    int left;
    struct {
        struct si_op op;
        bool done, waiting;
    } nodes[];
};

struct CUuserObject_st {
    unsigned refs;
    void *data;
    CUhostFn destroy;
};

struct si_capture {
    uint64_t id;
    CUstreamCaptureMode mode;
    struct si_thread *thread;
    struct CUstream_st *origin;
    struct CUgraph_st *graph;
    bool invalid;
    struct si_capture *next;
};

// ---- Streams, contexts, devices

struct CUstream_st {
    struct CUstream_st *next;
    struct si_context *context;
    uint64_t id;
    unsigned index; // decides its hardware queue
    unsigned flags;
    bool legacy;
    bool destroyed; // goes when it has nothing left to do
    // What its head was waiting for when last looked at: value waits, and whether a peer copy is
    // next behind a wait.
    unsigned waits;
    bool copy_waits;
    struct si_op *head, **tail;
    unsigned depth;
    struct si_late late[SI_LATE_MAX];
    unsigned late_count;
    struct si_capture *capture;
    struct si_set last; // nodes that the next captured operation follows
};

struct CUevent_st {
    struct CUevent_st *next;
    struct si_context *context;
    unsigned flags;
    struct si_marker *marker; // NULL: never recorded
    uint64_t capture_id;      // last recorded in this capture, 0: in none
    struct si_set nodes;
};

// What blocks take of a multiprocessor; registers: of the part that has the most of them.
struct si_multiprocessor {
    unsigned blocks, threads, registers, shared;
};

struct si_context {
    int ordinal;
    uint64_t id;
    int retained;
    uint32_t peers;              // bit i: access to device i was enabled
    struct CUstream_st *streams; // the engine alone removes
    struct CUstream_st *legacy;
    unsigned stream_index;
    uint64_t number;  // of the last operation enqueued
    unsigned blocked; // calls that block behind streams now: others may not launch
    pthread_t engine;
    bool engine_runs, engine_stops;
    pthread_cond_t work;  // for the engine
    struct si_pool *pool; // default
    struct si_multiprocessor multiprocessors[SI_MULTIPROCESSORS];
    unsigned grids; // that have blocks there
};

struct si_device {
    int physical;
    size_t used;
    struct si_context context; // primary
};

struct si_thread {
    struct si_context *stack[SI_CONTEXT_STACK];
    int depth;
    CUstreamCaptureMode mode;
    bool callback; // a host function or destructor runs on it: no driver calls
    struct CUstream_st *streams[SI_DEVICES_MAX]; // CU_STREAM_PER_THREAD,
    uint64_t contexts[SI_DEVICES_MAX];           // of this life of the primary context
};

struct si_driver {
    pthread_mutex_t lock;
    pthread_cond_t changed; // something finished, or a blocked call returned
    bool initialised, forked;
    uint64_t cookie; // of this process
    int device_count;
    struct si_device devices[SI_DEVICES_MAX];
    uint32_t no_peer[SI_DEVICES_MAX]; // bit i: the machine's device i is not reached
    bool checks;
    unsigned connections;     // CUDA_DEVICE_MAX_CONNECTIONS, 8 where unset
    unsigned multiprocessors; // of each device, or 0: blocks need no place
    int ptx;                  // version of every function
    uint64_t next_id;         // streams, contexts, captures
    uint64_t next_buffer;
    struct si_capture *captures;
};
extern struct si_driver si;

// driver.c
struct si_thread *si_thread(void);
// begin locks and yields the current context; an error is returned unlocked. end unlocks and passes
// its argument on.
CUresult si_begin(struct si_context **context);
CUresult si_begin_any(void); // needs no context
CUresult si_end(CUresult result);
struct si_context *si_current(void); // the thread's, or the first device's
// The same for a call on a stream: one that is named by a handle of its own needs no current
// context.
CUresult si_begin_stream(CUstream handle, struct CUstream_st **stream);
struct si_context *si_context_of(CUdevice device); // NULL: no such device
int si_ordinal(int physical);                      // of a device of the machine, or -1: not visible
// A call that may disturb a capture: whether it may go on (and, if not, it has invalidated those
// that it disturbs).
CUresult si_unsafe(void);
// lose.c: PEERHOP_STANDIN_LOSES. copy is of a whole copy of the engine's, with the lock; store is
// of what a kernel that runs has copied, without it. device: the machine's number of who does it.
void si_lose_read(void);
void si_lose_copy(int device, uint64_t destination, uint64_t source, size_t size);
void si_lose_store(void *destination, size_t size);
extern _Thread_local int si_running_device; // of the launch whose kernel is called
bool si_peers(int physical, int other);     // whether one reaches the other's memory
// Waits while another call blocks behind the context's streams.
void si_gate(struct si_context *context);
// What cuMemFree and its like do: wait for all work enqueued so far, holding up launches of other
// threads meanwhile. (cuModuleLoadData and cuModuleUnload only wait.)
void si_block(struct si_context *context);

// memory.c, arena.c
uint64_t si_arena_take(size_t size, size_t align); // 0: none left
void si_arena_give(uint64_t base, size_t size);    // nothing may be mapped there any more
bool si_arena_holds(uint64_t address);             // whether it is one of ours, mapped or not
struct si_allocation *si_find(uint64_t address);
struct si_allocation *si_find_next(uint64_t address); // the first that begins at or after it
CUresult si_insert(const struct si_allocation *allocation, struct si_allocation **out);
void si_remove(struct si_allocation *allocation);
// Whether [address, address + size) is memory that the driver knows and that the context may
// access, or copy.
bool si_reachable(uint64_t address, size_t size, const struct si_context *context, bool copy);
bool si_accessible(const struct si_allocation *allocation, const struct si_context *context,
                   bool copy);
bool si_is_device(const struct si_allocation *allocation);
int si_allocation_device(const struct si_allocation *allocation); // ordinal
CUresult si_physical_create(int physical, size_t size, unsigned types, struct si_physical **out);
CUresult si_physical_open(int fd, struct si_physical **out); // takes fd over, also on failure
void si_physical_drop(struct si_physical *physical);
bool si_physical_map(struct si_physical *physical, uint64_t address, bool access);
void si_unmap(uint64_t address, size_t size);
CUresult si_allocate(struct si_context *context, size_t size, struct si_allocation **out);
// Fills in the address and memory of `allocation`, which is in no block with others, and adds it.
CUresult si_allocate_own(struct si_context *context, struct si_allocation *allocation,
                         struct si_allocation **out);
void si_deallocate(struct si_allocation *allocation);

struct si_range {
    uint64_t base;
    size_t size;
};
struct si_range si_reservation_of(uint64_t address); // vmm.c; of a mapped address

// ipc.c: 64 bytes that name an allocation to other processes; pool pointers travel the same way.
struct si_handle {
    uint64_t magic, cookie, id, size, offset;
    int32_t pid, fd;
    uint64_t pool;
    uint64_t base; // where its owner has it
};
void si_handle_fill(const struct si_allocation *allocation, struct si_handle *handle);
CUresult si_handle_open(const struct si_handle *handle, struct si_physical **physical);
void si_life_begin(void); // lets others see that this process lives
bool si_process_lives(uint64_t cookie);
uint32_t *si_life_of(const struct si_allocation *allocation); // shared; changes when it is freed
void si_import_close(struct si_allocation *allocation);

void si_pool_let_go(struct si_pool *pool); // pool.c: an allocation of it is gone

// stream.c
CUresult si_stream_find(struct si_context *context, CUstream handle, struct CUstream_st **stream);
void si_stream_reap(struct si_context *context); // frees destroyed streams that have nothing left
struct CUstream_st *si_stream_new(struct si_context *context, unsigned flags);
void si_thread_streams_drop(struct si_thread *thread);
CUresult si_enqueue(struct CUstream_st *stream, struct si_op *op); // takes op over, also on failure
// Whether nothing up to that number is left in any stream of the context; wait until it is so.
bool si_idle(const struct si_context *context, uint64_t until);
void si_wait_idle(struct si_context *context, uint64_t until);
CUresult si_drain(struct CUstream_st *stream); // waits for everything on it so far

// operation.c
struct si_op *si_op_new(enum si_op_kind kind);
void si_op_free(struct si_op *op);
struct si_blob *si_blob_new(const void *data, size_t size);
void si_op_clear(struct si_op *op); // drops what it holds
// Called with the lock, lets go of it for long work.
enum si_progress si_op_step(struct si_op *op, struct CUstream_st *stream);
struct si_marker *si_marker_new(void);
struct si_marker *si_marker_hold(struct si_marker *marker);
void si_marker_drop(struct si_marker *marker);
void si_marker_wait(struct si_marker *marker);
void si_marker_finish(struct si_marker *marker);

// check.c: begin where an operation is the next of its stream, step before each step of it, end
// when it is done; fence where all that the stream has stored is seen by everybody; the others in
// the call that they are named after.
void si_check_begin(struct si_op *op, struct CUstream_st *stream);
void si_check_step(const struct si_op *op, struct CUstream_st *stream);
void si_check_end(struct si_op *op, struct CUstream_st *stream);
void si_check_fence(struct CUstream_st *stream);
void si_check_wait(uint64_t address);
void si_check_launch(const CUlaunchConfig *config);
void si_check_grid(const struct CUfunc_st *function, const void *args, unsigned blocks,
                   unsigned threads);
void si_check_current(const struct si_allocation *allocation, const char *call);
void si_check_opened(uint64_t address);
void si_check_close(uint64_t address); // before it is looked for
void si_check_closed(uint64_t address);

// multiprocessor.c: whether the operation, a kernel, has a place and may go on; and gives it up.
bool si_grid_enter(struct si_op *op, struct si_context *context);
void si_grid_leave(struct si_op *op);
// All blocks of it but so many have ended.
void si_grid_shrink(const struct si_op *op, unsigned blocks);
bool si_grid_is_on(const struct si_op *op, unsigned multiprocessor);

// callback.c: the thread that runs host functions and destructors. finished may be NULL.
void si_callback(CUhostFn call, void *data, struct si_marker *finished);

// engine.c
void si_engine_start(struct si_context *context);
void si_engine_stop(struct si_context *context);

// graph.c, capture.c
bool si_capture_legacy_conflict(
    const struct CUstream_st *stream); // a legacy stream while a blocking one captures
void si_capture_legacy_break(const struct CUstream_st *legacy); // invalidates those captures
void si_capture_abandon(struct CUstream_st *stream);
CUresult si_capture_add(struct CUstream_st *stream, struct si_op *op);
void si_capture_invalidate(struct si_capture *capture);
CUresult si_capture_join(struct CUstream_st *stream, struct CUevent_st *event);
struct si_capture *si_capture_find(uint64_t id);
enum si_progress si_run_step(struct si_run *run, struct CUstream_st *stream);
void si_run_free(struct si_run *run);
unsigned si_run_waits(const struct si_run *run, bool *copy_behind);
void si_body_drop(struct si_body *body);
bool si_set_add(struct si_set *set, int item);
bool si_set_copy(struct si_set *to, const struct si_set *from);
void si_set_clear(struct si_set *set);

// kernels.c: ends with a nameless one
#define SI_KERNELS_MAX 24
extern const struct CUfunc_st si_kernels[SI_KERNELS_MAX];
// What the next step of a launch reads and writes, where its kernel does not wait before it; *part
// is another one for each set of these. And a look at the words that a launch waits for.
unsigned si_kernel_touches(si_kernel run, const void *args, const uint64_t state[SI_KERNEL_STATE],
                           struct si_touch touches[SI_TOUCHES], uint64_t *part);
void si_kernel_check(si_kernel run, const void *args);
bool si_kernel_fences(si_kernel run);
bool si_kernel_releases(si_kernel run, const void *args);

// Says in a line, whose `broken` this is, that a message of another size has come.
void si_note_mismatch(uint64_t broken, uint64_t expected, uint64_t got);

// hop.c: phi_hop and its kin, and what is no launch of theirs
enum si_progress si_hop(const void *args, uint64_t state[SI_KERNEL_STATE]);
const char *si_hop_refuse(const void *args, unsigned blocks, unsigned threads);
const char *si_hop_spread_refuse(const void *args, unsigned blocks, unsigned threads);
const char *si_hop_large_refuse(const void *args, unsigned blocks, unsigned threads);
const char *si_hop_wide_refuse(const void *args, unsigned blocks, unsigned threads);
const char *si_ring_refuse(const void *args, unsigned blocks, unsigned threads);
const char *si_ring_long_refuse(const void *args, unsigned blocks, unsigned threads);
const char *si_hop_staged_refuse(const void *args, unsigned blocks, unsigned threads);
// The copy that is under way, of several the first: its touches, 0 or 2, and as *part its item.
unsigned si_hop_touches(const void *args, const uint64_t state[SI_KERNEL_STATE],
                        struct si_touch touches[SI_TOUCHES], uint64_t *part);

// Of tests that stand in for a NIC as well, or NULL: what it holds back shows. Scope as the
// driver's flush has it; 0: of a call of cuMemcpyDtoHAsync.
extern SI_EXPORT CUresult (*si_on_flush)(int scope);
// ... copies in the place of a stream's copy: as the device sees its own memory.
extern SI_EXPORT void (*si_on_copy)(void *to, const void *from, size_t size);
// Of tests that count, or NULL: is called in each call of the driver, by the thread that makes it.
extern SI_EXPORT void (*si_on_call)(void);

#endif
