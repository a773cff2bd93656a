// SPDX-License-Identifier: BSD-3-Clause
// The receiving half of a mailbox: it checks what the store delivers, puts it into order and hands
// it out. A receiving thread also puts again what the store forgot.
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "store/envelope.h"
#include "store/mailbox_state.h"

enum {
    LATE_MOST = 256,     // deliveries looked at after the deadline, which may be now
    RESEND_PAUSE = 250,  // ms between attempts to put again what the store refuses
    RESEND_MOST = 30000, // ms that a receiver gives such an attempt at most
    RESEND_WOKEN = 4,    // attempts in a row that a wake ended; then one that none ends,
    RESEND_SHORT = 20,   // of so many ms
    DOUBT_LEAST = 20,    // ms that a receive must have left to begin anew
};

static void consumed(struct phi_mailbox *mailbox, const struct phi_delivery *delivery)
{
    mailbox->ops->consumed(mailbox->store, delivery->rank, delivery->incarnation, delivery->number);
}

// Ranks may write before they have the record of this rank's new life. That is nobody's fault.
static const char former_life[] = "for a former life of this rank";

static int drop(struct phi_mailbox *mailbox, struct phi_delivery *delivery, const char *why)
{
    char whose[32] = ""; // where there is no envelope no rank is known
    if (delivery->rank >= 0)
        snprintf(whose, sizeof whose, " from rank %d", delivery->rank);
    phi_log(mailbox->params.report, why == former_life ? PH_LOG_INFO : PH_LOG_WARN,
            "store: dropped %s of %zu bytes%s: %s",
            delivery->member ? "a member record" : "a message", delivery->size, whose, why);
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
    if (envelope->destination_incarnation < mailbox->params.incarnation)
        return former_life;
    if (envelope->destination_incarnation > mailbox->params.incarnation)
        return "for another incarnation of this rank";
    return NULL;
}

static void hand_out(struct phi_message *message, uint8_t *bytes, size_t size)
{
    message->bytes = bytes + PHI_ENVELOPE_SIZE;
    message->size = size - PHI_ENVELOPE_SIZE;
}

// accept_member: 1: a message is out. 0: go on.
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
        return phi_mailbox_fenced(mailbox);
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
    // After a lost connection messages that were seen before are normal: no warning.
    free(delivery->bytes);
    return 0;
}

static int accept(struct phi_mailbox *mailbox, struct phi_delivery *delivery,
                  struct phi_message *message)
{
    struct phi_envelope envelope = {0};
    const char *why = check_envelope(mailbox, delivery, &envelope);
    if (why) {
        // A message for a later life of this rank is left to that.
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

// put_again tries once to put what the store forgot. A wake ends the try where the backend can do
// so: a thread that sleeps for something else sees it in time. Where wakes are so frequent that no
// try gets through, a short one is not ended.
static int put_again(struct phi_mailbox *mailbox, int64_t deadline)
{
    bool short_one = mailbox->ops->interruptible && mailbox->resend_woken >= RESEND_WOKEN;
    int64_t end = phi_deadline(short_one ? RESEND_SHORT : mailbox->resend_ms);
    phi_mailbox_free_acknowledged(mailbox);
    if (mailbox->ops->interruptible)
        mailbox->ops->interruptible(mailbox->store, !short_one);
    int result = phi_mailbox_flush(mailbox, end < deadline ? end : deadline);
    if (mailbox->ops->interruptible)
        mailbox->ops->interruptible(mailbox->store, false);
    mailbox->resend_woken = result == -EINTR ? mailbox->resend_woken + 1 : 0;
    if (result == -ETIMEDOUT && !short_one && mailbox->resend_ms < RESEND_MOST)
        mailbox->resend_ms *= 2;
    return result;
}

// resend puts again what the store forgot, if there is something, and if it is time. A call that
// may not wait has no time for it. What one try got done stays done. A try that ran out of time has
// more the next time.
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
        mailbox->resend_ms = PHI_RESEND_FIRST;
    // The wake is still there: the next taker sees it.
    return result == -EINTR || (result == -ETIMEDOUT && phi_now() < deadline) ? 0 : result;
}

static int64_t take_until(struct phi_mailbox *mailbox, int64_t deadline)
{
    if (!atomic_load(&mailbox->unstored))
        return deadline;
    int64_t pause = phi_deadline(RESEND_PAUSE);
    return pause < deadline ? pause : deadline;
}

static void begin_anew(struct phi_mailbox *mailbox, int64_t deadline)
{
    if (atomic_load(&mailbox->doubted) && phi_deadline(DOUBT_LEAST) < deadline &&
        atomic_exchange(&mailbox->doubted, false))
        mailbox->ops->doubt(mailbox->store);
}

// none_wanted: where nothing is wanted the store is not asked, not even for messages that may come
// unasked. So an exchange of hits costs no command.
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
        return phi_mailbox_fenced(mailbox);
    if (none_wanted(mailbox, wanted) && !atomic_load(&mailbox->unstored))
        return wait_for_wake(mailbox, deadline);
    begin_anew(mailbox, deadline);
    int late = 0;
    for (;;) {
        if (pop_ready(mailbox, message))
            return 0;
        // Messages that must be dropped may come without end.
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
            phi_mailbox_forget(mailbox);
        } else if (result != -ETIMEDOUT || phi_now() >= deadline) {
            return result;
        }
    }
}
