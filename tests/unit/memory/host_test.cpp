// SPDX-License-Identifier: BSD-3-Clause
// What only host memory does; the rest is in tests/conformance/memory_kind_test.cpp.
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/plain_context.h"

extern "C" {
#include "memory/kind.h"
#include "memory/memfd.h"
#include "memory/memory.h"
}

namespace
{

class Host : public testing::Test
{
  protected:
    PlainContext context;
    phi_memory *memory = nullptr;
    int before = 0;

    void SetUp() override
    {
        before = open_descriptors();
        ASSERT_EQ(phi_memory_open(&context.report, nullptr, &memory), 0);
    }
    void TearDown() override
    {
        phi_memory_close(memory);
        EXPECT_EQ(open_descriptors(), before);
    }

    // A memory file of the caller.
    int file(size_t size, unsigned flags = MFD_ALLOW_SEALING, int seals = 0)
    {
        int fd = memfd_create("test", MFD_CLOEXEC | flags);
        EXPECT_EQ(ftruncate(fd, (off_t)size), 0);
        if (seals) {
            EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
        }
        return fd;
    }
};

TEST_F(Host, AllocationIsZeroedAndAsLargeAsAsked)
{
    void *address;
    ASSERT_EQ(phi_host_alloc(memory, 5000, &address), 0);
    for (int i = 0; i < 5000; i++)
        ASSERT_EQ(((char *)address)[i], 0);

    phi_allocation allocation;
    uint64_t offset;
    ASSERT_EQ(phi_memory_describe(memory, (char *)address + 4999, 1, &allocation, &offset), 0);
    EXPECT_EQ(allocation.size, 5000u);
    EXPECT_EQ(phi_memory_describe(memory, (char *)address + 4999, 2, &allocation, &offset),
              -EINVAL);
    EXPECT_NE(context.error().find("pass the end"), std::string::npos) << context.error();
    EXPECT_EQ(phi_host_free(memory, address), 0);
}

TEST_F(Host, AbsurdSizesAreRefused)
{
    void *address = this;
    EXPECT_EQ(phi_host_alloc(memory, 0, &address), -EINVAL);
    EXPECT_EQ(phi_host_alloc(memory, SIZE_MAX, &address), -ENOMEM);
    EXPECT_EQ(phi_host_alloc(memory, SIZE_MAX - 4096, &address), -ENOMEM);
    EXPECT_EQ(phi_host_alloc(memory, (size_t)1 << 62, &address), -ENOMEM);
    EXPECT_EQ(address, this) << "written on failure";
}

// The system's own answer would be a signal that ends the process.
TEST_F(Host, TheLimitOfFilesIsNamed)
{
    void *address = this;
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = {8192, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    EXPECT_EQ(phi_host_alloc(memory, 8193, &address), -ENOMEM);
    EXPECT_NE(context.error().find("at most 8192 bytes (ulimit -f)"), std::string::npos)
        << context.error();
    EXPECT_EQ(address, this) << "written on failure";
    EXPECT_EQ(phi_host_alloc(memory, 8192, &address), 0);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(phi_host_free(memory, address), 0);
}

TEST_F(Host, FilesOfAllocationsAreSealed)
{
    void *address;
    phi_allocation allocation;
    phi_export record;
    uint64_t offset;
    ASSERT_EQ(phi_host_alloc(memory, 4096, &address), 0);
    ASSERT_EQ(phi_memory_describe(memory, address, 1, &allocation, &offset), 0);
    ASSERT_EQ(phi_memory_export(memory, &allocation, &record), 0);
    EXPECT_NE(ftruncate(record.fd, 0), 0);
    EXPECT_NE(ftruncate(record.fd, 8192), 0);
    EXPECT_NE(fcntl(record.fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    EXPECT_TRUE(fcntl(record.fd, F_GETFD) & FD_CLOEXEC);
    phi_memory_export_close(&record);
    EXPECT_EQ(record.fd, -1);
}

TEST_F(Host, FreeOfWhatWasNotAllocatedIsRefused)
{
    void *address;
    ASSERT_EQ(phi_host_alloc(memory, 8192, &address), 0);
    EXPECT_EQ(phi_host_free(memory, (char *)address + 4096), -EINVAL);
    EXPECT_EQ(phi_host_free(memory, &address), -EINVAL);
    EXPECT_EQ(phi_host_free(memory, nullptr), -EINVAL);
    EXPECT_EQ(phi_host_free(memory, address), 0);
    EXPECT_EQ(phi_host_free(memory, address), -EINVAL);
}

TEST_F(Host, RegisterMapsTheCallersFileAtAnOffset)
{
    int fd = file(5 * 4096);
    char byte = 'x';
    ASSERT_EQ(pwrite(fd, &byte, 1, 2 * 4096 + 7), 1);

    void *address;
    ASSERT_EQ(phi_host_register(memory, fd, 2 * 4096, 3 * 4096, &address), 0);
    EXPECT_EQ(((char *)address)[7], 'x');
    ((char *)address)[8] = 'y';
    ASSERT_EQ(pread(fd, &byte, 1, 2 * 4096 + 8), 1);
    EXPECT_EQ(byte, 'y');
    EXPECT_NE(ftruncate(fd, 4096), 0) << "a registered file must not shrink under its peers";

    close(fd); // ours: the library has its own
    ((char *)address)[3 * 4096 - 1] = 'z';
    EXPECT_EQ(phi_host_free(memory, address), 0);
}

TEST_F(Host, RegisterRefusesWhatIsNotInTheFile)
{
    int fd = file(3 * 4096);
    void *address = this;
    EXPECT_EQ(phi_host_register(memory, fd, 0, 0, &address), -EINVAL);
    EXPECT_EQ(phi_host_register(memory, fd, 0, 3 * 4096 + 1, &address), -EINVAL);
    EXPECT_EQ(phi_host_register(memory, fd, 4096, 3 * 4096, &address), -EINVAL);
    EXPECT_EQ(phi_host_register(memory, fd, 100, 4096, &address), -EINVAL);
    EXPECT_EQ(phi_host_register(memory, fd, UINT64_MAX - 4095, 4096, &address), -EINVAL);
    EXPECT_EQ(phi_host_register(memory, fd, 1ull << 40, 4096, &address), -EINVAL);
    EXPECT_EQ(address, this);
    close(fd);
}

TEST_F(Host, RegisterRefusesWhatIsNoMemoryFile)
{
    void *address = this;
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(phi_host_register(memory, ends[0], 0, 4096, &address), -EINVAL);
    EXPECT_EQ(phi_host_register(memory, -1, 0, 4096, &address), -EINVAL);
    close(ends[0]);
    close(ends[1]);

    char path[] = "/tmp/peerhop-host-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    unlink(path);
    ASSERT_EQ(ftruncate(fd, 8192), 0);
    int sealable = fcntl(fd, F_GET_SEALS) >= 0; // a tmpfs: its files know seals, but allow none
    EXPECT_EQ(phi_host_register(memory, fd, 0, 4096, &address), -EINVAL) << sealable;
    close(fd);
}

TEST_F(Host, RegisterRefusesAFileThatMayShrink)
{
    void *address;
    int fd = file(4096, 0); // F_SEAL_SEAL from the start
    EXPECT_EQ(phi_host_register(memory, fd, 0, 4096, &address), -EINVAL);
    EXPECT_NE(context.error().find("MFD_ALLOW_SEALING"), std::string::npos) << context.error();
    close(fd);

    fd = file(4096, MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_SEAL);
    EXPECT_EQ(phi_host_register(memory, fd, 0, 4096, &address), 0);
    close(fd);
}

TEST_F(Host, RegisterRefusesAReadOnlyFile)
{
    void *address;
    int fd = file(4096);
    std::string path = "/proc/self/fd/" + std::to_string(fd);
    int reader = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(reader, 0);
    EXPECT_EQ(phi_host_register(memory, reader, 0, 4096, &address), -EINVAL);
    close(reader);
    ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    EXPECT_EQ(phi_host_register(memory, fd, 0, 4096, &address), -EPERM);
    close(fd);
}

TEST_F(Host, OneFileMayBeRegisteredTwice)
{
    int fd = file(8192);
    void *a, *b;
    phi_allocation first, second;
    uint64_t offset;
    ASSERT_EQ(phi_host_register(memory, fd, 0, 8192, &a), 0);
    ASSERT_EQ(phi_host_register(memory, fd, 4096, 4096, &b), 0);
    ASSERT_EQ(phi_memory_describe(memory, a, 1, &first, &offset), 0);
    ASSERT_EQ(phi_memory_describe(memory, b, 1, &second, &offset), 0);
    EXPECT_NE(first.id, second.id);
    ((char *)a)[4096] = 1;
    EXPECT_EQ(((char *)b)[0], 1);
    close(fd);
}

TEST_F(Host, ManyAllocationsAreFoundAndIdsNeverRepeat)
{
    enum { N = 300 };
    std::vector<void *> addresses;
    std::set<uint64_t> ids;
    phi_allocation allocation;
    uint64_t offset;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < N; i++) {
            void *address;
            ASSERT_EQ(phi_host_alloc(memory, 4096 + (size_t)i, &address), 0);
            addresses.push_back(address);
        }
        for (void *address : addresses) {
            ASSERT_EQ(phi_memory_describe(memory, (char *)address + 100, 10, &allocation, &offset),
                      0);
            EXPECT_EQ(allocation.base, (uintptr_t)address);
            EXPECT_EQ(offset, 100u);
            EXPECT_TRUE(ids.insert(allocation.id).second);
            EXPECT_TRUE(phi_memory_current(memory, address, &allocation));
        }
        for (size_t i = 0; i < addresses.size(); i++)
            ASSERT_EQ(phi_host_free(memory, addresses[i * 7 % addresses.size()]), 0) << i;
        addresses.clear();
    }
}

// current takes no lock: it may run while others allocate and free. It may never be true for what
// is gone.
TEST_F(Host, CurrentMayRunBesideAllocAndFree)
{
    std::atomic<bool> stop{false};
    void *kept;
    phi_allocation keep, gone;
    uint64_t offset;
    ASSERT_EQ(phi_host_alloc(memory, 4096, &kept), 0);
    ASSERT_EQ(phi_memory_describe(memory, kept, 1, &keep, &offset), 0);

    void *address;
    ASSERT_EQ(phi_host_alloc(memory, 4096, &address), 0);
    ASSERT_EQ(phi_memory_describe(memory, address, 1, &gone, &offset), 0);
    ASSERT_EQ(phi_host_free(memory, address), 0);

    std::thread other([&] {
        while (!stop) {
            void *mine;
            ASSERT_EQ(phi_host_alloc(memory, 4096, &mine), 0);
            ASSERT_EQ(phi_host_free(memory, mine), 0);
        }
    });
    for (int i = 0; i < 100000; i++) {
        ASSERT_TRUE(phi_memory_current(memory, kept, &keep));
        ASSERT_FALSE(phi_memory_current(memory, (void *)gone.base, &gone));
    }
    stop = true;
    other.join();
}

TEST_F(Host, ImportStaysWhenTheOwnerFrees)
{
    void *address;
    phi_allocation allocation;
    phi_export record;
    phi_import *import;
    uint64_t offset;
    ASSERT_EQ(phi_host_alloc(memory, 4096, &address), 0);
    ASSERT_EQ(phi_memory_describe(memory, address, 1, &allocation, &offset), 0);
    ASSERT_EQ(phi_memory_export(memory, &allocation, &record), 0);
    ASSERT_EQ(phi_memory_import(memory, record.record, record.record_size, record.fd, &import), 0);
    strcpy((char *)address, "hello");
    EXPECT_EQ(phi_host_free(memory, address), 0);
    EXPECT_STREQ((char *)import->address, "hello");
    phi_memory_import_close(import);

    phi_export again;
    EXPECT_EQ(phi_memory_export(memory, &allocation, &again), -EINVAL);
    EXPECT_NE(context.error().find("it was freed"), std::string::npos) << context.error();
    phi_memory_export_close(&record);
}

// ---- pieces of files

class Pieces : public Host
{
  protected:
    struct Piece {
        void *address = nullptr;
        phi_export record{};
    };

    Piece exported(size_t size)
    {
        Piece piece;
        phi_allocation allocation;
        uint64_t offset;
        EXPECT_EQ(phi_host_alloc(memory, size, &piece.address), 0);
        EXPECT_EQ(phi_memory_describe(memory, piece.address, 1, &allocation, &offset), 0);
        EXPECT_EQ(phi_memory_export(memory, &allocation, &piece.record), 0);
        return piece;
    }
    phi_import *import(const Piece &piece)
    {
        phi_import *made = nullptr;
        EXPECT_EQ(phi_memory_import(memory, piece.record.record, piece.record.record_size,
                                    piece.record.fd, &made),
                  0);
        return made;
    }
    // In the file, of all allocations.
    static uint64_t bytes_used(const Piece &piece)
    {
        struct stat st;
        EXPECT_EQ(fstat(piece.record.fd, &st), 0);
        return static_cast<uint64_t>(st.st_blocks) * 512;
    }
};

TEST_F(Pieces, OneDescriptorServesManyAllocations)
{
    std::vector<Piece> pieces;
    for (size_t i = 0; i < 2000; i++)
        pieces.push_back(exported(1 + i * 37 % 20000));
    EXPECT_EQ(open_descriptors(), before + 1);
    for (size_t i = 0; i < pieces.size(); i++) {
        phi_import *there = import(pieces[i]);
        memcpy(pieces[i].address, &i, 1);
        EXPECT_EQ(memcmp(there->address, &i, 1), 0) << i;
        phi_memory_import_close(there);
    }
    for (Piece &piece : pieces) {
        EXPECT_EQ(phi_host_free(memory, piece.address), 0);
        phi_memory_export_close(&piece.record);
    }
}

TEST_F(Pieces, LargeOnesHaveAFileOfTheirOwn)
{
    const size_t large = ((size_t)1 << 34) + 4096;
    Piece small = exported(4096), own = exported(large);
    EXPECT_EQ(open_descriptors(), before + 2);
    EXPECT_NE(small.record.fd, own.record.fd);
    static_cast<char *>(own.address)[large - 1] = 7;
    EXPECT_EQ(phi_host_free(memory, own.address), 0);
    phi_memory_export_close(&own.record);
    EXPECT_EQ(open_descriptors(), before + 1);
    phi_memory_export_close(&small.record);
}

TEST_F(Pieces, MemoryIsGivenBackWhenNobodyHasIt)
{
    const size_t size = 3 << 20;
    Piece stays = exported(4096), goes = exported(size);
    memset(stays.address, 1, 4096);
    memset(goes.address, 2, size);
    EXPECT_EQ(bytes_used(stays), size + 4096);
    EXPECT_EQ(phi_host_free(memory, goes.address), 0);
    EXPECT_EQ(bytes_used(stays), size + 4096) << "a peer may map it";
    phi_memory_export_close(&goes.record);
    EXPECT_EQ(bytes_used(stays), 4096u);
    EXPECT_EQ(*static_cast<char *>(stays.address), 1);
    phi_memory_export_close(&stays.record);
}

// A peer that did not hear of the end of an allocation still maps it.
TEST_F(Pieces, AFormerPieceIsNotAnotherOne)
{
    Piece stays = exported(4096), first = exported(8192);
    phi_import *there = import(first);
    EXPECT_EQ(phi_host_free(memory, first.address), 0);
    phi_memory_export_close(&first.record);
    Piece second = exported(8192);
    memset(there->address, 9, 8192);
    EXPECT_EQ(*static_cast<char *>(second.address), 0);
    phi_memory_import_close(there);
    phi_memory_export_close(&second.record);
    phi_memory_export_close(&stays.record);
}

// The file begins anew when it has no pieces.
TEST_F(Pieces, WhatComesAgainIsZeroed)
{
    for (int round = 0; round < 3; round++) {
        void *address;
        ASSERT_EQ(phi_host_alloc(memory, 10000, &address), 0);
        for (int i = 0; i < 10000; i++)
            ASSERT_EQ(static_cast<char *>(address)[i], 0);
        memset(address, 255, 10000);
        EXPECT_EQ(phi_host_free(memory, address), 0);
    }
    EXPECT_EQ(open_descriptors(), before + 1);
}

// An import trusts neither the record nor the descriptor.
class Import : public Host
{
  protected:
    void *address = nullptr;
    phi_export record{};

    void SetUp() override
    {
        phi_allocation allocation;
        uint64_t offset;
        Host::SetUp();
        const int own = file(3 * 4096); // of this size alone; that of an allocation is larger
        ASSERT_EQ(phi_host_register(memory, own, 0, 3 * 4096, &address), 0);
        EXPECT_EQ(close(own), 0);
        ASSERT_EQ(phi_memory_describe(memory, address, 1, &allocation, &offset), 0);
        ASSERT_EQ(phi_memory_export(memory, &allocation, &record), 0);
    }
    void TearDown() override
    {
        phi_memory_export_close(&record);
        Host::TearDown();
    }
    // The part of the host kind is inode, file size, offset behind 36 bytes of head.
    void patch(size_t at, uint64_t value)
    {
        memcpy(record.record + at, &value, sizeof(value));
    }
    void refused(int fd, const char *why)
    {
        phi_import *import = nullptr;
        EXPECT_EQ(phi_memory_import(memory, record.record, record.record_size, fd, &import),
                  -EBADMSG);
        EXPECT_EQ(import, nullptr);
        EXPECT_NE(context.error().find(why), std::string::npos) << context.error();
        EXPECT_EQ(close(fd), 0) << "the descriptor was taken over";
    }
    uint64_t inode(int fd)
    {
        phi_memfd_info info{};
        EXPECT_EQ(phi_memfd_inspect(fd, &info), 0);
        return info.inode;
    }
};

TEST_F(Import, RefusesAnotherFile)
{
    refused(file(3 * 4096, MFD_ALLOW_SEALING, F_SEAL_SHRINK), "another file");
}

TEST_F(Import, RefusesASmallerFile)
{
    int fd = file(2 * 4096, MFD_ALLOW_SEALING, F_SEAL_SHRINK);
    patch(36, inode(fd));
    refused(fd, "smaller");
}

TEST_F(Import, RefusesAFileThatMayShrink)
{
    int fd = file(3 * 4096);
    patch(36, inode(fd));
    refused(fd, "not sealed");
}

TEST_F(Import, RefusesAnOffsetOutsideTheFile)
{
    for (uint64_t offset : {4096ul, 3ul * 4096, 1ul << 62, UINT64_MAX - 4095}) {
        patch(52, offset);
        refused(dup(record.fd), "smaller");
    }
}

TEST_F(Import, RefusesAnOffsetInsideAPage)
{
    uint64_t size = 4096;
    patch(16, size);
    patch(52, 100);
    refused(dup(record.fd), "multiple");
}

TEST_F(Import, RefusesASizeBeyondTheFile)
{
    patch(16, 3 * 4096 + 1);
    refused(dup(record.fd), "smaller");
}

TEST_F(Import, RefusesWhatIsNoMemoryFile)
{
    refused(open("/dev/null", O_RDWR | O_CLOEXEC), "no memory file");
}

TEST_F(Import, RefusesAReadOnlyDescriptor)
{
    std::string path = "/proc/self/fd/" + std::to_string(record.fd);
    refused(open(path.c_str(), O_RDONLY | O_CLOEXEC), "no memory file");
}

TEST(ProcessIdentity, IsTheSameEachTime)
{
    EXPECT_NE(phi_process_identity(), 0u);
    EXPECT_EQ(phi_process_identity(), phi_process_identity());
}

} // namespace
