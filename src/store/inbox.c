// SPDX-License-Identifier: BSD-3-Clause
#include "store/inbox.h"

#include <errno.h>
#include <stdlib.h>

// No sender has more messages under way. One that is further ahead is not from a sender of ours.
static const uint64_t window = 1 << 20;

void phi_held_free(struct phi_held *held)
{
    if (held)
        free(held->bytes);
    free(held);
}

void phi_inbox_fini(struct phi_inbox *inbox)
{
    while (inbox->held) {
        struct phi_held *next = inbox->held->next;
        phi_held_free(inbox->held);
        inbox->held = next;
    }
    *inbox = (struct phi_inbox){0};
}

bool phi_inbox_member(struct phi_inbox *inbox, uint64_t incarnation)
{
    if (incarnation <= inbox->incarnation)
        return false;
    while (inbox->held && inbox->held->incarnation < incarnation) {
        struct phi_held *next = inbox->held->next;
        phi_held_free(inbox->held);
        inbox->held = next;
    }
    inbox->incarnation = incarnation;
    inbox->taken = 0;
    return true;
}

static bool before(const struct phi_held *a, const struct phi_held *b)
{
    return a->incarnation < b->incarnation ||
           (a->incarnation == b->incarnation && a->sequence < b->sequence);
}

static int replace(struct phi_held **place, struct phi_held *held)
{
    struct phi_held *old = *place;
    if (held->number <= old->number)
        return -EALREADY;
    held->next = old->next;
    *place = held;
    phi_held_free(old);
    return 0;
}

int phi_inbox_add(struct phi_inbox *inbox, struct phi_held *held)
{
    if (held->incarnation < inbox->incarnation)
        return -ESTALE;
    uint64_t taken = held->incarnation == inbox->incarnation ? inbox->taken : 0;
    if (held->sequence <= taken)
        return -EALREADY;
    if (held->sequence - taken > window)
        return -ERANGE;
    struct phi_held **place = &inbox->held;
    while (*place && before(*place, held))
        place = &(*place)->next;
    if (*place && !before(held, *place))
        return replace(place, held);
    held->next = *place;
    *place = held;
    return 0;
}

struct phi_held *phi_inbox_pop(struct phi_inbox *inbox)
{
    struct phi_held *held = inbox->held;
    if (!held || held->incarnation != inbox->incarnation || held->sequence != inbox->taken + 1)
        return NULL;
    inbox->held = held->next;
    inbox->taken = held->sequence;
    return held;
}
