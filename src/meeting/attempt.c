// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/attempt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "rules/outcomes.h"

// How long one attempt waits for the peer's outcome, and between two questions.
#define ATTEMPT_MS 1000
#define ASK_NS     PHI_MS

// The end of the rank that answers, as an answer gives it in b.
enum end {
    END_NONE,
    END_LEFT,
    END_ABORTED,
    END_COUNT,
};

struct phi_attempt {
    struct phi_attempt *next; // of self->trials.former
    uint64_t life;            // of the peer
    int64_t quick;            // until when this rank asks in each millisecond, 0: it has not asked
    bool trying;              // a thread maps now, without the lock
    bool answered;            // the peer has, in that life
    uint8_t end;              // enum end, as it said
    struct phi_outcomes outcomes;
    struct phi_import *import; // of the peer's probe allocation, or NULL
};

// ---- lives

// A mapped allocation stays until a reap, as closing it could block.
static void lay_aside(struct phi_peer *peer)
{
    struct phi_attempt *attempt = peer->trial.attempt;
    peer->trial.attempt = NULL;
    if (!attempt->trying && attempt->import == NULL) {
        free(attempt);
        return;
    }
    attempt->next = peer->self->trials.former;
    peer->self->trials.former = attempt;
}

// The attempt with this life of the peer, made at first use; NULL: *rc is -ESTALE or -ENOMEM.
static struct phi_attempt *of_life(struct phi_peer *peer, uint64_t life, int *rc)
{
    struct phi_attempt *attempt = peer->trial.attempt;
    if (attempt != NULL && attempt->life == life)
        return attempt;
    *rc = -ESTALE;
    if (life < peer->incarnation || (attempt != NULL && life < attempt->life))
        return NULL;
    *rc = -ENOMEM;
    struct phi_attempt *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    made->life = life;
    if (attempt != NULL)
        lay_aside(peer);
    peer->trial.attempt = made;
    return made;
}

static const struct phi_attempt *present(const struct phi_peer *peer)
{
    const struct phi_attempt *attempt = peer->trial.attempt;
    return attempt != NULL && attempt->life == peer->incarnation ? attempt : NULL;
}

enum phi_reason phi_attempt_against(const struct phi_peer *peer)
{
    const struct phi_attempt *attempt = present(peer);
    return attempt ? phi_outcomes_against(&attempt->outcomes) : PHI_REASON_NONE;
}

bool phi_attempt_answered(const struct phi_peer *peer)
{
    const struct phi_attempt *attempt = present(peer);
    return attempt != NULL && attempt->answered;
}

bool phi_attempt_waits(const struct phi_peer *peer)
{
    return phi_attempt_answered(peer) && !peer->trial.attempt->outcomes.told;
}

bool phi_attempt_trying(const struct phi_peer *peer)
{
    return peer->trial.attempt != NULL && peer->trial.attempt->trying;
}

int phi_attempt_end(const struct phi_peer *peer)
{
    const struct phi_attempt *attempt = present(peer);
    if (attempt == NULL || attempt->end == END_NONE)
        return 0;
    return attempt->end == END_ABORTED ? PH_EBROKEN : PH_EPEER;
}

void phi_attempt_renew(struct phi_peer *peer)
{
    if (peer->trial.attempt != NULL && peer->trial.attempt->life < peer->incarnation)
        lay_aside(peer);
}

void phi_attempt_keep(struct phi_peer *peer)
{
    if (present(peer) == NULL || peer->trial.probe != NULL)
        return;
    peer->trial.probe = peer->trial.attempt->import;
    peer->trial.attempt->import = NULL;
}

// ---- trying

// Without the lock; the attempt is marked as trying. -ENOMEM: that is no outcome.
static int try(struct phi_self *self, struct phi_attempt *attempt, const uint8_t *record,
               size_t size)
{
    struct phi_import *import = NULL;
    // A peer may claim as its own what is memory of this process. The attempt does not map that;
    // the mapping in earnest finds it out.
    int rc = phi_memory_own(self->memory, record, size)
                 ? -EBADMSG
                 : phi_memory_import(self->memory, record, size, -1, &import);
    pthread_mutex_lock(&self->lock);
    attempt->trying = false;
    attempt->import = import;
    if (rc != -ENOMEM)
        phi_outcomes_try(&attempt->outcomes, phi_outcome_of(rc));
    phi_self_changed(self);
    pthread_mutex_unlock(&self->lock);
    return rc == -ENOMEM ? rc : 0;
}

