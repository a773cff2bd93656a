// SPDX-License-Identifier: BSD-3-Clause
// The behaviour that nvFuser's tests of its IPC handles and of its point-to-point communication
// check: handles exchanged again and again, pointer arithmetic at either side, rings in put and in
// get protocol.
#include "e2e/bytes.h"

class NvFuser : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_NETS(NvFuser);

static const int REPETITIONS = 10;

// Every rank fills its tensor and reads that of the next one. fresh: with new tensors each time.
RANK_FUNCTION(exchange_handles)
{
    const size_t size = size_t(12345) * 4;
    bool fresh = rank.argument == "fresh";
    rank.open();
    void *stream = rank.device->stream();
    void *tensor = nullptr, *read = rank.device->alloc(size);
    int next = (rank.rank + 1) % rank.ranks, last = (rank.rank + rank.ranks - 1) % rank.ranks;
    for (int repetition = 0; repetition < REPETITIONS; repetition++) {
        if (tensor == nullptr || fresh)
            tensor = rank.device->alloc(size);
        rank.device->fill(tensor, size, 100 * repetition + rank.rank);
        ph_operation ops[] = {{9, next, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, read, size},
                              {9, last, PH_ROLE_SENDER, PH_PROTOCOL_DEFAULT, tensor, size}};
        ph_channel *channels[2];
        CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
        rank.barrier();
        CHECK_OK(ph_get(channels[0], 0, 0, size, stream));
        rank.synchronize(stream);
        rank.verify(read, size, 100 * repetition + next, "the next rank's tensor");
        rank.barrier();
    }
    if (!fresh)
        CHECK(rank.counter("hits") == 2 * uint64_t(REPETITIONS - 1));
}

TEST_P(NvFuser, HandleExchangeRepeated)
{
    SKIP_GETS_OF_STAGED();
    for (const char *tensors : {"same", "fresh"}) {
        Job job(GetParam(), 3);
        EXPECT_EQ(job.run("exchange_handles", tensors), "") << tensors;
    }
}

// A view of the k-th element is exported; the peer finds that element at its offset 0.
RANK_FUNCTION(arithmetic_at_sender)
{
    const size_t size = size_t(64) * 1024, element = 8;
    rank.open();
    void *stream = rank.device->stream();
    void *tensor = rank.device->alloc(size), *read = rank.device->alloc(size);
    rank.device->fill(tensor, size, rank.rank);
    for (size_t k : {1, 3, 511, 8191}) {
        size_t rest = size - k * element;
        ph_operation ops[] = {
            {k, !rank.rank, PH_ROLE_SENDER, PH_PROTOCOL_DEFAULT, at(tensor, k * element), rest},
            {k + 100000, !rank.rank, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, read, rest}};
        if (rank.rank == 1)
            std::swap(ops[0].op_id, ops[1].op_id);
        ph_channel *channels[2];
        CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
        CHECK_OK(ph_get(channels[1], 0, 0, rest, stream));
        rank.synchronize(stream);
        std::string wrong = rank.device->verify(read, rest, !rank.rank, k * element);
        if (!wrong.empty())
            rank_failed(__FILE__, __LINE__, "element " + std::to_string(k) + ": " + wrong);
    }
    CHECK(rank.counter("imports") <= 2); // of the tensor, and of what the peer reads into
    rank.barrier();
}

TEST_P(NvFuser, PointerArithmeticAtTheSender)
{
    SKIP_GETS_OF_STAGED();
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("arithmetic_at_sender"), "");
}

// The whole tensor is exported; the peer reads, and writes, at an offset of it.
RANK_FUNCTION(arithmetic_at_receiver)
{
    const size_t size = size_t(64) * 1024, element = 8;
    rank.open();
    void *stream = rank.device->stream();
    void *tensor = rank.device->alloc(size);
    rank.device->fill(tensor, size, rank.rank);
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, tensor, size);
    rank.barrier();
    for (size_t k : {0, 1, 3, 500, 8190}) {
        if (rank.rank == 0) {
            CHECK_OK(ph_get(channel, k * element, k * element, element, stream));
            CHECK_OK(ph_put(channel, (k + 1) * element, 16, element, stream));
            rank.synchronize(stream);
            std::string wrong =
                rank.device->verify(at(tensor, k * element), element, 1, k * element);
            if (!wrong.empty())
                rank_failed(__FILE__, __LINE__, "element " + std::to_string(k) + ": " + wrong);
        }
        rank.barrier();
        if (rank.rank == 1) {
            std::string wrong = rank.device->verify(at(tensor, (k + 1) * element), element, 0, 16);
            if (!wrong.empty())
                rank_failed(__FILE__, __LINE__,
                            "written after element " + std::to_string(k) + ": " + wrong);
            rank.device->fill(tensor, size, 1);
        }
        if (rank.rank == 0)
            rank.device->fill(tensor, size, 0);
        rank.barrier();
    }
}

TEST_P(NvFuser, PointerArithmeticAtTheReceiver)
{
    SKIP_GETS_OF_STAGED();
    Job job(GetParam(), 2);
    EXPECT_EQ(job.run("arithmetic_at_receiver"), "");
}

// Post first, copy next, complete last: a ring of plain calls on one stream, and 32 repetitions
// without a look at the host.
RANK_FUNCTION(plain_ring)
{
    const size_t size = size_t(32) * 1024;
    const int repetitions = 32;
    rank.open();
    ph_protocol protocol = protocol_of(rank.argument);
    void *stream = rank.device->stream();
    void *out = rank.device->alloc(size), *in = rank.device->alloc(size);
    void *table = rank.device->alloc(repetitions * size),
         *log = rank.device->alloc(repetitions * size);
    int next = (rank.rank + 1) % rank.ranks, last = (rank.rank + rank.ranks - 1) % rank.ranks;
    rank.device->fill(table, repetitions * size, rank.rank);
    for (int repetition = 0; repetition < repetitions; repetition++) {
        ph_operation ops[] = {{1, next, PH_ROLE_SENDER, protocol, out, size},
                              {1, last, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in, size}};
        ph_channel *channels[2]; // of the cache but for the first time
        CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
        rank.device->copy(stream, out, at(table, repetition * size), size);
        if (protocol == PH_PROTOCOL_PUT) {
            CHECK_OK(ph_recv(channels[1], size, stream));
            CHECK_OK(ph_send(channels[0], size, stream));
        } else {
            CHECK_OK(ph_send(channels[0], size, stream));
            CHECK_OK(ph_recv(channels[1], size, stream));
        }
        CHECK_OK(ph_complete(channels[0], stream));
        CHECK_OK(ph_complete(channels[1], stream));
        rank.device->copy(stream, at(log, repetition * size), in, size);
    }
    rank.synchronize(stream);
    rank.verify(log, repetitions * size, last, "from the rank before");
}

TEST_P(NvFuser, RingInPutProtocol)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("plain_ring", "put"), "");
}

TEST_P(NvFuser, RingInGetProtocol)
{
    Job job(GetParam(), 3);
    EXPECT_EQ(job.run("plain_ring", "get"), "");
}
