// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/enqueue.h"

#include <string.h>

#include "base/counters.h"
#include "cuda/kernel_args.h"
#include "semaphore/hop.h"
#include "semaphore/page_launch.h"
#include "semaphore/view.h"

static CUresult enqueue_batch(struct phi_enqueue *q, const struct phi_piece *piece)
{
    CUstreamBatchMemOpParams ops[PHI_BATCH_MAX];
    const unsigned wait_flags = CU_STREAM_WAIT_VALUE_AND |
                                (q->to->info->flush_remote_writes ? CU_STREAM_WAIT_VALUE_FLUSH : 0);
    unsigned count = 0;
    for (size_t i = piece->first; i < piece->first + piece->count; i++) {
        const struct phi_work *work = &q->work[i];
        CUstreamBatchMemOpParams *op = &ops[count];
        if (work->kind == PHI_STEP_COPY || work->kind == PHI_STEP_HOLD)
            continue; // of no bytes
        count++;
        if (work->kind == PHI_STEP_BEHIND)
            // Pairs with the store of the other stream's number.
            op->waitValue = (struct CUstreamMemOpWaitValueParams_st){
                .operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
                .address = work->word.device,
                .value64 = work->span.message,
                .flags = CU_STREAM_WAIT_VALUE_GEQ};
        else if (work->kind == PHI_STEP_WAIT)
            // Pairs with the post of whose turn it is.
            op->waitValue = (struct CUstreamMemOpWaitValueParams_st){
                .operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                .address = work->word.device,
                .value = work->word.value,
                .flags = wait_flags};
        else
            // Default flags: a system-wide fence before the write, so that a POST releases what
            // came before it.
            op->writeValue = (struct CUstreamMemOpWriteValueParams_st){
                .operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
                .address = work->word.device,
                .value = work->word.value};
    }
    if (piece->done)
        ops[count++].writeValue = (struct CUstreamMemOpWriteValueParams_st){
            .operation = CU_STREAM_MEM_OP_WRITE_VALUE_64, .address = q->done, .value64 = q->number};
    return q->to->driver->cuStreamBatchMemOp_v2(q->stream, count, ops, 0);
}

// add_items appends those of work [first, end) that are no copies, and returns how many there are
// now.
static uint32_t add_items(const struct phi_enqueue *q, size_t first, size_t end,
                          struct phi_brace_item *items, uint32_t count)
{
    for (size_t i = first; i < end; i++) {
        const struct phi_work *work = &q->work[i];
        if (work->kind == PHI_STEP_COPY || work->kind == PHI_STEP_HOLD)
            continue; // of no bytes
        items[count++] = (struct phi_brace_item){
            .word = work->word.device,
            .broken = work->over.broken_device,
            .kind = work->kind == PHI_STEP_WAIT ? PHI_BRACE_WAIT : PHI_BRACE_POST,
            .value = work->word.value};
    }
    return count;
}

static CUresult launch(struct phi_enqueue *q, struct phi_grid grid, void *args)
{
    phi_count(q->to->counters, launches, 1);
    return q->to->driver->cuLaunchKernel(phi_device_kernel(q->to->device, grid.kernel), grid.blocks,
                                         1, 1, grid.threads, 1, 1, 0, q->stream, (void *[]){args},
                                         NULL);
}

// The kernel may begin while the kernel before it ends, where the driver can do that: the kernel
// waits inside for that end.
static CUresult launch_early(struct phi_enqueue *q, struct phi_grid grid, void *args)
{
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {.gridDimX = grid.blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = grid.threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = q->stream,
                                   .attrs = &early,
                                   .numAttrs = 1};
    if (!q->to->info->early_launch)
        return launch(q, grid, args);
    phi_count(q->to->counters, launches, 1);
    return q->to->driver->cuLaunchKernelEx(&config, phi_device_kernel(q->to->device, grid.kernel),
                                           (void *[]){args}, NULL);
}

static CUresult enqueue_kernel(struct phi_enqueue *q, const struct phi_piece *piece)
{
    struct phi_brace_args args;
    args.count = add_items(q, piece->first, piece->first + piece->count, args.items, 0);
    args.reserved = 0;
    args.done = piece->done ? q->done : 0;
    args.number = q->number;
    return launch(q, (struct phi_grid){PHI_KERNEL_BRACE, 1, PHI_BRACE_THREADS}, &args);
}

// look is phi_view for memory of the caller's. What a graph will allocate the driver does not know
// yet.
static CUresult look(struct phi_enqueue *q, const void *address, uint64_t *device, bool *host)
{
    const bool known = phi_view_any(q->to->driver, address, device, host);
    if (*device == 0)
        *device = (uintptr_t)address;
    if (known || q->captured)
        return CUDA_SUCCESS;
    q->unreached = address;
    return CUDA_ERROR_INVALID_VALUE;
}

