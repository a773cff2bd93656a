// SPDX-License-Identifier: BSD-3-Clause
// Device memory that cannot be exported, and what belongs to one kind only. What all kinds promise
// is in tests/conformance.
#include "support/atomic_compat.h"

#include <cerrno>
#include <memory>
#include <string>

#include <unistd.h>

#include "support/gpu.h"

extern "C" {
#include "memory/memory.h"
}

namespace
{

class Kinds : public GpuTest
{
  protected:
    phi_memory *memory = nullptr;
    phi_allocation allocation{};
    uint64_t offset = 0;

    void SetUp() override
    {
        GpuTest::SetUp();
        if (IsSkipped())
            return;
        ASSERT_EQ(phi_memory_open(&gpu->context.report, gpu->device, &memory), 0);
    }
    void TearDown() override
    {
        phi_memory_close(memory);
    }
    int describe(CUdeviceptr address, size_t size)
    {
        return phi_memory_describe(memory, reinterpret_cast<void *>(address), size, &allocation,
                                   &offset);
    }
    std::string error()
    {
        return gpu->context.error();
    }
    bool has(phi_kind kind)
    {
        return (phi_memory_kinds(memory) & 1u << kind) != 0;
    }
};

TEST_F(Kinds, PinnedHostMemoryIsNamed)
{
    void *pinned = nullptr;
    CU_OK(gpu->cu->cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE));
    EXPECT_EQ(describe((CUdeviceptr)pinned, 16), PH_EKIND);
    EXPECT_NE(error().find("pinned"), std::string::npos) << error();
    CU_EXPECT(gpu->cu->cuMemFreeHost(pinned));
}

TEST_F(Kinds, MemoryOfAnotherDeviceIsRefused)
{
    Gpu other(1);
    if (!other.ok())
        GTEST_SKIP() << "needs two devices";
    CUdeviceptr theirs = other.alloc(4096);
    EXPECT_EQ(describe(theirs, 16), -EINVAL);
    EXPECT_NE(error().find("cuda:1"), std::string::npos) << error();
    EXPECT_NE(error().find("cuda:0"), std::string::npos) << error();
}

TEST_F(Kinds, DescribeWorksWhateverTheThreadsDeviceIs)
{
    CUdeviceptr mine = gpu->alloc(4096);
    std::thread([&] { EXPECT_EQ(describe(mine, 16), 0) << error(); }).join();
    Gpu other(1);
    if (other.ok()) {
        EXPECT_EQ(describe(mine, 16), 0) << error();
    }
}

TEST_F(Kinds, SmallNeighboursAreAllocationsOfTheirOwn)
{
    CUdeviceptr a = gpu->alloc(1000), b = gpu->alloc(1000);
    ASSERT_EQ(describe(a, 1000), 0) << error();
    phi_allocation first = allocation;
    ASSERT_EQ(describe(b, 1000), 0) << error();
    EXPECT_FALSE(phi_allocation_equal(&first, &allocation));
    EXPECT_EQ(allocation.base, b);
}

TEST_F(Kinds, DefaultPoolCannotBeExported)
{
    CUdeviceptr memory_of_pool = 0;
    phi_export made{};
    if (!has(PHI_KIND_POOL))
        GTEST_SKIP() << "the device has no pools";
    CU_OK(gpu->cu->cuMemAllocAsync(&memory_of_pool, 1 << 20, nullptr));
    CU_OK(gpu->cu->cuStreamSynchronize(nullptr));
    ASSERT_EQ(describe(memory_of_pool, 1 << 20), 0) << error();
    EXPECT_EQ(allocation.kind, PHI_KIND_POOL);
    EXPECT_EQ(phi_memory_export(memory, &allocation, &made), PH_EKIND);
    EXPECT_NE(error().find("pool"), std::string::npos) << error();
    CU_EXPECT(gpu->cu->cuMemFreeAsync(memory_of_pool, nullptr));
    CU_EXPECT(gpu->cu->cuStreamSynchronize(nullptr));
}

// VMM memory of `count` physical allocations side by side.
class Mapped
{
  public:
    CUdeviceptr base = 0;
    size_t piece = 0;

