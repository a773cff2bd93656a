// SPDX-License-Identifier: BSD-3-Clause
#include "lane/flag_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/table.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "transport/slab.h"

// A channel whose flags do not rest keeps its line, so a pair with fewer channels than these has no
// flags.
#define CHANNELS_LEAST 1024

// In the mask of what an offer tells, the lower bits are parts with records. The bits from this one
// on are parts that are not made.
#define REFUSES 8

struct phi_own_flags {
    struct phi_slab slab[PHI_FLAG_PARTS];
    bool made[PHI_FLAG_PARTS], sent[PHI_FLAG_PARTS];
    bool refused[PHI_FLAG_PARTS]; // the peer knows that there is none
    bool failed[PHI_FLAG_PARTS];  // it could not be made, and is not tried again
    bool growing;                 // a thread makes some, without the lock
};

struct phi_table_pair phi_flag_pair(const struct phi_peer *peer)
{
    const struct phi_capabilities *mine = &peer->self->mine;
    return (struct phi_table_pair){mine->device_name, peer->theirs.device_name,
                                   phi_capabilities_bus(mine, &peer->theirs)};
}

// Returns whether the pair can have flags. Two ranks on one device cannot: their waiting kernels
// would take turns of milliseconds.
static bool possible(const struct phi_peer *peer)
{
    const struct phi_self *self = peer->self;
    const struct phi_config *config = self->config;
    return self->device != NULL && peer->theirs.device && self->mine.kernels &&
           peer->theirs.kernels && !phi_capabilities_same_device(&self->mine, &peer->theirs) &&
           config->wait != PHI_WAIT_MEMORY_OPERATION && config->channels >= CHANNELS_LEAST &&
           (config->method == PHI_METHOD_AUTO || config->method == PHI_METHOD_LL ||
            config->method == PHI_METHOD_SM);
}

// Draws the lanes of a line as they are before a peer can see them. Signals may be given. One
// message by ll counts as passed, for the first one writes all of its slot.
static void draw(char *line)
{
    for (int i = 0; i < 2 * PHI_WORD_COUNT; i++) {
        const enum phi_word word = (enum phi_word)(i / 2);
        struct phi_flag_lane *lane = (struct phi_flag_lane *)(line + phi_flag_lane(0, i % 2, word));
        lane->pushed = lane->credit = lane->taken = 1;
        lane->go = lane->allowed = word == PHI_WORD_NOTE;
    }
}

static int make(struct phi_self *self, enum phi_flag_part part, int64_t deadline,
                struct phi_slab *slab)
{
    const bool lanes = part == PHI_FLAG_BASE;
    char *line = lanes ? calloc(1, PHI_FLAG_LANES) : NULL;
    if (lanes && line == NULL)
        return -ENOMEM;
    if (lanes)
        draw(line);
    const struct phi_slab_image image = {line, PHI_FLAG_LANES, lanes ? PHI_FLAG_LINES : 0,
                                         phi_flag_size(part)};
    int rc = phi_slab_open(self->memory, self->device, &image, deadline, slab);
    free(line);
    return rc;
}

int phi_flag_memory_open(struct phi_peer *peer)
{
    if (!possible(peer) || peer->flags.own != NULL)
        return 0;
    struct phi_own_flags *own = calloc(1, sizeof *own);
    if (own == NULL)
        return phi_fail(peer->self->report, -ENOMEM, "the flags for rank %d: out of memory",
                        peer->rank);
    int rc = make(peer->self, PHI_FLAG_BASE, phi_deadline(peer->self->config->deadline_ms),
                  &own->slab[PHI_FLAG_BASE]);
    if (rc == 0) {
        own->made[PHI_FLAG_BASE] = true;
        peer->flags.own = own;
        return 0;
    }
    free(own);
    phi_log(peer->self->report, PH_LOG_WARN, "no flags with rank %d: %s; its messages go by words",
            peer->rank, ph_strerror(rc));
    return 0;
}

// Returns how many lines were given back. The lower rank knows these lines, the higher one only
// their number.
static uint32_t free_lines(const struct phi_peer *peer)
{
    uint32_t channels = 0;
    if (peer->self->rank < peer->rank)
        return peer->room.lines_count;
    for (const struct ph_channel *c = peer->channels.first; c != NULL; c = c->kept.next)
        channels++;
    return peer->room.lines_used > channels ? peer->room.lines_used - channels : 0;
}

