// SPDX-License-Identifier: BSD-3-Clause
// The net of a build without libfabric's headers.
#include <errno.h>
#include <stdio.h>

#include "net/net.h"
#include "net/staging.h"

bool phi_net_built(void)
{
    return false;
}

int phi_net_open(const struct phi_net_params *params, struct phi_net **net)
{
    (void)net;
    return phi_fail(params->report, PH_ENOPATH, "libfabric is not in this build");
}

void phi_link_guard(struct phi_link *link)
{
    (void)link;
}

void phi_net_close(struct phi_net *net)
{
    (void)net;
}

size_t phi_net_list(struct phi_report *report, const struct phi_config *config,
                    const struct phi_pci_place *near, struct phi_net_candidate *candidates,
                    size_t n, char *why, size_t why_size)
{
    (void)report;
    (void)config;
    (void)near;
    (void)candidates;
    (void)n;
    snprintf(why, why_size, "libfabric is not in this build");
    return 0;
}

void phi_net_library(char *text, size_t size)
{
    snprintf(text, size, "%s", "");
}

// Without a net there is no link, so nobody calls the following.

const struct phi_net_wire *phi_net_wire(const struct phi_net *net)
{
    (void)net;
    return NULL;
}

const char *phi_net_name(const struct phi_net *net)
{
    (void)net;
    return "";
}

const char *phi_net_address(const struct phi_net *net)
{
    (void)net;
    return "";
}

bool phi_net_poll(struct phi_net *net)
{
    (void)net;
    return false;
}

int phi_net_settle(struct phi_net *net, int64_t deadline, int *rank)
{
    (void)rank;
    (void)net;
    (void)deadline;
    return 0;
}

uint32_t phi_net_post_encode(const struct phi_net_post *post)
{
    return post->line;
}

int phi_link_open(struct phi_net *net, int rank, const struct phi_mirror *mirror,
                  struct phi_link **link)
{
    (void)net;
    (void)rank;
    (void)mirror;
    (void)link;
    return PH_ENOPATH;
}

const uint8_t *phi_link_address(const struct phi_link *link, size_t *size, uint32_t *rails)
{
    (void)link;
    *size = 0;
    *rails = 0;
    return NULL;
}

int phi_link_connect(struct phi_link *link, const uint8_t *address, size_t size, uint32_t rails)
{
    (void)rails;
    (void)link;
    (void)address;
    (void)size;
    return PH_ENOPATH;
}

void phi_link_told(struct phi_link *link, struct phi_net_told *told)
{
    (void)link;
    (void)told;
}

bool phi_link_heard(struct phi_link *link, const struct phi_net_told *told)
{
    (void)link;
    (void)told;
    return true;
}

void phi_link_cut(struct phi_link *link)
{
    (void)link;
}

void phi_link_end(struct phi_link *link, bool bye)
{
    (void)link;
    (void)bye;
}

void phi_link_free(struct phi_link *link)
{
    (void)link;
}

int phi_link_lost(const struct phi_link *link, char *text, size_t size)
{
    (void)link;
    (void)text;
    (void)size;
    return 0;
}

int phi_link_store(struct phi_link *link, uint32_t offset, const void *value, uint32_t size)
{
    (void)link;
    (void)offset;
    (void)value;
    (void)size;
    return -ECONNRESET;
}

int phi_link_tell(struct phi_link *link, const void *bytes, size_t size)
{
    (void)link;
    (void)bytes;
    (void)size;
    return -ECONNRESET;
}

int phi_link_tell_again(struct phi_link *link, const void *bytes, size_t size)
{
    return phi_link_tell(link, bytes, size);
}

bool phi_link_receive(struct phi_link *link, void *bytes, size_t *size)
{
    (void)link;
    (void)bytes;
    (void)size;
    return false;
}

int phi_link_register_memory(struct phi_link *link, uint32_t id,
                             const struct phi_net_memory *memory)
{
    (void)link;
    (void)id;
    (void)memory;
    return PH_ENOPATH;
}

