// SPDX-License-Identifier: BSD-3-Clause
// Bytes that travel between processes are little-endian, bounded and checked. A reader or writer
// that failed stays failed, so a message is coded straight through and checked once at its end.
#ifndef PHI_BASE_WIRE_H
#define PHI_BASE_WIRE_H

#include <stddef.h>
#include <stdint.h>

struct phi_writer {
    uint8_t *bytes; // owned; free with phi_writer_fini
    size_t size;
    size_t capacity;
    int error; // 0 or -ENOMEM
};

void phi_writer_fini(struct phi_writer *writer); // and ready for use again
void phi_put_u8(struct phi_writer *writer, uint8_t value);
void phi_put_u16(struct phi_writer *writer, uint16_t value);
void phi_put_u32(struct phi_writer *writer, uint32_t value);
void phi_put_u64(struct phi_writer *writer, uint64_t value);
void phi_put_bytes(struct phi_writer *writer, const void *bytes, size_t size);
// put_blob and put_string write a u32 length and the bytes.
void phi_put_blob(struct phi_writer *writer, const void *bytes, size_t size);
void phi_put_string(struct phi_writer *writer, const char *text);
// patch_u32 overwrites a u32 written earlier at offset `at`.
void phi_patch_u32(struct phi_writer *writer, size_t at, uint32_t value);

struct phi_reader {
    const uint8_t *bytes; // not owned
    size_t size;
    size_t at;
    int error; // 0 or -EBADMSG: then every read yields zeros
};

void phi_reader_init(struct phi_reader *reader, const void *bytes, size_t size);
uint8_t phi_get_u8(struct phi_reader *reader);
uint16_t phi_get_u16(struct phi_reader *reader);
uint32_t phi_get_u32(struct phi_reader *reader);
uint64_t phi_get_u64(struct phi_reader *reader);
void phi_get_bytes(struct phi_reader *reader, void *bytes, size_t size);
// get_blob returns a pointer into the message, and its length: at most max, else the reader fails
// and *size is 0.
const uint8_t *phi_get_blob(struct phi_reader *reader, size_t max, size_t *size);
// get_string copies into text, always ended by 0. A longer string, or one with a zero byte inside,
// fails the reader.
void phi_get_string(struct phi_reader *reader, char *text, size_t size);

#endif
