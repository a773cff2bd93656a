// SPDX-License-Identifier: BSD-3-Clause
// The store behind set, get and remove: a user's, or the library's own in a directory (file.c).
// keys.c has its keys.
#include "store/backend.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/envelope.h"
#include "store/file.h"
#include "store/keys.h"
#include "store/trouble.h"

enum {
    SLICE_ONE = 100,  // ms in one get where one rank is waited for: how long a wake may take
    SLICE_MANY = 20,  // where several are
    RECORDS_MS = 500, // between looks for later lives and expulsions, where something is waited for
    SET_TRIES = 4,    // of announcing: lives of a rank that begin together set one key
    REMOVE_MS = 1000, // in which what a life that is over has left is removed
    DAY_MS = 86400000,
};

struct peer {
    // the receiver's
    uint64_t taken; // number of the last message
    bool expelled;  // that life was, and the receiver has been told
    bool again;     // look whether there is a later life, or an expulsion
    // The receiver writes it inside the store's lock and reads it anywhere. Other threads read it
    // inside the lock.
    uint64_t incarnation; // 0: its member record has not come
    // inside the store's lock
    uint64_t consumed; // messages of that life
    // the sender's, inside the mailbox's gate
    uint64_t removed;    // of the consumed ones
    uint64_t removed_of; // life that those are of
    uint64_t sent;       // messages to the life that is
    uint64_t addressed;
};

struct phi_store_callbacks {
    struct phi_store_base base;
    struct phi_wake wake;
    atomic_bool announced;
    bool anew; // the next take says that the store may have lost something
    struct phi_trouble trouble;
    int turn;           // rank that was looked at last
    int64_t records_at; // when to look for later lives and expulsions of all again
    pthread_mutex_t lock;
    struct peer peers[];
};

static struct phi_store_callbacks *callbacks_of(struct phi_store *store)
{
    return (struct phi_store_callbacks *)store;
}

// ---- keys and calls

static uint64_t own_life(const struct phi_store_callbacks *store)
{
    return store->base.params->incarnation;
}

static void inbound_key(const struct phi_store_callbacks *store, int from, uint64_t incarnation,
                        uint64_t number, char key[PHI_KEY_SIZE])
{
    const struct phi_mailbox_params *params = store->base.params;
    const struct phi_key_pair pair = {from, params->rank, incarnation, params->incarnation};
    phi_key_message(key, params, &pair, number);
}

static void outbound_key(const struct phi_store_callbacks *store, int to, uint64_t number,
                         char key[PHI_KEY_SIZE])
{
    const struct phi_mailbox_params *params = store->base.params;
    const struct phi_key_pair pair = {params->rank, to, params->incarnation,
                                      store->peers[to].addressed};
    phi_key_message(key, params, &pair, number);
}

static int64_t remaining(int64_t deadline)
{
    int ms = phi_remaining_ms(deadline);
    return ms < 0 ? DAY_MS : ms;
}

static int failed(struct phi_store_callbacks *store, const char *call, const char *key, int result)
{
    const struct phi_mailbox_params *params = store->base.params;
    const char *why = params->file ? phi_file_store_why(params->file, result) : ph_strerror(result);
    phi_trouble_set(&store->trouble, "the store's %s of %s: %s", call, key, why);
    if (result == -ETIMEDOUT)
        return phi_fail(params->report, -ETIMEDOUT, "the store did not %s %s before the deadline",
                        call, key);
    // A lack of this process is no fault of the store.
    bool lack = params->file && (result == -EMFILE || result == -ENFILE || result == -ENOMEM);
    return phi_fail(params->report, lack ? result : PH_ESTORE, "the store's %s of %s failed: %s",
                    call, key, why);
}

