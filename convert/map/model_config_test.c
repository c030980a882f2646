/* config.json to the config and back, by the maps. tests/golden/config has the
 * config.json files that transformers 4.57 wrote for small models of each
 * family. */
#include <math.h>

#include "common/count.h"
#include "convert/map/model_map.h"
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

static enum status read_tree(const cJSON *tree, struct model_config *c)
{
    const struct model_map *map;
    enum status st = model_map_of_config(&maps, tree, &map, &err);
    return st ? st : model_config_from_hf(map, tree, &scratch, c, &err);
}

/* The fields that a config.json of any family must have. */
static const char complete[] =
    "{'model_type':'%s','n_embd':24,'n_layer':2,'n_head':4,'n_positions':16,'vocab_size':9,"
    "'hidden_size':24,'intermediate_size':20,'num_hidden_layers':2,'num_attention_heads':4}";

/* A config.json with the required fields of a family, replaced or extended by
 * these members. */
static cJSON *tree_with(const char *family, const char *members)
{
    char *text = arena_alloc(&scratch, sizeof complete + strlen(family));
    const char *at = strstr(complete, "%s");
    sprintf(text, "%.*s%s%s", (int)(at - complete), complete, family, at + 2);
    cJSON *tree = json_tree(text), *patch = json_tree(arena_printf(&scratch, "{%s}", members));
    for (const cJSON *m = patch->child; m; m = m->next) {
        cJSON_DeleteItemFromObjectCaseSensitive(tree, m->string);
        cJSON_AddItemToObject(tree, m->string, cJSON_Duplicate(m, true));
    }
    cJSON_Delete(patch);
    return tree;
}

static enum status read_with(const char *family, const char *members, struct model_config *c)
{
    cJSON *tree = tree_with(family, members);
    err.text[0] = '\0';
    enum status st = read_tree(tree, c);
    cJSON_Delete(tree);
    return st;
}

/* ---- what transformers wrote ---- */

static const struct {
    const char *file;
    struct model_config c;
} golden[] = {
#define LLAMA                                                                                      \
    .gated_linear_unit = true, .normalization = "RMSNorm", .position_embedding_type = "rope",      \
    .activation_func = "silu", .rotary_percent = 1, .init_method_std = 0.02, .vocab_size = 272,    \
    .max_position_embeddings = 128, .num_attention_heads = 4
#define SCALED(factor)                                                                             \
    .rotary_base = 500000, .rope_type = "llama3", .rope_factor = factor,                           \
    .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_max_position = 32
#define PLAIN(theta) .rope_type = "default", .rotary_base = theta
#define SIZES(layers, hidden, ffn, groups, channels, epsilon)                                      \
    .num_layers = layers, .hidden_size = hidden, .ffn_hidden_size = ffn,                           \
    .num_query_groups = groups, .kv_channels = channels, .layernorm_epsilon = epsilon
#define UNTIED .untie_embeddings_and_output_weights = true
    {"llama2", {LLAMA, PLAIN(1e4), SIZES(2, 64, 112, 4, 16, 1e-5), UNTIED}},
    {"llama3.1", {LLAMA, SCALED(8), SIZES(3, 64, 112, 2, 16, 1e-6), UNTIED}},
    {"llama3.2", {LLAMA, SCALED(32), SIZES(3, 64, 112, 2, 16, 1e-6)}},
    {"mistral", {LLAMA, PLAIN(1e4), SIZES(3, 48, 80, 2, 24, 1e-6), UNTIED, .sliding_window = 8}},
    {"mixtral",
     {LLAMA, PLAIN(1e6), SIZES(2, 48, 48, 2, 16, 1e-5), UNTIED, .num_experts = 4,
      .moe_router_topk = 2, .moe_ffn_hidden_size = 48, .moe_aux_loss_coeff = 0.001}},
    {"qwen2.5", {LLAMA, PLAIN(1e6), SIZES(3, 48, 80, 2, 12, 1e-6), .add_qkv_bias = true}},
    {"qwen3", {LLAMA, PLAIN(1e6), SIZES(3, 48, 80, 2, 24, 1e-6), .qk_layernorm = true}},
    {"qwen3-moe",
     {LLAMA, PLAIN(1e4), SIZES(2, 48, 80, 2, 12, 1e-6), UNTIED, .qk_layernorm = true,
      .num_experts = 8, .moe_router_topk = 2, .moe_ffn_hidden_size = 24,
      .moe_aux_loss_coeff = 0.001}},
    {"gpt2",
     {SIZES(2, 48, 192, 4, 12, 1e-5), .num_attention_heads = 4, .vocab_size = 268,
      .max_position_embeddings = 128, .normalization = "LayerNorm", .activation_func = "gelu_tanh",
      .add_bias_linear = true, .add_qkv_bias = true, .add_proj_bias = true, .add_mlp_bias = true,
      .rotary_percent = 1, .rope_type = "default", .position_embedding_type = "learned_absolute",
      .init_method_std = 0.02, .attention_dropout = 0.1, .hidden_dropout = 0.1}},
};
enum { NUM_GOLDEN = COUNT(golden) };

static void check_same(const char *what, const struct model_config *a, const struct model_config *b)
{
    const char *name = model_config_difference(a, b);
    if (name) fail_msg("%s: %s differs", what, name);
}

static cJSON *read_golden(const char *name, struct strbuf *text)
{
    cJSON *tree;
    const char *path = arena_printf(&scratch, "tests/golden/config/%s.json", name);
    assert_ok(file_read_all(path, 1 << 20, text, &err));
    assert_ok(json_parse(text->data, text->length, JSON_STRICT, &tree, &err));
    return tree;
}

static void add_unknown(void *context, const char *name, const char *value)
{
    strbuf_printf(context, "%s %s;", name, value);
}

