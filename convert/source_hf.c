/* source_hf.c - a Hugging Face folder as a catalog: config.json picks the model map, whose rows
 * make logical tensors of the stored ones. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "convert/foreign.h"
#include "convert/format.h"
#include "convert/params.h"
#include "convert/source.h"
#include "formats/hf_folder.h"

enum { CONFIG_CAP = 16 << 20 };

struct opening {
    struct checkpoint *c;
    const struct source_options *o;
    const struct model_map *map;
    bool quantised;     /* by config.json */
    uint64_t *taken;    /* [own tensors] elements that rows have taken of each */
    size_t num_widened; /* tensors whose parts differ in dtype */
    const char *first_widened;
};

enum status hf_config_read(const char *folder, cJSON **tree, struct error *err)
{
    struct arena a;
    arena_init(&a);
    const char *path = path_join(&a, folder, "config.json");
    enum status st = path_exists(path) ? json_read_file(path, CONFIG_CAP, JSON_NAN, tree, err)
                                       : fail(err, ERR_IO, "%s: no config.json", folder);
    if (!st && !cJSON_IsObject(*tree)) {
        st = fail(err, ERR_CORRUPT, "%s: not a JSON object", path);
        cJSON_Delete(*tree);
    }
    arena_release(&a);
    return st;
}

static const struct own_tensor *find_own(const struct opening *x, const char *name)
{
    return catalog_find_own(&x->c->catalog, name, NULL);
}

static bool has_own(const void *context, const char *name)
{
    return find_own(context, name) != NULL;
}

/* "model.safetensors: tensor NAME" */
static const char *place_of(const struct opening *x, const struct own_tensor *own)
{
    const struct stored *all = &x->c->catalog.stored;
    const struct stored_tensor *s = &all->tensors[own->parts[0].stored];
    const char *path = s->num_pieces ? all->files[s->pieces[0].file].path : x->c->folder;
    return arena_printf(&x->c->arena, "%s: tensor %s", path, own->name);
}

static enum status check_part(const struct opening *x, const struct mapped_part *part,
                              const struct own_tensor *s, struct error *err)
{
    struct arena *a = &x->c->arena;
    const char *why = x->quantised
                          ? "; config.json says that the weights are quantised, which is not "
                            "supported: dequantise them first"
                          : "";
    bool same = s->num_dims == part->num_dims &&
                memcmp(s->shape, part->shape, s->num_dims * sizeof *s->shape) == 0;
    x->c->contradicts = !same && !x->quantised;
    if (!same)
        return fail(err, ERR_UNSUPPORTED, "%s is %s; by config.json it should be %s%s",
                    place_of(x, s), shape_text(a, s->num_dims, s->shape),
                    shape_text(a, part->num_dims, part->shape), why);
    if (!dtype_is_float(s->dtype))
        return fail(err, ERR_UNSUPPORTED, "%s is of dtype %s; a weight is F16, BF16, F32 or F64%s",
                    place_of(x, s), dtype_infos[s->dtype].name, why);
    return OK;
}

/* The smallest that has all values of both: of F16 and BF16 neither does. */
static enum dtype wider_dtype(enum dtype a, enum dtype b)
{
    if (dtype_bytes(a) != dtype_bytes(b)) return dtype_bytes(a) > dtype_bytes(b) ? a : b;
    return a == b ? a : DT_F32;
}

/* The dtype of a logical tensor: that of its parts, or what they are all cast to. */
static enum status common_dtype(struct opening *x, const struct mapped_tensor *t, enum dtype *dtype,
                                struct error *err)
{
    const struct own_tensor *first = find_own(x, t->parts[0].hf_name);
    bool widened = false;
    *dtype = first->dtype;
    for (size_t i = 1; i < t->num_parts; i++) {
        const struct own_tensor *other = find_own(x, t->parts[i].hf_name);
        if (other->dtype == first->dtype) continue;
        if (!x->o->casts && !x->o->widest)
            return fail(
                err, ERR_UNSUPPORTED,
                "%s is %s and %s is %s: they become one tensor, %s; --torch-dtype casts both",
                first->name, dtype_infos[first->dtype].name, other->name,
                dtype_infos[other->dtype].name, t->name);
        *dtype = x->o->casts ? x->o->dtype : wider_dtype(*dtype, other->dtype);
        widened = !x->o->casts;
    }
    if (widened && x->num_widened++ == 0)
        x->first_widened = arena_printf(&x->c->arena, "%s", t->name);
    return OK;
}

