// SPDX-License-Identifier: BSD-3-Clause
// Peerhop: one hop from a GPU to its peer. This header includes all others but those for device
// code.
#ifndef PEERHOP_H
#define PEERHOP_H

#include <peerhop/channel.h>
#include <peerhop/context.h>
#include <peerhop/error.h>
#include <peerhop/log.h>
#include <peerhop/memory.h>
#include <peerhop/notify.h>
#include <peerhop/pages.h>
#include <peerhop/queue.h>
#include <peerhop/region.h>
#include <peerhop/release.h>
#include <peerhop/request.h>
#include <peerhop/store.h>
#include <peerhop/transfer.h>
#include <peerhop/version.h>

#endif
