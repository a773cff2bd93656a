// SPDX-License-Identifier: BSD-3-Clause
#include "store/mailbox.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/backend.h"
#include "store/envelope.h"
#include "store/gate.h"
#include "store/inbox.h"
#include "store/outbox.h"

enum {
    JOB_MAX = 100,
    LATE_MOST = 256,     // deliveries looked at after the deadline, which may be now
    NUMBER_TRIES = 24,   // of finding a number that the store accepts
    RESEND_PAUSE = 250,  // ms between attempts of a receiver to put again what the store refuses
    RESEND_FIRST = 1000, // ms that a receiver gives such an attempt at first ...
    RESEND_MOST = 30000, // ... and at most
    RESEND_WOKEN = 4,    // attempts in a row that a wake ended; then one that none ends,
    RESEND_SHORT = 20,   // of so many ms
    DOUBT_LEAST = 20,    // ms that a receive must have left to begin anew
};

struct phi_mailbox {
    struct phi_mailbox_params params; // job and callbacks are copies
    struct ph_store_callbacks callbacks;
    const struct phi_store_ops *ops;
    struct phi_store *store;

    struct phi_gate gate; // guards what sends: the outboxes, the record, the commands of the store
    struct phi_outbox *outboxes;
    uint8_t *record;
    size_t record_size;
    bool record_stored;

    atomic_bool unstored;  // something kept is not in the store
    atomic_bool forgotten; // the store may have lost everything: no outbox knows it yet
    atomic_bool fenced;
    atomic_bool doubted; // see phi_mailbox_doubt

    // the receiver's
    struct phi_inbox *inboxes;
    struct phi_held *spare; // for the next message: what the store has given it does not give again
    int ready;              // the only inbox that may have a message to hand out
    int64_t resend_at;      // not before
    int64_t resend_ms;      // time for the next attempt
    int resend_woken;       // attempts in a row that a wake ended
    char job[JOB_MAX + 1];
};

void phi_mailbox_message_free(struct phi_message *message)
{
    if (message->bytes)
        free((uint8_t *)message->bytes - PHI_ENVELOPE_SIZE); // handed out by hand_out()
    *message = (struct phi_message){0};
}

// ---- open and close

static void prune_all(struct phi_mailbox *mailbox)
{
    for (int rank = 0; rank < mailbox->params.ranks; rank++)
        phi_outbox_prune(&mailbox->outboxes[rank]);
}

static int check_params(const struct phi_mailbox_params *params)
{
    size_t length = strlen(params->job);
    if (length < 1 || length > JOB_MAX)
        return phi_fail(params->report, -EINVAL, "the job's name has %zu bytes, not 1 to %d",
                        length, JOB_MAX);
    for (const char *c = params->job; *c; c++)
        if (*c < 0x20 || *c > 0x7e)
            return phi_fail(params->report, -EINVAL, "the job's name is not printable ASCII");
    if (params->rank < 0 || params->rank >= params->ranks || params->incarnation == 0)
        return phi_fail(params->report, -EINVAL,
                        "rank %d of %d, incarnation %" PRIu64 ": not a member", params->rank,
                        params->ranks, params->incarnation);
    return 0;
}

static void mailbox_free(struct phi_mailbox *mailbox)
{
    for (int rank = 0; rank < mailbox->params.ranks; rank++) {
        if (mailbox->inboxes)
            phi_inbox_fini(&mailbox->inboxes[rank]);
        if (mailbox->outboxes)
            phi_outbox_fini(&mailbox->outboxes[rank]);
    }
    free(mailbox->spare);
    free(mailbox->inboxes);
    free(mailbox->outboxes);
    free(mailbox->record);
    phi_gate_fini(&mailbox->gate);
    free(mailbox);
}

