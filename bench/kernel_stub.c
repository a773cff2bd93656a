// SPDX-License-Identifier: BSD-3-Clause
// Stands for kernel.cu in a build without nvcc.
#include "kernel.h"

const unsigned char bench_kernels[1] = {0};
const uint64_t bench_kernels_size = 0;
