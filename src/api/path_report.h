// SPDX-License-Identifier: BSD-3-Clause
// Reports which path and method a channel takes, and why none of the others.
#ifndef PHI_API_PATH_REPORT_H
#define PHI_API_PATH_REPORT_H

#include <stdbool.h>

struct ph_channel;
struct ph_path_report;

// phi_channel_report fills the path report of a direction.
void phi_channel_report(const struct ph_channel *channel, bool outgoing,
                        struct ph_path_report *report);

#endif
