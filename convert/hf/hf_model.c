#include "convert/hf/hf_model.h"

#include <inttypes.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "convert/companions.h"
#include "convert/format.h"
#include "convert/hf/encodings.h"
#include "convert/hf/module_names.h"
#include "convert/hf_config.h"
#include "convert/map/model_fit.h"
#include "convert/map/params.h"
#include "convert/states.h"
#include "convert/torch_groups.h"

/* ---- the config of a source ---- */

/* Reads how weights are encoded, if the config lies beside them. */
static enum status read_quantization(struct naming_import *x, const cJSON *config,
                                     struct error *err)
{
    struct checkpoint *c = x->c;
    struct quantization *q = NULL;
    if (c->folder && strcmp(c->hf_folder, c->folder)) return OK;
    TRY(quantization_read(config, c->hf_folder, &c->arena, &q, err));
    x->quantization = q;
    return OK;
}

static bool find_shape(const void *context, const char *name, unsigned *num_dims,
                       const uint64_t **shape)
{
    const struct native_tensor *t = catalog_find_native(context, name, NULL);
    if (!t) return false;
    *num_dims = t->num_dims;
    *shape = t->shape;
    return true;
}

/* Completes the error for an unknown model_type by the map that fits the
 * tensors' names and shapes best. */
static enum status with_nearest_map(const struct checkpoint *c, const struct model_maps *maps,
                                    const cJSON *config, struct error *err)
{
    struct arena a;
    arena_init(&a);
    const struct hf_shapes tensors = {find_shape, &c->catalog, c->catalog.num_native};
    const char *family, *known = arena_copy_text(&a, err->text);
    const char *nearest =
        c->catalog.num_native ? model_fit_tensors(maps, config, &tensors, &family, &a) : NULL;
    if (nearest)
        err->code =
            fail(err, err->code,
                 "%s; the nearest is %s; --model %s uses that map, and `ferry verify "
                 "--forward` with logits of transformers shows whether it computes the same; "
                 "`ferry models --scaffold %s` prints a first map",
                 known, nearest, family, c->path);
    arena_release(&a);
    return err->code;
}

static enum status read_config(struct naming_import *x, const struct model_maps *maps,
                               struct error *err)
{
    struct checkpoint *c = x->c;
    cJSON *config;
    TRY(hf_config_read(c->hf_folder, &config, err));
    enum status st = source_choose_map(x->o, maps, config, &x->map, err);
    if (st == ERR_UNSUPPORTED) st = with_nearest_map(c, maps, config, err);
    if (!st) c->family = model_map_family(x->map);
    struct unknown_of unknown = {.c = c, .o = x->o, .file = "config.json"};
    if (!st) source_settle_config(&unknown, x->map, config);
    if (!st) st = read_quantization(x, config, err);
    if (!st) st = model_config_from_hf(x->map, config, &c->arena, &c->config, err);
    if (!st) model_config_unknown(x->map, config, source_list_unknown, &unknown);
    if (!st) st = source_check_listed(&unknown, err);
    cJSON_Delete(config);
    if (st) return fail_in(err, "%s", c->hf_folder);
    c->config_origin = CONFIG_OF_JSON;
    return source_check_vocab(x->o, c->config.vocab_size,
                              path_join(&c->arena, c->hf_folder, "config.json"), err);
}

/* The folder whose config.json counts; NULL: none. */
static const char *find_config(struct arena *a, const struct source_options *o,
                               const char *const *folders)
{
    if (o->hf_config) return o->hf_config;
    for (; *folders; folders++)
        if (path_exists(path_join(a, *folders, "config.json"))) return *folders;
    return NULL;
}

