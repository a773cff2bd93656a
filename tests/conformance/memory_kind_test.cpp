// SPDX-License-Identifier: BSD-3-Clause
// What every memory kind promises (memory/memory.h), run for each.
#include "conformance/memory_kinds.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace
{

const size_t SIZE = 4 << 20; // of an allocation, a whole number of pages of any kind

const MemoryKindEntry KINDS[] = {
    {"host", make_host_kind},
    {"cuda", make_cuda_kind},
    {"vmm", make_vmm_kind},
    {"pool", make_pool_kind},
};

unsigned char owners_byte(size_t i)
{
    return (unsigned char)(i * 7 + i / 255 + 1);
}

unsigned char importers_byte(size_t i)
{
    return (unsigned char)(i * 11 + i / 253 + 3);
}

std::vector<unsigned char> bytes_of(unsigned char (*pattern)(size_t), size_t size)
{
    std::vector<unsigned char> bytes(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = pattern(i);
    return bytes;
}

std::string hex(const uint8_t *bytes, size_t size)
{
    std::string text;
    char two[3];
    for (size_t i = 0; i < size; i++) {
        snprintf(two, sizeof(two), "%02x", bytes[i]);
        text += two;
    }
    return text;
}

class Kind : public testing::TestWithParam<MemoryKindEntry>
{
  protected:
    std::unique_ptr<MemoryKind> kind;

    void SetUp() override
    {
        kind = GetParam().make();
        std::string why = kind->open();
        if (!why.empty())
            GTEST_SKIP() << why;
    }
    std::string error()
    {
        return kind->context.error();
    }
    phi_allocation describe(void *address)
    {
        phi_allocation allocation{};
        uint64_t offset;
        EXPECT_EQ(phi_memory_describe(kind->memory, address, 1, &allocation, &offset), 0)
            << error();
        return allocation;
    }
    phi_export export_of(void *address)
    {
        phi_export made{};
        phi_allocation allocation = describe(address);
        EXPECT_EQ(phi_memory_export(kind->memory, &allocation, &made), 0) << error();
        return made;
    }
    phi_import *import_of(const phi_export &made)
    {
        phi_import *import = nullptr;
        EXPECT_EQ(phi_memory_import(kind->other, made.record, made.record_size, made.fd, &import),
                  0)
            << error();
        return import;
    }
    std::vector<unsigned char> read(const void *from, size_t size)
    {
        std::vector<unsigned char> bytes(size);
        kind->read(bytes.data(), from, size);
        return bytes;
    }
};

TEST_P(Kind, DescribesTheWholeAllocation)
{
    char *address = (char *)kind->allocate(SIZE);
    ASSERT_NE(address, nullptr) << error();
    phi_allocation whole = describe(address), inside{};
    EXPECT_EQ(whole.kind, kind->kind());
    EXPECT_EQ(whole.base, (uintptr_t)address);
    EXPECT_EQ(whole.size, SIZE);
    EXPECT_NE(whole.id, 0u);

    uint64_t offset = 0;
    ASSERT_EQ(phi_memory_describe(kind->memory, address + 12345, SIZE - 12345, &inside, &offset),
              0);
    EXPECT_TRUE(phi_allocation_equal(&whole, &inside));
    EXPECT_EQ(offset, 12345u);
    kind->release(address);
}

TEST_P(Kind, DescribeRefusesWhatPassesTheEnd)
{
    char *address = (char *)kind->allocate(SIZE);
    ASSERT_NE(address, nullptr) << error();
    phi_allocation allocation{};
    uint64_t offset = 99;
    EXPECT_EQ(phi_memory_describe(kind->memory, address + 1, SIZE, &allocation, &offset), -EINVAL);
    EXPECT_EQ(phi_memory_describe(kind->memory, address, SIZE_MAX, &allocation, &offset), -EINVAL);
    EXPECT_EQ(offset, 99u) << "written on failure";
    EXPECT_EQ(allocation.size, 0u) << "written on failure";
    kind->release(address);
}

TEST_P(Kind, DescribeRefusesOtherMemory)
{
    phi_allocation allocation;
    uint64_t offset;
    int on_the_stack;
    std::unique_ptr<int> on_the_heap(new int);
    for (void *address : {(void *)&on_the_stack, (void *)on_the_heap.get(), (void *)nullptr}) {
        int rc = phi_memory_describe(kind->memory, address, 4, &allocation, &offset);
        EXPECT_TRUE(rc == -EINVAL || rc == PH_EKIND) << rc;
        EXPECT_FALSE(error().empty());
    }
}

TEST_P(Kind, IsCurrentUntilItIsFreed)
{
    char *address = (char *)kind->allocate(SIZE);
    char *kept = (char *)kind->allocate(SIZE);
    ASSERT_NE(kept, nullptr) << error();
    phi_allocation allocation = describe(address), neighbour = describe(kept);
    EXPECT_TRUE(phi_memory_current(kind->memory, address, &allocation));
    EXPECT_TRUE(phi_memory_current(kind->memory, address + 100, &allocation));
    EXPECT_FALSE(phi_memory_current(kind->memory, kept, &allocation));
    kind->release(address);
    EXPECT_FALSE(phi_memory_current(kind->memory, address, &allocation));
    EXPECT_TRUE(phi_memory_current(kind->memory, kept, &neighbour));
    kind->release(kept);
}

// free + malloc gives the same address with another identity.
TEST_P(Kind, AnAddressUsedAgainIsAnotherAllocation)
{
    bool same_address = false;
    for (int i = 0; i < 20 && !same_address; i++) {
        void *address = kind->allocate(SIZE);
        ASSERT_NE(address, nullptr) << error();
        phi_allocation before = describe(address);
        kind->release(address);
        void *again = kind->allocate(SIZE);
        phi_allocation after = describe(again);
        same_address = again == address;
        EXPECT_FALSE(phi_allocation_equal(&before, &after));
        EXPECT_FALSE(phi_memory_current(kind->memory, again, &before));
        kind->release(again);
    }
}

TEST_P(Kind, TheRecordSaysWhatWasExported)
{
    void *address = kind->allocate(SIZE);
    ASSERT_NE(address, nullptr) << error();
    phi_export made = export_of((char *)address + 4096);
    phi_record_info info{};
    ASSERT_EQ(phi_memory_inspect(&kind->context.report, made.record, made.record_size, &info), 0);
    EXPECT_TRUE(phi_allocation_equal(&info.allocation, &made.allocation));
    EXPECT_EQ(info.allocation.base, (uintptr_t)address);
    EXPECT_EQ(info.needs_fd, made.fd >= 0);
    EXPECT_LE(made.record_size, (size_t)PHI_EXPORT_MAX);
    EXPECT_TRUE(phi_memory_kinds(kind->memory) & 1u << kind->kind());
    if (made.fd >= 0) {
        EXPECT_TRUE(fcntl(made.fd, F_GETFD) & FD_CLOEXEC);
    }
    phi_memory_export_close(&made);
    kind->release(address);
}

TEST_P(Kind, OwnerAndImporterSeeTheSameBytes)
{
    void *address = kind->allocate(SIZE);
    ASSERT_NE(address, nullptr) << error();
    phi_export made = export_of(address);
    phi_import *import = import_of(made);
    phi_memory_export_close(&made);
    ASSERT_NE(import, nullptr);
    EXPECT_EQ(import->size, SIZE);
    EXPECT_EQ(import->kind, kind->kind());

    auto theirs = bytes_of(owners_byte, SIZE), ours = bytes_of(importers_byte, SIZE);
    kind->write(address, theirs.data(), SIZE);
    EXPECT_EQ(read(import->address, SIZE), theirs);
    kind->write((char *)import->address + 1001, &ours[1001], 5000);
    std::copy(ours.begin() + 1001, ours.begin() + 6001, theirs.begin() + 1001);
    EXPECT_EQ(read(address, SIZE), theirs);
    phi_memory_import_close(import);
    kind->release(address);
}

TEST_P(Kind, AnotherProcessImports)
{
    void *address = kind->allocate(SIZE);
    ASSERT_NE(address, nullptr) << error();
    auto bytes = bytes_of(owners_byte, SIZE);
    kind->write(address, bytes.data(), SIZE);
    phi_export made = export_of(address);

    int fd = made.fd < 0 ? -1 : fcntl(made.fd, F_DUPFD, 100); // stays open over exec
    std::string name = GetParam().name, number = std::to_string(fd);
    std::string record = hex(made.record, made.record_size);
    const char *argv[] = {"child",        "--child",      name.c_str(),
                          number.c_str(), record.c_str(), nullptr};
    pid_t pid;
    int status = -1;
    ASSERT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, (char **)argv, environ), 0);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(read(address, SIZE), bytes_of(importers_byte, SIZE));
    if (fd >= 0)
        close(fd);
    phi_memory_export_close(&made);
    kind->release(address);
}

