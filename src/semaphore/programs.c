// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/words.h"

// Only the credit starts at 1: the first signal has nobody to wait for.
const uint32_t phi_word_start[PHI_WORD_COUNT] = {[PHI_WORD_CREDIT] = 1};

// clang-format off
#define WAIT(w)  {PHI_STEP_WAIT, PHI_WORD_##w}
#define RESET(w) {PHI_STEP_RESET, PHI_WORD_##w}
#define POST(w)  {PHI_STEP_POST, PHI_WORD_##w}
#define COPY     {PHI_STEP_COPY, 0}
// clang-format on

// docs/protocols.md shows this table; a test keeps them equal.
const struct phi_program phi_programs[PHI_CALL_COUNT] = {
    [PHI_CALL_PUT] = {"put", 1, {COPY}, 1},
    [PHI_CALL_GET] = {"get", 1, {COPY}, 1},
    [PHI_CALL_POST] = {"post", 1, {POST(READY)}, 0},
    [PHI_CALL_TRANSFER] = {"transfer", 4, {WAIT(READY), RESET(READY), COPY, POST(FULL)}, 1},
    [PHI_CALL_COMPLETE] = {"complete", 2, {WAIT(FULL), RESET(FULL)}, 2},
    [PHI_CALL_SIGNAL] = {"signal", 3, {WAIT(CREDIT), RESET(CREDIT), POST(NOTE)}, 1},
    [PHI_CALL_PUT_SIGNAL] = {"put_signal", 4, {WAIT(CREDIT), RESET(CREDIT), COPY, POST(NOTE)}, 1},
    [PHI_CALL_WAIT] = {"wait", 3, {WAIT(NOTE), RESET(NOTE), POST(CREDIT)}, 2},
};
