#include "convert/megatron/describe.h"
#include "convert/published.h"

#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "common/yaml.h"
#include "convert/format.h"
#include "convert/hf_config.h"
#include "convert/map/model_fit.h"
#include "convert/map/params.h"
#include "convert/megatron/args_tree.h"
#include "convert/megatron/config_difference.h"
#include "convert/megatron/megatron_args.h"

/* ---- args and run_config.yaml ---- */

/* Takes fields from run_config.yaml that args cannot express. Notes fields on
 * which both differ. */
static void add_unsaid(struct checkpoint *c, const struct model_config *more)
{
    const struct checkpoint args = {.config = c->config, .config_origin = CONFIG_OF_ARGS},
                            yaml = {.config = *more, .config_origin = CONFIG_OF_JSON};
    struct config_difference *d;
    size_t n = config_differences(&args, &yaml, &c->arena, &d);
    for (size_t i = 0; i < n; i++) {
        if (d[i].effect == EFFECT_COMPUTES)
            checkpoint_note(c, "%s is %s in the checkpoint's args (used), %s in run_config.yaml",
                            d[i].field, d[i].values[0], d[i].values[1]);
        if (d[i].effect == EFFECT_UNSAID) model_config_take(&c->config, more, d[i].field);
    }
}

/* Sets *model to the tree's `model`; NULL: none. The caller frees the tree. */
static enum status read_run_config(const struct checkpoint *c, cJSON **tree, const cJSON **model,
                                   struct error *err)
{
    struct arena a;
    arena_init(&a);
    const char *path = path_join(&a, c->folder, "run_config.yaml");
    enum status st = path_exists(path) ? yaml_read_file(path, CONFIG_FILE_CAP, tree, err) : OK;
    arena_release(&a);
    *model = json_get(*tree, "model");
    if (!cJSON_IsObject(*model)) *model = NULL;
    return st;
}

/* Model and facts of one of the two files. */
struct said {
    struct model_config config;
    struct megatron_facts facts;
    bool moe_layers;
};

/* Reads one file and lists its unknown fields. config: fields known so far. */
static enum status read_config_file(struct megatron_source *m, enum megatron_file file,
                                    const cJSON *tree, const struct model_config *config,
                                    struct said *out, struct error *err)
{
    static const char *const names[] = {"args", "run_config.yaml"};
    struct unknown_of unknown = {.c = m->c, .o = m->o, .file = names[file]};
    *out = (struct said){.config = *config, .moe_layers = json_get(tree, "moe_layer_freq") != NULL};
    model_config_from_megatron(file, tree, &m->c->arena, &out->config);
    facts_from_megatron(file, tree, &m->c->arena, &out->facts);
    megatron_unknown(file, tree, &out->config, &out->facts, source_list_unknown, &unknown);
    return source_check_listed(&unknown, err);
}

static void use_file(struct megatron_source *m, const struct said *said)
{
    m->c->config = said->config;
    m->written_layout = said->facts.layout;
    m->moe_layers_known = said->moe_layers;
    m->c->transformer_engine_names = !text_equal(said->facts.transformer_impl, "local");
}

/* args, model: NULL if the checkpoint has none. */
static enum status use_files(struct megatron_source *m, const struct value *args,
                             const cJSON *model, struct error *err)
{
    const struct model_config nothing = {.rotary_percent = 1};
    struct said said;
    enum status st = OK;
    if (args) {
        cJSON *tree = args_tree(args);
        if (m->hybrid) hybrid_args_read(m->hybrid, tree);
        st = read_config_file(m, MEGATRON_ARGS, tree, &m->c->config, &said, err);
        cJSON_Delete(tree);
        use_file(m, &said);
    }
    if (st || !model) return st;
    TRY(read_config_file(m, MEGATRON_RUN_CONFIG, model, args ? &nothing : &m->c->config, &said,
                         err));
    if (args)
        add_unsaid(m->c, &said.config);
    else
        use_file(m, &said);
    return OK;
}

/* Reads args of the common state and run_config.yaml, which adds fields to args
 * or replaces missing args. */
