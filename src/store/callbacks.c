// SPDX-License-Identifier: BSD-3-Clause
// The store behind a user's set, get and remove. Keys, each set at most once:
//   ph:{job}:epoch:member:R          the member record of rank R
//   ph:{job}:epoch:A>B:incarnation:n message n of this life of A to B; n counts 1, 2, 3, ...
//   ph:{job}:epoch:expelled:R:incarnation
//                                    this life of R was expelled; stays for those who come later
// So the receiver always knows the one key of each sender that comes next.
#include "store/backend.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/envelope.h"
#include "store/trouble.h"

enum {
    KEY_SIZE = 201,
    SLICE_ONE = 100,     // ms in one get where one rank is waited for: how long a wake may take
    SLICE_MANY = 20,     // where several are
    EXPULSIONS_MS = 500, // between looks for expulsions, where something is waited for
    DAY_MS = 86400000,
};

struct peer {
    // the receiver's
    _Atomic uint64_t incarnation; // 0: its member record has not come; read by the remover too
    uint64_t taken;               // number of the last message
    bool expelled;                // that life was, and the receiver has been told
    // written by the receiver, read by the remover
    _Atomic uint64_t consumed;
    // the sender's, inside the mailbox's gate
    uint64_t removed; // of the consumed ones
    uint64_t sent;
    uint64_t addressed; // incarnation of the life that messages are for
    uint64_t former;    // messages to former ones
};

struct phi_store_callbacks {
    struct phi_store_base base;
    struct phi_wake wake;
    bool announced;
    bool anew; // the next take says that the store may have lost something
    struct phi_trouble trouble;
    int turn;              // rank that the last waiting get was for
    int64_t expulsions_at; // when to look for expulsions again
    struct peer peers[];
};

static struct phi_store_callbacks *callbacks_of(struct phi_store *store)
{
    return (struct phi_store_callbacks *)store;
}

// ---- keys and calls

static void member_key(const struct phi_store_callbacks *store, int rank, char key[KEY_SIZE])
{
    const struct phi_mailbox_params *params = store->base.params;
    snprintf(key, KEY_SIZE, "ph:{%s}:%" PRIu64 ":member:%d", params->job, params->epoch, rank);
}

static void inbound_key(struct phi_store_callbacks *store, int from, uint64_t number,
                        char key[KEY_SIZE])
{
    const struct phi_mailbox_params *params = store->base.params;
    uint64_t incarnation =
        atomic_load_explicit(&store->peers[from].incarnation, memory_order_relaxed);
    snprintf(key, KEY_SIZE, "ph:{%s}:%" PRIu64 ":%d>%d:%" PRIu64 ":%" PRIu64, params->job,
             params->epoch, from, params->rank, incarnation, number);
}

static void outbound_key(struct phi_store_callbacks *store, int to, uint64_t number,
                         char key[KEY_SIZE])
{
    const struct phi_mailbox_params *params = store->base.params;
    snprintf(key, KEY_SIZE, "ph:{%s}:%" PRIu64 ":%d>%d:%" PRIu64 ":%" PRIu64, params->job,
             params->epoch, params->rank, to, params->incarnation, number);
}

static void expelled_key(const struct phi_store_callbacks *store, int rank, uint64_t incarnation,
                         char key[KEY_SIZE])
{
    const struct phi_mailbox_params *params = store->base.params;
    snprintf(key, KEY_SIZE, "ph:{%s}:%" PRIu64 ":expelled:%d:%" PRIu64, params->job, params->epoch,
             rank, incarnation);
}

static int64_t remaining(int64_t deadline)
{
    int ms = phi_remaining_ms(deadline);
    return ms < 0 ? DAY_MS : ms;
}

static int failed(struct phi_store_callbacks *store, const char *call, const char *key, int result)
{
    phi_trouble_set(&store->trouble, "the store's %s of %s: %s", call, key, ph_strerror(result));
    if (result == -ETIMEDOUT)
        return phi_fail(store->base.params->report, -ETIMEDOUT,
                        "the store did not %s %s before the deadline", call, key);
    return phi_fail(store->base.params->report, PH_ESTORE, "the store's %s of %s failed: %s", call,
                    key, ph_strerror(result));
}

