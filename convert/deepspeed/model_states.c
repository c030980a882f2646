#include "convert/deepspeed/model_states.h"
#include "formats/pickle.h"

#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/text.h"
#include "convert/deepspeed/plain_optimizer.h"
#include "convert/deepspeed/zero_layout.h"

const char *ds_native_name(const struct deepspeed *d, const char *name)
{
    const char *key =
        d->pipeline ? pipeline_name_key(&d->names, &d->c->arena, d->c->params, name) : NULL;
    return key ? key : name;
}

/* ---- tensors ---- */

struct reading {
    struct deepspeed *d;
    struct torch_file t;
    const struct ds_file *file;
    const struct value *shared; /* shared_params */
    struct map places;          /* places in storages -> names */
    const char **names;
    size_t num_names, names_capacity;
    struct tp_rules *rules; /* of split parameters */
};

bool ds_is_split(const struct deepspeed *d)
{
    return !d->pipeline && d->tp > 1;
}

static const char *stored_name(const struct reading *r, const char *key)
{
    return arena_printf(&r->d->c->arena, "%s/%s", r->file->name, key);
}

static void add_tied(struct checkpoint *c, const char *name, const char *of)
{
    if (!of) return;
    *ARENA_PUSH(&c->arena, c->tied, c->num_tied, c->tied_capacity) =
        (struct tied_name){name, arena_copy_text(&c->arena, of)};
}

/* Whether a name is another name of a tied parameter: by shared_params, or
 * because its tensor is the same part of a storage as an earlier one and the
 * optimizer does not list it. */
static bool is_alias(struct reading *r, const char *name, const struct value_tensor *t)
{
    size_t i;
    const char *place = arena_printf(&r->t.arena, "%s:%" PRIu64 ":%s", t->storage->key, t->offset,
                                     shape_text(&r->t.arena, t->num_dims, t->shape));
    const bool is_first = !t->storage->numel || map_add(&r->places, place, r->num_names, &i);
    const struct value *shared = value_get(r->shared, name);
    size_t param;
    if (shared) {
        add_tied(r->d->c, name, value_as_text(shared));
        return true;
    }
    if (is_first) *ARENA_PUSH(&r->t.arena, r->names, r->num_names, r->names_capacity) = name;
    if (is_first || map_get(&r->d->params.names, name, &param)) return false;
    add_tied(r->d->c, name, r->names[i]);
    return true;
}

static enum status add_module_tensor(void *context, const char *path, const struct value *v,
                                     struct error *err)
{
    struct reading *r = context;
    struct checkpoint *c = r->d->c;
    const char *name = arena_copy_text(&c->arena, path), *stored = stored_name(r, path);
    size_t param;
    if (r->d->partitioned && map_get(&r->d->params.names, name, &param)) {
        r->d->params.items[param].dtype = v->tensor->dtype;
        return OK;
    }
    if (r->d->partitioned && (map_get(&r->d->frozen.names, name, &param) || r->file->dp)) return OK;
    if (is_alias(r, name, v->tensor)) return OK;
    TRY(torch_add_tensor(&r->t, &c->catalog.stored, stored, v, err));
    if (r->rules) return tp_params_add(&r->d->split, r->rules, r->file->mp, name, err);
    return catalog_native_stored(&c->catalog, name, NULL,
                                 &c->catalog.stored.tensors[c->catalog.stored.num_tensors - 1],
                                 err);
}

/* ---- frozen parameters of stage 3 ---- */

static enum status add_fragment(struct reading *r, const struct value *fragments, size_t i,
                                struct error *err)
{
    struct deepspeed *d = r->d;
    struct stored *s = &d->c->catalog.stored;
    const struct ds_param *p = &d->frozen.items[i];
    const struct value *v = value_get(fragments, p->name);
    const uint64_t part = zero3_part(p->numel, d->num_ranks);
    if (!v || v->kind != VALUE_TENSOR || v->tensor->num_dims != 1 || v->tensor->shape[0] != part)
        return fail(err, ERR_CORRUPT,
                    "frozen_param_fragments: %s should be a vector of %" PRIu64 " elements",
                    p->name, part);
    TRY(torch_add_tensor(
        &r->t, s, stored_name(r, arena_printf(&d->c->arena, "frozen_param_fragments.%s", p->name)),
        v, err));
    d->fragments[r->file->dp * d->frozen.count + i] = s->num_tensors - 1;
    d->frozen.items[i].dtype = v->tensor->dtype;
    return OK;
}

static enum status add_fragments(struct reading *r, struct error *err)
{
    const struct value *fragments = value_get(r->t.root, "frozen_param_fragments");
    for (size_t i = 0; i < r->d->frozen.count; i++)
        TRY(add_fragment(r, fragments, i, err));
    return OK;
}

