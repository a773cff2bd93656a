// SPDX-License-Identifier: BSD-3-Clause
// The keys of a job in a store of callbacks.
#ifndef PHI_STORE_KEYS_H
#define PHI_STORE_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "store/mailbox.h"

enum { PHI_KEY_SIZE = 201 };

// A pair of lives. One sends to the other.
struct phi_key_pair {
    int from, to;
    uint64_t from_incarnation, to_incarnation;
};

// They use job and epoch of params. prefix: of member records, or of expulsions.
void phi_key_prefix(char key[PHI_KEY_SIZE], const struct phi_mailbox_params *params, bool expelled);
void phi_key_member(char key[PHI_KEY_SIZE], const struct phi_mailbox_params *params, int rank);
void phi_key_expelled(char key[PHI_KEY_SIZE], const struct phi_mailbox_params *params, int rank,
                      uint64_t incarnation);
void phi_key_message(char key[PHI_KEY_SIZE], const struct phi_mailbox_params *params,
                     const struct phi_key_pair *pair, uint64_t number);

// The kind of a key, for the rank of params. rank: the one that a record is about.
enum phi_key_kind { PHI_KEY_NONE, PHI_KEY_RECORD, PHI_KEY_INBOUND };
enum phi_key_kind phi_key_kind(const struct phi_mailbox_params *params, const char *key, int *rank);

#endif
