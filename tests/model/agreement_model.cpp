// SPDX-License-Identifier: BSD-3-Clause
#include "model/agreement_model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "model/agreement_state.h"
#include "model/space.h"

namespace model
{

class Explorer
{
  public:
    explicit Explorer(const Plan &plan) : plan_(plan)
    {
        for (int s = 0; s < 2; s++)
            for (const Call &call : plan.calls[s])
                for (int told = 0; told < 1 << KEYS; told++) {
                    rests_[s].emplace_back();
                    for (const Op &op : call)
                        if (!(told >> op.key & 1))
                            rests_[s].back().push_back(op);
                }
    }

    Outcome run()
    {
        State first;
        memset(&first, 0, sizeof(first));
        space_.add(first, 0, 0);
        size_t i = 0;
        for (; i < space_.size() && space_.size() < plan_.states_max && outcome_.ok(); i++)
            expand(i);
        if (outcome_.ok() && i == space_.size())
            check_end_in_reach();
        outcome_.states = space_.size();
        return outcome_;
    }

  private:
    void expand(size_t index)
    {
        index_ = index;
        before_ = space_[index];
        moved_ = false;
        for (int s = 0; s < 2 && outcome_.ok(); s++)
            moves_of(s);
        if (outcome_.ok() && !moved_ && !ended(before_))
            fail("deadlock", "nothing can move");
    }

    bool ended(const State &state) const
    {
        return finished(state, 0) && finished(state, 1);
    }

    bool finished(const State &state, int s) const
    {
        return state.side[s].call == plan_.calls[s].size();
    }

    void moves_of(int s)
    {
        for (int i = 0; i < MESSAGES; i++)
            if (before_.side[s].inbox[i].kind)
                attempt(s, MOVE_MESSAGE + i);
        for (int key = 0; key < KEYS; key++)
            for (int number = 1; number <= NUMBERS; number++)
                attempt(s, MOVE_OFFER + key * 4 + number);
        if (finished(before_, s))
            return;
        attempt(s, MOVE_BEGIN);
        attempt(s, MOVE_DEADLINE);
        attempt(s, MOVE_END);
        for (const Op &op : plan_.calls[s][before_.side[s].call]) {
            attempt(s, MOVE_KEY + op.key);
            attempt(s, MOVE_TRY_FAILS + op.key);
            attempt(s, MOVE_SILENCE + op.key);
        }
    }

    // Makes the move on a copy of the state; it is no move if it cannot be made.
    void attempt(int s, int what)
    {
        if (!outcome_.ok())
            return;
        now_ = before_;
        move_ = s * 64 + what;
        me_ = &now_.side[s];
        peer_ = &now_.side[1 - s];
        s_ = s;
        if (locked_out(what) || !make(what) || !outcome_.ok())
            return;
        moved_ = true;
        space_.add(now_, index_, move_);
    }

    // While this rank's mutex is held nothing else of it runs. STALE_LOOK holds it only afterwards.
    bool locked_out(int what) const
    {
        for (int k = 0; k < KEYS; k++) {
            if (me_->key[k].held == HELD_NOT || what == MOVE_KEY + k)
                continue;
            bool unlocked = plan_.broken == Break::STALE_LOOK && me_->key[k].held == HELD_LOOK;
            if (!unlocked || what < MOVE_MESSAGE)
                return true;
        }
        return false;
    }

    bool named(int k) const
    {
        return std::any_of(call().begin(), call().end(), [k](const Op &op) { return op.key == k; });
    }

    bool make(int what)
    {
        if (what >= MOVE_MESSAGE)
            return receive(what - MOVE_MESSAGE);
        if (what >= MOVE_OFFER)
            return offer_arrives((what - MOVE_OFFER) / 4, (what - MOVE_OFFER) % 4);
        if (what == MOVE_BEGIN)
            return begin();
        if (what == MOVE_DEADLINE)
            return deadline();
        if (what == MOVE_END)
            return end();
        if (!named(what % 4))
            return false;
        if (what >= MOVE_SILENCE)
            return silence(what - MOVE_SILENCE);
        if (what >= MOVE_TRY_FAILS)
            return try_path(what - MOVE_TRY_FAILS, false);
        return advance(what - MOVE_KEY);
    }

    // What is left of the present call: the operations whose result the application does not have.
    const Call &call() const
    {
        return rests_[s_][size_t(me_->call) << KEYS | me_->told];
    }