// try_set: 0, or what the callback returned. It reports nothing.
static int try_set(struct phi_store_callbacks *store, const char *key, const void *bytes,
                   size_t size, int64_t deadline)
{
    const struct ph_store_callbacks *callbacks = store->base.params->callbacks;
    phi_count(store->base.params->counters, store_commands, 1);
    int result = callbacks->set(callbacks->opaque, key, bytes, size, remaining(deadline));
    if (result == 0)
        phi_trouble_clear(&store->trouble);
    return result;
}

// remove_key: a key that stays costs memory, no more, so a failure is no failure of the call.
// false: the key was not there, or stays.
static bool remove_key(struct phi_store_callbacks *store, const char *key, int64_t deadline)
{
    const struct ph_store_callbacks *callbacks = store->base.params->callbacks;
    phi_count(store->base.params->counters, store_commands, 1);
    int result = callbacks->remove(callbacks->opaque, key, remaining(deadline));
    if (result && result != -ENOENT)
        phi_log(store->base.params->report, PH_LOG_WARN, "the store's remove of %s failed: %s", key,
                ph_strerror(result));
    return result == 0;
}

// look_up: 0, -ETIMEDOUT where the key is not there, or what the callback returned.
static int look_up(struct phi_store_callbacks *store, const char *key, int64_t ms,
                   struct phi_delivery *delivery)
{
    const struct ph_store_callbacks *callbacks = store->base.params->callbacks;
    void *value = NULL;
    size_t size = 0;
    phi_count(store->base.params->counters, store_commands, 1);
    int result = callbacks->get(callbacks->opaque, key, &value, &size, ms);
    if (result)
        return result == -ENOENT ? -ETIMEDOUT : result;
    phi_trouble_clear(&store->trouble);
    delivery->bytes = value;
    delivery->size = size;
    return 0;
}

// get: 0, -ETIMEDOUT where the key is not there, or an error.
static int get(struct phi_store_callbacks *store, const char *key, int64_t ms,
               struct phi_delivery *delivery)
{
    int result = look_up(store, key, ms, delivery);
    return result && result != -ETIMEDOUT ? failed(store, "get", key, result) : result;
}

// ---- sending

static void remove_consumed(struct phi_store_callbacks *store, int rank, int64_t deadline)
{
    struct peer *peer = &store->peers[rank];
    char key[PHI_KEY_SIZE];
    pthread_mutex_lock(&store->lock);
    const uint64_t incarnation = peer->incarnation, consumed = peer->consumed;
    pthread_mutex_unlock(&store->lock);
    if (peer->removed_of != incarnation) {
        peer->removed_of = incarnation;
        peer->removed = 0;
    }
    while (peer->removed < consumed && phi_now() < deadline) {
        inbound_key(store, rank, incarnation, ++peer->removed, key);
        remove_key(store, key, deadline);
    }
}

// remove_until is the deadline for what is removed by the way: a part of the time that the caller
// has left.
static int64_t remove_until(int64_t deadline)
{
    const int64_t most = phi_deadline(REMOVE_MS);
    return most < deadline ? most : deadline;
}

// remove_outbound goes from the newest message down to those that the receiver has removed.
static void remove_outbound(struct phi_store_callbacks *store, int peer, int64_t deadline)
{
    char key[PHI_KEY_SIZE];
    for (uint64_t number = store->peers[peer].sent; number > 0 && phi_now() < deadline; number--) {
        outbound_key(store, peer, number, key);
        if (!remove_key(store, key, deadline))
            break;
    }
}

static void remove_all_consumed(struct phi_store_callbacks *store, int64_t deadline)
{
    for (int rank = 0; rank < store->base.params->ranks; rank++)
        remove_consumed(store, rank, deadline);
}

// look_at_envelope: 0 or an error. The envelope is all zero where there is none that can be read.
static int look_at_envelope(struct phi_store_callbacks *store, const char *key,
                            struct phi_envelope *envelope)
{
    struct phi_delivery there = {0};
    int result = get(store, key, 0, &there);
    if (result || !there.bytes || phi_envelope_decode(envelope, there.bytes, there.size) != 0)
        *envelope = (struct phi_envelope){0};
    free(there.bytes);
    return result == -ETIMEDOUT ? 0 : result;
}

