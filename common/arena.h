/* arena.h - memory for descriptions: names, shapes, plans. It is freed all at once.
 *
 * Allocation never returns NULL: a process that cannot get a few more kilobytes prints a message
 * and ends with ERR_MEMORY. Tensor bytes never live in an arena. Not thread-safe. */
#ifndef FERRY_COMMON_ARENA_H
#define FERRY_COMMON_ARENA_H

#include <stdarg.h>
#include <stddef.h>

#include "common/status.h"

struct arena_block;

struct arena {
    struct arena_block *newest;
    char *at, *end;     /* the free part of the newest block */
    size_t total_bytes; /* allocated since arena_init */
};

void arena_init(struct arena *a);
void arena_release(struct arena *a); /* frees all blocks; the arena can be used again */

/* Zeroed memory, aligned for any type. */
void *arena_alloc(struct arena *a, size_t bytes);
/* The same for count elements; ends the process if count * bytes overflows. */
void *arena_array(struct arena *a, size_t count, size_t bytes);
void *arena_copy(struct arena *a, const void *data, size_t bytes);
/* A NUL-terminated copy of text[0..length). */
char *arena_text(struct arena *a, const char *text, size_t length);
/* A copy of a whole text. */
char *arena_copy_text(struct arena *a, const char *text);
char *arena_printf(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A growing array of T in an arena: items, count and capacity side by side in the caller's struct.
 * The old copy stays in the arena, so the total is at most twice what is used. */
#define ARENA_PUSH(a, items, count, capacity)                                                      \
    ((items) = arena_grow((a), (items), (count), &(capacity), sizeof *(items)), &(items)[(count)++])
void *arena_grow(struct arena *a, void *items, size_t count, size_t *capacity, size_t bytes);

#endif
