#include "convert/megatron/megatron_names.h"

#include "common/count.h"
#include "convert/map/fields.h"
#include "convert/testing_convert.h"

static const struct param_table *table;

static int begin(void **state)
{
    struct model_config none = {.num_layers = 0};
    fields_load();
    model_set_mtp_layers(&none, 1); /* for the names of such layers */
    return scratch_begin(state) || params_make(NULL, &none, &scratch, &table, &err);
}

/* ---- keys of torch_dist ---- */

#define L3 "decoder.layers.3."
#define M3 "mtp.layers.3.transformer_layer."
#define E7 "mlp.experts.experts.7."

/* A key, the layer and expert of a member (those in the key, if it names them),
 * and the logical name of that member. */
static const struct {
    const char *key;
    uint64_t layer, expert;
    bool moe;
    const char *logical;
} keys[] = {
    /* outside of layers */
    {"embedding.word_embeddings.weight", 0, 0, false, "embedding.word_embeddings.weight"},
    {"decoder.final_layernorm.weight", 0, 0, false, "decoder.final_layernorm.weight"},
    {"output_layer.weight", 0, 0, false, "output_layer.weight"},
    {"module.module.output_layer.weight", 0, 0, false, "output_layer.weight"},
    /* stacked, and layer by layer */
    {"decoder.layers.mlp.linear_fc2.weight", 3, 0, false, L3 "mlp.linear_fc2.weight"},
    {"decoder.layers.3.mlp.linear_fc2.weight", 3, 0, false, L3 "mlp.linear_fc2.weight"},
    {"module.decoder.layers.3.mlp.linear_fc2.weight", 3, 0, false, L3 "mlp.linear_fc2.weight"},
    {"decoder.layers.self_attention.linear_qkv.layer_norm_weight", 3, 0, false,
     L3 "self_attention.linear_qkv.layer_norm_weight"},
    /* the norm before the MLP, in both spellings, beside a router and without
     * one */
    {"decoder.layers.pre_mlp_layernorm.weight", 3, 0, true, L3 "pre_mlp_layernorm.weight"},
    {"decoder.layers.mlp.linear_fc1.layer_norm_weight", 3, 0, true, L3 "pre_mlp_layernorm.weight"},
    {"decoder.layers.mlp.linear_fc1.layer_norm_bias", 3, 0, true, L3 "pre_mlp_layernorm.bias"},
    {"decoder.layers.pre_mlp_layernorm.weight", 3, 0, false, L3 "mlp.linear_fc1.layer_norm_weight"},
    {"decoder.layers.mlp.linear_fc1.layer_norm_weight", 3, 0, false,
     L3 "mlp.linear_fc1.layer_norm_weight"},
    /* experts: stacked twice, once, named one by one */
    {"decoder.layers.mlp.experts.experts.linear_fc1.weight", 3, 7, true, L3 E7 "linear_fc1.weight"},
    {"decoder.layers.3.mlp.experts.experts.linear_fc2.weight", 3, 7, true,
     L3 E7 "linear_fc2.weight"},
    {"decoder.layers.3.mlp.experts.experts.7.linear_fc2.weight", 3, 7, true,
     L3 E7 "linear_fc2.weight"},
    /* multi-token prediction */
    {"mtp.layers.3.eh_proj.weight", 0, 0, true, "mtp.layers.3.eh_proj.weight"},
    {"mtp.layers.3.transformer_layer.mlp.router.weight", 3, 0, true, M3 "mlp.router.weight"},
    {"module.mtp.layers.3.mtp_model_layer.mlp.linear_fc1.layer_norm_weight", 3, 0, true,
     M3 "pre_mlp_layernorm.weight"},
    {"mtp.layers.3.transformer_layer.mlp.experts.experts.linear_fc1.weight_w", 3, 7, true,
     M3 E7 "linear_fc1.weight"},
    /* halves of a gated fc1 */
    {"decoder.layers.3.mlp.linear_fc1.weight_w", 3, 0, false, L3 "mlp.linear_fc1.weight"},
    {"decoder.layers.3.mlp.linear_fc1.weight_v", 3, 0, false, L3 "mlp.linear_fc1.weight"},
    {"decoder.layers.3.mlp.experts.experts.7.linear_fc1.weight_w", 3, 7, true,
     L3 E7 "linear_fc1.weight"},
};

