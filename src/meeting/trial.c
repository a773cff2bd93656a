// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/trial.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/thread.h"
#include "meeting/import.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"
#include "rules/outcomes.h"

// How long one call tries to get the peer's outcome, and the pause between two questions.
#define TRY_MS 1000
#define ASK_NS PHI_MS

// The end of the rank that answers, as an answer gives it in b.
enum end {
    END_NONE,
    END_LEFT,
    END_ABORTED,
    END_COUNT,
};

// The trial with one life of a peer.
struct phi_trial {
    struct phi_trial *next;    // of self->trials.former
    uint64_t life;             // of the peer
    struct phi_import *import; // of the peer's trial memory, or NULL
    bool joined;               // ipc joins the pair: the import stays for the verify step

    // The try step.
    int64_t quick; // until when this rank asks in each millisecond, 0: it has not asked
    bool trying;   // a thread maps now, without the lock
    bool answered; // the peer has, in that life
    uint8_t end;   // enum end, as it said
    struct phi_outcomes outcomes;

    // The verify step.
    uint32_t verifiers; // threads that verify, or wait for the one that does
    bool verifying;     // a thread verifies now, without the lock
    bool verified;
    enum phi_reason reason; // valid where verified
    uint64_t seed;          // of the pattern that was written; 0: none
};

// ---- lives

// Takes a trial out of the peer. One that maps something stays until a reap, as closing that could
// block; one that a thread is at work with stays, too.
static void drop_trial(struct phi_self *self, struct phi_trial **at)
{
    struct phi_trial *trial = *at;
    *at = NULL;
    if (!trial->trying && trial->verifiers == 0 && trial->import == NULL) {
        free(trial);
        return;
    }
    trial->next = self->trials.former;
    self->trials.former = trial;
}

// Makes a trial in the place of an older one. NULL: no memory.
static struct phi_trial *make_trial(struct phi_self *self, struct phi_trial **at, uint64_t life)
{
    struct phi_trial *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    made->life = life;
    if (*at != NULL)
        drop_trial(self, at);
    *at = made;
    return made;
}

// The trial with this life of the peer, made at first use. NULL: *rc is -ESTALE or -ENOMEM, else 0.
static struct phi_trial *of_life(struct phi_peer *peer, uint64_t life, int *rc)
{
    const struct phi_trial *later = peer->trials.later;
    struct phi_trial **at = life == peer->incarnation ? &peer->trials.present : &peer->trials.later;
    *rc = -ESTALE;
    if (life < peer->incarnation || (later != NULL && life < later->life))
        return NULL;
    struct phi_trial *trial =
        *at != NULL && (*at)->life == life ? *at : make_trial(peer->self, at, life);
    *rc = trial != NULL ? 0 : -ENOMEM;
    return trial;
}

enum phi_reason phi_trial_against(const struct phi_peer *peer)
{
    const struct phi_trial *trial = peer->trials.present;
    return trial ? phi_outcomes_against(&trial->outcomes) : PHI_REASON_NONE;
}

bool phi_trial_answered(const struct phi_peer *peer)
{
    const struct phi_trial *trial = peer->trials.present;
    return trial != NULL && trial->answered;
}

bool phi_trial_waits(const struct phi_peer *peer)
{
    return phi_trial_answered(peer) && !peer->trials.present->outcomes.told;
}

bool phi_trial_trying(const struct phi_peer *peer)
{
    const struct phi_trial *present = peer->trials.present, *later = peer->trials.later;
    return (present != NULL && present->trying) || (later != NULL && later->trying);
}

int phi_trial_end(const struct phi_peer *peer)
{
    const struct phi_trial *trial = peer->trials.present;
    if (trial == NULL || trial->end == END_NONE)
        return 0;
    return trial->end == END_ABORTED ? PH_EBROKEN : PH_EPEER;
}

void phi_trial_renew(struct phi_peer *peer)
{
    struct phi_peer_trials *trials = &peer->trials;
    if (trials->present != NULL && trials->present->life < peer->incarnation)
        drop_trial(peer->self, &trials->present);
    if (trials->later != NULL && trials->later->life == peer->incarnation) {
        trials->present = trials->later;
        trials->later = NULL;
    } else if (trials->later != NULL && trials->later->life < peer->incarnation) {
        drop_trial(peer->self, &trials->later);
    }
}

