// SPDX-License-Identifier: BSD-3-Clause
#include "exchange/exchange.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "ending/expel.h"
#include "ending/heartbeat.h"
#include "exchange/buffers.h"
#include "exchange/crossed.h"
#include "exchange/fifo.h"
#include "exchange/give_up.h"
#include "exchange/inbox.h"
#include "exchange/miss.h"
#include "exchange/outcome.h"
#include "exchange/pending.h"
#include "exchange/request.h"
#include "exchange/roles.h"
#include "exchange/send.h"
#include "exchange/spin.h"
#include "exchange/steps.h"
#include "meeting/lives.h"
#include "meeting/mapping.h"
#include "meeting/path.h"
#include "meeting/prepare.h"
#include "peer/channel.h"
#include "peer/channel_ranges.h"
#include "peer/exports.h"
#include "peer/keys.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/side.h"
#include "peer/wake.h"
#include "rules/agreement.h"
#include "semaphore/segment.h"

struct phi_self *phi_exchange_peers(const struct ph_exchange_request *request)
{
    return request->self;
}

struct progress {
    size_t open; // operations that are not done
    struct phi_pending *first;
    struct phi_peer *prepare;         // to connect to
    struct phi_peer *offer;           // to send offers to
    struct phi_remote_export *import; // to map
    struct phi_pending *ranges;       // whose channel's tables are to be made
    struct phi_pending *renew;        // to be given a bounce buffer
    bool ask;
    bool published; // in this pass
    bool look;      // a number is published, and the peer's awaited
    int64_t retry;  // when to connect again to a peer that refused, or 0
};

// An offer that there was no memory for is taken after so long.
#define LATE_PAUSE_MS 10

static void note_work(struct progress *p, struct phi_pending *pending,
                      struct phi_remote_export *import)
{
    struct phi_peer *peer = pending->key->peer;
    p->open++;
    if (p->first == NULL)
        p->first = pending;
    if (pending->state == PHI_PENDING_PEER && phi_contact_due(peer))
        p->prepare = peer;
    if (pending->state == PHI_PENDING_PEER && peer->contact.refused &&
        (p->retry == 0 || peer->contact.retry < p->retry))
        p->retry = peer->contact.retry;
    if ((pending->state == PHI_PENDING_OFFER && !pending->blocked) || pending->tells)
        p->offer = peer;
    // An answer of the peer wakes us; else it is looked at again after a while.
    if (pending->blocked && peer->room.asked == 0 && (p->retry == 0 || peer->room.at < p->retry))
        p->retry = peer->room.at;
    if (peer->fifo.late) {
        phi_fifo_take(peer);
        phi_self_changed(peer->self); // what it serves may have been looked at in this pass
    }
    if (peer->fifo.late && (p->retry == 0 || phi_deadline(LATE_PAUSE_MS) < p->retry))
        p->retry = phi_deadline(LATE_PAUSE_MS);
    if (pending->state == PHI_PENDING_ASK)
        p->ask = true;
    if (pending->state == PHI_PENDING_LOOK)
        p->look = true;
    if (import != NULL)
        p->import = import;
    if (pending->ranges)
        p->ranges = pending;
    if (pending->renews)
        p->renew = pending;
}

// Words that the peer has stored meanwhile come from another core's cache. We fetch several at a
// time.
#define AHEAD 8

static void fetch_ahead(const struct ph_exchange_request *request, size_t i)
{
    if (i + AHEAD >= request->n || request->pending[i + AHEAD].state != PHI_PENDING_LOOK)
        return;
    const struct phi_key *key = request->pending[i + AHEAD].key;
    const struct phi_segment *segment = key->peer->segment;
    __builtin_prefetch(phi_segment_word(segment, !segment->side, key->slot, key->agreement.round));
}