static struct phi_mailbox *mailbox_new(const struct phi_mailbox_params *params)
{
    struct phi_mailbox *mailbox = calloc(1, sizeof(*mailbox));
    if (!mailbox)
        return NULL;
    if (phi_gate_init(&mailbox->gate) != 0) {
        free(mailbox);
        return NULL;
    }
    mailbox->params = *params;
    memcpy(mailbox->job, params->job, strlen(params->job) + 1);
    mailbox->params.job = mailbox->job;
    if (params->callbacks) {
        mailbox->callbacks = *params->callbacks;
        mailbox->params.callbacks = &mailbox->callbacks;
    }
    mailbox->ops = params->callbacks ? &phi_store_callbacks : &phi_store_redis;
    mailbox->resend_ms = RESEND_FIRST;
    mailbox->inboxes = calloc((size_t)params->ranks, sizeof(*mailbox->inboxes));
    mailbox->outboxes = calloc((size_t)params->ranks, sizeof(*mailbox->outboxes));
    if (mailbox->inboxes && mailbox->outboxes)
        return mailbox;
    mailbox_free(mailbox);
    return NULL;
}

int phi_mailbox_open(const struct phi_mailbox_params *params, int64_t deadline,
                     struct phi_mailbox **mailbox)
{
    int result = check_params(params);
    if (result)
        return result;
    struct phi_mailbox *made = mailbox_new(params);
    if (!made)
        return phi_fail(params->report, -ENOMEM, "no memory for the mailboxes of %d ranks",
                        params->ranks);
    result = made->ops->open(&made->params, deadline, &made->store);
    if (result) {
        mailbox_free(made);
        return result;
    }
    *mailbox = made;
    return 0;
}

void phi_mailbox_close(struct phi_mailbox *mailbox, int64_t deadline)
{
    if (!mailbox)
        return;
    bool *done = calloc((size_t)mailbox->params.ranks, sizeof(*done));
    prune_all(mailbox);
    for (int rank = 0; done && rank < mailbox->params.ranks; rank++)
        done[rank] = !mailbox->outboxes[rank].first;
    mailbox->ops->close(mailbox->store, done, deadline);
    free(done);
    mailbox_free(mailbox);
}

// ---- sending; all but the public functions run inside the gate

static void forget(struct phi_mailbox *mailbox)
{
    atomic_store(&mailbox->forgotten, true);
    atomic_store(&mailbox->unstored, true);
}

// mark_unstored does not prune: a sender up the stack holds on to what it has just appended.
static void mark_unstored(struct phi_mailbox *mailbox)
{
    mailbox->record_stored = false;
    for (int rank = 0; rank < mailbox->params.ranks; rank++)
        phi_outbox_forgotten(&mailbox->outboxes[rank]);
}

static int put(struct phi_mailbox *mailbox, int peer, struct phi_kept *kept, int64_t deadline)
{
    for (int tries = 0; tries < NUMBER_TRIES; tries++) {
        int result = mailbox->ops->put(mailbox->store, peer, kept->number, kept->bytes, kept->size,
                                       deadline);
        if (result == 0)
            kept->stored = true;
        if (result != -EEXIST)
            return result;
        // Something else is there. Twice as far each time: it may have counted on.
        kept->number = mailbox->outboxes[peer].number += 1ull << tries;
    }
    return phi_fail(mailbox->params.report, PH_ESTORE,
                    "the store takes no message to rank %d: every number is taken", peer);
}

static int put_outbox(struct phi_mailbox *mailbox, int peer, int64_t deadline)
{
    // In order: what is unstored after something unstored waits for it.
    for (struct phi_kept *kept = mailbox->outboxes[peer].first; kept; kept = kept->next) {
        int result = kept->stored ? 0 : put(mailbox, peer, kept, deadline);
        if (result)
            return result;
    }
    return 0;
}

