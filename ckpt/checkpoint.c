#include "ckpt/checkpoint.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "common/strbuf.h"

void checkpoint_init(struct checkpoint *c, const char *path)
{
    *c = (struct checkpoint){.training.iteration = -1};
    training_init(&c->training.run);
    arena_init(&c->arena);
    catalog_init(&c->catalog, &c->arena);
    c->path = c->folder = arena_copy_text(&c->arena, path);
}

void checkpoint_release(struct checkpoint *c)
{
    catalog_release(&c->catalog);
    arena_release(&c->arena);
}

static void add_note_line(struct notes *n, struct arena *a, const char *fmt, va_list args)
{
    char text[1024];
    vsnprintf(text, sizeof text, fmt, args);
    *ARENA_PUSH(a, n->lines, n->count, n->capacity) = arena_copy_text(a, text);
}

void notes_add(struct notes *n, struct arena *a, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_note_line(n, a, fmt, args);
    va_end(args);
}

void notes_print(const struct notes *n)
{
    for (size_t i = 0; i < n->count; i++)
        fprintf(stderr, "note: %s\n", n->lines[i]);
}

void checkpoint_note(struct checkpoint *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_note_line(&c->notes, &c->arena, fmt, args);
    va_end(args);
}

void unknown_fields_add(struct unknown_fields *u, struct arena *a, const char *file,
                        const char *name, const char *value, bool allowed)
{
    *ARENA_PUSH(a, u->items, u->count, u->capacity) =
        (struct unknown_field){arena_copy_text(a, file),
                               arena_copy_text(a, name),
                               arena_copy_text(a, value),
                               allowed,
                               NULL,
                               NULL};
}

void unknown_fields_add_clash(struct unknown_fields *u, struct arena *a,
                              const struct unknown_field *field)
{
    unknown_fields_add(u, a, field->file, field->name, field->value, field->allowed);
    struct unknown_field *added = &u->items[u->count - 1];
    added->other = arena_copy_text(a, field->other);
    added->other_value = arena_copy_text(a, field->other_value);
}

bool unknown_fields_refused(const struct unknown_fields *u)
{
    for (size_t i = 0; i < u->count; i++)
        if (!u->items[i].allowed) return true;
    return false;
}

const struct unknown_field *unknown_fields_find(const struct unknown_fields *u, const char *name)
{
    for (size_t i = 0; i < u->count; i++)
        if (strcmp(u->items[i].name, name) == 0) return &u->items[i];
    return NULL;
}

bool unknown_fields_match(const struct unknown_fields *u, const char *glob)
{
    for (size_t i = 0; i < u->count; i++)
        if (fnmatch(glob, u->items[i].name, 0) == 0 ||
            (u->items[i].other && fnmatch(glob, u->items[i].other, 0) == 0))
            return true;
    return false;
}

/* Adds a name or value of a file: cut if long, control characters escaped. */
static void add_cut(struct strbuf *text, const char *from)
{
    enum { MAX_BYTES = 48, UTF8_MARK = 0xC0, UTF8_NEXT = 0x80 };
    size_t length = strlen(from), shown = length;
    if (length > MAX_BYTES) shown = MAX_BYTES;
    while (shown && shown < length && ((unsigned char)from[shown] & UTF8_MARK) == UTF8_NEXT)
        shown--;
    for (size_t i = 0; i < shown; i++)
        if (iscntrl((unsigned char)from[i]))
            strbuf_printf(text, "\\x%02x", (unsigned)(unsigned char)from[i]);
        else
            strbuf_add_char(text, from[i]);
    if (shown < length) strbuf_add_text(text, "..");
}

const char *unknown_fields_text(const struct unknown_fields *u, bool all, struct arena *a)
{
    enum { SHOWN_FIELDS = 5 };
    struct strbuf text = {0};
    const char *file = NULL;
    size_t count = 0;
    for (size_t i = 0; i < u->count; i++) {
        const struct unknown_field *f = &u->items[i];
        if ((f->allowed && !all) || count++ >= SHOWN_FIELDS) continue;
        bool same = file && strcmp(file, f->file) == 0;
        strbuf_add_text(&text, same ? ", " : file ? "; " : "");
        if (!same) strbuf_printf(&text, "%s: ", f->file);
        add_cut(&text, f->name);
        strbuf_add_char(&text, ' ');
        add_cut(&text, f->value);
        if (f->other) {
            strbuf_add_text(&text, " against ");
            add_cut(&text, f->other);
            strbuf_add_char(&text, ' ');
            add_cut(&text, f->other_value);
        }
        file = f->file;
    }
    if (count > SHOWN_FIELDS) strbuf_printf(&text, " and %zu more", count - SHOWN_FIELDS);
    const char *out = count ? arena_text(a, text.data, text.length) : NULL;
    strbuf_release(&text);
    return out;
}

const char *count_names_text(struct arena *a, const char *what, const char *const *names,
                             size_t count)
{
    enum { SHOWN_NAMES = 5 };
    struct strbuf s = {0};
    strbuf_printf(&s, "%zu %s %s: ", count, count == 1 ? "tensor" : "tensors", what);
    for (size_t i = 0; i < count && i < SHOWN_NAMES; i++)
        strbuf_printf(&s, "%s%s", i ? ", " : "", names[i]);
    if (count > SHOWN_NAMES) strbuf_printf(&s, " and %zu more", count - SHOWN_NAMES);
    const char *text = arena_text(a, s.data, s.length);
    strbuf_release(&s);
    return text;
}

enum status gaps_add_missing(struct gaps *g, struct arena *a, const char *name, struct error *err)
{
    if (g->num_missing == MAX_MISSING)
        return fail(err, ERR_CORRUPT,
                    "more than %d tensors of the model are missing; the first is %s", MAX_MISSING,
                    g->missing[0]);
    *ARENA_PUSH(a, g->missing, g->num_missing, g->missing_capacity) = arena_copy_text(a, name);
    return OK;
}

void gaps_add_unexpected(struct gaps *g, struct arena *a, const char *name)
{
    *ARENA_PUSH(a, g->unexpected, g->num_unexpected, g->unexpected_capacity) =
        arena_copy_text(a, name);
}

enum status gaps_check(const struct gaps *g, const char *path, struct error *err)
{
    struct arena a;
    const char *unexpected = "", *missing = "";
    if (!g->num_unexpected && !g->num_missing) return OK;
    arena_init(&a);
    if (g->num_unexpected)
        unexpected = count_names_text(&a, "that the model map does not know", g->unexpected,
                                      g->num_unexpected);
    if (g->num_missing) missing = count_names_text(&a, "missing", g->missing, g->num_missing);
    enum status st = fail(err, ERR_UNSUPPORTED, "%s: %s%s%s", path, unexpected,
                          *unexpected && *missing ? "; " : "", missing);
    arena_release(&a);
    return st;
}
