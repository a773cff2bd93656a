// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <peerhop/channel.h>
#include <peerhop/context.h>
#include <peerhop/transfer.h>

#include "base/clock.h"
#include "base/report.h"
#include "check_rank.h"
#include "cuda/device.h"

#define SIZE        ((size_t)1 << 20) // of a message by the copy engines and by copying kernels
#define SIZE_LL     ((size_t)4096)    // of one whose flags travel with its bytes
#define DEADLINE_MS 30000             // of what waits for the other rank

// How a message goes. Each has two channels with a peer, one for each way.
static const struct method {
    const char *what; // with the sender and the receiver before and behind, or the other way round
    enum ph_protocol protocol;
    struct ph_limits limits;
    size_t size;
    bool reads, kernels;
} methods[] = {
    {"wrote", PH_PROTOCOL_PUT, {0, 0}, SIZE, false, false},
    {"read", PH_PROTOCOL_GET, {0, 0}, SIZE, true, false},
    {"stored by a kernel", PH_PROTOCOL_PUT, {0, 1 << 30}, SIZE, false, true},
    {"stored by an ll kernel", PH_PROTOCOL_PUT, {1 << 20, 1 << 30}, SIZE_LL, false, true},
};
enum { METHODS = sizeof(methods) / sizeof(methods[0]), OUT = 0, IN = 1 };

struct rank {
    int rank, ranks;
    struct ph_context *context;
    struct phi_report report;
    struct phi_device *device;
    char *memory; // METHODS times SIZE to send, and as much to receive
    uint8_t *bytes;
    struct ph_channel *channels[METHODS][2];
    struct check_verdict *verdict;
};

static void log_nothing(void *opaque, enum ph_log_level level, const char *line)
{
    (void)opaque;
    (void)level;
    (void)line;
}

// The first thing that is wrong is told: others follow from it.
static int wrong(struct rank *rank, int rc, const char *what, const char *why)
{
    struct check_verdict *verdict = rank->verdict;

    if (!verdict->wrong[0])
        snprintf(verdict->wrong, sizeof(verdict->wrong), "cuda:%d: %s: %s", rank->rank, what, why);
    return rc;
}

static int failed(struct rank *rank, int rc, const char *what)
{
    char sentence[300] = "";

    ph_context_error(rank->context, sentence, sizeof(sentence));
    return wrong(rank, rc, what, sentence[0] ? sentence : ph_strerror(rc));
}

static char *place(const struct rank *rank, int method, int way)
{
    return rank->memory + ((size_t)way * METHODS + (size_t)method) * SIZE;
}

// No byte that a rank sends is what lies there before, and neighbours and ranks differ.
static uint8_t byte_of(int sender, int receiver, int method, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)(sender * 251 + receiver * 31 + method);

    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (uint8_t)(x | 1);
}

// What is sent, and zeros where the peer's comes.
static int fill(struct rank *rank, int peer)
{
    const int64_t deadline = phi_deadline(DEADLINE_MS);
    int rc = 0;

    for (int m = 0; m < METHODS && rc == 0; m++) {
        for (size_t i = 0; i < SIZE; i++)
            rank->bytes[i] = byte_of(rank->rank, peer, m, i);
        rc = phi_device_write(rank->device, place(rank, m, OUT), rank->bytes, SIZE, deadline);
        memset(rank->bytes, 0, SIZE);
        if (rc == 0)
            rc = phi_device_write(rank->device, place(rank, m, IN), rank->bytes, SIZE, deadline);
    }
    return rc ? wrong(rank, rc, "its memory cannot be written", ph_strerror(rc)) : 0;
}

// The other may still be with another pair, or not have begun: that is no time of this one.
static int meet(struct rank *rank, int peer)
{
    const struct ph_operation operation = {
        .op_id = (uint64_t)2 * METHODS,
        .peer = peer,
        .role = rank->rank < peer ? PH_ROLE_SENDER : PH_ROLE_RECEIVER,
        .buffer = rank->memory,
        .size = 1,
    };
    struct ph_channel *channel;
    const int rc = ph_exchange(rank->context, &operation, 1, &channel);

    if (rc)
        return failed(rank, rc, "no path to the other");
    ph_channel_close(channel);
    return 0;
}

