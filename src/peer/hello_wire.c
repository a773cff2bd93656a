// SPDX-License-Identifier: BSD-3-Clause
#include "peer/hello_wire.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/wire.h"
#include "peer/target.h"

#define HELLO_MAGIC 0x484f4850u // "PHOH"

void phi_hello_encode(const struct phi_hello_words *words, struct phi_writer *writer)
{
    phi_put_u32(writer, HELLO_MAGIC);
    phi_put_u32(writer, words->version);
    phi_put_u32(writer, words->reason);
    phi_put_u64(writer, words->nonce);
    phi_put_u32(writer, words->ranks);
    phi_put_u32(writer, words->channels);
    phi_put_string(writer, words->wire.provider);
    phi_put_u32(writer, words->wire.protocol);
    phi_put_u32(writer, words->wire.protocol_version);
    phi_put_u32(writer, words->wire.immediate);
    phi_put_u32(writer, words->wire.format);
    phi_put_u32(writer, words->rails);
    phi_put_blob(writer, words->address, words->address_size);
    phi_put_u32(writer, words->stage.chunk);
    phi_put_u8(writer, words->stage.registers);
    phi_put_u64(writer, words->stage.size);
    phi_put_target(writer, &words->stage.target);
}

int phi_hello_decode(const void *bytes, size_t size, struct phi_hello_words *words)
{
    struct phi_reader reader;
    phi_reader_init(&reader, bytes, size);
    *words = (struct phi_hello_words){0};
    if (phi_get_u32(&reader) != HELLO_MAGIC)
        return -EBADMSG;
    words->version = phi_get_u32(&reader);
    words->reason = phi_get_u32(&reader);
    if (reader.error || words->version != PHI_HELLO_VERSION)
        return reader.error; // we can read no more of another version
    words->nonce = phi_get_u64(&reader);
    words->ranks = phi_get_u32(&reader);
    words->channels = phi_get_u32(&reader);
    phi_get_string(&reader, words->wire.provider, sizeof words->wire.provider);
    words->wire.protocol = phi_get_u32(&reader);
    words->wire.protocol_version = phi_get_u32(&reader);
    words->wire.immediate = phi_get_u32(&reader);
    words->wire.format = phi_get_u32(&reader);
    words->rails = phi_get_u32(&reader);
    const uint8_t *address = phi_get_blob(&reader, PHI_NET_ADDRESS_MAX, &words->address_size);
    words->stage.chunk = phi_get_u32(&reader);
    const uint8_t registers = phi_get_u8(&reader);
    words->stage.registers = registers == 1;
    words->stage.size = phi_get_u64(&reader);
    phi_get_target(&reader, &words->stage.target);
    if (reader.error || reader.at != reader.size || registers > 1)
        return -EBADMSG;
    if (words->address_size > 0)
        memcpy(words->address, address, words->address_size);
    return 0;
}

bool phi_hello_is(const void *bytes, size_t size)
{
    struct phi_reader reader;
    phi_reader_init(&reader, bytes, size);
    return phi_get_u32(&reader) == HELLO_MAGIC && !reader.error;
}
