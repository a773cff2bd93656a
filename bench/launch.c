// SPDX-License-Identifier: BSD-3-Clause
#include "launch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/launcher.h"
#include "child.h"
#include "private_store.h"

// How long the others may take to say why they fail, once one has.
#define GRACE_MS 3000

struct launch {
    int ranks;
    int left;
    struct child children[BENCH_RANKS_MAX];
    struct child_signals signals_before;
    int status; // of the program: 0 until something fails
    bool ending;
    bool told;        // the ranks to end: that they do is no news
    int64_t deadline; // ms, of what comes next: the end of the run, or of the grace
};

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void set_number(const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)value);
    setenv(name, text, 1);
}

static int number_or(const char *name, int64_t other)
{
    const char *text = getenv(name);
    return text ? (int)strtol(text, NULL, 10) : (int)other;
}

bool bench_place(struct bench_place *place)
{
    struct phi_launcher launcher;
    phi_launcher_read(&launcher);
    if (!getenv("PEERHOP_RANK") &&
        (launcher.rank < 0 || number_or("PEERHOP_RANKS", launcher.ranks) < 2)) {
        if (launcher.rank < 0 && launcher.lacks[0])
            fprintf(stderr, "peerhop-perf: no launcher found (%s): it starts ranks of its own\n",
                    launcher.lacks);
        return false;
    }
    place->rank = number_or("PEERHOP_RANK", launcher.rank);
    const bool same = place->rank == launcher.rank && launcher.local_rank >= 0;
    place->local_rank = number_or("PEERHOP_LOCAL_RANK", same ? launcher.local_rank : place->rank);
    const char *job = getenv("PEERHOP_JOB");
    snprintf(place->job, sizeof(place->job), "%s", job ? job : launcher.job);
    return true;
}

// What all ranks have in common.
static void set_environment(const struct bench_options *options, const struct private_store *store)
{
    char text[64];
    if (*store->uri || options->store)
        setenv("PEERHOP_STORE", *store->uri ? store->uri : options->store, 1);
    snprintf(text, sizeof(text), "perf-%d-%lld", (int)getpid(), (long long)time(NULL));
    setenv("PEERHOP_JOB", text, 0);
    set_number("PEERHOP_RANKS", options->ranks);
    // The ranks have fewer streams than that, so those that share a GPU may wait by memory
    // operation.
    if (getenv("CUDA_DEVICE_MAX_CONNECTIONS") == NULL)
        setenv("PEERHOP_MEMORY_OPERATION_STREAMS", "16", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

static _Noreturn void run_rank(const struct launch *launch, int rank, pid_t parent, char **argv)
{
    if (!child_bind(parent, SIGKILL))
        _exit(1);
    child_signals_restore(&launch->signals_before);
    set_number("PEERHOP_RANK", rank);
    // By its path, for the name that ps shows.
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[length < 0 ? 0 : length] = 0;
    execv(path, argv);
    perror("peerhop-perf: exec of a rank");
    _exit(127);
}

static void kill_all(struct launch *launch, int number)
{
    launch->told = true;
    for (int i = 0; i < launch->ranks; i++)
        child_signal(&launch->children[i], number);
}

static int start_ranks(struct launch *launch, char **argv)
{
    pid_t parent = getpid();
    for (int i = 0; i < launch->ranks; i++) {
        int rc = child_fork(&launch->children[i]);
        if (rc == 0)
            run_rank(launch, i, parent, argv);
        if (rc < 0) {
            fprintf(stderr, "peerhop-perf: cannot start rank %d: %s\n", i, strerror(-rc));
            return rc;
        }
        launch->left++;
    }
    return 0;
}

// The ranks have a deadline of their own and say so; this one is for those that cannot.
static void begin_end(struct launch *launch, const char *why)
{
    if (launch->ending)
        return;
    fprintf(stderr, "peerhop-perf: %s\n", why);
    launch->ending = true;
    launch->status = 1;
    launch->deadline = now_ms() + GRACE_MS;
}

// A rank that dies takes others with it, in no order that is seen here: each is named.
static void reap(struct launch *launch)
{
    bool failed = false;
    for (int i = 0; i < launch->ranks; i++) {
        int status;
        if (!child_ended(&launch->children[i], &status))
            continue;
        launch->left--;
        if (status == 0)
            continue;
        failed = true;
        if (status == CHILD_LOST)
            fprintf(stderr, "peerhop-perf: another process has taken the status of rank %d\n", i);
        else if (!launch->told)
            fprintf(stderr, "peerhop-perf: rank %d %s %d\n", i,
                    WIFSIGNALED(status) ? "was killed by signal" : "ended with status",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    if (failed)
        begin_end(launch, "a rank failed; ending the run");
}

static void watch(struct launch *launch, const sigset_t *signals)
{
    while (launch->left > 0) {
        int64_t left = launch->deadline - now_ms();
        struct timespec wait = {left > 0 ? left / 1000 : 0, left > 0 ? left % 1000 * 1000000 : 0};
        int number = sigtimedwait(signals, NULL, &wait);
        if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
            begin_end(launch, "interrupted; ending the run");
            kill_all(launch, number);
        }
        reap(launch);
        if (launch->left > 0 && now_ms() >= launch->deadline) {
            begin_end(launch, "the deadline of the run has passed; ending the ranks");
            kill_all(launch, SIGKILL);
            launch->deadline = now_ms() + 1000; // what the kernel cannot end now
        }
    }
}

static int run(const struct bench_options *options, char **argv, const sigset_t *signals,
               const struct child_signals *before)
{
    struct launch launch = {
        .ranks = (int)options->ranks,
        .signals_before = *before,
        .deadline = now_ms() + (options->deadline_s + 5) * 1000,
    };
    if (start_ranks(&launch, argv)) {
        launch.status = 1;
        kill_all(&launch, SIGKILL);
    }
    watch(&launch, signals);
    return launch.status;
}

int bench_launch(const struct bench_options *options, char **argv)
{
    // Taken one by one by sigtimedwait: no handler, no race with the last child.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    struct child_signals before;
    child_signals(&before, &signals);

    struct private_store store = {0};
    char error[256];
    if (!options->store && !getenv("PEERHOP_STORE") &&
        private_store_start(&store, error, sizeof(error))) {
        fprintf(stderr, "peerhop-perf: %s; or name a store (--store)\n", error);
        return 1;
    }
    set_environment(options, &store);
    int status = run(options, argv, &signals, &before);
    private_store_stop(&store);
    return status;
}
