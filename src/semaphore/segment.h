// SPDX-License-Identifier: BSD-3-Clause
// A segment: host memory (a sealed memfd) that two ranks of one node share. The lower rank makes it
// and is side 0. It holds, for each side: a header (sleeping, acknowledgements, state), agreement
// slots, confirms and lines, `capacity` of each, and a FIFO of offers.
// Everything in it may be written by the peer at any time: read each value once and check it before
// use.
//
// Two ranks with the net between them have a mirror each: private memory of the same layout. A side
// stores the values that it publishes into its own copy and sends them to the peer's, in one order
// with the messages of the service threads. Words reach the other copy as posts (net/net.h). A
// word's two writers take turns, so both copies see the same values in the same order. A bit that
// is added to a word to release a wait stays in the own copy.
#ifndef PHI_SEMAPHORE_SEGMENT_H
#define PHI_SEMAPHORE_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/report.h"
#include "net/net.h"
#include "semaphore/words.h"

// The values that a side publishes about itself; only their owner writes them.
struct phi_side {
    // 1: the owner sleeps until the peer writes to its eventfd
    _Alignas(128) _Atomic uint32_t sleeping;
    // sequence of the last store message of the peer that was taken
    _Atomic uint64_t acknowledged;
    _Atomic uint32_t state; // bits of enum phi_side_state
    // 1: no stream of the owner touches the peer's buffers any more
    _Atomic uint32_t drained;
    // 1: the owner has mapped this and may map buffers of the peer
    _Atomic uint32_t mapped;
    _Atomic uint32_t told; // 1: the owner's application knows that the pair is broken
    // Lines of their own: what a service thread writes by its clock costs nobody else a cache miss.
    _Alignas(128) _Atomic uint64_t beat; // counts up by the owner's clock while its process runs
    _Atomic uint32_t expelled;           // 1: the owner has expelled this life of the peer
    // Bytes of offers (exchange/fifo.h): put into the owner's FIFO, and taken from the peer's.
    _Alignas(128) _Atomic uint64_t posted;
    _Atomic uint64_t taken;
    _Atomic uint64_t notified; // notifications of the peer that the owner's application has taken
};

#define PHI_FIFO_BYTES 65536u // of a side

enum phi_side_state {
    PHI_SIDE_LIVE = 0,
    PHI_SIDE_LEAVING = 1, // a bit: destroy has begun: no new use of my buffers, please drain
    PHI_SIDE_ABORTED = 2, // a bit: the owner's application gave up the job
};

// The agreement slot of an operation key has two words, used in turn by round (phi_segment_word),
// and these. The words of all slots lie together: an exchange of many operations moves few cache
// lines from one rank to the other.
struct phi_slot {
    // the number of the buffer that its owner released while an unfinished round shows it, or 0
    _Atomic uint64_t released;
    // where the owner's slots for the key's next channel lie; see lane/staging.h
    _Atomic uint64_t staging;
};

struct phi_segment {
    void *base;            // mapping
    size_t size;           // bytes, a multiple of the page size
    int fd;                // memfd, sealed against shrinking and growing; owned; -1: a mirror
    struct phi_link *link; // of a mirror, once it has one
    uint32_t capacity;
    uint32_t lines_there, slots_there; // so many have memory; known to side 0
    uint32_t fifo_there;               // so many bytes of the own FIFO
    int side;                          // of this process: 0 or 1
    struct phi_slot *slots[2];         // of each side
    // likewise, of each slot: those of even rounds, then those of odd ones
    _Atomic uint64_t *words[2];
    void *staging; // of a mirror: memory behind it, for slots; NULL: none
    size_t staging_size;
    uint64_t base_device; // address for the device (registered), or 0
};

// phi_segment_create makes the segment of a pair (this process is side 0), all of it zero. nonce
// names the pair of incarnations. Errors: -ENOMEM, -EMFILE (reported).
int phi_segment_create(struct phi_report *report, uint32_t capacity, uint64_t nonce,
                       struct phi_segment **segment);

