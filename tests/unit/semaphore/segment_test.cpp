// SPDX-License-Identifier: BSD-3-Clause
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support/plain_context.h"

extern "C" {
#include "semaphore/segment.h"
}

namespace
{

const uint64_t NONCE = 0x1234567890abcdefull;

class Segment : public testing::Test
{
  protected:
    PlainContext context;
    phi_segment *segment = nullptr;
    int before = 0;

    void SetUp() override
    {
        before = open_descriptors();
        ASSERT_EQ(phi_segment_create(&context.report, 100, NONCE, &segment), 0);
    }
    void TearDown() override
    {
        phi_segment_close(segment);
        EXPECT_EQ(open_descriptors(), before);
    }
    uint32_t *line(const phi_segment *of, int side, uint32_t index)
    {
        return reinterpret_cast<uint32_t *>(phi_segment_line(of, side, index));
    }
    // Opens a copy of the segment's bytes after `change`, in a file of the given size and seals.
    template <typename Change> int open_changed(Change change, int seals, size_t size)
    {
        std::vector<char> bytes(segment->size);
        memcpy(bytes.data(), segment->base, bytes.size());
        change(bytes.data());
        int fd = memfd_create("changed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        EXPECT_EQ(write(fd, bytes.data(), std::min(bytes.size(), size)),
                  (ssize_t)std::min(bytes.size(), size));
        EXPECT_EQ(ftruncate(fd, (off_t)size), 0);
        EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
        phi_segment *opened = nullptr;
        int rc = phi_segment_open(&context.report, fd, NONCE, &opened);
        if (rc) {
            EXPECT_EQ(opened, nullptr);
            EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "the descriptor was not taken over";
        }
        phi_segment_close(opened);
        return rc;
    }
    static const int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
};

// Bytes of memory that its file has.
size_t memory_of(const phi_segment *segment)
{
    struct stat file;
    EXPECT_EQ(fstat(segment->fd, &file), 0);
    return static_cast<size_t>(file.st_blocks) * 512;
}

TEST_F(Segment, StartsWithZeros)
{
    for (int side = 0; side < 2; side++) {
        for (uint32_t i = 0; i < segment->capacity; i++) {
            for (int word = 0; word < 16; word++)
                ASSERT_EQ(line(segment, side, i)[word], 0u) << side << " " << i << " " << word;
            ASSERT_EQ(*phi_segment_word(segment, side, i, 0), 0u);
            ASSERT_EQ(*phi_segment_word(segment, side, i, 1), 0u);
            ASSERT_EQ(*phi_segment_confirm(segment, side, i), 0u);
        }
        EXPECT_EQ(phi_segment_side(segment, side)->state, (uint32_t)PHI_SIDE_LIVE);
        EXPECT_EQ(phi_segment_side(segment, side)->acknowledged, 0u);
    }
    EXPECT_EQ(segment->side, 0);
    EXPECT_EQ(segment->capacity, 100u);
}

TEST_F(Segment, LinesAreStartedOneByOne)
{
    phi_segment_start_line(segment, 7);
    for (int side = 0; side < 2; side++) {
        for (int word = 0; word < 16; word++)
            EXPECT_EQ(line(segment, side, 7)[word],
                      word < PHI_WORD_COUNT ? phi_word_start[word] : 0u);
        EXPECT_EQ(line(segment, side, 6)[PHI_WORD_NOTE], 0u);
        EXPECT_EQ(line(segment, side, 8)[PHI_WORD_NOTE], 0u);
    }
}

// The other end was there before, and has used it.
TEST_F(Segment, ALineInUseIsNotStartedAgain)
{
    phi_segment *opened;
    ASSERT_EQ(phi_segment_open(&context.report, dup(segment->fd), NONCE, &opened), 0);
    phi_segment_start_line(segment, 7);
    line(segment, 0, 7)[PHI_WORD_NOTE] = PHI_BIT_NOTED;
    line(segment, 1, 7)[PHI_WORD_TURN] = PHI_BIT_READY;
    phi_segment_start_line(opened, 7);
    EXPECT_EQ(line(opened, 0, 7)[PHI_WORD_NOTE], (uint32_t)PHI_BIT_NOTED);
    EXPECT_EQ(line(opened, 1, 7)[PHI_WORD_TURN], (uint32_t)PHI_BIT_READY);
    EXPECT_EQ(line(opened, 1, 7)[PHI_WORD_NOTE], (uint32_t)PHI_BIT_FREE);
    phi_segment_close(opened);
}

// Whatever the capacity, what was not given has none; what was is written without taking more.
TEST_F(Segment, HasMemoryForWhatIsGiven)
{
    const uint32_t capacity = 16384;
    phi_segment *made;
    ASSERT_EQ(phi_segment_create(&context.report, capacity, NONCE, &made), 0);
    const size_t none = memory_of(made);
    EXPECT_LE(none, 3u * 65536); // a page for each header
    size_t before = none;
    for (uint32_t n : {1u, 256u, 257u, 5000u, capacity}) {
        ASSERT_EQ(phi_segment_reserve(&context.report, made, n, 0), 0);
        ASSERT_EQ(phi_segment_reserve(&context.report, made, 0, n), 0);
        const size_t now = memory_of(made);
        for (int side = 0; side < 2; side++)
            for (uint32_t i : {0u, n / 2, n - 1}) {
                memset(phi_segment_line(made, side, i), 1, sizeof(uint32_t[16]));
                *phi_segment_word(made, side, i, 0) = *phi_segment_word(made, side, i, 1) = 1;
                *phi_segment_confirm(made, side, i) = phi_segment_slot(made, side, i)->staging = 1;
            }
        EXPECT_EQ(memory_of(made), now) << n;
        EXPECT_EQ(now > before, n != 256u) << n;
        EXPECT_LE(now, none + 2 * (n + 256) * 104 + (256u << 10)) << n;
        before = now;
    }
    ASSERT_EQ(phi_segment_reserve(&context.report, made, 1, 1), 0);
    EXPECT_EQ(memory_of(made), before);
    for (uint64_t bytes : {uint64_t{1}, uint64_t{PHI_FIFO_BYTES}, UINT64_MAX}) {
        ASSERT_TRUE(phi_segment_reserve_fifo(made, bytes));
        const size_t now = memory_of(made), n = std::min<uint64_t>(bytes, PHI_FIFO_BYTES);
        memset(phi_segment_fifo(made, 0), 1, n);
        EXPECT_EQ(memory_of(made), now) << bytes;
        EXPECT_LE(now, before + n + (128u << 10)) << bytes;
    }
    phi_segment_close(made);
}

// Every part at its own place, inside the mapping, lines on cache lines of their own.
TEST_F(Segment, PartsDoNotOverlap)
{
    std::map<uintptr_t, uintptr_t> parts; // begin, end
    auto add = [&](const void *at, size_t size) {
        parts[(uintptr_t)at] = (uintptr_t)at + size;
        return (uintptr_t)at;
    };
    add(segment->base, 32);
    size_t n = 1;
    for (int side = 0; side < 2; side++) {
        EXPECT_EQ(add(phi_segment_side(segment, side), sizeof(phi_side)) % 128, 0u);
        for (uint32_t i = 0; i < segment->capacity; i++) {
            EXPECT_EQ(add(phi_segment_line(segment, side, i), 64) % 64, 0u);
            add(phi_segment_slot(segment, side, i), sizeof(phi_slot));
            add(phi_segment_word(segment, side, i, 0), 8);
            add(phi_segment_word(segment, side, i, 1), 8);
            add(phi_segment_confirm(segment, side, i), 8);
            n += 5;
        }
        add(phi_segment_fifo(segment, side), PHI_FIFO_BYTES);
        n += 2;
    }
    ASSERT_EQ(parts.size(), n);
    uintptr_t end = (uintptr_t)segment->base;
    for (auto &part : parts) {
        EXPECT_GE(part.first, end);
        end = part.second;
    }
    EXPECT_LE(end, (uintptr_t)segment->base + segment->size);
}

TEST_F(Segment, BothSidesSeeTheSameBytes)
{
    phi_segment *opened;
    ASSERT_EQ(phi_segment_open(&context.report, dup(segment->fd), NONCE, &opened), 0);
    EXPECT_EQ(opened->side, 1);
    EXPECT_EQ(opened->capacity, segment->capacity);
    line(segment, 1, 99)[3] = 77;
    EXPECT_EQ(line(opened, 1, 99)[3], 77u);
    *phi_segment_confirm(opened, 0, 5) = 1234567890123ull;
    EXPECT_EQ(*phi_segment_confirm(segment, 0, 5), 1234567890123ull);
    phi_segment_close(opened);
}

TEST_F(Segment, DeviceAddressesAreRelative)
{
    char *inside = (char *)segment->base + 4242;
    EXPECT_EQ(phi_segment_device_address(segment, inside), 0u);
    segment->base_device = 0x7000000000ull;
    EXPECT_EQ(phi_segment_device_address(segment, inside), 0x7000000000ull + 4242);
}

TEST_F(Segment, CannotBeCutOff)
{
    EXPECT_NE(ftruncate(segment->fd, 0), 0);
    EXPECT_NE(ftruncate(segment->fd, (off_t)segment->size * 2), 0);
}

TEST_F(Segment, OpenTakesWhatIsRight)
{
    EXPECT_EQ(open_changed([](char *) {}, SEALS, segment->size), 0);
}

TEST_F(Segment, OpenRefusesWhatIsWrong)
{
    struct {
        const char *why;
        size_t at;
        char value;
    } cases[] = {
        {"not a segment", 0, 'x'},           {"another version", 8, 9},
        {"size does not go", 13, 99},        {"capacity is out of range", 15, 127},
        {"capacity is out of range", 12, 0}, {"another pair", 16, 1},
        {"size does not go", 26, 99},
    };
    for (auto &c : cases) {
        EXPECT_EQ(open_changed([&](char *bytes) { bytes[c.at] = c.value; }, SEALS, segment->size),
                  -EBADMSG)
            << c.why;
        EXPECT_NE(context.error().find(c.why), std::string::npos) << context.error();
    }
}

TEST_F(Segment, OpenRefusesFilesOfAnotherSize)
{
    auto same = [](char *) {};
    for (size_t size :
         {(size_t)0, (size_t)31, (size_t)4096, segment->size - 4096, segment->size + 4096})
        EXPECT_EQ(open_changed(same, SEALS, size), -EBADMSG) << size;
}

TEST_F(Segment, OpenRefusesUnsealedFiles)
{
    auto same = [](char *) {};
    EXPECT_EQ(open_changed(same, 0, segment->size), -EBADMSG);
    EXPECT_EQ(open_changed(same, F_SEAL_GROW | F_SEAL_SEAL, segment->size), -EBADMSG);
    EXPECT_EQ(open_changed(same, F_SEAL_SHRINK | F_SEAL_GROW, segment->size), -EBADMSG);
    EXPECT_NE(context.error().find("not sealed"), std::string::npos) << context.error();
}

TEST_F(Segment, OpenRefusesWhatIsNoMemoryFile)
{
    phi_segment *opened = nullptr;
    EXPECT_EQ(
        phi_segment_open(&context.report, open("/dev/null", O_RDWR | O_CLOEXEC), NONCE, &opened),
        -EBADMSG);
    EXPECT_EQ(phi_segment_open(&context.report, -1, NONCE, &opened), -EBADMSG);
    EXPECT_EQ(opened, nullptr);
}

TEST_F(Segment, CapacitiesOutOfRangeAreRefused)
{
    phi_segment *made = nullptr;
    EXPECT_EQ(phi_segment_create(&context.report, 0, NONCE, &made), -EINVAL);
    EXPECT_EQ(phi_segment_create(&context.report, (1 << 20) + 1, NONCE, &made), -EINVAL);
    EXPECT_EQ(made, nullptr);
}

TEST_F(Segment, TheLargestCapacityWorks)
{
    phi_segment *made, *opened;
    ASSERT_EQ(phi_segment_create(&context.report, 1 << 20, NONCE, &made), 0);
    ASSERT_EQ(phi_segment_open(&context.report, dup(made->fd), NONCE, &opened), 0);
    line(made, 1, (1 << 20) - 1)[0] = 3;
    EXPECT_EQ(line(opened, 1, (1 << 20) - 1)[0], 3u);
    ASSERT_EQ(phi_segment_reserve(&context.report, made, 1 << 20, 1 << 20), 0);
    *phi_segment_confirm(made, 1, (1 << 20) - 1) = 9;
    EXPECT_EQ(*phi_segment_confirm(opened, 1, (1 << 20) - 1), 9u);
    phi_segment_close(opened);
    phi_segment_close(made);
}

} // namespace
