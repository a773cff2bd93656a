// SPDX-License-Identifier: BSD-3-Clause
// Device channels: programs of kernels at both ends, or at one end with stream calls at the other.
// On the stand-in the same functions run on threads, on its memory.
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "e2e/bytes.h"
#include "e2e/device_runner.h"
#include "e2e/exchanging.h"

class DeviceApi : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(DeviceApi);

// Both halves of an end's buffer lie at odd addresses.
static const size_t SPAN = 160 * 1024, OUT = 67, IN = SPAN + 69, WHOLE = 2 * SPAN;
static const size_t COUNTER = WHOLE; // behind the buffer: no peer's
static const size_t SIZES[] = {0, 1, 7, 8, 9, 100, 1000, 4096, 8191, 8192, 8193, 20001, 65536};
static const char *const GROUPS[] = {"thread", "warp", "block"};

static bool on_standin()
{
    const char *library = getenv("PEERHOP_LIBCUDA");
    return library != nullptr && strstr(library, "standin") != nullptr;
}

// One rank's end: a channel both ways, its device channel, a runner.
struct End {
    Rank &rank;
    void *memory;
    ph_channel *channel;
    ph_device_channel device = {};
    std::unique_ptr<DeviceRunner> runner;

    explicit End(Rank &owner, uint64_t op = 1)
        : rank(owner), memory(owner.device->alloc(WHOLE + 64)),
          channel(owner.channel(!owner.rank, op, PH_ROLE_BOTH, memory, WHOLE))
    {
        CHECK_OK(ph_channel_device(channel, &device, sizeof device));
        runner = on_standin() ? make_thread_runner() : make_kernel_runner(owner);
        CHECK(runner != nullptr);
    }
    ~End()
    {
        ph_channel_device_release(channel, &device);
    }
    // Ranks that share a device take turns of milliseconds.
    uint64_t rounds(uint64_t n) const
    {
        const bool lanes = device.out.own != 0 || device.in.own != 0;
        return !lanes && !on_standin() && n > 4 ? 4 : n;
    }
    device_program program(std::vector<device_step> steps, int group, uint64_t n) const
    {
        device_program p = {};
        p.channel = device;
        p.count = (uint32_t)steps.size();
        p.group = (uint32_t)group;
        p.rounds = n;
        CHECK(steps.size() <= DEVICE_STEPS);
        for (size_t i = 0; i < steps.size(); i++)
            p.steps[i] = steps[i];
        return p;
    }
    // All of it succeeds, and all bytes are right.
    void done(const std::string &what)
    {
        const device_outcome o = runner->finish(60000);
        if (o.rc != 0 || o.errors != 0)
            rank_failed(__FILE__, __LINE__,
                        what + ": " + ph_strerror(o.rc) + " at step " + std::to_string(o.step) +
                            " of round " + std::to_string(o.round) + ", " +
                            std::to_string(o.errors) + " wrong bytes");
    }
    void run(std::vector<device_step> steps, int group, uint64_t n, const std::string &what)
    {
        runner->start(program(std::move(steps), group, n));
        done(what);
    }
    void expect(std::vector<device_step> steps, int rc, const std::string &what)
    {
        runner->start(program(std::move(steps), DEVICE_WARP, 1));
        const device_outcome o = runner->finish(60000);
        if (o.rc != rc || o.errors != 0)
            rank_failed(__FILE__, __LINE__, what + ": " + ph_strerror(o.rc));
    }
};

static device_step step(device_step_kind kind, size_t peer, size_t local, size_t size,
                        uint64_t seed = 0)
{
    return {kind, 0, peer, local, size, seed};
}
static device_step fill(size_t size, uint64_t seed)
{
    return step(DEVICE_FILL, 0, OUT, size, seed);
}
static device_step check(size_t size, uint64_t seed)
{
    return step(DEVICE_CHECK, 0, IN, size, seed);
}
static device_step plain(device_step_kind kind, size_t size = 0, uint64_t seed = 0)
{
    return step(kind, IN, OUT, size, seed);
}
static uint64_t seed_of(int rank, size_t size)
{
    return 100000 * (uint64_t)(rank + 1) + size;
}

static void run_job(const std::string &device, const char *function, const char *method = "auto",
                    const std::string &argument = "")
{
    Job job(device, 2);
    job.environment("PEERHOP_METHOD", method);
    EXPECT_EQ(job.run(function, argument), "") << method << " " << argument;
}

