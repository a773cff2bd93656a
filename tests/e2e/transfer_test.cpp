// SPDX-License-Identifier: BSD-3-Clause
// Each transfer call: every size and offset, order on the stream, what it refuses.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <thread>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class Transfer : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Transfer);
class TransferOnCuda : public EveryDevice
{
};
INSTANTIATE_CUDA_DEVICES(TransferOnCuda);

static std::string word(const std::string &text, int index)
{
    size_t begin = 0;
    for (; index > 0; index--)
        begin = text.find(' ', begin) + 1;
    return text.substr(begin, text.find(' ', begin) - begin);
}

// ---- sizes and offsets

struct Span {
    size_t size, from, to; // offsets in the sender's and in the receiver's buffer
};

static void issue_sender(Rank &rank, const std::string &call, ph_channel *channel, const Span &span,
                         void *stream)
{
    if (call == "put") {
        CHECK_OK(ph_put(channel, span.to, span.from, span.size, stream));
        CHECK_OK(ph_signal(channel, stream));
    } else if (call == "put_signal") {
        CHECK_OK(ph_put_signal(channel, span.to, span.from, span.size, stream));
    } else if (call == "get") {
        CHECK_OK(ph_signal(channel, stream));
    } else {
        CHECK_OK(ph_send(channel, span.size, stream));
        CHECK_OK(ph_complete(channel, stream));
    }
}

static void issue_receiver(Rank &rank, const std::string &call, ph_channel *channel,
                           const Span &span, void *stream)
{
    if (call == "put") {
        CHECK_OK(ph_wait(channel, 0, stream));
    } else if (call == "put_signal") {
        CHECK_OK(ph_wait(channel, span.size, stream));
    } else if (call == "get") {
        CHECK_OK(ph_wait(channel, 0, stream));
        CHECK_OK(ph_get(channel, span.to, span.from, span.size, stream));
    } else {
        CHECK_OK(ph_recv(channel, span.size, stream));
        CHECK_OK(ph_complete(channel, stream));
    }
}

static void move(Rank &rank, Buffer &buffer, ph_channel *channel, bool sender, const Span &span,
                 void *stream)
{
    std::string what = std::to_string(span.size) + " bytes from " + std::to_string(span.from) +
                       " to " + std::to_string(span.to);
    size_t touched = span.size + 8192;
    uint64_t seed = span.size * 31 + span.from * 7 + span.to + sender;
    if (sender)
        rank.device->fill(buffer.data, span.from + span.size, seed);
    else
        buffer.poison(touched);
    rank.barrier();
    if (sender)
        issue_sender(rank, rank.argument, channel, span, stream);
    else
        issue_receiver(rank, rank.argument, channel, span, stream);
    rank.synchronize(stream);
    if (!sender) {
        // What the sender filled with: its parity is 1.
        std::string wrong =
            rank.device->verify(at(buffer.data, span.to), span.size, seed + 1, span.from);
        if (!wrong.empty())
            rank_failed(__FILE__, __LINE__, what + ": " + wrong);
        buffer.check(span.to, span.size, touched, what);
    }
    rank.barrier();
}

RANK_FUNCTION(every_size)
{
    rank.open();
    Buffer buffer(rank, (1 << 20) + 3 + 8192, rank.rank ? 333 : 4097);
    void *stream = rank.device->stream();
    bool pair = rank.argument.find("send") == 0;
    ph_channel *channel = rank.channel(!rank.rank, 5, PH_ROLE_BOTH, buffer.data, buffer.size,
                                       protocol_of(rank.argument));
    for (int sender = 0; sender < 2; sender++) {
        for (size_t size : {0, 1, 7, 4096, (1 << 20) + 3}) {
            move(rank, buffer, channel, sender == rank.rank, {size, 0, 0}, stream);
            if (pair)
                continue; // send and recv begin where the buffers begin
            move(rank, buffer, channel, sender == rank.rank, {size, 13, 4096}, stream);
            if (size > 10000)
                continue;
            move(rank, buffer, channel, sender == rank.rank, {size, 1, 0}, stream);
            move(rank, buffer, channel, sender == rank.rank, {size, 0, 3}, stream);
            move(rank, buffer, channel, sender == rank.rank, {size, 4095, 1}, stream);
        }
    }
}

TEST_P(Transfer, EverySizeByPut)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("every_size", "put"), "");
}

TEST_P(Transfer, EverySizeByGet)
{
    SKIP_GETS_OF_STAGED();
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("every_size", "get"), "");
}

TEST_P(Transfer, EverySizeByPutSignal)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("every_size", "put_signal"), "");
}

TEST_P(Transfer, EverySizeBySendInPutProtocol)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("every_size", "send put"), "");
}

TEST_P(Transfer, EverySizeBySendInGetProtocol)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("every_size", "send get"), "");
}

