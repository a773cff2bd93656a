// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/ranges.h"
#include "base/clock.h"
#include "base/launcher.h"
#include "base/random.h"
#include "ending/expel.h"
#include "ending/heartbeat.h"
#include "meeting/reap.h"
#include "peer/self.h"
#include "service/leave.h"
#include "service/open.h"
#include "transfer/device_channel.h"
#include "transfer/issue.h"

#define RANKS_MAX 1048576

// How long the end of a context waits for what the driver has of it, whatever the store took.
#define DEVICE_MS 2000

// The identity of this rank, as parameters, environment and launcher together give it.
struct identity {
    int rank, ranks;
    char job[128];
    uint64_t epoch;
};

// Half of one job and half of another make no job. If only one of rank and ranks is set, the
// launcher must say the same of it, or nothing.
static int refuse_halves(struct ph_context *context, const struct phi_launcher *launcher)
{
    const int64_t rank = context->config.rank, ranks = context->config.ranks;
    char says[128] = "";
    if (rank >= 0 && ranks <= 0 && launcher->rank >= 0 && launcher->rank != rank)
        snprintf(says, sizeof says, "PEERHOP_RANK is %lld, and PEERHOP_RANKS is not set",
                 (long long)rank);
    if (rank < 0 && ranks > 0 && launcher->ranks > 0 && launcher->ranks != ranks)
        snprintf(says, sizeof says, "PEERHOP_RANKS is %lld, and PEERHOP_RANK is not set",
                 (long long)ranks);
    if (says[0] == 0)
        return 0;
    return phi_fail(
        &context->report, -EINVAL,
        "no rank: %s, which does not go with rank %lld of %lld (%s): set both, or neither", says,
        (long long)launcher->rank, (long long)launcher->ranks, launcher->name);
}

static int choose_ranks(struct ph_context *context, const struct ph_context_params *params,
                        const struct phi_launcher *launcher, struct identity *identity)
{
    int64_t rank = params->rank, ranks = params->ranks;
    if (ranks == 0) {
        int rc = refuse_halves(context, launcher);
        if (rc)
            return rc;
        rank = context->config.rank >= 0 ? context->config.rank : launcher->rank;
        ranks = context->config.ranks > 0 ? context->config.ranks : launcher->ranks;
    }
    if (params->ranks != 0 && (ranks < 0 || rank < 0))
        return phi_fail(&context->report, -EINVAL, "rank %lld of %lld ranks is none",
                        (long long)rank, (long long)ranks);
    if (ranks <= 0 && rank >= 0 && context->config.rank < 0)
        return phi_fail(&context->report, -EINVAL,
                        "rank %lld, as %s says, which says nothing of how many there are: set "
                        "PEERHOP_RANKS%s%s",
                        (long long)rank, launcher->name, launcher->lacks[0] ? "; " : "",
                        launcher->lacks);
    if (ranks <= 0 || rank < 0)
        return phi_fail(&context->report, -EINVAL,
                        "no rank: set ranks and rank, PEERHOP_RANK (it is %lld) and PEERHOP_RANKS "
                        "(it is %lld), or use a launcher: torchrun, mpirun, srun, which a Slurm "
                        "script itself does not stand for, or peerhop-run (%s found%s%s)",
                        (long long)context->config.rank, (long long)context->config.ranks,
                        launcher->name, launcher->lacks[0] ? ": " : "", launcher->lacks);
    if (ranks > RANKS_MAX)
        return phi_fail(&context->report, -EINVAL, "%lld ranks are more than the %d of a job",
                        (long long)ranks, RANKS_MAX);
    if (rank >= ranks)
        return phi_fail(&context->report, -EINVAL,
                        "rank %lld is not below the number of ranks, %lld", (long long)rank,
                        (long long)ranks);
    identity->rank = (int)rank;
    identity->ranks = (int)ranks;
    context->report.rank = identity->rank;
    return 0;
}