    Mapped(Gpu *gpu, int count, CUmemAllocationHandleType type) : gpu(gpu), count(count)
    {
        CUmemAllocationProp properties{};
        CUmemAccessDesc access{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.requestedHandleTypes = type;
        properties.location = access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        CU_EXPECT(gpu->cu->cuMemGetAllocationGranularity(&piece, &properties,
                                                         CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
        CU_EXPECT(gpu->cu->cuMemAddressReserve(&base, piece * (size_t)count, 0, 0, 0));
        for (int i = 0; i < count; i++) {
            CUmemGenericAllocationHandle handle;
            CU_EXPECT(gpu->cu->cuMemCreate(&handle, piece, &properties, 0));
            CU_EXPECT(gpu->cu->cuMemMap(base + piece * (size_t)i, piece, 0, handle, 0));
            CU_EXPECT(gpu->cu->cuMemRelease(handle));
        }
        CU_EXPECT(gpu->cu->cuMemSetAccess(base, piece * (size_t)count, &access, 1));
    }
    ~Mapped()
    {
        for (int i = 0; i < count; i++)
            CU_EXPECT(gpu->cu->cuMemUnmap(base + piece * (size_t)i, piece));
        CU_EXPECT(gpu->cu->cuMemAddressFree(base, piece * (size_t)count));
    }

  private:
    Gpu *gpu;
    int count;
};

TEST_F(Kinds, VmmWithoutDescriptorsCannotBeExported)
{
    phi_export made{};
    if (!has(PHI_KIND_VMM))
        GTEST_SKIP() << "the device has no VMM descriptors";
    Mapped mapped(gpu.get(), 1, CU_MEM_HANDLE_TYPE_NONE);
    ASSERT_EQ(describe(mapped.base, mapped.piece), 0) << error();
    EXPECT_EQ(allocation.kind, PHI_KIND_VMM);
    EXPECT_EQ(phi_memory_export(memory, &allocation, &made), PH_EKIND);
    EXPECT_NE(error().find("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"), std::string::npos)
        << error();
}

// As expandable segments of PyTorch are: a buffer inside one piece works, one across two is named.
TEST_F(Kinds, VmmAcrossPhysicalAllocationsIsNamed)
{
    if (!has(PHI_KIND_VMM))
        GTEST_SKIP() << "the device has no VMM descriptors";
    Mapped mapped(gpu.get(), 2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ASSERT_EQ(describe(mapped.base + mapped.piece + 100, 1000), 0) << error();
    EXPECT_EQ(allocation.base, mapped.base + mapped.piece);
    EXPECT_EQ(allocation.size, mapped.piece);
    EXPECT_EQ(offset, 100u);
    EXPECT_EQ(describe(mapped.base + mapped.piece - 10, 20), PH_EKIND);
    EXPECT_NE(error().find("several physical allocations"), std::string::npos) << error();
}

// Other physical memory at the same address is another allocation.
TEST_F(Kinds, RemappedVmmIsNotCurrent)
{
    if (!has(PHI_KIND_VMM))
        GTEST_SKIP() << "the device has no VMM descriptors";
    Mapped mapped(gpu.get(), 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    void *address = reinterpret_cast<void *>(mapped.base);
    ASSERT_EQ(describe(mapped.base, 16), 0) << error();
    EXPECT_TRUE(phi_memory_current(memory, address, &allocation));

    CUmemAllocationProp properties{};
    CUmemGenericAllocationHandle handle;
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CU_OK(gpu->cu->cuMemCreate(&handle, mapped.piece, &properties, 0));
    CU_OK(gpu->cu->cuMemUnmap(mapped.base, mapped.piece));
    CU_OK(gpu->cu->cuMemMap(mapped.base, mapped.piece, 0, handle, 0));
    CU_OK(gpu->cu->cuMemRelease(handle));
    EXPECT_FALSE(phi_memory_current(memory, address, &allocation));
}

TEST_F(Kinds, ForeignDescriptorsAndHandlesAreRefused)
{
    struct {
        phi_kind kind;
        CUdeviceptr address;
    } cases[2] = {{PHI_KIND_CUDA, gpu->alloc(1 << 20)}, {PHI_KIND_VMM, 0}};
    std::unique_ptr<Mapped> mapped;
    if (has(PHI_KIND_VMM)) {
        mapped.reset(new Mapped(gpu.get(), 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        cases[1].address = mapped->base;
    }
    for (auto &c : cases) {
        if (c.address == 0)
            continue;
        phi_export made{};
        phi_import *import = nullptr;
        ASSERT_EQ(describe(c.address, 16), 0) << error();
        ASSERT_EQ(phi_memory_export(memory, &allocation, &made), 0) << error();
        made.record[36] ^= 1; // another process,
        for (size_t i = 36 + 24; i < made.record_size; i++)
            made.record[i] = (uint8_t)(i * 31); // and a handle that nobody made
        int pipe_ends[2];
        ASSERT_EQ(pipe(pipe_ends), 0);
        int fd = made.fd < 0 ? -1 : pipe_ends[0];
        EXPECT_LT(phi_memory_import(memory, made.record, made.record_size, fd, &import), 0);
        EXPECT_EQ(import, nullptr);
        EXPECT_NE(error().find("CUDA_ERROR"), std::string::npos) << error();
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        phi_memory_export_close(&made);
    }
}

} // namespace
