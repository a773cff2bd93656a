// SPDX-License-Identifier: BSD-3-Clause
// Messages of the store, as any writer of the store may have put them there: a store of callbacks
// whose every value is a piece of the input. Of three ranks this is the first.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fuzz.h"
#include "store/mailbox.h"

enum { RECEIVES_MOST = 48 };

static struct input input;

static int set(void *opaque, const char *key, const void *value, size_t size, int64_t ms)
{
    (void)opaque;
    (void)key;
    (void)value;
    (void)size;
    (void)ms;
    return take(&input, 1) == 1 ? -EIO : 0;
}

static int get(void *opaque, const char *key, void **value, size_t *size, int64_t ms)
{
    (void)opaque;
    HOLD(strlen(key) <= 200);
    if (input.left == 0 || take(&input, 1) == 1) {
        fuzz_time += (ms + 1) * PHI_MS;
        return -ETIMEDOUT;
    }
    struct input piece = take_piece(&input);
    *value = copy_of(piece);
    *size = piece.left;
    return 0;
}

static const struct ph_store_callbacks callbacks = {set, get, store_drop, NULL};

// Of one sender the sequences grow.
static void check(const struct phi_message *message, uint64_t *last)
{
    uint64_t sum = 0;

    HOLD(message->rank >= 0 && message->rank < 3 && message->incarnation != 0);
    for (size_t i = 0; i < message->size; i++)
        sum += message->bytes[i];
    HOLD(message->size == 0 || sum <= 255 * message->size);
    if (message->member)
        last[message->rank] = 0;
    else
        HOLD(message->sequence > last[message->rank]);
    if (!message->member)
        last[message->rank] = message->sequence;
}

static void receive_all(struct phi_mailbox *mailbox)
{
    uint64_t last[3] = {0};
    struct phi_message message;

    for (int i = 0; i < RECEIVES_MOST && input.left > 0; i++) {
        int64_t deadline = phi_deadline((int64_t)take(&input, 1) % 4);
        int rc = phi_mailbox_receive(mailbox, NULL, deadline, &message);

        if (rc == 0) {
            check(&message, last);
            phi_mailbox_acknowledged(mailbox, message.rank, message.sequence);
            if (message.rank != 0)
                phi_mailbox_send(mailbox, message.rank, message.incarnation, "x", 1,
                                 phi_deadline(1));
            phi_mailbox_message_free(&message);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_context *context = fuzz_context();
    const struct phi_mailbox_params params = {
        .report = &context->report,
        .counters = &context->counters,
        .config = &context->config,
        .callbacks = &callbacks,
        .job = "fuzz",
        .ranks = 3,
        .incarnation = 1000,
    };
    struct phi_mailbox *mailbox;

    input = (struct input){NULL, 0};
    HOLD(phi_mailbox_open(&params, phi_deadline(1000), &mailbox) == 0);
    input = (struct input){data, size};
    receive_all(mailbox);
    phi_mailbox_close(mailbox, phi_deadline(10));
    return 0;
}
