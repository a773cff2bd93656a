// SPDX-License-Identifier: BSD-3-Clause
#include "store/redis_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum {
    XREAD_COUNT = 16, // messages of one stream in one answer
    XREAD_WORDS = 6,  // XREAD BLOCK 0 COUNT n STREAMS
    HEAL_MOST = 3,
    XDEL_MOST = 128, // ids in one XDEL
    XDEL_WORDS = 2,  // XDEL key
};

const char phi_redis_heal[] = "for _, k in ipairs(KEYS) do local t = redis.call('TYPE', k).ok "
                              "if t ~= 'stream' and t ~= 'none' then redis.call('DEL', k) end end";

// ---- life

int phi_redis_inbound_init(struct phi_store_redis *store)
{
    struct phi_redis_inbound *inbound = &store->inbound;
    int rank = store->base.params->rank, ranks = store->base.params->ranks;
    size_t n = (size_t)ranks;
    phi_redis_connection_init(&inbound->connection, &store->server);
    pthread_mutex_init(&inbound->lock, NULL);
    inbound->wake = (struct phi_wake){-1, -1};
    int result = phi_wake_open(&inbound->wake);
    if (result)
        return phi_fail(store->base.params->report, result, "no sockets to be woken by: %s",
                        ph_strerror(result));
    inbound->keys = calloc(n, sizeof(*inbound->keys));
    inbound->last = calloc(n, sizeof(*inbound->last));
    inbound->argv = calloc(XREAD_WORDS + 2 * n, sizeof(*inbound->argv));
    inbound->positions = calloc(n, sizeof(*inbound->positions));
    inbound->consumed = calloc(n, sizeof(*inbound->consumed));
    bool made = store->members && inbound->keys && inbound->last && inbound->argv &&
                inbound->positions && inbound->consumed;
    for (int from = 0; made && from < ranks; from++) {
        inbound->keys[from] =
            from == rank ? strdup(store->members) : phi_redis_pair_key(store, from, rank);
        made = inbound->keys[from];
    }
    if (made)
        return 0;
    return phi_fail(store->base.params->report, -ENOMEM, "no memory for %d mailboxes", ranks);
}

void phi_redis_inbound_fini(struct phi_store_redis *store)
{
    struct phi_redis_inbound *inbound = &store->inbound;
    for (int rank = 0; rank < store->base.params->ranks; rank++) {
        if (inbound->keys)
            free(inbound->keys[rank]);
        if (inbound->consumed)
            free(inbound->consumed[rank].ids);
    }
    free(inbound->keys);
    free(inbound->last);
    free(inbound->argv);
    free(inbound->positions);
    free(inbound->consumed);
    if (inbound->reply)
        freeReplyObject(inbound->reply);
    phi_redis_connection_fini(&inbound->connection);
    phi_wake_close(&inbound->wake);
    pthread_mutex_destroy(&inbound->lock);
}

// ---- what was consumed, until it is deleted

static bool reserve(struct phi_consumed *consumed)
{
    if (consumed->count < consumed->capacity)
        return true;
    size_t capacity = consumed->capacity ? 2 * consumed->capacity : 16;
    void *ids = realloc(consumed->ids, capacity * sizeof(*consumed->ids));
    if (!ids)
        return false;
    consumed->ids = ids;
    consumed->capacity = capacity;
    return true;
}

void phi_redis_consumed(struct phi_store *store, int rank, uint64_t incarnation, uint64_t number)
{
    struct phi_redis_inbound *inbound = &((struct phi_store_redis *)store)->inbound;
    struct phi_consumed *consumed = &inbound->consumed[rank];
    pthread_mutex_lock(&inbound->lock);
    // Without memory for its id an entry stays in the store until close or until it expires.
    if (reserve(consumed)) {
        consumed->ids[consumed->count++] = (struct phi_stream_id){incarnation, number};
        inbound->consumed_count++;
    }
    pthread_mutex_unlock(&inbound->lock);
}