static int set(struct phi_store_callbacks *store, const char *key, const void *bytes, size_t size,
               int64_t deadline)
{
    const struct ph_store_callbacks *callbacks = store->base.params->callbacks;
    phi_count(store->base.params->counters, store_commands, 1);
    int result = callbacks->set(callbacks->opaque, key, bytes, size, remaining(deadline));
    if (result)
        return failed(store, "set", key, result);
    phi_trouble_clear(&store->trouble);
    return 0;
}

// remove_key: a key that stays costs memory, no more, so a failure is no failure of the call.
static void remove_key(struct phi_store_callbacks *store, const char *key, int64_t deadline)
{
    const struct ph_store_callbacks *callbacks = store->base.params->callbacks;
    phi_count(store->base.params->counters, store_commands, 1);
    int result = callbacks->remove(callbacks->opaque, key, remaining(deadline));
    if (result && result != -ENOENT)
        phi_log(store->base.params->report, PH_LOG_WARN, "the store's remove of %s failed: %s", key,
                ph_strerror(result));
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
    if (result == -ENOENT)
        return -ETIMEDOUT;
    if (result)
        return result;
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
    char key[KEY_SIZE];
    // Pairs with the release in callbacks_consumed: the incarnation in the key was stored before.
    uint64_t consumed = atomic_load_explicit(&peer->consumed, memory_order_acquire);
    while (peer->removed < consumed && phi_now() < deadline) {
        inbound_key(store, rank, ++peer->removed, key);
        remove_key(store, key, deadline);
    }
}

static int callbacks_refresh(struct phi_store *base, int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    for (int rank = 0; rank < store->base.params->ranks; rank++)
        remove_consumed(store, rank, deadline);
    return 0;
}

// is_there looks whether the store still has what was set: 1, 0 or an error.
static int is_there(struct phi_store_callbacks *store, const char *key)
{
    struct phi_delivery delivery = {0};
    int result = get(store, key, 0, &delivery);
    free(delivery.bytes);
    return result == -ETIMEDOUT ? 0 : result ? result : 1;
}

// claim: there is one record of a rank, which its next life takes the place of.
static int callbacks_claim(struct phi_store *base, uint64_t *latest, int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    struct phi_delivery record = {0};
    struct phi_envelope envelope;
    char key[KEY_SIZE];
    (void)deadline; // a look does not wait
    member_key(store, store->base.params->rank, key);
    int result = get(store, key, 0, &record);
    if (result)
        return result == -ETIMEDOUT ? 0 : result;
    bool later = record.bytes && phi_envelope_decode(&envelope, record.bytes, record.size) == 0 &&
                 envelope.source_incarnation >= store->base.params->incarnation;
    free(record.bytes);
    if (!later)
        return 0;
    *latest = envelope.source_incarnation;
    return -EEXIST;
}

static int callbacks_announce(struct phi_store *base, const void *bytes, size_t size,
                              int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[KEY_SIZE];
    member_key(store, store->base.params->rank, key);
    int there = store->announced ? is_there(store, key) : 0;
    if (there)
        return there == 1 ? 0 : there;
    int result = set(store, key, bytes, size, deadline);
    store->announced = store->announced || result == 0;
    return result;
}

// The records of expulsions only: a rank's own has one key. Several ranks may expel one at the same
// time, and set the same.
static int callbacks_publish(struct phi_store *base, const void *bytes, size_t size,
                             int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[KEY_SIZE];
    struct phi_envelope envelope;
    int result = phi_envelope_decode(&envelope, bytes, size); // our own
    if (result)
        return result;
    expelled_key(store, (int)envelope.source, envelope.source_incarnation - 1, key);
    int there = is_there(store, key);
    if (there)
        return there == 1 ? 0 : there;
    return set(store, key, bytes, size, deadline);
}

// place_of: the n of a message's key. Sequences begin again for each life of the peer.
static uint64_t place_of(struct peer *peer, const struct phi_envelope *envelope)
{
    if (peer->addressed != envelope->destination_incarnation) {
        peer->addressed = envelope->destination_incarnation;
        peer->former = peer->sent;
    }
    return peer->former + envelope->sequence;
}

