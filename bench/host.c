// SPDX-License-Identifier: BSD-3-Clause
// Host memory: memfds that the bench makes and registers, so that the raw limits touch the same
// pages as the library.
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <peerhop/memory.h>
#include <peerhop/queue.h>

#include "device.h"
#include "direct.h"
#include "memory/memfd.h"

// The limit of the net path is a direct program's (direct.h), that of shared memory is memcpy.

// The flag that each rank writes lies in its peer's page, on a line of its own.
struct words {
    _Alignas(64) _Atomic uint64_t flag;
};

struct host {
    struct bench_device device;
    struct ph_context *context;
    struct ph_queue *queue;
    int arena_fd;
    char *arena;
    size_t arena_size;
    int64_t marks[2]; // ns
    struct host_note {
        uint64_t after_ns, ns;
    } notes[BENCH_NOTES];

    int words_fd;
    struct words *words, *peer_words;
    char *peer_arena;
    uint64_t flags;    // round trips so far
    bool flags_leader; // of the call that is enqueued
    size_t flags_count;
    struct bench_direct *direct; // NULL: not over the net
};

static struct host *host_of(struct bench_device *device)
{
    return (struct host *)device;
}

static int refuse(struct bench_device *device, int rc, const char *what)
{
    snprintf(device->error, sizeof(device->error), "%s", what);
    return rc;
}

int bench_peer_fd(int64_t pid, int fd, int *opened)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)pid, fd);
    int copy = open(path, O_RDWR | O_CLOEXEC);
    if (copy < 0)
        return -errno;
    *opened = copy;
    return 0;
}

