// SPDX-License-Identifier: BSD-3-Clause
#ifndef TOOLS_BUILT_H
#define TOOLS_BUILT_H

// print_version prints what --version does: the program's name and version, and in a second line
// what this build has.
void print_version(const char *program);

#endif
