// SPDX-License-Identifier: BSD-3-Clause
// peerhop-info tells what this build and this machine can do, how the library is configured, and
// how the ranks of a job do.
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <peerhop/error.h>
#include <peerhop/version.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/report.h"
#include "base/table.h"
#include "built.h"
#include "check_pairs.h"
#include "cuda/device.h"
#include "hide.h"
#include "job_found.h"
#include "job_prometheus.h"
#include "job_status.h"
#include "memory/memory.h"
#include "net/net.h"
#include "transport/way.h"
#include "topology/capabilities.h"
#include "transport/transport.h"
#include "written.h"

enum { STATUS_FAILED = 1, STATUS_USAGE = 2, PLACES_MAX = 65 };

// A place where a rank's memory can be: a device, or the host.
struct place {
    char name[16]; // as PEERHOP_DEVICE takes it
    struct phi_device *device;
    struct phi_memory *memory;
    struct phi_capabilities capabilities;
};

struct info {
    struct phi_report report;
    struct phi_config config;
    char said[256]; // the last log line: why something is not there
    bool aloud;     // warnings are printed
    struct place places[PLACES_MAX];
    int place_count;
};

static const char usage[] =
    "usage: peerhop-info [--build | --check | --config | --net | --job [NAME] [OPTION]...]\n"
    "Prints what this build holds, the devices of this machine and the path between each two.\n\n"
    "  --build    only what this build holds\n"
    "  --check    test each pair of GPUs: each writes to the other, reads from it, and stores by\n"
    "             kernels, and every byte is compared; the status is 1 where one is wrong\n"
    "  --config   every variable with its value, default, range and meaning\n"
    "  --net      the providers of libfabric, which one the net path takes, and why not the "
    "others\n"
    "  --job NAME how each rank of a running job does: its life, its peers as it sees them, and\n"
    "             what it has in flight, for how long, and for whom that waits\n"
    "  --job      the same of each job of this user that has ranks on this node, of those ranks;\n"
    "             it asks no store, and finds ranks by their sockets\n"
    "  --version  the version, and in one line what this build has\n"
    "  --help     this help\n\n"
    "Of --job:\n"
    "  --epoch N       the job's epoch (PEERHOP_EPOCH); with NAME only\n"
    "  --store URI     the job's store (PEERHOP_STORE, which no list of processes shows); with "
    "NAME "
    "only\n"
    "  --timeout-ms N  for the store, and again for all ranks together (2000)\n"
    "  -o json         one object a line instead of the table\n"
    "  -o prometheus   metrics of the ranks of this node, in Prometheus' text format\n";

// What --job was given.
struct job_options {
    struct job job; // without a name: all that are found
    char *store;    // "PEERHOP_STORE=...", or NULL
    bool asked;     // by --job
    bool epoch, json, prometheus;
};

static void keep_line(void *opaque, enum ph_log_level level, const char *line)
{
    struct info *info = opaque;

    if (info->aloud && level == PH_LOG_WARN)
        fprintf(stderr, "peerhop-info: %s\n", line);
    snprintf(info->said, sizeof(info->said), "%s", line);
}

// What else is a warning while the tool asks, stands in its output.
static int read_config(struct info *info, const char *const *settings)
{
    info->aloud = true;
    int rc = phi_config_read(&info->config, settings, &info->report);
    info->aloud = false;
    return rc;
}

