// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct phi_link;

// Sends so many bytes, 64 KiB at most, to where the link's messages go; -EAGAIN: later.
int send_long(struct phi_link *link, size_t size);

// The first number of the libfabric that the link is one of.
unsigned libfabric_major(const struct phi_link *link);

#ifdef __cplusplus
}
#endif