TEST_P(Transfer, EverySizeByCopyKernel)
{
    if (on_host())
        GTEST_SKIP() << "queues have no copy kernel";
    Job job(GetParam(), 2);
    job.environment("PEERHOP_METHOD", "copy_kernel");
    EXPECT_EQ(job.run("every_size", "put_signal"), "");
}

// ---- over 4 GiB: what is cut to 32 bits shows in windows around the interesting places

static const size_t GIB = size_t(1) << 30;
static const size_t WINDOW = 65536;

// 4 GiB that nobody has touched: a virtual machine whose memory comes page by page, with other
// tests beside this, took more than a minute.
static const int64_t MEMORY_COMES_MS = 240000;

// Puts zero pages over [begin, end) of host memory, which has been written nowhere there: its owner
// reads the same, and takes no memory for it. Peers see what was there.
static void read_as_zeros(void *memory, size_t begin, size_t end)
{
    const size_t large = 2u << 20;
    begin = (begin + large - 1) / large * large;
    end = end / large * large;
    void *zeros = mmap(at(memory, begin), end - begin, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    CHECK(zeros == at(memory, begin));
    madvise(zeros, end - begin, MADV_HUGEPAGE); // 512 pages at a time, where the kernel can
}

// argument: the call that moves them.
RANK_FUNCTION(over_4_gib)
{
    const bool posts = rank.argument == "send"; // begin where the buffers begin
    const size_t moved = 4 * GIB + 100003, size = moved + 4096, from = posts ? 0 : 5,
                 to = posts ? 0 : 9;
    const size_t windows[] = {0, 3 * GIB, 4 * GIB - WINDOW / 2, moved - WINDOW};
    rank.open({}, MEMORY_COMES_MS);
    void *memory = rank.device->alloc(size);
    void *stream = rank.device->stream();
    for (size_t window : windows)
        if (rank.rank == 0)
            rank.device->fill(at(memory, window + from), WINDOW, window);
    if (rank.rank == 0 && rank.device->host()) {
        read_as_zeros(memory, windows[0] + from + WINDOW, windows[1] + from);
        read_as_zeros(memory, windows[1] + from + WINDOW, windows[2] + from);
    }
    set_value(rank, at(memory, moved + to), 100, 0x77);
    rank.barrier();
    ph_channel *channel =
        rank.channel(!rank.rank, 1, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, memory, size);
    if (rank.rank == 0) {
        issue_sender(rank, rank.argument, channel, {moved, from, to}, stream);
        rank.synchronize(stream, MEMORY_COMES_MS);
        rank.barrier();
        return;
    }
    issue_receiver(rank, rank.argument, channel, {moved, from, to}, stream);
    rank.synchronize(stream, MEMORY_COMES_MS);
    for (size_t window : windows)
        rank.verify(at(memory, window + to), WINDOW, window, "a window");
    check_value(rank, at(memory, moved + to), 100, 0x77, "behind it");
    if (rank.staged()) { // which takes no gets
        rank.barrier();
        return;
    }
    // Offsets over 4 GiB at both ends.
    CHECK_OK(ph_get(channel, 4 * GIB + 7, 4 * GIB + from, 1000, stream));
    rank.synchronize(stream);
    std::string wrong = rank.device->verify(at(memory, 4 * GIB + 7), 1000, windows[2], WINDOW / 2);
    if (!wrong.empty())
        rank_failed(__FILE__, __LINE__, "got from beyond 4 GiB: " + wrong);
    rank.barrier();
}

static size_t available_memory()
{
    size_t kib = 0;
    char line[256];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != nullptr && fgets(line, sizeof line, file) != nullptr)
        if (sscanf(line, "MemAvailable: %zu", &kib) == 1)
            break;
    if (file != nullptr)
        fclose(file);
    return kib * 1024;
}

TEST_P(Transfer, Over4GiB)
{
    if (!on_host() && GetParam() != "gpu" && GetParam() != "gpunet")
        GTEST_SKIP()
            << "the stand-in's device memory is the host's, which the test on host memory uses";
    if (on_host() && available_memory() < 8 * GIB)
        GTEST_SKIP() << "less than 8 GiB of memory are free";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("over_4_gib", "put_signal", 2 * MEMORY_COMES_MS), "");
}

TEST_P(Transfer, Over4GiBByOtherCalls)
{
    if (GetParam() != "gpu")
        GTEST_SKIP() << "the first touch of 8 GiB of host memory takes up to minutes, each time";
    for (const char *call : {"get", "send"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("over_4_gib", call, 2 * MEMORY_COMES_MS), "") << call;
    }
}

