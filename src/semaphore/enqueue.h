// SPDX-License-Identifier: BSD-3-Clause
// Pieces of a plan as calls of the driver on a stream. Nothing here waits, locks or allocates.
#ifndef PHI_SEMAPHORE_ENQUEUE_H
#define PHI_SEMAPHORE_ENQUEUE_H

#include "cuda/driver.h"
#include "semaphore/plan.h"

// The things with which one executor enqueues all its work.
struct phi_list_memory;

struct phi_enqueuer {
    struct phi_counters *counters;
    struct phi_device *device;
    const struct phi_driver *driver;
    const struct phi_device_info *info;
    struct phi_policy policy; // but for `shared`
    struct phi_list_memory *lists;
    void *sync; // struct phi_transfer_syncs in device memory; NULL without kernels
};

// One issue on its way to the device.
struct phi_enqueue {
    const struct phi_enqueuer *to;
    CUstream stream;
    const struct phi_work *work;
    size_t n;
    struct phi_plan plan;
    uint64_t done;   // device address, 0 when captured
    uint64_t number; // to be written there
    bool waited;     // the stream waits already when this comes to it
    uint32_t waits;  // how many of this wait
    uint32_t sync;   // of kernels with several blocks that meet: number plus 1
    bool captured;
    bool started;    // something is enqueued
    CUresult result; // of the call that failed
    const struct phi_work *failed;
    const void *unreached; // memory that kernels do not reach, for which a call was refused
    struct phi_waiting others;
};

// phi_enqueue_together: whether the copy engine takes several copies by one call on this stream:
// where the driver has one (13.0), and neither on the legacy stream nor while it captures.
bool phi_enqueue_together(const struct phi_enqueue *q);

// phi_enqueue_reaches: whether kernels reach the caller's memory of all work, where that is asked:
// before anything is enqueued, as it cannot be refused half-way.
bool phi_enqueue_reaches(struct phi_enqueue *q);

// phi_enqueue_all enqueues what is left of the plan, until a call fails: `result`, `failed`.
void phi_enqueue_all(struct phi_enqueue *q);

// phi_enqueue_number enqueues the write of the number alone.
CUresult phi_enqueue_number(struct phi_enqueue *q);

#endif
