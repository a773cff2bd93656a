// SPDX-License-Identifier: BSD-3-Clause
#include "api/path_report.h"

#include <string.h>

#include "cuda/kernel_args.h"
#include "lane/flags.h"
#include "lane/staging.h"
#include "meeting/path.h"
#include "peer/channel.h"
#include "peer/self.h"

static void reject(struct ph_path_report *report, const char *name, unsigned reason)
{
    if (report->rejected_count == sizeof report->rejected / sizeof report->rejected[0])
        return;
    report->rejected[report->rejected_count].name = name;
    report->rejected[report->rejected_count++].reason = phi_reason_text(reason);
}

// methods names the methods by size, that of the smallest messages first. signal_lines: bytes up to
// which signals go by ll.
static const char *methods(const struct phi_flag_table *table, uint64_t signal_lines)
{
    static const char *const names[] = {"ce", "ll,ce", "sm,ce", "ll,sm,ce"};
    const bool ll = table->ll_max > 0, sm = table->sm_max > signal_lines;
    if (table->sm_max >= INT64_MAX) // every larger message
        return ll ? "ll,sm" : "sm";
    return names[ll + 2 * sm];
}

static void report_flags(const struct ph_channel *channel, bool outgoing,
                         struct ph_path_report *report)
{
    const struct phi_flag_table *table = &channel->fixed.table[outgoing];
    report->method = methods(table, phi_flags_signal_lines(channel, outgoing));
    report->ll_max = table->ll_max;
    report->sm_max = table->sm_max;
    for (const char *const *name = (const char *const[]){"ll", "sm", "ce", NULL}; *name; name++)
        if (strstr(report->method, *name) == NULL)
            reject(report, *name, PHI_REASON_USER);
    if (outgoing && table->ll_max > 0 && table->ll_max <= PHI_LL_PIECE)
        reject(report, "wide", phi_flags_not_wide(channel));
    reject(report, "copy_kernel", PHI_REASON_PREFERRED);
}

// asks_zero_sm says whether one of the ends asks for PH_ZERO_SM.
static bool asks_zero_sm(const struct ph_channel *channel)
{
    return !channel->fixed.loopback &&
           (channel->fixed.own.zero_sm || channel->fixed.theirs.zero_sm);
}

static void report_words(const struct ph_channel *channel, struct ph_path_report *report)
{
    const bool device = channel->self->device != NULL;
    const bool kernel = device && !channel->fixed.own.zero_sm &&
                        channel->self->config->method == PHI_METHOD_COPY_KERNEL;
    report->method = kernel ? "copy_kernel" : device ? "ce" : "memcpy";
    if (kernel || !device)
        reject(report, "ce", kernel ? PHI_REASON_USER : PHI_REASON_HOST);
    if (!kernel)
        reject(report, "copy_kernel",
               !device                      ? PHI_REASON_HOST
               : channel->fixed.own.zero_sm ? PHI_REASON_ZERO_SM
                                            : PHI_REASON_PREFERRED);
    const enum phi_reason why = !device                 ? PHI_REASON_HOST
                                : asks_zero_sm(channel) ? PHI_REASON_ZERO_SM
                                                        : phi_flags_none(channel);
    reject(report, "sm", why);
    reject(report, "ll", why);
}

static void report_unbound(const struct ph_channel *channel, bool outgoing,
                           struct ph_path_report *report)
{
    report->method = channel->fixed.ring[outgoing] ? "ring" : "bounce";
    if (!channel->fixed.ring[outgoing])
        reject(report, "ring", phi_flags_not_ring(channel));
}

static void report_staged(const struct ph_channel *channel, struct ph_path_report *report)
{
    const struct phi_way *way = &channel->self->net.way;
    const enum phi_reason own =
        phi_staging_may_register(channel->peer) ? PHI_REASON_NET_REGION : PHI_REASON_NET_PEER;
    reject(report, "dmabuf", way->dmabuf ? way->dmabuf : own);
    reject(report, "hmem", way->hmem ? way->hmem : own);
}

static const char *kind_of_region(const struct ph_channel *channel)
{
    if (channel->self->device == NULL || channel->fixed.own.kind == PHI_KIND_HOST)
        return "region";
    return channel->self->net.way.kind == PHI_WAY_DMABUF ? "dmabuf" : "hmem";
}

// Each direction of a channel with itself is the other one: this rank copies what it sends.
static void report_self(const struct ph_channel *channel, struct ph_path_report *report)
{
    *report = (struct ph_path_report){
        .path = "self", .protocol = "put", .kind = "none", .flush = phi_flush_name(PHI_FLUSH_NONE)};
    report_words(channel, report);
}

void phi_channel_report(const struct ph_channel *channel, bool outgoing,
                        struct ph_path_report *report)
{
    if (channel->fixed.loopback) {
        report_self(channel, report);
        return;
    }
    // Outgoing data is moved by our mapping under put and by the peer's under get; incoming data
    // the other way round.
    uint8_t protocol = outgoing ? channel->fixed.protocol[1] : channel->fixed.protocol[0];
    bool by_us = (protocol == PH_PROTOCOL_PUT) == outgoing;
    uint8_t reason = protocol == 0 ? PHI_REASON_NO_ROLE
                     : by_us       ? channel->fixed.own.reach
                                   : channel->fixed.theirs.reach;
    memset(report, 0, sizeof *report);
    const bool flushed = channel->fixed.stage.bells && channel->fixed.own.kind != PHI_KIND_HOST;
    report->flush = phi_flush_name(flushed ? channel->self->net.way.flush : PHI_FLUSH_NONE);
    report->protocol = protocol == PH_PROTOCOL_PUT   ? "put"
                       : protocol == PH_PROTOCOL_GET ? "get"
                                                     : "none";
    bool net = channel->fixed.by_net;
    report->path = reason ? "none" : net ? "net" : "ipc";
    const bool staged = channel->fixed.stage.is && !channel->fixed.stage.bells;
    report->method = reason || !net ? "none" : staged ? "staged" : "rma";
    report->kind = net ? (staged ? "slots" : kind_of_region(channel))
                       : phi_kind_handle((enum phi_kind)(by_us ? channel->fixed.theirs.kind
                                                               : channel->fixed.own.kind));
    if (reason)
        reject(report, net ? "net" : "ipc", reason);
    else if (staged)
        report_staged(channel, report);
    else if (channel->fixed.stage.bells && channel->self->net.way.dmabuf)
        reject(report, "dmabuf", channel->self->net.way.dmabuf);
    else if (channel->fixed.unbound)
        report_unbound(channel, outgoing, report);
    else if (channel->fixed.own.flags.lanes)
        report_flags(channel, outgoing, report);
    else if (!net)
        report_words(channel, report);
    const struct phi_transport *other = net ? &phi_transport_ipc : &phi_transport_net;
    reject(report, other->name,
           phi_contact_against(
               channel->peer, net,
               (enum phi_kind)(by_us ? channel->fixed.theirs.kind : channel->fixed.own.kind)));
}
