/* Megatron's args and run_config.yaml, of golden checkpoints and our own. */
#include "convert/megatron/args_tree.h"
#include "convert/megatron/megatron_args.h"

#include <math.h>

#include "common/count.h"
#include "common/text.h"
#include "common/yaml.h"
#include "convert/map/model_map.h"
#include "convert/testing_convert.h"
#include "formats/dcp.h"
#include "formats/pickle.h"
#include "formats/torch.h"

#define GOLDEN "tests/golden/megatron/"

static void add_unknown(void *context, const char *name, const char *value)
{
    struct strbuf *text = context;
    strbuf_printf(text, "%s%s %s", text->length ? ", " : "", name, value);
}

/* The unknown fields; NULL: there are none. */
static const char *unknown_of(enum megatron_file file, const cJSON *tree)
{
    struct strbuf text = {0};
    struct model_config c = {.rotary_percent = 1};
    struct megatron_facts f = {0};
    model_config_from_megatron(file, tree, &scratch, &c);
    facts_from_megatron(file, tree, &scratch, &f);
    megatron_unknown(file, tree, &c, &f, add_unknown, &text);
    const char *out = text.length ? arena_text(&scratch, text.data, text.length) : NULL;
    strbuf_release(&text);
    return out;
}

static const char *unknown_of_args(const struct value *args)
{
    cJSON *tree = args_tree(args);
    const char *out = unknown_of(MEGATRON_ARGS, tree);
    cJSON_Delete(tree);
    return out;
}

static void model_config_from_args(const struct value *args, struct model_config *c)
{
    cJSON *tree = args_tree(args);
    model_config_from_megatron(MEGATRON_ARGS, tree, &scratch, c);
    cJSON_Delete(tree);
}

static void layout_options_from_args(const struct value *args, struct layout_options *o)
{
    struct megatron_facts f = {0};
    cJSON *tree = args_tree(args);
    facts_from_megatron(MEGATRON_ARGS, tree, &scratch, &f);
    cJSON_Delete(tree);
    *o = f.layout;
}

static void layout_options_from_run_config(const cJSON *model, struct layout_options *o)
{
    struct megatron_facts f = {0};
    facts_from_megatron(MEGATRON_RUN_CONFIG, model, &scratch, &f);
    *o = f.layout;
}

static struct model_maps maps;
static struct stored stored;

static int begin(void **state)
{
    stored_init(&stored);
    return model_maps_load(&maps, NULL, NULL) ? -1 : scratch_begin(state);
}

static int end(void **state)
{
    stored_release(&stored);
    model_maps_release(&maps);
    return scratch_end(state);
}

/* The args in a file of torch.save. */
static const struct value *args_of_file(const char *path)
{
    struct torch_file t;
    struct strbuf pickle = {0};
    struct value *args;
    assert_ok(torch_open(&t, &stored, path, 0, UINT64_MAX, &err));
    assert_ok(pickle_write(&pickle, value_get(t.root, "args"), &err));
    assert_ok(pickle_read_bytes(&scratch, pickle.data, pickle.length, &args, &err));
    strbuf_release(&pickle);
    torch_close(&t);
    return args;
}

/* The args in the object of a torch_dist folder. */
static const struct value *args_of_object(const char *folder)
{
    struct value *list = NULL;
    assert_ok(dcp_open(&stored, folder, true, &err));
    for (size_t i = 0; i < stored.num_objects; i++)
        if (strcmp(stored.objects[i].name, "common_state/shard_0_1") == 0)
            assert_ok(dcp_read_object(&stored, &stored.objects[i], &scratch, &list, &err));
    assert_non_null(list);
    return value_get(list->items[0], "args");
}

static struct model_config hf_config(const char *model)
{
    const char *path = arena_printf(&scratch, GOLDEN "models/%s/config.json", model);
    const struct model_map *map;
    struct model_config c;
    cJSON *tree;
    assert_ok(json_read_file(path, 1 << 20, JSON_NAN, &tree, &err));
    assert_ok(model_map_of_config(&maps, tree, &map, &err));
    assert_ok(model_config_from_hf(map, tree, &scratch, &c, &err));
    cJSON_Delete(tree);
    return c;
}

static void check_same(const char *what, const struct model_config *a, const struct model_config *b)
{
    const char *name = model_config_difference(a, b);
    if (name) fail_msg("%s: %s differs", what, name);
}

static void check_layout(const char *what, const struct layout_options *a,
                         const struct layout_options *b)
{
#define SAME(field)                                                                                \
    if (a->field != b->field)                                                                      \
    fail_msg("%s: " #field " is %llu, not %llu", what, (unsigned long long)a->field,               \
             (unsigned long long)b->field)
    SAME(tp);
    SAME(pp);
    SAME(ep);
    SAME(etp);
    SAME(virtual_stages);
    SAME(first_layers);
    SAME(last_layers);
    SAME(count_embedding);
    SAME(count_loss);
    if (a->pipeline_layout || b->pipeline_layout)
        assert_string_equal(a->pipeline_layout, b->pipeline_layout);
}

/* ---- golden ---- */