static void *run(void *opaque)
{
    struct phi_self *self = opaque;
    struct phi_trier *trier = &self->trials.trier;
    try(self, trier->attempt, trier->record, trier->size);
    pthread_mutex_lock(&self->lock);
    trier->busy = false;
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

// One attempt maps at a time. A peer whose question finds the thread busy asks again.
static void begin(struct phi_self *self, struct phi_attempt *attempt,
                  const struct phi_node_message *request)
{
    struct phi_trier *trier = &self->trials.trier;
    if (trier->busy)
        return;
    if (trier->made)
        pthread_join(trier->thread, NULL); // past its last use of the lock
    memcpy(trier->record, request->bytes, request->bytes_size);
    trier->size = request->bytes_size;
    trier->attempt = attempt;
    int rc = phi_thread_start(&trier->thread, "peerhop-try", run, self);
    trier->made = trier->busy = attempt->trying = rc == 0;
    if (rc)
        phi_log(self->report, PH_LOG_WARN, "no thread to try whether ipc serves: %s",
                ph_strerror(rc));
}

void phi_attempt_stop(struct phi_self *self)
{
    if (self->trials.trier.made)
        pthread_join(self->trials.trier.thread, NULL);
    self->trials.trier.made = false;
    while (self->trials.former != NULL) {
        struct phi_attempt *attempt = self->trials.former;
        self->trials.former = attempt->next;
        phi_attempt_free(attempt);
    }
}

// ---- questions and answers

static void put_record(const struct phi_self *self, struct phi_node_message *message)
{
    const struct phi_export *e = &self->trials.target.export_;
    memcpy(message->bytes, e->record, e->record_size);
    message->bytes_size = (uint32_t)e->record_size;
}

int phi_attempt_answer(struct phi_peer *peer, const struct phi_node_message *request,
                       struct phi_node_message *answer)
{
    struct phi_self *self = peer->self;
    int rc = 0;
    if (self->device == NULL)
        return -EBADMSG; // there is no doubt
    struct phi_attempt *attempt = of_life(peer, request->from, &rc);
    if (attempt == NULL || (rc = phi_outcomes_file(&attempt->outcomes, request->a)))
        return rc;
    answer->b = self->end.aborted                       ? END_ABORTED
                : self->end.leaving || self->end.fenced ? END_LEFT
                                                        : END_NONE;
    if (!attempt->outcomes.tried && !attempt->trying)
        begin(self, attempt, request);
    answer->a = phi_outcomes_word(&attempt->outcomes);
    put_record(self, answer);
    return 0;
}

// The lock is held. What the peer says is whatever bytes it likes.
static int file(struct phi_peer *peer, const struct phi_node_message *answer)
{
    int rc = 0;
    struct phi_attempt *attempt = of_life(peer, peer->incarnation, &rc);
    if (attempt == NULL)
        return rc;
    if (answer->b >= END_COUNT || phi_outcomes_file(&attempt->outcomes, answer->a))
        return -EBADMSG;
    attempt->answered = true;
    attempt->end = (uint8_t)answer->b;
    return 0;
}

// Without the lock. *answer holds the record of the peer's probe allocation.
static int ask(struct phi_peer *peer, int socket, struct phi_node_message *answer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    struct phi_node_message request;
    int fd = -1, rc = 0;
    phi_peer_message(peer, PHI_NODE_ATTEMPT, &request);
    put_record(self, &request);
    pthread_mutex_lock(&self->lock);
    const struct phi_attempt *attempt = of_life(peer, peer->incarnation, &rc);
    request.a = attempt ? phi_outcomes_word(&attempt->outcomes) : 0;
    pthread_mutex_unlock(&self->lock);
    if (attempt == NULL)
        return rc;
    rc = phi_node_call(socket, &request, answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    if (rc)
        return rc;
    if (answer->status != 0) // of all that a rank can be told two are said by those that mean well
        return answer->status == -ESTALE || answer->status == -ENOMEM ? answer->status : -EBADMSG;
    pthread_mutex_lock(&self->lock);
    rc = file(peer, answer);
    pthread_mutex_unlock(&self->lock);
    return rc;
}

int phi_attempt_ask(struct phi_peer *peer, int socket, int64_t deadline)
{
    struct phi_node_message answer;
    return ask(peer, socket, &answer, deadline);
}

static bool over(const struct phi_self *self)
{
    return self->end.aborted || self->end.fenced || self->end.leaving;
}

// Without the lock: the part that is this rank's, or a pause. 0: again.
static int do_part(struct phi_peer *peer, const struct phi_node_message *answer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    int rc = 0;
    pthread_mutex_lock(&self->lock);
    struct phi_attempt *attempt = of_life(peer, peer->incarnation, &rc);
    const bool ended = attempt == NULL || attempt->end != END_NONE || over(self);
    const bool due = !ended && !attempt->outcomes.tried && !attempt->trying;
    const bool settled = !ended && phi_outcomes_settled(&attempt->outcomes);
    if (due)
        attempt->trying = true;
    pthread_mutex_unlock(&self->lock);
    if (due)
        return try(self, attempt, answer->bytes, answer->bytes_size);
    if (rc == 0 && !settled && (ended || phi_now() >= deadline))
        return -EAGAIN;
    if (rc == 0 && !settled)
        nanosleep(&(struct timespec){.tv_nsec = ASK_NS}, NULL);
    return rc;
}

static bool is_open(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    pthread_mutex_lock(&self->lock);
    const struct phi_attempt *attempt = present(peer);
    const bool open = phi_path_doubt(&self->mine, &peer->theirs) && !peer->contact.net_refused &&
                      (attempt == NULL || !phi_outcomes_settled(&attempt->outcomes));
    pthread_mutex_unlock(&self->lock);
    return open;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// quick_until returns until when this rank asks again and again. After that it asks once per call,
// as the caller has other things to do as well.
static int64_t quick_until(struct phi_peer *peer)
{
    struct phi_self *self = peer->self;
    int64_t until = 0;
    int rc;
    pthread_mutex_lock(&self->lock);
    struct phi_attempt *attempt = of_life(peer, peer->incarnation, &rc);
    if (attempt != NULL && attempt->quick == 0)
        attempt->quick = phi_deadline(ATTEMPT_MS);
    if (attempt != NULL)
        until = attempt->quick;
    pthread_mutex_unlock(&self->lock);
    return until;
}

int phi_attempt_make(struct phi_peer *peer, int socket, int64_t deadline)
{
    struct phi_node_message answer;
    const int64_t until = earlier(quick_until(peer), deadline);
    const int64_t answered = earlier(phi_deadline(ATTEMPT_MS), deadline);
    int rc = 0;
    bool heard = false;
    while (rc == 0 && is_open(peer)) {
        rc = ask(peer, socket, &answer, answered);
        heard = heard || rc == 0;
        if (rc == 0)
            rc = do_part(peer, &answer, until);
    }
    return rc == -ETIMEDOUT && heard ? -EAGAIN : rc;
}

// ---- ends

void phi_attempt_free(struct phi_attempt *attempt)
{
    if (attempt == NULL)
        return;
    phi_memory_import_close(attempt->import);
    free(attempt);
}

// Gives up the lock where something is mapped. Returns whether it stays so for want of `blocking`.
static bool unmap(struct phi_self *self, struct phi_attempt *attempt, bool blocking)
{
    if (attempt == NULL || attempt->import == NULL)
        return false;
    struct phi_import *import = attempt->import;
    if (!blocking && phi_memory_import_blocks(import))
        return true;
    attempt->import = NULL;
    pthread_mutex_unlock(&self->lock);
    phi_memory_import_close(import);
    pthread_mutex_lock(&self->lock);
    return false;
}

bool phi_attempt_reap(struct phi_self *self, bool blocking)
{
    bool left = false;
    for (int rank = 0; rank < self->ranks; rank++)
        if (self->table[rank] != NULL)
            left = unmap(self, self->table[rank]->trial.attempt, blocking) || left;
    for (struct phi_peer *peer = self->lives.former; peer != NULL; peer = peer->life.former) {
        peer->life.visitors++; // it stays, and what follows it on the list is read afterwards
        left = unmap(self, peer->trial.attempt, blocking) || left;
        peer->life.visitors--;
    }
    for (struct phi_attempt **at = &self->trials.former; *at != NULL;) {
        struct phi_attempt *attempt = *at;
        if (attempt->trying || !blocking) {
            left = left || !attempt->trying;
            at = &attempt->next;
            continue;
        }
        *at = attempt->next;
        pthread_mutex_unlock(&self->lock);
        phi_attempt_free(attempt);
        pthread_mutex_lock(&self->lock);
        at = &self->trials.former;
    }
    return left;
}
