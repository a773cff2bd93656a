// SPDX-License-Identifier: BSD-3-Clause
// Output that never makes its writer wait: a thread of its own writes it, and waits for a reader
// that is slow, or has stopped to read.
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

struct output;

// output_open writes to `fd`; `wake` is an eventfd that is rung when there is room again. 0,
// -errno. The thread takes no signals.
int output_open(int fd, int wake, struct output **output);

// output_put takes a copy; false: there is no room for all of it, and nothing was taken. `reserve`:
// so much room must be left afterwards, for who may use it.
bool output_put(struct output *output, const void *bytes, size_t size, size_t reserve);

// output_fits: whether output_put would take it. done: whether all was written, or nobody reads any
// more, or it cannot be written: then all that comes is dropped. error: why it cannot be written,
// -errno; 0 while it can, and where nobody reads.
bool output_fits(struct output *output, size_t size, size_t reserve);
bool output_done(struct output *output);
int output_error(struct output *output);

#endif
