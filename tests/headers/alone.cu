// SPDX-License-Identifier: BSD-3-Clause
#include <peerhop/device.cuh>

// Before and after itself, and each function by each group.
#include <peerhop/device.cuh>

template <class Group> static __device__ int use(const ph_device_channel &channel)
{
    ph_device_port<Group> port(channel);
    uint64_t value = 0;
    int rc = ph_device_put<Group>(channel, 0, 0, 1) | ph_device_get<Group>(channel, 0, 0, 1);
    rc |= port.signal() | port.put_signal(0, 0, 1) | port.wait(1);
    rc |= port.ll_put_signal(0, 0, 1) | port.ll_wait(1) | port.ll_signal(1);
    return rc | port.ll_wait_value(&value);
}

__global__ void use_all(const __grid_constant__ ph_device_channel channel, int *rc)
{
    *rc = use<ph_thread>(channel) | use<ph_warp>(channel) | use<ph_block>(channel);
}
