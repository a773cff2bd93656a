// SPDX-License-Identifier: BSD-3-Clause
// The states that a search has reached, in the order found, each with the move that led to it
// first.
#ifndef TESTS_MODEL_SPACE_H
#define TESTS_MODEL_SPACE_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <unordered_set>
#include <vector>

namespace model
{

// State is plain bytes without padding that varies, a multiple of 8 of them.
template <class State> class Space
{
  public:
    struct Origin {
        size_t parent;
        int move; // the caller's
    };

    // with_edges: remembers every move, not only the first to each state.
    explicit Space(bool with_edges = false)
        : with_edges_(with_edges), seen_(1024, Hash{&order_}, Equal{&order_})
    {
    }
    Space(const Space &) = delete;
    Space &operator=(const Space &) = delete;

    void add(const State &s, size_t parent, int move)
    {
        order_.push_back(s);
        auto found = seen_.insert(order_.size() - 1);
        if (found.second)
            origins_.push_back({parent, move});
        else
            order_.pop_back();
        if (with_edges_)
            edges_.push_back({parent, *found.first});
    }

    size_t size() const
    {
        return order_.size();
    }
    const State &operator[](size_t i) const
    {
        return order_[i];
    }

    // The moves from the first state (index 0) to this one: pairs of the state before and the move.
    std::vector<Origin> path(size_t index) const
    {
        std::vector<Origin> moves;
        for (size_t i = index; i != 0; i = origins_[i].parent)
            moves.insert(moves.begin(), origins_[i]);
        return moves;
    }

    // For each state: whether one that is an end can be reached from it.
    template <class End> std::vector<char> reaching(End end) const
    {
        std::vector<std::vector<size_t>> into(order_.size());
        for (const Edge &edge : edges_)
            into[edge.to].push_back(edge.from);
        std::vector<char> reaches(order_.size(), 0);
        std::vector<size_t> queue;
        auto mark = [&](size_t i) {
            if (!reaches[i])
                queue.push_back(i);
            reaches[i] = 1;
        };
        for (size_t i = 0; i < order_.size(); i++)
            if (end(order_[i]))
                mark(i);
        for (size_t i = 0; i < queue.size(); i++)
            for (size_t from : into[queue[i]])
                mark(from);
        return reaches;
    }

  private:
    struct Edge {
        size_t from, to;
    };
    static_assert(sizeof(State) % 8 == 0, "hashed in words");
    struct Hash {
        const std::vector<State> *order;
        size_t operator()(size_t index) const
        {
            const char *bytes = reinterpret_cast<const char *>(&(*order)[index]);
            uint64_t h = 0xcbf29ce484222325u;
            for (size_t i = 0; i < sizeof(State); i += sizeof(h)) {
                uint64_t part;
                memcpy(&part, bytes + i, sizeof(part));
                h = (h ^ part) * 0x9e3779b97f4a7c15u;
                h ^= h >> 32;
            }
            return h;
        }
    };
    struct Equal {
        const std::vector<State> *order;
        bool operator()(size_t a, size_t b) const
        {
            return memcmp(&(*order)[a], &(*order)[b], sizeof(State)) == 0;
        }
    };

    bool with_edges_;
    std::vector<Edge> edges_;
    std::vector<State> order_;
    std::vector<Origin> origins_;
    std::unordered_set<size_t, Hash, Equal> seen_; // indices into order_
};

} // namespace model

#endif
