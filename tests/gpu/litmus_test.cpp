// SPDX-License-Identifier: BSD-3-Clause
// That a kernel after a wait sees what was copied before the word was written is not promised by
// CUDA where the device cannot flush remote writes: this stands for it. A producer kernel, the put
// or get program with a copy of either method, waits of either mode, and a checking kernel of which
// every multiprocessor runs a block and reads every byte.
//
// And of the lanes, whose flags are ours alone: each message of ll and sm, one way and both ways at
// once, with numbers that wrap.
//
// And of copies that carry no message, and what tells of them afterwards: each into memory that its
// device has never stored to. That part watches: without the fence of phi_copies the stand-in ends
// it, but no GPU has failed it, for both ends are in one process. The stores that did come late
// went to another process (tests/e2e/first_touch_test.cpp).
//
// PEERHOP_LITMUS_ROUNDS: rounds of all cases of a suite together, by default few.
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "support/gpu.h"
#include "support/patience.h"

extern "C" {
#include "semaphore/executor.h"
#include "semaphore/flags.h"
#include "semaphore/record.h"
}

namespace
{

const size_t SIZES[] = {8, 64, 4096, 65536, 1 << 20};
const int CASES = 2 * 2 * 2;

// One rank's end: device, executor, buffer, stream.
struct End {
    std::unique_ptr<Gpu> gpu;
    phi_executor *executor = nullptr;
    CUstream stream = nullptr;
    CUdeviceptr buffer = 0;
    CUfunction fill = nullptr, verify = nullptr;
    uint64_t words_device = 0;

    ~End()
    {
        if (executor)
            executor->ops->close(executor);
        if (stream)
            gpu->cu->cuStreamDestroy_v2(stream);
    }
    void enter()
    {
        gpu->cu->cuCtxSetCurrent(phi_device_context(gpu->device));
    }
};

// Rounds of each of so many cases.
uint64_t share_of_rounds(uint64_t cases)
{
    const char *text = getenv("PEERHOP_LITMUS_ROUNDS");
    const uint64_t all = text ? strtoull(text, nullptr, 10) : 4000;
    return all / cases + 1;
}

// Two ends in one process, on two devices that reach each other or on one.
class TwoEnds : public testing::Test
{
  protected:
    enum { TURN, BROKEN };
    End ends[2];
    int devices = 1;
    uint32_t *words = nullptr;
    uint64_t *errors = nullptr;
    uint64_t errors_device = 0;
    phi_uses uses{};