// Carries every operation as far as it goes without waiting, or to where it has published its
// number: the words that both ranks write are looked at when all are written, not in turns, which
// would have their cache lines go to and fro. Peers are rung once each, after all words are stored.
static struct progress pass(struct ph_exchange_request *request)
{
    struct progress p = {0};
    struct phi_peer *rung = NULL;
    request->self->exchanges.passes++;
    for (size_t i = 0; i < request->n; i++) {
        struct phi_pending *pending = &request->pending[i];
        struct phi_remote_export *import;
        fetch_ahead(request, i);
        if (pending->state == PHI_PENDING_DONE)
            continue;
        if (phi_pending_carry(pending, &import)) {
            if (rung != NULL && rung != pending->key->peer)
                phi_peer_ring(rung);
            rung = pending->key->peer;
            p.published = true;
        }
        if (pending->state != PHI_PENDING_DONE)
            note_work(&p, pending, import);
    }
    if (rung != NULL)
        phi_peer_ring(rung);
    return p;
}

static struct progress advance(struct ph_exchange_request *request)
{
    struct progress p;
    do
        p = pass(request);
    while (p.published);
    return p;
}

// Does what cannot be done under the lock; returns false when there was nothing of that kind.
static bool work(struct ph_exchange_request *request, const struct progress *p, int64_t deadline,
                 int *rc)
{
    if (p->prepare != NULL)
        *rc = phi_contact_prepare(p->prepare, deadline);
    else if (p->offer != NULL)
        *rc = phi_offer_send(request, p->offer, deadline);
    else if (p->import != NULL)
        phi_contact_import(p->import, deadline);
    else if (p->ranges != NULL)
        *rc = phi_ranges_make(p->ranges->key, deadline);
    else if (p->renew != NULL)
        *rc = phi_request_renew(p->renew);
    else if (p->ask)
        phi_request_ask(request, deadline);
    else
        return false;
    return true;
}

// Returns whether `work` found something to do.
static bool has_worked(const struct progress *p)
{
    return p->prepare || p->offer || p->import || p->ranges || p->renew || p->ask;
}

static void let_go(struct phi_self *self, struct phi_pending *pending)
{
    struct phi_key *key = pending->key;
    phi_pending_wants(pending, false);
    key->request = NULL;
    if (self->table[key->peer->rank] != key->peer)
        phi_key_forget_buffers(key);
    else if (self->exports.ended != NULL)
        phi_key_drop_released(key); // what was released meanwhile, and is closed by now
}

// drop_request: its keys are let go.
static void drop_request(struct ph_exchange_request *request)
{
    struct phi_self *self = request->self;
    phi_count(self->counters, hits, request->hits);
    struct ph_exchange_request **at = &self->exchanges.first;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    // Kept for the next exchange: an exchange of many hits must not ask the system for memory each
    // time.
    if (self->exchanges.spare == NULL || self->exchanges.spare->room < request->room) {
        free(self->exchanges.spare);
        self->exchanges.spare = request;
    } else {
        free(request);
    }
}

static void end_request(struct ph_exchange_request *request)
{
    for (size_t i = 0; i < request->n; i++)
        let_go(request->self, &request->pending[i]);
    drop_request(request);
}

static struct ph_exchange_request *make_request(struct phi_self *self, size_t n)
{
    struct ph_exchange_request *request = self->exchanges.spare;
    if (request != NULL && request->room >= n)
        self->exchanges.spare = NULL;
    else if ((request = malloc(sizeof *request + n * sizeof request->pending[0])) != NULL)
        request->room = n;
    if (request == NULL)
        return NULL;
    request->self = self;
    request->loopbacks = NULL;
    request->busy = true;
    request->stuck = request->abandoned = request->finishing = request->crossed = false;
    request->wrong = (struct phi_wrong){0};
    request->failed = request->hits = 0;
    request->n = 0;
    request->capacity = n;
    request->began = phi_now();
    request->next = self->exchanges.first;
    self->exchanges.first = request;
    return request;
}

