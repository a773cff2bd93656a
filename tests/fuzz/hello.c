// SPDX-License-Identifier: BSD-3-Clause
// First contact over the net: hellos that come through the store, and messages that come over the
// link. What is read of a hello is what was written; nobody is ready but by a message for this life
// that knows our nonce.
//
// Input: our rank, then pieces, each behind a byte: 0: from the store, 1: from the link.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "ending/link.h"
#include "meeting/hello.h"
#include "peer/hello_wire.h"
#include "peer/node.h"
#include "fuzz.h"
#include "pair.h"

#define NONCE 0x5a5a5a5a5a5a5a5aull // what the wrapped phi_random makes of one

static struct input arriving;
static bool knows; // a message came that may make the pair ready

void __wrap_phi_random(void *bytes, size_t size);
bool __wrap_phi_link_receive(struct phi_link *link, void *bytes, size_t *size);
int __wrap_phi_link_connect(struct phi_link *link, const uint8_t *address, size_t size,
                            uint32_t rails);
const uint8_t *__wrap_phi_link_address(const struct phi_link *link, size_t *size, uint32_t *rails);
int __wrap_phi_link_tell(struct phi_link *link, const void *bytes, size_t size);
int __wrap_phi_link_tell_again(struct phi_link *link, const void *bytes, size_t size);
int __wrap_phi_link_store(struct phi_link *link, uint32_t offset, const void *value, uint32_t size);
const struct phi_net_wire *__wrap_phi_net_wire(const struct phi_net *net);
const char *__wrap_phi_net_name(const struct phi_net *net);
const char *__wrap_phi_net_address(const struct phi_net *net);
void __wrap_phi_link_guard(struct phi_link *link);

void __wrap_phi_random(void *bytes, size_t size)
{
    memset(bytes, 0x5a, size);
}

// A link hands out no more than it has room for.
bool __wrap_phi_link_receive(struct phi_link *link, void *bytes, size_t *size)
{
    (void)link;
    if (arriving.left == 0 || arriving.left > PHI_NET_MESSAGE_MAX)
        return false;
    memcpy(bytes, arriving.at, arriving.left);
    *size = arriving.left;
    arriving.left = 0;
    return true;
}

int __wrap_phi_link_connect(struct phi_link *link, const uint8_t *address, size_t size,
                            uint32_t rails)
{
    uint8_t sum = 0;

    (void)link;
    HOLD(size <= PHI_NET_ADDRESS_MAX);
    for (size_t i = 0; i < size; i++)
        sum ^= address[i];
    return rails == 0 || sum == 0xff ? -EBADMSG : 0;
}

const uint8_t *__wrap_phi_link_address(const struct phi_link *link, size_t *size, uint32_t *rails)
{
    static const uint8_t address[32] = "an address, and one more of 16";

    (void)link;
    *size = sizeof(address);
    *rails = 1;
    return address;
}

void __wrap_phi_link_guard(struct phi_link *link)
{
    (void)link;
}

int __wrap_phi_link_tell(struct phi_link *link, const void *bytes, size_t size)
{
    (void)link;
    (void)bytes;
    HOLD(size <= sizeof(struct phi_node_message));
    return 0;
}

int __wrap_phi_link_tell_again(struct phi_link *link, const void *bytes, size_t size)
{
    return __wrap_phi_link_tell(link, bytes, size);
}

int __wrap_phi_link_store(struct phi_link *link, uint32_t offset, const void *value, uint32_t size)
{
    (void)link;
    (void)offset;
    (void)value;
    (void)size;
    return 0;
}

const struct phi_net_wire *__wrap_phi_net_wire(const struct phi_net *net)
{
    static const struct phi_net_wire wire = {
        .provider = "net", .protocol = 7, .protocol_version = 1, .immediate = 8, .format = 2};

    (void)net;
    return &wire;
}

const char *__wrap_phi_net_name(const struct phi_net *net)
{
    (void)net;
    return "net lo";
}

const char *__wrap_phi_net_address(const struct phi_net *net)
{
    (void)net;
    return "127.0.0.1";
}

static void check_codec(const uint8_t *bytes, size_t size)
{
    struct phi_hello_words words;
    struct phi_writer again = {0};

    if (phi_hello_decode(bytes, size, &words) || words.version != PHI_HELLO_VERSION)
        return;
    phi_hello_encode(&words, &again);
    HOLD(again.size == size && memcmp(again.bytes, bytes, size) == 0);
    phi_writer_fini(&again);
}

static void from_store(struct pair *pair, struct input piece)
{
    uint8_t *bytes = copy_of(piece);

    check_codec(bytes, piece.left);
    if (phi_hello_is(bytes, piece.left)) {
        int rc = phi_hello_file(pair->peer, bytes, piece.left);
        HOLD(rc == 0 || rc == -EBADMSG);
    }
    free(bytes);
}

static void from_link(struct pair *pair, struct input piece)
{
    struct phi_node_message message = {0};
    bool question;

    memcpy(&message, piece.at, piece.left < sizeof(message) ? piece.left : sizeof(message));
    knows = knows || (message.from == THEIR_INCARNATION && message.to == OWN_INCARNATION &&
                      message.rank == pair->peer->rank && message.a == NONCE &&
                      (message.type == PHI_NODE_CONNECT || message.type == PHI_NODE_CONNECTED));
    arriving = piece;
    // What it opens: whoever has a link has said hello.
    if (pair->peer->to.hello && phi_hello_receive(pair->peer, &message, &question) && question)
        HOLD(message.bytes_size <= sizeof(message.bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t nobody;
    struct input input = {data, size};
    struct pair *pair = pair_open((int)take(&input, 1) & 1, true);
    struct phi_peer *peer = pair->peer;

    peer->state = PHI_PEER_KNOWN;
    peer->to.link = (struct phi_link *)&nobody; // looked into by nobody
    peer->segment->link = peer->to.link;
    knows = false;
    while (input.left > 0) {
        uint64_t link = take(&input, 1);
        struct input piece = take_piece(&input);

        if (link)
            from_link(pair, piece);
        else
            from_store(pair, piece);
        HOLD(peer->state == PHI_PEER_KNOWN || knows);
    }
    peer->to.link = peer->segment->link = NULL;
    phi_hello_forget(peer);
    peer->state = PHI_PEER_READY;
    pair_close(pair);
    return 0;
}