// ---- messages of every size, by every group, both ways at once

static std::vector<uint8_t> around(Rank &rank, void *memory, size_t size)
{
    std::vector<uint8_t> bytes = read_bytes(rank, at(memory, IN - 16), 16);
    std::vector<uint8_t> behind = read_bytes(rank, at(memory, IN + size), 16);
    bytes.insert(bytes.end(), behind.begin(), behind.end());
    return bytes;
}

RANK_FUNCTION(messages)
{
    rank.open({"PEERHOP_SM_MAX=30000"}); // the largest go by word
    End end(rank);
    const std::vector<uint8_t> poison(32, 0xa5);
    for (int group = 0; group < DEVICE_GROUPS; group++)
        for (size_t size : SIZES)
            for (bool ll : {false, true}) {
                if (ll && size > PH_DEVICE_LL_MAX)
                    continue;
                const std::string what =
                    std::to_string(size) + " bytes by " + GROUPS[group] + (ll ? ", ll" : "");
                set_value(rank, at(end.memory, SPAN), SPAN, 0xa5);
                rank.barrier();
                end.run({fill(size, seed_of(rank.rank, size)),
                         plain(ll ? DEVICE_LL_PUT_SIGNAL : DEVICE_PUT_SIGNAL, size),
                         plain(ll ? DEVICE_LL_WAIT : DEVICE_WAIT, size),
                         check(size, seed_of(!rank.rank, size)), plain(DEVICE_SIGNAL),
                         plain(DEVICE_WAIT)},
                        group, end.rounds(3), what);
                if (around(rank, end.memory, size) != poison)
                    rank_failed(__FILE__, __LINE__, what + ": written around the buffer");
                rank.barrier();
            }
}

TEST_P(DeviceApi, Messages)
{
    run_job(GetParam(), "messages");
}

TEST_P(DeviceApi, MessagesByCopy)
{
    run_job(GetParam(), "messages", "sm");
}

TEST_P(DeviceApi, MessagesByWord)
{
    run_job(GetParam(), "messages", "ce");
}

RANK_FUNCTION(puts_and_gets)
{
    rank.open();
    End end(rank);
    const uint64_t mine = seed_of(rank.rank, 0), theirs = seed_of(!rank.rank, 0);
    for (int group = 0; group < DEVICE_GROUPS; group++)
        for (size_t size : SIZES) {
            const std::string what = std::to_string(size) + " bytes by " + GROUPS[group];
            // Two puts before one signal; and what is put is got back from the peer's inbox.
            end.run({fill(size, mine), plain(DEVICE_PUT, size / 2),
                     step(DEVICE_PUT, IN + size / 2, OUT + size / 2, size - size / 2),
                     plain(DEVICE_SIGNAL), plain(DEVICE_WAIT), check(size, theirs), fill(size, 0),
                     step(DEVICE_GET, IN, OUT, size), step(DEVICE_CHECK, 0, OUT, size, mine),
                     plain(DEVICE_SIGNAL), plain(DEVICE_WAIT)},
                    group, end.rounds(3), what);
        }
}

TEST_P(DeviceApi, PutsAndGets)
{
    run_job(GetParam(), "puts_and_gets");
    run_job(GetParam(), "puts_and_gets", "ce");
}