static int callbacks_put(struct phi_store *base, int peer, uint64_t number, const void *bytes,
                         size_t size, int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[KEY_SIZE];
    struct phi_envelope envelope;
    // Keys count sequences, which have no gaps: where a set failed, an empty message takes its key.
    (void)number;
    int result = phi_envelope_decode(&envelope, bytes, size); // our own
    if (result)
        return result;
    uint64_t place = place_of(&store->peers[peer], &envelope);
    outbound_key(store, peer, place, key);
    if (place <= store->peers[peer].sent) { // once more: only what was lost is set again
        int there = is_there(store, key);
        if (there)
            return there == 1 ? 0 : there;
    }
    result = set(store, key, bytes, size, deadline);
    if (result == 0) {
        if (place > store->peers[peer].sent)
            store->peers[peer].sent = place;
        callbacks_refresh(base, deadline);
    }
    return result;
}

// ---- receiving

// check_got: what is no envelope of ours is an error, not a delivery: the key is looked at again,
// as the store may have been ill.
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

// look_at waits for what comes next from a rank. 0, -ETIMEDOUT or an error.
static int look_at(struct phi_store_callbacks *store, int rank, int64_t ms,
                   struct phi_delivery *delivery)
{
    struct peer *peer = &store->peers[rank];
    uint64_t incarnation = atomic_load_explicit(&peer->incarnation, memory_order_relaxed);
    struct phi_delivery got = {.rank = rank, .member = incarnation == 0};
    char key[KEY_SIZE];
    if (got.member) {
        member_key(store, rank, key);
    } else {
        got.incarnation = incarnation;
        got.number = peer->taken + 1;
        inbound_key(store, rank, got.number, key);
    }
    struct phi_envelope envelope;
    int result = get(store, key, ms, &got);
    if (result == 0)
        result = check_got(store, key, &got, &envelope);
    if (result)
        return result;
    if (got.member) {
        atomic_store_explicit(&peer->incarnation, envelope.source_incarnation,
                              memory_order_relaxed);
        store->expulsions_at = 0; // it may be of a life that was expelled
    } else {
        peer->taken++;
    }
    *delivery = got;
    return 0;
}

// look_for_expulsion looks whether the present life of a rank, or of this one, was expelled: 0,
// -ETIMEDOUT or an error.
static int look_for_expulsion(struct phi_store_callbacks *store, int rank,
                              struct phi_delivery *delivery)
{
    struct peer *peer = &store->peers[rank];
    bool own = rank == store->base.params->rank;
    uint64_t incarnation = own ? store->base.params->incarnation : peer->incarnation;
    struct phi_delivery got = {.rank = rank, .member = true};
    struct phi_envelope envelope;
    char key[KEY_SIZE];
    if (incarnation == 0 || peer->expelled)
        return -ETIMEDOUT;
    expelled_key(store, rank, incarnation, key);
    // A store that fails here fails for what is awaited too, and that is what is said.
    if (look_up(store, key, 0, &got))
        return -ETIMEDOUT;
    int result = check_got(store, key, &got, &envelope);
    if (result)
        return result;
    peer->expelled = true;
    *delivery = got;
    return 0;
}

static bool is_wanted(struct phi_store_callbacks *store, const bool *wanted, int rank)
{
    return rank != store->base.params->rank && (!wanted || wanted[rank]);
}

static int count_wanted(struct phi_store_callbacks *store, const bool *wanted)
{
    int count = 0;
    for (int rank = 0; rank < store->base.params->ranks; rank++)
        count += is_wanted(store, wanted, rank);
    return count;
}

// look_around looks at every wanted rank without waiting.
static int look_around(struct phi_store_callbacks *store, const bool *wanted,
                       struct phi_delivery *delivery)
{
    for (int rank = 0; rank < store->base.params->ranks; rank++) {
        int result =
            is_wanted(store, wanted, rank) ? look_at(store, rank, 0, delivery) : -ETIMEDOUT;
        if (result != -ETIMEDOUT)
            return result;
    }
    return -ETIMEDOUT;
}

// look_for_expulsions does that now and then, of this rank and of those that are wanted.
static int look_for_expulsions(struct phi_store_callbacks *store, const bool *wanted,
                               struct phi_delivery *delivery)
{
    if (phi_now() < store->expulsions_at)
        return -ETIMEDOUT;
    for (int rank = 0; rank < store->base.params->ranks; rank++) {
        int result = rank == store->base.params->rank || is_wanted(store, wanted, rank)
                         ? look_for_expulsion(store, rank, delivery)
                         : -ETIMEDOUT;
        if (result != -ETIMEDOUT)
            return result;
    }
    store->expulsions_at = phi_deadline(EXPULSIONS_MS);
    return -ETIMEDOUT;
}

