// SPDX-License-Identifier: BSD-3-Clause
// The fatbin of kernels.cu, embedded as bytes (embed.py), or nothing where it is left out
// (kernels_stub.c).
#ifndef PHI_CUDA_KERNELS_H
#define PHI_CUDA_KERNELS_H

#include <stdint.h>

extern const unsigned char phi_kernels[];
extern const uint64_t phi_kernels_size;        // 0: left out
extern const char phi_kernels_architectures[]; // e.g. "75 80 90, PTX 75", or "left out"

#endif
