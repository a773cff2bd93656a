// SPDX-License-Identifier: BSD-3-Clause
#include "store/redis_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum {
    ELEMENTS = 4096, // of arrays in a reply, and for each rank:
    ELEMENTS_OF_RANK = 128,
    LIMIT_LEAST = 1 << 20, // bytes: no server takes less at once
};

// Deletes the record ARGV[1] of the members and, with the last one, the stream and the lives.
static const char leave_script[] =
    "redis.call('XDEL', KEYS[1], ARGV[1]) "
    "if redis.call('XLEN', KEYS[1]) == 0 then redis.call('DEL', KEYS[1], KEYS[2]) end";

static struct phi_store_redis *redis_of(struct phi_store *store)
{
    return (struct phi_store_redis *)store;
}

// ---- commands

static int interrupt_fd(const struct phi_store_redis *store)
{
    return store->interruptible ? store->inbound.wake.listen : -1;
}

static void redis_interruptible(struct phi_store *base, bool on)
{
    redis_of(base)->interruptible = on;
}

static void redis_doubt(struct phi_store *base)
{
    // Its XREAD may have been swallowed: only a new one is sure to be heard.
    phi_redis_close(&redis_of(base)->inbound.connection, "");
}

static size_t redis_trouble(struct phi_store *base, char *text, size_t size)
{
    return phi_trouble_copy(&redis_of(base)->server.trouble, text, size);
}

static const struct sockaddr *redis_local(const struct phi_store *base)
{
    const struct phi_redis_server *server = &((const struct phi_store_redis *)base)->server;
    return server->local.ss_family == AF_UNSPEC ? NULL : (const struct sockaddr *)&server->local;
}

static int queue(struct phi_store_redis *store, int argc, const char *const *argv)
{
    return phi_redis_queue(&store->commands, argc, argv, NULL);
}

// answer: a caller that gives up waiting must close, or the next command would read this one's
// answer.
static int answer(struct phi_store_redis *store, const char *command, int64_t deadline,
                  redisReply **reply)
{
    int result = phi_redis_answer(&store->commands, interrupt_fd(store), deadline, reply);
    if (result == -EINTR)
        phi_redis_close(&store->commands, "");
    if (result != -ETIMEDOUT)
        return result;
    char before[PHI_REDIS_WORDS]; // e.g. still loading, when it was last asked
    memcpy(before, store->commands.trouble, sizeof(before));
    phi_redis_close(&store->commands, "no answer");
    return phi_fail(store->base.params->report, -ETIMEDOUT,
                    "the store at %s did not answer %s before the deadline%s%s",
                    store->server.uri.address, command, before[0] ? "; before that: " : "", before);
}

// answer_type is answer with errors reported and one right type.
static int answer_type(struct phi_store_redis *store, const char *command, int type,
                       int64_t deadline, redisReply **reply)
{
    redisReply *got;
    int result = answer(store, command, deadline, &got);
    if (result)
        return result;
    if (got->type == REDIS_REPLY_ERROR)
        result = phi_redis_refused(&store->commands, command, got);
    else if (got->type != type)
        result = phi_redis_nonsense(&store->commands, command);
    if (result)
        freeReplyObject(got);
    else
        *reply = got;
    return result;
}

// end gives the connection up where answers of a pipeline are left unread.
static int end(struct phi_store_redis *store, int result)
{
    if (result && store->commands.established)
        phi_redis_close(&store->commands, "an earlier command failed");
    return result;
}

static int connect_commands(struct phi_store_redis *store, int64_t deadline)
{
    int result = phi_redis_connect(&store->commands, interrupt_fd(store), deadline);
    return result < 0 ? result : 0;
}

// skip reads an answer that decides nothing; only a lost connection is a failure.
static int skip(struct phi_store_redis *store, const char *command, int64_t deadline)
{
    redisReply *reply;
    int result = answer(store, command, deadline, &reply);
    if (result)
        return result;
    if (reply->type == REDIS_REPLY_ERROR) {
        char text[PHI_REDIS_WORDS];
        phi_redis_words(&store->server, reply, text);
        phi_log(store->base.params->report, PH_LOG_WARN, "the store at %s refused %s: %s",
                store->server.uri.address, command, text);
    }
    freeReplyObject(reply);
    return 0;
}

