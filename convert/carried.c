#include "convert/carried.h"

#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "convert/native_outputs.h"
#include "formats/safetensors.h"

/* The kinds of carried tensors. */
static const struct kept {
    const char *prefix, *file, *what; /* of logical names; in ferry-hf; for people */
    bool (*is)(const char *name);
} kinds[] = {
    {"carried", "carried.safetensors", "that Megatron has no place for", name_is_carried},
    {"encoding", "encoding.safetensors", "that came with encoded weights", name_is_of_encoding},
};

const char *carried_name(const struct tensor *t)
{
    const bool is = name_is_carried(t->name) || name_is_of_encoding(t->name);
    return is ? strchr(t->name, '.') + 1 : NULL;
}

enum status carried_add(struct checkpoint *c, const struct native_tensor *native, struct error *err)
{
    struct tensor *t;
    const struct pair whole = pair_whole(0, 0, native->numel);
    const char *name =
        arena_printf(&c->arena, "%s.%s", kinds[native->of_encoding].prefix, native->name);
    TRY(catalog_add(&c->catalog, name, native->dtype, native->num_dims, native->shape, &t, err));
    native_add_logical(&c->catalog, native, t->name);
    return catalog_add_part(&c->catalog, t, native, &whole, err);
}

static enum status open_kind(struct checkpoint *c, const char *folder, const struct kept *kind,
                             struct error *err)
{
    struct stored *s = &c->catalog.stored;
    const char *path = path_join(&c->arena, folder, kind->file);
    const size_t first = s->num_tensors;
    struct safetensors_info info;
    if (!path_exists(path)) return OK;
    TRY(safetensors_open(s, path, &info, err));
    for (size_t i = first; i < s->num_tensors; i++) {
        const char *name = arena_printf(&c->arena, "%s.%s", kind->prefix, s->tensors[i].name);
        struct tensor *t, *wrapped;
        TRY(catalog_wrap_stored(&c->catalog, &c->arena, &s->tensors[i], &wrapped, err));
        TRY(catalog_add(&c->catalog, name, wrapped->dtype, wrapped->num_dims, wrapped->shape, &t,
                        err));
        tensor_add_pieces(&c->arena, t, wrapped);
        t->stored_name = wrapped->stored_name;
    }
    return OK;
}

enum status carried_open(struct checkpoint *c, const char *folder, struct error *err)
{
    for (size_t i = 0; i < COUNT(kinds); i++)
        TRY(open_kind(c, folder, &kinds[i], err));
    return OK;
}

/* ---- writing ---- */

static enum status emit_head(const struct plan *plan, uint32_t file, void *context,
                             const struct file_writer *writer, struct error *err)
{
    const struct strbuf *head = context;
    (void)plan, (void)file;
    return writer->put(writer->context, 0, head->data, head->length, err);
}

static enum status plan_kind(struct target *t, const char *folder, const struct kept *kind,
                             struct error *err)
{
    struct plan *plan = &t->plan;
    struct arena *a = &plan->arena;
    const struct catalog *all = &t->source->catalog;
    struct safetensors_out *out = NULL;
    struct strbuf head = {0}, room = {0}, *kept = arena_alloc(a, sizeof *kept);
    size_t count = 0, capacity = 0;
    for (size_t i = 0; i < all->num_tensors; i++) {
        const struct tensor *x = &all->tensors[i];
        const char *name = kind->is(x->name) ? carried_name(x) : NULL;
        if (name)
            *ARENA_PUSH(a, out, count, capacity) =
                (struct safetensors_out){name, x->dtype, x->num_dims, x->shape, 0};
    }
    if (!count) return OK;
    const uint32_t file = plan_add_file(plan, path_join(a, folder, kind->file));
    enum status st = safetensors_layout(out, count, &head, &plan->files[file].size_bytes, err);
    if (!st) *kept = (struct strbuf){arena_copy(a, head.data, head.length), head.length, 0};
    strbuf_release(&head);
    plan->files[file].finish = emit_head;
    plan->files[file].finish_context = kept;
    for (size_t i = 0; i < count && !st; i++) { /* sorted by safetensors_layout() */
        strbuf_clear(&room);
        strbuf_printf(&room, "%s.%s", kind->prefix, out[i].name);
        const struct tensor *x = catalog_find(all, room.data);
        const struct pair whole = pair_whole(0, 0, x->numel);
        const uint32_t segment = plan_add_segment(plan, file, x->dtype, x->numel, false);
        plan->segments[segment].offset_bytes = out[i].offset_bytes;
        plan_add_piece(plan, x, segment, &whole);
    }
    strbuf_release(&room);
    notes_add(&t->notes, a, "%zu tensor%s %s (%s, ...) are carried in %s/%s", count,
              count == 1 ? "" : "s", kind->what, out[0].name, folder, kind->file);
    return st;
}

enum status carried_plan(struct target *t, const char *folder, struct error *err)
{
    for (size_t i = 0; i < COUNT(kinds); i++)
        TRY(plan_kind(t, folder, &kinds[i], err));
    return OK;
}
