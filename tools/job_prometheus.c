// SPDX-License-Identifier: BSD-3-Clause
// All samples of one metric stand together, behind its HELP and TYPE: so metrics are the outer
// loop, and ranks the inner one.
#include "job_prometheus.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <peerhop/context.h>

struct ranks {
    const struct job *jobs;
    size_t count;
};

// How many bytes that are no ASCII stand there as one character of UTF-8 (RFC 3629); 0: they are
// none.
static int utf8_length(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    const int length = c[0] >= 0xf5   ? 0
                       : c[0] >= 0xf0 ? 4
                       : c[0] >= 0xe0 ? 3
                       : c[0] >= 0xc2 ? 2
                                      : 0;
    const int least = c[0] == 0xe0 ? 0xa0 : c[0] == 0xf0 ? 0x90 : 0x80; // none that is too long
    const int most = c[0] == 0xed ? 0x9f : c[0] == 0xf4 ? 0x8f : 0xbf;  // none that is none

    if (length == 0 || c[1] < least || c[1] > most)
        return 0;
    for (int i = 2; i < length; i++) {
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    }
    return length;
}

// Of a name that is no UTF-8 a reader would refuse all metrics, so '?' stands for such bytes.
// In the text of HELP a quote stands for itself, in the value of a label it does not.
static void print_escaped(const char *text, bool label)
{
    for (; *text; text++) {
        const int wide = (*text & 0x80) ? utf8_length(text) : 1;

        if (wide > 1)
            fwrite(text, 1, (size_t)wide, stdout);
        else if (wide == 0)
            putchar('?');
        else if (*text == '\n')
            fputs("\\n", stdout);
        else if (*text == '\\' || (label && *text == '"'))
            printf("\\%c", *text);
        else
            putchar(*text);
        text += wide > 1 ? wide - 1 : 0;
    }
}

static void print_head(const char *name, const char *type, const char *help)
{
    printf("# HELP %s ", name);
    print_escaped(help, false);
    printf("\n# TYPE %s %s\n", name, type);
}

// The name and the labels of a sample; its value and the newline are the caller's. state: NULL, or
// one more label.
static void print_series(const char *name, const struct job *job, const struct member *member,
                         const char *state)
{
    printf("%s{job=\"", name);
    print_escaped(job->name, true);
    printf("\",epoch=\"%" PRIu64 "\",rank=\"%d\",host=\"", job->epoch, member->rank);
    print_escaped(member->capabilities.host, true);
    if (state)
        printf("\",state=\"%s", state);
    printf("\"} ");
}

// Of ranks on other nodes, and of those that may not be asked, nobody here knows whether they live.
static bool is_asked(const struct member *member)
{
    return member->state == MEMBER_LIVES || member->state == MEMBER_SILENT ||
           member->state == MEMBER_EXITED || member->state == MEMBER_REFUSES;
}

static void print_up(const struct ranks *ranks)
{
    print_head("peerhop_up", "gauge", "1 where the rank has answered, else 0");
    for (size_t i = 0; i < ranks->count; i++) {
        const struct job *job = &ranks->jobs[i];
        for (size_t m = 0; m < job->count; m++) {
            if (!is_asked(&job->members[m]))
                continue;
            print_series("peerhop_up", job, &job->members[m], NULL);
            printf("%d\n", job->members[m].state == MEMBER_LIVES);
        }
    }
}

// A number of a rank's status; false: it has none now.
typedef bool (*number_fn)(const struct phi_status *status, unsigned which, double *value);

static void print_numbers(const struct ranks *ranks, const char *name, const char *state,
                          number_fn number, unsigned which)
{
    for (size_t i = 0; i < ranks->count; i++) {
        const struct job *job = &ranks->jobs[i];
        for (size_t m = 0; m < job->count; m++) {
            double value;
            if (job->members[m].state != MEMBER_LIVES ||
                !number(&job->members[m].status, which, &value))
                continue;
            print_series(name, job, &job->members[m], state);
            printf("%.17g\n", value);
        }
    }
}

static bool peers(const struct phi_status *status, unsigned state, double *value)
{
    *value = status->peers[state];
    return !status->locked;
}

static bool oldest(const struct phi_status *status, unsigned which, double *value)
{
    (void)which;
    *value = (double)status->oldest_ms / 1000;
    return status->oldest_ms >= 0;
}

// Of what needs the rank's lock, by its place in `tables`.
static bool table(const struct phi_status *status, unsigned which, double *value)
{
    const uint32_t values[] = {status->channels, status->held, status->exchanges, status->releases,
                               status->theirs};
    *value = values[which];
    return !status->locked;
}

static const struct {
    const char *name, *help;
} tables[] = {
    {"peerhop_kept_channels", "channels that are kept"},
    {"peerhop_held_channels", "channels with handles of the application"},
    {"peerhop_exchanges_under_way", "exchanges that are not finished"},
    {"peerhop_releases_under_way", "releases of own buffers that are not finished"},
    {"peerhop_peer_releases_under_way", "releases of peers' buffers that are used here"},
};

static bool counter(const struct phi_status *status, unsigned which, double *value)
{
    uint64_t counter;
    memcpy(&counter, (const char *)&status->counters + which, sizeof counter);
    *value = (double)counter;
    return true;
}

// The two that do not only grow have names of their own.
static void print_counter(const struct ranks *ranks, const char *member, size_t offset,
                          const char *meaning)
{
    char name[64];
    const bool in_flight = strcmp(member, "in_flight") == 0;
    const bool gauge = in_flight || strcmp(member, "device_bytes") == 0;
    snprintf(name, sizeof name, "peerhop_%s%s", member,
             in_flight ? "_operations"
             : gauge   ? ""
                       : "_total");
    print_head(name, gauge ? "gauge" : "counter", meaning);
    print_numbers(ranks, name, NULL, counter, (unsigned)offset);
}

void jobs_print_prometheus(const struct job *jobs, size_t count)
{
    const struct ranks ranks = {jobs, count};
    print_up(&ranks);
    print_head("peerhop_peers", "gauge", "peers in each state, as the rank sees them");
    for (unsigned state = 0; state < PHI_STATUS_STATES; state++)
        print_numbers(&ranks, "peerhop_peers", peer_state_name(state), peers, state);
    for (unsigned i = 0; i < sizeof tables / sizeof *tables; i++) {
        print_head(tables[i].name, "gauge", tables[i].help);
        print_numbers(&ranks, tables[i].name, NULL, table, i);
    }
    print_head("peerhop_oldest_operation_seconds", "gauge",
               "how long at least the oldest operation is in flight; none is: no sample");
    print_numbers(&ranks, "peerhop_oldest_operation_seconds", NULL, oldest, 0);
#define PRINT(member, meaning)                                                                     \
    print_counter(&ranks, #member, offsetof(struct ph_counters, member), meaning);
    PH_COUNTER_MAP(PRINT)
#undef PRINT
}