// The whole of a message in parts is looked at before its first part: half a message could not be
// taken back.
static CUresult ask(struct phi_enqueue *q, const struct phi_work *work, const void *address,
                    uint64_t *device, bool *host)
{
    const uint64_t all =
        work->span.message > work->span.size ? work->span.message : work->span.size;
    uint64_t last;
    bool there;
    CUresult result = look(q, address, device, host);
    if (result == CUDA_SUCCESS && (work->span.asks & PHI_ASK_END))
        result = look(q, (const uint8_t *)address + all - 1, &last, &there);
    return result;
}

static CUresult view_source(struct phi_enqueue *q, const struct phi_work *work, uint64_t *device)
{
    bool host;
    return (work->span.asks & PHI_ASK_SOURCE) && work->span.size > 0
               ? ask(q, work, work->span.source, device, &host)
               : phi_view(q->to->driver, work->span.source, work->span.host_source, device);
}

// host: whether it is host memory.
static CUresult view_destination(struct phi_enqueue *q, const struct phi_work *work,
                                 uint64_t *device, bool *host)
{
    *host = work->span.host_destination;
    return (work->span.asks & PHI_ASK_DESTINATION) && work->span.size > 0
               ? ask(q, work, work->span.destination, device, host)
               : phi_view(q->to->driver, work->span.destination, work->span.host_destination,
                          device);
}

static CUresult describe_copy(struct phi_enqueue *q, const struct phi_work *work,
                              struct phi_copy_args *args)
{
    *args = (struct phi_copy_args){.size = work->span.size,
                                   .broken = work->over.broken_device,
                                   .message = work->span.message,
                                   .word = work->word.device,
                                   .bit = work->word.value,
                                   .head = work->head};
    bool host;
    CUresult result = view_destination(q, work, &args->destination, &host);
    if (result == CUDA_SUCCESS)
        result = view_source(q, work, &args->source);
    phi_count(q->to->counters, copy_kernels, 1);
    return result;
}

// 0 where it has none; of a kernel of one block that will do.
static uint64_t sync_of(const struct phi_enqueue *q)
{
    const struct phi_transfer_sync *syncs = q->to->sync;
    return q->sync ? (uint64_t)(uintptr_t)(syncs + q->sync - 1) : 0;
}

static CUresult enqueue_copy_kernel(struct phi_enqueue *q, const struct phi_work *work)
{
    struct phi_copy_args args;
    CUresult result = describe_copy(q, work, &args);
    if (result != CUDA_SUCCESS)
        return result;
    const uint32_t blocks = phi_copy_blocks(&q->to->policy, work->span.size);
    args.sync = blocks > 1 ? sync_of(q) : 0;
    return launch(q, (struct phi_grid){PHI_KERNEL_COPY, blocks, PHI_COPY_THREADS}, &args);
}

static void count_copies(struct phi_enqueue *q, uint32_t n, uint64_t bytes)
{
    phi_count(q->to->counters, ipc_operations, n);
    phi_count(q->to->counters, ipc_bytes, bytes);
}

static void count_copy(struct phi_enqueue *q, const struct phi_work *work)
{
    if (!phi_step_staged(work->kind))
        return count_copies(q, 1, work->span.size);
    phi_count(q->to->counters, net_operations, 1);
    phi_count(q->to->counters, net_bytes, work->span.size);
}

// One block waits, and copies what it can alone. More than that is copied by a launch of its own,
// behind that of the wait.
static CUresult enqueue_transfer(struct phi_enqueue *q, const struct phi_piece *piece)
{
    const struct phi_work *work = &q->work[piece->copy];
    const uint32_t blocks = q->sync ? phi_copy_blocks(&q->to->policy, work->span.size) : 1;
    size_t first = piece->first;
    struct phi_transfer_args args;
    CUresult result = describe_copy(q, work, &args.copy);
    if (result == CUDA_SUCCESS && blocks > 1) {
        const struct phi_piece before = {.first = first, .count = piece->copy - first};
        result = before.count > 0 ? enqueue_kernel(q, &before) : CUDA_SUCCESS;
        q->started = q->started || result == CUDA_SUCCESS;
        first = piece->copy;
    }
    if (result != CUDA_SUCCESS)
        return result;
    count_copy(q, work);
    args.before = add_items(q, first, piece->copy, args.items, 0);
    args.count =
        add_items(q, piece->copy + 1, piece->first + piece->count, args.items, args.before);
    args.done = piece->done ? q->done : 0;
    args.number = q->number;
    args.copy.sync = sync_of(q);
    return launch(q, (struct phi_grid){PHI_KERNEL_TRANSFER, blocks, PHI_COPY_THREADS}, &args);
}

