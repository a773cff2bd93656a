// SPDX-License-Identifier: BSD-3-Clause
// Imports of a peer's memory, and the reasons where they fail: for the trial memory (trial.h) and
// for what the peer offers (mapping.h). All without the peers' lock.
#ifndef PHI_MEETING_IMPORT_H
#define PHI_MEETING_IMPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

struct phi_import;
struct phi_node_message;
struct phi_peer;

// phi_import_from maps memory of the peer: as phi_memory_import. -EBADMSG (reported) also where the
// record claims to be of this process and the peer is not.
int phi_import_from(struct phi_peer *peer, const uint8_t *record, size_t size, int fd,
                    struct phi_import **import);

// phi_import_call is phi_peer_call, and logs the cause of a failure: the reason that both ranks are
// told does not have it.
int phi_import_call(struct phi_peer *peer, struct phi_node_message *request,
                    struct phi_node_message *answer, int *fd, int64_t deadline);

// phi_import_deadline is the deadline of one call to a service thread: the caller's, or sooner.
int64_t phi_import_deadline(int64_t deadline);

// phi_import_reason is the reason that a result of phi_import_from stands for. The descriptor that
// came for the import must still be open.
// phi_import_reason_of is the same for other results of a trial.
// phi_import_reason_of_call: why no descriptor came.
enum phi_reason phi_import_reason(int rc);
enum phi_reason phi_import_reason_of(int rc);
enum phi_reason phi_import_reason_of_call(int rc);

// phi_import_cut_short: whether the caller's own deadline ended it. Then the reason says nothing of
// the path.
bool phi_import_cut_short(enum phi_reason reason, int64_t deadline);

#endif