    void begin(const std::string &wait, const std::string &method, bool one_device = false)
    {
        const std::string settings[] = {"PEERHOP_WAIT=" + wait, "PEERHOP_METHOD=" + method};
        const char *texts[] = {settings[0].c_str(), settings[1].c_str(), nullptr};
        ends[0].gpu.reset(new Gpu(0, texts));
        if (!ends[0].gpu->ok() || !ends[0].gpu->has_test_kernels())
            GTEST_SKIP() << "needs a CUDA device and kernels";
        if (!one_device)
            ends[1].gpu.reset(new Gpu(1, texts));
        devices = !one_device && ends[1].gpu->ok() ? 2 : 1;
        if (devices == 1)
            ends[1].gpu.reset(new Gpu(0, texts));
        for (End &end : ends)
            ASSERT_NO_FATAL_FAILURE(open(end));
        if (devices == 2) {
            ASSERT_NO_FATAL_FAILURE(let_in());
        }
    }
    void open(End &end)
    {
        Gpu &gpu = *end.gpu;
        end.enter();
        phi_executor_params params{&gpu.context.report, &gpu.context.counters, &gpu.context.config};
        ASSERT_EQ(phi_cuda_executor_open(&params, gpu.device, &end.executor), 0)
            << gpu.context.error();
        CU_OK(gpu.cu->cuStreamCreate(&end.stream, CU_STREAM_NON_BLOCKING));
        end.buffer = gpu.alloc(3 * SIZES[4]);
        end.fill = gpu.test_kernel("phi_test_fill");
        end.verify = gpu.test_kernel("phi_test_verify");
        if (words == nullptr) {
            // Registered as portable memory: both devices see it at this address.
            words = static_cast<uint32_t *>(gpu.words(&end.words_device));
            errors = reinterpret_cast<uint64_t *>(words + 64);
            errors_device = end.words_device + 256;
        }
    }
    void let_in()
    {
        for (int i = 0; i < 2; i++) {
            ends[i].enter();
            CUresult result = ends[i].gpu->cu->cuCtxEnablePeerAccess(
                phi_device_context(ends[1 - i].gpu->device), 0);
            if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
                GTEST_SKIP() << "the two devices do not reach each other";
        }
    }
    void issue(int end, const std::vector<phi_work> &work)
    {
        bool partial;
        ASSERT_EQ(ends[end].executor->ops->issue(ends[end].executor, ends[end].stream, work.data(),
                                                 work.size(), &partial),
                  0)
            << ends[end].gpu->context.error();
    }
    void launch(int end, CUfunction function, size_t size, uint64_t seed, size_t offset = 0)
    {
        ends[end].enter();
        test_pattern_args args{ends[end].buffer + offset, size, seed, 0, errors_device};
        void *params[] = {&args};
        const unsigned blocks = (unsigned)ends[end].gpu->info().multiprocessors;
        CU_OK(ends[end].gpu->cu->cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0,
                                                ends[end].stream, params, nullptr));
    }
    void finish(size_t size, uint64_t seed)
    {
        for (End &end : ends) {
            ASSERT_EQ(end.executor->ops->flush(end.executor, phi_deadline(3 * kWait)), 0)
                << end.gpu->context.error();
            end.enter();
            CU_OK(end.gpu->cu->cuStreamSynchronize(end.stream));
        }
        ASSERT_EQ(*errors, 0u) << "stale bytes of " << size << " by round " << seed;
    }
    // The test can fail: with other bytes expected, every block of the checking kernel says so.
    void expect_that_it_can_fail(uint64_t seed)
    {
        launch(1, ends[1].verify, 8, seed);
        CU_OK(ends[1].gpu->cu->cuStreamSynchronize(ends[1].stream));
        EXPECT_GT(*errors, 0u);
    }
};

using Case = std::tuple<const char *, const char *, bool>; // wait, method, get

class Litmus : public TwoEnds, public testing::WithParamInterface<Case>
{
  protected:
    void SetUp() override
    {
        begin(std::get<0>(GetParam()), std::get<1>(GetParam()));
    }
    phi_work step(uint8_t kind, uint32_t bit = 0)
    {
        phi_work work{};
        work.kind = kind;
        work.word.value = bit;
        work.word.host = &words[TURN];
        work.word.device = ends[0].words_device + 4 * TURN;
        work.uses = &uses;
        return work;
    }
    // The sender is end 0. Everything of a round is enqueued, nothing is waited for by the host.
    void round(size_t size, uint64_t seed)
    {
        const bool get = std::get<2>(GetParam());
        const int active = get ? 1 : 0, passive = 1 - active;
        phi_work copy = step(PHI_STEP_COPY);
        copy.span.destination = reinterpret_cast<void *>(ends[1].buffer);
        copy.span.source = reinterpret_cast<void *>(ends[0].buffer);
        copy.span.size = size;
        launch(0, ends[0].fill, size, seed);
        issue(passive, {step(PHI_STEP_POST, PHI_BIT_READY)});
        issue(active,
              {step(PHI_STEP_WAIT, PHI_BIT_READY), copy, step(PHI_STEP_POST, PHI_BIT_FULL)});
        issue(passive, {step(PHI_STEP_WAIT, PHI_BIT_FULL)});
        launch(1, ends[1].verify, size, seed);
    }
};

TEST_P(Litmus, CheckingKernelSeesTheCopy)
{
    const uint64_t rounds = share_of_rounds(CASES * (sizeof SIZES / sizeof SIZES[0]));
    for (size_t size : SIZES) {
        for (uint64_t seed = 1; seed <= rounds; seed++) {
            ASSERT_NO_FATAL_FAILURE(round(size, seed));
            if (seed % 50 == 0 || seed == rounds) {
                ASSERT_NO_FATAL_FAILURE(finish(size, seed));
            }
        }
    }
    expect_that_it_can_fail(rounds + 1);
    RecordProperty("devices", devices);
    RecordProperty("rounds", (int)(rounds * 5));
}