// Returns whether `more` new channels need a part. bound: some of them have buffers; only messages
// of these go by wide slots. Lines that were given back are given first, and may be any of those
// before.
static bool needs(const struct phi_peer *peer, enum phi_flag_part part, uint32_t more, bool bound)
{
    const uint32_t given_back = free_lines(peer), used = peer->room.lines_used;
    const uint32_t lines = used + (more > given_back ? more - given_back : 0);
    const uint32_t first = given_back > 0 ? 0 : used;
    switch (part) {
    case PHI_FLAG_FEW:
        return bound && first < PHI_FLAG_FEW_WIDE && lines > PHI_FLAG_BASE_WIDE;
    case PHI_FLAG_MORE:
        return bound && first < PHI_FLAG_WIDE && lines > PHI_FLAG_FEW_WIDE;
    case PHI_FLAG_MANY:
        return first < PHI_FLAG_LINES && lines > PHI_FLAG_BASE_SMALL;
    default:
        return false;
    }
}

// Returns whether a part may still be made, whatever channels there are. A peer has no flags if one
// of its offers has come without the first part. A part that the peer has told of serves nobody
// without ours.
static bool may_make(const struct phi_peer *peer, enum phi_flag_part part)
{
    const struct phi_self *self = peer->self;
    const struct phi_own_flags *own = peer->flags.own;
    if (own->made[part] || own->failed[part] ||
        self->flags.used + phi_flag_size(part) > (uint64_t)self->config->device_bytes ||
        (peer->flags.theirs[PHI_FLAG_BASE] == NULL && peer->imports.seen > 0))
        return false;
    return peer->flags.theirs[part] != NULL || part == PHI_FLAG_MANY ||
           phi_table_wide(self->flags.sizes, phi_flag_pair(peer));
}

static bool lacks(const struct phi_peer *peer, enum phi_flag_part part, uint32_t more, bool bound)
{
    return may_make(peer, part) &&
           (peer->flags.theirs[part] != NULL || needs(peer, part, more, bound));
}

bool phi_flag_memory_grows(const struct phi_peer *peer)
{
    for (int part = PHI_FLAG_BASE + 1; peer->flags.own != NULL && part < PHI_FLAG_PARTS; part++)
        if (peer->flags.own->growing || may_make(peer, (enum phi_flag_part)part))
            return true;
    return false;
}

bool phi_flag_memory_short(const struct phi_peer *peer, bool bound)
{
    for (int part = PHI_FLAG_BASE + 1; peer->flags.own != NULL && part < PHI_FLAG_PARTS; part++)
        if (lacks(peer, (enum phi_flag_part)part, 1, bound))
            return true;
    return false;
}

// Makes one part; gives up the lock.
static void add(struct phi_peer *peer, enum phi_flag_part part, int64_t deadline)
{
    struct phi_self *self = peer->self;
    struct phi_own_flags *own = peer->flags.own;
    own->growing = true;
    self->flags.used += phi_flag_size(part);
    pthread_mutex_unlock(&self->lock);
    int rc = make(self, part, deadline, &own->slab[part]);
    pthread_mutex_lock(&self->lock);
    own->growing = false;
    phi_self_changed(self);
    own->made[part] = rc == 0;
    own->failed[part] = rc != 0;
    if (rc == 0)
        return;
    self->flags.used -= phi_flag_size(part);
    phi_log(self->report, PH_LOG_WARN, "some channels with rank %d have no slots: %s", peer->rank,
            ph_strerror(rc));
}

void phi_flag_memory_grow(struct phi_peer *peer, uint32_t more, bool bound, int64_t deadline)
{
    struct phi_self *self = peer->self;
    // The peer's life may be over and reaped meanwhile.
    while (peer->flags.own != NULL && peer->flags.own->growing)
        if (phi_self_follow(self, deadline))
            return;
    for (int part = PHI_FLAG_BASE + 1; peer->flags.own != NULL && part < PHI_FLAG_PARTS; part++)
        if (lacks(peer, (enum phi_flag_part)part, more, bound))
            add(peer, (enum phi_flag_part)part, deadline);
}

static void end_theirs(struct phi_remote_export *e)
{
    if (e == NULL)
        return;
    phi_memory_import_close(e->import);
    free(e->record);
    free(e);
}

// Without the lock, or where no other thread knows the peer.
static void end_own(const struct phi_self *self, struct phi_own_flags *own)
{
    for (int part = 0; own != NULL && part < PHI_FLAG_PARTS; part++)
        if (own->made[part])
            phi_slab_close(self->device, &own->slab[part]);
    free(own);
}

// Takes the memory from the peer: the first part is no part of the budget.
static struct phi_own_flags *take_own(struct phi_peer *peer)
{
    struct phi_own_flags *own = peer->flags.own;
    peer->flags.own = NULL;
    for (int part = PHI_FLAG_BASE + 1; own != NULL && part < PHI_FLAG_PARTS; part++)
        if (own->made[part])
            peer->self->flags.used -= phi_flag_size((enum phi_flag_part)part);
    return own;
}