static const struct {
    const char *file, *model;
    struct layout_options layout;
} golden[] = {
    {"llama-0.12.0-tp2pp2/checkpoint/iter_0000010/common.pt",
     "llama",
     {.tp = 2, .pp = 2, .ep = 1, .etp = 2}},
    {"llama-HEAD-torch-tp2pp2vpp2/checkpoint/iter_0000010/mp_rank_00_001/model_optim_rng.pt",
     "llama",
     {.tp = 2, .pp = 2, .ep = 1, .etp = 2, .virtual_stages = 2}},
    {"llama-te-names-torch-pp2-first1/checkpoint/iter_0000010/mp_rank_00_000/model_optim_rng.pt",
     "llama",
     {.tp = 1, .pp = 2, .ep = 1, .etp = 1, .first_layers = 1}},
    {"llama-HEAD-torch-pp2-stages/checkpoint/iter_0000010/mp_rank_00_001/model_optim_rng.pt",
     "llama",
     {.tp = 1, .pp = 2, .ep = 1, .etp = 1, .pipeline_layout = "Et|tt|t|L"}},
    {"mixtral-HEAD-torch-tp2ep2/checkpoint/iter_0000010/mp_rank_00_000/model_optim_rng.pt",
     "mixtral",
     {.tp = 2, .pp = 1, .ep = 2, .etp = 1}},
    {"gpt2-HEAD-tp2pp2/checkpoint/iter_0000010", "gpt2", {.tp = 2, .pp = 2, .ep = 1, .etp = 2}},
    {"mistral-HEAD-tp2/checkpoint/iter_0000010", "mistral", {.tp = 2, .pp = 1, .ep = 1, .etp = 2}},
    {"qwen2-HEAD-tp2pp2/checkpoint/iter_0000010", "qwen2", {.tp = 2, .pp = 2, .ep = 1, .etp = 2}},
    {"qwen3-moe-HEAD-tp2pp3/checkpoint/iter_0000010",
     "qwen3_moe",
     {.tp = 2, .pp = 3, .ep = 1, .etp = 2}},
};
enum { NUM_GOLDEN = COUNT(golden) };

static const struct value *golden_args(size_t i)
{
    const char *path = arena_printf(&scratch, GOLDEN "%s", golden[i].file);
    stored_release(&stored);
    stored_init(&stored);
    return path_is_folder(path) ? args_of_object(path) : args_of_file(path);
}

/* Sets the fields of a config from args that args lack, or express differently,
 * to config.json's. */
static void forgive(struct model_config *c, const struct model_config *hf, const char *model)
{
    c->vocab_size = hf->vocab_size; /* args have the padded one */
    assert_int_equal(c->padded_vocab_size % c->make_vocab_size_divisible_by, 0);
    assert_true(c->padded_vocab_size >= hf->vocab_size);
    c->padded_vocab_size = c->make_vocab_size_divisible_by = 0;
    c->init_method_std = hf->init_method_std;
    c->attention_dropout = hf->attention_dropout;
    c->hidden_dropout = hf->hidden_dropout;
    c->moe_aux_loss_coeff = hf->moe_aux_loss_coeff;
    if (!hf->num_experts) c->moe_router_topk = c->moe_ffn_hidden_size = 0;
    if (strcmp(model, "gpt2") == 0) {
        /* the maker of the file computed GELU by tanh; args without the fusion
         * mean the exact gelu */
        assert_string_equal(c->activation_func, "gelu");
        c->activation_func = "gelu_tanh";
        c->rotary_base = 0;
    }
}

static void args_of_real_checkpoints_say_the_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < NUM_GOLDEN; i++) {
        const struct value *args = golden_args(i);
        struct model_config c = {.rotary_percent = 1}, hf = hf_config(golden[i].model);
        struct layout_options layout;
        model_config_from_args(args, &c);
        forgive(&c, &hf, golden[i].model);
        check_same(golden[i].file, &c, &hf);
        layout_options_from_args(args, &layout);
        check_layout(golden[i].file, &layout, &golden[i].layout);
        assert_null(unknown_of_args(args));
    }
}

/* ---- what is written, read again ---- */

static struct value *written(const struct value *v)
{
    struct strbuf pickle = {0};
    struct value *back;
    assert_ok(pickle_write(&pickle, v, &err));
    assert_ok(pickle_read_bytes(&scratch, pickle.data, pickle.length, &back, &err));
    strbuf_release(&pickle);
    return back;
}

/* Facts of a model in a layout. */
static struct args_facts facts_of(const struct model_config *c, const struct layout *l)
{
    return (struct args_facts){.config = c,
                               .layout = l,
                               .dtype = DT_BF16,
                               .transformer_engine = true,
                               .padded_vocab = 48,
                               .divisible_by = 8,
                               .iteration = 11,
                               .ckpt_format = "torch_dist"};
}

