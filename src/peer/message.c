// SPDX-License-Identifier: BSD-3-Clause
#include "peer/message.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "peer/peer.h"
#include "peer/self.h"
#include "peer/wake.h"

int phi_hello_tell(struct phi_peer *peer, const struct phi_node_message *message, bool answer)
{
    struct phi_node_message copy = *message;
    if (answer)
        copy.type |= PHI_MESSAGE_ANSWER;
    return phi_link_tell(peer->to.link, &copy,
                         offsetof(struct phi_node_message, bytes) + copy.bytes_size);
}

int phi_hello_call(struct phi_peer *peer, const struct phi_node_message *request,
                   struct phi_node_message *answer, int64_t deadline)
{
    struct phi_self *self = peer->self;
    pthread_mutex_lock(&self->lock);
    const struct phi_node_message *last = &peer->to.hello->answer;
    int rc = phi_hello_tell(peer, request, false);
    while (rc == 0 && (last->call != request->call || last->type != request->type)) {
        if (peer->end.gone)
            rc = -ECONNRESET;
        else
            rc = phi_self_follow(self, deadline); // the service thread files it
    }
    if (rc == 0)
        *answer = *last;
    pthread_mutex_unlock(&self->lock);
    return rc;
}

void phi_peer_message(const struct phi_peer *peer, enum phi_node_type type,
                      struct phi_node_message *message)
{
    memset(message, 0, sizeof *message);
    message->magic = PHI_NODE_MAGIC;
    message->version = PHI_NODE_VERSION;
    message->type = (uint16_t)type;
    message->rank = peer->self->rank;
    message->from = peer->self->incarnation;
    message->to = peer->incarnation;
}

int phi_peer_call(struct phi_peer *peer, struct phi_node_message *request,
                  struct phi_node_message *answer, int *fd, int64_t deadline)
{
    *fd = -1;
    int rc = phi_gate_enter(&peer->to.calling, deadline);
    if (rc)
        return rc;
    request->call = ++peer->to.calls;
    if (peer->to.link != NULL)
        rc = phi_hello_call(peer, request, answer, deadline);
    else
        rc = peer->to.socket < 0 ? -ECONNRESET
                                 : phi_node_call(peer->to.socket, request, answer, fd, deadline);
    phi_gate_leave(&peer->to.calling);
    if (rc == 0 && answer->status != 0) {
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        rc = answer->status < 0 ? answer->status : -EBADMSG;
    }
    return rc;
}

int phi_peer_tell(struct phi_peer *peer, const struct phi_node_message *message)
{
    if (peer->to.link != NULL)
        return phi_hello_tell(peer, message, false);
    return peer->to.socket < 0 ? -ECONNRESET : phi_node_send(peer->to.socket, message, -1);
}
