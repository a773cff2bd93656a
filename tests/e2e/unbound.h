// SPDX-License-Identifier: BSD-3-Clause
// What tests of unbound channels share.
#ifndef TESTS_E2E_UNBOUND_H
#define TESTS_E2E_UNBOUND_H

#include <cstdlib>

#include "e2e/bytes.h"
#include "e2e/exchanging.h"

class UnboundSuite : public EveryDevice
{
  protected:
    // Of the ways in which messages go, one each.
    static std::vector<std::string> ways()
    {
        return on_host() || on_net() ? std::vector<std::string>{""}
                                     : std::vector<std::string>{" bounce", " ring"};
    }
    // Runs a function with each of them.
    static void run(const std::string &function, int ranks = 2, const std::string &how = "")
    {
        for (const std::string &way : ways()) {
            Job job(GetParam(), ranks);
            EXPECT_EQ(job.run(function, how + way), "") << how << way << ", " << ranks << " ranks";
        }
    }
};

// "ring" in a test's argument: a table says that wide lines come whole; "bounce": nothing goes by
// lines.
inline void open(Rank &rank, std::vector<std::string> settings = {})
{
    if (rank.argument.find("ring") != std::string::npos)
        settings.push_back(Rank::wide());
    if (rank.argument.find("bounce") != std::string::npos)
        settings.push_back("PEERHOP_LL_MAX=0");
    rank.open(settings);
}

inline const uint64_t op_id = 77;

inline ph_channel *unbound(Rank &rank, int peer, ph_role role, uint64_t op = op_id)
{
    const ph_operation operation = {.op_id = op, .peer = peer, .role = role};
    ph_channel *channel;
    CHECK_OK(ph_exchange(rank.context, &operation, 1, &channel));
    CHECK(ph_channel_local_size(channel) == 0 && ph_channel_peer_size(channel) == 0);
    return channel;
}

// Memory that was never exchanged: of a host context any.
class Memory
{
  public:
    Memory(Rank &owner, size_t bytes, size_t lead = 0) : rank(owner), size(bytes)
    {
        on_host_ = rank.device->host();
        base_ = on_host_ ? malloc(bytes + lead + 1) : rank.device->alloc(bytes + lead + 1);
        data = at(base_, lead);
    }
    ~Memory()
    {
        if (on_host_)
            free(base_);
        else
            rank.device->release(base_);
    }
    Memory(const Memory &) = delete;
    void fill(uint64_t seed)
    {
        rank.device->fill(data, size, seed);
    }
    void verify(uint64_t seed, const char *what)
    {
        rank.verify(data, size, seed, what);
    }

    Rank &rank;
    const size_t size;
    void *data;

  private:
    bool on_host_;
    void *base_;
};

// A message of rank 0's on a channel that has not ended.
inline void stays_good(Rank &rank, ph_channel *channel, void *stream)
{
    Memory memory(rank, 100001);
    memory.fill(rank.rank ? 0 : 8);
    if (rank.rank == 0)
        CHECK_OK(ph_send_from(channel, memory.data, memory.size, stream));
    else
        CHECK_OK(ph_recv_into(channel, memory.data, memory.size, stream));
    rank.synchronize(stream);
    memory.verify(8, "by a channel that has not ended");
    CHECK_OK(ph_channel_status(channel));
}

#endif