enum status model_states_add_frozen(struct deepspeed *d, struct error *err)
{
    struct catalog *all = &d->c->catalog;
    for (size_t i = 0; i < d->frozen.count; i++) {
        const struct ds_param *p = &d->frozen.items[i];
        const uint64_t part = zero3_part(p->numel, d->num_ranks);
        struct native_tensor *native;
        TRY(catalog_add_native(all, p->native_name, NULL, p->dtype, p->num_dims, p->shape, &native,
                               err));
        for (uint64_t r = 0; r < d->num_ranks && r * part < p->numel; r++) {
            const struct pair run = pair_whole(r * part, 0, min_u64(part, p->numel - r * part));
            TRY(catalog_add_native_part(all, native,
                                        &all->stored.tensors[d->fragments[r * d->frozen.count + i]],
                                        &run, err));
        }
    }
    return OK;
}

/* ---- the state of the run ---- */

static bool is_enabled(const struct value *config, const char *part)
{
    bool enabled;
    return value_as_bool(value_get(value_get(config, part), "enabled"), &enabled) && enabled;
}

static enum dtype dtype_of_config(const struct value *config)
{
    return is_enabled(config, "bf16") || is_enabled(config, "bfloat16") ? DT_BF16
           : is_enabled(config, "fp16")                                 ? DT_F16
                                                                        : DT_F32;
}

/* Notes keys of the program's client state, which are not read. */
static void note_client_state(struct checkpoint *c, const struct value *root, const char *file)
{
    static const char *const known[] = {"module",
                                        "buffer_names",
                                        "optimizer",
                                        "param_shapes",
                                        "frozen_param_shapes",
                                        "shared_params",
                                        "frozen_param_fragments",
                                        "lr_scheduler",
                                        "data_sampler",
                                        "random_ltd",
                                        "sparse_tensor_module_names",
                                        "csr_tensor_module_names",
                                        "skipped_steps",
                                        "global_steps",
                                        "global_samples",
                                        "dp_world_size",
                                        "mp_world_size",
                                        "checkpoint_parallel_dimensions",
                                        "ds_config",
                                        "ds_version",
                                        "universal_checkpoint_info",
                                        "num_experts",
                                        "ds_autoep_layers"};
    enum { MAX_NAMED = 8 };
    const char *names = "";
    size_t count = 0;
    for (uint32_t i = 0; root->kind == VALUE_DICT && i < root->count; i++) {
        const char *key = value_as_text(root->items[2 * i]);
        bool is_known = !key || root->items[2 * i + 1]->kind == VALUE_NONE;
        for (size_t k = 0; k < COUNT(known) && !is_known; k++)
            is_known = strcmp(known[k], key) == 0;
        if (is_known || count++ >= MAX_NAMED) continue;
        names = arena_printf(&c->arena, "%s%s%.80s", names, count > 1 ? ", " : "", key);
    }
    if (count)
        checkpoint_note(c, "%s: client state that is not read: %s%s", file, names,
                        count > MAX_NAMED ? ", ..." : "");
}

static void note_skipped(struct checkpoint *c, const struct value *root, const char *file)
{
    uint64_t skipped;
    if (ds_as_count(value_get(root, "skipped_steps"), &skipped) && skipped)
        checkpoint_note(c, "%s: %" PRIu64 " step%s skipped because of overflowing gradients", file,
                        skipped, skipped == 1 ? " was" : "s were");
}

static enum status read_progress(struct reading *r, struct error *err)
{
    struct deepspeed *d = r->d;
    struct checkpoint *c = d->c;
    const struct value *root = r->t.root, *schedule = value_get(root, "lr_scheduler");
    uint64_t samples;
    double version;
    if (value_as_float(value_get(root, "checkpoint_version"), &version) && version < 2)
        return fail(err, ERR_UNSUPPORTED,
                    "checkpoint_version %g has another row order in query_key_value, which is not "
                    "supported",
                    version);
    c->training.iteration = d->global_steps;
    if (d->global_steps > 0) c->training.run.iteration = (uint64_t)d->global_steps;
    if (ds_as_count(value_get(root, "global_samples"), &samples))
        c->training.run.consumed_train_samples = samples;
    if (schedule && schedule->kind == VALUE_DICT) {
        struct value *copy;
        TRY(value_copy(&c->arena, schedule, &copy, err));
        c->training.torch_schedule = copy;
    }
    note_skipped(c, root, r->file->name);
    note_client_state(c, root, r->file->name);
    return OK;
}

/* ---- one file ---- */

static enum status check_step(struct reading *r, struct error *err)
{
    struct deepspeed *d = r->d;
    int64_t steps = -1;
    const char *version = value_as_text(value_get(r->t.root, "ds_version"));
    (void)value_as_int(value_get(r->t.root, "global_steps"), &steps);
    if (!d->first) {
        d->first = r->file->name;
        d->global_steps = steps;
        if (version) d->version = arena_copy_text(&d->c->arena, version);
    } else if (steps != d->global_steps)
        return fail(err, ERR_CORRUPT,
                    "global step %" PRId64 ", but %s has %" PRId64 ": files of different saves",
                    steps, d->first, d->global_steps);
    if (version && d->version && strcmp(version, d->version) && !d->other_version) {
        d->other_version = arena_printf(&d->c->arena, "%s by %s", r->file->name, version);
        checkpoint_note(d->c, "%s: files of different versions of DeepSpeed: %s, %s by %s",
                        d->c->folder, d->other_version, d->first, d->version);
    }
    return OK;
}

