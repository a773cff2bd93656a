// SPDX-License-Identifier: BSD-3-Clause
// The rules of meeting/trial.h. Pure functions: the model calls them, too.
#ifndef PHI_RULES_OUTCOMES_H
#define PHI_RULES_OUTCOMES_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

// The two outcomes of a trial, as far as a rank knows them.
struct phi_outcomes {
    bool tried, told; // mine and theirs are known
    enum phi_reason mine, theirs;
};

// phi_outcome_of turns a result of phi_memory_import into an outcome.
enum phi_reason phi_outcome_of(int rc);
// Each outcome stays what it was first.
// phi_outcomes_try notes mine.
// phi_outcomes_file notes what the peer says. -EBADMSG: no rank can say that.
// phi_outcomes_word is what this rank says; 0: it has not tried yet.
// phi_outcomes_settled: whether both outcomes are known.
void phi_outcomes_try(struct phi_outcomes *outcomes, enum phi_reason mine);
int phi_outcomes_file(struct phi_outcomes *outcomes, uint64_t word);
uint64_t phi_outcomes_word(const struct phi_outcomes *outcomes);
bool phi_outcomes_settled(const struct phi_outcomes *outcomes);
// phi_outcomes_against is the reason against ipc, as this rank says it. PHI_REASON_NONE: there is
// none, or the outcomes are not settled.
enum phi_reason phi_outcomes_against(const struct phi_outcomes *outcomes);

#endif
