// SPDX-License-Identifier: BSD-3-Clause
#include "exchange/offer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "cuda/kernel_args.h"
#include "lane/flag_memory.h"
#include "lane/flags.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/target.h"
#include "release/imports.h"
#include "transport/bounce.h"

// The region of an allocation over the net, behind a flag.
static void encode_target(struct phi_peer *peer, uint32_t id, struct phi_writer *writer)
{
    struct phi_net_target target;
    bool has = peer->to.link != NULL && phi_link_target(peer->to.link, id, &target);
    phi_put_u8(writer, has);
    if (has)
        phi_put_target(writer, &target);
}

static bool decode_target(struct phi_reader *reader, struct phi_net_target *target)
{
    *target = (struct phi_net_target){0};
    if (phi_get_u8(reader) == 0)
        return false;
    phi_get_target(reader, target);
    return true;
}

static void encode_exports(struct phi_peer *peer, const struct phi_descriptor *descriptors,
                           size_t n, struct phi_writer *writer)
{
    size_t at = writer->size;
    uint32_t count = 0;
    uint32_t last = UINT32_MAX; // neighbours mostly share one allocation
    phi_put_u32(writer, 0);
    for (size_t i = 0; i < n; i++) {
        struct phi_local_export *e =
            phi_key_mine(descriptors[i].key, descriptors[i].number)->export_;
        if (e->id == last || e->sent[peer->rank])
            continue;
        last = e->id;
        phi_put_u32(writer, e->id);
        phi_put_blob(writer, e->export_.record, e->export_.record_size);
        encode_target(peer, e->id, writer);
        count++;
    }
    phi_patch_u32(writer, at, count);
}

int phi_offer_encode(struct phi_peer *peer, const struct phi_descriptor *descriptors, size_t n,
                     struct phi_writer *writer, uint32_t *parts)
{
    phi_put_u32(writer, PHI_OFFER_MAGIC);
    phi_put_u32(writer, PHI_OFFER_VERSION);
    *parts = phi_flag_memory_encode(peer, writer);
    encode_exports(peer, descriptors, n, writer);
    phi_put_u32(writer, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        const struct phi_key *key = descriptors[i].key;
        struct phi_own_buffer *own = phi_key_mine(key, descriptors[i].number);
        own->told = true;
        // Exports are registered before they are first offered, and no more afterwards.
        struct phi_net_target target;
        own->region =
            peer->to.link != NULL && phi_link_target(peer->to.link, own->export_->id, &target);
        phi_put_u64(writer, key->op_id);
        phi_put_u8(writer, key->role);
        // Only the lower rank names slots; a message of the higher one says nothing of them.
        bool names = peer->self->rank < peer->rank;
        phi_put_u32(writer, names ? key->slot : PHI_NO_SLOT);
        phi_put_u32(writer, names ? peer->keys.slot_lives[key->slot] : 0);
        phi_put_u32(writer, descriptors[i].number);
        phi_put_u32(writer, own->export_->id);
        phi_put_u64(writer, own->offset);
        phi_put_u64(writer, own->size);
        phi_put_u8(writer, own->protocol);
        const struct phi_flag_table table = phi_flags_table(peer, &own->limits);
        phi_put_u64(writer, table.ll_max);
        phi_put_u64(writer, table.sm_max);
        phi_put_u8(writer, own->unbound);
        phi_put_u8(writer, own->zero_sm);
    }
    return writer->error;
}

void phi_offer_sent(struct phi_peer *peer, const struct phi_descriptor *descriptors, size_t n,
                    uint32_t parts)
{
    phi_flag_memory_sent(peer, parts);
    for (size_t i = 0; i < n; i++) {
        struct phi_own_buffer *own = phi_key_mine(descriptors[i].key, descriptors[i].number);
        own->offered = true;
        // The lock was given up: a later life may have taken its place, which was sent nothing.
        if (peer->self->table[peer->rank] == peer)
            own->export_->sent[peer->rank] = 1;
    }
}

static bool take_gone(struct phi_peer *peer, uint32_t id)
{
    for (uint32_t i = 0; i < peer->imports.ended_count; i++) {
        if (peer->imports.ended_unread[i] != id)
            continue;
        peer->imports.ended_unread[i] = peer->imports.ended_unread[--peer->imports.ended_count];
        return true;
    }
    return false;
}

static int add_export(struct phi_peer *peer, uint32_t id, const uint8_t *record, size_t size,
                      const struct phi_net_target *target)
{
    if (id >= peer->imports.seen && id < UINT32_MAX)
        peer->imports.seen = id + 1;
    if (phi_imports_find(peer, id) != NULL || take_gone(peer, id))
        return 0; // told before, or it has ended meanwhile
    struct phi_remote_export *e = calloc(1, sizeof *e);
    if (e == NULL)
        return -ENOMEM;
    e->peer = peer;
    e->id = id;
    e->has_target = target != NULL;
    if (target != NULL)
        e->target = *target;
    e->record = malloc(size ? size : 1);
    int rc = e->record ? 0 : -ENOMEM;
    if (rc == 0) {
        memcpy(e->record, record, size);
        e->record_size = size;
        rc = phi_memory_inspect(peer->self->report, record, size, &e->info);
    }
    if (rc == 0)
        rc = phi_map_insert(&peer->imports.all, phi_hash(id, 1), e);
    if (rc) {
        free(e->record);
        free(e);
    }
    return rc;
}