    int number_of(int key) const
    {
        for (const Op &op : call())
            if (op.key == key)
                return op.number;
        throw std::logic_error("no such key");
    }

    // --- the exchange of the application's thread

    bool begin()
    {
        if (me_->mode != MODE_OUTSIDE)
            return false;
        me_->mode = MODE_CALLING;
        for (const Op &op : call())
            me_->key[op.key].stage = STAGE_NEW;
        return true;
    }

    bool all_ready() const
    {
        for (const Op &op : call())
            if (me_->key[op.key].stage != STAGE_READY)
                return false;
        return true;
    }

    // A deadline may always pass once the peer makes no more calls.
    bool deadline()
    {
        bool alone = finished(now_, 1 - s_);
        if (me_->mode != MODE_CALLING || all_ready() || (me_->give_ups == plan_.give_ups && !alone))
            return false;
        if (!alone)
            me_->give_ups++;
        me_->mode = MODE_GIVING_UP;
        return true;
    }

    bool settled(const KeySide &key) const
    {
        bool pending =
            key.stage == STAGE_PUBLISHED || key.stage == STAGE_ASKED || key.stage == STAGE_TAKEN;
        return !pending;
    }

    // The call returns: with every result, or with -ETIMEDOUT.
    bool end()
    {
        if (me_->mode == MODE_OUTSIDE)
            return false;
        if (all_ready())
            return succeed();
        if (me_->mode != MODE_GIVING_UP)
            return false;
        for (const Op &op : call())
            if (!settled(me_->key[op.key]))
                return false;
        for (const Op &op : call()) {
            KeySide &key = me_->key[op.key];
            if (plan_.broken == Break::DROP_OPEN && key.own.state == PHI_AGREEMENT_OPEN)
                done(op.key);
            key.stage = STAGE_NEW;
            key.finishing = key.failed = key.result = 0;
        }
        me_->mode = MODE_OUTSIDE;
        if (!plan_.retry)
            next_call();
        return true;
    }

    // The call returns with a channel for each operation, or with the errors of those that failed:
    // then the others stay open, and the application exchanges them again.
    bool succeed()
    {
        bool error = false;
        for (const Op &op : call())
            error |= me_->key[op.key].failed != 0;
        uint8_t told = 0;
        for (const Op &op : call()) {
            KeySide &key = me_->key[op.key];
            if (error && !key.failed) {
                key.stage = STAGE_NEW;
                key.result = 0;
                continue;
            }
            if (plan_.broken != Break::DONE_EARLY)
                deliver(op.key);
            note_result(op.key);
            told = uint8_t(told | 1 << op.key);
            key.stage = STAGE_NEW;
            key.finishing = key.failed = key.result = 0;
        }
        me_->mode = MODE_OUTSIDE;
        me_->told = uint8_t(me_->told | told);
        if (call().empty() || !plan_.retry)
            next_call();
        return true;
    }

    void next_call()
    {
        me_->call++;
        me_->told = 0;
    }

    // The n-th result of a key must be the same at both ranks.
    void note_result(int k)
    {
        uint8_t result = me_->key[k].result;
        uint8_t *earlier = &now_.ghost.sequence[k][me_->delivered[k]++];
        if (plan_.retry && *earlier && *earlier != result)
            fail("results differ", "");
        *earlier = result;
    }

    // The round ends; its result is what the application sees, or nobody's if it was another
    // buffer's.
    void deliver(int k)
    {
        KeySide &key = me_->key[k];
        if (!key.finishing && key.number != number_of(k))
            fail("a channel of another buffer", "");
        Fact &fact = now_.ghost.round[k][key.own.round];
        key.result = key.failed ? 0xff : pair(k);
        if (fact.result && fact.result != key.result)
            fail("one round, two results", "");
        fact.result = key.result;
        done(k);
    }

    bool advance(int k)
    {
        if (me_->mode == MODE_OUTSIDE)
            return false;
        KeySide &key = me_->key[k];
        bool giving_up = me_->mode == MODE_GIVING_UP;
        switch (key.stage) {
        case STAGE_NEW:
            return !giving_up && publish(k);
        case STAGE_PUBLISHED:
            return giving_up ? give_up(k) : look(k);
        case STAGE_ASKED:
            return asked(k);
        case STAGE_TAKEN:
            return look_up(k);
        case STAGE_OFFER:
            return !giving_up && try_path(k, true);
        case STAGE_CONFIRM:
            return !giving_up && confirmed(k);
        default:
            return false;
        }
    }

