// SPDX-License-Identifier: BSD-3-Clause
// Where CUDA is left out of the build.
#include "e2e/device.h"

std::unique_ptr<Device> make_cuda_device(int)
{
    return nullptr;
}

bool device_available(const std::string &name, std::string *why_not)
{
    *why_not = "CUDA is left out of this build";
    return name == "host";
}

bool gpus_linked(std::string *why_not)
{
    return device_available("gpu", why_not);
}
