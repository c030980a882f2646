#include "convert/deepspeed/pipeline.h"

#include <inttypes.h>
#include <string.h>

#include "common/text.h"
#include "convert/torch_groups.h"

struct layer_tensor {
    const char *name; /* INDEX.LOCAL */
    size_t stored;
};

struct layers {
    struct deepspeed *d;
    struct torch_file t;
    const struct ds_file *file;
    struct layer_tensor *tensors;
    size_t num_tensors, capacity;
};

static enum status add_tensor(void *context, const char *path, const struct value *v,
                              struct error *err)
{
    struct layers *x = context;
    struct arena *a = &x->d->c->arena;
    struct stored *s = &x->d->c->catalog.stored;
    TRY(torch_add_tensor(&x->t, s, arena_printf(a, "%s/%s", x->file->name, path), v, err));
    pipeline_names_note(&x->d->names, a, x->file->dp, path);
    *ARENA_PUSH(a, x->tensors, x->num_tensors, x->capacity) = (struct layer_tensor){
        arena_printf(a, "%" PRIu64 ".%s", x->file->dp, path), s->num_tensors - 1};
    return OK;
}

static enum status read_layer(struct layers *x, struct error *err)
{
    struct checkpoint *c = x->d->c;
    const char *path = path_join(&c->arena, c->folder, x->file->name);
    TRY(torch_open(&x->t, &c->catalog.stored, path, 0, UINT64_MAX, err));
    enum status st = value_walk(x->t.root, "", add_tensor, x, err);
    if (st && !text_starts_with(err->text, path)) st = fail_in(err, "%s", path);
    torch_close(&x->t);
    return st;
}

enum status pipeline_read_layers(struct deepspeed *d, struct error *err)
{
    struct layers x = {.d = d};
    struct catalog *all = &d->c->catalog;
    size_t count;
    const struct ds_file *files = ds_files_of(&d->files, DS_LAYER, &count);
    for (size_t i = 0; i < count; i++) {
        x.file = &files[i];
        TRY(read_layer(&x, err));
    }
    pipeline_names_end(&d->names);
    for (size_t i = 0; i < x.num_tensors; i++) {
        const char *name = ds_own_name(d, x.tensors[i].name);
        if (catalog_find_own(all, name, NULL)) continue;
        TRY(catalog_own_stored(all, name, NULL, &all->stored.tensors[x.tensors[i].stored], err));
    }
    return OK;
}

enum status pipeline_import(struct deepspeed *d, const struct naming_import *import,
                            struct error *err)
{
    struct checkpoint *c = d->c;
    struct naming_import x = *import;
    x.moe_layers_known = true;
    if (d->names.num_layers != c->config.num_layers)
        return fail(err, ERR_CORRUPT,
                    "%s: files of %zu layers with attention; config.json says %" PRIu64, c->folder,
                    d->names.num_layers, c->config.num_layers);
    TRY(naming_megatron.import(&x, err));
    TRY(naming_megatron.import_states(&x, err));
    TRY(states_complete(c, err));
    torch_groups_find_rules(c);
    return catalog_check(&c->catalog, err);
}
