// SPDX-License-Identifier: BSD-3-Clause
// Whether what a program prints has arrived: a full disk or a pipe that nobody reads is no success.
#ifndef TOOLS_WRITTEN_H
#define TOOLS_WRITTEN_H

// all_written returns the status with which the program may end: 1 instead of 0, after a line on
// stderr, where standard output did not take everything.
int all_written(const char *program, int status);

#endif
