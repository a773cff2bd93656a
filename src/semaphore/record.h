// SPDX-License-Identifier: BSD-3-Clause
// Records of streams: what was issued on each and, in words that the device writes, what is done.
#ifndef PHI_SEMAPHORE_RECORD_H
#define PHI_SEMAPHORE_RECORD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "semaphore/executor.h"
#include "semaphore/plan.h"

// The facts about a wait that tell an application why nothing moves.
struct phi_wait_note {
    uint64_t number; // 0: none
    uint64_t order;  // among all notes of the table
    uint64_t op_id;
    int32_t peer;
    uint8_t call;
};

// One stream. Except for the atomics, guarded by `locked`; `issued` is written under it.
struct phi_record {
    _Alignas(64) _Atomic uint32_t locked;
    _Atomic uint64_t key;         // of the stream; 0: never used
    _Atomic uint64_t issued;      // the last number given
    _Atomic uint64_t kernel_wait; // the last number that waits by kernel, by memory operation
    _Atomic uint64_t memory_wait;
    struct phi_wait_note oldest, latest;
};

#define PHI_RECORD_HINTS 256

struct phi_records {
    struct phi_record record[PHI_STREAMS_MAX];
    _Atomic uint64_t *done; // PHI_STREAMS_MAX words that the device stores into
    _Atomic uint32_t used;  // records [0, used) have been claimed
    _Atomic uint16_t
        hint[PHI_RECORD_HINTS]; // where a key was last seen; checked before it is believed
    _Atomic uint64_t order;
    pthread_mutex_t claim; // guards claiming
    uint32_t hand;         // where the search for a drained record goes on
};

// done: zeroed, outlives the table.
void phi_records_init(struct phi_records *records, _Atomic uint64_t *done);
void phi_records_fini(struct phi_records *records);

// phi_record_find returns the index of a key's record, or -1; takes no lock. The answer may be out
// of date once another thread claims: phi_record_lock settles it.
int phi_record_find(struct phi_records *records, uint64_t key);

// phi_record_claim gives a key a record: a new one, or that of another stream with nothing in
// flight. -EAGAIN where all PHI_STREAMS_MAX have.
int phi_record_claim(struct phi_records *records, uint64_t key);

// phi_record_lock takes the record's spin lock; false (and not locked) where the record has passed
// to another key.
bool phi_record_lock(struct phi_records *records, int index, uint64_t key);
void phi_record_unlock(struct phi_records *records, int index);

static inline uint64_t phi_record_done(const struct phi_records *records, int index)
{
    // Pairs with the device's release store (a write value or st.release.sys): what came before it
    // on the stream is over.
    return atomic_load_explicit(&records->done[index], memory_order_acquire);
}

// phi_record_waits: whether something on the record's stream that waits is not done.
bool phi_record_waits(const struct phi_records *records, int index);

// phi_records_waiting adds up what waits on all records but `except`.
void phi_records_waiting(const struct phi_records *records, int except,
                         struct phi_waiting *waiting);

// phi_record_note remembers a wait for error sentences. Locked.
void phi_record_note(struct phi_records *records, int index, uint64_t number,
                     const struct phi_work *work);

// phi_records_oldest copies the oldest note of a wait that is not done; false where there is none
// to be had.
bool phi_records_oldest(struct phi_records *records, struct phi_wait_note *note);

// phi_record_progress is phi_executor_ops.progress.
bool phi_record_progress(struct phi_records *records, uint32_t index, struct phi_progress *progress,
                         struct phi_wait_note *note);

// phi_record_mark writes the place behind all that was issued with the key so far. Takes no lock.
void phi_record_mark(const struct phi_records *records, int index, uint64_t key,
                     struct phi_mark *mark);

// phi_records_in_flight counts numbers issued and not done; *streams the records that have any.
uint64_t phi_records_in_flight(const struct phi_records *records, uint32_t *streams);

// phi_uses_streams counts the records with operations in flight that touch `uses`.
uint32_t phi_uses_streams(const struct phi_records *records, struct phi_uses *uses);

// phi_uses_take stores `number` in the uses of all work (locked record), then looks whether one is
// revoked: false, and the number is taken back. See struct phi_uses.
bool phi_uses_take(struct phi_records *records, int index, const struct phi_work *work, size_t n);
// phi_uses_give_back undoes a take after which nothing was enqueued.
void phi_uses_give_back(struct phi_records *records, int index, const struct phi_work *work,
                        size_t n);

#endif