static void check_unknown(const cJSON *tree, const char *expected)
{
    const struct model_map *map;
    struct strbuf found = {0};
    assert_ok(model_map_of_config(&maps, tree, &map, &err));
    strbuf_add_text(&found, "");
    model_config_unknown(map, tree, add_unknown, &found);
    assert_string_equal(found.data, expected);
    strbuf_release(&found);
}

static void configs_of_transformers_are_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < NUM_GOLDEN; i++) {
        struct strbuf text = {0};
        struct model_config c;
        cJSON *tree = read_golden(golden[i].file, &text);
        assert_ok(read_tree(tree, &c));
        check_same(golden[i].file, &c, &golden[i].c);
        check_unknown(tree, "");
        cJSON_Delete(tree);
        strbuf_release(&text);
    }
}

static void a_fresh_config_reads_as_the_same_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < NUM_GOLDEN; i++) {
        struct strbuf text = {0};
        struct model_config c, back;
        const struct model_map *map;
        cJSON *tree = read_golden(golden[i].file, &text), *fresh = cJSON_CreateObject();
        assert_ok(model_map_of_config(&maps, tree, &map, &err));
        assert_ok(model_config_from_hf(map, tree, &scratch, &c, &err));
        assert_ok(model_config_to_hf(map, &c, fresh, &err));
        assert_ok(model_config_from_hf(map, fresh, &scratch, &back, &err));
        check_same(golden[i].file, &c, &back);
        cJSON_Delete(tree);
        cJSON_Delete(fresh);
        strbuf_release(&text);
    }
}

/* The members of an object as lines "NAME: VALUE". */
static const char *lines(const cJSON *tree)
{
    struct strbuf out = {0};
    for (const cJSON *i = tree->child; i; i = i->next) {
        strbuf_printf(&out, "%s: ", i->string);
        json_print(&out, i, -1);
        strbuf_add_char(&out, '\n');
    }
    const char *text = arena_text(&scratch, out.data, out.length);
    strbuf_release(&out);
    return text;
}

static void what_is_there_keeps_its_spelling_and_its_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < NUM_GOLDEN; i++) {
        struct strbuf text = {0};
        const struct model_map *map;
        struct model_config c;
        cJSON *tree = read_golden(golden[i].file, &text);
        cJSON_AddItemToObject(tree, "unknown", cJSON_CreateRaw("[1.50, {\"a\": null}]"));
        const char *before = lines(tree);
        assert_ok(model_map_of_config(&maps, tree, &map, &err));
        assert_ok(model_config_from_hf(map, tree, &scratch, &c, &err));
        assert_ok(model_config_to_hf(map, &c, tree, &err));
        const char *after = lines(tree);
        if (strncmp(before, after, strlen(before)))
            fail_msg("%s was\n%s\nis\n%s", golden[i].file, before, after);
        cJSON_Delete(tree);
        strbuf_release(&text);
    }
}

static void what_changed_is_replaced_in_its_place(void **state)
{
    (void)state;
    const struct model_map *map = model_map_of_family(&maps, "qwen2");
    struct model_config c;
    cJSON *tree =
        json_tree("{'a':1e-05,'model_type':'qwen2','hidden_size':24,'rms_norm_eps':0.00001,"
                  "'num_hidden_layers':2,'num_attention_heads':4,'num_key_value_heads':2,"
                  "'rope_parameters':{'rope_type':'default','rope_theta':1e6},'vocab_size':9,"
                  "'intermediate_size':20,'hidden_act':'swish','use_sliding_window':false,"
                  "'sliding_window':4096,'z':2}");
    assert_ok(model_config_from_hf(map, tree, &scratch, &c, &err));
    c.hidden_size = 48;
    c.kv_channels = 12;
    c.untie_embeddings_and_output_weights = false;
    assert_ok(model_config_to_hf(map, &c, tree, &err));
    assert_string_equal(lines(tree),
                        "a: 1e-05\nmodel_type: \"qwen2\"\nhidden_size: 48\nrms_norm_eps: 0.00001\n"
                        "num_hidden_layers: 2\nnum_attention_heads: 4\nnum_key_value_heads: 2\n"
                        "rope_parameters: {\"rope_type\":\"default\",\"rope_theta\":1e6}\n"
                        "vocab_size: 9\nintermediate_size: 20\nhidden_act: \"swish\"\n"
                        "use_sliding_window: false\nsliding_window: 4096\nz: 2\nhead_dim: 12\n"
                        "max_position_embeddings: 32768\ninitializer_range: 0.02\n"
                        "attention_dropout: 0.0\ntie_word_embeddings: true\n");
    cJSON_Delete(tree);
}

/* ---- defaults of transformers' classes for absent and null fields ---- */

static void absent_fields_have_the_defaults_of_the_classes(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        uint64_t kv_heads, head_dim, positions;
        double epsilon, theta;
        bool untied;
        uint64_t window, experts, topk, moe_ffn;
    } cases[] = {
        {"llama", 4, 6, 2048, 1e-6, 1e4, true, 0, 0, 0, 0},
        {"mistral", 8, 6, 131072, 1e-6, 1e4, true, 4096, 0, 0, 0},
        {"mixtral", 8, 6, 131072, 1e-5, 1e6, true, 0, 8, 2, 20},
        {"qwen2", 32, 6, 32768, 1e-6, 1e4, true, 0, 0, 0, 0},
        {"qwen3", 32, 128, 32768, 1e-6, 1e4, true, 0, 0, 0, 0},
        {"qwen3_moe", 4, 6, 32768, 1e-6, 1e4, true, 0, 128, 8, 768},
        {"gpt2", 4, 6, 16, 1e-5, 0, false, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_config c;
        const char *family = cases[i].family;
        /* 4 heads cannot share 32, so those classes need more heads for their
         * default */
        const char *heads = cases[i].kv_heads > 4 ? "'num_attention_heads':64,'head_dim':6" : "";
        if (strcmp(family, "qwen3") == 0) heads = "'num_attention_heads':64";
        assert_ok(read_with(family, heads, &c));
        if (c.num_query_groups != cases[i].kv_heads || c.kv_channels != cases[i].head_dim ||
            c.max_position_embeddings != cases[i].positions ||
            c.sliding_window != cases[i].window || c.num_experts != cases[i].experts ||
            c.moe_router_topk != cases[i].topk || c.moe_ffn_hidden_size != cases[i].moe_ffn ||
            c.untie_embeddings_and_output_weights != cases[i].untied)
            fail_msg("%s has other defaults", family);
        assert_float_equal(c.layernorm_epsilon, cases[i].epsilon, 0);
        assert_float_equal(c.rotary_base, cases[i].theta, 0);
    }
}

