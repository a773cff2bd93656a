// SPDX-License-Identifier: BSD-3-Clause
// Processes that a program starts and ends. A child is named by its pidfd: a process id may be
// another process's as soon as the child is collected, by whomever.
#ifndef TOOLS_CHILD_H
#define TOOLS_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

struct child {
    pid_t pid; // 0: none, or collected
    int fd;    // its pidfd
};

// What a program was started with, for its children.
struct child_signals {
    sigset_t mask;
    struct sigaction ends, pipe; // SIGCHLD, SIGPIPE
};

// child_signals blocks the signals of `mask`, and takes SIGCHLD by default: where it is ignored, as
// some programs leave it to those that they start, the kernel collects children unseen.
// child_signals_restore is for a child, before it executes another program.
void child_signals(struct child_signals *before, const sigset_t *mask);
void child_signals_restore(const struct child_signals *before);

// child_fork returns 1 in the caller, 0 in the child, or -errno with no child; -ENOSYS: this kernel
// has no pidfds, or none that are waited for (before Linux 5.4). child_bind is for the child: it
// gets `signal` when the thread that made it ends; false: its parent has ended already.
int child_fork(struct child *child);
bool child_bind(pid_t parent, int signal);

// child_ended: whether the child has ended; it is collected then, with its wait status. CHILD_LOST:
// somebody else has collected it, or the kernel, so nobody knows. Never waits. false where there is
// none.
enum { CHILD_LOST = -1 };
bool child_ended(struct child *child, int *status);

// child_wait waits for the end. child_signal does nothing where there is none; 0, -errno: -EPERM
// for a process that has become another user's.
void child_wait(struct child *child, int *status);
int child_signal(const struct child *child, int signal);

// children_each calls `visit` with each child that this process has now, its orphans among them;
// `visit` may collect it.
void children_each(void (*visit)(void *opaque, struct child *child), void *opaque);

// child_code is a wait status as a shell has it: by a signal it is 128 and the signal's number; 1
// for CHILD_LOST.
int child_code(int status);

#endif