// queue_xdel queues one XDEL of the last ids that were consumed from a rank, and forgets them.
// Where it fails, they come again after the reconnect, or expire.
static int queue_xdel(struct phi_store_redis *store, int rank)
{
    struct phi_consumed *consumed = &store->inbound.consumed[rank];
    char ids[XDEL_MOST][PHI_STREAM_ID_TEXT];
    const char *argv[XDEL_WORDS + XDEL_MOST] = {"XDEL", store->inbound.keys[rank]};
    int count = 0;
    while (consumed->count > 0 && count < XDEL_MOST) {
        phi_stream_id_print(ids[count], consumed->ids[--consumed->count]);
        argv[XDEL_WORDS + count] = ids[count];
        count++;
    }
    store->inbound.consumed_count -= (size_t)count;
    return phi_redis_queue(&store->commands, XDEL_WORDS + count, argv, NULL);
}

int phi_redis_queue_deletes(struct phi_store_redis *store)
{
    struct phi_redis_inbound *inbound = &store->inbound;
    int total = 0;
    pthread_mutex_lock(&inbound->lock);
    for (int rank = 0; inbound->consumed_count > 0 && total >= 0; rank++)
        while (inbound->consumed[rank].count > 0 && total >= 0)
            total = queue_xdel(store, rank) == 0 ? total + 1 : -ENOMEM;
    pthread_mutex_unlock(&inbound->lock);
    return total;
}

// ---- XREAD

static void forget_positions(struct phi_store_redis *store)
{
    // A restarted server counts from the beginning, and so do we. What comes twice is dropped by
    // its sequence.
    memset(store->inbound.last, 0,
           (size_t)store->base.params->ranks * sizeof(*store->inbound.last));
    store->inbound.standing = false;
}

static int queue_xread(struct phi_store_redis *store)
{
    struct phi_redis_inbound *inbound = &store->inbound;
    int ranks = store->base.params->ranks;
    char count[12];
    snprintf(count, sizeof(count), "%d", XREAD_COUNT);
    const char *words[XREAD_WORDS] = {"XREAD", "BLOCK", "0", "COUNT", count, "STREAMS"};
    memcpy(inbound->argv, words, sizeof(words));
    for (int rank = 0; rank < ranks; rank++) {
        phi_stream_id_print(inbound->positions[rank], inbound->last[rank]);
        inbound->argv[XREAD_WORDS + rank] = inbound->keys[rank];
        inbound->argv[XREAD_WORDS + ranks + rank] = inbound->positions[rank];
    }
    int result =
        phi_redis_queue(&inbound->connection, XREAD_WORDS + 2 * ranks, inbound->argv, NULL);
    inbound->standing = result == 0;
    return result;
}

// connect_inbound: 1 where the connection is new. A look at messages that are there already leaves
// no time to connect in, and reports nothing. A caller that only ever looks gets a connection, too,
// step by step.
static int connect_inbound(struct phi_store_redis *store, int64_t deadline)
{
    struct phi_redis_inbound *inbound = &store->inbound;
    bool look = !inbound->connection.established && phi_now() >= deadline;
    int made = look ? phi_redis_try(&inbound->connection)
                    : phi_redis_connect(&inbound->connection, inbound->wake.listen, deadline);
    if (look && made == 0)
        return -ETIMEDOUT;
    if (made < 0)
        return made;
    if (made)
        forget_positions(store);
    int result = inbound->standing ? 0 : queue_xread(store);
    return result ? result : made;
}

static bool is_array(const redisReply *reply, size_t elements)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == elements;
}

// find_stream returns the rank whose stream has this key, or -1.
static int find_stream(struct phi_store_redis *store, const redisReply *name)
{
    char **keys = store->inbound.keys;
    int own = store->base.params->rank;
    size_t prefix = strlen(store->prefix);
    if (name->type != REDIS_REPLY_STRING)
        return -1;
    if (strcmp(keys[own], name->str) == 0)
        return own;
    if (strncmp(store->prefix, name->str, prefix) != 0)
        return -1;
    long rank = strtol(name->str + prefix, NULL, 10);
    if (rank < 0 || rank >= store->base.params->ranks || strcmp(keys[rank], name->str) != 0)
        return -1;
    return (int)rank;
}