static void null_is_told_from_absent(void **state)
{
    (void)state;
    static const char *const families[] = {"llama", "mistral", "mixtral", "qwen2", "qwen3"};
    struct model_config c;
    for (size_t i = 0; i < COUNT(families); i++) {
        assert_ok(read_with(families[i], "'num_key_value_heads':null,'rope_scaling':null", &c));
        assert_int_equal(c.num_query_groups, 4);
    }
    assert_ok(read_with("mistral", "'num_key_value_heads':2,'sliding_window':null", &c));
    assert_int_equal(c.sliding_window, 0);
    assert_ok(read_with("llama", "'head_dim':null", &c));
    assert_int_equal(c.kv_channels, 6);
    assert_ok(read_with("gpt2", "'n_inner':null", &c));
    assert_int_equal(c.ffn_hidden_size, 96);
    assert_ok(read_with("gpt2", "'n_inner':7", &c));
    assert_int_equal(c.ffn_hidden_size, 7);
}

/* ---- rotary positions ---- */

static const char llama3[] = "'rope_type':'llama3','factor':8.0,'low_freq_factor':2,"
                             "'high_freq_factor':5,'original_max_position_embeddings':64";

static void both_spellings_of_rope_say_the_same(void **state)
{
    (void)state;
    struct model_config four, five, old;
    assert_ok(read_with(
        "llama", arena_printf(&scratch, "'rope_theta':7e5,'rope_scaling':{%s}", llama3), &four));
    assert_ok(read_with(
        "llama", arena_printf(&scratch, "'rope_parameters':{%s,'rope_theta':700000}", llama3),
        &five));
    check_same("4 and 5", &four, &five);
    assert_float_equal(four.rotary_base, 7e5, 0);
    assert_float_equal(four.rope_low_freq_factor, 2, 0);
    assert_float_equal(four.rope_high_freq_factor, 5, 0);
    assert_int_equal(four.rope_original_max_position, 64);
    assert_ok(read_with("llama", "'rope_scaling':{'type':'linear','factor':2.5}", &old));
    assert_string_equal(old.rope_type, "linear");
    assert_float_equal(old.rope_factor, 2.5, 0);
    assert_ok(read_with("llama", "'rope_parameters':{'rope_theta':6}", &five));
    assert_float_equal(five.rotary_base, 6, 0);
    assert_ok(
        read_with("llama", "'rope_theta':5,'rope_parameters':{'rope_type':'default'}", &five));
    assert_float_equal(five.rotary_base, 5, 0);
}

#define LINEAR "{'rope_type':'linear','factor':2}"

/* Two spellings of a field, with values that contradict each other. */
static const struct {
    const char *family, *members, *older, *newer, *values[2];
} clashes[] = {
    {"llama",
     "'rope_theta':5,'rope_parameters':{'rope_theta':6}",
     "rope_theta",
     "rope_parameters.rope_theta",
     {"5", "6"}},
    {"llama",
     "'rope_theta':5,'rope_scaling':{'rope_type':'default','rope_theta':6}",
     "rope_theta",
     "rope_scaling.rope_theta",
     {"5", "6"}},
    {"llama",
     "'rope_scaling':null,'rope_parameters':" LINEAR,
     "rope_scaling",
     "rope_parameters",
     {"null", "{\"rope_type\":\"linear\",\"factor\":2}"}},
    {"llama",
     "'rope_scaling':" LINEAR ",'rope_parameters':{'rope_theta':10000}",
     "rope_scaling",
     "rope_parameters",
     {"{\"rope_type\":\"linear\",\"factor\":2}", "{\"rope_theta\":10000}"}},
    {"llama",
     "'rope_scaling':{'type':'linear','rope_type':'default','factor':2}",
     "rope_scaling.type",
     "rope_scaling.rope_type",
     {"linear", "default"}},
    {"llama",
     "'partial_rotary_factor':0.5,'rope_parameters':{'partial_rotary_factor':0.25}",
     "partial_rotary_factor",
     "rope_parameters.partial_rotary_factor",
     {"0.5", "0.25"}},
    {"qwen3_moe",
     "'num_key_value_heads':2,'num_experts':16,'num_local_experts':8",
     "num_local_experts",
     "num_experts",
     {"8", "16"}},
};

static unsigned ignore_newer(void *context, const struct spelling_clash *clash)
{
    size_t *i = context;
    assert_string_equal(clash->names[0], clashes[*i].older);
    assert_string_equal(clash->names[1], clashes[*i].newer);
    for (unsigned k = 0; k < 2; k++)
        assert_string_equal(clash->values[k], clashes[*i].values[k]);
    return 1;
}