static const struct layout_options layouts[] = {
    {.tp = 1, .pp = 1, .ep = 1, .etp = 1},
    {.tp = 2, .pp = 2, .ep = 1, .etp = 1, .virtual_stages = 2},
    {.tp = 2, .pp = 2, .ep = 1, .etp = 2, .first_layers = 1},
    {.tp = 1, .pp = 2, .ep = 1, .etp = 1, .last_layers = 3},
    {.tp = 1, .pp = 3, .ep = 1, .etp = 1, .count_embedding = true, .count_loss = true},
    {.tp = 1, .pp = 2, .ep = 1, .etp = 1, .pipeline_layout = "Ett|tt|L|"},
    {.tp = 1, .pp = 2, .ep = 1, .etp = 1, .pipeline_layout = "E|ttt|t|L"},
};

static const char *const families[] = {"llama", "llama-bias", "mistral", "mixtral",
                                       "qwen2", "qwen3",      "gpt2",    "qwen3_moe"};
enum { NUM_FAMILIES = COUNT(families) };

/* A golden model of four layers, so that all layouts fit. */
static struct model_config four_layers(const char *model)
{
    struct model_config c = hf_config(model);
    bool *moe = arena_array(&scratch, 4, sizeof *moe);
    for (int l = 0; l < 4; l++)
        moe[l] = l > 0;
    if (c.moe_layers) c.moe_layers = moe;
    c.num_layers = 4;
    c.padded_vocab_size = 48;
    c.make_vocab_size_divisible_by = 8;
    return c;
}

static bool deal(struct layout *l, const struct layout_options *o, const struct model_config *c)
{
    return layout_make(l, &scratch, o, c, &err) == OK;
}

/* Compares a config that was written and read back, without fields that neither
 * args nor run_config.yaml hold. */
static void check_back(const char *what, const struct model_config *c, struct model_config *back)
{
    if (!c->num_experts) back->moe_router_topk = 0;
    if (strcmp(c->position_embedding_type, "rope")) back->rotary_base = c->rotary_base;
    check_same(what, c, back);
}

static void args_that_are_made_say_the_same(void **state)
{
    (void)state;
    unsigned done = 0;
    for (size_t i = 0; i < NUM_FAMILIES * (COUNT(layouts)); i++) {
        const struct layout_options *o = &layouts[i / NUM_FAMILIES];
        struct model_config c = four_layers(families[i % NUM_FAMILIES]), back = {0};
        struct layout_options layout;
        struct layout l;
        if (!deal(&l, o, &c)) continue;
        done++;
        struct args_facts f = facts_of(&c, &l);
        const struct value *args = written(args_make(&scratch, &f));
        assert_true(value_is_instance(args, "argparse", "Namespace"));
        model_config_from_args(args, &back);
        back.vocab_size = c.vocab_size;
        check_back(families[i % NUM_FAMILIES], &c, &back);
        layout_options_from_args(args, &layout);
        check_layout(families[i % NUM_FAMILIES], &layout, o);
        assert_null(unknown_of_args(args));
    }
    assert_true(done > 40);
}

static void run_configs_that_are_made_say_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < NUM_FAMILIES * (COUNT(layouts)); i++) {
        const struct layout_options *o = &layouts[i / NUM_FAMILIES];
        struct model_config c = four_layers(families[i % NUM_FAMILIES]), back = {0};
        struct layout_options layout;
        struct strbuf text = {0};
        struct layout l;
        cJSON *tree;
        if (!deal(&l, o, &c)) continue;
        struct args_facts f = facts_of(&c, &l);
        tree = run_config_make(&f);
        yaml_print(&text, tree);
        cJSON_Delete(tree);
        const char *path = write_scratch("run_config.yaml", text.data);
        strbuf_release(&text);
        assert_ok(yaml_read_file(path, 1 << 20, &tree, &err));
        const cJSON *model = json_get(tree, "model");
        model_config_from_megatron(MEGATRON_RUN_CONFIG, model, &scratch, &back);
        back.padded_vocab_size = c.padded_vocab_size;
        check_back(families[i % NUM_FAMILIES], &c, &back);
        layout_options_from_run_config(model, &layout);
        check_layout(families[i % NUM_FAMILIES], &layout, o);
        assert_null(unknown_of(MEGATRON_RUN_CONFIG, model));
        cJSON_Delete(tree);
    }
}

static void windows_and_rope_survive_args_and_run_config(void **state)
{
    (void)state;
    static const bool some[] = {false, true, false, true};
    for (int i = 0; i < 6; i++) {
        struct model_config c = four_layers("llama"), back = {0}, again = {0};
        struct layout_options one = {0};
        struct layout l;
        if (i == 0) c.sliding_window = 9;
        if (i == 1) c.sliding_window = 9, c.window_layers = some;
        if (i == 2) c.rope_type = "linear", c.rope_factor = 2.5;
        if (i == 3) {
            c.rope_type = "llama3", c.rope_factor = 32, c.rope_low_freq_factor = 1;
            c.rope_high_freq_factor = 4, c.rope_original_max_position = 8192;
        }
        if (i == 4) c.rotary_base = 10000.5;
        if (i == 5) c.rotary_base = 5e5, c.rotary_percent = 0.5, c.rotary_interleaved = true;
        assert_true(deal(&l, &one, &c));
        struct args_facts f = facts_of(&c, &l);
        model_config_from_args(written(args_make(&scratch, &f)), &back);
        back.vocab_size = c.vocab_size;
        check_back("args", &c, &back);
        cJSON *tree = run_config_make(&f);
        model_config_from_megatron(MEGATRON_RUN_CONFIG, json_get(tree, "model"), &scratch, &again);
        again.padded_vocab_size = c.padded_vocab_size;
        check_back("run_config", &c, &again);
        cJSON_Delete(tree);
    }
}