static enum status read_args(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    const struct value *args = value_get(c->training.common, "args");
    bool found = args && args->kind == VALUE_OBJECT;
    const cJSON *model;
    cJSON *tree = NULL;
    int64_t iteration;
    TRY(read_run_config(c, &tree, &model, err));
    enum status st = use_files(m, found ? args : NULL, model, err);
    cJSON_Delete(tree);
    if (st) return st;
    c->config_origin = found || model ? CONFIG_OF_ARGS : CONFIG_OF_TENSORS;
    if (c->config_origin == CONFIG_OF_TENSORS)
        checkpoint_note(
            c, "%s: neither args nor run_config.yaml: inferring the model from its tensors",
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
    /* Latent attention has head sizes of its own, and Megatron's kv_channels counts for nothing. */
    const struct model_field *latent = model_field_find("multi_latent_attention");
    const bool is_latent = latent && !model_field_is_zero(latent, args);
    const struct {
        const char *name;
        uint64_t args, hf;
    } sizes[] = {
#define SIZE(field) {#field, args->field, hf->field}
        SIZE(num_layers),
        SIZE(hidden_size),
        SIZE(num_attention_heads),
        SIZE(num_query_groups),
        {"kv_channels", is_latent ? 0 : args->kv_channels, hf->kv_channels},
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

/* Notes fields in which args and config.json differ and that no tensor
 * shows. */
static void note_differences(struct checkpoint *c, const struct model_config *was,
                             const struct model_config *hf, const char *folder)
{
    const struct checkpoint args = {.config = *was, .config_origin = c->config_origin},
                            json = {.config = *hf, .config_origin = CONFIG_OF_JSON};
    struct config_difference *d;
    size_t n = config_differences(&args, &json, &c->arena, &d);
    for (size_t i = 0; i < n; i++)
        if (d[i].effect == EFFECT_COMPUTES)
            checkpoint_note(c, "%s is %s in the checkpoint's args, %s in %s/config.json (used)",
                            d[i].field, d[i].values[0], d[i].values[1], folder);
}

/* Lists declared fields that args set and config.json does not: no family of
 * config.json's computes with them, so they count as unknown. */
static enum status list_contradicting(struct megatron_source *m, const struct model_config *was,
                                      const struct model_config *hf, struct error *err)
{
    struct unknown_of unknown = {.c = m->c, .o = m->o, .file = "args"};
    for (size_t i = 0; i < num_model_fields; i++) {
        const struct model_field *f = &model_fields[i];
        if (!f->declared || f->role != FIELD_MODEL || model_field_is_unused(f, was)) continue;
        if (!model_field_is_unused(f, hf)) continue;
        source_list_unknown(&unknown, f->field.name,
                            model_config_text(was, f->field.name, &m->c->arena));
    }
    return source_check_listed(&unknown, err);
}

/* Takes the whole config from config.json, whose sizes must agree with the
 * checkpoint. */
static enum status apply_hf_config(struct megatron_source *m, const struct megatron_evidence *e,
                                   const char *folder, struct error *err)
{
    struct checkpoint *c = m->c;
    const struct model_map *map;
    const struct model_config was = c->config;
    struct model_config hf;
    cJSON *tree;
    TRY(published_map_read(c, m->maps, folder, err));
    TRY(hf_config_read(folder, &tree, err));
    enum status st = source_choose_map(m->o, m->maps, tree, &map, err);
    struct unknown_of unknown = {.c = c, .o = m->o, .file = "config.json"};
    if (!st) source_settle_config(&unknown, map, tree);
    if (!st) st = model_config_from_hf(map, tree, &c->arena, &hf, err);
    if (!st) model_config_unknown(map, tree, source_list_unknown, &unknown);
    if (!st) st = source_check_listed(&unknown, err);
    cJSON_Delete(tree);
    if (st) return fail_in(err, "%s", folder);
    TRY(compare_sizes(&was, &hf, folder, err));
    if (e->output_layer && !e->head_may_be_copy && !hf.untie_embeddings_and_output_weights)
        return fail(err, ERR_UNSUPPORTED,
                    "%s has a separate head (output_layer.weight), but %s/config.json ties it to "
                    "the embedding (tie_word_embeddings)",
                    c->folder, folder);
    TRY(source_check_vocab(m->o, hf.vocab_size, path_join(&c->arena, folder, "config.json"), err));
    model_set_mtp_layers(
        &hf, min_u64(model_mtp_layers(&hf), max_u64(e->mtp_layers, model_mtp_layers(&was))));
    TRY(list_contradicting(m, &was, &hf, err));
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
    const char *beside = path_join(&c->arena, c->folder, MEGATRON_HF_FOLDER);
    const struct model_map *map;
    if (!folder && path_exists(path_join(&c->arena, beside, "config.json"))) folder = beside;
    if (folder) return apply_hf_config(m, e, folder, err);
    if (m->o->family)
        TRY(source_choose_map(m->o, m->maps, NULL, &map, err));
    else /* unknown fields may mean another family */
        map = unknown_fields_refused(&c->unknown) ? NULL : model_fit(m->maps, &c->config);
    if (map) c->family = model_map_family(map);
    return OK;
}

/* Checks the config before other code relies on it. */
static enum status check_config(const struct checkpoint *c, struct error *err)
{
    const struct model_config *m = &c->config;
    if (!m->num_layers)
        return fail(err, ERR_CORRUPT, "%s: unknown number of layers; --hf-config DIR gives it",
                    c->folder);
    const struct model_field *free = model_field_find("attention_free");
    if (free && !model_field_is_zero(free, m)) return OK;
    if (!m->num_attention_heads || !m->num_query_groups)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: unknown number of heads, given by neither args nor run_config.yaml; "
                    "--hf-config DIR gives it",
                    c->folder);
    if (m->num_layers > MAX_LAYERS || m->num_experts > MAX_EXPERTS ||
        m->num_layers * m->num_experts > MAX_LAYER_EXPERTS || m->num_attention_heads > MAX_HEADS ||
        m->num_attention_heads % m->num_query_groups)
        return fail(err, ERR_CORRUPT,
                    "%s: impossible model of %" PRIu64 " layers, %" PRIu64 " heads, %" PRIu64
                    " key/value heads and %" PRIu64 " experts",
                    c->folder, m->num_layers, m->num_attention_heads, m->num_query_groups,
                    m->num_experts);
    return OK;
}

/* Sets the vocabulary size without padding, which args lack. Without a
 * config.json, run_config.yaml may have it. --true-vocab-size must contradict
 * neither. */
static enum status use_vocabulary(struct megatron_source *m, struct error *err)
{
    struct checkpoint *c = m->c;
    const char *path = path_join(&c->arena, c->folder, "run_config.yaml");
    uint64_t given = m->o->true_vocab_size, *size = &c->config.vocab_size;
    cJSON *tree = NULL;
    if (!*size && path_exists(path)) {
        TRY(yaml_read_file(path, CONFIG_FILE_CAP, &tree, err));
        struct megatron_facts f = {0};
        facts_from_megatron(MEGATRON_RUN_CONFIG, json_get(tree, "model"), &c->arena, &f);
        if (f.should_pad_vocab) *size = f.vocab_size;
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
    evidence_fill_sizes(e, &m->written_layout, &c->config);
    evidence_use(e, &c->config);
    if (c->config_origin == CONFIG_OF_TENSORS && e->mtp_layers <= MAX_LAYERS)
        model_set_mtp_layers(&c->config, e->mtp_layers);
    if (e->local_spec || e->te_spec) c->transformer_engine_names = e->te_spec;
    TRY(use_hf_config(m, e, err));
    TRY(use_vocabulary(m, err));
    TRY(check_config(c, err));
    params_use(c, m->maps, c->family ? model_map_of_family(m->maps, c->family) : NULL);
    if (!c->config.num_experts) m->written_layout.etp = 0; /* args give it for dense models too */
    if (layout_make(&c->layout, &c->arena, &m->written_layout, &c->config, &why)) {
        struct layout_options one = {0};
        c->layout = (struct layout){0};
        if (e->of_ranks) return OK;
        checkpoint_note(c, "cannot read the layout that it was written in (%s)", why.text);
        return layout_make(&c->layout, &c->arena, &one, &c->config, err);
    }
    return OK;
}
