// SPDX-License-Identifier: BSD-3-Clause
// Bytes from rank 1 to rank 2 by whoever may move them: the source's owner puts, the target's owner
// gets, or rank 0 copies; of every size around a threshold, at odd places and at the ends of the
// allocations. The source is written over as soon as it was read, and what lies around the target
// stays as it is.
#include <cstdlib>
#include <cstring>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class Matrix : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Matrix);

static const size_t BYTES = (1 << 20) + 5000;
static const size_t AROUND = 64;

enum By { BY_PUT, BY_PUT_SIGNAL, BY_GET, BY_COPY };
static const char *const by_name[] = {"put", "put_signal", "get", "copy"};

struct Case {
    By by;
    size_t size, from, to;
    uint64_t seed;

    std::string what() const
    {
        return std::to_string(size) + " bytes from " + std::to_string(from) + " to " +
               std::to_string(to) + " by " + by_name[by];
    }
};

// A rank's buffer, the whole of an allocation, and its channels with the two others.
struct Seat {
    explicit Seat(Rank &owner)
        : rank(owner), memory(owner.device->alloc(BYTES)), stream(owner.device->stream())
    {
        std::vector<ph_operation> ops;
        for (int peer = 0; peer < 3; peer++) {
            const auto pair = static_cast<unsigned>(rank.rank + peer);
            if (peer != rank.rank)
                ops.push_back(operation(pair, peer, PH_ROLE_BOTH, memory, BYTES));
        }
        auto channels = exchange_all(rank, ops);
        with[ops[0].peer] = channels[0];
        with[ops[1].peer] = channels[1];
    }
    Rank &rank;
    void *memory, *stream;
    ph_channel *with[3] = {};
};

// ---- what each rank does

static void lead(Seat &seat, const Case &c)
{
    Rank &rank = seat.rank;
    if (c.by != BY_COPY)
        return;
    CHECK_OK(ph_wait(seat.with[1], 0, seat.stream));
    CHECK_OK(ph_wait(seat.with[2], 0, seat.stream));
    CHECK_OK(ph_copy(seat.with[2], c.to, seat.with[1], c.from, c.size, seat.stream));
    CHECK_OK(ph_signal(seat.with[1], seat.stream));
    CHECK_OK(ph_signal(seat.with[2], seat.stream));
    rank.synchronize(seat.stream);
}

static void give(Seat &seat, const Case &c)
{
    Rank &rank = seat.rank;
    ph_channel *mover = seat.with[c.by == BY_COPY ? 0 : 2];
    rank.device->fill(at(seat.memory, c.from), c.size, c.seed);
    if (c.by == BY_PUT || c.by == BY_PUT_SIGNAL) {
        CHECK_OK(ph_wait(mover, 0, seat.stream));
        if (c.by == BY_PUT)
            CHECK_OK(ph_put(mover, c.to, c.from, c.size, seat.stream));
        else
            CHECK_OK(ph_put_signal(mover, c.to, c.from, c.size, seat.stream));
    } else {
        CHECK_OK(ph_signal(mover, seat.stream));
        CHECK_OK(ph_wait(mover, 0, seat.stream));
    }
    if (c.size > 0)
        rank.device->slow_fill(seat.stream, at(seat.memory, c.from), c.size, 0xee, 0);
    if (c.by == BY_PUT)
        CHECK_OK(ph_signal(mover, seat.stream));
    rank.synchronize(seat.stream);
}

static void take(Seat &seat, const Case &c)
{
    Rank &rank = seat.rank;
    ph_channel *mover = seat.with[c.by == BY_COPY ? 0 : 1];
    const size_t begin = c.to > AROUND ? c.to - AROUND : 0;
    const size_t end = std::min(BYTES, c.to + c.size + AROUND);
    set_value(rank, at(seat.memory, begin), end - begin, 0xa5);
    if (c.by == BY_GET) {
        CHECK_OK(ph_wait(mover, 0, seat.stream));
        CHECK_OK(ph_get(mover, c.to, c.from, c.size, seat.stream));
        CHECK_OK(ph_signal(mover, seat.stream));
    } else {
        CHECK_OK(ph_signal(mover, seat.stream));
        CHECK_OK(ph_wait(mover, c.by == BY_PUT_SIGNAL ? c.size : 0, seat.stream));
    }
    rank.synchronize(seat.stream);
    rank.verify(at(seat.memory, c.to), c.size, c.seed, c.what().c_str());
    check_value(rank, at(seat.memory, begin), c.to - begin, 0xa5, c.what() + ", before it");
    check_value(rank, at(seat.memory, c.to + c.size), end - c.to - c.size, 0xa5,
                c.what() + ", behind it");
}

// What is staged its owner sends; memory of devices goes over the net between two ranks only.
static std::vector<By> moves_of(const Rank &rank)
{
    const char *path = getenv("PEERHOP_PATH");
    if (rank.staged())
        return {BY_PUT, BY_PUT_SIGNAL};
    if (!rank.device->host() && path != nullptr && strcmp(path, "net") == 0)
        return {BY_PUT, BY_PUT_SIGNAL, BY_GET};
    return {BY_PUT, BY_PUT_SIGNAL, BY_GET, BY_COPY};
}

RANK_FUNCTION(matrix)
{
    static void (*const parts[])(Seat &, const Case &) = {lead, give, take};
    rank.open();
    Seat seat(rank);
    uint64_t seed = 1;
    for (size_t size : {0,       1,
                        3,       4,
                        8,       15,
                        16,      4095,
                        4096,    4097,
                        8191,    8192,
                        8193,    65535,
                        65536,   65537,
                        262143,  262144,
                        262145,  (1 << 20) - 1,
                        1 << 20, (1 << 20) + 1}) {
        const size_t last = BYTES - size;
        const size_t places[][2] = {{0, last}, {last, 1}, {13, 4096}};
        for (const auto &place : places)
            for (By by : moves_of(rank))
                parts[rank.rank](seat, {by, size, place[0], place[1], seed++});
    }
    rank.barrier();
}

TEST_P(Matrix, WhoMovesAndWhereAndHowMuch)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("matrix"), "");
}

TEST_P(Matrix, OverTheNetAndByIpc)
{
    if (GetParam() != "host" || !net_available())
        GTEST_SKIP() << "on host memory alone";
    for (int net : {0, 1, 2}) {
        SCOPED_TRACE(net);
        Job job("host", 3);
        job.environment("PEERHOP_NET_PROVIDER", "tcp");
        job.environment(net, "PEERHOP_PATH", "net");
        EXPECT_EQ(job.run("matrix"), "");
    }
}