void phi_flag_memory_forget(struct phi_peer *peer)
{
    for (int part = 0; part < PHI_FLAG_PARTS; part++) {
        end_theirs(peer->flags.theirs[part]);
        peer->flags.theirs[part] = NULL;
        peer->flags.refused[part] = false;
    }
}

void phi_flag_memory_close(struct phi_peer *peer)
{
    phi_flag_memory_forget(peer);
    end_own(peer->self, take_own(peer));
}

bool phi_flag_memory_importing(const struct phi_peer *peer)
{
    for (int part = 0; part < PHI_FLAG_PARTS; part++)
        if (peer->flags.theirs[part] != NULL && peer->flags.theirs[part]->importing)
            return true;
    return false;
}

static bool has_theirs(const struct phi_peer *peer)
{
    for (int part = 0; part < PHI_FLAG_PARTS; part++)
        if (peer->flags.theirs[part] != NULL)
            return true;
    return false;
}

bool phi_flag_memory_reap(struct phi_peer *peer, bool blocking)
{
    struct phi_self *self = peer->self;
    const bool busy =
        phi_flag_memory_importing(peer) || (peer->flags.own != NULL && peer->flags.own->growing);
    if (busy || (peer->flags.own == NULL && !has_theirs(peer)))
        return false;
    for (struct ph_channel *c = peer->channels.first; c != NULL; c = c->kept.next)
        if (c->kept.handles > 0 || !phi_revoke_drained(c))
            return false;
    if (!blocking)
        return true;
    struct phi_remote_export *theirs[PHI_FLAG_PARTS];
    memcpy(theirs, peer->flags.theirs, sizeof theirs);
    memset(peer->flags.theirs, 0, sizeof peer->flags.theirs);
    struct phi_own_flags *own = take_own(peer);
    pthread_mutex_unlock(&self->lock);
    for (int part = 0; part < PHI_FLAG_PARTS; part++)
        end_theirs(theirs[part]);
    end_own(self, own);
    pthread_mutex_lock(&self->lock);
    return false;
}

static bool is_untold(const struct phi_own_flags *own, int part)
{
    return own != NULL && own->made[part] && !own->sent[part];
}

// The peer has told of a part, and gets no answer to it.
static bool is_refusal(const struct phi_peer *peer, int part)
{
    const struct phi_own_flags *own = peer->flags.own;
    return own != NULL && part != PHI_FLAG_BASE && peer->flags.theirs[part] != NULL &&
           !own->made[part] && !own->refused[part];
}

bool phi_flag_memory_owes(const struct phi_peer *peer)
{
    for (int part = PHI_FLAG_BASE + 1; part < PHI_FLAG_PARTS; part++)
        if (is_untold(peer->flags.own, part) || is_refusal(peer, part))
            return true;
    return false;
}

bool phi_flag_memory_awaits(const struct phi_peer *peer)
{
    const struct phi_own_flags *own = peer->flags.own;
    if (own == NULL || peer->flags.theirs[PHI_FLAG_BASE] == NULL)
        return false;
    for (int part = PHI_FLAG_BASE + 1; part < PHI_FLAG_PARTS; part++)
        if (own->sent[part] && peer->flags.theirs[part] == NULL && !peer->flags.refused[part])
            return true;
    return false;
}

// Writes how many parts there are, then the number and the record of each. The record is empty for
// a part that the peer has told of and this rank does not make.
uint32_t phi_flag_memory_encode(const struct phi_peer *peer, struct phi_writer *writer)
{
    const struct phi_own_flags *own = peer->flags.own;
    const size_t at = writer->size;
    uint32_t told = 0;
    uint8_t count = 0;
    phi_put_u8(writer, 0);
    for (int part = 0; part < PHI_FLAG_PARTS; part++) {
        const bool record = is_untold(own, part);
        if (!record && !is_refusal(peer, part))
            continue;
        const struct phi_export *export_ = &own->slab[part].export_;
        phi_put_u8(writer, (uint8_t)part);
        phi_put_blob(writer, export_->record, record ? export_->record_size : 0);
        told |= 1u << (record ? part : part + REFUSES);
        count++;
    }
    if (!writer->error)
        writer->bytes[at] = count;
    return told;
}