/* Lists the parts that are not there. */
static enum status note_missing(const struct opening *x, const struct mapped_tensor *t,
                                bool *missing, struct error *err)
{
    *missing = false;
    for (size_t i = 0; i < t->num_parts; i++) {
        const char *name = t->parts[i].hf_name;
        bool again = i > 0 && strcmp(name, t->parts[i - 1].hf_name) == 0;
        if (find_own(x, name)) continue;
        if (!again) TRY(gaps_add_missing(&x->c->gaps, &x->c->arena, name, err));
        *missing = true;
    }
    return OK;
}

static void take(const struct opening *x, const struct own_tensor *own, const struct pair *part)
{
    x->taken[own - x->c->catalog.own] += pair_count(part);
}

/* Of an incomplete tensor whose other parts may be missing, what is there can go nowhere, so it is
 * listed as unexpected; where they may not, they alone are worth a line. */
static void leave_parts(const struct opening *x, const struct mapped_tensor *t)
{
    bool allowed = true;
    for (size_t i = 0; i < t->num_parts; i++)
        allowed &= find_own(x, t->parts[i].hf_name) ||
                   globs_match(x->o->allow_missing, t->parts[i].hf_name);
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct own_tensor *part = find_own(x, t->parts[i].hf_name);
        if (part && !allowed) take(x, part, &t->parts[i].pair);
        if (part && allowed)
            checkpoint_note(
                x->c, "%s cannot be converted: it is one part of %s, of which others are missing",
                part->name, t->name);
    }
}

static enum status add_mapped(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct opening *x = context;
    struct tensor *logical;
    enum dtype dtype;
    bool missing;
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct own_tensor *part = find_own(x, t->parts[i].hf_name);
        if (part) TRY(check_part(x, &t->parts[i], part, err));
    }
    TRY(note_missing(x, t, &missing, err));
    if (missing) {
        leave_parts(x, t);
        return OK;
    }
    TRY(common_dtype(x, t, &dtype, err));
    TRY(catalog_add(&x->c->catalog, t->name, dtype, t->num_dims, t->shape, &logical, err));
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct own_tensor *part = find_own(x, t->parts[i].hf_name);
        take(x, part, &t->parts[i].pair);
        TRY(catalog_add_part(&x->c->catalog, logical, part, &t->parts[i].pair, err));
    }
    return OK;
}

/* ---- tied heads ---- */

struct head_search {
    const char *logical;
    char name[256];
};

static enum status find_name(void *context, const struct mapped_tensor *t, struct error *err)
{
    (void)err;
    struct head_search *search = context;
    if (strcmp(t->name, search->logical) == 0)
        snprintf(search->name, sizeof search->name, "%s", t->parts[0].hf_name);
    return OK;
}

/* The own tensor of a logical name; NULL where the files have none. */
static const struct own_tensor *own_of(const struct opening *x, const char *logical)
{
    struct head_search search = {.logical = logical};
    struct model_config one =
        x->c->config; /* what stands outside the layers is the same with one */
    struct hf_names names = {has_own, x};
    one.num_layers = 1;
    one.num_experts = one.num_experts ? 1 : 0;
    one.untie_embeddings_and_output_weights = true;
    if (model_map_expand(x->map, &one, &names, find_name, &search, NULL)) return NULL;
    return find_own(x, search.name);
}

/* A head that is stored although it is tied must equal the embedding; then nobody needs it. */
static enum status check_tied_head(struct opening *x, struct error *err)
{
    struct checkpoint *c = x->c;
    const struct own_tensor *head = own_of(x, "output_layer.weight");
    const struct tensor *embedding = catalog_find(&c->catalog, "embedding.word_embeddings.weight");
    struct tensor *read_head, *read_embedding;
    bool same;
    uint64_t at;
    if (c->config.untie_embeddings_and_output_weights || !head || !embedding) return OK;
    const struct own_tensor *embedded = own_of(x, embedding->name);
    x->taken[head - c->catalog.own] = head->numel;
    c->num_ignored++;
    TRY(catalog_wrap_own(&c->catalog, head, &read_head, err));
    TRY(catalog_wrap_own(&c->catalog, embedded, &read_embedding, err));
    TRY(source_same(c, read_head, read_embedding, &same, &at, err));
    if (same) return OK;
    c->contradicts = true;
    if (head->dtype == embedded->dtype && head->numel == embedded->numel)
        return fail(err, ERR_UNSUPPORTED,
                    "%s and %s differ at element %" PRIu64
                    ", but config.json says that they are tied (tie_word_embeddings)",
                    place_of(x, head), embedded->name, at);
    return fail(err, ERR_UNSUPPORTED,
                "%s is %s %s, and by config.json (tie_word_embeddings) it is %s, which is %s %s",
                place_of(x, head), dtype_infos[head->dtype].name,
                shape_text(&c->arena, head->num_dims, head->shape), embedded->name,
                dtype_infos[embedded->dtype].name,
                shape_text(&c->arena, embedded->num_dims, embedded->shape));
}

