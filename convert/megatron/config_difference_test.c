/* Compares golden Megatron checkpoints with the config.json of the models that
 * they were made from, and small made-up configs with one another. */
#include "common/count.h"
#include "convert/map/testing_models.h"
#include "convert/megatron/config_difference.h"
#include "convert/megatron/megatron_args.h"
#include "convert/source.h"

#define MEGATRON "tests/golden/megatron/"

/* A checkpoint whose config is that of a family's config.json with these
 * members. */
static struct checkpoint said_by_json(const char *family, const char *members)
{
    struct checkpoint c = {.config_origin = CONFIG_OF_JSON};
    cJSON *tree = json_tree(
        arena_printf(&scratch,
                     "{'n_embd':24,'n_layer':4,'n_head':4,'n_positions':16,'vocab_size':9,"
                     "'hidden_size':24,'intermediate_size':20,'num_hidden_layers':4,"
                     "'num_attention_heads':4,'num_key_value_heads':2%s%s}",
                     *members ? "," : "", members));
    assert_ok(
        model_config_from_hf(model_map_of_family(&maps, family), tree, &scratch, &c.config, &err));
    cJSON_Delete(tree);
    return c;
}

static struct checkpoint said_by_args(const struct checkpoint *json)
{
    struct checkpoint c = {.config_origin = CONFIG_OF_ARGS};
    c.config = model_config_through_args(&json->config, &scratch);
    return c;
}

/* "FIELD A B;" for each difference with this effect. */
static const char *list(const struct checkpoint *a, const struct checkpoint *b,
                        enum config_effect effect)
{
    struct config_difference *d;
    struct strbuf text = {0};
    strbuf_add_text(&text, "");
    size_t n = config_differences(a, b, &scratch, &d);
    for (size_t i = 0; i < n; i++)
        if (d[i].effect == effect)
            strbuf_printf(&text, "%s %s %s;", d[i].field, d[i].values[0], d[i].values[1]);
    const char *kept = arena_text(&scratch, text.data, text.length);
    strbuf_release(&text);
    return kept;
}

