// SPDX-License-Identifier: BSD-3-Clause
// What the fuzz targets share: reading an input piece by piece, one report and configuration for
// all executions, descriptors of every sort, and a clock that passes only where somebody waits.
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/counters.h"
#include "base/report.h"

// The entry point of each target.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A property that does not hold ends the run as a crash does.
#define HOLD(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            __builtin_trap();                                                                      \
    } while (0)

// An input is read from its front; past its end everything is zero.
struct input {
    const uint8_t *at;
    size_t left;
};

static inline uint64_t take(struct input *input, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes && input->left > 0; i++, input->left--)
        value |= (uint64_t)*input->at++ << (8 * i);
    return value;
}

// A piece: u16 length, bytes; cut where the input ends.
static inline struct input take_piece(struct input *input)
{
    size_t size = (size_t)take(input, 2);
    struct input piece = {input->at, size < input->left ? size : input->left};

    input->at += piece.left;
    input->left -= piece.left;
    return piece;
}

// No line that is logged may have it.
extern const char *fuzz_secret;

// A copy of its own length, so that reading past its end is seen. free() it.
uint8_t *copy_of(struct input piece);

// Of a store made of callbacks: takes any key away.
int store_drop(void *opaque, const char *key, int64_t ms);

// Made at the first call. Lines of every level are formatted, and thrown away.
struct fuzz_context {
    struct phi_report report;
    struct phi_counters counters;
    struct phi_config config;
};
struct fuzz_context *fuzz_context(void);

// Descriptors that a peer may send. descriptor() returns a copy of one, or -1.
enum descriptor {
    DESCRIPTOR_NONE,
    DESCRIPTOR_SEALED, // a memory file of 64 KiB, as ours are
    DESCRIPTOR_UNSEALED,
    DESCRIPTOR_READ_ONLY,
    DESCRIPTOR_SPARSE, // 1 TiB, sealed
    DESCRIPTOR_PIPE,   // full, and it blocks
    DESCRIPTOR_DIRECTORY,
    DESCRIPTOR_EVENT,
    DESCRIPTOR_SOCKET,
    DESCRIPTOR_NULL,  // /dev/null
    DESCRIPTOR_GIVEN, // what the target has put there
    DESCRIPTOR_COUNT,
};
extern int descriptor_given;
int descriptor(unsigned which);
uint64_t descriptor_inode(unsigned which);

// The clock of the targets that link clock.c of this folder: a microsecond for each look, and what
// a poll() waits.
extern int64_t fuzz_time;

#endif
