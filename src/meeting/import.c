// SPDX-License-Identifier: BSD-3-Clause
#include "meeting/import.h"

#include <errno.h>

#include "base/clock.h"
#include "base/descriptors.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/peer.h"
#include "peer/self.h"

// A call to a service thread is answered at once or never: it waits for nothing itself.
#define CALL_DEADLINE_MS 10000

int64_t phi_import_deadline(int64_t deadline)
{
    int64_t soon = phi_deadline(CALL_DEADLINE_MS);
    return soon < deadline ? soon : deadline;
}

enum phi_reason phi_import_reason_of(int rc)
{
    switch (rc) {
    case -ETIMEDOUT:
        return PHI_REASON_TRIAL_DEADLINE;
    case -EIO:
        return PHI_REASON_TRIAL_BYTES;
    case -EBADMSG:
        return PHI_REASON_RECORD;
    case -ENOMEM:
        return PHI_REASON_MEMORY;
    case -EMFILE:
    case -ENFILE:
        return PHI_REASON_DESCRIPTORS;
    case -EEXIST:
        return PHI_REASON_STALE;
    case -EXDEV:
        return PHI_REASON_PEER_ACCESS;
    default:
        return PHI_REASON_IMPORT;
    }
}

enum phi_reason phi_import_reason(int rc)
{
    if (rc == 0)
        return PHI_REASON_NONE;
    // A driver does not always say what it lacks.
    return phi_descriptors_lack(1) ? PHI_REASON_DESCRIPTORS : phi_import_reason_of(rc);
}

int phi_import_from(struct phi_peer *peer, const uint8_t *record, size_t size, int fd,
                    struct phi_import **import)
{
    struct phi_self *self = peer->self;
    if (!phi_memory_own(self->memory, record, size) || phi_node_is_self(peer->to.socket))
        return phi_memory_import(self->memory, record, size, fd, import);
    return phi_fail(self->report, -EBADMSG, "rank %d claims to own memory of this process",
                    peer->rank);
}

int phi_import_call(struct phi_peer *peer, struct phi_node_message *request,
                    struct phi_node_message *answer, int *fd, int64_t deadline)
{
    int rc = phi_peer_call(peer, request, answer, fd, deadline);
    if (rc)
        phi_log(peer->self->report, PH_LOG_WARN,
                "a question to rank %d through its socket \"%s\": %s", peer->rank,
                peer->theirs.socket, ph_strerror(rc));
    return rc;
}

enum phi_reason phi_import_reason_of_call(int rc)
{
    return phi_import_reason_of(rc) == PHI_REASON_DESCRIPTORS ? PHI_REASON_DESCRIPTORS
                                                              : PHI_REASON_DESCRIPTOR;
}

bool phi_import_cut_short(enum phi_reason reason, int64_t deadline)
{
    return (reason == PHI_REASON_TRIAL_DEADLINE || reason == PHI_REASON_DESCRIPTOR) &&
           phi_now() >= deadline;
}
