/* inspect_json.c - the result of ferry inspect for --json. */
#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "ckpt/encoding.h"
#include "common/json.h"
#include "convert/cli/inspect/inspect_internal.h"
#include "convert/cli/report_training.h"
#include "convert/states.h"

static cJSON *names_json(const char *const *names, size_t count)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(names[i]));
    return list;
}

static cJSON *tensor_json(const struct checkpoint *c, const struct named_tensor *t)
{
    const char *weight = inspect_same_as(c, t);
    cJSON *o = cJSON_CreateObject(), *dims = cJSON_CreateArray();
    const char *own[] = {t->name};
    json_add_text(o, "name", t->name);
    if (t->kind != NAME_HF)
        cJSON_AddItemToObject(o, "stored_names",
                              t->kind == NAME_STORED ? names_json(own, 1)
                                                     : names_json(t->partners, t->num_partners));
    if (t->kind != NAME_LOGICAL)
        cJSON_AddItemToObject(o, "logical_names", names_json(t->partners, t->num_partners));
    json_add_text(o, "dtype", dtype_infos[t->dtype].name);
    for (unsigned d = 0; d < t->num_dims; d++)
        cJSON_AddItemToArray(dims, json_new_u64(t->shape[d]));
    cJSON_AddItemToObject(o, "shape", dims);
    json_add_u64(o, "shards", weight ? 0 : t->num_shards);
    if (weight) json_add_text(o, "same_as", weight);
    return o;
}

static cJSON *stats_json(enum dtype dtype, const struct moments *m)
{
    if (!moments_exist(dtype)) return cJSON_CreateNull();
    cJSON *o = cJSON_CreateObject();
    json_add_number(o, "min", m->finite ? m->min : NAN);
    json_add_number(o, "max", m->finite ? m->max : NAN);
    json_add_number(o, "mean", m->finite ? m->mean : NAN);
    json_add_number(o, "std", moments_std(m));
    json_add_u64(o, "nan", m->nan);
    json_add_u64(o, "inf", m->infinite);
    json_add_u64(o, "zeros", m->zeros);
    return o;
}

static void sum_json(cJSON *list, const char *name, const struct sum *s)
{
    if (!s->tensors) return;
    cJSON *o = cJSON_AddObjectToObject(list, name);
    json_add_u64(o, "tensors", s->tensors);
    json_add_u64(o, "bytes", s->bytes);
}

static void sums_json(cJSON *o, const struct sums *s)
{
    cJSON *of_dtypes = cJSON_AddObjectToObject(o, "dtypes");
    for (int d = NUM_DTYPES - 1; d >= 0; d--)
        sum_json(of_dtypes, dtype_infos[d].name, &s->dtypes[d]);
    cJSON *of_groups = cJSON_AddObjectToObject(o, "groups");
    for (int i = 0; i < NUM_GROUPS; i++)
        sum_json(of_groups, inspect_group(i), &s->groups[i]);
}

static cJSON *optimizer_json(struct checkpoint *c)
{
    const struct optimizer_info *info = &c->training.optimizer;
    if (!info->present) return cJSON_CreateNull();
    struct sums s = inspect_sums(c, false);
    const struct state_sums states = states_of_catalog(&c->catalog, &c->arena);
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "kind", info->kind);
    json_add_u64(o, "bytes", info->size_bytes);
    json_add_text(o, "not_read", info->unread);
    states_json(o, "states", &states);
    json_add_u64(o, "own_masters", states.own_masters);
    json_add_u64(o, "remainders", info->remainders);
    json_add_text(o, "shifted", info->shifted);
    cJSON_AddBoolToObject(o, "inferred", info->inferred);
    json_add_u64(o, "proved_by", inspect_witnesses(c));
    for (int i = 0; i < NUM_MOMENTS; i++)
        sum_json(o, inspect_moments[i], &s.moments[i]);
    return o;
}

/* The training state; null if nothing is known of it. */
static cJSON *run_json(const struct checkpoint *c)
{
    cJSON *o = training_json(&c->training.run);
    if (o->child) return o;
    cJSON_Delete(o);
    return cJSON_CreateNull();
}

