// SPDX-License-Identifier: BSD-3-Clause
#include "semaphore/record.h"

#include <errno.h>
#include <sched.h>

#include "base/clock.h"

void phi_records_init(struct phi_records *records, _Atomic uint64_t *done)
{
    *records = (struct phi_records){.done = done};
    pthread_mutex_init(&records->claim, NULL);
}

void phi_records_fini(struct phi_records *records)
{
    pthread_mutex_destroy(&records->claim);
}

static uint64_t key_of(const struct phi_records *records, int index)
{
    return atomic_load_explicit(&records->record[index].key, memory_order_acquire);
}

int phi_record_find(struct phi_records *records, uint64_t key)
{
    _Atomic uint16_t *hint = &records->hint[key % PHI_RECORD_HINTS];
    const int guess = atomic_load_explicit(hint, memory_order_relaxed);
    const int used = (int)atomic_load_explicit(&records->used, memory_order_acquire);
    if (key_of(records, guess) == key)
        return guess;
    for (int i = 0; i < used; i++) {
        if (key_of(records, i) == key) {
            atomic_store_explicit(hint, (uint16_t)i, memory_order_relaxed);
            return i;
        }
    }
    return -1;
}

static void spin_lock(_Atomic uint32_t *locked)
{
    // The holder may sit in a driver call that blocks because the stream's queue is full: then give
    // up the core.
    for (unsigned spins = 0; atomic_exchange_explicit(locked, 1, memory_order_acquire) != 0;
         spins++) {
        if (spins < 4096)
            phi_pause();
        else
            sched_yield();
    }
}

bool phi_record_lock(struct phi_records *records, int index, uint64_t key)
{
    spin_lock(&records->record[index].locked);
    if (key_of(records, index) == key)
        return true;
    phi_record_unlock(records, index);
    return false;
}

void phi_record_unlock(struct phi_records *records, int index)
{
    atomic_store_explicit(&records->record[index].locked, 0, memory_order_release);
}

static bool is_drained(const struct phi_records *records, int index)
{
    return phi_record_done(records, index) >=
           atomic_load_explicit(&records->record[index].issued, memory_order_acquire);
}

// rekey passes a drained record on. Its numbers go on where they were, so the numbers that uses
// hold stay right.
static bool rekey(struct phi_records *records, int index, uint64_t key)
{
    struct phi_record *record = &records->record[index];
    if (!is_drained(records, index) ||
        atomic_exchange_explicit(&record->locked, 1, memory_order_acquire))
        return false;
    bool drained = is_drained(records, index);
    if (drained)
        atomic_store_explicit(&record->key, key, memory_order_release);
    phi_record_unlock(records, index);
    return drained;
}

static int claim(struct phi_records *records, uint64_t key)
{
    uint32_t used = atomic_load_explicit(&records->used, memory_order_relaxed);
    int found = phi_record_find(records, key);
    if (found >= 0)
        return found;
    if (used < PHI_STREAMS_MAX) {
        atomic_store_explicit(&records->record[used].key, key, memory_order_release);
        atomic_store_explicit(&records->used, used + 1, memory_order_release);
        return (int)used;
    }
    for (uint32_t tries = 0; tries < PHI_STREAMS_MAX; tries++) {
        int index = (int)(records->hand++ % PHI_STREAMS_MAX);
        if (rekey(records, index, key))
            return index;
    }
    return -EAGAIN;
}

int phi_record_claim(struct phi_records *records, uint64_t key)
{
    pthread_mutex_lock(&records->claim);
    int index = claim(records, key);
    pthread_mutex_unlock(&records->claim);
    return index;
}

static bool unfinished(const _Atomic uint64_t *number, uint64_t done)
{
    return atomic_load_explicit(number, memory_order_relaxed) > done;
}

bool phi_record_waits(const struct phi_records *records, int index)
{
    const struct phi_record *record = &records->record[index];
    const uint64_t done = phi_record_done(records, index);
    return unfinished(&record->kernel_wait, done) || unfinished(&record->memory_wait, done);
}

void phi_records_waiting(const struct phi_records *records, int except, struct phi_waiting *waiting)
{
    const int used = (int)atomic_load_explicit(&records->used, memory_order_acquire);
    for (int i = 0; i < used; i++) {
        const struct phi_record *record = &records->record[i];
        const uint64_t done = phi_record_done(records, i);
        if (i == except)
            continue;
        waiting->kernels += unfinished(&record->kernel_wait, done);
        waiting->memory_operations += unfinished(&record->memory_wait, done);
    }
}

void phi_record_note(struct phi_records *records, int index, uint64_t number,
                     const struct phi_work *work)
{
    struct phi_record *record = &records->record[index];
    record->latest = (struct phi_wait_note){
        .number = number,
        .order = atomic_fetch_add_explicit(&records->order, 1, memory_order_relaxed),
        .op_id = work->op_id,
        .peer = work->peer,
        .call = work->call,
    };
    if (record->oldest.number <= phi_record_done(records, index))
        record->oldest = record->latest;
}