// The lower rank's channels to the higher one have the even numbers.
static int exchange(struct rank *rank, int peer)
{
    struct ph_operation operations[METHODS][2] = {0};

    for (int m = 0; m < METHODS; m++) {
        for (int way = 0; way < 2; way++)
            operations[m][way] = (struct ph_operation){
                .op_id = 2 * (uint64_t)m + ((rank->rank < peer) != (way == OUT)),
                .peer = peer,
                .role = way == OUT ? PH_ROLE_SENDER : PH_ROLE_RECEIVER,
                .protocol = methods[m].protocol,
                .buffer = place(rank, m, way),
                .size = SIZE,
                .limits = &methods[m].limits,
            };
    }
    const int rc =
        ph_exchange(rank->context, operations[0], (size_t)2 * METHODS, (void *)rank->channels);
    return rc ? failed(rank, rc, "no path to the other") : 0;
}

// Whether messages by kernels are none here: then they would go by the copy engine.
static bool is_without_kernels(struct rank *rank, int method)
{
    struct ph_path_report report = {0};

    if (!methods[method].kernels)
        return false;
    if (ph_channel_path(rank->channels[method][OUT], 1, &report, sizeof(report)) == 0 &&
        report.sm_max >= SIZE && (methods[method].limits.ll_max == 0 || report.ll_max >= SIZE_LL))
        return false;
    snprintf(rank->verdict->without, sizeof(rank->verdict->without),
             "the path report names no kernels");
    for (size_t i = 0; i < report.rejected_count; i++) {
        if (strcmp(report.rejected[i].name, "sm") == 0 ||
            strcmp(report.rejected[i].name, "ll") == 0)
            snprintf(rank->verdict->without, sizeof(rank->verdict->without), "%s",
                     report.rejected[i].reason);
    }
    return true;
}