static int choose_job(struct ph_context *context, const struct ph_context_params *params,
                      const struct phi_launcher *launcher, struct identity *identity)
{
    const char *job = params->job && params->job[0] ? params->job : context->config.job;
    if (job[0] == 0)
        job = launcher->job;
    // A user's own store is the job's own; a server may be anybody's.
    if (job[0] == 0 && params->store_callbacks != NULL)
        job = "default";
    if (job[0] == 0)
        return phi_fail(&context->report, -EINVAL,
                        "no job: %s gives it no name of its own, and ranks of different jobs would "
                        "meet in the store: set job or PEERHOP_JOB, alike for all ranks of the job",
                        launcher->name);
    if (strlen(job) > 100 || strpbrk(job, " \t\r\n{}") != NULL)
        return phi_fail(
            &context->report, -EINVAL,
            "job \"%.100s\": a name has at most 100 characters, no blanks and no braces", job);
    snprintf(identity->job, sizeof identity->job, "%s", job);
    identity->epoch = params->epoch ? params->epoch : (uint64_t)context->config.epoch;
    return 0;
}

static int replace(struct ph_context *context, char **string, const char *value)
{
    if (value == NULL)
        return 0;
    char *copy = strdup(value);
    if (copy == NULL)
        return phi_fail(&context->report, -ENOMEM, "no memory for the parameters");
    free(*string);
    *string = copy;
    return 0;
}

static int read_config(struct ph_context *context, const struct ph_context_params *params)
{
    if ((int)params->log_level < PH_LOG_NONE || (int)params->log_level > PH_LOG_DEBUG)
        return phi_fail(&context->report, -EINVAL, "log_level %d is not from %d to %d",
                        (int)params->log_level, PH_LOG_NONE, PH_LOG_DEBUG);
    int rc = phi_config_read(&context->config, params->settings, &context->report);
    if (rc)
        return rc;
    if ((rc = replace(context, &context->config.device, params->device)) ||
        (rc = replace(context, &context->config.store, params->store)))
        return rc;
    if (params->deadline_ms < 0)
        return phi_fail(&context->report, -EINVAL, "deadline_ms is negative");
    if (context->config.suspect_ms < 3 * context->config.heartbeat_ms)
        return phi_fail(
            &context->report, -EINVAL,
            "PEERHOP_SUSPECT_MS=%lld is less than 3 heartbeats (PEERHOP_HEARTBEAT_MS=%lld)",
            (long long)context->config.suspect_ms, (long long)context->config.heartbeat_ms);
    if (params->deadline_ms)
        context->config.deadline_ms = params->deadline_ms;
    if (params->store_callbacks == NULL && context->config.store[0] == 0)
        return phi_fail(&context->report, -EINVAL,
                        "no store: set store or PEERHOP_STORE (redis://host:port/db, "
                        "unix:///path, or file:/directory for ranks of one node), or give "
                        "callbacks");
    const char *table = context->config.table;
    return *table ? phi_table_read(table, &context->report, &context->size_table) : 0;
}

// "cuda" or "cuda:N"; the latter sets *n.
static bool is_cuda(const char *wish, long *n)
{
    if (strncmp(wish, "cuda", 4) != 0 || wish[4] == 0)
        return strcmp(wish, "cuda") == 0;
    char *end;
    *n = strtol(wish + 5, &end, 10);
    return wish[4] == ':' && wish[5] >= '0' && wish[5] <= '9' && *end == 0;
}

// The local rank that a launcher counted is taken only if the launcher speaks of this rank: another
// launcher may have started this rank.
static int64_t local_rank_of(const struct ph_context *context, const struct phi_launcher *launcher,
                             int rank)
{
    if (context->config.local_rank >= 0)
        return context->config.local_rank;
    return launcher->local_rank >= 0 && launcher->rank == rank ? launcher->local_rank : rank;
}

// -1: host memory.
static int choose_device(struct ph_context *context, const struct phi_launcher *launcher, int rank,
                         int *ordinal)
{
    const char *wish = context->config.device;
    const char *library = context->config.libcuda;
    *ordinal = -1;
    if (strcmp(wish, "host") == 0)
        return 0;
    long wanted = -1;
    if (wish[0] != 0 && !is_cuda(wish, &wanted))
        return phi_fail(&context->report, -EINVAL, "device \"%s\" is not host, cuda or cuda:N",
                        wish);
    char why[512] = "";
    int count = phi_device_count_why(library, why, sizeof why);
    if (count == 0 && wish[0] == 0) {
        phi_log(&context->report, PH_LOG_INFO, "%s", why);
        return 0;
    }
    if (count == 0)
        return phi_fail(&context->report, -ENODEV,
                        "device \"%s\" was asked for, and there is no CUDA device: %s", wish, why);
    if (wanted >= count)
        return phi_fail(&context->report, -ENODEV, "device \"%s\": there are %d CUDA devices", wish,
                        count);
    if (wanted >= 0) {
        *ordinal = (int)wanted;
        return 0;
    }
    *ordinal = phi_device_current(&context->report, library);
    if (*ordinal < 0)
        *ordinal = (int)(local_rank_of(context, launcher, rank) % count);
    return 0;
}