TEST_P(Transfer, Over4GiBByMethod)
{
    if (GetParam() != "gpu")
        GTEST_SKIP() << "methods are a device's, and the stand-in's memory is the host's";
    for (const char *method : {"ce", "copy_kernel", "sm"}) {
        Job job(GetParam(), 2);
        job.environment("PEERHOP_METHOD", method);
        EXPECT_EQ(job.run("over_4_gib", "send", 2 * MEMORY_COMES_MS), "") << method;
    }
}

// ---- order on the stream

// Only the host waits for nothing here: what each rank does before and after must hold by stream
// order alone.
RANK_FUNCTION(ordered)
{
    const size_t size = 300000;
    const int rounds = 4;
    std::string call = word(rank.argument, 0), kind = word(rank.argument, 1);
    rank.open();
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size),
         *log = rank.device->alloc(rounds * size);
    void *stream = rank.device->stream(kind == "plain" ? "" : kind);
    Pair pair(rank, !rank.rank, 1, protocol_of(call), out, in, size);
    const bool signals = call.find("send") != 0, get = call == "get";
    for (int round = 0; round < rounds; round++) {
        if (rank.rank == 0) {
            rank.device->slow_fill(stream, out, size, uint8_t(round + 1), 3000);
            issue_sender(rank, call, pair.to, {size, 0, 0}, stream);
            if (get) // what was got from may be written again
                CHECK_OK(ph_wait(pair.from, 0, stream));
            rank.device->slow_fill(stream, out, size, 0xee, 0);
            if (signals && !get) // the receiver's buffer may be written again
                CHECK_OK(ph_wait(pair.from, 0, stream));
            continue;
        }
        if (!signals || get) // what arrives may not come before it
            rank.device->slow_fill(stream, in, size, 0x11, 3000);
        issue_receiver(rank, call, pair.from, {size, 0, 0}, stream);
        if (get)
            CHECK_OK(ph_signal(pair.to, stream));
        rank.device->copy(stream, at(log, round * size), in, size);
        rank.device->slow_fill(stream, in, size, 0xdd, 0);
        if (signals && !get)
            CHECK_OK(ph_signal(pair.to, stream));
    }
    rank.synchronize(stream);
    for (int round = 0; round < rounds && rank.rank == 1; round++)
        check_value(rank, at(log, round * size), size, uint8_t(round + 1),
                    "round " + std::to_string(round));
}

static void run_ordered(const std::string &device, const std::string &kind)
{
    for (const char *call : {"send-put", "send-get", "put_signal", "put", "get"}) {
        if (strcmp(call, "get") == 0 && (device == "standinnet" || device == "gpunet"))
            continue; // refused where memory is staged
        Job job(device, 2);
        EXPECT_EQ(job.run("ordered", std::string(call) + " " + kind), "") << call;
    }
}

TEST_P(Transfer, OrderedOnAStream)
{
    run_ordered(GetParam(), "plain");
}

TEST_P(TransferOnCuda, OrderedOnABlockingStream)
{
    run_ordered(GetParam(), "blocking");
}

TEST_P(TransferOnCuda, OrderedOnTheLegacyStream)
{
    run_ordered(GetParam(), "legacy");
}

TEST_P(TransferOnCuda, OrderedOnThePerThreadStream)
{
    run_ordered(GetParam(), "per-thread");
}

// The NULL queue of a host context: nobody synchronises on it, so its worker runs it.
RANK_FUNCTION(default_queue)
{
    const int rounds = 5;
    const size_t size = 600000; // more than what is copied inside a call
    rank.open();
    void *buffer = rank.device->alloc(rounds * size), *stream = rank.device->stream();
    Pair pair(rank, !rank.rank, 1, PH_PROTOCOL_PUT, buffer, buffer, rounds * size);
    if (rank.rank == 0)
        rank.device->fill(buffer, rounds * size, 3);
    for (size_t round = 0; round < rounds; round++) {
        if (rank.rank == 0) {
            CHECK_OK(ph_put_signal(pair.to, round * size, round * size, size, nullptr));
            CHECK_OK(ph_wait(pair.from, 0, stream));
            rank.synchronize(stream);
        } else {
            CHECK_OK(ph_wait(pair.from, size, nullptr));
            CHECK_OK(ph_signal(pair.to, nullptr));
        }
    }
    rank.barrier();
    if (rank.rank == 1)
        rank.verify(buffer, rounds * size, 3, "through the default queue");
}

TEST_P(Transfer, DefaultQueueOfAHostContext)
{
    if (GetParam() != "host")
        GTEST_SKIP() << "NULL is the legacy stream on a device: OrderedOnTheLegacyStream";
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("default_queue"), "");
}

// ---- a peer that leaves when its part is done: what it sent is there, and nothing else

