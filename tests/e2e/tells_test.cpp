// SPDX-License-Identifier: BSD-3-Clause
// A signal of a group tells of the puts and gets that stand before it in the list, on its channel,
// whatever way they take and however many of them are under way together.
#include <cstring>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class Tells : public EveryDevice
{
};
INSTANTIATE_DEVICES_AND_ALL_NETS(Tells);

// Rank 0 gets from rank 1, or puts there, and tells it so by the same call. Rank 1 then finds what
// was put, and overwrites what was read. One end of a put is small, and its signal may go by
// another rail.
RANK_FUNCTION(tells)
{
    const auto has = [&](const char *word) {
        return rank.argument.find(word) != std::string::npos;
    };
    const size_t page = 100000, pages = 5;
    const size_t got = has("get") ? 3 << 20 : 0, put = has("put") ? pages * page : 0;
    const size_t size = got + put + 8, said = has("data") ? 8 : 0;
    const int rounds = got ? 16 : 60;
    rank.open({"PEERHOP_NET_RAILS=2"});
    void *stream = rank.device->stream();
    char *memory = static_cast<char *>(rank.device->alloc(size));
    char *seen = static_cast<char *>(rank.device->alloc(size));
    char *junk = static_cast<char *>(rank.device->alloc(size));
    char *table = static_cast<char *>(rank.device->alloc(size + 8 * rounds));
    rank.device->fill(table, size + 8 * rounds, 1);
    rank.device->fill(junk, size, 2);
    ph_channel *channel = rank.channel(!rank.rank, 1, PH_ROLE_BOTH, memory, size);
    std::vector<ph_group_op> list;
    for (size_t at = got; at < got + put; at += page)
        list.push_back({PH_GROUP_PUT, channel, at, at, page});
    if (got)
        list.push_back({PH_GROUP_GET, channel, 0, 0, got});
    list.push_back(
        {said ? PH_GROUP_PUT_SIGNAL : PH_GROUP_SIGNAL, channel, size - 8, size - 8, said});
    const auto give = [&] { CHECK_OK(ph_group(list.data(), list.size(), stream)); };
    void *graph = rank.rank == 0 && has("graph") ? rank.device->capture(stream, give) : nullptr;
    for (int round = 0; round < rounds; round++) {
        const char *fresh = table + 8 * round;
        rank.device->copy(stream, memory, junk, size);
        if (rank.rank == 0) {
            rank.device->copy(stream, memory + got, fresh + got, put + 8);
            CHECK_OK(ph_wait(channel, 0, stream)); // rank 1 is ready
            if (graph)
                rank.device->launch(graph, stream);
            else
                give();
            rank.device->copy(stream, seen, memory, got);
            CHECK_OK(ph_wait(channel, 0, stream));
        } else {
            rank.device->copy(stream, memory, fresh, got);
            CHECK_OK(ph_signal(channel, stream));
            CHECK_OK(ph_wait(channel, said, stream));
            rank.device->copy(stream, memory, junk, got);
            rank.device->copy(stream, seen, memory + got, put);
            CHECK_OK(ph_signal(channel, stream));
        }
        rank.synchronize(stream);
        const std::string wrong =
            rank.device->verify(seen, rank.rank ? put : got, 1, 8 * round + (rank.rank ? got : 0));
        if (!wrong.empty())
            rank_failed(__FILE__, __LINE__, "round " + std::to_string(round) + ": " + wrong);
        rank.barrier();
    }
    if (graph)
        rank.device->destroy(graph);
    rank.close();
}

TEST_P(Tells, OfWhatStandsBeforeIt)
{
    for (const char *how : {"put", "put data", "get", "get data", "get put", "get put data",
                            "get graph", "get put data graph"}) {
        if (is_staged() && strstr(how, "get"))
            continue; // refused there
        SCOPED_TRACE(how);
        Job job(GetParam(), 2);
        EXPECT_EQ(job.run("tells", how), "");
    }
    if (GetParam() != "standinhmem")
        return;
    for (int host : {0, 1}) { // with one of them no device
        SCOPED_TRACE(host);
        Job job(GetParam(), 2);
        job.environment(host, "PEERHOP_TEST_DEVICE", "host");
        EXPECT_EQ(job.run("tells", "get put data"), "");
    }
}
