// SPDX-License-Identifier: BSD-3-Clause
#include "api/ranges.h"

#include <pthread.h>

#include <nvtx3/nvToolsExt.h>

bool phi_ranges_heard;
static nvtxDomainHandle_t domain;

// NVTX loads a tool's library here where the environment names one, and its functions are empty
// otherwise: then there is no domain.
static void look(void)
{
    domain = nvtxDomainCreateA("peerhop");
    phi_ranges_heard = domain != NULL;
}

void phi_ranges_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, look);
}

void phi_range_push(const char *name, uint64_t payload)
{
    const nvtxEventAttributes_t attributes = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
        .payload.ullValue = payload,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message.ascii = name,
    };

    nvtxDomainRangePushEx(domain, &attributes);
}

void phi_range_pop(void)
{
    nvtxDomainRangePop(domain);
}
