// SPDX-License-Identifier: BSD-3-Clause
// Staged steps of the CUDA executor, where the test is the net: it raises `reach`, and writes the
// slots that a stream empties.
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "support/gpu.h"
#include "support/patience.h"

extern "C" {
#include "base/stage.h"
#include "cuda/kernel_args.h"
#include "semaphore/executor.h"
}

namespace
{

const uint32_t CHUNK = 65536;
const size_t SLOT = PHI_STAGE_HEAD + CHUNK, LANE = 4096 + PHI_STAGE_SLOTS * SLOT;

class Staged : public GpuTest, public testing::WithParamInterface<int>
{
  protected:
    phi_executor *executor = nullptr;
    CUstream stream = nullptr;
    uint8_t *memory = nullptr;
    uint64_t memory_device = 0;
    phi_uses uses{};
    size_t size = 0;

    void SetUp() override
    {
        open(nullptr);
        if (IsSkipped())
            return;
        if (!gpu->info().kernels)
            GTEST_SKIP() << "no kernels in this build";
        phi_executor_params params{&gpu->context.report, &gpu->context.counters,
                                   &gpu->context.config};
        ASSERT_EQ(phi_cuda_executor_open(&params, gpu->device, &executor), 0)
            << gpu->context.error();
        CU_OK(gpu->cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        size = (4 * LANE + 4095) / 4096 * 4096;
        memory = static_cast<uint8_t *>(
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        ASSERT_NE(memory, MAP_FAILED);
        ASSERT_EQ(phi_device_register(gpu->device, memory, size, &memory_device), 0);
    }
    void TearDown() override
    {
        if (executor) {
            EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0)
                << gpu->context.error();
            executor->ops->close(executor);
        }
        if (stream)
            gpu->cu->cuStreamDestroy_v2(stream);
        if (memory)
            phi_device_unmap(gpu->device, memory, size);
    }
    uint32_t blocks() const
    {
        return (uint32_t)GetParam();
    }
    phi_stage_lane *lane(int i)
    {
        return reinterpret_cast<phi_stage_lane *>(memory + i * LANE);
    }
    uint8_t *slot(int i, uint32_t record)
    {
        return memory + i * LANE + 4096 + (record - 1) % PHI_STAGE_SLOTS * SLOT;
    }
    phi_stage_record *head(int i, uint32_t record)
    {
        return reinterpret_cast<phi_stage_record *>(slot(i, record));
    }
    phi_work step(uint8_t kind, int i, CUdeviceptr buffer, uint64_t offset, size_t bytes)
    {
        phi_work work{};
        work.kind = kind;
        work.call = kind == PHI_STEP_STAGE ? PHI_CALL_PUT_SIGNAL : PHI_CALL_WAIT;
        work.lane.own = memory_device + i * LANE;
        work.lane.slots = work.lane.own + 4096;
        work.lane.peer = PHI_STAGE_LIKE(CHUNK, blocks());
        work.span.size = bytes;
        work.lane.offset = offset;
        work.lane.signal = kind == PHI_STEP_STAGE;
        (kind == PHI_STEP_STAGE ? (void *&)work.span.source : work.span.destination) =
            reinterpret_cast<void *>(buffer);
        work.uses = &uses;
        return work;
    }
    void issue(const std::vector<phi_work> &work)
    {
        bool partial = true;
        ASSERT_EQ(executor->ops->issue(executor, stream, work.data(), work.size(), &partial), 0)
            << gpu->context.error();
    }
    void reach(int i, uint32_t record)
    {
        __atomic_store_n(&lane(i)->reach, record, __ATOMIC_RELEASE);
    }
    uint32_t done(int i)
    {
        uint32_t least = UINT32_MAX;
        for (uint32_t b = 0; b < blocks(); b++)
            least = std::min(least, __atomic_load_n(&lane(i)->done[b], __ATOMIC_ACQUIRE));
        return least;
    }
};
INSTANTIATE_TEST_SUITE_P(Blocks, Staged, testing::Values(1, PHI_STAGE_BLOCKS));

// Each block of a HELP ends by itself: some blocks of a record may be of one launch and the others
// of the next, which has given them other threads. None of its bytes is missing then.
TEST_P(Staged, ARecordWhoseBlocksAreOfTwoLaunches)
{
    if (blocks() == 1)
        GTEST_SKIP() << "a record of one block is of one launch";
    auto *broken = reinterpret_cast<std::atomic<uint32_t> *>(memory + 3 * LANE);
    const auto take = [&](bool odd, CUdeviceptr buffer, size_t threads_for) {
        // The blocks that are not asked find nothing, and give up.
        for (uint32_t b = 0; b < blocks(); b++)
            lane(0)->done[b] = b % 2 != odd;
        phi_work work = step(PHI_STEP_UNSTAGE, 0, buffer, 2 * CHUNK, threads_for);
        work.over.broken = reinterpret_cast<_Atomic uint32_t *>(broken);
        work.over.broken_device = memory_device + 3 * LANE;
        *broken = 1;
        issue({work});
        ASSERT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
    };
    CUdeviceptr buffer = gpu->alloc(2 * CHUNK);
    for (size_t bytes : {700, 1529, 5000, 20000, 65000})
        for (size_t offset : {0, 5})
            for (bool odd : {false, true}) {
                const std::vector<uint8_t> data = Gpu::pattern(bytes, bytes + offset);
                const phi_stage_record what = {offset, (uint32_t)bytes, 1};
                gpu->fill(buffer, 2 * CHUNK, 9);
                memcpy(head(0, 1), &what, sizeof what);
                memcpy(slot(0, 1) + PHI_STAGE_HEAD, data.data(), bytes);
                reach(0, 1);
                ASSERT_NO_FATAL_FAILURE(take(odd, buffer, 64));
                ASSERT_NO_FATAL_FAILURE(take(!odd, buffer, 0)); // any size: as many threads as fit
                EXPECT_EQ(gpu->errors(buffer + offset, bytes, bytes + offset), 0u)
                    << bytes << " bytes at " << offset;
            }
}

// A peer that writes the head of a record while it is taken: whatever the threads of a block see of
// it, all go the same way, and nothing lands outside the buffer.
TEST_P(Staged, AHeadThatChangesAllTheTime)
{
    const size_t bytes = 2 * CHUNK, guard = 4096;
    const int messages = 200;
    CUdeviceptr buffer = gpu->alloc(bytes + 2 * guard);
    gpu->fill(buffer, bytes + 2 * guard, 9);
    std::atomic<bool> stop{false};
    std::thread peer([&] {
        const phi_stage_record heads[] = {{0, CHUNK, 1},        {bytes, CHUNK, 0},
                                          {UINT64_MAX, 16, 1},  {CHUNK, UINT32_MAX, 0},
                                          {CHUNK + 5, 4000, 1}, {bytes - 8, 16, 0}};
        for (uint32_t i = 0; !stop; i++)
            for (uint32_t record = 1; record <= PHI_STAGE_SLOTS; record++)
                memcpy(head(0, record), &heads[(i + record) % 6], sizeof heads[0]);
    });
    reach(0, 1u << 30); // so many records are there
    for (int i = 0; i < messages; i++)
        issue({step(PHI_STEP_UNSTAGE, 0, buffer + guard, bytes, 0)});
    EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
    stop = true;
    peer.join();
    for (uint32_t b = 0; b < blocks(); b++)
        EXPECT_GE(lane(0)->done[b], (uint32_t)messages);
    const std::vector<uint8_t> wanted = Gpu::pattern(bytes + 2 * guard, 9);
    std::vector<uint8_t> found(wanted.size());
    CU_EXPECT(gpu->cu->cuMemcpyDtoH_v2(found.data(), buffer, found.size()));
    EXPECT_EQ(memcmp(found.data(), wanted.data(), guard), 0);
    EXPECT_EQ(memcmp(&found[guard + bytes], &wanted[guard + bytes], guard), 0);
}

// Of what the threads hold of a record when its head comes, and what they fetch then, every byte
// lands in its place, and none beside it. `wish` is what the launch has threads for.
TEST_P(Staged, ARecordOfAnySizeLandsAnywhere)
{
    const size_t room = CHUNK + 16, guard = 64;
    CUdeviceptr buffer = gpu->alloc(room + 2 * guard);
    uint32_t record = 0;
    for (uint32_t bytes : {0u, 1u, 7u, 8u, 9u, 15u, 16u, 17u, 33u, 511u, 512u, 513u, 2047u, 2048u,
                           2049u, 8197u, CHUNK - 1, CHUNK})
        for (uint64_t offset : {0, 1, 4, 8, 15, 16})
            for (size_t wish : {(size_t)0, (size_t)bytes}) {
                gpu->fill(buffer, room + 2 * guard, 3);
                std::vector<uint8_t> wanted = Gpu::pattern(room + 2 * guard, 3),
                                     found(wanted.size());
                const std::vector<uint8_t> data = Gpu::pattern(bytes, 100 + record++);
                std::copy(data.begin(), data.end(), slot(0, record) + PHI_STAGE_HEAD);
                std::copy(data.begin(), data.end(), wanted.begin() + (ptrdiff_t)(guard + offset));
                *head(0, record) = {offset, bytes, 1};
                reach(0, record);
                issue({step(PHI_STEP_UNSTAGE, 0, buffer + guard, room, wish)});
                ASSERT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0)
                    << gpu->context.error();
                ASSERT_EQ(done(0), record);
                CU_EXPECT(gpu->cu->cuMemcpyDtoH_v2(found.data(), buffer, found.size()));
                ASSERT_EQ(found, wanted)
                    << bytes << " bytes at " << offset << ", launched for " << wish;
            }
}

// A short record lies in its line, each word with the record's number; the slot is not touched.
// Then the same line is emptied from there, while `reach` says that nothing has come.
TEST_P(Staged, ShortRecordsByLines)
{
    const size_t room = 64, guard = 64;
    CUdeviceptr source = gpu->alloc(64), buffer = gpu->alloc(room + 2 * guard);
    uint32_t record = 0;
    for (uint64_t skew : {0, 1, 4, 8})
        for (uint32_t bytes = 0; bytes <= PHI_STAGE_SHORT; bytes++) {
            const uint64_t offset = (record * 5) % 40;
            gpu->fill(source, 64, 7 + record);
            gpu->fill(buffer, room + 2 * guard, 3);
            const std::vector<uint8_t> data = Gpu::pattern(64, 7 + record++);
            std::vector<uint8_t> wanted = Gpu::pattern(room + 2 * guard, 3), found(wanted.size());
            *head(0, record) = {123, 456, 789};
            reach(0, record);
            issue({step(PHI_STEP_STAGE, 0, source + skew, offset, bytes)});
            ASSERT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0)
                << gpu->context.error();
            ASSERT_EQ(done(0), record);
            EXPECT_EQ(head(0, record)->offset, 123u);
            const uint64_t *words = lane(0)->lines[(record - 1) % PHI_STAGE_SLOTS].words;
            uint32_t line[PHI_STAGE_LINE_WORDS];
            for (uint32_t i = 0; i < PHI_STAGE_LINE_WORDS; i++) {
                EXPECT_EQ(words[i] >> 32, record);
                line[i] = (uint32_t)words[i];
            }
            phi_stage_record there;
            memcpy(&there, line, sizeof there);
            EXPECT_EQ(there.offset, offset);
            EXPECT_EQ(there.size, bytes);
            EXPECT_EQ(there.last, 1u);
            EXPECT_EQ(memcmp(line + 4, &data[skew], bytes), 0) << bytes << " from " << skew;

            memcpy(lane(1)->lines[(record - 1) % PHI_STAGE_SLOTS].words, words,
                   sizeof lane(1)->lines[0]);
            *head(1, record) = {0, 8, 0}; // not looked at
            std::copy_n(data.begin() + (ptrdiff_t)skew, bytes,
                        wanted.begin() + (ptrdiff_t)(guard + offset));
            issue({step(PHI_STEP_UNSTAGE, 1, buffer + guard, room, 0)});
            ASSERT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0)
                << gpu->context.error();
            EXPECT_EQ(done(1), record);
            CU_EXPECT(gpu->cu->cuMemcpyDtoH_v2(found.data(), buffer, found.size()));
            ASSERT_EQ(found, wanted) << bytes << " bytes at " << offset << " from " << skew;
        }
}

