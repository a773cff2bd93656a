// SPDX-License-Identifier: BSD-3-Clause
#include "lane/staging.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/stage.h"
#include "net/staging.h"
#include "peer/channel.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "semaphore/segment.h"

#define UNIT     64
#define SMALL    ((uint32_t)16 << 10) // up to here one block does a record alone
#define WIDE_MAX 16                   // channels of a context with several blocks for a record
#define CONTROLS ((size_t)4 * sizeof(struct phi_stage_lane))

// ---- room: what is taken of a piece of memory, by growing addresses

struct range {
    uint64_t begin, end;
};

struct room {
    struct range *taken;
    size_t count, capacity;
    uint64_t size;
};

static bool room_take(struct room *room, uint64_t size, uint64_t *at)
{
    uint64_t begin = 0;
    size_t i = 0;
    while (i < room->count && room->taken[i].begin - begin < size)
        begin = room->taken[i++].end;
    if (i == room->count && room->size - begin < size)
        return false;
    struct range *grown =
        phi_array_grow(room->taken, room->count, &room->capacity, sizeof *room->taken);
    if (grown == NULL)
        return false;
    room->taken = grown;
    memmove(&grown[i + 1], &grown[i], (room->count++ - i) * sizeof *grown);
    grown[i] = (struct range){begin, begin + size};
    *at = begin;
    return true;
}

static void room_give(struct room *room, uint64_t at)
{
    for (size_t i = 0; i < room->count; i++) {
        if (room->taken[i].begin != at)
            continue;
        memmove(&room->taken[i], &room->taken[i + 1], (--room->count - i) * sizeof *room->taken);
        return;
    }
}

// ---- the pair's memory: one half is filled here, the other the peer writes. A channel has the
// same place in all four halves, which the lower rank gives it

struct phi_staging {
    struct room room;             // the lower rank's
    struct phi_net_target target; // of `in`
    bool registers;               // both ranks register their memory
    uint32_t chunk;               // most bytes of a record: by this end, then by both
};

bool phi_staged(const struct phi_capabilities *mine, const struct phi_capabilities *theirs)
{
    return mine->device || theirs->device;
}

static bool is_staged(const struct phi_peer *peer)
{
    return phi_staged(&peer->self->mine, &peer->theirs);
}

size_t phi_staging_bytes(const struct phi_peer *peer)
{
    return is_staged(peer) ? (size_t)peer->self->config->net_staging / 65536 * 65536 : 0;
}

static char *out_of(const struct phi_peer *peer)
{
    return peer->segment->staging;
}

static char *in_of(const struct phi_peer *peer)
{
    return (char *)peer->segment->staging + peer->segment->staging_size / 2;
}

static int register_all(struct phi_peer *peer, struct phi_staging *staging)
{
    const struct phi_staging_params params = {.out = out_of(peer),
                                              .in = in_of(peer),
                                              .out_size = staging->room.size,
                                              .in_size = staging->room.size,
                                              .side = peer->segment->side};
    int rc = phi_segment_register(peer->segment, peer->self->device);
    return rc ? rc : phi_link_stage(peer->to.link, &params, &staging->target);
}

int phi_staging_open(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    if (!is_staged(peer) || peer->to.link == NULL || peer->staging != NULL)
        return 0;
    struct phi_staging *staging = calloc(1, sizeof *staging);
    if (staging == NULL)
        return phi_fail(self->report, -ENOMEM, "out of memory for rank %d", peer->rank);
    staging->room.size = peer->segment->staging_size / 2;
    const uint64_t most = phi_net_chunk(self->net.net), wish = (uint64_t)self->config->net_chunk;
    staging->chunk = (uint32_t)(wish < most ? wish : most) / UNIT * UNIT;
    pthread_mutex_unlock(&self->lock);
    int rc = register_all(peer, staging);
    pthread_mutex_lock(&self->lock);
    if (rc) {
        free(staging);
        return rc;
    }
    peer->staging = staging;
    return 0;
}

void phi_staging_free(struct phi_peer *peer)
{
    if (peer->staging == NULL)
        return;
    free(peer->staging->room.taken);
    free(peer->staging);
    peer->staging = NULL;
}

