/* Walks values.
 *
 * 1. No recursion: the file decides the nesting.
 * 2. A container is entered once, however often it is shared.
 * 3. The path never grows much past VALUE_PATH_BYTES: the length of a hostile
 *    key is not multiplied by the depth. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/map.h"
#include "common/memory.h"
#include "common/utf8.h"
#include "formats/value_internal.h"

/* ---- pointers seen ---- */

static struct pointer_slot *pointer_slot_of(const struct pointer_map *m, const void *key)
{
    uint64_t h = (uint64_t)(uintptr_t)key * 0x9E3779B97F4A7C15u;
    for (size_t i = (size_t)(h >> 32);; i++) {
        struct pointer_slot *s = &m->slots[i & (m->num_slots - 1)];
        if (!s->key || s->key == key) return s;
    }
}

static void grow_pointer_map(struct pointer_map *m)
{
    struct pointer_map larger = {.count = m->count};
    larger.num_slots = m->num_slots ? 2 * m->num_slots : 64;
    larger.slots = must_calloc(larger.num_slots, sizeof *larger.slots);
    for (size_t i = 0; i < m->num_slots; i++)
        if (m->slots[i].key) *pointer_slot_of(&larger, m->slots[i].key) = m->slots[i];
    free(m->slots);
    *m = larger;
}

uint64_t *pointer_map_at(struct pointer_map *m, const void *key, bool *added)
{
    if (2 * m->count >= m->num_slots) grow_pointer_map(m);
    struct pointer_slot *s = pointer_slot_of(m, key);
    if (added) *added = !s->key;
    if (!s->key) {
        s->key = key;
        m->count++;
    }
    return &s->value;
}

void pointer_map_release(struct pointer_map *m)
{
    free(m->slots);
    *m = (struct pointer_map){0};
}

/* ---- the parts of a container ---- */

enum { OBJECT_PARTS = 6 };

static bool is_container(const struct value *v)
{
    switch (v->kind) {
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_SET:
    case VALUE_DICT:
    case VALUE_OBJECT:
        return true;
    default:
        return false;
    }
}

static size_t num_parts(const struct value *v)
{
    return v->kind == VALUE_OBJECT ? OBJECT_PARTS : v->count;
}

static bool has_slots(const struct value *state)
{
    return state && state->kind == VALUE_TUPLE && state->count == 2 &&
           state->items[1]->kind == VALUE_DICT &&
           (state->items[0]->kind == VALUE_DICT || state->items[0]->kind == VALUE_NONE);
}

/* Part i of an object, and the word it adds to the path; NULL: none. */
static const struct value *object_part(const struct value_object *o, size_t i, const char **word)
{
    bool slots = has_slots(o->state);
    const struct value *parts[OBJECT_PARTS] = {
        slots ? o->state->items[0] : o->state,
        slots ? o->state->items[1] : NULL,
        o->items,
        o->pairs,
        o->args,
        o->kwargs,
    };
    *word = i == 4 ? "args" : i == 5 ? "kwargs" : NULL;
    return parts[i];
}

/* ---- repeated keys ---- */

static bool same_text(const struct value *a, const struct value *b)
{
    return a->count == b->count && memcmp(a->text, b->text, a->count) == 0;
}

/* Flags the pairs of dict whose text key is repeated later; NULL: none. */
static bool *superseded_keys(const struct value *dict)
{
    size_t num_slots = 4;
    bool *flags = NULL;
    if (dict->count < 2) return NULL;
    while (num_slots < 2 * (size_t)dict->count)
        num_slots *= 2;
    uint32_t *slots = must_calloc(num_slots, sizeof *slots); /* pair + 1 */
    for (uint32_t i = dict->count; i-- > 0;) {
        const struct value *key = dict->items[2 * (size_t)i];
        if (key->kind != VALUE_TEXT) continue;
        uint64_t h = hash_bytes(key->text, key->count);
        size_t at = (size_t)(h ^ h >> 32) & (num_slots - 1);
        while (slots[at] && !same_text(key, dict->items[2 * (size_t)(slots[at] - 1)]))
            at = (at + 1) & (num_slots - 1);
        if (!slots[at]) {
            slots[at] = i + 1;
            continue;
        }
        if (!flags) flags = must_calloc(dict->count, sizeof *flags);
        flags[i] = true;
    }
    free(slots);
    return flags;
}

/* ---- the walk ---- */

enum name_state { NAME_GOOD, NAME_BROKEN, NAME_TOO_LONG };

struct frame {
    const struct value *v;
    size_t next;
    size_t path_length; /* of v itself */
    bool named;         /* whether the path has a component, perhaps an empty one */
    enum name_state name;
    bool *superseded; /* DICT */
};

struct walk {
    struct strbuf path;
    struct pointer_map entered;
    struct frame *frames;
    size_t depth, capacity;
    bool named; /* of path */
    enum name_state name;
    bool rebuilt;
    enum status (*visit)(void *context, const char *path, const struct value *v, struct error *err);
    void *context;
};

