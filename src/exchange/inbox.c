// SPDX-License-Identifier: BSD-3-Clause
#include "exchange/inbox.h"

#include <errno.h>

#include "base/clock.h"
#include "ending/expel.h"
#include "exchange/fifo.h"
#include "exchange/offer.h"
#include "meeting/hello.h"
#include "meeting/lives.h"
#include "peer/hello_wire.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "semaphore/segment.h"

// Tells every connected peer whether this rank sleeps. The exchange is the waiter's half of a
// store-buffering pattern, before it looks once more at what it waits for; phi_peer_ring has the
// other half, after its store of that. Both are read-modify-writes of one word, so whichever comes
// second sees what the other did.
static void set_sleeping(struct phi_self *self, bool sleeping)
{
    for (int rank = 0; rank < self->ranks; rank++) {
        struct phi_peer *peer = self->table[rank];
        if (peer == NULL || peer->segment == NULL)
            continue;
        struct phi_side *mine = phi_peer_mine(peer);
        atomic_exchange(&mine->sleeping, sleeping ? 1 : 0);
    }
    self->inbox.registered = sleeping;
}

// The record of an expulsion: it takes the place of a later life's.
static int file_expulsion(struct phi_self *self, const struct phi_message *message)
{
    if (message->rank != self->rank && phi_self_peer(self, message->rank) == NULL)
        return -ENOMEM;
    phi_expel_file(self, message->rank, message->incarnation - 1);
    return 0;
}

static int file_member(struct phi_self *self, struct phi_message *message)
{
    struct phi_capabilities theirs;
    const struct phi_peer *peer = self->table[message->rank];
    if (message->size == 0)
        return file_expulsion(self, message);
    if (message->rank == self->rank)
        return 0;
    if (peer != NULL &&
        (message->incarnation <= peer->incarnation || message->incarnation <= peer->life.newer ||
         message->incarnation <= peer->life.expelled))
        return 0;
    if (phi_capabilities_decode(&theirs, message->bytes, message->size))
        return -EBADMSG;
    if (phi_capabilities_same_device(&self->mine, &theirs))
        phi_cuda_executor_share(self->executor, true);
    if (peer == NULL)
        phi_self_keep(self, message);
    else
        phi_peer_record(self->table[message->rank], message->incarnation, &theirs);
    return 0;
}

static int file_offer(struct phi_self *self, const struct phi_message *message)
{
    struct phi_peer *peer = phi_self_peer(self, message->rank);
    if (peer == NULL)
        return -ENOMEM;
    if (peer->incarnation != message->incarnation)
        return -ESTALE;  // a newer life, while the former one is not over yet: it is not connected,
                         // and offers nothing
    phi_fifo_take(peer); // it was put there before
    if (peer->fifo.late)
        return -ENOMEM;
    int rc = phi_hello_is(message->bytes, message->size)
                 ? phi_hello_file(peer, message->bytes, message->size)
                 : phi_offer_file(peer, message->bytes, message->size);
    if (rc != -ENOMEM) { // else it is filed again, and its sender is to keep it
        peer->heard.filed = message->sequence;
        phi_peer_acknowledge(peer);
    }
    return rc;
}

// Takes the message over. -ENOMEM: it is kept for later, since nobody sends it again.
static int file_message(struct phi_self *self, struct phi_message *message)
{
    int rc = message->member               ? file_member(self, message)
             : message->rank != self->rank ? file_offer(self, message)
                                           : 0;
    if (rc && !(rc == -ENOMEM && self->inbox.is_late))
        phi_log(self->report, PH_LOG_WARN, "%s %llu of rank %d %s: %s",
                message->member ? "member record" : "offer",
                (unsigned long long)(message->member ? message->incarnation : message->sequence),
                message->rank, rc == -ENOMEM ? "is taken later" : "dropped", ph_strerror(rc));
    self->inbox.is_late = rc == -ENOMEM;
    if (self->inbox.is_late)
        self->inbox.late = *message;
    else
        phi_mailbox_message_free(message);
    return self->inbox.is_late ? rc : 0;
}

// A peer that has not taken our offers may have forgotten them, with the store. Or it may have made
// way for another life, which the store tells.
bool phi_self_wanted(const struct phi_self *self, int rank)
{
    const struct phi_peer *peer = self->table[rank];
    return self->inbox.wanted[rank] > 0 ||
           (peer != NULL && peer->state == PHI_PEER_READY &&
            (atomic_load_explicit(&phi_peer_theirs(peer)->acknowledged, memory_order_acquire) <
                 phi_mailbox_sequence(self->mailbox, rank) ||
             phi_fifo_untaken(peer)));
}