static int put_all(struct phi_mailbox *mailbox, int64_t deadline)
{
    if (mailbox->record && !mailbox->record_stored) {
        int result =
            mailbox->ops->announce(mailbox->store, mailbox->record, mailbox->record_size, deadline);
        if (result)
            return result;
        mailbox->record_stored = true;
    }
    for (int peer = 0; peer < mailbox->params.ranks; peer++) {
        int result = put_outbox(mailbox, peer, deadline);
        if (result)
            return result;
    }
    return 0;
}

// flush brings the store up to date, through lost connections, until the deadline.
static int flush(struct phi_mailbox *mailbox, int64_t deadline)
{
    while (atomic_exchange(&mailbox->unstored, false)) {
        if (atomic_exchange(&mailbox->forgotten, false))
            mark_unstored(mailbox);
        int result = put_all(mailbox, deadline);
        if (result == 0)
            continue;
        atomic_store(&mailbox->unstored, true);
        if (result != -ECONNRESET)
            return result;
        forget(mailbox);
        if (phi_now() >= deadline)
            return phi_fail(mailbox->params.report, -ETIMEDOUT,
                            "the connection to the store was lost, and the deadline has passed");
    }
    return 0;
}

static int enter(struct phi_mailbox *mailbox, const char *what, int64_t deadline)
{
    if (phi_gate_enter(&mailbox->gate, deadline) == 0)
        return 0;
    return phi_fail(mailbox->params.report, -ETIMEDOUT,
                    "%s: another thread's call to the store did not end before the deadline", what);
}

int phi_mailbox_announce(struct phi_mailbox *mailbox, const void *bytes, size_t size,
                         int64_t deadline)
{
    if (size > PHI_MESSAGE_MAX)
        return phi_fail(mailbox->params.report, -EMSGSIZE, "a member record of %zu bytes", size);
    struct phi_envelope envelope = {
        .kind = PHI_ENVELOPE_MEMBER,
        .source = (uint32_t)mailbox->params.rank,
        .destination = PHI_ENVELOPE_ALL,
        .source_incarnation = mailbox->params.incarnation,
    };
    uint8_t *record = phi_envelope_encode(&envelope, bytes, size);
    if (!record)
        return phi_fail(mailbox->params.report, -ENOMEM, "no memory for the member record");
    int result = enter(mailbox, "announce", deadline);
    if (result) {
        free(record);
        return result;
    }
    free(mailbox->record);
    mailbox->record = record;
    mailbox->record_size = PHI_ENVELOPE_SIZE + size;
    mailbox->record_stored = false;
    atomic_store(&mailbox->unstored, true);
    result = flush(mailbox, deadline);
    phi_gate_leave(&mailbox->gate);
    return result;
}

int phi_mailbox_expel(struct phi_mailbox *mailbox, int rank, uint64_t incarnation, int64_t deadline)
{
    struct phi_envelope envelope = {
        .kind = PHI_ENVELOPE_MEMBER,
        .source = (uint32_t)rank,
        .destination = PHI_ENVELOPE_ALL,
        .source_incarnation = incarnation + 1,
    };
    uint8_t *record = phi_envelope_encode(&envelope, NULL, 0);
    if (!record)
        return phi_fail(mailbox->params.report, -ENOMEM,
                        "no memory for the record of an expulsion");
    int result = enter(mailbox, "expel", deadline);
    if (result == 0) {
        do {
            result = mailbox->ops->publish(mailbox->store, record, PHI_ENVELOPE_SIZE, deadline);
            if (result == -ECONNRESET)
                forget(mailbox);
        } while (result == -ECONNRESET && phi_now() < deadline);
        phi_gate_leave(&mailbox->gate);
    }
    free(record);
    return result == -ECONNRESET
               ? phi_fail(mailbox->params.report, -ETIMEDOUT,
                          "the connection to the store was lost, and the deadline has passed")
               : result;
}

