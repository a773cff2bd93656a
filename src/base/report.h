// SPDX-License-Identifier: BSD-3-Clause
// A report tells a context's failures, by the log callback and by the sentence of the last error.
// The function that detects a failure reports it, once, with phi_fail(); callers hand the code on.
#ifndef PHI_BASE_REPORT_H
#define PHI_BASE_REPORT_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include <peerhop/error.h>
#include <peerhop/log.h>

// A line that was logged lately. One event may be met a thousand times, by each operation with a
// dead peer. It is told once.
struct phi_said {
    uint64_t hash; // of the level and the line
    int64_t at;
    uint32_t withheld; // so many equal lines were not logged since
};
enum { PHI_SAID = 16 };

struct phi_report {
    ph_log_fn log; // never NULL
    void *log_opaque;
    // Lines above it are not formatted. It may be raised before other threads use the report.
    enum ph_log_level level;
    // The rank that lines to stderr name; -1: not known yet. Set before other threads use the
    // report.
    int rank;
    pthread_mutex_t lock; // guards what follows
    char text[1024];
    struct phi_said said[PHI_SAID];
};

// phi_report_init copies the callback. log == NULL logs to stderr, with the time, the host and the
// rank.
void phi_report_init(struct phi_report *report, ph_log_fn log, void *opaque,
                     enum ph_log_level level);
void phi_report_fini(struct phi_report *report);

// phi_fail records and logs (PH_LOG_ERROR) the sentence of a failure, and returns code. Any thread;
// errno is kept. It logs one of equal lines each second; the next one says how many were not
// logged. It is a macro, so that compilers and analyzers see at each call that the result is that
// code.
#define phi_fail(report, code, ...) phi_fail_code((phi_fail_line((report), __VA_ARGS__), (code)))

void phi_fail_line(struct phi_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// phi_refuse is phi_fail without the log line. It is for refusals of the data path, after which the
// caller tries again, and for what was logged at its origin.
#define phi_refuse(report, code, ...)                                                              \
    phi_fail_code((phi_refuse_line((report), __VA_ARGS__), (code)))

void phi_refuse_line(struct phi_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline int phi_fail_code(int code)
{
    return code;
}

// phi_report_copy copies the last sentence, always ended by 0, and returns its length.
size_t phi_report_copy(struct phi_report *report, char *text, size_t size);

void phi_log_line(struct phi_report *report, enum ph_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// phi_log tests the level before anything is formatted.
#define phi_log(report, lvl, ...)                                                                  \
    do {                                                                                           \
        if ((lvl) <= (report)->level)                                                              \
            phi_log_line((report), (lvl), __VA_ARGS__);                                            \
    } while (0)

#endif
