// SPDX-License-Identifier: BSD-3-Clause
// The state of a rank's peers comes and goes with its context.
#ifndef PHI_SERVICE_OPEN_H
#define PHI_SERVICE_OPEN_H

#include <stdint.h>

struct ph_store_callbacks;
struct phi_config;
struct phi_counters;
struct phi_device;
struct phi_executor;
struct phi_memory;
struct phi_self;
struct phi_report;
struct phi_table;

struct phi_self_params {
    struct phi_report *report;
    struct phi_counters *counters;
    const struct phi_config *config;
    const struct phi_table *size_table;
    struct phi_memory *memory;
    struct phi_executor *executor;
    struct phi_device *device; // NULL: host
    const struct ph_store_callbacks *callbacks;
    const char *job;
    uint64_t epoch;
    int rank, ranks;
    uint64_t incarnation; // that this life asks for (see phi_mailbox_params)
};

// phi_self_open opens mailbox and service and publishes the member record. close frees what
// destroy left; nothing may be in flight (see leave.h). NULL is fine.
int phi_self_open(const struct phi_self_params *params, int64_t deadline, struct phi_self **self);
void phi_self_close(struct phi_self *self, int64_t deadline);

#endif