// What several groups copy together: all of it, whoever comes first. 0: the threads of one, at the
// same time.
RANK_FUNCTION(splits)
{
    rank.open();
    End end(rank);
    set_value(rank, at(end.memory, COUNTER), sizeof(uint32_t), 0);
    const uint64_t mine = seed_of(rank.rank, 1), theirs = seed_of(!rank.rank, 1);
    const auto split = [](device_step_kind kind, size_t peer, size_t local, size_t size,
                          uint32_t groups) {
        device_step s = step(kind, peer, local, size, COUNTER);
        s.groups = groups;
        return s;
    };
    for (int group = 0; group < DEVICE_GROUPS; group++)
        for (uint32_t groups : {0u, 1u, 2u, 7u, 40u})
            for (size_t size : {size_t(0), size_t(1), size_t(4095), size_t(4097), size_t(65536),
                                size_t(100001)}) {
                const std::string what = std::to_string(size) + " bytes by " +
                                         std::to_string(groups) + " of " + GROUPS[group];
                set_value(rank, at(end.memory, SPAN), SPAN, 0xa5);
                rank.barrier();
                end.run({fill(size, mine), split(DEVICE_PUT_SPLIT, IN, OUT, size, groups),
                         plain(DEVICE_SIGNAL), plain(DEVICE_WAIT), check(size, theirs),
                         fill(size, 0), split(DEVICE_GET_SPLIT, IN, OUT, size, groups),
                         step(DEVICE_CHECK, 0, OUT, size, mine), plain(DEVICE_SIGNAL),
                         plain(DEVICE_WAIT)},
                        group, end.rounds(2), what);
                if (around(rank, end.memory, size) != std::vector<uint8_t>(32, 0xa5))
                    rank_failed(__FILE__, __LINE__, what + ": written around the buffer");
                rank.barrier();
            }
    for (device_step_kind kind : {DEVICE_PUT_SPLIT, DEVICE_GET_SPLIT})
        end.expect({split(kind, 0, 0, 8, DEVICE_NO_GROUP)}, PH_DEVICE_INVALID, "no such group");
    end.expect({split(DEVICE_PUT_SPLIT, 0, 0, WHOLE + 1, 2)}, PH_DEVICE_INVALID, "a range");
    end.expect({split(DEVICE_GET_SPLIT, 0, 0, WHOLE + 1, 2)}, PH_DEVICE_INVALID, "a range");
}

TEST_P(DeviceApi, Splits)
{
    run_job(GetParam(), "splits");
}

// ---- stream calls at the other end, and in turn at the same end

static void host_fill(Rank &rank, void *to, size_t size, uint64_t seed)
{
    std::vector<uint8_t> bytes(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(test_pattern(seed, i / 8) >> (i % 8 * 8));
    if (size > 0)
        rank.device->write(to, bytes.data(), size);
}

static void host_check(Rank &rank, void *from, size_t size, uint64_t seed)
{
    const std::vector<uint8_t> bytes = read_bytes(rank, from, size);
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != (uint8_t)(test_pattern(seed, i / 8) >> (i % 8 * 8)))
            rank_failed(__FILE__, __LINE__,
                        "byte " + std::to_string(i) + " of " + std::to_string(size) +
                            " on the stream is wrong");
}

// Rounds of a message from the kernel's rank and one back; the stream's rank does the same by
// calls.
static void by_kernel(End &end, size_t size, int group, uint64_t n)
{
    end.run({fill(size, 10), plain(DEVICE_PUT_SIGNAL, size), plain(DEVICE_WAIT, size),
             check(size, 20), plain(DEVICE_SIGNAL)},
            group, n, std::to_string(size) + " bytes with a stream");
}

static void by_stream(End &end, void *stream, size_t size, uint64_t n)
{
    Rank &rank = end.rank;
    for (uint64_t round = 0; round < n; round++) {
        CHECK_OK(ph_wait(end.channel, size, stream));
        rank.synchronize(stream);
        host_check(rank, at(end.memory, IN), size, 10 + round);
        host_fill(rank, at(end.memory, OUT), size, 20 + round);
        CHECK_OK(ph_put_signal(end.channel, IN, OUT, size, stream));
        CHECK_OK(ph_wait(end.channel, 0, stream));
        rank.synchronize(stream);
    }
}

RANK_FUNCTION(mixed)
{
    rank.open({"PEERHOP_SM_MAX=30000"});
    End end(rank);
    void *stream = rank.device->stream();
    int turn = 0;
    for (size_t size : SIZES)
        for (int group = 0; group < DEVICE_GROUPS; group++, turn++) {
            const uint64_t n = end.rounds(3);
            if (turn % 2 == rank.rank)
                by_kernel(end, size, group, n);
            else
                by_stream(end, stream, size, n);
        }
    // Values to a stream, and from one.
    if (rank.rank == 0 && end.device.out.ll_max > 0)
        end.run({plain(DEVICE_LL_SIGNAL, 0, 77), plain(DEVICE_LL_WAIT_VALUE, 0, 0)}, DEVICE_WARP, 1,
                "values with a stream");
    else if (end.device.out.ll_max > 0) {
        CHECK_OK(ph_wait(end.channel, 0, stream));
        CHECK_OK(ph_signal(end.channel, stream));
        rank.synchronize(stream);
    }
}

TEST_P(DeviceApi, MixedWithStreams)
{
    for (const char *method : {"auto", "sm", "ce"})
        run_job(GetParam(), "mixed", method);
}

// ---- many

