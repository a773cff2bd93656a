// SPDX-License-Identifier: BSD-3-Clause
// Replies of a store: whatever a server says, or somebody who sits where a server should.
//
// Input: flags (1: with user, password and db), then a piece for each connection that is made: all
// that it ever says.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "fuzz.h"
#include "store/mailbox.h"

#define PASSWORD "hush-hush"
enum { CONNECTIONS_MOST = 6 };

static struct input input;
static int others[CONNECTIONS_MOST];
static int connections;

int __wrap_socket(int domain, int type, int protocol);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size);

int __wrap_socket(int domain, int type, int protocol)
{
    int ends[2];

    (void)domain;
    (void)protocol;
    if (connections == CONNECTIONS_MOST || input.left == 0) {
        errno = ECONNREFUSED;
        return -1;
    }
    HOLD(socketpair(AF_UNIX, type, 0, ends) == 0);
    struct input piece = take_piece(&input);
    if (piece.left > 0)
        HOLD(send(ends[1], piece.at, piece.left, MSG_DONTWAIT) > 0);
    shutdown(ends[1], SHUT_WR);
    others[connections++] = ends[1];
    return ends[0];
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size)
{
    (void)fd;
    (void)address;
    (void)size;
    return 0;
}

static const struct phi_config *config_of(bool password)
{
    static struct phi_config configs[2];
    static const char *const settings[2][2] = {
        {"PEERHOP_STORE=unix:///s", NULL},
        {"PEERHOP_STORE=unix://ann:" PASSWORD "@/s?db=3", NULL},
    };

    if (!configs[password].store)
        HOLD(phi_config_read(&configs[password], settings[password], &fuzz_context()->report) == 0);
    return &configs[password];
}

static void use(struct phi_mailbox *mailbox)
{
    phi_mailbox_announce(mailbox, "record", 6, phi_deadline(5));
    for (int i = 0; i < 6; i++) {
        struct phi_message message;

        if (phi_mailbox_receive(mailbox, NULL, phi_deadline(2), &message) == 0) {
            HOLD(message.size <= PHI_MESSAGE_MAX && message.rank < 3);
            phi_mailbox_message_free(&message);
        }
        if (i % 2)
            phi_mailbox_send(mailbox, 1, 2000, "text", 4, phi_deadline(2));
    }
    phi_mailbox_refresh(mailbox, phi_deadline(2));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_context *context = fuzz_context();
    struct phi_mailbox *mailbox;

    input = (struct input){data, size};
    connections = 0;
    fuzz_time = 1000 * PHI_MS;
    const bool password = take(&input, 1) & 1;
    fuzz_secret = password ? PASSWORD : NULL;
    const struct phi_mailbox_params params = {
        .report = &context->report,
        .counters = &context->counters,
        .config = config_of(password),
        .job = "fuzz",
        .ranks = 3,
        .incarnation = 1000,
    };
    if (phi_mailbox_open(&params, phi_deadline(5), &mailbox) == 0) {
        use(mailbox);
        phi_mailbox_close(mailbox, phi_deadline(5));
    }
    while (connections > 0)
        close(others[--connections]);
    return 0;
}