RANK_FUNCTION(left_early)
{
    const size_t size = 5000;
    bool signals = rank.argument == "put_signal", get = rank.argument == "send get";
    rank.open();
    void *buffer = rank.device->alloc(size), *stream = rank.device->stream();
    ph_channel *channel =
        rank.channel(!rank.rank, 1, PH_ROLE_BOTH, buffer, size, protocol_of(rank.argument));
    ph_channel *unused = rank.channel(!rank.rank, 2, PH_ROLE_BOTH, buffer, size);
    if (rank.rank == 0) {
        rank.device->fill(buffer, size, 8);
        CHECK_OK(signals ? ph_put_signal(channel, 0, 0, size, stream)
                         : ph_send(channel, size, stream));
        CHECK_OK(ph_complete(channel, stream));
        rank.synchronize(stream);
        CHECK(reaches(rank.shared->value[0], 1));
        return; // leaves
    }
    if (!signals)
        CHECK_OK(ph_recv(channel, size, stream));
    if (!signals && !get)
        CHECK_OK(ph_recv(unused, size, stream));
    rank.shared->value[0] = 1;
    rank.synchronize(stream);
    auto end = std::chrono::steady_clock::now() + patience(20000);
    while (ph_channel_ended(channel) == 0) {
        CHECK(std::chrono::steady_clock::now() < end);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // The library breaks the words meanwhile.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK_OK(signals ? ph_wait(channel, size, stream) : ph_complete(channel, stream));
    rank.device->slow_fill(stream, at(buffer, size - 1), 1, pattern_byte(8, size - 1), 0);
    rank.synchronize(stream);
    rank.verify(buffer, size, 8, "of a rank that left");
    CHECK_RC(ph_wait(channel, 0, stream), PH_EPEER);
    CHECK_RC(ph_wait(unused, 0, stream), PH_EPEER);
    CHECK_RC(ph_recv(channel, size, stream), PH_EPEER);
    CHECK_RC(ph_put(channel, 0, 0, 1, stream), PH_EPEER);
    CHECK_RC(ph_complete(unused, stream), signals || get ? 0 : PH_EPEER);
}

TEST_P(Transfer, MessagesOfARankThatLeft)
{
    for (const char *call : {"put_signal", "send put", "send get"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("left_early", call), "") << call;
    }
}

// ---- one message in flight

RANK_FUNCTION(second_post)
{
    const size_t size = 5000;
    rank.open();
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size);
    void *stream = rank.device->stream();
    ph_protocol protocol = protocol_of(rank.argument);
    Pair pair(rank, !rank.rank, 1, protocol, out, in, size);
    bool passive =
        (protocol == PH_PROTOCOL_PUT) == (rank.rank == 1); // of the direction from 0 to 1
    for (int round = 0; round < 3; round++) {
        if (rank.rank == 0)
            rank.device->fill(out, size, round);
        auto issue = [&] {
            return rank.rank == 0 ? ph_send(pair.to, size, stream)
                                  : ph_recv(pair.from, size, stream);
        };
        if (passive) {
            CHECK_OK(issue());
            CHECK_RC(issue(), -EALREADY);
            CHECK(rank.error().find("before ph_complete") != std::string::npos);
            rank.barrier();
        } else {
            rank.barrier();
            CHECK_OK(issue());
        }
        CHECK_OK(ph_complete(rank.rank == 0 ? pair.to : pair.from, stream));
        rank.synchronize(stream);
        if (rank.rank == 1)
            rank.verify(in, size, round, "received");
        CHECK(ph_channel_status(pair.to) == 0 && ph_channel_status(pair.from) == 0);
        rank.barrier();
    }
}

TEST_P(Transfer, SecondPostBeforeComplete)
{
    for (const char *protocol : {"put", "get"}) {
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("second_post", protocol), "");
    }
}

RANK_FUNCTION(second_signal)
{
    rank.open({"PEERHOP_LL_MAX=0"}); // by ll two may be under way
    const int under_way = rank.staged() ? STAGE_SLOTS : 1;
    void *buffer = rank.device->alloc(100);
    void *stream = rank.device->stream();
    ph_channel *channel =
        rank.channel(!rank.rank, 1, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, buffer, 100);
    for (int round = 0; round < 3; round++) {
        if (rank.rank == 0) {
            for (int i = 0; i < under_way; i++)
                CHECK_OK(ph_signal(channel, stream));
            rank.synchronize(stream); // the first needs nobody
            CHECK_OK(ph_signal(channel, stream));
            CHECK(!rank.device->synchronize(stream, 30));
            rank.barrier();
            rank.synchronize(stream); // goes on when the first is consumed
            rank.barrier();
        } else {
            rank.barrier();
            CHECK_OK(ph_wait(channel, 0, stream));
            rank.synchronize(stream);
            rank.barrier();
            for (int i = 0; i < under_way; i++)
                CHECK_OK(ph_wait(channel, 0, stream));
            rank.synchronize(stream);
        }
        rank.barrier();
    }
}

