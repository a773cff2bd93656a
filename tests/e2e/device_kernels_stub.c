// SPDX-License-Identifier: BSD-3-Clause
// Stands for the kernels of device_kernels.cu where the build has no nvcc.
#include <stdint.h>

extern const unsigned char device_kernels[];
extern const uint64_t device_kernels_size;

const unsigned char device_kernels[1] = {0};
const uint64_t device_kernels_size = 0;
