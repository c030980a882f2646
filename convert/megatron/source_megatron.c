/* source_megatron.c - finds the iteration of a Megatron checkpoint and what it says of its model.
 */
#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "common/yaml.h"
#include "convert/config_difference.h"
#include "convert/format.h"
#include "convert/map/model_fit.h"
#include "convert/map/params.h"
#include "convert/megatron/megatron_args.h"
#include "convert/megatron/megatron_source.h"
#include "convert/naming.h"
#include "formats/pickle.h"
#include "formats/torch.h"

enum { YAML_CAP = 16 << 20, METADATA_CAP = 1 << 20, MOST_HEADS = 1 << 20 };

static const char tracker_name[] = "latest_checkpointed_iteration.txt",
                  bridge_tracker_name[] = "latest_train_state.pt";

/* ---- where it is ---- */

static bool has(struct arena *a, const char *folder, const char *name)
{
    return path_exists(path_join(a, folder, name));
}

/* Whether metadata.json is of a distributed checkpoint; the name is not Megatron's alone. */
static bool has_backend(struct arena *a, const char *folder, bool *of_torch_dist)
{
    cJSON *tree;
    if (json_read_file(path_join(a, folder, "metadata.json"), METADATA_CAP, JSON_NAN, &tree, NULL))
        return false;
    const char *backend = json_as_text(json_get(tree, "sharded_backend"));
    bool has_one = backend != NULL;
    *of_torch_dist = backend && strcmp(backend, "torch_dist") == 0;
    cJSON_Delete(tree);
    return has_one;
}

/* Whether the folder itself holds rank files or a distributed checkpoint of Megatron. */
static bool is_iteration(struct arena *a, const char *folder)
{
    struct name_list list;
    bool of_torch_dist;
    if (has(a, folder, "metadata.json") && has(a, folder, ".metadata")) return true;
    if (has_backend(a, folder, &of_torch_dist) && !of_torch_dist) return true;
    if (!path_is_folder(folder) || folder_list(folder, a, &list, NULL)) return false;
    for (size_t i = 0; i < list.count; i++)
        if (fnmatch("mp_rank_[0-9][0-9]*", list.names[i], 0) == 0 &&
            path_is_folder(path_join(a, folder, list.names[i])))
            return true;
    return false;
}

static bool matches_megatron(const char *path)
{
    struct arena a;
    bool of_torch_dist;
    arena_init(&a);
    bool matches = path_is_folder(path) &&
                   (has(&a, path, tracker_name) || has(&a, path, bridge_tracker_name) ||
                    has_backend(&a, path, &of_torch_dist) || is_iteration(&a, path));
    arena_release(&a);
    return matches;
}

static void use_iteration(struct checkpoint *c, const char *root, const char *name)
{
    c->folder = path_join(&c->arena, root, name);
    c->training.release = strcmp(name, "release") == 0;
    c->training.iteration = c->training.release ? 0 : strtoll(name + strlen("iter_"), NULL, 10);
}

/* The number in Megatron-Bridge's tracker: a dict of 0-dim tensors. */
static enum status read_bridge_step(const char *path, int64_t *step, struct error *err)
{
    struct stored s;
    struct torch_file t;
    stored_init(&s);
    enum status st = torch_open(&t, &s, path, 0, UINT64_MAX, err);
    if (!st) {
        const struct value *v = value_get(t.root, "step");
        st = v && v->kind == VALUE_TENSOR ? torch_add_tensor(&t, &s, "step", v, err)
                                          : fail(err, ERR_CORRUPT, "%s: no tensor \"step\"", path);
        const struct stored_tensor *tensor = stored_find(&s, "step");
        char bytes[8];
        if (!st && (tensor->num_dims || (tensor->dtype != DT_I64 && tensor->dtype != DT_I32)))
            st = fail(err, ERR_CORRUPT, "%s: \"step\" is not a whole number", path);
        if (!st) {
            struct stored_reader *r = stored_reader_create(&s, 1);
            st = stored_read(r, tensor->pieces->file, tensor->pieces->offset_bytes, bytes,
                             dtype_bytes(tensor->dtype), err);
            stored_reader_free(r);
        }
        if (!st) *step = (int64_t)dtype_load(tensor->dtype, bytes, 0);
        torch_close(&t);
    }
    stored_release(&s);
    return st;
}