static uint64_t many(const End &end, uint64_t on_device)
{
    return on_standin() ? on_device / 500 : end.rounds(on_device);
}

// One way: as quickly as there is room; the taker checks each.
RANK_FUNCTION(values)
{
    rank.open();
    End end(rank);
    if (end.device.out.own == 0)
        return;
    for (int group = 0; group < DEVICE_GROUPS; group++)
        end.run({plain(rank.rank == 0 ? DEVICE_LL_SIGNAL : DEVICE_LL_WAIT_VALUE, 0, 1ull << 40)},
                group, many(end, 1000000), std::string("values by ") + GROUPS[group]);
}

TEST_P(DeviceApi, ManyValues)
{
    run_job(GetParam(), "values");
}

// Both ways at once, with bytes that change each time.
RANK_FUNCTION(many_lines)
{
    rank.open();
    End end(rank);
    for (size_t size : {8, 64, 1000, 8192})
        for (int group = DEVICE_WARP; group < DEVICE_GROUPS; group++)
            end.run({fill(size, 7000000), plain(DEVICE_LL_PUT_SIGNAL, size),
                     plain(DEVICE_LL_WAIT, size), check(size, 7000000)},
                    group, many(end, size > 64 ? 20000 : 500000),
                    std::to_string(size) + " bytes by " + GROUPS[group]);
}

TEST_P(DeviceApi, ManyLines)
{
    run_job(GetParam(), "many_lines");
}

// As if so many messages had passed, both ways.
static void set_numbers(const End &end, uint32_t passed)
{
    const uint32_t numbers[] = {passed, passed, passed}; // pushed, credit, taken
    for (uint64_t lane : {end.device.out.own, end.device.in.own})
        end.rank.device->write(reinterpret_cast<void *>(lane), numbers, sizeof numbers);
}

// Lines that no message has reached would hold the number of one that is 2^32 messages later: all
// of a slot are written long before.
RANK_FUNCTION(numbers)
{
    rank.open();
    End end(rank);
    const std::vector<device_step> small{fill(8, 1), plain(DEVICE_LL_PUT_SIGNAL, 8),
                                         plain(DEVICE_LL_WAIT, 8), check(8, 1)};
    const std::vector<device_step> large{fill(8192, 9), plain(DEVICE_LL_PUT_SIGNAL, 8192),
                                         plain(DEVICE_LL_WAIT, 8192), check(8192, 9)};
    if (end.device.out.own == 0)
        return;
    for (int group = 0; group < DEVICE_GROUPS; group++) {
        set_numbers(end, 3u * PH_DEVICE_LL_REFRESH - 2);
        rank.barrier();
        end.run(small, group, 6, "before the refresh and after it");
        // What the last lines of the slots hold now.
        for (uint32_t slot = 0; slot < PH_DEVICE_LL_SLOTS; slot++) {
            uint32_t last[4];
            rank.device->read(
                last,
                reinterpret_cast<void *>(end.device.in.slots + (slot + 1) * PH_DEVICE_LL_SLOT - 16),
                sizeof last);
            CHECK(last[1] == 3u * PH_DEVICE_LL_REFRESH + slot && last[3] == last[1]);
        }
        rank.barrier();
        set_numbers(end, 0u - 3);
        rank.barrier();
        end.run(small, group, 6, "over the last number");
        end.run(large, group, 2, "the first large ones");
        rank.barrier();
    }
}

TEST_P(DeviceApi, NumbersComeRound)
{
    run_job(GetParam(), "numbers");
}

// Puts and signals: the message-passing pattern, with the fences.
RANK_FUNCTION(many_signals)
{
    rank.open();
    End end(rank);
    for (size_t size : {8, 4096, 60000})
        end.run({fill(size, 5), plain(DEVICE_PUT, size), plain(DEVICE_SIGNAL), plain(DEVICE_WAIT),
                 check(size, 5), plain(DEVICE_SIGNAL), plain(DEVICE_WAIT)},
                DEVICE_BLOCK, many(end, size > 4096 ? 5000 : 50000),
                std::to_string(size) + " bytes");
}

TEST_P(DeviceApi, ManySignals)
{
    run_job(GetParam(), "many_signals");
}

