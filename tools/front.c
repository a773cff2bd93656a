// SPDX-License-Identifier: BSD-3-Clause
#include "front.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "run_options.h"

// Process 1 has no children yet, and gets those of processes that enter its namespace.
static bool is_alone(void)
{
    siginfo_t info;

    return getpid() != 1 && waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0 &&
           errno == ECHILD;
}

static void pass_on(int signals, const struct child *worker)
{
    struct signalfd_siginfo info;

    while (read(signals, &info, sizeof(info)) == sizeof(info)) {
        // The worker is in our process group: what the terminal sent it has already.
        if (info.ssi_signo == SIGTERM || (info.ssi_signo != SIGCHLD && info.ssi_code != SI_KERNEL))
            child_signal(worker, (int)info.ssi_signo);
    }
}

// Nobody else does in a container: whatever ends there would stay.
static void collect_others(const struct child *worker)
{
    siginfo_t info = {0};

    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
           info.si_pid != worker->pid) {
        waitpid(info.si_pid, NULL, 0);
        info.si_pid = 0;
    }
}

static int stand_before(int signals, struct child *worker)
{
    int status;

    while (!child_ended(worker, &status)) {
        if (getpid() == 1)
            collect_others(worker);
        poll(&(struct pollfd){.fd = signals, .events = POLLIN}, 1, -1);
        pass_on(signals, worker);
    }
    if (status != CHILD_LOST && WIFSIGNALED(status))
        complain("the process that has started the ranks was ended by signal %d (%s)",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    return child_code(status);
}

int front_part(int signals)
{
    const pid_t self = getpid();
    struct child worker;
    int rc;

    if (is_alone())
        return 0;
    rc = child_fork(&worker);
    if (rc > 0)
        exit(stand_before(signals, &worker));
    if (rc == 0 && !child_bind(self, SIGKILL))
        _exit(STATUS_FAILED);
    if (rc < 0)
        complain("cannot part from the children of others: fork: %s", strerror(-rc));
    return rc;
}