static void spellings_that_contradict_are_refused_until_settled(void **state)
{
    (void)state;
    struct model_config c;
    for (size_t i = 0; i < COUNT(clashes); i++) {
        const struct model_map *map = model_map_of_family(&maps, clashes[i].family);
        assert_fails(read_with(clashes[i].family, clashes[i].members, &c), ERR_CORRUPT,
                     arena_printf(&scratch, "%s and %s are spellings of one field",
                                  clashes[i].older, clashes[i].newer));
        cJSON *tree = json_tree(arena_printf(&scratch, "{%s}", clashes[i].members));
        model_config_settle(map, tree, &scratch, ignore_newer, &i);
        assert_null(strstr(
            lines(tree), strrchr(clashes[i].newer, '.')
                             ? arena_printf(&scratch, "\"%s\"", strrchr(clashes[i].newer, '.') + 1)
                             : arena_printf(&scratch, "%s:", clashes[i].newer)));
        cJSON_Delete(tree);
    }
}

static void spellings_that_agree_are_read(void **state)
{
    (void)state;
    struct model_config c;
    static const char *const agreeing[] = {
        "'rope_scaling':null,'rope_parameters':{'rope_type':'default','rope_theta':6}",
        "'rope_scaling':null,'rope_theta':6.0,'rope_parameters':{'rope_theta':6}",
        "'rope_scaling':null,'rope_theta':6,'rope_parameters':null",
        "'rope_theta':null,'rope_parameters':{'rope_theta':6}",
        "'rope_scaling':{'type':'default','rope_type':'default','rope_theta':6}",
    };
    for (size_t i = 0; i < COUNT(agreeing); i++) {
        assert_ok(read_with("llama", agreeing[i], &c));
        assert_float_equal(c.rotary_base, 6, 0);
        assert_string_equal(c.rope_type, "default");
    }
    /* transformers 5 reads rope_scaling where it is an object */
    assert_ok(read_with("llama", "'rope_scaling':" LINEAR ",'rope_parameters':null", &c));
    assert_string_equal(c.rope_type, "linear");
}

static void a_fresh_config_says_rope_in_both_spellings(void **state)
{
    (void)state;
    struct model_config c;
    cJSON *fresh = cJSON_CreateObject();
    assert_ok(read_with(
        "llama", arena_printf(&scratch, "'rope_theta':7e5,'rope_scaling':{%s}", llama3), &c));
    assert_ok(model_config_to_hf(model_map_of_family(&maps, "llama"), &c, fresh, &err));
    const char *text = lines(fresh);
    assert_non_null(strstr(text, "\nrope_theta: 700000.0\n"));
    assert_non_null(strstr(text, "\nrope_scaling: {\"rope_type\":\"llama3\",\"factor\":8.0,"
                                 "\"low_freq_factor\":2.0,\"high_freq_factor\":5.0,"
                                 "\"original_max_position_embeddings\":64}\n"));
    assert_non_null(strstr(text, "\nrope_parameters: {\"rope_type\":\"llama3\""));
    cJSON_Delete(fresh);
    fresh = cJSON_CreateObject();
    assert_ok(read_with("llama", "", &c));
    assert_ok(model_config_to_hf(model_map_of_family(&maps, "llama"), &c, fresh, &err));
    assert_non_null(strstr(lines(fresh), "\nrope_scaling: null\n"));
    cJSON_Delete(fresh);
}

/* Expected numbers: transformers 4.57,
 * modeling_rope_utils.py:_compute_yarn_parameters. */
static const struct {
    const char *members;
    double attention, fast, slow;
    bool untruncated;
} yarns[] = {
    {"", 1.2079441541679836, 32, 1, false},
    {",'mscale':0.8", 1.2079441541679836, 32, 1, false},
    {",'mscale':0,'mscale_all_dim':1.3", 1.2079441541679836, 32, 1, false},
    {",'mscale':0.8,'mscale_all_dim':1.3", 0.9181533224822601, 32, 1, false},
    {",'mscale':0.5,'mscale_all_dim':1,'attention_factor':1.7", 1.7, 32, 1, false},
    {",'attention_factor':null,'beta_fast':null,'truncate':null", 1.2079441541679836, 32, 1, false},
    {",'beta_fast':0,'beta_slow':0", 1.2079441541679836, 32, 1, false},
    {",'beta_fast':4,'beta_slow':0.5,'truncate':false", 1.2079441541679836, 4, 0.5, true},
};

static void what_yarn_is_not_told_is_as_in_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(yarns); i++) {
        struct model_config c;
        const char *rope = arena_printf(
            &scratch, "'rope_scaling':{'rope_type':'yarn','factor':8%s}", yarns[i].members);
        assert_ok(read_with("llama", rope, &c));
        assert_float_equal(c.rope_attention_factor, yarns[i].attention, 1e-12);
        assert_float_equal(c.rope_beta_fast, yarns[i].fast, 0);
        assert_float_equal(c.rope_beta_slow, yarns[i].slow, 0);
        assert_int_equal(c.rope_untruncated, yarns[i].untruncated);
    }
}

/* ---- layers that differ ---- */

static void windows_of_qwen_count_where_they_are_used(void **state)
{
    (void)state;
    struct model_config c;
    const char *heads = "'num_key_value_heads':2,";
    assert_ok(read_with("qwen2", arena_printf(&scratch, "%s'sliding_window':9", heads), &c));
    assert_int_equal(c.sliding_window, 0);
    assert_ok(read_with("qwen2",
                        arena_printf(&scratch,
                                     "%s'sliding_window':9,'use_sliding_window':true,"
                                     "'max_window_layers':1",
                                     heads),
                        &c));
    assert_int_equal(c.sliding_window, 9);
    assert_false(model_layer_slides(&c, 0));
    assert_true(model_layer_slides(&c, 1));
    cJSON *fresh = cJSON_CreateObject();
    struct model_config back;
    const struct model_map *map = model_map_of_family(&maps, "qwen2");
    assert_ok(model_config_to_hf(map, &c, fresh, &err));
    assert_ok(model_config_from_hf(map, fresh, &scratch, &back, &err));
    check_same("window", &c, &back);
    cJSON_Delete(fresh);
}