static void print_build(void)
{
    printf("peerhop %s\n", ph_version());
    printf("  CUDA headers  %s\n", phi_device_build());
    printf("  kernels       %s\n", phi_device_architectures());
    printf("  hiredis       %d.%d.%d\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    printf("  path %-8s %s\n", phi_path_name(false), "built in");
    printf("  path %-8s %s\n", phi_path_name(true), phi_net_built() ? "built in" : "left out");
}

static const char *yes_no(bool yes)
{
    return yes ? "yes" : "no";
}

static void print_device(const struct place *place)
{
    const struct phi_device_info *device = phi_device_info(place->device);

    printf("  %s  %s  GPU-", place->name, device->name);
    for (int i = 0; i < 16; i++)
        printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", device->uuid[i]);
    printf("\n      driver %s, compute %d.%d, %d multiprocessors, %d connections\n", device->driver,
           device->compute_major, device->compute_minor, device->multiprocessors,
           device->connections);
    printf("      memory operations: %s; kernels: %s; remote writes flushed by waits: %s\n",
           yes_no(device->memory_operations), yes_no(device->kernels),
           yes_no(device->flush_remote_writes));
    printf("      can import:");
    for (int kind = 1; kind < PHI_KIND_COUNT; kind++) {
        if (place->capabilities.kinds & (1u << kind))
            printf(" %s (%s)", phi_kind_name(kind), phi_kind_handle(kind));
    }
    printf("\n");
}

// add_place opens what a rank there would open; -errno with a printed sentence where that fails.
static int add_place(struct info *info, int ordinal)
{
    struct place *place = &info->places[info->place_count];
    char sentence[256];
    int rc = 0;

    *place = (struct place){.name = "host"};
    if (ordinal >= 0) {
        snprintf(place->name, sizeof(place->name), "cuda:%d", ordinal);
        rc = phi_device_open(&info->report, info->config.libcuda, ordinal,
                             phi_deadline(info->config.deadline_ms), &place->device);
    }
    if (rc == 0)
        rc = phi_memory_open(&info->report, place->device, &place->memory);
    if (rc < 0) {
        phi_report_copy(&info->report, sentence, sizeof(sentence));
        printf("  %s  cannot be opened: %s (%s)\n", place->name, sentence, ph_strerror(rc));
        phi_device_close(place->device, phi_deadline(2000));
        return rc;
    }
    phi_capabilities_fill(&place->capabilities, place->device, phi_memory_kinds(place->memory));
    place->capabilities.net = phi_net_built();
    info->place_count++;
    return 0;
}

static void print_devices(struct info *info)
{
    int count = phi_device_count(&info->report, info->config.libcuda);

    printf("\ndevices\n");
    if (count == 0)
        printf("  no CUDA device: %s\n", info->said);
    for (int i = 0; i < count && info->place_count < PLACES_MAX - 1; i++) {
        if (add_place(info, i) == 0)
            print_device(&info->places[info->place_count - 1]);
    }
    if (add_place(info, -1) == 0)
        printf("  host  memory that ph_host_alloc and ph_host_register map\n");
}

// path_of returns the path that a rank at `mine` would take to memory at `theirs`, or NULL, and the
// reason against the best.
static const char *path_of(const struct place *mine, const struct place *theirs,
                           enum phi_reason *reason)
{
    enum phi_kind kind = theirs->device ? PHI_KIND_CUDA : PHI_KIND_HOST;

    *reason = PHI_REASON_NONE;
    for (int net = 0; net <= 1; net++) {
        enum phi_reason why =
            phi_path_viable(net, &mine->capabilities, &theirs->capabilities, kind);

        if (why == PHI_REASON_NONE)
            return phi_path_name(net);
        if (*reason == PHI_REASON_NONE)
            *reason = why;
    }
    return NULL;
}

static void print_row(const struct info *info, const struct place *mine, bool *missing)
{
    printf("  %-8s", mine->name);
    for (int i = 0; i < info->place_count; i++) {
        enum phi_reason reason;
        const char *path = path_of(mine, &info->places[i], &reason);
        char cell[16] = "";

        if (reason != PHI_REASON_NONE)
            snprintf(cell, sizeof(cell), "(%d)", (int)reason);
        printf("%s%-*s", path ? path : "", path ? 8 - (int)strlen(path) : 8, cell);
        missing[reason] |= reason != PHI_REASON_NONE;
    }
    printf("\n");
}

static void print_matrix(const struct info *info)
{
    bool missing[PHI_REASON_COUNT] = {false};

    printf("\npaths, from the rank that copies (row) to its peer's memory (column)\n  %-8s", "");
    for (int i = 0; i < info->place_count; i++)
        printf("%-8s", info->places[i].name);
    printf("\n");
    for (int i = 0; i < info->place_count; i++)
        print_row(info, &info->places[i], missing);
    for (int reason = 0; reason < PHI_REASON_COUNT; reason++) {
        if (missing[reason])
            printf("  (%d) %s\n", reason, phi_reason_text((unsigned)reason));
    }
}

// print_limits: what PEERHOP_TABLE and the variables that win over it say of each two devices.
static void print_limits(const struct info *info, const struct phi_table *table)
{
    if (info->config.method != PHI_METHOD_AUTO) {
        printf("\nmessages between devices go as PEERHOP_METHOD says\n");
        return;
    }
    printf("\nmessages between devices go by ll up to, and by sm up to so many bytes "
           "(PEERHOP_TABLE)\n");
    for (int i = 0; i < info->place_count; i++) {
        for (int j = 0; j < info->place_count; j++) {
            const struct place *mine = &info->places[i], *theirs = &info->places[j];

            if (i == j || !mine->device || !theirs->device)
                continue;
            const struct phi_table_pair pair = {
                mine->capabilities.device_name, theirs->capabilities.device_name,
                phi_capabilities_bus(&mine->capabilities, &theirs->capabilities)};
            struct phi_limits limits = phi_table_limits(table, &info->config, pair);
            printf("  %s to %s  %" PRId64 ", ", mine->name, theirs->name, limits.ll_max);
            if (limits.sm_max == PHI_TABLE_ALL)
                printf("all\n");
            else
                printf("%" PRId64 "\n", limits.sm_max);
        }
    }
}

static void close_places(struct info *info)
{
    for (int i = 0; i < info->place_count; i++) {
        phi_memory_close(info->places[i].memory);
        phi_device_close(info->places[i].device, phi_deadline(2000));
    }
}

static int leave_with_usage(int status)
{
    fputs(usage, status ? stderr : stdout);
    return status;
}

static int wrong_use(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int wrong_use(const char *format, ...)
{
    va_list arguments;

    fputs("peerhop-info: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return leave_with_usage(STATUS_USAGE);
}

static int wrong_argument(char *argument)
{
    return wrong_use("'%s' is no option, or not beside the others", without_password(argument));
}

// What getopt_long returned instead of an option.
static int wrong_option(int result, char *argument)
{
    return result == ':' ? wrong_use("'%s' needs a value", argument) : wrong_argument(argument);
}

static void report_failure(struct info *info)
{
    char sentence[1024];

    phi_report_copy(&info->report, sentence, sizeof(sentence));
    fprintf(stderr, "peerhop-info: %s\n", sentence);
}

static void print_way(const struct phi_way *way, const char *provider)
{
    static const char *const names[] = {
        [PHI_WAY_STAGED] = "is staged", [PHI_WAY_HMEM] = "hmem", [PHI_WAY_DMABUF] = "dmabuf"};

    printf("  memory of cuda:0 over %s: %s", provider, names[way->kind]);
    if (way->kind != PHI_WAY_STAGED)
        printf(", flush: %s", phi_flush_name(way->flush));
    if (way->kind != PHI_WAY_DMABUF)
        printf("; dmabuf: %s", phi_reason_text(way->dmabuf));
    if (way->kind == PHI_WAY_STAGED)
        printf("; hmem: %s", phi_reason_text(way->hmem));
    printf("\n");
}

// What becomes of memory of a device.
static void print_memory(struct info *info, struct phi_device *device)
{
    const struct phi_net_params params = {.report = &info->report,
                                          .config = &info->config,
                                          .message_ring = -1,
                                          .store_ring = -1,
                                          .devices = true,
                                          .near = phi_way_near(device)};
    struct phi_net *net = NULL;
    struct phi_way way;
    void *memory = NULL;

    if (phi_net_open(&params, &net) == 0 && phi_device_alloc(device, PHI_NET_TRY, &memory) == 0 &&
        phi_way_open(&way, &info->config, &info->report, device, net, memory) == 0)
        print_way(&way, phi_net_name(net));
    phi_net_close(net);
    phi_device_free(device, memory);
}

enum { CANDIDATES = 64 };

static int print_net(struct info *info)
{
    struct phi_net_candidate *list = calloc(CANDIDATES, sizeof(*list));
    char why[256] = "out of memory";
    char library[128];
    struct phi_device *device = NULL; // the first, where there is one
    size_t n = 0;

    if (read_config(info, NULL) < 0) {
        free(list);
        report_failure(info);
        return STATUS_FAILED;
    }
    if (!phi_net_built() || phi_device_count(&info->report, info->config.libcuda) == 0 ||
        phi_device_open(&info->report, info->config.libcuda, 0,
                        phi_deadline(info->config.deadline_ms), &device))
        device = NULL;
    const struct phi_pci_place near = phi_way_near(device);
    if (list)
        n = phi_net_list(&info->report, &info->config, &near, list, CANDIDATES, why, sizeof(why));
    if (n > 0) {
        phi_net_library(library, sizeof(library));
        printf("%s\n", library);
    }
    for (size_t i = 0; i < n; i++)
        printf("  %-16s %-16s %s\n", list[i].provider, list[i].domain,
               list[i].taken ? "is taken" : list[i].reason);
    if (n == 0)
        printf("  no net: %s\n", why);
    else if (device)
        print_memory(info, device);
    phi_device_close(device, phi_deadline(2000));
    phi_config_fini(&info->config);
    free(list);
    return 0;
}

static int print(struct info *info, bool config_only)
{
    struct phi_table table = {0};
    int rc = read_config(info, NULL);

    if (rc < 0) {
        report_failure(info);
        return STATUS_FAILED;
    }
    if (!config_only && *info->config.table)
        rc = phi_table_read(info->config.table, &info->report, &table);
    if (rc < 0)
        report_failure(info);
    if (config_only) {
        phi_config_print(stdout, &info->config);
    } else if (rc == 0) {
        print_build();
        print_devices(info);
        print_matrix(info);
        if (info->place_count > 2)
            print_limits(info, &table);
        close_places(info);
    }
    phi_table_fini(&table);
    phi_config_fini(&info->config);
    return rc < 0 ? STATUS_FAILED : 0;
}

static void print_one(const struct job_options *options, const struct job *job)
{
    if (options->json)
        job_print_json(job);
    else
        job_print_table(job);
}

static int print_job(struct info *info, struct job_options *options)
{
    const char *settings[] = {options->store, NULL};
    struct job *job = &options->job;
    int rc = read_config(info, settings);

    if (rc == 0) {
        if (!options->epoch)
            job->epoch = (uint64_t)info->config.epoch;
        rc = job_read(job, &info->config, &info->report);
        phi_config_fini(&info->config);
    }
    if (rc == 0 && job->count == 0)
        rc = phi_fail(&info->report, -ENOENT,
                      "the store has no rank of job %s in epoch %llu: none has come yet, or all "
                      "have left",
                      job->name, (unsigned long long)job->epoch);
    if (rc < 0)
        report_failure(info);
    else if (options->prometheus)
        jobs_print_prometheus(job, 1);
    else
        print_one(options, job);
    job_free(job);
    return rc < 0 ? STATUS_FAILED : 0;
}

// Of no job that is known: who reads metrics learns of it on the standard error.
static void print_nameless(const struct job_options *options, const struct nameless *nameless)
{
    const bool silent = nameless->state == MEMBER_SILENT;

    if (options->json) {
        printf("{\"rank\":null,\"process\":%u", nameless->process);
        print_json_string("state", silent ? "no answer" : "refuses");
        if (!silent)
            print_json_string("why", ph_strerror(nameless->why));
        printf("}\n");
        return;
    }
    FILE *out = options->prometheus ? stderr : stdout;
    if (nameless->process)
        fprintf(out, "process %u listens as a rank does, and ", nameless->process);
    else
        fprintf(out, "a process, whose id is not known here, listens as a rank does, and ");
    if (silent)
        fprintf(out, "has not answered in %lld ms\n", (long long)options->job.timeout_ms);
    else
        fprintf(out, "refuses to say of which job: %s\n", ph_strerror(nameless->why));
}

static int print_found(struct info *info, const struct job_options *options)
{
    struct found found = {0};
    int rc = read_config(info, NULL);

    if (rc == 0) {
        rc = jobs_find(&found, &info->config, &info->report, options->job.timeout_ms);
        phi_config_fini(&info->config);
    }
    if (rc == 0 && found.count + found.nameless_count == 0 && !options->prometheus)
        rc = phi_fail(&info->report, -ENOENT,
                      "no job of this user has a rank on this node that can be found from here: "
                      "sockets have their names in a network namespace, or in "
                      "PEERHOP_SOCKET_DIRECTORY");
    if (rc < 0)
        report_failure(info);
    for (size_t i = 0; rc == 0 && !options->prometheus && i < found.count; i++)
        print_one(options, &found.jobs[i]);
    if (rc == 0 && options->prometheus)
        jobs_print_prometheus(found.jobs, found.count);
    for (size_t i = 0; rc == 0 && i < found.nameless_count; i++)
        print_nameless(options, &found.nameless[i]);
    found_free(&found);
    return rc < 0 ? STATUS_FAILED : 0;
}

static int check(struct info *info)
{
    int rc = read_config(info, NULL);

    if (rc < 0) {
        report_failure(info);
        return STATUS_FAILED;
    }
    rc = check_pairs(&info->config);
    phi_config_fini(&info->config);
    return rc;
}

static bool read_number(const char *text, uint64_t low, uint64_t high, uint64_t *number)
{
    char *end;

    errno = 0;
    *number = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0 && *number >= low &&
           *number <= high;
}

// take_option: false where its value is none.
static bool take_option(struct job_options *options, int option)
{
    const char *value = optarg ? optarg : ""; // only --job goes without one
    uint64_t number;

    switch (option) {
    case 'j':
        options->asked = true;
        snprintf(options->job.name, sizeof(options->job.name), "%s", value);
        return !optarg || (value[0] && strlen(value) <= 100 && !strpbrk(value, " \t\r\n{}"));
    case 'e':
        options->epoch = true;
        return read_number(value, 0, UINT64_MAX, &options->job.epoch);
    case 's':
        free(options->store);
        if (asprintf(&options->store, "PEERHOP_STORE=%s", hide_password(optarg)) < 0)
            options->store = NULL;
        return options->store;
    case 't':
        if (!read_number(value, 1, 86400000, &number))
            return false;
        options->job.timeout_ms = (int64_t)number;
        return true;
    case 'o':
        options->json = strcmp(value, "json") == 0;
        options->prometheus = strcmp(value, "prometheus") == 0;
        return options->json || options->prometheus;
    default:
        return false;
    }
}

static const char *name_of(int option, const struct option *options)
{
    for (; options->name; options++) {
        if (options->val == option)
            return options->name;
    }
    return "-o";
}

// show_job goes on where the first option is one of --job's.
static int show_job(struct info *info, int option, int argc, char **argv,
                    const struct option *options)
{
    struct job_options given = {.job.timeout_ms = 2000};
    int status = 0;

    for (; option != -1 && status == 0; option = getopt_long(argc, argv, ":ho:", options, NULL)) {
        // A name may be the next word, as values of other options are.
        if (option == 'j' && !optarg && optind < argc && argv[optind][0] != '-')
            optarg = argv[optind++];
        if (!strchr("jesto", option))
            status = wrong_option(option, argv[optind - 1]);
        else if (!take_option(&given, option))
            status = wrong_use("'%s' is no value of %s", optarg, name_of(option, options));
    }
    if (status == 0 && optind < argc)
        status = wrong_argument(argv[optind]);
    if (status == 0 && !given.asked)
        status = wrong_use("these are options of --job");
    if (status == 0 && !given.job.name[0] && (given.epoch || given.store))
        status = wrong_use("%s needs the name of a job", given.epoch ? "--epoch" : "--store");
    if (status == 0)
        status = given.job.name[0] ? print_job(info, &given) : print_found(info, &given);
    free(given.store);
    return status;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"build", no_argument, NULL, 'b'},
                                            {"check", no_argument, NULL, 'k'},
                                            {"config", no_argument, NULL, 'c'},
                                            {"net", no_argument, NULL, 'n'},
                                            {"job", optional_argument, NULL, 'j'},
                                            {"epoch", required_argument, NULL, 'e'},
                                            {"store", required_argument, NULL, 's'},
                                            {"timeout-ms", required_argument, NULL, 't'},
                                            {"version", no_argument, NULL, 'v'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    static struct info info;
    int option, status;

    opterr = 0; // its sentence would have what may be a password
    option = getopt_long(argc, argv, ":ho:", options, NULL);
    if (option == 'h')
        return leave_with_usage(0);
    if (option == 'v' && optind == argc) {
        print_version("peerhop-info");
        return all_written("peerhop-info", 0);
    }
    if (option == '?' || option == ':')
        return wrong_option(option, argv[optind - 1]);
    if (optind < argc && (option == -1 || strchr("bcknv", option)))
        return wrong_argument(argv[optind]);
    if (option == 'b') {
        print_build();
        return all_written("peerhop-info", 0);
    }
    phi_report_init(&info.report, keep_line, &info, PH_LOG_INFO);
    if (option == -1 || option == 'c')
        status = print(&info, option == 'c');
    else if (option == 'k')
        status = check(&info);
    else
        status = option == 'n' ? print_net(&info) : show_job(&info, option, argc, argv, options);
    phi_report_fini(&info.report);
    return all_written("peerhop-info", status);
}
