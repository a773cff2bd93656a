// SPDX-License-Identifier: BSD-3-Clause
// What peerhop-run is told by its arguments and the environment.
#ifndef TOOLS_RUN_OPTIONS_H
#define TOOLS_RUN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    RANKS_MAX = 1024,
    SENTENCE_SIZE = 512,
    STATUS_FAILED = 1, // of peerhop-run itself
    STATUS_USAGE = 2,
    STATUS_DEADLINE = 124, // as timeout(1)
    STATUS_NO_EXEC = 126,  // as the shell
    STATUS_NOT_FOUND = 127,
    STATUS_SIGNAL = 128,
};

struct options {
    int64_t ranks;      // on this machine, from `first` on; with `hosts` 0 where it is not given
    int64_t first, all; // of the whole job
    const char *hosts;  // NULL: ranks are started here
    const char *store, *device, *job;
    int64_t deadline_s; // 0: none
    int64_t grace_s;
    bool tag;
    char **program;
};

// options_parse ends the process where they are wrong, or ask for help.
void options_parse(struct options *options, int argc, char **argv);

// complain is for before there is anything to watch: it may wait for a reader.
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