// phi_segment_open maps a segment that the peer made (this process is side 1) from fd, which it
// takes over also on failure. Everything is checked: seals, size against capacity, magic, version,
// nonce; -EBADMSG names what is wrong.
int phi_segment_open(struct phi_report *report, int fd, uint64_t nonce,
                     struct phi_segment **segment);

// phi_segment_mirror makes this rank's copy of a segment across the net, with so many bytes behind
// it for slots. phi_segment_mirror_of tells a link what in it the peer may write by stores.
int phi_segment_mirror(struct phi_report *report, uint32_t capacity, int side, size_t staging,
                       struct phi_segment **segment);
void phi_segment_mirror_of(const struct phi_segment *segment, struct phi_mirror *mirror);

// phi_segment_reserve sees to it that so many lines and so many slots (at most `capacity`) have
// memory: side 0 calls it before it gives one. -ENOMEM (reported): those from before still have
// theirs. ..._fifo: the same for as many bytes of the own FIFO as were ever written, with what
// follows; false: there is none, and nothing is reported.
int phi_segment_reserve(struct phi_report *report, struct phi_segment *segment, uint32_t lines,
                        uint32_t slots);
bool phi_segment_reserve_fifo(struct phi_segment *segment, uint64_t bytes);

// phi_segment_start_line brings the words of a new line to their start values. Both ranks of a
// channel call it before they use its line, at any time: a word that is not zero was started, and
// used, by the other one, and stays.
void phi_segment_start_line(const struct phi_segment *segment, uint32_t index);

// Every store of a side into what it publishes (header, slots, confirms) goes through these: put32
// seq_cst, put64 release. A want of memory ends the link. phi_segment_tell is their part for a
// mirror.
void phi_segment_tell(struct phi_segment *segment, const void *at, const void *value,
                      uint32_t size);
void phi_segment_put32(struct phi_segment *segment, _Atomic uint32_t *at, uint32_t value);
static inline void phi_segment_put64(struct phi_segment *segment, _Atomic uint64_t *at,
                                     uint64_t value)
{
    atomic_store_explicit(at, value, memory_order_release);
    if (segment->link)
        phi_segment_tell(segment, at, &value, sizeof(value));
}

// phi_segment_close unmaps and closes; the device must not use it any more. NULL is fine.
void phi_segment_close(struct phi_segment *segment);

// side is 0 or 1; index < capacity.
struct phi_side *phi_segment_side(const struct phi_segment *segment, int side);
static inline struct phi_slot *phi_segment_slot(const struct phi_segment *segment, int side,
                                                uint32_t index)
{
    return segment->slots[side] + index;
}
static inline _Atomic uint64_t *phi_segment_word(const struct phi_segment *segment, int side,
                                                 uint32_t index, uint32_t round)
{
    return segment->words[side] + (round & 1) * (size_t)segment->capacity + index;
}
_Atomic uint64_t *phi_segment_confirm(const struct phi_segment *segment, int side, uint32_t index);
struct phi_line *phi_segment_line(const struct phi_segment *segment, int side, uint32_t index);
uint8_t *phi_segment_fifo(const struct phi_segment *segment, int side); // PHI_FIFO_BYTES

// phi_segment_device_address of something inside the segment; 0 where it is not registered.
static inline uint64_t phi_segment_device_address(const struct phi_segment *segment,
                                                  const void *inside)
{
    return segment->base_device ? segment->base_device +
                                      (uint64_t)((const char *)inside - (const char *)segment->base)
                                : 0;
}

// phi_segment_register makes the segment's words usable by the device's streams (NULL: nothing to
// do). unregister, right before close, leaves the mapping to the device's closer. They live in
// segment_device.c.
struct phi_device;
int phi_segment_register(struct phi_segment *segment, struct phi_device *device);
void phi_segment_unregister(struct phi_segment *segment, struct phi_device *device);

#endif