INSTANTIATE_TEST_SUITE_P(Order, Litmus,
                         testing::Combine(testing::Values("kernel", "memory_operation"),
                                          testing::Values("ce", "copy_kernel"), testing::Bool()),
                         [](const auto &info) {
                             return std::string(std::get<0>(info.param)) + "_" +
                                    std::get<1>(info.param) +
                                    (std::get<2>(info.param) ? "_get" : "_put");
                         });

// ---- lanes

using Lane = std::tuple<const char *, bool, bool>; // method, signal, both ways at once

class Lanes : public TwoEnds, public testing::WithParamInterface<Lane>
{
  protected:
    const size_t MOST = SIZES[4], IN = MOST; // where an end's data arrives in its buffer
    CUdeviceptr slabs[2] = {};

    bool lines() const
    {
        return std::get<0>(GetParam()) == std::string("ll");
    }
    bool signal() const
    {
        return std::get<1>(GetParam());
    }
    phi_word word() const
    {
        return signal() ? PHI_WORD_NOTE : PHI_WORD_TURN;
    }
    void SetUp() override
    {
        begin("kernel", std::get<0>(GetParam()));
        for (int end = 0; end < 2 && !IsSkipped(); end++) {
            ends[end].enter();
            slabs[end] = ends[end].gpu->alloc(phi_flag_size(PHI_FLAG_BASE));
            std::vector<uint8_t> image(phi_flag_size(PHI_FLAG_BASE));
            for (int sender = 0; sender < 2; sender++)
                lane(image, sender)->go = lane(image, sender)->allowed = signal();
            ends[end].gpu->write(slabs[end], image.data(), image.size());
        }
    }
    struct phi_flag_lane *lane(std::vector<uint8_t> &image, int sender) const
    {
        return reinterpret_cast<struct phi_flag_lane *>(&image[phi_flag_lane(0, sender, word())]);
    }
    // The numbers of lines, as if so many messages had passed.
    void set_numbers(int sender, uint32_t passed)
    {
        for (int end = 0; end < 2; end++) {
            const uint32_t numbers[] = {passed, passed, passed}; // pushed, credit, taken
            ends[end].enter();
            ends[end].gpu->write(slabs[end] + phi_flag_lane(0, sender, word()), numbers,
                                 sizeof numbers);
        }
    }
    // A signal says nothing of the buffer: the next one's data may come while this one's is
    // checked.
    size_t place(uint64_t round) const
    {
        return signal() ? round % 2 * MOST : 0;
    }
    phi_work step(uint8_t kind, int end, int sender, size_t size, uint64_t round)
    {
        phi_work work{};
        work.kind = kind;
        work.call = PHI_CALL_TRANSFER;
        work.lane.own = slabs[end] + phi_flag_lane(0, sender, word());
        work.lane.peer = slabs[!end] + phi_flag_lane(0, sender, word());
        work.lane.signal = signal();
        work.span.size = size;
        work.over.broken = &words[BROKEN];
        work.over.broken_device = ends[0].words_device + 4 * BROKEN;
        work.uses = &uses;
        work.span.source = reinterpret_cast<void *>(ends[sender].buffer);
        work.span.destination = reinterpret_cast<void *>(
            ends[!sender].buffer + IN + (kind == PHI_STEP_MOVE ? place(round) : 0));
        const bool by_lines = kind == PHI_STEP_PUSH || kind == PHI_STEP_TAKE;
        work.lane.wide = by_lines && !signal() && phi_flag_is_wide(PHI_WIDE_PIECE, size);
        if (kind == PHI_STEP_PUSH || kind == PHI_STEP_TAKE)
            work.lane.slots = slabs[!sender] +
                              (work.lane.wide ? phi_flag_wide_slots(0) : phi_flag_slots(0, word()));
        work.lane.offset = kind == PHI_STEP_TAKE   ? 2 * MOST
                           : kind == PHI_STEP_MOVE ? 1
                                                   : place(round);
        if (kind == PHI_STEP_PUSH && work.lane.wide)
            work.lane.offset = slabs[!sender] + phi_flag_slots(0, word());
        return work;
    }
    // What an end does for a message of `sender`, before and after the sender's part.
    void let(int end, int sender, size_t size, uint64_t round, std::vector<phi_work> *work)
    {
        if (!lines() && !signal())
            work->push_back(step(PHI_STEP_GO, end, sender, size, round));
    }
    void give(int end, int sender, size_t size, uint64_t round, std::vector<phi_work> *work)
    {
        work->push_back(step(lines() ? PHI_STEP_PUSH : PHI_STEP_MOVE, end, sender, size, round));
    }
    void take(int end, int sender, size_t size, uint64_t round, std::vector<phi_work> *work)
    {
        work->push_back(step(lines() ? PHI_STEP_TAKE : PHI_STEP_ARRIVE, end, sender, size, round));
    }
    static uint64_t seed_of(int sender, uint64_t round)
    {
        return 2 * round + (uint64_t)sender;
    }
    void one_way(size_t size, uint64_t round)
    {
        std::vector<phi_work> first, second, last;
        let(1, 0, size, round, &first);
        give(0, 0, size, round, &second);
        take(1, 0, size, round, &last);
        launch(0, ends[0].fill, size, seed_of(0, round));
        if (!first.empty())
            issue(1, first);
        issue(0, second);
        issue(1, last);
        launch(1, ends[1].verify, size, seed_of(0, round), IN + place(round));
    }
    // Each end has one launch for both messages.
    void both_ways(size_t size, uint64_t round)
    {
        for (int end = 0; end < 2; end++) {
            std::vector<phi_work> all;
            launch(end, ends[end].fill, size, seed_of(end, round));
            let(end, !end, size, round, &all);
            give(end, end, size, round, &all);
            take(end, !end, size, round, &all);
            issue(end, all);
            launch(end, ends[end].verify, size, seed_of(!end, round), IN + place(round));
        }
    }
};

