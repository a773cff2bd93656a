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

static uint32_t encode_exports_of(struct phi_peer *peer, struct phi_own_buffer *own, uint64_t offer,
                                  struct phi_writer *writer)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < own->range_count; i++) {
        struct phi_local_export *e = phi_own_range(own, i)->export_;
        if (e->offer == offer || e->sent[peer->rank])
            continue;
        e->offer = offer;
        phi_put_u32(writer, e->id);
        phi_put_blob(writer, e->export_.record, e->export_.record_size);
        encode_target(peer, e->id, writer);
        count++;
    }
    return count;
}

static void encode_exports(struct phi_peer *peer, const struct phi_descriptor *descriptors,
                           size_t n, struct phi_writer *writer)
{
    const uint64_t offer = ++peer->self->exports.offers;
    size_t at = writer->size;
    uint32_t count = 0;
    phi_put_u32(writer, 0);
    for (size_t i = 0; i < n; i++)
        count += encode_exports_of(peer, phi_key_mine(descriptors[i].key, descriptors[i].number),
                                   offer, writer);
    phi_patch_u32(writer, at, count);
}

static void encode_ranges(struct phi_own_buffer *own, struct phi_writer *writer)
{
    phi_put_u32(writer, own->range_count);
    for (uint32_t i = 0; i < own->range_count; i++) {
        const struct phi_own_range *range = phi_own_range(own, i);
        phi_put_u32(writer, range->export_->id);
        phi_put_u64(writer, range->offset);
        phi_put_u64(writer, range->size);
    }
}

