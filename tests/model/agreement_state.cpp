// SPDX-License-Identifier: BSD-3-Clause
#include "model/agreement_state.h"

namespace model
{

Own pack(const phi_agreement &own)
{
    bool open = own.state == PHI_AGREEMENT_OPEN, idle = own.state == PHI_AGREEMENT_IDLE;
    return {uint8_t(own.state), uint8_t(own.round), uint8_t(idle ? 0 : own.mine),
            uint8_t(open ? own.theirs : 0), uint8_t(own.attempt)};
}

phi_agreement unpack(const Own &own)
{
    return {own.state, own.round, own.mine, own.theirs, own.attempt};
}

static const char *const stages[] = {"publish", "look",    "asked", "look up",
                                     "try",     "confirm", "ready"};

static std::string describe_key(const Side &side, int what)
{
    if (what >= MOVE_SILENCE)
        return "no answer";
    const KeySide &key = side.key[what % 4];
    return std::string(what >= MOVE_TRY_FAILS ? "failing " : "") + stages[key.stage] + " key " +
           std::to_string(what % 4) + " round " + std::to_string(key.own.round);
}

static std::string describe_message(const Message &message)
{
    static const char *const kinds[] = {"", "asked whether", "told that not", "told that"};
    return std::string(kinds[message.kind]) + " round " + std::to_string(message.round) +
           " was taken, attempt " + std::to_string(message.attempt);
}

std::string describe(const State &before, int move)
{
    const Side &side = before.side[move / 64];
    int what = move % 64;
    std::string text =
        "rank " + std::to_string(move / 64) + " call " + std::to_string(side.call) + ": ";
    if (what >= MOVE_MESSAGE)
        return text + describe_message(side.inbox[what - MOVE_MESSAGE]);
    if (what >= MOVE_OFFER)
        return text + "offer arrives";
    switch (what) {
    case MOVE_BEGIN:
        return text + "begins";
    case MOVE_DEADLINE:
        return text + "deadline";
    case MOVE_END:
        return text + "returns";
    default:
        return text + describe_key(side, what);
    }
}

} // namespace model