TEST_P(Transfer, SecondSignalWaitsForTheFirst)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("second_signal"), "");
}

// ---- what is refused

static void refuse_sender(Rank &rank, ph_channel *channel, void *stream)
{
    // Own buffer: 1000 bytes, the peer's: 600.
    CHECK_RC(ph_put(channel, 0, 0, 601, stream), -EINVAL);
    CHECK(rank.error().find("the peer's buffer of 600 bytes") != std::string::npos);
    CHECK_RC(ph_put(channel, 0, 900, 101, stream), -EINVAL);
    CHECK(rank.error().find("the own buffer of 1000 bytes") != std::string::npos);
    CHECK_RC(ph_put(channel, 601, 0, 0, stream), -EINVAL);
    CHECK_RC(ph_put(channel, 0, 1001, 0, stream), -EINVAL);
    CHECK_RC(ph_put(channel, SIZE_MAX, 0, 2, stream), -EINVAL);
    CHECK_RC(ph_put(channel, 0, SIZE_MAX - 1, 3, stream), -EINVAL);
    CHECK_RC(ph_put(channel, 0, 0, SIZE_MAX, stream), -EINVAL);
    CHECK_RC(ph_put_signal(channel, 1, 0, 600, stream), -EINVAL);
    CHECK_RC(ph_send(channel, 601, stream), -EINVAL);
    CHECK_RC(ph_get(channel, 0, 0, 1, stream), -EINVAL);
    CHECK(rank.error().find("not its receiver") != std::string::npos);
    CHECK_RC(ph_wait(channel, 0, stream), -EINVAL);
    CHECK_RC(ph_recv(channel, 1, stream), -EINVAL);
}

static void refuse_receiver(Rank &rank, ph_channel *channel, void *stream)
{
    CHECK_RC(ph_get(channel, 600, 0, 1, stream), -EINVAL);
    CHECK_RC(ph_get(channel, 0, 1000, 1, stream), -EINVAL);
    CHECK_RC(ph_get(channel, SIZE_MAX, SIZE_MAX, SIZE_MAX, stream), -EINVAL);
    CHECK_RC(ph_wait(channel, 601, stream), -EINVAL);
    CHECK_RC(ph_recv(channel, 601, stream), -EINVAL);
    CHECK_RC(ph_put(channel, 0, 0, 1, stream), -EINVAL);
    CHECK(rank.error().find("not its sender") != std::string::npos);
    CHECK_RC(ph_put_signal(channel, 0, 0, 1, stream), -EINVAL);
    CHECK_RC(ph_signal(channel, stream), -EINVAL);
    CHECK_RC(ph_send(channel, 1, stream), -EINVAL);
}

static void refuse_streams(Rank &rank, ph_channel *channel)
{
    // A handle out of the air is undefined to a driver; a host context tells by the address alone.
    int nothing = 0;
    CHECK_RC(ph_signal(channel, &nothing), -EINVAL);
    CHECK(rank.error().find("not a queue of this context") != std::string::npos);
    CHECK_RC(ph_send(channel, 10, at(rank.device->stream(), 1)), -EINVAL);
}

RANK_FUNCTION(refused)
{
    rank.open();
    size_t size = rank.rank == 0 ? 1000 : 600;
    Buffer buffer(rank, size);
    buffer.poison(size);
    void *stream = rank.device->stream();
    ph_channel *channel = rank.channel(!rank.rank, 1, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
                                       buffer.data, buffer.size);
    CHECK(ph_channel_peer_size(channel) == (rank.rank ? 1000u : 600u));
    CHECK_RC(ph_put(nullptr, 0, 0, 0, stream), -EINVAL);
    CHECK_RC(ph_complete(nullptr, stream), -EINVAL);
    if (rank.rank == 0)
        refuse_sender(rank, channel, stream);
    else
        refuse_receiver(rank, channel, stream);
    if (rank.rank == 0 && rank.device->host())
        refuse_streams(rank, channel);
    // Nothing came of it, and the words are as they were.
    CHECK(rank.device->synchronize(stream, 0));
    CHECK(rank.counter("ipc_operations") == 0 && rank.counter("in_flight") == 0);
    CHECK(rank.counter("waits_host") + rank.counter("waits_kernel") +
              rank.counter("waits_memory_operation") ==
          0);
    rank.barrier();
    buffer.check(0, 0, size, "after refused calls");
    CHECK(ph_channel_ended(channel) == 0);
    if (rank.rank == 0) {
        rank.device->fill(buffer.data, 600, 1);
        CHECK_OK(ph_send(channel, 600, stream));
        CHECK_OK(ph_signal(channel, stream));
        rank.synchronize(stream);
    } else {
        CHECK_OK(ph_recv(channel, 600, stream));
        CHECK_OK(ph_complete(channel, stream));
        CHECK_OK(ph_wait(channel, 0, stream));
        rank.synchronize(stream);
        rank.verify(buffer.data, 600, 1, "after refused calls");
    }
    rank.barrier(); // a sender by ll need not wait for the receiver, and would leave
}