    bool publish(int k)
    {
        KeySide &key = me_->key[k];
        int number = number_of(k);
        uint64_t word = 0;
        phi_agreement own = unpack(key.own);
        enum phi_agreement_step step = phi_agreement_publish(&own, published(k, number), &word);
        key.own = pack(own);
        switch (step) {
        case PHI_AGREEMENT_STORE:
            key.number = uint8_t(number);
            store(k, word);
            key.stage = STAGE_PUBLISHED;
            break;
        case PHI_AGREEMENT_ASK:
            store(k, word);
            send(QUESTION, k, own.round, own.attempt);
            key.stage = STAGE_ASKED;
            break;
        case PHI_AGREEMENT_RESUME:
            key.stage = STAGE_TAKEN;
            break;
        case PHI_AGREEMENT_FINISH:
            key.stage = STAGE_TAKEN;
            key.finishing = 1;
            break;
        default:
            fail("publish", "");
            break;
        }
        return true;
    }

    // The peer's word is loaded, then used: the peer may do anything in between.
    bool load(int k, Held why)
    {
        KeySide &key = me_->key[k];
        uint64_t word = peer_word(k);
        if (plan_.broken == Break::OFFER_IS_ROUND && uint32_t(word) != PHI_AGREEMENT_GONE &&
            key.arrived)
            word = phi_agreement_word(key.own.round, highest(key.arrived));
        if (why == HELD_LOOK && !phi_agreement_shows(word, key.own.round))
            return false; // loads again
        key.loaded = {uint8_t(word >> 32), uint8_t(word)};
        key.held = why;
        return true;
    }

    uint64_t loaded(int k) const
    {
        Word word = me_->key[k].loaded;
        return phi_agreement_word(word.round,
                                  word.number == GONE ? PHI_AGREEMENT_GONE : word.number);
    }

    void unlock(int k)
    {
        me_->key[k].loaded = {0, 0};
        me_->key[k].held = HELD_NOT;
    }

    bool look(int k)
    {
        KeySide &key = me_->key[k];
        if (key.held == HELD_NOT)
            return load(k, HELD_LOOK);
        phi_agreement own = unpack(key.own);
        enum phi_agreement_step step = phi_agreement_look(&own, loaded(k));
        key.own = pack(own);
        unlock(k);
        if (step == PHI_AGREEMENT_TAKEN)
            taken(k);
        return true;
    }

    bool give_up(int k)
    {
        KeySide &key = me_->key[k];
        if (key.held == HELD_LOOK)
            return look(k);
        if (key.held == HELD_NOT)
            return load(k, HELD_GIVE_UP);

        uint64_t word = 0;
        phi_agreement own = unpack(key.own);
        bool took = phi_agreement_give_up(&own, loaded(k), &word) == PHI_AGREEMENT_TAKEN;
        key.own = pack(own);
        unlock(k);
        if (took) {
            taken(k);
            return true;
        }
        if (plan_.broken != Break::NO_GONE)
            store(k, word);
        if (plan_.broken == Break::NO_QUESTION) {
            key.own.state = PHI_AGREEMENT_IDLE;
            key.stage = STAGE_NEW;
            check_not_taken(k);
            return true;
        }
        send(QUESTION, k, own.round, own.attempt);
        key.stage = STAGE_ASKED;
        return true;
    }

    // The service thread has had the answer and changed the state.
    bool asked(int k)
    {
        KeySide &key = me_->key[k];
        if (key.own.state == PHI_AGREEMENT_ASKING)
            return false;
        bool took = key.own.state == PHI_AGREEMENT_OPEN && me_->mode == MODE_GIVING_UP;
        // Whoever asked again because of an older exchange has not published its own buffer yet.
        bool ours = key.number == number_of(k) || plan_.broken == Break::TOLD_IS_OURS;
        key.stage = took && ours ? STAGE_TAKEN : STAGE_NEW;
        return true;
    }

    bool silence(int k)
    {
        KeySide &key = me_->key[k];
        bool waits = me_->mode == MODE_GIVING_UP && key.stage == STAGE_ASKED;
        if (!waits || key.own.state != PHI_AGREEMENT_ASKING || me_->silences == plan_.silences)
            return false;
        me_->silences++;
        key.stage = STAGE_NEW; // the key stays ASKING
        return true;
    }

