// SPDX-License-Identifier: BSD-3-Clause
// Without libfabric's headers there is no net path to compare with.
#include <errno.h>
#include <stdio.h>

#include "direct.h"

int bench_direct_open(void *arena, size_t size, struct bench_direct **direct,
                      struct bench_direct_name *mine, char *error, size_t error_size)
{
    (void)arena;
    (void)size;
    (void)direct;
    (void)mine;
    snprintf(error, error_size, "the direct program: built without libfabric");
    return -ENOTSUP;
}

int bench_direct_connect(struct bench_direct *direct, const struct bench_direct_name *peer,
                         char *error, size_t error_size)
{
    (void)direct;
    (void)peer;
    (void)error;
    (void)error_size;
    return -ENOTSUP;
}

void bench_direct_move(struct bench_direct *direct, bool read, size_t local_offset,
                       size_t peer_offset, size_t size)
{
    (void)direct;
    (void)read;
    (void)local_offset;
    (void)peer_offset;
    (void)size;
}

void bench_direct_flags(struct bench_direct *direct, bool leader, size_t count)
{
    (void)direct;
    (void)leader;
    (void)count;
}

void bench_direct_drain(struct bench_direct *direct)
{
    (void)direct;
}

void bench_direct_finish(struct bench_direct *direct)
{
    (void)direct;
}

const char *bench_direct_failure(const struct bench_direct *direct)
{
    (void)direct;
    return NULL;
}

void bench_direct_close(struct bench_direct *direct)
{
    (void)direct;
}