static void name_device(struct ph_context *context)
{
    if (context->device == NULL) {
        strcpy(context->name, "host");
        return;
    }
    const struct phi_device_info *info = phi_device_info(context->device);
    const uint8_t *u = info->uuid;
    snprintf(context->name, sizeof context->name,
             "cuda:%d %s GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             info->ordinal, info->name, u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9],
             u[10], u[11], u[12], u[13], u[14], u[15]);
}

static int open_device(struct ph_context *context, int ordinal, int64_t deadline)
{
    struct phi_executor_params params = {&context->report, &context->counters, &context->config};
    int rc = 0;
    if (ordinal >= 0)
        rc = phi_device_open(&context->report, context->config.libcuda, ordinal, deadline,
                             &context->device);
    if (rc == 0)
        rc = phi_memory_open(&context->report, context->device, &context->memory);
    if (rc)
        return rc;
    name_device(context);
    return context->device ? phi_cuda_executor_open(&params, context->device, &context->executor)
                           : phi_host_executor_open(&params, &context->executor);
}

static int open_context(struct ph_context *context, const struct ph_context_params *params)
{
    struct phi_launcher launcher;
    struct identity identity;
    phi_launcher_read(&launcher);
    int ordinal;
    int rc = phi_random_check();
    if (rc)
        return phi_fail(&context->report, rc,
                        "no random numbers, of which names and keys are made: getrandom: %s",
                        strerror(-rc));
    rc = read_config(context, params);
    if (rc || (rc = choose_ranks(context, params, &launcher, &identity)) ||
        (rc = choose_job(context, params, &launcher, &identity)) ||
        (rc = choose_device(context, &launcher, identity.rank, &ordinal)))
        return rc;
    const int64_t deadline = phi_deadline(context->config.deadline_ms);
    rc = open_device(context, ordinal, deadline);
    if (rc)
        return rc;
    const struct phi_self_params own = {
        .report = &context->report,
        .counters = &context->counters,
        .config = &context->config,
        .size_table = &context->size_table,
        .memory = context->memory,
        .executor = context->executor,
        .device = context->device,
        .callbacks = params->store_callbacks,
        .job = identity.job,
        .epoch = identity.epoch,
        .rank = identity.rank,
        .ranks = identity.ranks,
        .incarnation = phi_incarnation(0),
    };
    rc = phi_self_open(&own, deadline, &context->self);
    if (rc == 0)
        rc = phi_issue_prepare(context->self);
    if (rc == 0)
        phi_log(&context->report, PH_LOG_INFO, "rank %d of %d, job %s, epoch %llu, on %s",
                identity.rank, identity.ranks, identity.job, (unsigned long long)identity.epoch,
                context->name);
    return rc;
}

static void free_context(struct ph_context *context, int64_t deadline)
{
    phi_self_close(context->self, deadline);
    if (context->executor != NULL)
        context->executor->ops->close(context->executor);
    phi_memory_close(context->memory);
    phi_device_close(context->device, phi_deadline(DEVICE_MS));
    phi_table_fini(&context->size_table);
    phi_config_fini(&context->config);
    phi_report_fini(&context->report);
    free(context);
}

int ph_context_create(const struct ph_context_params *given, struct ph_context **out)
{
    struct ph_context_params params = {0};
    if (out == NULL)
        return -EINVAL;
    phi_ranges_open();
    PHI_RANGE("ph_context_create", 0);
    if (given != NULL) {
        size_t size = given->struct_size ? given->struct_size : sizeof params;
        memcpy(&params, given, size < sizeof params ? size : sizeof params);
    }
    struct ph_context *context = calloc(1, sizeof *context);
    if (context == NULL) {
        if (params.error != NULL && params.error_size > 0)
            snprintf(params.error, params.error_size, "no memory for the context");
        return -ENOMEM;
    }
    enum ph_log_level level =
        params.log_level ? params.log_level : phi_config_level(params.settings);
    phi_report_init(&context->report, params.log, params.log_opaque, level);
    int rc = open_context(context, &params);
    if (rc) {
        if (params.error != NULL && params.error_size > 0)
            phi_report_copy(&context->report, params.error, params.error_size);
        free_context(context, phi_deadline(1000));
        return rc;
    }
    *out = context;
    return 0;
}