// claim: a rank has one record, which its next life replaces.
static int callbacks_claim(struct phi_store *base, uint64_t *latest, int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[PHI_KEY_SIZE];
    struct phi_envelope record;
    (void)deadline; // a look does not wait
    phi_key_member(key, store->base.params, store->base.params->rank);
    int result = look_at_envelope(store, key, &record);
    if (result || record.source_incarnation < own_life(store))
        return result;
    *latest = record.source_incarnation;
    return -EEXIST;
}

// is_stored: whether a key has the value that is about to be set. A set that failed may have stored
// a message that was withdrawn then. It stays where the store refuses another value, and counts.
static bool is_stored(struct phi_store_callbacks *store, const char *key,
                      const struct phi_envelope *message)
{
    struct phi_envelope there;
    return look_at_envelope(store, key, &there) == 0 && there.sequence == message->sequence &&
           there.source_incarnation == message->source_incarnation &&
           there.destination_incarnation == message->destination_incarnation;
}

// whose_record: whose the record of this rank is, or an error. It may be gone: a former life that
// began together with this one, or was just leaving, may have removed it, with a look at the key
// from before this life.
enum { NOBODYS, FORMER, OWN };
static int whose_record(struct phi_store_callbacks *store, const char *key)
{
    struct phi_envelope record;
    int result = look_at_envelope(store, key, &record);
    if (result || record.source_incarnation <= own_life(store))
        return result                                         ? result
               : record.source_incarnation == 0               ? NOBODYS
               : record.source_incarnation == own_life(store) ? OWN
                                                              : FORMER;
    return phi_fail(store->base.params->report, PH_EFENCED,
                    "a newer incarnation of rank %d has joined the job", store->base.params->rank);
}

static int callbacks_announce(struct phi_store *base, const void *bytes, size_t size,
                              int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[PHI_KEY_SIZE];
    phi_key_member(key, store->base.params, store->base.params->rank);
    int result = -EEXIST;
    for (int tries = 0; tries < SET_TRIES && result == -EEXIST; tries++) {
        int whose = whose_record(store, key);
        if (whose < 0)
            return whose;
        if (whose == FORMER || (whose == NOBODYS && tries > 0)) // one that nobody can read
            remove_key(store, key, deadline);                   // a key is set once
        result = whose == OWN ? 0 : try_set(store, key, bytes, size, deadline);
    }
    if (result)
        return failed(store, "set", key, result);
    atomic_store(&store->announced, true);
    return 0;
}

static int callbacks_refresh(struct phi_store *base, int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[PHI_KEY_SIZE];
    remove_all_consumed(store, deadline);
    phi_key_member(key, store->base.params, store->base.params->rank);
    int whose = atomic_load(&store->announced) ? whose_record(store, key) : OWN;
    return whose == OWN ? 0 : whose < 0 ? whose : -ECONNRESET;
}

// Publishes records of expulsions only: a rank's own record has one key. Several ranks may expel
// one at the same time; they set the same value.
static int callbacks_publish(struct phi_store *base, const void *bytes, size_t size,
                             int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[PHI_KEY_SIZE];
    struct phi_envelope envelope;
    int result = phi_envelope_decode(&envelope, bytes, size); // our own
    if (result)
        return result;
    phi_key_expelled(key, store->base.params, (int)envelope.source,
                     envelope.source_incarnation - 1);
    if (is_stored(store, key, &envelope))
        return 0;
    result = try_set(store, key, bytes, size, deadline);
    return result ? failed(store, "set", key, result) : 0;
}