static int await_stream(struct rank *rank, const char *what)
{
    const int64_t deadline = phi_deadline(DEADLINE_MS);
    struct ph_counters counters;

    for (;;) {
        int rc = ph_context_counters(rank->context, &counters, sizeof(counters));
        if (rc)
            return failed(rank, rc, what);
        if (counters.in_flight == 0)
            return 0;
        if (phi_now() >= deadline)
            return wrong(rank, -ETIMEDOUT, what, "it is not done after 30 s");
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

static int compare(struct rank *rank, int peer, int method)
{
    const struct method *m = &methods[method];
    char what[128];
    int rc = phi_device_read(rank->device, rank->bytes, place(rank, method, IN), m->size,
                             phi_deadline(DEADLINE_MS));

    if (rc)
        return wrong(rank, rc, "its memory cannot be read", ph_strerror(rc));
    for (size_t i = 0; i < m->size; i++) {
        if (rank->bytes[i] == byte_of(peer, rank->rank, method, i))
            continue;
        snprintf(what, sizeof(what), "of %zu bytes that cuda:%d %s %s cuda:%d byte %zu is wrong",
                 m->size, m->reads ? rank->rank : peer, m->what, m->reads ? "from" : "to",
                 m->reads ? peer : rank->rank, i);
        if (!rank->verdict->wrong[0])
            snprintf(rank->verdict->wrong, sizeof(rank->verdict->wrong), "%s", what);
        return 0; // others may be well, and the peer goes on
    }
    return 0;
}

static int pass(struct rank *rank, int peer, int method)
{
    const struct method *m = &methods[method];
    struct ph_channel **channels = rank->channels[method];
    const struct ph_group_op group[] = {{PH_GROUP_SEND, channels[OUT], 0, 0, m->size, NULL},
                                        {PH_GROUP_RECV, channels[IN], 0, 0, m->size, NULL}};
    int rc = ph_group(group, 2, NULL);

    for (int way = 0; way < 2 && rc == 0; way++)
        rc = ph_complete(channels[way], NULL);
    if (rc)
        return failed(rank, rc, "a message cannot be sent");
    if ((rc = await_stream(rank, "a message and its answer")))
        return rc;
    for (int way = 0; way < 2; way++) {
        if ((rc = ph_channel_status(channels[way])))
            return failed(rank, rc, "a message");
    }
    return compare(rank, peer, method);
}

static void check(struct rank *rank, int peer)
{
    int rc = meet(rank, peer);
    const int64_t began = phi_now();

    if (rc == 0)
        rc = fill(rank, peer);
    if (rc == 0)
        rc = exchange(rank, peer);
    rank->verdict->kernels = rc == 0;
    for (int m = 0; m < METHODS && rc == 0; m++) {
        if (is_without_kernels(rank, m))
            rank->verdict->kernels = 0;
        else
            rc = pass(rank, peer, m);
    }
    for (int i = 0; i < 2 * METHODS; i++) {
        if (rank->channels[i / 2][i % 2])
            ph_channel_close(rank->channels[i / 2][i % 2]);
        rank->channels[i / 2][i % 2] = NULL;
    }
    rank->verdict->us = (uint32_t)((phi_now() - began) / 1000);
}

static int open_rank(struct rank *rank, const char *store, const char *libcuda)
{
    // What the user's environment asks for measurements is not what is to be checked.
    static const char *const settings[] = {"PEERHOP_PATH=ipc", "PEERHOP_METHOD=auto",
                                           "PEERHOP_WAIT=auto", NULL};
    char name[24], error[300] = "";
    snprintf(name, sizeof(name), "cuda:%d", rank->rank);
    const struct ph_context_params params = {.struct_size = sizeof(params),
                                             .rank = rank->rank,
                                             .ranks = rank->ranks,
                                             .device = name,
                                             .store = store,
                                             .job = "check",
                                             .deadline_ms = DEADLINE_MS,
                                             .log = log_nothing,
                                             .settings = settings,
                                             .error = error,
                                             .error_size = sizeof(error)};
    void *memory = NULL;
    int rc = ph_context_create(&params, &rank->context);

    if (rc)
        return wrong(rank, rc, "no context", error);
    rc = phi_device_open(&rank->report, libcuda, rank->rank, phi_deadline(DEADLINE_MS),
                         &rank->device);
    if (rc == 0)
        rc = phi_device_alloc(rank->device, SIZE * 2 * METHODS, &memory);
    rank->memory = memory;
    rank->bytes = malloc(SIZE);
    if (rc == 0 && !rank->bytes)
        rc = -ENOMEM;
    return rc ? wrong(rank, rc, "no memory", ph_strerror(rc)) : 0;
}

static int tell(const struct check_verdict *verdict, int pipe)
{
    _Static_assert(sizeof(*verdict) <= 4096, "a pipe takes it whole (PIPE_BUF)");
    return write(pipe, verdict, sizeof(*verdict)) == sizeof(*verdict) ? 0 : -EPIPE;
}

static void check_each(struct rank *rank, int pipe)
{
    struct check_verdict *verdict = rank->verdict;

    for (int low = 0; low < rank->ranks; low++) {
        for (int high = low + 1; high < rank->ranks; high++) {
            if (rank->rank != low && rank->rank != high)
                continue;
            const int peer = rank->rank == low ? high : low;
            *verdict = (struct check_verdict){.rank = rank->rank, .peer = peer};
            check(rank, peer);
            if (tell(verdict, pipe) < 0)
                return;
        }
    }
}

int check_rank(const char *store, const char *libcuda, int number, int ranks, int pipe)
{
    struct check_verdict verdict = {.rank = number, .peer = number};
    struct rank rank = {.rank = number, .ranks = ranks, .verdict = &verdict};

    phi_report_init(&rank.report, log_nothing, NULL, PH_LOG_NONE);
    int rc = open_rank(&rank, store, libcuda);
    if (rc == 0)
        check_each(&rank, pipe);
    else
        tell(&verdict, pipe);
    if (rank.context && ph_context_destroy(&rank.context, DEADLINE_MS) != 0)
        return 1; // what is mapped ends with the process
    phi_device_free(rank.device, rank.memory);
    phi_device_close(rank.device, phi_deadline(DEADLINE_MS));
    free(rank.bytes);
    phi_report_fini(&rank.report);
    return rc ? 1 : 0;
}
