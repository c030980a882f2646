#include "formats/stored.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "common/open_files.h"
#include "common/utf8.h"

void stored_init(struct stored *s)
{
    *s = (struct stored){0};
    arena_init(&s->arena);
}

void stored_release(struct stored *s)
{
    map_release(&s->names);
    arena_release(&s->arena);
    *s = (struct stored){0};
}

uint32_t stored_add_file(struct stored *s, const char *path, const struct file_stamp *stamp)
{
    struct stored_file *f = ARENA_PUSH(&s->arena, s->files, s->num_files, s->files_capacity);
    *f = (struct stored_file){
        .path = arena_copy_text(&s->arena, path),
        .stamp = *stamp,
        .size_bytes = stamp->size_bytes,
    };
    return (uint32_t)(s->num_files - 1);
}

uint32_t stored_add_packed(struct stored *s, uint32_t file, enum bytes_coding coding,
                           uint64_t offset, uint64_t packed_bytes, uint64_t size_bytes)
{
    struct stored_file *f = ARENA_PUSH(&s->arena, s->files, s->num_files, s->files_capacity);
    *f = s->files[file];
    f->coding = coding;
    f->packed_offset = offset;
    f->packed_bytes = packed_bytes;
    f->size_bytes = size_bytes;
    return (uint32_t)(s->num_files - 1);
}

/* *bad: the first byte of invalid UTF-8. Accepts C0 80 for NUL. */
static bool name_valid(const char *name, size_t length, size_t *bad)
{
    for (size_t at = 0, n; at < length; at += n) {
        n = utf8_sequence(name + at, length - at);
        if (!n && length - at >= 2 && memcmp(name + at, "\xC0\x80", 2) == 0) n = 2;
        *bad = at;
        if (!n) return false;
    }
    return true;
}

static const char *name_copy(struct arena *a, const char *name, size_t length)
{
    if (!memchr(name, '\0', length)) return arena_text(a, name, length);
    struct strbuf s = {0};
    for (size_t i = 0; i < length; i++)
        strbuf_add(&s, name[i] ? &name[i] : "\xC0\x80", name[i] ? 1 : 2);
    const char *copy = arena_text(a, s.data, s.length);
    strbuf_release(&s);
    return copy;
}

/* `text` escaped for a message, truncated if very long. In the arena. */
static const char *escaped_copy(struct arena *a, const char *text, size_t length)
{
    enum { MAX_SHOWN = 200 };
    struct strbuf s = {0};
    strbuf_add_escaped(&s, text, length < MAX_SHOWN ? length : MAX_SHOWN);
    const char *copy =
        arena_printf(a, "%s%s", s.data ? s.data : "", length > MAX_SHOWN ? "..." : "");
    strbuf_release(&s);
    return copy;
}

static enum status fail_twice(struct stored *s, const char *name, size_t length, size_t old,
                              struct error *err)
{
    const struct stored_tensor *t = &s->tensors[old];
    const char *text = escaped_copy(&s->arena, name, length);
    if (!t->num_pieces) return fail(err, ERR_CORRUPT, "tensor %s: appears twice", text);
    return fail(err, ERR_CORRUPT, "tensor %s: appears twice, first in %s", text,
                s->files[t->pieces[0].file].path);
}

enum status stored_add_tensor(struct stored *s, const char *name, size_t name_length,
                              enum dtype dtype, unsigned num_dims, const uint64_t *shape,
                              struct stored_tensor **out, struct error *err)
{
    size_t bad, old;
    uint64_t numel, bytes;
    if (!name_valid(name, name_length, &bad))
        return fail(err, ERR_CORRUPT, "tensor %s: its name is not UTF-8 at byte %zu",
                    escaped_copy(&s->arena, name, name_length), bad);
    if (!shape_numel(shape, num_dims, &numel) || !dtype_size_bytes(dtype, numel, &bytes))
        return fail(err, ERR_CORRUPT, "tensor %s: its shape has too many %s elements",
                    escaped_copy(&s->arena, name, name_length), dtype_infos[dtype].name);
    const char *copy = name_copy(&s->arena, name, name_length);
    const bool unwanted = s->wants && !s->wants(s->wants_context, copy);
    if (!unwanted && !map_add(&s->names, copy, s->num_tensors, &old))
        return fail_twice(s, name, name_length, old, err);

    s->num_unwanted += unwanted;
    *out = unwanted ? &s->unwanted
                    : ARENA_PUSH(&s->arena, s->tensors, s->num_tensors, s->tensors_capacity);
    **out = (struct stored_tensor){
        .name = copy,
        .dtype = dtype,
        .num_dims = num_dims,
        .shape = arena_copy(&s->arena, shape, num_dims * sizeof *shape),
    };
    return OK;
}

struct stored_object *stored_add_object(struct stored *s, const char *name, uint32_t file,
                                        uint64_t offset_bytes, uint64_t size_bytes)
{
    struct stored_object *o =
        ARENA_PUSH(&s->arena, s->objects, s->num_objects, s->objects_capacity);
    *o = (struct stored_object){
        .name = arena_copy_text(&s->arena, name),
        .file = file,
        .offset_bytes = offset_bytes,
        .size_bytes = size_bytes,
    };
    return o;
}