// view_hop puts the addresses by which kernels know a message's memory.
static CUresult view_hop(struct phi_enqueue *q, struct phi_work *work)
{
    const bool reads =
        work->kind == PHI_STEP_PUSH || work->kind == PHI_STEP_MOVE || work->kind == PHI_STEP_STAGE;
    const bool writes = work->kind == PHI_STEP_TAKE || work->kind == PHI_STEP_MOVE ||
                        work->kind == PHI_STEP_UNSTAGE || work->kind == PHI_STEP_HELP;
    uint64_t address;
    bool host;
    CUresult result = CUDA_SUCCESS;
    // A signal may end puts whose bytes it does not know of.
    if (work->span.size == 0 && work->kind != PHI_STEP_UNSTAGE && work->kind != PHI_STEP_HELP)
        return result;
    // The net is given the address as its owner knows it.
    if (work->kind == PHI_STEP_BELL)
        count_copy(q, work);
    if (reads) {
        count_copy(q, work);
        phi_count(q->to->counters, copy_kernels, 1);
        result = view_source(q, work, &address);
        work->span.source = (const void *)(uintptr_t)address;
    }
    if (writes && result == CUDA_SUCCESS) {
        result = view_destination(q, work, &address, &host);
        work->span.destination = (void *)(uintptr_t)address;
        work->span.host_destination = host;
    }
    return result;
}

static CUresult launch_hops(struct phi_enqueue *q, const struct phi_piece *piece,
                            const struct phi_work *work)
{
    const enum phi_hop_part last = phi_hop_last(work, piece->count, q->captured);
    CUresult result = CUDA_SUCCESS;
    bool behind = false, wrote = piece->first > 0;
    for (unsigned part = 0; part <= last && result == CUDA_SUCCESS; part++) {
        struct phi_hop_args args;
        struct phi_grid grid = phi_hop_fill(work, piece->count, &q->to->policy, q->captured,
                                            (enum phi_hop_part)part, &args);
        if (grid.blocks == 0)
            continue;
        args.done = piece->done ? q->done : 0;
        args.number = q->number;
        args.sync = sync_of(q);
        args.tells = part == last;
        args.behind = behind;
        // The number is also that of what earlier launches of the operation wrote.
        if (args.tells && wrote)
            args.items[0].fence |= PHI_FENCE;
        for (uint32_t i = 0; i < args.count; i++)
            wrote = wrote || (args.items[i].fence & PHI_FENCE) != 0;
        result = launch_early(q, grid, &args);
        q->started = q->started || result == CUDA_SUCCESS;
        behind = true;
    }
    return result;
}

static CUresult enqueue_hop(struct phi_enqueue *q, const struct phi_piece *piece)
{
    struct phi_work work[PHI_HOP_ITEMS];
    CUresult result = CUDA_SUCCESS;
    memcpy(work, q->work + piece->first, piece->count * sizeof *work);
    for (size_t i = 0; i < piece->count && result == CUDA_SUCCESS; i++)
        result = view_hop(q, &work[i]);
    return result == CUDA_SUCCESS ? launch_hops(q, piece, work) : result;
}

static CUresult enqueue_copy(struct phi_enqueue *q, const struct phi_piece *piece)
{
    const struct phi_work *work = &q->work[piece->first];
    const bool behind = piece->behind || q->waited;
    count_copy(q, work);
    if (work->head ? q->to->policy.kernels : !work->engine && phi_copy_mode(&q->to->policy, behind))
        return enqueue_copy_kernel(q, work);
    return q->to->driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)work->span.destination,
                                        (CUdeviceptr)(uintptr_t)work->span.source, work->span.size,
                                        q->stream);
}

bool phi_enqueue_together(const struct phi_enqueue *q)
{
    return q->to->info->copy_batches && q->done != 0 && q->stream != NULL &&
           q->stream != CU_STREAM_LEGACY;
}

static CUresult enqueue_engine(struct phi_enqueue *q, const struct phi_piece *piece)
{
    CUdeviceptr to[PHI_ENGINE_MAX], from[PHI_ENGINE_MAX];
    size_t sizes[PHI_ENGINE_MAX], n = 0;
    for (size_t i = piece->first; i < piece->first + piece->count; i++) {
        const struct phi_work *work = &q->work[i];
        if (work->kind != PHI_STEP_COPY || work->span.size == 0)
            continue;
        to[n] = (CUdeviceptr)(uintptr_t)work->span.destination;
        from[n] = (CUdeviceptr)(uintptr_t)work->span.source;
        sizes[n++] = work->span.size;
        count_copy(q, work);
    }
    return phi_cuda_copy_together(q->to->driver, to, from, sizes, n, q->stream);
}

