// SPDX-License-Identifier: BSD-3-Clause
// A store in a directory: a file for each key, made whole and once. It is for ranks of one node,
// and of one user. It stands behind ph_store_callbacks, as a user's own store does.
#ifndef PHI_STORE_FILE_H
#define PHI_STORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/store.h>

#include "base/report.h"

struct phi_file_store;

// phi_file_store_named: whether this URI names a directory.
bool phi_file_store_named(const char *uri);

// phi_file_store_open opens the directory of the URI. `make`: it may make it, where only the last
// folder is missing.
// Errors, each with a sentence:
//   -EINVAL: the URI is wrong, or the path leads to no directory
//   -EACCES: it is another user's, or others may enter it
//   -errno
int phi_file_store_open(const char *uri, bool make, struct phi_report *report,
                        struct phi_file_store **store);
void phi_file_store_close(struct phi_file_store *store); // NULL is fine

// phi_file_store_callbacks: any thread may call them. Where several wait in get at once, some look
// late. Only get has a deadline: set and remove wait for nobody. set: -EEXIST where the key has
// another value. All: -ESTALE where the directory was removed.
struct ph_store_callbacks phi_file_store_callbacks(struct phi_file_store *store);

// phi_file_store_why says in words what a result of a callback means.
const char *phi_file_store_why(const struct phi_file_store *store, int result);

// phi_file_store_listen lets a waiting get end early, with -ETIMEDOUT: when `wake` can be read, and
// when a key has come for which `concerns` says so. It is asked about NULL where keys may have come
// unseen. Call it before anybody gets.
void phi_file_store_listen(struct phi_file_store *store, int wake,
                           bool (*concerns)(void *opaque, const char *key), void *opaque);

// phi_file_store_each visits the keys that begin with the prefix, with their values, in no order.
// 0, or -errno with a sentence.
int phi_file_store_each(struct phi_file_store *store, const char *prefix,
                        void (*visit)(void *opaque, const void *value, size_t size), void *opaque);

#endif