void stored_cut(struct stored *s, size_t num_tensors, size_t num_files)
{
    map_release(&s->names);
    s->num_tensors = num_tensors;
    s->num_files = num_files;
    for (size_t i = 0; i < num_tensors; i++)
        (void)map_add(&s->names, s->tensors[i].name, i, NULL);
}

void stored_warn(struct stored *s, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    *ARENA_PUSH(&s->arena, s->warnings, s->num_warnings, s->warnings_capacity) =
        arena_copy_text(&s->arena, text);
}

const struct stored_tensor *stored_find(const struct stored *s, const char *name)
{
    size_t index;
    return map_get(&s->names, name, &index) ? &s->tensors[index] : NULL;
}

uint64_t stored_numel(const struct stored_tensor *t)
{
    uint64_t numel;
    return shape_numel(t->shape, t->num_dims, &numel) ? numel : 0; /* as below, always ok */
}

uint64_t stored_tensor_bytes(const struct stored_tensor *t)
{
    uint64_t numel, bytes;
    bool ok =
        shape_numel(t->shape, t->num_dims, &numel) && dtype_size_bytes(t->dtype, numel, &bytes);
    return ok ? bytes : 0; /* always ok: stored_add_tensor() has checked it */
}

/* ---- reading ---- */

struct open_file {
    struct bytes source;   /* the open file, or the packed data in it; {0}: not open */
    struct bytes contents; /* target of pieces; a decoder is kept while the file is closed */
};

struct stored_reader {
    const struct stored *stored;
    struct open_files open; /* of files */
    struct open_file *files;
    bool direct;
};

static enum status open_contents(void *reader, size_t file, struct error *err);
static enum status close_source(void *reader, size_t file, struct error *err);

struct stored_reader *stored_reader_create(const struct stored *s, size_t max_open)
{
    struct stored_reader *r = must_calloc(1, sizeof *r);
    r->stored = s;
    r->files = must_calloc(s->num_files + 1, sizeof *r->files);
    open_files_init(&r->open, s->num_files, max_open, r, open_contents, close_source);
    return r;
}

void stored_reader_set_direct(struct stored_reader *r)
{
    r->direct = true;
}

void stored_reader_free(struct stored_reader *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->open.num_files; i++)
        if (r->stored->files[i].coding) bytes_release(&r->files[i].contents);
    open_files_end(&r->open);
    free(r->files);
    free(r);
}

static enum status open_unchanged(const struct stored_file *f, struct bytes *b, struct error *err)
{
    struct file_stamp now;
    TRY(bytes_open(b, f->path, &now, err));
    if (file_stamp_equal(&now, &f->stamp)) return OK;
    bytes_release(b);
    return fail(err, ERR_IO, "%s: changed while it was read", f->path);
}

static enum status open_contents(void *reader, size_t file, struct error *err)
{
    struct stored_reader *r = reader;
    const struct stored_file *s = &r->stored->files[file];
    struct open_file *f = &r->files[file];
    TRY(open_unchanged(s, &f->source, err));
    if (!s->coding) {
        if (r->direct) bytes_set_direct(&f->source);
        f->contents = f->source;
        f->contents.size_bytes = s->size_bytes; /* file_read() reports a shorter file */
        return OK;
    }
    f->source = bytes_range(&f->source, s->packed_offset, s->packed_bytes);
    if (!f->contents.kind) bytes_decode(&f->contents, s->coding, &f->source, s->size_bytes);
    return OK;
}

static enum status close_source(void *reader, size_t file, struct error *err)
{
    struct stored_reader *r = reader;
    (void)err;
    bytes_release(&r->files[file].source);
    return OK;
}

enum status stored_read(struct stored_reader *r, uint32_t file, uint64_t offset_bytes, void *to,
                        size_t bytes, struct error *err)
{
    TRY(open_files_acquire(&r->open, file, err));
    enum status st = bytes_read(&r->files[file].contents, offset_bytes, to, bytes, err);
    open_files_release(&r->open, file);
    return st;
}

void stored_expect(struct stored_reader *r, uint32_t file, uint64_t offset_bytes, uint64_t bytes)
{
    struct error ignored; /* the following read reports it */
    if (open_files_acquire(&r->open, file, &ignored)) return;
    bytes_expect(&r->files[file].contents, offset_bytes, bytes);
    open_files_release(&r->open, file);
}

enum status stored_unchanged(const struct stored *s, struct error *err)
{
    for (size_t i = 0; i < s->num_files; i++) {
        const struct stored_file *f = &s->files[i];
        struct file_stamp now;
        if (f->coding) continue; /* listed after the file that holds it */
        TRY(file_stamp(f->path, &now, err));
        if (!file_stamp_equal(&now, &f->stamp))
            return fail(err, ERR_IO, "%s: changed while it was read", f->path);
    }
    return OK;
}
