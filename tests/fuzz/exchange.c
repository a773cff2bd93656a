// SPDX-License-Identifier: BSD-3-Clause
// Exchanges with a peer that writes what it likes, when it likes: into its half of the segment,
// into the store, and in answer to calls. What comes of it lies inside the peer's allocation, and
// ends.
//
// Input: flags (1: we are the higher rank; 2: the peer is connected), then commands of this rank.
// Whenever this rank looks for something, the input says what the peer does first.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "ending/expel.h"
#include "ending/heartbeat.h"
#include "ending/look.h"
#include "exchange/exchange.h"
#include "exchange/offer.h"
#include "meeting/reap.h"
#include "peer/node.h"
#include "peer/side.h"
#include "release/release.h"
#include "release/release_wait.h"
#include "release/revoke.h"
#include "release/start.h"
#include "rules/agreement.h"
#include "service/leave.h"
#include "pair.h"

enum { REQUESTS = 2, OPS_MOST = 3, COMMANDS_MOST = 64, ACTIONS_MOST = 256 };

static struct input input;
static struct pair *pair;
static int actions_left;

struct request {
    struct ph_exchange_request *request;
    size_t n;
};
static struct request requests[REQUESTS];

// ---- what the peer does

static void write_side(struct phi_side *side, unsigned member, uint64_t value)
{
    switch (member % 8) {
    case 0:
        atomic_store(&side->sleeping, (uint32_t)value);
        break;
    case 1:
        atomic_store(&side->acknowledged, value);
        break;
    case 2:
        atomic_store(&side->state, (uint32_t)value);
        break;
    case 3:
        atomic_store(&side->drained, (uint32_t)value);
        break;
    case 4:
        atomic_store(&side->mapped, (uint32_t)value);
        break;
    case 5:
        atomic_store(&side->posted, value);
        break;
    case 6:
        atomic_store(&side->taken, value);
        break;
    default:
        atomic_store(&side->told, (uint32_t)value);
    }
}

static void write_word(struct phi_segment *segment)
{
    int side = !segment->side;
    unsigned region = (unsigned)take(&input, 1),
             index = (unsigned)take(&input, 1) % segment->capacity;
    uint64_t value = take(&input, 8);

    switch (region % 4) {
    case 0:
        write_side(phi_segment_side(segment, side), index, value);
        break;
    case 1:
        atomic_store(phi_segment_word(segment, side, index, region >> 2), value);
        break;
    case 2:
        atomic_store(phi_segment_confirm(segment, side, index), value);
        break;
    default:
        atomic_store(&phi_segment_line(segment, side, index)->word[region >> 2 & 1],
                     (uint32_t)value);
    }
}

// What an honest peer would write for one key, but for the numbers that the input gives.
static void follow(struct phi_segment *segment)
{
    int side = !segment->side;
    const struct phi_key *key = phi_peer_slot(pair->peer, take(&input, 1) % segment->capacity);
    uint32_t number = (uint32_t)take(&input, 1), reason = (uint32_t)take(&input, 1);
    uint32_t line = (uint32_t)take(&input, 1);

    if (!key)
        return;
    uint32_t round = key->agreement.round ? key->agreement.round : 1;
    atomic_store(phi_segment_word(segment, side, key->slot, round),
                 phi_agreement_word(round, number));
    atomic_store(phi_segment_confirm(segment, side, key->slot),
                 (uint64_t)round << 32 | 1u << 31 | line << 11 | reason);
}

static void offer(void)
{
    struct phi_writer writer = {0};
    uint32_t id = (uint32_t)take(&input, 1);

    struct pair_descriptor descriptor = {.id = id};
    descriptor.op_id = take(&input, 1) % 4;
    descriptor.role = (uint8_t)take(&input, 1);
    descriptor.slot = (uint32_t)(int8_t)take(&input, 1);
    descriptor.number = (uint32_t)take(&input, 2);
    descriptor.offset = take(&input, 2);
    descriptor.size = take(&input, 2);
    descriptor.protocol = (uint8_t)take(&input, 1);
    descriptor.again = descriptor.protocol >> 5;
    descriptor.protocol &= 31;
    pair_offer(pair, id, 1, &writer);
    pair_describe(&descriptor, &writer);
    phi_offer_file(pair->peer, writer.bytes, writer.size);
    phi_writer_fini(&writer);
}

// Into the peer's FIFO: a message with its size, or whatever it is.
static void post(struct phi_segment *segment)
{
    struct phi_side *side = phi_segment_side(segment, !segment->side);
    uint8_t *fifo = phi_segment_fifo(segment, !segment->side);
    const bool whole = take(&input, 1) & 1;
    struct input piece = take_piece(&input);
    uint64_t at = atomic_load(&side->posted);
    const uint32_t head[2] = {(uint32_t)piece.left, 0};

    for (size_t i = 0; whole && i < sizeof(head); i++)
        fifo[at++ % PHI_FIFO_BYTES] = ((const uint8_t *)head)[i];
    for (size_t i = 0; i < piece.left; i++)
        fifo[at++ % PHI_FIFO_BYTES] = piece.at[i];
    atomic_store(&side->posted, whole ? (at + 7) / 8 * 8 : at);
}

