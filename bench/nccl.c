// SPDX-License-Identifier: BSD-3-Clause
#include "nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"
#define COMMS   16 // of a pair, most
#define INT8    0  // ncclInt8
#define ID_SIZE 128

// What of NCCL's interface is used, in its binary form of version 2.
struct unique_id {
    char internal[ID_SIZE];
};
struct comm;
_Static_assert(BENCH_SLOT / ID_SIZE >= COMMS, "they travel together");

struct bench_nccl {
    int (*ncclGetVersion)(int *version);
    int (*ncclGetUniqueId)(struct unique_id *id);
    int (*ncclCommInitRank)(struct comm **comm, int ranks, struct unique_id id, int rank);
    int (*ncclCommDestroy)(struct comm *comm);
    int (*ncclCommAbort)(struct comm *comm);
    int (*ncclSend)(const void *from, size_t count, int type, int peer, struct comm *comm,
                    void *stream);
    int (*ncclRecv)(void *to, size_t count, int type, int peer, struct comm *comm, void *stream);
    int (*ncclGroupStart)(void);
    int (*ncclGroupEnd)(void);
    const char *(*ncclGetErrorString)(int result);

    char version[32];
    char path[4096];
    struct comm *comms[COMMS];
    size_t count;
};

static const struct {
    const char *name;
    size_t offset;
} entries[] = {
#define ENTRY(name) {#name, offsetof(struct bench_nccl, name)},
    ENTRY(ncclGetVersion) ENTRY(ncclGetUniqueId) ENTRY(ncclCommInitRank) ENTRY(ncclCommDestroy)
        ENTRY(ncclCommAbort) ENTRY(ncclSend) ENTRY(ncclRecv) ENTRY(ncclGroupStart)
            ENTRY(ncclGroupEnd) ENTRY(ncclGetErrorString)
#undef ENTRY
};

static int check(struct bench *bench, int result, const char *what)
{
    return result ? bench_fail(bench, -EIO, "%s: %s", what, bench->nccl->ncclGetErrorString(result))
                  : 0;
}

// CALL makes a call of NCCL and reports a failure.
#define CALL(bench, entry, ...) check((bench), (bench)->nccl->entry(__VA_ARGS__), #entry)

// Of versions before 2.9 a code has one digit less.
static void name_version(struct bench_nccl *nccl, int code)
{
    const int major = code < 10000 ? code / 1000 : code / 10000;
    const int minor = code < 10000 ? code / 100 % 10 : code / 100 % 100;
    snprintf(nccl->version, sizeof(nccl->version), "%d.%d.%d", major, minor, code % 100);
}

// The library stays open as long as the process.
static int load(struct bench *bench)
{
    struct bench_nccl *nccl = bench->nccl;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return bench_fail(bench, -ENOTSUP, "--compare nccl: no NCCL: %s", dlerror());
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *symbol = dlsym(library, entries[i].name);
        if (!symbol)
            return bench_fail(bench, -ENOTSUP, "--compare nccl: %s has no %s", LIBRARY,
                              entries[i].name);
        memcpy((char *)nccl + entries[i].offset, &symbol, sizeof(symbol));
    }
    Dl_info info = {0};
    void *address;
    memcpy(&address, &nccl->ncclGetVersion, sizeof(address));
    if (dladdr(address, &info) && info.dli_fname)
        snprintf(nccl->path, sizeof(nccl->path), "%s", info.dli_fname);
    int code = 0;
    int rc = CALL(bench, ncclGetVersion, &code);
    name_version(nccl, code);
    return rc;
}

// Messages of several streams by one communicator would wait for each other.
static size_t comms_needed(const struct bench_options *options)
{
    size_t most = 1;
    for (size_t i = 0; i < options->case_count; i++) {
        const struct bench_case *test = options->cases[i];
        const size_t n = test->rows ? bench_case_channels(test, options) : 1;
        most = n > most ? n : most;
    }
    return most < COMMS ? most : COMMS;
}

static int name_comms(struct bench *bench, struct unique_id *mine, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0 && bench->leader && bench->peer >= 0; i++)
        rc = CALL(bench, ncclGetUniqueId, &mine[i]);
    return rc;
}

