#include "convert/megatron/megatron_args.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/text.h"
#include "convert/map/config_map_internal.h"
#include "convert/map/embedded.h"
#include "convert/map/fields.h"
#include "convert/megatron/args_tree.h"

/* ---- the maps of megatron.json ---- */

#define FACT(name) FIELD_ROW(struct megatron_facts, name)
#define LAYOUT_FACT(kind, name)                                                                    \
    {#name, FIELD_##kind,                                                                          \
     offsetof(struct megatron_facts, layout) + offsetof(struct layout_options, name)},
static const struct field fact_fields[] = {
    LAYOUT_FIELDS(LAYOUT_FACT) FACT(transformer_pp),
    FACT(layers_per_chunk),
    FACT(chunks_per_rank),
    FACT(world_size),
    FACT(padded_vocab_size),
    FACT(make_vocab_size_divisible_by),
    FACT(vocab_size),
    FACT(should_pad_vocab),
    FACT(ckpt_format),
    FACT(transformer_impl),
    FACT(moe_grouped_gemm),
    FACT(params_dtype),
    FACT(bf16),
    FACT(fp16),
};

static const struct field *find_fact(const char *name, enum field_zero *zero)
{
    *zero = ZERO_VALUE;
    for (size_t i = 0; i < COUNT(fact_fields); i++)
        if (strcmp(fact_fields[i].name, name) == 0) return &fact_fields[i];
    return NULL;
}

static const struct megatron_facts no_facts;
static const struct config_fields facts = {find_fact, &no_facts, sizeof no_facts, false};

enum list { LIST_MODEL, LIST_NEW, LIST_DTYPE, LIST_LAYOUT, NUM_LISTS };
static const struct {
    const char *name;
    const struct config_fields *fields;
} lists[] = {[LIST_MODEL] = {"model", &model_config_fields},
             [LIST_NEW] = {"new", &facts},
             [LIST_DTYPE] = {"dtype", &facts},
             [LIST_LAYOUT] = {"layout", &facts}};

static const struct {
    struct config_file file;
    const char *fields; /* megatron.json's member with its watched or inert fields */
} files[] = {
    [MEGATRON_ARGS] = {{"args", "args", true}, "watched_args"},
    [MEGATRON_RUN_CONFIG] = {{"run_config.yaml", "run_config", false}, "inert_run_config"}};
enum { NUM_FILES = COUNT(files) };

static const struct config_map *loaded[NUM_FILES][NUM_LISTS];

/* Loads the embedded maps once; a wrong row is a bug. */
static void load_maps(void)
{
    static struct arena a;
    static cJSON *tree;
    const struct embedded_file *file = embedded_file_find("megatron.json");
    struct error err = {0};
    arena_init(&a);
    enum status st = json_parse(file->text, file->length, JSON_STRICT, &tree, &err);
    if (!st) fields_add_rows(json_get(tree, lists[LIST_MODEL].name));
    for (size_t f = 0; f < NUM_FILES; f++)
        for (size_t k = 0; k < NUM_LISTS && !st; k++)
            st = config_map_make(&files[f].file, lists[k].fields, json_get(tree, lists[k].name),
                                 k == LIST_MODEL ? json_get(tree, files[f].fields) : NULL, &a,
                                 &loaded[f][k], &err);
    if (st) fprintf(stderr, "megatron.json: %s\n", err.text);
    assert(!st);
}

static const struct config_map *map_of(enum megatron_file file, enum list list)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_maps);
    return loaded[file][list];
}

/* ---- reading ---- */

void model_config_from_megatron(enum megatron_file file, const cJSON *tree, struct arena *a,
                                struct model_config *c)
{
    config_map_read(map_of(file, LIST_MODEL), tree, a, c);
    model_config_join_biases(c);
}

