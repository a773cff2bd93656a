// SPDX-License-Identifier: BSD-3-Clause
// How the ranks of a job do, as peerhop-info --job shows it: asked of the store, or of the sockets
// of this node (job_found.h), and of each rank's service thread.
#ifndef TOOLS_JOB_STATUS_H
#define TOOLS_JOB_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/report.h"
#include "peer/node.h"
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
    // no record: it has not come, or has left; of jobs that were found: not on this node
    MEMBER_ABSENT,
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
    char name[PHI_STATUS_JOB];
    uint64_t epoch;
    bool found;             // by the sockets of this node: no store was asked
    int64_t timeout_ms;     // of the store, and again of all ranks together
    struct member *members; // by rank
    size_t count;
};

// job_read fills the members from the store, those that the ranks tell of too, and asks each that
// is on this node. 0 or a negative result (reported).
int job_read(struct job *job, const struct phi_config *config, struct phi_report *report);
void job_free(struct job *job);

// job_member returns the member of a rank, added where there is none; NULL: no memory. add_absent
// adds the ranks that others know of: 0, -ENOMEM. sort puts members in the order of ranks.
struct member *job_member(struct job *job, int rank);
int job_add_absent(struct job *job);
void job_sort(struct job *job);

// job_receive waits for the answer to a question. 0, -EAGAIN at the deadline, or as
// phi_node_receive.
int job_receive(int socket, struct phi_node_message *answer, int64_t deadline);

// job_state_of is what a result of asking a rank says of it.
enum member_state job_state_of(int rc);

// The rows, for people, and for programs: one object a line.
void job_print_table(const struct job *job);
void job_print_json(const struct job *job);
// print_json_string: ,"name":"text"; name: what a text is of in objects that others print.
void print_json_string(const char *name, const char *text);
// peer_state_name is the word for an enum ph_peer_state.
const char *peer_state_name(unsigned state);

#endif
