// SPDX-License-Identifier: BSD-3-Clause
// The names of the kinds.
#include "memory/kind.h"

static const struct {
    const char *name;
    const char *handle;
} kind_names[PHI_KIND_COUNT] = {
    [PHI_KIND_NONE] = {"none", "none"},     [PHI_KIND_HOST] = {"host", "memfd"},
    [PHI_KIND_CUDA] = {"cuda", "cuda-ipc"}, [PHI_KIND_VMM] = {"vmm", "vmm-fd"},
    [PHI_KIND_POOL] = {"pool", "pool"},
};

const char *phi_kind_name(enum phi_kind kind)
{
    return (unsigned)kind < PHI_KIND_COUNT ? kind_names[kind].name : "unknown";
}

const char *phi_kind_handle(enum phi_kind kind)
{
    return (unsigned)kind < PHI_KIND_COUNT ? kind_names[kind].handle : "unknown";
}