// What a peer says of a short record is not believed either; a line that is not whole, or of
// another record, is none.
TEST_P(Staged, LinesThatLie)
{
    const size_t room = 64, guard = 64;
    CUdeviceptr buffer = gpu->alloc(room + 2 * guard);
    const std::vector<uint8_t> wanted = Gpu::pattern(room + 2 * guard, 3);
    std::vector<uint8_t> found(wanted.size());
    const auto write = [&](uint32_t record, uint32_t number, const phi_stage_record &what,
                           uint32_t words) {
        uint32_t line[PHI_STAGE_LINE_WORDS];
        memset(line, 0xab, sizeof line);
        memcpy(line, &what, sizeof what);
        for (uint32_t i = 0; i < words; i++)
            __atomic_store_n(&lane(0)->lines[(record - 1) % PHI_STAGE_SLOTS].words[i],
                             PHI_STAGE_WORD(number, line[i]), __ATOMIC_RELEASE);
    };
    gpu->fill(buffer, room + 2 * guard, 3);
    uint32_t record = 0;
    for (const phi_stage_record &what : {phi_stage_record{0, 17, 1},
                                         {0, UINT32_MAX, 1},
                                         {64, 1, 1},
                                         {57, 8, 1},
                                         {UINT64_MAX, 2, 1},
                                         {UINT64_MAX - 7, 16, 1},
                                         {1ull << 63, 16, 7},
                                         {5, 65, 1}}) {
        record++;
        write(record, record, what, PHI_STAGE_LINE_WORDS);
        issue({step(PHI_STEP_UNSTAGE, 0, buffer + guard, room, 0)});
        ASSERT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
        EXPECT_EQ(done(0), record);
        CU_EXPECT(gpu->cu->cuMemcpyDtoH_v2(found.data(), buffer, found.size()));
        EXPECT_EQ(found, wanted) << record;
    }
    // All but the last word; then with the number of the record 16 before: what counts is in the
    // slot.
    for (uint32_t words : {PHI_STAGE_LINE_WORDS - 1u, (uint32_t)PHI_STAGE_LINE_WORDS}) {
        record++;
        write(record, words < PHI_STAGE_LINE_WORDS ? record : record - PHI_STAGE_SLOTS, {0, 16, 0},
              words);
        issue({step(PHI_STEP_UNSTAGE, 0, buffer + guard, room, 0)});
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        EXPECT_EQ(done(0), record - 1) << words;
        *head(0, record) = {8, 1, 1};
        slot(0, record)[PHI_STAGE_HEAD] = wanted[guard + 8];
        reach(0, record);
        ASSERT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
        CU_EXPECT(gpu->cu->cuMemcpyDtoH_v2(found.data(), buffer, found.size()));
        EXPECT_EQ(found, wanted) << words;
    }
}