struct phi_stage_words phi_staging_words(const struct phi_peer *peer)
{
    const struct phi_staging *staging = peer->staging;
    if (staging == NULL)
        return (struct phi_stage_words){0};
    return (struct phi_stage_words){.chunk = staging->chunk,
                                    .registers = phi_way_registers(&peer->self->net.way),
                                    .size = staging->room.size,
                                    .target = staging->target};
}

int phi_staging_connect(struct phi_peer *peer, const struct phi_stage_words *theirs)
{
    struct phi_staging *staging = peer->staging;
    if (staging == NULL)
        return 0;
    if (theirs->chunk < UNIT || theirs->chunk % UNIT != 0)
        return phi_fail(peer->self->report, -EBADMSG, "rank %d takes records of %u bytes",
                        peer->rank, theirs->chunk);
    if (staging->chunk > theirs->chunk)
        staging->chunk = theirs->chunk;
    if (staging->room.size > theirs->size)
        staging->room.size = theirs->size;
    staging->registers = theirs->registers && phi_way_registers(&peer->self->net.way);
    return phi_link_stage_peer(peer->to.link, &theirs->target);
}

bool phi_staging_may_register(const struct phi_peer *peer)
{
    return peer->staging == NULL || peer->staging->registers;
}

bool phi_staging_registered(const struct phi_key *key)
{
    const struct phi_own_buffer *own = phi_key_mine(key, key->agreement.mine);
    const struct phi_peer_buffer *theirs = phi_key_theirs(key, key->agreement.theirs);
    // The data of an unbound channel may lie anywhere, in memory that is not registered.
    return phi_staging_may_register(key->peer) && own->region && !own->unbound &&
           theirs->ranges.first.export_ != NULL && theirs->ranges.first.export_->has_target;
}

// ---- places

// A message takes as few records as possible. Each record costs both nets and the kernels some 10
// us, in which no byte moves. That is more than is lost where copies and the net do not overlap.
static uint32_t chunk_of(const struct phi_staging *staging, uint64_t mine, uint64_t theirs)
{
    const uint64_t size = mine < theirs ? mine : theirs;
    const uint64_t chunk = (size + UNIT - 1) / UNIT * UNIT;
    return chunk < staging->chunk ? (uint32_t)chunk : staging->chunk;
}

static uint64_t slots_size(uint32_t chunk)
{
    return (uint64_t)PHI_STAGE_SLOTS * (PHI_STAGE_HEAD + chunk);
}

// Returns the most bytes of a record. A bell lane holds no data, so it has 0.
static uint32_t chunk_now(const struct phi_key *key)
{
    if (phi_staging_registered(key))
        return 0;
    return chunk_of(key->peer->staging, phi_key_mine(key, key->agreement.mine)->size,
                    phi_key_theirs(key, key->agreement.theirs)->size);
}

// Returns the size of a channel's place: two lanes each way. Only the half that is filled here has
// controls.
static uint64_t place_size(uint32_t chunk)
{
    return CONTROLS + PHI_WORD_COUNT * slots_size(chunk);
}

static void give_place(struct phi_peer *peer, struct phi_stage_place *place)
{
    if (peer->staging == NULL || place->size == 0)
        return;
    room_give(&peer->staging->room, place->at);
    place->size = 0;
    peer->room.slots_short = false;
}

static bool has_direction(uint8_t role, int outgoing)
{
    return (role & (outgoing ? PH_ROLE_SENDER : PH_ROLE_RECEIVER)) != 0;
}

static void close_lanes(struct phi_stage_place *place)
{
    for (int i = 0; i < 2 * PHI_WORD_COUNT; i++) {
        phi_lane_close(place->lane[i / PHI_WORD_COUNT][i % PHI_WORD_COUNT]);
        place->lane[i / PHI_WORD_COUNT][i % PHI_WORD_COUNT] = NULL;
    }
}

static bool make_lanes(struct phi_stage_place *place, uint8_t role)
{
    bool made = true;
    for (int i = 0; i < 2 * PHI_WORD_COUNT; i++) {
        struct phi_lane **lane = &place->lane[i / PHI_WORD_COUNT][i % PHI_WORD_COUNT];
        if (has_direction(role, i / PHI_WORD_COUNT) && *lane == NULL)
            *lane = phi_lane_make();
        made = made && (*lane != NULL || !has_direction(role, i / PHI_WORD_COUNT));
    }
    return made;
}

