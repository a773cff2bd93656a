// SPDX-License-Identifier: BSD-3-Clause
// A mailbox from its opening to its end, and its sending half. receive.c has the other one.
#include "store/mailbox.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "store/envelope.h"
#include "store/file.h"
#include "store/mailbox_state.h"

enum {
    NUMBER_TRIES = 24, // of finding a number that the store accepts
    CLAIM_TRIES = 8,   // of finding one for this life: others of its rank may begin with it
};

void phi_mailbox_message_free(struct phi_message *message)
{
    if (message->bytes)
        free((uint8_t *)message->bytes - PHI_ENVELOPE_SIZE); // handed out by hand_out()
    *message = (struct phi_message){0};
}

// ---- open and close

void phi_mailbox_free_acknowledged(struct phi_mailbox *mailbox)
{
    for (int rank = 0; rank < mailbox->params.ranks; rank++)
        phi_outbox_free_acknowledged(&mailbox->outboxes[rank]);
}

static int check_params(const struct phi_mailbox_params *params)
{
    size_t length = strlen(params->job);
    if (length < 1 || length > PHI_JOB_MAX)
        return phi_fail(params->report, -EINVAL, "the job's name has %zu bytes, not 1 to %d",
                        length, PHI_JOB_MAX);
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
    phi_file_store_close(mailbox->params.file);
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
    mailbox->resend_ms = PHI_RESEND_FIRST;
    mailbox->inboxes = calloc((size_t)params->ranks, sizeof(*mailbox->inboxes));
    mailbox->outboxes = calloc((size_t)params->ranks, sizeof(*mailbox->outboxes));
    if (mailbox->inboxes && mailbox->outboxes)
        return mailbox;
    mailbox_free(mailbox);
    return NULL;
}

// choose_store takes a user's own store, one in a directory (behind the same callbacks), or Redis.
static int choose_store(struct phi_mailbox *mailbox)
{
    struct phi_mailbox_params *params = &mailbox->params;
    int result = 0;
    mailbox->ops = &phi_store_redis;
    if (params->callbacks) {
        mailbox->callbacks = *params->callbacks;
    } else if (phi_file_store_named(params->config->store)) {
        result = phi_file_store_open(params->config->store, true, params->report, &params->file);
        if (result == 0)
            mailbox->callbacks = phi_file_store_callbacks(params->file);
    } else {
        return 0;
    }
    params->callbacks = &mailbox->callbacks;
    mailbox->ops = &phi_store_callbacks;
    return result;
}

// claim: where two lives of a rank begin together, the one that is entered second is the later.
static int claim(struct phi_mailbox *mailbox, int64_t deadline)
{
    uint64_t latest = 0;
    for (int tries = 0; tries < CLAIM_TRIES; tries++) {
        int result = mailbox->ops->claim(mailbox->store, &latest, deadline);
        if (result != -EEXIST)
            return result;
        uint64_t next = phi_incarnation(latest);
        if (next <= latest)
            break;
        mailbox->params.incarnation = next;
    }
    return phi_fail(mailbox->params.report, PH_ESTORE,
                    "the store has a life of rank %d with the number %" PRIx64
                    ", and takes none after it",
                    mailbox->params.rank, latest);
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
    result = choose_store(made);
    if (result == 0)
        result = made->ops->open(&made->params, deadline, &made->store);
    if (result) {
        mailbox_free(made);
        return result;
    }
    result = claim(made, deadline);
    if (result) {
        phi_mailbox_close(made, deadline);
        return result;
    }
    *mailbox = made;
    return 0;
}

uint64_t phi_mailbox_incarnation(const struct phi_mailbox *mailbox)
{
    return mailbox->params.incarnation;
}

const char *phi_mailbox_job(const struct phi_mailbox *mailbox, uint64_t *epoch)
{
    *epoch = mailbox->params.epoch;
    return mailbox->job;
}

void phi_mailbox_close(struct phi_mailbox *mailbox, int64_t deadline)
{
    if (!mailbox)
        return;
    bool *done = calloc((size_t)mailbox->params.ranks, sizeof(*done));
    phi_mailbox_free_acknowledged(mailbox);
    for (int rank = 0; done && rank < mailbox->params.ranks; rank++)
        done[rank] = !mailbox->outboxes[rank].first;
    mailbox->ops->close(mailbox->store, done, deadline);
    free(done);
    mailbox_free(mailbox);
}