static int check_life(struct phi_self *self)
{
    if (self->end.aborted)
        return phi_fail(self->report, PH_EABORTED, "rank %d aborted", self->rank);
    if (self->end.leaving)
        return phi_fail(self->report, PH_EBROKEN, "rank %d is being destroyed", self->rank);
    if (!self->end.fenced && phi_heartbeat_missed(self))
        phi_expel_look_all(self); // this process was stopped: the service thread may come later
    return self->end.fenced ? phi_fence_fail(self) : 0;
}

// The half of an exchange that waits for nobody: what connected peers can be told now, they are
// told now.
static int begin(struct ph_exchange_request *request, int64_t deadline)
{
    int rc = 0;
    struct progress p = pass(request);
    if (p.first != NULL && p.first->state == PHI_PENDING_PEER &&
        (rc = phi_self_drain(request->self)) == 0)
        p = pass(request);
    while (rc == 0 && p.offer != NULL) {
        rc = phi_offer_send(request, p.offer, deadline);
        if (rc == 0) // else its sentence stays
            p = pass(request);
    }
    return rc;
}

// If an application exchanges in several threads, nobody can tell that its ranks wait in a circle:
// another thread of a rank may come.
static void note_thread(struct phi_self *self)
{
    if (!self->exchanges.any)
        self->exchanges.thread = pthread_self();
    else if (!pthread_equal(self->exchanges.thread, pthread_self()))
        self->exchanges.many_threads = true;
    self->exchanges.any = true;
}

// A peer that is gone may have begun a new life.
static void renew_peers(struct phi_self *self, const struct ph_operation *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct phi_peer *peer = self->table[ops[i].peer];
        if (peer == NULL || peer->state != PHI_PEER_BROKEN)
            continue;
        if (peer->life.newer == 0)
            phi_self_look(self, peer->rank); // another thread may have renewed it meanwhile
        phi_peer_renew(self->table[ops[i].peer]);
    }
}

// Whatever told it: what was to be sent, a record that was received, a peer's code.
static void note_fence(struct phi_self *self, int rc)
{
    if (rc == PH_EFENCED) {
        phi_fence(self, "a later life of it, or its expulsion, was announced in the store");
        phi_fence_told(self);
    }
}

static bool is_of(const struct phi_key *key, const struct ph_operation *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (key->op_id == ops[i].op_id && key->peer->rank == ops[i].peer &&
            key->role == (uint8_t)ops[i].role)
            return true;
    return false;
}

static bool is_abandoned(const struct phi_self *self, const struct ph_operation *ops, size_t n)
{
    for (const struct ph_exchange_request *r = self->exchanges.first; r != NULL; r = r->next)
        for (size_t i = 0; r->abandoned && i < r->n; i++)
            if (is_of(r->pending[i].key, ops, n))
                return true;
    return false;
}

// An exchange that was finished may still have its keys: the thread that works for it ends it soon.
static void await_abandoned(struct phi_self *self, const struct ph_operation *ops, size_t n)
{
    const int64_t deadline = phi_deadline(self->config->deadline_ms);
    while (is_abandoned(self, ops, n) && phi_now() < deadline)
        phi_self_follow(self, deadline);
}

