// SPDX-License-Identifier: BSD-3-Clause
// What a real driver lets pass, or lets go wrong without a word: each is one line on stderr and the
// end of the process. PEERHOP_STANDIN_CHECK=0 turns it off, for suites that do such things to see
// what the driver does.
//
//   - use of an allocation that its exporter has freed (cuda.h: undefined; measured: below 2 MiB
//   the
//     import shows the next owner's bytes)
//   - an import closed twice (measured: CUDA_ERROR_INVALID_VALUE, where nothing was opened there
//   since)
//   - two operations at the heads of two streams, of any processes, over the same bytes, of which
//   one
//     writes: nothing orders them
//   - bytes that a kernel has stored into memory of another process, or device, where no fence of
//     system scope has followed on its stream. That it has ended, and that another kernel has begun
//     behind it, early or not, is an order for its own device only (measured: the first store to a
//     page of a peer came after a later kernel's)
//   - a stream that waits on memory of another process: each look crosses the bus
//   - memory that was imported while another device was current
//   - a launch of one of the library's kernels with items that are another one's, or with too few
//     blocks or threads for them: they would not be done
//
// Operations are announced in a table behind the memory itself, which all processes share, from
// when they are the next of their stream until they are done. A kernel that waits is announced
// where it has waited, until it posts; of phi_hop only copies into the peer's buffer. What has no
// fence behind it stays announced.
#include "standin.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLOSED 256 // imports closed last

static struct si_active host_active[SI_ACTIVE_MAX]; // of host memory: this process' operations
static uint64_t closed[CLOSED];
static unsigned closed_next;

static void fatal(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "stand-in, process %d: %s\n", getpid(), line);
    fflush(stderr);
    abort();
}

static const char *name_of(const struct si_op *op)
{
    static const char *const names[] = {[SI_OP_COPY] = "a copy", [SI_OP_FILL] = "a fill"};
    return op->kind == SI_OP_KERNEL ? "a kernel" : names[op->kind];
}

static unsigned touches_of(const struct si_op *op, struct si_touch touches[SI_TOUCHES],
                           uint64_t *part)
{
    *part = 0;
    switch (op->kind) {
    case SI_OP_COPY:
        touches[0] = (struct si_touch){op->u.copy.destination, op->u.copy.size, true};
        touches[1] = (struct si_touch){op->u.copy.source, op->u.copy.size, false};
        return 2;
    case SI_OP_FILL:
        touches[0] =
            (struct si_touch){op->u.fill.destination, op->u.fill.count * op->u.fill.width, true};
        return 1;
    case SI_OP_KERNEL:
        return si_kernel_touches(op->u.kernel.function->run, op->blob->data, op->state, touches,
                                 part);
    default:
        return 0;
    }
}

// ---- Freed memory

static void check_alive(const struct si_op *op, const struct si_allocation *allocation)
{
    if (allocation->kind != SI_IMPORT && allocation->kind != SI_POOLED_IMPORT)
        return;
    if (__atomic_load_n(si_life_of(allocation), __ATOMIC_ACQUIRE) != allocation->life)
        fatal("use of freed exported memory: %s touches %#" PRIx64
              ", whose owner has freed it since it was imported",
              name_of(op), allocation->base);
}

static void check_context(const struct si_op *op, const struct si_allocation *allocation,
                          const struct si_context *context)
{
    if (allocation->kind == SI_IMPORT && allocation->context != context)
        fatal("a wrong current context: %s of device %d touches %#" PRIx64
              ", which was imported while device %d was current",
              name_of(op), context->ordinal, allocation->base, allocation->context->ordinal);
}

// ---- Races

static bool overlap(const struct si_active *a, const struct si_active *b)
{
    return a->begin < b->end && b->begin < a->end && (a->writes || b->writes);
}

