// SPDX-License-Identifier: BSD-3-Clause
#include "store/envelope.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/wire.h"

static const uint32_t envelope_magic = 0x4d504850; // "PHPM" in the store

uint8_t *phi_envelope_encode(const struct phi_envelope *envelope, const void *payload, size_t size)
{
    struct phi_writer writer = {0};
    phi_put_u32(&writer, envelope_magic);
    phi_put_u16(&writer, PHI_ENVELOPE_VERSION);
    phi_put_u16(&writer, (uint16_t)envelope->kind);
    phi_put_u32(&writer, envelope->source);
    phi_put_u32(&writer, envelope->destination);
    phi_put_u64(&writer, envelope->source_incarnation);
    phi_put_u64(&writer, envelope->destination_incarnation);
    phi_put_u64(&writer, envelope->sequence);
    phi_put_u64(&writer, size);
    phi_put_bytes(&writer, payload, size);
    if (writer.error) {
        phi_writer_fini(&writer);
        return NULL;
    }
    return writer.bytes;
}

static int check_addresses(const struct phi_envelope *envelope)
{
    if (envelope->source_incarnation == 0)
        return -EBADMSG;
    if (envelope->kind == PHI_ENVELOPE_MEMBER)
        return envelope->destination == PHI_ENVELOPE_ALL && envelope->sequence == 0 ? 0 : -EBADMSG;
    if (envelope->kind != PHI_ENVELOPE_MESSAGE && envelope->kind != PHI_ENVELOPE_VOID)
        return -EBADMSG;
    return envelope->sequence > 0 ? 0 : -EBADMSG;
}

int phi_envelope_decode(struct phi_envelope *envelope, const uint8_t *bytes, size_t size)
{
    struct phi_reader reader;
    phi_reader_init(&reader, bytes, size);
    if (phi_get_u32(&reader) != envelope_magic)
        return -EBADMSG;
    uint16_t version = phi_get_u16(&reader);
    if (reader.error)
        return -EBADMSG;
    if (version != PHI_ENVELOPE_VERSION)
        return -EPROTONOSUPPORT;
    struct phi_envelope read = {.kind = phi_get_u16(&reader)};
    read.source = phi_get_u32(&reader);
    read.destination = phi_get_u32(&reader);
    read.source_incarnation = phi_get_u64(&reader);
    read.destination_incarnation = phi_get_u64(&reader);
    read.sequence = phi_get_u64(&reader);
    uint64_t length = phi_get_u64(&reader);
    if (reader.error || length != size - PHI_ENVELOPE_SIZE)
        return -EBADMSG;
    int result = check_addresses(&read);
    if (result == 0)
        *envelope = read;
    return result;
}
