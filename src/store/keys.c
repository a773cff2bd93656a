// SPDX-License-Identifier: BSD-3-Clause
// The keys of a job in a store of callbacks:
//   ph:{job}:epoch:member:R           the member record of rank R's latest life
//   ph:{job}:epoch:A>B:life:life:n    message n of a life of A to one of B; n counts 1, 2, 3, ...
//   ph:{job}:epoch:expelled:R:life    this life of R was expelled; stays for later ranks
// So the receiver always knows the one next key of each sender. Lives are incarnations, in
// hexadecimal digits, so that the longest key fits.
#include "store/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int common(char key[PHI_KEY_SIZE], const struct phi_mailbox_params *params)
{
    return snprintf(key, PHI_KEY_SIZE, "ph:{%s}:%" PRIu64 ":", params->job, params->epoch);
}

void phi_key_prefix(char key[PHI_KEY_SIZE], const struct phi_mailbox_params *params, bool expelled)
{
    int length = common(key, params);
    snprintf(key + length, (size_t)(PHI_KEY_SIZE - length), expelled ? "expelled:" : "member:");
}

void phi_key_member(char key[PHI_KEY_SIZE], const struct phi_mailbox_params *params, int rank)
{
    int length = common(key, params);
    snprintf(key + length, (size_t)(PHI_KEY_SIZE - length), "member:%d", rank);
}

void phi_key_expelled(char key[PHI_KEY_SIZE], const struct phi_mailbox_params *params, int rank,
                      uint64_t incarnation)
{
    int length = common(key, params);
    snprintf(key + length, (size_t)(PHI_KEY_SIZE - length), "expelled:%d:%" PRIx64, rank,
             incarnation);
}

void phi_key_message(char key[PHI_KEY_SIZE], const struct phi_mailbox_params *params,
                     const struct phi_key_pair *pair, uint64_t number)
{
    int length = common(key, params);
    snprintf(key + length, (size_t)(PHI_KEY_SIZE - length),
             "%d>%d:%" PRIx64 ":%" PRIx64 ":%" PRIu64, pair->from, pair->to, pair->from_incarnation,
             pair->to_incarnation, number);
}

// rank_behind reads the rank behind a word, or gives -1.
static int rank_behind(const struct phi_mailbox_params *params, const char *key, const char *word)
{
    const size_t length = strlen(word);
    if (strncmp(key, word, length) != 0)
        return -1;
    const long rank = strtol(key + length, NULL, 10);
    return rank >= 0 && rank < params->ranks ? (int)rank : -1;
}

enum phi_key_kind phi_key_kind(const struct phi_mailbox_params *params, const char *key, int *rank)
{
    char prefix[PHI_KEY_SIZE], *end;
    size_t length = (size_t)common(prefix, params);
    if (strncmp(key, prefix, length) != 0)
        return PHI_KEY_NONE;
    *rank = rank_behind(params, key + length, "member:");
    if (*rank < 0)
        *rank = rank_behind(params, key + length, "expelled:");
    if (*rank >= 0)
        return PHI_KEY_RECORD;
    const char *to = strchr(key + length, '>');
    if (to == NULL || strtol(to + 1, &end, 10) != params->rank || *end != ':')
        return PHI_KEY_NONE;
    return PHI_KEY_INBOUND;
}