// A graph that holds nothing but the application's kernel.
RANK_FUNCTION(replayed_kernel)
{
    rank.open();
    End end(rank);
    const int times = (int)end.rounds(500);
    const device_program program = end.program(
        {fill(100, seed_of(rank.rank, 0)), plain(DEVICE_PUT_SIGNAL, 100), plain(DEVICE_WAIT, 100),
         check(100, seed_of(!rank.rank, 0)), plain(DEVICE_LL_PUT_SIGNAL, 8),
         plain(DEVICE_LL_WAIT, 8), plain(DEVICE_SIGNAL), plain(DEVICE_WAIT)},
        DEVICE_BLOCK, 1);
    if (end.runner->replay(program, times))
        end.done("replayed");
}

TEST_P(DeviceApi, KernelInAGraph)
{
    if (GetParam() != "gpu")
        GTEST_SKIP() << "the stand-in runs no kernels of an application";
    run_job(GetParam(), "replayed_kernel");
}

// ---- ends and limits

// What timed out has neither sent nor taken anything, and goes on when it is called again.
RANK_FUNCTION(times_out)
{
    rank.open({"PEERHOP_SM_MAX=30000"});
    End end(rank);
    const uint64_t patient = end.device.timeout_ns;
    for (size_t size : {8, 20000, 60000}) {
        const std::string what = std::to_string(size) + " bytes";
        const device_step put = plain(DEVICE_PUT_SIGNAL, size), take = plain(DEVICE_WAIT, size);
        const size_t room = end.device.out.own != 0 && size <= end.device.out.ll_max ? 2 : 1;
        std::vector<device_step> puts{fill(size, 3)};
        puts.insert(puts.end(), room + 1, put);
        if (rank.rank == 0) {
            end.device.timeout_ns = 20000000;
            end.expect({take}, PH_DEVICE_TIMEDOUT, "wait, " + what);
            end.expect(puts, PH_DEVICE_TIMEDOUT, "put_signal, " + what);
            end.device.timeout_ns = patient;
        }
        rank.barrier();
        if (rank.rank == 0)
            end.run({put, take, check(size, 4)}, DEVICE_WARP, 1, "again, " + what);
        else
            end.run(
                {take, check(size, 3), fill(size, 4), take, room == 2 ? take : check(size, 3), put},
                DEVICE_WARP, 1, "taken, " + what);
        rank.barrier();
    }
}

TEST_P(DeviceApi, TimesOut)
{
    for (const char *method : {"auto", "sm", "ce"})
        run_job(GetParam(), "times_out", method);
}

// Whoever gives up leaves the numbers as they were, for the next port of the same kernel.
RANK_FUNCTION(gives_up_often)
{
    rank.open();
    End end(rank);
    for (int group = 0; group < DEVICE_GROUPS; group++)
        for (size_t size : {0, 8, 4000}) {
            const std::string what = std::to_string(size) + " bytes by " + GROUPS[group];
            rank.barrier();
            if (rank.rank == 0) {
                end.device.timeout_ns = 1000000;
                end.run({plain(DEVICE_LL_WAIT_AGAIN, size), check(size, 7)}, group, 1, what);
            } else {
                usleep(30000);
                end.run({fill(size, 7), plain(DEVICE_LL_PUT_SIGNAL, size)}, group, 1, what);
            }
        }
}

TEST_P(DeviceApi, GivesUpOften)
{
    run_job(GetParam(), "gives_up_often");
    run_job(GetParam(), "gives_up_often", "ce");
}

// What does not fit is refused, and leaves the sequence as it is.
RANK_FUNCTION(ranges)
{
    rank.open();
    End end(rank);
    const size_t size = end.device.local_size;
    const int no = PH_DEVICE_INVALID;
    end.expect({step(DEVICE_PUT, size, 0, 1)}, no, "a put behind the peer's buffer");
    end.expect({step(DEVICE_PUT, 0, size - 1, 2)}, no, "a put from behind the own");
    end.expect({step(DEVICE_PUT, UINT64_MAX, 0, 2)}, no, "a put that wraps");
    end.expect({step(DEVICE_GET, 1, 0, size)}, no, "a get from behind the peer's");
    end.expect({step(DEVICE_PUT_SIGNAL, size - 7, 0, 8)}, no, "a put_signal behind the peer's");
    end.expect({step(DEVICE_WAIT, 0, 0, size + 1)}, no, "a wait for more than the buffer");
    end.expect({plain(DEVICE_LL_PUT_SIGNAL, PH_DEVICE_LL_MAX + 1)}, no, "too much for ll");
    end.expect({plain(DEVICE_LL_WAIT, PH_DEVICE_LL_MAX + 1)}, no, "too much for ll");
    if (end.device.out.own == 0)
        end.expect({plain(DEVICE_LL_SIGNAL)}, PH_DEVICE_NOPATH, "a value by word");
    end.run({plain(DEVICE_SIGNAL), plain(DEVICE_WAIT)}, DEVICE_WARP, 1, "afterwards");
}