// Every 8 bytes of a line come whole and say the truth of whose they are, both ways over PCIe,
// while they are looked at: by this thread all the time, by the device once it runs, which is
// waited for in half of the rounds. Numbers wrap on the way. PEERHOP_LITMUS_ROUNDS: how often.
TEST_P(Staged, LinesComeWhole)
{
    const char *wish = getenv("PEERHOP_LITMUS_ROUNDS");
    const uint32_t pieces = 256,
                   rounds = wish ? std::max((uint32_t)strtoul(wish, nullptr, 10), 2 * pieces)
                                 : 3 * pieces;
    const uint32_t before = UINT32_MAX - pieces - pieces / 2;
    const auto mix = [](uint32_t record, uint32_t i) { return (record * 8 + i) * 2654435761u; };
    CUdeviceptr source = gpu->alloc(16 * pieces), buffer = gpu->alloc(16 * pieces);
    std::vector<uint32_t> sources(4 * pieces), wanted(4 * pieces), found(4 * pieces);
    for (uint32_t i = 0; i < 4 * pieces; i++)
        sources[i] = mix(i, 5);
    CU_OK(gpu->cu->cuMemcpyHtoD_v2(source, sources.data(), 16 * pieces));
    for (int i = 0; i < 2; i++) {
        reach(i, before);
        for (uint32_t b = 0; b < blocks(); b++)
            lane(i)->done[b] = before;
    }
    for (uint32_t round = 1; round <= rounds; round++) {
        const uint32_t record = before + round, piece = record % pieces;
        const uint64_t offset = (uint64_t)mix(record, 1) << 32 | mix(record, 0);
        uint32_t line[] = {mix(record, 0), mix(record, 1), 16, 1, 0, 0, 0, 0};
        memcpy(&line[4], &sources[4 * piece], 16);
        reach(0, record);
        issue({step(PHI_STEP_STAGE, 0, source + 16 * piece, offset, 16)});
        const uint64_t *out = lane(0)->lines[(record - 1) % PHI_STAGE_SLOTS].words;
        const int64_t deadline = phi_deadline(kWait);
        uint32_t there = 0;
        while (there < PHI_STAGE_LINE_WORDS && phi_now() < deadline) {
            there = 0;
            for (uint32_t i = 0; i < PHI_STAGE_LINE_WORDS; i++) {
                const uint64_t word = __atomic_load_n(&out[i], __ATOMIC_RELAXED);
                if (word >> 32 != record)
                    continue;
                there++;
                ASSERT_EQ((uint32_t)word, line[i]) << record << ", word " << i;
            }
        }
        ASSERT_EQ(there, PHI_STAGE_LINE_WORDS) << record;
        issue({step(PHI_STEP_UNSTAGE, 1, buffer, 16 * pieces, 0)});
        const uint32_t at = 16 * piece;
        const uint32_t in[] = {
            at, 0, 16, 1, mix(record, 4), mix(record, 5), mix(record, 6), mix(record, 7)};
        memcpy(&wanted[at / 4], &in[4], 16);
        const auto pause = [](int64_t ns) {
            for (const int64_t end = phi_now() + ns; phi_now() < end;)
                ;
        };
        pause(round % 2 * 20000);
        for (uint32_t i = 0; i < PHI_STAGE_LINE_WORDS; i++) {
            const uint32_t k = (i * 3 + record) % PHI_STAGE_LINE_WORDS;
            pause((record + i) % 5 == 0 ? record % 4000
                                        : 0); // a poll of the device takes about 1 us
            __atomic_store_n(&lane(1)->lines[(record - 1) % PHI_STAGE_SLOTS].words[k],
                             PHI_STAGE_WORD(record, in[k]), __ATOMIC_RELAXED);
        }
        if (round % pieces != 0 && round != rounds)
            continue;
        ASSERT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
        ASSERT_EQ(done(0), record);
        ASSERT_EQ(done(1), record);
        CU_EXPECT(gpu->cu->cuMemcpyDtoH_v2(found.data(), buffer, 16 * pieces));
        ASSERT_EQ(found, wanted) << record;
    }
}

