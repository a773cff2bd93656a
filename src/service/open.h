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
struct phi_peers;
struct phi_report;
struct phi_table;

struct phi_peers_params {
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

// phi_peers_open opens mailbox and service and publishes the member record. close frees what
// destroy left; nothing may be in flight (see leave.h). NULL is fine.
int phi_peers_open(const struct phi_peers_params *params, int64_t deadline,
                   struct phi_peers **peers);
void phi_peers_close(struct phi_peers *peers, int64_t deadline);

#endif
