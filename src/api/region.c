// SPDX-License-Identifier: BSD-3-Clause
#include <errno.h>

#include <peerhop/region.h>

#include "api/check.h"
#include "api/context_internal.h"
#include "api/ranges.h"
#include "base/clock.h"
#include "exchange/exchange.h"
#include "peer/self.h"
#include "service/attach.h"
#include "service/regions.h"

int ph_region_export(struct ph_context *context, void *buffer, size_t size, uint32_t access,
                     unsigned char bytes[PH_REGION_BYTES], struct ph_region **region)
{
    PHI_RANGE("ph_region_export", size);
    struct phi_region_key key;
    struct ph_region *made;
    int rc = phi_check_buffer(context, buffer, size);
    if (rc || (rc = phi_check_given(&context->report, bytes, "ph_region_export: bytes")) ||
        (rc = phi_check_given(&context->report, region, "ph_region_export: region")))
        return rc;
    if (access < PH_REGION_READ || access > (PH_REGION_READ | PH_REGION_WRITE))
        return phi_fail(&context->report, -EINVAL, "%#x is no access to a region", access);
    rc = phi_regions_export(context->self, buffer, size, access, &key, &made);
    if (rc)
        return rc;
    rc = phi_attach_encode(context->self, &key, bytes);
    if (rc)
        phi_regions_end(made);
    else
        *region = made;
    return rc;
}

int ph_region_close(struct ph_region **region)
{
    if (region == NULL || *region == NULL)
        return -EINVAL;
    if (phi_self_forked(phi_regions_self(*region)))
        return PH_EFORKED;
    phi_regions_end(*region);
    *region = NULL;
    return 0;
}

int ph_region_attach(struct ph_context *context, const void *bytes, size_t bytes_size, void *buffer,
                     size_t size, int64_t deadline_ms, struct ph_channel **channel)
{
    PHI_RANGE("ph_region_attach", size);
    struct phi_region_bytes region;
    struct ph_operation operation = {.buffer = buffer, .size = size};
    struct ph_exchange_request *request;
    int rc = phi_check_buffer(context, buffer, size);
    if (rc || (rc = phi_check_given(&context->report, bytes, "ph_region_attach: bytes")) ||
        (rc = phi_check_given(&context->report, channel, "ph_region_attach: channel")) ||
        (rc = phi_check_deadline(&context->report, deadline_ms)))
        return rc;
    const int64_t deadline = phi_deadline(deadline_ms ? deadline_ms : context->config.deadline_ms);
    rc = phi_attach_decode(context->self, bytes, bytes_size, &region);
    if (rc || (rc = phi_attach_ask(context->self, &region, deadline, &operation)) ||
        (rc = phi_exchange_start(context->self, &operation, 1, &request)))
        return rc;
    return phi_exchange_finish(request, channel, deadline);
}
