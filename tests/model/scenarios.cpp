// SPDX-License-Identifier: BSD-3-Clause
#include "model/scenarios.h"

namespace model
{

static const Protocol PUT = Protocol::PUT;
static const Protocol GET = Protocol::GET;

// Rank 0 sends, rank 1 receives, several rounds; as a loop where the rounds are for ever.
static Machine one_way(const Tables &tables, Protocol protocol, int rounds, bool cyclic)
{
    Machine m(2, tables);
    int c = m.channel(0, 1, protocol);
    int a = m.stream(0, cyclic), b = m.stream(1, cyclic);
    for (int i = 0; i < rounds; i++) {
        m.send(a, c);
        m.recv(b, c);
    }
    return m;
}

static Machine send_put(const Tables &tables)
{
    return one_way(tables, PUT, 3, false);
}

static Machine send_get(const Tables &tables)
{
    return one_way(tables, GET, 3, false);
}

static Machine replay_put(const Tables &tables)
{
    return one_way(tables, PUT, 1, true);
}

static Machine replay_get(const Tables &tables)
{
    return one_way(tables, GET, 1, true);
}

// One rank replays a graph of two rounds, the other enqueues single rounds.
static Machine replay_one_rank(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1, PUT, GET);
    int a = m.stream(0, true), b = m.stream(1, true);
    for (int i = 0; i < 2; i++) {
        m.send(a, c);
        m.recv(a, c);
    }
    m.recv(b, c);
    m.send(b, c);
    return m;
}

// As before, where the eager rank ends after as many rounds as the graph was launched.
static Machine replay_and_eager(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1, GET, PUT);
    int a = m.stream(0), b = m.stream(1);
    for (int i = 0; i < 4; i++) {
        m.send(a, c);
        m.recv(b, c);
    }
    for (int i = 0; i < 4; i++) {
        m.recv(a, c);
        m.send(b, c);
    }
    return m;
}

static Machine ping_pong(const Tables &tables, Protocol forth, Protocol back)
{
    Machine m(2, tables);
    int c = m.channel(0, 1, forth, back);
    int a = m.stream(0, true), b = m.stream(1, true);
    m.send(a, c);
    m.recv(a, c);
    m.recv(b, c);
    m.send(b, c);
    return m;
}

static Machine ping_pong_put(const Tables &tables)
{
    return ping_pong(tables, PUT, PUT);
}

static Machine ping_pong_mixed(const Tables &tables)
{
    return ping_pong(tables, PUT, GET);
}

// Both directions at once, each on a stream of its own (or two branches of a graph).
static Machine two_streams(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1, PUT, GET);
    for (int rank = 0; rank < 2; rank++) {
        int out = m.stream(rank, true), in = m.stream(rank, true);
        m.send(out, c);
        m.recv(in, c);
    }
    return m;
}

static Machine signal_wait(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1);
    int a = m.stream(0), b = m.stream(1);
    for (int i = 0; i < 4; i++) {
        m.signal(a, c);
        m.wait(b, c);
    }
    return m;
}

static Machine signal_both_ways(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1);
    for (int rank = 0; rank < 2; rank++) {
        int s = m.stream(rank, true);
        m.signal(s, c);
        m.wait(s, c);
    }
    return m;
}

static Machine put_signal_ping_pong(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1);
    int a = m.stream(0, true), b = m.stream(1, true);
    m.put_signal(a, c);
    m.wait(a, c);
    m.consume(a, c);
    m.wait(b, c);
    m.consume(b, c);
    m.put_signal(b, c);
    return m;
}

// One way, with two halves of the buffer in turn: FREE alone keeps the halves apart.
static Machine put_signal_halves(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1);
    int a = m.stream(0, true), b = m.stream(1, true);
    for (int slot = 0; slot < 2; slot++) {
        m.put_signal(a, c, slot);
        m.wait(b, c);
        m.consume(b, c, slot);
    }
    return m;
}

// A put ordered by a signal, acknowledged by another; then a get between two signals.
static Machine put_then_signal(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1);
    int a = m.stream(0, true), b = m.stream(1, true);
    m.produce(a, c);
    m.put(a, c);
    m.signal(a, c);
    m.wait(a, c);
    m.wait(b, c);
    m.consume(b, c);
    m.signal(b, c);
    return m;
}

static Machine get_between_signals(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1);
    int a = m.stream(0, true), b = m.stream(1, true);
    m.produce(a, c);
    m.signal(a, c);
    m.wait(a, c);
    m.wait(b, c);
    m.get(b, c);
    m.consume(b, c);
    m.signal(b, c);
    return m;
}

// Messages and signals of one direction use words of their own.
static Machine send_and_signal(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1);
    int a = m.stream(0), b = m.stream(1);
    for (int i = 0; i < 2; i++) {
        m.send(a, c);
        m.signal(a, c);
        m.recv(b, c);
        m.wait(b, c);
    }
    return m;
}

static Machine exchange_pair(const Tables &tables, Protocol forth, Protocol back)
{
    Machine m(2, tables);
    int c = m.channel(0, 1, forth, back);
    for (int rank = 0; rank < 2; rank++) {
        int s = m.stream(rank, true);
        m.group(s, {{GroupKind::SEND, c}, {GroupKind::RECV, c}});
    }
    return m;
}

// Both ends copy (put both ways, the sender is active), as two blocking sends could not.
static Machine group_pair_put(const Tables &tables)
{
    return exchange_pair(tables, PUT, PUT);
}

static Machine group_pair_get(const Tables &tables)
{
    return exchange_pair(tables, GET, GET);
}

static Machine group_pair_mixed(const Tables &tables)
{
    return exchange_pair(tables, PUT, GET);
}