/* Clears fields about stages if a pipeline layout gives all stages' layers. */
static void keep_pipeline_layout(struct layout_options *o)
{
    if (!o->pipeline_layout) return;
    *o = (struct layout_options){.tp = o->tp,
                                 .pp = o->pp,
                                 .ep = o->ep,
                                 .etp = o->etp,
                                 .cp = o->cp,
                                 .dp = o->dp,
                                 .pipeline_layout = o->pipeline_layout};
}

void facts_from_megatron(enum megatron_file file, const cJSON *tree, struct arena *a,
                         struct megatron_facts *f)
{
    config_map_read(map_of(file, LIST_LAYOUT), tree, a, f);
    config_map_read(map_of(file, LIST_DTYPE), tree, a, f);
    keep_pipeline_layout(&f->layout);
}

void megatron_unknown(enum megatron_file file, const cJSON *tree, const struct model_config *c,
                      const struct megatron_facts *f,
                      void (*visit)(void *context, const char *name, const char *value),
                      void *context)
{
    struct config_read reads[NUM_LISTS];
    for (unsigned k = 0; k < NUM_LISTS; k++)
        reads[k] = (struct config_read){map_of(file, k), k == LIST_MODEL ? (const void *)c : f};
    config_unknown(reads, NUM_LISTS, tree, visit, context);
}

bool args_have_grouped_gemm(const struct value *args)
{
    bool truth;
    return value_as_bool(value_get(args, "moe_grouped_gemm"), &truth) && truth;
}

/* ---- what is written ---- */

/* Sets Megatron's fields of virtual stages: layers per chunk, or number of
 * chunks. */
static void deal_layers(struct megatron_facts *out, const struct args_facts *f)
{
    const struct layout *l = f->layout;
    const struct layout_options *o = &l->options;
    if (l->vpp <= 1 || o->pipeline_layout) return;
    if (o->first_layers || o->last_layers || o->count_embedding || o->count_loss)
        out->chunks_per_rank = l->vpp;
    else
        out->layers_per_chunk = f->config->num_layers / l->pp / l->vpp;
}

/* dtype: buffer for params_dtype's text. */
static struct megatron_facts facts_of(const struct args_facts *f, char dtype[40])
{
    const struct layout *l = f->layout;
    const uint64_t ranks = layout_stage_ranks(l), vocab = f->config->vocab_size;
    struct megatron_facts out = {.layout = l->options,
                                 .transformer_pp = l->pp,
                                 .world_size = ranks * l->pp,
                                 .padded_vocab_size = f->padded_vocab,
                                 .make_vocab_size_divisible_by = f->divisible_by,
                                 .vocab_size = vocab ? vocab : f->padded_vocab,
                                 .should_pad_vocab = vocab > 0,
                                 .ckpt_format = f->ckpt_format,
                                 .transformer_impl =
                                     f->transformer_engine ? "transformer_engine" : "local",
                                 .moe_grouped_gemm = f->grouped_gemm,
                                 .params_dtype = dtype,
                                 .bf16 = f->dtype == DT_BF16,
                                 .fp16 = f->dtype == DT_F16};
    snprintf(dtype, 40, "torch.%s", dtype_infos[f->dtype].torch);
    out.layout.cp = 1;
    out.layout.dp = ranks / l->tp;
    deal_layers(&out, f);
    return out;
}

static void write_facts(enum megatron_file file, enum list list, const struct args_facts *f,
                        cJSON *tree)
{
    char dtype[40];
    const struct megatron_facts out = facts_of(f, dtype);
    config_map_write(map_of(file, list), &out, tree);
}

/* ---- args ---- */

/* Moves a tree's items into a dict, and frees the tree. */
static void add_items(struct arena *a, struct value *d, cJSON *tree)
{
    for (const cJSON *i = tree->child; i; i = i->next)
        value_dict_set(a, d, i->string, args_value(a, i->string, i));
    cJSON_Delete(tree);
}

