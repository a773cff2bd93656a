// SPDX-License-Identifier: BSD-3-Clause
#include "store/outbox.h"

#include <errno.h>
#include <stdlib.h>

static void drop_first(struct phi_outbox *outbox)
{
    struct phi_kept *kept = outbox->first;
    outbox->first = kept->next;
    if (!outbox->first)
        outbox->last = NULL;
    free(kept->bytes);
    free(kept);
}

void phi_outbox_fini(struct phi_outbox *outbox)
{
    while (outbox->first)
        drop_first(outbox);
}

int phi_outbox_address(struct phi_outbox *outbox, uint64_t incarnation)
{
    if (incarnation < outbox->incarnation)
        return -ESTALE;
    if (incarnation == outbox->incarnation)
        return 0;
    phi_outbox_fini(outbox);
    outbox->incarnation = incarnation;
    outbox->sequence = 0;
    atomic_store_explicit(&outbox->given, 0, memory_order_relaxed);
    atomic_store_explicit(&outbox->acknowledged, 0, memory_order_relaxed);
    return 0;
}

struct phi_kept *phi_outbox_append(struct phi_outbox *outbox, uint8_t *bytes, size_t size)
{
    struct phi_kept *kept = malloc(sizeof(*kept));
    if (!kept)
        return NULL;
    *kept = (struct phi_kept){
        .sequence = ++outbox->sequence,
        .number = ++outbox->number,
        .bytes = bytes,
        .size = size,
    };
    if (outbox->last)
        outbox->last->next = kept;
    else
        outbox->first = kept;
    outbox->last = kept;
    atomic_store_explicit(&outbox->given, kept->sequence, memory_order_relaxed); // a mere number
    return kept;
}

void phi_outbox_acknowledged(struct phi_outbox *outbox, uint64_t sequence)
{
    // Relaxed: the number alone is the information, it publishes no other data.
    uint64_t seen = atomic_load_explicit(&outbox->acknowledged, memory_order_relaxed);
    while (seen < sequence &&
           !atomic_compare_exchange_weak_explicit(&outbox->acknowledged, &seen, sequence,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

void phi_outbox_free_acknowledged(struct phi_outbox *outbox)
{
    uint64_t sequence = atomic_load_explicit(&outbox->acknowledged, memory_order_relaxed);
    while (outbox->first && outbox->first->sequence <= sequence)
        drop_first(outbox);
}

void phi_outbox_forgotten(struct phi_outbox *outbox)
{
    for (struct phi_kept *kept = outbox->first; kept; kept = kept->next)
        kept->stored = false;
}