enum status hf_model_describe(struct checkpoint *c, const struct source_options *o,
                              const struct model_maps *maps, const char *const *folders,
                              bool required, struct naming_import *import, struct error *err)
{
    struct layout_options one = {0};
    *import = (struct naming_import){.c = c, .o = o};
    c->hf_folder = find_config(&c->arena, o, folders);
    if (!c->hf_folder && required)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: weights without a config.json that describes their model; --hf-config DIR "
                    "gives one",
                    folders[0]);
    if (!c->hf_folder && o->family)
        return fail(err, ERR_USAGE, "%s: --model %s needs a config.json; --hf-config DIR gives one",
                    c->path, o->family);
    if (c->hf_folder) {
        TRY(read_config(import, maps, err));
        params_use(c, maps, import->map);
    }
    return layout_make(&c->layout, &c->arena, &one, &c->config, err);
}

enum status hf_model_import(const struct naming_import *import, struct error *err)
{
    struct checkpoint *c = import->c;
    const struct naming *naming = import->map ? &naming_hf : &naming_plain;
    c->names_alone = !import->map;
    if (import->map) TRY(encodings_decode(import, err));
    if (import->map) TRY(module_names_strip(import, err));
    TRY(naming->import(import, err));
    TRY(naming->import_states(import, err));
    torch_groups_find_rules(c);
    TRY(states_complete(c, err));
    return catalog_check(&c->catalog, err);
}

/* ---- writing ---- */

/* Whether logical tensors have the source's native names. */
static bool has_plain_names(const struct checkpoint *c)
{
    return c->names_alone;
}

/* One message names all fields that config.json needs and no source gives. */
enum status hf_model_check_export(const struct target *t, struct error *err)
{
    const struct checkpoint *c = t->source;
    struct arena *a = (struct arena *)&t->plan.arena;
    if (has_plain_names(c)) return OK;
    TRY(source_check_exports(c, err));
    const char *lacks = t->map ? model_config_lacks(t->map, &c->config, a) : NULL;
    bool vocab = lacks && strcmp(lacks, "vocab_size") == 0;
    if (c->hf_folder && t->map && c->config.vocab_size) return OK;
    const char *alike = t->map ? NULL : model_fit_alike(t->maps, &c->config, a);
    if (alike)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: its args or run_config.yaml fit several families alike: %s; --model "
                    "FAMILY names one, --hf-config DIR takes the config from a config.json",
                    c->path, alike);
    if (!t->map)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: no model family fits its args or run_config.yaml; the nearest is %s; "
                    "--hf-config DIR takes the config from a config.json, --model FAMILY names the "
                    "family if args have everything else (see `ferry models`)",
                    c->path, model_fit_nearest(t->maps, &c->config, a));
    if (vocab)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: the size of the vocabulary without padding is unknown (%" PRIu64
                    " rows are stored): give --true-vocab-size N or --hf-config DIR",
                    c->path, c->config.padded_vocab_size);
    if (!lacks) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: config.json needs fields that its args or run_config.yaml lack: %s; "
                "--hf-config DIR takes the config from a config.json",
                c->path, lacks);
}

/* Rows of vocabulary padding are not written. */
static void count_cut_rows(struct target *t)
{
    const char *const name = "embedding.word_embeddings.weight.padding";
    const struct tensor *padding = catalog_find(&t->source->catalog, name);
    if (padding) t->facts.cut_rows = padding->shape[0];
}

enum status hf_model_export(struct target *t, export_visit *visit, void *context, struct error *err)
{
    const struct naming *naming = has_plain_names(t->source) ? &naming_plain : &naming_hf;
    TRY(naming->export(&(struct naming_export){.t = t}, visit, context, err));
    count_cut_rows(t);
    return gaps_check(&t->gaps, t->source->path, err);
}

struct native_name_search {
    struct arena *arena;
    const char *logical, *native;
};

static enum status find_native_name(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct native_name_search *search = context;
    (void)err;
    if (strcmp(t->name, search->logical) == 0)
        search->native = arena_copy_text(search->arena, t->parts[0].hf_name);
    return OK;
}

/* The native name of a tensor outside of layers; NULL: none. */
static const char *native_name_of(struct target *t, const char *logical)
{
    struct native_name_search search = {&t->plan.arena, logical, NULL};
    struct model_config one = t->source->config; /* one layer is enough */
    one.num_layers = 1;
    one.num_experts = one.num_experts ? 1 : 0;
    one.untie_embeddings_and_output_weights = true;
    const struct hf_names names = published_hf_names(t->source->published);
    return model_map_expand(t->map, &one, &names, find_native_name, &search, NULL) ? NULL
                                                                                   : search.native;
}