/* The tracker's text: a number, or the word release. */
static enum status read_tracker(struct checkpoint *c, const char **name, struct error *err)
{
    struct strbuf text = {0};
    const char *path = path_join(&c->arena, c->path, tracker_name);
    TRY(file_read_all(path, 4096, &text, err));
    strbuf_add_text(&text, "");
    char *rest;
    const char *word = strtok_r(text.data, " \t\r\n", &rest);
    enum status st = OK;
    char *end;
    if (word && strcmp(word, "release") == 0) {
        *name = "release";
    } else {
        unsigned long long n = word ? strtoull(word, &end, 10) : 0;
        if (!word || !isdigit((unsigned char)*word) || *end)
            st = fail(err, ERR_CORRUPT, "%s: neither a number nor \"release\"", path);
        else
            *name = arena_printf(&c->arena, "iter_%07llu", n);
    }
    strbuf_release(&text);
    return st;
}

static enum status choose_iteration(struct checkpoint *c, const struct source_options *o,
                                    const char **name, struct error *err)
{
    const char *bridge = path_join(&c->arena, c->path, bridge_tracker_name);
    int64_t step;
    if (o->has_ckpt_step) {
        *name = arena_printf(&c->arena, "iter_%07llu", (unsigned long long)o->ckpt_step);
        return OK;
    }
    if (has(&c->arena, c->path, tracker_name)) return read_tracker(c, name, err);
    if (!has(&c->arena, c->path, bridge_tracker_name))
        return fail(err, ERR_CORRUPT,
                    "%s: there is metadata.json and no .metadata: the checkpoint is not complete",
                    c->path);
    TRY(read_bridge_step(bridge, &step, err));
    *name = arena_printf(&c->arena, "iter_%07lld", (long long)step);
    return OK;
}

static enum status find_iteration(struct checkpoint *c, const struct source_options *o,
                                  struct error *err)
{
    const char *name = NULL;
    if (is_iteration(&c->arena, c->path)) {
        const char *base = path_base(&c->arena, c->path);
        if (fnmatch("iter_[0-9]*", base, 0) == 0 || strcmp(base, "release") == 0)
            use_iteration(c, path_parent(&c->arena, c->path), base);
        c->folder = c->path;
        if (o->has_ckpt_step && c->training.iteration != (int64_t)o->ckpt_step)
            return fail(err, ERR_USAGE, "%s: --ckpt-step %" PRIu64 ": this is one iteration itself",
                        c->path, o->ckpt_step);
        return OK;
    }
    TRY(choose_iteration(c, o, &name, err));
    use_iteration(c, c->path, name);
    if (path_is_folder(c->folder)) return OK;
    return fail(err, ERR_IO, "%s: no folder %s, which %s names", c->path, name,
                o->has_ckpt_step ? "--ckpt-step" : "the tracker file");
}

/* ---- what it says of the model ---- */

enum status value_copy(struct arena *a, const struct value *v, struct value **out,
                       struct error *err)
{
    struct strbuf pickle = {0};
    enum status st = pickle_write(&pickle, v, err);
    if (!st) st = pickle_read_bytes(a, pickle.data, pickle.length, out, err);
    strbuf_release(&pickle);
    return st;
}

