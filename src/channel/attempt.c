// SPDX-License-Identifier: BSD-3-Clause
#include "channel/attempt.h"

#include <errno.h>
#include <unistd.h>

#include "channel/contact.h"

static bool is_settled(const struct phi_peer *peer)
{
    return peer->attempt.tried && peer->attempt.theirs_life == peer->incarnation;
}

static int ask(int socket, struct phi_node_message *request, struct phi_node_message *answer,
               int *fd, int64_t deadline)
{
    int rc = phi_node_call(socket, request, answer, fd, deadline);
    if (rc == 0)
        rc = answer->status > 0 ? -EBADMSG : answer->status;
    return rc;
}

// Only what says that the two devices, or processes, do not go together: all else shows again when
// memory is mapped, and is told then.
static enum phi_reason outcome_of(int rc)
{
    const enum phi_reason reason = rc ? phi_contact_reason(rc) : PHI_REASON_NONE;
    return reason == PHI_REASON_PEER_ACCESS || reason == PHI_REASON_IMPORT ? reason
                                                                           : PHI_REASON_NONE;
}

static int try(struct phi_peer *peer, int socket, int64_t deadline)
{
    struct phi_peers *peers = peer->peers;
    struct phi_node_message request, answer;
    struct phi_import *import = NULL;
    int fd = -1;
    phi_peer_message(peer, PHI_NODE_PROBE, &request);
    int rc = ask(socket, &request, &answer, &fd, deadline);
    if (rc == 0) {
        int mapped = phi_contact_map(peer, socket, answer.bytes, answer.bytes_size, fd, &import);
        rc = mapped == -ENOMEM ? mapped : 0;
        pthread_mutex_lock(&peers->lock);
        peer->probe = import; // for the probe, if ipc serves
        peer->attempt.tried = rc == 0;
        peer->attempt.mine = outcome_of(mapped);
        pthread_mutex_unlock(&peers->lock);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static int file(struct phi_peer *peer, uint64_t life, uint64_t outcome)
{
    if (outcome == 0)
        return 0; // not yet
    if (outcome > PHI_REASON_COUNT)
        return -EBADMSG;
    peer->attempt.theirs = (enum phi_reason)(outcome - 1);
    peer->attempt.theirs_life = life;
    return 0;
}

int phi_attempt_make(struct phi_peer *peer, int socket, int64_t deadline)
{
    struct phi_peers *peers = peer->peers;
    struct phi_node_message request, answer;
    int fd = -1;
    if (!phi_path_doubt(&peers->mine, &peer->theirs) || peer->net_refused)
        return 0;
    int rc = peer->attempt.tried ? 0 : try(peer, socket, deadline);
    if (rc)
        return rc;
    phi_peer_message(peer, PHI_NODE_ATTEMPT, &request);
    request.a = (uint64_t)peer->attempt.mine + 1;
    rc = ask(socket, &request, &answer, &fd, deadline);
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&peers->lock);
    if (rc == 0)
        rc = file(peer, peer->incarnation, answer.a);
    if (rc == 0 && !is_settled(peer))
        rc = -EINPROGRESS;
    if (rc == 0 && phi_attempt_against(peer) != PHI_REASON_NONE)
        rc = -EXDEV;
    pthread_mutex_unlock(&peers->lock);
    return rc;
}

int phi_attempt_file(struct phi_peer *peer, const struct phi_node_message *request,
                     struct phi_node_message *answer)
{
    if (peer->incarnation == request->from && peer->attempt.tried)
        answer->a = (uint64_t)peer->attempt.mine + 1;
    int rc = request->a ? file(peer, request->from, request->a) : -EBADMSG;
    if (rc == 0 && is_settled(peer)) {
        peer->refused = false; // an exchange that waits for it goes on at once
        phi_peers_changed(peer->peers);
        phi_mailbox_wake(peer->peers->mailbox);
    }
    return rc;
}

bool phi_attempt_waits(const struct phi_peer *peer)
{
    return peer->state == PHI_PEER_KNOWN && peer->attempt.tried && !is_settled(peer);
}

enum phi_reason phi_attempt_against(const struct phi_peer *peer)
{
    if (!is_settled(peer))
        return PHI_REASON_NONE;
    if (peer->attempt.mine != PHI_REASON_NONE)
        return peer->attempt.mine;
    return peer->attempt.theirs == PHI_REASON_PEER_ACCESS ? PHI_REASON_ACCESS_THERE
                                                          : peer->attempt.theirs;
}

void phi_attempt_forget(struct phi_peer *peer)
{
    peer->attempt.tried = false; // what a later life has told stays
}
