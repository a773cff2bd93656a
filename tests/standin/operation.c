// SPDX-License-Identifier: BSD-3-Clause
// Operations: what they hold, and how the engine moves each of them on.
#include "standin.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK SI_MIB // bytes of a long operation before other streams have their turn
#define PAGE  4096

struct si_op *si_op_new(enum si_op_kind kind)
{
    struct si_op *op = calloc(1, sizeof(*op));
    if (op)
        op->kind = kind;
    return op;
}

struct si_blob *si_blob_new(const void *data, size_t size)
{
    struct si_blob *blob = malloc(sizeof(*blob) + size);
    if (!blob)
        return NULL;
    blob->refs = 1;
    memcpy(blob->data, data, size);
    return blob;
}

void si_op_clear(struct si_op *op)
{
    if (op->blob && !--op->blob->refs)
        free(op->blob);
    op->blob = NULL;
    if (op->kind == SI_OP_RECORD || op->kind == SI_OP_AWAIT || op->kind == SI_OP_NOTHING)
        si_marker_drop(op->u.marker);
    if (op->kind == SI_OP_HOST && op->u.host.marker)
        si_marker_drop(op->u.host.marker);
    if (op->kind == SI_OP_KERNEL)
        si_grid_leave(op);
    if (op->kind == SI_OP_GRAPH)
        si_run_free(op->u.run);
}

void si_op_free(struct si_op *op)
{
    si_op_clear(op);
    free(op);
}

struct si_marker *si_marker_new(void)
{
    struct si_marker *marker = calloc(1, sizeof(*marker));
    if (marker)
        marker->refs = 1;
    return marker;
}

struct si_marker *si_marker_hold(struct si_marker *marker)
{
    marker->refs++;
    return marker;
}

void si_marker_drop(struct si_marker *marker)
{
    if (!--marker->refs)
        free(marker);
}

void si_marker_wait(struct si_marker *marker)
{
    while (!marker->done)
        pthread_cond_wait(&si.changed, &si.lock);
}

void si_marker_finish(struct si_marker *marker)
{
    clock_gettime(CLOCK_MONOTONIC, &marker->at);
    marker->done = true;
    pthread_cond_broadcast(&si.changed);
}

SI_EXPORT void (*si_on_copy)(void *to, const void *from, size_t size);

// How many of `size` bytes from `at` on nobody has touched: zeros, of pages that are not there.
static size_t untouched(uint64_t at, size_t size)
{
    const struct si_allocation *allocation = si_find(at);
    if (!allocation || !allocation->physical)
        return 0;
    const off_t place = (off_t)(allocation->offset + (at - allocation->base));
    const off_t data = lseek(allocation->physical->fd, place, SEEK_DATA);
    return data < 0 ? 0 : data - place < (off_t)size ? (size_t)(data - place) : size;
}

// Without touching what nobody has.
static bool is_zeros(uint64_t at, size_t size)
{
    for (size_t part; size > 0; at += part, size -= part) {
        part = untouched(at, size);
        if (part > 0)
            continue;
        const unsigned char *bytes = (const unsigned char *)at;
        part = PAGE - at % PAGE < size ? PAGE - at % PAGE : size;
        if (bytes[0] != 0 || memcmp(bytes, bytes + 1, part - 1) != 0)
            return false;
    }
    return true;
}

// Zeros that come to where nothing was yet change nothing. To make pages for them was half of what
// the tests' processors did: the library clears much that few tests use.
static size_t skip_zeros(uint64_t to, uint64_t from, size_t size)
{
    const size_t skipped = untouched(to, size);
    return skipped >= PAGE && is_zeros(from, skipped) ? skipped : 0;
}

static enum si_progress moved_on(struct si_op *op, size_t by, size_t of)
{
    op->state[0] += by;
    return op->state[0] == of ? SI_DONE : SI_MOVED;
}

static enum si_progress step_copy(struct si_op *op)
{
    size_t left = op->u.copy.size - op->state[0];
    size_t part = left < CHUNK ? left : CHUNK;
    void *to = (void *)(op->u.copy.destination + op->state[0]);
    const void *from = (const void *)(op->u.copy.source + op->state[0]);
    const size_t skipped = si_on_copy ? 0 : skip_zeros((uint64_t)to, (uint64_t)from, part);
    if (skipped)
        return moved_on(op, skipped, op->u.copy.size);
    pthread_mutex_unlock(&si.lock);
    // Overlapping copies are undefined for the driver, and so they may be for us; memmove keeps
    // sanitizers calm.
    if (si_on_copy)
        si_on_copy(to, from, part);
    else
        memmove(to, from, part);
    pthread_mutex_lock(&si.lock);
    return moved_on(op, part, op->u.copy.size);
}

