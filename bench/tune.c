// SPDX-License-Identifier: BSD-3-Clause
#include "tune.h"

#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "block.h"
#include "cases.h"
#include "launch.h"
#include "report.h"
#include "stats.h"

#define LL_MOST       1048576 // of PEERHOP_LL_MAX
#define LL_UNMEASURED 8192
#define NOISE         1.01

enum { LL, SM, CE, METHODS };
_Static_assert(METHODS <= BENCH_CUDA_DEVICES, "a device for each");

// How the limits leave a message one method only.
static const struct {
    const char *name, *ll_max, *sm_max;
} methods[METHODS] = {
    {"ll", "PEERHOP_LL_MAX=1048576", "PEERHOP_SM_MAX=0"},
    {"sm", "PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=9223372036854775807"},
    {"ce", "PEERHOP_LL_MAX=0", "PEERHOP_SM_MAX=0"},
};

struct way {
    struct bench bench;
    struct bench_run run;
    struct bench_options options;
    char job[256];
    const char *settings[BENCH_SETTINGS + 1];
    double us[BENCH_SIZES_MAX]; // by size; medians of half round trips
    double blocks[BENCH_SAMPLES_MAX];
};

struct tune {
    struct bench_sizes sizes;
    size_t small; // how many of them ll may take
    bool wide;    // ... also those of more than LL_UNMEASURED
    char job[128];
    struct way ways[METHODS];
};

size_t bench_tune_kept(const double *one, const double *other, size_t n)
{
    size_t kept = n;
    for (size_t i = n; i-- > 0 && other[i] <= one[i] * NOISE;)
        if (other[i] < one[i])
            kept = i;
    return kept;
}

