// SPDX-License-Identifier: BSD-3-Clause
#include "base/report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"

// Lines of all ranks of a job may go to one file, which somebody sorts by time. So it is UTC.
static void write_time(char *text, size_t size)
{
    struct timespec now;
    struct tm parts;
    char seconds[32];

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(seconds, sizeof(seconds), "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(text, size, "%s.%03ldZ", seconds, now.tv_nsec / 1000000);
}

// A terminal would obey control characters, and parts of the line come from elsewhere.
static void make_plain(char *line)
{
    for (; *line; line++)
        if ((unsigned char)*line < 0x20 || *line == 0x7f)
            *line = '?';
}

static void log_to_stderr(void *opaque, enum ph_log_level level, const char *line)
{
    static const char *const names[] = {"none", "error", "warn", "info", "debug"};
    const struct phi_report *report = opaque;
    char when[48], host[65] = "?", rank[24] = "";

    write_time(when, sizeof(when));
    gethostname(host, sizeof(host) - 1); // which may have any bytes
    make_plain(host);
    if (report->rank >= 0)
        snprintf(rank, sizeof(rank), " rank %d", report->rank);
    // One call, so that lines of several threads do not mix.
    fprintf(stderr, "peerhop %s %s %s%s: %s\n", names[level], when, host, rank, line);
}

void phi_report_init(struct phi_report *report, ph_log_fn log, void *opaque,
                     enum ph_log_level level)
{
    report->log = log ? log : log_to_stderr;
    report->log_opaque = log ? opaque : report;
    report->level = level;
    report->rank = -1;
    pthread_mutex_init(&report->lock, NULL);
    report->text[0] = 0;
    memset(report->said, 0, sizeof(report->said));
}

void phi_report_fini(struct phi_report *report)
{
    pthread_mutex_destroy(&report->lock);
}

// A text of several lines becomes one line.
static void write_line(char *line, size_t size, const char *format, va_list args)
{
    vsnprintf(line, size, format, args);
    make_plain(line);
}

static void keep(struct phi_report *report, const char *line)
{
    pthread_mutex_lock(&report->lock);
    memcpy(report->text, line, strlen(line) + 1);
    pthread_mutex_unlock(&report->lock);
}

static uint64_t hash_of(enum ph_log_level level, const char *line)
{
    uint64_t hash = (uint64_t)level;

    for (; *line; line++)
        hash = phi_hash(hash, (uint8_t)*line);
    return hash;
}

#define AGAIN_NS (1000 * PHI_MS)

// is_said returns whether an equal line was logged just now. If not, *withheld is how many equal
// lines were not logged since the last one.
static bool is_said(struct phi_report *report, enum ph_log_level level, const char *line,
                    uint32_t *withheld)
{
    uint64_t hash = hash_of(level, line);
    struct phi_said *said = &report->said[hash % PHI_SAID];
    int64_t now = phi_now();
    bool equal, soon;

    pthread_mutex_lock(&report->lock);
    equal = said->at != 0 && said->hash == hash;
    soon = equal && now - said->at < AGAIN_NS;
    *withheld = equal ? said->withheld : 0;
    *said = soon ? (struct phi_said){hash, said->at, said->withheld + 1}
                 : (struct phi_said){.hash = hash, .at = now};
    pthread_mutex_unlock(&report->lock);
    return soon;
}

// Called without the lock: the callback is the application's code, and may take its time.
static void say(struct phi_report *report, enum ph_log_level level, const char *line)
{
    char more[sizeof(report->text)];
    uint32_t withheld = 0;

    if (level > report->level || (level <= PH_LOG_WARN && is_said(report, level, line, &withheld)))
        return;
    if (withheld > 0) {
        int end = (int)sizeof(more) - 40; // the line may be as long as the text
        snprintf(more, sizeof(more), "%.*s (and %u times before)", end, line, withheld);
        line = more;
    }
    report->log(report->log_opaque, level, line);
}

void phi_refuse_line(struct phi_report *report, const char *format, ...)
{
    char line[sizeof(report->text)];
    va_list args;

    va_start(args, format);
    write_line(line, sizeof(line), format, args);
    va_end(args);
    keep(report, line);
}

void phi_fail_line(struct phi_report *report, const char *format, ...)
{
    char line[sizeof(report->text)];
    int saved = errno;
    va_list args;

    va_start(args, format);
    write_line(line, sizeof(line), format, args);
    va_end(args);
    keep(report, line);
    say(report, PH_LOG_ERROR, line);
    errno = saved;
}

size_t phi_report_copy(struct phi_report *report, char *text, size_t size)
{
    size_t length;

    if (size == 0)
        return 0;
    pthread_mutex_lock(&report->lock);
    length = strnlen(report->text, size - 1);
    memcpy(text, report->text, length);
    pthread_mutex_unlock(&report->lock);
    text[length] = 0;
    return length;
}

void phi_log_line(struct phi_report *report, enum ph_log_level level, const char *format, ...)
{
    char line[sizeof(report->text)];
    int saved = errno;
    va_list args;

    if (level > report->level)
        return;
    va_start(args, format);
    write_line(line, sizeof(line), format, args);
    va_end(args);
    say(report, level, line);
    errno = saved;
}
