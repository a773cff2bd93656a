// SPDX-License-Identifier: BSD-3-Clause
// Hooks before the entries of the driver table: libpeerhop.so gets them from dlsym.
#include <cstring>

#include "faults/inject.h"

extern "C" {
#include "cuda/driver.h"
}

namespace
{

enum {
#define INDEX(symbol) INDEX_##symbol,
    PHI_CUDA_REQUIRED(INDEX) PHI_CUDA_OPTIONAL(INDEX)
#undef INDEX
        ENTRIES
};

void *real[ENTRIES];

template <int index, typename Result, typename... Args> Result hook(Args... args)
{
    int error;
    if (fault_hit(FAULT_DRIVER + index, nullptr, &error))
        return static_cast<Result>(error);
    return reinterpret_cast<Result (*)(Args...)>(real[index])(args...);
}

// Only the type of the table's member counts.
template <int index, typename Result, typename... Args> void *hook_like(Result (*)(Args...))
{
    return reinterpret_cast<void *>(&hook<index, Result, Args...>);
}

const struct {
    const char *name;
    void *hook;
} entry_points[] = {
#define ROW(symbol)                                                                                \
    {#symbol, hook_like<INDEX_##symbol>(static_cast<decltype(phi_driver::symbol)>(nullptr))},
    PHI_CUDA_REQUIRED(ROW) PHI_CUDA_OPTIONAL(ROW)
#undef ROW
};

} // namespace

const char *fault_driver_name(unsigned index)
{
    return index < ENTRIES ? entry_points[index].name : nullptr;
}

void *fault_driver_hook(const char *name, void *entry)
{
    for (int i = 0; i < ENTRIES; i++) {
        if (strcmp(entry_points[i].name, name) == 0) {
            real[i] = entry;
            return entry_points[i].hook;
        }
    }
    return nullptr;
}