// check_stream looks at [key, [[id, fields]...]], and moves our place in that stream.
static int check_stream(struct phi_store_redis *store, const redisReply *stream)
{
    if (!is_array(stream, 2) || stream->element[1]->type != REDIS_REPLY_ARRAY)
        return -EBADMSG;
    int rank = find_stream(store, stream->element[0]);
    if (rank < 0)
        return -EBADMSG;
    const redisReply *entries = stream->element[1];
    for (size_t i = 0; i < entries->elements; i++)
        if (!is_array(entries->element[i], 2) ||
            phi_stream_id_parse(&store->inbound.last[rank], entries->element[i]->element[0]) != 0)
            return -EBADMSG;
    return 0;
}

static int check_reply(struct phi_store_redis *store, const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0)
        return -EBADMSG;
    for (size_t i = 0; i < reply->elements; i++)
        if (check_stream(store, reply->element[i]) != 0)
            return -EBADMSG;
    return 0;
}

// heal: a key that is no stream spoils the whole XREAD. The script runs on this connection before
// the next one.
static int heal(struct phi_store_redis *store, int64_t deadline)
{
    struct phi_redis_inbound *inbound = &store->inbound;
    int ranks = store->base.params->ranks;
    char count[12];
    snprintf(count, sizeof(count), "%d", ranks);
    const char **argv = inbound->argv;
    argv[0] = "EVAL", argv[1] = phi_redis_heal, argv[2] = count;
    memcpy(argv + 3, inbound->keys, (size_t)ranks * sizeof(*argv));
    phi_log(store->base.params->report, PH_LOG_WARN,
            "the store at %s: a key under %s is no stream: deleted", store->server.uri.address,
            store->prefix);
    redisReply *reply;
    int result = phi_redis_queue(&inbound->connection, 3 + ranks, argv, NULL);
    if (result == 0)
        result = phi_redis_answer(&inbound->connection, -1, deadline, &reply);
    if (result == -ETIMEDOUT)
        phi_redis_close(&inbound->connection, "no answer to EVAL");
    if (result)
        return result;
    if (reply->type == REDIS_REPLY_ERROR)
        result = phi_redis_refused(&inbound->connection, "EVAL", reply);
    freeReplyObject(reply);
    return result;
}

static int error_reply(struct phi_store_redis *store, const redisReply *reply, int64_t deadline)
{
    struct phi_redis_inbound *inbound = &store->inbound;
    if (phi_redis_is_error(reply, "WRONGTYPE") && inbound->healed++ < HEAL_MOST)
        return heal(store, deadline);
    int result = phi_redis_refused(&inbound->connection, "XREAD", reply);
    phi_redis_close(&inbound->connection, "XREAD was refused");
    return result;
}

// accept_reply keeps an answer with entries, or handles another one. 0, or as take.
static int accept_reply(struct phi_store_redis *store, redisReply *reply, int64_t deadline)
{
    struct phi_redis_inbound *inbound = &store->inbound;
    int result = 0;
    inbound->standing = false;
    if (reply->type == REDIS_REPLY_ERROR)
        result = error_reply(store, reply, deadline);
    else if (reply->type == REDIS_REPLY_NIL) // somebody unblocked us: begin anew, after a pause
        phi_redis_close(&inbound->connection, "XREAD was unblocked");
    else if (check_reply(store, reply) != 0)
        result = phi_redis_nonsense(&inbound->connection, "XREAD");
    else
        inbound->reply = reply;
    if (inbound->reply != reply)
        freeReplyObject(reply);
    else
        inbound->healed = 0;
    inbound->stream = inbound->entry = 0;
    return result;
}