bool phi_staging_make(struct phi_key *key)
{
    if (key->peer->staging == NULL || make_lanes(&key->made.place, key->role))
        return true;
    close_lanes(&key->made.place);
    return false;
}

bool phi_staging_reserve(struct phi_key *key)
{
    struct phi_peer *peer = key->peer;
    struct phi_segment *segment = peer->segment;
    struct phi_stage_place *place = &key->made.place;
    if (peer->staging == NULL)
        return true;
    const uint64_t size = place_size(chunk_now(key));
    if (place->size == size)
        return true;
    give_place(peer, place);
    if (!room_take(&peer->staging->room, size, &place->at))
        return false;
    place->size = size;
    phi_segment_put64(segment, &phi_segment_slot(segment, segment->side, key->slot)->staging,
                      place->at);
    return true;
}

void phi_staging_give_back(struct phi_peer *peer, struct phi_stage_place *place)
{
    close_lanes(place);
    give_place(peer, place);
}

// ---- channels

static bool is_busy(void *opaque)
{
    struct ph_channel *channel = opaque;
    struct phi_executor *executor = channel->self->executor;
    return !executor->ops->drained(executor, &channel->live.uses, NULL, 0) ||
           !executor->ops->drained(executor, &channel->peer->channels.late, NULL, 0);
}

static uint64_t seen(const struct phi_segment *segment, const void *address)
{
    const uint64_t device = phi_segment_device_address(segment, address);
    return device ? device : (uint64_t)(uintptr_t)address;
}

static void open_lane(struct ph_channel *channel, int outgoing, int word)
{
    struct phi_stage_end *end = &channel->fixed.stage;
    const struct phi_peer *peer = channel->peer;
    // The slots of bells are all where the peer cannot write.
    const int nth = end->bells ? outgoing : word;
    const uint64_t slots =
        end->place.at + CONTROLS + (uint64_t)nth * slots_size(PHI_STAGE_CHUNK(end->like));
    struct phi_stage_lane *control =
        (struct phi_stage_lane *)(out_of(peer) + end->place.at) + (outgoing ? 2 : 0) + word;
    uint8_t *memory = (uint8_t *)(outgoing || end->bells ? out_of(peer) : in_of(peer)) + slots;
    const struct phi_lane_params params = {
        .line = channel->fixed.index,
        .life = channel->fixed.life,
        .word = (uint8_t)word,
        .outgoing = outgoing != 0,
        .like = end->like,
        .control = control,
        .slots = memory,
        .offset = slots,
        .route = end->bells ? &channel->fixed.route : NULL,
        .local = channel->fixed.own.address,
        .local_size = channel->fixed.own.size,
        .broken = &channel->fixed.own.line->broken,
        .undone = &channel->fixed.own.line->undone,
        .busy = is_busy,
        .opaque = channel,
    };
    memset(control, 0, sizeof *control); // no line of the first 16 records has the number 0
    end->control[outgoing][word] = control;
    end->slots[outgoing][word] = memory;
    end->control_seen[outgoing][word] = seen(peer->segment, control);
    end->slots_seen[outgoing][word] = seen(peer->segment, memory);
    phi_lane_open(end->place.lane[outgoing][word], peer->to.link, &params);
}

// Finds the place that the lower rank gave the channel. The lower rank told it before its confirm,
// which was acquired. A place outside the memory counts as none.
static bool find_place(struct phi_key *key, uint32_t chunk, struct phi_stage_place *place)
{
    const struct phi_peer *peer = key->peer;
    const struct phi_segment *segment = peer->segment;
    const uint64_t most = peer->staging->room.size, size = place_size(chunk);
    *place = key->made.place;
    key->made.place = (struct phi_stage_place){0};
    if (peer->self->rank < peer->rank)
        return true;
    place->at = atomic_load_explicit(&phi_segment_slot(segment, !segment->side, key->slot)->staging,
                                     memory_order_relaxed);
    return size <= most && place->at <= most - size && place->at % UNIT == 0;
}