static void keys_of_torch_dist_are_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(keys); i++) {
        struct dist_key k = dist_key_parse(&scratch, keys[i].key);
        const char *after = strstr(keys[i].key, "decoder.layers.");
        after = after ? after + strlen("decoder.layers.") : "";
        assert_int_equal(k.in_layers, *after != '\0');
        assert_int_equal(k.stacked_layers, k.in_layers && (*after < '0' || *after > '9'));
        assert_int_equal(k.of_expert, strstr(keys[i].key, "mlp.experts.") != NULL);
        assert_int_equal(k.stacked_experts, k.of_expert && !strstr(keys[i].key, "experts.7"));
        if (k.in_layers && !k.stacked_layers) assert_int_equal(k.layer, 3);
        if (k.of_expert && !k.stacked_experts) assert_int_equal(k.expert, 7);
        const char *end = keys[i].key + strlen(keys[i].key) - 2;
        char half = (char)(strcmp(end, "_w") == 0 ? 'w' : strcmp(end, "_v") == 0 ? 'v' : 0);
        assert_int_equal(k.half, half);
        assert_string_equal(
            dist_key_logical(&scratch, table, &k, keys[i].layer, keys[i].expert, keys[i].moe),
            keys[i].logical);
    }
}

static void numbers_that_none_can_be_are_no_numbers(void **state)
{
    (void)state;
    struct dist_key k = dist_key_parse(&scratch, "decoder.layers.18446744073709551615.a.weight");
    assert_true(k.stacked_layers); /* so it is no known parameter */
    k = dist_key_parse(&scratch, "decoder.layers.1.mlp.experts.experts.18446744073709551615.a");
    assert_true(k.stacked_experts);
    k = dist_key_parse(&scratch, "decoder.layers.12x.a");
    assert_true(k.stacked_layers);
    struct memory_name m = memory_name_parse(
        &scratch, table, "decoder.layers.0.mlp.experts.linear_fc1.weight18446744073709");
    assert_int_equal(m.kind, MEMORY_UNKNOWN);
}

/* ---- names in memory ---- */

/* A legacy name, its kind, and its logical name: local layer 1 is layer 3,
 * local expert 2 is expert 7. */