static uint8_t *encode_message(struct phi_mailbox *mailbox, int peer, const void *bytes,
                               size_t size)
{
    struct phi_outbox *outbox = &mailbox->outboxes[peer];
    struct phi_envelope envelope = {
        .kind = bytes ? PHI_ENVELOPE_MESSAGE : PHI_ENVELOPE_VOID,
        .source = (uint32_t)mailbox->params.rank,
        .destination = (uint32_t)peer,
        .source_incarnation = mailbox->params.incarnation,
        .destination_incarnation = outbox->incarnation,
        .sequence = outbox->sequence + 1,
    };
    return phi_envelope_encode(&envelope, bytes, size);
}

// withdraw turns the message into one that only fills its sequence. It may be in the store already,
// under its number: the next number tells the two apart.
static void withdraw(struct phi_mailbox *mailbox, int peer, struct phi_kept *kept, uint8_t *empty)
{
    free(kept->bytes);
    kept->bytes = empty;
    kept->size = PHI_ENVELOPE_SIZE;
    kept->number = ++mailbox->outboxes[peer].number;
    atomic_store(&mailbox->unstored, true);
}

// send_kept: `empty` was made before anything is sent, so that withdrawing cannot fail.
static int send_kept(struct phi_mailbox *mailbox, int peer, struct phi_kept *kept, uint8_t *empty,
                     int64_t deadline)
{
    atomic_store(&mailbox->unstored, true);
    int result = flush(mailbox, deadline);
    if (kept->stored) {
        free(empty);
        return 0; // whatever became of others
    }
    withdraw(mailbox, peer, kept, empty);
    return result;
}

static int send_inside(struct phi_mailbox *mailbox, int peer, const void *bytes, size_t size,
                       int64_t deadline)
{
    struct phi_outbox *outbox = &mailbox->outboxes[peer];
    phi_outbox_prune(outbox);
    int result = flush(mailbox, deadline);
    if (result)
        return result;
    uint8_t *message = encode_message(mailbox, peer, bytes, size);
    uint8_t *empty = encode_message(mailbox, peer, NULL, 0);
    struct phi_kept *kept = NULL;
    if (message && empty)
        kept = phi_outbox_append(outbox, message, PHI_ENVELOPE_SIZE + size);
    if (kept)
        return send_kept(mailbox, peer, kept, empty, deadline);
    free(message);
    free(empty);
    return phi_fail(mailbox->params.report, -ENOMEM, "no memory for a message of %zu bytes", size);
}

static int fenced(struct phi_mailbox *mailbox)
{
    return phi_fail(mailbox->params.report, PH_EFENCED,
                    "a newer incarnation of rank %d has joined the job, or this one was expelled",
                    mailbox->params.rank);
}

int phi_mailbox_send(struct phi_mailbox *mailbox, int peer, uint64_t peer_incarnation,
                     const void *bytes, size_t size, int64_t deadline)
{
    struct phi_report *report = mailbox->params.report;
    if (peer < 0 || peer >= mailbox->params.ranks || peer == mailbox->params.rank ||
        peer_incarnation == 0)
        return phi_fail(report, -EINVAL, "rank %d cannot be sent to", peer);
    if (size > PHI_MESSAGE_MAX)
        return phi_fail(report, -EMSGSIZE,
                        "a message of %zu bytes to rank %d is over the limit of %u", size, peer,
                        PHI_MESSAGE_MAX);
    if (atomic_load(&mailbox->fenced))
        return fenced(mailbox);
    int result = enter(mailbox, "send", deadline);
    if (result)
        return result;
    if (phi_outbox_address(&mailbox->outboxes[peer], peer_incarnation) != 0)
        result = phi_fail(report, PH_EPEER, "rank %d has restarted: its former life is over", peer);
    else
        result = send_inside(mailbox, peer, bytes ? bytes : "", size, deadline);
    phi_gate_leave(&mailbox->gate);
    return result;
}

uint64_t phi_mailbox_sequence(const struct phi_mailbox *mailbox, int peer)
{
    return atomic_load_explicit(&mailbox->outboxes[peer].given, memory_order_relaxed);
}