TEST_P(Lanes, CheckingKernelSeesTheMessage)
{
    const std::vector<size_t> sizes =
        !lines()   ? std::vector<size_t>{8, 4096, 65536, IN}
        : signal() ? std::vector<size_t>{8, 64, 4096, 8192}
                   : std::vector<size_t>{8, 2049, 4096, 8192, 16400, 65536, PHI_WIDE_PIECE};
    const uint64_t share = share_of_rounds(8 * sizes.size());
    for (size_t size : sizes) {
        const uint64_t rounds = size == MOST ? share / 8 + 1 : share;
        for (uint64_t round = 1; round <= rounds; round++) {
            ASSERT_NO_FATAL_FAILURE(std::get<2>(GetParam()) ? both_ways(size, round)
                                                            : one_way(size, round));
            if (round % 50 == 0 || round == rounds) {
                ASSERT_NO_FATAL_FAILURE(finish(size, round));
            }
        }
    }
    expect_that_it_can_fail(0);
    RecordProperty("devices", devices);
    RecordProperty("rounds", (int)(share * sizes.size()));
}

class Lines : public Lanes
{
  protected:
    void small_messages(uint32_t passed, int n)
    {
        set_numbers(0, passed);
        for (int i = 0; i < n; i++) {
            one_way(8, (uint64_t)i);
            ASSERT_NO_FATAL_FAILURE(finish(8, (uint64_t)i));
        }
    }
    // The number that the last line of a slot holds.
    uint32_t last_line(uint32_t slot)
    {
        uint32_t line[4];
        ends[1].enter();
        CU_EXPECT(ends[1].gpu->cu->cuMemcpyDtoH_v2(
            line, slabs[1] + phi_flag_slots(0, word()) + (slot + 1) * PHI_LL_SLOT - sizeof line,
            sizeof line));
        EXPECT_EQ(line[1], line[3]);
        return line[1];
    }
};