void evidence_add(struct megatron_evidence *e, const char *rest, bool of_expert, char half,
                  unsigned num_dims, const uint64_t *shape)
{
    const char *mlp = of_expert ? rest : text_starts_with(rest, "mlp.") ? rest + 4 : "";
    if (strcmp(rest, "output_layer.weight") == 0) e->output_layer = true;
    if (text_starts_with(rest, "embedding.position_embeddings.")) e->position_embeddings = true;
    if (strcmp(rest, "self_attention.linear_qkv.bias") == 0) e->qkv_bias = true;
    if (strcmp(rest, "self_attention.linear_proj.bias") == 0) e->proj_bias = true;
    if (strcmp(mlp, "linear_fc2.bias") == 0) e->mlp_bias = true;
    if (text_starts_with(rest, "self_attention.q_layernorm.")) e->qk_norm = true;
    if (strcmp(rest, "decoder.final_layernorm.bias") == 0) e->layer_norm_bias = true;
    if (text_starts_with(rest, "pre_mlp_layernorm."))
        e->te_spec = true; /* on disk: beside a router */
    if (strcmp(rest, "decoder.final_layernorm.weight") == 0 && num_dims) e->hidden_size = shape[0];
    if (strcmp(rest, "self_attention.linear_proj.weight") == 0 && num_dims > 1)
        e->proj_columns = shape[1];
    if (strcmp(mlp, "linear_fc1.weight") == 0 && num_dims) e->fc1_rows = shape[0] * (half ? 2 : 1);
    if (strcmp(mlp, "linear_fc2.weight") == 0 && num_dims > 1) {
        e->fc2_columns = shape[1];
        *(of_expert ? &e->expert_columns : &e->mlp_columns) = shape[1];
    }
}

static void fill_in(uint64_t *size, uint64_t evidence)
{
    if (!*size) *size = evidence;
}

/* Sizes that nobody says. */
static void size_up(struct model_config *c, const struct megatron_evidence *e,
                    const struct layout_options *l)
{
    uint64_t tp = e->of_ranks && l->tp ? l->tp : 1, ep = e->of_ranks && l->ep ? l->ep : 1;
    uint64_t etp = e->of_ranks && l->etp ? l->etp : tp;
    fill_in(&c->num_layers, e->num_layers);
    fill_in(&c->hidden_size, e->hidden_size);
    fill_in(&c->num_experts, e->experts * ep);
    fill_in(&c->ffn_hidden_size, e->mlp_columns * tp);
    if (c->num_experts) fill_in(&c->moe_ffn_hidden_size, e->expert_columns * etp);
    fill_in(&c->ffn_hidden_size, c->moe_ffn_hidden_size);
    if (c->num_attention_heads)
        fill_in(&c->kv_channels, e->proj_columns * tp / c->num_attention_heads);
}

/* What tensors show, they show better than args, which may lack it. */
static void use_evidence(struct model_config *c, const struct megatron_evidence *e)
{
    c->untie_embeddings_and_output_weights = e->output_layer;
    c->add_qkv_bias = e->qkv_bias;
    c->add_proj_bias = e->proj_bias;
    c->add_mlp_bias = e->mlp_bias || (e->proj_bias && c->num_experts);
    c->add_bias_linear = false;
    model_config_join_biases(c);
    c->qk_layernorm = e->qk_norm;
    if (e->layer_norm_bias) c->normalization = "LayerNorm";
    if (!c->normalization) c->normalization = "RMSNorm";
    if (e->position_embeddings) c->position_embedding_type = "learned_absolute";
    if (e->fc1_rows) c->gated_linear_unit = e->fc1_rows == 2 * e->fc2_columns;
}

/* Takes from run_config.yaml what args have no words for, where it says what they do. */
static void add_unsaid(struct checkpoint *c, const struct model_config *more)
{
    const struct checkpoint args = {.config = c->config, .config_origin = CONFIG_OF_ARGS},
                            yaml = {.config = *more, .config_origin = CONFIG_OF_JSON};
    struct config_difference *d;
    size_t n = config_differences(&args, &yaml, &c->arena, &d);
    for (size_t i = 0; i < n; i++) {
        if (d[i].effect == EFFECT_COMPUTES)
            checkpoint_note(
                c, "%s is %s in the checkpoint's args, which are used, %s in run_config.yaml",
                d[i].field, d[i].values[0], d[i].values[1]);
        if (d[i].effect == EFFECT_UNSAID) model_config_take(&c->config, more, d[i].field);
    }
}