TEST_P(DeviceApi, Ranges)
{
    run_job(GetParam(), "ranges");
    run_job(GetParam(), "ranges", "ce");
}

// One way only: the other direction has no signals.
RANK_FUNCTION(roles)
{
    rank.open();
    void *memory = rank.device->alloc(WHOLE);
    ph_channel *channel =
        rank.channel(!rank.rank, 5, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, memory, WHOLE);
    End end(rank);
    ph_device_channel both = end.device;
    CHECK_OK(ph_channel_device(channel, &end.device, sizeof end.device));
    const device_step mine = plain(rank.rank ? DEVICE_WAIT : DEVICE_PUT_SIGNAL, 50);
    for (device_step_kind wrong :
         {rank.rank ? DEVICE_PUT : DEVICE_GET, rank.rank ? DEVICE_PUT_SIGNAL : DEVICE_WAIT,
          rank.rank ? DEVICE_LL_SIGNAL : DEVICE_LL_WAIT_VALUE})
        end.expect({plain(wrong, 50)}, PH_DEVICE_INVALID, "the other role's");
    end.run({mine}, DEVICE_BLOCK, end.rounds(10), "the own role's");
    CHECK_OK(ph_channel_device_release(channel, &end.device));
    end.device = both;
}

TEST_P(DeviceApi, Roles)
{
    run_job(GetParam(), "roles");
}

// The survivor's kernel waits for what will not come, and ends long before its own time.
RANK_FUNCTION(survives)
{
    rank.open();
    End end(rank);
    end.device.timeout_ns = 50000000000; // 50 s
    rank.barrier();
    if (rank.rank == 0) {
        rank.shared->value[0] = 1;
        pause();
    }
    const size_t size = (size_t)atol(rank.argument.c_str());
    end.expect({plain(DEVICE_WAIT, size)}, PH_DEVICE_ENDED, "a wait for the dead");
    CHECK(ph_channel_ended(end.channel) == PH_EPEER);
    struct ph_device_channel another;
    CHECK_RC(ph_channel_device(end.channel, &another, sizeof another), PH_EPEER);
    CHECK_OK(ph_channel_device_release(end.channel, &end.device));
}

TEST_P(DeviceApi, PeerDies)
{
    for (const char *method : {"auto", "ce"})
        for (const char *size : {"0", "20000"}) {
            Job job(GetParam(), 2);
            job.environment("PEERHOP_METHOD", method);
            job.start("survives", size);
            while (job.shared()->value[0] == 0 && job.status(0, 0) < 0)
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
            std::this_thread::sleep_for(std::chrono::milliseconds(200)); // the wait begins
            job.expect_failure(0);
            kill(job.pid(0), SIGKILL);
            EXPECT_EQ(job.wait(), "") << method << " " << size;
        }
}

// ---- pins

RANK_FUNCTION(pins)
{
    rank.open({}, 2000);
    std::unique_ptr<End> end = std::make_unique<End>(rank);
    ph_device_channel second;
    CHECK_OK(ph_channel_device(end->channel, &second, sizeof second));
    rank.barrier();
    if (rank.rank == 0) {
        // The peer's device channel is in the way of the release, and only that.
        CHECK_OK(ph_release_start(rank.context, end->memory, WHOLE));
        rank.ends_with(-EBUSY, "2 device channels", [&] {
            return ph_release_wait(rank.context, end->memory, WHOLE, PH_RELEASE_DRAINED, 50);
        });
        CHECK_SAYS(rank.error(), "rank 1");
        rank.barrier();
        CHECK_OK(ph_release_wait(rank.context, end->memory, WHOLE, PH_RELEASE_DRAINED, kWait));
        CHECK_OK(ph_channel_device_release(end->channel, &second));
        CHECK(second.local == 0);
        rank.barrier();
        end.reset();
        return;
    }
    CHECK_RC(ph_channel_close(end->channel), -EBUSY);
    CHECK_SAYS(rank.error(), "operation 1 with rank 0 has 2 device channels");
    CHECK_RC(ph_context_destroy(&rank.context, 300), -EBUSY);
    CHECK_SAYS(rank.error(), "2 device channels");
    rank.barrier();
    CHECK_OK(ph_channel_device_release(end->channel, &second));
    CHECK_OK(ph_channel_device_release(end->channel, &end->device));
    CHECK_RC(ph_channel_device_release(end->channel, &second), -EINVAL);
    CHECK_OK(ph_channel_close(end->channel));
    rank.barrier();
}

