// SPDX-License-Identifier: BSD-3-Clause
// The steps of a script, as a player plays them.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <numeric>

#include <unistd.h>

#include "kill/player.h"

namespace kill_rounds
{

static const int MESSAGES = 8;      // of a step have numbers of their own
static const int OF_THE_END = 0xf0; // those that end with their channel
static const int STEPS_MOST = 100;  // of a script: behind them are numbers, and no points
static const char *const REASON = "at random";

static int end_of(const Step &step)
{
    return step.mismatch ? PH_EMISMATCH : PH_EABORTED;
}

void Player::point(int step, Point point)
{
    int here = step * POINTS + point;
    if (number_ > 0)
        return; // the other thread is wherever it is
    if (order().die_at == here) {
        life_.board.doomed.fetch_or(1u << order().rank);
        kill(getpid(), SIGKILL);
    }
    if (order().stop_at == here) {
        life_.slot.stopping = true;
        change(life_.board.progress);
        kill(getpid(), SIGSTOP);
        life_.slot.stopping = false;
    }
}

void Player::play_exchange(const Step &step)
{
    std::vector<Wish> wishes;
    for (int peer = 0; peer < order().ranks; peer++)
        if (peer != order().rank && step.members >> peer & 1)
            wishes.push_back(
                wish(peer, OP_EXCHANGE, PH_ROLE_BOTH, part(peer, PART_OUT + step.variant)));
    exchange(wishes, step.halves, step.deadline_ms, false);
}

static size_t total(const std::vector<size_t> &sizes)
{
    return std::accumulate(sizes.begin(), sizes.end(), sizes.size() * 8); // as they begin anywhere
}

// Bound messages, of one size; and unbound ones.
void Player::make_group(const Step &step, int index, const std::vector<Wish> &wishes,
                        std::vector<ph_group_op> &group, std::vector<Expected> &coming)
{
    make_room(wishes.size() * 2 * total(step.unbound));
    for (const Wish &w : wishes) {
        const int peer = w.operation.peer;
        bool out = w.operation.role == PH_ROLE_SENDER, bound = w.operation.buffer != nullptr;
        if (bound)
            group.push_back(
                {out ? PH_GROUP_SEND : PH_GROUP_RECV, w.channel, 0, 0, step.size, nullptr});
        if (bound && !out)
            coming.push_back({w.channel, w.channel, w.operation.buffer, peer, sequence(index, 0),
                              step.size, false});
        for (int i = 0; !bound && i < static_cast<int>(step.unbound.size()); i++) {
            const size_t size = step.unbound[i];
            void *from = loose(size), *to = loose(size);
            write(from, peer, sequence(index, 1 + i), size);
            group.push_back({PH_GROUP_SEND, w.channel, 0, 0, size, from});
            group.push_back({PH_GROUP_RECV, w.channel, 0, 0, size, to});
            coming.push_back({w.channel, w.channel, to, peer, sequence(index, 1 + i), size, false});
        }
    }
}

// Where a group failed half-way at somebody's death: those that live are let go of what is unbound.
bool Player::end_half(const std::vector<Wish> &wishes)
{
    bool half = false;
    for (const Wish &w : wishes) {
        if (w.operation.buffer || doomed(w.operation.peer))
            continue;
        int ended = timed("ended", 0, [&] { return ph_channel_ended(w.channel); });
        if (ended != PH_EBROKEN && ended != PH_EABORTED)
            continue;
        half = true;
        int rc = timed("channel_abort", 0, [&] { return ph_channel_abort(w.channel, HALF_WAY); });
        if (rc)
            fail("%s: %s", ph_strerror(rc), sentence().c_str());
    }
    return half;
}

// False: it is to be tried again, with what is left of it.
bool Player::issue_group(std::vector<Wish> &wishes, std::vector<ph_group_op> &group,
                         std::vector<Expected> &coming)
{
    int rc = timed("group", 0, [&] { return ph_group(group.data(), group.size(), streams_[0]); });
    if (rc == 0)
        return true;
    const bool half = rc == PH_EBROKEN && end_half(wishes);
    const bool ended = rc == PH_EABORTED && is_half_way(sentence());
    if (!half && !ended)
        judge_exchange(wishes, rc, false);
    drop_lost(wishes);
    auto is_over = [&](ph_channel *channel) {
        return lost(ph_channel_peer(channel)) ||
               (ph_channel_local_size(channel) == 0 && (half || ph_channel_ended(channel)));
    };
    group.erase(std::remove_if(group.begin(), group.end(),
                               [&](const ph_group_op &op) { return is_over(op.channel); }),
                group.end());
    coming.erase(std::remove_if(coming.begin(), coming.end(),
                                [&](const Expected &e) { return is_over(e.channel); }),
                 coming.end());
    return half;
}

void Player::play_group(const Step &step, int index)
{
    std::vector<Wish> wishes;
    for (int peer = 0; peer < order().ranks; peer++) {
        if (peer == order().rank || !(step.members >> peer & 1) || lost(peer))
            continue;
        wishes.push_back(wish(peer, OP_GROUP, PH_ROLE_SENDER, part(peer, PART_GROUP_OUT), &step));
        wishes.push_back(wish(peer, OP_GROUP, PH_ROLE_RECEIVER, part(peer, PART_GROUP_IN), &step));
        write(part(peer, PART_GROUP_OUT), peer, sequence(index, 0), step.size);
        if (!step.unbound.empty())
            wishes.push_back(wish(peer, OP_GROUP, PH_ROLE_BOTH, nullptr));
    }
    exchange(wishes, step.halves, step.deadline_ms, false);
    point(index, AFTER_EXCHANGE);
    std::vector<ph_group_op> group;
    std::vector<Expected> coming;
    make_group(step, index, wishes, group, coming);
    while (!group.empty() && !issue_group(wishes, group, coming))
        ;
    for (const Expected &expected : coming)
        if (!lost(expected.sender))
            expected_.push_back(expected);
    point(index, ENQUEUED);
    flush();
}

// One message of a step of two ranks, at this rank's end, and its answer. False: the peer is gone.
bool Player::enqueue(const Step &step, const std::vector<Wish> &wishes,
                     const std::vector<Message> &messages, void *stream)
{
    if (!step.unbound.empty())
        return enqueue_unbound(step, wishes[0], messages, stream);
    ph_channel *data = wishes[0].channel, *answer = wishes[1].channel;
    auto call = [&](const char *what, const std::function<int()> &function) {
        return transfer(what, wishes[0], timed(what, 0, function));
    };
    size_t size = step.size;
    if (order().rank == step.sender) {
        bool sent =
            step.kind == Kind::SEND
                ? call("send", [&] { return ph_send(data, size, stream); }) &&
                      call("complete", [&] { return ph_complete(data, stream); })
            : step.kind == Kind::PUT
                ? call("put", [&] { return ph_put(data, 0, 0, size, stream); }) &&
                      call("signal", [&] { return ph_signal(data, stream); })
            : step.kind == Kind::GET
                ? call("signal", [&] { return ph_signal(data, stream); })
                : call("put_signal", [&] { return ph_put_signal(data, 0, 0, size, stream); });
        return sent && call("wait", [&] { return ph_wait(answer, 0, stream); });
    }
    bool came =
        step.kind == Kind::SEND ? call("recv", [&] { return ph_recv(data, size, stream); }) &&
                                      call("complete", [&] { return ph_complete(data, stream); })
        : step.kind == Kind::PUT ? call("wait", [&] { return ph_wait(data, 0, stream); })
        : step.kind == Kind::GET ? call("wait", [&] { return ph_wait(data, 0, stream); }) &&
                                       call("get", [&] { return ph_get(data, 0, 0, size, stream); })
                                 : call("wait", [&] { return ph_wait(data, size, stream); });
    if (came)
        life_.device.copy(stream, messages[0].memory, wishes[0].operation.buffer, size);
    return came && call("signal", [&] { return ph_signal(answer, stream); });
}

// ... or several without an answer: a receive tells by itself when its message is there.
bool Player::enqueue_unbound(const Step &step, const Wish &wish,
                             const std::vector<Message> &messages, void *stream)
{
    const bool sending = order().rank == step.sender;
    const char *what = sending ? "send_from" : "recv_into";
    auto enqueued = [&](const Message &m) {
        return transfer(what, wish, timed(what, 0, [&] {
                            return sending ? ph_send_from(wish.channel, m.memory, m.size, stream)
                                           : ph_recv_into(wish.channel, m.memory, m.size, stream);
                        }));
    };
    return std::all_of(messages.begin(), messages.end(), enqueued);
}

void Player::write_all(const Wish &wish, const std::vector<Message> &messages, uint64_t first)
{
    for (const Message &m : messages)
        write(m.memory, wish.operation.peer, first++, m.size);
}

void Player::expect_all(const std::vector<Wish> &wishes, const std::vector<Message> &messages,
                        uint64_t first, bool graph)
{
    for (const Message &m : messages)
        expected_.push_back({wishes.front().channel, wishes.back().channel, m.memory,
                             wishes[0].operation.peer, first++, m.size, graph});
}

void Player::replay(const Step &step, int index, const std::vector<Wish> &wishes,
                    const std::vector<Message> &messages, void *graph, void *stream)
{
    bool sending = order().rank == step.sender, whole = true;
    for (int replay = 0; whole && replay < step.replays; replay++) {
        const uint64_t first = sequence(index, replay * MESSAGES);
        if (sending)
            write_all(wishes[0], messages, first);
        life_.device.launch(graph, stream);
        if (replay == 0)
            point(index, ENQUEUED);
        if (!sending)
            expect_all(wishes, messages, first, step.unbound.empty());
        flush();
        whole = ph_channel_status(wishes[0].channel) == 0;
    }
}

void Player::play_graph(const Step &step, int index, const std::vector<Wish> &wishes,
                        const std::vector<Message> &messages, void *stream)
{
    bool whole = false, over = false;
    void *graph = life_.device.capture(stream, [&] {
        try {
            whole = enqueue(step, wishes, messages, stream);
        } catch (const Over &) {
            over = true;
        }
    });
    try {
        if (whole)
            replay(step, index, wishes, messages, graph, stream);
    } catch (const Over &) {
        over = true;
    }
    life_.device.destroy(graph); // it would hold what it names
    if (over)
        throw Over();
}

std::vector<Wish> Player::wishes_of(const Step &step, int index, int peer)
{
    if (!step.unbound.empty())
        return {wish(peer, OP_UNBOUND + step.variant, PH_ROLE_BOTH, nullptr)};
    bool sending = order().rank == step.sender;
    void *buffer = step.fresh[!sending] ? fresh(sequence(index, 0) + step.size)
                                        : part(peer, (sending ? PART_OUT : PART_IN) + step.variant);
    occupy(buffer); // from the exchange on, the peer may write
    return {wish(peer, OP_DATA + step.variant, sending ? PH_ROLE_SENDER : PH_ROLE_RECEIVER, buffer,
                 &step),
            wish(peer, OP_ANSWER + step.variant, sending ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
                 part(peer, (sending ? PART_ANSWER_IN : PART_ANSWER_OUT) + step.variant))};
}

std::vector<Player::Message> Player::messages_of(const Step &step, void *buffer)
{
    if (step.unbound.empty()) {
        if (stages_ == STAGES) {
            flush();
            occupy(buffer);
        }
        void *copy = stage(stages_++);
        return {{order().rank == step.sender ? buffer : copy, step.size}};
    }
    make_room(total(step.unbound));
    std::vector<Message> messages;
    for (size_t size : step.unbound)
        messages.push_back({loose(size), size});
    return messages;
}

void Player::play_pair(const Step &step, int index)
{
    bool sending = order().rank == step.sender;
    bool graph = step.kind == Kind::GRAPH && !life_.device.host();
    int peer = sending ? step.receiver : step.sender;
    if (lost(peer))
        return;
    std::vector<Wish> wishes = wishes_of(step, index, peer);
    exchange(wishes, step.halves, step.deadline_ms, false);
    point(index, AFTER_EXCHANGE);
    if (wishes.empty())
        return;
    void *stream = streams_[step.variant % 2];
    if (graph)
        flush();
    std::vector<Message> messages = messages_of(step, wishes[0].operation.buffer);
    if (graph) {
        play_graph(step, index, wishes, messages, stream);
        return;
    }
    if (sending)
        write_all(wishes[0], messages, sequence(index, 0));
    bool whole = enqueue(step, wishes, messages, stream);
    if (whole && !sending)
        expect_all(wishes, messages, sequence(index, 0), false);
    point(index, ENQUEUED);
    if (!step.deferred)
        flush();
}

// ---- the end of one channel

// Messages both ways, which end with the channel; of two sizes where that is to end it.
void Player::send_both_ways(const Step &step, int index, const Wish &wish)
{
    void *stream = streams_[step.variant % 2];
    const size_t more = step.mismatch && order().rank == step.sender;
    make_room(2 * (total(step.unbound) + MESSAGES * 8));
    for (size_t size : step.unbound) {
        void *out = loose(size + more), *in = loose(size);
        write(out, wish.operation.peer, sequence(index, OF_THE_END), size + more);
        const ph_group_op both[] = {{PH_GROUP_SEND, wish.channel, 0, 0, size + more, out},
                                    {PH_GROUP_RECV, wish.channel, 0, 0, size, in}};
        int rc = timed("group", 0, [&] { return ph_group(both, 2, stream); });
        // PH_EBROKEN: it has ended while this call was at it.
        if (rc == end_of(step) || rc == PH_EBROKEN || !transfer("group", wish, rc))
            return;
    }
}

// What was under way has come to its end then, too.
void Player::await_end(const Step &step, const Wish &wish)
{
    const int64_t end = now_us() + PATIENCE_MS * 1000;
    const int peer = wish.operation.peer;
    int rc;
    while ((rc = timed("ended", 0, [&] { return ph_channel_ended(wish.channel); })) == 0)
        if (now_us() > end || usleep(100) != 0)
            fail("the channel with rank %d does not end", peer);
    const std::string why = sentence(), wanted = step.mismatch ? "bytes where" : REASON;
    const bool told = life_.several || why.find(wanted) != std::string::npos;
    if (is_end(rc, peer) && is_meant(peer, rc, why))
        lose(peer, why);
    else if (rc != end_of(step) || !told)
        fail("the channel with rank %d: %s: %s", peer, ph_strerror(rc), why.c_str());
    synchronize(streams_[step.variant % 2]);
    int status = timed("status", 0, [&] { return ph_channel_status(wish.channel); });
    if (rc == end_of(step) && status != rc)
        fail("the status of the channel with rank %d: %s", peer, ph_strerror(status));
    life_.board.ends += rc == end_of(step);
}

// The sender ends an unbound channel while messages are under way, by an abort or by a message of
// two sizes. Both exchange it again. The receiver has looked at what had come by it before: who
// ends it hears of that first.
void Player::play_end(const Step &step, int index)
{
    const bool ending = order().rank == step.sender;
    const int peer = ending ? step.receiver : step.sender;
    if (lost(peer))
        return;
    Step before = step;
    std::swap(before.sender, before.receiver);
    before.unbound = {1};
    before.deferred = false;
    flush();
    play_pair(before, index + STEPS_MOST);
    std::vector<Wish> wishes = wishes_of(step, index, peer);
    exchange(wishes, step.halves, step.deadline_ms, false);
    if (wishes.empty())
        return;
    send_both_ways(step, index, wishes[0]);
    point(index, ENQUEUED);
    if (ending && !step.mismatch) {
        usleep(static_cast<useconds_t>(step.size % 2000));
        int rc =
            timed("channel_abort", 0, [&] { return ph_channel_abort(wishes[0].channel, REASON); });
        if (rc)
            fail("%s: %s", ph_strerror(rc), sentence().c_str());
    }
    // Who exchanges a channel again that was aborted need not know of that.
    const bool at_once = step.deferred && !step.mismatch;
    if (at_once)
        play_pair(step, index);
    await_end(step, wishes[0]);
    if (!at_once)
        play_pair(step, index);
}

// A call that waits says once that a life has ended which may hold its streams until then.
static bool tells(int rc)
{
    return rc == PH_EPEER || rc == PH_EBROKEN;
}

// Gives a buffer back that peers may have mapped, or still have in their caches of channels.
void Player::play_release(const Step &step)
{
    flush();
    if (used_.empty())
        return;
    size_t which = step.size % used_.size();
    void *memory = used_[which];
    ph_release_state state =
        life_.device.host() && step.fresh[0] ? PH_RELEASE_CLOSED : PH_RELEASE_DRAINED;
    life_.board.released.fetch_or(1u << order().rank);
    life_.board.releases++;
    int rc = timed("release_start", 0,
                   [&] { return ph_release_start(life_.process.context, memory, SLOT_SIZE); });
    if (rc)
        fail("%s: %s", ph_strerror(rc), sentence().c_str());
    // Long before the others give up waiting for this rank.
    for (int64_t end = now_us() + PATIENCE_MS * 1000 / 3;;) {
        rc = timed("release_wait", 300, [&] {
            return ph_release_wait(life_.process.context, memory, SLOT_SIZE, state, 300);
        });
        if (rc == 0)
            break;
        const std::string why = sentence();
        if ((rc != -ETIMEDOUT && rc != -EBUSY && !tells(rc)) ||
            why.find("rank ") == std::string::npos || now_us() > end)
            fail("%s: %s", ph_strerror(rc), why.c_str());
        life_.board.timeouts += !tells(rc);
    }
    used_.erase(used_.begin() + static_cast<long>(which));
    if (state == PH_RELEASE_CLOSED) {
        life_.device.release(memory);
        fresh_.erase(std::find(fresh_.begin(), fresh_.end(), memory));
    }
}

void Player::play_step(const Step &step, int index)
{
    if (!(step.members >> order().rank & 1))
        return;
    if (step.kind == Kind::EXCHANGE)
        play_exchange(step);
    else if (step.kind == Kind::GROUP)
        play_group(step, index);
    else if (step.kind == Kind::RELEASE)
        play_release(step);
    else if (step.kind == Kind::END)
        play_end(step, index);
    else
        play_pair(step, index);
}

bool Player::play(size_t most_steps)
{
    lost_ = 0;
    std::vector<Step> script =
        make_script(order().seed + static_cast<uint64_t>(number_), order().ranks, order().members);
    script.resize(std::min(script.size(), most_steps));
    for (Step &step : script) // what is staged is moved by its owner's stream alone
        if (step.kind == Kind::GET && life_.process.staged())
            step.kind = Kind::PUT;
    for (int i = 0; i < static_cast<int>(script.size()); i++) {
        life_.slot.step[number_] = i;
        point(i, BEFORE_EXCHANGE);
        if (number_ == 0 && order().leave_at == i)
            return true;
        play_step(script[i], i);
        point(i, SYNCHRONIZED);
    }
    flush();
    close_handles();
    life_.slot.step[number_] = -1;
    return false;
}

// An application that asks for a rank whose life is over is told so: what that life, and who
// aborted, has in flight towards it may be held until then.
void Player::ask_for_the_doomed()
{
    for (int peer = 0; peer < order().ranks; peer++) {
        if (!doomed(peer) || order().members >> peer & 1)
            continue;
        ph_exchange_request *request = nullptr;
        ph_channel *channel = nullptr;
        ph_operation operation =
            wish(peer, OP_FAREWELL, PH_ROLE_BOTH, part(peer, PART_MEET_OUT)).operation;
        int rc = timed("farewell", CONTEXT_MS, [&] {
            return ph_exchange_start(life_.process.context, &operation, 1, &request);
        });
        if (rc == 0)
            rc = timed("farewell", 1, [&] { return ph_exchange_finish(&request, &channel, 1); });
        if (rc != -ETIMEDOUT && !is_end(rc, peer))
            fail("%s: %s", ph_strerror(rc), sentence().c_str());
    }
}

// Everybody with everybody: channels, and a message each way.
void Player::meet()
{
    lost_ = 0;
    life_.slot.step[0] = -2;
    ask_for_the_doomed();
    std::vector<Wish> wishes;
    std::vector<ph_group_op> group;
    size_t size = 1 + mix(order().seed, 7) % 3000;
    uint64_t number = sequence(0xff, order().members & 0xff);
    for (int peer = 0; peer < order().ranks; peer++) {
        if (peer == order().rank || !(order().members >> peer & 1))
            continue;
        wishes.push_back(wish(peer, OP_MEET, PH_ROLE_SENDER, part(peer, PART_MEET_OUT)));
        wishes.push_back(wish(peer, OP_MEET, PH_ROLE_RECEIVER, part(peer, PART_MEET_IN)));
        write(part(peer, PART_MEET_OUT), peer, number, size);
    }
    if (wishes.empty())
        return;
    exchange(wishes, true, LONG_MS, true);
    for (const Wish &w : wishes) {
        bool out = w.operation.role == PH_ROLE_SENDER;
        group.push_back({out ? PH_GROUP_SEND : PH_GROUP_RECV, w.channel, 0, 0, size});
        if (!out)
            expected_.push_back(
                {w.channel, w.channel, w.operation.buffer, w.operation.peer, number, size, false});
    }
    int rc = timed("group", 0, [&] { return ph_group(group.data(), group.size(), streams_[0]); });
    if (rc)
        fail("%s: %s", ph_strerror(rc), sentence().c_str());
    flush();
    int reaped =
        mix(order().seed, order().rank) % 4 == 0
            ? timed("reap", CONTEXT_MS, [&] { return ph_reap(life_.process.context, CONTEXT_MS); })
            : 0;
    if (reaped && reaped != -ETIMEDOUT && !tells(reaped)) // a stream of the other thread's waits
        fail("%s: %s", ph_strerror(reaped), sentence().c_str());
    for (const Wish &w : wishes)
        if (ph_channel_status(w.channel))
            fail("the channel with rank %d: %s", w.operation.peer,
                 ph_strerror(ph_channel_status(w.channel)));
    close_handles();
}

} // namespace kill_rounds
