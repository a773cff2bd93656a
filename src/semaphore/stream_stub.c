// SPDX-License-Identifier: BSD-3-Clause
// Stands for stream.c in a build without cuda.h.
#include <errno.h>

#include "semaphore/executor.h"

int phi_cuda_executor_open(const struct phi_executor_params *params, struct phi_device *device,
                           struct phi_executor **executor)
{
    (void)device;
    (void)executor;
    return phi_fail(params->report, -ENOTSUP, "CUDA is left out of this build");
}

void phi_cuda_executor_share(struct phi_executor *executor, bool device_shared)
{
    (void)executor;
    (void)device_shared;
}

bool phi_cuda_executor_quiet(struct phi_executor *executor, int64_t deadline)
{
    (void)executor;
    (void)deadline;
    return true;
}

void phi_cuda_executor_explain(struct phi_executor *executor, char *text, size_t size)
{
    (void)executor;
    (void)text;
    (void)size;
}
