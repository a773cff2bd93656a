// SPDX-License-Identifier: BSD-3-Clause
// The rules of meeting/attempt.h. Pure functions: the model calls them, too.
#ifndef PHI_RULES_OUTCOMES_H
#define PHI_RULES_OUTCOMES_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

// What a rank knows of the two outcomes.
struct phi_outcomes {
    bool tried, told; // mine and theirs are known
    enum phi_reason mine, theirs;
};

// phi_outcome_of: the outcome that a result of phi_memory_import is.
enum phi_reason phi_outcome_of(int rc);
// phi_outcomes_try takes up mine, file what the peer says (-EBADMSG: no rank can say that): each
// stays what it was first. word: what this rank says; 0: it has not tried yet.
void phi_outcomes_try(struct phi_outcomes *outcomes, enum phi_reason mine);
int phi_outcomes_file(struct phi_outcomes *outcomes, uint64_t word);
uint64_t phi_outcomes_word(const struct phi_outcomes *outcomes);
bool phi_outcomes_settled(const struct phi_outcomes *outcomes);
// against: what stands against ipc, as this rank says it; PHI_REASON_NONE: nothing, or not settled.
enum phi_reason phi_outcomes_against(const struct phi_outcomes *outcomes);

#endif
