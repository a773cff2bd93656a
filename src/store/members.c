// SPDX-License-Identifier: BSD-3-Clause
#include "store/members.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/envelope.h"
#include "store/file.h"
#include "store/keys.h"
#include "store/redis_state.h"

enum { ELEMENTS_MOST = 16 << 20, RANKS_MOST = 1 << 20 };

// value_of returns the bytes of a stream's entry, [id, ["m", bytes]], or NULL.
static const redisReply *value_of(const redisReply *entry)
{
    if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2)
        return NULL;
    const redisReply *fields = entry->element[1];
    if (fields->type != REDIS_REPLY_ARRAY || fields->elements != 2 ||
        fields->element[0]->type != REDIS_REPLY_STRING ||
        strcmp(fields->element[0]->str, "m") != 0 || fields->element[1]->type != REDIS_REPLY_STRING)
        return NULL;
    return fields->element[1];
}

struct visitor {
    void (*visit)(void *opaque, const struct phi_message *record);
    void *opaque;
};

static void visit_value(void *opaque, const void *value, size_t size)
{
    const struct visitor *visitor = opaque;
    struct phi_envelope envelope;
    if (phi_envelope_decode(&envelope, value, size) != 0 || envelope.kind != PHI_ENVELOPE_MEMBER ||
        envelope.source >= RANKS_MOST)
        return;
    const struct phi_message record = {
        .member = true,
        .rank = (int)envelope.source,
        .incarnation = envelope.source_incarnation,
        .bytes = (const uint8_t *)value + PHI_ENVELOPE_SIZE,
        .size = size - PHI_ENVELOPE_SIZE,
    };
    visitor->visit(visitor->opaque, &record);
}

// read_files reads expulsions after the records of the lives that they end.
static int read_files(const struct phi_mailbox_params *params, struct visitor *visitor)
{
    struct phi_file_store *store;
    char prefix[PHI_KEY_SIZE];
    int rc = phi_file_store_open(params->config->store, false, params->report, &store);
    if (rc)
        return rc;
    for (int expelled = 0; expelled < 2 && rc == 0; expelled++) {
        phi_key_prefix(prefix, params, expelled);
        phi_count(params->counters, store_commands, 1);
        rc = phi_file_store_each(store, prefix, visit_value, visitor);
    }
    phi_file_store_close(store);
    return rc;
}

static int ask(struct phi_redis_connection *connection, const char *key, int64_t deadline,
               redisReply **out)
{
    const char *argv[4] = {"XRANGE", key, "-", "+"};
    redisReply *reply;
    int rc = phi_redis_connect(connection, -1, deadline);
    if (rc < 0 || (rc = phi_redis_queue(connection, 4, argv, NULL)))
        return rc;
    rc = phi_redis_answer(connection, -1, deadline, &reply);
    if (rc == -ETIMEDOUT || rc == -ECONNRESET)
        return phi_fail(connection->server->report, rc, "the store at %s did not answer XRANGE%s",
                        connection->server->uri.address,
                        rc == -ETIMEDOUT ? " before the deadline" : ": the connection was lost");
    if (rc)
        return rc;
    if (reply->type == REDIS_REPLY_ERROR)
        rc = phi_redis_refused(connection, "XRANGE", reply);
    else if (reply->type != REDIS_REPLY_ARRAY)
        rc = phi_redis_nonsense(connection, "XRANGE");
    if (rc)
        freeReplyObject(reply);
    else
        *out = reply;
    return rc;
}

int phi_members_read(const struct phi_mailbox_params *params, int64_t deadline,
                     void (*visit)(void *opaque, const struct phi_message *record), void *opaque)
{
    struct phi_redis_server server = {
        .report = params->report, .counters = params->counters, .elements_max = ELEMENTS_MOST};
    struct phi_redis_connection connection;
    redisReply *reply = NULL;
    char key[256];
    struct visitor visitor = {visit, opaque};
    if (phi_file_store_named(params->config->store))
        return read_files(params, &visitor);
    phi_trouble_init(&server.trouble);
    phi_redis_connection_init(&connection, &server);
    snprintf(key, sizeof key, "ph:{%s}:%" PRIu64 ":members", params->job, params->epoch);
    int rc = phi_redis_read_uri(&server, params);
    if (rc == 0)
        rc = ask(&connection, key, deadline, &reply);
    for (size_t i = 0; reply != NULL && i < reply->elements; i++) {
        const redisReply *value = value_of(reply->element[i]);
        if (value != NULL)
            visit_value(&visitor, value->str, (size_t)value->len);
    }
    if (reply != NULL)
        freeReplyObject(reply);
    phi_redis_connection_fini(&connection);
    phi_store_uri_fini(&server.uri);
    phi_trouble_fini(&server.trouble);
    return rc;
}