// Items of one lane in one launch: their records follow one another.
TEST_P(Staged, ItemsOfOneLaneGoOnOneAfterTheOther)
{
    CUdeviceptr buffer = gpu->alloc(3 * CHUNK);
    gpu->fill(buffer, 3 * CHUNK, 4);
    const std::vector<uint8_t> wanted = Gpu::pattern(3 * CHUNK, 4);
    reach(0, PHI_STAGE_SLOTS);
    for (uint32_t round = 0; round < 4; round++) {
        phi_work put = step(PHI_STEP_STAGE, 0, buffer, 1000, CHUNK + 100);
        put.call = PHI_CALL_PUT;
        put.lane.signal = 0;
        issue({put, step(PHI_STEP_STAGE, 0, buffer + CHUNK + 100, 2000, CHUNK)});
        ASSERT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
        ASSERT_EQ(done(0), 3 * (round + 1));
        const phi_stage_record heads[] = {
            {1000, CHUNK, 0}, {1000 + CHUNK, 100, 0}, {2000, CHUNK, 1}};
        size_t at = 0;
        for (uint32_t i = 0; i < 3; i++) {
            const uint32_t record = 3 * round + 1 + i;
            EXPECT_EQ(head(0, record)->offset, heads[i].offset) << record;
            EXPECT_EQ(head(0, record)->size, heads[i].size) << record;
            EXPECT_EQ(head(0, record)->last, heads[i].last) << record;
            EXPECT_EQ(memcmp(slot(0, record) + PHI_STAGE_HEAD, &wanted[at], heads[i].size), 0);
            at += heads[i].size;
        }
    }
}