void phi_trial_inherit(struct phi_peer *renewed, struct phi_peer *former)
{
    renewed->trials.later = former->trials.later;
    former->trials.later = NULL;
}

void phi_trial_join(struct phi_peer *peer)
{
    if (peer->trials.present != NULL)
        peer->trials.present->joined = true;
}

// ---- the try step

// Without the lock; the trial is marked as trying. -ENOMEM: that is no outcome.
static int try_memory(struct phi_self *self, struct phi_trial *trial, const uint8_t *record,
                      size_t size)
{
    struct phi_import *import = NULL;
    // A peer may claim as its own what is memory of this process. The try does not map that;
    // the verify step finds it out.
    int rc = phi_memory_own(self->memory, record, size)
                 ? -EBADMSG
                 : phi_memory_import(self->memory, record, size, -1, &import);
    pthread_mutex_lock(&self->lock);
    trial->trying = false;
    // A peer may ask after the pair was joined without a try. The verify step has its own mapping.
    if (!trial->verifying && trial->import == NULL) {
        trial->import = import;
        import = NULL;
    }
    if (rc != -ENOMEM)
        phi_outcomes_try(&trial->outcomes, phi_outcome_of(rc));
    phi_self_changed(self);
    pthread_mutex_unlock(&self->lock);
    phi_memory_import_close(import);
    return rc == -ENOMEM ? rc : 0;
}

