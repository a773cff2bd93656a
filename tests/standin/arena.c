// SPDX-License-Identifier: BSD-3-Clause
// Addresses of device memory: one reserved range of the process, given out first fit, so that an
// address that was freed is the next one taken, as on a GPU.
#include "standin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA_SIZE  ((uint64_t)64 << 30)
#define ARENA_LEAST ((uint64_t)1 << 30)

static struct {
    uint64_t base, end;
    struct {
        uint64_t base, end;
    } * used; // in order
    int count, capacity;
} arena;

static bool reserve(void)
{
    if (arena.base)
        return true;
    // Where so much is not to be had (memory checkers), less has to do.
    for (uint64_t size = ARENA_SIZE; size >= ARENA_LEAST; size /= 2) {
        void *base = mmap(NULL, size + SI_BLOCK, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED)
            continue;
        arena.base = ((uint64_t)base + SI_BLOCK - 1) & ~(uint64_t)(SI_BLOCK - 1);
        arena.end = arena.base + size;
        return true;
    }
    return false;
}

static bool grow(void)
{
    if (arena.count < arena.capacity)
        return true;
    int capacity = arena.capacity ? 2 * arena.capacity : 64;
    void *used = realloc(arena.used, (size_t)capacity * sizeof(*arena.used));
    if (!used)
        return false;
    arena.used = used;
    arena.capacity = capacity;
    return true;
}

uint64_t si_arena_take(size_t size, size_t align)
{
    size = (size + SI_BLOCK - 1) & ~(SI_BLOCK - 1);
    align = align < SI_BLOCK ? SI_BLOCK : align;
    if (!size || size > ARENA_SIZE || !reserve() || !grow())
        return 0;
    uint64_t at = arena.base;
    int i = 0;
    for (;; i++) {
        at = (at + align - 1) & ~(uint64_t)(align - 1);
        uint64_t end = i < arena.count ? arena.used[i].base : arena.end;
        if (at <= end && end - at >= size)
            break;
        if (i == arena.count)
            return 0;
        at = arena.used[i].end;
    }
    memmove(&arena.used[i + 1], &arena.used[i], (size_t)(arena.count - i) * sizeof(*arena.used));
    arena.used[i].base = at;
    arena.used[i].end = at + size;
    arena.count++;
    return at;
}

void si_arena_give(uint64_t base, size_t size)
{
    (void)size;
    for (int i = 0; i < arena.count; i++) {
        if (arena.used[i].base == base) {
            arena.count--;
            memmove(&arena.used[i], &arena.used[i + 1],
                    (size_t)(arena.count - i) * sizeof(*arena.used));
            return;
        }
    }
}

bool si_arena_holds(uint64_t address)
{
    return address >= arena.base && address < arena.end;
}

void si_unmap(uint64_t address, size_t size)
{
    // Back to reserved addresses: a stray access faults, and nothing else of the process lands
    // here.
    void *again = mmap((void *)address, size, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (again == MAP_FAILED)
        abort();
}