/* *model: the tree's `model`, NULL where there is none; the caller frees the tree. */
static enum status read_run_config(const struct checkpoint *c, cJSON **tree, const cJSON **model,
                                   struct error *err)
{
    struct arena a;
    arena_init(&a);
    const char *path = path_join(&a, c->folder, "run_config.yaml");
    enum status st = path_exists(path) ? yaml_read_file(path, YAML_CAP, tree, err) : OK;
    arena_release(&a);
    *model = json_get(*tree, "model");
    if (!cJSON_IsObject(*model)) *model = NULL;
    return st;
}

/* What Megatron-Bridge keeps in place of args. */
static void use_run_config(struct megatron_source *m, const cJSON *model)
{
    struct checkpoint *c = m->c;
    const char *impl = json_as_text(json_get(model, "transformer_impl"));
    model_config_from_run_config(model, &c->arena, &c->config);
    layout_options_from_run_config(model, &c->arena, &m->written_layout);
    m->moe_layers_known = json_get(model, "moe_layer_freq") != NULL;
    c->transformer_engine_names = !impl || strcmp(impl, "local");
    c->beyond = run_config_beyond_hf(model, &c->arena);
}

static void use_args(struct megatron_source *m, const struct value *args, const cJSON *model)
{
    struct checkpoint *c = m->c;
    const char *impl = value_as_text(value_get(args, "transformer_impl"));
    struct model_config more = {.rotary_percent = 1};
    model_config_from_args(args, &c->arena, &c->config);
    layout_options_from_args(args, &c->arena, &m->written_layout);
    m->moe_layers_known = value_get(args, "moe_layer_freq") != NULL;
    c->transformer_engine_names = !impl || strcmp(impl, "local");
    c->beyond = args_beyond_hf(args, &c->arena);
    if (!model) return;
    model_config_from_run_config(model, &c->arena, &more);
    add_unsaid(c, &more);
    if (!c->beyond) c->beyond = run_config_beyond_hf(model, &c->arena);
}

/* args of the common state, and run_config.yaml, which may say more or stand in their place. */
static enum status read_args(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    const struct value *args = value_get(c->training.common, "args");
    bool found = args && args->kind == VALUE_OBJECT;
    const cJSON *model;
    cJSON *tree = NULL;
    int64_t iteration;
    TRY(read_run_config(c, &tree, &model, err));
    if (found)
        use_args(m, args, model);
    else if (model)
        use_run_config(m, model);
    cJSON_Delete(tree);
    c->config_origin = found || model ? CONFIG_OF_ARGS : CONFIG_OF_TENSORS;
    if (c->config_origin == CONFIG_OF_TENSORS)
        checkpoint_note(
            c, "%s: neither args nor run_config.yaml: the model is inferred from its tensors",
            c->folder);
    if (c->training.iteration < 0 &&
        value_as_int(value_get(c->training.common, "iteration"), &iteration))
        c->training.iteration = iteration;
    return OK;
}

/* ---- config.json ---- */

static enum status compare_sizes(const struct model_config *args, const struct model_config *hf,
                                 const char *folder, struct error *err)
{
    const struct {
        const char *name;
        uint64_t args, hf;
    } sizes[] = {
#define SIZE(field) {#field, args->field, hf->field}
        SIZE(num_layers),
        SIZE(hidden_size),
        SIZE(num_attention_heads),
        SIZE(num_query_groups),
        SIZE(kv_channels),
        {"ffn_hidden_size", args->num_experts ? 0 : args->ffn_hidden_size, hf->ffn_hidden_size},
        SIZE(num_experts),
#undef SIZE
    };
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (sizes[i].args && sizes[i].args != sizes[i].hf)
            return fail(err, ERR_UNSUPPORTED,
                        "%s is %" PRIu64 " in the checkpoint, %" PRIu64 " by %s/config.json",
                        sizes[i].name, sizes[i].args, sizes[i].hf, folder);
    return OK;
}

