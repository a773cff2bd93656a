// SPDX-License-Identifier: BSD-3-Clause
// Graphs that hold operations of ours. A captured operation has no number; while the graph or an
// executable made from it lives, a user object that the graph retains keeps what the operation
// touches pinned.
#ifndef PHI_SEMAPHORE_CAPTURE_H
#define PHI_SEMAPHORE_CAPTURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda/driver.h"
#include "semaphore/executor.h"

struct phi_capture; // one graph

// The branches of live graphs that have a struct phi_transfer_sync; others copy with one block.
#define PHI_GRAPH_SYNCS 1024

// The graphs of an executor. Must outlive every graph: busy says so.
struct phi_captures {
    struct phi_report *report;
    const struct phi_driver *driver;
    pthread_mutex_t
        lock; // guards the list and the captures in it; also taken by the driver's thread
    struct phi_capture *list;
    _Atomic uint32_t live;               // graphs that hold something; falls to 0 last of all
    uint64_t sync[PHI_GRAPH_SYNCS / 64]; // a bit for each that a branch has
};

void phi_captures_init(struct phi_captures *captures, struct phi_report *report,
                       const struct phi_driver *driver);
void phi_captures_fini(struct phi_captures *captures);

// A branch of a graph, that is one of the streams that were captured into it.
struct phi_branch {
    uint64_t key;  // of the stream
    bool waited;   // it has something that waits
    uint32_t sync; // number of its struct phi_transfer_sync, plus 1; 0: it has none
};

// phi_capture_begin finds or makes the capture of the graph that `stream` records into, and pins
// the uses of work. PH_EBROKEN where one is revoked (then nothing new is pinned), PH_EDRIVER,
// -ENOMEM.
int phi_capture_begin(struct phi_captures *captures, CUstream stream, const struct phi_work *work,
                      size_t n, struct phi_capture **out);

// phi_captures_holder returns the id of a live graph that holds `uses`, or 0.
uint64_t phi_captures_holder(struct phi_captures *captures, const struct phi_uses *uses);

// phi_capture_branch copies what the branch of a stream has done so far.
struct phi_branch phi_capture_branch(struct phi_captures *captures, struct phi_capture *capture,
                                     uint64_t key);

// phi_capture_sync gives a branch a struct phi_transfer_sync where it has none, until the graph is
// gone. -EAGAIN: none is left; -ENOMEM.
int phi_capture_sync(struct phi_captures *captures, struct phi_capture *capture,
                     struct phi_branch *branch);

// phi_capture_update writes back a branch that has changed. -ENOMEM.
int phi_capture_update(struct phi_captures *captures, struct phi_capture *capture,
                       const struct phi_branch *branch);

#endif