// address turns to another life of a peer. Messages that the former life has not taken are for
// nobody.
static void address(struct phi_store_callbacks *store, int rank, uint64_t incarnation,
                    int64_t deadline)
{
    struct peer *peer = &store->peers[rank];
    if (peer->addressed == incarnation)
        return;
    remove_outbound(store, rank, remove_until(deadline));
    peer->addressed = incarnation;
    peer->sent = 0;
}

static int callbacks_put(struct phi_store *base, int peer, uint64_t number, const void *bytes,
                         size_t size, int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[PHI_KEY_SIZE];
    struct phi_envelope envelope;
    // Keys count sequences, which have no gaps. Where a set failed, an empty message takes its key.
    (void)number;
    int result = phi_envelope_decode(&envelope, bytes, size); // our own
    if (result)
        return result;
    const uint64_t place = envelope.sequence;
    address(store, peer, envelope.destination_incarnation, deadline);
    outbound_key(store, peer, place, key);
    // This is put again: only what was lost is set again.
    if (place <= store->peers[peer].sent && is_stored(store, key, &envelope))
        return 0;
    result = try_set(store, key, bytes, size, deadline);
    if (result && !(result == -EEXIST && is_stored(store, key, &envelope)))
        return failed(store, "set", key, result);
    if (place > store->peers[peer].sent)
        store->peers[peer].sent = place;
    remove_all_consumed(store, deadline);
    return 0;
}

// ---- receiving

// check_got: a value that is no envelope of ours is an error, not a delivery. The key is looked at
// again, as the store may have been ill.
static int check_got(struct phi_store_callbacks *store, const char *key, struct phi_delivery *got,
                     struct phi_envelope *envelope)
{
    int result = got->bytes ? phi_envelope_decode(envelope, got->bytes, got->size) : -EBADMSG;
    if (result == 0)
        return 0;
    phi_trouble_set(&store->trouble, "the store's get of %s: not what was set", key);
    free(got->bytes);
    got->bytes = NULL;
    return phi_fail(store->base.params->report, PH_ESTORE,
                    "the store's get of %s returned %zu bytes that are %s", key, got->size,
                    result == -EPROTONOSUPPORT ? "of another version" : "none of ours");
}

// remove_life removes the messages to this rank of a life that is over: from those that were taken
// down to those that are removed already, and then up.
static void remove_life(struct phi_store_callbacks *store, int rank, uint64_t incarnation,
                        uint64_t taken, int64_t deadline)
{
    struct phi_delivery left = {0};
    char key[PHI_KEY_SIZE];
    for (uint64_t number = taken; number > 0 && phi_now() < deadline; number--) {
        inbound_key(store, rank, incarnation, number, key);
        if (!remove_key(store, key, deadline))
            break;
    }
    for (uint64_t number = taken + 1; phi_now() < deadline; number++) {
        inbound_key(store, rank, incarnation, number, key);
        if (look_up(store, key, 0, &left))
            break;
        free(left.bytes);
        remove_key(store, key, deadline);
    }
}

// begin_life: from now on we look for the messages of this life.
static void begin_life(struct phi_store_callbacks *store, int rank, uint64_t incarnation,
                       int64_t deadline)
{
    struct peer *peer = &store->peers[rank];
    const uint64_t former = peer->incarnation, taken = peer->taken;
    pthread_mutex_lock(&store->lock);
    peer->incarnation = incarnation;
    peer->consumed = 0;
    pthread_mutex_unlock(&store->lock);
    peer->taken = 0;
    peer->expelled = false;
    peer->again = true; // it may be of a life that was expelled
    if (former)
        remove_life(store, rank, former, taken, remove_until(deadline));
}