static int queue_expire(struct phi_store_redis *store, const char *key)
{
    char seconds[24];
    snprintf(seconds, sizeof(seconds), "%" PRId64, store->base.params->config->expiry_s);
    const char *argv[3] = {"EXPIRE", key, seconds};
    return queue(store, 3, argv);
}

static int skip_many(struct phi_store_redis *store, const char *command, int count,
                     int64_t deadline)
{
    int result = 0;
    for (int i = 0; i < count && result == 0; i++)
        result = skip(store, command, deadline);
    return result;
}

// ---- lives

// claim does as the backend's, by phi_redis_queue_claim.
static int claim(struct phi_store_redis *store, bool anew, char *key, uint64_t *latest,
                 int64_t deadline)
{
    redisReply *reply;
    int result = phi_redis_queue_claim(store, anew, key != NULL, &key);
    if (result == 0)
        result = answer(store, "EVAL", deadline, &reply);
    if (result)
        return result;
    result = phi_redis_read_claim(store, reply, latest);
    freeReplyObject(reply);
    return result;
}

static int redis_claim(struct phi_store *base, uint64_t *latest, int64_t deadline)
{
    struct phi_store_redis *store = redis_of(base);
    int result;
    do { // until connect says that it is too late
        result = connect_commands(store, deadline);
        if (result == 0)
            result = claim(store, true, NULL, latest, deadline);
    } while (result == -ECONNRESET);
    return result;
}

// ---- XADD

struct addition {
    char *key;
    const char *id; // or "*"
    const void *bytes;
    size_t size;
};

static int queue_xadd(struct phi_store_redis *store, const struct addition *addition)
{
    const char *argv[5] = {"XADD", addition->key, addition->id, "m", addition->bytes};
    size_t sizes[5] = {4, strlen(addition->key), strlen(addition->id), 1, addition->size};
    return phi_redis_queue(&store->commands, 5, argv, sizes);
}

static int refuse_bytes(struct phi_store_redis *store, const struct addition *addition,
                        const redisReply *reply)
{
    char command[48];
    snprintf(command, sizeof(command), "an XADD of %zu bytes", addition->size);
    return phi_redis_refused(&store->commands, command, reply);
}

// add runs [XDEL...] XADD EXPIRE in one pipeline. The caller gets the reply to XADD, whatever it
// is.
static int add(struct phi_store_redis *store, const struct addition *addition, int64_t deadline,
               redisReply **reply)
{
    int result = connect_commands(store, deadline);
    if (result)
        return result;
    int deletes = phi_redis_queue_deletes(store);
    result = deletes < 0 ? deletes : queue_xadd(store, addition);
    if (result == 0)
        result = queue_expire(store, addition->key);
    redisReply *got = NULL;
    if (result == 0)
        result = skip_many(store, "XDEL", deletes, deadline);
    if (result == 0)
        result = answer(store, "XADD", deadline, &got);
    if (result == 0 && phi_redis_is_error(got, "ERR Protocol error"))
        result = refuse_bytes(store, addition, got); // nothing follows: the server has closed
    if (result == 0)
        result = skip(store, "EXPIRE", deadline);
    if (result == 0)
        *reply = got;
    else if (got)
        freeReplyObject(got);
    return end(store, result);
}

// heal deletes the key if it is no stream: none of our ranks made it so.
static int heal(struct phi_store_redis *store, const char *key, int64_t deadline)
{
    const char *argv[4] = {"EVAL", phi_redis_heal, "1", key};
    phi_log(store->base.params->report, PH_LOG_WARN, "the store at %s: %s is no stream: deleted",
            store->server.uri.address, key);
    int result = queue(store, 4, argv);
    return end(store, result ? result : skip(store, "EVAL", deadline));
}

static int add_healing(struct phi_store_redis *store, const struct addition *addition,
                       int64_t deadline, redisReply **reply)
{
    redisReply *got;
    int result = add(store, addition, deadline, &got);
    if (result == 0 && phi_redis_is_error(got, "WRONGTYPE")) {
        freeReplyObject(got);
        result = heal(store, addition->key, deadline);
        if (result == 0)
            result = add(store, addition, deadline, &got);
    }
    if (result == 0)
        *reply = got;
    return result;
}