static void layers_of_qwen_slide_where_layer_types_says_so(void **state)
{
    (void)state;
    struct model_config c, back;
    static const char some[] =
        "'num_key_value_heads':2,'use_sliding_window':true,'sliding_window':9,"
        "'max_window_layers':2,'layer_types':['sliding_attention',"
        "'full_attention']";
    for (int i = 0; i < 2; i++) {
        const char *family = i ? "qwen3" : "qwen2";
        assert_ok(read_with(family, some, &c));
        assert_int_equal(c.sliding_window, 9);
        assert_true(model_layer_slides(&c, 0));
        assert_false(model_layer_slides(&c, 1));
        cJSON *fresh = cJSON_CreateObject();
        const struct model_map *map = model_map_of_family(&maps, family);
        assert_ok(model_config_to_hf(map, &c, fresh, &err));
        assert_ok(model_config_from_hf(map, fresh, &scratch, &back, &err));
        check_same("layer_types", &c, &back);
        cJSON_Delete(fresh);
    }
    /* Qwen 3 with experts reads neither: all layers slide */
    assert_ok(read_with("qwen3_moe", some, &c));
    assert_true(model_layer_slides(&c, 0) && model_layer_slides(&c, 1));
    /* llama has no such field */
    assert_ok(read_with("llama", some, &c));
    assert_int_equal(c.sliding_window, 0);
}

static void spellings_of_transformers_5_are_read(void **state)
{
    (void)state;
    struct model_config c;
    assert_ok(read_with("qwen3_moe", "'num_local_experts':16,'num_key_value_heads':2", &c));
    assert_int_equal(c.num_experts, 16);
    assert_ok(read_with("qwen3_moe", "'num_local_experts':16,'num_experts':16", &c));
    assert_int_equal(c.num_experts, 16);
    cJSON *config = json_tree("{'num_local_experts':4}");
    assert_ok(model_config_to_hf(model_map_of_family(&maps, "qwen3_moe"), &c, config, &err));
    uint64_t n;
    assert_true(json_as_u64(json_get(config, "num_local_experts"), &n) && n == 16);
    assert_null(json_get(config, "num_experts"));
    cJSON_Delete(config);
}

static void heads_need_not_divide_the_hidden_size(void **state)
{
    (void)state;
    struct model_config c;
    assert_ok(read_with("llama", "'num_attention_heads':5,'num_key_value_heads':5", &c));
    assert_int_equal(c.kv_channels, 4);
    assert_fails(read_with("gpt2", "'n_head':5,'num_attention_heads':5", &c), ERR_CORRUPT,
                 "cannot be evaluated");
}

static void biases_are_those_of_attention_and_of_the_mlp(void **state)
{
    (void)state;
    static const struct {
        const char *family, *members;
        bool linear, qkv, proj, mlp;
    } cases[] = {
        {"llama", "'attention_bias':true", false, true, true, false},
        {"llama", "'mlp_bias':true", false, false, false, true},
        {"llama", "'mlp_bias':true,'attention_bias':true", true, true, true, true},
        {"qwen3", "'attention_bias':true", false, true, true, false},
        {"qwen3_moe", "'attention_bias':true", false, true, true, false},
        {"qwen2", "'attention_bias':true", false, true, false, false},
        {"mistral", "'attention_bias':true", false, false, false, false},
        {"gpt2", "", true, true, true, true},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_config c, back;
        const struct model_map *map = model_map_of_family(&maps, cases[i].family);
        cJSON *fresh = cJSON_CreateObject();
        const char *members = arena_printf(&scratch, "'num_key_value_heads':2%s%s",
                                           *cases[i].members ? "," : "", cases[i].members);
        assert_ok(read_with(cases[i].family, members, &c));
        assert_int_equal(c.add_bias_linear, cases[i].linear);
        assert_int_equal(c.add_qkv_bias, cases[i].qkv);
        assert_int_equal(c.add_proj_bias, cases[i].proj);
        assert_int_equal(c.add_mlp_bias, cases[i].mlp);
        assert_ok(model_config_to_hf(map, &c, fresh, &err));
        assert_ok(model_config_from_hf(map, fresh, &scratch, &back, &err));
        check_same(cases[i].members, &c, &back);
        cJSON_Delete(fresh);
    }
}

static void yarn_may_be_told_all_its_numbers(void **state)
{
    (void)state;
#define YARN "'rope_scaling':{'rope_type':'yarn','factor':4"
    struct model_config c, back;
    cJSON *fresh = cJSON_CreateObject();
    const struct model_map *map = model_map_of_family(&maps, "llama");
    assert_ok(read_with("llama", YARN "}", &c));
    assert_true(fabs(c.rope_attention_factor - 1.138629436111989) < 1e-12);
    assert_true(c.rope_beta_fast == 32 && c.rope_beta_slow == 1 && !c.rope_untruncated);
    /* numbers of transformers 4.57's _compute_yarn_parameters */
    assert_ok(read_with("llama", YARN ",'mscale':0.7,'mscale_all_dim':1.5}", &c));
    assert_true(fabs(c.rope_attention_factor - 0.9081881819561598) < 1e-12);
    assert_ok(read_with("llama",
                        YARN ",'mscale':0.7,'attention_factor':2.5,'beta_fast':8,"
                             "'beta_slow':2,'truncate':false}",
                        &c));
    assert_true(c.rope_attention_factor == 2.5 && c.rope_beta_fast == 8 && c.rope_beta_slow == 2);
    assert_true(c.rope_untruncated);
    assert_ok(model_config_to_hf(map, &c, fresh, &err));
    assert_ok(model_config_from_hf(map, fresh, &scratch, &back, &err));
    check_same("yarn", &c, &back);
    cJSON_Delete(fresh);
    assert_fails(read_with("llama", YARN ",'truncate':3}", &c), ERR_CORRUPT, "truncate is neither");
    assert_fails(read_with("llama", YARN ",'beta_fast':-3}", &c), ERR_CORRUPT, "beta_fast is no");
#undef YARN
}

