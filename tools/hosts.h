// SPDX-License-Identifier: BSD-3-Clause
#ifndef TOOLS_HOSTS_H
#define TOOLS_HOSTS_H

#include "run_options.h"

// hosts_print prints a script for sh: a command of ssh for each host of options->hosts that starts
// its ranks there by peerhop-run, all at once, and a last line that waits for them. Returns an exit
// status; what is wrong with the options was said. self: argv[0].
int hosts_print(const struct options *options, const char *self);

#endif