TEST_P(Transfer, RefusedCallsEnqueueNothing)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("refused"), "");
}

// ---- memory kinds: trap 2 and trap 9

RANK_FUNCTION(sub_allocations)
{
    const size_t size = 100003, whole = 1 << 20;
    rank.open();
    // "<kind of rank 0> <kind of rank 1>", or one for both.
    bool mixed = rank.argument.find(' ') != std::string::npos;
    void *memory = rank.device->alloc(whole, word(rank.argument, mixed ? rank.rank : 0));
    void *stream = rank.device->stream();
    set_value(rank, memory, whole, Buffer::POISON);
    // Four buffers of one allocation, at odd places that differ between the ranks.
    size_t lead = rank.rank ? 4099 : 17;
    void *out[] = {at(memory, lead), at(memory, 200000 + lead)};
    void *in[] = {at(memory, 400000 + lead), at(memory, 600000 + lead)};
    for (int i = 0; i < 2; i++) {
        Pair pair(rank, !rank.rank, i, i ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT, out[i], in[i], size);
        rank.device->fill(out[i], size, 10 * rank.rank + i);
        ph_group_op ops[] = {{PH_GROUP_SEND, pair.to, 0, 0, size},
                             {PH_GROUP_RECV, pair.from, 0, 0, size}};
        CHECK_OK(ph_group(ops, 2, stream));
        rank.synchronize(stream);
        rank.verify(in[i], size, 10 * !rank.rank + i, "into a part of an allocation");
    }
    check_value(rank, at(in[0], size), 1000, Buffer::POISON, "between the buffers");
    check_value(rank, at(in[1], size), 1000, Buffer::POISON, "behind the buffers");
    CHECK(rank.counter("imports") == 1);
    rank.barrier();
}

TEST_P(Transfer, SubAllocations)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("sub_allocations"), "");
}

TEST_P(TransferOnCuda, SubAllocationsOfVmmMemory)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("sub_allocations", "vmm"), "");
}

TEST_P(TransferOnCuda, SubAllocationsOfAPool)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("sub_allocations", "pool"), "");
}

TEST_P(TransferOnCuda, SubAllocationsOfTwoKinds)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("sub_allocations", "vmm pool"), "");
}

// ---- limits

// Each sender says of its own messages up to which size they go by which method; its receiver is
// told. A send by ll is over without its receiver, one by sm is not.
RANK_FUNCTION(limits_of_channels)
{
    rank.open({"PEERHOP_LL_MAX=64", "PEERHOP_SM_MAX=4096"});
    const size_t size = 10000;
    const ph_limits mine[] = {{-1, -1}, {0, -1}, {8192, 0}, {128, INT64_MAX}, {0, 0}};
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size);
    std::vector<ph_operation> ops;
    const int peer = !rank.rank;
    for (size_t i = 0; i < std::size(mine); i++) {
        // The ranks' own orders differ, and what a receiver says is ignored.
        const size_t at = rank.rank ? std::size(mine) - 1 - i : i;
        ops.push_back({i, peer, PH_ROLE_SENDER, PH_PROTOCOL_PUT, out, size, &mine[at]});
        ops.push_back({i, peer, PH_ROLE_RECEIVER, PH_PROTOCOL_PUT, in, size, &mine[i]});
    }
    auto channels = exchange_all(rank, ops);
    if (report_of(rank, channels[rank.rank ? channels.size() - 2 : 0], true).sm_max == 0) {
        rank.shared->text[0][0] = '1'; // two ranks on one device: their messages go by words
        return;
    }
    void *stream = rank.device->stream();
    for (size_t i = 0; i < std::size(mine); i++)
        for (bool outgoing : {true, false}) {
            const bool reversed = outgoing == (rank.rank == 1);
            const ph_limits &limits = mine[reversed ? std::size(mine) - 1 - i : i];
            const ph_path_report report = report_of(rank, channels[2 * i + !outgoing], outgoing);
            CHECK_EQUAL(report.ll_max, limits.ll_max < 0 ? 64u : uint64_t(limits.ll_max));
            CHECK_EQUAL(report.sm_max, limits.sm_max < 0 ? 4096u : uint64_t(limits.sm_max));
        }
    for (size_t bytes : {size_t{8}, size_t{100}, size_t{5000}}) {
        for (size_t i = 0; i < std::size(mine); i++) {
            rank.device->fill(out, bytes, 10 * i + rank.rank);
            const bool alone = bytes <= report_of(rank, channels[2 * i], true).ll_max;
            rank.barrier();
            CHECK_OK(ph_send(channels[2 * i], bytes, stream));
            if (alone)
                rank.synchronize(stream);
            else if (bytes == 100)
                CHECK(!rank.device->synchronize(stream, 30));
            rank.barrier();
            void *other = rank.device->stream();
            CHECK_OK(ph_recv(channels[2 * i + 1], bytes, other));
            CHECK_OK(ph_complete(channels[2 * i + 1], other));
            CHECK_OK(ph_complete(channels[2 * i], stream));
            rank.synchronize(other);
            rank.synchronize(stream);
            rank.verify(in, bytes, 10 * i + peer, "a message of a channel with limits");
            rank.barrier();
        }
    }
    // The same again is the same channel; with others it is another.
    ph_operation again = ops[2];
    CHECK(exchange_all(rank, {again, ops[3]})[0] == channels[2]);
    const ph_limits other = {7, 7};
    again.limits = &other;
    ph_channel *changed = exchange_all(rank, {again, ops[3]})[0];
    CHECK(changed != channels[2]);
    CHECK_EQUAL(report_of(rank, changed, true).ll_max, 7u);
    CHECK_EQUAL(report_of(rank, channels[2], true).ll_max, uint64_t(rank.rank ? 128 : 0));
    for (ph_limits bad : {ph_limits{-2, 0}, ph_limits{(1 << 20) + 1, 0}, ph_limits{0, -2}}) {
        again.limits = &bad;
        CHECK_SAYS(exchange_fails(rank, {again}, -EINVAL), "ll_max is -1 to 1048576");
    }
    rank.barrier();
}

