/* value_internal.h - making, reading and writing values, inside formats/. */
#ifndef FERRY_FORMATS_VALUE_INTERNAL_H
#define FERRY_FORMATS_VALUE_INTERNAL_H

#include "formats/value.h"

/* Capacity of the array of a LIST, SET or DICT with `count` items (DICT:
 * pairs). Values do not store it: an array with count == value_capacity(count)
 * is full and grows. */
static inline size_t value_capacity(size_t count)
{
    size_t capacity = count ? 4 : 0;
    while (capacity < count)
        capacity *= 2;
    return capacity;
}

/* Row-major strides of shape; as in torch, a size of 0 counts as 1. */
void value_strides(const uint64_t *shape, unsigned num_dims, uint64_t *stride);

/* A hash table from pointers to numbers. On the heap. */
struct pointer_map {
    struct pointer_slot {
        const void *key; /* NULL: free */
        uint64_t value;
    } * slots;
    size_t count, num_slots; /* a power of two */
};
/* The number of key; adds a new key with 0. *added (may be NULL): it is new. */
uint64_t *pointer_map_at(struct pointer_map *m, const void *key, bool *added);
void pointer_map_release(struct pointer_map *m);

/* The torch rebuild function of v if v is a tensor but not a plain one (sparse,
 * quantised, nested ...); else NULL. */
const struct value_global *value_rebuilt_by(const struct value *v);

/* value_walk() with an option. rebuilt: also calls visit for values with a
 * value_rebuilt_by(), without entering them. */
MUST_CHECK enum status value_walk_all(const struct value *v, const char *path, bool rebuilt,
                                      enum status (*visit)(void *context, const char *path,
                                                           const struct value *v,
                                                           struct error *err),
                                      void *context, struct error *err);

#endif