void phi_flag_memory_sent(struct phi_peer *peer, uint32_t parts)
{
    struct phi_own_flags *own = peer->flags.own;
    for (int part = 0; own != NULL && part < PHI_FLAG_PARTS; part++) {
        own->sent[part] = own->sent[part] || (parts & 1u << part);
        own->refused[part] = own->refused[part] || (parts & 1u << (part + REFUSES));
    }
}

// A part of another size has another meaning. A record that needs a descriptor is no part.
static int inspect(const struct phi_peer *peer, enum phi_flag_part part,
                   struct phi_remote_export *e)
{
    int rc = phi_memory_inspect(peer->self->report, e->record, e->record_size, &e->info);
    if (rc == 0 && (e->info.needs_fd || e->info.allocation.kind != PHI_KIND_CUDA ||
                    e->info.allocation.size != phi_flag_size(part)))
        rc = -EBADMSG;
    return rc;
}

static int file_one(struct phi_peer *peer, struct phi_reader *reader)
{
    const uint8_t part = phi_get_u8(reader);
    size_t size;
    const uint8_t *record = phi_get_blob(reader, PHI_EXPORT_MAX, &size);
    if (reader->error || part >= PHI_FLAG_PARTS)
        return reader->error ? reader->error : -EBADMSG;
    if (size == 0)
        peer->flags.refused[part] = true;
    if (size == 0 || peer->flags.theirs[part] != NULL)
        return 0; // the latter: told before
    struct phi_remote_export *e = calloc(1, sizeof *e);
    uint8_t *copy = malloc(size);
    int rc = e && copy ? 0 : -ENOMEM;
    if (rc == 0) {
        memcpy(copy, record, size);
        *e = (struct phi_remote_export){
            .peer = peer, .id = UINT32_MAX - part, .record = copy, .record_size = size};
        rc = inspect(peer, (enum phi_flag_part)part, e);
    }
    if (rc) {
        free(copy);
        free(e);
        return rc;
    }
    peer->flags.theirs[part] = e;
    return 0;
}

int phi_flag_memory_file(struct phi_peer *peer, struct phi_reader *reader)
{
    int rc = 0;
    for (uint8_t count = phi_get_u8(reader); count > 0 && rc == 0; count--)
        rc = file_one(peer, reader);
    return rc ? rc : reader->error;
}

struct phi_remote_export *phi_flag_memory_wanted(const struct phi_peer *peer)
{
    const struct phi_own_flags *own = peer->flags.own;
    for (int part = 0; own != NULL && part < PHI_FLAG_PARTS; part++)
        if (own->made[part] && peer->flags.theirs[part] != NULL && !peer->flags.theirs[part]->tried)
            return peer->flags.theirs[part];
    return NULL;
}

uint32_t phi_flag_memory_usable(const struct phi_peer *peer)
{
    const struct phi_own_flags *own = peer->flags.own;
    uint32_t parts = 0;
    for (int part = 0; own != NULL && part < PHI_FLAG_PARTS; part++)
        if (own->sent[part] && peer->flags.theirs[part] != NULL &&
            peer->flags.theirs[part]->import != NULL)
            parts |= 1u << part;
    return parts & 1u << PHI_FLAG_BASE ? parts : 0;
}

// base: the addresses of the parts. Only those parts are read in which the line has something.
static struct phi_flag_end end_of(const uint64_t *base, uint32_t line, bool wide)
{
    struct phi_flag_end end = {.lanes = base[PHI_FLAG_BASE]};
    for (int word = 0; word < PHI_WORD_COUNT; word++)
        end.slots[word] =
            base[phi_flag_slots_part(line)] + phi_flag_slots(line, (enum phi_word)word);
    if (wide)
        end.wide = base[phi_flag_wide_part(line)] + phi_flag_wide_slots(line);
    return end;
}

struct phi_flag_end phi_flag_memory_own(const struct phi_peer *peer, uint32_t line, bool wide)
{
    // Another thread may make a part just now, without the lock.
    const struct phi_own_flags *own = peer->flags.own;
    uint64_t base[PHI_FLAG_PARTS] = {0};
    for (int part = 0; part < PHI_FLAG_PARTS; part++)
        if (own->made[part])
            base[part] = (uint64_t)(uintptr_t)own->slab[part].address;
    return end_of(base, line, wide);
}

struct phi_flag_end phi_flag_memory_peer(const struct phi_peer *peer, uint32_t line, bool wide)
{
    uint64_t base[PHI_FLAG_PARTS] = {0};
    for (int part = 0; part < PHI_FLAG_PARTS; part++)
        if (peer->flags.theirs[part] != NULL && peer->flags.theirs[part]->import != NULL)
            base[part] = (uint64_t)(uintptr_t)peer->flags.theirs[part]->import->address;
    return end_of(base, line, wide);
}
