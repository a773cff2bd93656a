// SPDX-License-Identifier: BSD-3-Clause
// The Redis backend, shared by its two halves: redis.c writes over one connection, redis_inbound.c
// reads over another.
//
// Keys: ph:{job}:epoch:members, and ph:{job}:epoch:A>B for each ordered pair, all streams;
// ph:{job}:epoch:lives, a hash of the number of each rank's latest life. {job} is the cluster's
// hash tag. Reads never destroy: a later pipeline of commands deletes by XDEL what was consumed.
#ifndef PHI_STORE_REDIS_STATE_H
#define PHI_STORE_REDIS_STATE_H

#include <pthread.h>

#include "store/backend.h"
#include "store/redis_connection.h"

struct phi_stream_id {
    uint64_t major, minor; // A>B: the sender's incarnation and the message's number
};

enum { PHI_STREAM_ID_TEXT = 44 }; // two decimal numbers, a hyphen and the end

const char *phi_decimal_parse(const char *text, uint64_t *value);           // what follows, or NULL
int phi_stream_id_parse(struct phi_stream_id *id, const redisReply *reply); // 0 or -EBADMSG
void phi_stream_id_print(char text[PHI_STREAM_ID_TEXT], struct phi_stream_id id);

// phi_stream_last reads the last id that a stream has had from XINFO's answer: 0 or -EBADMSG.
int phi_stream_last(struct phi_stream_id *id, const redisReply *info);

// phi_stream_find looks for an entry [id, [m, bytes]] with these bytes. It returns its place, or
// the number of entries.
size_t phi_stream_find(const redisReply *entries, const void *bytes, size_t size);

// The ids of one inbound stream that were consumed and are not deleted yet.
struct phi_consumed {
    struct phi_stream_id *ids;
    size_t count, capacity;
};

struct phi_redis_inbound {
    struct phi_redis_connection connection;
    struct phi_wake wake;
    bool standing; // an XREAD is under way
    int healed;    // answers to XREAD in a row that a key of the wrong type spoilt
    // Streams: [rank] is inbound from that rank; our own place stands for the members.
    char **keys;
    struct phi_stream_id *last; // read up to here, since the connection was made
    const char **argv;          // room for an XREAD
    char (*positions)[PHI_STREAM_ID_TEXT];
    redisReply *reply; // being handed out, from
    size_t stream, entry;
    // `lock` guards what follows: the receiver adds, the writer deletes.
    pthread_mutex_t lock;
    struct phi_consumed *consumed;
    size_t consumed_count; // of all ranks together
};

struct phi_store_redis {
    struct phi_store_base base;
    struct phi_redis_server server;
    struct phi_redis_connection commands;
    struct phi_redis_inbound inbound;
    bool interruptible;   // a wake ends commands
    char *prefix;         // "ph:{job}:epoch:"
    char *members;        // key
    char *lives;          // key
    bool announced;       // an XADD of the record was tried
    bool announced_known; // and this is its id
    struct phi_stream_id announced_id;
    bool *written; // [rank]: the outbound stream was written to
};

// phi_redis_pair_key makes "prefixA>B" (malloc or NULL).
char *phi_redis_pair_key(const struct phi_store_redis *store, int from, int to);

// phi_redis_queue_claim enters the number of this life as that of the latest one of its rank, and
// deletes the keys. Where a later life is entered, nothing changes. anew: so it is where the same
// number is entered, which is another life's then.
// phi_redis_read_claim takes the answer, as claim of the backend.
int phi_redis_queue_claim(struct phi_store_redis *store, bool anew, int count, char *const *keys);
int phi_redis_read_claim(struct phi_store_redis *store, const redisReply *reply, uint64_t *latest);

int phi_redis_inbound_init(struct phi_store_redis *store);
void phi_redis_inbound_fini(struct phi_store_redis *store);

// phi_redis_inbound_start sends the first XREAD, so that we notice a server which forgets
// everything from now on.
int phi_redis_inbound_start(struct phi_store_redis *store, int64_t deadline);

int phi_redis_take(struct phi_store *base, const bool *wanted, int64_t deadline,
                   struct phi_delivery *delivery);
const struct phi_wake *phi_redis_wake(const struct phi_store *store);
void phi_redis_consumed(struct phi_store *store, int rank, uint64_t incarnation, uint64_t number);

// phi_redis_queue_deletes queues the deletion of what was consumed. It returns how many answers to
// skip, or -ENOMEM. For the thread that writes.
int phi_redis_queue_deletes(struct phi_store_redis *store);

// phi_redis_heal is the script that deletes KEYS that are no streams: none of our ranks made them.
extern const char phi_redis_heal[];

#endif
