// SPDX-License-Identifier: BSD-3-Clause
// Memory: what addresses are, how they come back, and how other processes map them.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "standin/driver_under_test.h"
#include "standin/peer.h"

namespace
{

class Memory : public DriverTest
{
  protected:
    template <typename T> T attribute(CUpointer_attribute which, CUdeviceptr address)
    {
        T got = {};
        CU_EXPECT(d->cuPointerGetAttribute(&got, which, address), CUDA_SUCCESS);
        return got;
    }
    unsigned long long id(CUdeviceptr address)
    {
        return attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    }
    CUipcMemHandle handle(CUdeviceptr address)
    {
        CUipcMemHandle got = {};
        CU_EXPECT(d->cuIpcGetMemHandle(&got, address), CUDA_SUCCESS);
        return got;
    }
};

CUresult result_of(const Reply &reply)
{
    return static_cast<CUresult>(reply.result);
}

TEST_F(Memory, DeviceSaysWhatItIs)
{
    int major = 0, memops = 0, vmm = 0;
    CU_OK(d->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    CU_OK(d->cuDeviceGetAttribute(&memops, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
    CU_OK(
        d->cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    EXPECT_GE(major, 7);
    EXPECT_EQ(memops, 1);
    EXPECT_EQ(vmm, 1);
    char name[64];
    CU_OK(d->cuDeviceGetName(name, sizeof(name), 0));
    EXPECT_GT(strlen(name), 0u);
    size_t total = 0;
    CU_OK(d->cuDeviceTotalMem_v2(&total, 0));
    EXPECT_GT(total, 1024 * MIB);
    int value;
    CU_EXPECT(d->cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1000),
              CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(Memory, UuidsDiffer)
{
    if (!second_device())
        GTEST_SKIP() << "one device";
    CUuuid a, b;
    CU_OK(d->cuDeviceGetUuid_v2(&a, 0));
    CU_OK(d->cuDeviceGetUuid_v2(&b, 1));
    EXPECT_NE(memcmp(&a, &b, sizeof(a)), 0);
}

// Ordinals mean nothing across processes, UUIDs do.
TEST_F(Memory, VisibleDevicesInAnotherOrder)
{
    if (!second_device())
        GTEST_SKIP() << "one device";
    if (const char *visible = getenv("CUDA_VISIBLE_DEVICES"))
        GTEST_SKIP() << "CUDA_VISIBLE_DEVICES is set, to " << visible;
    Peer swapped(0, {"CUDA_VISIBLE_DEVICES=1,0"}), second(0, {"CUDA_VISIBLE_DEVICES=1"});
    CUuuid ours[2];
    for (int i = 0; i < 2; i++)
        CU_OK(d->cuDeviceGetUuid_v2(&ours[i], i));
    for (uint64_t i = 0; i < 2; i++) {
        Reply reply = swapped.call(Order::UUID, i);
        CU_OK(result_of(reply));
        EXPECT_EQ(memcmp(reply.bytes, &ours[1 - i], sizeof(ours[0])), 0) << i;
    }
    Reply reply = second.call(Order::UUID, 0);
    CU_OK(result_of(reply));
    EXPECT_EQ(memcmp(reply.bytes, &ours[1], sizeof(ours[0])), 0);
    CU_EXPECT(result_of(second.call(Order::UUID, 1)), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(Memory, ContextStack)
{
    CUcontext current = nullptr, popped = nullptr;
    CUdevice device = -1;
    CU_OK(d->cuCtxPushCurrent_v2(context_));
    CU_OK(d->cuCtxGetCurrent(&current));
    EXPECT_EQ(current, context_);
    CU_OK(d->cuCtxGetDevice(&device));
    EXPECT_EQ(device, 0);
    CU_OK(d->cuCtxPopCurrent_v2(&popped));
    EXPECT_EQ(popped, context_);
    CU_OK(d->cuCtxPopCurrent_v2(&popped));
    CU_OK(d->cuCtxGetCurrent(&current));
    EXPECT_EQ(current, nullptr);
    CU_EXPECT(d->cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    CUdeviceptr address;
    CU_EXPECT(d->cuMemAlloc_v2(&address, 8), CUDA_ERROR_INVALID_CONTEXT);
    CU_OK(d->cuCtxPushCurrent_v2(context_));
    unsigned long long a = 0, b = 0;
    CU_OK(d->cuCtxGetId(context_, &a));
    CU_OK(d->cuCtxGetId(nullptr, &b));
    EXPECT_EQ(a, b);
}

TEST_F(Memory, SmallPiecesShareABlockAndRangesAreTheirOwn)
{
    CUdeviceptr a = alloc(1000), b = alloc(1000), base = 0;
    size_t size = 0;
    EXPECT_EQ(a / (2 * MIB), b / (2 * MIB));
    EXPECT_EQ(a % 256, 0u);
    CU_OK(d->cuMemGetAddressRange_v2(&base, &size, b + 999));
    EXPECT_EQ(base, b);
    EXPECT_EQ(size, 1000u);
    EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, b + 1), b);
    EXPECT_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, b + 1), 1000u);
    CU_OK(d->cuMemFree_v2(a));
    CU_OK(d->cuMemFree_v2(b));
}

TEST_F(Memory, FreedAddressesComeBackWithAnotherId)
{
    for (size_t size : {size_t{4096}, 8 * MIB}) {
        CUdeviceptr first = alloc(size);
        unsigned long long before = id(first);
        CU_OK(d->cuMemFree_v2(first));
        CUdeviceptr second = alloc(size);
        EXPECT_EQ(second, first) << size;
        EXPECT_NE(id(second), before);
        CU_OK(d->cuMemFree_v2(second));
    }
}

TEST_F(Memory, BadFreesAreRefused)
{
    CUdeviceptr a = alloc(4 * MIB);
    CU_EXPECT(d->cuMemFree_v2(a + 512), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemFree_v2(a));
    CU_EXPECT(d->cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemFree_v2(0));
    CUdeviceptr none;
    CU_EXPECT(d->cuMemAlloc_v2(&none, 0), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuMemAlloc_v2(&none, size_t{1} << 45), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(Memory, AttributesOfDeviceMemory)
{
    CUdeviceptr a = alloc(4096);
    EXPECT_EQ(attribute<CUmemorytype>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a), CU_MEMORYTYPE_DEVICE);
    EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a), 0);
    EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, a), 0u);
    EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a), 1u);
    EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, a), context_);
    EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, a + 7), a + 7);
    EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a), nullptr);
    EXPECT_EQ(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, a), 0u);
    void *host;
    CU_EXPECT(d->cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, a),
              CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemFree_v2(a));
}