int phi_net_flush_by(struct phi_net *net, const struct phi_net_flush *how)
{
    (void)net;
    (void)how;
    return 0;
}

void phi_link_flushes(struct phi_link *link, uint32_t line, uint32_t id)
{
    (void)link;
    (void)line;
    (void)id;
}

int phi_net_try(struct phi_net *net, const struct phi_net_memory *memory, void *bytes, int64_t ms,
                char *why, size_t size)
{
    (void)net;
    (void)memory;
    (void)bytes;
    (void)ms;
    snprintf(why, size, "libfabric is not in this build");
    return PH_ENOPATH;
}

int phi_link_register(struct phi_link *link, uint32_t id, void *base, size_t size)
{
    (void)link;
    (void)id;
    (void)base;
    (void)size;
    return PH_ENOPATH;
}

bool phi_link_target(struct phi_link *link, uint32_t id, struct phi_net_target *target)
{
    (void)link;
    (void)id;
    (void)target;
    return false;
}

void phi_link_unregister(struct phi_link *link, uint32_t id)
{
    (void)link;
    (void)id;
}

int phi_link_route(struct phi_link *link, uint32_t id, struct phi_net_target *target,
                   uint64_t offset, struct phi_route *route)
{
    (void)link;
    (void)id;
    (void)target;
    (void)offset;
    (void)route;
    return PH_ENOPATH;
}

void phi_link_forget(struct phi_link *link, struct phi_net_target *target)
{
    (void)link;
    (void)target;
}

int phi_route_lend(const struct phi_route *route, uint32_t id, void *memory, size_t size,
                   struct phi_route *lent)
{
    (void)route;
    (void)id;
    (void)memory;
    (void)size;
    (void)lent;
    return -ECONNRESET;
}

int phi_move_start(struct phi_move *move)
{
    (void)move;
    return -ECONNRESET;
}

int phi_link_post(const struct phi_route *route, uint32_t immediate)
{
    (void)route;
    (void)immediate;
    return -ECONNRESET;
}

int phi_link_hold(const struct phi_route *route, uint32_t immediate)
{
    return phi_link_post(route, immediate);
}

void phi_link_unhold(const struct phi_route *route)
{
    (void)route;
}

bool phi_link_mark(struct phi_link *link, uint64_t *mark)
{
    (void)link;
    *mark = 0;
    return true;
}

bool phi_link_delivered(struct phi_link *link, uint64_t mark)
{
    (void)link;
    (void)mark;
    return true;
}

bool phi_route_nap(const struct phi_route *route, int64_t ns)
{
    (void)route;
    (void)ns;
    return false;
}

bool phi_route_in_order(const struct phi_route *route)
{
    (void)route;
    return false;
}

bool phi_route_poll(const struct phi_route *route)
{
    (void)route;
    return false;
}

bool phi_net_hmem(const struct phi_net *net)
{
    (void)net;
    return false;
}

bool phi_net_dmabuf(const struct phi_net *net)
{
    (void)net;
    return false;
}

int phi_link_stage(struct phi_link *link, const struct phi_staging_params *params,
                   struct phi_net_target *in)
{
    (void)link;
    (void)params;
    (void)in;
    return PH_ENOPATH;
}

int phi_link_stage_peer(struct phi_link *link, const struct phi_net_target *theirs)
{
    (void)link;
    (void)theirs;
    return PH_ENOPATH;
}

uint32_t phi_net_chunk(const struct phi_net *net)
{
    (void)net;
    return 0;
}

struct phi_lane *phi_lane_make(void)
{
    return NULL;
}

void phi_lane_open(struct phi_lane *lane, struct phi_link *link,
                   const struct phi_lane_params *params)
{
    (void)lane;
    (void)link;
    (void)params;
}

void phi_lane_close(struct phi_lane *lane)
{
    (void)lane;
}

void phi_lane_kick(struct phi_lane *lane)
{
    (void)lane;
}

bool phi_lane_rests(struct phi_lane *lane, bool of_use)
{
    (void)lane;
    (void)of_use;
    return true;
}
