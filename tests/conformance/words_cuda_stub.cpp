// SPDX-License-Identifier: BSD-3-Clause
// Stands for words_cuda.cpp in a build without cuda.h.
#include "conformance/words_ends.h"

namespace
{

class LeftOut : public Ends
{
  public:
    std::string open() override
    {
        return "CUDA is left out of this build";
    }
    void *stream(int) override
    {
        return nullptr;
    }
    int synchronize(int, int64_t) override
    {
        return 0;
    }
    uint64_t device_address(int, const void *) override
    {
        return 0;
    }
    void *allocate(size_t) override
    {
        return nullptr;
    }
    void write(void *, const void *, size_t) override
    {
    }
    void read(void *, const void *, size_t) override
    {
    }
};

} // namespace

std::unique_ptr<Ends> make_cuda_kernel_ends()
{
    return std::make_unique<LeftOut>();
}

std::unique_ptr<Ends> make_cuda_memory_operation_ends()
{
    return std::make_unique<LeftOut>();
}

std::unique_ptr<Ends> make_cuda_peer_ends()
{
    return std::make_unique<LeftOut>();
}
