/* map.h - a hash table from names to numbers, such as indices into an array.
 *
 * Keys are texts of the caller. Not thread-safe while adding. */
#ifndef FERRY_COMMON_MAP_H
#define FERRY_COMMON_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_slot {
    const char *key; /* NULL: free */
    uint64_t hash;   /* of the key */
    size_t value;
};

struct map {
    struct map_slot *slots;  /* on the heap */
    size_t count, num_slots; /* num_slots is a power of two */
};

void map_release(struct map *m);
/* Adds key, which must outlive the map, with value. false if the key exists;
 * then *old (if not NULL) is its value, and nothing changes. */
bool map_add(struct map *m, const char *key, size_t value, size_t *old);
bool map_get(const struct map *m, const char *key, size_t *value);

/* With a random start for each process, so no file can be made whose names all
 * collide. Do not store it. */
uint64_t hash_bytes(const void *data, size_t bytes);

#endif
