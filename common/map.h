/* map.h - names to numbers: a hash table whose keys are texts of the caller.
 *
 * Values are any numbers, such as indices into an array. Not thread-safe while adding. */
#ifndef FERRY_COMMON_MAP_H
#define FERRY_COMMON_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_slot {
    const char *key; /* NULL: free */
    size_t value;
};

struct map {
    struct map_slot *slots; /* on the heap, a power of two of them */
    size_t count, num_slots;
};

void map_release(struct map *m);
/* Adds key, which must outlive the map, with value. false if the key is there already; then *old
 * (if not NULL) is its value, and nothing changes. */
bool map_add(struct map *m, const char *key, size_t value, size_t *old);
bool map_get(const struct map *m, const char *key, size_t *value);

/* FNV-1a with a random start for each process, so that nobody can make a file whose names all fall
 * into one slot. Do not store it. */
uint64_t hash_bytes(const void *data, size_t bytes);

#endif