static void set_iteration(struct arena *a, struct value *d, const struct args_facts *f)
{
    value_dict_set(a, d, "iteration", value_int(a, (int64_t)f->iteration));
}

/* Its masters are remainders (optim/remainders.h); ours are whole. */
static const char precision_aware[] = "use_precision_aware_optimizer";

/* Distributed as split optimizers are: the rest's states are in flat buffers, and
 * not in the layer-wise optimizer (--no-use-layer-wise-param-layout). */
static const char *const layer_wise[] = {"use_layer_wise_distributed_optimizer",
                                         "use_layer_wise_param_layout"};

/* Sets args about the training state beside them. */
static void set_training(struct arena *a, struct value *d, const struct args_facts *f)
{
    static const char *const counts[] = {"consumed_train_samples", "skipped_train_samples",
                                         "consumed_valid_samples"};
    const struct training *t = f->training;
    if (!t) return;
    const uint64_t given[] = {t->consumed_train_samples, t->skipped_train_samples,
                              t->consumed_valid_samples};
    for (size_t i = 0; i < COUNT(counts); i++)
        if (given[i]) value_dict_set(a, d, counts[i], value_int(a, (int64_t)given[i]));
    if (f->has_rng) value_dict_set(a, d, "no_save_rng", value_bool(a, false));
    if (!f->has_optimizer) return;
    value_dict_set(a, d, "no_save_optim", value_bool(a, false));
    value_dict_set(a, d, "use_distributed_optimizer",
                   value_bool(a, f->is_distributed && !f->is_split));
    for (size_t i = 0; i < COUNT(layer_wise) && f->is_split; i++)
        value_dict_set(a, d, layer_wise[i], value_bool(a, f->is_distributed));
    value_dict_set(a, d, "dist_ckpt_optim_fully_reshardable",
                   value_bool(a, f->is_distributed && !f->is_model_space));
    if (value_get(d, precision_aware)) value_dict_set(a, d, precision_aware, value_bool(a, false));
    if (f->is_model_space) value_dict_set(a, d, "ckpt_fully_parallel_save", value_bool(a, true));
    if (!value_get(d, "optimizer"))
        value_dict_set(a, d, "optimizer", value_text(a, t->optimizer ? t->optimizer : "adam"));
}

cJSON *args_of_model(const struct model_config *c)
{
    cJSON *tree = cJSON_CreateObject();
    config_map_write(map_of(MEGATRON_ARGS, LIST_MODEL), c, tree);
    return tree;
}

struct value *args_make(struct arena *a, const struct args_facts *f)
{
    struct value *d = value_dict(a);
    cJSON *tree = args_of_model(f->config);
    config_map_write(map_of(MEGATRON_ARGS, LIST_NEW), &no_facts, tree);
    write_facts(MEGATRON_ARGS, LIST_DTYPE, f, tree);
    write_facts(MEGATRON_ARGS, LIST_LAYOUT, f, tree);
    if (f->hybrid) hybrid_args_write(f->hybrid, f->layout, tree);
    add_items(a, d, tree);
    set_iteration(a, d, f);
    set_training(a, d, f);
    return value_instance(a, "argparse", "Namespace", d);
}

static enum status stop_at_tensor(void *context, const char *path, const struct value *tensor,
                                  struct error *err)
{
    (void)context, (void)path, (void)tensor;
    return fail(err, DIFFERENT, "%s", "");
}

bool value_holds_tensor(const struct value *v)
{
    return value_walk(v, "", stop_at_tensor, NULL, NULL) != OK;
}

/* Whether every release of Megatron-Core loads the class in args
 * (core/safe_globals.py). A file with a newer class could not be loaded by
 * older releases at all. */