/* What args and config.json say differently without a tensor that would show it. */
static void note_differences(struct checkpoint *c, const struct model_config *was,
                             const struct model_config *hf, const char *folder)
{
    const struct checkpoint args = {.config = *was, .config_origin = c->config_origin},
                            json = {.config = *hf, .config_origin = CONFIG_OF_JSON};
    struct config_difference *d;
    size_t n = config_differences(&args, &json, &c->arena, &d);
    for (size_t i = 0; i < n; i++)
        if (d[i].effect == EFFECT_COMPUTES)
            checkpoint_note(
                c, "%s is %s in the checkpoint's args, %s in %s/config.json, which is used",
                d[i].field, d[i].values[0], d[i].values[1], folder);
}

/* config.json counts for all that it says; sizes must be those of the checkpoint. */
static enum status apply_hf_config(struct megatron_source *m, const struct megatron_evidence *e,
                                   const char *folder, struct error *err)
{
    struct checkpoint *c = m->c;
    const struct model_map *map;
    const struct model_config was = c->config;
    struct model_config hf;
    cJSON *tree;
    TRY(hf_config_read(folder, &tree, err));
    enum status st = source_choose_map(m->o, m->maps, tree, &map, err);
    if (!st) st = model_config_from_hf(map, tree, &c->arena, &hf, err);
    cJSON_Delete(tree);
    if (st) return fail_in(err, "%s", folder);
    TRY(compare_sizes(&was, &hf, folder, err));
    if (e->output_layer && !e->head_may_be_copy && !hf.untie_embeddings_and_output_weights)
        return fail(err, ERR_UNSUPPORTED,
                    "%s has a head of its own (output_layer.weight); by %s/config.json "
                    "(tie_word_embeddings) the embedding is the head",
                    c->folder, folder);
    TRY(source_check_vocab(m->o, hf.vocab_size, path_join(&c->arena, folder, "config.json"), err));
    note_differences(c, &was, &hf, folder);
    c->config = hf;
    c->config.padded_vocab_size = was.padded_vocab_size;
    c->config.make_vocab_size_divisible_by = was.make_vocab_size_divisible_by;
    c->family = model_map_family(map);
    c->hf_folder = folder;
    c->config_origin = CONFIG_OF_JSON;
    m->moe_layers_known = true;
    return OK;
}

static enum status use_hf_config(struct megatron_source *m, const struct megatron_evidence *e,
                                 struct error *err)
{
    struct checkpoint *c = m->c;
    const char *folder = m->o->hf_config;
    const char *own = path_join(&c->arena, c->folder, "ferry-hf");
    const struct model_map *map;
    if (!folder && has(&c->arena, own, "config.json")) folder = own;
    if (folder) return apply_hf_config(m, e, folder, err);
    if (m->o->family)
        TRY(source_choose_map(m->o, m->maps, NULL, &map, err));
    else /* what no field has a place for makes another family of it */
        map = c->beyond ? NULL : model_fit(m->maps, &c->config);
    if (map) c->family = model_map_family(map);
    return OK;
}

