// SPDX-License-Identifier: BSD-3-Clause
// A round: the script is enqueued as often as it is to be repeated, then all that came is compared.
#include "random/rank.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

static const char *name_of(Call call)
{
    static const char *const names[] = {"ph_put",  "ph_get",       "ph_put_signal", "ph_signal",
                                        "ph_wait", "ph_send",      "ph_recv",       "ph_complete",
                                        "ph_copy", "ph_send_from", "ph_recv_into",  "ph_group"};
    return names[(int)call];
}

int Rank::group(const Step &step)
{
    std::vector<struct ph_group_op> ops;
    for (size_t i = 0; i < step.count; i++) {
        const Member &member = part_->members[step.first + i];
        const auto link = (size_t)member.link;
        if (layout_.links[link].use == Link::UNBOUND)
            ops.push_back({member.kind, channels_[link], 0, 0, member.size,
                           areas_[(size_t)member.area].memory + member.local_offset});
        else
            ops.push_back({member.kind, channels_[link], member.peer_offset, member.local_offset,
                           member.size, nullptr});
    }
    return ph_group(ops.data(), ops.size(), machine_->stream(step.stream));
}

int Rank::call(const Step &step)
{
    void *const stream = machine_->stream(step.stream);
    struct ph_channel *const channel = step.link < 0 ? nullptr : channels_[(size_t)step.link];
    uint8_t *const memory = areas_[(size_t)step.area].memory + step.local_offset; // where unbound
    switch (step.call) {
    case Call::PUT:
        return ph_put(channel, step.peer_offset, step.local_offset, step.size, stream);
    case Call::GET:
        return ph_get(channel, step.local_offset, step.peer_offset, step.size, stream);
    case Call::PUT_SIGNAL:
        return ph_put_signal(channel, step.peer_offset, step.local_offset, step.size, stream);
    case Call::SIGNAL:
        return ph_signal(channel, stream);
    case Call::WAIT:
        return ph_wait(channel, step.size, stream);
    case Call::SEND:
        return ph_send(channel, step.size, stream);
    case Call::RECV:
        return ph_recv(channel, step.size, stream);
    case Call::COMPLETE:
        return ph_complete(channel, stream);
    case Call::COPY:
        return ph_copy(channel, step.peer_offset, channels_[(size_t)step.from], step.local_offset,
                       step.size, stream);
    case Call::SEND_FROM:
        return ph_send_from(channel, memory, step.size, stream);
    case Call::RECV_INTO:
        return ph_recv_into(channel, memory, step.size, stream);
    default:
        return group(step);
    }
}

void Rank::enqueue_step(const Step &step)
{
    if (step.call == Call::ORDER)
        return machine_->order(step.other, step.stream);
    if (step.call == Call::FILL)
        return machine_->fill(step.stream, areas_[(size_t)step.area].memory + step.local_offset,
                              step.other, step.size);
    if (step.call == Call::SNAPSHOT) {
        const Snapshot &snapshot = part_->snapshots[step.first];
        if (snapshot.size > 0)
            machine_->copy(step.stream, near_ + snapshot.image,
                           areas_[(size_t)snapshot.area].memory + snapshot.low, snapshot.size);
        return;
    }
    const auto begin = std::chrono::steady_clock::now();
    for (int rc; (rc = call(step)) != 0;) {
        // Too many streams wait, or the queue is full of what does: what they wait for is enqueued
        // elsewhere.
        if (rc != -EAGAIN ||
            std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(orders_.stall_ms))
            must(rc, name_of(step.call));
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

void Rank::enqueue_steps(const Segment &segment)
{
    for (size_t i = 0; i < segment.count; i++) {
        const Step &step = part_->steps[segment.first + i];
        mine_.step = segment.first + i;
        for (int stream = 1;
             stream < segment.streams && (step.call == Call::FORK || step.call == Call::JOIN);
             stream++)
            step.call == Call::FORK ? machine_->order(0, stream) : machine_->order(stream, 0);
        if (step.call != Call::FORK && step.call != Call::JOIN)
            enqueue_step(step);
    }
}

void Rank::enqueue_segment(size_t i, int repetition)
{
    const Segment &segment = part_->segments[i];
    if (!segment.captured || machine_->host())
        return enqueue_steps(segment);
    if (repetition == 0) {
        machine_->begin_capture(0);
        enqueue_steps(segment);
        graphs_[i] = machine_->end_capture(0);
    }
    machine_->launch(graphs_[i], 0);
}

// The memory of the round, from the image of a repetition, or to its result.
void Rank::move_image(int repetition, bool in)
{
    uint8_t *const far = (in ? images_ : results_) + (size_t)repetition * part_->image_size;
    for (const Extent &extent : part_->extents) {
        uint8_t *const memory = areas_[(size_t)extent.area].memory + extent.low;
        machine_->copy(0, in ? memory : far + extent.image, in ? far + extent.image : memory,
                       extent.high - extent.low);
    }
}

void Rank::enqueue(int repetition)
{
    mine_.repetition = (uint64_t)repetition;
    mine_.progress++;
    move_image(repetition, true);
    for (size_t i = 0; i < part_->segments.size(); i++)
        enqueue_segment(i, repetition);
    move_image(repetition, false);
    if (part_->snapshots_size > 0)
        machine_->copy(0, snapshots_ + (size_t)repetition * part_->snapshots_size, near_,
                       part_->snapshots_size);
}

void Rank::synchronize()
{
    doing(Doing::WAITING);
    for (int stream = 0; stream < STREAMS; stream++) {
        const int64_t piece = 1000; // after which it is told what is waited for
        int64_t left = orders_.stall_ms;
        for (; !machine_->done(stream, piece); left -= piece) {
            snprintf(mine_.waits, sizeof mine_.waits, "stream %d is not done: %s", stream,
                     machine_->host() ? error().c_str() : "");
            if (left <= 0)
                must(-ETIMEDOUT, "a stream is not done");
        }
    }
    mine_.waits[0] = 0;
    for (struct ph_channel *channel : channels_)
        if (channel != nullptr)
            must(ph_channel_status(channel), "ph_channel_status");
}

void Rank::count(const Script &script)
{
    const auto n = (uint64_t)script.repetitions;
    mine_.operations += part_->operations * n;
    mine_.bytes += part_->bytes * n;
    mine_.large_bytes += part_->large_bytes * n;
}

void Rank::play(uint64_t round, const Script &script)
{
    part_ = &script.parts[(size_t)orders_.rank];
    graphs_.assign(part_->segments.size(), nullptr);
    doing(Doing::ENQUEUEING);
    for (int i = 0; i < script.repetitions; i++)
        write_image(orders_, round, i, *part_, images_ + (size_t)i * part_->image_size);
    for (int i = 0; i < script.repetitions; i++)
        enqueue(i);
    synchronize();
    for (void *graph : graphs_)
        if (graph != nullptr)
            machine_->destroy(graph);
    doing(Doing::CHECKING);
    for (int i = 0; i < script.repetitions; i++) {
        check_snapshots(orders_, round, i, script, snapshots_ + (size_t)i * part_->snapshots_size);
        check_result(orders_, round, i, script, results_ + (size_t)i * part_->image_size);
    }
    count(script);
}