// What the service thread would be handed.
static void tell(void)
{
    struct phi_node_message message = {.a = take(&input, 1), .b = take(&input, 1)};
    struct phi_revoke revoke = {take(&input, 2), take(&input, 2), (uint32_t)take(&input, 1),
                                UINT32_MAX};
    struct phi_revoked revoked = {(uint32_t)revoke.gone, (uint32_t)revoke.size, 1, 1, 1, 1};
    unsigned type = (unsigned)take(&input, 1);

    switch (type % 5) {
    case 0:
        message.bytes_size = sizeof(revoke) - (type == 0xfa);
        memcpy(message.bytes, &revoke, sizeof(revoke));
        phi_revoke_file(pair->peer, &message);
        break;
    case 1:
        message.bytes_size = sizeof(revoked);
        memcpy(message.bytes, &revoked, sizeof(revoked));
        phi_release_revoked(pair->peer, &message);
        break;
    case 2:
        phi_revoke_let_go(pair->peer, &message);
        break;
    case 3:
        phi_release_unmapped(pair->peer, &message);
        break;
    default:
        if (type == 0xff)
            phi_expel_file(&pair->self, (int)message.a & 1, THEIR_INCARNATION + message.b);
    }
}

static void act(void)
{
    struct phi_segment *segment = pair->peer->segment;

    switch (take(&input, 1) % 6) {
    case 4:
        tell();
        break;
    case 5:
        if (segment)
            post(segment);
        break;
    case 0:
        if (segment)
            write_word(segment);
        break;
    case 1:
        if (segment)
            follow(segment);
        break;
    case 2:
        offer();
        break;
    default: {
        struct input piece = take_piece(&input);
        pair_deliver(pair, copy_of(piece), piece.left);
    }
    }
}

static void peer_acts(void)
{
    if (input.left == 0 || actions_left == 0)
        return;
    pthread_mutex_lock(&pair->self.lock);
    // The peer may have begun another life meanwhile.
    if (pair->self.table[!pair->self.rank])
        pair->peer = pair->self.table[!pair->self.rank];
    for (unsigned n = (unsigned)take(&input, 1) & 3; n > 0 && actions_left > 0; n--, actions_left--)
        act();
    pthread_mutex_unlock(&pair->self.lock);
}

// ---- what it answers; these stand for src/peer/node.c

int __wrap_phi_node_connect(const char *name, int *fd);
int __wrap_phi_node_send(int socket, const struct phi_node_message *message, int fd);
int __wrap_phi_node_call(int socket, const struct phi_node_message *request,
                         struct phi_node_message *answer, int *fd, int64_t deadline);

int __wrap_phi_node_connect(const char *name, int *fd)
{
    (void)name;
    if (input.left == 0 || take(&input, 1) == 1)
        return -ECONNREFUSED;
    *fd = descriptor(DESCRIPTOR_NULL);
    return 0;
}

int __wrap_phi_node_send(int socket, const struct phi_node_message *message, int fd)
{
    (void)socket;
    (void)message;
    (void)fd;
    return 0;
}

static int any_answer(struct phi_node_message *answer)
{
    answer->status = (int8_t)take(&input, 1);
    answer->a = take(&input, 8);
    answer->b = take(&input, 2);
    answer->c = take(&input, 1);
    struct input piece = take_piece(&input);
    answer->bytes_size = (uint32_t)(piece.left % (sizeof(answer->bytes) + 1));
    memcpy(answer->bytes, piece.at, answer->bytes_size);
    return descriptor((unsigned)take(&input, 1));
}

static int good_answer(const struct phi_node_message *request, struct phi_node_message *answer)
{
    answer->status = 0;
    answer->a = request->type == PHI_NODE_HELLO ? pair->self.mine.nonce : 1;
    answer->b = 16;
    answer->c = request->type == PHI_NODE_HELLO ? (uint64_t)pair->self.ranks : 0;
    answer->bytes_size = (uint32_t)pair->foreign.record_size;
    memcpy(answer->bytes, pair->foreign.record, pair->foreign.record_size);
    if (request->type == PHI_NODE_HELLO)
        return descriptor((unsigned)take(&input, 1));
    if (request->type == PHI_NODE_SEGMENT)
        return descriptor(DESCRIPTOR_GIVEN);
    return request->type == PHI_NODE_EXPORT || request->type == PHI_NODE_PROBE
               ? dup(pair->foreign.fd)
               : -1;
}

int __wrap_phi_node_call(int socket, const struct phi_node_message *request,
                         struct phi_node_message *answer, int *fd, int64_t deadline)
{
    unsigned how = input.left ? (unsigned)take(&input, 1) % 4 : 0;

