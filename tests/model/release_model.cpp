// SPDX-License-Identifier: BSD-3-Clause
// The release of one buffer. Rank R owns it; rank P has a user thread that copies into it, an
// exchange that may be making the channel, and a service thread.
#include <cstdint>

#include "model/lifetime_model.h"
#include "model/space.h"

namespace model
{
namespace
{

enum : uint8_t { // of the user's enqueue
    USER_IDLE,
    USER_STORED, // its number stands in the channel's uses
    USER_LOOKED, // `revoked` was not set
    USER_ENQUEUED,
    USER_OVER,
};
enum : uint8_t { // of P's exchange
    EXCHANGE_TAKEN,
    EXCHANGE_MAPPING, // without the lock
    EXCHANGE_MAPPED,
    EXCHANGE_CHANNEL, // usable
    EXCHANGE_OVER,    // a channel that is revoked, or none
};
enum : uint8_t { // of the releaser
    RELEASE_NOT,
    RELEASE_WORD, // or the message, where the order is broken
    RELEASE_TOLD,
    RELEASE_DRAINED, // the buffer is used for something else
    RELEASE_CLOSED,  // and freed
};
enum : uint8_t { REVOKE_NOT, REVOKE_SENT, REVOKE_FILED, REVOKE_DRAINED, REVOKE_UNMAPPED };

struct State {
    uint8_t user, exchange, release, revocation;
    uint8_t number, issued, done, revoked, pins; // of the channel's uses and the stream
    uint8_t copying;                             // the device is inside a copy
    uint8_t queued, mapped, word, graph;         // graph: 1 captured, 2 replayed, 3 gone
    uint8_t read;                                // the number that the service has read + 1
    uint8_t pad;
};

using Space_ = Space<State>;

class Explorer
{
  public:
    explicit Explorer(ReleaseBreak broken) : broken_(broken), space_(true)
    {
    }
    LifetimeOutcome run();

  private:
    bool is(ReleaseBreak what) const
    {
        return broken_ == what;
    }
    void step(const char *name, const State &next)
    {
        names_.push_back(name);
        space_.add(next, at_, static_cast<int>(names_.size() - 1));
    }
    void user(const State &s);
    void device(const State &s);
    void graph(const State &s);
    void exchange(const State &s);
    void releaser(const State &s);
    void service(const State &s);
    bool drained(const State &s) const
    {
        return s.done >= s.number && (s.pins == 0 || is(ReleaseBreak::IGNORES_GRAPHS));
    }
    const char *wrong(const State &s) const;

