// SPDX-License-Identifier: BSD-3-Clause
// A device, for the files of this layer: device_use.c uses it, device_life.c opens and ends it.
#ifndef PHI_CUDA_DEVICE_STATE_H
#define PHI_CUDA_DEVICE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/map.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/kernels.h"

struct phi_device {
    struct phi_closing end;    // first; of the device itself
    struct phi_report *report; // NULL once the device is closed; the closer looks with `telling`
    const struct phi_driver *driver;
    struct phi_device_info info;
    CUdevice handle;
    CUcontext context; // primary, retained
    CUmodule module;
    CUfunction kernel[PHI_KERNEL_COUNT];
    pthread_mutex_t lock; // guards stream and staging
    CUstream stream;      // non-blocking, never waited on by anything of ours
    void *staging;

    _Atomic uint64_t bytes; // of device memory that is allocated here
    struct phi_closer *closer;
    pthread_mutex_t telling; // guards report while the closer tells, which calls the application
    pthread_mutex_t ends;    // guards owned
    struct phi_map owned;    // struct owned of device_life.c, by address
};

// phi_device_describe fills handle and info of an ordinal.
int phi_device_describe(struct phi_device *device, int ordinal);

// phi_device_load (entered) makes what the device needs: stream, staging buffer, kernels. May block
// behind any stream of the device, and leaves what it made also where it fails. A sentence without
// a failure says why there are no kernels. Only `report` is told: the device may be closed
// meanwhile.
int phi_device_load(struct phi_device *device, struct phi_report *report);

#endif
