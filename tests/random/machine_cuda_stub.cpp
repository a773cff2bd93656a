// SPDX-License-Identifier: BSD-3-Clause
// Where cuda.h is missing.
#include "random/machine.h"

std::unique_ptr<Machine> make_cuda_machine(int)
{
    fail("built without CUDA");
}

int cuda_devices(std::string *why_not)
{
    *why_not = "built without CUDA";
    return 0;
}
