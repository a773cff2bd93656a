// SPDX-License-Identifier: BSD-3-Clause
// How a script is put together: bytes of the ranks' memory, and steps on their streams.
#ifndef TESTS_RANDOM_BUILDER_H
#define TESTS_RANDOM_BUILDER_H

#include "random/script.h"

// Cells of one extent that follow one another.
struct Region {
    int rank = -1, area = 0, extent = 0;
    size_t first = 0, count = 0;
};

// Bytes that one call moves.
struct Message {
    int link, from, to;
    bool get;
    size_t size;
    uint32_t data;
    size_t source, target; // offsets in the areas
};

class Builder
{
  public:
    Builder(const Config &config, const Layout &layout, uint64_t seed);
    Script finish();

    const Config &config;
    const Layout &layout;
    const Mix &mix;
    Dice dice;

    // ---- who
    int other_rank(int rank);
    int data_link(int a, int b);
    int unbound_link(int a, int b) const;
    void begin_transaction(const char *what, int from, int to, int link, bool grouped);

    // ---- bytes. size_for: of a message that fits into these ends.
    size_t size_for(int from, const End &source, int to, const End &target, size_t cap = LARGEST);
    bool reserve(int from, const End &source, int to, const End &target, size_t size);
    size_t size_of_send(int from, int to, const Link &link);
    uint32_t new_data()
    {
        return ++data_;
    }
    Region open(int rank, int area);
    size_t add(Region &region, size_t size, Fill first, Fill told, uint32_t data);
    Region single(int rank, const End &end, size_t size, Fill first, Fill told, uint32_t data);

    // ---- steps
    int pick_stream();
    // The stream comes after all that was called on the channel.
    void use(int rank, int link, int stream);
    void step(int rank, const Step &step);
    void call(int rank, int stream, Call call, int link, size_t size);
    void copy(int rank, int stream, const Message &message, bool signals);
    void pass(int rank, int stream, const Message &message); // an end of an unbound one
    void copy_between(int rank, int stream, int to, size_t to_offset, int from, size_t from_offset,
                      size_t size);
    void group(int rank, int stream, const std::vector<Member> &members);
    void snapshot(int rank, int stream, const Region &region);
    void fill(int rank, int stream, const Region &region, Fill with);
    void take(int rank, int stream, const Region &region); // a snapshot, and mostly a write over it
    void spend(int rank, int stream, const Region &region); // mostly a write over a source

    Member member(const Message &message, bool signals) const;
    Member unbound_member(int rank, const Message &message) const;
    size_t remote(int rank, int link, size_t offset) const; // offset in the buffer of rank's end

    // ---- segments
    // meets: all ranks signal one another, so that all have begun, or are done.
    void begin_segment(bool meets);
    void end_segment(bool meets);
    uint64_t operations() const
    {
        return operations_;
    }
    uint64_t small_bytes() const
    {
        return small_;
    }
    void want_large(int n)
    {
        large_ += n;
    }
    int large_wanted() const
    {
        return large_;
    }
    std::vector<bool> sent; // by link: in this script

  private:
    size_t room(int rank, int area) const;
    void spend_room(int rank, int area, size_t size);
    size_t small_size();
    void count(Part &part, size_t size);
    void meet(const char *what);

    Script script_;
    uint32_t data_ = 0;
    int large_ = 0;
    uint64_t operations_ = 0, small_ = 0;
    int streams_ = 1;                              // of the segment
    std::vector<std::vector<size_t>> next_, room_; // by rank and area
    std::vector<size_t> all_room_;
    std::vector<std::vector<int>> stream_of_; // by rank and link, in this segment
};

// ---- transactions.cpp

void add_transaction(Builder &builder);

#endif