static int xrange(struct phi_store_redis *store, const char *key, const char *from, const char *to)
{
    const char *argv[4] = {"XRANGE", key, from, to};
    return queue(store, 4, argv);
}

// ---- messages

// check_life: an id of a later life is in the stream. If that life is over the stream is a
// leftover, which nobody reads: it is deleted. -EEXIST, or PH_EFENCED.
static int check_life(struct phi_store_redis *store, char *key, int64_t deadline)
{
    uint64_t latest;
    int result = claim(store, false, key, &latest, deadline);
    if (result == 0)
        return -EEXIST;
    if (result != -EEXIST)
        return result;
    return phi_fail(store->base.params->report, PH_EFENCED,
                    "a newer incarnation of rank %d writes to %s in the store at %s",
                    store->base.params->rank, key, store->server.uri.address);
}

// check_fence: whether the last id of the stream is of a later life of ours. The stream may be gone
// meanwhile, when its reader leaves.
static int check_fence(struct phi_store_redis *store, char *key, const redisReply *info,
                       int64_t deadline)
{
    struct phi_stream_id last;
    if (info->type == REDIS_REPLY_ERROR)
        return strstr(info->str, "no such key") != NULL
                   ? -EEXIST
                   : phi_redis_refused(&store->commands, "XINFO", info);
    if (phi_stream_last(&last, info) != 0)
        return phi_redis_nonsense(&store->commands, "XINFO");
    return last.major > store->base.params->incarnation ? check_life(store, key, deadline)
                                                        : -EEXIST;
}

// look finds out why an id was refused. 0: our message is there already. -EEXIST: something else is
// or was there. PH_EFENCED.
static int look(struct phi_store_redis *store, const struct addition *addition, int64_t deadline)
{
    const char *argv[3] = {"XINFO", "STREAM", addition->key};
    redisReply *there = NULL, *info = NULL;
    int result = xrange(store, addition->key, addition->id, addition->id);
    if (result == 0)
        result = queue(store, 3, argv);
    if (result == 0)
        result = answer_type(store, "XRANGE", REDIS_REPLY_ARRAY, deadline, &there);
    if (result == 0)
        result = answer(store, "XINFO", deadline, &info);
    end(store, result);
    if (result == 0 && phi_stream_find(there, addition->bytes, addition->size) == there->elements)
        result = check_fence(store, addition->key, info, deadline);
    if (there)
        freeReplyObject(there);
    if (info)
        freeReplyObject(info);
    return result;
}

static bool id_is_taken(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ERROR && strstr(reply->str, "equal or smaller");
}

static int judge_put(struct phi_store_redis *store, const struct addition *addition,
                     const redisReply *reply, int64_t deadline)
{
    if (id_is_taken(reply))
        return look(store, addition, deadline);
    if (reply->type == REDIS_REPLY_ERROR)
        return phi_redis_refused(&store->commands, "XADD", reply);
    if (reply->type == REDIS_REPLY_STRING && strcmp(reply->str, addition->id) == 0)
        return 0;
    return phi_redis_nonsense(&store->commands, "XADD");
}

// check_size asks the server for its limit where that may be less than the message. Where it may
// not ask, the server's refusal tells it.
static int check_size(struct phi_store_redis *store, int peer, size_t size, int64_t deadline)
{
    const char *argv[3] = {"CONFIG", "GET", "proto-max-bulk-len"};
    redisReply *reply;
    uint64_t most = UINT64_MAX;
    if (size <= LIMIT_LEAST)
        return 0;
    int result = connect_commands(store, deadline);
    if (result == 0)
        result = queue(store, 3, argv);
    if (result == 0)
        result = answer(store, "CONFIG", deadline, &reply);
    if (result)
        return result;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
        reply->element[1]->type == REDIS_REPLY_STRING)
        phi_decimal_parse(reply->element[1]->str, &most);
    freeReplyObject(reply);
    return size <= most ? 0
                        : phi_fail(store->base.params->report, -EMSGSIZE,
                                   "a message of %zu bytes to rank %d is over the limit of the "
                                   "store at %s, whose proto-max-bulk-len is %" PRIu64,
                                   size, peer, store->server.uri.address, most);
}

