/* source_torch_dist.c - reads Megatron-Core's distributed checkpoint: a DCP
 * folder with keys of parameters and their optimizer states; the rest is in
 * objects. */
#include <inttypes.h>
#include <string.h>

#include "common/json.h"
#include "convert/megatron/describe.h"
#include "convert/megatron/megatron_names.h"
#include "convert/megatron/megatron_source.h"
#include "convert/megatron/optim/dist_states.h"
#include "convert/megatron/optim/flat_place.h"
#include "convert/megatron/optim/shifted.h"
#include "convert/megatron/optim/training_source.h"
#include "convert/states.h"
#include "formats/dcp.h"
#include "formats/pickle.h"
#include "formats/torch.h"

static enum status check_backend(struct megatron_source *m, struct error *err)
{
    const char *path = path_join(&m->c->arena, m->c->folder, "metadata.json");
    cJSON *tree;
    uint64_t version = 0;
    TRY(json_read_file(path, 1 << 20, JSON_NAN, &tree, err));
    const char *backend = json_as_text(json_get(tree, "sharded_backend"));
    (void)json_as_u64(json_get(tree, "sharded_backend_version"), &version);
    enum status st = OK;
    if (!backend)
        st = fail(err, ERR_CORRUPT, "%s: sharded_backend is missing or not a string", path);
    else if (strcmp(backend, "zarr") == 0)
        st = fail(err, ERR_UNSUPPORTED,
                  "%s: this is a Zarr checkpoint of NeMo 1 or an older Megatron-Core: load it "
                  "there and save it with --ckpt-format torch_dist",
                  m->c->folder);
    else if (strcmp(backend, "torch_dist") || version != 1)
        st = fail(err, ERR_UNSUPPORTED,
                  "%s: backend %s version %" PRIu64 "; only torch_dist version 1 is supported",
                  path, backend, version);
    cJSON_Delete(tree);
    return st;
}

/* Reads the common state: common.pt, else element 0 of newer releases' object,
 * a list. */
static enum status read_common(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    struct torch_file t;
    struct value *object;
    const char *path = path_join(&c->arena, c->folder, "common.pt");
    if (path_exists(path)) {
        TRY(torch_open(&t, &c->catalog.stored, path, 0, UINT64_MAX, err));
        enum status st = value_copy(&c->arena, t.root, &c->training.common, err);
        torch_close(&t);
        return st;
    }
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++) {
        if (strcmp(c->catalog.stored.objects[i].name, "common_state/shard_0_1")) continue;
        TRY(dcp_read_object(&c->catalog.stored, &c->catalog.stored.objects[i], &c->arena, &object,
                            err));
        if (object->kind == VALUE_LIST && object->count) c->training.common = object->items[0];
        return OK;
    }
    checkpoint_note(c, "%s: no common state (neither common.pt nor common_state)", c->folder);
    return OK;
}

/* ---- the optimizer ---- */

/* The optimizer state's format for people, by the common state, else by
 * keys. */
static const char *optimizer_kind(struct checkpoint *c, bool flat, bool objects)
{
    const struct value *content = value_get(c->training.common, "content_metadata");
    const char *kind = value_as_text(value_get(content, "distrib_optim_sharding_type"));
    if (kind) return arena_printf(&c->arena, "distributed, %s", kind);
    if (flat)
        return objects ? "distributed, dp_zero_gather_scatter" : "distributed, dp_reshardable";
    return "not distributed, or fully_sharded_model_space";
}

static void note_optimizer(struct checkpoint *c)
{
    struct optimizer_info *o = &c->training.optimizer;
    const struct stored *s = &c->catalog.stored;
    bool flat = false, objects = false;
    for (size_t i = 0; i < s->num_tensors; i++)
        if (dist_key_is_optimizer(s->tensors[i].name)) {
            o->size_bytes += stored_tensor_bytes(&s->tensors[i]);
            flat |= dist_key_is_flat(s->tensors[i].name);
        }
    for (size_t i = 0; i < s->num_objects; i++)
        if (dist_key_is_flat(s->objects[i].name)) {
            o->size_bytes += s->objects[i].size_bytes;
            objects |= strstr(s->objects[i].name, ".param_state/") != NULL;
        }
    o->present = o->size_bytes > 0;
    if (o->present) o->kind = optimizer_kind(c, flat || objects, objects);
}

/* Whether an object is of this kind:
 * "[chained_K.]optimizer.distributed.dp_group_idx_N.KIND/shard". */
