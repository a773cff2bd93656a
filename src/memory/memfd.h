// SPDX-License-Identifier: BSD-3-Clause
// Memory files (memfds): made sealed, and checked before they are trusted. Also for the segments of
// semaphore/.
#ifndef PHI_MEMORY_MEMFD_H
#define PHI_MEMORY_MEMFD_H

#include <stddef.h>
#include <stdint.h>

#include "base/report.h"

// phi_memfd_create makes a zeroed memory file of size bytes, sealed against shrinking, growing and
// further seals: who maps it cannot be hit by SIGBUS. `what` names it in errors and in /proc.
// -ENOMEM, -EMFILE, -ENFILE (reported).
int phi_memfd_create(struct phi_report *report, const char *what, uint64_t size, int *fd);

// phi_memfd_largest is the size beyond which this process can make no file (ulimit -f).
uint64_t phi_memfd_largest(void);

// What a descriptor is, as far as a mapping of it cares.
struct phi_memfd_info {
    int seals;
    uint64_t size;    // of the file
    uint64_t inode;   // tells the memory files of a node apart
    uint64_t granule; // what offsets and mapping lengths are multiples of
};

// phi_memfd_inspect returns -EINVAL (not reported) where fd is no memory file or not open for
// reading and writing, and what the system says where it cannot be looked at. phi_memfd_trouble
// puts either into words.
int phi_memfd_inspect(int fd, struct phi_memfd_info *info);
const char *phi_memfd_trouble(int rc);

#endif