/* Reads the shapes of parameters in a file with its own. */
static enum status read_shapes(struct reading *r, struct error *err)
{
    struct deepspeed *d = r->d;
    struct arena *a = &d->c->arena;
    const struct value *shapes = value_get(r->t.root, "param_shapes"),
                       *frozen = value_get(r->t.root, "frozen_param_shapes");
    const char *path = r->t.path;
    d->dtype = dtype_of_config(value_get(r->t.root, "ds_config"));
    if (shapes && shapes->kind != VALUE_NONE) TRY(ds_params_read(&d->params, a, shapes, path, err));
    for (size_t i = 0; i < d->params.count; i++)
        d->params.items[i].dtype = d->dtype;
    if (!d->partitioned || !frozen || frozen->kind != VALUE_DICT || !frozen->count) return OK;
    TRY(ds_params_read(&d->frozen, a, frozen, path, err));
    for (size_t i = 0; i < d->frozen.count; i++)
        if (map_get(&d->params.names, d->frozen.items[i].name, &(size_t){0}))
            return fail(err, ERR_CORRUPT, "%s is both frozen and in param_shapes",
                        d->frozen.items[i].name);
    d->fragments = arena_array(a, d->num_ranks * d->frozen.count, sizeof *d->fragments);
    return OK;
}

/* Checks that every tensor parallel rank has a file. */
static enum status check_ranks(const struct reading *r, struct error *err)
{
    uint64_t ranks;
    if (r->d->pipeline || !ds_as_count(value_get(r->t.root, "mp_world_size"), &ranks) ||
        ranks == r->d->tp)
        return OK;
    return fail(err, ERR_CORRUPT,
                "it is of %" PRIu64 " tensor parallel ranks, but %" PRIu64
                " mp_rank_*_model_states.pt exist",
                ranks, r->d->tp);
}

/* Reads how the rank's file says that parameters are split. */
static enum status read_split(struct reading *r, struct error *err)
{
    struct deepspeed *d = r->d;
    const struct value *info = value_get(r->t.root, "universal_checkpoint_info");
    if (!info || info->kind != VALUE_DICT)
        return fail(err, ERR_UNSUPPORTED,
                    "parameters split by tensor parallel ranks are not supported without "
                    "universal_checkpoint_info, which says how to join them");
    return tp_rules_read(&r->rules, &d->c->arena, info, r->file->mp, d->tp, err);
}

static enum status read_model_dict(struct reading *r, struct error *err)
{
    struct deepspeed *d = r->d;
    const struct value *module = value_get(r->t.root, "module");
    const bool is_first = !d->first;
    if (r->t.root->kind != VALUE_DICT) return fail(err, ERR_CORRUPT, "it is not a dict");
    TRY(check_step(r, err));
    if (is_first || d->stages != &d->params) TRY(read_shapes(r, err));
    TRY(check_ranks(r, err));
    if (ds_is_split(d)) TRY(read_split(r, err));
    if (is_first) TRY(read_progress(r, err));
    r->shared = value_get(r->t.root, "shared_params");
    if (module && module->kind == VALUE_DICT && (is_first || !d->partitioned))
        TRY(value_walk(module, "", add_module_tensor, r, err));
    return d->partitioned ? add_fragments(r, err) : OK;
}

static enum status read_optimizer(struct reading *r, struct error *err)
{
    struct deepspeed *d = r->d;
    const struct tp_rank rank = {&d->split, r->file->mp};
    const struct plain_optimizer p = {.t = &r->t,
                                      .file = r->file->name,
                                      .module = value_get(r->t.root, "module"),
                                      .buffers = value_get(r->t.root, "buffer_names"),
                                      .optimizer = value_get(r->t.root, "optimizer"),
                                      .split = ds_is_split(d) ? &rank : NULL};
    if (!p.optimizer || p.optimizer->kind == VALUE_NONE) return OK;
    return plain_optimizer_read(d->c, &p, err);
}

/* Opens a file and reads what `read` reads of it. */
static enum status read_file(struct deepspeed *d, const struct ds_file *file,
                             enum status (*read)(struct reading *r, struct error *err),
                             struct error *err)
{
    struct reading r = {.d = d, .file = file};
    const char *path = path_join(&d->c->arena, d->c->folder, file->name);
    TRY(torch_open(&r.t, &d->c->catalog.stored, path, 0, UINT64_MAX, err));
    enum status st = torch_check_name(&r.t, err);
    if (!st) st = read(&r, err);
    if (st && !text_starts_with(err->text, path)) st = fail_in(err, "%s", path);
    map_release(&r.places);
    tp_rules_release(r.rules);
    torch_close(&r.t);
    return st;
}

enum status model_states_read(struct deepspeed *d, const struct ds_file *file, struct error *err)
{
    return read_file(d, file, read_model_dict, err);
}

enum status model_states_read_optimizer(struct deepspeed *d, const struct ds_file *file,
                                        struct error *err)
{
    return read_file(d, file, read_optimizer, err);
}
