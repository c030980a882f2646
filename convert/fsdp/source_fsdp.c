/* source_fsdp.c - opens FSDP's torch.save files: full state dicts, and rank
 * files with DTensors, ShardedTensors, or pieces of flattened parameters. */
#include <string.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/format.h"
#include "convert/fsdp/fsdp_source.h"
#include "convert/hf/hf_model.h"
#include "convert/hf/module_names.h"
#include "convert/states.h"
#include "formats/dtensor.h"

static bool matches_fsdp(const char *path, const struct source_options *o)
{
    (void)o;
    return fsdp_files_match(path);
}

/* ---- weights ---- */

static bool has_tensors(const struct value *v)
{
    if (!v || v->kind != VALUE_DICT) return false;
    for (uint32_t i = 0; i < v->count; i++)
        if (dtensor_matches(v->items[2 * i + 1])) return true;
    return false;
}

/* The dict of parameters, at the file's root or below a key. */
static const struct value *find_weights(const struct value *root)
{
    static const char *const keys[] = {"model", "state_dict", "model_state_dict", "module"};
    if (has_tensors(root)) return root;
    for (size_t i = 0; i < COUNT(keys); i++)
        if (has_tensors(value_get(root, keys[i]))) return value_get(root, keys[i]);
    return NULL;
}

static bool is_flat_param(const char *name)
{
    const char *dot = strrchr(name, '.');
    const char *last = dot ? dot + 1 : name;
    return strcmp(last, "_flat_param") == 0 || strcmp(last, "flat_param") == 0;
}

static bool has_flat_params(const struct value *dict)
{
    for (uint32_t i = 0; i < dict->count; i++) {
        const char *name = value_as_text(dict->items[2 * i]);
        if (name && is_flat_param(name)) return true;
    }
    return false;
}

static const struct value_tensor *local_tensor(const struct value *v)
{
    if (v->kind != VALUE_TENSOR) v = value_get(v, "_local_tensor");
    return v && v->kind == VALUE_TENSOR ? v->tensor : NULL;
}

/* Lists a parameter of the first file, unless an earlier one has its storage:
 * tied parameters are one for the optimizer. */
static void list_param(struct fsdp_source *x, const char *name, const struct value *v)
{
    struct arena *a = &x->c->arena;
    const struct value_tensor *t = local_tensor(v);
    uint64_t numel = 1;
    for (unsigned d = 0; t && d < t->num_dims; d++)
        numel *= t->shape[d];
    if (t && numel) {
        const char *key =
            arena_printf(a, "%s/%llu", t->storage->key, (unsigned long long)t->offset);
        if (!map_add(&x->storages, key, 0, NULL)) return;
    }
    *ARENA_PUSH(a, x->params, x->num_params, x->params_capacity) = name;
}

static enum status read_weight(struct fsdp_source *x, struct torch_file *t, size_t rank,
                               bool is_first, const struct value *key, const struct value *v,
                               struct error *err)
{
    const char *name = value_as_text(key), *stripped;
    if (!name || !dtensor_matches(v)) {
        if (is_first && !x->num_unread++)
            x->first_unread =
                name ? arena_copy_text(&x->c->arena, name) : "a key that is not a string";
        return OK;
    }
    if (is_flat_param(name)) return OK;
    TRY(wrapper_names_strip(&x->names, name, &stripped, err));
    TRY(fsdp_join_add(&x->join, t, rank, stripped, NULL, v, err));
    if (is_first) list_param(x, stripped, v);
    return OK;
}

static enum status read_dict(struct fsdp_source *x, struct torch_file *t, size_t rank,
                             bool is_first, struct error *err)
{
    const struct value *dict = find_weights(t->root);
    if (!dict) return fail(err, ERR_UNSUPPORTED, "%s: it has no state dict of parameters", t->path);
    x->join.flat |= has_flat_params(dict);
    x->combined |= fsdp_find_optimizer(t->root) != NULL;
    for (uint32_t i = 0; i < dict->count; i++)
        TRY(read_weight(x, t, rank, is_first, dict->items[2 * i], dict->items[2 * i + 1], err));
    return OK;
}

static enum status read_weights(struct fsdp_source *x, struct error *err)
{
    bool is_first = true;
    for (size_t r = 0; r < x->files.weights.count; r++) {
        struct torch_file t;
        if (!x->files.weights.paths[r]) continue;
        TRY(torch_open(&t, &x->c->catalog.stored, x->files.weights.paths[r], 0, UINT64_MAX, err));
        enum status st = torch_check_name(&t, err);
        if (!st) st = read_dict(x, &t, r, is_first, err);
        torch_close(&t);
        if (st) return st;
        is_first = false;
    }
    if (x->join.count) return OK;
    return fail(err, ERR_UNSUPPORTED,
                x->join.flat ? "%s: flat parameters of FSDP1 without names "
                               "(use_orig_params=False): no file has their parameters and shapes; "
                               "save FULL_STATE_DICT or SHARDED_STATE_DICT with the model's program"
                             : "%s: it has no tensors",
                x->c->path);
}

/* ---- shapes of flattened parameters ---- */

/* Shapes of tensors by the model's config. */
struct shapes {
    struct arena *a;
    const char *prefix; /* of the model's names (convert/hf/module_names.h) */
    struct map names;   /* -> items */
    struct known_shape {
        unsigned num_dims;
        const uint64_t *shape;
    } * items;
    size_t count, capacity;
};

static bool is_joined(const void *context, const char *name)
{
    return fsdp_join_find(context, name, NULL);
}

