// SPDX-License-Identifier: BSD-3-Clause
// The program of a test as a kernel: one block of as many threads as its group has.
#include <peerhop/device.cuh>

#include "support/device_program.h"

extern "C" __global__ void test_device_program(const __grid_constant__ device_program program)
{
    device_run_any(program);
}