int bench_words_open(int *fd, void **words)
{
    int made = memfd_create("peerhop-perf-words", MFD_CLOEXEC);
    if (made < 0)
        return -errno;
    void *base = MAP_FAILED;
    if (ftruncate(made, BENCH_WORDS_SIZE) == 0)
        base = mmap(NULL, BENCH_WORDS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    if (base == MAP_FAILED) {
        int rc = -errno;
        close(made);
        return rc;
    }
    *fd = made;
    *words = base;
    return 0;
}

static int host_open(struct bench_device *device, int rank)
{
    (void)rank;
    snprintf(device->name, sizeof(device->name), "host");
    return 0;
}

static int host_attach(struct bench_device *device, struct ph_context *context, void **stream)
{
    struct host *host = host_of(device);
    host->context = context;
    int rc = ph_queue_create(context, &host->queue);
    if (rc)
        return refuse(device, rc, "ph_queue_create");
    *stream = host->queue;
    return 0;
}

static int alloc_arena(struct host *host, size_t size, void **base)
{
    struct phi_report report;
    int fd;
    phi_report_init(&report, NULL, NULL, PH_LOG_NONE);
    int rc = phi_memfd_create(&report, "peerhop-perf arena", size, &fd);
    phi_report_copy(&report, host->device.error, sizeof(host->device.error));
    phi_report_fini(&report);
    if (rc)
        return rc;
    rc = ph_host_register(host->context, fd, 0, size, base);
    if (rc) {
        close(fd);
        return refuse(&host->device, rc, "ph_host_register");
    }
    host->arena_fd = fd;
    host->arena = *base;
    host->arena_size = size;
    return 0;
}

static int host_alloc(struct bench_device *device, bool arena, size_t size, void **base)
{
    struct host *host = host_of(device);
    if (arena)
        return alloc_arena(host, size, base);
    int rc = ph_host_alloc(host->context, size, base);
    return rc ? refuse(device, rc, "ph_host_alloc") : 0;
}

static int host_copy(struct bench_device *device, void *destination, const void *source,
                     size_t size)
{
    (void)device;
    memcpy(destination, source, size);
    return 0;
}

static int host_synchronize(struct bench_device *device, int64_t deadline_ms)
{
    int rc = ph_queue_synchronize(host_of(device)->queue, deadline_ms);
    return rc ? refuse(device, rc, "ph_queue_synchronize") : 0;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void note_time(void *opaque)
{
    *(int64_t *)opaque = now_ns();
}

static void run_drain(void *opaque)
{
    bench_direct_drain(opaque);
}

static int host_mark(struct bench_device *device, unsigned index)
{
    struct host *host = host_of(device);
    if (host->direct) {
        int drained = ph_queue_host(host->queue, run_drain, host->direct);
        if (drained)
            return refuse(device, drained, "ph_queue_host");
    }
    int rc = ph_queue_host(host->queue, note_time, &host->marks[index]);
    return rc ? refuse(device, rc, "ph_queue_host") : 0;
}

static int host_elapsed(struct bench_device *device, double *us)
{
    struct host *host = host_of(device);
    *us = (double)(host->marks[1] - host->marks[0]) / 1e3;
    return 0;
}

static int host_open_notes(struct bench_device *device)
{
    (void)device;
    return 0;
}

// It spins, as the kernel for GPUs does: a thread that has slept sends more slowly.
static void run_note(void *opaque)
{
    struct host_note *note = opaque;
    const uint64_t start = (uint64_t)now_ns();
    do
        note->ns = (uint64_t)now_ns();
    while (note->ns - start < note->after_ns);
}

static int host_note(struct bench_device *device, unsigned index, uint64_t after_ns)
{
    struct host *host = host_of(device);
    host->notes[index].after_ns = after_ns;
    int rc = ph_queue_host(host->queue, run_note, &host->notes[index]);
    return rc ? refuse(device, rc, "ph_queue_host") : 0;
}

static int host_read_notes(struct bench_device *device, uint64_t ns[BENCH_NOTES])
{
    for (unsigned i = 0; i < BENCH_NOTES; i++)
        ns[i] = host_of(device)->notes[i].ns;
    return 0;
}

static int host_raw_handle(struct bench_device *device, struct bench_raw_handle *handle)
{
    struct host *host = host_of(device);
    if (device->net)
        return bench_direct_open(host->arena, host->arena_size, &host->direct, &handle->direct,
                                 device->error, sizeof(device->error));
    int rc = bench_words_open(&host->words_fd, (void **)&host->words);
    if (rc)
        return refuse(device, rc, "memory for flags");
    *handle = (struct bench_raw_handle){
        .pid = getpid(),
        .arena_fd = host->arena_fd,
        .words_fd = host->words_fd,
        .size = host->arena_size,
    };
    return 0;
}

static int map_peer(struct bench_device *device, int64_t pid, int fd, size_t size, void **base)
{
    int opened = -1;
    int rc = bench_peer_fd(pid, fd, &opened);
    if (rc)
        return refuse(device, rc, "the peer's memory cannot be opened through /proc");
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    rc = mapped == MAP_FAILED ? -errno : 0;
    close(opened);
    if (rc)
        return refuse(device, rc, "the peer's memory cannot be mapped");
    *base = mapped;
    return 0;
}

static int host_raw_open(struct bench_device *device, const struct bench_raw_handle *peer)
{
    struct host *host = host_of(device);
    if (host->direct)
        return bench_direct_connect(host->direct, &peer->direct, device->error,
                                    sizeof(device->error));
    int rc =
        map_peer(device, peer->pid, peer->words_fd, BENCH_WORDS_SIZE, (void **)&host->peer_words);
    return rc ? rc
              : map_peer(device, peer->pid, peer->arena_fd, peer->size, (void **)&host->peer_arena);
}

static void run_copy(void *opaque)
{
    const struct bench_raw_copy *copy = opaque;
    struct host *host = host_of(copy->device);
    if (host->direct) {
        bench_direct_move(host->direct, copy->get, copy->local_offset, copy->peer_offset,
                          copy->size);
        return;
    }
    char *local = host->arena + copy->local_offset, *peer = host->peer_arena + copy->peer_offset;
    memcpy(copy->get ? local : peer, copy->get ? peer : local, copy->size);
}

static int host_raw_copy(struct bench_device *device, struct bench_raw_copy *copy)
{
    int rc = ph_queue_host(host_of(device)->queue, run_copy, copy);
    return rc ? refuse(device, rc, "ph_queue_host") : 0;
}

// Pairs with the release store of the peer's run_flags.
static void await(struct host *host, uint64_t value)
{
    while (atomic_load_explicit(&host->words->flag, memory_order_acquire) < value)
        ;
}

// Pairs with the acquire load of the peer's await.
static void tell(struct host *host, uint64_t value)
{
    atomic_store_explicit(&host->peer_words->flag, value, memory_order_release);
}

static void run_flags(void *opaque)
{
    struct host *host = opaque;
    if (host->direct) {
        bench_direct_flags(host->direct, host->flags_leader, host->flags_count);
        return;
    }
    for (size_t i = 0; i < host->flags_count; i++) {
        uint64_t value = ++host->flags;
        if (host->flags_leader)
            tell(host, value);
        await(host, value);
        if (!host->flags_leader)
            tell(host, value);
    }
}

// A former call's ping-pong is over before its arguments change: they are one struct.
static int host_raw_flags(struct bench_device *device, bool leader, size_t count)
{
    struct host *host = host_of(device);
    int rc = host_synchronize(device, 0);
    if (rc)
        return rc;
    host->flags_leader = leader;
    host->flags_count = count;
    rc = ph_queue_host(host->queue, run_flags, host);
    return rc ? refuse(device, rc, "ph_queue_host") : 0;
}

static void run_finish(void *opaque)
{
    bench_direct_finish(opaque);
}

static int host_raw_finish(struct bench_device *device)
{
    struct host *host = host_of(device);
    if (!host->direct)
        return 0;
    int rc = ph_queue_host(host->queue, run_finish, host->direct);
    const char *failure = bench_direct_failure(host->direct);
    if (rc == 0 && failure)
        return refuse(device, -EIO, failure);
    return rc ? refuse(device, rc, "ph_queue_host") : 0;
}

static void host_detach(struct bench_device *device)
{
    (void)device; // the context ends its queues
}

static void host_close(struct bench_device *device)
{
    struct host *host = host_of(device);
    bench_direct_close(host->direct);
    if (host->peer_arena)
        munmap(host->peer_arena, host->arena_size);
    if (host->peer_words)
        munmap(host->peer_words, BENCH_WORDS_SIZE);
    if (host->words) {
        munmap(host->words, BENCH_WORDS_SIZE);
        close(host->words_fd);
    }
    if (host->arena)
        close(host->arena_fd);
}

static const struct bench_device_ops host_ops = {
    .kind = "host",
    .open = host_open,
    .attach = host_attach,
    .alloc = host_alloc,
    .write = host_copy,
    .read = host_copy,
    .synchronize = host_synchronize,
    .mark = host_mark,
    .elapsed = host_elapsed,
    .open_notes = host_open_notes,
    .note = host_note,
    .read_notes = host_read_notes,
    .raw_handle = host_raw_handle,
    .raw_open = host_raw_open,
    .raw_copy = host_raw_copy,
    .raw_flags = host_raw_flags,
    .raw_finish = host_raw_finish,
    .detach = host_detach,
    .close = host_close,
};

struct bench_device *bench_host_device(void)
{
    static struct host host = {.device = {.ops = &host_ops}};
    return &host.device;
}
