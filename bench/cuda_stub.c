// SPDX-License-Identifier: BSD-3-Clause
// Stands for cuda.c where the build has no cuda.h.
#include <errno.h>
#include <stdio.h>

#include "device.h"

int bench_cuda_count(char *why, size_t why_size)
{
    snprintf(why, why_size, "built without CUDA");
    return 0;
}

static int refuse_open(struct bench_device *device, int rank)
{
    (void)rank;
    snprintf(device->error, sizeof(device->error), "-k cuda: built without CUDA");
    return -ENOTSUP;
}

static int refuse_graph(struct bench_device *device)
{
    (void)device;
    return -ENOTSUP;
}

static void nothing(struct bench_device *device)
{
    (void)device;
}

static const struct bench_device_ops stub_ops = {
    .kind = "cuda",
    .open = refuse_open,
    .begin_graph = refuse_graph,
    .open_kernels = refuse_graph,
    .detach = nothing,
    .close = nothing,
};

struct bench_device *bench_cuda_device(void)
{
    static struct bench_device device = {.ops = &stub_ops};
    return &device;
}