// Lines that no message has reached would hold the number of one that is 2^32 messages later: all
// of a slot are written long before.
TEST_P(Lines, NumbersComeRound)
{
    small_messages(3u * PHI_LL_REFRESH - 2, 6);
    EXPECT_EQ(last_line(0), 3u * PHI_LL_REFRESH);
    EXPECT_EQ(last_line(1), 3u * PHI_LL_REFRESH + 1);
    small_messages(0u - 3, 2); // up to the last number
    EXPECT_EQ(last_line(0), 3u * PHI_LL_REFRESH);
    const size_t most = signal() ? PHI_LL_PIECE : PHI_WIDE_LEAST;
    one_way(most, 3);
    one_way(most, 4);
    finish(most, 3);
    EXPECT_EQ(last_line(0), 0u);
    EXPECT_EQ(last_line(1), 1u);
}

// ... also where the messages with such numbers are wide.
TEST_P(Lines, WideMessagesRefreshSmallSlots)
{
    if (signal())
        GTEST_SKIP() << "signals are never wide";
    for (size_t size : {3000, 100000}) {
        set_numbers(0, 3u * PHI_LL_REFRESH - 2);
        for (uint64_t round = 0; round < 2; round++)
            one_way(size, round);
        finish(size, 1);
        EXPECT_EQ(last_line(0), 3u * PHI_LL_REFRESH);
        EXPECT_NE(last_line(1), 3u * PHI_LL_REFRESH + 1);
        one_way(size, 2);
        finish(size, 2);
        EXPECT_EQ(last_line(1), 3u * PHI_LL_REFRESH + 1);
        for (uint64_t round = 3; round < 8; round++)
            one_way(round % 2 ? 8 : 2048, round);
        finish(8, 7);
        set_numbers(0, 2u * PHI_LL_REFRESH - 2); // other numbers for the other size
        small_messages(2u * PHI_LL_REFRESH - 2, 4);
    }
}

// Wide messages and others take turns on one lane: each kind has its own slots and numbers, and all
// have one credit. Numbers of wide ones are of 64 bits.
TEST_P(Lines, WideAndOthersTakeTurns)
{
    if (signal())
        GTEST_SKIP() << "signals are never wide";
    const uint64_t wide[] = {UINT32_MAX - 3ull, UINT32_MAX - 3ull};
    for (int end = 0; end < 2; end++) {
        ends[end].enter();
        ends[end].gpu->write(slabs[end] + phi_flag_lane(0, 0, word()) +
                                 offsetof(struct phi_flag_lane, wide_pushed),
                             wide, sizeof wide);
    }
    set_numbers(0, 0u - 5);
    for (uint64_t round = 1; round <= 40; round++) {
        const size_t size = round % 5 < 2 ? 100 : round % 3 ? 3000 : 40000;
        ASSERT_NO_FATAL_FAILURE(one_way(size, round));
        if (round % 4 == 0) {
            ASSERT_NO_FATAL_FAILURE(finish(size, round));
        }
    }
    struct phi_flag_lane lane;
    ends[1].enter();
    CU_EXPECT(ends[1].gpu->cu->cuMemcpyDtoH_v2(&lane, slabs[1] + phi_flag_lane(0, 0, word()),
                                               sizeof lane));
    EXPECT_EQ(lane.taken, 35u);
    EXPECT_EQ(lane.wide_taken, UINT32_MAX - 3ull + 24);
}

