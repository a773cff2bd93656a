// SPDX-License-Identifier: BSD-3-Clause
// Stands for test_kernels.cu in a build without nvcc.
#include <stdint.h>

extern const unsigned char test_kernels[];
extern const uint64_t test_kernels_size;
extern const char test_kernels_architectures[];

const unsigned char test_kernels[] = {0};
const uint64_t test_kernels_size = 0;
const char test_kernels_architectures[] = "left out";
