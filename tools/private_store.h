// SPDX-License-Identifier: BSD-3-Clause
// A Redis of one's own: on a unix socket in a fresh folder that only this user can enter, gone with
// its owner.
#ifndef TOOLS_PRIVATE_STORE_H
#define TOOLS_PRIVATE_STORE_H

#include <stddef.h>

#include "child.h"

struct private_store {
    struct child keeper; // keeps server and folder, and ends with the server
    char folder[80];     // short enough for a socket's path
    char uri[112];
};

// private_store_start starts redis-server in the folder $TMPDIR, or /tmp where that is unset or too
// long, and waits until it answers. -errno with a sentence in error. Server and folder go with the
// calling thread, whatever ends it.
int private_store_start(struct private_store *store, char *error, size_t error_size);

// private_store_stop ends the server and removes the folder; fine on a store that was never started
// (all zero) and on one whose keeper the caller has collected.
void private_store_stop(struct private_store *store);

#endif
