/* value_internal.h - what the makers, readers and writers of values share; for formats/ only. */
#ifndef FERRY_FORMATS_VALUE_INTERNAL_H
#define FERRY_FORMATS_VALUE_INTERNAL_H

#include "formats/value.h"

/* How many items (DICT: pairs) the array of a LIST, SET or DICT of `count` of them has room for. It
 * follows from count alone, so that no value has to store it: an array grows when count is one. */
static inline size_t value_capacity(size_t count)
{
    size_t capacity = count ? 4 : 0;
    while (capacity < count)
        capacity *= 2;
    return capacity;
}

/* Row-major strides of shape. As torch has it, dimensions of size 0 count as 1. */
void value_strides(const uint64_t *shape, unsigned num_dims, uint64_t *stride);

/* A table of pointers seen, each with a number. On the heap. */
struct pointer_map {
    struct pointer_slot {
        const void *key; /* NULL: free */
        uint64_t value;
    } * slots;
    size_t count, num_slots; /* a power of two */
};
/* The number of key, which is 0 where it was not there; *added (may be NULL) says which. */
uint64_t *pointer_map_at(struct pointer_map *m, const void *key, bool *added);
void pointer_map_release(struct pointer_map *m);

/* Which of torch's rebuild functions made v, which is no plain tensor: sparse, quantised, nested
 * ... NULL: none. */
const struct value_global *value_rebuilt_by(const struct value *v);

/* value_walk() with more say: whether visit is also called for values that value_rebuilt_by()
 * knows, which are then not entered. */
MUST_CHECK enum status value_walk_all(const struct value *v, const char *path, bool rebuilt,
                                      enum status (*visit)(void *context, const char *path,
                                                           const struct value *v,
                                                           struct error *err),
                                      void *context, struct error *err);

#endif