    // A hit is ready; a miss goes on while there is time.
    bool look_up(int k)
    {
        KeySide &key = me_->key[k];
        if (is_hit(k)) {
            ready(k, false);
            return true;
        }
        if (me_->mode == MODE_GIVING_UP) {
            key.stage = STAGE_NEW;
            return true;
        }
        key.sent = uint8_t(key.sent | 1 << key.number);
        key.stage = STAGE_OFFER;
        return true;
    }

    // A round is confirmed once: the peer may have read it.
    bool try_path(int k, bool good)
    {
        KeySide &key = me_->key[k];
        if (me_->mode != MODE_CALLING || key.stage != STAGE_OFFER)
            return false;
        if (!(key.arrived >> theirs(k) & 1))
            return false;
        bool again = key.confirm.round == key.own.round;
        if (again && plan_.broken != Break::CONFIRM_TWICE) {
            key.stage = STAGE_CONFIRM;
            return good;
        }
        if (!good && me_->path_failures++ == plan_.path_failures)
            return false;
        key.confirm = {key.own.round, uint8_t(good)};
        key.stage = STAGE_CONFIRM;
        return true;
    }

    bool confirmed(int k)
    {
        KeySide &key = me_->key[k];
        const Confirm &other = peer_->key[k].confirm;
        if (other.round != key.own.round)
            return false;
        bool good = key.confirm.good && other.good;
        if (good) {
            key.paired[key.number - 1] = uint8_t(key.paired[key.number - 1] | 1 << theirs(k));
            key.last[key.number - 1] = uint8_t(theirs(k));
        }
        ready(k, !good);
        return true;
    }

    void ready(int k, bool failed)
    {
        KeySide &key = me_->key[k];
        key.failed = failed;
        key.stage = STAGE_READY;
        if (key.finishing) { // nobody asks for this result any more
            deliver(k);
            key.finishing = key.failed = key.result = 0;
            key.stage = STAGE_NEW;
        } else if (plan_.broken == Break::DONE_EARLY) {
            deliver(k);
        }
    }

    // --- the service thread

    bool receive(int i)
    {
        Message message = me_->inbox[i];
        me_->inbox[i] = {0, 0, 0, 0};
        std::sort(me_->inbox, me_->inbox + MESSAGES, later);
        int k = message.key;
        KeySide &key = me_->key[k];
        phi_agreement own = unpack(key.own);
        if (message.kind == QUESTION) {
            bool yes = phi_agreement_answer(&own, message.round);
            if (plan_.broken == Break::ANSWER_BY_DONE)
                yes = own.round > message.round;
            send(yes ? ANSWER_YES : ANSWER_NO, k, message.round, message.attempt);
            return true;
        }
        uint32_t attempt = plan_.broken == Break::ANY_ANSWER ? own.attempt : message.attempt;
        enum phi_agreement_step step = phi_agreement_told(&own, message.round, attempt,
                                                          message.kind == ANSWER_YES, peer_word(k));
        key.own = pack(own);
        switch (step) {
        case PHI_AGREEMENT_TAKEN:
            note_taken(k);
            break;
        case PHI_AGREEMENT_TIMED_OUT:
            check_not_taken(k);
            break;
        case PHI_AGREEMENT_NONSENSE:
            fail("nonsense", "");
            break;
        default:
            break; // an answer to an older question
        }
        return true;
    }

    static bool later(const Message &a, const Message &b)
    {
        return memcmp(&a, &b, sizeof(a)) > 0; // free places last
    }

    void send(uint8_t kind, int k, uint32_t round, uint32_t attempt)
    {
        Message *place = std::find_if(peer_->inbox, peer_->inbox + MESSAGES,
                                      [](const Message &m) { return m.kind == 0; });
        if (place == peer_->inbox + MESSAGES)
            throw std::length_error("messages");
        *place = {kind, uint8_t(k), uint8_t(round), uint8_t(attempt)};
        std::sort(peer_->inbox, peer_->inbox + MESSAGES, later);
    }

    bool offer_arrives(int k, int number)
    {
        KeySide &key = me_->key[k];
        if (!(peer_->key[k].sent >> number & 1) || (key.arrived >> number & 1))
            return false;
        key.arrived = uint8_t(key.arrived | 1 << number);
        return true;
    }

    // --- words, numbers and pairs