static int start(struct phi_self *self, const struct ph_operation *ops, size_t n,
                 const struct phi_serve *serve, struct ph_exchange_request **out)
{
    pthread_mutex_lock(&self->lock);
    struct ph_exchange_request *request = NULL;
    await_abandoned(self, ops, n);
    int rc = check_life(self);
    if (rc)
        goto unlock;
    if (serve == NULL) // else no application waits there, so there is no circle
        note_thread(self);
    renew_peers(self, ops, n);
    // Behind that, as a new life of a peer needs new ones; and nothing behind it gives up the lock.
    rc = phi_request_exports(self, ops, n);
    if (rc == 0)
        rc = phi_request_bounces(self, ops, n);
    if (rc == 0)
        rc = check_life(self);
    if (rc == 0 && serve != NULL && !serve->stands(serve->opaque))
        rc = -ESTALE;
    if (rc)
        goto unlock;
    self->exchanges.calls++;
    request = make_request(self, n);
    if (request == NULL) {
        rc = phi_fail(self->report, -ENOMEM, "out of memory for %zu operations", n);
        goto unlock;
    }
    if ((rc = phi_request_take(request, ops))) {
        end_request(request);
        goto unlock;
    }
    int64_t deadline = phi_deadline(self->config->deadline_ms);
    if ((rc = begin(request, deadline))) {
        phi_request_give_up(request, deadline);
        end_request(request);
        goto unlock;
    }
    request->busy = false;
    *out = request;
unlock:
    note_fence(self, rc);
    pthread_mutex_unlock(&self->lock);
    return rc;
}

int phi_exchange_start(struct phi_self *self, const struct ph_operation *ops, size_t n,
                       struct ph_exchange_request **out)
{
    return start(self, ops, n, NULL, out);
}

int phi_exchange_serve(struct phi_self *self, const struct ph_operation *op,
                       const struct phi_serve *serve, struct ph_exchange_request **out)
{
    return start(self, op, 1, serve, out);
}

// The next look for a crossed order comes after half of the time that is left. If no more than this
// is left, it comes at the deadline.
#define CROSSED_LEAST (20 * PHI_MS)

static void look_for_crossed(struct ph_exchange_request *request, int64_t deadline)
{
    int64_t left = deadline - phi_now();
    request->half = left > CROSSED_LEAST ? deadline - left / 2 : deadline;
    if (!request->crossed)
        request->crossed =
            phi_request_crossed(request, request->half, request->chain, sizeof request->chain);
}

// A peer that is only late mostly comes in this time. A rank that waits longer asks each time it
// has waited twice as long.
#define ROLES_FIRST (20 * PHI_MS)

static void ask_roles(struct ph_exchange_request *request, const struct phi_pending *first)
{
    int64_t now = phi_now();
    request->roles = now + (now - request->began);
    if (first != NULL)
        phi_roles_ask(request, first);
}

// Waits for the first change, at most until the deadline; now and then it asks the peer about its
// roles, and half-way to the deadline, and again half-way from there, it looks for a crossed order.
static int wait_for_peers(struct ph_exchange_request *request, const struct progress *p,
                          uint64_t seen, int64_t deadline)
{
    struct phi_self *self = request->self;
    self->exchanges.waiting = p->first;
    int64_t until = request->half < deadline ? request->half : deadline;
    if (p->retry && p->retry < until)
        until = p->retry;
    if (request->roles < until)
        until = request->roles;
    int rc = phi_self_wait(self, seen, until);
    if (rc != -ETIMEDOUT || phi_now() >= deadline)
        return rc;
    if (phi_now() >= request->roles)
        ask_roles(request, p->first);
    if (phi_now() >= request->half) {
        look_for_crossed(request, deadline);
    }
    return 0;
}

#define HELP_MS 1000

// Its finish did not wait for us. What its rounds came to is for the next exchange of the keys.
static void end_abandoned(struct ph_exchange_request *request)
{
    request->busy = true;
    phi_request_give_up(request, phi_now());
    end_request(request);
}

// Carries the exchanges that were started and that no thread finishes yet, as a peer may finish
// those first. Their errors are told by their own finish. Returns whether something was done, after
// which the list may be another one.
static bool help_others(struct phi_self *self, int64_t deadline)
{
    int64_t soon = phi_deadline(HELP_MS); // its own thread waits for us so long at most
    for (struct ph_exchange_request *other = self->exchanges.first; other != NULL;
         other = other->next) {
        if (other->busy || other->stuck)
            continue;
        int rc = 0;
        other->busy = true;
        struct progress p = advance(other);
        bool worked = work(other, &p, soon < deadline ? soon : deadline, &rc);
        other->busy = false;
        other->stuck = rc != 0; // its own finish tries again, and tells why
        if (!worked)
            continue;
        if (other->abandoned)
            end_abandoned(other);
        phi_self_changed(self); // its own thread may wait for it
        return true;
    }
    return false;
}