/* ---- the folder ---- */

static enum status note_unexpected(const struct opening *x, struct error *err)
{
    struct checkpoint *c = x->c;
    for (size_t i = 0; i < c->catalog.num_own; i++) {
        const struct own_tensor *s = &c->catalog.own[i];
        if (x->taken[i] && x->taken[i] != s->numel)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: the model map %s takes %" PRIu64 " of its %" PRIu64
                        " elements for a model of this config.json",
                        place_of(x, s), model_map_family(x->map), x->taken[i], s->numel);
        c->num_mapped += x->taken[i] > 0;
        if (x->taken[i]) continue;
        if (model_map_ignores(x->map, s->name))
            c->num_ignored++;
        else
            gaps_add_unexpected(&c->gaps, &c->arena, s->name);
    }
    return OK;
}

/* Quantised weights are stored under other names, in other shapes and dtypes than a map's. */
static void note_quantised(struct opening *x, const cJSON *config)
{
    const cJSON *q = json_get(config, "quantization_config");
    if (!cJSON_IsObject(q)) q = json_get(config, "quantization"); /* MLX's word */
    const char *method = json_as_text(json_get(q, "quant_method"));
    if (!cJSON_IsObject(q) || strcmp(x->c->hf_folder, x->c->folder)) return;
    x->quantised = true;
    checkpoint_note(x->c,
                    "config.json says that the weights are quantised (%s%s%s), which "
                    "is not supported: they are read as they are stored",
                    q->string, method ? ": " : "", method ? method : "");
}

static enum status read_config(struct opening *x, const char *folder, const struct model_maps *maps,
                               struct error *err)
{
    cJSON *config;
    if (!x->o->hf_config && !path_exists(path_join(&x->c->arena, folder, "config.json")))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: weights without config.json, which says what model they are of; "
                    "--hf-config DIR can",
                    folder);
    TRY(hf_config_read(folder, &config, err));
    note_quantised(x, config);
    enum status st = source_choose_map(x->o, maps, config, &x->map, err);
    if (!st) x->c->family = model_map_family(x->map);
    if (!st) st = model_config_from_hf(x->map, config, &x->c->arena, &x->c->config, err);
    cJSON_Delete(config);
    if (st) return fail_in(err, "%s", folder);
    x->c->config_origin = CONFIG_OF_JSON;
    return source_check_vocab(x->o, x->c->config.vocab_size,
                              path_join(&x->c->arena, folder, "config.json"), err);
}

/* config.json is in many folders: without weights beside it another program's mark counts. */
static bool matches_hf(const char *path)
{
    struct arena a;
    arena_init(&a);
    const char *folder = hf_folder_resolve(&a, path);
    bool matches =
        hf_folder_matches(folder) && (hf_folder_has_weights(folder) || !foreign_find(folder));
    arena_release(&a);
    return matches;
}

static enum status open_hf(struct checkpoint *c, const struct source_options *o,
                           const struct model_maps *maps, struct error *err)
{
    struct opening x = {.c = c, .o = o};
    struct hf_names names = {has_own, &x};
    c->format = &format_hf;
    c->folder = hf_folder_resolve(&c->arena, c->path);
    c->hf_folder = o->hf_config ? o->hf_config : c->folder;
    if (o->has_ckpt_step)
        return fail(err, ERR_USAGE, "%s: --ckpt-step: a Hugging Face folder has no iterations",
                    c->path);
    TRY(read_config(&x, c->hf_folder, maps, err));
    TRY(hf_folder_open(&c->catalog.stored, c->folder, NULL, err));
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++)
        TRY(catalog_own_stored(&c->catalog, c->catalog.stored.tensors[i].name, NULL,
                               &c->catalog.stored.tensors[i], err));

    struct layout_options one = {0};
    params_use(c, maps, x.map);
    TRY(layout_make(&c->layout, &c->arena, &one, &c->config, err));
    x.taken = arena_array(&c->arena, c->catalog.num_own, sizeof *x.taken);
    TRY(model_map_expand(x.map, &c->config, &names, add_mapped, &x, err));
    if (x.num_widened)
        checkpoint_note(c,
                        "parts of %zu tensor%s differ in dtype, and are read as the widest: %s%s",
                        x.num_widened, x.num_widened == 1 ? "" : "s", x.first_widened,
                        x.num_widened > 1 ? ", ..." : "");
    TRY(check_tied_head(&x, err));
    TRY(note_unexpected(&x, err));
    return catalog_check(&c->catalog, err);
}

const struct source_kind source_hf = {matches_hf, open_hf};
