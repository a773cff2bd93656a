// SPDX-License-Identifier: BSD-3-Clause
// The context: only this layer knows it.
#ifndef PHI_API_CONTEXT_INTERNAL_H
#define PHI_API_CONTEXT_INTERNAL_H

#include <stdbool.h>

#include <peerhop/peerhop.h>

#include "base/config.h"
#include "base/counters.h"
#include "base/report.h"
#include "base/table.h"
#include "cuda/device.h"
#include "memory/memory.h"
#include "peer/self.h"
#include "semaphore/executor.h"

struct ph_context {
    struct phi_report report;
    struct phi_counters counters;
    struct phi_config config;
    struct phi_table size_table;
    struct phi_device *device; // NULL: host
    struct phi_memory *memory;
    struct phi_executor *executor;
    struct phi_self *self;
    char name[160]; // of the device
};

// phi_context_closed waits until all that was handed over to the device's closer so far is done: 0,
// or -ETIMEDOUT with a sentence that begins with `what` ("... is not unmapped yet"), says what is
// in the way, and ends with `then`; or the code of an end, see ending/untold.h. release.c.
int phi_context_closed(struct ph_context *context, int64_t deadline, const char *what,
                       const char *then);

#endif
