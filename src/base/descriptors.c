// SPDX-License-Identifier: BSD-3-Clause
#include "base/descriptors.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MOST = 64 };

int phi_descriptors_lack(unsigned n)
{
    int fds[MOST], rc = 0;
    unsigned opened = 0;

    while (rc == 0 && opened < n && opened < MOST) {
        fds[opened] = eventfd(0, EFD_CLOEXEC);
        if (fds[opened] >= 0)
            opened++;
        else if (errno == EMFILE || errno == ENFILE)
            rc = -errno;
        else
            break; // want of something else
    }
    while (opened > 0)
        close(fds[--opened]);
    return rc;
}
