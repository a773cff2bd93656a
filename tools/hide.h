// SPDX-License-Identifier: BSD-3-Clause
// A store's URI as an argument of a program: everybody on the machine may read the arguments of its
// processes.
#ifndef TOOLS_HIDE_H
#define TOOLS_HIDE_H

#include <stdbool.h>

// hide_password returns a copy of the URI, good until the next call, and overwrites its password
// where it stands, so that from now on nobody sees it there, nor in the arguments of a child. NULL:
// no memory.
const char *hide_password(char *argument);

// without_password returns an argument that is not understood, to be named in an error: it may be a
// store's URI all the same, and its password is overwritten then. Ends what hide_password returned.
const char *without_password(char *argument);

// is_hidden: whether this is what hide_password has left.
bool is_hidden(const char *argument);

#endif
