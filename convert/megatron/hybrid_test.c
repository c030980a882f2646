#include "convert/megatron/hybrid.h"

#include "common/count.h"
#include "common/json.h"
#include "convert/map/fields.h"
#include "convert/testing_convert.h"

static int begin(void **state)
{
    fields_load();
    return scratch_begin(state);
}

/* ---- keys ---- */

/* The stack of these keys, "" ends them. */
static const struct hybrid_stack *stack_of(const char *const *keys, const char *pattern)
{
    static struct stored_tensor tensors[64];
    size_t count = 0;
    for (; *keys[count]; count++)
        tensors[count] = (struct stored_tensor){.name = keys[count]};
    const struct stored s = {.tensors = tensors, .num_tensors = count};
    return hybrid_of_keys(&s, pattern, &scratch);
}

#define D "decoder.layers."
#define NORM "decoder.final_norm.weight"

static void stacks_are_found_by_their_keys(void **state)
{
    (void)state;
    static const struct {
        const char *keys[9];
        const char *symbols, *mtp;
        bool paired;
    } cases[] = {
        {{NORM, D "0.self_attention.linear_qkv.weight", D "1.mlp.linear_fc1.weight", ""},
         "*-",
         "",
         true},
        {{"module." NORM, "module." D "1.mlp.router.weight",
          D "1.mlp.shared_experts.linear_fc1.weight",
          "module." D "0.self_attention.linear_kv_down_proj.weight", D "0.input_layernorm.weight",
          ""},
         "+E",
         "",
         true},
        {{NORM, D "0.self_attention.in_proj.weight.z", D "1.mlp.linear_fc2.weight", ""},
         "G-",
         "",
         true},
        {{NORM, D "0.self_attention.linear_qkv.weight", D "1.mlp.router.weight",
          "mtp.layers.0.mtp_model_layer.layers.0.self_attention.linear_qkv.weight",
          "mtp.layers.0.mtp_model_layer.layers.1.mlp.linear_fc1.weight", ""},
         "*E",
         "*-",
         true},
        /* a model of single mixers: Mamba, or no pairs */
        {{NORM, D "0.mixer.D", D "1.mlp.linear_fc2.weight", ""}, "M-", "", false},
        {{NORM, D "1.self_attention.linear_qkv.weight", D "0.mlp.linear_fc2.weight", ""},
         "-*",
         "",
         false},
        {{NORM, D "0.self_attention.linear_qkv.weight", ""}, "*", "", false},
        /* not known */
        {{NORM, D "0.conv.weight", D "1.mlp.linear_fc2.weight", ""}, "?-", "", true},
        {{NORM, D "1.mlp.linear_fc2.weight", ""}, "?-", "", true},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct hybrid_stack *h = stack_of(cases[i].keys, NULL);
        assert_non_null(h);
        assert_string_equal(h->symbols, cases[i].symbols);
        assert_int_equal(h->num_mixers, strlen(cases[i].symbols));
        assert_string_equal(h->mtp_symbols, cases[i].mtp);
        assert_int_equal(h->paired, cases[i].paired);
    }
    static const char *const gpt[] = {"decoder.final_layernorm.weight",
                                      D "0.self_attention.linear_qkv.weight", ""},
                             *const stacked[] = {NORM, D "mlp.linear_fc1.weight", ""},
                             *const far[] = {NORM, D "99999999.mlp.linear_fc1.weight", ""};
    assert_null(stack_of(gpt, "*-"));
    assert_null(stack_of(stacked, NULL));
    assert_null(stack_of(far, NULL));
}

