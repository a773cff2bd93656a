// SPDX-License-Identifier: BSD-3-Clause
// This rank's service thread answers the requests of peer/node.h, whatever way they came.
#ifndef PHI_SERVICE_ANSWER_H
#define PHI_SERVICE_ANSWER_H

#include <stdint.h>

struct phi_node_message;
struct phi_self;
struct phi_status_ages;

// The process that asks, as it proved by its hello.
struct phi_asker {
    int rank; // -1: has not said hello
    uint64_t incarnation;
};

// phi_answer (without the lock) does what is asked, fills the answer, and returns its status. A
// hello fills *asker. *fd: a descriptor that goes with the answer, and is not the caller's to
// close.
int phi_answer(struct phi_self *self, struct phi_status_ages *ages, struct phi_asker *asker,
               const struct phi_node_message *request, struct phi_node_message *answer, int *fd);

#endif