// A bell that nobody will look at is not rung, and one that was rung while the link ended does not
// land: both break the channel.
TEST_P(Staged, BellsAtTheEndOfTheirLink)
{
    const size_t at = 3 * LANE;
    auto *broken = reinterpret_cast<uint32_t *>(memory + at);
    const auto run = [&](uint8_t kind) {
        phi_work work = step(kind, 0, gpu->alloc(64), 0, 64);
        work.lane.peer = PHI_BELL(0, 0, 0);
        work.lane.signal = PHI_BELL_COPY;
        work.over.broken_device = memory_device + at;
        *broken = 0;
        issue({work});
        EXPECT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
        return *broken;
    };
    reach(0, PHI_STAGE_SLOTS);
    EXPECT_EQ(run(PHI_STEP_BELL), 0u);
    EXPECT_EQ(lane(0)->done[0], 1u);
    reach(0, 1 + PHI_STAGE_SLOTS);
    EXPECT_EQ(run(PHI_STEP_LAND), 0u);
    reach(0, 1 + PHI_BELLS_ENDED);
    EXPECT_EQ(run(PHI_STEP_LAND), 0u) << "the net has taken note of it";
    EXPECT_NE(run(PHI_STEP_BELL), 0u);
    EXPECT_EQ(lane(0)->done[0], 1u);
    lane(0)->done[0] = 2;
    EXPECT_NE(run(PHI_STEP_LAND), 0u);
}

