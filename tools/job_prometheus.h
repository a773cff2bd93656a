// SPDX-License-Identifier: BSD-3-Clause
#ifndef TOOLS_JOB_PROMETHEUS_H
#define TOOLS_JOB_PROMETHEUS_H

#include "job_status.h"

// jobs_print_prometheus prints the ranks of this node that were asked, in Prometheus' text
// exposition format 0.0.4.
void jobs_print_prometheus(const struct job *jobs, size_t count);

#endif