static Machine group_ring(const Tables &tables, Protocol first, bool cyclic)
{
    Machine m(3, tables);
    int c[3] = {m.channel(0, 1, first), m.channel(1, 2, PUT), m.channel(2, 0, PUT)};
    for (int rank = 0; rank < 3; rank++) {
        int s = m.stream(rank, cyclic);
        m.group(s, {{GroupKind::SEND, c[rank]}, {GroupKind::RECV, c[(rank + 2) % 3]}});
    }
    return m;
}

static Machine group_ring_put(const Tables &tables)
{
    return group_ring(tables, PUT, true);
}

static Machine group_ring_mixed(const Tables &tables)
{
    return group_ring(tables, GET, true);
}

static Machine group_all_to_all(const Tables &tables)
{
    Machine m(3, tables);
    int c[3] = {m.channel(0, 1, PUT, PUT), m.channel(1, 2, PUT, GET), m.channel(2, 0, GET, PUT)};
    for (int rank = 0; rank < 3; rank++) {
        int s = m.stream(rank, true);
        int right = c[rank], left = c[(rank + 2) % 3];
        m.group(s, {{GroupKind::SEND, right},
                    {GroupKind::SEND, left},
                    {GroupKind::RECV, right},
                    {GroupKind::RECV, left}});
    }
    return m;
}

// Every kind in one group, in whatever order they are named. The answer comes after the data is
// used.
static Machine group_kinds(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1, PUT, GET);
    int a = m.stream(0, true), b = m.stream(1, true);
    m.group(a, {{GroupKind::WAIT, c},
                {GroupKind::RECV, c},
                {GroupKind::PUT_SIGNAL, c},
                {GroupKind::SEND, c}});
    m.group(b, {{GroupKind::SEND, c}, {GroupKind::WAIT, c}, {GroupKind::RECV, c}});
    m.consume(b, c, 1);
    m.group(b, {{GroupKind::SIGNAL, c}});
    return m;
}

// A ring of groups on one stream of each rank, the other way round on a second one.
static Machine group_two_streams(const Tables &tables)
{
    Machine m(3, tables);
    int c[3] = {m.channel(0, 1, PUT, GET), m.channel(1, 2, PUT, PUT), m.channel(2, 0, GET, PUT)};
    for (int rank = 0; rank < 3; rank++) {
        int right = c[rank], left = c[(rank + 2) % 3];
        m.group(m.stream(rank, true), {{GroupKind::SEND, right}, {GroupKind::RECV, left}});
        if (rank < 2) {
            int s = m.stream(rank, true);
            m.group(s, {{GroupKind::SIGNAL, c[0]}, {GroupKind::WAIT, c[0]}});
        }
    }
    return m;
}

// A ping-pong of groups: one rank is a receive ahead, and each group sends and posts the next
// receive.
static Machine group_shifted(const Tables &tables)
{
    Machine m(2, tables);
    int c = m.channel(0, 1, PUT, PUT);
    int a = m.stream(0), b = m.stream(1);
    const int rounds = 3;
    for (int i = 0; i < rounds; i++)
        m.group(a, {{GroupKind::SEND, c}, {GroupKind::RECV, c}});
    m.recv(b, c);
    for (int i = 0; i + 1 < rounds; i++)
        m.group(b, {{GroupKind::RECV, c}, {GroupKind::SEND, c}});
    m.send(b, c);
    return m;
}

// Stages of a pipeline, each a group, shifted by one receive.
static Machine group_pipeline(const Tables &tables)
{
    Machine m(3, tables);
    int up = m.channel(0, 1, PUT), down = m.channel(1, 2, GET);
    int s[3] = {m.stream(0), m.stream(1), m.stream(2)};
    const int rounds = 3;
    m.recv(s[1], up);
    for (int i = 0; i < rounds; i++) {
        m.send(s[0], up);
        m.recv(s[2], down);
        if (i + 1 < rounds)
            m.group(s[1], {{GroupKind::SEND, down}, {GroupKind::RECV, up}});
    }
    m.send(s[1], down);
    return m;
}

const std::vector<Scenario> &small_scenarios()
{
    static const std::vector<Scenario> all = {
        {"send_put", send_put},
        {"send_get", send_get},
        {"replay_put", replay_put},
        {"replay_get", replay_get},
        {"signal_wait", signal_wait},
        {"signal_both_ways", signal_both_ways},
        {"put_signal_ping_pong", put_signal_ping_pong},
        {"put_signal_halves", put_signal_halves},
        {"put_then_signal", put_then_signal},
        {"get_between_signals", get_between_signals},
        {"group_pair_put", group_pair_put},
        {"group_ring_put", group_ring_put},
        {"group_kinds", group_kinds},
    };
    return all;
}

const std::vector<Scenario> &scenarios()
{
    static const std::vector<Scenario> all = [] {
        std::vector<Scenario> list = small_scenarios();
        list.insert(list.end(), {
                                    {"replay_one_rank", replay_one_rank},
                                    {"replay_and_eager", replay_and_eager},
                                    {"ping_pong_put", ping_pong_put},
                                    {"ping_pong_mixed", ping_pong_mixed},
                                    {"two_streams", two_streams},
                                    {"send_and_signal", send_and_signal},
                                    {"group_pair_get", group_pair_get},
                                    {"group_pair_mixed", group_pair_mixed},
                                    {"group_ring_mixed", group_ring_mixed},
                                    {"group_all_to_all", group_all_to_all},
                                    {"group_two_streams", group_two_streams},
                                    {"group_shifted", group_shifted},
                                    {"group_pipeline", group_pipeline},
                                });
        return list;
    }();
    return all;
}

} // namespace model
