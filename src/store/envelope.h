// SPDX-License-Identifier: BSD-3-Clause
// Every value in the store begins with an envelope: who sends it, who is to get it, and which
// message it is.
#ifndef PHI_STORE_ENVELOPE_H
#define PHI_STORE_ENVELOPE_H

#include <stddef.h>
#include <stdint.h>

enum phi_envelope_kind {
    PHI_ENVELOPE_MEMBER = 1,  // a member record, for all
    PHI_ENVELOPE_MESSAGE = 2, // a message for one life of one rank
    PHI_ENVELOPE_VOID = 3,    // stands for a message that its sender withdrew
};

enum {
    PHI_ENVELOPE_VERSION = 1,
    PHI_ENVELOPE_SIZE = 48, // bytes before the payload
};

// The destination of member records: all ranks.
#define PHI_ENVELOPE_ALL UINT32_MAX

struct phi_envelope {
    enum phi_envelope_kind kind;
    uint32_t source, destination; // ranks
    uint64_t source_incarnation;
    uint64_t destination_incarnation; // 0 in member records
    uint64_t sequence;                // 0 in member records
};

// phi_envelope_encode returns envelope and payload as one allocation of PHI_ENVELOPE_SIZE + size
// bytes, or NULL.
uint8_t *phi_envelope_encode(const struct phi_envelope *envelope, const void *payload, size_t size);

// phi_envelope_decode checks all that does not depend on the reader. The payload follows the first
// PHI_ENVELOPE_SIZE bytes.
//   EBADMSG: no envelope, or not whole. -EPROTONOSUPPORT: of another version.
int phi_envelope_decode(struct phi_envelope *envelope, const uint8_t *bytes, size_t size);

#endif
