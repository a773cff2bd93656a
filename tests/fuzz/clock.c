// SPDX-License-Identifier: BSD-3-Clause
// Stands for src/base/clock.c, and for poll() by the linker's --wrap: a wait takes no time, and its
// deadline passes.
#include <limits.h>
#include <poll.h>

#include "base/clock.h"
#include "fuzz.h"

int64_t fuzz_time;

int64_t phi_now(void)
{
    return fuzz_time += 1000;
}

int64_t phi_deadline(int64_t ms)
{
    int64_t now = phi_now();

    return ms < 0 || ms > (PHI_FOREVER - 1 - now) / PHI_MS ? PHI_FOREVER : now + ms * PHI_MS;
}

int phi_remaining_ms(int64_t deadline)
{
    int64_t ms = (deadline - phi_now() + PHI_MS - 1) / PHI_MS;

    if (deadline == PHI_FOREVER)
        return -1;
    return ms <= 0 ? 0 : ms < INT_MAX ? (int)ms : INT_MAX;
}

int __real_poll(struct pollfd *fds, nfds_t n, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms);

int __wrap_poll(struct pollfd *fds, nfds_t n, int ms)
{
    int ready = __real_poll(fds, n, 0);

    HOLD(ready != 0 || ms >= 0); // nobody would ever wake it
    if (ready == 0)
        fuzz_time += ms * PHI_MS;
    return ready;
}