// A rank that gives up a published round asks the peer about the round. The time for the answer is
// the end of the caller's own time: a small part, since a service thread answers at once or not at
// all. If the answer comes later, the next exchange of the key asks for it again.
#define ANSWER_PART 32
#define ANSWER_MOST (20 * PHI_MS)

static int64_t answer_time(int64_t left)
{
    return left / ANSWER_PART < ANSWER_MOST ? left / ANSWER_PART : ANSWER_MOST;
}

static bool is_wrong(const struct ph_exchange_request *request)
{
    return request->wrong.sure && phi_pending_waits(request->wrong.pending);
}

// Carries the request to its end; returns 0 when every operation is done, whatever came of it.
static int carry(struct ph_exchange_request *request, int64_t deadline)
{
    struct phi_self *self = request->self;
    int64_t now = phi_now();
    request->half = now + (deadline - now) / 2;
    request->crossed = false;
    request->roles = now + ROLES_FIRST;
    request->wrong = (struct phi_wrong){0};
    request->finishing = true;
    int64_t give_up = deadline - answer_time(deadline - now);
    for (;;) {
        uint64_t seen = self->changes.count;
        // We report the mismatch before its peer, which was told the same, is found to have left.
        if (is_wrong(request))
            return phi_request_mismatch(request);
        struct progress p = advance(request);
        if (p.open == 0)
            return 0;
        int rc = check_life(self);
        int64_t end = p.look ? give_up : deadline;
        if (rc == 0 && phi_now() >= end)
            rc = -ETIMEDOUT;
        if (rc || (work(request, &p, deadline, &rc) && rc))
            return rc;
        if (has_worked(&p) || help_others(self, deadline))
            continue;
        if (phi_pending_spin(p.first, end))
            continue;
        if ((rc = wait_for_peers(request, &p, seen, end)))
            return rc;
    }
}

// If an operation that goes through the store is late, the store may be to blame.
static void doubt_store(const struct ph_exchange_request *request)
{
    for (size_t i = 0; i < request->n; i++) {
        const struct phi_pending *pending = &request->pending[i];
        if (pending->state != PHI_PENDING_DONE &&
            phi_self_wanted(request->self, pending->key->peer->rank)) {
            phi_mailbox_doubt(request->self->mailbox);
            return;
        }
    }
}

static int report_open(struct ph_exchange_request *request, int rc)
{
    if (rc == PH_EMISMATCH) // whatever has become since of the peer that it is about
        return rc;
    struct progress p = advance(request);
    if (rc == -ETIMEDOUT)
        doubt_store(request);
    if (rc == -ETIMEDOUT && p.first != NULL)
        return phi_request_overdue(request, p.first, p.open);
    return rc;
}

// A round is done when its result reaches the application, not before: a call that fails for
// another operation leaves it open, and the next exchange of the key yields it. Otherwise a retry
// would wait for a round that the peer never joins.
static void end_round(struct phi_pending *pending, int rc)
{
    if (rc == 0 || (pending->concluded && pending->result == rc))
        phi_agreement_done(&pending->key->agreement);
}

static struct ph_channel *hand_out(struct phi_self *self, struct ph_channel *channel)
{
    channel->kept.handles++;
    channel->kept.used = self->exchanges.calls;
    return channel;
}

