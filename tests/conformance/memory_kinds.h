// SPDX-License-Identifier: BSD-3-Clause
// What the suite of the memory kinds needs of each: memory of the kind, as its owner makes it. A
// kind is added by a class and a line in memory_kinds() (memory_kind_test.cpp).
#ifndef TESTS_CONFORMANCE_MEMORY_KINDS_H
#define TESTS_CONFORMANCE_MEMORY_KINDS_H

#include "support/atomic_compat.h"

#include <cstddef>
#include <memory>
#include <string>

#include "support/plain_context.h"

extern "C" {
#include "memory/memory.h"
}

class MemoryKind
{
  public:
    PlainContext context;
    phi_memory *memory = nullptr; // of a context that owns allocations; opened by open()
    phi_memory *other = nullptr;  // of another context of this process

    virtual ~MemoryKind()
    {
        phi_memory_close(other);
        phi_memory_close(memory);
    }
    virtual phi_kind kind() const = 0;

    // Opens both memories. Returns why the kind cannot be tested on this machine, or "".
    virtual std::string open() = 0;

    // Memory of the kind; NULL on failure.
    virtual void *allocate(size_t size) = 0;
    virtual void release(void *address) = 0;

    // Copies between the test and memory of the kind, own or imported.
    virtual void write(void *to, const void *from, size_t size) = 0;
    virtual void read(void *to, const void *from, size_t size) = 0;
};

struct MemoryKindEntry {
    const char *name;
    std::unique_ptr<MemoryKind> (*make)();
};

std::unique_ptr<MemoryKind> make_host_kind();
std::unique_ptr<MemoryKind> make_cuda_kind();
std::unique_ptr<MemoryKind> make_vmm_kind();
std::unique_ptr<MemoryKind> make_pool_kind();

#endif
