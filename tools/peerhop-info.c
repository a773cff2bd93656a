// SPDX-License-Identifier: BSD-3-Clause
// peerhop-info tells what this build and this machine can do, and how the library is configured.
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <peerhop/error.h>
#include <peerhop/version.h>

#include "base/config.h"
#include "base/report.h"
#include "cuda/device.h"
#include "memory/memory.h"
#include "topology/capabilities.h"
#include "transport/transport.h"

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
    struct place places[PLACES_MAX];
    int place_count;
};

static const char usage[] =
    "usage: peerhop-info [--build | --config]\n"
    "Prints what this build holds, the devices of this machine and the path between each two.\n\n"
    "  --build    only what this build holds\n"
    "  --config   every variable with its value, default, range and meaning\n"
    "  --help     this help\n";

static void keep_line(void *opaque, enum ph_log_level level, const char *line)
{
    struct info *info = opaque;

    (void)level;
    snprintf(info->said, sizeof(info->said), "%s", line);
}

static void print_build(void)
{
    printf("peerhop %s\n", ph_version());
    printf("  CUDA headers  %s\n", phi_device_build());
    printf("  kernels       %s\n", phi_device_architectures());
    printf("  hiredis       %d.%d.%d\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    for (int i = 0; phi_transports[i]; i++) {
        struct phi_capabilities none = {0};
        bool built = phi_transports[i]->viable(&none, &none, PHI_KIND_HOST) != PHI_REASON_NOT_BUILT;

        printf("  path %-8s %s\n", phi_transports[i]->name, built ? "built in" : "left out");
    }
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
        rc = phi_device_open(&info->report, info->config.libcuda, ordinal, &place->device);
    }
    if (rc == 0)
        rc = phi_memory_open(&info->report, place->device, &place->memory);
    if (rc < 0) {
        phi_report_copy(&info->report, sentence, sizeof(sentence));
        printf("  %s  cannot be opened: %s (%s)\n", place->name, sentence, ph_strerror(rc));
        phi_device_close(place->device);
        return rc;
    }
    phi_capabilities_fill(&place->capabilities, place->device, phi_memory_kinds(place->memory));
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
// last reason.
static const char *path_of(const struct place *mine, const struct place *theirs,
                           enum phi_reason *reason)
{
    enum phi_kind kind = theirs->device ? PHI_KIND_CUDA : PHI_KIND_HOST;

    *reason = PHI_REASON_NONE;
    for (int i = 0; phi_transports[i]; i++) {
        enum phi_reason why =
            phi_transports[i]->viable(&mine->capabilities, &theirs->capabilities, kind);

        if (why == PHI_REASON_NONE && mine->device && theirs->device &&
            phi_device_can_access(mine->device, theirs->capabilities.uuid) == 0)
            why = PHI_REASON_PEER_ACCESS;
        if (why == PHI_REASON_NONE)
            return phi_transports[i]->name;
        // That a path is not in this build says less than why the others do not serve.
        if (*reason == PHI_REASON_NONE || why != PHI_REASON_NOT_BUILT)
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

        if (path)
            printf("%-8s", path);
        else
            printf("(%d)%*s", (int)reason, reason < 10 ? 5 : 4, "");
        missing[reason] |= !path;
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

static void close_places(struct info *info)
{
    for (int i = 0; i < info->place_count; i++) {
        phi_memory_close(info->places[i].memory);
        phi_device_close(info->places[i].device);
    }
}

static int leave_with_usage(int status)
{
    fputs(usage, status ? stderr : stdout);
    return status;
}

static int print(struct info *info, bool config_only)
{
    char sentence[512];

    if (phi_config_read(&info->config, NULL, &info->report) < 0) {
        phi_report_copy(&info->report, sentence, sizeof(sentence));
        fprintf(stderr, "peerhop-info: %s\n", sentence);
        return STATUS_FAILED;
    }
    if (config_only) {
        phi_config_print(stdout, &info->config);
    } else {
        print_build();
        print_devices(info);
        print_matrix(info);
        close_places(info);
    }
    phi_config_fini(&info->config);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"build", no_argument, NULL, 'b'},
                                            {"config", no_argument, NULL, 'c'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    static struct info info;
    int option = getopt_long(argc, argv, "h", options, NULL);
    int status;

    if (option == 'h')
        return leave_with_usage(0);
    if (option == '?' || optind < argc)
        return leave_with_usage(STATUS_USAGE);
    if (option == 'b') {
        print_build();
        return 0;
    }
    phi_report_init(&info.report, keep_line, &info, PH_LOG_INFO);
    status = print(&info, option == 'c');
    phi_report_fini(&info.report);
    return status;
}