// Tells the mailbox what the peer has taken, so that it keeps no copies for ever.
static void pass_acknowledgement(struct phi_peer *peer)
{
    if (peer->segment == NULL)
        return;
    uint64_t sequence =
        atomic_load_explicit(&phi_peer_theirs(peer)->acknowledged, memory_order_acquire);
    if (sequence > peer->heard.acknowledged) {
        peer->heard.acknowledged = sequence;
        phi_mailbox_acknowledged(peer->self->mailbox, peer->rank, sequence);
    }
}

// One pass for all that is left to do: many hits are a matter of how often memory is touched.
static void conclude(struct ph_exchange_request *request, int rc, struct ph_channel **channels)
{
    struct phi_self *self = request->self;
    int last = -1;
    for (size_t i = 0; i < request->n; i++) {
        struct phi_pending *pending = &request->pending[i];
        struct phi_peer *peer = pending->key->peer;
        if (rc == 0)
            channels[i] = hand_out(self, pending->channel);
        end_round(pending, rc);
        if (peer->rank != last)
            pass_acknowledgement(peer);
        last = peer->rank;
        let_go(self, pending);
    }
    phi_count(self->counters, exchanges, rc == 0);
    drop_request(request);
}

static int end(struct ph_exchange_request *request, int rc, struct ph_channel **channels,
               int64_t deadline)
{
    struct phi_self *self = request->self;
    if (rc) {
        rc = report_open(request, rc);
        phi_request_give_up(request, deadline);
    }
    // A peer may have come in the very last moment: then all is well after all.
    rc = request->failed ? phi_request_tell(request, rc) : 0;
    note_fence(self, rc);
    conclude(request, rc, channels);
    phi_self_awake(self);
    phi_self_changed(self); // another thread that waits may now receive
    return rc;
}

static int abandon(struct ph_exchange_request *request)
{
    struct phi_self *self = request->self;
    size_t open = 0;
    request->abandoned = true;
    while (open + 1 < request->n && request->pending[open].state == PHI_PENDING_DONE)
        open++;
    const struct phi_key *key = request->pending[open].key;
    return phi_fail(self->report, -ETIMEDOUT,
                    "after %lld ms another thread of rank %d, which carries this exchange of %zu "
                    "operations on, still connects, sends or maps for it: operation %llu with rank "
                    "%d is not over",
                    (long long)((phi_now() - request->began) / PHI_MS), self->rank, request->n,
                    (unsigned long long)key->op_id, key->peer->rank);
}

int phi_exchange_finish(struct ph_exchange_request *request, struct ph_channel **channels,
                        int64_t deadline)
{
    struct phi_self *self = request->self;
    pthread_mutex_lock(&self->lock);
    note_thread(self);
    while (request->busy && phi_now() < deadline)
        phi_self_follow(self, deadline); // another thread helps
    if (request->busy) {
        int rc = abandon(request);
        pthread_mutex_unlock(&self->lock);
        return rc;
    }
    request->busy = true;
    int rc = carry(request, deadline);
    self->exchanges.waiting = NULL;
    rc = end(request, rc, channels, deadline);
    pthread_mutex_unlock(&self->lock);
    return rc;
}

int phi_exchange_poll(struct ph_exchange_request *request, struct ph_channel **channel,
                      int64_t deadline)
{
    struct phi_self *self = request->self;
    if (request->busy)
        return -EAGAIN; // a thread of the application helps
    request->busy = true;
    request->wrong = (struct phi_wrong){0};
    const int64_t soon = phi_deadline(HELP_MS);
    int rc = 0;
    struct progress p = advance(request);
    if (p.open > 0 && (rc = check_life(self)) == 0) {
        if (work(request, &p, soon < deadline ? soon : deadline, &rc))
            p = advance(request);
        // A step that took longer than HELP_MS is tried again, as a finish would.
        if ((rc == 0 || rc == -ETIMEDOUT) && p.open > 0 && phi_now() < deadline) {
            request->busy = false;
            return -EAGAIN;
        }
        rc = rc || p.open == 0 ? rc : -ETIMEDOUT;
    }
    return end(request, rc, channel, deadline);
}