TEST_F(Memory, UnknownPointers)
{
    int local = 0;
    unsigned type = 77;
    unsigned long long buffer = 77;
    auto address = reinterpret_cast<CUdeviceptr>(&local);
    CU_EXPECT(d->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
              CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_BUFFER_ID};
    void *data[] = {&type, &buffer};
    CU_OK(d->cuPointerGetAttributes(2, which, data, address));
    EXPECT_EQ(type, 0u);
    EXPECT_EQ(buffer, 0u);
    CUdeviceptr base;
    size_t size;
    CU_EXPECT(d->cuMemGetAddressRange_v2(&base, &size, address), CUDA_ERROR_NOT_FOUND);
}

TEST_F(Memory, HostMemory)
{
    auto *word = pinned<uint32_t>();
    EXPECT_EQ(attribute<CUmemorytype>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device(word)),
              CU_MEMORYTYPE_HOST);
    CUdeviceptr address = 0;
    CU_OK(d->cuMemHostGetDevicePointer_v2(&address, word, 0));
    EXPECT_EQ(address, device(word));
    CU_OK(d->cuMemFreeHost(word));

    size_t size = 65536;
    void *shared = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CU_EXPECT(d->cuMemHostGetDevicePointer_v2(&address, shared, 0), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemHostRegister_v2(shared, size, CU_MEMHOSTREGISTER_PORTABLE));
    CU_EXPECT(d->cuMemHostRegister_v2(shared, size, CU_MEMHOSTREGISTER_PORTABLE),
              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CU_OK(d->cuMemHostGetDevicePointer_v2(&address, static_cast<char *>(shared) + 4096, 0));
    EXPECT_EQ(address, device(shared) + 4096);
    EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address), 0u);
    CU_OK(d->cuMemHostUnregister(shared));
    CU_EXPECT(d->cuMemHostUnregister(shared), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    munmap(shared, size);
}

