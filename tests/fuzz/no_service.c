// SPDX-License-Identifier: BSD-3-Clause
// Stands for src/channel/service.c where nothing is to run beside the target.
#include "channel/service.h"

int phi_service_open(struct phi_peers *peers, struct phi_service **service)
{
    (void)peers;
    *service = NULL;
    return 0;
}

void phi_service_close(struct phi_service *service)
{
    (void)service;
}