// The first channels of a pair have wide slots for sends, the others and all signals small ones.
// Both ranks know it without a word; what is larger goes by sm, and what fits needs no receiver.
// Buffers begin anywhere.
RANK_FUNCTION(large_by_lines)
{
    const size_t most = 1 << 20, small = 8192, drawn = 24 << 20; // rows of larger ones warps draw
    const size_t sizes[] = {0,     2048,     2049,         2879,  2880,      2881,
                            small, 9600,     15361,        65537, 100001,    most - 1,
                            most,  most + 1, 3 * most + 5, drawn, drawn + 1, small + 1};
    rank.open({Rank::wide()});
    const int peer = !rank.rank;
    const size_t lead = rank.rank ? 333 : 336, in_lead = rank.rank ? 352 : 321;
    Buffer out(rank, drawn + 8, lead), in(rank, drawn + 8, in_lead);
    std::vector<ph_operation> ops;
    for (size_t i = 0; i < 12; i++) {
        ops.push_back({i, peer, PH_ROLE_SENDER, PH_PROTOCOL_PUT, out.data, drawn + 8});
        ops.push_back({i, peer, PH_ROLE_RECEIVER, PH_PROTOCOL_PUT, in.data, drawn + 8});
    }
    auto channels = exchange_all(rank, ops);
    if (report_of(rank, channels[0], true).sm_max == 0) {
        rank.shared->text[0][0] = '1'; // two ranks on one device: their messages go by words
        return;
    }
    size_t large = 0;
    for (size_t i = 0; i < channels.size(); i++) {
        const uint64_t lines = report_of(rank, channels[i], i % 2 == 0).ll_max;
        CHECK(lines == most || lines == small);
        const std::string why = reason_against(report_of(rank, channels[i], i % 2 == 0), "wide");
        CHECK(lines == small && i % 2 == 0 ? why.find("only the first") == 0 : why.empty());
        large += lines == most;
    }
    CHECK_EQUAL(large, size_t{16});
    void *stream = rank.device->stream(), *other = rank.device->stream();
    uint8_t seed = 0;
    for (size_t bytes : sizes)
        for (size_t i = 0; i < 24; i += 10) {
            ph_channel *to = channels[i], *from = channels[i + 1];
            rank.device->fill(out.data, bytes, 2 * ++seed + rank.rank);
            in.poison(bytes);
            const bool alone = bytes <= report_of(rank, to, true).ll_max;
            rank.barrier();
            CHECK_OK(ph_send(to, bytes, stream));
            if (alone)
                rank.synchronize(stream);
            rank.barrier();
            CHECK_OK(ph_recv(from, bytes, other));
            CHECK_OK(ph_complete(from, other));
            CHECK_OK(ph_complete(to, stream));
            rank.synchronize(other);
            rank.synchronize(stream);
            rank.verify(in.data, bytes, 2 * seed + peer, "a large message by ll");
            in.check(0, bytes, bytes, "a large message by ll");
            // A signal of such a size.
            rank.device->fill(out.data, bytes, 2 * ++seed + rank.rank);
            in.poison(bytes + 3);
            rank.barrier();
            CHECK_OK(ph_put_signal(to, 3, 0, bytes, stream));
            CHECK_OK(ph_wait(from, bytes, other));
            rank.synchronize(other);
            rank.synchronize(stream);
            rank.verify(at(in.data, 3), bytes, 2 * seed + peer, "a large signal");
            in.check(3, bytes, bytes + 3, "a large signal");
            rank.barrier();
        }
}