static bool is_joined_behind(const void *context, const char *name)
{
    const struct fsdp_source *x = context;
    return is_joined(&x->join, arena_printf(&x->c->arena, "%s%s", x->prefix, name));
}

static enum status add_shapes(void *context, const struct mapped_tensor *m, struct error *err)
{
    struct shapes *s = context;
    (void)err;
    for (size_t i = 0; i < m->num_parts; i++) {
        const struct mapped_part *p = &m->parts[i];
        const char *name = arena_printf(s->a, "%s%s", s->prefix, p->hf_name);
        if (!map_add(&s->names, name, s->count, NULL)) continue;
        *ARENA_PUSH(s->a, s->items, s->count, s->capacity) = (struct known_shape){
            p->num_dims, arena_copy(s->a, p->shape, p->num_dims * sizeof *p->shape)};
    }
    return OK;
}

static enum status set_shapes(struct fsdp_join *j, const struct shapes *s, struct error *err)
{
    for (size_t i = 0; i < j->count; i++) {
        size_t at;
        if (!j->items[i].in_pieces || j->items[i].state ||
            !map_get(&s->names, j->items[i].name, &at))
            continue;
        TRY(fsdp_join_shape(j, &j->items[i], s->items[at].num_dims, s->items[at].shape, err));
    }
    return OK;
}

static enum status find_prefix(struct fsdp_source *x, const struct naming_import *import,
                               struct error *err)
{
    const struct module_search search = {.map = import->map,
                                         .config = &x->c->config,
                                         .allow_missing = import->o->allow_missing,
                                         .names = {.has = is_joined, .context = &x->join},
                                         .arena = &x->c->arena};
    const char **names = arena_array(&x->c->arena, x->join.count, sizeof *names);
    for (size_t i = 0; i < x->join.count; i++)
        names[i] = x->join.items[i].name;
    if (!module_prefix_find(&search, names, x->join.count, &x->prefix, err)) return OK;
    return fail_in(err, "%s", x->c->path);
}

static enum status find_shapes(struct fsdp_source *x, const struct naming_import *import,
                               struct error *err)
{
    const struct hf_names names = {.has = is_joined_behind, .context = x};
    struct shapes s = {.a = &x->c->arena};
    if (!x->join.flat) return OK;
    if (!import->map)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: flattened parameters of FSDP1 (LOCAL_STATE_DICT) without their shapes: "
                    "give the model's config.json, --hf-config DIR",
                    x->c->path);
    TRY(find_prefix(x, import, err));
    s.prefix = x->prefix;
    model_map_find_mtp(import->map, &x->c->config, &names);
    enum status st = model_map_expand(import->map, &x->c->config, &names, add_shapes, &s, err);
    if (!st) st = set_shapes(&x->join, &s, err);
    map_release(&s.names);
    return st;
}

/* ---- all ---- */

static void note_rest(struct fsdp_source *x)
{
    struct arena *a = &x->c->arena;
    wrapper_names_note(&x->names);
    x->c->num_ignored += x->num_unread;
    if (x->num_unread)
        checkpoint_note(x->c, "%zu value%s not read: %s%s", x->num_unread,
                        x->num_unread > 1 ? "s that are not tensors are"
                                          : " that is not a tensor is",
                        x->first_unread, x->num_unread > 1 ? ", ..." : "");
    if (x->files.num_others)
        checkpoint_note(x->c, "states of random numbers, schedule and data are not read: %s",
                        fsdp_names_text(a, x->files.others, x->files.num_others));
    if (x->files.weights.num_missing)
        checkpoint_note(x->c, "%zu of %zu rank files are missing; the others have all parts",
                        x->files.weights.num_missing, x->files.weights.count);
}

static enum status open_with(struct fsdp_source *x, const struct source_options *o,
                             const struct model_maps *maps, struct error *err)
{
    struct checkpoint *c = x->c;
    struct naming_import import;
    TRY(fsdp_files_find(&x->files, &c->arena, c->path, err));
    c->folder = x->files.folder;
    const char *const folders[] = {c->folder, path_join(&c->arena, c->folder, "huggingface"), NULL};
    x->join.by_rank = x->files.by_rank;
    TRY(read_weights(x, err));
    fsdp_states_read(x);
    if (!x->join.flat) TRY(fsdp_join_native(&x->join, &x->files.weights, false, err));
    TRY(hf_model_describe(c, o, maps, folders, false, &import, err));
    TRY(find_shapes(x, &import, err));
    if (x->join.flat) TRY(fsdp_join_native(&x->join, &x->files.weights, false, err));
    struct error why;
    if (!c->training.optimizer.unread &&
        fsdp_join_native(&x->join, &x->files.optimizer, true, &why))
        states_unread(c, "%s", why.text);
    note_rest(x);
    return hf_model_import(&import, err);
}

static enum status open_fsdp(struct checkpoint *c, const struct source_options *o,
                             const struct model_maps *maps, struct error *err)
{
    struct fsdp_source x = {.c = c};
    if (o->has_ckpt_step)
        return fail(err, ERR_USAGE, "%s: --ckpt-step: an FSDP folder has no iterations", c->path);
    fsdp_join_init(&x.join, c);
    wrapper_names_init(&x.names, c);
    enum status st = open_with(&x, o, maps, err);
    fsdp_join_release(&x.join);
    wrapper_names_release(&x.names);
    map_release(&x.storages);
    return st;
}

const struct source_kind source_fsdp = {matches_fsdp, open_fsdp};
