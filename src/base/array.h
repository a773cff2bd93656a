// SPDX-License-Identifier: BSD-3-Clause
// Arrays that grow; the owner locks.
#ifndef PHI_BASE_ARRAY_H
#define PHI_BASE_ARRAY_H

#include <stddef.h>

// phi_array_grow returns the array with room for one more element of `size` bytes: itself, or what
// takes its place (then *room, counted in elements, is larger). NULL where there is no memory; the
// array is then as before. NULL with *room 0 is an empty array.
void *phi_array_grow(void *array, size_t count, size_t *room, size_t size);

#endif