TEST_P(DeviceApi, Pins)
{
    run_job(GetParam(), "pins");
    run_job(GetParam(), "pins", "ce");
}

// A channel that was given back makes way for others, but not while a kernel may use its word.
RANK_FUNCTION(stays)
{
    const int most = 16;
    const size_t part = 4096;
    rank.open({"PEERHOP_CHANNELS=16", "PEERHOP_METHOD=ce"});
    void *memory = rank.device->alloc((most + 1) * part);
    std::vector<ph_channel *> channels;
    for (int op = 0; op < most; op++)
        channels.push_back(rank.channel(!rank.rank, op, PH_ROLE_BOTH, at(memory, op * part), part));
    ph_device_channel device = {};
    if (rank.rank == 1)
        CHECK_OK(ph_channel_device(channels[0], &device, sizeof device));
    rank.barrier();
    if (rank.rank == 0) {
        CHECK_OK(ph_release_start(rank.context, memory, part));
        CHECK_OK(ph_release_wait(rank.context, memory, part, PH_RELEASE_REVOKED, 10000));
    }
    rank.barrier();
    const std::vector<ph_operation> more{
        operation(most, !rank.rank, PH_ROLE_BOTH, at(memory, most * part), part)};
    CHECK_SAYS(exchange_fails(rank, more, -ENOSPC), "1 pinned by captured graphs, device");
    rank.barrier();
    if (rank.rank == 1)
        CHECK_OK(ph_channel_device_release(channels[0], &device));
    rank.barrier();
    exchange_all(rank, more);
    rank.barrier();
}

TEST_P(DeviceApi, StaysInItsPlace)
{
    run_job(GetParam(), "stays");
}

// Leaving waits for a peer's device channel, and says so.
RANK_FUNCTION(leaves)
{
    rank.open();
    End end(rank);
    rank.barrier();
    if (rank.rank == 0) {
        CHECK_OK(ph_channel_device_release(end.channel, &end.device));
        CHECK_RC(ph_context_destroy(&rank.context, 300), -ETIMEDOUT);
        CHECK_SAYS(rank.error(), "device channels");
        rank.barrier();
        CHECK_OK(ph_context_destroy(&rank.context, 10000));
        _exit(0);
    }
    rank.barrier();
}

TEST_P(DeviceApi, Leaving)
{
    run_job(GetParam(), "leaves");
}

// ---- what has no device channel

class DeviceApiRefused : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NETS(DeviceApiRefused);

RANK_FUNCTION(refused)
{
    rank.open();
    const size_t size = 4096;
    const bool net = rank.staged(), host = rank.device->host();
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, rank.device->alloc(size), size);
    ph_device_channel device;
    memset(&device, 0x5a, sizeof device);
    const ph_device_channel before = device;
    CHECK_RC(ph_channel_device(channel, nullptr, sizeof device), -EINVAL);
    CHECK_RC(ph_channel_device(channel, &device, sizeof device - 8), -EINVAL);
    CHECK_RC(ph_channel_device_release(channel, &device), -EINVAL);
    if (host || net) {
        CHECK_RC(ph_channel_device(channel, &device, sizeof device), host ? -ENOTSUP : PH_ENOPATH);
        CHECK_SAYS(rank.error(), host ? "host context" : "over the net");
        CHECK(memcmp(&device, &before, sizeof device) == 0);
        rank.barrier();
        return;
    }
    void *memory = nullptr;
    CHECK_OK(ph_host_alloc(rank.context, size, &memory));
    ph_channel *other = rank.channel(!rank.rank, 2, PH_ROLE_BOTH, memory, size);
    CHECK_RC(ph_channel_device(other, &device, sizeof device), PH_EKIND);
    CHECK_SAYS(rank.error(), "host memory");
    CHECK(memcmp(&device, &before, sizeof device) == 0);
    rank.barrier();
}

TEST_P(DeviceApiRefused, ByName)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("refused"), "");
}