static void the_base_of_rope_is_an_int_where_it_can_be(void **state)
{
    (void)state;
    struct model_config c = four_layers("llama");
    struct layout_options one = {0};
    struct layout l;
    assert_true(deal(&l, &one, &c));
    struct args_facts f = facts_of(&c, &l);
    c.rotary_base = 1e6;
    assert_int_equal(value_get(args_make(&scratch, &f), "rotary_base")->kind, VALUE_INT);
    c.rotary_base = 0.5;
    assert_int_equal(value_get(args_make(&scratch, &f), "rotary_base")->kind, VALUE_FLOAT);
    c.rotary_base = 1e300;
    assert_int_equal(value_get(args_make(&scratch, &f), "rotary_base")->kind, VALUE_FLOAT);
}

/* ---- args that are carried on ---- */

/* Names that a layout decides. */
static bool of_layout(const char *name)
{
    static const char *const names[] = {"tensor_model_parallel_size",
                                        "pipeline_model_parallel_size",
                                        "transformer_pipeline_model_parallel_size",
                                        "virtual_pipeline_model_parallel_size",
                                        "num_layers_per_virtual_pipeline_stage",
                                        "num_virtual_stages_per_pipeline_rank",
                                        "expert_model_parallel_size",
                                        "expert_tensor_parallel_size",
                                        "context_parallel_size",
                                        "decoder_first_pipeline_num_layers",
                                        "decoder_last_pipeline_num_layers",
                                        "account_for_embedding_in_pipeline_split",
                                        "account_for_loss_in_pipeline_split",
                                        "pipeline_model_parallel_layout",
                                        "data_parallel_size",
                                        "world_size",
                                        "rank",
                                        "padded_vocab_size",
                                        "make_vocab_size_divisible_by",
                                        "ckpt_format",
                                        "transformer_impl",
                                        "moe_grouped_gemm",
                                        "no_save_optim",
                                        "no_save_rng",
                                        "iteration"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static const char *printed(const struct value *v)
{
    struct strbuf out = {0};
    strbuf_add_text(&out, "");
    value_print(&out, v, 1 << 16);
    const char *text = arena_text(&scratch, out.data, out.length);
    strbuf_release(&out);
    return text;
}

/* Whether a name is in "a, b". */
static bool is_in_list(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)); at++)
        if ((at == list || at[-1] == ' ') && (!at[length] || at[length] == ',')) return true;
    return false;
}

static void updated_args_keep_all_but_the_layout(void **state)
{
    (void)state;
    for (size_t i = 0; i < NUM_GOLDEN; i++) {
        const struct value *args = golden_args(i), *was = args->object->state;
        struct model_config c = four_layers(golden[i].model), before = {0}, after = {0};
        struct layout_options o = {.tp = 1, .pp = 2, .first_layers = 3}, back;
        unsigned objects = 0;
        struct layout l;
        assert_true(deal(&l, &o, &c));
        struct args_facts f = facts_of(&c, &l);
        const char *left_out;
        const struct value *updated = written(args_update(&scratch, args, &f, &left_out));
        assert_true(was->count > 400);
        for (uint32_t k = 0; k < was->count; k++) {
            const char *name = value_as_text(was->items[2 * k]);
            const struct value *v = was->items[2 * k + 1];
            objects += v->kind == VALUE_OBJECT || v->kind == VALUE_GLOBAL;
            if (of_layout(name) || is_in_list(left_out, name)) continue;
            const struct value *now = value_get(updated, name);
            if (!now || now->kind != v->kind || strcmp(printed(v), printed(now)))
                fail_msg("%s: %s was %s, is %s", golden[i].file, name, printed(v), printed(now));
        }
        assert_true(objects > 3); /* enums, dtypes, paths */
        assert_true(value_is_global(value_get(updated, "params_dtype"), "torch", "bfloat16"));
        layout_options_from_args(updated, &back);
        o.ep = o.etp = 1;
        check_layout(golden[i].file, &back, &o);
        model_config_from_args(args, &before);
        model_config_from_args(updated, &after);
        before.padded_vocab_size = after.padded_vocab_size = 0;
        before.make_vocab_size_divisible_by = after.make_vocab_size_divisible_by = 0;
        check_same(golden[i].file, &before, &after);
        int64_t number;
        assert_true(value_as_int(value_get(updated, "world_size"), &number));
        assert_int_equal(number, 2);
        assert_true(value_as_int(value_get(updated, "iteration"), &number));
        assert_int_equal(number, 11);
    }
}

