// SPDX-License-Identifier: BSD-3-Clause
// What a rank sends right before it releases its buffers is still received, however soon the peer
// is told of the release.
#include "random/rank.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

// Some ranks release first, and have sent something to each of the others before.
static bool is_early(const Orders &orders, uint64_t round, int rank)
{
    return mix(orders.seed, round << 8 | (uint64_t)rank, 7) & 1;
}

// Where the message of a link lies at both ends: behind all sends' buffers.
static size_t offset_of(size_t link)
{
    return ((size_t)2 << 20) + link * 8192;
}

static size_t size_of(const Orders &orders, uint64_t round, size_t link)
{
    return Dice(mix(orders.seed, round, link)).by_size(1, 4096);
}

// The data of links of no script's messages.
static const uint8_t *data_of(const Orders &orders, uint64_t round, size_t link, size_t size)
{
    return orders.pool + pool_offset(orders.seed, round, 255, (uint32_t)link, size);
}

void Rank::send_farewell(uint64_t round, size_t i)
{
    const Link &link = layout_.links[i];
    const End &mine = link.at(orders_.rank), &theirs = link.at(link.peer(orders_.rank));
    const size_t size = size_of(orders_, round, i);
    memcpy(images_ + i * 8192, data_of(orders_, round, i, size), size);
    machine_->copy(0, areas_[(size_t)mine.area].memory + offset_of(i), images_ + i * 8192, size);
    must(ph_put_signal(channels_[i], offset_of(i) - theirs.low, offset_of(i) - mine.low, size,
                       machine_->stream(0)),
         "ph_put_signal before a release");
}

void Rank::receive_farewell(uint64_t round, size_t i)
{
    const End &mine = layout_.links[i].at(orders_.rank);
    const size_t size = size_of(orders_, round, i);
    must(ph_wait(channels_[i], size, machine_->stream(0)),
         "ph_wait for what came before a release");
    machine_->copy(0, results_ + i * 8192, areas_[(size_t)mine.area].memory + offset_of(i), size);
}

void Rank::farewell(uint64_t round)
{
    std::vector<size_t> received;
    const bool early = is_early(orders_, round, orders_.rank);
    // By then the others may have been told of the release, or of the message, of both or of
    // neither.
    if (!early)
        std::this_thread::sleep_for(std::chrono::microseconds(mix(orders_.seed, round, 8) % 9000));
    for (size_t i = 0; i < layout_.links.size(); i++) {
        const Link &link = layout_.links[i];
        if (link.use != Link::DATA || !link.has(orders_.rank) ||
            early == is_early(orders_, round, link.peer(orders_.rank)))
            continue;
        if (early) {
            send_farewell(round, i);
            continue;
        }
        receive_farewell(round, i);
        received.push_back(i);
    }
    if (!machine_->done(0, orders_.stall_ms))
        must(-ETIMEDOUT, "what came before a release is not there");
    for (size_t i : received) {
        const size_t size = size_of(orders_, round, i);
        if (memcmp(results_ + i * 8192, data_of(orders_, round, i, size), size) != 0)
            fail("WRONG: what rank " + std::to_string(layout_.links[i].peer(orders_.rank)) +
                 " sent to rank " + std::to_string(orders_.rank) +
                 " before it released its buffer is not there behind the wait, round " +
                 std::to_string(round) + ", channel " + std::to_string(i));
    }
    mine_.operations += received.size();
}