// take_record takes the member record of a rank, or of this one, if its life is later than the
// known one. 0, -ETIMEDOUT,
//   ENOENT where this rank's record is of a former life, or an error.
static int take_record(struct phi_store_callbacks *store, const char *key, struct phi_delivery *got,
                       int64_t deadline, struct phi_delivery *delivery)
{
    const bool own = got->rank == store->base.params->rank;
    const uint64_t known = own ? own_life(store) : store->peers[got->rank].incarnation;
    struct phi_envelope envelope;
    int result = check_got(store, key, got, &envelope);
    if (result)
        return result;
    if (envelope.source_incarnation <= known) {
        free(got->bytes);
        return own && envelope.source_incarnation < known ? -ENOENT : -ETIMEDOUT;
    }
    if (!own)
        begin_life(store, got->rank, envelope.source_incarnation, deadline);
    *delivery = *got;
    return 0;
}

// look_at waits for the next message of a rank. 0, -ETIMEDOUT or an error.
static int look_at(struct phi_store_callbacks *store, int rank, int64_t ms,
                   struct phi_delivery *delivery)
{
    struct peer *peer = &store->peers[rank];
    struct phi_delivery got = {
        .rank = rank, .incarnation = peer->incarnation, .member = peer->incarnation == 0};
    struct phi_envelope envelope;
    char key[PHI_KEY_SIZE];
    got.number = got.member ? 0 : peer->taken + 1;
    if (got.member)
        phi_key_member(key, store->base.params, rank);
    else
        inbound_key(store, rank, got.incarnation, got.number, key);
    int result = get(store, key, ms, &got);
    if (result == 0 && got.member) // of its first life: there is nothing to be removed
        return take_record(store, key, &got, 0, delivery);
    if (result == 0)
        result = check_got(store, key, &got, &envelope);
    if (result)
        return result;
    peer->taken++;
    *delivery = got;
    return 0;
}

// look_for_expulsion looks whether the present life of a rank, or of this one, was expelled. 0,
// -ETIMEDOUT or an error.
static int look_for_expulsion(struct phi_store_callbacks *store, int rank,
                              struct phi_delivery *delivery)
{
    struct peer *peer = &store->peers[rank];
    uint64_t incarnation = rank == store->base.params->rank ? own_life(store) : peer->incarnation;
    struct phi_delivery got = {.rank = rank, .member = true};
    struct phi_envelope envelope;
    char key[PHI_KEY_SIZE];
    if (peer->expelled)
        return -ETIMEDOUT;
    phi_key_expelled(key, store->base.params, rank, incarnation);
    if (look_up(store, key, 0, &got))
        return -ETIMEDOUT;
    int result = check_got(store, key, &got, &envelope);
    if (result)
        return result;
    peer->expelled = true;
    *delivery = got;
    return 0;
}

// look_again: whether a rank with a known life, or this one, has a later life, or was expelled. A
// store that fails here fails also for the message that is awaited, and that error is reported.
// -ECONNRESET: this life's own record is gone.
static int look_again(struct phi_store_callbacks *store, int rank, int64_t deadline,
                      struct phi_delivery *delivery)
{
    struct phi_delivery got = {.rank = rank, .member = true};
    char key[PHI_KEY_SIZE];
    const bool own = rank == store->base.params->rank;
    if (!own && store->peers[rank].incarnation == 0)
        return -ETIMEDOUT;
    phi_key_member(key, store->base.params, rank);
    int result = look_up(store, key, 0, &got);
    if (result == 0)
        result = take_record(store, key, &got, deadline, delivery);
    else
        result = own && result == -ETIMEDOUT ? -ENOENT : -ETIMEDOUT;
    if (result != -ETIMEDOUT && result != -ENOENT)
        return result;
    const bool lost = result == -ENOENT && atomic_load(&store->announced);
    result = look_for_expulsion(store, rank, delivery);
    return result == -ETIMEDOUT && lost ? -ECONNRESET : result;
}

static bool is_wanted(struct phi_store_callbacks *store, const bool *wanted, int rank)
{
    return rank != store->base.params->rank && (!wanted || wanted[rank]);
}

