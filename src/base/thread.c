// SPDX-License-Identifier: BSD-3-Clause
#include "base/thread.h"

#include <signal.h>

int phi_thread_start(pthread_t *thread, const char *name, void *(*main)(void *), void *opaque)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = -pthread_create(thread, NULL, main, opaque);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_setname_np(*thread, name);
    return rc;
}