TEST_F(Memory, IpcHandlesAreOfTheBaseAndNotForOwnUse)
{
    CUdeviceptr a = alloc(4 * MIB);
    CUipcMemHandle base = handle(a), inside = handle(a + MIB);
    EXPECT_EQ(memcmp(&base, &inside, sizeof(base)), 0);
    CUdeviceptr opened;
    CU_EXPECT(d->cuIpcOpenMemHandle_v2(&opened, base, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_INVALID_CONTEXT);
    CU_EXPECT(d->cuIpcCloseMemHandle(a), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemFree_v2(a));
    auto *word = pinned<uint32_t>();
    CUipcMemHandle none;
    CU_EXPECT(d->cuIpcGetMemHandle(&none, device(word)), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemFreeHost(word));
}

TEST_F(Memory, AnotherProcessWritesThroughAnImport)
{
    Peer peer(second_device() ? 1 : 0);
    for (size_t size : {size_t{4096}, 8 * MIB}) {
        CUdeviceptr skip = alloc(size), a = alloc(size);
        CUipcMemHandle h = handle(a);
        Reply opened = peer.call(Order::OPEN, 0, 0, &h);
        CU_OK(result_of(opened));
        CU_OK(result_of(peer.call(Order::PUT, opened.value + 8, 0x1122334455667788)));
        EXPECT_EQ(value(a + 8), 0x1122334455667788u);
        set_value(a + 16, 99);
        EXPECT_EQ(peer.call(Order::GET, opened.value + 16).value, 99u);

        Reply again = peer.call(Order::OPEN, 0, 0, &h);
        CU_OK(result_of(again));
        EXPECT_EQ(again.value, opened.value);
        CU_OK(result_of(peer.call(Order::CLOSE, opened.value)));
        CU_OK(result_of(peer.call(Order::PUT, opened.value, 5))); // still open once
        CU_OK(result_of(peer.call(Order::CLOSE, opened.value)));
        CU_EXPECT(result_of(peer.call(Order::CLOSE, opened.value)), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(value(a), 5u);
        CU_OK(d->cuMemFree_v2(a));
        CU_OK(d->cuMemFree_v2(skip));
    }
}

TEST_F(Memory, ImportedMemorySaysSo)
{
    Peer peer;
    Reply there = peer.call(Order::ALLOC, 4 * MIB);
    Reply h = peer.call(Order::HANDLE, there.value);
    CUipcMemHandle handle_bytes;
    memcpy(&handle_bytes, h.bytes, sizeof(handle_bytes));
    CUdeviceptr a = 0, base = 0;
    size_t size = 0;
    CU_OK(d->cuIpcOpenMemHandle_v2(&a, handle_bytes, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT_EQ(attribute<CUmemorytype>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a), CU_MEMORYTYPE_DEVICE);
    CU_OK(d->cuMemGetAddressRange_v2(&base, &size, a + 100));
    EXPECT_EQ(base, a);
    EXPECT_EQ(size, 4 * MIB);
    CUipcMemHandle none;
    CU_EXPECT(d->cuIpcGetMemHandle(&none, a), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuIpcCloseMemHandle(a));
}

TEST_F(Memory, HandlesOfFreedMemoryDoNotOpen)
{
    Peer peer;
    Reply there = peer.call(Order::ALLOC, 4 * MIB);
    Reply h = peer.call(Order::HANDLE, there.value);
    CU_OK(result_of(peer.call(Order::FREE, there.value)));
    CUipcMemHandle handle_bytes;
    memcpy(&handle_bytes, h.bytes, sizeof(handle_bytes));
    CUdeviceptr a;
    CU_EXPECT(d->cuIpcOpenMemHandle_v2(&a, handle_bytes, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Memory, ADeadExportersMemoryStaysMappedButDoesNotOpen)
{
    Peer peer;
    CUipcMemHandle handles[2];
    for (CUipcMemHandle &h : handles) {
        Reply there = peer.call(Order::ALLOC, 4 * MIB);
        CU_OK(result_of(peer.call(Order::PUT, there.value, 4711)));
        Reply reply = peer.call(Order::HANDLE, there.value);
        memcpy(&h, reply.bytes, sizeof(h));
    }
    CUdeviceptr a, b;
    CU_OK(d->cuIpcOpenMemHandle_v2(&a, handles[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    peer.kill();
    EXPECT_EQ(value(a), 4711u);
    set_value(a, 1);
    EXPECT_EQ(value(a), 1u);
    CU_EXPECT(d->cuIpcOpenMemHandle_v2(&b, handles[1], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_INVALID_HANDLE);
    CU_OK(d->cuIpcCloseMemHandle(a));
}

// Which memory a stale import reaches depends on whether the allocation had a block of its own.
TEST_F(Memory, StaleImportsOfSmallPiecesSeeTheNextOwner)
{
    Peer peer;
    for (size_t size : {size_t{4096}, 4 * MIB}) {
        CUdeviceptr neighbour = alloc(4096), a = alloc(size); // it keeps the block alive
        set_value(a, 1);
        CUipcMemHandle h = handle(a);
        Reply opened = peer.call(Order::OPEN, 0, 0, &h);
        CU_OK(result_of(opened));
        CU_OK(d->cuMemFree_v2(a));
        CUdeviceptr b = alloc(size);
        EXPECT_EQ(b, a);
        set_value(b, 2);
        EXPECT_EQ(peer.call(Order::GET, opened.value).value, size < 2 * MIB ? 2u : 1u);

        // Even the handle of a small piece is that of the next owner: only the buffer id tells.
        CUipcMemHandle next = handle(b);
        EXPECT_EQ(memcmp(&h, &next, sizeof(h)) == 0, size < 2 * MIB);
        Reply beside = peer.call(Order::OPEN, 0, 0, &next);
        CU_OK(result_of(beside));
        EXPECT_EQ(peer.call(Order::GET, beside.value).value, 2u);
        CU_OK(result_of(peer.call(Order::CLOSE, beside.value)));
        CU_OK(result_of(peer.call(Order::CLOSE, opened.value)));
        CU_OK(d->cuMemFree_v2(b));
        CU_OK(d->cuMemFree_v2(neighbour));
    }
}

// Imports out of one block share a mapping; a stale one is in the way of what lies there now, in an
// own block it is not.
TEST_F(Memory, StaleImportsAreInTheWayOfOthers)
{
    Peer peer(second_device() ? 1 : 0);
    auto open = [&](uint64_t theirs, CUdeviceptr *address) {
        Reply reply = peer.call(Order::HANDLE, theirs);
        CUipcMemHandle h;
        memcpy(&h, reply.bytes, sizeof(h));
        return d->cuIpcOpenMemHandle_v2(address, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    };
    uint64_t neighbour = peer.call(Order::ALLOC, 4096).value;
    uint64_t theirs = peer.call(Order::ALLOC, 4096).value;
    CUdeviceptr beside = 0, stale = 0, next = 0;
    CU_OK(open(neighbour, &beside));
    CU_OK(open(theirs, &stale));
    EXPECT_EQ(stale - beside, theirs - neighbour);
    CU_OK(result_of(peer.call(Order::FREE, theirs)));
    EXPECT_EQ(peer.call(Order::ALLOC, 1024).value, theirs);
    uint64_t inside = peer.call(Order::ALLOC, 1024).value;
    EXPECT_EQ(inside, theirs + 1024);
    CU_EXPECT(open(theirs, &next), CUDA_ERROR_ALREADY_MAPPED);
    CU_EXPECT(open(inside, &next), CUDA_ERROR_ALREADY_MAPPED);
    CU_EXPECT(open(theirs, &next), CUDA_ERROR_ALREADY_MAPPED); // and again, until it is closed
    CU_OK(d->cuIpcCloseMemHandle(stale));
    CU_OK(open(inside, &next));
    CU_OK(open(theirs, &stale));
    EXPECT_EQ(next - stale, inside - theirs);
    CU_OK(d->cuIpcCloseMemHandle(stale));
    CU_OK(d->cuIpcCloseMemHandle(next));
    CU_OK(d->cuIpcCloseMemHandle(beside));

    // A larger piece over two that were imported: either is in the way.
    uint64_t first = peer.call(Order::ALLOC, 4096).value,
             second = peer.call(Order::ALLOC, 4096).value;
    CUdeviceptr stales[2];
    CU_OK(open(first, &stales[0]));
    CU_OK(open(second, &stales[1]));
    CU_OK(result_of(peer.call(Order::FREE, first)));
    CU_OK(result_of(peer.call(Order::FREE, second)));
    EXPECT_EQ(peer.call(Order::ALLOC, 8192).value, first);
    for (CUdeviceptr in_the_way : stales) {
        CU_EXPECT(open(first, &next), CUDA_ERROR_ALREADY_MAPPED);
        CU_OK(d->cuIpcCloseMemHandle(in_the_way));
    }
    CU_OK(open(first, &next));
    CU_OK(d->cuIpcCloseMemHandle(next));

    theirs = peer.call(Order::ALLOC, 4 * MIB).value;
    CU_OK(open(theirs, &stale));
    CU_OK(result_of(peer.call(Order::FREE, theirs)));
    EXPECT_EQ(peer.call(Order::ALLOC, 6 * MIB).value, theirs);
    CU_OK(open(theirs, &next));
    EXPECT_NE(next, stale);
    CU_OK(d->cuIpcCloseMemHandle(next));
    CU_OK(d->cuIpcCloseMemHandle(stale));
}

TEST_F(Memory, VmmMapping)
{
    size_t granularity = 0;
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU_OK(d->cuMemGetAllocationGranularity(&granularity, &prop,
                                           CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    EXPECT_EQ(granularity, 2 * MIB);
    size_t size = 4 * MIB;
    CUmemGenericAllocationHandle h = vmm_create(size), same = 0;
    CUdeviceptr a = vmm_map(h, size), base = 0;
    size_t range = 0;
    CU_OK(d->cuMemGetAddressRange_v2(&base, &range, a + 100));
    EXPECT_EQ(base, a);
    EXPECT_EQ(range, size);
    EXPECT_NE(id(a), 0u);
    EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a), 0u);
    EXPECT_EQ(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, a),
              uint64_t{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR});
    EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a), nullptr);
    EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a), 0);
    CUipcMemHandle none;
    CU_EXPECT(d->cuIpcGetMemHandle(&none, a), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);

    // The attributes tell of the reservation, which may hold several mappings.
    CUdeviceptr wide = 0;
    CU_OK(d->cuMemAddressReserve(&wide, 4 * size, 0, 0, 0));
    CU_EXPECT(d->cuMemMap(wide + size, size / 2, 0, h, 0), CUDA_ERROR_NOT_SUPPORTED);
    CU_OK(d->cuMemMap(wide + size, size, 0, h, 0));
    EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, wide + size), wide);
    EXPECT_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, wide + size), 4 * size);
    EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, wide + size + 8),
              wide + size);
    EXPECT_NE(id(wide + size), id(a));
    // Nothing may use it yet.
    CU_EXPECT(d->cuMemGetAddressRange_v2(&base, &range, wide + size), CUDA_ERROR_NOT_FOUND);
    CU_EXPECT(d->cuMemsetD8Async(wide + size, 0, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuMemUnmap(wide + size, size / 2), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuMemAddressFree(wide, 4 * size), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemUnmap(wide + size, size));
    CU_OK(d->cuMemAddressFree(wide, 4 * size));

    CU_OK(d->cuMemRetainAllocationHandle(&same, reinterpret_cast<void *>(a)));
    CUmemAllocationProp got = {};
    CU_OK(d->cuMemGetAllocationPropertiesFromHandle(&got, same));
    EXPECT_EQ(got.location.id, 0);
    EXPECT_EQ(got.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CU_OK(d->cuMemRelease(same));
    CU_OK(d->cuMemRelease(h));
    set_value(a, 3); // the mapping keeps it
    EXPECT_EQ(value(a), 3u);
    vmm_unmap(a, size);
}

TEST_F(Memory, VmmWithoutAHandleTypeIsNotExported)
{
    CUmemGenericAllocationHandle h = vmm_create(2 * MIB, false);
    int fd = -1;
    CU_EXPECT(d->cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemRelease(h));
    CUdeviceptr a = alloc(4 * MIB);
    CUmemGenericAllocationHandle none;
    CU_EXPECT(d->cuMemRetainAllocationHandle(&none, reinterpret_cast<void *>(a)),
              CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemFree_v2(a));
}

TEST_F(Memory, VmmBetweenProcesses)
{
    Peer peer(second_device() ? 1 : 0);
    size_t size = 4 * MIB;
    CUmemGenericAllocationHandle h = vmm_create(size);
    CUdeviceptr a = vmm_map(h, size);
    int fd = -1;
    CU_OK(d->cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    Reply opened = peer.call(Order::VMM_OPEN, size, 0, nullptr, fd);
    close(fd);
    CU_OK(result_of(opened));
    CU_OK(result_of(peer.call(Order::PUT, opened.value + size - 8, 12345)));
    EXPECT_EQ(value(a + size - 8), 12345u);
    vmm_unmap(a, size);
    CU_OK(d->cuMemRelease(h));

    Reply theirs = peer.call(Order::VMM_CREATE, size, 0, nullptr, -1, &fd);
    CU_OK(result_of(theirs));
    CU_OK(result_of(peer.call(Order::PUT, theirs.value, 777)));
    CUmemGenericAllocationHandle imported = 0;
    CU_OK(d->cuMemImportFromShareableHandle(&imported,
                                            reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    CUmemAllocationProp prop = {};
    CU_OK(d->cuMemGetAllocationPropertiesFromHandle(&prop, imported));
    EXPECT_EQ(prop.location.id, second_device() ? 1 : 0);
    CUdeviceptr b = vmm_map(imported, size);
    CU_OK(d->cuMemRelease(imported));
    peer.kill();
    EXPECT_EQ(value(b), 777u);
    vmm_unmap(b, size);
}

TEST_F(Memory, DescriptorsOfOtherThingsAreNotImported)
{
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    CUmemGenericAllocationHandle handle;
    CUmemoryPool imported;
    for (int fd : {ends[0], -1}) {
        void *os_handle = reinterpret_cast<void *>(static_cast<intptr_t>(fd));
        CU_EXPECT(d->cuMemImportFromShareableHandle(&handle, os_handle,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                  CUDA_ERROR_UNKNOWN);
        CU_EXPECT(d->cuMemPoolImportFromShareableHandle(
                      &imported, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                  CUDA_ERROR_UNKNOWN);
    }
    close(ends[0]);
    close(ends[1]);
    CUipcMemHandle garbage;
    memset(&garbage, 0x5a, sizeof(garbage));
    CUdeviceptr address;
    CU_EXPECT(d->cuIpcOpenMemHandle_v2(&address, garbage, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuIpcOpenMemHandle_v2(&address, garbage, 0), CUDA_ERROR_INVALID_VALUE);
}

// Another device's memory: copies reach it at once, everything else after access was enabled.
TEST_F(Memory, OtherDevicesMemory)
{
    if (!second_device())
        GTEST_SKIP() << "one device";
    CUcontext other = nullptr;
    CU_OK(d->cuDevicePrimaryCtxRetain(&other, 1));
    CU_OK(d->cuCtxPushCurrent_v2(other));
    CUdeviceptr there = alloc(4096), base = 0;
    size_t size = 0;
    EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there), 1);
    CU_OK(d->cuCtxPopCurrent_v2(nullptr));
    CUdeviceptr here = alloc(4096);
    CUstream s = stream();
    CU_EXPECT(d->cuMemGetAddressRange_v2(&base, &size, there), CUDA_ERROR_NOT_FOUND);
    CU_EXPECT(d->cuMemsetD8Async(there, 1, 8, s), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuStreamWriteValue32_v2(s, there, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemcpyAsync(here, there, 8, s));
    EXPECT_NE(id(there), 0u);
    EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, there + 8), there);

    CU_EXPECT(d->cuCtxEnablePeerAccess(context_, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    CU_OK(d->cuCtxEnablePeerAccess(other, 0));
    CU_EXPECT(d->cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    CU_OK(d->cuMemGetAddressRange_v2(&base, &size, there));
    EXPECT_EQ(base, there);
    CU_OK(d->cuMemsetD8Async(there, 1, 8, s));
    CU_OK(d->cuStreamWriteValue32_v2(s, there + 4, 7, 0));
    CU_OK(d->cuStreamSynchronize(s));
    EXPECT_EQ(value(there), 0x0000000701010101u);
    CU_OK(d->cuStreamDestroy_v2(s));
    CU_OK(d->cuMemFree_v2(here));
    CU_OK(d->cuMemFree_v2(there));
    CU_OK(d->cuDevicePrimaryCtxRelease_v2(1));
}

TEST_F(Memory, PoolMemory)
{
    CUstream s = stream();
    CUmemoryPool ours = pool(true), standard = nullptr;
    CUdeviceptr a = 0, b = 0, base = 0;
    size_t range = 0;
    CU_OK(d->cuMemAllocFromPoolAsync(&a, 3 * MIB, ours, s));
    CU_OK(d->cuMemAllocAsync(&b, 4096, s));
    CU_OK(d->cuStreamSynchronize(s));
    EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a), ours);
    CU_OK(d->cuDeviceGetDefaultMemPool(&standard, 0));
    EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, b), standard);
    EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a), 0u);
    EXPECT_EQ(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, a),
              uint64_t{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR});
    EXPECT_EQ(attribute<uint64_t>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, b), 0u);
    CU_OK(d->cuMemGetAddressRange_v2(&base, &range, a + 8));
    EXPECT_EQ(base, a);
    EXPECT_GE(range, 3 * MIB);
    CUipcMemHandle none;
    CU_EXPECT(d->cuIpcGetMemHandle(&none, a), CUDA_ERROR_INVALID_VALUE);
    CUmemPoolPtrExportData data;
    CU_EXPECT(d->cuMemPoolExportPointer(&data, b), CUDA_ERROR_INVALID_VALUE);
    int fd = -1;
    CU_EXPECT(d->cuMemPoolExportToShareableHandle(&fd, standard,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_ERROR_INVALID_VALUE);
    unsigned long long before = id(a);
    CU_OK(d->cuMemFreeAsync(a, s));
    CU_EXPECT(d->cuMemFreeAsync(a, s), CUDA_ERROR_INVALID_VALUE);
    CU_OK(d->cuMemFreeAsync(b, s));
    unsigned long long none_left = 0;
    CU_EXPECT(d->cuPointerGetAttribute(&none_left, CU_POINTER_ATTRIBUTE_BUFFER_ID, a),
              CUDA_ERROR_INVALID_VALUE); // even before the stream is there
    CU_OK(d->cuStreamSynchronize(s));
    CU_OK(d->cuMemAllocFromPoolAsync(&a, 3 * MIB, ours, s));
    EXPECT_NE(id(a), before);
    CU_OK(d->cuMemFreeAsync(a, s));
    CU_OK(d->cuStreamSynchronize(s));
    CU_OK(d->cuMemPoolDestroy(ours));
    CU_OK(d->cuStreamDestroy_v2(s));
}

