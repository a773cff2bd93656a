// SPDX-License-Identifier: BSD-3-Clause
#include "base/map.h"

#include <errno.h>
#include <stdlib.h>

enum { SMALLEST = 16 };

// This marks a deleted entry. It keeps the probe chains that run through the entry whole.
static char tomb_byte;
#define TOMB ((void *)&tomb_byte)

void phi_map_fini(struct phi_map *map)
{
    free(map->entries);
    *map = (struct phi_map){0};
}

void *phi_map_find(const struct phi_map *map, uint64_t hash, phi_map_equal equal, const void *key)
{
    size_t mask = map->capacity - 1;

    if (map->capacity == 0)
        return NULL;
    // Ends, because at least a quarter of the entries is free.
    for (size_t i = hash & mask; map->entries[i].value; i = (i + 1) & mask) {
        const struct phi_map_entry *entry = &map->entries[i];

        if (entry->hash == hash && entry->value != TOMB && equal(entry->value, key))
            return entry->value;
    }
    return NULL;
}

// place puts a value where the probe chain of its hash ends. It returns whether the entry was free,
// and no tomb.
static bool place(struct phi_map_entry *entries, size_t capacity, uint64_t hash, void *value)
{
    size_t mask = capacity - 1;
    size_t i = hash & mask;
    bool was_free;

    while (entries[i].value && entries[i].value != TOMB)
        i = (i + 1) & mask;
    was_free = !entries[i].value;
    entries[i] = (struct phi_map_entry){.hash = hash, .value = value};
    return was_free;
}

// rebuild removes the tombs, and makes room for at least as many values again.
static int rebuild(struct phi_map *map)
{
    size_t capacity = SMALLEST;
    struct phi_map_entry *entries;

    while (capacity < (map->count + 1) * 2)
        capacity *= 2;
    entries = calloc(capacity, sizeof(*entries));
    if (!entries)
        return -ENOMEM;
    for (size_t i = 0; i < map->capacity; i++) {
        const struct phi_map_entry *entry = &map->entries[i];

        if (entry->value && entry->value != TOMB)
            place(entries, capacity, entry->hash, entry->value);
    }
    free(map->entries);
    map->entries = entries;
    map->capacity = capacity;
    map->used = map->count;
    return 0;
}

int phi_map_insert(struct phi_map *map, uint64_t hash, void *value)
{
    int rc;

    if ((map->used + 1) * 4 > map->capacity * 3) {
        rc = rebuild(map);
        if (rc < 0)
            return rc;
    }
    if (place(map->entries, map->capacity, hash, value))
        map->used++;
    map->count++;
    return 0;
}

bool phi_map_remove(struct phi_map *map, uint64_t hash, const void *value)
{
    size_t mask = map->capacity - 1;

    if (map->capacity == 0)
        return false;
    for (size_t i = hash & mask; map->entries[i].value; i = (i + 1) & mask) {
        if (map->entries[i].value == value && value != TOMB) {
            map->entries[i].value = TOMB;
            map->count--;
            return true;
        }
    }
    return false;
}

void *phi_map_next(const struct phi_map *map, size_t *cursor)
{
    while (*cursor < map->capacity) {
        void *value = map->entries[(*cursor)++].value;

        if (value && value != TOMB)
            return value;
    }
    return NULL;
}
