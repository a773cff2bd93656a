// SPDX-License-Identifier: BSD-3-Clause
// The steps of a script, as a player plays them.
#include <algorithm>
#include <cerrno>
#include <csignal>

#include <unistd.h>

#include "kill/player.h"

namespace kill_rounds
{

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

void Player::play_group(const Step &step, int index)
{
    std::vector<Wish> wishes;
    for (int peer = 0; peer < order().ranks; peer++) {
        if (peer == order().rank || !(step.members >> peer & 1) || lost(peer))
            continue;
        wishes.push_back(wish(peer, OP_GROUP, PH_ROLE_SENDER, part(peer, PART_GROUP_OUT), &step));
        wishes.push_back(wish(peer, OP_GROUP, PH_ROLE_RECEIVER, part(peer, PART_GROUP_IN), &step));
        write(part(peer, PART_GROUP_OUT), peer, sequence(index, 0), step.size);
    }
    exchange(wishes, step.halves, step.deadline_ms, false);
    point(index, AFTER_EXCHANGE);
    for (int rc = -1; rc && !wishes.empty(); drop_lost(wishes)) {
        std::vector<ph_group_op> group;
        for (const Wish &w : wishes)
            group.push_back({w.operation.role == PH_ROLE_SENDER ? PH_GROUP_SEND : PH_GROUP_RECV,
                             w.channel, 0, 0, step.size});
        rc = timed("group", 0, [&] { return ph_group(group.data(), group.size(), streams_[0]); });
        if (rc)
            judge_exchange(wishes, rc, false);
    }
    for (const Wish &w : wishes)
        if (w.operation.role == PH_ROLE_RECEIVER)
            expected_.push_back({w.channel, w.channel, w.operation.buffer, w.operation.peer,
                                 sequence(index, 0), step.size, false});
    point(index, ENQUEUED);
    flush();
}

// One message of a step of two ranks, at this rank's end, and its answer. False: the peer is gone.
bool Player::enqueue(const Step &step, const std::vector<Wish> &wishes, const void *buffer,
                     void *copy, void *stream)
{
    ph_channel *data = wishes[0].channel, *answer = wishes[1].channel;
    int peer = wishes[0].operation.peer;
    auto call = [&](const char *what, const std::function<int()> &function) {
        return transfer(what, peer, timed(what, 0, function));
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
        life_.device.copy(stream, copy, buffer, size);
    return came && call("signal", [&] { return ph_signal(answer, stream); });
}

void Player::replay(const Step &step, int index, const std::vector<Wish> &wishes, void *buffer,
                    void *graph, void *stream)
{
    bool sending = order().rank == step.sender, whole = true;
    for (int replay = 0; whole && replay < step.replays; replay++) {
        if (sending)
            write(buffer, step.receiver, sequence(index, replay), step.size);
        life_.device.launch(graph, stream);
        if (replay == 0)
            point(index, ENQUEUED);
        if (!sending)
            expected_.push_back({wishes[0].channel, wishes[1].channel, stage(0), step.sender,
                                 sequence(index, replay), step.size, true});
        flush();
        whole = ph_channel_status(wishes[0].channel) == 0;
    }
}

void Player::play_graph(const Step &step, int index, const std::vector<Wish> &wishes, void *buffer,
                        void *stream)
{
    bool whole = false, over = false;
    flush();
    void *graph = life_.device.capture(stream, [&] {
        try {
            whole = enqueue(step, wishes, buffer, stage(0), stream);
        } catch (const Over &) {
            over = true;
        }
    });
    try {
        if (whole)
            replay(step, index, wishes, buffer, graph, stream);
    } catch (const Over &) {
        over = true;
    }
    life_.device.destroy(graph); // it would hold what it names
    if (over)
        throw Over();
}

void Player::play_pair(const Step &step, int index)
{
    bool sending = order().rank == step.sender;
    int peer = sending ? step.receiver : step.sender;
    if (lost(peer))
        return;
    void *buffer = step.fresh[!sending] ? fresh(sequence(index, 0) + step.size)
                                        : part(peer, (sending ? PART_OUT : PART_IN) + step.variant);
    std::vector<Wish> wishes = {
        wish(peer, OP_DATA + step.variant, sending ? PH_ROLE_SENDER : PH_ROLE_RECEIVER, buffer,
             &step),
        wish(peer, OP_ANSWER + step.variant, sending ? PH_ROLE_RECEIVER : PH_ROLE_SENDER,
             part(peer, (sending ? PART_ANSWER_IN : PART_ANSWER_OUT) + step.variant))};
    occupy(buffer); // from the exchange on, the peer may write
    exchange(wishes, step.halves, step.deadline_ms, false);
    point(index, AFTER_EXCHANGE);
    if (wishes.empty())
        return;
    void *stream = streams_[step.variant % 2];
    if (step.kind == Kind::GRAPH && !life_.device.host()) {
        play_graph(step, index, wishes, buffer, stream);
        return;
    }
    if (stages_ == STAGES) {
        flush();
        occupy(buffer);
    }
    void *copy = stage(stages_++);
    if (sending)
        write(buffer, peer, sequence(index, 0), step.size);
    bool whole = enqueue(step, wishes, buffer, copy, stream);
    if (whole && !sending)
        expected_.push_back({wishes[0].channel, wishes[1].channel, copy, peer, sequence(index, 0),
                             step.size, false});
    point(index, ENQUEUED);
    if (!step.deferred)
        flush();
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
        const bool told = rc == PH_EPEER || rc == PH_EBROKEN; // of a life that holds its streams
        if ((rc != -ETIMEDOUT && rc != -EBUSY && !told) ||
            why.find("rank ") == std::string::npos || now_us() > end)
            fail("%s: %s", ph_strerror(rc), why.c_str());
        life_.board.timeouts += !told;
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
    else
        play_pair(step, index);
}

bool Player::play(size_t most_steps)
{
    lost_ = 0;
    std::vector<Step> script =
        make_script(order().seed + static_cast<uint64_t>(number_), order().ranks, order().members);
    script.resize(std::min(script.size(), most_steps));
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
    exchange(wishes, true, 1500, true);
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
    int reaped = mix(order().seed, order().rank) % 4 == 0
                     ? timed("reap", CONTEXT_MS,
                             [&] { return ph_reap(life_.process.context, CONTEXT_MS); })
                     : 0;
    if (reaped && reaped != -ETIMEDOUT) // a stream of the other thread's may wait
        fail("%s: %s", ph_strerror(reaped), sentence().c_str());
    for (const Wish &w : wishes)
        if (ph_channel_status(w.channel))
            fail("the channel with rank %d: %s", w.operation.peer,
                 ph_strerror(ph_channel_status(w.channel)));
    close_handles();
}

} // namespace kill_rounds