static int redis_put(struct phi_store *base, int peer, uint64_t number, const void *bytes,
                     size_t size, int64_t deadline)
{
    struct phi_store_redis *store = redis_of(base);
    char id[PHI_STREAM_ID_TEXT];
    phi_stream_id_print(id, (struct phi_stream_id){store->base.params->incarnation, number});
    char *key = phi_redis_pair_key(store, store->base.params->rank, peer);
    if (!key)
        return phi_fail(store->base.params->report, -ENOMEM, "no memory for a key of the store");
    struct addition addition = {.key = key, .id = id, .bytes = bytes, .size = size};
    redisReply *reply;
    store->written[peer] = true;
    int result = check_size(store, peer, size, deadline);
    if (result == 0)
        result = add_healing(store, &addition, deadline, &reply);
    if (result == 0) {
        result = judge_put(store, &addition, reply, deadline);
        freeReplyObject(reply);
    }
    free(key);
    return result;
}

// ---- the member record

// find_record looks for a record that an earlier announce may have left. 1: it is there. 0: it is
// not.
static int find_record(struct phi_store_redis *store, const struct addition *addition,
                       int64_t deadline)
{
    char id[PHI_STREAM_ID_TEXT];
    phi_stream_id_print(id, store->announced_id);
    bool known = store->announced_known;
    redisReply *reply;
    int result = connect_commands(store, deadline);
    if (result == 0)
        result = xrange(store, store->members, known ? id : "-", known ? id : "+");
    if (result == 0)
        result = answer_type(store, "XRANGE", REDIS_REPLY_ARRAY, deadline, &reply);
    if (result)
        return result;
    size_t i = phi_stream_find(reply, addition->bytes, addition->size);
    if (i < reply->elements)
        store->announced_known =
            phi_stream_id_parse(&store->announced_id, reply->element[i]->element[0]) == 0;
    result = i < reply->elements;
    freeReplyObject(reply);
    return result;
}

static int redis_announce(struct phi_store *base, const void *bytes, size_t size, int64_t deadline)
{
    struct phi_store_redis *store = redis_of(base);
    struct addition addition = {.key = store->members, .id = "*", .bytes = bytes, .size = size};
    int result = store->announced ? find_record(store, &addition, deadline) : 0;
    if (result)
        return result == 1 ? 0 : result;
    store->announced = true;
    store->announced_known = false;
    redisReply *reply;
    result = add_healing(store, &addition, deadline, &reply);
    if (result)
        return result;
    if (reply->type == REDIS_REPLY_ERROR)
        result = phi_redis_refused(&store->commands, "XADD", reply);
    else if (phi_stream_id_parse(&store->announced_id, reply) != 0)
        result = phi_redis_nonsense(&store->commands, "XADD");
    store->announced_known = result == 0;
    freeReplyObject(reply);
    // A store that forgot the record may have forgotten the number, too. The record that is entered
    // last expires last.
    if (result == 0)
        result = phi_redis_queue_claim(store, false, 0, NULL);
    return result ? result : end(store, skip(store, "EVAL", deadline));
}

static int redis_publish(struct phi_store *base, const void *bytes, size_t size, int64_t deadline)
{
    struct phi_store_redis *store = redis_of(base);
    struct addition addition = {.key = store->members, .id = "*", .bytes = bytes, .size = size};
    redisReply *reply;
    int result = add_healing(store, &addition, deadline, &reply);
    if (result)
        return result;
    if (reply->type == REDIS_REPLY_ERROR)
        result = phi_redis_refused(&store->commands, "XADD", reply);
    freeReplyObject(reply);
    return result;
}

// ---- refresh

