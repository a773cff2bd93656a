// SPDX-License-Identifier: BSD-3-Clause
#include "rules/outcomes.h"

#include <errno.h>

// Only errors that say that the two devices, or processes, do not go together count. All others
// show again when memory is mapped, and are told then.
enum phi_reason phi_outcome_of(int rc)
{
    switch (rc) {
    case -EXDEV:
        return PHI_REASON_PEER_ACCESS;
    case PH_EDRIVER:
    case -ENODEV:
        return PHI_REASON_IMPORT;
    default:
        return PHI_REASON_NONE;
    }
}

void phi_outcomes_try(struct phi_outcomes *outcomes, enum phi_reason mine)
{
    if (outcomes->tried)
        return;
    outcomes->mine = mine;
    outcomes->tried = true;
}

int phi_outcomes_file(struct phi_outcomes *outcomes, uint64_t word)
{
    if (word == 0)
        return 0;
    if (word != PHI_REASON_NONE + 1 && word != PHI_REASON_PEER_ACCESS + 1 &&
        word != PHI_REASON_IMPORT + 1)
        return -EBADMSG;
    if (outcomes->told)
        return 0;
    outcomes->theirs = (enum phi_reason)(word - 1);
    outcomes->told = true;
    return 0;
}

uint64_t phi_outcomes_word(const struct phi_outcomes *outcomes)
{
    return outcomes->tried ? (uint64_t)outcomes->mine + 1 : 0;
}

bool phi_outcomes_settled(const struct phi_outcomes *outcomes)
{
    return outcomes->tried && outcomes->told;
}

enum phi_reason phi_outcomes_against(const struct phi_outcomes *outcomes)
{
    if (!phi_outcomes_settled(outcomes))
        return PHI_REASON_NONE;
    if (outcomes->mine != PHI_REASON_NONE)
        return outcomes->mine;
    switch (outcomes->theirs) {
    case PHI_REASON_PEER_ACCESS:
        return PHI_REASON_ACCESS_THERE;
    case PHI_REASON_IMPORT:
        return PHI_REASON_IMPORT_THERE;
    default:
        return PHI_REASON_NONE;
    }
}