int phi_redis_inbound_start(struct phi_store_redis *store, int64_t deadline)
{
    int result = connect_inbound(store, deadline);
    if (result < 0)
        return result;
    // Sends the XREAD; nothing needs to be there yet.
    redisReply *reply;
    result = phi_redis_answer(&store->inbound.connection, -1, 0, &reply);
    if (result == 0)
        result = accept_reply(store, reply, deadline);
    return result == -ETIMEDOUT || result == -ECONNRESET ? 0 : result;
}

// hand_out moves one entry into delivery. True, or false where it is none of ours.
static bool hand_out(struct phi_store_redis *store, const redisReply *stream, redisReply *entry,
                     struct phi_delivery *delivery)
{
    int rank = find_stream(store, stream->element[0]);
    bool member = rank == store->base.params->rank;
    struct phi_stream_id id = {0};
    phi_stream_id_parse(&id, entry->element[0]); // checked before
    redisReply *fields = entry->element[1];
    if (!is_array(fields, 2) || fields->element[0]->type != REDIS_REPLY_STRING ||
        strcmp(fields->element[0]->str, "m") != 0 ||
        fields->element[1]->type != REDIS_REPLY_STRING) {
        phi_log(store->base.params->report, PH_LOG_WARN,
                "the store at %s: dropped an entry of %s that is none of ours",
                store->server.uri.address, store->inbound.keys[rank]);
        if (!member)
            phi_redis_consumed((struct phi_store *)store, rank, id.major, id.minor);
        return false;
    }
    redisReply *value = fields->element[1];
    *delivery = (struct phi_delivery){
        .member = member,
        .rank = member ? -1 : rank,
        .incarnation = member ? 0 : id.major,
        .number = id.minor,
        .bytes = (uint8_t *)value->str, // from malloc: hiredis has no other allocator set
        .size = (size_t)value->len,
    };
    value->str = NULL;
    value->len = 0;
    return true;
}

// next_entry: true with a delivery. False where the reply is used up.
static bool next_entry(struct phi_store_redis *store, struct phi_delivery *delivery)
{
    struct phi_redis_inbound *inbound = &store->inbound;
    while (inbound->reply && inbound->stream < inbound->reply->elements) {
        redisReply *stream = inbound->reply->element[inbound->stream];
        redisReply *entries = stream->element[1];
        if (inbound->entry == entries->elements) {
            inbound->stream++;
            inbound->entry = 0;
        } else if (hand_out(store, stream, entries->element[inbound->entry++], delivery)) {
            return true;
        }
    }
    if (inbound->reply)
        freeReplyObject(inbound->reply);
    inbound->reply = NULL;
    return false;
}

static int drain_wake(struct phi_redis_inbound *inbound)
{
    phi_wake_take(&inbound->wake); // however many have come: it is one -EINTR
    return -EINTR;
}

int phi_redis_take(struct phi_store *base, const bool *wanted, int64_t deadline,
                   struct phi_delivery *delivery)
{
    struct phi_store_redis *store = (struct phi_store_redis *)base;
    struct phi_redis_inbound *inbound = &store->inbound;
    (void)wanted; // one XREAD waits for all
    while (!next_entry(store, delivery)) {
        int result = connect_inbound(store, deadline);
        // Not earlier: messages that are put again must not reach a server that is about to go.
        if (result == 1)
            return -ECONNRESET;
        redisReply *reply;
        if (result == 0)
            result = phi_redis_answer(&inbound->connection, inbound->wake.listen, deadline, &reply);
        if (result == 0)
            result = accept_reply(store, reply, deadline);
        if (result == -EINTR)
            return drain_wake(inbound);
        if (result && result != -ECONNRESET)
            return result;
    }
    return 0;
}

const struct phi_wake *phi_redis_wake(const struct phi_store *store)
{
    return &((const struct phi_store_redis *)store)->inbound.wake;
}