// A step that gave up its wait, all its blocks or some, has counted nothing: the message is pushed
// and taken later.
TEST_P(Lines, WhatIsGivenUpIsNotCounted)
{
    const size_t size = phi_flag_piece(!signal());
    const auto lane_of = [&](int end) {
        struct phi_flag_lane lane;
        ends[end].enter();
        CU_EXPECT(ends[end].gpu->cu->cuMemcpyDtoH_v2(
            &lane, slabs[end] + phi_flag_lane(0, 0, word()), offsetof(struct phi_flag_lane, full)));
        return lane;
    };
    const auto give_up = [&](int end, uint8_t kind, uint64_t round) {
        words[BROKEN] = 1;
        issue(end, {step(kind, end, 0, size, round)});
        finish(size, round);
        EXPECT_EQ(words[BROKEN], PHI_GIVEN_UP);
        words[BROKEN] = 0;
    };
    one_way(size, 1);
    finish(size, 1);
    give_up(1, PHI_STEP_TAKE, 2);
    EXPECT_EQ(lane_of(1).taken, 1u);
    EXPECT_EQ(lane_of(1).taking, 0u);

    // The lines of the first blocks are there, and no others.
    issue(0, {step(PHI_STEP_PUSH, 0, 0, size / 16, 2)});
    finish(size, 2);
    give_up(1, PHI_STEP_TAKE, 2);
    EXPECT_EQ(lane_of(1).taken, 1u);
    EXPECT_EQ(lane_of(1).taking, 0u);

    // It is taken as what it was sent as. Its credit is given with the next take: one more may go.
    issue(1, {step(PHI_STEP_TAKE, 1, 0, size / 16, 2)});
    finish(size, 2);
    EXPECT_EQ(lane_of(1).taken, 2u);
    issue(0, {step(PHI_STEP_PUSH, 0, 0, size, 3)});
    finish(size, 3);
    give_up(0, PHI_STEP_PUSH, 4);
    EXPECT_EQ(lane_of(0).leaving, 0u);
    EXPECT_EQ(lane_of(0).pushed, 3u);
    issue(1, {step(PHI_STEP_TAKE, 1, 0, size, 3)});
    one_way(size, 5);
    finish(size, 5);
    EXPECT_EQ(lane_of(0).pushed, 4u);
    EXPECT_EQ(lane_of(1).taken, 4u);
}

// ---- the first store to a page

using Touch =
    std::tuple<const char *, const char *, bool, bool>; // what, told by, captured, one device

class FirstTouch : public TwoEnds, public testing::WithParamInterface<Touch>
{
  protected:
    enum { FRESH = 2 << 20, SHARE = 4 * 64 * 6 }; // no smaller mapping has pages of its own
    CUdeviceptr slabs[2] = {};
    CUdeviceptr range = 0, mapped = 0; // addresses, and how much of them has been used
    size_t range_size = 0;
    CUmemGenericAllocationHandle fresh = 0;
    uint64_t seed_ = 0; // of the round