    (void)socket;
    HOLD(deadline != PHI_FOREVER);
    peer_acts();
    if (how < 2) {
        fuzz_time = deadline > fuzz_time ? deadline : fuzz_time;
        return how == 0 ? -ETIMEDOUT : -ECONNRESET;
    }
    *answer = *request;
    *fd = how == 2 ? any_answer(answer) : good_answer(request, answer);
    return 0;
}

// ---- what this rank does

static void start(void)
{
    struct ph_operation ops[OPS_MOST];
    struct request *r = &requests[requests[0].request != NULL];
    unsigned bits = (unsigned)take(&input, 1);
    size_t n = 1 + bits % OPS_MOST;

    if (r->request)
        return;
    for (size_t i = 0; i < n; i++) {
        unsigned what = (unsigned)take(&input, 1);
        ops[i] = (struct ph_operation){
            .op_id = what & 3,
            .peer = !pair->self.rank,
            .role = (enum ph_role)(PH_ROLE_SENDER + (what >> 2 & 3) % 3),
            .protocol = (enum ph_protocol)((what >> 4 & 3) % 3),
            .buffer = pair->buffers + (size_t)(what >> 6) * OWN_BUFFER,
            .size = OWN_BUFFER,
        };
    }
    if (phi_exchange_start(&pair->self, ops, n, &r->request) == 0)
        r->n = n;
    else
        r->request = NULL;
}

static void check_channel(const struct ph_channel *channel)
{
    const struct phi_remote_export *e = channel->kept.remote.first.export_;
    const struct phi_channel_end *theirs = &channel->fixed.theirs;

    HOLD(channel->fixed.index < 16 && theirs->size > 0);
    if (!theirs->address)
        return;
    // A peer that has given the buffer back meanwhile leaves a channel that nothing can be issued
    // on.
    if (!e || !e->import) {
        HOLD(atomic_load(&channel->live.uses.revoked) && atomic_load(&channel->live.status));
        return;
    }
    for (uint64_t at = 0, size; at < theirs->size; at += size) {
        size = theirs->size - at;
        uint8_t *address = phi_channel_at(theirs, at, &size);

        HOLD(address >= (uint8_t *)e->import->address);
        HOLD(address + size <= (uint8_t *)e->import->address + e->import->size);
        address[size - 1] = 1;
    }
}

static void finish(struct request *r, int64_t ms)
{
    struct ph_channel *channels[OPS_MOST];
    int64_t deadline = phi_deadline(ms);

    if (!r->request)
        return;
    if (phi_exchange_finish(r->request, channels, deadline) == 0)
        for (size_t i = 0; i < r->n; i++)
            check_channel(channels[i]);
    r->request = NULL;
    HOLD(fuzz_time <
         deadline + 20000 * PHI_MS); // calls of its own that nobody answers, and no more
}

static void release(unsigned what)
{
    const uint8_t *at = pair->buffers + (size_t)(what & 3) * OWN_BUFFER;

    if (what & 4)
        phi_release_start(&pair->self, at, OWN_BUFFER);
    else
        phi_release_test(&pair->self, at, OWN_BUFFER, (enum ph_release_state)(what >> 3 & 3));
    pair_busy = what & 16;
    phi_release_tick(&pair->self);
    if (what & 32)
        pair_reap(pair);
}

static void command(void)
{
    unsigned what = (unsigned)take(&input, 1);

    switch (what % 8) {
    case 0:
    case 1:
        start();
        break;
    case 2:
    case 3:
        finish(&requests[what >> 3 & 1], what >> 4 & 7);
        break;
    case 4:
        pthread_mutex_lock(&pair->self.lock);
        phi_peer_look(pair->peer);
        phi_heartbeat_missed(&pair->self);
        pthread_mutex_unlock(&pair->self.lock);
        break;
    case 5:
        phi_heartbeat_tick(&pair->self);
        if (what == 0xfd)
            phi_abort(&pair->self, "fuzz");
        else if (what == 0xf5)
            phi_expel(&pair->self, pair->peer->rank, phi_deadline(1));
        break;
    case 6:
        release(what >> 3);
        break;
    default:
        peer_acts();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input = (struct input){NULL, 0};
    pair = pair_open(data && size && data[0] & 1, size && data[0] & 2);
    if (pair->peer->state == PHI_PEER_READY)
        pair->peer->to.socket = descriptor(DESCRIPTOR_NULL);
    input = (struct input){data, size};
    take(&input, 1);
    actions_left = ACTIONS_MOST;
    pair_acts = peer_acts;
    for (int i = 0; i < COMMANDS_MOST && input.left > 0; i++)
        command();
    for (int i = 0; i < REQUESTS; i++)
        finish(&requests[i], 1);
    pair_busy = false;
    phi_leave(&pair->self, phi_deadline(5));
    pair_acts = NULL;
    pair_close(pair);
    return 0;
}