// Data that comes into memory of the device shows only when it is flushed.
static void flush_here(const struct ph_channel *channel, const struct phi_key *key)
{
    const uint32_t id = phi_key_mine(key, channel->fixed.own.number)->first.export_->id;
    phi_link_flushes(channel->peer->to.link, channel->fixed.index,
                     channel->fixed.own.kind == PHI_KIND_HOST ? PHI_HOST_MEMORY : id);
}

// Several blocks make a record sooner. But each block may wait for long, and so may the blocks of
// 64 streams (PEERHOP_KERNEL_WAITS). With WIDE_MAX such channels at most, the waiting blocks leave
// room on small devices, too. The channels that come first are served first.
static bool may_be_wide(struct phi_self *self, uint32_t chunk)
{
    return self->device != NULL && chunk > SMALL &&
           atomic_load(&self->issuing.wide_channels) < WIDE_MAX;
}

bool phi_staging_begin(struct ph_channel *channel, struct phi_key *key)
{
    struct phi_stage_end *end = &channel->fixed.stage;
    if (key->peer->staging == NULL)
        return true;
    const uint32_t chunk = chunk_now(key);
    if (!find_place(key, chunk, &end->place))
        return false;
    end->bells = chunk == 0 && channel->self->device != NULL;
    end->is = chunk > 0 || end->bells;
    end->wide = may_be_wide(channel->self, chunk);
    end->like = PHI_STAGE_LIKE(chunk, end->wide ? PHI_STAGE_BLOCKS : 1);
    if (end->wide)
        atomic_fetch_add(&channel->self->issuing.wide_channels, 1);
    for (int i = 0; i < 2 * PHI_WORD_COUNT; i++) {
        const int outgoing = i / PHI_WORD_COUNT, word = i % PHI_WORD_COUNT;
        if (chunk == 0 && (word != PHI_WORD_TURN || !end->bells)) { // made in vain
            phi_lane_close(end->place.lane[outgoing][word]);
            end->place.lane[outgoing][word] = NULL;
        } else if (has_direction(channel->fixed.role, outgoing)) {
            open_lane(channel, outgoing, word);
        }
    }
    if (end->bells)
        flush_here(channel, key);
    return true;
}

void phi_staging_close(struct ph_channel *channel)
{
    if (channel->fixed.stage.bells && channel->peer->to.link != NULL)
        phi_link_flushes(channel->peer->to.link, channel->fixed.index, PHI_NO_REGION);
    if (channel->fixed.stage.wide) // a husk is closed twice
        atomic_fetch_sub(&channel->self->issuing.wide_channels, 1);
    channel->fixed.stage.wide = false;
    phi_staging_give_back(channel->peer, &channel->fixed.stage.place);
}

bool phi_staging_rests(const struct ph_channel *channel)
{
    struct phi_executor *executor = channel->self->executor;
    const bool of_use = atomic_load(&channel->live.uses.revoked) == 0;
    if (!channel->fixed.stage.is)
        return true;
    if (!executor->ops->drained(executor, &channel->peer->channels.late, NULL, 0))
        return false;
    for (int i = 0; i < 2 * PHI_WORD_COUNT; i++) {
        struct phi_lane *lane =
            channel->fixed.stage.place.lane[i / PHI_WORD_COUNT][i % PHI_WORD_COUNT];
        if (lane != NULL && !phi_lane_rests(lane, of_use))
            return false;
    }
    return true;
}

bool phi_staging_sent(const struct ph_channel *channel)
{
    const int from = channel->fixed.stage.bells ? 0 : 1; // bells of either direction post
    for (int i = from * PHI_WORD_COUNT; channel->fixed.stage.is && i < 2 * PHI_WORD_COUNT; i++) {
        struct phi_lane *lane =
            channel->fixed.stage.place.lane[i / PHI_WORD_COUNT][i % PHI_WORD_COUNT];
        if (lane != NULL && !phi_lane_rests(lane, false))
            return false;
    }
    return true;
}

