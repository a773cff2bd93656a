// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/staged.h"

#include <string.h>

#include "base/stage.h"
#include "cuda/kernel_args.h"

static struct phi_stage_lane *lane_of(const struct phi_work *work)
{
    return (struct phi_stage_lane *)(uintptr_t)work->lane.own;
}

static uint8_t *slot_of(const struct phi_work *work, uint32_t record)
{
    const uint64_t like = work->lane.peer;
    uint32_t slot = (record - 1) & (PHI_STAGE_SLOTS - 1);

    return (uint8_t *)(uintptr_t)work->lane.slots + slot * PHI_STAGE_SLOT_SIZE(like);
}

// A host queue is one block. The release pairs with the acquire of the net.
static void show(const struct phi_work *work, uint32_t record)
{
    __atomic_store_n(&lane_of(work)->done[0], record, __ATOMIC_RELEASE);
}

// Returns whether it was the last one.
static bool fill(const struct phi_work *work, uint32_t record, size_t moved)
{
    const size_t chunk = PHI_STAGE_CHUNK(work->lane.peer), from = moved * chunk;
    const size_t left = work->span.size - from, bytes = left < chunk ? left : chunk;
    struct phi_stage_record head = {.offset = work->lane.offset + from,
                                    .size = (uint32_t)bytes,
                                    .last = work->lane.signal && bytes == left};
    uint8_t *slot = slot_of(work, record);

    memcpy(slot, &head, sizeof(head));
    if (bytes)
        memcpy(slot + PHI_STAGE_HEAD, (const uint8_t *)work->span.source + from, bytes);
    return bytes == left;
}

// Each member once: the peer may write them again at any time.
static struct phi_stage_record read_head(const uint8_t *slot)
{
    const struct phi_stage_record *head = (const struct phi_stage_record *)slot;

    return (struct phi_stage_record){
        .offset = __atomic_load_n(&head->offset, __ATOMIC_RELAXED),
        .size = __atomic_load_n(&head->size, __ATOMIC_RELAXED),
        .last = __atomic_load_n(&head->last, __ATOMIC_RELAXED),
    };
}

// end: of the last record of a message, so that many bytes were sent. As the kernel does.
static void check_size(const struct phi_work *work, uint64_t end)
{
    if (work->lane.signal && end != work->lane.offset && !phi_line_mismatched(work->over.undone))
        phi_line_mismatch(work->over.undone, work->lane.offset, end);
}

// The head is the peer's and is not believed: a record that does not fit is not copied.
static bool empty(const struct phi_work *work, uint32_t record)
{
    const uint8_t *slot = slot_of(work, record);
    const struct phi_stage_record head = read_head(slot);

    if (head.size > 0 && head.size <= PHI_STAGE_CHUNK(work->lane.peer) &&
        head.size <= work->lane.offset && head.offset <= work->lane.offset - head.size)
        memcpy((uint8_t *)work->span.destination + head.offset, slot + PHI_STAGE_HEAD, head.size);
    if (head.last)
        check_size(work, head.offset + head.size);
    return head.last != 0;
}

// Acquire: pairs with the net's release, for the slot.
static bool is_there(const struct phi_stage_lane *lane, uint32_t record)
{
    return (int32_t)(__atomic_load_n(&lane->reach, __ATOMIC_ACQUIRE) - record) >= 0;
}

bool phi_staged_help(const struct phi_work *work)
{
    struct phi_stage_lane *lane = lane_of(work);
    const uint32_t record = lane->done[0] + 1;

    if (lane->over[0] || !is_there(lane, record))
        return false;
    lane->over[0] = empty(work, record);
    show(work, record);
    return true;
}

bool phi_staged_run(const struct phi_work *work, size_t *moved)
{
    struct phi_stage_lane *lane = lane_of(work);
    uint32_t record = lane->done[0] + 1; // only queues write it, one after the other
    // First: a record that is there is taken although the channel has ended since.
    bool over = work->over.broken && atomic_load_explicit(work->over.broken, memory_order_acquire);
    bool last;

    if (work->kind == PHI_STEP_STAGE &&
        (lane->over[0] || (work->span.size == 0 && !work->lane.signal)))
        return true;
    if (work->kind == PHI_STEP_HELP)
        return true; // the STAGEs before it are over
    if (work->kind == PHI_STEP_UNSTAGE && lane->over[0]) {
        lane->over[0] = 0;
        return true;
    }
    if (!is_there(lane, record)) {
        if (over) {
            lane->over[0] = work->kind == PHI_STEP_STAGE;
            atomic_store_explicit(work->over.broken, PHI_GIVEN_UP, memory_order_release);
            *moved = 0;
        }
        return over;
    }
    last = work->kind == PHI_STEP_STAGE ? fill(work, record, *moved) : empty(work, record);
    show(work, record);
    *moved = last ? 0 : *moved + 1;
    return last;
}
