// SPDX-License-Identifier: BSD-3-Clause
// Layout: a header of 64 KiB, then one half for each side: struct phi_side (384 bytes), lines,
// slots, words of slots, confirms, the FIFO of offers; halves begin at multiples of 64 KiB, so that
// no two sides share a page whatever the page size is. The file has holes: memory comes to lines
// and slots as they are given, and to a FIFO as it is written.
#include "semaphore/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memfd.h"

#define SEGMENT_MAGIC 0x53474553504f4850ull // "PHOPSEGS"
enum {
    SEGMENT_VERSION = 6,
    UNIT = 65536,
    SIDE_SIZE = 384,
    CAPACITY_MAX = 1 << 20,
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
    PIECE = 256,       // lines, or slots, that get their memory together
    FIFO_PIECE = 4096, // ... and bytes of a FIFO
};

struct header {
    uint64_t magic;
    uint32_t version;
    uint32_t capacity;
    uint64_t nonce;
    uint64_t size;
};

_Static_assert(sizeof(struct phi_side) <= SIDE_SIZE, "a side fits before the lines");
_Static_assert(sizeof(struct phi_slot) == 16, "the layout is shared between processes");
_Static_assert(sizeof(struct phi_line) == PHI_LINE_SIZE &&
                   offsetof(struct phi_line, life) == PHI_LINE_LIFE,
               "the net writes into lines");

static size_t half_size(uint32_t capacity)
{
    size_t each = sizeof(struct phi_line) + sizeof(struct phi_slot) + 3 * sizeof(_Atomic uint64_t);
    size_t bytes = SIDE_SIZE + (size_t)capacity * each + PHI_FIFO_BYTES;

    return (bytes + UNIT - 1) / UNIT * UNIT;
}

static size_t segment_size(uint32_t capacity)
{
    return UNIT + 2 * half_size(capacity);
}

static char *half(const struct phi_segment *segment, int side)
{
    return (char *)segment->base + UNIT + (size_t)side * half_size(segment->capacity);
}

struct phi_side *phi_segment_side(const struct phi_segment *segment, int side)
{
    return (struct phi_side *)half(segment, side);
}

struct phi_line *phi_segment_line(const struct phi_segment *segment, int side, uint32_t index)
{
    return (struct phi_line *)(half(segment, side) + SIDE_SIZE) + index;
}

static void find_slots(struct phi_segment *segment)
{
    for (int side = 0; side < 2; side++) {
        segment->slots[side] =
            (struct phi_slot *)phi_segment_line(segment, side, segment->capacity);
        segment->words[side] =
            (_Atomic uint64_t *)phi_segment_slot(segment, side, segment->capacity);
    }
}

_Atomic uint64_t *phi_segment_confirm(const struct phi_segment *segment, int side, uint32_t index)
{
    return phi_segment_word(segment, side, segment->capacity, 1) + index;
}

uint8_t *phi_segment_fifo(const struct phi_segment *segment, int side)
{
    return (uint8_t *)phi_segment_confirm(segment, side, segment->capacity);
}

