// SPDX-License-Identifier: BSD-3-Clause
// How the ranks of a job do, as peerhop-info --job shows it: asked of the store and of each rank's
// service thread.
#ifndef TOOLS_JOB_STATUS_H
#define TOOLS_JOB_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/report.h"
#include "service/status.h"
#include "topology/capabilities.h"

enum member_state {
    MEMBER_LIVES,
    MEMBER_SILENT,    // has not answered in time: stopped, starved or stuck
    MEMBER_EXITED,    // nobody listens at its socket
    MEMBER_ELSEWHERE, // on another node
    // in another network namespace, where its socket has its name: it cannot be asked from here
    MEMBER_APART,
    MEMBER_FOREIGN, // of another user
    MEMBER_REFUSES, // see `why`
    MEMBER_ABSENT,  // no record: it has not come, or has left
    MEMBER_STATES,
};

struct member {
    int rank;
    enum member_state state;
    int why; // of MEMBER_REFUSES: a result
    bool expelled;
    uint64_t incarnation;
    struct phi_capabilities capabilities;
    int socket; // while it is being asked
    struct phi_status status;
};

struct job {
    const char *name;
    uint64_t epoch;
    int64_t timeout_ms;     // of the store, and again of all ranks together
    struct member *members; // by rank
    size_t count;
};

// job_read fills the members from the store, those that the ranks tell of too, and asks each that
// is on this node. 0 or a negative result (reported).
int job_read(struct job *job, const struct phi_config *config, struct phi_report *report);
void job_free(struct job *job);

// The rows, for people, and for programs: one object a line.
void job_print_table(const struct job *job);
void job_print_json(const struct job *job);

#endif
