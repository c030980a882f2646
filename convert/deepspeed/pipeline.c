#include "convert/deepspeed/pipeline.h"

#include <inttypes.h>
#include <string.h>

#include "common/text.h"
#include "convert/torch_groups.h"

/* ---- ranks that split parameters ---- */

enum status pipeline_count_ranks(struct deepspeed *d, struct error *err)
{
    size_t count, stages;
    const struct ds_file *files = ds_files_of(&d->files, DS_LAYER, &count);
    (void)ds_files_of(&d->files, DS_MODEL, &stages);
    d->tp = count ? files[count - 1].mp + 1 : 1; /* sorted by mp */
    for (size_t i = 0; i < count; i++) {
        const uint64_t rank = i / (count / d->tp ? count / d->tp : 1);
        if (count % d->tp == 0 && files[i].mp == rank &&
            files[i].dp == files[i % (count / d->tp)].dp)
            continue;
        return fail(err, ERR_CORRUPT,
                    "%s: some of %" PRIu64 " tensor parallel ranks lack layer files, see %s",
                    d->c->folder, d->tp, files[i].name);
    }
    if (stages % d->tp == 0) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: %zu mp_rank_*_model_states.pt for %" PRIu64 " tensor parallel ranks",
                d->c->folder, stages, d->tp);
}

enum status pipeline_add_run(void *context, const struct ds_param *p, const char *state,
                             enum dtype dtype, size_t stored, const struct pair *run,
                             struct error *err)
{
    const struct pipeline_rank *r = context;
    struct catalog *all = &r->d->c->catalog;
    struct native_tensor *native;
    const char *name = p->native_name;
    uint64_t whole[MAX_AXES];
    struct param_parts parts;
    struct param param;
    if (r->d->tp == 1) {
        TRY(catalog_add_native(all, name, state, dtype, p->num_dims, p->shape, &native, err));
        return catalog_add_native_part(all, native, &all->stored.tensors[stored], run, err);
    }
    if (!param_find(r->d->c->params, name, &param) || p->num_dims > MAX_AXES)
        return fail(err, ERR_UNSUPPORTED, "%s: unknown tensor parallel split of %s",
                    r->d->c->folder, p->name);
    if (param.spec->split < 0 && r->tp_rank) return OK; /* a copy */
    TRY(param_whole_shape(param.spec, name, p->num_dims, p->shape, r->d->tp, whole, err));
    TRY(param_shard(param.spec, name, p->num_dims, whole, r->tp_rank, r->d->tp, PARAM_STORED,
                    &parts, err));
    TRY(catalog_add_native(all, name, state, dtype, p->num_dims, whole, &native, err));
    for (unsigned i = 0; i < parts.count; i++) {
        struct pair by_rank = parts.pairs[i];
        TRY(pair_turn(&by_rank, name, err));
        TRY(zero_place_run(all, native, stored, &by_rank, run, name, err));
    }
    return OK;
}

/* ---- layers ---- */

struct layer_tensor {
    const char *name; /* INDEX.LOCAL */
    uint64_t tp_rank;
    size_t stored;
};

struct layers {
    struct deepspeed *d;
    struct torch_file t;
    const struct ds_file *file;
    struct layer_tensor *tensors;
    size_t num_tensors, capacity;
    struct map first; /* native name -> index of its first layer */
};

static enum status store_layer_tensor(void *context, const char *path, const struct value *v,
                                      struct error *err)
{
    struct layers *x = context;
    struct arena *a = &x->d->c->arena;
    struct stored *s = &x->d->c->catalog.stored;
    TRY(torch_add_tensor(&x->t, s, arena_printf(a, "%s/%s", x->file->name, path), v, err));
    pipeline_names_note(&x->d->names, a, x->file->dp, path);
    *ARENA_PUSH(a, x->tensors, x->num_tensors, x->capacity) =
        (struct layer_tensor){.name = arena_printf(a, "%" PRIu64 ".%s", x->file->dp, path),
                              .tp_rank = x->file->mp,
                              .stored = s->num_tensors - 1};
    return OK;
}

static enum status read_layer(struct layers *x, struct error *err)
{
    struct checkpoint *c = x->d->c;
    const char *path = path_join(&c->arena, c->folder, x->file->name);
    TRY(torch_open(&x->t, &c->catalog.stored, path, 0, UINT64_MAX, err));
    enum status st = torch_check_name(&x->t, err);
    if (!st) st = value_walk(x->t.root, "", store_layer_tensor, x, err);
    if (st && !text_starts_with(err->text, path)) st = fail_in(err, "%s", path);
    torch_close(&x->t);
    return st;
}

/* Adds a layer's tensor. A layer of several stages counts once, by its first
 * index. */
static enum status add_layer_tensor(struct layers *x, const struct layer_tensor *t,
                                    struct error *err)
{
    const struct stored_tensor *s = &x->d->c->catalog.stored.tensors[t->stored];
    struct pipeline_rank rank = {x->d, t->tp_rank};
    const struct ds_param p = {.name = t->name,
                               .native_name = ds_native_name(x->d, t->name),
                               .num_dims = s->num_dims,
                               .shape = s->shape};
    const struct pair whole = pair_whole(0, 0, stored_numel(s));
    uint64_t index;
    const char *local;
    size_t first;
    if (!pipeline_name_parse(t->name, &index, &local)) return OK;
    if (!map_add(&x->first, p.native_name, (size_t)index, &first) && first != index) return OK;
    return pipeline_add_run(&rank, &p, NULL, s->dtype, t->stored, &whole, err);
}

static enum status check_layers(const struct deepspeed *d, struct error *err)
{
    const size_t count = d->names.num_layers;
    if (count == d->c->config.num_layers) return OK;
    return fail(err, ERR_CORRUPT, "%s: %zu layer%s with attention; config.json has %" PRIu64,
                d->c->folder, count, count == 1 ? "" : "s", d->c->config.num_layers);
}

enum status pipeline_read_layers(struct deepspeed *d, struct error *err)
{
    struct layers x = {.d = d};
    size_t count;
    const struct ds_file *files = ds_files_of(&d->files, DS_LAYER, &count);
    for (size_t i = 0; i < count; i++) {
        x.file = &files[i];
        TRY(read_layer(&x, err));
    }
    pipeline_names_end(&d->names);
    TRY(check_layers(d, err));
    enum status st = OK;
    for (size_t i = 0; i < x.num_tensors && !st; i++)
        st = add_layer_tensor(&x, &x.tensors[i], err);
    map_release(&x.first);
    return st;
}

enum status pipeline_import(struct deepspeed *d, const struct naming_import *import,
                            struct error *err)
{
    struct checkpoint *c = d->c;
    struct naming_import x = *import;
    x.moe_layers_known = true;
    TRY(check_layers(d, err));
    TRY(naming_megatron.import(&x, err));
    TRY(naming_megatron.import_states(&x, err));
    torch_groups_find_rules(c);
    TRY(states_complete(c, err));
    return catalog_check(&c->catalog, err);
}
