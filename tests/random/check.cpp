// SPDX-License-Identifier: BSD-3-Clause
#include "random/board.h"
#include "random/machine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

size_t pool_offset(uint64_t seed, uint64_t round, int repetition, uint32_t data, size_t size)
{
    const uint64_t where = mix(seed, round << 8 | (uint64_t)repetition, data);
    return (size_t)(where % (POOL - size));
}

namespace
{

struct Place { // that is looked at
    const Orders &orders;
    uint64_t round;
    int repetition;
    const Script &script;
    const char *when; // is it read
};

const uint8_t *data_of(const Orders &orders, uint64_t round, int repetition, uint32_t data,
                       size_t size)
{
    return orders.pool + pool_offset(orders.seed, round, repetition, data, size);
}

uint8_t byte_of(Fill fill)
{
    return fill == Fill::KILLED ? KILLED_BYTE : fill == Fill::SPENT ? SPENT_BYTE : POISON_BYTE;
}

bool is_all(const uint8_t *bytes, uint8_t value, size_t size)
{
    return size == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, size - 1) == 0);
}

bool holds(const Place &place, const uint8_t *bytes, const Cell &cell, Fill fill)
{
    if (cell.size == 0)
        return true;
    if (fill == Fill::DATA)
        return memcmp(bytes,
                      data_of(place.orders, place.round, place.repetition, cell.data, cell.size),
                      cell.size) == 0;
    return is_all(bytes, byte_of(fill), cell.size);
}

uint8_t wanted_at(const Place &place, const Cell &cell, Fill fill, size_t i)
{
    return fill == Fill::DATA
               ? data_of(place.orders, place.round, place.repetition, cell.data, cell.size)[i]
               : byte_of(fill);
}

// What the bytes are that should not be there.
std::string origin(const Place &place, const Cell &cell, const uint8_t *bytes, size_t first)
{
    if (bytes[first] == POISON_BYTE)
        return "what was there before the round (poison)";
    if (bytes[first] == KILLED_BYTE)
        return "the owner's write behind its wait";
    if (bytes[first] == SPENT_BYTE)
        return "the write over a source";
    const size_t n = std::min<size_t>(cell.size - first, 16);
    for (int older = 0; older < 16; older++)
        if (older != place.repetition && cell.data != 0 &&
            memcmp(bytes + first,
                   data_of(place.orders, place.round, older, cell.data, cell.size) + first, n) == 0)
            return "its data in repetition " + std::to_string(older) + " of this round";
    if (n >= 8 && memmem(place.orders.pool, POOL, bytes + first, n) != nullptr)
        return "data of another message or an older round";
    return "bytes of nobody's";
}

[[noreturn]] void tell(const Place &place, const uint8_t *bytes, const Cell &cell, Fill fill,
                       int area)
{
    size_t first = cell.size, last = 0, wrong = 0;
    for (size_t i = 0; i < cell.size; i++)
        if (bytes[i] != wanted_at(place, cell, fill, i)) {
            first = std::min(first, i);
            last = i;
            wrong++;
        }
    const Transaction &t = place.script.transactions[cell.transaction];
    char text[800];
    snprintf(text, sizeof text,
             "WRONG: rank %d, round %llu, repetition %d of %d, transaction %u (%s, ranks %d to %d, "
             "%s), %s: area %d, "
             "%s of %zu bytes at %zu: byte %zu is %02x, not %02x, which is %s; %zu bytes are "
             "wrong, the last is byte %zu; found is %s",
             place.orders.rank, (unsigned long long)place.round, place.repetition,
             place.script.repetitions, cell.transaction, t.what, t.from, t.to,
             t.grouped ? "a group" : "by calls", place.when, area,
             cell.first == Fill::DATA ? "a source"
             : cell.data != 0         ? "a target"
                                      : "a guard",
             cell.size, cell.offset, first, bytes[first], wanted_at(place, cell, fill, first),
             fill == Fill::DATA     ? "the message's data"
             : fill == Fill::KILLED ? "the owner's write behind its wait"
             : fill == Fill::SPENT  ? "the write over a source"
                                    : "poison",
             wrong, last, origin(place, cell, bytes, first).c_str());
    fail(text);
}

// What no message was to touch.
void check_guard(const Place &place, const uint8_t *bytes, size_t offset, size_t size, int area,
                 uint32_t transaction)
{
    const Cell guard = {offset, size, Fill::POISON, Fill::POISON, Fill::POISON, 0, transaction};
    if (!holds(place, bytes, guard, Fill::POISON))
        tell(place, bytes, guard, Fill::POISON, area);
}

} // namespace

void write_image(const Orders &orders, uint64_t round, int repetition, const Part &part,
                 uint8_t *image)
{
    for (const Extent &extent : part.extents) {
        uint8_t *const to = image + extent.image;
        size_t at = extent.low;
        for (const Cell &cell : extent.cells) {
            if (cell.first != Fill::DATA || cell.size == 0)
                continue;
            memset(to + (at - extent.low), POISON_BYTE, cell.offset - at);
            memcpy(to + (cell.offset - extent.low),
                   data_of(orders, round, repetition, cell.data, cell.size), cell.size);
            at = cell.offset + cell.size;
        }
        memset(to + (at - extent.low), POISON_BYTE, extent.high - at);
    }
}

void check_result(const Orders &orders, uint64_t round, int repetition, const Script &script,
                  const uint8_t *result)
{
    const Place place = {orders, round, repetition, script, "in the end"};
    for (const Extent &extent : script.parts[(size_t)orders.rank].extents) {
        const uint8_t *const bytes = result + extent.image - extent.low;
        size_t at = extent.low;
        uint32_t transaction = 0;
        for (const Cell &cell : extent.cells) {
            transaction = cell.transaction;
            check_guard(place, bytes + at, at, cell.offset - at, extent.area, transaction);
            if (!holds(place, bytes + cell.offset, cell, cell.last))
                tell(place, bytes + cell.offset, cell, cell.last, extent.area);
            at = cell.offset + cell.size;
        }
        check_guard(place, bytes + at, at, extent.high - at, extent.area, transaction);
    }
}

void check_snapshots(const Orders &orders, uint64_t round, int repetition, const Script &script,
                     const uint8_t *snapshots)
{
    const Place place = {orders, round, repetition, script, "behind the wait"};
    const Part &part = script.parts[(size_t)orders.rank];
    for (const Snapshot &snapshot : part.snapshots) {
        const Extent &extent = part.extents[(size_t)snapshot.extent];
        const uint8_t *const bytes = snapshots + snapshot.image - snapshot.low;
        for (size_t i = 0; i < snapshot.count; i++) {
            const Cell &cell = extent.cells[snapshot.first + i];
            if (!holds(place, bytes + cell.offset, cell, cell.told))
                tell(place, bytes + cell.offset, cell, cell.told, extent.area);
        }
    }
}