// woken waits at most ms for a wake and takes it.
static bool woken(struct phi_store_callbacks *store, int64_t ms)
{
    struct pollfd wake = {.fd = store->wake.listen, .events = POLLIN};
    return poll(&wake, 1, (int)ms) == 1 && phi_wake_take(&store->wake);
}

// wait_slice waits a short while for the wanted rank whose turn it is.
static int wait_slice(struct phi_store_callbacks *store, const bool *wanted, int64_t deadline,
                      struct phi_delivery *delivery)
{
    int count = count_wanted(store, wanted);
    if (count == 0) // nobody is wanted
        return woken(store, remaining(deadline)) ? -EINTR : -ETIMEDOUT;
    int64_t most = count == 1 ? SLICE_ONE : SLICE_MANY;
    int64_t ms = remaining(deadline) < most ? remaining(deadline) : most;
    do
        store->turn = (store->turn + 1) % store->base.params->ranks;
    while (!is_wanted(store, wanted, store->turn));
    return look_at(store, store->turn, ms, delivery);
}

static int callbacks_take(struct phi_store *base, const bool *wanted, int64_t deadline,
                          struct phi_delivery *delivery)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    for (;;) {
        if (woken(store, 0))
            return -EINTR;
        if (store->anew) {
            store->anew = false;
            return -ECONNRESET;
        }
        int result = count_wanted(store, wanted) > 0 ? look_for_expulsions(store, wanted, delivery)
                                                     : -ETIMEDOUT;
        if (result == -ETIMEDOUT && count_wanted(store, wanted) > 1)
            result = look_around(store, wanted, delivery);
        if (result == -ETIMEDOUT)
            result = wait_slice(store, wanted, deadline, delivery);
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
    _Atomic uint64_t *consumed = &callbacks_of(base)->peers[rank].consumed;
    (void)incarnation; // a rank has one life in one epoch here: its member key is set once
    if (number > atomic_load_explicit(consumed, memory_order_relaxed))
        atomic_store_explicit(consumed, number, memory_order_release); // see remove_consumed
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
    int result = phi_wake_open(&store->wake);
    if (result) {
        free(store);
        return phi_fail(params->report, result, "no sockets to be woken by: %s",
                        ph_strerror(result));
    }
    phi_trouble_init(&store->trouble);
    *out = (struct phi_store *)store;
    return 0;
}

// remove_inbound removes what came and was not taken any more.
static void remove_inbound(struct phi_store_callbacks *store, int rank, int64_t deadline)
{
    struct peer *peer = &store->peers[rank];
    struct phi_delivery delivery;
    while (is_wanted(store, NULL, rank) && phi_now() < deadline &&
           look_at(store, rank, 0, &delivery) == 0) {
        free(delivery.bytes);
        callbacks_consumed((struct phi_store *)store, rank, 0, delivery.number);
    }
    callbacks_consumed((struct phi_store *)store, rank, 0, peer->taken);
    remove_consumed(store, rank, deadline);
}

static void remove_outbound(struct phi_store_callbacks *store, int peer, int64_t deadline)
{
    char key[KEY_SIZE];
    // Newest first: the older ones are the ones that the receiver has removed already.
    for (uint64_t number = store->peers[peer].sent; number > 0 && phi_now() < deadline; number--) {
        outbound_key(store, peer, number, key);
        remove_key(store, key, deadline);
    }
}

static void callbacks_close(struct phi_store *base, const bool *done, int64_t deadline)
{
    struct phi_store_callbacks *store = callbacks_of(base);
    char key[KEY_SIZE];
    member_key(store, store->base.params->rank, key);
    if (store->announced)
        remove_key(store, key, deadline);
    for (int rank = 0; rank < store->base.params->ranks; rank++)
        remove_inbound(store, rank, deadline);
    for (int rank = 0; rank < store->base.params->ranks; rank++)
        if (done && done[rank])
            remove_outbound(store, rank, deadline);
    phi_wake_close(&store->wake);
    phi_trouble_fini(&store->trouble);
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