// Announcing is one store, looking at the others comes after it (both seq_cst): of two that
// announce at once, at least one sees the other.
static int announce(struct si_active *table, const struct si_active *mine)
{
    for (int i = 0; i < SI_ACTIVE_MAX; i++) {
        uint64_t nobody = 0;
        if (!__atomic_compare_exchange_n(&table[i].owner, &nobody, si.cookie, false,
                                         __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            continue;
        __atomic_store_n(&table[i].begin, mine->begin, __ATOMIC_RELAXED);
        __atomic_store_n(&table[i].end, mine->end, __ATOMIC_RELAXED);
        __atomic_store_n(&table[i].writes, mine->writes, __ATOMIC_RELAXED);
        __atomic_store_n(&table[i].kernel, mine->kernel, __ATOMIC_RELAXED);
        __atomic_store_n(&table[i].late, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&table[i].pid, (uint32_t)getpid(), __ATOMIC_RELAXED);
        // Odd: what stands there holds. Pairs with the loads in check_race.
        __atomic_add_fetch(&table[i].version, 1, __ATOMIC_SEQ_CST);
        return i;
    }
    return -1; // more operations at once than it is worth to follow
}

static void withdraw(struct si_active *entry)
{
    __atomic_add_fetch(&entry->version, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&entry->owner, 0, __ATOMIC_SEQ_CST);
}

// Whether a process goes on living. One that is being killed closes its descriptors one by one: its
// peers may learn of its end before that of its life is closed.
static bool lives_on(uint64_t owner)
{
    for (int i = 0; i < 100; i++) {
        if (!si_process_lives(owner))
            return false;
        usleep(1000);
    }
    return true;
}

// Whether a test has said, by a file of this name, that what a process has under way is no racer: a
// rank that aborts or is expelled lets go of waits for copies that still run.
static bool is_excused(uint32_t pid)
{
    const char *folder = getenv("TMPDIR");
    char path[256];
    snprintf(path, sizeof(path), "%s/.standin-excused-%u", folder ? folder : "/tmp", pid);
    return access(path, F_OK) == 0;
}

static void check_race(const struct si_op *op, struct si_active *table, int own)
{
    for (int i = 0; i < SI_ACTIVE_MAX; i++) {
        uint64_t owner = __atomic_load_n(&table[i].owner, __ATOMIC_SEQ_CST);
        uint32_t version = __atomic_load_n(&table[i].version, __ATOMIC_SEQ_CST);
        if (i == own || !owner || !(version & 1))
            continue;
        struct si_active other = {.begin = __atomic_load_n(&table[i].begin, __ATOMIC_RELAXED),
                                  .end = __atomic_load_n(&table[i].end, __ATOMIC_RELAXED),
                                  .writes = __atomic_load_n(&table[i].writes, __ATOMIC_RELAXED),
                                  .pid = __atomic_load_n(&table[i].pid, __ATOMIC_RELAXED),
                                  .late = __atomic_load_n(&table[i].late, __ATOMIC_RELAXED),
                                  .kernel = __atomic_load_n(&table[i].kernel, __ATOMIC_ACQUIRE)};
        if (__atomic_load_n(&table[i].version, __ATOMIC_SEQ_CST) != version ||
            !overlap(&table[own], &other))
            continue;
        // First: a rank that aborted may have begun a new life, which has no excuse, before it is
        // known whether it lives on.
        if (is_excused(other.pid) || is_excused((uint32_t)getpid()) ||
            __atomic_load_n(&table[i].version, __ATOMIC_SEQ_CST) != version) // over meanwhile
            continue;
        if (owner != si.cookie && !lives_on(owner)) {
            withdraw(&table[i]); // it died in the middle
            continue;
        }
        fatal("unordered operations race: %s that %s [%#" PRIx64 ", %#" PRIx64
              ") and %s of %s process (%u) that %s [%#" PRIx64 ", %#" PRIx64 ")%s",
              name_of(op), table[own].writes ? "writes" : "reads", table[own].begin, table[own].end,
              other.kernel ? "a kernel" : "a copy or fill", owner == si.cookie ? "this" : "another",
              other.pid, other.writes ? "writes" : "reads", other.begin, other.end,
              other.late ? ": it has ended with no fence of system scope" : "");
    }
}

static struct si_active *place(const struct si_op *op, const struct si_touch *touch,
                               const struct si_context *context, struct si_active *mine)
{
    const struct si_allocation *allocation = si_find(touch->address);
    struct si_physical *physical = allocation ? allocation->physical : NULL;
    uint64_t at = touch->address;
    if (allocation) {
        check_alive(op, allocation);
        check_context(op, allocation, context);
    } else if (si_arena_holds(touch->address)) {
        fatal("use of memory that is gone: %s touches %#" PRIx64, name_of(op), touch->address);
    }
    if (physical)
        at = touch->address - allocation->base + allocation->offset;
    *mine = (struct si_active){.begin = at,
                               .end = at + touch->size,
                               .writes = touch->write,
                               .kernel = op->kind == SI_OP_KERNEL};
    return physical ? physical->trailer->active : host_active;
}

static void announce_touch(struct si_op *op, unsigned i, const struct si_context *context)
{
    const struct si_touch *touch = &op->touch[i];
    struct si_active mine;
    struct si_active *table = place(op, touch, context, &mine);
    int slot = touch->size ? announce(table, &mine) : -1;
    op->active[i] = slot < 0 ? NULL : &table[slot];
    if (slot < 0)
        return;
    struct si_allocation *allocation = si_find(touch->address);
    op->held[i] = allocation ? allocation->physical : NULL;
    if (op->held[i])
        op->held[i]->refs++; // the table stays
    check_race(op, table, slot);
}

void si_check_begin(struct si_op *op, struct CUstream_st *stream)
{
    struct si_touch touches[SI_TOUCHES];
    uint64_t part;
    if (!si.checks)
        return;
    unsigned count = touches_of(op, touches, &part);
    if (op->checked && op->part == part)
        return;
    si_check_end(op, stream); // of what it has done so far
    op->checked = true;
    op->part = part;
    op->touches = count;
    memcpy(op->touch, touches, count * sizeof(touches[0]));
    for (unsigned i = 0; i < count; i++)
        announce_touch(op, i, stream->context);
}

// Whether others may see what stands behind the operation on its stream before they see this.
static bool is_late(const struct si_op *op, unsigned i, const struct CUstream_st *stream)
{
    const struct si_physical *physical = op->held[i];
    return op->kind == SI_OP_KERNEL && op->touch[i].write && physical &&
           (!physical->own || si_ordinal(physical->physical) != stream->context->ordinal) &&
           !si_kernel_fences(op->u.kernel.function->run);
}

static void drop_touch(struct si_op *op, unsigned i, struct CUstream_st *stream)
{
    if (!op->active[i])
        return;
    if (is_late(op, i, stream)) {
        if (stream->late_count == SI_LATE_MAX)
            fatal("more stores than can be followed that no fence has followed: %s", name_of(op));
        __atomic_store_n(&op->active[i]->late, 1, __ATOMIC_RELAXED);
        stream->late[stream->late_count++] = (struct si_late){op->active[i], op->held[i]};
        return;
    }
    withdraw(op->active[i]);
    if (op->held[i])
        si_physical_drop(op->held[i]);
}

void si_check_end(struct si_op *op, struct CUstream_st *stream)
{
    if (!op->checked)
        return;
    op->checked = false;
    for (unsigned i = 0; i < op->touches; i++) {
        const struct si_allocation *allocation = si_find(op->touch[i].address);
        if (allocation)
            check_alive(op, allocation); // it may have been freed while we were at it
        drop_touch(op, i, stream);
    }
    op->touches = 0;
}

void si_check_fence(struct CUstream_st *stream)
{
    for (unsigned i = 0; i < stream->late_count; i++) {
        withdraw(stream->late[i].active);
        si_physical_drop(stream->late[i].held);
    }
    stream->late_count = 0;
}

// Before a step that may tell others something behind a fence. Memory operations do, and an event,
// or a copy engine, is told by one; the end of a kernel is none.
void si_check_step(const struct si_op *op, struct CUstream_st *stream)
{
    if (op->kind == SI_OP_KERNEL ? si_kernel_releases(op->u.kernel.function->run, op->blob->data)
                                 : op->kind != SI_OP_GRAPH)
        si_check_fence(stream);
}

// ---- At the call

void si_check_wait(uint64_t address)
{
    const struct si_allocation *allocation = si.checks ? si_find(address) : NULL;
    if (allocation && allocation->physical && !allocation->physical->own)
        fatal("a wait on a remote address: %#" PRIx64 " is memory of another process", address);
}

void si_check_launch(const CUlaunchConfig *config)
{
    for (unsigned i = 0; si.checks && i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
            config->attrs[i].value.programmaticStreamSerializationAllowed && si.ptx < 90)
            fatal("an early launch: code for %d.%d does not wait for the kernel before it",
                  si.ptx / 10, si.ptx % 10);
}

void si_check_grid(const struct CUfunc_st *function, const void *args, unsigned blocks,
                   unsigned threads)
{
    const char *why =
        si.checks && function->refuse ? function->refuse(args, blocks, threads) : NULL;
    if (why)
        fatal("a launch of %s with %u blocks of %u threads: %s", function->name, blocks, threads,
              why);
}

void si_check_current(const struct si_allocation *allocation, const char *call)
{
    const struct si_context *current = si_current();
    if (si.checks && allocation->context != current)
        fatal("a wrong current context: %s of %#" PRIx64
              ", which belongs to device %d, with device %d current",
              call, allocation->base, allocation->context->ordinal, current->ordinal);
}

void si_check_opened(uint64_t address)
{
    for (int i = 0; i < CLOSED; i++) {
        if (closed[i] == address)
            closed[i] = 0;
    }
}

void si_check_closed(uint64_t address)
{
    closed[closed_next++ % CLOSED] = address;
}

void si_check_close(uint64_t address)
{
    for (int i = 0; si.checks && address && i < CLOSED; i++) {
        if (closed[i] == address)
            fatal("an import closed twice: %#" PRIx64, address);
    }
}
