// SPDX-License-Identifier: BSD-3-Clause
// A message is its size (4 bytes, then 4 of nothing) and its bytes, padded to 8; it may go round
// the end. The owner of a FIFO writes into it and counts the bytes in `posted`; the peer counts in
// its own `taken`. Both counts are kept in private memory too: what lies in the segment the other
// rank may write.
#include "exchange/fifo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "exchange/offer.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "semaphore/segment.h"

#define HEAD 8

// One that has left right behind its offer has offered all the same.
bool phi_fifo_serves(const struct phi_peer *peer)
{
    return peer != NULL && peer->state >= PHI_PEER_READY && peer->segment != NULL &&
           peer->segment->link == NULL && !peer->fifo.bad;
}

static uint64_t whole(size_t size)
{
    return HEAD + ((uint64_t)size + 7) / 8 * 8;
}

static void put_at(uint8_t *fifo, uint64_t at, const void *bytes, size_t size)
{
    const size_t from = at % PHI_FIFO_BYTES, rest = PHI_FIFO_BYTES - from;
    const size_t first = size < rest ? size : rest;
    memcpy(fifo + from, bytes, first);
    memcpy(fifo, (const uint8_t *)bytes + first, size - first);
}

static void get_at(const uint8_t *fifo, uint64_t at, void *bytes, size_t size)
{
    const size_t from = at % PHI_FIFO_BYTES, rest = PHI_FIFO_BYTES - from;
    const size_t first = size < rest ? size : rest;
    memcpy(bytes, fifo + from, first);
    memcpy((uint8_t *)bytes + first, fifo, size - first);
}

bool phi_fifo_put(struct phi_peer *peer, const void *bytes, size_t size)
{
    if (!phi_fifo_serves(peer) || peer->state != PHI_PEER_READY)
        return false;
    const struct phi_side *theirs = phi_peer_theirs(peer);
    // Before that it reads nothing here, and takes what comes by the store.
    if (atomic_load(&theirs->mapped) == 0)
        return false;
    // Acquire: pairs with the release stores of the peer, which has read what it counts as taken.
    if (atomic_load_explicit(&theirs->acknowledged, memory_order_acquire) <
        phi_mailbox_sequence(peer->self->mailbox, peer->rank))
        return false;
    const uint64_t taken = atomic_load_explicit(&theirs->taken, memory_order_acquire);
    const uint64_t used = peer->fifo.posted - taken;
    if (used > PHI_FIFO_BYTES || size > PHI_FIFO_BYTES - HEAD ||
        whole(size) > PHI_FIFO_BYTES - used ||
        !phi_segment_reserve_fifo(peer->segment, peer->fifo.posted + whole(size)))
        return false;
    const uint32_t head[2] = {(uint32_t)size, 0};
    uint8_t *fifo = phi_segment_fifo(peer->segment, peer->segment->side);
    put_at(fifo, peer->fifo.posted, head, sizeof head);
    put_at(fifo, peer->fifo.posted + HEAD, bytes, size);
    peer->fifo.posted += whole(size);
    // Release: pairs with the acquire load in there.
    phi_segment_put64(peer->segment, &phi_peer_mine(peer)->posted, peer->fifo.posted);
    phi_peer_ring(peer);
    return true;
}

bool phi_fifo_untaken(const struct phi_peer *peer)
{
    return phi_fifo_serves(peer) && atomic_load_explicit(&phi_peer_theirs(peer)->taken,
                                                         memory_order_acquire) != peer->fifo.posted;
}

// -EBADMSG: what the peer has put there is no offer. -ENOMEM.
static int take_one(struct phi_peer *peer, uint64_t bytes)
{
    const uint8_t *fifo = phi_segment_fifo(peer->segment, !peer->segment->side);
    uint32_t head[2];
    if (bytes > PHI_FIFO_BYTES || bytes < HEAD)
        return -EBADMSG;
    get_at(fifo, peer->fifo.taken, head, sizeof head);
    const size_t size = head[0];
    if (size == 0 || whole(size) > bytes)
        return -EBADMSG;
    // A copy, which the peer cannot change while it is read.
    void *copy = malloc(size);
    if (copy == NULL)
        return -ENOMEM;
    get_at(fifo, peer->fifo.taken + HEAD, copy, size);
    const int rc = phi_offer_file(peer, copy, size);
    free(copy);
    if (rc)
        return rc;
    peer->fifo.taken += whole(size);
    // Release: pairs with the acquire in phi_fifo_put, which writes there again.
    phi_segment_put64(peer->segment, &phi_peer_mine(peer)->taken, peer->fifo.taken);
    return 0;
}

void phi_fifo_take(struct phi_peer *peer)
{
    int rc = 0;
    if (!phi_fifo_serves(peer))
        return;
    // Offers that come from now on are for the next call: a peer may go on for ever.
    const uint64_t posted =
        atomic_load_explicit(&phi_peer_theirs(peer)->posted, memory_order_acquire);
    while (rc == 0 && posted != peer->fifo.taken)
        rc = take_one(peer, posted - peer->fifo.taken);
    if (rc == -ENOMEM && !peer->fifo.late)
        phi_log(peer->self->report, PH_LOG_WARN, "an offer of rank %d is taken later: %s",
                peer->rank, ph_strerror(rc));
    peer->fifo.late = rc == -ENOMEM;
    peer->fifo.bad = rc != 0 && rc != -ENOMEM;
    if (peer->fifo.bad)
        phi_log(peer->self->report, PH_LOG_WARN,
                "offers of rank %d dropped, this and all later ones in the segment: %s", peer->rank,
                ph_strerror(rc));
}
