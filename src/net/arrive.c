// SPDX-License-Identifier: BSD-3-Clause
// Immediate data of the peer's arrives here: posts, records and credit take effect.
#include "net/arrive.h"

#include "net/flush.h"
#include "net/post.h"
#include "net/records.h"

// is_whole: whether all parts of a post have come. Parts of a former life never become whole.
static bool is_whole(struct phi_link *link, const struct phi_net_post *post, uint32_t life)
{
    struct phi_arrival *arrival =
        &link->arrivals[(size_t)post->line * 4 + (size_t)post->side * 2 + post->word];

    if (post->parts == 1)
        return true;
    if (arrival->life != life)
        *arrival = (struct phi_arrival){.life = life};
    if (++arrival->count < post->parts)
        return false;
    arrival->count = 0;
    return true;
}

static void apply(struct phi_link *link, uint32_t immediate)
{
    struct phi_net_post post;
    uint32_t life;
    char *line;

    if ((immediate & PHI_STAGED_ALL) == PHI_STAGED) {
        phi_staging_apply(link, immediate);
        return;
    }
    if (!phi_net_post_decode(immediate, &post) || post.line >= link->mirror.capacity)
        return;
    line = link->mirror.lines[post.side] + (size_t)post.line * PHI_LINE_SIZE;
    life = atomic_load_explicit((_Atomic uint32_t *)(line + PHI_LINE_LIFE), memory_order_relaxed);
    // A post for a former channel of the line has no effect.
    if ((life & PHI_LIFE_MASK) != post.life || !is_whole(link, &post, life))
        return;
    if (phi_flush_covers(link, &post)) {
        phi_flush_hold(link, &(struct phi_held){.line = post.line,
                                                .life = life,
                                                .value = 1u << (2 * post.word + post.which),
                                                .side = post.side,
                                                .word = post.word});
        return;
    }
    // Release: a reader that acquires the word sees the data that came with the post or before it.
    atomic_store_explicit((_Atomic uint32_t *)line + post.word, 1u << (2 * post.word + post.which),
                          memory_order_release);
}

void phi_posts_arrive(struct phi_link *link, uint64_t data)
{
    link->counts.come++;
    apply(link, (uint32_t)data);
    if (link->net->provider.wire.immediate == 8 && data >> 32 != PHI_NO_POST)
        apply(link, (uint32_t)(data >> 32));
}
