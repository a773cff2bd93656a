// SPDX-License-Identifier: BSD-3-Clause
// Stands for memory_kind_cuda.cpp in a build without cuda.h.
#include "conformance/memory_kinds.h"

namespace
{

class LeftOut : public MemoryKind
{
  public:
    explicit LeftOut(phi_kind which) : which(which)
    {
    }
    phi_kind kind() const override
    {
        return which;
    }
    std::string open() override
    {
        return "CUDA is left out of this build";
    }
    void *allocate(size_t) override
    {
        return nullptr;
    }
    void release(void *) override
    {
    }
    void write(void *, const void *, size_t) override
    {
    }
    void read(void *, const void *, size_t) override
    {
    }

  private:
    phi_kind which;
};

} // namespace

std::unique_ptr<MemoryKind> make_cuda_kind()
{
    return std::make_unique<LeftOut>(PHI_KIND_CUDA);
}

std::unique_ptr<MemoryKind> make_vmm_kind()
{
    return std::make_unique<LeftOut>(PHI_KIND_VMM);
}

std::unique_ptr<MemoryKind> make_pool_kind()
{
    return std::make_unique<LeftOut>(PHI_KIND_POOL);
}
