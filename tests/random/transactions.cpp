// SPDX-License-Identifier: BSD-3-Clause
// What ranks do with one another. Each function writes the steps of all ranks that take part, in an
// order in which each step waits at most for what stands before it.
#include "random/builder.h"

#include <algorithm>
#include <map>

namespace
{

// What one rank tells a peer by one signal on a channel.
struct Told {
    int link, from, to;
    std::vector<Message> messages; // puts of the teller's, and its gets
    bool carried = false;          // the last put is a put_signal
    Region puts, gets, put_sources, get_sources;

    size_t size() const // of the wait
    {
        return carried ? messages.back().size : 0;
    }
};

void add_messages(Builder &b, Told &told, size_t puts, size_t gets, size_t most = LARGEST)
{
    const Link &link = b.layout.links[(size_t)told.link];
    for (size_t i = 0; i < puts + gets; i++) {
        Message m = {told.link, told.from, told.to, b.dice.below(puts + gets) < gets, 0, 0, 0, 0};
        if (m.get)
            std::swap(m.from, m.to);
        m.size = b.size_for(m.from, link.at(m.from), m.to, link.at(m.to), most);
        m.data = b.new_data();
        told.messages.push_back(m);
    }
    told.carried = !told.messages.empty() && !told.messages.back().get && b.dice.chance(50);
}

void place(Builder &b, Told &told, bool get, bool target, Region &region)
{
    const Link &link = b.layout.links[(size_t)told.link];
    for (Message &m : told.messages) {
        if (m.get != get)
            continue;
        const int rank = target ? m.to : m.from;
        if (region.rank < 0)
            region = b.open(rank, link.at(rank).area);
        if (target)
            m.target = b.add(region, m.size, Fill::POISON, Fill::DATA, m.data);
        else
            m.source = b.add(region, m.size, Fill::DATA, Fill::DATA, m.data);
    }
}

void place_all(Builder &b, Told &told)
{
    place(b, told, false, true, told.puts);
    place(b, told, true, true, told.gets);
    place(b, told, false, false, told.put_sources);
    place(b, told, true, false, told.get_sources);
}

Member signal_of(const Told &told)
{
    return {PH_GROUP_SIGNAL, told.link, 0, 0, 0};
}

Member wait_of(const Told &told)
{
    return {PH_GROUP_WAIT, told.link, 0, 0, told.size()};
}

// What may be done as soon as the teller's calls are over on its stream.
void after_telling(Builder &b, const Told &told, int stream)
{
    b.spend(told.from, stream, told.put_sources);
    b.take(told.from, stream, told.gets);
}

void after_waiting(Builder &b, const Told &told, int stream)
{
    b.take(told.to, stream, told.puts);
    b.spend(told.to, stream, told.get_sources);
}

// The members of several lists, each list's in their order.
std::vector<Member> shuffle(Builder &b, std::vector<std::vector<Member>> lists)
{
    std::vector<Member> all;
    for (auto &list : lists)
        std::reverse(list.begin(), list.end());
    while (!lists.empty()) {
        const size_t i = b.dice.below(lists.size());
        if (lists[i].empty()) {
            lists.erase(lists.begin() + (long)i);
            continue;
        }
        all.push_back(lists[i].back());
        lists[i].pop_back();
    }
    return all;
}

std::vector<Member> members_of(Builder &b, const Told &told)
{
    std::vector<Member> list;
    for (size_t i = 0; i < told.messages.size(); i++)
        list.push_back(b.member(told.messages[i], told.carried && i + 1 == told.messages.size()));
    if (!told.carried)
        list.push_back(signal_of(told));
    return list;
}

// ---- one rank tells one peer or some, by single calls, by a group, or by single copies and a
// group of signals

enum class Style { SINGLE, GROUP, BURST };

void tell(Builder &b, std::vector<Told> &all, Style style, int stream)
{
    const int rank = all[0].from;
    std::vector<std::vector<Member>> lists;
    for (Told &told : all) {
        b.use(rank, told.link, stream);
        if (style == Style::BURST)
            told.carried = false;
        if (style == Style::GROUP) {
            lists.push_back(members_of(b, told));
            continue;
        }
        for (size_t i = 0; i < told.messages.size(); i++)
            b.copy(rank, stream, told.messages[i], told.carried && i + 1 == told.messages.size());
        if (style == Style::BURST)
            lists.push_back({signal_of(told)});
        else if (!told.carried)
            b.call(rank, stream, Call::SIGNAL, told.link, 0);
    }
    if (!lists.empty())
        b.group(rank, stream, shuffle(b, lists));
    for (const Told &told : all)
        after_telling(b, told, stream);
}

// Of one peer all waits may be one group. Where slots hold what was put, all must be waited for at
// once.
void hear(Builder &b, const std::vector<Told> &all)
{
    std::map<int, std::vector<const Told *>> by_peer;
    for (const Told &told : all)
        by_peer[told.to].push_back(&told);
    for (const auto &[peer, list] : by_peer) {
        const int stream = b.pick_stream();
        std::vector<Member> members;
        const bool grouped = b.dice.chance(b.mix.grouped) || (b.mix.staged && list.size() > 1);
        for (const Told *told : list) {
            b.use(peer, told->link, stream);
            members.push_back(wait_of(*told));
            if (!grouped) {
                b.call(peer, stream, Call::WAIT, told->link, told->size());
                after_waiting(b, *told, stream);
            }
        }
        if (!grouped)
            continue;
        b.group(peer, stream, members);
        for (const Told *told : list)
            after_waiting(b, *told, stream);
    }
}

void telling(Builder &b)
{
    const int from = (int)b.dice.below((size_t)b.config.ranks);
    const Style style = b.dice.chance(b.mix.grouped) ? Style::GROUP
                        : b.dice.chance(30)          ? Style::BURST
                                                     : Style::SINGLE;
    const size_t links = b.dice.chance(60) ? 1 : b.dice.between(2, 4);
    // Single copies that fill slots wait for the peer's wait, which may be behind another: all of
    // them fit into the slots.
    const bool few = b.mix.staged && links > 1 && style != Style::GROUP;
    std::vector<Told> all;
    b.begin_transaction("puts and gets, then a signal", from, -1, -1, style == Style::GROUP);
    for (size_t i = 0; i < links; i++) {
        const int to = b.other_rank(from), link = b.data_link(from, to);
        if (std::any_of(all.begin(), all.end(), [&](const Told &t) { return t.link == link; }))
            continue;
        Told told = {};
        told.link = link, told.from = from, told.to = to;
        add_messages(b, told, b.dice.by_size(1, few ? 3 : b.mix.puts) - (b.dice.chance(10) ? 1 : 0),
                     b.mix.gets && b.dice.chance(35) ? b.dice.by_size(1, 8) : 0,
                     few ? LARGE / 2 : LARGEST);
        all.push_back(told);
    }
    if (style == Style::BURST)
        for (Told &told : all)
            told.carried = false;
    for (Told &told : all)
        place_all(b, told);
    tell(b, all, style, b.pick_stream());
    hear(b, all);
}

// ---- sends

struct Sent {
    int link, from, to;
    size_t size;
    Region source, target;
};

bool choose_send(Builder &b, int a, int peer, Sent &sent)
{
    std::vector<int> free;
    for (size_t i = 0; i < b.layout.links.size(); i++) {
        const Link &link = b.layout.links[i];
        if (link.use == Link::SEND && link.has(a) && link.has(peer) && !b.sent[i] &&
            (link.sender < 0 || link.sender == a))
            free.push_back((int)i);
    }
    if (free.empty())
        return false;
    const int chosen = free[b.dice.below(free.size())];
    const Link &link = b.layout.links[(size_t)chosen];
    b.sent[(size_t)chosen] = true;
    sent = {chosen, a, peer, b.size_of_send(a, peer, link), {}, {}};
    const uint32_t data = b.new_data();
    sent.target = b.single(peer, link.at(peer), sent.size, Fill::POISON, Fill::DATA, data);
    sent.source = b.single(a, link.at(a), sent.size, Fill::DATA, Fill::DATA, data);
    return true;
}

void sending(Builder &b)
{
    const int from = (int)b.dice.below((size_t)b.config.ranks), to = b.other_rank(from);
    Sent sent;
    b.begin_transaction("send and receive", from, to, -1, false);
    if (!choose_send(b, from, to, sent))
        return;
    const int out = b.pick_stream(), in = b.pick_stream();
    b.use(from, sent.link, out);
    b.use(to, sent.link, in);
    b.call(from, out, Call::SEND, sent.link, sent.size);
    b.call(from, out, Call::COMPLETE, sent.link, 0);
    b.spend(from, out, sent.source);
    b.call(to, in, Call::RECV, sent.link, sent.size);
    b.call(to, in, Call::COMPLETE, sent.link, 0);
    b.take(to, in, sent.target);
}

// ---- sends and receives of an unbound channel: of these a receive tells

std::vector<Member> unbound_members_of(Builder &b, const Told &told, int rank)
{
    std::vector<Member> list;
    for (const Message &m : told.messages)
        list.push_back(b.unbound_member(rank, m));
    return list;
}

Told make_unbound(Builder &b, int from, int to, size_t n)
{
    Told told = {};
    told.link = b.unbound_link(from, to), told.from = from, told.to = to;
    add_messages(b, told, n, 0);
    place_all(b, told);
    return told;
}

void passing(Builder &b)
{
    const int from = (int)b.dice.below((size_t)b.config.ranks), to = b.other_rank(from);
    b.begin_transaction("unbound sends and receives", from, to, b.unbound_link(from, to), false);
    const Told told = make_unbound(b, from, to, b.dice.by_size(1, 8));
    for (const int rank : {from, to}) {
        const int stream = b.pick_stream();
        b.use(rank, told.link, stream);
        if (b.dice.chance(b.mix.grouped))
            b.group(rank, stream, unbound_members_of(b, told, rank));
        else
            for (const Message &m : told.messages)
                b.pass(rank, stream, m);
        rank == from ? after_telling(b, told, stream) : after_waiting(b, told, stream);
    }
}

// ---- matching groups of several ranks

struct Exchange {
    std::vector<Told> told, unbound;
    std::vector<Sent> sent;
    std::vector<size_t> awaited; // by rank
};

// Where slots hold messages a group may wait for 15, whatever it sends.
bool may_wait(const Builder &b, Exchange &exchange, int rank)
{
    size_t &n = exchange.awaited[(size_t)rank];
    if (b.mix.staged && n >= 14)
        return false;
    n++;
    return true;
}

void plan_pair(Builder &b, Exchange &exchange, int from, int to)
{
    for (size_t i = b.dice.below(3); i-- > 0;) {
        const int link = b.data_link(from, to);
        const bool taken =
            std::any_of(exchange.told.begin(), exchange.told.end(),
                        [&](const Told &t) { return t.link == link && t.from == from; });
        if (taken || !may_wait(b, exchange, to))
            continue;
        Told told = {};
        told.link = link, told.from = from, told.to = to;
        add_messages(b, told, b.dice.by_size(1, b.mix.puts) - 1,
                     b.mix.gets && b.dice.chance(30) ? b.dice.by_size(1, 4) : 0);
        place_all(b, told);
        exchange.told.push_back(told);
    }
    size_t n = 0;
    for (size_t most = b.dice.below(4); n < most && may_wait(b, exchange, to);)
        n++;
    if (n > 0)
        exchange.unbound.push_back(make_unbound(b, from, to, n));
    Sent sent;
    if (b.dice.chance(50) && may_wait(b, exchange, to) && may_wait(b, exchange, from) &&
        choose_send(b, from, to, sent))
        exchange.sent.push_back(sent);
}

void issue_exchange(Builder &b, const Exchange &exchange, int rank)
{
    const int stream = b.pick_stream();
    std::vector<std::vector<Member>> lists;
    for (const Told &told : exchange.told) {
        if (told.from == rank)
            lists.push_back(members_of(b, told));
        if (told.to == rank)
            lists.push_back({wait_of(told)});
        if (told.from == rank || told.to == rank)
            b.use(rank, told.link, stream);
    }
    for (const Told &told : exchange.unbound) {
        if (told.from != rank && told.to != rank)
            continue;
        b.use(rank, told.link, stream);
        lists.push_back(unbound_members_of(b, told, rank));
    }
    for (const Sent &sent : exchange.sent) {
        if (sent.from != rank && sent.to != rank)
            continue;
        b.use(rank, sent.link, stream);
        lists.push_back(
            {{sent.from == rank ? PH_GROUP_SEND : PH_GROUP_RECV, sent.link, 0, 0, sent.size}});
    }
    if (lists.empty())
        return;
    b.group(rank, stream, shuffle(b, lists));
    for (const auto *list : {&exchange.told, &exchange.unbound})
        for (const Told &told : *list) {
            if (told.from == rank)
                after_telling(b, told, stream);
            if (told.to == rank)
                after_waiting(b, told, stream);
        }
    for (const Sent &sent : exchange.sent) {
        if (sent.from == rank)
            b.spend(rank, stream, sent.source);
        if (sent.to == rank)
            b.take(rank, stream, sent.target);
    }
}

void exchanging(Builder &b)
{
    Exchange exchange;
    exchange.awaited.assign((size_t)b.config.ranks, 0);
    b.begin_transaction("matching groups", -1, -1, -1, true);
    const unsigned pairs = b.config.ranks > 4 ? 30 : 80;
    for (int from = 0; from < b.config.ranks; from++)
        for (int to = 0; to < b.config.ranks; to++)
            if (from != to && b.dice.chance(pairs))
                plan_pair(b, exchange, from, to);
    for (int rank = 0; rank < b.config.ranks; rank++)
        issue_exchange(b, exchange, rank);
}

// ---- from one peer to another

void copying(Builder &b)
{
    const int rank = (int)b.dice.below((size_t)b.config.ranks);
    const int source = b.other_rank(rank), target = b.other_rank(rank);
    const int from = b.data_link(rank, source);
    const int to = source == target ? from : b.data_link(rank, target);
    const Link &in = b.layout.links[(size_t)from], &out = b.layout.links[(size_t)to];
    const int stream = b.pick_stream();
    const bool both = source != target;
    b.begin_transaction("copies from peer to peer, then signals", source, target, to, false);
    struct One {
        size_t size, target, source;
        uint32_t data;
    };
    std::vector<One> all(b.dice.by_size(1, 8));
    for (One &one : all)
        one = {b.size_for(source, in.at(source), target, out.at(target), both ? LARGEST : LARGE), 0,
               0, b.new_data()};
    Region targets = b.open(target, out.at(target).area);
    for (One &one : all)
        one.target = b.add(targets, one.size, Fill::POISON, Fill::DATA, one.data);
    Region sources = b.open(source, in.at(source).area);
    for (One &one : all)
        one.source = b.add(sources, one.size, Fill::DATA, Fill::DATA, one.data);
    b.use(rank, from, stream);
    b.use(rank, to, stream);
    for (const One &one : all)
        b.copy_between(rank, stream, to, b.remote(target, to, one.target), from,
                       b.remote(source, from, one.source), one.size);
    if (both && b.dice.chance(b.mix.grouped)) {
        b.group(rank, stream, {{PH_GROUP_SIGNAL, to, 0, 0, 0}, {PH_GROUP_SIGNAL, from, 0, 0, 0}});
    } else {
        b.call(rank, stream, Call::SIGNAL, to, 0);
        if (both)
            b.call(rank, stream, Call::SIGNAL, from, 0);
    }
    const int there = b.pick_stream(), here = both ? b.pick_stream() : there;
    b.use(target, to, there);
    b.call(target, there, Call::WAIT, to, 0);
    b.take(target, there, targets);
    if (both) {
        b.use(source, from, here);
        b.call(source, here, Call::WAIT, from, 0);
    }
    b.spend(source, here, sources);
}

// ---- from hand to hand: wait, put on what came, signal

void chain(Builder &b)
{
    int from = (int)b.dice.below((size_t)b.config.ranks), stream = b.pick_stream();
    const size_t hops = b.dice.between(2, 5);
    const uint32_t data = b.new_data();
    Region here;
    size_t source = 0, size = 0;
    b.begin_transaction("a chain of puts", from, -1, -1, false);
    for (size_t i = 0; i < hops; i++) {
        const int to = b.other_rank(from), there = b.pick_stream();
        // What came lies in the area of the link that brought it; the next one must reach it.
        int link = b.data_link(from, to);
        for (int tries = 0;
             i > 0 && tries < 4 && b.layout.links[(size_t)link].at(from).area != here.area; tries++)
            link = b.data_link(from, to);
        const Link *l = &b.layout.links[(size_t)link];
        if (i == 0) {
            size = b.size_for(from, l->at(from), to, l->at(to));
            here = b.open(from, l->at(from).area);
            source = b.add(here, size, Fill::DATA, Fill::DATA, data);
        } else if (l->at(from).area != here.area ||
                   !b.reserve(from, l->at(from), to, l->at(to), size)) {
            break;
        }
        Region next = b.open(to, l->at(to).area);
        const size_t target = b.add(next, size, Fill::POISON, Fill::DATA, data);
        const bool carried = b.dice.chance(50);
        b.use(from, link, stream);
        b.copy(from, stream, {link, from, to, false, size, data, source, target}, carried);
        if (!carried)
            b.call(from, stream, Call::SIGNAL, link, 0);
        b.spend(from, stream, here);
        b.use(to, link, there);
        b.call(to, there, Call::WAIT, link, carried ? size : 0);
        b.snapshot(to, there, next);
        from = to, stream = there, here = next, source = target;
    }
    if (b.dice.chance(80))
        b.fill(from, stream, here, Fill::KILLED);
}

// ---- signals alone

void signalling(Builder &b)
{
    const int from = (int)b.dice.below((size_t)b.config.ranks), to = b.other_rank(from);
    const int link = b.data_link(from, to), out = b.pick_stream(), in = b.pick_stream();
    b.begin_transaction("signals", from, to, link, false);
    b.use(from, link, out);
    b.use(to, link, in);
    for (size_t i = b.dice.between(1, 6); i-- > 0;) {
        b.call(from, out, Call::SIGNAL, link, 0);
        b.call(to, in, Call::WAIT, link, 0);
    }
}

} // namespace

void add_transaction(Builder &b)
{
    const size_t turn = b.dice.below(100);
    if (turn < 40)
        telling(b);
    else if (turn < 55)
        exchanging(b);
    else if (turn < 63)
        sending(b);
    else if (turn < 73)
        passing(b);
    else if (turn < 81)
        chain(b);
    else if (turn < 90 && b.mix.copies)
        copying(b);
    else if (turn < 95)
        telling(b);
    else
        signalling(b);
}
