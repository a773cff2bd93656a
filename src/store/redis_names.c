// SPDX-License-Identifier: BSD-3-Clause
// The names of a job's streams and of their entries.
#include "store/redis_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *phi_redis_pair_key(const struct phi_store_redis *store, int from, int to)
{
    char *key;
    return asprintf(&key, "%s%d>%d", store->prefix, from, to) < 0 ? NULL : key;
}

// ---- stream ids

const char *phi_decimal_parse(const char *text, uint64_t *value)
{
    char *end;
    if (*text < '0' || *text > '9')
        return NULL;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno ? NULL : end;
}

int phi_stream_id_parse(struct phi_stream_id *id, const redisReply *reply)
{
    struct phi_stream_id read;
    if (reply->type != REDIS_REPLY_STRING)
        return -EBADMSG;
    const char *rest = phi_decimal_parse(reply->str, &read.major);
    if (!rest || *rest != '-')
        return -EBADMSG;
    rest = phi_decimal_parse(rest + 1, &read.minor);
    if (!rest || *rest)
        return -EBADMSG;
    *id = read;
    return 0;
}

void phi_stream_id_print(char text[PHI_STREAM_ID_TEXT], struct phi_stream_id id)
{
    snprintf(text, PHI_STREAM_ID_TEXT, "%" PRIu64 "-%" PRIu64, id.major, id.minor);
}

int phi_stream_last(struct phi_stream_id *id, const redisReply *info)
{
    for (size_t i = 0; info->type == REDIS_REPLY_ARRAY && i + 1 < info->elements; i += 2)
        if (info->element[i]->type == REDIS_REPLY_STRING &&
            strcmp(info->element[i]->str, "last-generated-id") == 0)
            return phi_stream_id_parse(id, info->element[i + 1]);
    return -EBADMSG;
}

size_t phi_stream_find(const redisReply *entries, const void *bytes, size_t size)
{
    for (size_t i = 0; i < entries->elements; i++) {
        const redisReply *entry = entries->element[i];
        if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2 ||
            entry->element[1]->type != REDIS_REPLY_ARRAY || entry->element[1]->elements != 2)
            continue;
        const redisReply *value = entry->element[1]->element[1];
        if (value->type == REDIS_REPLY_STRING && (size_t)value->len == size &&
            memcmp(value->str, bytes, size) == 0)
            return i;
    }
    return entries->elements;
}
