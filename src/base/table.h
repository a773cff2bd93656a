// SPDX-License-Identifier: BSD-3-Clause
// The table of PEERHOP_TABLE says for pairs of devices up to how many bytes a message goes by ll
// and by sm. A line of its text is
//
//     own-device peer-device ll_max sm_max [wide]     # comment
//
// A device is its name as peerhop-info prints it, in double quotes where it has blanks, or * for
// any. Sizes are bytes, in decimal digits, with K, M or G for units of 1024. ll_max is at most
// PHI_TABLE_LL_MAX with `wide`, else PHI_TABLE_LL. `wide` says that 128 bytes that a warp stores at
// once come whole between these devices. tests/gpu/litmus_test.cpp can show that they do not.
// sm_max may be `all`: every larger message. Empty lines say nothing. The first line that fits a
// pair counts.
#ifndef PHI_BASE_TABLE_H
#define PHI_BASE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/report.h"

#define PHI_TABLE_LL_MAX (1 << 20)
// The largest ll_max for pairs that nobody has measured. A larger one needs wide lines.
#define PHI_TABLE_LL  8192
#define PHI_TABLE_ALL INT64_MAX

struct phi_config;

// In bytes. 0: no message, not even one of 0 bytes. -1: not said. sm_max may be PHI_TABLE_ALL.
struct phi_limits {
    int64_t ll_max, sm_max;
};

static inline bool phi_limits_valid(int64_t ll_max, int64_t sm_max)
{
    return ll_max >= -1 && ll_max <= PHI_TABLE_LL_MAX && sm_max >= -1;
}

struct phi_table_line {
    char own[65], peer[65]; // "*": any
    struct phi_limits limits;
    bool wide;
};

// All zero is an empty table.
struct phi_table {
    struct phi_table_line *lines;
    size_t count;
};

// phi_table_parse fills *table from text. `name` stands for the text in sentences. On failure
// nothing is owned, and *table is untouched. -EINVAL names the line; -ENOMEM.
int phi_table_parse(const char *name, const char *text, size_t size, struct phi_report *report,
                    struct phi_table *table);

// phi_table_read parses a regular file. Also -errno of opening or reading it.
int phi_table_read(const char *file, struct phi_report *report, struct phi_table *table);
void phi_table_fini(struct phi_table *table);

// Two devices by their names, and whether only a bus connects them, where that is known
// (topology/capabilities.h).
struct phi_table_pair {
    const char *own, *peer;
    bool bus;
};

// phi_table_limits returns the limits of a pair. For each, the first of these that says something
// counts: the configuration, the first line of `table` that fits (NULL: no table), the measured
// pairs, the defaults. No measured pair is joined by a bus. ll_max is at most PHI_TABLE_LL where
// the pair is not wide.
struct phi_limits phi_table_limits(const struct phi_table *table, const struct phi_config *config,
                                   struct phi_table_pair pair);

// phi_table_wide: whether the pair's line says `wide`, or the pair was measured to be so.
bool phi_table_wide(const struct phi_table *table, struct phi_table_pair pair);

#endif