bool phi_staging_due(const struct ph_channel *channel)
{
    const bool staged = channel->fixed.stage.is && !channel->fixed.stage.bells;
    for (int word = 0; staged && word < PHI_WORD_COUNT; word++) {
        const struct phi_stage_lane *lane = channel->fixed.stage.control[0][word];
        if (lane != NULL && __atomic_load_n(&lane->reach, __ATOMIC_ACQUIRE) !=
                                __atomic_load_n(&lane->done[0], __ATOMIC_ACQUIRE))
            return true;
    }
    return false;
}

// ---- the data path

void phi_staging_work(struct phi_work *work, const struct phi_channel_call *call,
                      const struct phi_step *step)
{
    struct ph_channel *channel = call->channel;
    const struct phi_stage_end *end = &channel->fixed.stage;
    const bool stages = step->kind == PHI_STEP_STAGE;
    const bool host = channel->fixed.own.kind == PHI_KIND_HOST;
    work->lane.own = end->control_seen[call->outgoing][step->word];
    work->lane.slots = end->slots_seen[call->outgoing][step->word];
    work->lane.peer = end->like;
    work->span.size = call->size;
    uint8_t *local =
        channel->fixed.unbound ? call->data : channel->fixed.own.address + call->local_offset;
    work->span.source = stages ? local : NULL;
    work->span.destination = stages                   ? NULL
                             : channel->fixed.unbound ? local
                                                      : channel->fixed.own.address;
    work->span.asks =
        !channel->fixed.unbound ? 0 : PHI_ASK_END | (stages ? PHI_ASK_SOURCE : PHI_ASK_DESTINATION);
    work->span.host_source = stages && host;
    work->span.host_destination = !stages && host;
    work->lane.offset = stages                   ? call->remote_offset
                        : channel->fixed.unbound ? call->size
                                                 : channel->fixed.own.size;
    // For a step that takes data, `signal` says whether both ends must name the same size.
    work->lane.signal = stages ? call->call != PHI_CALL_PUT
                               : channel->fixed.unbound && !phi_call_signals(call->call);
}

// Returns which lane a call goes by, as `outgoing`. A call goes by the lane of its direction. But a
// post comes behind what its own lane moves, and nothing orders two lanes. So a get goes by the
// lane of the signal that tells of it.
static bool lane_of(const struct phi_channel_call *call)
{
    return call->outgoing || call->told;
}

void phi_staging_kick(const struct phi_channel_call *call)
{
    const struct phi_stage_end *end = &call->channel->fixed.stage;
    const bool message = call->call == PHI_CALL_POST || call->call == PHI_CALL_TRANSFER ||
                         call->call == PHI_CALL_COMPLETE;
    if (end->is)
        phi_lane_kick(
            end->place.lane[lane_of(call)][message || end->bells ? PHI_WORD_TURN : PHI_WORD_NOTE]);
}

void phi_staging_lane(struct phi_work *work, const struct phi_channel_call *call)
{
    const struct phi_stage_end *end = &call->channel->fixed.stage;
    work->lane.own = end->control_seen[lane_of(call)][PHI_WORD_TURN];
    work->lane.slots = end->slots_seen[lane_of(call)][PHI_WORD_TURN];
}

size_t phi_staging_records(const struct phi_channel_call *call)
{
    const uint32_t chunk = PHI_STAGE_CHUNK(call->channel->fixed.stage.like);
    if (call->size == 0)
        return call->call != PHI_CALL_PUT; // a message of nothing is a record all the same
    return call->size / chunk + (call->size % chunk != 0);
}

bool phi_staging_here(const struct ph_channel *channel, enum phi_word word)
{
    const struct phi_stage_end *end = &channel->fixed.stage;
    const struct phi_stage_lane *lane = end->control[0][word];
    const uint32_t reach = __atomic_load_n(&lane->reach, __ATOMIC_ACQUIRE);
    struct phi_stage_record head;
    for (uint32_t i = 1; i < PHI_STAGE_BLOCKS_OF(end->like); i++)
        if (lane->done[i] != lane->done[0])
            return false; // given up half-way
    for (uint32_t record = lane->done[0] + 1; (int32_t)(reach - record) >= 0; record++) {
        memcpy(&head,
               end->slots[0][word] +
                   ((record - 1) & (PHI_STAGE_SLOTS - 1)) * PHI_STAGE_SLOT_SIZE(end->like),
               sizeof head);
        if (head.last)
            return true;
    }
    return false;
}
