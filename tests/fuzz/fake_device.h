// SPDX-License-Identifier: BSD-3-Clause
// Stands for the cuda layer under src/memory: a device whose driver hands out mappings that nobody
// touches and keeps count of them.
#ifndef TESTS_FUZZ_FAKE_DEVICE_H
#define TESTS_FUZZ_FAKE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/device.h"

struct phi_device *fake_device(void);

// Begins an execution. mood: which of the driver's calls fails next (its low bits; 0: none), and
// how large the things are that handles and descriptors stand for.
void fake_begin(unsigned mood);

// Whether all that was opened is closed again.
bool fake_end(void);

// Whether [address, address + size) is mapped.
bool fake_holds(const void *address, size_t size);

// Whether the driver refused to say how large a mapping is.
bool fake_silent(void);

#endif
