// SPDX-License-Identifier: BSD-3-Clause
// The closer is a thread that ends things whose end may block as long as some stream waits. It does
// nothing else. It ends them one after the other, in the order in which they were handed over. To
// hand one over takes no memory and does not wait.
#ifndef PHI_BASE_CLOSER_H
#define PHI_BASE_CLOSER_H

#include <stdbool.h>
#include <stdint.h>

// This is a part of the thing that is to be ended. The closer does not touch it any more after it
// called `close`.
struct phi_closing {
    struct phi_closing *next;
    void (*close)(
        struct phi_closing *closing); // on the closer's thread; may free what it is part of
};

struct phi_closer;

int phi_closer_open(struct phi_closer **closer); // 0, -ENOMEM or -EAGAIN

// phi_closer_gate: from now on the closer begins nothing before may(opaque) allows it. `may` must
// not block. NULL: nothing is held back. When the function returns, the former gate is not called
// any more.
void phi_closer_gate(struct phi_closer *closer, bool (*may)(void *opaque), void *opaque);

// phi_closer_hand hands one over.
// phi_closer_handed returns how many were handed over so far.
// phi_closer_wait waits until so many are done, and returns whether they are. It returns at the
// deadline at the latest.
void phi_closer_hand(struct phi_closer *closer, struct phi_closing *closing);
uint64_t phi_closer_handed(struct phi_closer *closer);
bool phi_closer_wait(struct phi_closer *closer, uint64_t handed, int64_t deadline);

// phi_closer_close waits for all that was handed over. The caller hands nothing over any more. It
// lifts the gate. false: the deadline passed; the thread goes on alone, and ends behind the last
// one.
bool phi_closer_close(struct phi_closer *closer, int64_t deadline);

#endif