// queue_refresh returns the number of answers to skip after the one to XRANGE.
static int queue_refresh(struct phi_store_redis *store)
{
    char id[PHI_STREAM_ID_TEXT];
    phi_stream_id_print(id, store->announced_id);
    int result = xrange(store, store->members, id, id);
    if (result == 0)
        result = queue_expire(store, store->members);
    int total = 1;
    for (int peer = 0; peer < store->base.params->ranks && result == 0; peer++) {
        if (!store->written[peer])
            continue;
        char *key = phi_redis_pair_key(store, store->base.params->rank, peer);
        result = key ? queue_expire(store, key) : -ENOMEM;
        total++;
        free(key);
    }
    if (result == 0)
        result = phi_redis_queue_claim(store, false, 0, NULL);
    int deletes = result ? 0 : phi_redis_queue_deletes(store);
    if (deletes < 0)
        result = deletes;
    return result ? result : 1 + total + deletes;
}

static int redis_refresh(struct phi_store *base, int64_t deadline)
{
    struct phi_store_redis *store = redis_of(base);
    redisReply *reply = NULL;
    int result = connect_commands(store, deadline);
    if (result)
        return result;
    int others = queue_refresh(store);
    result =
        others < 0 ? others : answer_type(store, "XRANGE", REDIS_REPLY_ARRAY, deadline, &reply);
    if (result == 0)
        result = skip_many(store, "EXPIRE", others, deadline);
    end(store, result);
    if (result == 0 && store->announced_known && reply->elements == 0)
        result = -ECONNRESET; // the store forgot our record, and then the rest
    if (reply)
        freeReplyObject(reply);
    return result;
}

// ---- open and close

static void redis_free(struct phi_store_redis *store)
{
    phi_redis_inbound_fini(store);
    phi_redis_connection_fini(&store->commands);
    phi_store_uri_fini(&store->server.uri);
    phi_trouble_fini(&store->server.trouble);
    free(store->prefix);
    free(store->members);
    free(store->lives);
    free(store->written);
    free(store);
}

// queue_leave deletes the mailboxes of this life, unless a later one has begun: then they belong to
// that.
static int queue_leave(struct phi_store_redis *store, const bool *done)
{
    int own = store->base.params->rank, ranks = store->base.params->ranks, count = 0;
    char **keys = calloc(2 * (size_t)ranks, sizeof(*keys));
    bool made = keys;
    for (int peer = 0; peer < ranks && made; peer++) {
        if (peer == own)
            continue;
        keys[count++] = phi_redis_pair_key(store, peer, own);
        made = keys[count - 1];
        if (made && done && done[peer] && store->written[peer]) {
            keys[count++] = phi_redis_pair_key(store, own, peer);
            made = keys[count - 1];
        }
    }
    int result = made ? phi_redis_queue_claim(store, false, count, keys) : -ENOMEM;
    for (int i = 0; i < count; i++)
        free(keys[i]);
    free(keys);
    return result;
}

static int queue_leave_members(struct phi_store_redis *store)
{
    char id[PHI_STREAM_ID_TEXT];
    phi_stream_id_print(id, store->announced_id);
    const char *argv[6] = {"EVAL", leave_script, "2", store->members, store->lives, id};
    return queue(store, 6, argv);
}

static int leave(struct phi_store_redis *store, const bool *done, int64_t deadline)
{
    int result = queue_leave(store, done);
    if (result == 0)
        result = queue_leave_members(store);
    return end(store, result ? result : skip_many(store, "EVAL", 2, deadline));
}

static void redis_close(struct phi_store *base, const bool *done, int64_t deadline)
{
    struct phi_store_redis *store = redis_of(base);
    // The reader is closed first: the following would only wake it.
    phi_redis_close(&store->inbound.connection, "");
    int result;
    do { // a connection that was lost before is noticed now; connect says when it is too late
        result = connect_commands(store, deadline);
        if (result == 0)
            result = leave(store, done, deadline);
    } while (result == -ECONNRESET);
    redis_free(store);
}