    bool what(const char *text) const
    {
        return std::get<0>(GetParam()) == std::string(text);
    }
    bool told_by(const char *text) const
    {
        return std::get<1>(GetParam()) == std::string(text);
    }
    bool captured() const
    {
        return std::get<2>(GetParam());
    }
    void SetUp() override
    {
        begin(told_by("memory") ? "memory_operation" : "kernel",
              what("engine")   ? "ce"
              : what("kernel") ? "copy_kernel"
                               : "auto",
              std::get<3>(GetParam()));
        if (IsSkipped())
            return;
        if (!std::get<3>(GetParam()) && devices == 1)
            GTEST_SKIP() << "needs two devices";
        range_size = (size_t)FRESH * 6 * share_of_rounds(SHARE);
        CU_OK(ends[1].gpu->cu->cuMemAddressReserve(&range, range_size, 0, 0, 0));
        for (int end = 0; end < 2; end++) {
            const std::vector<uint8_t> image(phi_flag_size(PHI_FLAG_BASE));
            ends[end].enter();
            slabs[end] = ends[end].gpu->alloc(phi_flag_size(PHI_FLAG_BASE));
            ends[end].gpu->write(slabs[end], image.data(), image.size());
        }
    }
    void TearDown() override
    {
        if (IsSkipped())
            return;
        const phi_driver *cu = ends[1].gpu->cu;
        forget();
        CU_EXPECT(cu->cuMemAddressFree(range, range_size));
    }
    void forget()
    {
        const phi_driver *cu = ends[1].gpu->cu;
        if (fresh == 0)
            return;
        CU_EXPECT(cu->cuMemUnmap(range + mapped - FRESH, FRESH));
        CU_EXPECT(cu->cuMemRelease(fresh));
        fresh = 0;
    }
    // ends[1].buffer is memory, at an address, that no device has stored to.
    void renew()
    {
        const phi_driver *cu = ends[1].gpu->cu;
        CUmemAllocationProp prop = {};
        CUmemAccessDesc access[2] = {};
        ends[1].enter();
        forget();
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, ends[1].gpu->info().ordinal};
        for (int end = 0; end < 2; end++) {
            access[end].location = {CU_MEM_LOCATION_TYPE_DEVICE, ends[end].gpu->info().ordinal};
            access[end].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        }
        CU_OK(cu->cuMemCreate(&fresh, FRESH, &prop, 0));
        CU_OK(cu->cuMemMap(range + mapped, FRESH, 0, fresh, 0));
        CU_OK(cu->cuMemSetAccess(range + mapped, FRESH, access, devices));
        ends[1].buffer = range + mapped;
        mapped += FRESH;
    }
    phi_work step(uint8_t kind)
    {
        phi_work work{};
        work.kind = kind;
        work.over.broken = &words[BROKEN];
        work.over.broken_device = ends[0].words_device + 4 * BROKEN;
        work.uses = &uses;
        return work;
    }
    // A group is five copies of parts.
    std::vector<phi_work> copies(size_t size, size_t offset)
    {
        const size_t parts = what("group") ? 5 : 1;
        std::vector<phi_work> all;
        for (size_t i = 0; i < parts; i++) {
            const size_t from = size * i / parts, end = size * (i + 1) / parts;
            all.push_back(step(PHI_STEP_COPY));
            all.back().span.source = reinterpret_cast<void *>(ends[0].buffer + offset + from);
            all.back().span.destination = reinterpret_cast<void *>(ends[1].buffer + offset + from);
            all.back().span.size = end - from;
        }
        return all;
    }
    void store(size_t size, size_t offset)
    {
        const CUdeviceptr own = ends[0].buffer;
        ends[0].buffer = ends[1].buffer;
        launch(0, ends[0].fill, size, seed_, offset);
        ends[0].buffer = own;
    }
    phi_work signal(int end)
    {
        if (!told_by("line")) {
            phi_work work = step(end == 0 ? PHI_STEP_POST : PHI_STEP_WAIT);
            work.word.value = PHI_BIT_NOTED;
            work.word.host = &words[TURN];
            work.word.device = ends[0].words_device + 4 * TURN;
            return work;
        }
        phi_work work = step(end == 0 ? PHI_STEP_PUSH : PHI_STEP_TAKE);
        work.lane.own = slabs[end] + phi_flag_lane(0, 0, PHI_WORD_NOTE);
        work.lane.peer = slabs[!end] + phi_flag_lane(0, 0, PHI_WORD_NOTE);
        work.lane.slots = slabs[1] + phi_flag_slots(0, PHI_WORD_NOTE);
        work.lane.signal = 1;
        work.lane.fence_before = what("store");
        return work;
    }
    // A store is the application's: its kernel fills the other end's memory itself.
    void give(size_t size, size_t offset)
    {
        if (what("store"))
            store(size, offset);
        else
            issue(0, copies(size, offset));
        if (!told_by("number"))
            issue(0, {signal(0)});
    }
    void give_captured(size_t size, size_t offset, CUgraphExec *exec)
    {
        const phi_driver *cu = ends[0].gpu->cu;
        CUgraph graph;
        ends[0].enter();
        CU_OK(cu->cuStreamBeginCapture_v2(ends[0].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        give(size, offset);
        CU_OK(cu->cuStreamEndCapture(ends[0].stream, &graph));
        CU_OK(cu->cuGraphInstantiateWithFlags(exec, graph, 0));
        CU_OK(cu->cuGraphDestroy(graph));
        CU_OK(cu->cuGraphLaunch(*exec, ends[0].stream));
    }
    void await()
    {
        phi_executor *executor = ends[0].executor;
        const int64_t deadline = phi_deadline(kWait);
        if (!told_by("number")) {
            issue(1, {signal(1)});
            return;
        }
        while (!executor->ops->drained(executor, &uses, nullptr, 0))
            ASSERT_LT(phi_now(), deadline) << "no number came";
    }
    void round(size_t size, size_t offset, uint64_t seed)
    {
        CUgraphExec exec = nullptr;
        words[TURN] = 0;
        seed_ = seed;
        ASSERT_NO_FATAL_FAILURE(renew());
        if (!what("store")) {
            launch(0, ends[0].fill, size, seed, offset);
        }
        if (captured())
            give_captured(size, offset, &exec);
        else
            give(size, offset);
        await();
        launch(1, ends[1].verify, size, seed, offset);
        // First: nobody waits for the end that copied, and so makes it finish what it has stored.
        CU_OK(ends[1].gpu->cu->cuStreamSynchronize(ends[1].stream));
        if (exec) {
            CU_OK(ends[0].gpu->cu->cuStreamSynchronize(ends[0].stream));
            CU_OK(ends[0].gpu->cu->cuGraphExecDestroy(exec)); // a flush waits for live graphs
        }
        finish(size, seed);
    }
};

TEST_P(FirstTouch, WhatTellsOfACopyComesBehindIt)
{
    const size_t sizes[] = {1, 29, 960, 2047, 4096, 65536};
    const uint64_t rounds = share_of_rounds(SHARE);
    for (uint64_t seed = 1; seed <= rounds; seed++)
        for (size_t size : sizes) {
            ASSERT_NO_FATAL_FAILURE(
                round(size, 16 * (seed % 7) + (size < 4096 ? seed % 3 : 0), seed));
        }
    expect_that_it_can_fail(rounds + 1);
    RecordProperty("rounds", (int)(rounds * 6));
}

std::string name_of_touch(const testing::TestParamInfo<Touch> &info)
{
    return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param) +
           (std::get<2>(info.param) ? "_captured" : "_eager") +
           (std::get<3>(info.param) ? "_one_device" : "");
}

