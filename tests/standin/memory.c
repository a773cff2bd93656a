// SPDX-License-Identifier: BSD-3-Clause
// Every range of memory that the driver knows, and device memory as cuMemAlloc gives it: small
// pieces of 2 MiB blocks, or blocks of its own. A freed address comes back with another buffer id.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

static struct {
    struct si_allocation **items; // in the order of addresses
    int count, capacity;
} known;

// A block that small allocations share, as long as one of them lives.
struct block {
    struct block *next;
    struct si_context *context;
    struct si_physical *physical;
    uint64_t base;
};
static struct block *blocks;

// The first that begins after the address.
static int upper(uint64_t address)
{
    int low = 0, high = known.count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (known.items[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct si_allocation *si_find(uint64_t address)
{
    int i = upper(address) - 1;
    if (i < 0 || address - known.items[i]->base >= known.items[i]->size || known.items[i]->freeing)
        return NULL;
    return known.items[i];
}

struct si_allocation *si_find_next(uint64_t address)
{
    int i = address ? upper(address - 1) : 0;
    return i < known.count ? known.items[i] : NULL;
}

CUresult si_insert(const struct si_allocation *allocation, struct si_allocation **out)
{
    if (known.count == known.capacity) {
        int capacity = known.capacity ? 2 * known.capacity : 64;
        void *items = realloc(known.items, (size_t)capacity * sizeof(*known.items));
        if (!items)
            return CUDA_ERROR_OUT_OF_MEMORY;
        known.items = items;
        known.capacity = capacity;
    }
    struct si_allocation *copy = malloc(sizeof(*copy));
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *copy = *allocation;
    copy->id = ++si.next_buffer;
    int i = upper(copy->base);
    memmove(&known.items[i + 1], &known.items[i], (size_t)(known.count - i) * sizeof(*known.items));
    known.items[i] = copy;
    known.count++;
    *out = copy;
    return CUDA_SUCCESS;
}

void si_remove(struct si_allocation *allocation)
{
    int i = upper(allocation->base) - 1;
    known.count--;
    memmove(&known.items[i], &known.items[i + 1], (size_t)(known.count - i) * sizeof(*known.items));
    free(allocation);
}

// Another device's cudaMalloc memory needs cuCtxEnablePeerAccess, except for copies.
bool si_accessible(const struct si_allocation *allocation, const struct si_context *context,
                   bool copy)
{
    int device = context->ordinal;
    if (allocation->kind != SI_LEGACY && allocation->kind != SI_IMPORT)
        return allocation->access >> device & 1;
    int owner = si_allocation_device(allocation);
    return copy || owner == device || allocation->access >> device & 1 ||
           context->peers >> owner & 1;
}

bool si_reachable(uint64_t address, size_t size, const struct si_context *context, bool copy)
{
    uint64_t end = address + size;
    if (end < address)
        return false;
    do {
        const struct si_allocation *allocation = si_find(address);
        if (!allocation || !si_accessible(allocation, context, copy))
            return false;
        address = allocation->base + allocation->size;
    } while (address < end);
    return true;
}

bool si_is_device(const struct si_allocation *allocation)
{
    return allocation->kind != SI_HOST && allocation->kind != SI_REGISTERED;
}

int si_allocation_device(const struct si_allocation *allocation)
{
    // Memory of a device that this process does not see counts as the device that opened it.
    int ordinal = allocation->physical ? si_ordinal(allocation->physical->physical) : -1;
    return ordinal < 0 ? allocation->context->ordinal : ordinal;
}

// The first hole of the block that holds size bytes, or 0.
static uint64_t block_gap(const struct block *block, size_t size)
{
    uint64_t at = block->base;
    for (;;) {
        const struct si_allocation *next = si_find_next(at);
        uint64_t end = block->base + SI_BLOCK;
        if (next && next->base < end)
            end = next->base;
        if (end - at >= size)
            return at;
        if (end == block->base + SI_BLOCK)
            return 0;
        at = (next->base + next->size + SI_UNIT - 1) & ~(uint64_t)(SI_UNIT - 1);
    }
}

// New physical memory at a new address. The caller undoes it by region_drop.
static CUresult region_new(struct si_context *context, size_t size, struct si_physical **physical,
                           uint64_t *base)
{
    CUresult result = si_physical_create(si.devices[context->ordinal].physical, size, 0, physical);
    if (result)
        return result;
    *base = si_arena_take((*physical)->size, SI_BLOCK);
    if (*base && si_physical_map(*physical, *base, true)) {
        si.devices[context->ordinal].used += (*physical)->size;
        return CUDA_SUCCESS;
    }
    if (*base)
        si_arena_give(*base, (*physical)->size);
    si_physical_drop(*physical);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void region_drop(struct si_context *context, struct si_physical *physical, uint64_t base)
{
    si_unmap(base, physical->size);
    si_arena_give(base, physical->size);
    si.devices[context->ordinal].used -= physical->size;
    si_physical_drop(physical);
}

static CUresult block_new(struct si_context *context, struct block **out)
{
    struct block *block = malloc(sizeof(*block));
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = region_new(context, SI_BLOCK, &block->physical, &block->base);
    if (result) {
        free(block);
        return result;
    }
    block->context = context;
    block->next = blocks;
    blocks = block;
    *out = block;
    return CUDA_SUCCESS;
}

static CUresult allocate_small(struct si_context *context, size_t size,
                               struct si_allocation *allocation)
{
    struct block *block = blocks;
    uint64_t base = 0;
    for (; block; block = block->next) {
        if (block->context == context && (base = block_gap(block, size)))
            break;
    }
    if (!block) {
        CUresult result = block_new(context, &block);
        if (result)
            return result;
        base = block->base;
    }
    allocation->base = base;
    allocation->physical = block->physical;
    allocation->offset = base - block->base;
    block->physical->refs++;
    return CUDA_SUCCESS;
}

CUresult si_allocate_own(struct si_context *context, struct si_allocation *allocation,
                         struct si_allocation **out)
{
    CUresult result =
        region_new(context, allocation->size, &allocation->physical, &allocation->base);
    return result ? result : si_insert(allocation, out);
}

CUresult si_allocate(struct si_context *context, size_t size, struct si_allocation **out)
{
    struct si_allocation allocation = {.size = size, .kind = SI_LEGACY, .context = context};
    if (size >= SI_BLOCK)
        return si_allocate_own(context, &allocation, out);
    CUresult result = allocate_small(context, size, &allocation);
    return result ? result : si_insert(&allocation, out);
}

// Frees the block where a small allocation was, unless others live in it.
static void block_release(uint64_t address)
{
    struct block **b = &blocks;
    while (address - (*b)->base >= SI_BLOCK)
        b = &(*b)->next;
    struct block *block = *b;
    const struct si_allocation *first = si_find_next(block->base);
    if (first && first->base < block->base + SI_BLOCK)
        return;
    *b = block->next;
    region_drop(block->context, block->physical, block->base);
    free(block);
}

uint32_t *si_life_of(const struct si_allocation *allocation)
{
    return &allocation->physical->trailer->life[allocation->offset / SI_UNIT % SI_UNITS];
}

void si_deallocate(struct si_allocation *allocation)
{
    struct si_allocation copy = *allocation;
    if (copy.kind == SI_IMPORT || copy.kind == SI_POOLED_IMPORT) {
        si_import_close(allocation);
        return;
    }
    // Before the memory can be anybody else's.
    if (copy.kind == SI_LEGACY || copy.kind == SI_POOLED)
        __atomic_add_fetch(si_life_of(allocation), 1, __ATOMIC_RELEASE);
    si_remove(allocation);
    if (copy.kind == SI_HOST) {
        free((void *)copy.base);
    } else if (copy.kind == SI_LEGACY && copy.size < SI_BLOCK) {
        si_physical_drop(copy.physical);
        block_release(copy.base);
    } else if (copy.kind == SI_LEGACY || copy.kind == SI_POOLED) {
        region_drop(copy.context, copy.physical, copy.base);
    }
    if (copy.pool)
        si_pool_let_go(copy.pool);
}

SI_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    struct si_context *context;
    CUresult result = address && size ? si_begin(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    si_gate(context);
    result = si_unsafe();
    if (result)
        return si_end(result);
    struct si_allocation *allocation;
    result = si_allocate(context, size, &allocation);
    if (!result)
        *address = allocation->base;
    return si_end(result);
}

static bool may_free(const struct si_allocation *allocation, uint64_t address)
{
    return allocation && allocation->base == address &&
           (allocation->kind == SI_LEGACY || allocation->kind == SI_POOLED ||
            allocation->kind == SI_POOLED_IMPORT);
}

SI_EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct si_context *context;
    CUresult result = si_begin(&context);
    if (result)
        return result;
    result = si_unsafe();
    if (result || !address)
        return si_end(result);
    struct si_allocation *allocation = si_find(address);
    if (!may_free(allocation, address))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    if (allocation->kind == SI_LEGACY)
        si_block(allocation->context);
    allocation = si_find(address); // the lock was open meanwhile
    if (!may_free(allocation, address))
        return si_end(CUDA_ERROR_INVALID_VALUE);
    si_deallocate(allocation);
    return si_end(CUDA_SUCCESS);
}

SI_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    CUresult result = si_begin_any();
    if (result)
        return result;
    const struct si_allocation *allocation = si_find(address);
    if (!allocation || !si_accessible(allocation, si_current(), false))
        return si_end(CUDA_ERROR_NOT_FOUND);
    if (base)
        *base = allocation->base;
    if (size)
        *size = allocation->size;
    return si_end(CUDA_SUCCESS);
}
