// SPDX-License-Identifier: BSD-3-Clause
// The store is how ranks find each other: a directory on one node, Redis, or any key-value store
// behind three callbacks (PyTorch's TCPStore, etcd, PMIx, a dictionary).
#ifndef PEERHOP_STORE_H
#define PEERHOP_STORE_H

#include <stddef.h>
#include <stdint.h>

// Callbacks of a user's store. Keys are printable ASCII of at most 200 bytes, values any bytes.
// - A message's key is set by one rank, to one value. One that has vanished before its message was
//   taken is set again, to the same value, after an exchange that waited for it in vain. A set that
//   failed may be followed by one of the same key to another value.
// - A rank's record is removed by the rank's next life, and set to another value: a cache between
//   the ranks must not keep it for long. Two lives that begin together may both do so.
// - The key of an expulsion (ph_context_expel) may be set by several ranks at the same time, to the
//   same value; it stays.
// The library calls from the threads of the application that are inside ph_context_create,
// ph_exchange*, ph_context_destroy, and from its own service thread; several may call at once. Gets
// that only look come in numbers.
// Deadlines are in milliseconds from the call. Each returns 0 or a negative errno value:
// -ETIMEDOUT where the deadline passed, -ENOENT where a deleted key was absent.
struct ph_store_callbacks {
    // Stores a copy of value under key and makes it visible to every rank. Where the key has
    // another value it may take its place, or be refused: -EEXIST. Setting the same value again
    // returns 0.
    int (*set)(void *opaque, const char *key, const void *value, size_t size, int64_t deadline_ms);

    // Waits until key exists, at most deadline_ms (0: only look), and copies its value into *value,
    // a buffer from malloc() that the library frees. On failure *value is not touched.
    int (*get)(void *opaque, const char *key, void **value, size_t *size, int64_t deadline_ms);

    // Removes key.
    int (*remove)(void *opaque, const char *key, int64_t deadline_ms);

    void *opaque; // handed to each callback
};

#endif