static void experts_of_qwen_stand_in_the_layers_that_it_says(void **state)
{
    (void)state;
    struct model_config c, back;
    const struct model_map *map = model_map_of_family(&maps, "qwen3_moe");
    cJSON *fresh = cJSON_CreateObject();
    assert_ok(read_with("qwen3_moe",
                        "'num_hidden_layers':6,'decoder_sparse_step':2,'mlp_only_layers':[3]", &c));
    for (uint64_t l = 0; l < 6; l++)
        assert_int_equal(model_layer_is_moe(&c, l), l == 1 || l == 5);
    assert_true(c.moe_router_pre_softmax); /* norm_topk_prob is false by default */
    assert_ok(model_config_to_hf(map, &c, fresh, &err));
    assert_ok(model_config_from_hf(map, fresh, &scratch, &back, &err));
    check_same("layers", &c, &back);
    assert_non_null(strstr(lines(fresh), "\nmlp_only_layers: [0,2,3,4]\n"));
    cJSON_Delete(fresh);
}

/* ---- refusals ---- */

/* As the rows hf/config-* of the hostile cases, and more; each member replaces
 * a correct one. */
static const struct {
    const char *family, *members;
    enum status status;
    const char *message;
} refused[] = {
    {"llama", "'hidden_act':'zzz'", ERR_UNSUPPORTED,
     "config.json: hidden_act \"zzz\" is not known"},
    {"llama", "'hidden_act':3", ERR_CORRUPT, "config.json: hidden_act is not a string"},
    {"llama", "'rms_norm_eps':NaN", ERR_CORRUPT,
     "config.json: rms_norm_eps is not a finite number"},
    {"llama", "'rms_norm_eps':0", ERR_CORRUPT,
     "layernorm_epsilon is 0, expected a finite number above 0"},
    {"llama", "'rms_norm_eps':-1", ERR_CORRUPT, "layernorm_epsilon is -1"},
    {"llama", "'rms_norm_eps':'a'", ERR_CORRUPT, "rms_norm_eps is not a finite number"},
    {"llama", "'head_dim':3", ERR_CORRUPT, "rotary positions need an even head size (3)"},
    {"llama", "'num_attention_heads':0", ERR_CORRUPT, "cannot be evaluated"},
    {"llama", "'num_attention_heads':0,'head_dim':4", ERR_CORRUPT, "num_attention_heads is 0"},
    {"llama", "'hidden_size':8.5", ERR_CORRUPT,
     "hidden_size is not a whole number from 0 to 2^64 - 1"},
    {"llama", "'hidden_size':1e-3", ERR_CORRUPT, "hidden_size is not a whole number"},
    {"llama", "'hidden_size':-8", ERR_CORRUPT, "hidden_size is not a whole number"},
    {"llama", "'hidden_size':NaN", ERR_CORRUPT, "hidden_size is not a whole number"},
    {"llama", "'hidden_size':'8'", ERR_CORRUPT, "hidden_size is not a whole number"},
    {"llama", "'hidden_size':null", ERR_CORRUPT, "config.json: hidden_size is missing"},
    {"llama", "'hidden_size':1000000000000000000000000000000", ERR_CORRUPT, "not a whole number"},
    {"llama", "'hidden_size':2000000000000,'head_dim':4", ERR_CORRUPT, "hidden_size is 2000000000"},
    {"llama", "'num_key_value_heads':0", ERR_CORRUPT, "num_query_groups (key/value heads) is 0"},
    {"llama", "'num_key_value_heads':3", ERR_CORRUPT, "4 attention heads cannot share 3 key/value"},
    {"llama", "'num_hidden_layers':0", ERR_CORRUPT, "num_layers is 0, expected 1 to 100000"},
    {"llama", "'num_hidden_layers':-1", ERR_CORRUPT, "num_hidden_layers is not a whole number"},
    {"llama", "'num_hidden_layers':100001", ERR_CORRUPT, "num_layers is 100001"},
    {"llama", "'rope_theta':0", ERR_CORRUPT, "rope_theta is not a finite number above 0"},
    {"llama", "'rope_theta':Infinity", ERR_CORRUPT, "rope_theta is not a finite number above 0"},
    {"llama", "'rope_scaling':{'rope_type':'zzz','factor':2}", ERR_UNSUPPORTED,
     "rope_type \"zzz\" is not supported"},
    {"llama", "'rope_scaling':{'rope_type':3}", ERR_CORRUPT, "rope_type is not the name of"},
    {"llama", "'rope_scaling':{'rope_type':''}", ERR_CORRUPT, "rope_type is not the name of"},
    {"llama", "'rope_scaling':[]", ERR_CORRUPT, "rope_scaling is not an object"},
    {"llama", "'rope_scaling':{'type':'linear'}", ERR_CORRUPT, "rope_type linear has no factor"},
    {"llama", "'rope_scaling':{'type':'linear','factor':'2'}", ERR_CORRUPT,
     "factor is not a finite"},
    {"llama", "'rope_scaling':{'type':'llama3','factor':2}", ERR_CORRUPT,
     "llama3 needs low_freq_factor, high_freq_factor"},
    {"llama", "'rope_scaling':{'type':'yarn','factor':2,'mscale':-1}", ERR_CORRUPT,
     "mscale is not a finite number above 0"},
    {"llama", "'rope_scaling':{'type':'yarn','factor':2,'truncate':0}", ERR_CORRUPT,
     "truncate is neither true nor false"},
    {"llama", "'tie_word_embeddings':'no'", ERR_CORRUPT, "tie_word_embeddings is neither true nor"},
    {"qwen2", "'num_key_value_heads':2,'use_sliding_window':true,'sliding_window':-1", ERR_CORRUPT,
     "sliding_window is not a whole number"},
    {"qwen2", "'num_key_value_heads':2,'max_window_layers':'a'", ERR_CORRUPT,
     "max_window_layers is not a whole number"},
    {"qwen2", "'num_key_value_heads':2,'layer_types':['full_attention']", ERR_CORRUPT,
     "window_layers has 1 values for 2 layers, by hf.layer_types"},
    {"qwen3", "'num_key_value_heads':2,'layer_types':['full_attention','zzz']", ERR_UNSUPPORTED,
     "neither sliding_attention nor full_attention: [\"zzz\"]"},
    {"qwen3", "'num_key_value_heads':2,'layer_types':['full_attention','sliding_attention']",
     ERR_UNSUPPORTED, "give no window"},
    {"qwen3_moe", "'num_experts':16,'num_local_experts':8", ERR_CORRUPT,
     "num_local_experts and num_experts are spellings of one field, but 8 and 16"},
    {"qwen3_moe", "'decoder_sparse_step':0", ERR_CORRUPT, "a division by 0"},
    {"qwen3_moe", "'num_experts':2", ERR_CORRUPT, "moe_router_topk is 8, expected 1 to 2"},
    {"qwen3_moe", "'num_experts':100001", ERR_CORRUPT, "num_experts is 100001"},
    {"qwen3_moe", "'num_experts':10000,'num_hidden_layers':10000", ERR_CORRUPT,
     "num_layers * num_experts is 100000000"},
    {"gpt2", "'n_head':5,'num_attention_heads':5", ERR_CORRUPT,
     "hidden_size / num_attention_heads cannot be evaluated"},
    {"gpt2", "'scale_attn_weights':0", ERR_CORRUPT, "scale_attn_weights is neither true nor"},
    {"gpt2", "'add_cross_attention':true", ERR_UNSUPPORTED, "no counterpart"},
};

