// SPDX-License-Identifier: BSD-3-Clause
// A private Redis on a unix socket, which ends with this process.
#ifndef BENCH_REDIS_H
#define BENCH_REDIS_H

#include <sys/types.h>

struct bench_redis {
    pid_t pid;
    char folder[64];
    char socket[96];
};

// bench_redis_start returns when the server takes connections. Errors are printed.
int bench_redis_start(struct bench_redis *redis);
void bench_redis_stop(struct bench_redis *redis);

#endif
