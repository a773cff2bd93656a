// SPDX-License-Identifier: BSD-3-Clause
// The queues of messages and stores: those to send, and those that came.
#ifndef PHI_NET_LOG_H
#define PHI_NET_LOG_H

#include <stddef.h>
#include <stdint.h>

// A log of entries, read in order.
struct phi_log_buffer {
    uint8_t *bytes;
    size_t size, room, at; // entries lie in [at, size)
    size_t newest;         // where the last one begins
};

int phi_log_add(struct phi_log_buffer *log, uint32_t kind, const void *bytes, uint32_t size);
// phi_log_peek returns the oldest entry's bytes, or NULL. phi_log_drop takes it out.
const void *phi_log_peek(const struct phi_log_buffer *log, uint32_t *kind, uint32_t *size);
// phi_log_newest returns the newest entry's bytes where it has this kind and size and begins with
// these `key` bytes, else NULL.
void *phi_log_newest(const struct phi_log_buffer *log, uint32_t kind, uint32_t size,
                     const void *bytes, size_t key);
void phi_log_drop(struct phi_log_buffer *log);
void phi_log_free(struct phi_log_buffer *log);

#endif