// A thread that only watches a store leaves it alone for so long after it failed.
#define WATCH_PAUSE_MS 250

// A message that there was no memory for is filed again after so long.
#define LATE_PAUSE_MS 10

// Without the lock.
static int pause_for(struct phi_self *self, int64_t ms, int64_t deadline)
{
    int64_t soon = phi_deadline(ms);
    int rc = phi_mailbox_sleep(self->mailbox, soon < deadline ? soon : deadline);
    return rc == -ETIMEDOUT && phi_now() < deadline ? -EINTR : rc;
}

// Without the lock. A thread that waits for something else only watches the store, lest the store
// forgets. If the store fails meanwhile, the wait does not fail.
static int receive_or_sleep(struct phi_self *self, bool awaited, int64_t deadline,
                            struct phi_message *message)
{
    int rc = phi_mailbox_receive(self->mailbox, self->inbox.wanted_now, deadline, message);
    if (awaited || rc == 0 || rc == -EINTR || rc == -ETIMEDOUT || rc == PH_EFENCED)
        return rc;
    return pause_for(self, WATCH_PAUSE_MS, deadline);
}

// Without the lock. The record of a rank that nobody has named changes nothing for the thread that
// waits: we file it, and wait for the next message.
static int receive_news(struct phi_self *self, bool awaited, int64_t deadline,
                        struct phi_message *message)
{
    for (;;) {
        int rc = receive_or_sleep(self, awaited, deadline, message);
        if (rc || !message->member || message->size == 0 || phi_now() >= deadline)
            return rc;
        pthread_mutex_lock(&self->lock);
        const bool news = self->table[message->rank] != NULL;
        if (!news)
            file_message(self, message);
        pthread_mutex_unlock(&self->lock);
        if (news)
            return 0;
    }
}

// With the lock given up; files what comes. Nothing else is taken before what is late, so that the
// messages of a rank stay in their order.
static int receive(struct phi_self *self, int64_t deadline)
{
    bool awaited = false;
    for (int rank = 0; rank < self->ranks; rank++) {
        self->inbox.wanted_now[rank] = phi_self_wanted(self, rank);
        // With a FIFO little comes by the store, and a store that fails may hold no message for us.
        // Then the deadline ends the wait, not the store's error.
        awaited = awaited || (self->inbox.wanted[rank] > 0 && !phi_fifo_serves(self->table[rank]));
    }
    self->inbox.receiving = true;
    // nothing that the store has matters any more
    bool over = self->end.leaving || self->end.fenced;
    bool late = self->inbox.is_late && !over;
    pthread_mutex_unlock(&self->lock);
    struct phi_message message = {0};
    int rc = over   ? phi_mailbox_sleep(self->mailbox, deadline)
             : late ? pause_for(self, LATE_PAUSE_MS, deadline)
                    : receive_news(self, awaited, deadline, &message);
    pthread_mutex_lock(&self->lock);
    self->inbox.receiving = false;
    if (late)
        message = self->inbox.late;
    if (late || (rc == 0 && !over))
        rc = file_message(self, &message) && rc ? rc : 0;
    else if (rc == PH_EFENCED)
        phi_fence(self, "a later life of it, or its expulsion, was announced in the store");
    phi_self_changed(self);
    return rc == -EINTR ? 0 : rc;
}

int phi_self_wait(struct phi_self *self, uint64_t seen, int64_t deadline)
{
    if (self->changes.count != seen)
        return 0;
    if (self->inbox.receiving)
        return phi_self_follow(self, deadline);
    if (!self->inbox.registered) {
        // From here on peers ring. The caller sees the words that they stored before when it looks
        // again.
        set_sleeping(self, true);
        phi_self_changed(self);
        return 0;
    }
    int rc = receive(self, deadline);
    set_sleeping(self, false);
    return rc;
}

void phi_self_awake(struct phi_self *self)
{
    if (self->inbox.registered && !self->inbox.receiving)
        set_sleeping(self, false);
}

int phi_self_drain(struct phi_self *self)
{
    while (!self->inbox.receiving) {
        int rc = receive(self, phi_now());
        if (rc == -ETIMEDOUT)
            return 0;
        if (rc)
            return rc;
    }
    return 0;
}

void phi_self_look(struct phi_self *self, int rank)
{
    phi_self_want(self, rank, 1);
    phi_self_drain(self);
    phi_self_want(self, rank, -1);
}