static void a_pattern_has_mixers_without_keys(void **state)
{
    (void)state;
    static const char *const keys[] = {NORM, D "0.self_attention.linear_qkv.weight",
                                       D "1.mlp.linear_fc1.weight", ""};
    static const struct {
        const char *pattern, *symbols;
    } cases[] = {
        {"*-", "*-"}, {"*-|*-", "*-*-"}, {"*-*E/*E", "*-*E"}, /* mixers 2 and 3 are missing */
        {"+-", "?-"}, {"*E", "*?"},      {"*", "*?"},         /* another model, or less */
        {"", "??"},   {"KM", "??"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(stack_of(keys, cases[i].pattern)->symbols, cases[i].symbols);
}

static void keys_are_translated_both_ways(void **state)
{
    (void)state;
    static const struct hybrid_stack pairs = {6, "*-+EG-", "*-", true},
                                     single = {4, "M*E-", "", false};
    static const struct {
        const struct hybrid_stack *h;
        const char *hybrid, *gpt;
    } cases[] = {
        {&pairs, D "4.self_attention.in_proj.weight.z", D "2.self_attention.in_proj.weight.z"},
        {&pairs, D "2.input_layernorm.weight", D "1.input_layernorm.weight"},
        {&pairs, D "3.pre_mlp_layernorm.weight", D "1.pre_mlp_layernorm.weight"},
        {&pairs, D "3.mlp.experts.experts.linear_fc1.weight",
         D "1.mlp.experts.experts.linear_fc1.weight"},
        {&pairs, D "5.mlp.linear_fc1.layer_norm_weight", D "2.mlp.linear_fc1.layer_norm_weight"},
        {&pairs, NORM, "decoder.final_layernorm.weight"},
        {&pairs, "decoder.final_norm", "decoder.final_layernorm"},
        {&pairs, "output_layer.weight", "output_layer.weight"},
        {&pairs, "mtp.layers.1.mtp_model_layer.layers.0.self_attention.linear_proj.weight",
         "mtp.layers.1.transformer_layer.self_attention.linear_proj.weight"},
        {&pairs, "mtp.layers.1.mtp_model_layer.layers.1.mlp.router.weight",
         "mtp.layers.1.transformer_layer.mlp.router.weight"},
        {&pairs, "mtp.layers.1.eh_proj.weight", "mtp.layers.1.eh_proj.weight"},
        {&single, D "3.mlp.linear_fc2.weight", D "3.mlp.linear_fc2.weight"},
        {&single, NORM, "decoder.final_layernorm.weight"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *gpt = hybrid_gpt_key(cases[i].h, &scratch, cases[i].hybrid);
        if (i != 6) assert_string_equal(gpt, cases[i].gpt); /* a module is only written */
        assert_string_equal(hybrid_key(cases[i].h, &scratch, cases[i].gpt), cases[i].hybrid);
    }
    assert_string_equal(hybrid_gpt_key(&pairs, &scratch, "module." D "5.mlp.linear_fc2.weight"),
                        D "2.mlp.linear_fc2.weight");
}

/* ---- args ---- */

/* The args after a change, on one line. */
static const char *args_after(cJSON *args)
{
    struct strbuf text = {0};
    json_print(&text, args, -1);
    const char *out = arena_copy_text(&scratch, text.data);
    strbuf_release(&text);
    cJSON_Delete(args);
    return out;
}

static const char *args_read(const struct hybrid_stack *h, const char *args)
{
    cJSON *tree = json_tree(args);
    hybrid_args_read(h, tree);
    return args_after(tree);
}

static void args_become_those_of_gptmodel(void **state)
{
    (void)state;
    static const struct hybrid_stack dense = {4, "*-*-", "", true}, moe = {4, "+-+E", "+E", true},
                                     nets = {4, "G-*-", "", true}, single = {4, "M*E-", "", false},
                                     odd = {2, "?-", "", true};
    static const struct {
        const struct hybrid_stack *h;
        const char *args, *gpt;
    } cases[] = {
        {&dense, "{'num_layers':4,'hybrid_layer_pattern':'*-|*-','num_experts':8,'spec':['a','b']}",
         "{'num_layers':2,'hybrid_layer_pattern':null,'num_experts':null,'spec':null,"
         "'pipeline_model_parallel_layout':'Et|tL'}"},
        /* stages that cut a layer in two have no layout of layers */
        {&dense, "{'num_layers':4,'hybrid_layer_pattern':'*|-*-'}",
         "{'num_layers':2,'hybrid_layer_pattern':null,'num_experts':null,'spec':null}"},
        {&moe, "{'num_layers':4,'hybrid_layer_pattern':'+-+E/+E/+E'}",
         "{'num_layers':2,'hybrid_layer_pattern':null,'mtp_num_layers':2,'moe_layer_freq':[0,1],"
         "'multi_latent_attention':true,'spec':null}"},
        {&nets, "{'num_layers':4}",
         "{'num_layers':2,'num_experts':null,'experimental_attention_variant':'gdn',"
         "'linear_attention_freq':[1,0],'hybrid_layer_pattern':null,'spec':null}"},
        /* windows count mixers: a list, or every second has none */
        {&dense, "{'num_layers':4,'window_attn_skip_freq':[1,0,0,0]}",
         "{'num_layers':2,'window_attn_skip_freq':[1,0],'num_experts':null,"
         "'hybrid_layer_pattern':null,'spec':null}"},
        {&dense, "{'num_layers':4,'window_attn_skip_freq':[false,1,true,null]}",
         "{'num_layers':2,'window_attn_skip_freq':[0,1],'num_experts':null,"
         "'hybrid_layer_pattern':null,'spec':null}"},
        {&dense, "{'num_layers':4,'window_attn_skip_freq':2}",
         "{'num_layers':2,'window_attn_skip_freq':[1,1],'num_experts':null,"
         "'hybrid_layer_pattern':null,'spec':null}"},
        {&single, "{'num_layers':4,'hybrid_layer_pattern':'M*|E-'}",
         "{'num_layers':4,'hybrid_layer_pattern':'M*E-','pipeline_model_parallel_layout':'Ett|ttL',"
         "'moe_layer_freq':[0,0,1,0],'spec':null}"},
        {&odd, "{'num_layers':2,'hybrid_layer_pattern':'K-','spec':['a','b']}",
         "{'num_layers':1,'hybrid_layer_pattern':'K-','spec':['a','b'],'num_experts':null}"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(args_read(cases[i].h, cases[i].args),
                            args_after(json_tree(cases[i].gpt)));
}

static void args_of_hybridmodel_are_written(void **state)
{
    (void)state;
    static const struct hybrid_stack moe = {6, "*-*E*E", "*E", true}, nets = {4, "G-*-", "", true},
                                     single = {4, "M*E-", "", false};
    static struct stage two[] = {{0, 1, true, false}, {1, 2, false, true}},
                        one[] = {{0, 2, true, true}},
                        halves[] = {{0, 2, true, false}, {2, 2, false, true}};
    static const struct layout uneven = {.tp = 1, .pp = 2, .vpp = 1, .stages = two},
                               whole = {.tp = 1, .pp = 1, .vpp = 1, .stages = one},
                               even = {.tp = 1, .pp = 2, .vpp = 1, .stages = halves};
#define GONE                                                                                       \
    "'linear_attention_freq':null,'pipeline_model_parallel_layout':null,"                          \
    "'decoder_first_pipeline_num_layers':null,'decoder_last_pipeline_num_layers':null"
#define SPEC "'spec':['megatron.core.models.hybrid.hybrid_layer_specs','hybrid_stack_spec']"
    static const struct {
        const struct hybrid_stack *h;
        const struct layout *l;
        const char *gpt, *args;
    } cases[] = {
        {&moe, &uneven,
         "{'num_layers':3,'mtp_num_layers':1,'moe_layer_freq':[0,1,1],"
         "'window_attn_skip_freq':[1,0,1]}",
         "{'num_layers':6,'mtp_num_layers':1,'moe_layer_freq':1,"
         "'window_attn_skip_freq':[1,0,0,0,1,0],'hybrid_layer_pattern':'*-|*E*E/*E'," SPEC
         ",'encoder_num_layers':6," GONE "}"},
        {&nets, &whole,
         "{'num_layers':2,'experimental_attention_variant':'gdn',"
         "'linear_attention_freq':[1,0]}",
         "{'num_layers':4,'experimental_attention_variant':null,'linear_attention_freq':null,"
         "'hybrid_layer_pattern':'G-*-'," SPEC ",'encoder_num_layers':4,'moe_layer_freq':1,"
         "'pipeline_model_parallel_layout':null,'decoder_first_pipeline_num_layers':null,"
         "'decoder_last_pipeline_num_layers':null}"},
        {&single, &even, "{'num_layers':4,'account_for_loss_in_pipeline_split':true}",
         "{'num_layers':4,'account_for_loss_in_pipeline_split':false,'hybrid_layer_pattern':'M*|E-'"
         "," SPEC ",'encoder_num_layers':4,'moe_layer_freq':1," GONE "}"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        cJSON *tree = json_tree(cases[i].gpt);
        hybrid_args_write(cases[i].h, cases[i].l, tree);
        assert_string_equal(args_after(tree), args_after(json_tree(cases[i].args)));
    }
}

/* ---- models ---- */

static void set_text(struct model_config *c, const char *field, const char *text)
{
    const struct model_field *f = model_field_find(field);
    field_set(&f->field, c, (struct scalar){.kind = FIELD_TEXT, .text = text});
}

static void models_have_a_stack_or_none(void **state)
{
    (void)state;
    static const bool moe[] = {false, true};
    struct model_config c = {.num_layers = 2, .num_experts = 4, .moe_layers = moe};
    const struct hybrid_stack *h = hybrid_of_config(&c, &scratch);
    assert_string_equal(h->symbols, "*-*E");
    assert_true(h->paired);
    assert_string_equal(h->mtp_symbols, "");
    model_set_mtp_layers(&c, 1);
    assert_string_equal(hybrid_of_config(&c, &scratch)->mtp_symbols, "*E");
    set_text(&c, "layer_kinds", "linear_attention");
    assert_null(hybrid_of_config(&c, &scratch)); /* another kind than Megatron's */
    set_text(&c, "experimental_attention_variant", "gdn");
    assert_string_equal(hybrid_of_config(&c, &scratch)->symbols, "G-GE");
    set_text(&c, "layer_kinds", "mamba");
    assert_null(hybrid_of_config(&c, &scratch)); /* Mamba and an MLP in a layer */
    set_text(&c, "experimental_attention_variant", "dsv4_hybrid");
    set_text(&c, "layer_kinds", NULL);
    assert_null(hybrid_of_config(&c, &scratch));
    set_text(&c, "layer_kinds", "conv");
    assert_null(hybrid_of_config(&c, &scratch));
}

static void layers_that_read_as_pairs_have_no_stack(void **state)
{
    (void)state;
    static const struct scalar kinds[] = {{.kind = FIELD_TEXT, .text = "attention"},
                                          {.kind = FIELD_TEXT, .text = "mlp"},
                                          {.kind = FIELD_TEXT, .text = "attention"}};
    struct model_config c = {.num_layers = 3};
    field_set(&model_field_find("hybrid_layers")->field, &c,
              (struct scalar){FIELD_BOOL, {.truth = true}});
    model_field_set_layers(model_field_find("layer_kinds"), &c, kinds);
    assert_string_equal(hybrid_of_config(&c, &scratch)->symbols, "*-*");
    c.num_layers = 2;
    assert_null(hybrid_of_config(&c, &scratch));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(stacks_are_found_by_their_keys),          TEST(a_pattern_has_mixers_without_keys),
        TEST(keys_are_translated_both_ways),           TEST(args_become_those_of_gptmodel),
        TEST(args_of_hybridmodel_are_written),         TEST(models_have_a_stack_or_none),
        TEST(layers_that_read_as_pairs_have_no_stack),
    };
    return cmocka_run_group_tests_name("hybrid", tests, NULL, NULL);
}