static void fields_that_change_what_is_computed_are_told_from_those_that_do_not(void **state)
{
    (void)state;
    static const struct {
        const char *family, *a, *b, *computes, *harmless;
    } cases[] = {
        {"llama", "", "", "", ""},
        {"llama", "", "'rope_theta':5e5", "rotary_base 10000 500000;", ""},
        {"llama", "", "'rms_norm_eps':1e-5", "layernorm_epsilon 1e-06 1e-05;", ""},
        {"llama", "", "'hidden_act':'gelu'", "activation_func silu gelu;", ""},
        {"llama", "", "'tie_word_embeddings':true",
         "untie_embeddings_and_output_weights true false;", ""},
        {"llama", "", "'attention_dropout':0.5,'initializer_range':0.5", "",
         "attention_dropout 0 0.5;init_method_std 0.02 0.5;"},
        {"llama", "", "'max_position_embeddings':99", "", "max_position_embeddings 2048 99;"},
        {"llama", "'rope_scaling':{'rope_type':'dynamic','factor':2}",
         "'rope_scaling':{'rope_type':'dynamic','factor':2},'max_position_embeddings':99",
         "max_position_embeddings 2048 99;", ""},
        {"llama", "", "'rope_scaling':{'rope_type':'linear','factor':2}",
         "rope_type default linear;", ""},
        {"mistral", "'sliding_window':null", "'sliding_window':8",
         "sliding_window 0 8;window_layers none all;", ""},
        {"mixtral", "", "'num_experts_per_tok':3", "moe_router_topk 2 3;", ""},
        {"qwen3", "'use_sliding_window':true,'sliding_window':8,'max_window_layers':1",
         "'use_sliding_window':true,'sliding_window':8,'max_window_layers':2",
         "window_layers 1, 2, 3 2, 3;", ""},
        {"qwen3_moe", "", "'mlp_only_layers':[1]", "moe_layers all 0, 2, 3;", ""},
        {"gpt2", "", "'scale_attn_weights':false", "softmax_scale 0 1;", ""},
        {"gpt2", "", "'activation_function':'relu'", "activation_func gelu_tanh relu;", ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct checkpoint a = said_by_json(cases[i].family, cases[i].a),
                          b = said_by_json(cases[i].family, cases[i].b);
        assert_string_equal(list(&a, &b, EFFECT_COMPUTES), cases[i].computes);
        assert_string_equal(list(&a, &b, EFFECT_HARMLESS), cases[i].harmless);
        assert_string_equal(list(&a, &b, EFFECT_UNSAID), "");
        bool same = strcmp(config_text(&a, false, &scratch), config_text(&b, false, &scratch)) == 0;
        assert_int_equal(same, !*cases[i].computes);
    }
}

static void what_args_cannot_say_is_no_difference(void **state)
{
    (void)state;
    static const char *const yarn = "'rope_scaling':{'rope_type':'yarn','factor':4}",
                             *const relu = "'activation_function':'relu'";
    struct checkpoint llama = said_by_json("llama", ""), scaled = said_by_json("llama", yarn),
                      gpt2 = said_by_json("gpt2", relu),
                      other = said_by_json("llama", "'rope_theta':2");
    struct checkpoint args = said_by_args(&scaled), gpt2_args = said_by_args(&gpt2),
                      other_args = said_by_args(&other);
    assert_string_equal(list(&scaled, &args, EFFECT_COMPUTES), "");
    assert_non_null(strstr(list(&scaled, &args, EFFECT_UNSAID), "rope_type yarn default;"));
    assert_non_null(strstr(list(&args, &scaled, EFFECT_UNSAID), "rope_type default yarn;"));
    assert_string_equal(list(&gpt2, &gpt2_args, EFFECT_COMPUTES), "");
    assert_string_equal(list(&gpt2, &gpt2_args, EFFECT_UNSAID), "activation_func relu gelu;");
    /* fields that args can express are compared */
    assert_string_equal(list(&llama, &other_args, EFFECT_COMPUTES), "rotary_base 10000 2;");
    assert_string_equal(list(&other_args, &llama, EFFECT_COMPUTES), "rotary_base 2 10000;");
    /* as args express them, both are the same text */
    assert_null(config_text(&args, false, &scratch));
    assert_string_equal(config_text(&scaled, true, &scratch), config_text(&args, true, &scratch));
    assert_string_equal(config_text(&gpt2, true, &scratch),
                        config_text(&gpt2_args, true, &scratch));
    assert_string_not_equal(config_text(&llama, true, &scratch),
                            config_text(&other_args, true, &scratch));
}

static void what_old_args_do_not_hold_is_not_said(void **state)
{
    (void)state;
    struct checkpoint json = said_by_json("llama", ""), args = said_by_args(&json);
    args.config.rotary_base = 0;
    args.config.activation_func = NULL;
    assert_string_equal(list(&args, &json, EFFECT_COMPUTES), "");
    assert_string_equal(list(&args, &json, EFFECT_UNSAID),
                        "activation_func not given silu;rotary_base not given 10000;");
    assert_null(config_text(&args, true, &scratch));
}

static void add_unknown(struct checkpoint *c, const char *file, const char *name, const char *value)
{
    unknown_fields_add(&c->unknown, &scratch, file, name, value, false);
}

static void an_unknown_field_of_args_is_a_difference(void **state)
{
    (void)state;
    struct checkpoint json = said_by_json("llama", ""), args = said_by_args(&json),
                      yaml = said_by_args(&json);
    add_unknown(&args, "args", "apply_layernorm_1p", "True");
    assert_string_equal(list(&args, &json, EFFECT_COMPUTES), "apply_layernorm_1p True not given;");
    assert_string_equal(list(&yaml, &args, EFFECT_COMPUTES), "apply_layernorm_1p not given True;");
    assert_string_not_equal(config_text(&args, true, &scratch), config_text(&json, true, &scratch));
    assert_non_null(
        strstr(config_text(&args, true, &scratch), "\nunknown apply_layernorm_1p True\n"));
    /* run_config.yaml has the same fields, and beside args it counts once */
    add_unknown(&yaml, "run_config.yaml", "apply_layernorm_1p", "True");
    add_unknown(&args, "run_config.yaml", "apply_layernorm_1p", "True");
    assert_string_equal(list(&yaml, &args, EFFECT_COMPUTES), "");
    assert_string_equal(config_text(&yaml, true, &scratch), config_text(&args, true, &scratch));
}

static void an_unknown_field_of_config_json_is_a_difference_where_both_have_one(void **state)
{
    (void)state;
    struct checkpoint a = said_by_json("llama", ""), b = a, args = said_by_args(&a);
    add_unknown(&a, "config.json", "logit_scale", "0.5");
    add_unknown(&a, "config.json", "foo", "[1]");
    assert_string_equal(list(&a, &b, EFFECT_COMPUTES),
                        "logit_scale 0.5 not given;foo [1] not given;");
    assert_string_equal(list(&a, &args, EFFECT_COMPUTES), "");
    assert_string_equal(list(&a, &args, EFFECT_UNSAID),
                        "logit_scale 0.5 not given;foo [1] not given;");
    assert_string_equal(list(&args, &a, EFFECT_UNSAID),
                        "logit_scale not given 0.5;foo not given [1];");
    assert_string_equal(config_text(&a, true, &scratch), config_text(&args, true, &scratch));
    /* in any order */
    add_unknown(&b, "config.json", "foo", "[1]");
    add_unknown(&b, "config.json", "logit_scale", "0.25");
    assert_string_equal(list(&a, &b, EFFECT_COMPUTES), "logit_scale 0.5 0.25;");
    b.unknown.items[1].value = "0.5";
    assert_string_equal(list(&a, &b, EFFECT_COMPUTES), "");
    assert_string_equal(config_text(&a, false, &scratch), config_text(&b, false, &scratch));
    assert_non_null(
        strstr(config_text(&a, false, &scratch), "\nunknown foo [1]\nunknown logit_scale 0.5\n"));
    /* args beside a config.json have unknown fields of their own; fields that
     * both sides' args have are compared */
    add_unknown(&b, "args", "foo", "True");
    assert_string_equal(list(&a, &b, EFFECT_COMPUTES), "");
    add_unknown(&b, "args", "qk_l2_norm", "True");
    assert_string_equal(list(&a, &b, EFFECT_COMPUTES), "qk_l2_norm not given True;");
    assert_string_equal(config_text(&a, false, &scratch), config_text(&b, false, &scratch));
    assert_string_not_equal(config_text(&a, true, &scratch), config_text(&b, true, &scratch));
}

/* A checkpoint that Megatron wrote, and the Hugging Face model that it was made
 * from. */
static void golden_checkpoints_describe_the_models_that_they_were_made_of(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {MEGATRON "gpt2-HEAD-tp2pp2/checkpoint", MEGATRON "models/gpt2"},
        {MEGATRON "llama-0.16.1-torch-pp2vpp2/checkpoint", MEGATRON "models/llama"},
        {MEGATRON "mistral-HEAD-tp2/checkpoint", MEGATRON "models/mistral"},
        {MEGATRON "mixtral-HEAD-torch-tp2ep2/checkpoint", MEGATRON "models/mixtral"},
        {MEGATRON "qwen2-HEAD-tp2pp2/checkpoint", MEGATRON "models/qwen2"},
        {MEGATRON "qwen3-0.16.1-tp2/checkpoint", MEGATRON "models/qwen3"},
        {MEGATRON "qwen3-moe-HEAD-tp2pp3/checkpoint", MEGATRON "models/qwen3_moe"},
        {MEGATRON "llama-bridge-0.3.1/checkpoint", MEGATRON "models/llama"},
    };
    for (size_t i = 0; i < COUNT(pairs); i++) {
        struct source_options o = {0};
        struct checkpoint sides[2];
        for (unsigned k = 0; k < 2; k++)
            assert_ok(source_open(&sides[k], pairs[i][k], &o, &maps, &err));
        const char *computes = list(&sides[0], &sides[1], EFFECT_COMPUTES);
        if (*computes) fail_msg("%s: %s", pairs[i][0], computes);
        assert_int_equal(sides[0].config_origin, CONFIG_OF_ARGS);
        const char *text = config_text(&sides[0], true, &scratch);
        if (text) assert_string_equal(text, config_text(&sides[1], true, &scratch));
        for (unsigned k = 0; k < 2; k++)
            checkpoint_release(&sides[k]);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(fields_that_change_what_is_computed_are_told_from_those_that_do_not),
        TEST(what_args_cannot_say_is_no_difference),
        TEST(what_old_args_do_not_hold_is_not_said),
        TEST(an_unknown_field_of_args_is_a_difference),
        TEST(an_unknown_field_of_config_json_is_a_difference_where_both_have_one),
        TEST(golden_checkpoints_describe_the_models_that_they_were_made_of),
    };
    return cmocka_run_group_tests_name("config_difference", tests, load_maps, release_maps);
}
