// SPDX-License-Identifier: BSD-3-Clause
#include "base/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SMALLEST = 256 };

void phi_writer_fini(struct phi_writer *writer)
{
    free(writer->bytes);
    *writer = (struct phi_writer){0};
}

// grow returns where the next `size` bytes go, or NULL once the writer has failed.
static uint8_t *grow(struct phi_writer *writer, size_t size)
{
    size_t capacity = writer->capacity ? writer->capacity : SMALLEST;
    uint8_t *bytes;

    if (writer->error)
        return NULL;
    if (size > SIZE_MAX / 4 - writer->size)
        goto no_memory;
    while (capacity < writer->size + size)
        capacity *= 2;
    if (capacity != writer->capacity) {
        bytes = realloc(writer->bytes, capacity);
        if (!bytes)
            goto no_memory;
        writer->bytes = bytes;
        writer->capacity = capacity;
    }
    bytes = writer->bytes + writer->size;
    writer->size += size;
    return bytes;

no_memory:
    writer->error = -ENOMEM;
    return NULL;
}

static void store_little(uint8_t *bytes, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static void put_little(struct phi_writer *writer, uint64_t value, size_t size)
{
    uint8_t *bytes = grow(writer, size);

    if (bytes)
        store_little(bytes, value, size);
}

void phi_put_u8(struct phi_writer *writer, uint8_t value)
{
    put_little(writer, value, sizeof(value));
}

void phi_put_u16(struct phi_writer *writer, uint16_t value)
{
    put_little(writer, value, sizeof(value));
}

void phi_put_u32(struct phi_writer *writer, uint32_t value)
{
    put_little(writer, value, sizeof(value));
}

void phi_put_u64(struct phi_writer *writer, uint64_t value)
{
    put_little(writer, value, sizeof(value));
}

void phi_put_bytes(struct phi_writer *writer, const void *bytes, size_t size)
{
    uint8_t *to = grow(writer, size);

    if (to && size > 0)
        memcpy(to, bytes, size);
}

void phi_put_blob(struct phi_writer *writer, const void *bytes, size_t size)
{
    // A length that does not fit its field belongs to a message that nobody could hold.
    if (size > UINT32_MAX) {
        writer->error = -ENOMEM;
        return;
    }
    phi_put_u32(writer, (uint32_t)size);
    phi_put_bytes(writer, bytes, size);
}

void phi_put_string(struct phi_writer *writer, const char *text)
{
    phi_put_blob(writer, text, strlen(text));
}

void phi_patch_u32(struct phi_writer *writer, size_t at, uint32_t value)
{
    if (!writer->error)
        store_little(writer->bytes + at, value, sizeof(value));
}

void phi_reader_init(struct phi_reader *reader, const void *bytes, size_t size)
{
    *reader = (struct phi_reader){.bytes = bytes, .size = size};
}

// take returns the next `size` bytes, or NULL once the reader has failed.
static const uint8_t *take(struct phi_reader *reader, size_t size)
{
    const uint8_t *bytes = reader->bytes + reader->at;

    if (reader->error)
        return NULL;
    if (size > reader->size - reader->at) {
        reader->error = -EBADMSG;
        return NULL;
    }
    reader->at += size;
    return bytes;
}

static uint64_t get_little(struct phi_reader *reader, size_t size)
{
    const uint8_t *bytes = take(reader, size);
    uint64_t value = 0;

    for (size_t i = 0; bytes && i < size; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

uint8_t phi_get_u8(struct phi_reader *reader)
{
    return (uint8_t)get_little(reader, sizeof(uint8_t));
}

uint16_t phi_get_u16(struct phi_reader *reader)
{
    return (uint16_t)get_little(reader, sizeof(uint16_t));
}

uint32_t phi_get_u32(struct phi_reader *reader)
{
    return (uint32_t)get_little(reader, sizeof(uint32_t));
}

uint64_t phi_get_u64(struct phi_reader *reader)
{
    return get_little(reader, sizeof(uint64_t));
}

void phi_get_bytes(struct phi_reader *reader, void *bytes, size_t size)
{
    const uint8_t *from = take(reader, size);

    if (size == 0)
        return;
    if (from)
        memcpy(bytes, from, size);
    else
        memset(bytes, 0, size);
}

const uint8_t *phi_get_blob(struct phi_reader *reader, size_t max, size_t *size)
{
    uint32_t length = phi_get_u32(reader);
    const uint8_t *bytes;

    if (length > max)
        reader->error = -EBADMSG;
    bytes = take(reader, length);
    *size = bytes ? length : 0;
    return bytes;
}

void phi_get_string(struct phi_reader *reader, char *text, size_t size)
{
    size_t length;
    const uint8_t *bytes = phi_get_blob(reader, size - 1, &length);

    if (bytes && memchr(bytes, 0, length)) {
        reader->error = -EBADMSG;
        length = 0;
    }
    if (length > 0)
        memcpy(text, bytes, length);
    text[length] = 0;
}
