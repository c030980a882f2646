#include "convert/map/model_fit.h"

#include "common/count.h"
#include "common/json.h"
#include "convert/testing_convert.h"

static struct model_maps maps;

static int load_maps(void **state)
{
    (void)state;
    return model_maps_load(&maps, NULL, NULL) ? -1 : 0;
}

static int release_maps(void **state)
{
    (void)state;
    model_maps_release(&maps);
    return 0;
}

static void families_are_told_from_their_features(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        struct model_config c;
    } cases[] = {
#define LLAMA                                                                                      \
    .gated_linear_unit = true, .normalization = "RMSNorm", .position_embedding_type = "rope",      \
    .rotary_percent = 1
        {"llama", {LLAMA}},
        {"mistral", {LLAMA, .sliding_window = 8}},
        {"mixtral", {LLAMA, .num_experts = 8}},
        {"qwen2", {LLAMA, .add_qkv_bias = true}},
        {"qwen3", {LLAMA, .qk_layernorm = true}},
        {"qwen3_moe", {LLAMA, .qk_layernorm = true, .num_experts = 8}},
        {"gpt2",
         {.normalization = "LayerNorm",
          .position_embedding_type = "learned_absolute",
          .add_bias_linear = true,
          .add_qkv_bias = true}},
        {"llama", {LLAMA, .add_qkv_bias = true, .add_bias_linear = true}},
        {NULL, {LLAMA, .add_qkv_bias = true, .num_experts = 2}},
        {NULL, {.gated_linear_unit = true, .normalization = "RMSNorm"}},
        {"starcoder2",
         {.normalization = "LayerNorm", .position_embedding_type = "rope", .rotary_percent = 1}},
        {"granite", {LLAMA, .softmax_scale = 0.25}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct model_map *map = model_fit(&maps, &cases[i].c);
        if (!cases[i].family && map)
            fail_msg("case %zu is told as %s", i, model_map_family(map));
        else if (!cases[i].family)
            assert_null(map);
        else if (!map || strcmp(model_map_family(map), cases[i].family))
            fail_msg("%s is told as %s", cases[i].family, map ? model_map_family(map) : "nothing");
    }
}

/* A model with features that no map can express is of no family; the nearest
 * map and the features are named. */
static void what_no_family_has_is_named_beside_the_nearest(void **state)
{
    (void)state;
    static const struct {
        const char *nearest;
        struct model_config c;
    } cases[] = {
        {"llama, except for softmax_scale_by_layer true", {LLAMA, .softmax_scale_by_layer = true}},
        {"mixtral, except for add_qkv_bias true",
         {LLAMA, .num_experts = 8, .sliding_window = 3, .add_qkv_bias = true}},
        {"qwen3, except for softmax_scale_by_layer true",
         {LLAMA, .qk_layernorm = true, .softmax_scale_by_layer = true}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct model_map *map = model_fit(&maps, &cases[i].c);
        if (map) fail_msg("case %zu is told as %s", i, model_map_family(map));
        assert_string_equal(model_fit_nearest(&maps, &cases[i].c, &scratch), cases[i].nearest);
    }
}

/* Query and key biases without one on the output: attention_bias of granite says
 * both. */
static void one_name_of_config_json_says_one_value(void **state)
{
    (void)state;
    const struct model_config c = {LLAMA, .softmax_scale = 0.25, .add_qkv_bias = true};
    assert_null(model_fit(&maps, &c));
    assert_string_equal(model_fit_nearest(&maps, &c, &scratch),
                        "granite, except for add_proj_bias false");
}

/* Two families of equal features: a user's map that is llama under another
 * name, without extending it. */
static void families_that_fit_alike_are_named(void **state)
{
    (void)state;
    struct model_maps two;
    const struct model_config plain = {LLAMA}, other = {LLAMA, .qk_layernorm = true};
    assert_null(model_fit_alike(&maps, &plain, &scratch));
    const char *path = write_scratch(
        "own.json", json_text("[{'family':'twin','model_type':'twin','architecture':'Twin',"
                              "'extends':'llama','config':[{'megatron':'qk_layernorm',"
                              "'value':true}]}]"));
    assert_ok(model_maps_load(&two, path, &err));
    assert_null(model_fit(&two, &other));
    assert_string_equal(model_fit_alike(&two, &other, &scratch), "twin, qwen3");
    model_maps_release(&two);
}

static bool layers[] = {true, false, true, true};

static void layers_of_their_own_need_a_family_that_can_say_them(void **state)
{
    (void)state;
    const struct model_config slide = {LLAMA, .num_layers = 4, .sliding_window = 9,
                                       .window_layers = layers},
                              moe = {LLAMA, .num_layers = 4, .num_experts = 2,
                                     .moe_layers = layers};
    /* mistral can only give a window to all layers */
    assert_string_equal(model_map_family(model_fit(&maps, &slide)), "ministral");
    assert_null(model_fit(&maps, &moe));
}

/* ---- by tensors ---- */

struct some_tensors {
    const char *const *names;
    const uint64_t (*shapes)[2];
    size_t count;
};

static bool find(const void *context, const char *name, unsigned *num_dims, const uint64_t **shape)
{
    const struct some_tensors *t = context;
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->names[i], name) == 0) {
            *shape = t->shapes[i];
            *num_dims = t->shapes[i][1] ? 2 : 1;
            return true;
        }
    return false;
}

static void the_map_with_the_most_names_and_shapes_is_the_nearest(void **state)
{
    (void)state;
    static const char *const names[] = {
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.self_attn.k_proj.weight", /* its shape is another one */
        "model.layers.0.odd.weight",
    };
    static const uint64_t shapes[][2] = {{90, 8}, {8, 8}, {4}, {8, 12}, {5, 8}, {1}};
    const struct some_tensors t = {names, shapes, COUNT(names)};
    const struct hf_shapes tensors = {find, &t, t.count};
    const char *family;
    cJSON *config = json_tree(
        "{'model_type':'new','vocab_size':90,'hidden_size':8,'intermediate_size':12,"
        "'num_hidden_layers':1,'num_attention_heads':2,'num_key_value_heads':1,'head_dim':4,"
        "'rms_norm_eps':1e-6}");
    assert_string_equal(model_fit_tensors(&maps, config, &tensors, &family, &scratch),
                        "qwen3, which matches 4 of 6 tensors by name and shape");
    assert_string_equal(family, "qwen3");
    cJSON_Delete(config);
}

static void a_config_that_no_map_reads_has_no_nearest(void **state)
{
    (void)state;
    const struct hf_shapes tensors = {find, &(const struct some_tensors){0}, 0};
    const char *family;
    cJSON *config = json_tree("{'model_type':'new'}"),
          *huge = json_tree("{'vocab_size':90,'hidden_size':8,'intermediate_size':12,"
                            "'num_hidden_layers':100000,'num_attention_heads':2}");
    assert_null(model_fit_tensors(&maps, config, &tensors, &family, &scratch));
    assert_null(model_fit_tensors(&maps, huge, &tensors, &family, &scratch));
    assert_null(family);
    cJSON_Delete(config);
    cJSON_Delete(huge);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(families_are_told_from_their_features),
        TEST(what_no_family_has_is_named_beside_the_nearest),
        TEST(one_name_of_config_json_says_one_value),
        TEST(families_that_fit_alike_are_named),
        TEST(layers_of_their_own_need_a_family_that_can_say_them),
        TEST(the_map_with_the_most_names_and_shapes_is_the_nearest),
        TEST(a_config_that_no_map_reads_has_no_nearest),
    };
    return cmocka_run_group_tests_name("model_fit", tests, load_maps, release_maps);
}