static int file_exports(struct phi_peer *peer, struct phi_reader *reader)
{
    uint32_t count = phi_get_u32(reader);
    for (uint32_t i = 0; i < count && !reader->error; i++) {
        uint32_t id = phi_get_u32(reader);
        size_t size;
        const uint8_t *record = phi_get_blob(reader, PHI_EXPORT_MAX, &size);
        struct phi_net_target target;
        bool has = decode_target(reader, &target);
        if (reader->error)
            break;
        int rc = add_export(peer, id, record, size, has ? &target : NULL);
        if (rc)
            return rc;
    }
    return reader->error;
}

static int file_descriptor(struct phi_peer *peer, struct phi_reader *reader)
{
    uint64_t op_id = phi_get_u64(reader);
    uint8_t role = phi_get_u8(reader);
    uint32_t slot = phi_get_u32(reader);
    uint32_t life = phi_get_u32(reader);
    struct phi_peer_buffer buffer = {.number = phi_get_u32(reader)};
    uint32_t export_id = phi_get_u32(reader);
    buffer.offset = phi_get_u64(reader);
    buffer.size = phi_get_u64(reader);
    buffer.protocol = phi_get_u8(reader);
    buffer.table.ll_max = phi_get_u64(reader);
    buffer.table.sm_max = phi_get_u64(reader);
    buffer.unbound = phi_get_u8(reader) != 0;
    buffer.zero_sm = phi_get_u8(reader) != 0;
    if (reader->error)
        return reader->error;
    // One slot's worth: what takes several would need the taker's help half-way, which may stand
    // behind a push of its own.
    if (buffer.table.ll_max > PHI_WIDE_PIECE)
        buffer.table.ll_max = PHI_WIDE_PIECE;
    if (role < PH_ROLE_SENDER || role > PH_ROLE_BOTH || buffer.protocol < PH_PROTOCOL_PUT ||
        buffer.protocol > PH_PROTOCOL_GET)
        return -EBADMSG;
    // A bounce buffer has an area for us, into which we copy.
    if (buffer.unbound && (buffer.zero_sm || buffer.protocol != PH_PROTOCOL_PUT ||
                           !phi_bounce_is(buffer.offset, buffer.size)))
        return -EBADMSG;
    const bool names = slot != PHI_NO_SLOT && peer->rank < peer->self->rank;
    if (names && slot >= (uint32_t)peer->self->config->channels)
        return -EBADMSG;
    buffer.export_ = phi_imports_find(peer, export_id);
    buffer.released = buffer.export_ == NULL;
    if (buffer.released && export_id >= peer->imports.seen)
        return -EBADMSG;
    // A late offer may name an export, or a life of the slot, that has ended meanwhile. Such an
    // offer offers nothing. But if it names a slot, the round of the slot may be open, and we end
    // the round there.
    if (buffer.released && !names)
        return 0;
    // A buffer must lie inside its allocation, or we would map and write what the peer does not
    // own.
    uint64_t size = buffer.released ? UINT64_MAX : buffer.export_->info.allocation.size;
    if (buffer.size == 0 || buffer.offset > size || buffer.size > size - buffer.offset)
        return -EBADMSG;
    if (names && !phi_peer_slots_grow(peer, slot))
        return -ENOMEM;
    if (names && life <= peer->keys.slot_lives[slot])
        return 0;
    int rc = 0;
    struct phi_key *key = phi_key_get(peer, op_id, phi_role_opposite(role), &rc);
    if (key == NULL)
        return rc;
    if (names && key->slot == PHI_NO_SLOT && (rc = phi_key_set_slot(key, slot)))
        return rc;
    return phi_key_tell(key, &buffer);
}

int phi_offer_file(struct phi_peer *peer, const void *bytes, size_t size)
{
    struct phi_reader reader;
    phi_reader_init(&reader, bytes, size);
    if (phi_get_u32(&reader) != PHI_OFFER_MAGIC || phi_get_u32(&reader) != PHI_OFFER_VERSION)
        return -EBADMSG;
    int rc = phi_flag_memory_file(peer, &reader);
    if (rc == 0)
        rc = file_exports(peer, &reader);
    if (rc)
        return rc;
    uint32_t count = phi_get_u32(&reader);
    for (uint32_t i = 0; i < count && rc == 0; i++)
        rc = file_descriptor(peer, &reader);
    if (rc == 0 && (reader.error || reader.at != reader.size))
        rc = -EBADMSG;
    return rc;
}