// While a STAGE waits for slots a HELP takes what comes, to the end of its message and no further;
// the UNSTAGE, in a later operation, finds it done. Without a message's end the HELP ends with the
// STAGE.
TEST_P(Staged, AHelpTakesWhileAStageWaits)
{
    const size_t large = (PHI_STAGE_SLOTS + 2) * CHUNK;
    CUdeviceptr out = gpu->alloc(large), in = gpu->alloc(4 * CHUNK);
    uint32_t filled = 0, taken = 0;
    for (int round = 0; round < 3; round++) {
        const bool whole = round != 1; // of three records; else of one, and two later
        reach(0, filled + PHI_STAGE_SLOTS);
        // The fourth is of the next message, and by the next round it may be taken at once.
        for (uint32_t i = 1; i <= 4; i++) {
            *head(1, taken + i) = {(i - 1) * CHUNK, CHUNK, i == 3};
            memset(slot(1, taken + i) + PHI_STAGE_HEAD, 16 * round + i, CHUNK);
        }
        phi_work stage = step(PHI_STEP_STAGE, 0, out, 0, large);
        stage.together = 2;
        issue({stage, step(PHI_STEP_HELP, 1, in, 4 * CHUNK, 0)});
        issue({step(PHI_STEP_UNSTAGE, 1, in, 4 * CHUNK, 0)});
        reach(1, taken + (whole ? 4 : 1));
        const int64_t deadline = phi_deadline(kWait);
        while ((done(1) < taken + (whole ? 3 : 1) || done(0) < filled + PHI_STAGE_SLOTS) &&
               phi_now() < deadline)
            std::this_thread::yield();
        EXPECT_EQ(done(1), taken + (whole ? 3 : 1)) << "a HELP did not go on";
        EXPECT_EQ(done(0), filled + PHI_STAGE_SLOTS);
        filled += PHI_STAGE_SLOTS + 2;
        reach(0, filled);
        reach(1, taken + 4);
        ASSERT_EQ(executor->ops->flush(executor, phi_deadline(kWait)), 0) << gpu->context.error();
        EXPECT_EQ(done(0), filled);
        EXPECT_EQ(done(1), taken += 3);
        for (uint32_t b = 0; b < blocks(); b++)
            EXPECT_EQ(lane(1)->over[b], 0u);
        std::vector<uint8_t> found(3 * CHUNK);
        CU_EXPECT(gpu->cu->cuMemcpyDtoH_v2(found.data(), in, found.size()));
        for (uint32_t i = 1; i <= 3; i++) {
            EXPECT_EQ(found[(i - 1) * CHUNK], 16 * round + i);
            EXPECT_EQ(found[i * CHUNK - 1], 16 * round + i);
        }
    }
}

} // namespace