static void bad_values_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++) {
        struct model_config c;
        enum status st = read_with(refused[i].family, refused[i].members, &c);
        if (st != refused[i].status || !strstr(err.text, refused[i].message))
            fail_msg("%s %s: %d \"%s\" lacks \"%s\"", refused[i].family, refused[i].members,
                     (int)st, err.text, refused[i].message);
    }
}

static void missing_fields_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const fields[] = {"hidden_size", "num_hidden_layers", "vocab_size",
                                         "num_attention_heads", "intermediate_size"};
    for (size_t i = 0; i < COUNT(fields); i++) {
        struct model_config c;
        cJSON *tree = tree_with("llama", "");
        cJSON_DeleteItemFromObjectCaseSensitive(tree, fields[i]);
        assert_fails(read_tree(tree, &c), ERR_CORRUPT,
                     arena_printf(&scratch, "config.json: %s is missing", fields[i]));
        cJSON_Delete(tree);
    }
}

/* ---- what a family's config.json cannot say ---- */

static struct model_config llama(void)
{
    struct model_config c;
    assert_ok(read_with("llama", "", &c));
    return c;
}

static void models_that_config_json_cannot_say_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name; /* name of the field */
        const char *message;
        struct model_config with;
    } cases[] = {
#define CANNOT "a config.json of family llama cannot express "
        {"rotary_interleaved", CANNOT "rotary_interleaved true", {.rotary_interleaved = true}},
        {"qk_layernorm", CANNOT "qk_layernorm true", {.qk_layernorm = true}},
        {"sliding_window", CANNOT "sliding_window 8: it would be read as 0", {.sliding_window = 8}},
        {"normalization",
         CANNOT "normalization LayerNorm: it would be read as RMSNorm",
         {.normalization = "LayerNorm"}},
        {"gated_linear_unit", CANNOT "gated_linear_unit false", {.gated_linear_unit = false}},
        {"add_qkv_bias", CANNOT "add_proj_bias false", {.add_qkv_bias = true}},
        {"softmax_scale", CANNOT "softmax_scale 0.5", {.softmax_scale = 0.5}},
        {"num_experts", CANNOT "num_experts 4: it would be read as 0", {.num_experts = 4}},
        {"position_embedding_type",
         CANNOT "position_embedding_type none",
         {.position_embedding_type = "none"}},
        {"layernorm_epsilon",
         "cannot describe this model: layernorm_epsilon is 0",
         {.layernorm_epsilon = 0}},
        {"activation_func",
         "activation zzz has no name in config.json",
         {.activation_func = "zzz"}},
        {"activation_func",
         "activation (none) has no name in config.json",
         {.activation_func = NULL}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_config c = llama();
        cJSON *fresh = cJSON_CreateObject();
        field_copy(&model_field_find(cases[i].name)->field, &c, &cases[i].with);
        err.text[0] = '\0';
        enum status st = model_config_to_hf(model_map_of_family(&maps, "llama"), &c, fresh, &err);
        if (!st || !strstr(err.text, cases[i].message))
            fail_msg("%s: %d \"%s\" lacks \"%s\"", cases[i].name, (int)st, err.text,
                     cases[i].message);
        cJSON_Delete(fresh);
    }
}

