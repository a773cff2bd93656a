// SPDX-License-Identifier: BSD-3-Clause
// The kinds of device memory ask the driver about a pointer by these functions.
#ifndef PHI_MEMORY_POINTER_H
#define PHI_MEMORY_POINTER_H

#include "cuda/driver.h"
#include "memory/kind.h"

// phi_pointer_describe looks a pointer up, and fills allocation and offset where its kind is
// `kind`. -ENOENT for another kind.
//   EINVAL and PH_EKIND as phi_memory_describe.
int phi_pointer_describe(struct phi_memory *memory, enum phi_kind kind, const void *address,
                         size_t size, struct phi_allocation *allocation, uint64_t *offset);

// phi_pointer_current is the `current` of these kinds.
bool phi_pointer_current(struct phi_memory *memory, const void *address,
                         const struct phi_allocation *allocation);

// phi_pointer_fail tells of a driver call that failed. It always returns a failure. -EXDEV: this
// device has no peer access to the memory's device; it may see nothing of that but this error.
int phi_pointer_fail(struct phi_memory *memory, CUresult result, const char *what,
                     const struct phi_allocation *allocation);

// The part of each record of these kinds begins with the owner's process and device.
struct phi_owner {
    uint64_t process;
    uint8_t uuid[16];
};
void phi_owner_put(const struct phi_memory *memory, struct phi_writer *writer);
void phi_owner_get(struct phi_reader *reader, struct phi_owner *owner);

// phi_pointer_holds: whether [address, address + size) lies in what the driver has mapped there: 1,
// 0, or -1 where the driver does not say. A peer says how large its allocation is, and must not
// make us reach memory that it does not own.
int phi_pointer_holds(struct phi_memory *memory, CUdeviceptr address, uint64_t size);

// phi_owner_direct: the record comes from another context of this process, so the pointer itself
// serves. It makes the pointer usable on this memory's device, and fills import. 1: done. 0: a
// handle is needed. Or an error.
int phi_owner_direct(struct phi_memory *memory, const struct phi_owner *owner,
                     const struct phi_allocation *allocation, struct phi_import *import);

#endif