static void *run(void *opaque)
{
    struct phi_self *self = opaque;
    struct phi_trier *trier = &self->trials.trier;
    try_memory(self, trier->trial, trier->record, trier->size);
    pthread_mutex_lock(&self->lock);
    trier->busy = false;
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

// The thread maps for one trial at a time. A peer whose question finds it busy asks again.
static void begin(struct phi_self *self, struct phi_trial *trial,
                  const struct phi_node_message *request)
{
    struct phi_trier *trier = &self->trials.trier;
    if (trier->busy)
        return;
    if (trier->made)
        pthread_join(trier->thread, NULL); // past its last use of the lock
    memcpy(trier->record, request->bytes, request->bytes_size);
    trier->size = request->bytes_size;
    trier->trial = trial;
    int rc = phi_thread_start(&trier->thread, "peerhop-try", run, self);
    trier->made = trier->busy = trial->trying = rc == 0;
    if (rc)
        phi_log(self->report, PH_LOG_WARN, "no thread to try whether ipc serves: %s",
                ph_strerror(rc));
}

// ---- questions and answers

static void put_record(const struct phi_self *self, struct phi_node_message *message)
{
    const struct phi_export *e = &self->trials.memory.export_;
    memcpy(message->bytes, e->record, e->record_size);
    message->bytes_size = (uint32_t)e->record_size;
}

int phi_trial_answer(struct phi_peer *peer, const struct phi_node_message *request,
                     struct phi_node_message *answer)
{
    struct phi_self *self = peer->self;
    int rc = 0;
    if (self->device == NULL)
        return -EBADMSG; // there is no doubt
    struct phi_trial *trial = of_life(peer, request->from, &rc);
    if (trial == NULL || (rc = phi_outcomes_file(&trial->outcomes, request->a)))
        return rc;
    answer->b = self->end.aborted                       ? END_ABORTED
                : self->end.leaving || self->end.fenced ? END_LEFT
                                                        : END_NONE;
    if (!trial->outcomes.tried && !trial->trying)
        begin(self, trial, request);
    answer->a = phi_outcomes_word(&trial->outcomes);
    put_record(self, answer);
    return 0;
}

// The lock is held. What the peer says is whatever bytes it likes.
static int file(struct phi_peer *peer, const struct phi_node_message *answer)
{
    int rc = 0;
    struct phi_trial *trial = of_life(peer, peer->incarnation, &rc);
    if (trial == NULL)
        return rc;
    if (answer->b >= END_COUNT || phi_outcomes_file(&trial->outcomes, answer->a))
        return -EBADMSG;
    trial->answered = true;
    trial->end = (uint8_t)answer->b;
    return 0;
}

// Without the lock. *answer gets the record of the peer's trial memory.
static int ask(struct phi_peer *peer, int socket, struct phi_node_message *answer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    struct phi_node_message request;
    int fd = -1, rc = 0;
    phi_peer_message(peer, PHI_NODE_TRIAL, &request);
    put_record(self, &request);
    pthread_mutex_lock(&self->lock);
    const struct phi_trial *trial = of_life(peer, peer->incarnation, &rc);
    request.a = trial ? phi_outcomes_word(&trial->outcomes) : 0;
    pthread_mutex_unlock(&self->lock);
    if (trial == NULL)
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

int phi_trial_ask(struct phi_peer *peer, int socket, int64_t deadline)
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
    struct phi_trial *trial = of_life(peer, peer->incarnation, &rc);
    const bool ended = trial == NULL || trial->end != END_NONE || over(self);
    const bool due = !ended && !trial->outcomes.tried && !trial->trying;
    const bool settled = !ended && phi_outcomes_settled(&trial->outcomes);
    if (due)
        trial->trying = true;
    pthread_mutex_unlock(&self->lock);
    if (due)
        return try_memory(self, trial, answer->bytes, answer->bytes_size);
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
    const struct phi_trial *trial = peer->trials.present;
    const bool open = phi_path_doubt(&self->mine, &peer->theirs) && !peer->contact.net_refused &&
                      (trial == NULL || !phi_outcomes_settled(&trial->outcomes));
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
    struct phi_trial *trial = of_life(peer, peer->incarnation, &rc);
    if (trial != NULL && trial->quick == 0)
        trial->quick = phi_deadline(TRY_MS);
    if (trial != NULL)
        until = trial->quick;
    pthread_mutex_unlock(&self->lock);
    return until;
}

int phi_trial_try(struct phi_peer *peer, int socket, int64_t deadline)
{
    struct phi_node_message answer;
    const int64_t until = earlier(quick_until(peer), deadline);
    const int64_t answered = earlier(phi_deadline(TRY_MS), deadline);
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

// ---- the verify step

#define ASK_AGAIN_MS 20

// ask_again calls again where no answer came in time: a process, or a device, that is busy there
// says nothing of the path. It stops at the deadline, or at the end of the peer or of this rank.
static int ask_again(struct phi_peer *peer, struct phi_node_message *request,
                     struct phi_node_message *answer, int *fd, int64_t deadline)
{
    struct phi_self *self = peer->self;
    for (;;) {
        int rc = phi_import_call(peer, request, answer, fd, phi_import_deadline(deadline));
        if (rc != -ETIMEDOUT || phi_now() >= deadline)
            return rc;
        pthread_mutex_lock(&self->lock);
        const bool over = self->end.aborted || self->end.fenced || self->end.leaving ||
                          peer->state == PHI_PEER_BROKEN;
        pthread_mutex_unlock(&self->lock);
        if (over)
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_MS * PHI_MS}, NULL);
    }
}