INSTANTIATE_TEST_SUITE_P(Eager, FirstTouch,
                         testing::Combine(testing::Values("put", "group", "kernel", "engine"),
                                          testing::Values("line", "word", "memory", "number"),
                                          testing::Values(false), testing::Bool()),
                         name_of_touch);
INSTANTIATE_TEST_SUITE_P(Stores, FirstTouch,
                         testing::Combine(testing::Values("store"), testing::Values("line"),
                                          testing::Bool(), testing::Bool()),
                         name_of_touch);
// What is captured has no number.
INSTANTIATE_TEST_SUITE_P(Captured, FirstTouch,
                         testing::Combine(testing::Values("put", "group", "kernel", "engine"),
                                          testing::Values("line", "word", "memory"),
                                          testing::Values(true), testing::Bool()),
                         name_of_touch);

// A launch may leave its number to the one behind it. Where that waits for a peer that says
// nothing, the number is told all the same.
TEST_P(Lines, WhatWaitsForLongTellsTheNumberThatWasLeftToIt)
{
    const phi_executor_ops *ops = ends[0].executor->ops;
    for (size_t size : {(size_t)8, phi_flag_piece(!signal())}) {
        phi_progress before{}, progress{};
        phi_wait_note note;
        one_way(size, 1);
        finish(size, 1);
        ASSERT_TRUE(ops->progress(ends[0].executor, 0, &before, &note));
        issue(0, {step(PHI_STEP_PUSH, 0, 0, size, 2)});
        issue(0, {step(PHI_STEP_TAKE, 0, 1, size, 2)});
        const int64_t deadline = phi_deadline(kWait);
        do {
            ASSERT_TRUE(ops->progress(ends[0].executor, 0, &progress, &note));
            ASSERT_LT(phi_now(), deadline) << progress.done << " of " << progress.issued;
        } while (progress.done < before.issued + 1);
        EXPECT_EQ(progress.issued, before.issued + 2);
        words[BROKEN] = 1;
        issue(1, {step(PHI_STEP_TAKE, 1, 0, size, 2)}); // which is there
        finish(size, 2);
        words[BROKEN] = 0;
    }
}

std::string name_of(const testing::TestParamInfo<Lane> &info)
{
    return std::string(std::get<0>(info.param)) + (std::get<1>(info.param) ? "_signal" : "_send") +
           (std::get<2>(info.param) ? "_both_ways" : "_one_way");
}

INSTANTIATE_TEST_SUITE_P(Order, Lanes,
                         testing::Combine(testing::Values("ll", "sm"), testing::Bool(),
                                          testing::Bool()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Order, Lines,
                         testing::Combine(testing::Values("ll"), testing::Bool(),
                                          testing::Values(false)),
                         name_of);

} // namespace
