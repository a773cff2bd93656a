// SPDX-License-Identifier: BSD-3-Clause
#include "check_pairs.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "check_rank.h"
#include "child.h"
#include "cuda/device.h"
#include "private_store.h"

enum { STATUS_FAILED = 1, DEVICES_MAX = 64 };

#define START_MS  60000 // contexts of many devices, one after another
#define PAIR_MS   60000 // what waits has its own deadlines before
#define END_MS    40000
#define KILLED_MS 10000

struct check {
    int devices;
    struct child children[DEVICES_MAX];
    // By the rank that tells, then by its peer; us == 0: it has not told.
    struct check_verdict *verdicts;
    int pipe[2];
    const char *libcuda, *store;
};

static struct check_verdict *verdict_of(const struct check *check, int rank, int peer)
{
    return &check->verdicts[rank * check->devices + peer];
}

// Kills it at the deadline. One that a driver holds may not end even then, and is left.
static void end_child(struct child *child, int64_t deadline)
{
    const int64_t given_up = deadline + KILLED_MS * PHI_MS;
    int status;

    while (child->pid && !child_ended(child, &status) && phi_now() < given_up) {
        if (phi_now() >= deadline)
            child_signal(child, SIGKILL);
        usleep(1000);
    }
}

// In a process of its own: what has called CUDA cannot fork.
struct count {
    int devices;
    char why[256];
};

static int count_devices(const char *libcuda, struct count *count)
{
    struct child child;
    int ends[2];

    if (pipe(ends) != 0)
        return -errno;
    int rc = child_fork(&child);
    if (rc == 0) {
        struct count mine = {0};
        mine.devices = phi_device_count_why(libcuda, mine.why, sizeof(mine.why));
        _exit(write(ends[1], &mine, sizeof(mine)) == sizeof(mine) ? 0 : STATUS_FAILED);
    }
    close(ends[1]);
    if (rc > 0) {
        struct pollfd p = {.fd = ends[0], .events = POLLIN};
        const bool told =
            poll(&p, 1, START_MS) > 0 && read(ends[0], count, sizeof(*count)) == sizeof(*count);
        rc = told ? 0 : -EIO;
        end_child(&child, phi_deadline(told ? END_MS : 0));
    }
    close(ends[0]);
    return rc;
}

static int start(struct check *check)
{
    const pid_t self = getpid();

    if (pipe(check->pipe) != 0)
        return -errno;
    for (int i = 0; i < check->devices; i++) {
        int rc = child_fork(&check->children[i]);
        if (rc == 0) {
            close(check->pipe[0]);
            _exit(child_bind(self, SIGKILL)
                      ? check_rank(check->store, check->libcuda, i, check->devices, check->pipe[1])
                      : STATUS_FAILED);
        }
        if (rc < 0)
            return rc;
    }
    close(check->pipe[1]); // the pipe ends with the ranks
    check->pipe[1] = -1;
    return 0;
}

static void hear(const struct check *check)
{
    const int64_t pairs = (int64_t)check->devices * (check->devices - 1) / 2;
    const int64_t deadline = phi_deadline(START_MS + pairs * PAIR_MS);
    struct check_verdict told;

    for (;;) {
        struct pollfd p = {.fd = check->pipe[0], .events = POLLIN};
        const int ready = poll(&p, 1, phi_remaining_ms(deadline));
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0 || read(check->pipe[0], &told, sizeof(told)) != sizeof(told))
            return;
        if (told.us == 0)
            told.us = 1;
        *verdict_of(check, told.rank, told.peer) = told;
    }
}

static void end(struct check *check)
{
    const int64_t deadline = phi_deadline(END_MS);

    for (int i = 0; i < check->devices; i++)
        end_child(&check->children[i], deadline);
}

// What is wrong with a pair, as one of its ranks says; "": nothing. NULL: neither has said.
static const char *wrong_with(const struct check *check, int low, int high)
{
    static char silent[96];
    const int ranks[2][2] = {{low, high}, {high, low}};
    for (int i = 0; i < 2; i++) {
        const struct check_verdict *pair = verdict_of(check, ranks[i][0], ranks[i][1]);
        const struct check_verdict *alone = verdict_of(check, ranks[i][0], ranks[i][0]);
        if (pair->wrong[0])
            return pair->wrong;
        if (alone->wrong[0])
            return alone->wrong;
    }
    for (int i = 0; i < 2; i++) {
        if (verdict_of(check, ranks[i][0], ranks[i][1])->us != 0)
            continue;
        snprintf(silent, sizeof(silent), "the process on cuda:%d has ended, or hangs: no verdict",
                 ranks[i][0]);
        return silent;
    }
    return "";
}

static bool print_pair(const struct check *check, int low, int high)
{
    const struct check_verdict *one = verdict_of(check, low, high);
    const struct check_verdict *two = verdict_of(check, high, low);
    const char *wrong = wrong_with(check, low, high);
    const uint32_t us = one->us > two->us ? one->us : two->us;

    printf("cuda:%d and cuda:%d  ", low, high);
    if (wrong[0]) {
        printf("FAILED  %s\n", wrong);
        return false;
    }
    printf("well    write, read%s, each way, %.1f ms", one->kernels ? ", kernel stores" : "",
           us / 1000.0);
    if (!one->kernels)
        printf("; kernel stores not checked: %s", one->without);
    printf("\n");
    return true;
}

static int print(const struct check *check)
{
    int pairs = 0, bad = 0;

    for (int low = 0; low < check->devices; low++) {
        for (int high = low + 1; high < check->devices; high++) {
            pairs++;
            bad += !print_pair(check, low, high);
        }
    }
    if (bad)
        printf("%d of %d pairs FAILED\n", bad, pairs);
    else
        printf("all pairs are well: %d\n", pairs);
    return bad ? STATUS_FAILED : 0;
}

static int run(struct check *check)
{
    struct private_store store = {0};
    char error[256];
    int rc = private_store_start(&store, error, sizeof(error));

    if (rc < 0) {
        fprintf(stderr, "peerhop-info: %s\n", error);
        return STATUS_FAILED;
    }
    check->store = store.uri;
    check->pipe[0] = check->pipe[1] = -1;
    rc = start(check);
    if (rc == 0)
        hear(check);
    else
        fprintf(stderr, "peerhop-info: a process cannot be started: %s\n", strerror(-rc));
    for (int i = 0; rc < 0 && i < check->devices; i++)
        child_signal(&check->children[i], SIGKILL);
    end(check);
    for (int i = 0; i < 2; i++) {
        if (check->pipe[i] >= 0)
            close(check->pipe[i]);
    }
    private_store_stop(&store);
    return rc < 0 ? STATUS_FAILED : print(check);
}

int check_pairs(const struct phi_config *config)
{
    struct check check = {.libcuda = config->libcuda};
    struct count count = {0};
    int rc = count_devices(config->libcuda, &count);

    if (rc < 0 || count.devices == 0) {
        fprintf(stderr, "peerhop-info: no CUDA device: %s\n",
                rc < 0 ? "the driver was not asked in time" : count.why);
        return STATUS_FAILED;
    }
    if (count.devices == 1) {
        printf("nothing to check: one CUDA device\n");
        return 0;
    }
    check.devices = count.devices < DEVICES_MAX ? count.devices : DEVICES_MAX;
    check.verdicts = calloc((size_t)check.devices * (size_t)check.devices, sizeof(*check.verdicts));
    if (!check.verdicts) {
        fprintf(stderr, "peerhop-info: out of memory\n");
        return STATUS_FAILED;
    }
    rc = run(&check);
    free(check.verdicts);
    return rc;
}