    void store(int k, uint64_t word)
    {
        KeySide &key = me_->key[k];
        int i = plan_.broken == Break::ONE_WORD ? 0 : word >> 32 & 1;
        key.word[i] = {uint8_t(word >> 32), uint8_t(word)};
    }

    uint64_t peer_word(int k) const
    {
        uint8_t round = me_->key[k].own.round;
        Word word = peer_->key[k].word[plan_.broken == Break::ONE_WORD ? 0 : round & 1];
        uint32_t number = word.number == GONE ? PHI_AGREEMENT_GONE : word.number;
        return phi_agreement_word(plan_.broken == Break::NO_ROUND ? round : word.round, number);
    }

    static uint32_t highest(uint8_t bits)
    {
        return bits >> 3 & 1 ? 3 : bits >> 2 & 1 ? 2 : 1;
    }

    // BIT_ONLY: 2 says "I have a channel for my buffer", 1 "I have none".
    uint32_t published(int k, int number) const
    {
        if (plan_.broken != Break::BIT_ONLY)
            return uint32_t(number);
        return me_->key[k].paired[number - 1] ? 2 : 1;
    }

    int theirs(int k) const
    {
        return plan_.broken == Break::BIT_ONLY ? peer_->key[k].number : me_->key[k].own.theirs;
    }

    bool is_hit(int k) const
    {
        const KeySide &key = me_->key[k];
        if (plan_.broken == Break::BIT_ONLY)
            return key.own.mine == 2 && key.own.theirs == 2;
        return key.paired[key.number - 1] >> theirs(k) & 1;
    }

    // Both ranks' numbers, rank 0's first.
    uint8_t pair(int k) const
    {
        const KeySide &key = me_->key[k];
        int other = plan_.broken == Break::BIT_ONLY ? key.last[key.number - 1] : theirs(k);
        return uint8_t(s_ == 0 ? key.number * 16 + other : other * 16 + key.number);
    }

    void taken(int k)
    {
        me_->key[k].stage = STAGE_TAKEN;
        note_taken(k);
    }

    void note_taken(int k)
    {
        KeySide &key = me_->key[k];
        const Own &other = peer_->key[k].own;
        if (other.round == key.own.round && other.state == PHI_AGREEMENT_IDLE)
            fail("took what was given up", "");
        Fact &fact = now_.ghost.round[k][key.own.round];
        uint8_t mine = plan_.broken == Break::BIT_ONLY ? 1 : pair(k);
        if (fact.pair && fact.pair != mine)
            fail("one round, two pairs", "");
        fact.pair = mine;
        uint8_t hit = is_hit(k) ? 2 : 1;
        if (fact.hit && fact.hit != hit)
            fail("a hit here, a miss there", "");
        fact.hit = hit;
    }

    void check_not_taken(int k)
    {
        const Own &other = peer_->key[k].own;
        uint8_t round = me_->key[k].own.round;
        if (other.round > round || (other.round == round && other.state == PHI_AGREEMENT_OPEN))
            fail("timed out here, taken there", "");
    }

    void done(int k)
    {
        KeySide &key = me_->key[k];
        phi_agreement own = unpack(key.own);
        phi_agreement_done(&own);
        if (own.round == ROUNDS)
            throw std::length_error("rounds");
        key.own = pack(own);
    }

    // --- the verdict

    // The end can be reached from every state: no two ranks that keep calling run past each other
    // for ever.
    void check_end_in_reach()
    {
        std::vector<char> reaches = space_.reaching([this](const State &s) { return ended(s); });
        for (size_t i = 0; i < space_.size() && outcome_.ok(); i++)
            if (!reaches[i]) {
                index_ = i;
                fail("no way to the end", "here");
            }
    }

    void fail(const char *kind, const char *last)
    {
        if (!outcome_.ok())
            return;
        outcome_.failure = kind;
        for (const auto &origin : space_.path(index_))
            outcome_.trace += describe(space_[origin.parent], origin.move) + "\n";
        outcome_.trace += (*last ? last : describe(before_, move_)) + "\n";
    }

    const Plan &plan_;
    std::vector<Call> rests_[2]; // by call and keys told
    Space<State> space_{true};
    Outcome outcome_;

    // The move that is being made.
    size_t index_ = 0;
    int move_ = 0, s_ = 0;
    State before_, now_;
    Side *me_ = nullptr, *peer_ = nullptr;
    bool moved_ = false;
};

Outcome explore(const Plan &plan)
{
    return Explorer(plan).run();
}

} // namespace model