static int compare(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

static void choose_sizes(struct tune *tune, const struct bench_options *options)
{
    tune->sizes = options->sizes;
    if (tune->sizes.n == 0)
        bench_sizes_parse(&tune->sizes, "8:256M");
    qsort(tune->sizes.values, tune->sizes.n, sizeof(*tune->sizes.values), compare);
    while (tune->small < tune->sizes.n && tune->sizes.values[tune->small] <= LL_MOST)
        tune->small++;
}

static size_t count_of(const struct tune *tune, int method)
{
    return method == LL ? tune->small : tune->sizes.n;
}

// open_way: a rank of a job of its own. Its channels serve all sizes, for only the first of a pair
// have flags.
static int open_way(struct tune *tune, int method, const struct bench_options *options)
{
    struct way *way = &tune->ways[method];
    const size_t n = count_of(tune, method);
    char why[256];
    way->options = *options;
    way->options.cases[0] = &bench_send_latency;
    way->options.case_count = 1;
    way->options.sizes = tune->sizes;
    way->options.sizes.n = n ? n : 1;
    snprintf(way->job, sizeof(way->job), "PEERHOP_JOB=%s-%s", tune->job, methods[method].name);
    const char *settings[] = {"PEERHOP_METHOD=auto", way->job, methods[method].ll_max,
                              methods[method].sm_max};
    _Static_assert(sizeof(settings) == BENCH_SETTINGS * sizeof(*settings), "all of them");
    memcpy(way->settings, settings, sizeof(settings));
    way->bench.options = &way->options;
    way->bench.settings = way->settings;
    way->run = (struct bench_run){
        .bench = &way->bench,
        .test = &bench_send_latency,
        .size = tune->sizes.values[way->options.sizes.n - 1],
    };
    int rc = bench_start(&way->bench, why, sizeof(why));
    if (rc == 0 && way->bench.ranks != 2)
        rc = bench_fail(&way->bench, -EINVAL, "--tune is for 2 ranks");
    return rc ? rc : bench_run_open(&way->run);
}

// is_forced: whether messages go by that method, so that there is a choice. Of ll, those that the
// pair's devices let go so: larger ones only where a table says that wide lines come whole there.
static int is_forced(struct tune *tune, int method, bool *forced)
{
    struct way *way = &tune->ways[method];
    struct ph_path_report report;
    int rc = ph_channel_path(way->run.forward[0], way->bench.leader, &report, sizeof(report));
    if (rc)
        return bench_fail(&way->bench, rc, "ph_channel_path");
    tune->wide = tune->wide || report.ll_max > LL_UNMEASURED;
    while (method == LL && tune->small > 0 && tune->sizes.values[tune->small - 1] > report.ll_max)
        tune->small--;
    *forced = strcmp(report.path, "ipc") == 0 && (report.ll_max > 0) == (method == LL) &&
              (report.sm_max > 0) == (method == SM);
    return 0;
}

// measure_size: the blocks of the methods take turns, so that what disturbs one disturbs all.
static int measure_size(struct tune *tune, size_t index)
{
    const int first = index < tune->small ? LL : SM;
    size_t blocks = 0, count[METHODS];
    char text[32];
    int rc = 0;
    for (int m = first; m < METHODS && rc == 0; m++) {
        struct way *way = &tune->ways[m];
        way->run.size = tune->sizes.values[index];
        snprintf(way->bench.doing, sizeof(way->bench.doing), "--tune, %s, %s bytes",
                 methods[m].name, bench_size_text(way->run.size, text, sizeof(text)));
        rc = bench_run_prepare(&way->run, &blocks, &count[m]);
    }
    for (size_t i = 0; i < blocks && rc == 0; i++)
        for (int m = first; m < METHODS && rc == 0; m++)
            rc = bench_block_run(&tune->ways[m].run, BENCH_BLOCK_TIMED, count[m],
                                 &tune->ways[m].blocks[i]);
    for (int m = first; m < METHODS && rc == 0; m++) {
        struct bench_stats stats;
        bench_stats_compute(tune->ways[m].blocks, blocks, false, &stats);
        tune->ways[m].us[index] = stats.median / (double)count[m] / 2;
    }
    return rc;
}

static size_t ll_max_of(const struct tune *tune)
{
    const double *sm = tune->ways[SM].us, *ce = tune->ways[CE].us;
    double best[BENCH_SIZES_MAX];
    if (tune->small == 0)
        return LL_UNMEASURED; // what pairs have that nobody has measured
    for (size_t i = 0; i < tune->small; i++)
        best[i] = sm[i] < ce[i] ? sm[i] : ce[i];
    const size_t kept = bench_tune_kept(tune->ways[LL].us, best, tune->small);
    return kept ? tune->sizes.values[kept - 1] : 0;
}

// sm_max_text: "64M" or "all".
static void sm_max_text(const struct tune *tune, char *text, size_t size)
{
    const size_t kept = bench_tune_kept(tune->ways[SM].us, tune->ways[CE].us, tune->sizes.n);
    if (kept == tune->sizes.n)
        snprintf(text, size, "all");
    else
        bench_size_text(kept ? tune->sizes.values[kept - 1] : 0, text, size);
}

static void print_line(FILE *out, const struct tune *tune, const char *own, const char *peer)
{
    char ll_text[32], sm_text[32];
    bench_size_text(ll_max_of(tune), ll_text, sizeof(ll_text));
    sm_max_text(tune, sm_text, sizeof(sm_text));
    fprintf(out, "\"%s\" \"%s\" %s %s%s\n", own, peer, ll_text, sm_text, tune->wide ? " wide" : "");
}

// The line counts for both ways: a round trip takes one of each.
static void print_table(FILE *out, const struct tune *tune, char names[2][BENCH_MODEL_SIZE])
{
    char text[32];
    fprintf(out, "# peerhop-perf --tune: half round trips of send and recv, us, medians\n");
    fprintf(out, "# %10s", "bytes");
    for (int m = LL; m < METHODS; m++)
        fprintf(out, " %10s", methods[m].name);
    fputc('\n', out);
    for (size_t i = 0; i < tune->sizes.n; i++) {
        fprintf(out, "# %10s", bench_size_text(tune->sizes.values[i], text, sizeof(text)));
        for (int m = LL; m < METHODS; m++) {
            if (i < count_of(tune, m))
                fprintf(out, " %10.3f", tune->ways[m].us[i]);
            else
                fprintf(out, " %10s", "-");
        }
        fputc('\n', out);
    }
    fprintf(out, "# own device, peer's device, ll_max, sm_max, wide where it is (PEERHOP_TABLE)\n");
    print_line(out, tune, names[0], names[1]);
    if (strcmp(names[0], names[1]) != 0)
        print_line(out, tune, names[1], names[0]);
}

static int save(struct tune *tune, char names[2][BENCH_MODEL_SIZE])
{
    struct bench *bench = &tune->ways[SM].bench;
    const char *file = bench->options->save;
    FILE *out = file ? fopen(file, "w") : NULL;
    if (!file)
        return 0;
    if (!out)
        return bench_fail(bench, -errno, "--save %s", file);
    print_table(out, tune, names);
    bool failed = ferror(out);
    failed |= fclose(out) != 0;
    return failed ? bench_fail(bench, -EIO, "--save %s", file) : 0;
}

static int report(struct tune *tune)
{
    struct bench *bench = &tune->ways[SM].bench;
    char names[2][BENCH_MODEL_SIZE];
    int rc = bench_allgather(bench, bench->device->model, names, sizeof(names[0]));
    if (rc || bench->rank != 0)
        return rc;
    print_table(stdout, tune, names);
    fflush(stdout);
    return save(tune, names);
}

static int one_method(int rank, const char *why)
{
    if (rank == 0)
        printf("%s: messages have one method there, and there is nothing to tune.\n", why);
    fflush(stdout);
    return 0;
}

static int measure(struct tune *tune)
{
    bool forced = true;
    int rc = 0;
    for (int m = LL; m < METHODS && rc == 0 && forced; m++)
        rc = is_forced(tune, m, &forced);
    if (rc == 0 && !forced)
        return one_method(tune->ways[SM].bench.rank, "No flags between these devices");
    for (size_t i = 0; i < tune->sizes.n && rc == 0; i++)
        rc = measure_size(tune, i);
    for (int m = LL; m < METHODS; m++)
        *tune->ways[m].bench.doing = 0;
    return rc ? rc : report(tune);
}

static int run(struct tune *tune, const struct bench_options *options)
{
    int rc = 0, opened = 0;
    for (; opened < METHODS && rc == 0; opened++)
        rc = open_way(tune, opened, options);
    if (rc == 0)
        rc = measure(tune);
    for (int m = 0; m < opened; m++) {
        bench_run_close(&tune->ways[m].run);
        int ended = bench_finish(&tune->ways[m].bench, rc);
        rc = rc ? rc : ended;
    }
    return rc;
}

int bench_tune(const struct bench_options *options)
{
    struct bench_place mine = {0};
    char why[256], place[300];
    bench_place(&mine);
    if (bench_on_host(options->kind, why, sizeof(why))) {
        snprintf(place, sizeof(place), "Host memory (%s)", why);
        return one_method(mine.rank, place);
    }
    if (!*mine.job) {
        fprintf(stderr, "peerhop-perf: --tune: this launcher names no job: set PEERHOP_JOB\n");
        return 1;
    }
    struct tune *tune = calloc(1, sizeof(*tune));
    if (!tune)
        return 1;
    snprintf(tune->job, sizeof(tune->job), "%s", mine.job);
    choose_sizes(tune, options);
    int rc = run(tune, options);
    free(tune);
    return rc ? 1 : 0;
}