static cJSON *files_json(const struct stored *s)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < s->num_files; i++) {
        if (s->files[i].coding) continue;
        cJSON *o = cJSON_CreateObject();
        json_add_text(o, "path", s->files[i].path);
        json_add_u64(o, "bytes", s->files[i].stamp.size_bytes);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

/* ferry.json without the digests of single tensors. */
static void record_json(cJSON *o, const cJSON *record)
{
    if (!record) return;
    cJSON *whole = cJSON_AddObjectToObject(o, "record");
    for (const cJSON *i = record->child; i; i = i->next)
        if (strcmp(i->string, "tensors") && strcmp(i->string, "source_tensors"))
            cJSON_AddItemToObject(whole, i->string, cJSON_Duplicate(i, true));
}

/* Stored objects that match and are not tensors. */
static cJSON *entries_json(const struct inspection *x)
{
    cJSON *list = cJSON_CreateArray();
    const struct stored *s = &x->c->catalog.stored;
    for (size_t i = 0; x->f->tensors && i < s->num_objects; i++) {
        if (fnmatch(x->f->tensors, s->objects[i].name, 0)) continue;
        cJSON *o = cJSON_CreateObject();
        json_add_text(o, "name", s->objects[i].name);
        json_add_u64(o, "bytes", s->objects[i].size_bytes);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

cJSON *encodings_json(const struct checkpoint *c)
{
    cJSON *o = cJSON_CreateObject();
    for (size_t i = 0; i < c->catalog.num_native; i++) {
        const struct native_tensor *n = &c->catalog.native[i];
        const struct encoded *e = n->num_parts ? n->parts[0].encoded : NULL;
        uint64_t count = 0;
        if (!e) continue;
        (void)json_as_u64(json_get(o, e->name), &count);
        json_put(o, e->name, json_new_u64(count + 1));
    }
    return o;
}

cJSON *inspection_json(const struct inspection *x)
{
    static const char *const origins[] = {[CONFIG_OF_TENSORS] = "tensors",
                                          [CONFIG_OF_ARGS] = "args",
                                          [CONFIG_OF_JSON] = "config.json"};
    cJSON *o = cJSON_CreateObject();
    struct checkpoint *c = x->c;
    struct conversion report = {.source = c, .gaps = &c->gaps};
    struct sums sums = inspect_sums(c, x->stored);
    report_plan_json(o, &report);
    json_add_u64(o, "stored_tensors", c->catalog.stored.num_tensors);
    json_add_u64(o, "stored_bytes", inspect_sums(c, true).all.bytes);
    json_add_u64(o, "non_tensor_entries", c->catalog.stored.num_objects);
    json_add_u64(o, "files", c->catalog.stored.num_files);
    cJSON_AddItemToObject(o, "file_list", files_json(&c->catalog.stored));
    cJSON_AddItemToObject(o, "encodings", encodings_json(c));
    cJSON_AddItemToObject(o, "optimizer", optimizer_json(c));
    cJSON_AddItemToObject(o, "training", run_json(c));
    json_add_text(o, "config_of", x->stored_only ? NULL : origins[c->config_origin]);
    cJSON_AddItemToObject(o, "config",
                          x->stored_only ? cJSON_CreateNull() : config_json(&c->config));
    sums_json(o, &sums);
    record_json(o, x->record);
    if (x->args) cJSON_AddItemToObject(o, "args", cJSON_Duplicate(x->args, true));
    if (!x->is_listed) return o;
    if (x->stored) cJSON_AddItemToObject(o, "entries", entries_json(x));
    cJSON *list = cJSON_AddArrayToObject(o, "tensors");
    for (size_t i = 0; i < x->num_tensors; i++) {
        cJSON *t = tensor_json(c, &x->tensors[i]);
        if (x->stats)
            cJSON_AddItemToObject(t, "stats", stats_json(x->tensors[i].dtype, &x->stats[i]));
        cJSON_AddItemToArray(list, t);
    }
    return o;
}