TEST_P(Kind, ImportsOfOneAllocationAreIndependent)
{
    void *address = kind->allocate(SIZE);
    ASSERT_NE(address, nullptr) << error();
    phi_export made = export_of(address);
    phi_import *first = import_of(made), *second = import_of(made);
    ASSERT_NE(first, nullptr);
    ASSERT_NE(second, nullptr);
    phi_memory_import_close(first);
    unsigned char byte = 0x5a;
    kind->write((char *)second->address + 7, &byte, 1);
    EXPECT_EQ(read((char *)address + 7, 1)[0], 0x5a);
    phi_memory_import_close(second);
    phi_memory_import_close(nullptr);
    phi_memory_export_close(&made);
    kind->release(address);
}

TEST_P(Kind, EveryTruncatedRecordIsRefused)
{
    void *address = kind->allocate(SIZE);
    ASSERT_NE(address, nullptr) << error();
    phi_export made = export_of(address);
    for (size_t size = 0; size < made.record_size; size++) {
        // The length of the kind's part made to fit: what is missing is missing in that part.
        uint8_t record[PHI_EXPORT_MAX];
        memcpy(record, made.record, made.record_size);
        if (size >= 36) {
            uint32_t length = (uint32_t)(size - 36);
            memcpy(record + 32, &length, sizeof(length));
        }
        phi_import *import = nullptr;
        EXPECT_EQ(phi_memory_import(kind->other, record, size, made.fd, &import), -EBADMSG) << size;
        EXPECT_EQ(import, nullptr);
        EXPECT_TRUE(made.fd < 0 || fcntl(made.fd, F_GETFD) >= 0) << "the descriptor was taken over";
    }
    phi_memory_export_close(&made);
    kind->release(address);
}