// write_all writes into the file, not the mapping: pages come without a fault each, and a machine
// without memory for them answers with an error instead of SIGBUS.
static int write_all(int fd, const void *bytes, size_t size, size_t at)
{
    const char *from = bytes;

    while (size > 0) {
        ssize_t n = pwrite(fd, from, size, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENOSPC;
        from += n;
        at += (size_t)n;
        size -= (size_t)n;
    }
    return 0;
}

// reserve takes the pages of a part of the file, so that a machine without memory for them answers
// with an error instead of SIGBUS. They are zero, where there was a hole.
static int reserve(int fd, size_t at, size_t size)
{
    int rc;

    do
        rc = fallocate(fd, 0, (off_t)at, (off_t)size) ? -errno : 0;
    while (rc == -EINTR);
    return rc;
}

static int reserve_between(const struct phi_segment *segment, const void *begin, const void *end)
{
    return reserve(segment->fd, (size_t)((const char *)begin - (const char *)segment->base),
                   (size_t)((const char *)end - (const char *)begin));
}

static int reserve_lines(const struct phi_segment *segment, uint32_t from, uint32_t to)
{
    int rc = 0;

    for (int side = 0; !rc && side < 2; side++)
        rc = reserve_between(segment, phi_segment_line(segment, side, from),
                             phi_segment_line(segment, side, to));
    return rc;
}

static int reserve_slots(const struct phi_segment *segment, uint32_t from, uint32_t to)
{
    int rc = 0;

    for (int side = 0; !rc && side < 2; side++) {
        rc = reserve_between(segment, phi_segment_slot(segment, side, from),
                             phi_segment_slot(segment, side, to));
        for (uint32_t round = 0; !rc && round < 2; round++)
            rc = reserve_between(segment, phi_segment_word(segment, side, from, round),
                                 phi_segment_word(segment, side, to, round));
        if (!rc)
            rc = reserve_between(segment, phi_segment_confirm(segment, side, from),
                                 phi_segment_confirm(segment, side, to));
    }
    return rc;
}

// past is where the piece ends that has the last of so many.
static uint32_t past(const struct phi_segment *segment, uint32_t count)
{
    uint32_t end = (count + PIECE - 1) / PIECE * PIECE;

    return end < segment->capacity ? end : segment->capacity;
}

int phi_segment_reserve(struct phi_report *report, struct phi_segment *segment, uint32_t lines,
                        uint32_t slots)
{
    int rc = 0;

    if (segment->fd < 0) // of a mirror, as of any private memory, nothing is promised
        return 0;
    if (lines > segment->lines_there) {
        rc = reserve_lines(segment, segment->lines_there, past(segment, lines));
        if (!rc)
            segment->lines_there = past(segment, lines);
    }
    if (!rc && slots > segment->slots_there) {
        rc = reserve_slots(segment, segment->slots_there, past(segment, slots));
        if (!rc)
            segment->slots_there = past(segment, slots);
    }
    if (rc)
        return phi_fail(report, -ENOMEM, "a segment gets no memory for more channels: %s",
                        ph_strerror(rc));
    return 0;
}

bool phi_segment_reserve_fifo(struct phi_segment *segment, uint64_t bytes)
{
    const uint8_t *fifo = phi_segment_fifo(segment, segment->side);
    uint32_t end = bytes < PHI_FIFO_BYTES ? (uint32_t)bytes : PHI_FIFO_BYTES;

    if (segment->fd < 0 || end <= segment->fifo_there)
        return true;
    end = (end + FIFO_PIECE - 1) / FIFO_PIECE * FIFO_PIECE;
    if (reserve_between(segment, fifo + segment->fifo_there, fifo + end))
        return false;
    segment->fifo_there = end;
    return true;
}

void phi_segment_start_line(const struct phi_segment *segment, uint32_t index)
{
    for (int side = 0; side < 2; side++)
        for (int word = 0; word < PHI_WORD_COUNT; word++) {
            uint32_t none = 0;

            atomic_compare_exchange_strong(&phi_segment_line(segment, side, index)->word[word],
                                           &none, phi_word_start[word]);
        }
}

// fill writes the header of a new segment and reserves those of its sides.
static int fill(struct phi_report *report, int fd, const struct header *header)
{
    int rc = 0;

    for (size_t side = 0; !rc && side < 2; side++)
        rc = reserve(fd, UNIT + side * half_size(header->capacity), SIDE_SIZE);
    if (!rc)
        rc = write_all(fd, header, sizeof(*header), 0);
    if (rc)
        return phi_fail(report, rc == -ENOSPC ? -ENOMEM : rc,
                        "a segment of %llu bytes cannot be filled: %s",
                        (unsigned long long)header->size, ph_strerror(rc));
    return 0;
}

// map makes the struct of a checked file, which becomes its owner.
static int map(struct phi_report *report, int fd, const struct header *header, int side,
               struct phi_segment **segment)
{
    struct phi_segment *made = calloc(1, sizeof(*made));
    void *base;

    if (!made)
        return phi_fail(report, -ENOMEM, "no memory for a segment");
    base = mmap(NULL, header->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        free(made);
        return phi_fail(report, -errno, "mmap of a segment of %llu bytes: %s",
                        (unsigned long long)header->size, ph_strerror(-errno));
    }
    *made = (struct phi_segment){
        .base = base, .size = header->size, .fd = fd, .capacity = header->capacity, .side = side};
    find_slots(made);
    *segment = made;
    return 0;
}

int phi_segment_mirror(struct phi_report *report, uint32_t capacity, int side, size_t staging,
                       struct phi_segment **segment)
{
    struct phi_segment *made = calloc(1, sizeof(*made));
    size_t size = segment_size(capacity) + staging;
    void *base = MAP_FAILED;

    if (made)
        base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        free(made);
        return phi_fail(report, -ENOMEM, "no memory for the %zu bytes of a mirrored segment", size);
    }
    *made = (struct phi_segment){
        .base = base, .size = size, .fd = -1, .capacity = capacity, .side = side};
    find_slots(made);
    if (staging > 0)
        made->staging = (char *)base + segment_size(capacity);
    made->staging_size = staging;
    *segment = made;
    return 0;
}

