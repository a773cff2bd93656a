// SPDX-License-Identifier: BSD-3-Clause
// Ends of things whose end may block for as long as some stream waits: a thread that does nothing
// else brings them about, one after the other, in the order in which they were handed over. Handing
// over needs no memory and does not wait.
#ifndef PHI_BASE_CLOSER_H
#define PHI_BASE_CLOSER_H

#include <stdbool.h>
#include <stdint.h>

// A part of what is to be ended, which is not touched any more once `close` was called.
struct phi_closing {
    struct phi_closing *next;
    void (*close)(
        struct phi_closing *closing); // on the closer's thread; may free what it is part of
};

struct phi_closer;

int phi_closer_open(struct phi_closer **closer); // 0, -ENOMEM or -EAGAIN

// phi_closer_gate: from now on nothing is begun before may(opaque) says so, which must not block.
// NULL: nothing is held back. When it returns the former one is not called any more.
void phi_closer_gate(struct phi_closer *closer, bool (*may)(void *opaque), void *opaque);

// phi_closer_hand hands one over. handed: how many were, so far. wait: whether so many are done, at
// the deadline at the latest.
void phi_closer_hand(struct phi_closer *closer, struct phi_closing *closing);
uint64_t phi_closer_handed(struct phi_closer *closer);
bool phi_closer_wait(struct phi_closer *closer, uint64_t handed, int64_t deadline);

// phi_closer_close: nothing more is handed over. Waits for what was, at most until the deadline;
// false: it goes on alone, and the thread ends behind the last one. Lifts the gate.
bool phi_closer_close(struct phi_closer *closer, int64_t deadline);

#endif
