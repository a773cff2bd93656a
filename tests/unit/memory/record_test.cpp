// SPDX-License-Identifier: BSD-3-Clause
// The export record as bytes from another process: whatever they are, the answer is an error.
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstring>
#include <random>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/plain_context.h"

extern "C" {
#include "memory/memory.h"
}

namespace
{

class Record : public testing::Test
{
  protected:
    PlainContext context;
    phi_memory *memory = nullptr;
    phi_export made{};
    phi_record_info info{};

    void SetUp() override
    {
        void *address;
        phi_allocation allocation;
        uint64_t offset;
        ASSERT_EQ(phi_memory_open(&context.report, nullptr, &memory), 0);
        ASSERT_EQ(phi_host_alloc(memory, 4096, &address), 0);
        ASSERT_EQ(phi_memory_describe(memory, address, 1, &allocation, &offset), 0);
        ASSERT_EQ(phi_memory_export(memory, &allocation, &made), 0);
    }
    void TearDown() override
    {
        phi_memory_export_close(&made);
        phi_memory_close(memory);
    }
    int inspect(size_t size)
    {
        return phi_memory_inspect(&context.report, made.record, size, &info);
    }
};

TEST_F(Record, SaysWhatWasExported)
{
    ASSERT_EQ(inspect(made.record_size), 0);
    EXPECT_TRUE(phi_allocation_equal(&info.allocation, &made.allocation));
    EXPECT_TRUE(info.needs_fd);
}

TEST_F(Record, EveryTruncationIsMalformed)
{
    for (size_t size = 0; size < made.record_size; size++)
        EXPECT_EQ(inspect(size), -EBADMSG) << size;
}

TEST_F(Record, TrailingBytesAreMalformed)
{
    EXPECT_EQ(inspect(made.record_size + 1), -EBADMSG);
    EXPECT_EQ(inspect(PHI_EXPORT_MAX), -EBADMSG);
}

TEST_F(Record, AnotherVersionIsNamed)
{
    made.record[4] = 9;
    EXPECT_EQ(inspect(made.record_size), -EBADMSG);
    EXPECT_NE(context.error().find("version 9"), std::string::npos) << context.error();
}

TEST_F(Record, UnknownKindsAreRefused)
{
    for (int kind : {0, 5, 77, 255}) {
        made.record[6] = (uint8_t)kind;
        EXPECT_EQ(inspect(made.record_size), -EBADMSG) << kind;
    }
}

TEST_F(Record, KindsThatThisContextHasNotAreNamed)
{
    phi_import *import = nullptr;
    EXPECT_EQ(phi_memory_kinds(memory), 1u << PHI_KIND_HOST);
    for (int kind : {PHI_KIND_CUDA, PHI_KIND_VMM, PHI_KIND_POOL}) {
        made.record[6] = (uint8_t)kind;
        EXPECT_EQ(phi_memory_import(memory, made.record, made.record_size, -1, &import), PH_EKIND);
        EXPECT_NE(context.error().find(phi_kind_name((phi_kind)kind)), std::string::npos)
            << context.error();
    }
}

TEST_F(Record, AbsurdSizesAreRefused)
{
    for (uint64_t size : {(uint64_t)0, (uint64_t)1 << 63, UINT64_MAX}) {
        memcpy(made.record + 16, &size, sizeof(size));
        EXPECT_EQ(inspect(made.record_size), -EBADMSG) << size;
    }
}

TEST_F(Record, TheRangeMayNotWrapAround)
{
    uint64_t base = UINT64_MAX - 100;
    memcpy(made.record + 8, &base, sizeof(base));
    EXPECT_EQ(inspect(made.record_size), -EBADMSG);
}

TEST_F(Record, NoDescriptorWhereOneIsNeeded)
{
    phi_import *import = nullptr;
    EXPECT_EQ(phi_memory_import(memory, made.record, made.record_size, -1, &import), -EBADMSG);
    EXPECT_NE(context.error().find("no descriptor"), std::string::npos) << context.error();
}

TEST_F(Record, RandomBytesNeverMap)
{
    std::mt19937 random(7);
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[PHI_EXPORT_MAX];
        memcpy(bytes, made.record, made.record_size);
        size_t size = random() % (made.record_size + 1);
        for (int changes = 1 + (int)(random() % 4); changes > 0; changes--)
            bytes[random() % made.record_size] = (uint8_t)random();
        phi_import *import = nullptr;
        int rc = phi_memory_import(memory, bytes, size, -1, &import);
        ASSERT_NE(rc, 0);
        ASSERT_EQ(import, nullptr);
    }
}

TEST(KindNames, AreThoseOfTheReports)
{
    EXPECT_STREQ(phi_kind_name(PHI_KIND_HOST), "host");
    EXPECT_STREQ(phi_kind_handle(PHI_KIND_HOST), "memfd");
    EXPECT_STREQ(phi_kind_handle(PHI_KIND_CUDA), "cuda-ipc");
    EXPECT_STREQ(phi_kind_handle(PHI_KIND_VMM), "vmm-fd");
    EXPECT_STREQ(phi_kind_name((phi_kind)99), "unknown");
}

} // namespace