static void fields_that_change_nothing_do_not_stop_an_export(void **state)
{
    (void)state;
    struct model_config c = llama();
    cJSON *fresh = cJSON_CreateObject();
    c.hidden_dropout = 0.1;
    c.padded_vocab_size = 128;
    c.make_vocab_size_divisible_by = 128;
    c.moe_router_topk = 2;
    c.moe_ffn_hidden_size = 7;
    c.window_layers = (bool[]){false, true};
    c.init_method_std = 0;
    assert_ok(model_config_to_hf(model_map_of_family(&maps, "llama"), &c, fresh, &err));
    assert_null(json_get(fresh, "initializer_range"));
    cJSON_Delete(fresh);
    fresh = cJSON_CreateObject();
    assert_ok(read_with("gpt2", "", &c));
    c.rotary_base = 10000;
    c.rotary_percent = 0.5;
    c.rope_type = NULL;
    assert_ok(model_config_to_hf(model_map_of_family(&maps, "gpt2"), &c, fresh, &err));
    assert_null(json_get(fresh, "rope_theta"));
    cJSON_Delete(fresh);
    fresh = cJSON_CreateObject();
    assert_ok(read_with("mixtral", "'num_key_value_heads':2", &c));
    c.ffn_hidden_size = 4 * c.hidden_size; /* no layer has an MLP of that size */
    assert_ok(model_config_to_hf(model_map_of_family(&maps, "mixtral"), &c, fresh, &err));
    cJSON_Delete(fresh);
}

static void fields_that_nobody_gave_are_listed(void **state)
{
    (void)state;
    const struct model_map *map = model_map_of_family(&maps, "llama");
    struct model_config c = llama(), none = {0};
    assert_null(model_config_lacks(map, &c, &scratch));
    c.layernorm_epsilon = 0;
    c.rotary_base = 0;
    c.activation_func = NULL;
    assert_string_equal(model_config_lacks(map, &c, &scratch),
                        "activation_func, layernorm_epsilon, rotary_base");
    assert_string_equal(model_config_lacks(model_map_of_family(&maps, "mixtral"), &none, &scratch),
                        "vocab_size, hidden_size, num_layers, num_attention_heads, "
                        "num_query_groups, kv_channels, max_position_embeddings, activation_func, "
                        "layernorm_epsilon, rotary_base, num_experts, moe_ffn_hidden_size, "
                        "moe_router_topk");
}

/* The effect of these fields was looked up in transformers 4.57 and 5.23, and
 * tried. */
static void fields_that_nobody_reads_are_unknown_or_inert(void **state)
{
    (void)state;
    static const struct {
        const char *family, *members, *unknown;
    } cases[] = {
        {"llama", "'pretraining_tp':4,'use_cache':true,'eos_token_id':[1,2],'torch_dtype':'x'", ""},
        {"llama", "'logit_scale':0.5,'clip_qkv':null,'alibi':false", "logit_scale 0.5;"},
        {"llama", "'rope_theta':5e5,'partial_rotary_factor':1.0", ""},
        {"llama", "'rope_scaling':{'type':'linear','factor':2,'attn_factor':0.9,'finetuned':true}",
         "rope_scaling.attn_factor 0.9;"},
        {"llama", "'is_causal':true", ""},
        {"llama", "'is_causal':false", "is_causal false;"},
        {"llama", "'layer_types':['full_attention','full_attention']", ""},
        {"llama", "'layer_types':['full_attention','sliding_attention']",
         "layer_types [\"full_attention\",\"sliding_attention\"];"},
        {"mistral", "'layer_types':['full_attention']", "layer_types [\"full_attention\"];"},
        {"llama", "'sliding_window':4096", "sliding_window 4096;"},
        {"mistral", "'sliding_window':4096", ""},
        {"qwen2", "'use_sliding_window':false,'sliding_window':9,'max_window_layers':28", ""},
        {"qwen2", "'attention_bias':true,'rope_scaling':{'type':'default','mrope_section':[1]}",
         ""},
        {"qwen3", "'use_qk_norm':true,'attention_bias':true", ""},
        {"mixtral", "'attention_bias':true", "attention_bias true;"},
        {"qwen3_moe", "'max_window_layers':48,'router_aux_loss_coef':0.1", ""},
        {"gpt2", "'n_ctx':16,'summary_type':'cls_index','reorder_and_upcast_attn':true", ""},
        {"gpt2", "'pruned_heads':{'0':[1]}", "pruned_heads {\"0\":[1]};"},
        {"llama", "'auto_map':{'AutoModel':'x.y'}", "auto_map {\"AutoModel\":\"x.y\"};"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        cJSON *tree = json_tree(
            arena_printf(&scratch, "{'model_type':'%s',%s}", cases[i].family, cases[i].members));
        check_unknown(tree, cases[i].unknown);
        cJSON_Delete(tree);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(configs_of_transformers_are_read),
        TEST(a_fresh_config_reads_as_the_same_model),
        TEST(what_is_there_keeps_its_spelling_and_its_place),
        TEST(what_changed_is_replaced_in_its_place),
        TEST(absent_fields_have_the_defaults_of_the_classes),
        TEST(null_is_told_from_absent),
        TEST(both_spellings_of_rope_say_the_same),
        TEST(spellings_that_contradict_are_refused_until_settled),
        TEST(spellings_that_agree_are_read),
        TEST(a_fresh_config_says_rope_in_both_spellings),
        TEST(what_yarn_is_not_told_is_as_in_transformers),
        TEST(windows_of_qwen_count_where_they_are_used),
        TEST(layers_of_qwen_slide_where_layer_types_says_so),
        TEST(spellings_of_transformers_5_are_read),
        TEST(heads_need_not_divide_the_hidden_size),
        TEST(biases_are_those_of_attention_and_of_the_mlp),
        TEST(yarn_may_be_told_all_its_numbers),
        TEST(experts_of_qwen_stand_in_the_layers_that_it_says),
        TEST(bad_values_are_refused_by_name),
        TEST(missing_fields_are_refused_by_name),
        TEST(models_that_config_json_cannot_say_are_refused),
        TEST(fields_that_change_nothing_do_not_stop_an_export),
        TEST(fields_that_nobody_gave_are_listed),
        TEST(fields_that_nobody_reads_are_unknown_or_inert),
    };
    return cmocka_run_group_tests_name("model_config", tests, load_maps, release_maps);
}
