// SPDX-License-Identifier: BSD-3-Clause
// Buffers of the data path's tests: poisoned, at odd addresses, with surroundings that must stay as
// they are.
#ifndef TESTS_E2E_BYTES_H
#define TESTS_E2E_BYTES_H

#include <algorithm>
#include <string>
#include <vector>

#include "e2e/ranks.h"

inline void *at(void *memory, size_t offset)
{
    return static_cast<uint8_t *>(memory) + offset;
}

inline std::vector<uint8_t> read_bytes(Rank &rank, const void *from, size_t size)
{
    std::vector<uint8_t> bytes(size);
    if (size > 0)
        rank.device->read(bytes.data(), from, size);
    return bytes;
}

// Ends the rank unless all bytes have the value.
inline void check_value(Rank &rank, const void *from, size_t size, uint8_t value,
                        const std::string &what)
{
    for (size_t done = 0; done < size; done += PIECE) {
        const std::vector<uint8_t> bytes = read_bytes(
            rank, static_cast<const uint8_t *>(from) + done, std::min(size - done, PIECE));
        const auto wrong =
            std::find_if(bytes.begin(), bytes.end(), [&](uint8_t byte) { return byte != value; });
        if (wrong != bytes.end())
            rank_failed(__FILE__, __LINE__,
                        what + ": byte " + std::to_string(done + (wrong - bytes.begin())) + " of " +
                            std::to_string(size) + " is " + std::to_string(*wrong) + ", not " +
                            std::to_string(value));
    }
}

// Other work of the application, on a stream of its own, while streams of ours wait. memory: twice
// the size.
inline void move_beside(Rank &rank, void *stream, void *memory, size_t size, uint8_t value)
{
    rank.device->slow_fill(stream, memory, size, value, 0);
    rank.device->copy(stream, at(memory, size), memory, size);
    rank.synchronize(stream);
    check_value(rank, at(memory, size), size, value, "other streams' work");
}

inline void set_value(Rank &rank, void *to, size_t size, uint8_t value)
{
    const std::vector<uint8_t> bytes(std::min(size, PIECE), value);
    for (size_t done = 0; done < size; done += PIECE)
        rank.device->write(at(to, done), bytes.data(), std::min(size - done, PIECE));
}

// A buffer inside an allocation, `lead` bytes from its start, with as many bytes behind it. The
// poison of a range tells where it was written.
class Buffer
{
  public:
    Buffer(Rank &owner, size_t bytes, size_t lead_bytes = 333, const std::string &kind = "")
        : rank(owner), size(bytes), lead(lead_bytes),
          memory(owner.device->alloc(bytes + 2 * lead_bytes, kind)), data(at(memory, lead_bytes))
    {
    }
    void poison(size_t bytes)
    {
        set_value(rank, memory, std::min(size, bytes) + 2 * lead, POISON);
    }

    // Only [offset, offset + length) may have been written, of the first `bytes` of the buffer and
    // what is around.
    void check(size_t offset, size_t length, size_t bytes, const std::string &what)
    {
        check_value(rank, memory, lead + offset, POISON, what + ", before it");
        size_t end = lead + offset + length;
        check_value(rank, at(memory, end), std::min(size, bytes) + 2 * lead - end, POISON,
                    what + ", behind it");
    }

    static const uint8_t POISON = 0xa5;
    Rank &rank;
    size_t size, lead;
    void *memory, *data;
};

// The two channels of a rank with a peer: `to` it and `from` it, in one exchange.
struct Pair {
    ph_channel *to, *from;

    Pair(Rank &rank, int peer, uint64_t op_id, ph_protocol protocol, void *out, void *in,
         size_t size)
    {
        // Each direction has an op id that both ranks compute.
        uint64_t pair = op_id * 2, lower = rank.rank < peer;
        ph_operation ops[] = {
            {pair + lower, peer, PH_ROLE_SENDER, protocol, out, size},
            {pair + !lower, peer, PH_ROLE_RECEIVER, PH_PROTOCOL_DEFAULT, in, size}};
        ph_channel *channels[2];
        CHECK_OK(ph_exchange(rank.context, ops, 2, channels));
        to = channels[0];
        from = channels[1];
    }
};

inline ph_protocol protocol_of(const std::string &text)
{
    return text.find("get") != std::string::npos ? PH_PROTOCOL_GET : PH_PROTOCOL_PUT;
}

#endif
