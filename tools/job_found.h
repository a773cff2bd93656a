// SPDX-License-Identifier: BSD-3-Clause
// The jobs of this user on this node, found by the sockets of their ranks: for who knows neither
// their names nor their stores.
#ifndef TOOLS_JOB_FOUND_H
#define TOOLS_JOB_FOUND_H

#include "job_status.h"

// A process that listens as a rank does and has not said of which job.
struct nameless {
    uint32_t process; // 0: not known here
    enum member_state state;
    int why; // of MEMBER_REFUSES
};

struct found {
    struct job *jobs; // by name and epoch
    size_t count;
    struct nameless *nameless;
    size_t nameless_count;
};

// jobs_find asks each socket that this process can reach, of this user; all together have
// timeout_ms. 0 or a negative result (reported). Freed by found_free, after a failure, too.
int jobs_find(struct found *found, const struct phi_config *config, struct phi_report *report,
              int64_t timeout_ms);
void found_free(struct found *found);

#endif