static CUresult enqueue_copies(struct phi_enqueue *q, const struct phi_piece *piece)
{
    const bool behind = piece->behind || q->waited;
    struct phi_copies_args args = {.done = piece->done ? q->done : 0,
                                   .number = q->number,
                                   .sync = behind || piece->done ? sync_of(q) : 0};
    CUresult result = CUDA_SUCCESS;
    uint32_t blocks = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < piece->count; i++)
        bytes += q->work[piece->first + i].span.size;
    for (size_t i = 0; i < piece->count && result == CUDA_SUCCESS; i++) {
        const struct phi_work *work = &q->work[piece->first + i];
        if (work->span.size == 0)
            continue;
        struct phi_copies_item *item = &args.items[args.count++];
        *item = (struct phi_copies_item){
            .broken = behind ? work->over.broken_device : 0,
            .size = (uint32_t)work->span.size,
            .first = blocks,
        };
        bool host;
        result = view_destination(q, work, &item->destination, &host);
        if (result == CUDA_SUCCESS)
            result = view_source(q, work, &item->source);
        blocks += phi_copies_blocks(&q->to->policy, work->span.size, bytes);
    }
    if (result != CUDA_SUCCESS)
        return result;
    phi_count(q->to->counters, copy_kernels, args.count);
    count_copies(q, args.count, bytes);
    const struct phi_grid grid = {PHI_KERNEL_COPIES, blocks, PHI_COPY_THREADS};
    return launch_early(q, grid, &args);
}

static CUresult enqueue_pages(struct phi_enqueue *q, const struct phi_piece *piece)
{
    const struct phi_work *work = &q->work[piece->first];
    const bool behind = piece->behind || q->waited;
    struct phi_pages_args args;
    struct phi_grid grid;
    CUresult result =
        phi_pages_fill(q->to->driver, q->to->lists, q->to->policy.page_blocks, work, &args, &grid);
    if (result != CUDA_SUCCESS)
        return result;
    args.broken = behind ? work->over.broken_device : 0;
    args.done = piece->done ? q->done : 0;
    args.number = q->number;
    args.sync = behind || piece->done ? sync_of(q) : 0;
    phi_count(q->to->counters, copy_kernels, 1);
    count_copies(q, 1, work->pages->bytes);
    return launch_early(q, grid, &args);
}

bool phi_enqueue_reaches(struct phi_enqueue *q)
{
    uint64_t device;
    bool host;
    // A single item is looked at when it is enqueued, unless it is one of the copy engine.
    if (q->n == 1 && q->work[0].kind != PHI_STEP_COPY)
        return true;
    for (size_t i = 0; i < q->n && q->result == CUDA_SUCCESS; i++) {
        const struct phi_work *work = &q->work[i];
        if (work->span.asks == 0 || work->span.size == 0)
            continue;
        if (work->span.asks & PHI_ASK_SOURCE)
            q->result = ask(q, work, work->span.source, &device, &host);
        if ((work->span.asks & PHI_ASK_DESTINATION) && q->result == CUDA_SUCCESS)
            q->result = ask(q, work, work->span.destination, &device, &host);
        q->failed = work;
    }
    return q->result == CUDA_SUCCESS;
}

void phi_enqueue_all(struct phi_enqueue *q)
{
    struct phi_piece piece;
    while (q->result == CUDA_SUCCESS && phi_plan_next(&q->plan, &piece)) {
        if (piece.kind == PHI_PIECE_COPY)
            q->result = enqueue_copy(q, &piece);
        else if (piece.kind == PHI_PIECE_ENGINE)
            q->result = enqueue_engine(q, &piece);
        else if (piece.kind == PHI_PIECE_COPIES)
            q->result = enqueue_copies(q, &piece);
        else if (piece.kind == PHI_PIECE_TRANSFER)
            q->result = enqueue_transfer(q, &piece);
        else if (piece.kind == PHI_PIECE_PAGES)
            q->result = enqueue_pages(q, &piece);
        else if (piece.kind == PHI_PIECE_HOP)
            q->result = enqueue_hop(q, &piece);
        else if (piece.kind == PHI_PIECE_KERNEL)
            q->result = enqueue_kernel(q, &piece);
        else
            q->result = enqueue_batch(q, &piece);
        if (q->result == CUDA_SUCCESS)
            q->started = true;
        else
            q->failed = piece.first < q->n ? &q->work[piece.first] : NULL;
        // Nobody says that of a batch that fails nothing is under way.
        q->started = q->started || piece.kind == PHI_PIECE_ENGINE;
    }
}

CUresult phi_enqueue_number(struct phi_enqueue *q)
{
    const struct phi_piece piece = {.done = true};
    return q->to->policy.batches ? enqueue_batch(q, &piece) : enqueue_kernel(q, &piece);
}