void phi_mailbox_acknowledged(struct phi_mailbox *mailbox, int peer, uint64_t sequence)
{
    phi_outbox_acknowledged(&mailbox->outboxes[peer], sequence);
    // The memory goes at once if nobody is sending, else with the next send.
    if (!phi_gate_try(&mailbox->gate))
        return;
    phi_outbox_prune(&mailbox->outboxes[peer]);
    phi_gate_leave(&mailbox->gate);
}

int phi_mailbox_refresh(struct phi_mailbox *mailbox, int64_t deadline)
{
    int result = enter(mailbox, "refresh", deadline);
    if (result)
        return result;
    prune_all(mailbox);
    result = mailbox->ops->refresh(mailbox->store, deadline);
    if (result == -ECONNRESET) {
        forget(mailbox);
        result = 0;
    }
    if (result == 0)
        result = flush(mailbox, deadline);
    phi_gate_leave(&mailbox->gate);
    return result;
}

// ---- receiving

static void consumed(struct phi_mailbox *mailbox, const struct phi_delivery *delivery)
{
    mailbox->ops->consumed(mailbox->store, delivery->rank, delivery->incarnation, delivery->number);
}

static int drop(struct phi_mailbox *mailbox, struct phi_delivery *delivery, const char *why)
{
    phi_log(mailbox->params.report, PH_LOG_WARN, "store: dropped %s of %zu bytes from rank %d: %s",
            delivery->member ? "a member record" : "a message", delivery->size, delivery->rank,
            why);
    free(delivery->bytes);
    return 0;
}

// check_envelope returns why the delivery is not for us, or NULL.
static const char *check_envelope(struct phi_mailbox *mailbox, const struct phi_delivery *delivery,
                                  struct phi_envelope *envelope)
{
    int result = phi_envelope_decode(envelope, delivery->bytes, delivery->size);
    if (result)
        return result == -EPROTONOSUPPORT ? "of another version" : "malformed";
    if (delivery->member != (envelope->kind == PHI_ENVELOPE_MEMBER))
        return "of the wrong kind";
    if (envelope->source >= (uint32_t)mailbox->params.ranks ||
        (delivery->rank >= 0 && envelope->source != (uint32_t)delivery->rank))
        return "it names another sender";
    if (delivery->incarnation && envelope->source_incarnation != delivery->incarnation)
        return "it names another incarnation of its sender";
    if (delivery->member)
        return NULL;
    if (envelope->destination != (uint32_t)mailbox->params.rank)
        return "for another rank";
    if (envelope->destination_incarnation != mailbox->params.incarnation)
        return "for another incarnation of this rank";
    return NULL;
}

static void hand_out(struct phi_message *message, uint8_t *bytes, size_t size)
{
    message->bytes = bytes + PHI_ENVELOPE_SIZE;
    message->size = size - PHI_ENVELOPE_SIZE;
}

// accept_member: 1 a message is out, 0 go on.
static int accept_member(struct phi_mailbox *mailbox, struct phi_delivery *delivery,
                         const struct phi_envelope *envelope, struct phi_message *message)
{
    int rank = (int)envelope->source;
    uint64_t incarnation = envelope->source_incarnation;
    if (rank == mailbox->params.rank) {
        free(delivery->bytes);
        if (incarnation <= mailbox->params.incarnation)
            return 0;
        atomic_store(&mailbox->fenced, true);
        return fenced(mailbox);
    }
    if (!phi_inbox_member(&mailbox->inboxes[rank], incarnation)) {
        free(delivery->bytes); // seen before, or of a former life
        return 0;
    }
    *message = (struct phi_message){.member = true, .rank = rank, .incarnation = incarnation};
    hand_out(message, delivery->bytes, delivery->size);
    mailbox->ready = rank;
    return 1;
}