static bool is_known_class(const struct value_global *g)
{
    static const char *const modules[] = {"torch",   "argparse", "types",
                                          "pathlib", "builtins", "signal"};
    static const char *const enums[] = {"AttnBackend", "ModelType"};
    for (size_t i = 0; i < COUNT(modules); i++)
        if (strcmp(g->module, modules[i]) == 0) return true;
    for (size_t i = 0; i < COUNT(enums); i++)
        if (strcmp(g->name, enums[i]) == 0) return text_starts_with(g->module, "megatron.core.");
    return false;
}

/* Whether a value has only such classes. depth: levels to look at. */
static bool is_loadable(const struct value *v, unsigned depth)
{
    if (!v) return true;
    if (!depth) return false;
    if (v->kind == VALUE_GLOBAL) return is_known_class(v->global);
    const size_t items = v->kind == VALUE_DICT ? 2 * (size_t)v->count
                         : v->kind == VALUE_LIST || v->kind == VALUE_TUPLE || v->kind == VALUE_SET
                             ? v->count
                             : 0;
    for (size_t i = 0; i < items; i++)
        if (!is_loadable(v->items[i], depth - 1)) return false;
    if (v->kind != VALUE_OBJECT) return true;
    return is_loadable(v->object->callable, depth - 1) && is_loadable(v->object->args, depth - 1) &&
           is_loadable(v->object->state, depth - 1);
}

/* Copies attributes that can be written and loaded; returns the others'
 * names. */
static const char *copy_attributes(struct arena *a, const struct value *args, struct value *d)
{
    enum { DEPTH = 8 };
    const struct value *state = args->kind == VALUE_OBJECT ? args->object->state : args;
    const char *left_out = NULL;
    for (uint32_t i = 0; state && state->kind == VALUE_DICT && i < state->count; i++) {
        const char *name = value_as_text(state->items[2 * i]);
        if (!name) continue;
        if (is_loadable(state->items[2 * i + 1], DEPTH) &&
            !value_holds_tensor(state->items[2 * i + 1]))
            value_dict_set(a, d, name, state->items[2 * i + 1]);
        else
            left_out = left_out ? arena_printf(a, "%s, %s", left_out, name) : name;
    }
    return left_out;
}

/* Sets the args that GPTModel and HybridModel have different values of. */
static void change_model(const struct args_facts *f, cJSON *tree)
{
    cJSON *model = args_of_model(f->config);
    for (const char *const *name = hybrid_args; *name; name++) {
        const cJSON *item = json_get(model, *name);
        cJSON_AddItemToObject(tree, *name, item ? cJSON_Duplicate(item, true) : cJSON_CreateNull());
    }
    cJSON_Delete(model);
    if (f->hybrid) hybrid_args_write(f->hybrid, f->layout, tree);
}

struct value *args_update(struct arena *a, const struct value *args, const struct args_facts *f,
                          const char **left_out)
{
    struct value *d = value_dict(a);
    *left_out = copy_attributes(a, args, d);
    cJSON *tree = cJSON_CreateObject();
    write_facts(MEGATRON_ARGS, LIST_LAYOUT, f, tree);
    if (f->casts) write_facts(MEGATRON_ARGS, LIST_DTYPE, f, tree);
    if (f->hybrid || f->was_hybrid) change_model(f, tree);
    add_items(a, d, tree);
    if (value_get(args, "iteration")) set_iteration(a, d, f);
    set_training(a, d, f);
    return value_instance(a, "argparse", "Namespace", d);
}

struct model_config model_config_through_args(const struct model_config *c, struct arena *a)
{
    struct model_config out = {.rotary_percent = 1};
    cJSON *tree = args_of_model(c);
    const struct hybrid_stack *hybrid = hybrid_of_config(c, a);
    if (hybrid && !hybrid->paired) json_add_text(tree, "hybrid_layer_pattern", hybrid->symbols);
    model_config_from_megatron(MEGATRON_ARGS, tree, a, &out);
    cJSON_Delete(tree);
    out.vocab_size = c->vocab_size;
    out.add_qkv_bias = c->add_qkv_bias;
    out.add_proj_bias = c->add_proj_bias;
    out.add_mlp_bias = c->add_mlp_bias;
    for (size_t i = 0; i < num_model_fields && hybrid && !hybrid->paired; i++)
        if (text_starts_with(model_fields[i].field.name, "mamba_conv_"))
            model_field_copy(&model_fields[i], &out, c);
    return out;
}

