// SPDX-License-Identifier: BSD-3-Clause
#include "base/wake.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"

int phi_wake_open(struct phi_wake *wake)
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return -errno;
    *wake = (struct phi_wake){.listen = ends[0], .ring = ends[1]};
    phi_forked_close(wake->listen); // whose end tells holders of the other one
    return 0;
}

void phi_wake_close(struct phi_wake *wake)
{
    if (wake->listen >= 0)
        close(wake->listen);
    if (wake->ring >= 0)
        close(wake->ring);
    *wake = (struct phi_wake){.listen = -1, .ring = -1};
}

void phi_wake_ring(int ring)
{
    // A full socket is readable already.
    ssize_t ignored = send(ring, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)ignored;
}

bool phi_wake_take(const struct phi_wake *wake)
{
    char rings[4096];
    ssize_t n = recv(wake->listen, rings, sizeof(rings), MSG_DONTWAIT);

    // A holder of the ringing end has shut it. From now on the socket is always readable, which
    // must not become a spin.
    if (n == 0)
        nanosleep(&(struct timespec){.tv_nsec = PHI_MS}, NULL);
    return n >= 0;
}
