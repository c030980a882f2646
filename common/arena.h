/* arena.h - memory for names, shapes and plans, freed all at once.
 *
 * Allocation never returns NULL: a process without memory for a few kilobytes
 * prints a message and ends with ERR_MEMORY. Tensor bytes never live in an
 * arena. Not thread-safe. */
#ifndef FERRY_COMMON_ARENA_H
#define FERRY_COMMON_ARENA_H

#include <stdarg.h>
#include <stddef.h>

#include "common/status.h"

struct arena_block;
struct arena_spare;

enum { ARENA_SPARE_SIZES = 24 };

struct arena {
    struct arena_block *newest;
    char *at, *end;     /* the free part of the newest block */
    size_t total_bytes; /* allocated since arena_init */
    /* Arrays that were outgrown, for others: of 2^i to 2^(i + 1) bytes each. */
    struct arena_spare *spare[ARENA_SPARE_SIZES];
};

void arena_init(struct arena *a);
void arena_release(struct arena *a); /* frees all blocks; the arena can be used again */

/* Zeroed memory, aligned for any type. */
void *arena_alloc(struct arena *a, size_t bytes);
/* Like arena_alloc() for count elements; an overflow ends the process. */
void *arena_array(struct arena *a, size_t count, size_t bytes);
void *arena_copy(struct arena *a, const void *data, size_t bytes);
/* A NUL-terminated copy of text[0..length). */
char *arena_text(struct arena *a, const char *text, size_t length);
/* A copy of a NUL-terminated text. */
char *arena_copy_text(struct arena *a, const char *text);
char *arena_printf(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A growing array of T in an arena: items, count and capacity in the caller's
 * struct. New items are zeroed. The old array, from arena_grow() or allocated
 * with this capacity, is freed or used for others when an array outgrows it. */
#define ARENA_PUSH(a, items, count, capacity)                                                      \
    ((items) = arena_grow((a), (items), (count), &(capacity), sizeof *(items)), &(items)[(count)++])
void *arena_grow(struct arena *a, void *items, size_t count, size_t *capacity, size_t bytes);

#endif