/* ---- flags beside args ---- */

static void add_flag(struct strbuf *out, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add_flag(struct strbuf *out, const char *fmt, ...)
{
    va_list list;
    char text[128];
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    strbuf_printf(out, "%s%s", out->length ? " " : "", text);
}

static void add_window_flags(struct strbuf *out, const struct model_config *c,
                             const struct hybrid_stack *hybrid)
{
    const char *between = hybrid && hybrid->paired ? ",0" : ""; /* of the layer's other mixer */
    if (!c->sliding_window) return;
    add_flag(out, "--window-size %" PRIu64 ",0", c->sliding_window - 1);
    if (!c->window_layers) return;
    add_flag(out, "--window-attn-skip-freq [");
    for (uint64_t l = 0; l < c->num_layers; l++)
        strbuf_printf(out, "%s%d%s", l ? "," : "", model_layer_slides(c, l), between);
    strbuf_add_char(out, ']');
}

/* Latent attention's yarn has its own options, of which args have the others. */
static void add_yarn_flags(struct strbuf *out, const struct model_config *c)
{
    const struct model_field *latent = model_field_find("multi_latent_attention");
    const bool is_latent = latent && !model_field_is_zero(latent, c);
    if (!is_latent && !c->rope_original_max_position) return; /* args cannot express it */
    add_flag(out, "--rotary-scaling-factor %.9g", c->rope_factor);
    if (is_latent) {
        add_flag(out, "--rope-type yarn");
        return;
    }
    add_flag(out, "--yarn-original-max-position-embeddings %" PRIu64,
             c->rope_original_max_position);
    add_flag(out, "--yarn-beta-fast %.9g --yarn-beta-slow %.9g", c->rope_beta_fast,
             c->rope_beta_slow);
    if (c->rope_untruncated) add_flag(out, "--no-yarn-correction-range-round-to-int");
}

/* An option of a value in args: "--mtp-num-layers 1", "--qk-layernorm". */
static void add_option(struct strbuf *text, const char *name, const cJSON *value)
{
    if (!value || cJSON_IsNull(value) || cJSON_IsFalse(value)) return;
    strbuf_add_text(text, text->length ? " --" : "--");
    for (; *name; name++)
        strbuf_add_char(text, *name == '_' ? '-' : *name);
    if (cJSON_IsTrue(value)) return;
    strbuf_add_char(text, ' ');
    if (json_as_text(value))
        strbuf_add_text(text, json_as_text(value));
    else
        json_print(text, value, -1);
}

/* Whether Megatron-LM takes an argument from a checkpoint, of those that declared
 * fields have. */
static bool is_taken(const char *name)
{
    static const char *const beginnings[] = {"mtp_", "mamba_", "moe_latent_size",
                                             "moe_shared_expert_intermediate_size"};
    for (size_t i = 0; i < COUNT(beginnings); i++)
        if (text_starts_with(name, beginnings[i])) return true;
    return false;
}

/* Adds options of declared fields that the model uses. */
static void add_declared_options(struct strbuf *text, const struct model_config *c,
                                 const struct hybrid_stack *hybrid)
{
    const struct config_map *map = map_of(MEGATRON_ARGS, LIST_MODEL);
    cJSON *tree = args_of_model(c);
    if (hybrid) hybrid_args_forget(hybrid, tree);
    for (size_t i = 0; i < map->num_rows; i++) {
        const struct config_row *row = &map->rows[i];
        const struct model_field *f = row->megatron ? model_field_find(row->megatron) : NULL;
        if (f && f->declared && !model_field_is_zero(f, c) && row->key && !is_taken(row->key))
            add_option(text, row->key, json_get(tree, row->key));
    }
    cJSON_Delete(tree);
}

const char *args_flags_beside(const struct model_config *c, const struct hybrid_stack *hybrid,
                              struct arena *a)
{
    const double usual_epsilon = 1e-5, usual_factor = 8;
    struct strbuf text = {0};
    bool rope = text_equal(c->position_embedding_type, "rope");
    strbuf_add_text(&text, "");
    if (c->layernorm_epsilon < usual_epsilon || c->layernorm_epsilon > usual_epsilon)
        add_flag(&text, "--norm-epsilon %.9g", c->layernorm_epsilon);
    if (c->qk_layernorm) add_flag(&text, "--qk-layernorm");
    if (rope && text_equal(c->rope_type, "llama3")) {
        add_flag(&text, "--use-rope-scaling");
        if (c->rope_factor < usual_factor || c->rope_factor > usual_factor)
            add_flag(&text, "--rope-scaling-factor %.9g", c->rope_factor);
    }
    if (rope && text_equal(c->rope_type, "yarn")) add_yarn_flags(&text, c);
    if (rope && text_equal(c->rope_type, "linear"))
        add_flag(&text, "--rotary-seq-len-interpolation-factor %.9g", c->rope_factor);
    add_window_flags(&text, c, hybrid);
    if (text_equal(c->activation_func, "gelu") && c->add_bias_linear)
        add_flag(&text, "--no-bias-gelu-fusion");
    if (text_equal(c->activation_func, "quick_gelu") && c->gated_linear_unit)
        add_flag(&text, "--quick-geglu");
    add_declared_options(&text, c, hybrid);
    const char *out = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

/* ---- run_config.yaml ---- */

cJSON *run_config_make(const struct args_facts *f)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "_target_", "megatron.bridge.training.config.ConfigContainer");
    cJSON *checkpoint = cJSON_AddObjectToObject(o, "checkpoint");
    cJSON_AddStringToObject(checkpoint, "_target_",
                            "megatron.bridge.training.config.CheckpointConfig");
    cJSON_AddStringToObject(checkpoint, "ckpt_format", "torch_dist");
    cJSON_AddBoolToObject(checkpoint, "fully_parallel_save", true);
    cJSON_AddBoolToObject(checkpoint, "save_optim", f->has_optimizer);
    cJSON_AddBoolToObject(checkpoint, "save_rng", f->has_rng);
    cJSON *model = cJSON_AddObjectToObject(o, "model");
    cJSON_AddStringToObject(model, "_target_",
                            "megatron.bridge.models.gpt_provider.GPTModelProvider");
    config_map_write(map_of(MEGATRON_RUN_CONFIG, LIST_MODEL), f->config, model);
    write_facts(MEGATRON_RUN_CONFIG, LIST_LAYOUT, f, model);
    write_facts(MEGATRON_RUN_CONFIG, LIST_DTYPE, f, model);
    return o;
}

void run_config_update(cJSON *tree, const struct args_facts *f)
{
    cJSON *model = json_get(tree, "model"), *checkpoint = json_get(tree, "checkpoint"),
          *optimizer = json_get(tree, "optimizer");
    if (f->has_optimizer && json_get(optimizer, precision_aware))
        json_put(optimizer, precision_aware, cJSON_CreateBool(false));
    if (cJSON_IsObject(model)) {
        write_facts(MEGATRON_RUN_CONFIG, LIST_LAYOUT, f, model);
        if (f->casts) write_facts(MEGATRON_RUN_CONFIG, LIST_DTYPE, f, model);
    }
    if (!cJSON_IsObject(checkpoint)) return;
    json_put(checkpoint, "save_optim", cJSON_CreateBool(f->has_optimizer));
    json_put(checkpoint, "save_rng", cJSON_CreateBool(f->has_rng));
}
