#include "common/arena.h"

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
    max_align_t data[];
};

enum { FIRST_BLOCK = 4 << 10, LARGEST_BLOCK = 1 << 20 };

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
    ASAN_POISON_MEMORY_REGION(b->data, alone ? bytes : size);
    if (alone && a->newest) {
        b->older = a->newest->older;
        a->newest->older = b;
        return (char *)b->data;
    }
    b->older = a->newest;
    a->newest = b;
    a->at = (char *)b->data;
    a->end = a->at + (alone ? bytes : size);
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
    char *p = bytes <= (size_t)(a->end - a->at) ? NULL : block_for(a, bytes);
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

void *arena_grow(struct arena *a, void *items, size_t count, size_t *capacity, size_t bytes)
{
    if (count < *capacity) return items;
    *capacity = *capacity ? *capacity * 2 : 8;
    void *larger = arena_array(a, *capacity, bytes);
    if (!count) return larger;
    memcpy(larger, items, count * bytes);
    ASAN_POISON_MEMORY_REGION(items, count * bytes);
    return larger;
}
