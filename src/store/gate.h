// SPDX-License-Identifier: BSD-3-Clause
// A lock that may be held across I/O, because threads wait for it with a deadline.
#ifndef PHI_STORE_GATE_H
#define PHI_STORE_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct phi_gate {
    pthread_mutex_t lock; // guards busy
    pthread_cond_t left;
    bool busy;
};

int phi_gate_init(struct phi_gate *gate); // 0 or -ENOMEM
void phi_gate_fini(struct phi_gate *gate);
int phi_gate_enter(struct phi_gate *gate, int64_t deadline); // 0 or -ETIMEDOUT
bool phi_gate_try(struct phi_gate *gate);
void phi_gate_leave(struct phi_gate *gate);

#endif
