// SPDX-License-Identifier: BSD-3-Clause
// The state of the agreement model as bytes, and the moves that lead from one to the next.
#ifndef TESTS_MODEL_AGREEMENT_STATE_H
#define TESTS_MODEL_AGREEMENT_STATE_H

#include <cstdint>
#include <string>

extern "C" {
#include "rules/agreement.h"
}

namespace model
{

static const int KEYS = 2;
static const int ROUNDS = 8;
static const int NUMBERS = 3;
static const int MESSAGES = 6;
static const uint8_t GONE = 255;

// What one operation of a running exchange waits for.
enum Stage : uint8_t {
    STAGE_NEW,       // to be published
    STAGE_PUBLISHED, // the peer's word
    STAGE_ASKED,     // the answer
    STAGE_TAKEN,     // to be looked up
    STAGE_OFFER,     // a miss: the peer's descriptor
    STAGE_CONFIRM,   // a miss: the peer's confirm
    STAGE_READY,
};

// What a thread that holds the mutex has loaded the peer's word for. Only other ranks move
// meanwhile.
enum Held : uint8_t { HELD_NOT, HELD_LOOK, HELD_GIVE_UP };

enum Mode : uint8_t { MODE_OUTSIDE, MODE_CALLING, MODE_GIVING_UP };

struct Word {
    uint8_t round, number;
};

struct Message {
    uint8_t kind; // 0: none
    uint8_t key, round, attempt;
};
enum : uint8_t { QUESTION = 1, ANSWER_NO, ANSWER_YES };

// phi_agreement in five bytes.
struct Own {
    uint8_t state, round, mine, theirs, attempt;
};

struct Confirm {
    uint8_t round, good; // 0: none yet
};

struct KeySide {
    Own own;
    Word word[2];
    Word loaded;  // the peer's word, while held
    uint8_t held; // enum Held
    uint8_t stage;
    uint8_t finishing; // the open round is another buffer's
    uint8_t failed;    // READY with an error
    uint8_t result;    // of the round that was done last
    uint8_t number;    // the buffer's, of this round
    Confirm confirm;
    uint8_t sent;            // bits by number: descriptors sent to the peer
    uint8_t arrived;         // bits by the peer's number
    uint8_t paired[NUMBERS]; // by own number: bits of the peer's, confirmed
    uint8_t last[NUMBERS];   // by own number: the peer's of the last confirmed channel
};

struct Side {
    KeySide key[KEYS];
    Message inbox[MESSAGES];
    uint8_t call, mode, give_ups, silences, path_failures;
    uint8_t delivered[KEYS];
    uint8_t told; // bits: keys of this call whose result the application has
};

// What the first of the two ranks did in a round or as its n-th result; the second must do the
// same.
struct Fact {
    uint8_t pair; // 0: nothing yet
    uint8_t hit;  // 1: miss, 2: hit
    uint8_t result;
};

struct Ghost {
    Fact round[KEYS][ROUNDS];
    uint8_t sequence[KEYS][ROUNDS];
};

struct State {
    Side side[2];
    Ghost ghost;
    uint8_t pad[8 - (sizeof(Side) * 2 + sizeof(Ghost)) % 8];
};

// A move: side * 64 + what.
enum Move {
    MOVE_KEY = 0,       // + key: the operation's next step
    MOVE_TRY_FAILS = 4, // + key
    MOVE_SILENCE = 8,   // + key
    MOVE_BEGIN = 12,
    MOVE_DEADLINE = 13,
    MOVE_END = 14,
    MOVE_OFFER = 16,   // + key * 4 + number
    MOVE_MESSAGE = 32, // + index
};

// Members to which a state gives no meaning are packed as zero, so that equal states are equal
// bytes.
Own pack(const phi_agreement &own);
phi_agreement unpack(const Own &own);

// describe says in words what a move does in the state before it.
std::string describe(const State &before, int move);

} // namespace model

#endif
