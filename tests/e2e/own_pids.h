// SPDX-License-Identifier: BSD-3-Clause
// Ranks in PID namespaces of their own, where a process has another id than its peers know.
#ifndef TESTS_E2E_OWN_PIDS_H
#define TESTS_E2E_OWN_PIDS_H

#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <sched.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e/ranks.h"

// Starts a rank in a PID namespace of its own, as its second process; returns the first, or -1.
inline pid_t start_in_a_container(Job &job, int rank, const std::string &function,
                                  const std::string &argument)
{
    const int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    if (own < 0 || unshare(CLONE_NEWPID) != 0) {
        close(own);
        return -1;
    }
    fflush(nullptr);
    const pid_t first = fork();
    if (first == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGCHLD, SIG_IGN);
        for (;;)
            pause();
    }
    job.start_rank(rank, function, argument);
    EXPECT_EQ(setns(own, CLONE_NEWPID), 0);
    close(own);
    return first;
}

// Ends what start_in_a_container has returned, once the rank is reaped.
inline void end_container(pid_t first)
{
    kill(first, SIGKILL);
    waitpid(first, nullptr, 0);
}

#endif
