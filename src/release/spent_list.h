// SPDX-License-Identifier: BSD-3-Clause
// The list of channels that the peer is to be asked about; see spent.h. With the lock held.
#ifndef PHI_RELEASE_SPENT_LIST_H
#define PHI_RELEASE_SPENT_LIST_H

#include <stdbool.h>

#include "rules/retire.h"

struct ph_channel;
struct phi_spent;

// phi_spent_drop: the channel is about to be taken out.
void phi_spent_drop(struct ph_channel *channel);

// phi_spent_answered files the peer's answer.
void phi_spent_answered(struct ph_channel *channel, enum phi_retire_answer answer);

// phi_spent_is returns whether a channel belongs on the list; append puts it there, take takes the
// first.
bool phi_spent_is(const struct ph_channel *channel);
void phi_spent_append(struct ph_channel *channel);
struct ph_channel *phi_spent_take(struct phi_spent *spent);

// phi_spent_is_for_ever returns whether an answer will not change any more.
bool phi_spent_is_for_ever(struct ph_channel *channel, enum phi_retire_answer answer);

// phi_spent_postpone: the next try comes later than this one did.
void phi_spent_postpone(struct phi_spent *spent);

#endif
