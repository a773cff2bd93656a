// SPDX-License-Identifier: BSD-3-Clause
#include "base/report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void log_to_stderr(void *opaque, enum ph_log_level level, const char *line)
{
    static const char *const names[] = {"none", "error", "warn", "info", "debug"};

    (void)opaque;
    // One call, so that lines of several threads do not mix.
    fprintf(stderr, "peerhop %s: %s\n", names[level], line);
}

void phi_report_init(struct phi_report *report, ph_log_fn log, void *opaque,
                     enum ph_log_level level)
{
    report->log = log ? log : log_to_stderr;
    report->log_opaque = opaque;
    report->level = level;
    pthread_mutex_init(&report->lock, NULL);
    report->text[0] = 0;
}

void phi_report_fini(struct phi_report *report)
{
    pthread_mutex_destroy(&report->lock);
}

// One line stays one line, and is nothing to a terminal: parts of it may come from another process.
static void write_line(char *line, size_t size, const char *format, va_list args)
{
    vsnprintf(line, size, format, args);
    for (; *line; line++)
        if ((unsigned char)*line < 0x20 || *line == 0x7f)
            *line = '?';
}

static void keep(struct phi_report *report, const char *line)
{
    pthread_mutex_lock(&report->lock);
    memcpy(report->text, line, strlen(line) + 1);
    pthread_mutex_unlock(&report->lock);
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

    // Outside the lock: the callback is the application's code and may take its time.
    if (report->level >= PH_LOG_ERROR)
        report->log(report->log_opaque, PH_LOG_ERROR, line);
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
    report->log(report->log_opaque, level, line);
    errno = saved;
}