TEST_P(Kind, ALongerRecordIsRefused)
{
    void *address = kind->allocate(SIZE);
    ASSERT_NE(address, nullptr) << error();
    phi_export made = export_of(address);
    uint32_t length = (uint32_t)(made.record_size - 36 + 1);
    memcpy(made.record + 32, &length, sizeof(length));
    phi_import *import = nullptr;
    EXPECT_EQ(phi_memory_import(kind->other, made.record, made.record_size + 1, made.fd, &import),
              -EBADMSG);
    EXPECT_EQ(import, nullptr);
    phi_memory_export_close(&made);
    kind->release(address);
}

TEST_P(Kind, LeaksNoDescriptor)
{
    int before = 0;
    for (int i = 0; i < 5; i++) {
        void *address = kind->allocate(SIZE);
        ASSERT_NE(address, nullptr) << error();
        phi_export made = export_of(address);
        phi_memory_import_close(import_of(made));
        phi_memory_export_close(&made);
        kind->release(address);
        if (i == 0) // the first use of a driver may open some for good
            before = open_descriptors();
    }
    EXPECT_EQ(open_descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Memory, Kind, testing::ValuesIn(KINDS),
                         [](const auto &info) { return std::string(info.param.name); });

// Of memory of a pool the driver makes one mapping, whatever a record says of where it is: the end
// of one import would take it from the other.
bool refuses_lie(MemoryKind &kind, int fd, std::vector<uint8_t> record)
{
    phi_import *import = nullptr;
    if (kind.kind() != PHI_KIND_POOL)
        return true;
    record[8 + 5] ^= 1; // of the base: 2^40 bytes away
    int rc = phi_memory_import(kind.other, record.data(), record.size(), fd, &import);
    phi_memory_import_close(import);
    return rc == -EBADMSG;
}

// The importing process: checks what the owner wrote and answers in place. Another context of this
// process maps the memory, too, and its end takes nothing from the first.
int import_in_child(MemoryKind &kind, int fd, const std::vector<uint8_t> &record)
{
    phi_import *import = nullptr, *others = nullptr;
    if (phi_memory_import(kind.memory, record.data(), record.size(), fd, &import) ||
        phi_memory_import(kind.other, record.data(), record.size(), fd, &others)) {
        fprintf(stderr, "%s\n", kind.context.error().c_str());
        return 3;
    }
    phi_memory_import_close(others);
    if (!refuses_lie(kind, fd, record))
        return 5;
    std::vector<unsigned char> found(import->size);
    kind.read(found.data(), import->address, found.size());
    bool right = found == bytes_of(owners_byte, SIZE);
    kind.write(import->address, bytes_of(importers_byte, SIZE).data(), SIZE);
    phi_memory_import_close(import);
    return right ? 0 : 4;
}

} // namespace

extern "C" int test_child_main(int argc, char **argv)
{
    std::vector<uint8_t> record;
    if (argc != 3)
        return 2;
    for (const char *at = argv[2]; at[0] && at[1]; at += 2)
        record.push_back((uint8_t)std::stoi(std::string(at, 2), nullptr, 16));
    for (const MemoryKindEntry &entry : KINDS) {
        if (std::string(entry.name) != argv[0])
            continue;
        std::unique_ptr<MemoryKind> kind = entry.make();
        std::string why = kind->open();
        if (!why.empty())
            return 2;
        return import_in_child(*kind, atoi(argv[1]), record);
    }
    return 2;
}
