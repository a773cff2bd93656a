// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/words.h"

const uint32_t phi_word_start[PHI_WORD_COUNT] = {[PHI_WORD_NOTE] = PHI_BIT_FREE};

// clang-format off
#define WAIT(w, b) {PHI_STEP_WAIT, PHI_WORD_##w, PHI_BIT_##b}
#define POST(w, b) {PHI_STEP_POST, PHI_WORD_##w, PHI_BIT_##b}
#define COPY       {PHI_STEP_COPY, 0, 0}
#define HOP(k, w)  {PHI_STEP_##k, PHI_WORD_##w, 0}
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

// sm: as above, where the flags say whose turn it is, and the copy and its post are one step.
static const struct phi_program by_copy[PHI_CALL_COUNT] = {
    [PHI_CALL_POST] = {"post", 1, {HOP(GO, TURN)}, 0},
    [PHI_CALL_TRANSFER] = {"transfer", 1, {HOP(MOVE, TURN)}, 1},
    [PHI_CALL_COMPLETE] = {"complete", 1, {HOP(ARRIVE, TURN)}, 2},
    [PHI_CALL_SIGNAL] = {"signal", 1, {HOP(MOVE, NOTE)}, 1},
    [PHI_CALL_PUT_SIGNAL] = {"put_signal", 1, {HOP(MOVE, NOTE)}, 1},
    [PHI_CALL_WAIT] = {"wait", 1, {HOP(ARRIVE, NOTE)}, 2},
};

// ll: the sender pushes into memory of the library, so nobody waits for the receiver's buffer, and
// the sender's is free again at once.
static const struct phi_program by_lines[PHI_CALL_COUNT] = {
    [PHI_CALL_POST] = {"post", 0, {{0}}, 0},
    [PHI_CALL_TRANSFER] = {"transfer", 1, {HOP(PUSH, TURN)}, 1},
    [PHI_CALL_COMPLETE] = {"complete", 1, {HOP(TAKE, TURN)}, 2},
    [PHI_CALL_SIGNAL] = {"signal", 1, {HOP(PUSH, NOTE)}, 1},
    [PHI_CALL_PUT_SIGNAL] = {"put_signal", 1, {HOP(PUSH, NOTE)}, 1},
    [PHI_CALL_WAIT] = {"wait", 1, {HOP(TAKE, NOTE)}, 2},
};

// A part of a message of an unbound channel: the receiver's end copies it on from its bounce
// buffer.
static const struct phi_program complete_by_bounce = {"complete", 2, {WAIT(TURN, FULL), COPY}, 2};

// Under the get protocol the sender is the passive end.
static const struct phi_program push_by_lines = {"post", 1, {HOP(PUSH, TURN)}, 0};
static const struct phi_program take_by_lines = {"transfer", 1, {HOP(TAKE, TURN)}, 1};
static const struct phi_program complete_by_lines = {"complete", 0, {{0}}, 2};

static const struct phi_program *pulled_by_lines(enum phi_call call)
{
    return call == PHI_CALL_POST       ? &push_by_lines
           : call == PHI_CALL_TRANSFER ? &take_by_lines
           : call == PHI_CALL_COMPLETE ? &complete_by_lines
                                       : &by_lines[call];
}

// staged: likewise, through the sender's slots into the receiver's. A put is part of what the next
// signal ends. A get there is not: nobody at the other end would fill a slot.
static const struct phi_program by_slots[PHI_CALL_COUNT] = {
    [PHI_CALL_PUT] = {"put", 1, {HOP(STAGE, NOTE)}, 1},
    [PHI_CALL_GET] = {"get", 0, {{0}}, 1},
    [PHI_CALL_POST] = {"post", 0, {{0}}, 0},
    [PHI_CALL_TRANSFER] = {"transfer", 1, {HOP(STAGE, TURN)}, 1},
    [PHI_CALL_COMPLETE] = {"complete", 1, {HOP(UNSTAGE, TURN)}, 2},
    [PHI_CALL_SIGNAL] = {"signal", 1, {HOP(STAGE, NOTE)}, 1},
    [PHI_CALL_PUT_SIGNAL] = {"put_signal", 1, {HOP(STAGE, NOTE)}, 1},
    [PHI_CALL_WAIT] = {"wait", 1, {HOP(UNSTAGE, NOTE)}, 2},
};

static const struct phi_program stage_pulled = {"post", 1, {HOP(STAGE, TURN)}, 0};
static const struct phi_program unstage_pulled = {"transfer", 1, {HOP(UNSTAGE, TURN)}, 1};

static const struct phi_program *pulled_by_slots(enum phi_call call)
{
    return call == PHI_CALL_POST       ? &stage_pulled
           : call == PHI_CALL_TRANSFER ? &unstage_pulled
           : call == PHI_CALL_COMPLETE ? &complete_by_lines
                                       : &by_slots[call];
}

const struct phi_program *phi_program_of(enum phi_call call, enum phi_method method, int pull)
{
    if (method == PHI_BY_STAGED)
        return pull ? pulled_by_slots(call) : &by_slots[call];
    if (method == PHI_BY_BOUNCE && call == PHI_CALL_COMPLETE)
        return &complete_by_bounce;
    if (method == PHI_BY_WORDS || method == PHI_BY_BOUNCE || call == PHI_CALL_PUT ||
        call == PHI_CALL_GET)
        return &phi_programs[call];
    if (method == PHI_BY_SM)
        return &by_copy[call];
    return pull && method != PHI_BY_RING ? pulled_by_lines(call) : &by_lines[call];
}

struct phi_bell phi_bell_of(const struct phi_program *program)
{
    struct phi_bell bell = {NULL, NULL, 0};
    for (unsigned i = 0; i < program->count; i++) {
        const struct phi_step *step = &program->steps[i];
        if (step->kind == PHI_STEP_WAIT)
            bell.wait = step;
        else if (step->kind == PHI_STEP_POST)
            bell.post = step;
        else
            bell.copies = 1;
    }
    return bell;
}

const char *phi_program_name(unsigned call)
{
    if (call == PHI_CALL_COPY)
        return "copy";
    if (call == PHI_CALL_NOTIFY)
        return "notify";
    if (call == PHI_CALL_BEHIND)
        return "wait for a request";
    return call < PHI_CALL_COUNT ? phi_programs[call].name : "work";
}

const char *phi_program_awaits(unsigned call)
{
    static const char *const names[] = {[PHI_BIT_READY] = "ready",
                                        [PHI_BIT_FULL] = "full",
                                        [PHI_BIT_NOTED] = "noted",
                                        [PHI_BIT_FREE] = "free"};
    for (unsigned i = 0; call < PHI_CALL_COUNT && i < phi_programs[call].count; i++)
        if (phi_programs[call].steps[i].kind == PHI_STEP_WAIT)
            return names[phi_programs[call].steps[i].bit];
    return "nothing";
}
