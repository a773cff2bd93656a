// SPDX-License-Identifier: BSD-3-Clause
// The store is how ranks find each other: Redis by default, or any key-value store behind three
// callbacks (PyTorch's TCPStore, etcd, PMIx, a dictionary).
#ifndef PEERHOP_STORE_H
#define PEERHOP_STORE_H

#include <stddef.h>
#include <stdint.h>

// Callbacks of a user's store. Keys are printable ASCII of at most 200 bytes, values any bytes.
// Each key is set at most once in its life (write-once), so a cache between the ranks does no harm;
// one that has vanished before its message was taken is set again, with the same value, after an
// exchange that waited for it in vain. Only the key of an expulsion (ph_context_expel) may be set
// by several ranks at the same time, to the same value; it stays. The library calls from the
// threads of the application that are inside ph_context_create, ph_exchange*, ph_context_destroy,
// and from its own service thread; several threads may call at once.
// Deadlines are in milliseconds from the call. Each returns 0 or a negative errno value:
// -ETIMEDOUT where the deadline passed, -ENOENT where a deleted key was absent.
struct ph_store_callbacks {
    // Stores a copy of value under key and makes it visible to every rank.
    int (*set)(void *opaque, const char *key, const void *value, size_t size, int64_t deadline_ms);

    // Waits until key exists, at most deadline_ms (0: only look), and copies its value into *value,
    // a buffer from malloc() that the library frees. On failure *value is not touched.
    int (*get)(void *opaque, const char *key, void **value, size_t *size, int64_t deadline_ms);

    // Removes key.
    int (*remove)(void *opaque, const char *key, int64_t deadline_ms);

    void *opaque; // handed to each callback
};

#endif