// next_wanted returns the rank whose turn it is. At least one is wanted.
static int next_wanted(struct phi_store_callbacks *store, const bool *wanted)
{
    do
        store->turn = (store->turn + 1) % store->base.params->ranks;
    while (!is_wanted(store, wanted, store->turn));
    return store->turn;
}

// look_around looks at every wanted rank without waiting. It begins after the one that had
// something last, so that many messages do not take a whole round each.
static int look_around(struct phi_store_callbacks *store, const bool *wanted, int count,
                       struct phi_delivery *delivery)
{
    int result = -ETIMEDOUT;
    for (int i = 0; i < count && result == -ETIMEDOUT; i++)
        result = look_at(store, next_wanted(store, wanted), 0, delivery);
    return result;
}

// look_for_records looks for records now and then: those of wanted ranks, and last that of this
// rank, as news of it ends the call. It looks sooner at ranks from which something has come.
static int look_for_records(struct phi_store_callbacks *store, const bool *wanted, int64_t deadline,
                            struct phi_delivery *delivery)
{
    const int ranks = store->base.params->ranks, own = store->base.params->rank;
    const bool all = phi_now() >= store->records_at;
    if (all)
        store->records_at = phi_deadline(RECORDS_MS);
    for (int i = 0; i < ranks && all; i++)
        store->peers[i].again = true;
    int result = -ETIMEDOUT;
    for (int i = 1; i <= ranks && result == -ETIMEDOUT; i++) {
        const int rank = (own + i) % ranks;
        bool *again = &store->peers[rank].again;
        if (!*again || (rank != own && !is_wanted(store, wanted, rank)))
            continue;
        *again = false;
        result = look_again(store, rank, deadline, delivery);
        *again = *again || (result && result != -ETIMEDOUT && result != -ECONNRESET);
    }
    return result;
}

// concerns is asked by a store in a directory about a key that has come, in the thread that waits.
static bool concerns(void *opaque, const char *key)
{
    struct phi_store_callbacks *store = opaque;
    int rank = 0;
    if (key == NULL) // any key may have come
        store->records_at = 0;
    enum phi_key_kind kind = key ? phi_key_kind(store->base.params, key, &rank) : PHI_KEY_INBOUND;
    if (kind == PHI_KEY_RECORD)
        store->peers[rank].again = true;
    return kind != PHI_KEY_NONE;
}

// woken waits at most ms for a wake, and takes it.
static bool woken(struct phi_store_callbacks *store, int64_t ms)
{
    struct pollfd wake = {.fd = store->wake.listen, .events = POLLIN};
    return poll(&wake, 1, (int)ms) == 1 && phi_wake_take(&store->wake);
}

// wait_slice waits a short while for the wanted rank whose turn it is.
static int wait_slice(struct phi_store_callbacks *store, const bool *wanted, int count,
                      int64_t deadline, struct phi_delivery *delivery)
{
    if (count == 0) // nobody is wanted
        return woken(store, remaining(deadline)) ? -EINTR : -ETIMEDOUT;
    int64_t most = count == 1 ? SLICE_ONE : SLICE_MANY;
    int64_t ms = remaining(deadline) < most ? remaining(deadline) : most;
    return look_at(store, next_wanted(store, wanted), ms, delivery);
}

static int callbacks_take(struct phi_store *base, const bool *wanted, int64_t deadline,
                          struct phi_delivery *delivery)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    int count = 0;
    for (int rank = 0; rank < store->base.params->ranks; rank++)
        count += is_wanted(store, wanted, rank);
    for (;;) {
        if (woken(store, 0))
            return -EINTR;
        if (store->anew) {
            store->anew = false;
            return -ECONNRESET;
        }
        int result = count > 0 ? look_for_records(store, wanted, deadline, delivery) : -ETIMEDOUT;
        if (result == -ETIMEDOUT && count > 1)
            result = look_around(store, wanted, count, delivery);
        if (result == -ETIMEDOUT)
            result = wait_slice(store, wanted, count, deadline, delivery);
        if (result != -ETIMEDOUT || phi_now() >= deadline)
            return result;
    }
}

