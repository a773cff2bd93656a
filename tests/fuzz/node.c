// SPDX-License-Identifier: BSD-3-Clause
// The messages of the unix socket, with their descriptors: both ends of what a peer may send.
//
// Input: first byte: 0 receive, else a call that takes the pieces for its answers. Each piece:
// descriptor twice, bytes.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "peer/node.h"
#include "fuzz.h"

// At most two descriptors, in one message of any length.
static void send_piece(int socket, struct input *input)
{
    int fds[2] = {descriptor((unsigned)take(input, 1)), descriptor((unsigned)take(input, 1))};
    struct input piece = take_piece(input);
    uint8_t *bytes = copy_of(piece);
    struct iovec part = {bytes, piece.left};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(fds))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    size_t n = (fds[0] >= 0) + (size_t)(fds[0] >= 0 && fds[1] >= 0);

    if (n > 0) {
        control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS,
                                          .cmsg_len = CMSG_LEN(n * sizeof(int))};
        memcpy(CMSG_DATA(&control.header), fds, n * sizeof(int));
        message.msg_control = control.space;
        message.msg_controllen = CMSG_SPACE(n * sizeof(int));
    }
    sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(bytes);
}

static void close_received(int fd)
{
    if (fd >= 0) {
        HOLD(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        close(fd);
    }
}

static void receive_all(int socket)
{
    struct phi_node_message message;
    int rc, fd;

    do {
        fd = -1;
        rc = phi_node_receive(socket, &message, &fd);
        if (rc == 0)
            HOLD(message.magic == PHI_NODE_MAGIC && message.bytes_size <= sizeof(message.bytes));
        else
            HOLD(fd == -1);
        close_received(fd);
    } while (rc == 0 || rc == -EBADMSG || rc == -EPROTONOSUPPORT);
}

static void call(int socket, unsigned type)
{
    const struct phi_node_message request = {
        .magic = PHI_NODE_MAGIC, .version = PHI_NODE_VERSION, .type = (uint16_t)type, .call = 1};
    struct phi_node_message answer;
    int fd = -1;
    int rc = phi_node_call(socket, &request, &answer, &fd, phi_deadline(10));

    if (rc == 0)
        HOLD(answer.type == type && answer.call == 1);
    else
        HOLD(fd == -1);
    close_received(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    unsigned type = (unsigned)take(&input, 1);
    int ends[2];

    HOLD(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    for (int i = 0; i < 8 && input.left > 0; i++)
        send_piece(ends[1], &input);
    if (take(&input, 1) == 1)
        shutdown(ends[1], SHUT_WR);
    if (type == 0)
        receive_all(ends[0]);
    else
        call(ends[0], type);
    close(ends[0]);
    close(ends[1]);
    return 0;
}