static int accept_message(struct phi_mailbox *mailbox, struct phi_delivery *delivery,
                          const struct phi_envelope *envelope)
{
    struct phi_held *held = mailbox->spare;
    *held = (struct phi_held){
        .incarnation = envelope->source_incarnation,
        .sequence = envelope->sequence,
        .number = delivery->number,
        .withdrawn = envelope->kind == PHI_ENVELOPE_VOID,
        .bytes = delivery->bytes,
        .size = delivery->size,
    };
    int result = phi_inbox_add(&mailbox->inboxes[delivery->rank], held);
    mailbox->ready = delivery->rank;
    if (result == 0) {
        mailbox->spare = NULL;
        return 0;
    }
    consumed(mailbox, delivery);
    if (result == -ERANGE)
        return drop(mailbox, delivery, "its sequence is absurd");
    // Seen before is the normal case after a lost connection: no warning.
    free(delivery->bytes);
    return 0;
}

static int accept(struct phi_mailbox *mailbox, struct phi_delivery *delivery,
                  struct phi_message *message)
{
    struct phi_envelope envelope = {0};
    const char *why = check_envelope(mailbox, delivery, &envelope);
    if (why) {
        // What is for a later life of this rank is left to it.
        if (!delivery->member && envelope.destination_incarnation <= mailbox->params.incarnation)
            consumed(mailbox, delivery);
        return drop(mailbox, delivery, why);
    }
    if (delivery->member)
        return accept_member(mailbox, delivery, &envelope, message);
    return accept_message(mailbox, delivery, &envelope);
}

static bool pop_ready(struct phi_mailbox *mailbox, struct phi_message *message)
{
    int rank = mailbox->ready;
    for (;;) {
        struct phi_held *held = phi_inbox_pop(&mailbox->inboxes[rank]);
        if (!held)
            return false;
        mailbox->ops->consumed(mailbox->store, rank, held->incarnation, held->number);
        if (!held->withdrawn) {
            *message = (struct phi_message){
                .rank = rank, .incarnation = held->incarnation, .sequence = held->sequence};
            hand_out(message, held->bytes, held->size);
            free(held);
            return true;
        }
        phi_held_free(held);
    }
}

// put_again is one attempt to put what the store forgot; a wake ends it where the backend can, so
// that a thread which sleeps for something else sees it in time. Where wakes are so frequent that
// none gets through, a short one is not ended.
static int put_again(struct phi_mailbox *mailbox, int64_t deadline)
{
    bool short_one = mailbox->ops->interruptible && mailbox->resend_woken >= RESEND_WOKEN;
    int64_t end = phi_deadline(short_one ? RESEND_SHORT : mailbox->resend_ms);
    prune_all(mailbox);
    if (mailbox->ops->interruptible)
        mailbox->ops->interruptible(mailbox->store, !short_one);
    int result = flush(mailbox, end < deadline ? end : deadline);
    if (mailbox->ops->interruptible)
        mailbox->ops->interruptible(mailbox->store, false);
    mailbox->resend_woken = result == -EINTR ? mailbox->resend_woken + 1 : 0;
    if (result == -ETIMEDOUT && !short_one && mailbox->resend_ms < RESEND_MOST)
        mailbox->resend_ms *= 2;
    return result;
}

// resend puts again what the store forgot, if somebody must, it is time and there is some: a look
// at what is there already has none. What one attempt got done stays done; one that ran out of time
// has more the next time.
static int resend(struct phi_mailbox *mailbox, int64_t deadline)
{
    int64_t now = phi_now();
    if (!atomic_load(&mailbox->unstored) || now < mailbox->resend_at || now >= deadline ||
        !phi_gate_try(&mailbox->gate))
        return 0;
    int result = put_again(mailbox, deadline);
    phi_gate_leave(&mailbox->gate);
    mailbox->resend_at = result ? phi_deadline(RESEND_PAUSE) : 0;
    if (result == 0)
        mailbox->resend_ms = RESEND_FIRST;
    // The wake is still there: who takes next sees it.
    return result == -EINTR || (result == -ETIMEDOUT && phi_now() < deadline) ? 0 : result;
}

