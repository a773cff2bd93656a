// SPDX-License-Identifier: BSD-3-Clause
// The queues of messages and stores: those to send, and those that came.
#include "net/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    uint32_t kind, size;
};

static size_t padded(uint32_t size)
{
    return (size + 7u) & ~7u;
}

int phi_log_add(struct phi_log_buffer *log, uint32_t kind, const void *bytes, uint32_t size)
{
    struct entry entry = {kind, size};
    size_t need = sizeof(entry) + padded(size);

    if (log->at > 0 && log->at == log->size)
        log->at = log->size = 0;
    if (log->size + need > log->room) {
        size_t room = log->room ? log->room * 2 : 4096;
        uint8_t *bigger;

        while (log->size + need > room)
            room *= 2;
        bigger = realloc(log->bytes, room);
        if (!bigger)
            return -ENOMEM;
        log->bytes = bigger;
        log->room = room;
    }
    log->newest = log->size;
    memcpy(log->bytes + log->size, &entry, sizeof(entry));
    if (size)
        memcpy(log->bytes + log->size + sizeof(entry), bytes, size);
    log->size += need;
    return 0;
}

const void *phi_log_peek(const struct phi_log_buffer *log, uint32_t *kind, uint32_t *size)
{
    struct entry entry;

    if (log->at == log->size)
        return NULL;
    memcpy(&entry, log->bytes + log->at, sizeof(entry));
    *kind = entry.kind;
    *size = entry.size;
    return log->bytes + log->at + sizeof(entry);
}

void *phi_log_newest(const struct phi_log_buffer *log, uint32_t kind, uint32_t size,
                     const void *bytes, size_t key)
{
    struct entry entry;
    uint8_t *at = log->bytes + log->newest;

    if (log->at == log->size || log->newest < log->at)
        return NULL;
    memcpy(&entry, at, sizeof(entry));
    at += sizeof(entry);
    return entry.kind == kind && entry.size == size && memcmp(at, bytes, key) == 0 ? at : NULL;
}

void phi_log_drop(struct phi_log_buffer *log)
{
    uint32_t kind, size;

    if (phi_log_peek(log, &kind, &size))
        log->at += sizeof(struct entry) + padded(size);
}

void phi_log_free(struct phi_log_buffer *log)
{
    free(log->bytes);
    *log = (struct phi_log_buffer){0};
}