static void add_word(struct walk *w, const char *word, size_t length)
{
    if (w->path.length + length > VALUE_PATH_BYTES) {
        if (w->name == NAME_GOOD) w->name = NAME_TOO_LONG;
        return;
    }
    if (w->named) strbuf_add_char(&w->path, '.');
    w->named = true;
    for (size_t i = 0; i < length; i++)
        strbuf_add(&w->path, word[i] ? &word[i] : "\xC0\x80", word[i] ? 1 : 2);
}

static void add_key(struct walk *w, const struct value *key)
{
    size_t bad;
    struct strbuf text = {0};
    if (key->kind == VALUE_TEXT) {
        if (!utf8_valid(key->text, key->count, &bad)) w->name = NAME_BROKEN;
        add_word(w, key->text, key->count);
        return;
    }
    value_print(&text, key, 200);
    add_word(w, text.data, text.length);
    strbuf_release(&text);
}

static void add_position(struct walk *w, size_t number)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%zu", number);
    add_word(w, text, (size_t)n);
}

static void enter_container(struct walk *w, const struct value *v)
{
    bool added;
    pointer_map_at(&w->entered, v, &added);
    if (!added) return;
    if (w->depth == w->capacity) {
        w->capacity = w->capacity ? 2 * w->capacity : 16;
        w->frames = must_realloc(w->frames, w->capacity * sizeof *w->frames);
    }
    w->frames[w->depth++] = (struct frame){
        .v = v,
        .path_length = w->path.length,
        .named = w->named,
        .name = w->name,
        .superseded = v->kind == VALUE_DICT ? superseded_keys(v) : NULL,
    };
}

static void leave_container(struct walk *w)
{
    free(w->frames[--w->depth].superseded);
}

/* The next part of the top frame, with its name in w->path. NULL: skip it. */
static const struct value *next_part(struct walk *w)
{
    struct frame *f = &w->frames[w->depth - 1];
    size_t i = f->next++;
    const char *word;
    const struct value *part;
    w->path.length = f->path_length;
    w->named = f->named;
    w->name = f->name;
    switch (f->v->kind) {
    case VALUE_DICT:
        if (f->superseded && f->superseded[i]) return NULL;
        add_key(w, f->v->items[2 * i]);
        return f->v->items[2 * i + 1];
    case VALUE_OBJECT:
        part = object_part(f->v->object, i, &word);
        if (part && word) add_word(w, word, strlen(word));
        return part;
    default:
        add_position(w, i);
        return f->v->items[i];
    }
}

static enum status fail_name(struct walk *w, struct error *err)
{
    struct strbuf shown = {0};
    size_t n = w->path.length < 200 ? w->path.length : 200;
    strbuf_add_escaped(&shown, w->path.data, n);
    enum status st = w->name == NAME_BROKEN
                         ? fail(err, ERR_CORRUPT, "tensor %s: its name is not UTF-8", shown.data)
                         : fail(err, ERR_CORRUPT, "tensor %s...: its name is longer than %d bytes",
                                shown.data ? shown.data : "", VALUE_PATH_BYTES);
    strbuf_release(&shown);
    return st;
}

/* Values of _rebuild_wrapper_subclass (DTensor ...) have data only in their
 * attributes, which are visited. */
const struct value_global *value_rebuilt_by(const struct value *v)
{
    if (v->kind != VALUE_OBJECT) return NULL;
    const struct value *by = v->object->rebuild ? v->object->rebuild : v->object->callable;
    if (by->kind != VALUE_GLOBAL || strncmp(by->global->module, "torch", 5) != 0 ||
        strncmp(by->global->name, "_rebuild_", 9) != 0 ||
        strcmp(by->global->name, "_rebuild_wrapper_subclass") == 0)
        return NULL;
    return by->global;
}

static enum status visit_part(struct walk *w, const struct value *v, struct error *err)
{
    if (v->kind == VALUE_TENSOR || (w->rebuilt && value_rebuilt_by(v))) {
        if (w->name != NAME_GOOD) return fail_name(w, err);
        strbuf_add(&w->path, "", 0); /* the NUL */
        return w->visit(w->context, w->path.data, v, err);
    }
    if (is_container(v)) enter_container(w, v);
    return OK;
}

enum status value_walk_all(const struct value *v, const char *path, bool rebuilt,
                           enum status (*visit)(void *context, const char *path,
                                                const struct value *v, struct error *err),
                           void *context, struct error *err)
{
    struct walk w = {.named = *path, .rebuilt = rebuilt, .visit = visit, .context = context};
    strbuf_add_text(&w.path, path);
    enum status st = visit_part(&w, v, err);
    while (!st && w.depth) {
        struct frame *f = &w.frames[w.depth - 1];
        if (f->next == num_parts(f->v)) {
            leave_container(&w);
            continue;
        }
        const struct value *part = next_part(&w);
        if (part) st = visit_part(&w, part, err);
    }
    while (w.depth)
        leave_container(&w);
    free(w.frames);
    pointer_map_release(&w.entered);
    strbuf_release(&w.path);
    return st;
}

enum status value_walk(const struct value *v, const char *path,
                       enum status (*visit)(void *context, const char *path,
                                            const struct value *tensor, struct error *err),
                       void *context, struct error *err)
{
    return value_walk_all(v, path, false, visit, context, err);
}