static int64_t take_until(struct phi_mailbox *mailbox, int64_t deadline)
{
    if (!atomic_load(&mailbox->unstored))
        return deadline;
    int64_t pause = phi_deadline(RESEND_PAUSE);
    return pause < deadline ? pause : deadline;
}

void phi_mailbox_doubt(struct phi_mailbox *mailbox)
{
    atomic_store(&mailbox->doubted, true);
}

size_t phi_mailbox_trouble(struct phi_mailbox *mailbox, char *text, size_t size)
{
    return mailbox->ops->trouble(mailbox->store, text, size);
}

static void begin_anew(struct phi_mailbox *mailbox, int64_t deadline)
{
    if (atomic_load(&mailbox->doubted) && phi_deadline(DOUBT_LEAST) < deadline &&
        atomic_exchange(&mailbox->doubted, false))
        mailbox->ops->doubt(mailbox->store);
}

// Where nothing is wanted of the store it is not asked, not even for what may come by itself: an
// exchange of hits costs no command.
static bool none_wanted(const struct phi_mailbox *mailbox, const bool *wanted)
{
    for (int rank = 0; wanted && rank < mailbox->params.ranks; rank++)
        if (wanted[rank])
            return false;
    return wanted != NULL;
}

static int wait_for_wake(struct phi_mailbox *mailbox, int64_t deadline)
{
    const struct phi_wake *wake = mailbox->ops->wake(mailbox->store);
    struct pollfd ring = {.fd = wake->listen, .events = POLLIN};
    int n;
    do
        n = poll(&ring, 1, phi_remaining_ms(deadline));
    while (n < 0 && errno == EINTR);
    return n == 1 && phi_wake_take(wake) ? -EINTR : -ETIMEDOUT;
}

int phi_mailbox_sleep(struct phi_mailbox *mailbox, int64_t deadline)
{
    return wait_for_wake(mailbox, deadline);
}

static int have_spare(struct phi_mailbox *mailbox)
{
    if (!mailbox->spare)
        mailbox->spare = malloc(sizeof(*mailbox->spare));
    return mailbox->spare ? 0
                          : phi_fail(mailbox->params.report, -ENOMEM, "no memory for a message");
}

int phi_mailbox_receive(struct phi_mailbox *mailbox, const bool *wanted, int64_t deadline,
                        struct phi_message *message)
{
    if (atomic_load(&mailbox->fenced))
        return fenced(mailbox);
    if (none_wanted(mailbox, wanted) && !atomic_load(&mailbox->unstored))
        return wait_for_wake(mailbox, deadline);
    begin_anew(mailbox, deadline);
    int late = 0;
    for (;;) {
        if (pop_ready(mailbox, message))
            return 0;
        // What must be dropped may come without end.
        if (phi_now() >= deadline && ++late > LATE_MOST)
            return -ETIMEDOUT;
        int result = resend(mailbox, deadline);
        if (result || (result = have_spare(mailbox)))
            return result;
        struct phi_delivery delivery;
        result =
            mailbox->ops->take(mailbox->store, wanted, take_until(mailbox, deadline), &delivery);
        if (result == 0) {
            result = accept(mailbox, &delivery, message);
            if (result)
                return result == 1 ? 0 : result;
        } else if (result == -ECONNRESET) {
            forget(mailbox);
        } else if (result != -ETIMEDOUT || phi_now() >= deadline) {
            return result;
        }
    }
}

int phi_mailbox_wake_fd(const struct phi_mailbox *mailbox)
{
    return mailbox->ops->wake(mailbox->store)->ring;
}

void phi_mailbox_wake(struct phi_mailbox *mailbox)
{
    phi_wake_ring(phi_mailbox_wake_fd(mailbox));
}
