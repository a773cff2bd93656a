// SPDX-License-Identifier: BSD-3-Clause
// Requests to the service thread, in any order, with any descriptors, by one connection; and the
// ends of peers.
//
// Input: flags (1: we are the higher rank; 2: the peer is connected), then messages. A compact one
// has what decides byte by byte; a raw one is a piece.
#include "service/service.c" // what it does with one connection is nowhere else to be called

#include "fuzz.h"
#include "pair.h"

enum { MESSAGES_MOST = 32 };

static void send_raw(int socket, struct input *input)
{
    struct input piece = take_piece(input);
    send(socket, piece.at, piece.left, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static uint64_t one_of(unsigned which, uint64_t usual)
{
    return which == 0 ? usual : which == 1 ? usual + 1 : which == 2 ? 0 : UINT64_MAX;
}

static void send_compact(int socket, struct input *input, int rank)
{
    unsigned lives = (unsigned)take(input, 1);
    struct phi_node_message message = {
        .magic = PHI_NODE_MAGIC,
        .version = PHI_NODE_VERSION,
        .type = (uint16_t)take(input, 1),
        .rank = lives & 1 ? (int32_t)take(input, 4) : rank,
        .from = one_of(lives >> 2 & 3, THEIR_INCARNATION),
        .to = one_of(lives >> 4 & 3, OWN_INCARNATION),
        .a = lives & 2 ? 99 : take(input, 8),
        .b = take(input, 2),
        .bytes_size = (uint32_t)take(input, 2),
    };
    phi_node_send(socket, &message, descriptor_given);
}

static void read_answers(int socket)
{
    struct phi_node_message answer;
    int fd = -1;

    while (phi_node_receive(socket, &answer, &fd) == 0) {
        HOLD(answer.status <= 0 || answer.type == PHI_NODE_VERIFY);
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
}

static void run_messages(struct phi_service *service, struct pair *pair, struct input *input)
{
    int ends[2];

    HOLD(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    service->connections[0] = (struct connection){.fd = ends[0], .asker.rank = -1};
    for (int i = 0; i < MESSAGES_MOST && input->left > 0 && service->connections[0].fd >= 0; i++) {
        unsigned how = (unsigned)take(input, 1);

        if (how % 4 == 0)
            send_raw(ends[1], input);
        else if (how % 4 == 1 && pair->peer->segment)
            atomic_store(&phi_peer_theirs(pair->peer)->state, how >> 2);
        else if (how == 2)
            peer_event(service, PHI_SOURCE_SOCKET, pair->peer->rank);
        else
            send_compact(ends[1], input, pair->peer->rank);
        serve(service, 0);
        read_answers(ends[1]);
    }
    struct ph_notification notes[4];
    size_t count;
    HOLD(phi_notes_read(&pair->self, notes, 4, &count) == 0);
    for (size_t i = 0; i < count; i++)
        HOLD(notes[i].size <= PH_NOTIFICATION_SIZE && notes[i].peer == pair->peer->rank);
    release_broken(&pair->self);
    if (service->connections[0].fd >= 0)
        close_connection(service, 0);
    close(ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct connection connection;
    static struct phi_service service = {.listener = -1};
    struct input input = {data, size};
    unsigned flags = (unsigned)take(&input, 1);
    struct pair *pair = pair_open(flags & 1, flags & 2);

    service.self = &pair->self;
    service.connections = &connection;
    service.connections_count = 1;
    pair->self.serving.service = &service;
    run_messages(&service, pair, &input);
    pair_close(pair);
    return 0;
}