static void a_cast_changes_the_dtype_that_args_say(void **state)
{
    (void)state;
    const struct value *args = golden_args(0);
    struct model_config c = four_layers("llama");
    struct layout_options one = {0};
    struct layout l;
    bool truth;
    assert_true(deal(&l, &one, &c));
    struct args_facts f = facts_of(&c, &l);
    f.dtype = DT_F16;
    f.casts = true;
    const char *left_out;
    const struct value *updated = args_update(&scratch, args, &f, &left_out);
    assert_true(value_is_global(value_get(updated, "params_dtype"), "torch", "float16"));
    assert_true(value_as_bool(value_get(updated, "fp16"), &truth) && truth);
    assert_true(value_as_bool(value_get(updated, "bf16"), &truth) && !truth);
}

static void what_cannot_be_loaded_again_is_left_out(void **state)
{
    (void)state;
    struct value *d = value_dict(&scratch), *list = value_list(&scratch, VALUE_LIST, 0, NULL);
    struct model_config c = four_layers("llama");
    struct layout_options one = {0};
    struct layout l;
    const uint64_t two = 2;
    value_append(&scratch, list, value_tensor(&scratch, "0", DT_F32, 1, &two));
    value_dict_set(&scratch, d, "seed", value_int(&scratch, 3));
    value_dict_set(&scratch, d, "what", list);
    value_dict_set(&scratch, d, "new",
                   value_list(&scratch, VALUE_LIST, 1,
                              &(struct value *){value_global(
                                  &scratch, "megatron.core.transformer.enums", "NewEnum")}));
    value_dict_set(&scratch, d, "old",
                   value_global(&scratch, "megatron.core.transformer.enums", "AttnBackend"));
    assert_true(deal(&l, &one, &c));
    struct args_facts f = facts_of(&c, &l);
    const char *left_out;
    const struct value *updated =
        args_update(&scratch, value_instance(&scratch, "argparse", "Namespace", d), &f, &left_out);
    assert_null(value_get(updated, "what"));
    assert_null(value_get(updated, "new"));
    assert_non_null(value_get(updated, "old"));
    assert_string_equal(left_out, "what, new");
    assert_non_null(value_get(updated, "seed"));
    assert_null(value_get(updated, "iteration"));
}

/* ---- odd args ---- */

static struct value *namespace_of(const char *name, struct value *v)
{
    struct value *d = value_dict(&scratch);
    value_dict_set(&scratch, d, "num_layers", value_int(&scratch, 4));
    value_dict_set(&scratch, d, "num_attention_heads", value_int(&scratch, 4));
    if (name) value_dict_set(&scratch, d, name, v);
    return value_instance(&scratch, "argparse", "Namespace", d);
}

static void what_args_do_not_say_stays(void **state)
{
    (void)state;
    struct model_config c = {.hidden_size = 5, .rotary_percent = 1};
    model_config_from_args(namespace_of(NULL, NULL), &c);
    assert_int_equal(c.num_layers, 4);
    assert_int_equal(c.num_query_groups, 4);
    assert_int_equal(c.hidden_size, 5);
    assert_null(c.activation_func);
    assert_null(c.position_embedding_type);
    assert_true(c.layernorm_epsilon <= 0);
    /* a value of another type */
    model_config_from_args(namespace_of("hidden_size", value_text(&scratch, "8")), &c);
    model_config_from_args(namespace_of("hidden_size", value_int(&scratch, -8)), &c);
    model_config_from_args(namespace_of("normalization", value_int(&scratch, 1)), &c);
    model_config_from_args(namespace_of("moe_layer_freq", value_text(&scratch, "1")), &c);
    model_config_from_args(namespace_of("window_size", value_int(&scratch, 1)), &c);
    assert_int_equal(c.hidden_size, 5);
    assert_null(c.normalization);
    assert_int_equal(c.sliding_window, 0);
}

static void gelu_is_told_from_its_fusion(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool truth;
        const char *activation;
    } cases[] = {
        {"bias_gelu_fusion", true, "gelu_tanh"},
        {"bias_gelu_fusion", false, "gelu"},
        {"quick_geglu", true, "quick_gelu"},
        {"squared_relu", true, "squared_relu"},
        {"swiglu", true, "silu"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct value *args = namespace_of("swiglu", value_bool(&scratch, false));
        struct model_config c = {0};
        value_dict_set(&scratch, args->object->state, cases[i].name,
                       value_bool(&scratch, cases[i].truth));
        model_config_from_args(args, &c);
        assert_string_equal(c.activation_func, cases[i].activation);
    }
}

static void args_of_before_version_3_say_tensor_parallelism_otherwise(void **state)
{
    (void)state;
    struct layout_options o;
    layout_options_from_args(namespace_of("model_parallel_size", value_int(&scratch, 4)), &o);
    assert_int_equal(o.tp, 4);
    assert_int_equal(o.pp, 0);
}

