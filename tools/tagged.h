// SPDX-License-Identifier: BSD-3-Clause
// What a rank writes to its stdout or stderr, passed on line by line with the rank before it.
#ifndef TOOLS_TAGGED_H
#define TOOLS_TAGGED_H

#include <stdbool.h>
#include <stddef.h>

#include "output.h"

struct tagged {
    int fd; // read end of the rank's pipe, or -1: it has ended
    int rank;
    struct output *out;
    size_t length;
    char *line; // freed by the caller
};

// tagged_open makes the pipe; *end is what the rank writes to, the caller's to close. 0, -errno.
int tagged_open(struct tagged *stream, int rank, struct output *out, int *end);

// tagged_ready: whether the stream is open, and its output has room for a line of it: else it is
// not to be read. A reader that is slow so holds up the ranks, as without tags.
bool tagged_ready(const struct tagged *stream);

// tagged_read passes on some of what is there and has room. At the end a last line without a
// newline gets one, and the stream is closed.
void tagged_read(struct tagged *stream);

// tagged_end closes a stream that is empty, though a process may still write to it.
void tagged_end(struct tagged *stream);

#endif
