// SPDX-License-Identifier: BSD-3-Clause
// Arrays that grow; the owner locks.
#ifndef PHI_BASE_ARRAY_H
#define PHI_BASE_ARRAY_H

#include <stddef.h>

// phi_array_grow makes room for one more element of `size` bytes. It returns the array, or a larger
// one in its place, and sets *room (in elements) then. NULL: no memory, and the array is as before.
// NULL with *room 0 is an empty array.
void *phi_array_grow(void *array, size_t count, size_t *room, size_t size);

#endif