void phi_segment_mirror_of(const struct phi_segment *segment, struct phi_mirror *mirror)
{
    *mirror = (struct phi_mirror){.capacity = segment->capacity,
                                  .stores = half(segment, !segment->side),
                                  .stores_size = half_size(segment->capacity)};
    for (int side = 0; side < 2; side++)
        mirror->lines[side] = (char *)phi_segment_line(segment, side, 0);
}

void phi_segment_tell(struct phi_segment *segment, const void *at, const void *value, uint32_t size)
{
    const char *own = half(segment, segment->side);

    phi_link_store(segment->link, (uint32_t)((const char *)at - own), value, size);
}

void phi_segment_put32(struct phi_segment *segment, _Atomic uint32_t *at, uint32_t value)
{
    atomic_store(at, value);
    if (segment->link)
        phi_segment_tell(segment, at, &value, sizeof(value));
}

int phi_segment_create(struct phi_report *report, uint32_t capacity, uint64_t nonce,
                       struct phi_segment **segment)
{
    struct header header = {
        .magic = SEGMENT_MAGIC, .version = SEGMENT_VERSION, .capacity = capacity, .nonce = nonce};
    int fd;
    int rc;

    if (capacity == 0 || capacity > CAPACITY_MAX)
        return phi_fail(report, -EINVAL, "a segment of %u channels", capacity);
    header.size = segment_size(capacity);
    rc = phi_memfd_create(report, "peerhop-segment", header.size, &fd);
    if (rc)
        return rc;
    rc = fill(report, fd, &header);
    if (!rc)
        rc = map(report, fd, &header, 0, segment);
    if (rc)
        close(fd);
    return rc;
}

// check reads the header once, into memory that the peer cannot change, and compares it with the
// file.
static const char *check(int fd, uint64_t nonce, struct header *header)
{
    struct phi_memfd_info info;

    int rc = phi_memfd_inspect(fd, &info);

    if (rc)
        return phi_memfd_trouble(rc);
    if ((info.seals & SEALS) != SEALS)
        return "its file is not sealed";
    if (pread(fd, header, sizeof(*header), 0) != (ssize_t)sizeof(*header))
        return "its file has no header";
    if (header->magic != SEGMENT_MAGIC)
        return "its file is not a segment";
    if (header->version != SEGMENT_VERSION)
        return "it has another version";
    if (header->nonce != nonce)
        return "it is of another pair of ranks or of another life of one";
    if (header->capacity == 0 || header->capacity > CAPACITY_MAX)
        return "its capacity is out of range";
    if (header->size != segment_size(header->capacity) || header->size != info.size)
        return "its size does not go with its capacity";
    return NULL;
}

int phi_segment_open(struct phi_report *report, int fd, uint64_t nonce,
                     struct phi_segment **segment)
{
    struct header header = {0};
    const char *wrong = check(fd, nonce, &header);
    int rc;

    if (wrong)
        rc = phi_fail(report, -EBADMSG, "the peer's segment is refused: %s", wrong);
    else
        rc = map(report, fd, &header, 1, segment);
    if (rc && fd >= 0)
        close(fd);
    return rc;
}

void phi_segment_close(struct phi_segment *segment)
{
    if (!segment)
        return;
    if (segment->base) // else the device's closer unmaps it
        munmap(segment->base, segment->size);
    if (segment->fd >= 0)
        close(segment->fd);
    free(segment);
}
