// SPDX-License-Identifier: BSD-3-Clause
// Multiprocessors: a grid's blocks need places on them, breadth first, and have them until they
// end. What an application's kernel does not get while others wait is seen by that.
//
// A multiprocessor has room as one of compute capability 9.0 (CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability"). Its registers are of four parts, among which
// a block's warps are dealt out. One warp that waits, with 6 registers, was measured to leave no
// room for 12 warps of 168 on an H100, where 1024 registers are left of all four. A grid goes on
// when it has a place for one block: the others come when that has left, or find a place before.
// Where its blocks have different things to do, all need their places, and those that have one keep
// it. Contexts of other processes take turns with this one on a real device, and are not seen here.
//
// A launch that may begin early does so when the one before it is over: what lets it in sooner
// waits for nothing any more.
#include "standin.h"

#include <stdlib.h>

enum {
    GRIDS = 128, // that are on a device at once
    BLOCKS = 32, // of a multiprocessor, and what else it has
    THREADS = 2048,
    PARTS = 4,
    REGISTERS = 65536 / PARTS, // of each part
    SHARED = 233472,
    RESERVED = 1024,      // shared memory of each block that is the system's
    REGISTERS_UNIT = 256, // a warp gets them in these
    REGISTERS_LEAST = 512
};

struct si_grid {
    struct si_context *context;
    unsigned placed;
    unsigned left; // blocks that have ended
    uint8_t blocks[SI_MULTIPROCESSORS];
};

static struct si_multiprocessor block_of(const struct si_op *op)
{
    const unsigned warps = (op->u.kernel.threads + 31) / 32;
    unsigned registers = op->u.kernel.function->registers * 32;
    registers = (registers + REGISTERS_UNIT - 1) / REGISTERS_UNIT * REGISTERS_UNIT;
    if (registers < REGISTERS_LEAST)
        registers = REGISTERS_LEAST;
    return (struct si_multiprocessor){.blocks = 1,
                                      .threads = warps * 32,
                                      .registers = (warps + PARTS - 1) / PARTS * registers,
                                      .shared = op->u.kernel.shared + RESERVED};
}

static bool has_room(const struct si_multiprocessor *m, const struct si_multiprocessor *block)
{
    return m->blocks + block->blocks <= BLOCKS && m->threads + block->threads <= THREADS &&
           m->registers + block->registers <= REGISTERS && m->shared + block->shared <= SHARED;
}

// The one with the fewest blocks that has room, or NULL.
static struct si_multiprocessor *find_room(struct si_context *context,
                                           const struct si_multiprocessor *block)
{
    struct si_multiprocessor *best = NULL;
    for (unsigned i = 0; i < si.multiprocessors; i++) {
        struct si_multiprocessor *m = &context->multiprocessors[i];
        if (has_room(m, block) && (!best || m->blocks < best->blocks))
            best = m;
    }
    return best;
}

static bool place(struct si_grid *grid, const struct si_multiprocessor *block)
{
    struct si_context *context = grid->context;
    struct si_multiprocessor *m = find_room(context, block);
    if (!m || (grid->placed == 0 && context->grids == GRIDS))
        return false;
    m->blocks += block->blocks;
    m->threads += block->threads;
    m->registers += block->registers;
    m->shared += block->shared;
    grid->blocks[m - context->multiprocessors]++;
    context->grids += grid->placed++ == 0;
    return true;
}

// Whether it may go on.
static bool place_all(struct si_op *op, struct si_context *context)
{
    const struct si_multiprocessor block = block_of(op);
    if (!op->u.kernel.grid && !(op->u.kernel.grid = calloc(1, sizeof(struct si_grid))))
        abort();
    struct si_grid *grid = op->u.kernel.grid;
    grid->context = context;
    while (grid->placed + grid->left < op->u.kernel.blocks && place(grid, &block))
        ;
    return grid->placed >= (op->u.kernel.function->together ? op->u.kernel.blocks : 1);
}

bool si_grid_enter(struct si_op *op, struct si_context *context)
{
    if (si.multiprocessors == 0)
        return true;
    return place_all(op, context);
}

void si_grid_leave(struct si_op *op)
{
    struct si_grid *grid = op->u.kernel.grid;
    if (!grid)
        return;
    const struct si_multiprocessor block = block_of(op);
    for (unsigned i = 0; i < SI_MULTIPROCESSORS; i++) {
        struct si_multiprocessor *m = &grid->context->multiprocessors[i];
        m->blocks -= grid->blocks[i] * block.blocks;
        m->threads -= grid->blocks[i] * block.threads;
        m->registers -= grid->blocks[i] * block.registers;
        m->shared -= grid->blocks[i] * block.shared;
    }
    grid->context->grids -= grid->placed > 0;
    op->u.kernel.grid = NULL;
    free(grid);
}

void si_grid_shrink(const struct si_op *op, unsigned blocks)
{
    struct si_grid *grid = op->u.kernel.grid;
    if (!grid)
        return;
    const struct si_multiprocessor block = block_of(op);
    for (unsigned i = 0; i < SI_MULTIPROCESSORS; i++)
        while (grid->blocks[i] > 0 && grid->placed > blocks) {
            struct si_multiprocessor *m = &grid->context->multiprocessors[i];
            m->blocks -= block.blocks;
            m->threads -= block.threads;
            m->registers -= block.registers;
            m->shared -= block.shared;
            grid->blocks[i]--;
            grid->placed--;
            grid->left++;
        }
}

bool si_grid_is_on(const struct si_op *op, unsigned multiprocessor)
{
    return op->u.kernel.grid && op->u.kernel.grid->blocks[multiprocessor] > 0;
}