    ReleaseBreak broken_;
    Space_ space_;
    std::vector<const char *> names_;
    size_t at_ = 0;
};

// One enqueue: take a number, store it, look at `revoked`, enqueue; else take it back.
void Explorer::user(const State &s)
{
    State n = s;
    const bool first = is(ReleaseBreak::LOOKS_FIRST);
    if (s.exchange != EXCHANGE_CHANNEL && s.user == USER_IDLE)
        return;
    if (s.user == USER_IDLE && s.issued < 2) {
        if (first && s.revoked) {
            n.user = USER_OVER;
            return step("the user is refused", n);
        }
        n.user = first ? USER_LOOKED : USER_STORED;
        if (!first)
            n.number = s.issued + 1;
        return step(first ? "the user looks" : "the user stores its number", n);
    }
    if (s.user == USER_STORED) {
        bool refused = s.revoked && !is(ReleaseBreak::NEVER_LOOKS);
        n.user = refused ? USER_OVER : USER_LOOKED;
        if (refused && !is(ReleaseBreak::KEEPS_NUMBER))
            n.number = s.issued;
        return step("the user looks at `revoked`", n);
    }
    if (s.user == USER_LOOKED) {
        n.number = n.issued = s.issued + 1;
        n.queued++;
        n.user = USER_IDLE;
        return step("the user enqueues a copy", n);
    }
}

void Explorer::device(const State &s)
{
    State n = s;
    if (s.queued > 0 && !s.copying) {
        n.copying = 1;
        step("a copy begins", n);
    } else if (s.copying) {
        n.copying = 0;
        if (s.graph == 2) {
            n.graph = 1;
        } else {
            n.queued--;
            n.done++;
        }
        step("a copy ends", n);
    }
}

// A capture pins the channel, then looks at `revoked`; it may be replayed until it is destroyed.
void Explorer::graph(const State &s)
{
    State n = s;
    if (s.graph == 0 && s.exchange == EXCHANGE_CHANNEL && !s.revoked) {
        n.graph = 1;
        n.pins = 1;
        step("a copy is captured", n);
    }
    if (s.graph == 1 && !s.copying && s.queued == 0) {
        n = s;
        n.graph = 2;
        n.copying = 1;
        step("the graph is launched", n);
    }
    if (s.graph == 1) {
        n = s;
        n.graph = 3;
        n.pins = 0;
        step("the graph is destroyed", n);
    }
}

// Each step with the lock, but the mapping itself.
void Explorer::exchange(const State &s)
{
    State n = s;
    const bool released = s.word && !is(ReleaseBreak::IGNORES_THE_WORD);
    if (s.exchange == EXCHANGE_TAKEN) {
        n.exchange = released ? EXCHANGE_OVER : EXCHANGE_MAPPING;
        step("the exchange looks before it maps", n);
    } else if (s.exchange == EXCHANGE_MAPPING) {
        n.exchange = EXCHANGE_MAPPED;
        n.mapped = 1;
        step("the buffer is mapped", n);
    } else if (s.exchange == EXCHANGE_MAPPED) {
        n.exchange = released ? EXCHANGE_OVER : EXCHANGE_CHANNEL;
        step("the channel is made", n);
    }
}

void Explorer::releaser(const State &s)
{
    State n = s;
    const bool last = is(ReleaseBreak::WORD_LAST);
    if (s.release == RELEASE_NOT || s.release == RELEASE_WORD) {
        if ((s.release == RELEASE_NOT) != last)
            n.word = 1;
        else
            n.revocation = REVOKE_SENT;
        n.release++;
        step(n.word != s.word ? "the releaser stores `released`" : "the releaser tells", n);
    } else if (s.release == RELEASE_TOLD && s.revocation >= REVOKE_DRAINED) {
        n.release = RELEASE_DRAINED;
        step("the releaser reuses the buffer", n);
    } else if (s.release == RELEASE_DRAINED && s.revocation == REVOKE_UNMAPPED) {
        n.release = RELEASE_CLOSED;
        step("the releaser frees the buffer", n);
    }
}

void Explorer::service(const State &s)
{
    State n = s;
    if (s.revocation == REVOKE_SENT && is(ReleaseBreak::DRAINS_FIRST) && s.read == 0) {
        n.read = static_cast<uint8_t>(s.number + 1);
        return step("the service reads the numbers", n);
    }
    if (s.revocation == REVOKE_SENT) {
        n.revocation = REVOKE_FILED;
        if (s.exchange == EXCHANGE_CHANNEL) // in the list of channels
            n.revoked = 1;
        return step("the service revokes", n);
    }
    const bool early = is(ReleaseBreak::CLOSES_UNDRAINED);
    if (s.revocation == REVOKE_FILED) {
        uint8_t number = s.read ? s.read - 1 : s.number;
        bool is_drained = s.read ? s.done >= number && s.pins == 0 : drained(s);
        n.revocation = REVOKE_DRAINED;
        if (is_drained)
            step("the service says DRAINED", n);
    }
    bool importing = s.exchange == EXCHANGE_MAPPING && !is(ReleaseBreak::IGNORES_IMPORTING);
    if ((s.revocation == REVOKE_DRAINED || (early && s.revocation == REVOKE_FILED)) && !importing) {
        n = s;
        n.revocation = REVOKE_UNMAPPED;
        n.mapped = 0;
        step("the service unmaps", n);
    }
}

const char *Explorer::wrong(const State &s) const
{
    if (s.copying && s.release >= RELEASE_DRAINED)
        return "a copy into a buffer that was reused";
    if (s.copying && !s.mapped)
        return "a copy through what is not mapped";
    if (s.mapped && s.release == RELEASE_CLOSED)
        return "mapped after it was freed";
    if (s.exchange == EXCHANGE_MAPPING && s.release == RELEASE_CLOSED)
        return "is being mapped after it was freed";
    return nullptr;
}

LifetimeOutcome Explorer::run()
{
    LifetimeOutcome outcome;
    space_.add(State{}, 0, 0);
    names_.push_back("start");
    for (at_ = 0; at_ < space_.size(); at_++) {
        const State s = space_[at_];
        const char *what = wrong(s);
        if (what != nullptr) {
            outcome.failure = what;
            for (const auto &move : space_.path(at_))
                outcome.trace += std::string(names_[static_cast<size_t>(move.move)]) + "\n";
            break;
        }
        user(s);
        device(s);
        graph(s);
        exchange(s);
        releaser(s);
        service(s);
    }
    outcome.states = space_.size();
    if (!outcome.failure.empty())
        return outcome;
    auto ends = space_.reaching([](const State &s) { return s.release == RELEASE_CLOSED; });
    for (size_t i = 0; i < ends.size() && outcome.failure.empty(); i++)
        if (!ends[i])
            outcome.failure = "a release that never ends";
    return outcome;
}

} // namespace

LifetimeOutcome explore_release(ReleaseBreak broken)
{
    return Explorer(broken).run();
}

} // namespace model