// The pool of a peer's descriptor, which is closed; this process' device may use its memory.
CUmemoryPool import_pool(const phi_driver *d, int fd)
{
    CUmemoryPool pool = nullptr;
    CU_EXPECT(d->cuMemPoolImportFromShareableHandle(
                  &pool, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    close(fd);
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CU_EXPECT(d->cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS);
    return pool;
}

// One handle and one address, however often: the first free ends it for all.
TEST_F(Memory, PoolMemoryImportedTwice)
{
    Peer peer(second_device() ? 1 : 0);
    CUmemPoolPtrExportData data[2];
    CUmemoryPool imported[3] = {};
    CUdeviceptr a[3] = {};
    int fds[2] = {-1, -1};
    for (int i = 0; i < 2; i++) {
        // Of one pool: the second order takes the pool of the first.
        Reply theirs = peer.call(Order::POOL, MIB, 0, nullptr, -1, &fds[i]);
        CU_OK(result_of(theirs));
        memcpy(&data[i], theirs.bytes, sizeof(data[i]));
        CU_OK(result_of(peer.call(Order::PUT, theirs.value + 8, 10 + (unsigned)i)));
    }
    for (int i = 0; i < 3; i++) {
        imported[i] = import_pool(d, dup(fds[i % 2]));
        CU_OK(d->cuMemPoolImportPointer(&a[i], imported[i], &data[i % 2]));
        EXPECT_EQ(value(a[i] + 8), 10u + (unsigned)i % 2);
        EXPECT_EQ(imported[i], imported[0]);
    }
    EXPECT_EQ(a[2], a[0]);
    EXPECT_NE(a[1], a[0]);
    CU_OK(d->cuMemFree_v2(a[0]));
    CU_EXPECT(d->cuMemFree_v2(a[2]), CUDA_ERROR_INVALID_VALUE);
    CU_EXPECT(d->cuMemPoolDestroy(imported[0]), CUDA_ERROR_INVALID_VALUE); // a[1] is open
    EXPECT_EQ(value(a[1] + 8), 11u);
    CU_OK(d->cuMemFree_v2(a[1]));
    CU_OK(d->cuMemPoolDestroy(imported[0]));
    imported[1] = import_pool(d, fds[1]);
    CU_OK(d->cuMemPoolImportPointer(&a[1], imported[1], &data[1]));
    EXPECT_EQ(value(a[1] + 8), 11u);
    CU_OK(d->cuMemFree_v2(a[1]));
    CU_OK(d->cuMemPoolDestroy(imported[1]));
    close(fds[0]);
}

// Memory that lies where freed memory lay comes as that one while it is open here.
TEST_F(Memory, PoolMemoryInThePlaceOfAnother)
{
    Peer peer(second_device() ? 1 : 0);
    CUmemPoolPtrExportData data;
    CUdeviceptr a = 0, b = 0, base = 0;
    size_t range = 0;
    int fd = -1;
    Reply small = peer.call(Order::POOL, 2 * MIB, 0, nullptr, -1, &fd);
    CU_OK(result_of(small));
    CUmemoryPool imported = import_pool(d, fd);
    memcpy(&data, small.bytes, sizeof(data));
    CU_OK(d->cuMemPoolImportPointer(&a, imported, &data));
    CU_OK(result_of(peer.call(Order::POOL_FREE, small.value)));
    Reply large = peer.call(Order::POOL, 4 * MIB, 0, nullptr, -1, &fd);
    CU_OK(result_of(large));
    close(fd);
    memcpy(&data, large.bytes, sizeof(data));
    ASSERT_EQ(large.value, small.value);
    const auto before = id(a);
    CU_OK(d->cuMemPoolImportPointer(&b, imported, &data));
    EXPECT_EQ(b, a);
    EXPECT_EQ(id(b), before);
    CU_OK(d->cuMemGetAddressRange_v2(&base, &range, b));
    EXPECT_EQ(range, 2 * MIB);
    CU_OK(d->cuMemFree_v2(a));
    CU_OK(d->cuMemPoolImportPointer(&b, imported, &data));
    CU_OK(d->cuMemGetAddressRange_v2(&base, &range, b));
    EXPECT_EQ(range, 4 * MIB);
    EXPECT_NE(id(b), before);
    CU_OK(d->cuMemFree_v2(b));
    CU_OK(d->cuMemPoolDestroy(imported));
}

TEST_F(Memory, PoolsBetweenProcesses)
{
    Peer peer(second_device() ? 1 : 0);
    int fd = -1;
    Reply theirs = peer.call(Order::POOL, MIB, 0, nullptr, -1, &fd);
    CU_OK(result_of(theirs));
    CU_OK(result_of(peer.call(Order::PUT, theirs.value + 8, 31337)));
    CUmemoryPool imported = import_pool(d, fd);
    CUmemPoolPtrExportData data;
    memcpy(&data, theirs.bytes, sizeof(data));
    CUdeviceptr a = 0, none = 0;
    CU_OK(d->cuMemPoolImportPointer(&a, imported, &data));
    EXPECT_EQ(value(a + 8), 31337u);
    CU_EXPECT(d->cuMemAllocFromPoolAsync(&none, 4096, imported, nullptr), CUDA_ERROR_INVALID_VALUE);
    CUstream s = stream();
    CU_OK(d->cuMemFreeAsync(a, s));
    CU_OK(d->cuStreamSynchronize(s));
    CU_OK(d->cuMemPoolDestroy(imported));
    CU_OK(d->cuStreamDestroy_v2(s));
}

} // namespace