static int open_comms(struct bench *bench, const struct unique_id *ids, size_t n)
{
    struct bench_nccl *nccl = bench->nccl;
    int rc = 0;
    for (; nccl->count < n && rc == 0; nccl->count += rc == 0)
        rc = CALL(bench, ncclCommInitRank, &nccl->comms[nccl->count], 2, ids[nccl->count],
                  !bench->leader);
    return rc;
}

int bench_nccl_open(struct bench *bench)
{
    const size_t n = comms_needed(bench->options);
    struct unique_id mine[COMMS] = {0}, *all = calloc((size_t)bench->ranks * n, sizeof(*all));
    if (all == NULL)
        return bench_fail(bench, -ENOMEM, "--compare nccl");
    bench->nccl = calloc(1, sizeof(*bench->nccl));
    int rc = bench->nccl ? load(bench) : bench_fail(bench, -ENOMEM, "--compare nccl");
    if (rc == 0)
        rc = name_comms(bench, mine, n);
    if (rc == 0)
        rc = bench_allgather(bench, mine, all, n * sizeof(*mine));
    if (rc == 0 && bench->peer >= 0)
        rc = open_comms(bench, all + (size_t)(bench->rank & ~1) * n, n);
    free(all);
    return rc;
}

void bench_nccl_close(struct bench *bench, int rc)
{
    struct bench_nccl *nccl = bench->nccl;
    for (size_t i = 0; nccl && i < nccl->count; i++) {
        if (rc)
            nccl->ncclCommAbort(nccl->comms[i]);
        else
            nccl->ncclCommDestroy(nccl->comms[i]);
    }
    free(nccl);
    bench->nccl = NULL;
}

const char *bench_nccl_version(const struct bench *bench)
{
    return bench->nccl ? bench->nccl->version : NULL;
}

const char *bench_nccl_path(const struct bench *bench)
{
    return bench->nccl ? bench->nccl->path : NULL;
}

void bench_nccl_describe(struct bench_result *result)
{
    result->protocol = "nccl";
    result->path = result->method = NULL;
    result->ll_max = result->sm_max = 0;
}

static int move(struct bench_run *run, struct comm *comm, size_t channel, bool send, void *stream)
{
    struct bench *bench = run->bench;
    char *area = (char *)bench->arena.base + channel * run->stride;
    const int peer = bench->leader; // in a communicator of two
    return send ? CALL(bench, ncclSend, area + run->out, run->size, INT8, peer, comm, stream)
                : CALL(bench, ncclRecv, area + run->in, run->size, INT8, peer, comm, stream);
}

int bench_nccl_move(struct bench_run *run, size_t channel, bool send, void *stream)
{
    return move(run, run->bench->nccl->comms[channel], channel, send, stream);
}

static int move_first(struct bench_run *run, size_t channel, bool send)
{
    return move(run, run->bench->nccl->comms[0], channel, send, run->bench->stream);
}

static bool goes_both_ways(const struct bench_run *run)
{
    return run->test->ways == (BENCH_FORWARD | BENCH_BACKWARD);
}

// As send.c has it: the other rank is one receive ahead where both ways are one group.
int bench_nccl_begin(struct bench_run *run)
{
    const struct bench *bench = run->bench;
    return goes_both_ways(run) && bench->options->group && !bench->leader
               ? move_first(run, 0, false)
               : 0;
}

int bench_nccl_end(struct bench_run *run)
{
    const struct bench *bench = run->bench;
    return goes_both_ways(run) && bench->options->group && bench->leader ? move_first(run, 0, true)
                                                                         : 0;
}

static int round_trip(struct bench_run *run)
{
    const bool first_sends = run->bench->leader || run->bench->options->group;
    int rc = move_first(run, 0, first_sends);
    return rc ? rc : move_first(run, 0, !first_sends);
}

int bench_nccl_once(struct bench_run *run)
{
    struct bench *bench = run->bench;
    const bool group = bench->options->group;
    int rc = group ? CALL(bench, ncclGroupStart) : 0;
    if (rc == 0 && goes_both_ways(run))
        rc = round_trip(run);
    for (size_t i = 0; i < run->channels && rc == 0 && !goes_both_ways(run); i++)
        rc = move_first(run, i, bench->leader);
    return rc || !group ? rc : CALL(bench, ncclGroupEnd);
}
