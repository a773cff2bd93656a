// SPDX-License-Identifier: BSD-3-Clause
// Member records: what a rank says of itself in the store.
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "topology/capabilities.h"

// A record that was understood is the same after another trip.
static void check_again(const struct phi_capabilities *once)
{
    struct phi_writer writer = {0};
    struct phi_capabilities twice;

    phi_capabilities_encode(once, &writer);
    HOLD(phi_capabilities_decode(&twice, writer.bytes, writer.size) == 0);
    HOLD(strcmp(once->host, twice.host) == 0 && strcmp(once->socket, twice.socket) == 0);
    HOLD(once->kinds == twice.kinds && once->nonce == twice.nonce && once->device == twice.device);
    HOLD(once->others == twice.others && once->network == twice.network && once->net == twice.net);
    HOLD(once->container == twice.container);
    phi_writer_fini(&writer);
}

static void check_text(const char *text)
{
    for (; *text; text++)
        HOLD(*text >= 0x20 && *text <= 0x7e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct phi_capabilities found;
    uint8_t *bytes = copy_of((struct input){data, size});

    if (phi_capabilities_decode(&found, bytes, size) == 0) {
        check_text(found.host);
        check_text(found.device_name);
        check_text(found.socket);
        check_again(&found);
        phi_capabilities_same_node(&found, &found);
        phi_capabilities_denied(&found, &found);
    }
    free(bytes);
    return 0;
}