static void older(struct phi_wait_note *note, const struct phi_wait_note *other, uint64_t done)
{
    if (other->number > done && (note->number == 0 || other->order < note->order))
        *note = *other;
}

bool phi_records_oldest(struct phi_records *records, struct phi_wait_note *note)
{
    const int used = (int)atomic_load_explicit(&records->used, memory_order_acquire);
    *note = (struct phi_wait_note){0};
    for (int i = 0; i < used; i++) {
        struct phi_record *record = &records->record[i];
        const uint64_t done = phi_record_done(records, i);
        // Only for a sentence: a record that is busy enqueueing is passed over.
        if (atomic_exchange_explicit(&record->locked, 1, memory_order_acquire))
            continue;
        older(note, &record->oldest, done);
        older(note, &record->latest, done);
        phi_record_unlock(records, i);
    }
    return note->number != 0;
}

bool phi_record_progress(struct phi_records *records, uint32_t index, struct phi_progress *progress,
                         struct phi_wait_note *note)
{
    if (index >= atomic_load_explicit(&records->used, memory_order_acquire))
        return false;
    struct phi_record *record = &records->record[index];
    // done first: it never passes an `issued` that is read later.
    progress->done = phi_record_done(records, (int)index);
    progress->issued = atomic_load_explicit(&record->issued, memory_order_acquire);
    if (note == NULL)
        return true;
    *note = (struct phi_wait_note){0};
    if (atomic_exchange_explicit(&record->locked, 1, memory_order_acquire) == 0) {
        older(note, &record->oldest, progress->done);
        older(note, &record->latest, progress->done);
        phi_record_unlock(records, (int)index);
    }
    return true;
}

void phi_record_mark(const struct phi_records *records, int index, uint64_t key,
                     struct phi_mark *mark)
{
    *mark = (struct phi_mark){.done = &records->done[index], .index = (uint32_t)index};
    mark->number = atomic_load_explicit(&records->record[index].issued, memory_order_acquire);
    // A record passes to another key only when it is drained, and its number rises after that. The
    // acquire above pairs with the release of the new stream's number: if the number is its, the
    // key is seen to be another one here.
    if (key_of(records, index) != key)
        mark->done = NULL;
}

uint64_t phi_records_in_flight(const struct phi_records *records, uint32_t *streams)
{
    const int used = (int)atomic_load_explicit(&records->used, memory_order_acquire);
    uint64_t total = 0;
    *streams = 0;
    for (int i = 0; i < used; i++) {
        // done first: it never passes an `issued` that is read later.
        const uint64_t done = phi_record_done(records, i);
        const uint64_t issued =
            atomic_load_explicit(&records->record[i].issued, memory_order_acquire);
        total += issued - done;
        *streams += issued != done;
    }
    return total;
}

uint32_t phi_uses_streams(const struct phi_records *records, struct phi_uses *uses)
{
    uint32_t streams = 0;
    for (int i = 0; i < PHI_STREAMS_MAX; i++) {
        // Pairs with the store in phi_uses_take: a revoker that has set `revoked` sees every number
        // that was not refused.
        const uint64_t number = atomic_load_explicit(&uses->number[i], memory_order_seq_cst);
        streams += number != 0 && number > phi_record_done(records, i);
    }
    return streams;
}

void phi_uses_give_back(struct phi_records *records, int index, const struct phi_work *work,
                        size_t n)
{
    // The stream's last number stands in for what was there: once it is done, so is everything
    // before it.
    const uint64_t before =
        atomic_load_explicit(&records->record[index].issued, memory_order_relaxed);
    for (size_t i = 0; i < n; i++)
        if (work[i].uses != NULL)
            atomic_store_explicit(&work[i].uses->number[index], before, memory_order_seq_cst);
}

bool phi_uses_take(struct phi_records *records, int index, const struct phi_work *work, size_t n)
{
    const uint64_t number =
        atomic_load_explicit(&records->record[index].issued, memory_order_relaxed) + 1;
    bool revoked = false;
    for (size_t i = 0; i < n; i++)
        if (work[i].uses != NULL)
            atomic_store_explicit(&work[i].uses->number[index], number, memory_order_seq_cst);
    // The store above and this load against the revoker's store of `revoked` and load of the
    // number: one sees the other.
    for (size_t i = 0; i < n && !revoked; i++)
        revoked = work[i].uses != NULL &&
                  atomic_load_explicit(&work[i].uses->revoked, memory_order_seq_cst) != 0;
    if (revoked)
        phi_uses_give_back(records, index, work, n);
    return !revoked;
}