// Exports are registered before they are first offered, and no more afterwards.
static bool has_region(const struct phi_peer *peer, struct phi_own_buffer *own)
{
    struct phi_net_target target;
    for (uint32_t i = 0; i < own->range_count; i++)
        if (peer->to.link == NULL ||
            !phi_link_target(peer->to.link, phi_own_range(own, i)->export_->id, &target))
            return false;
    return true;
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
        own->region = has_region(peer, own);
        phi_put_u64(writer, key->op_id);
        phi_put_u8(writer, key->role);
        // Only the lower rank names slots; a message of the higher one says nothing of them.
        bool names = peer->self->rank < peer->rank;
        phi_put_u32(writer, names ? key->slot : PHI_NO_SLOT);
        phi_put_u32(writer, names ? peer->keys.slot_lives[key->slot] : 0);
        phi_put_u32(writer, descriptors[i].number);
        encode_ranges(own, writer);
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
        for (uint32_t j = 0; peer->self->table[peer->rank] == peer && j < own->range_count; j++)
            phi_own_range(own, j)->export_->sent[peer->rank] = 1;
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

// A range must lie inside its allocation, or we would map and write what the peer does not own. All
// ranges of a buffer are host memory, or none is.
static bool is_range_valid(const struct phi_peer_buffer *buffer, const struct phi_peer_range *range)
{
    const struct phi_remote_export *e = range->export_, *first = buffer->ranges.first.export_;
    const uint64_t most = e == NULL ? UINT64_MAX : e->info.allocation.size;
    if (range->size == 0 || range->offset > most || range->size > most - range->offset ||
        buffer->size > UINT64_MAX - range->size)
        return false;
    return e == NULL || first == NULL ||
           (e->info.allocation.kind == PHI_KIND_HOST) ==
               (first->info.allocation.kind == PHI_KIND_HOST);
}

static int read_range(struct phi_peer *peer, struct phi_reader *reader,
                      struct phi_peer_buffer *buffer, struct phi_peer_range *range)
{
    const uint32_t id = phi_get_u32(reader);
    range->offset = phi_get_u64(reader);
    range->size = phi_get_u64(reader);
    if (reader->error)
        return reader->error;
    range->export_ = phi_imports_find(peer, id);
    if (range->export_ == NULL && id >= peer->imports.seen)
        return -EBADMSG;
    if (!is_range_valid(buffer, range))
        return -EBADMSG;
    buffer->size += range->size;
    buffer->released = buffer->released || range->export_ == NULL;
    return 0;
}

// Reads the list of a buffer's ranges. On failure the buffer has no memory.
static int read_ranges(struct phi_peer *peer, struct phi_reader *reader,
                       struct phi_peer_buffer *buffer)
{
    struct phi_peer_ranges *ranges = &buffer->ranges;
    const uint32_t count = phi_get_u32(reader);
    if (reader->error)
        return reader->error;
    if (count == 0 || count > PHI_RANGES_MAX)
        return -EBADMSG;
    ranges->count = count;
    if (count > 1 && (ranges->rest = calloc(count - 1, sizeof *ranges->rest)) == NULL)
        return -ENOMEM;
    int rc = 0;
    for (uint32_t i = 0; i < count && rc == 0; i++)
        rc = read_range(peer, reader, buffer, phi_peer_range(ranges, i));
    if (rc) {
        free(ranges->rest);
        ranges->rest = NULL;
    }
    return rc;
}

// The part of a descriptor behind its ranges.
static int read_settings(struct phi_reader *reader, struct phi_peer_buffer *buffer)
{
    buffer->protocol = phi_get_u8(reader);
    buffer->table.ll_max = phi_get_u64(reader);
    buffer->table.sm_max = phi_get_u64(reader);
    buffer->unbound = phi_get_u8(reader) != 0;
    buffer->zero_sm = phi_get_u8(reader) != 0;
    if (reader->error)
        return reader->error;
    // One slot's worth: what takes several would need the taker's help half-way, which may stand
    // behind a push of its own.
    if (buffer->table.ll_max > PHI_WIDE_PIECE)
        buffer->table.ll_max = PHI_WIDE_PIECE;
    if (buffer->protocol < PH_PROTOCOL_PUT || buffer->protocol > PH_PROTOCOL_GET)
        return -EBADMSG;
    // A bounce buffer has an area for us, into which we copy.
    if (buffer->unbound &&
        (buffer->zero_sm || buffer->protocol != PH_PROTOCOL_PUT || buffer->ranges.count > 1 ||
         !phi_bounce_is(buffer->ranges.first.offset, buffer->size)))
        return -EBADMSG;
    return 0;
}

// The part of a descriptor before its buffer's number.
struct name {
    uint64_t op_id;
    uint8_t role;
    uint32_t slot, life;
};

static int file_buffer(struct phi_peer *peer, const struct name *name,
                       struct phi_peer_buffer *buffer)
{
    const bool names = name->slot != PHI_NO_SLOT && peer->rank < peer->self->rank;
    int rc = 0;
    struct phi_key *key = NULL;
    if (names && name->slot >= (uint32_t)peer->self->config->channels)
        rc = -EBADMSG;
    else if (names && !phi_peer_slots_grow(peer, name->slot))
        rc = -ENOMEM;
    // A late offer may name an export, or a life of the slot, that has ended meanwhile. Such an
    // offer offers nothing. But if it names a slot, the round of the slot may be open, and we end
    // the round there.
    if (rc || (names ? name->life <= peer->keys.slot_lives[name->slot] : buffer->released))
        goto drop;
    key = phi_key_get(peer, name->op_id, phi_role_opposite(name->role), &rc);
    if (key != NULL && names && key->slot == PHI_NO_SLOT)
        rc = phi_key_set_slot(key, name->slot);
    if (key != NULL && rc == 0)
        return phi_key_tell(key, buffer);
drop:
    free(buffer->ranges.rest);
    return rc;
}

static int file_descriptor(struct phi_peer *peer, struct phi_reader *reader)
{
    struct name name = {.op_id = phi_get_u64(reader)};
    name.role = phi_get_u8(reader);
    name.slot = phi_get_u32(reader);
    name.life = phi_get_u32(reader);
    struct phi_peer_buffer buffer = {.number = phi_get_u32(reader)};
    int rc = read_ranges(peer, reader, &buffer);
    if (rc)
        return rc;
    rc = read_settings(reader, &buffer);
    if (rc == 0 && (name.role < PH_ROLE_SENDER || name.role > PH_ROLE_BOTH))
        rc = -EBADMSG;
    if (rc == 0)
        return file_buffer(peer, &name, &buffer);
    free(buffer.ranges.rest);
    return rc;
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
