// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "base/wire.h"
}

namespace
{

class Wire : public testing::Test
{
  protected:
    void TearDown() override
    {
        phi_writer_fini(&writer);
    }

    phi_reader read() const
    {
        phi_reader reader;
        phi_reader_init(&reader, writer.bytes, writer.size);
        return reader;
    }

    phi_writer writer{};
};

TEST_F(Wire, IsLittleEndian)
{
    phi_put_u8(&writer, 0x01);
    phi_put_u16(&writer, 0x0302);
    phi_put_u32(&writer, 0x07060504);
    phi_put_u64(&writer, 0x0f0e0d0c0b0a0908ull);
    ASSERT_EQ(writer.size, 15u);
    for (size_t i = 0; i < writer.size; i++)
        EXPECT_EQ(writer.bytes[i], i + 1);
}

TEST_F(Wire, RoundTrip)
{
    phi_put_u8(&writer, 0xfe);
    phi_put_u16(&writer, 0xfedc);
    phi_put_u32(&writer, 0xfedcba98);
    phi_put_u64(&writer, 0xfedcba9876543210ull);
    phi_put_bytes(&writer, "raw", 3);
    phi_put_blob(&writer, "b\0b", 3);
    phi_put_string(&writer, "text");
    phi_put_string(&writer, "");
    EXPECT_EQ(writer.error, 0);

    phi_reader reader = read();
    char raw[3], text[5], empty[1];
    size_t size;
    EXPECT_EQ(phi_get_u8(&reader), 0xfe);
    EXPECT_EQ(phi_get_u16(&reader), 0xfedc);
    EXPECT_EQ(phi_get_u32(&reader), 0xfedcba98u);
    EXPECT_EQ(phi_get_u64(&reader), 0xfedcba9876543210ull);
    phi_get_bytes(&reader, raw, sizeof(raw));
    EXPECT_EQ(memcmp(raw, "raw", 3), 0);
    const uint8_t *blob = phi_get_blob(&reader, 3, &size);
    ASSERT_EQ(size, 3u);
    EXPECT_EQ(memcmp(blob, "b\0b", 3), 0);
    phi_get_string(&reader, text, sizeof(text));
    EXPECT_STREQ(text, "text");
    phi_get_string(&reader, empty, sizeof(empty));
    EXPECT_STREQ(empty, "");
    EXPECT_EQ(reader.error, 0);
    EXPECT_EQ(reader.at, reader.size);
}

TEST_F(Wire, GrowsAndPatches)
{
    phi_put_u32(&writer, 0);
    for (uint32_t i = 0; i < 100000; i++)
        phi_put_u32(&writer, i);
    phi_patch_u32(&writer, 0, (uint32_t)writer.size);
    ASSERT_EQ(writer.error, 0);
    phi_reader reader = read();
    EXPECT_EQ(phi_get_u32(&reader), 400004u);
    for (uint32_t i = 0; i < 100000; i++)
        ASSERT_EQ(phi_get_u32(&reader), i);
}

TEST_F(Wire, IsReadyForUseAgainAfterFini)
{
    phi_put_u64(&writer, 1);
    phi_writer_fini(&writer);
    EXPECT_EQ(writer.size, 0u);
    phi_put_u8(&writer, 7);
    phi_reader reader = read();
    EXPECT_EQ(phi_get_u8(&reader), 7);
}

TEST_F(Wire, ImpossibleSizesFailTheWriterForGood)
{
    phi_put_u8(&writer, 1);
    phi_put_bytes(&writer, "", SIZE_MAX - 1);
    EXPECT_EQ(writer.error, -ENOMEM);
    phi_put_u8(&writer, 2);
    phi_patch_u32(&writer, 0, 3);
    EXPECT_EQ(writer.size, 1u);
    EXPECT_EQ(writer.bytes[0], 1);
}

TEST_F(Wire, BlobsPastTheirLengthFieldFail)
{
    phi_put_blob(&writer, "", (size_t)UINT32_MAX + 1);
    EXPECT_EQ(writer.error, -ENOMEM);
    EXPECT_EQ(writer.size, 0u);
}

// Every prefix of a message fails its reader, and what fails yields zeros and stays failed.
TEST_F(Wire, EveryTruncationIsFound)
{
    phi_put_u16(&writer, 0xffff);
    phi_put_string(&writer, "abc");
    phi_put_u64(&writer, UINT64_MAX);
    for (size_t size = 0; size < writer.size; size++) {
        std::vector<uint8_t> prefix(writer.bytes,
                                    writer.bytes + size); // ASan sees a read past its end
        phi_reader reader;
        char text[8];
        phi_reader_init(&reader, prefix.data(), size);
        phi_get_u16(&reader);
        phi_get_string(&reader, text, sizeof(text));
        EXPECT_EQ(phi_get_u64(&reader), 0u) << size;
        EXPECT_EQ(reader.error, -EBADMSG) << size;
        EXPECT_EQ(phi_get_u8(&reader), 0);
        EXPECT_EQ(reader.error, -EBADMSG);
    }
}

TEST_F(Wire, FailedBytesAreZeros)
{
    char bytes[4] = {1, 2, 3, 4};
    phi_put_u8(&writer, 9);
    phi_reader reader = read();
    phi_get_bytes(&reader, bytes, sizeof(bytes));
    EXPECT_EQ(memcmp(bytes, "\0\0\0\0", 4), 0);
    EXPECT_EQ(reader.error, -EBADMSG);
}

TEST_F(Wire, BlobsAreBounded)
{
    size_t size = 99;
    phi_put_blob(&writer, "12345", 5);
    phi_reader reader = read();
    phi_get_blob(&reader, 4, &size);
    EXPECT_EQ(size, 0u);
    EXPECT_EQ(reader.error, -EBADMSG);
}

TEST_F(Wire, AbsurdLengthsAreFound)
{
    size_t size;
    phi_put_u32(&writer, UINT32_MAX);
    phi_put_u64(&writer, 0);
    phi_reader reader = read();
    EXPECT_EQ(phi_get_blob(&reader, SIZE_MAX, &size), nullptr);
    EXPECT_EQ(size, 0u);
    EXPECT_EQ(reader.error, -EBADMSG);
}

TEST_F(Wire, StringsThatDoNotFitOrHoldZerosFail)
{
    char text[4] = "zzz";
    phi_put_string(&writer, "1234");
    phi_reader reader = read();
    phi_get_string(&reader, text, sizeof(text));
    EXPECT_EQ(reader.error, -EBADMSG);
    EXPECT_STREQ(text, "");

    phi_writer_fini(&writer);
    phi_put_blob(&writer, "a\0b", 3);
    reader = read();
    phi_get_string(&reader, text, sizeof(text));
    EXPECT_EQ(reader.error, -EBADMSG);
    EXPECT_STREQ(text, "");
}

TEST_F(Wire, EmptyMessage)
{
    phi_reader reader;
    phi_reader_init(&reader, nullptr, 0);
    phi_get_bytes(&reader, nullptr, 0);
    EXPECT_EQ(reader.error, 0);
    EXPECT_EQ(phi_get_u8(&reader), 0);
    EXPECT_EQ(reader.error, -EBADMSG);
}

} // namespace