static const struct {
    const char *name;
    enum memory_kind kind;
    bool fused_qkv, local_spec, moe;
    const char *logical; /* NULL: no parameter */
} names[] = {
#define OLD "language_model."
#define OLD1 OLD "encoder.layers.1."
#define NEW1 "decoder.layers.1."
    /* Megatron-Core, Transformer Engine's spec */
    {"embedding.word_embeddings.weight", MEMORY_PARAM, 0, 0, 0, "embedding.word_embeddings.weight"},
    {"module.output_layer.weight", MEMORY_PARAM, 0, 0, 0, "output_layer.weight"},
    {"decoder.final_layernorm.weight", MEMORY_PARAM, 0, 0, 0, "decoder.final_layernorm.weight"},
    {NEW1 "self_attention.linear_qkv.weight", MEMORY_PARAM, 0, 0, 0,
     L3 "self_attention.linear_qkv.weight"},
    {NEW1 "self_attention.linear_qkv.layer_norm_weight", MEMORY_PARAM, 0, 0, 0,
     L3 "self_attention.linear_qkv.layer_norm_weight"},
    {NEW1 "mlp.linear_fc1.layer_norm_weight", MEMORY_PARAM, 0, 0, 0,
     L3 "mlp.linear_fc1.layer_norm_weight"},
    {NEW1 "pre_mlp_layernorm.weight", MEMORY_PARAM, 0, 0, 1, L3 "pre_mlp_layernorm.weight"},
    /* its local spec */
    {NEW1 "input_layernorm.weight", MEMORY_PARAM, 0, 1, 0,
     L3 "self_attention.linear_qkv.layer_norm_weight"},
    {NEW1 "input_layernorm.bias", MEMORY_PARAM, 0, 1, 0,
     L3 "self_attention.linear_qkv.layer_norm_bias"},
    {NEW1 "pre_mlp_layernorm.weight", MEMORY_PARAM, 0, 0, 0, L3 "mlp.linear_fc1.layer_norm_weight"},
    /* experts: sequential, TE's grouped, GroupedMLP */
    {NEW1 "mlp.experts.local_experts.2.linear_fc1.weight", MEMORY_PARAM, 0, 0, 1,
     L3 E7 "linear_fc1.weight"},
    {NEW1 "mlp.experts.linear_fc2.weight2", MEMORY_PARAM, 0, 0, 1, L3 E7 "linear_fc2.weight"},
    {NEW1 "mlp.experts.linear_fc2.bias2", MEMORY_PARAM, 0, 0, 1, L3 E7 "linear_fc2.bias"},
    {NEW1 "mlp.experts.weight1", MEMORY_GROUPED_FC1, 0, 0, 1, L3 E7 "linear_fc1.weight"},
    {NEW1 "mlp.experts.weight2", MEMORY_GROUPED_FC2, 0, 0, 1, L3 E7 "linear_fc2.weight"},
    {NEW1 "mlp.router.weight", MEMORY_PARAM, 0, 0, 1, L3 "mlp.router.weight"},
    {NEW1 "mlp.experts.what", MEMORY_UNKNOWN, 0, 0, 1, NULL},
    /* before Megatron-Core */
    {OLD "embedding.word_embeddings.weight", MEMORY_PARAM, 0, 0, 0,
     "embedding.word_embeddings.weight"},
    {OLD "embedding.position_embeddings.weight", MEMORY_PARAM, 0, 0, 0,
     "embedding.position_embeddings.weight"},
    {OLD "output_layer.weight", MEMORY_PARAM, 0, 0, 0, "output_layer.weight"},
    {OLD "encoder.final_norm.weight", MEMORY_PARAM, 0, 0, 0, "decoder.final_layernorm.weight"},
    {OLD "transformer.final_layernorm.bias", MEMORY_PARAM, 0, 0, 0, "decoder.final_layernorm.bias"},
    {OLD1 "input_norm.weight", MEMORY_PARAM, 0, 1, 0,
     L3 "self_attention.linear_qkv.layer_norm_weight"},
    {OLD1 "input_layernorm.bias", MEMORY_PARAM, 0, 1, 0,
     L3 "self_attention.linear_qkv.layer_norm_bias"},
    {OLD1 "self_attention.query_key_value.weight", MEMORY_PARAM, 1, 1, 0,
     L3 "self_attention.linear_qkv.weight"},
    {OLD "transformer.layers.1.attention.query_key_value.bias", MEMORY_PARAM, 1, 1, 0,
     L3 "self_attention.linear_qkv.bias"},
    {OLD1 "self_attention.dense.weight", MEMORY_PARAM, 0, 1, 0,
     L3 "self_attention.linear_proj.weight"},
    {OLD1 "attention.dense.bias", MEMORY_PARAM, 0, 1, 0, L3 "self_attention.linear_proj.bias"},
    {OLD1 "post_attention_norm.weight", MEMORY_PARAM, 0, 1, 0,
     L3 "mlp.linear_fc1.layer_norm_weight"},
    {OLD1 "post_attention_layernorm.weight", MEMORY_PARAM, 0, 1, 0,
     L3 "mlp.linear_fc1.layer_norm_weight"},
    {OLD1 "mlp.dense_h_to_4h.weight", MEMORY_PARAM, 0, 1, 0, L3 "mlp.linear_fc1.weight"},
    {OLD1 "mlp.dense_4h_to_h.bias", MEMORY_PARAM, 0, 1, 0, L3 "mlp.linear_fc2.bias"},
    /* no parameters */
    {NEW1 "mlp.linear_fc1._extra_state", MEMORY_SKIP, 0, 0, 0, NULL},
    {"word_embeddings_for_head.weight", MEMORY_SKIP, 0, 0, 0, NULL},
    {"rotary_pos_emb.inv_freq", MEMORY_SKIP, 0, 0, 0, NULL},
};

static void names_in_memory_are_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        struct memory_name m = memory_name_parse(&scratch, table, names[i].name);
        if (m.kind != names[i].kind) fail_msg("%s is of kind %d", names[i].name, (int)m.kind);
        if (!names[i].logical) continue;
        assert_int_equal(m.fused_qkv, names[i].fused_qkv);
        assert_int_equal(m.local_spec, names[i].local_spec);
        if (strstr(names[i].name, "layers.")) {
            assert_true(m.in_layers);
            assert_int_equal(m.layer, 1);
        }
        if (m.of_expert && m.kind == MEMORY_PARAM) assert_int_equal(m.expert, 2);
        assert_string_equal(memory_name_logical(&scratch, table, &m, 3, 7, names[i].moe),
                            names[i].logical);
    }
}