// Without the lock: maps the peer's trial memory unless it is mapped, writes a pattern there, and
// asks the owner whether it sees that.
static enum phi_reason verify_pattern(struct phi_peer *peer, struct phi_trial *trial,
                                      int64_t deadline)
{
    struct phi_self *self = peer->self;
    struct phi_node_message request, answer;
    int fd;
    int rc;
    if (trial->import == NULL) { // else of the try step, or of a verify step that was cut short
        phi_peer_message(peer, PHI_NODE_TRIAL_MEMORY, &request);
        rc = ask_again(peer, &request, &answer, &fd, deadline);
        if (rc)
            return phi_import_reason_of_call(rc);
        rc = phi_import_from(peer, answer.bytes, answer.bytes_size, fd, &trial->import);
        enum phi_reason reason = phi_import_reason(rc == -EIO ? PH_EDRIVER : rc);
        if (fd >= 0)
            close(fd);
        if (reason != PHI_REASON_NONE)
            return reason;
    }
    uint64_t offset = (uint64_t)(self->rank % PHI_TRIAL_PATTERNS) * PHI_TRIAL_SIZE, seed;
    if (offset + PHI_TRIAL_SIZE > trial->import->size)
        return PHI_REASON_RECORD;
    if (trial->seed == 0) { // else its owner may still look for the pattern of a call before
        phi_random(&seed, sizeof seed);
        rc = phi_trial_memory_write(self->device, (char *)trial->import->address + offset, seed | 1,
                                    deadline);
        if (rc)
            return phi_import_reason_of(rc);
        trial->seed = seed | 1;
    }
    phi_peer_message(peer, PHI_NODE_VERIFY, &request);
    request.a = offset;
    request.b = trial->seed;
    rc = ask_again(peer, &request, &answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    return rc ? phi_import_reason_of(rc) : PHI_REASON_NONE;
}

// With the lock, given up in between. Returns whether this thread is to verify, and else in *reason
// what came of it.
static bool await_verifier(struct phi_self *self, struct phi_trial *trial, int64_t callers,
                           enum phi_reason *reason)
{
    while (trial->verifying && phi_now() < callers)
        phi_self_follow(self, callers);
    *reason = trial->verifying ? PHI_REASON_TRIAL_DEADLINE : trial->reason; // cut short
    return !trial->verifying && !trial->verified;
}

static struct phi_trial *to_verify(struct phi_peer *peer)
{
    struct phi_trial *trial = peer->trials.present;
    if (trial == NULL)
        trial = make_trial(peer->self, &peer->trials.present, peer->incarnation);
    if (trial != NULL)
        trial->joined = true;
    return trial;
}

enum phi_reason phi_trial_verify(struct phi_peer *peer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    enum phi_reason reason = PHI_REASON_MEMORY;
    pthread_mutex_lock(&self->lock);
    struct phi_trial *trial = to_verify(peer);
    if (trial != NULL) {
        trial->verifiers++;
        if (await_verifier(self, trial, deadline, &reason)) {
            trial->verifying = true;
            pthread_mutex_unlock(&self->lock);
            reason = verify_pattern(peer, trial, deadline);
            pthread_mutex_lock(&self->lock);
            trial->verifying = false;
            trial->verified = !phi_import_cut_short(reason, deadline) && !phi_reason_passes(reason);
            trial->reason = reason;
            phi_self_changed(self);
        }
        trial->verifiers--;
    }
    pthread_mutex_unlock(&self->lock);
    return reason;
}

// ---- ends

static void end_trial(struct phi_trial *trial)
{
    if (trial == NULL)
        return;
    phi_memory_import_close(trial->import);
    free(trial);
}

void phi_trial_free(struct phi_peer *peer)
{
    end_trial(peer->trials.present);
    end_trial(peer->trials.later);
}

// Gives up the lock where something is mapped. Returns whether it stays so for want of `blocking`.
static bool unmap_trial(struct phi_self *self, struct phi_trial *trial, bool blocking)
{
    if (trial == NULL || trial->import == NULL || trial->verifying)
        return false;
    struct phi_import *import = trial->import;
    if (!blocking && phi_memory_import_blocks(import))
        return true;
    trial->import = NULL;
    pthread_mutex_unlock(&self->lock);
    phi_memory_import_close(import);
    pthread_mutex_lock(&self->lock);
    return false;
}

bool phi_trial_reap(struct phi_peer *peer, bool joined, bool blocking)
{
    struct phi_trial *present = peer->trials.present;
    bool left = false;
    if (present != NULL && (joined || !present->joined))
        left = unmap_trial(peer->self, present, blocking);
    return unmap_trial(peer->self, peer->trials.later, blocking) || left;
}

bool phi_trial_reap_former(struct phi_self *self, bool blocking)
{
    bool left = false;
    for (struct phi_trial **at = &self->trials.former; *at != NULL;) {
        struct phi_trial *trial = *at;
        const bool used = trial->trying || trial->verifiers > 0;
        if (used || !blocking) {
            left = left || !used;
            at = &trial->next;
            continue;
        }
        *at = trial->next;
        pthread_mutex_unlock(&self->lock);
        end_trial(trial);
        pthread_mutex_lock(&self->lock);
        at = &self->trials.former;
    }
    return left;
}

void phi_trial_stop(struct phi_self *self)
{
    if (self->trials.trier.made)
        pthread_join(self->trials.trier.thread, NULL);
    self->trials.trier.made = false;
    while (self->trials.former != NULL) {
        struct phi_trial *trial = self->trials.former;
        self->trials.former = trial->next;
        end_trial(trial);
    }
}