/* What all that follows relies on. */
static enum status check_config(const struct checkpoint *c, struct error *err)
{
    const struct model_config *m = &c->config;
    if (!m->num_layers)
        return fail(err, ERR_CORRUPT,
                    "%s: it does not say how many layers the model has; --hf-config DIR can",
                    c->folder);
    if (!m->num_attention_heads || !m->num_query_groups)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: neither args nor run_config.yaml say how many heads the model has; "
                    "--hf-config DIR can",
                    c->folder);
    if (m->num_layers > MOST_LAYERS || m->num_experts > MOST_EXPERTS ||
        m->num_layers * m->num_experts > MOST_LAYER_EXPERTS ||
        m->num_attention_heads > MOST_HEADS || m->num_attention_heads % m->num_query_groups)
        return fail(err, ERR_CORRUPT,
                    "%s: no model has %" PRIu64 " layers, %" PRIu64 " heads, %" PRIu64
                    " key/value heads and %" PRIu64 " experts",
                    c->folder, m->num_layers, m->num_attention_heads, m->num_query_groups,
                    m->num_experts);
    return OK;
}

/* Args do not say how large the vocabulary is without its padding; run_config.yaml beside them may,
 * and counts where no config.json does. --true-vocab-size must not contradict either. */
static enum status use_vocabulary(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    const char *path = path_join(&c->arena, c->folder, "run_config.yaml");
    uint64_t given = m->o->true_vocab_size, *size = &c->config.vocab_size;
    cJSON *tree = NULL;
    if (!*size && path_exists(path)) {
        TRY(yaml_read_file(path, YAML_CAP, &tree, err));
        const cJSON *model = json_get(tree, "model");
        if (cJSON_IsTrue(json_get(model, "should_pad_vocab")))
            (void)json_as_u64(json_get(model, "vocab_size"), size);
        cJSON_Delete(tree);
        TRY(source_check_vocab(m->o, *size, path, err));
    }
    if (given) *size = given;
    return OK;
}

enum status megatron_describe(struct megatron_source *m, const struct megatron_evidence *e,
                              struct error *err)
{
    struct checkpoint *c = m->c;
    struct error why;
    c->config = (struct model_config){.rotary_percent = 1};
    TRY(read_args(m, err));
    if (!m->written_layout.tp && !m->written_layout.pp) m->written_layout = e->layout;
    if (!m->written_layout.etp) m->written_layout.etp = e->layout.etp;
    size_up(&c->config, e, &m->written_layout);
    use_evidence(&c->config, e);
    if (e->local_spec || e->te_spec) c->transformer_engine_names = e->te_spec;
    TRY(use_hf_config(m, e, err));
    TRY(use_vocabulary(m, err));
    TRY(check_config(c, err));
    params_use(c, m->maps, c->family ? model_map_of_family(m->maps, c->family) : NULL);
    if (!c->config.num_experts) m->written_layout.etp = 0; /* args say it of dense models, too */
    if (layout_make(&c->layout, &c->arena, &m->written_layout, &c->config, &why)) {
        struct layout_options one = {0};
        c->layout = (struct layout){0};
        if (e->of_ranks) return OK;
        checkpoint_note(c, "the layout that it was written in is not understood (%s)", why.text);
        return layout_make(&c->layout, &c->arena, &one, &c->config, err);
    }
    return OK;
}

enum status megatron_import(struct megatron_source *m, struct error *err)
{
    const struct naming_import import = {
        .c = m->c, .o = m->o, .moe_layers_known = m->moe_layers_known};
    return m->c->format->naming->import(&import, err);
}

/* ---- what is missing ---- */

/* Names of one layer's tensors behind the layer's number, for layers with experts and without;
 * those of experts with {e} in place of the expert's number. */
struct layer_names {
    struct map rests[2];
};

static const char of_experts[] = "mlp.experts.experts.";

static bool layer_of(const char *name, uint64_t *layer, const char **rest)
{
    char *end;
    if (!text_starts_with(name, "decoder.layers.")) return false;
    *layer = strtoull(name + strlen("decoder.layers."), &end, 10);
    *rest = end + 1;
    return true;
}

