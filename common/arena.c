#include "common/arena.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/asan.h"
#include "common/memory.h"

/* Behind each allocation. ASan forbids this gap, free bytes of a block and the
 * old copy of a grown array. */
enum { GAP = WITH_ASAN ? 16 : 0 };

struct arena_block {
    struct arena_block *older;
    size_t bytes; /* of data */
    max_align_t data[];
};

enum { FIRST_BLOCK = 4 << 10, LARGEST_BLOCK = 1 << 20, LARGEST_SHARE = LARGEST_BLOCK / 4 };

void arena_init(struct arena *a)
{
    *a = (struct arena){0};
}

void arena_release(struct arena *a)
{
    while (a->newest) {
        struct arena_block *older = a->newest->older;
        free(a->newest);
        a->newest = older;
    }
    arena_init(a);
}

/* Blocks double up to LARGEST_BLOCK: a small description costs little, a large
 * one few calls. Anything above a quarter of a block gets its own, behind the
 * newest. */
static char *block_for(struct arena *a, size_t bytes)
{
    size_t size = a->total_bytes < FIRST_BLOCK ? FIRST_BLOCK : a->total_bytes;
    if (size > LARGEST_BLOCK) size = LARGEST_BLOCK;
    bool alone = bytes > size / 4;
    struct arena_block *b = must_malloc(sizeof *b + (alone ? bytes : size));
    b->bytes = alone ? bytes : size;
    ASAN_POISON_MEMORY_REGION(b->data, b->bytes);
    if (alone && a->newest) {
        b->older = a->newest->older;
        a->newest->older = b;
        return (char *)b->data;
    }
    b->older = a->newest;
    a->newest = b;
    a->at = (char *)b->data;
    a->end = a->at + b->bytes;
    return NULL;
}

static size_t aligned_bytes(size_t bytes)
{
    const size_t unit = _Alignof(max_align_t);
    return (bytes + unit - 1) / unit * unit;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) out_of_memory(bytes);
    const size_t used = bytes;
    bytes = aligned_bytes(bytes ? bytes : 1) + GAP;
    const bool fits = bytes <= (size_t)(a->end - a->at) && bytes <= LARGEST_SHARE;
    char *p = fits ? NULL : block_for(a, bytes);
    if (!p) {
        p = a->at;
        a->at += bytes;
    }
    a->total_bytes += bytes - GAP;
    ASAN_UNPOISON_MEMORY_REGION(p, used);
    return memset(p, 0, used);
}

/* Text needs no alignment and fills the block from its end. */
char *arena_text(struct arena *a, const char *text, size_t length)
{
    if (length > SIZE_MAX / 2) out_of_memory(length);
    size_t bytes = length + 1;
    if (GAP) bytes = aligned_bytes(bytes) + GAP;
    char *p = bytes <= (size_t)(a->end - a->at) ? NULL : block_for(a, bytes);
    if (!p) p = a->end -= bytes;
    a->total_bytes += length + 1;
    ASAN_UNPOISON_MEMORY_REGION(p, length + 1);
    if (length) memcpy(p, text, length);
    p[length] = '\0';
    return p;
}

void *arena_array(struct arena *a, size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) out_of_memory(SIZE_MAX);
    return arena_alloc(a, total);
}

void *arena_copy(struct arena *a, const void *data, size_t bytes)
{
    void *p = arena_alloc(a, bytes);
    if (bytes) memcpy(p, data, bytes);
    return p;
}

char *arena_copy_text(struct arena *a, const char *text)
{
    return arena_text(a, text, strlen(text));
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    char short_text[256], *text = short_text;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(short_text, sizeof short_text, fmt, args);
    va_end(args);
    size_t length = n < 0 ? 0 : (size_t)n;
    if (length >= sizeof short_text) {
        text = must_malloc(length + 1);
        va_start(args, fmt);
        vsnprintf(text, length + 1, fmt, args);
        va_end(args);
    }
    char *copy = arena_text(a, text, length);
    if (text != short_text) free(text);
    return copy;
}

/* ---- arrays that grow ---- */

struct arena_spare {
    struct arena_spare *next;
    size_t bytes;
};

static struct arena_spare **spare_of(struct arena *a, size_t bytes)
{
    const unsigned size = (unsigned)(63 - __builtin_clzll(bytes | 1));
    return &a->spare[size < ARENA_SPARE_SIZES ? size : ARENA_SPARE_SIZES - 1];
}

/* Whether memory is the arena's. */
static bool is_owner(const struct arena *a, const void *memory)
{
    const struct arena_block *b = a->newest;
    const uintptr_t at = (uintptr_t)memory;
    while (b && (at < (uintptr_t)b->data || at - (uintptr_t)b->data >= b->bytes))
        b = b->older;
    return b;
}

/* Under ASan it stays forbidden. */
static void keep_spare(struct arena *a, void *items, size_t bytes)
{
    struct arena_spare **first = spare_of(a, bytes), *spare = items;
    assert(!WITH_ASAN || is_owner(a, items));
    ASAN_POISON_MEMORY_REGION(items, bytes);
    if (WITH_ASAN || bytes < sizeof *spare) return;
    *spare = (struct arena_spare){*first, bytes};
    *first = spare;
}

static void *take_spare(struct arena *a, size_t bytes)
{
    struct arena_spare **first = spare_of(a, bytes), *spare = *first;
    if (!spare || spare->bytes < bytes) return NULL;
    *first = spare->next;
    return memset(spare, 0, bytes);
}

/* The link to an array's own block; NULL: it shares one. */
static struct arena_block **link_to_block(struct arena *a, const void *items, size_t bytes)
{
    if (bytes <= LARGEST_SHARE || WITH_ASAN) return NULL;
    for (struct arena_block **link = &a->newest; *link; link = &(*link)->older)
        if ((const void *)(*link)->data == items) return link;
    return NULL;
}

static void *grow_block(struct arena *a, struct arena_block **link, size_t old, size_t bytes)
{
    struct arena_block *b = *link = must_realloc(*link, sizeof *b + aligned_bytes(bytes));
    b->bytes = aligned_bytes(bytes);
    if (link == &a->newest) a->at = a->end = (char *)b->data;
    a->total_bytes += bytes - old;
    memset((char *)b->data + old, 0, bytes - old);
    return b->data;
}

/* Large arrays grow by a quarter, in place. */
void *arena_grow(struct arena *a, void *items, size_t count, size_t *capacity, size_t bytes)
{
    if (count < *capacity) return items;
    const size_t old = *capacity * bytes;
    struct arena_block **link = link_to_block(a, items, old);
    *capacity = link ? *capacity + *capacity / 4 : *capacity ? *capacity * 2 : 8;
    size_t total;
    if (__builtin_mul_overflow(*capacity, bytes, &total) || total > SIZE_MAX / 2)
        out_of_memory(SIZE_MAX);
    if (link) return grow_block(a, link, old, total);
    void *larger = take_spare(a, total);
    if (!larger) larger = arena_alloc(a, total);
    if (!count) return larger;
    memcpy(larger, items, count * bytes);
    keep_spare(a, items, old);
    return larger;
}