// refuse_unknown asks a server that does not know a command of streams what it is.
static int refuse_unknown(struct phi_store_redis *store, const char *command,
                          const redisReply *refusal, int64_t deadline)
{
    const char *argv[2] = {"INFO", "server"};
    redisReply *info;
    int result = queue(store, 2, argv);
    if (result == 0)
        result = answer(store, "INFO", deadline, &info);
    if (result)
        return result;
    bool sentinel =
        info->type == REDIS_REPLY_STRING && strstr(info->str, "redis_mode:sentinel") != NULL;
    freeReplyObject(info);
    if (!sentinel)
        return phi_redis_refused(&store->commands, command, refusal);
    return phi_fail(store->base.params->report, PH_ESTORE,
                    "the store at %s is a sentinel, which keeps no keys: name the server that it "
                    "watches (SENTINEL GET-MASTER-ADDR-BY-NAME says which)",
                    store->server.uri.address);
}

// check_server: an answer to XLEN shows that this is a Redis with streams, and that we may use it.
static int check_server(struct phi_store_redis *store, int64_t deadline)
{
    const char *argv[2] = {"XLEN", store->members};
    for (;;) {
        redisReply *reply;
        int result = connect_commands(store, deadline);
        if (result == 0)
            result = queue(store, 2, argv);
        if (result == 0)
            result = answer(store, "XLEN", deadline, &reply);
        if (result == -ECONNRESET)
            continue; // until connect says that it is too late
        if (result)
            return result;
        if (phi_redis_is_error(reply, "ERR unknown command"))
            result = refuse_unknown(store, "XLEN", reply, deadline);
        else if (reply->type == REDIS_REPLY_ERROR && !phi_redis_is_error(reply, "WRONGTYPE"))
            result = phi_redis_refused(&store->commands, "XLEN", reply);
        else if (reply->type != REDIS_REPLY_INTEGER && reply->type != REDIS_REPLY_ERROR)
            result = phi_redis_nonsense(&store->commands, "XLEN");
        freeReplyObject(reply);
        if (result != -ECONNRESET)
            return result;
    }
}

static int make_keys(struct phi_store_redis *store)
{
    const struct phi_mailbox_params *params = store->base.params;
    if (asprintf(&store->prefix, "ph:{%s}:%" PRIu64 ":", params->job, params->epoch) < 0)
        store->prefix = NULL;
    if (store->prefix && asprintf(&store->members, "%smembers", store->prefix) < 0)
        store->members = NULL;
    store->written = calloc((size_t)params->ranks, sizeof(*store->written));
    if (store->prefix && asprintf(&store->lives, "%slives", store->prefix) < 0)
        store->lives = NULL;
    if (store->members && store->lives && store->written)
        return 0;
    return phi_fail(params->report, -ENOMEM, "no memory for the keys of the store");
}

static int redis_open(const struct phi_mailbox_params *params, int64_t deadline,
                      struct phi_store **out)
{
    struct phi_store_redis *store = calloc(1, sizeof(*store));
    if (!store)
        return phi_fail(params->report, -ENOMEM, "no memory for the store");
    store->base = (struct phi_store_base){.ops = &phi_store_redis, .params = params};
    store->server.report = params->report;
    store->server.counters = params->counters;
    phi_trouble_init(&store->server.trouble);
    store->server.elements_max = ELEMENTS + ELEMENTS_OF_RANK * (size_t)params->ranks;
    phi_redis_connection_init(&store->commands, &store->server);
    int result = make_keys(store);
    int made = phi_redis_inbound_init(store); // always, so that redis_free may run
    if (result == 0)
        result = made;
    if (result == 0)
        result = phi_redis_read_uri(&store->server, params);
    if (result == 0)
        result = check_server(store, deadline);
    if (result == 0)
        result = phi_redis_inbound_start(store, deadline);
    if (result) {
        redis_free(store);
        return result;
    }
    *out = (struct phi_store *)store;
    return 0;
}

const struct phi_store_ops phi_store_redis = {
    .size = sizeof(struct phi_store_ops),
    .name = "redis",
    .open = redis_open,
    .claim = redis_claim,
    .announce = redis_announce,
    .publish = redis_publish,
    .put = redis_put,
    .take = phi_redis_take,
    .wake = phi_redis_wake,
    .interruptible = redis_interruptible,
    .doubt = redis_doubt,
    .trouble = redis_trouble,
    .local = redis_local,
    .consumed = phi_redis_consumed,
    .refresh = redis_refresh,
    .close = redis_close,
};