int ph_context_destroy(struct ph_context **context, int64_t deadline_ms)
{
    PHI_RANGE("ph_context_destroy", 0);
    if (context == NULL || *context == NULL)
        return 0;
    struct ph_context *c = *context;
    if (phi_self_forked(c->self))
        return PH_EFORKED;
    int64_t deadline = phi_deadline(deadline_ms > 0 ? deadline_ms : c->config.deadline_ms);
    int rc = phi_device_channels_none(c->self); // kernels of the application may run
    if (rc == 0)
        rc = phi_leave(c->self, deadline);
    if (rc == 0) {
        phi_reap(c->self, true);
        rc = phi_context_closed(c, deadline, "what was imported of peers is not unmapped yet", "");
    }
    if (rc)
        return rc;
    // The store may be gone by now. Its keys expire, so this does not hold the caller for long. Nor
    // does a stream of the application's that waits only now: the driver ends what it has of this
    // rank behind that stream.
    free_context(c, phi_deadline(2000));
    *context = NULL;
    return 0;
}

int ph_context_abort(struct ph_context *context, const char *reason)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    phi_abort(context->self, reason ? reason : "no reason given");
    return 0;
}

static int check_rank(struct ph_context *context, int rank)
{
    if (context == NULL)
        return -EINVAL;
    if (phi_self_forked(context->self))
        return PH_EFORKED;
    if (rank < 0 || rank >= context->self->ranks || rank == context->self->rank)
        return phi_fail(&context->report, -EINVAL, "rank %d is no peer of rank %d (%d ranks)", rank,
                        context->self->rank, context->self->ranks);
    return 0;
}

int ph_context_peer(struct ph_context *context, int rank, struct ph_peer_report *report,
                    size_t report_size)
{
    int rc = check_rank(context, rank);
    if (rc || (rc = phi_check_given(&context->report, report, "ph_context_peer: report")))
        return rc;
    struct ph_peer_report all;
    phi_peer_report(context->self, rank, &all);
    memcpy(report, &all, report_size < sizeof all ? report_size : sizeof all);
    return 0;
}

int ph_context_expel(struct ph_context *context, int rank)
{
    PHI_RANGE("ph_context_expel", 0);
    int rc = check_rank(context, rank);
    return rc ? rc : phi_expel(context->self, rank, phi_deadline(context->config.deadline_ms));
}

size_t ph_context_error(struct ph_context *context, char *text, size_t size)
{
    if (context == NULL || text == NULL || size == 0)
        return 0;
    // There every call is refused alike, and a thread of the parent may have held the report's
    // lock.
    if (phi_self_forked(context->self)) {
        int length = snprintf(text, size, "%s", ph_strerror(PH_EFORKED));
        return (size_t)length < size ? (size_t)length : size - 1;
    }
    return phi_report_copy(&context->report, text, size);
}

int ph_context_rank(const struct ph_context *context)
{
    return context ? context->self->rank : -EINVAL;
}

int ph_context_ranks(const struct ph_context *context)
{
    return context ? context->self->ranks : -EINVAL;
}

const char *ph_context_device(const struct ph_context *context)
{
    return context ? context->name : "";
}

int ph_context_counters(struct ph_context *context, struct ph_counters *counters,
                        size_t counters_size)
{
    if (context == NULL)
        return -EINVAL;
    int rc = phi_check_given(&context->report, counters, "ph_context_counters: counters");
    if (rc)
        return rc;
    // Refreshes in_flight where the device counts by itself.
    context->executor->ops->busy(context->executor, NULL, 0);
    struct ph_counters all = {
#define READ_COUNTER(member, meaning)                                                              \
    .member = atomic_load_explicit(&context->counters.member, memory_order_relaxed),
        PH_COUNTER_MAP(READ_COUNTER)
#undef READ_COUNTER
    };
    all.device_bytes = phi_memory_device_bytes(context->memory);
    memcpy(counters, &all, counters_size < sizeof all ? counters_size : sizeof all);
    return 0;
}
