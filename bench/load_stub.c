// SPDX-License-Identifier: BSD-3-Clause
// Stands for load_cuda.c where the build has no cuda.h: nothing can be opened, so the rest is never
// called.
#include <errno.h>
#include <stdio.h>

#include "load.h"

int bench_load_open(struct bench_load **load, size_t streams, char *error, size_t error_size)
{
    (void)load;
    (void)streams;
    snprintf(error, error_size, "built without CUDA");
    return -ENOTSUP;
}

void bench_load_close(struct bench_load *load, bool failed)
{
    (void)load;
    (void)failed;
}

const char *bench_load_error(const struct bench_load *load)
{
    (void)load;
    return "built without CUDA";
}

const struct bench_load_shape *bench_load_shape(const struct bench_load *load,
                                                enum bench_load_kernel kernel)
{
    (void)load;
    (void)kernel;
    static const struct bench_load_shape none = {.name = "none"};
    return &none;
}

void *bench_load_stream(const struct bench_load *load, size_t stream)
{
    (void)load;
    (void)stream;
    return NULL;
}

int bench_load_begin_graph(struct bench_load *load, size_t stream)
{
    (void)load;
    (void)stream;
    return -ENOTSUP;
}

int bench_load_end_graph(struct bench_load *load, size_t stream, void **graph)
{
    (void)load;
    (void)stream;
    (void)graph;
    return -ENOTSUP;
}

int bench_load_launch_graph(struct bench_load *load, size_t stream, void *graph)
{
    (void)load;
    (void)stream;
    (void)graph;
    return -ENOTSUP;
}

void bench_load_destroy_graph(struct bench_load *load, void *graph)
{
    (void)load;
    (void)graph;
}

int bench_load_launch(struct bench_load *load, enum bench_load_kernel kernel, unsigned slot,
                      unsigned event)
{
    (void)load;
    (void)kernel;
    (void)slot;
    (void)event;
    return -ENOTSUP;
}

void bench_load_see(const struct bench_load *load, unsigned slot, struct bench_load_seen *seen)
{
    (void)load;
    (void)slot;
    *seen = (struct bench_load_seen){0};
}

int bench_load_record(struct bench_load *load, unsigned event, size_t stream)
{
    (void)load;
    (void)event;
    (void)stream;
    return -ENOTSUP;
}

int bench_load_passed(struct bench_load *load, unsigned event)
{
    (void)load;
    (void)event;
    return -ENOTSUP;
}

int bench_load_between(struct bench_load *load, unsigned from, unsigned to, double *us)
{
    (void)load;
    (void)from;
    (void)to;
    (void)us;
    return -ENOTSUP;
}