static void callbacks_doubt(struct phi_store *base)
{
    callbacks_of(base)->anew = true;
}

static size_t callbacks_trouble(struct phi_store *base, char *text, size_t size)
{
    return phi_trouble_copy(&callbacks_of(base)->trouble, text, size);
}

static const struct phi_wake *callbacks_wake(const struct phi_store *base)
{
    return &((const struct phi_store_callbacks *)base)->wake;
}

static void callbacks_consumed(struct phi_store *base, int rank, uint64_t incarnation,
                               uint64_t number)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    struct peer *peer = &store->peers[rank];
    pthread_mutex_lock(&store->lock);
    if (incarnation == peer->incarnation && number > peer->consumed) // a former life's are gone
        peer->consumed = number;
    pthread_mutex_unlock(&store->lock);
}

// ---- open and close

static int callbacks_open(const struct phi_mailbox_params *params, int64_t deadline,
                          struct phi_store **out)
{
    (void)deadline;
    const struct ph_store_callbacks *callbacks = params->callbacks;
    if (!callbacks->set || !callbacks->get || !callbacks->remove)
        return phi_fail(params->report, -EINVAL, "the store needs all of set, get and remove");
    struct phi_store_callbacks *store =
        calloc(1, sizeof(*store) + (size_t)params->ranks * sizeof(*store->peers));
    if (!store)
        return phi_fail(params->report, -ENOMEM, "no memory for the store");
    store->base = (struct phi_store_base){.ops = &phi_store_callbacks, .params = params};
    store->turn = params->ranks - 1; // rank 0 is the first
    int result = phi_wake_open(&store->wake);
    if (result) {
        free(store);
        return phi_fail(params->report, result, "no sockets to be woken by: %s",
                        ph_strerror(result));
    }
    phi_trouble_init(&store->trouble);
    pthread_mutex_init(&store->lock, NULL);
    if (params->file)
        phi_file_store_listen(params->file, store->wake.listen, concerns, store);
    *out = (struct phi_store *)store;
    return 0;
}

// remove_inbound removes messages that came and were not taken any more.
static void remove_inbound(struct phi_store_callbacks *store, int rank, int64_t deadline)
{
    struct peer *peer = &store->peers[rank];
    struct phi_delivery delivery;
    while (is_wanted(store, NULL, rank) && phi_now() < deadline &&
           look_at(store, rank, 0, &delivery) == 0)
        free(delivery.bytes);
    callbacks_consumed((struct phi_store *)store, rank, peer->incarnation, peer->taken);
    remove_consumed(store, rank, deadline);
}

static void callbacks_close(struct phi_store *base, const bool *done, int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[PHI_KEY_SIZE];
    struct phi_envelope record;
    phi_key_member(key, store->base.params, store->base.params->rank);
    // A later life may have taken its place.
    if (store->announced && look_at_envelope(store, key, &record) == 0 &&
        record.source_incarnation == own_life(store))
        remove_key(store, key, deadline);
    for (int rank = 0; rank < store->base.params->ranks; rank++) {
        remove_inbound(store, rank, deadline);
        if (done && done[rank])
            remove_outbound(store, rank, deadline);
    }
    phi_wake_close(&store->wake);
    phi_trouble_fini(&store->trouble);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

const struct phi_store_ops phi_store_callbacks = {
    .size = sizeof(struct phi_store_ops),
    .name = "callbacks",
    .open = callbacks_open,
    .claim = callbacks_claim,
    .announce = callbacks_announce,
    .publish = callbacks_publish,
    .put = callbacks_put,
    .take = callbacks_take,
    .wake = callbacks_wake,
    .doubt = callbacks_doubt,
    .trouble = callbacks_trouble,
    .consumed = callbacks_consumed,
    .refresh = callbacks_refresh,
    .close = callbacks_close,
};