static void fields_that_change_the_model_and_that_nobody_reads_are_unknown(void **state)
{
    (void)state;
#define ARGS MEGATRON_ARGS
#define YAML MEGATRON_RUN_CONFIG
    static const struct {
        enum megatron_file file;
        const char *tree, *unknown;
    } cases[] = {
        {ARGS, "{'qk_l2_norm':true,'lr':0.1}", "qk_l2_norm true"},
        {ARGS, "{'qk_l2_norm':false,'moe_n_hash_layers':null,'use_mup':false}", NULL},
        {ARGS, "{'moe_n_hash_layers':1,'num_layers':2}", "moe_n_hash_layers 1"},
        {ARGS, "{'apply_layernorm_1p':true,'mtp_num_layers':1}", NULL}, /* declared fields */
        {ARGS, "{'apply_layernorm_1p':'x','mtp_num_layers':-1}",
         "apply_layernorm_1p x, mtp_num_layers -1"},
        {ARGS, "{'num_experts':2,'moe_router_score_function':'sigmoid'}", NULL},
        {ARGS, "{'num_experts':2,'moe_router_num_groups':'x'}", "moe_router_num_groups x"},
        {ARGS, "{'softmax_type':'vanilla'}", NULL},
        {ARGS, "{'no_rope_freq':[1,0],'hybrid_layer_pattern':'M*-'}", "no_rope_freq [1,0]"},
        {ARGS, "{'heterogeneous_layers_config_path':'','spec':null}", NULL},
        {ARGS, "{'spec':['megatron.core.models.gpt.gpt_layer_specs','gpt_layer_local_spec']}",
         NULL},
        {ARGS, "{'spec':['own','spec']}", "spec [\"own\",\"spec\"]"},
        {ARGS, "{'moe_router_load_balancing_type':['aux_loss','seq_aux_loss']}", NULL},
        {ARGS, "{'moe_router_load_balancing_type':'sinkhorn'}",
         "moe_router_load_balancing_type sinkhorn"},
        {ARGS, "{'moe_router_load_balancing_type':['aux_loss','sinkhorn']}",
         "moe_router_load_balancing_type [\"aux_loss\",\"sinkhorn\"]"},
        {ARGS, "{'norm_epsilon':'x','rotary_base':10000}", "norm_epsilon x"},
        {YAML, "{'qk_l2_norm':true}", "qk_l2_norm true"},
        {YAML, "{'softmax_type':'vanilla','glu_linear_offset':0.0,'mtp_num_layers':null}", NULL},
        {YAML, "{'any_new_field':1,'fp8':'e4m3','recompute_method':'x'}", "any_new_field 1"},
        {YAML, "{'_target_':'megatron.bridge.models.llama.llama_provider.Llama2ModelProvider7B'}",
         NULL},
        {YAML, "{'_target_':'megatron.bridge.models.gemma.gemma_provider.GemmaModelProvider'}",
         "_target_ megatron.bridge.models.gemma.gemma_provider.GemmaModelProvider"},
        {YAML, "{'activation_func':{'_target_':'own.swish'}}",
         "activation_func {\"_target_\":\"own.swish\"}"},
        {ARGS, "{'experimental_attention_variant':'other'}",
         "experimental_attention_variant other"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        cJSON *tree = json_tree(cases[i].tree);
        const char *unknown = unknown_of(cases[i].file, tree);
        if (!text_equal(unknown, cases[i].unknown))
            fail_msg("%s: unknown are %s", cases[i].tree, unknown ? unknown : "none");
        cJSON_Delete(tree);
    }
}

/* One field of args or run_config.yaml, and the unknown fields that it makes. */
static void check_said(enum megatron_file file, const char *text, struct model_config *c,
                       const char *unknown)
{
    cJSON *tree = json_tree(text);
    *c = (struct model_config){.num_layers = 4, .num_attention_heads = 8};
    model_config_from_megatron(file, tree, &scratch, c);
    const char *found = unknown_of(file, tree);
    if (!text_equal(found, unknown)) fail_msg("%s: unknown are %s", text, found ? found : "none");
    cJSON_Delete(tree);
}

/* None, 0, '' and [] are false, as in Python; what is no flag is unknown. */
static void flags_are_those_of_python(void **state)
{
    (void)state;
    struct model_config c;
    check_said(MEGATRON_ARGS, "{'swiglu':null}", &c, NULL);
    assert_string_equal(c.activation_func, "gelu_tanh");
    check_said(MEGATRON_ARGS, "{'swiglu':false,'bias_gelu_fusion':null}", &c, NULL);
    assert_string_equal(c.activation_func, "gelu");
    check_said(MEGATRON_ARGS, "{'use_rope_scaling':[],'num_query_groups':2}", &c, NULL);
    assert_string_equal(c.rope_type, "default");
    assert_int_equal(c.num_query_groups, 2);
    check_said(MEGATRON_ARGS, "{'group_query_attention':null,'num_query_groups':2}", &c, NULL);
    assert_int_equal(c.num_query_groups, 8);
    check_said(MEGATRON_ARGS, "{'num_query_groups':0}", &c, NULL);
    assert_int_equal(c.num_query_groups, 8);
    check_said(MEGATRON_ARGS, "{'swiglu':'x','use_rope_scaling':'y'}", &c,
               "swiglu x, use_rope_scaling y");
    check_said(MEGATRON_RUN_CONFIG, "{'rope_scaling':{'a':1}}", &c, "rope_scaling {\"a\":1}");
}

/* HybridModel counts mixers, and has delta nets in its pattern. */
static void flags_of_hybridmodel_count_its_mixers(void **state)
{
    (void)state;
    static const struct hybrid_stack pairs = {8, "G-*-G-*-", "", true},
                                     alone = {4, "G*G*", "", false};
    struct model_config c;
    check_said(MEGATRON_ARGS,
               "{'num_layers':4,'window_size':[4,0],'window_attn_skip_freq':[0,1,0,1],"
               "'experimental_attention_variant':'gdn','linear_attention_freq':[1,0,1,0]}",
               &c, NULL);
    const char *gpt = args_flags_beside(&c, NULL, &scratch);
    assert_non_null(strstr(gpt, "--window-attn-skip-freq [0,1,0,1]"));
    assert_non_null(strstr(gpt, "--experimental-attention-variant gated_delta_net"));
    assert_non_null(strstr(gpt, "--linear-attention-freq"));
    const char *hybrid = args_flags_beside(&c, &pairs, &scratch);
    assert_non_null(strstr(hybrid, "--window-attn-skip-freq [0,0,1,0,0,0,1,0]"));
    assert_null(strstr(hybrid, "linear-attention-freq"));
    assert_null(strstr(hybrid, "experimental-attention-variant"));
    assert_non_null(
        strstr(args_flags_beside(&c, &alone, &scratch), "--window-attn-skip-freq [0,1,0,1]"));
}

/* A row is tried on the struct that was read; a field that is only used in
 * training may have any type. */
static void values_of_another_type_are_unknown_where_they_count(void **state)
{
    (void)state;
    struct model_config c;
    check_said(MEGATRON_ARGS, "{'use_rope_scaling':true,'rope_scaling_factor':'8'}", &c,
               "rope_scaling_factor 8");
    check_said(MEGATRON_ARGS, "{'rope_scaling_factor':'8'}", &c, NULL);
    check_said(MEGATRON_ARGS, "{'moe_layer_freq':'[1]*2'}", &c, NULL);
    check_said(MEGATRON_ARGS, "{'num_experts':4,'moe_layer_freq':'[1]*2'}", &c,
               "moe_layer_freq [1]*2");
    check_said(MEGATRON_ARGS, "{'moe_aux_loss_coeff':[0.01],'params_dtype':5}", &c, NULL);
    check_said(MEGATRON_ARGS, "{'window_size':[4,0],'window_attn_skip_freq':'2'}", &c,
               "window_size [4,0], window_attn_skip_freq 2");
    check_said(MEGATRON_ARGS, "{'window_size':[4,0],'window_attn_skip_freq':[true,false]}", &c,
               NULL);
    assert_int_equal(c.sliding_window, 5);
    assert_true(c.window_layers[0] && !c.window_layers[1]);
}

/* epfLLM's Megatron-LLM says rotary, whose pairs lie side by side. */
static void words_of_forks_are_unknown(void **state)
{
    (void)state;
    static const char *const same[] = {
        "{'position_embedding_type':'rope'}", "{'position_embedding_type':null}",
        "{'position_embedding_type':'learned_absolute'}", "{'normalization':'RMSNorm'}"};
    struct model_config c;
    for (unsigned file = MEGATRON_ARGS; file <= MEGATRON_RUN_CONFIG; file++) {
        for (size_t i = 0; i < COUNT(same); i++)
            check_said(file, same[i], &c, NULL);
        check_said(file, "{'position_embedding_type':'rotary','normalization':'layernorm'}", &c,
                   "position_embedding_type rotary, normalization layernorm");
    }
    check_said(MEGATRON_ARGS, "{'num_experts':2,'moe_router_score_function':'relu'}", &c,
               "moe_router_score_function relu");
    check_said(MEGATRON_ARGS, "{'moe_router_score_function':'relu'}", &c, NULL); /* unused */
}

/* Megatron scales twice; no other config can express that. */
static void two_scalings_of_rope_are_not_one_of_them(void **state)
{
    (void)state;
    struct model_config c;
    check_said(MEGATRON_ARGS, "{'use_rope_scaling':true,'rotary_seq_len_interpolation_factor':2}",
               &c, NULL);
    assert_string_equal(c.rope_type, "llama3 and linear");
    check_said(MEGATRON_RUN_CONFIG, "{'rope_scaling':true,'seq_len_interpolation_factor':2.0}", &c,
               NULL);
    assert_string_equal(c.rope_type, "llama3 and linear");
}

/* core/fusions/fused_bias_gelu.py computes by tanh. */
static void gelu_of_run_config_is_told_from_its_fusion(void **state)
{
    (void)state;
    static const char gelu[] = "{'activation_func':{'_target_':'torch.nn.functional.gelu'}%s}";
    const struct {
        const char *more, *activation;
    } cases[] = {{"", "gelu"},
                 {",'bias_activation_fusion':false", "gelu"},
                 {",'bias_activation_fusion':true", "gelu_tanh"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_config c = {0};
        const char *at = strstr(gelu, "%s");
        cJSON *tree = json_tree(
            arena_printf(&scratch, "%.*s%s%s", (int)(at - gelu), gelu, cases[i].more, at + 2));
        model_config_from_megatron(MEGATRON_RUN_CONFIG, tree, &scratch, &c);
        assert_string_equal(c.activation_func, cases[i].activation);
        cJSON_Delete(tree);
    }
}

/* ---- Megatron-Bridge's ---- */

static const char bridge[] = GOLDEN "llama-bridge-0.3.1/checkpoint/iter_0000000/run_config.yaml";

static void the_run_config_of_megatron_bridge_says_the_model(void **state)
{
    (void)state;
    struct model_config c = {.rotary_percent = 1}, hf = hf_config("llama");
    struct layout_options layout;
    cJSON *tree;
    assert_ok(yaml_read_file(bridge, 1 << 20, &tree, &err));
    const cJSON *model = json_get(tree, "model");
    model_config_from_megatron(MEGATRON_RUN_CONFIG, model, &scratch, &c);
    assert_int_equal(c.vocab_size, hf.vocab_size);
    c.padded_vocab_size = 48;
    forgive(&c, &hf, "llama");
    check_same("bridge", &c, &hf);
    layout_options_from_run_config(model, &layout);
    check_layout("bridge", &layout, &(struct layout_options){.tp = 1, .pp = 1, .ep = 1, .etp = 1});
    assert_null(unknown_of(MEGATRON_RUN_CONFIG, model));
    cJSON_Delete(tree);
}

/* The members of an object as lines, without the members that an update may
 * change. */
static const char *rest_of(const cJSON *model)
{
    struct strbuf out = {0};
    for (const cJSON *i = model->child; i; i = i->next) {
        if (strstr(i->string, "parallel") || strstr(i->string, "pipeline")) continue;
        if (strstr(i->string, "vocab")) continue;
        if (strcmp(i->string, "transformer_impl") == 0 || strstr(i->string, "grouped_gemm"))
            continue;
        strbuf_printf(&out, "%s: ", i->string);
        json_print(&out, i, -1);
        strbuf_add_char(&out, '\n');
    }
    const char *text = arena_text(&scratch, out.data, out.length);
    strbuf_release(&out);
    return text;
}

static void an_updated_run_config_keeps_all_but_the_layout(void **state)
{
    (void)state;
    struct model_config c = hf_config("llama"), back = {.rotary_percent = 1};
    struct layout_options o = {.tp = 1, .pp = 2, .last_layers = 3}, layout;
    struct layout l;
    cJSON *tree, *before;
    assert_ok(yaml_read_file(bridge, 1 << 20, &tree, &err));
    before = cJSON_Duplicate(json_get(tree, "model"), true);
    assert_true(deal(&l, &o, &c));
    struct args_facts f = facts_of(&c, &l);
    run_config_update(tree, &f);
    const cJSON *model = json_get(tree, "model");
    /* new fields come last */
    assert_int_equal(strncmp(rest_of(before), rest_of(model), strlen(rest_of(before))), 0);
    layout_options_from_run_config(model, &layout);
    o.ep = o.etp = 1;
    check_layout("bridge", &layout, &o);
    model_config_from_megatron(MEGATRON_RUN_CONFIG, model, &scratch, &back);
    assert_int_equal(back.vocab_size, c.vocab_size);
    assert_int_equal(back.make_vocab_size_divisible_by, 8);
    assert_true(cJSON_IsFalse(json_get(json_get(tree, "checkpoint"), "save_optim")));
    f.casts = true;
    f.dtype = DT_F16;
    run_config_update(tree, &f);
    assert_true(cJSON_IsTrue(json_get(json_get(tree, "model"), "fp16")));
    cJSON_Delete(before);
    cJSON_Delete(tree);
    tree = json_tree("[1]"); /* a tree that is no run config stays as it is */
    run_config_update(tree, &f);
    cJSON_Delete(tree);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(args_of_real_checkpoints_say_the_model),
        TEST(args_that_are_made_say_the_same),
        TEST(run_configs_that_are_made_say_the_same),
        TEST(windows_and_rope_survive_args_and_run_config),
        TEST(the_base_of_rope_is_an_int_where_it_can_be),
        TEST(updated_args_keep_all_but_the_layout),
        TEST(a_cast_changes_the_dtype_that_args_say),
        TEST(what_cannot_be_loaded_again_is_left_out),
        TEST(what_args_do_not_say_stays),
        TEST(gelu_is_told_from_its_fusion),
        TEST(args_of_before_version_3_say_tensor_parallelism_otherwise),
        TEST(fields_that_change_the_model_and_that_nobody_reads_are_unknown),
        TEST(flags_are_those_of_python),
        TEST(flags_of_hybridmodel_count_its_mixers),
        TEST(values_of_another_type_are_unknown_where_they_count),
        TEST(two_scalings_of_rope_are_not_one_of_them),
        TEST(words_of_forks_are_unknown),
        TEST(gelu_of_run_config_is_told_from_its_fusion),
        TEST(the_run_config_of_megatron_bridge_says_the_model),
        TEST(an_updated_run_config_keeps_all_but_the_layout),
    };
    return cmocka_run_group_tests_name("megatron_args", tests, NULL, NULL);
}