// Lines of 128 bytes come whole over links of which a table says so, and no setting says it.
RANK_FUNCTION(wide_without_a_table)
{
    const ph_limits limits = {1 << 20, -1};
    rank.open({"PEERHOP_LL_MAX=1048576", "PEERHOP_METHOD=" + rank.argument});
    void *buffer = rank.device->alloc(1 << 20);
    const ph_role role = rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER;
    std::vector<ph_operation> ops = {
        {0, !rank.rank, role, PH_PROTOCOL_PUT, buffer, 1 << 20, &limits},
        {1, !rank.rank, role, PH_PROTOCOL_PUT, buffer, 1 << 20}};
    for (ph_channel *channel : exchange_all(rank, ops)) {
        const ph_path_report report = report_of(rank, channel, rank.rank == 0);
        if (report.sm_max == 0)
            rank.shared->text[0][0] = '1';
        else
            CHECK_EQUAL(report.ll_max, uint64_t{8192});
        if (report.sm_max == 0 || rank.rank == 1) // whoever sends knows why
            CHECK(reason_against(report, "wide").empty());
        else
            CHECK(reason_against(report, "wide")
                      .find(getenv("PEERHOP_STANDIN_BUS") ? "a bus connects" : "no table says") ==
                  0);
    }
}

TEST_P(TransferOnCuda, NoWideLinesWithoutATable)
{
    if (GetParam() == "gpu")
        GTEST_SKIP() << "a measured pair of devices, perhaps";
    for (const char *method : {"auto", "ll"})
        for (bool bus : {false, true}) {
            Job job(GetParam(), 2);
            if (bus)
                job.environment("PEERHOP_STANDIN_BUS", "1");
            EXPECT_EQ(job.run("wide_without_a_table", method), "") << bus;
            if (job.shared()->text[0][0] == '1')
                GTEST_SKIP() << "two ranks on one device: their messages go by words";
        }
}

TEST_P(TransferOnCuda, LargeMessagesByLines)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("large_by_lines"), "");
    if (job.shared()->text[0][0] == '1')
        GTEST_SKIP() << "two ranks on one device: their messages go by words";
}

TEST_P(TransferOnCuda, LimitsOfChannels)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("limits_of_channels"), "");
    if (job.shared()->text[0][0] == '1')
        GTEST_SKIP() << "two ranks on one device: their messages go by words";
}

RANK_FUNCTION(no_kind)
{
    rank.open();
    void *good = rank.device->alloc(5000);
    if (rank.rank == 0) {
        const char *const kinds[][2] = {{"default-pool", "pool"}, {"pinned", "pinned by CUDA"}};
        for (auto [kind, sentence] : kinds) {
            ph_operation op = {
                1, 1, PH_ROLE_SENDER, PH_PROTOCOL_DEFAULT, rank.device->alloc(4096, kind), 4096};
            ph_channel *channel = nullptr;
            CHECK_RC(ph_exchange(rank.context, &op, 1, &channel), PH_EKIND);
            if (channel != nullptr || rank.error().find(sentence) == std::string::npos)
                rank_failed(__FILE__, __LINE__, std::string(kind) + ": " + rank.error());
        }
        ph_operation op = {1, 1, PH_ROLE_SENDER, PH_PROTOCOL_DEFAULT, malloc(4096), 4096};
        ph_channel *channel = nullptr;
        CHECK(ph_exchange(rank.context, &op, 1, &channel) != 0 && channel == nullptr);
        free(op.buffer);
        op.buffer = at(good, 1000); // 4096 bytes from there pass the end
        CHECK_RC(ph_exchange(rank.context, &op, 1, &channel), -EINVAL);
    }
    rank.barrier();
    // The key is as if nothing had been.
    void *stream = rank.device->stream();
    ph_channel *channel =
        rank.channel(!rank.rank, 1, rank.rank ? PH_ROLE_RECEIVER : PH_ROLE_SENDER, good, 4096);
    if (rank.rank == 0)
        rank.device->fill(good, 4096, 3);
    CHECK_OK(rank.rank == 0 ? ph_put_signal(channel, 0, 0, 4096, stream)
                            : ph_wait(channel, 4096, stream));
    rank.synchronize(stream);
    if (rank.rank == 1)
        rank.verify(good, 4096, 3, "after refused memory");
}

TEST_P(TransferOnCuda, MemoryThatCannotBeExported)
{
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("no_kind"), "");
}
