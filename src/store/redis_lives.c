// SPDX-License-Identifier: BSD-3-Clause
// The store counts the lives of a job's ranks. A clock that was set back, or another host's, does
// not tell which of two lives is the later. The life that the store was told last is.
#include "store/redis_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORDS = 8 }; // EVAL script n lives, and four arguments

// Enters ARGV[2] in the lives, KEYS[1], as the latest of rank ARGV[1], deletes the other KEYS, and
// returns 0. Where a later life is entered, that and the keys stay, and the answer is its number.
// ARGV[4]: 1 where the same number is another life's. Numbers are compared as texts: Lua's have 53
// bits.
static const char claim_script[] =
    "local t = redis.call('TYPE', KEYS[1]).ok "
    "if t ~= 'hash' and t ~= 'none' then redis.call('DEL', KEYS[1]) end "
    "local there, own = redis.call('HGET', KEYS[1], ARGV[1]), ARGV[2] "
    "if there and string.match(there, '^%d+$') and (#there > #own or #there == #own and "
    "(there > own or there == own and ARGV[4] == '1')) then return there end "
    "redis.call('HSET', KEYS[1], ARGV[1], own) redis.call('EXPIRE', KEYS[1], ARGV[3]) "
    "for i = 2, #KEYS do redis.call('DEL', KEYS[i]) end return 0";

int phi_redis_queue_claim(struct phi_store_redis *store, bool anew, int count, char *const *keys)
{
    const struct phi_mailbox_params *params = store->base.params;
    char number[24], rank[12], own[24], seconds[24];
    const char **argv = calloc((size_t)count + WORDS, sizeof(*argv));
    int n = 0;
    if (!argv)
        return phi_fail(params->report, -ENOMEM, "no memory for a command to the store");
    snprintf(number, sizeof(number), "%d", 1 + count);
    snprintf(rank, sizeof(rank), "%d", params->rank);
    snprintf(own, sizeof(own), "%" PRIu64, params->incarnation);
    snprintf(seconds, sizeof(seconds), "%" PRId64, params->config->expiry_s);
    argv[n++] = "EVAL", argv[n++] = claim_script, argv[n++] = number, argv[n++] = store->lives;
    for (int i = 0; i < count; i++)
        argv[n++] = keys[i];
    argv[n++] = rank, argv[n++] = own, argv[n++] = seconds, argv[n++] = anew ? "1" : "0";
    int result = phi_redis_queue(&store->commands, n, argv, NULL);
    free(argv);
    return result;
}

int phi_redis_read_claim(struct phi_store_redis *store, const redisReply *reply, uint64_t *latest)
{
    const char *end = NULL;
    if (reply->type == REDIS_REPLY_INTEGER)
        return 0;
    if (reply->type == REDIS_REPLY_ERROR)
        return phi_redis_refused(&store->commands, "EVAL", reply);
    if (reply->type == REDIS_REPLY_STRING)
        end = phi_decimal_parse(reply->str, latest);
    return end && !*end ? -EEXIST : phi_redis_nonsense(&store->commands, "EVAL");
}