bool hf_model_tied_head(struct target *t, const char **head, const char **embedding)
{
    if (has_plain_names(t->source) || !t->map) return false;
    if (t->source->config.untie_embeddings_and_output_weights) return false;
    *head = native_name_of(t, "output_layer.weight");
    *embedding = native_name_of(t, "embedding.word_embeddings.weight");
    return *head && *embedding;
}

enum status hf_model_make_config(const struct target *t, cJSON **made, struct error *err)
{
    *made = NULL;
    if (t->source->hf_folder || has_plain_names(t->source)) return OK;
    cJSON *config = *made = cJSON_CreateObject();
    cJSON *architectures = cJSON_AddArrayToObject(config, "architectures");
    cJSON_AddItemToArray(architectures, cJSON_CreateString(model_map_architecture(t->map)));
    cJSON_AddStringToObject(config, "model_type", model_map_model_type(t->map));
    if (model_config_to_hf(t->map, &t->source->config, config, err))
        return fail_in(err, "%s", t->source->path);
    return OK;
}

/* Whether a config.json names another dtype than the weights have. */
static bool says_other_dtype(const cJSON *config, enum dtype dtype)
{
    const char *now = json_as_text(json_get(config, "dtype"));
    if (!now) now = json_as_text(json_get(config, "torch_dtype"));
    return now && strcmp(now, "auto") && strcmp(now, dtype_infos[dtype].torch);
}

/* Whether a source's config names a quantisation that written weights lose. */
static bool loses_encoding(const struct target *t)
{
    const struct catalog *all = &t->source->catalog;
    const struct checkpoint *c = t->source;
    bool encoded = !(c->format->has & FORMAT_CONFIG_JSON) || !c->hf_folder ||
                   strcmp(c->hf_folder, c->folder) != 0;
    if (target_encodes_as_source(t)) return false;
    for (size_t i = 0; i < all->num_tensors && !encoded; i++)
        encoded = name_is_of_encoding(all->tensors[i].name);
    return encoded;
}

/* Writes config.json, unless the source's is copied unchanged. */
static enum status write_config(const struct target *t, const cJSON *made,
                                const cJSON *quantization, enum dtype most, const char *path,
                                struct error *err)
{
    const bool is_hf = t->source->format->has & FORMAT_CONFIG_JSON;
    enum dtype dtype = t->options.casts ? t->options.dtype : most;
    cJSON *read = NULL;
    if (t->source->hf_folder) {
        TRY(hf_config_read(t->source->hf_folder, &read, err));
        const bool loses = loses_encoding(t) && quantization_drop(read);
        const bool other = says_other_dtype(read, dtype) && !is_hf && !target_encodes_as_source(t);
        if (!loses && !other && !t->options.casts && !quantization) {
            cJSON_Delete(read);
            return OK;
        }
    }
    cJSON *config = read ? read : cJSON_Duplicate(made, true);
    hf_config_set_dtype(config, dtype);
    if (quantization) json_put(config, "quantization_config", cJSON_Duplicate(quantization, true));
    enum status st = json_write_file(path, config, t->options.durable, err);
    cJSON_Delete(config);
    return st;
}

enum status hf_model_write_config(const struct target *t, const cJSON *made,
                                  const cJSON *quantization, enum dtype dtype, const char *folder,
                                  struct error *err)
{
    struct arena a;
    if (!made && !t->source->hf_folder) return OK;
    arena_init(&a);
    enum status st =
        write_config(t, made, quantization, dtype, path_join(&a, folder, "config.json"), err);
    if (!st && t->source->hf_folder)
        st = copy_companions(t->source->hf_folder, folder,
                             loses_encoding(t) ? quantization_file : NULL, t->options.durable, err);
    arena_release(&a);
    return st;
}