static void unknown_names_stay_what_they_are(void **state)
{
    (void)state;
    struct param p;
    struct memory_name m = memory_name_parse(&scratch, table, "language_model.pooler.dense.weight");
    assert_int_equal(m.kind, MEMORY_PARAM);
    assert_false(param_find(table, memory_name_logical(&scratch, table, &m, 0, 0, false), &p));
    m = memory_name_parse(&scratch, table,
                          "decoder.layers.0.mlp.local_experts.1.dense_h_to_4h.weight");
    assert_false(param_find(table, memory_name_logical(&scratch, table, &m, 0, 0, false), &p));
}

/* ---- every parameter there and back ---- */

/* The logical name of a spec, of layer 3 and expert 7. */
static const char *name_of_spec(const struct param_spec *r)
{
    const char *rest = r->name + strlen("decoder.layers.{l}."), *expert = strstr(r->name, "{e}");
    if (r->mtp) rest = r->name + strlen("mtp.layers.{l}.");
    if (r->place != PLACE_LAYER && !r->mtp) return r->name;
    if (r->mtp && !expert) return arena_printf(&scratch, "mtp.layers.3.%s", rest);
    if (r->mtp)
        return arena_printf(&scratch, "mtp.layers.3.%.*s7%s", (int)(expert - rest), rest,
                            expert + 3);
    if (!expert) return arena_printf(&scratch, L3 "%s", rest);
    return arena_printf(&scratch, L3 "%.*s7%s", (int)(expert - rest), rest, expert + 3);
}

/* Whether a spec is of a layer with experts, where the local spec uses one name
 * for two norms. */
static bool needs_moe(const struct param_spec *r)
{
    return param_of_expert(r) || strstr(r->name, "router") || strstr(r->name, "pre_mlp_layernorm");
}

static void every_parameter_survives_the_keys_of_torch_dist(void **state)
{
    (void)state;
    const size_t count = table->count;
    assert_true(count > 30);
    for (size_t i = 0; i < 8 * count; i++) {
        const struct param_spec *r = &table->specs[i / 8];
        const unsigned stacks = i % 4; /* of STACK_LAYERS and STACK_EXPERTS any */
        bool local = i / 4 % 2;
        struct param p;
        const char *name = name_of_spec(r);
        assert_true(param_find(table, name, &p));
        assert_ptr_equal(p.spec, r);
        const char *key = dist_key_of(&scratch, table, &p, stacks, local);
        struct dist_key k = dist_key_parse(&scratch, key);
        assert_int_equal(k.in_layers, r->place == PLACE_LAYER);
        assert_int_equal(k.in_mtp, r->mtp && strstr(name, ".transformer_layer."));
        assert_int_equal(k.stacked_layers, r->place == PLACE_LAYER && stacks & STACK_LAYERS);
        assert_int_equal(k.of_expert, param_of_expert(r));
        assert_int_equal(k.stacked_experts, param_of_expert(r) && stacks & STACK_EXPERTS);
        assert_string_equal(dist_key_logical(&scratch, table, &k, 3, 7, needs_moe(r)), name);
    }
}

static void every_parameter_survives_the_names_in_memory(void **state)
{
    (void)state;
    const size_t count = table->count;
    for (size_t i = 0; i < 4 * count; i++) {
        const struct param_spec *r = &table->specs[i / 4];
        bool te = i % 2, grouped = i / 2 % 2;
        struct param p;
        const char *name = name_of_spec(r);
        /* MLA's norm has the name that others' first norm has under the local
         * spec */
        if (strstr(name, ".input_layernorm.")) continue;
        assert_true(param_find(table, name, &p));
        struct memory_name m = memory_name_parse(
            &scratch, table, memory_name_of(&scratch, table, &p, 1, 2, te, grouped));
        assert_int_equal(m.kind, MEMORY_PARAM);
        assert_false(m.fused_qkv);
        if (r->place == PLACE_LAYER) assert_int_equal(m.layer, 1);
        if (m.in_mtp) assert_int_equal(m.layer, 3); /* all are on one stage */
        if (param_of_expert(r)) assert_int_equal(m.expert, 2);
        assert_string_equal(memory_name_logical(&scratch, table, &m, 3, 7, needs_moe(r)), name);
    }
}