static void collect_rests(struct checkpoint *c, struct layer_names *names)
{
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        uint64_t layer;
        const char *rest;
        if (!layer_of(c->catalog.tensors[i].name, &layer, &rest) || layer >= c->config.num_layers)
            continue;
        if (text_starts_with(rest, of_experts))
            rest = arena_printf(&c->arena, "%s{e}%s", of_experts,
                                rest + strlen(of_experts) +
                                    strspn(rest + strlen(of_experts), "0123456789"));
        (void)map_add(&names->rests[model_layer_is_moe(&c->config, layer)], rest, 0, NULL);
    }
}

/* What a layer of these names lacks. */
static enum status add_missing(struct checkpoint *c, uint64_t layer, const char *rest,
                               struct error *err)
{
    const char *expert = strstr(rest, "{e}");
    int before = expert ? (int)(expert - rest) : (int)strlen(rest);
    for (uint64_t e = 0; e < (expert ? c->config.num_experts : 1); e++) {
        const char *number = expert ? arena_printf(&c->arena, "%" PRIu64, e) : "";
        const char *name = arena_printf(&c->arena, "decoder.layers.%" PRIu64 ".%.*s%s%s", layer,
                                        before, rest, number, expert ? expert + 3 : "");
        if (!catalog_find(&c->catalog, name)) TRY(gaps_add_missing(&c->gaps, &c->arena, name, err));
    }
    return OK;
}

static enum status compare_layers(struct checkpoint *c, const struct layer_names *names,
                                  struct error *err)
{
    for (uint64_t l = 0; l < c->config.num_layers; l++) {
        const struct map *rests = &names->rests[model_layer_is_moe(&c->config, l)];
        for (size_t i = 0; i < rests->num_slots; i++) {
            if (rests->slots[i].key) TRY(add_missing(c, l, rests->slots[i].key, err));
        }
    }
    return OK;
}

/* A parameter that the model map knows must be there, and of the shape that the config tells. */
static enum status check_mapped(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct checkpoint *c = context;
    const struct tensor *own = catalog_find(&c->catalog, t->name);
    if (!own) return gaps_add_missing(&c->gaps, &c->arena, t->name, err);
    if (own->num_dims == t->num_dims &&
        memcmp(own->shape, t->shape, own->num_dims * sizeof *own->shape) == 0)
        return OK;
    c->contradicts = true;
    return fail(err, ERR_UNSUPPORTED, "%s: %s is %s; by its %s it should be %s", c->folder,
                own->stored_name ? own->stored_name : own->name,
                shape_text(&c->arena, own->num_dims, own->shape),
                c->config_origin == CONFIG_OF_JSON ? "config.json" : "args or run_config.yaml",
                shape_text(&c->arena, t->num_dims, t->shape));
}

enum status megatron_find_missing(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    const struct model_map *map = c->family ? model_map_of_family(m->maps, c->family) : NULL;
    struct model_config config = c->config;
    if (!config.vocab_size) config.vocab_size = config.padded_vocab_size; /* all rows are kept */
    if (map && config.vocab_size) return model_map_expand(map, &config, NULL, check_mapped, c, err);
    struct layer_names names = {0};
    collect_rests(c, &names);
    enum status st = compare_layers(c, &names, err);
    map_release(&names.rests[0]);
    map_release(&names.rests[1]);
    if (!st && !catalog_find(&c->catalog, "embedding.word_embeddings.weight"))
        st = gaps_add_missing(&c->gaps, &c->arena, "embedding.word_embeddings.weight", err);
    return st;
}

static enum status open_megatron(struct checkpoint *c, const struct source_options *o,
                                 const struct model_maps *maps, struct error *err)
{
    struct megatron_source m = {.c = c, .o = o, .maps = maps};
    TRY(find_iteration(c, o, err));
    bool dist = has(&c->arena, c->folder, "metadata.json");
    c->format = dist ? &format_torch_dist : &format_torch;
    TRY(dist ? megatron_open_torch_dist(&m, err) : megatron_open_torch(&m, err));
    TRY(megatron_find_missing(&m, err));
    return catalog_check(&c->catalog, err);
}

const struct source_kind source_megatron = {matches_megatron, open_megatron};
