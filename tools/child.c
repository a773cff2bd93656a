// SPDX-License-Identifier: BSD-3-Clause
#include "child.h"

#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// Not in the headers of glibc before 2.36.
#ifndef P_PIDFD
#define P_PIDFD ((idtype_t)3)
#endif

void child_signals(struct child_signals *before, const sigset_t *mask)
{
    const struct sigaction by_default = {.sa_handler = SIG_DFL};

    sigaction(SIGCHLD, &by_default, &before->ends);
    sigaction(SIGPIPE, NULL, &before->pipe);
    sigprocmask(SIG_BLOCK, mask, &before->mask);
}

void child_signals_restore(const struct child_signals *before)
{
    sigaction(SIGCHLD, &before->ends, NULL);
    sigaction(SIGPIPE, &before->pipe, NULL);
    sigprocmask(SIG_SETMASK, &before->mask, NULL);
}

bool child_bind(pid_t parent, int signal)
{
    prctl(PR_SET_PDEATHSIG, signal);
    return getppid() == parent; // which may have ended before that
}

// Whether its end can be learnt by its pidfd. -EINVAL: Linux 5.3 has pidfds, and no wait for them.
static int try_wait(const struct child *child)
{
    siginfo_t info;

    if (waitid(P_PIDFD, (id_t)child->fd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ||
        errno == ECHILD)
        return 0;
    return errno == EINVAL ? -ENOSYS : -errno;
}

static int open_child(struct child *child, pid_t pid)
{
    int rc;

    *child = (struct child){pid, (int)syscall(SYS_pidfd_open, pid, 0)};
    rc = child->fd < 0 ? -errno : try_wait(child);
    if (rc == 0)
        return 0;
    if (child->fd >= 0)
        close(child->fd);
    *child = (struct child){0, -1};
    return rc;
}

int child_fork(struct child *child)
{
    pid_t pid;
    int rc;

    fflush(NULL);
    pid = fork();
    if (pid <= 0)
        return pid < 0 ? -errno : 0;
    rc = open_child(child, pid);
    if (rc == 0)
        return 1;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return rc;
}

static void forget(struct child *child)
{
    close(child->fd);
    *child = (struct child){0, -1};
}

static int status_of(const siginfo_t *info)
{
    if (info->si_code == CLD_EXITED)
        return W_EXITCODE(info->si_status, 0);
    return W_EXITCODE(0, info->si_status);
}

// flags: WNOHANG or 0.
static bool collect(struct child *child, int flags, int *status)
{
    siginfo_t info = {0};
    int rc;

    if (child->pid == 0)
        return false;
    do {
        rc = waitid(P_PIDFD, (id_t)child->fd, &info, WEXITED | flags);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0 ? info.si_pid == 0 : errno != ECHILD)
        return false; // it runs, as far as is known
    *status = rc == 0 ? status_of(&info) : CHILD_LOST;
    forget(child);
    return true;
}

bool child_ended(struct child *child, int *status)
{
    return collect(child, WNOHANG, status);
}

void child_wait(struct child *child, int *status)
{
    collect(child, 0, status);
}

int child_signal(const struct child *child, int signal)
{
    if (child->pid == 0 || syscall(SYS_pidfd_send_signal, child->fd, signal, NULL, 0) == 0)
        return 0;
    return -errno;
}

// Of another PID namespace's /proc the numbers are those of other processes here.
static bool is_child(const struct child *child)
{
    siginfo_t info;

    return waitid(P_PIDFD, (id_t)child->fd, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

void children_each(void (*visit)(void *opaque, struct child *child), void *opaque)
{
    char path[64];
    FILE *children;
    int pid;

    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    children = fopen(path, "re");
    while (children && fscanf(children, "%d", &pid) == 1) {
        struct child child;

        if (open_child(&child, pid) < 0)
            continue;
        if (is_child(&child))
            visit(opaque, &child);
        if (child.pid != 0)
            forget(&child);
    }
    if (children)
        fclose(children);
}

int child_code(int status)
{
    if (status == CHILD_LOST)
        return 1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
