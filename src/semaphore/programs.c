// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/words.h"

const uint32_t phi_word_start[PHI_WORD_COUNT] = {[PHI_WORD_NOTE] = PHI_BIT_FREE};

// clang-format off
#define WAIT(w, b) {PHI_STEP_WAIT, PHI_WORD_##w, PHI_BIT_##b}
#define POST(w, b) {PHI_STEP_POST, PHI_WORD_##w, PHI_BIT_##b}
#define COPY       {PHI_STEP_COPY, 0, 0}
// clang-format on

// docs/protocols.md shows this table; a test keeps them equal.
const struct phi_program phi_programs[PHI_CALL_COUNT] = {
    [PHI_CALL_PUT] = {"put", 1, {COPY}, 1},
    [PHI_CALL_GET] = {"get", 1, {COPY}, 1},
    [PHI_CALL_POST] = {"post", 1, {POST(TURN, READY)}, 0},
    [PHI_CALL_TRANSFER] = {"transfer", 3, {WAIT(TURN, READY), COPY, POST(TURN, FULL)}, 1},
    [PHI_CALL_COMPLETE] = {"complete", 1, {WAIT(TURN, FULL)}, 2},
    [PHI_CALL_SIGNAL] = {"signal", 2, {WAIT(NOTE, FREE), POST(NOTE, NOTED)}, 1},
    [PHI_CALL_PUT_SIGNAL] = {"put_signal", 3, {WAIT(NOTE, FREE), COPY, POST(NOTE, NOTED)}, 1},
    [PHI_CALL_WAIT] = {"wait", 2, {WAIT(NOTE, NOTED), POST(NOTE, FREE)}, 2},
};

const char *phi_program_name(unsigned call)
{
    return call < PHI_CALL_COUNT ? phi_programs[call].name : "work";
}

const char *phi_program_awaits(unsigned call)
{
    static const char *const names[] = {
        [PHI_BIT_READY] = "ready", [PHI_BIT_FULL] = "full", [PHI_BIT_NOTED] = "noted", [PHI_BIT_FREE] = "free"};
    for (unsigned i = 0; call < PHI_CALL_COUNT && i < phi_programs[call].count; i++)
        if (phi_programs[call].steps[i].kind == PHI_STEP_WAIT)
            return names[phi_programs[call].steps[i].bit];
    return "nothing";
}