// ---- sending; all but the public functions run inside the gate

void phi_mailbox_forget(struct phi_mailbox *mailbox)
{
    atomic_store(&mailbox->forgotten, true);
    atomic_store(&mailbox->unstored, true);
}

// mark_unstored frees nothing: a sender up the stack holds on to what it has just appended.
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
        // Something else is there. The number grows twice as far each time: the other life may have
        // counted on.
        kept->number = mailbox->outboxes[peer].number += 1ull << tries;
    }
    return phi_fail(mailbox->params.report, PH_ESTORE,
                    "the store takes no message to rank %d: every number is taken", peer);
}

static int put_outbox(struct phi_mailbox *mailbox, int peer, int64_t deadline)
{
    // In order: a message waits for an earlier one that is not stored.
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

// lost reports a connection that was lost again and again, with the last trouble.
static int lost(struct phi_mailbox *mailbox)
{
    char why[240];
    size_t length = phi_mailbox_trouble(mailbox, why, sizeof(why));
    return phi_fail(mailbox->params.report, -ETIMEDOUT,
                    "the connection to the store was lost, and the deadline has passed%s%s",
                    length ? ": " : "", length ? why : "");
}

int phi_mailbox_flush(struct phi_mailbox *mailbox, int64_t deadline)
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
        phi_mailbox_forget(mailbox);
        if (phi_now() >= deadline)
            return lost(mailbox);
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
    result = phi_mailbox_flush(mailbox, deadline);
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
                phi_mailbox_forget(mailbox);
        } while (result == -ECONNRESET && phi_now() < deadline);
        phi_gate_leave(&mailbox->gate);
    }
    free(record);
    return result == -ECONNRESET ? lost(mailbox) : result;
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

// withdraw turns the message into one that only fills its sequence. The store may have it already,
// under its number. The next number tells the two apart.
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
    int result = phi_mailbox_flush(mailbox, deadline);
    if (kept->stored) {
        free(empty);
        return 0; // whatever happened to others
    }
    withdraw(mailbox, peer, kept, empty);
    return result;
}

static int send_inside(struct phi_mailbox *mailbox, int peer, const void *bytes, size_t size,
                       int64_t deadline)
{
    struct phi_outbox *outbox = &mailbox->outboxes[peer];
    phi_outbox_free_acknowledged(outbox);
    int result = phi_mailbox_flush(mailbox, deadline);
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

int phi_mailbox_fenced(struct phi_mailbox *mailbox)
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
        return phi_mailbox_fenced(mailbox);
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
    phi_outbox_free_acknowledged(&mailbox->outboxes[peer]);
    phi_gate_leave(&mailbox->gate);
}

int phi_mailbox_refresh(struct phi_mailbox *mailbox, int64_t deadline)
{
    int result = enter(mailbox, "refresh", deadline);
    if (result)
        return result;
    phi_mailbox_free_acknowledged(mailbox);
    result = mailbox->ops->refresh(mailbox->store, deadline);
    if (result == -ECONNRESET) {
        phi_mailbox_forget(mailbox);
        result = 0;
    }
    if (result == 0)
        result = phi_mailbox_flush(mailbox, deadline);
    phi_gate_leave(&mailbox->gate);
    return result;
}

void phi_mailbox_doubt(struct phi_mailbox *mailbox)
{
    atomic_store(&mailbox->doubted, true);
}

const struct sockaddr *phi_mailbox_local(const struct phi_mailbox *mailbox)
{
    return mailbox->ops->local ? mailbox->ops->local(mailbox->store) : NULL;
}

size_t phi_mailbox_trouble(struct phi_mailbox *mailbox, char *text, size_t size)
{
    return mailbox->ops->trouble(mailbox->store, text, size);
}

int phi_mailbox_wake_fd(const struct phi_mailbox *mailbox)
{
    return mailbox->ops->wake(mailbox->store)->ring;
}

void phi_mailbox_wake(struct phi_mailbox *mailbox)
{
    phi_wake_ring(phi_mailbox_wake_fd(mailbox));
}
