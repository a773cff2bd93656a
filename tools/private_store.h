// SPDX-License-Identifier: BSD-3-Clause
// A store of one's own: a fresh folder that only this user can enter, gone with its owner.
#ifndef TOOLS_PRIVATE_STORE_H
#define TOOLS_PRIVATE_STORE_H

#include <stddef.h>

#include "child.h"

struct private_store {
    struct child keeper; // removes the folder when it, or its owner, ends
    char folder[4096];
    int directory; // what was opened there, where there is a folder
    char uri[4096 + 8];
};

// private_store_start makes the folder in $TMPDIR, /dev/shm or /tmp: the first in which it can.
// -errno with a sentence in error. The folder goes with the calling thread, whatever ends it.
int private_store_start(struct private_store *store, char *error, size_t error_size);

// private_store_stop removes the folder; fine on a store that was never started (all zero) and on
// one whose keeper has ended.
void private_store_stop(struct private_store *store);

#endif
