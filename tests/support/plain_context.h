// SPDX-License-Identifier: BSD-3-Clause
// What the layers below the context are given by it: report, counters and configuration, each test
// its own. Include support/atomic_compat.h before.
#ifndef TESTS_SUPPORT_PLAIN_CONTEXT_H
#define TESTS_SUPPORT_PLAIN_CONTEXT_H

#include <string>

#include "support/entries.h"

extern "C" {
#include "base/config.h"
#include "base/counters.h"
#include "base/report.h"
}

struct PlainContext {
    phi_report report;
    phi_counters counters{};
    phi_config config{};

    explicit PlainContext(const char *const *settings = nullptr)
    {
        phi_report_init(&report, nullptr, nullptr, PH_LOG_NONE);
        phi_config_read(&config, settings, &report);
    }
    ~PlainContext()
    {
        phi_config_fini(&config);
        phi_report_fini(&report);
    }
    PlainContext(const PlainContext &) = delete;
    PlainContext &operator=(const PlainContext &) = delete;

    // The sentence of the last failure.
    std::string error()
    {
        char text[1024];
        phi_report_copy(&report, text, sizeof(text));
        return text;
    }
};

// How many descriptors this process has open, the one that counts them included.
static inline int open_descriptors()
{
    return entries("/proc/self/fd");
}

#endif
