// SPDX-License-Identifier: BSD-3-Clause
#include "conformance/memory_kinds.h"

#include <cstring>

namespace
{

class HostKind : public MemoryKind
{
  public:
    phi_kind kind() const override
    {
        return PHI_KIND_HOST;
    }
    std::string open() override
    {
        if (phi_memory_open(&context.report, nullptr, &memory) ||
            phi_memory_open(&context.report, nullptr, &other))
            return context.error();
        return "";
    }
    void *allocate(size_t size) override
    {
        void *address = nullptr;
        return phi_host_alloc(memory, size, &address) ? nullptr : address;
    }
    void release(void *address) override
    {
        phi_host_free(memory, address);
    }
    void write(void *to, const void *from, size_t size) override
    {
        memcpy(to, from, size);
    }
    void read(void *to, const void *from, size_t size) override
    {
        memcpy(to, from, size);
    }
};

} // namespace

std::unique_ptr<MemoryKind> make_host_kind()
{
    return std::make_unique<HostKind>();
}