static void fill(uint64_t at, uint32_t value, unsigned width, size_t count)
{
    if (width == 1) {
        memset((void *)at, (int)value, count);
        return;
    }
    uint32_t *word = (uint32_t *)at;
    for (size_t i = 0; i < count; i++)
        word[i] = value;
}

static enum si_progress step_fill(struct si_op *op)
{
    size_t left = op->u.fill.count - op->state[0];
    size_t part = left < CHUNK ? left : CHUNK;
    uint64_t at = op->u.fill.destination + op->state[0] * op->u.fill.width;
    pthread_mutex_unlock(&si.lock);
    fill(at, op->u.fill.value, op->u.fill.width, part);
    pthread_mutex_lock(&si.lock);
    return moved_on(op, part, op->u.fill.count);
}

static bool compare(uint64_t seen, const struct si_memop *memop, bool wide)
{
    switch (memop->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        // cyclic: the difference counts
        return wide ? (int64_t)(seen - memop->value) >= 0
                    : (int32_t)((uint32_t)seen - (uint32_t)memop->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return seen == memop->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (seen & memop->value) != 0;
    default:
        return (wide ? ~(seen | memop->value) : (uint32_t) ~(seen | memop->value)) != 0;
    }
}

// Whether the operation is over. Waits acquire and writes release: the default flags order
// everything before them.
static bool memop_step(const struct si_memop *memop)
{
    uint32_t *word = (uint32_t *)memop->address;
    uint64_t *wide = (uint64_t *)memop->address;
    switch (memop->type) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return compare(__atomic_load_n(word, __ATOMIC_SEQ_CST), memop, false);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return compare(__atomic_load_n(wide, __ATOMIC_SEQ_CST), memop, true);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        __atomic_store_n(word, (uint32_t)memop->value, __ATOMIC_SEQ_CST);
        return true;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        __atomic_store_n(wide, memop->value, __ATOMIC_SEQ_CST);
        return true;
    default:
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        return true;
    }
}

static enum si_progress step_memops(struct si_op *op)
{
    const struct si_memop *memops = (const struct si_memop *)op->blob->data;
    while (op->state[0] < op->u.memops.count) {
        if (!memop_step(&memops[op->state[0]]))
            return SI_WAITING;
        op->state[0]++;
    }
    return SI_DONE;
}

_Thread_local const struct si_op *si_running;
_Thread_local int si_running_device;

static int physical_of(const struct CUstream_st *stream)
{
    return si.devices[stream->context->ordinal].physical;
}

static enum si_progress step_kernel(struct si_op *op, struct CUstream_st *stream)
{
    if (!si_grid_enter(op, stream->context))
        return SI_WAITING;
    si_kernel run = op->u.kernel.function->run;
    si_running = op;
    si_running_device = physical_of(stream);
    pthread_mutex_unlock(&si.lock);
    enum si_progress progress = run(op->blob->data, op->state);
    pthread_mutex_lock(&si.lock);
    if (progress == SI_DONE)
        si_grid_leave(op);
    return progress;
}

static enum si_progress step_host(struct si_op *op)
{
    if (!op->u.host.marker) {
        op->u.host.marker = si_marker_new();
        if (!op->u.host.marker)
            abort();
        si_callback(op->u.host.call, op->u.host.data, si_marker_hold(op->u.host.marker));
        return SI_MOVED;
    }
    return op->u.host.marker->done ? SI_DONE : SI_WAITING;
}

static enum si_progress step_free(struct si_op *op)
{
    struct si_allocation *allocation = si_find_next(op->u.free.address);
    if (allocation && allocation->id == op->u.free.id)
        si_deallocate(allocation);
    return SI_DONE;
}

enum si_progress si_op_step(struct si_op *op, struct CUstream_st *stream)
{
    enum si_progress progress;
    si_check_step(op, stream);
    switch (op->kind) {
    case SI_OP_COPY:
        progress = step_copy(op);
        if (progress == SI_DONE)
            si_lose_copy(physical_of(stream), op->u.copy.destination, op->u.copy.source,
                         op->u.copy.size);
        return progress;
    case SI_OP_FILL:
        return step_fill(op);
    case SI_OP_MEMOPS:
        return step_memops(op);
    case SI_OP_KERNEL:
        return step_kernel(op, stream);
    case SI_OP_HOST:
        return step_host(op);
    case SI_OP_AWAIT:
        return op->u.marker->done ? SI_DONE : SI_WAITING;
    case SI_OP_GRAPH:
        return si_run_step(op->u.run, stream);
    case SI_OP_FREE:
        return step_free(op);
    case SI_OP_RECORD:
    case SI_OP_NOTHING:
        si_marker_finish(op->u.marker);
        return SI_DONE;
    }
    return SI_DONE;
}
