// SPDX-License-Identifier: BSD-3-Clause
#include "hosts.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/random.h"

struct host {
    char name[256];
    int64_t first, ranks;
};

// A word of a shell's, whatever is in it.
static void put_quoted(FILE *out, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_-./:,+@";

    if (*word && !word[strspn(word, plain)]) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word; word++) {
        if (*word == '\'')
            fputs("'\\''", out);
        else
            fputc(*word, out);
    }
    fputc('\'', out);
}

static void put_option(FILE *out, const char *name, const char *value)
{
    if (!value)
        return;
    fprintf(out, " %s ", name);
    put_quoted(out, value);
}

static void put_number(FILE *out, const char *name, int64_t number)
{
    fprintf(out, " %s %" PRId64, name, number);
}

// What the node's shell runs. Its folder is the one here, as programs and files may be named by it.
static void put_command(FILE *out, const struct options *options, const struct host *host,
                        int64_t all, const char *job, const char *self)
{
    char folder[4096];

    if (getcwd(folder, sizeof(folder))) {
        fputs("cd ", out);
        put_quoted(out, folder);
        fputs(" && ", out);
    }
    fputs("exec ", out);
    put_quoted(out, self);
    put_number(out, "-n", host->ranks);
    put_number(out, "--first-rank", host->first);
    put_number(out, "--all-ranks", all);
    put_option(out, "--store", options->store);
    put_option(out, "--job", job);
    put_option(out, "--device", options->device);
    if (options->deadline_s)
        put_number(out, "--deadline", options->deadline_s);
    put_number(out, "--grace", options->grace_s);
    if (options->tag)
        fputs(" --tag", out);
    fputs(" --", out);
    for (char **word = options->program; *word; word++) {
        fputc(' ', out);
        put_quoted(out, *word);
    }
}

// -tt: a terminal there, of which ranks learn that the connection has ended, as by a hangup.
static int print_host(const struct options *options, const struct host *host, int64_t all,
                      const char *job, const char *self)
{
    char *command = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&command, &size);

    if (!out)
        return -ENOMEM;
    put_command(out, options, host, all, job, self);
    const bool whole = fclose(out) == 0;
    if (whole) {
        fputs("ssh -tt ", stdout);
        put_quoted(stdout, host->name);
        fputc(' ', stdout);
        put_quoted(stdout, command);
        fputs(" </dev/null & all=\"$all $!\"\n", stdout);
    }
    free(command);
    return whole ? 0 : -ENOMEM;
}

// take_host reads "name" or "name:ranks" and returns what follows; NULL: it is neither.
static const char *take_host(const char *text, int64_t ranks, struct host *host)
{
    const size_t length = strcspn(text, ",:");
    char *end = (char *)text + length;

    *host = (struct host){.ranks = ranks};
    if (length == 0 || length >= sizeof(host->name) || text[0] == '-')
        return NULL;
    memcpy(host->name, text, length);
    for (const char *c = host->name; *c; c++) {
        if (!isalnum((unsigned char)*c) && !strchr("._-@", *c))
            return NULL;
    }
    if (*end == ':') {
        if (!isdigit((unsigned char)end[1]))
            return NULL;
        host->ranks = strtoll(end + 1, &end, 10);
    }
    if (host->ranks < 1 || host->ranks > RANKS_MAX || (*end && (*end != ',' || !end[1])))
        return NULL;
    return *end ? end + 1 : end;
}

static int64_t count(const char *list, int64_t ranks)
{
    struct host host;
    int64_t all = 0;

    while (list && *list) {
        list = take_host(list, ranks, &host);
        all += host.ranks;
    }
    return list ? all : -1;
}

static const char *program_of(const char *self)
{
    static char path[4096];
    const ssize_t length =
        strchr(self, '/') ? readlink("/proc/self/exe", path, sizeof(path) - 1) : -1;

    return length > 0 ? path : "peerhop-run"; // that of the node's PATH
}

// What all nodes are to see must be the same for all, and no secret.
static int check(const struct options *options)
{
    const char *end;

    if (!options->store || !*options->store || strncmp(options->store, "file:", 5) == 0) {
        complain("--hosts: --store has to name one that all nodes reach, as redis://host");
        return STATUS_USAGE;
    }
    if (phi_config_password(options->store, &end)) {
        complain("--hosts: a command shows the password that the store's URI has: "
                 "PEERHOP_STORE_PASSWORD_FILE of each node is better");
        return STATUS_USAGE;
    }
    if (phi_random_check() != 0) {
        complain("no random numbers for the name of a job");
        return STATUS_FAILED;
    }
    return 0;
}

int hosts_print(const struct options *options, const char *self)
{
    const int64_t each = options->ranks ? options->ranks : 1;
    const int64_t all = count(options->hosts, each);
    const char *next = options->hosts;
    struct host host = {0};
    int64_t first = 0;
    char job[32];
    int rc = check(options);

    if (rc == 0 && all <= 0) {
        complain("--hosts: '%s' is no list of hosts, as a,b:2 is", options->hosts);
        rc = STATUS_USAGE;
    }
    snprintf(job, sizeof(job), "run-%016" PRIx64, phi_incarnation(0));
    if (rc == 0)
        puts("trap 'kill $all' INT TERM HUP");
    while (rc == 0 && *next) {
        next = take_host(next, each, &host);
        host.first = first;
        first += host.ranks;
        if (print_host(options, &host, all, options->job && *options->job ? options->job : job,
                       program_of(self)) < 0) {
            complain("no memory for a command");
            rc = STATUS_FAILED;
        }
    }
    if (rc == 0)
        puts("status=0; for each in $all; do wait \"$each\" || status=$?; done; exit $status");
    return rc;
}