static bool is_object(const struct stored_object *o, const char *kind)
{
    const char *slash = strrchr(o->name, '/'), *dot = slash;
    while (dot && dot > o->name && *dot != '.')
        dot--;
    return dot && dist_key_is_flat(o->name) && slash - dot - 1 == (ptrdiff_t)strlen(kind) &&
           strncmp(dot + 1, kind, strlen(kind)) == 0;
}

/* Reads groups, or the loss scale, of each cell of ranks from its object, a
 * list. */
static enum status read_cells(struct training_source *training, const char *kind, struct error *err)
{
    struct stored *s = &training->c->catalog.stored;
    for (size_t i = 0; i < s->num_objects; i++) {
        const struct stored_object *o = &s->objects[i];
        struct value *list;
        if (!is_object(o, kind)) continue;
        TRY(dcp_read_object(s, o, &training->c->arena, &list, err));
        const struct value *v = list->kind == VALUE_LIST && list->count ? list->items[0] : list;
        const char *path = s->files[o->file].path;
        if (strcmp(kind, "optimizer") == 0)
            training_source_optimizer(training, v, dist_key_chain(o->name), path, o->offset_bytes,
                                      o->size_bytes);
        else
            training_source_scaler(training, v, path, o->offset_bytes, o->size_bytes);
    }
    return OK;
}

static enum status read_training(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    struct training_source training;
    const struct stored_object *common = NULL;
    training_source_begin(&training, c);
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++) {
        const struct stored_object *o = &c->catalog.stored.objects[i];
        if (strcmp(o->name, "common_state/shard_0_1") == 0) common = o;
        c->training.run.has_rng |= strncmp(o->name, "rng_state/", strlen("rng_state/")) == 0;
    }
    const char *path = path_join(&c->arena, c->folder, "common.pt");
    if (path_exists(path) || !common)
        training_source_common(&training, path, 0, UINT64_MAX);
    else
        training_source_common(&training, c->catalog.stored.files[common->file].path,
                               common->offset_bytes, common->size_bytes);
    enum status st = read_cells(&training, "optimizer", err);
    if (!st) st = read_cells(&training, "grad_scaler", err);
    training_source_end(&training);
    return st;
}

/* Adds the states, in any form of keys. */
static enum status read_states(struct megatron_source *m, struct flat_states *flat,
                               struct error *err)
{
    struct checkpoint *c = m->c;
    TRY(dist_states_add(c, m->hybrid, err));
    TRY(flat_states_add_keys(flat, c, err));
    TRY(flat_states_place(flat, c, err));
    TRY(megatron_import_states(m, err));
    TRY(states_prove(c, err));
    return shifted_find(c, err);
}

/* ---- all ---- */

/* Adds a key outside the optimizer as a native tensor. */
static enum status add_native_key(struct megatron_source *m, size_t i, struct error *err)
{
    struct checkpoint *c = m->c;
    const struct stored_tensor *s = &c->catalog.stored.tensors[i];
    const char *key = m->hybrid ? hybrid_gpt_key(m->hybrid, &c->arena, s->name) : s->name;
    if (dist_key_is_optimizer(s->name)) return OK;
    return catalog_native_stored(&c->catalog, key, NULL, s, err);
}

static enum status read_torch_dist(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    struct megatron_evidence evidence = {0};
    TRY(check_backend(m, err));
    TRY(dcp_open(&c->catalog.stored, c->folder, true, err));
    TRY(read_common(m, err));
    const struct value *args = value_get(c->training.common, "args");
    m->hybrid = hybrid_of_keys(&c->catalog.stored,
                               value_as_text(value_get(args, "hybrid_layer_pattern")), &c->arena);
    c->hybrid_model = m->hybrid != NULL;
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        TRY(add_native_key(m, i, err));
    TRY(evidence_add_keys(c, &evidence, err));
    TRY(megatron_describe(m, &evidence, err));
    note_optimizer(c);
    TRY(read_training(m, err));
    TRY(megatron_import(m, err));
    struct flat_states flat = {0};
    enum status st = read_states(m, &flat, err);
    flat_states_release(&flat);
    return st;
}

static bool matches_torch_dist(const char *path, const struct source_options *o)
{
    return megatron_files_of(path, o) == MEGATRON_DIST;
}

static enum status open_torch_dist(struct checkpoint *c, const struct source_options *o,
                                   const struct model_maps *maps, struct error *err)
{
    struct megatron_source m = {.c = c, .o = o, .maps = maps};
    return megatron_open(&m, read_torch_dist, err);
}

const struct source_kind source_torch_dist = {matches_torch_dist, open_torch_dist};