static void spellings_are_those_of_megatron(void **state)
{
    (void)state;
    static const struct {
        const char *logical, *dist_te, *dist_local, *memory_te, *memory_local;
    } cases[] = {
#define D "decoder.layers."
        {L3 "self_attention.linear_qkv.layer_norm_weight",
         D "self_attention.linear_qkv.layer_norm_weight",
         D "self_attention.linear_qkv.layer_norm_weight",
         D "1.self_attention.linear_qkv.layer_norm_weight", D "1.input_layernorm.weight"},
        {L3 "mlp.linear_fc1.layer_norm_bias", D "mlp.linear_fc1.layer_norm_bias",
         D "mlp.linear_fc1.layer_norm_bias", D "1.mlp.linear_fc1.layer_norm_bias",
         D "1.pre_mlp_layernorm.bias"},
        {L3 "pre_mlp_layernorm.weight", D "pre_mlp_layernorm.weight",
         D "mlp.linear_fc1.layer_norm_weight", D "1.pre_mlp_layernorm.weight",
         D "1.pre_mlp_layernorm.weight"},
        {L3 E7 "linear_fc1.weight", D "mlp.experts.experts.linear_fc1.weight",
         D "mlp.experts.experts.linear_fc1.weight",
         D "1.mlp.experts.local_experts.2.linear_fc1.weight",
         D "1.mlp.experts.local_experts.2.linear_fc1.weight"},
        {"output_layer.weight", "output_layer.weight", "output_layer.weight", "output_layer.weight",
         "output_layer.weight"},
        {M3 E7 "linear_fc2.weight", M3 "mlp.experts.experts.linear_fc2.weight",
         M3 "mlp.experts.experts.linear_fc2.weight",
         "mtp.layers.3.mtp_model_layer.mlp.experts.local_experts.2.linear_fc2.weight",
         "mtp.layers.3.mtp_model_layer.mlp.experts.local_experts.2.linear_fc2.weight"},
        {"mtp.layers.3.enorm.weight", "mtp.layers.3.enorm.weight", "mtp.layers.3.enorm.weight",
         "mtp.layers.3.enorm.weight", "mtp.layers.3.enorm.weight"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct param p;
        assert_true(param_find(table, cases[i].logical, &p));
        assert_string_equal(dist_key_of(&scratch, table, &p, STACK_LAYERS | STACK_EXPERTS, false),
                            cases[i].dist_te);
        assert_string_equal(dist_key_of(&scratch, table, &p, STACK_LAYERS | STACK_EXPERTS, true),
                            cases[i].dist_local);
        assert_string_equal(memory_name_of(&scratch, table, &p, 1, 2, true, false),
                            cases[i].memory_te);
        assert_string_equal(memory_name_of(&scratch, table, &p, 1, 2, false, false),
                            cases[i].memory_local);
    }
    struct param p;
    assert_true(param_find(table, L3 E7 "linear_fc1.weight", &p));
    assert_string_equal(memory_name_of(&scratch, table, &p, 1, 2, true, true),
                        D "1.mlp.experts.linear_fc1.weight2");
    assert_string_equal(dist_key_of(&scratch, table, &p, STACK_EXPERTS, false),
                        L3 "mlp.experts.experts.linear_fc1.weight");
    assert_string_equal(module_of(&scratch, "a.b.weight"), "a.b");
    assert_string_equal(module_of(&scratch, "weight"), "weight");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(keys_of_torch_dist_are_read),
        TEST(numbers_that_none_can_be_are_no_numbers),
        TEST(names_in_memory_are_read),
        TEST(unknown_names_stay_what_they_are),
        TEST(every_parameter_survives_the_keys_of_torch_dist),
        TEST(every_parameter_survives_the_names_in_memory),
        TEST(spellings_are_those_of_megatron),
    };
    return cmocka_run_group_tests_name("megatron_names", tests, NULL, NULL);
}
