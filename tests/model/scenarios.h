// SPDX-License-Identifier: BSD-3-Clause
// The programs that the checker explores, with the library's tables or with a mutation of them.
#ifndef TESTS_MODEL_SCENARIOS_H
#define TESTS_MODEL_SCENARIOS_H

#include <vector>

#include "model/machine.h"

namespace model
{

struct Scenario {
    const char *name;
    Machine (*make)(const Tables &tables);
};

// Programs that are right: no failure with the library's tables.
const std::vector<Scenario> &scenarios();

// Small ones of them, enough to catch every mutation.
const std::vector<Scenario> &small_scenarios();

} // namespace model

#endif
