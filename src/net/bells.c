// SPDX-License-Identifier: BSD-3-Clause
// What streams ask of the net for registered memory (cuda/kernel_args.h, PHI_STEP_BELL): a move, a
// post, or both, in the order in which they rang.
#include "net/bells.h"

#include <errno.h>
#include <string.h>

#include "net/flush.h"
#include "net/move.h"
#include "net/post.h"

static bool is_ours(const struct phi_lane_params *p, const struct phi_stage_bell *bell)
{
    const uint64_t at = bell->local - (uint64_t)(uintptr_t)p->local;

    return bell->size == 0 || (at <= p->local_size && bell->size <= p->local_size - at);
}

// Begins what the next bell asks for; false: later, or it has failed the link.
static bool begin_bell(struct phi_lane *lane)
{
    const uint32_t slot = phi_lane_slot(lane->sent);
    struct phi_move *move = &lane->moves[slot];
    struct phi_stage_bell bell;

    memcpy(&bell, lane->params.slots + (size_t)slot * PHI_STAGE_HEAD, sizeof(bell));
    if (!PHI_BELL_MAY_BEGIN(bell.asks, lane->sent, lane->credited))
        return false;
    if (!is_ours(&lane->params, &bell)) {
        phi_link_fail(lane->link, -EBADMSG, "a bell asks for memory that is not its channel's");
        return false;
    }
    lane->asks[slot] = bell.asks;
    lane->immediates[slot] = bell.immediate;
    *move = (struct phi_move){.state = PHI_MOVE_DONE,
                              .route = &lane->route,
                              .local = (void *)(uintptr_t)bell.local,
                              .offset = bell.offset,
                              .size = bell.size,
                              .read = (bell.asks & PHI_BELL_READ) != 0,
                              .immediate = bell.immediate};
    if ((bell.asks & PHI_BELL_COPY) && (bell.asks & PHI_BELL_POST)) {
        move->posts = true; // with its last parts
        lane->asks[slot] &= ~PHI_BELL_POST;
    }
    if (bell.size > 0)
        phi_move_post(lane->link, move);
    lane->sent++;
    return true;
}

// Whether the oldest bell has landed: what it moved is there, and its post is sent. What was read
// may still have to be made visible.
static bool has_landed(struct phi_lane *lane)
{
    const uint32_t slot = phi_lane_slot(lane->credited);

    if (atomic_load_explicit(&lane->moves[slot].state, memory_order_relaxed) != PHI_MOVE_DONE)
        return false;
    if (lane->asks[slot] & PHI_BELL_POST) {
        if (phi_post_send(lane->link, &lane->route, lane->immediates[slot]))
            return false;
        lane->asks[slot] &= ~PHI_BELL_POST;
    }
    if (lane->asks[slot] & PHI_BELL_READ) {
        lane->asks[slot] &= ~PHI_BELL_READ;
        if (phi_flush_lane(lane->link, lane->params.line, &lane->flushing))
            return false;
    }
    return lane->link->carries && !lane->flushing;
}

bool phi_bells_go(struct phi_lane *lane, uint32_t rung)
{
    bool any = false;

    for (;;) {
        if (lane->credited != lane->sent && has_landed(lane)) {
            lane->credited++;
            phi_lane_publish(lane, PHI_BELLS_REACH(lane->credited));
        } else if (!lane->link->carries || (int32_t)(rung - lane->sent) <= 0 || !begin_bell(lane)) {
            return any;
        }
        any = true;
    }
}

// Whether some of what was rung and has not landed was to be copied. Its slots are not used again.
static bool has_copies(const struct phi_lane *lane, uint32_t rung)
{
    struct phi_stage_bell bell;

    for (uint32_t n = lane->credited; n != rung && n - lane->credited < PHI_STAGE_SLOTS; n++) {
        memcpy(&bell, lane->params.slots + (size_t)phi_lane_slot(n) * PHI_STAGE_HEAD, sizeof(bell));
        if (bell.size > 0)
            return true;
    }
    return false;
}

// The link has ended, and nothing of it touches memory any more. Who rings later, as graphs do that
// replay, sees it.
void phi_bells_over(struct phi_lane *lane)
{
    const uint32_t rung = phi_lane_done(lane);

    if (has_copies(lane, rung))
        atomic_store(lane->params.undone, 1);
    if (rung != lane->credited)
        atomic_store(lane->params.broken, 1);
    lane->flushing = false;
    phi_lane_publish(lane, PHI_BELLS_OVER(rung));
}

void phi_bells_end(struct phi_link *link)
{
    const size_t lanes =
        link->staging.arrivals ? (size_t)link->mirror.capacity * PHI_LANES_PER_LINE : 0;

    for (size_t i = 0; i < lanes; i++) {
        struct phi_lane *lane = link->staging.arrivals[i].lane;

        if (lane && lane->chunk == 0)
            phi_bells_over(lane);
    }
}
