/* Memory of values while a pickle is read.
 *
 * 1. Values lie in blocks of cells; their text, item arrays and objects in
 *    payloads of 16 << k bytes. A payload belongs to one value and is freed
 *    with it.
 * 2. A mark is a bit of `kind`, set only between pool_mark() and pool_sweep().
 *    Values that are never collected lie outside the blocks and are never
 *    marked.
 * 3. Marking uses a list, not recursion: the file decides the nesting. */
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "formats/pickle_internal.h"

enum {
    CELLS = 4096, /* of a block */
    COLLECT_BYTES = 4 << 20,
    MARKED = 0x40000000, /* bits of value.kind */
    FREE_CELL = 0x20000000,
};

struct pool_block {
    struct pool_block *older;
    size_t used; /* cells handed out so far */
    struct value cells[CELLS];
};

struct pool_free {
    struct pool_free *next;
};

void pool_init(struct value_pool *p, struct arena *a, bool collects, size_t collect_bytes)
{
    *p = (struct value_pool){.arena = a, .collects = collects};
    p->least = p->threshold = collect_bytes ? collect_bytes : COLLECT_BYTES;
}

void pool_release(struct value_pool *p)
{
    free(p->gray);
    *p = (struct value_pool){0};
}

static bool is_collected(enum value_kind kind)
{
    switch (kind) {
    case VALUE_NONE:
    case VALUE_BOOL:
    case VALUE_GLOBAL:
    case VALUE_STORAGE:
    case VALUE_TENSOR:
    case VALUE_SKIPPED:
        return false;
    default:
        return true;
    }
}

static struct value *take_cell(struct value_pool *p)
{
    struct value *v = p->free_values;
    if (v) {
        p->free_values = v->native;
        return v;
    }
    if (!p->blocks || p->blocks->used == CELLS) {
        struct pool_block *b = arena_alloc(p->arena, sizeof *b);
        b->older = p->blocks;
        p->blocks = b;
        p->num_cells += CELLS;
    }
    return &p->blocks->cells[p->blocks->used++];
}

struct value *pool_value(struct value_pool *p, enum value_kind kind)
{
    struct value *v;
    if (p->collects && is_collected(kind)) {
        p->allocated += sizeof *v;
        v = take_cell(p);
        *v = (struct value){.kind = kind};
    } else {
        v = arena_alloc(p->arena, sizeof *v);
        v->kind = kind;
    }
    return v;
}

static unsigned size_class_of(size_t bytes)
{
    unsigned k = 0;
    while ((size_t)16 << k < bytes)
        k++;
    return k;
}

void *pool_payload(struct value_pool *p, size_t bytes)
{
    if (!p->collects) return arena_alloc(p->arena, bytes);
    unsigned k = size_class_of(bytes);
    struct pool_free *f = p->free_payloads[k];
    p->allocated += (size_t)16 << k;
    if (!f) return arena_alloc(p->arena, (size_t)16 << k);
    p->free_payloads[k] = f->next;
    return memset(f, 0, bytes);
}

void pool_payload_free(struct value_pool *p, void *payload, size_t bytes)
{
    if (!p->collects || !payload) return;
    struct pool_free *f = payload;
    unsigned k = size_class_of(bytes);
    f->next = p->free_payloads[k];
    p->free_payloads[k] = f;
}

void pool_value_clear(struct value_pool *p, struct value *v)
{
    switch (v->kind) {
    case VALUE_TEXT:
    case VALUE_BYTES:
    case VALUE_BIG_INT:
        pool_payload_free(p, (void *)(uintptr_t)v->text, (size_t)v->count + 1);
        break;
    case VALUE_TUPLE:
        pool_payload_free(p, v->items, v->count * sizeof *v->items);
        break;
    case VALUE_LIST:
    case VALUE_SET:
        pool_payload_free(p, v->items, value_capacity(v->count) * sizeof *v->items);
        break;
    case VALUE_DICT:
        pool_payload_free(p, v->items, 2 * value_capacity(v->count) * sizeof *v->items);
        break;
    case VALUE_OBJECT:
        pool_payload_free(p, v->object, sizeof *v->object);
        break;
    default:
        break;
    }
}

/* ---- collecting ---- */

static void mark_value(struct value_pool *p, struct value *v)
{
    if (!v || v->kind & MARKED || !is_collected(v->kind)) return;
    if (p->num_gray == p->gray_capacity) {
        p->gray_capacity = p->gray_capacity ? 2 * p->gray_capacity : 256;
        p->gray = must_realloc(p->gray, p->gray_capacity * sizeof *p->gray);
    }
    p->gray[p->num_gray++] = v;
    v->kind = (enum value_kind)(v->kind | MARKED);
}

static void mark_parts(struct value_pool *p, const struct value *v)
{
    const struct value_object *o = v->object;
    size_t width = 1;
    switch (v->kind & ~(unsigned)MARKED) {
    case VALUE_DICT:
        width = 2;
        /* fall through */
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_SET:
        for (size_t i = 0; i < width * v->count; i++)
            mark_value(p, v->items[i]);
        break;
    case VALUE_OBJECT:
        mark_value(p, o->callable);
        mark_value(p, o->args);
        mark_value(p, o->kwargs);
        mark_value(p, o->state);
        mark_value(p, o->items);
        mark_value(p, o->pairs);
        mark_value(p, o->rebuild);
        break;
    default:
        break;
    }
}

void pool_mark(struct value_pool *p, struct value *root)
{
    mark_value(p, root);
    while (p->num_gray)
        mark_parts(p, p->gray[--p->num_gray]);
}

/* A collection's work raises the next threshold, so the total stays linear. */
void pool_sweep(struct value_pool *p, size_t num_roots)
{
    size_t live = 0;
    for (struct pool_block *b = p->blocks; b; b = b->older)
        for (size_t i = 0; i < b->used; i++) {
            struct value *v = &b->cells[i];
            if (v->kind & FREE_CELL) continue;
            if (v->kind & MARKED) {
                v->kind = (enum value_kind)(v->kind & ~(unsigned)MARKED);
                live++;
                continue;
            }
            pool_value_clear(p, v);
            v->kind = (enum value_kind)FREE_CELL;
            v->native = p->free_values;
            p->free_values = v;
        }
    p->allocated = 0;
    p->threshold = p->least + (2 * live + p->num_cells / 2 + num_roots) * sizeof(struct value);
}
