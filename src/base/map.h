// SPDX-License-Identifier: BSD-3-Clause
// A hash map from a 64-bit hash to a pointer. The caller says when two keys are equal. Open
// addressing; the owner locks.
#ifndef PHI_BASE_MAP_H
#define PHI_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct phi_map_entry {
    uint64_t hash;
    void *value; // NULL: free; a deleted value leaves a mark of map.c
};

struct phi_map {
    struct phi_map_entry *entries;
    size_t capacity; // a power of two, or 0
    size_t used;     // values and tombs
    size_t count;    // values
};

typedef bool (*phi_map_equal)(const void *value, const void *key);

// An all-zero phi_map is empty. fini frees the table, not the values.
void phi_map_fini(struct phi_map *map);

// find returns the value with this hash for which equal(value, key) holds, or NULL. It allocates
// nothing.
void *phi_map_find(const struct phi_map *map, uint64_t hash, phi_map_equal equal, const void *key);

// insert adds a value, which must not be there yet. 0, or -ENOMEM: the map is as before.
int phi_map_insert(struct phi_map *map, uint64_t hash, void *value);

// remove takes this very value out. It returns false if the value was not there.
bool phi_map_remove(struct phi_map *map, uint64_t hash, const void *value);

// next walks all values. Start with *cursor = 0; NULL at the end. During a walk the map must not
// change, but for phi_map_remove of the value just returned.
void *phi_map_next(const struct phi_map *map, size_t *cursor);

#endif
