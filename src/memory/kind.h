// SPDX-License-Identifier: BSD-3-Clause
// The kinds' view of the memory of a context. Only for files of this folder.
#ifndef PHI_MEMORY_KIND_H
#define PHI_MEMORY_KIND_H

#include <stdint.h>

#include "memory/memory.h"

struct phi_host_memory; // memory/host.c

struct phi_memory {
    struct phi_closing end; // first
    struct phi_report *report;
    struct phi_device *device;    // NULL in a host context
    struct phi_host_memory *host; // the mappings of the host kind
    uint64_t process;             // phi_process_identity()
};

// phi_process_identity is the same for all contexts of a process. It differs between processes,
// also between those of other PID namespaces, and between those that reuse a process id. A pointer
// of the same process needs no handle.
uint64_t phi_process_identity(void);

// The mappings of the host kind, one set for each context. close unmaps all that are left.
int phi_host_memory_open(struct phi_report *report, struct phi_host_memory **host);
void phi_host_memory_close(struct phi_memory *memory);

#endif
