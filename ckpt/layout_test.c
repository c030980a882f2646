#include "ckpt/layout.h"

#include "ckpt/testing_layout.h"
#include "common/count.h"

/* A model that every size divides, so that a test fails on what it is about. */
static struct model_config config_of(uint64_t num_layers)
{
    return (struct model_config){
        .num_layers = num_layers,
        .hidden_size = 512,
        .num_attention_heads = 64,
        .num_query_groups = 8,
        .ffn_hidden_size = 1024,
        .num_experts = 64,
        .moe_ffn_hidden_size = 256,
    };
}

/* ---- pipeline stages ---- */

enum { MAX_STAGES = 32 };

struct deal_case {
    uint64_t num_layers, pp, vpp;
    struct layout_options options;
    /* First layer and layers of each stage:
     * megatron/core/transformer/transformer_layer.py
     * (get_transformer_layer_offset), transformer_block.py
     * (get_num_layers_to_build) and pipeline_parallel_layer_layout.py of
     * Megatron-LM's main branch, run on these arguments. */
    struct {
        uint64_t first, count;
    } stages[MAX_STAGES];
};

// clang-format off
static const struct deal_case deals[] = {
    {8, 1, 1, {0}, {{0, 8}}},
    {8, 4, 1, {0}, {{0, 2}, {2, 2}, {4, 2}, {6, 2}}},
    {8, 2, 2, {.virtual_stages = 2}, {{0, 2}, {2, 2}, {4, 2}, {6, 2}}},
    {12, 3, 2, {.virtual_stages = 2}, {{0, 2}, {2, 2}, {4, 2}, {6, 2}, {8, 2}, {10, 2}}},
    {12, 3, 2, {.layers_per_virtual_stage = 2}, {{0, 2}, {2, 2}, {4, 2}, {6, 2}, {8, 2}, {10, 2}}},
    {10, 4, 1, {.first_layers = 2, .last_layers = 2}, {{0, 2}, {2, 3}, {5, 3}, {8, 2}}},
    {9, 3, 1, {.first_layers = 1}, {{0, 1}, {1, 4}, {5, 4}}},
    {9, 3, 1, {.last_layers = 1}, {{0, 4}, {4, 4}, {8, 1}}},
    {7, 2, 1, {.first_layers = 3}, {{0, 3}, {3, 4}}},
    {7, 2, 1, {.first_layers = 3, .last_layers = 4}, {{0, 3}, {3, 4}}},
    {7, 1, 1, {.first_layers = 7}, {{0, 7}}},
    {16, 4, 2, {.virtual_stages = 2, .first_layers = 2, .last_layers = 6},
     {{0, 1}, {1, 2}, {3, 2}, {5, 3}, {8, 1}, {9, 2}, {11, 2}, {13, 3}}},
    {14, 4, 2, {.virtual_stages = 2, .first_layers = 2},
     {{0, 1}, {1, 2}, {3, 2}, {5, 2}, {7, 1}, {8, 2}, {10, 2}, {12, 2}}},
    {14, 4, 2, {.virtual_stages = 2, .last_layers = 2},
     {{0, 2}, {2, 2}, {4, 2}, {6, 1}, {7, 2}, {9, 2}, {11, 2}, {13, 1}}},
    {7, 4, 1, {.count_embedding = true}, {{0, 1}, {1, 2}, {3, 2}, {5, 2}}},
    {7, 4, 1, {.count_loss = true}, {{0, 2}, {2, 2}, {4, 2}, {6, 1}}},
    {6, 4, 1, {.count_embedding = true, .count_loss = true}, {{0, 1}, {1, 2}, {3, 2}, {5, 1}}},
    {6, 1, 1, {.count_embedding = true, .count_loss = true}, {{0, 6}}},
    {2, 4, 1, {.count_embedding = true, .count_loss = true}, {{0, 0}, {0, 1}, {1, 1}, {2, 0}}},
    {14, 4, 2, {.virtual_stages = 2, .count_embedding = true, .count_loss = true},
     {{0, 1}, {1, 2}, {3, 2}, {5, 2}, {7, 2}, {9, 2}, {11, 2}, {13, 1}}},
    {14, 4, 2, {.layers_per_virtual_stage = 2, .count_embedding = true, .count_loss = true},
     {{0, 1}, {1, 2}, {3, 2}, {5, 2}, {7, 2}, {9, 2}, {11, 2}, {13, 1}}},
    {15, 4, 2, {.virtual_stages = 2, .count_embedding = true},
     {{0, 1}, {1, 2}, {3, 2}, {5, 2}, {7, 2}, {9, 2}, {11, 2}, {13, 2}}},
    {15, 4, 2, {.virtual_stages = 2, .count_loss = true},
     {{0, 2}, {2, 2}, {4, 2}, {6, 2}, {8, 2}, {10, 2}, {12, 2}, {14, 1}}},
    {6, 4, 2, {.virtual_stages = 2, .count_embedding = true, .count_loss = true},
     {{0, 0}, {0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 0}}},
    {61, 16, 1, {.first_layers = 3, .last_layers = 2},
     {{0, 3}, {3, 4}, {7, 4}, {11, 4}, {15, 4}, {19, 4}, {23, 4}, {27, 4}, {31, 4}, {35, 4},
      {39, 4}, {43, 4}, {47, 4}, {51, 4}, {55, 4}, {59, 2}}},
    {15, 4, 2, {.pipeline_layout = "Ettt|(tt|)*6,L"},
     {{0, 3}, {3, 2}, {5, 2}, {7, 2}, {9, 2}, {11, 2}, {13, 2}, {15, 0}}},
    {61, 31, 1, {.pipeline_layout = "Et*3|(tt|)*29,L"},
     {{0, 3}, {3, 2}, {5, 2}, {7, 2}, {9, 2}, {11, 2}, {13, 2}, {15, 2}, {17, 2}, {19, 2},
      {21, 2}, {23, 2}, {25, 2}, {27, 2}, {29, 2}, {31, 2}, {33, 2}, {35, 2}, {37, 2}, {39, 2},
      {41, 2}, {43, 2}, {45, 2}, {47, 2}, {49, 2}, {51, 2}, {53, 2}, {55, 2}, {57, 2}, {59, 2},
      {61, 0}}},
    {4, 3, 1, {.pipeline_layout = "E|t*4|L"}, {{0, 0}, {0, 4}, {4, 0}}},
    {7, 3, 2, {.pipeline_layout = "E|t|tt|ttt|t|L"}, {{0, 0}, {0, 1}, {1, 2}, {3, 3}, {6, 1}, {7, 0}}},
    {7, 3, 2, {.virtual_stages = 2, .pipeline_layout = "E|t|tt|ttt|t|L"},
     {{0, 0}, {0, 1}, {1, 2}, {3, 3}, {6, 1}, {7, 0}}},
    {0, 1, 1, {.pipeline_layout = "EL"}, {{0, 0}}},
    {2, 3, 1, {.pipeline_layout = "Et|t*0|tL"}, {{0, 1}, {1, 0}, {1, 1}}},
    {2, 4, 1, {.pipeline_layout = "E|*3ttL"}, {{0, 0}, {0, 0}, {0, 0}, {0, 2}}},
    {2, 5, 1, {.pipeline_layout = "E(t|*2)*2L"}, {{0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 0}}},
    {12, 2, 1, {.pipeline_layout = "Et*1,2|L"}, {{0, 12}, {12, 0}}},
    {4, 4, 1, {.pipeline_layout = "E(tt|)*2*2L"}, {{0, 2}, {2, 2}, {4, 0}, {4, 0}}},
};
// clang-format on

static void layers_are_distributed_as_megatron_does(void **state)
{
    (void)state;
    struct error err = {0};
    for (size_t i = 0; i < COUNT(deals); i++) {
        const struct deal_case *c = &deals[i];
        struct model_config config = config_of(c->num_layers);
        struct layout_options o = c->options;
        struct layout l;
        struct arena a;
        arena_init(&a);
        o.pp = c->pp;
        assert_ok(layout_make(&l, &a, &o, &config, &err));
        assert_int_equal(l.pp, c->pp);
        if (l.vpp != c->vpp) fail_msg("case %zu: vpp is %llu", i, (unsigned long long)l.vpp);
        for (uint64_t s = 0; s < l.pp * l.vpp; s++) {
            const struct stage *stage = layout_stage(&l, s / l.pp, s % l.pp);
            if (stage->first_layer != c->stages[s].first ||
                stage->num_layers != c->stages[s].count || stage->embedding != (s == 0) ||
                stage->loss != (s == l.pp * l.vpp - 1))
                fail_msg("case %zu: stage %llu has %llu layers from %llu on", i,
                         (unsigned long long)s, (unsigned long long)stage->num_layers,
                         (unsigned long long)stage->first_layer);
        }
        arena_release(&a);
    }
}

/* ---- refusals ---- */

struct refusal {
    uint64_t num_layers;
    struct layout_options options;
    enum status status;
    const char *text;
};

// clang-format off
static const struct refusal refusals[] = {
    {9, {.pp = 4}, ERR_UNSUPPORTED, "number of layers 9 is not divisible by pipeline size 4"},
    {8, {.pp = 2, .virtual_stages = 3}, ERR_UNSUPPORTED, "number of layers per rank 4 is not divisible by the number of virtual stages, 3"},
    {8, {.virtual_stages = 2}, ERR_UNSUPPORTED, "virtual pipeline stages need a pipeline size above 1"},
    {8, {.pp = 2, .layers_per_virtual_stage = 3}, ERR_UNSUPPORTED,
     "8 layers on 2 pipeline ranks cannot be split into virtual stages of 3"},
    {0, {.pp = 2, .layers_per_virtual_stage = 2}, ERR_UNSUPPORTED, "0 layers on 2 pipeline ranks cannot be split"},
    {UINT64_MAX, {.layers_per_virtual_stage = 2, .count_loss = true}, ERR_UNSUPPORTED, "cannot be split"},
    {9, {.pp = 2, .layers_per_virtual_stage = 2}, ERR_UNSUPPORTED, "9 layers on 2 pipeline ranks cannot be split"},
    {8, {.pp = 2, .virtual_stages = 2, .layers_per_virtual_stage = 2}, ERR_USAGE,
     "layers per virtual stage cannot be combined with"},
    {8, {.pp = 4, .first_layers = 2, .layers_per_virtual_stage = 1}, ERR_USAGE, "cannot be combined with"},
    {4, {.pp = 2, .layers_per_virtual_stage = 2, .pipeline_layout = "Ett|ttL"}, ERR_USAGE, "cannot be combined with"},
    {10, {.pp = 2, .first_layers = 3, .last_layers = 3}, ERR_UNSUPPORTED,
     "10 layers cannot be distributed over 2 pipeline ranks with 3 in the first and 3 in the last"},
    {10, {.first_layers = 5, .last_layers = 5}, ERR_UNSUPPORTED, "over 1 pipeline ranks with 5 in the first and 5"},
    {10, {.first_layers = 3}, ERR_UNSUPPORTED, "over 1 pipeline ranks with 3 in the first"},
    {10, {.pp = 3, .first_layers = 7, .last_layers = 7}, ERR_UNSUPPORTED, "with 7 in the first and 7 in the last"},
    {10, {.pp = 3, .first_layers = UINT64_MAX, .last_layers = 1}, ERR_UNSUPPORTED, "10 layers cannot be distributed"},
    {10, {.pp = 3, .first_layers = 1, .last_layers = UINT64_MAX}, ERR_UNSUPPORTED, "10 layers cannot be distributed"},
    {10, {.pp = 5, .first_layers = 1}, ERR_UNSUPPORTED, "number of remaining layers 9 is not divisible by the number of remaining pipeline ranks, 4"},
    {15, {.pp = 4, .virtual_stages = 2, .first_layers = 3}, ERR_UNSUPPORTED, "number of layers per rank 3 is not divisible"},
    {0, {.count_embedding = true, .pp = 2}, ERR_UNSUPPORTED, "number of layers 1 is not"},
    {8, {.pp = 2, .first_layers = 4, .count_loss = true}, ERR_USAGE,
     "layers of the first or last rank cannot be combined with counting"},
    {4, {.pp = 2, .count_loss = true, .pipeline_layout = "Ett|ttL"}, ERR_USAGE, "a pipeline layout cannot be combined"},
    {4, {.pp = 2, .last_layers = 2, .pipeline_layout = "Ett|ttL"}, ERR_USAGE, "a pipeline layout cannot be combined"},
    {4, {.pp = 3, .pipeline_layout = "Ett|ttL"}, ERR_UNSUPPORTED, "the pipeline layout has 2 stages, pipeline size is 3"},
    {4, {.pp = 2, .virtual_stages = 2, .pipeline_layout = "Ett|ttL"}, ERR_UNSUPPORTED, "has 2 stages"},
    {4, {.pp = 1, .pipeline_layout = "Ett|ttL"}, ERR_UNSUPPORTED, "virtual pipeline stages need"},
    {5, {.pp = 2, .pipeline_layout = "Ett|ttL"}, ERR_UNSUPPORTED, "the pipeline layout has 4 layers, the model 5"},
    {3, {.pp = 2, .pipeline_layout = "Ett|ttL"}, ERR_UNSUPPORTED, "the pipeline layout has 4 layers, the model 3"},
    {61, {.pp = 32, .pipeline_layout = "Et*3|(tt|)*29,m|L"}, ERR_USAGE, "\"m\" is not one of E t L | ( ) * ,"},
    {2, {.pp = 2, .pipeline_layout = "E t|tL"}, ERR_USAGE, "\" \" is not one of"},
    {1, {.pp = 2, .pipeline_layout = "tE|L"}, ERR_USAGE, "expected one E, at the beginning, and one L, at the end"},
    {2, {.pp = 2, .pipeline_layout = "Et|Lt"}, ERR_USAGE, "expected one E"},
    {1, {.pp = 2, .pipeline_layout = "EtE|L"}, ERR_USAGE, "expected one E"},
    {1, {.pp = 2, .pipeline_layout = "EtL|L"}, ERR_USAGE, "expected one E"},
    {0, {.pipeline_layout = ""}, ERR_USAGE, "expected one E"},
    {4, {.pipeline_layout = "E((t|)*2|)*2L"}, ERR_USAGE, "\"(\" is not one of"},
    {2, {.pipeline_layout = "Et(t)L"}, ERR_USAGE, "a group is written (...)*N"},
    {2, {.pipeline_layout = "Et(tL"}, ERR_USAGE, "a group is written (...)*N"},
    {2, {.pipeline_layout = "E(t)*L"}, ERR_USAGE, "a group is written (...)*N"},
    {2, {.pipeline_layout = "Et)*2L"}, ERR_USAGE, "\")\" is not one of"},
    {1, {.pipeline_layout = "E()*18446744073709551615tL"}, ERR_USAGE, "a group is written (...)*N"},
    {1, {.pipeline_layout = "E(,,)*18446744073709551615tL"}, ERR_USAGE, "a group is written (...)*N"},
    {1, {.pipeline_layout = "E(tt|)*18446744073709551615L"}, ERR_USAGE, "more than 1048576 letters"},
    {1, {.pipeline_layout = "Et*18446744073709551616L"}, ERR_USAGE, "more than 1048576 letters"},
    {1, {.pipeline_layout = "E(t|)*500000,(t|)*500000,L"}, ERR_USAGE, "more than 1048576 letters"},
    {2, {.pp = 2, .pipeline_layout = "Et*|tL"}, ERR_USAGE, "no number after \"t*\""},
    {2, {.pipeline_layout = "*3ttL"}, ERR_USAGE, "\"*\" is not one of"},
    {UINT64_MAX, {.pp = 2, .count_embedding = true}, ERR_UNSUPPORTED, "no layer to replace with the embedding"},
    {8, {.tp = 1 << 21}, ERR_USAGE, "a parallel size or the number of stages is above 1048576"},
    {8, {.ep = 1 << 21}, ERR_USAGE, "a parallel size"},
    {8, {.etp = 1 << 21}, ERR_USAGE, "a parallel size"},
    {8, {.pp = 1 << 21}, ERR_USAGE, "a parallel size"},
    {8, {.pp = 1 << 20, .virtual_stages = 2}, ERR_USAGE, "the number of stages"},
    {8, {.tp = 3}, ERR_UNSUPPORTED, "num_attention_heads 64 is not divisible by tensor parallel size 3"},
    {8, {.ep = 3}, ERR_UNSUPPORTED, "num_experts 64 is not divisible by expert parallel size 3"},
    {8, {.etp = 3}, ERR_UNSUPPORTED, "moe_ffn_hidden_size 256 is not divisible by expert tensor parallel size 3"},
};
// clang-format on

static void layouts_that_cannot_be_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        struct model_config config = config_of(refusals[i].num_layers);
        struct error err = {0};
        struct layout l;
        struct arena a;
        arena_init(&a);
        enum status st = layout_make(&l, &a, &refusals[i].options, &config, &err);
        if (st != refusals[i].status || !strstr(err.text, refusals[i].text))
            fail_msg("case %zu: %d, \"%s\"", i, (int)st, err.text);
        arena_release(&a);
    }
}

static enum status make(const struct model_config *config, const struct layout_options *o,
                        struct error *err)
{
    struct layout l;
    struct arena a;
    arena_init(&a);
    enum status st = layout_make(&l, &a, o, config, err);
    arena_release(&a);
    return st;
}

static void sizes_must_divide_the_model(void **state)
{
    (void)state;
    struct error err = {0};
    struct model_config c = config_of(4), dense = config_of(4);
    dense.num_experts = 0;
    struct layout_options tp4 = {.tp = 4}, tp6 = {.tp = 6}, tp16 = {.tp = 16}, ep2 = {.ep = 2},
                          etp4 = {.etp = 4};
    assert_ok(make(&c, &tp4, &err));
    assert_ok(make(&c, &tp16, &err)); /* more ranks than query groups: 16 % 8 == 0 */
    assert_fails(make(&dense, &ep2, &err), ERR_UNSUPPORTED,
                 "expert parallel size 2: the model has no experts");
    assert_fails(make(&dense, &etp4, &err), ERR_UNSUPPORTED,
                 "expert tensor parallel size 4: the model has no experts, and tensor parallel "
                 "size is 1");
    struct layout_options tp4_etp4 = {.tp = 4, .etp = 4};
    assert_ok(make(&dense, &tp4_etp4, &err));

    c = config_of(4);
    c.num_attention_heads = 12;
    c.num_query_groups = 4;
    assert_fails(make(&c, &tp6, &err), ERR_UNSUPPORTED,
                 "num_query_groups 4 and tensor parallel size 6: neither divides the other");
    c = config_of(4);
    c.ffn_hidden_size = 1022;
    assert_fails(make(&c, &tp4, &err), ERR_UNSUPPORTED,
                 "ffn_hidden_size 1022 is not divisible by tensor parallel size 4");
    c = config_of(4);
    c.moe_ffn_hidden_size = 6; /* etp not given is tp */
    assert_fails(make(&c, &tp4, &err), ERR_UNSUPPORTED,
                 "moe_ffn_hidden_size 6 is not divisible by expert tensor parallel size 4");
    struct layout_options tp4_etp1 = {.tp = 4, .etp = 1};
    assert_ok(make(&c, &tp4_etp1, &err));
}

static void a_layout_is_told_in_one_line(void **state)
{
    (void)state;
    struct error err = {0};
    struct model_config c = config_of(16);
    static const struct {
        struct layout_options options;
        const char *text;
        uint64_t stage_ranks;
    } cases[] = {
        {{0}, "TP1", 1},
        {{.pp = 4}, "TP1 PP4", 1},
        {{.tp = 2, .pp = 4, .virtual_stages = 2, .ep = 8, .etp = 1}, "TP2 PP4 VPP2 EP8 ETP1", 8},
        {{.tp = 4}, "TP4", 4},
        {{.tp = 4, .ep = 2}, "TP4 EP2", 8},
        {{.tp = 4, .ep = 2, .etp = 2}, "TP4 EP2 ETP2", 4},
        {{.tp = 8, .ep = 2, .etp = 2}, "TP8 EP2 ETP2", 8},
        {{.tp = 4, .ep = 1, .etp = 1}, "TP4 ETP1", 4},
        {{.tp = 1, .ep = 4, .etp = 2}, "TP1 EP4 ETP2", 8},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct layout l;
        struct arena a;
        arena_init(&a);
        assert_ok(layout_make(&l, &a, &cases[i].options, &c, &err));
        assert_string_equal(layout_text(&l, &a), cases[i].text);
        assert_int_equal(layout_stage_ranks(&l), cases[i].stage_ranks);
        arena_release(&a);
    }
    struct layout twelve = {.tp = 4, .ep = 6, .etp = 1}; /* neither divides the other */
    assert_int_equal(layout_stage_ranks(&twelve), 12);
}

/* ---- options ---- */

static bool same_options(const struct layout_options *a, const struct layout_options *b)
{
    for (size_t i = 0; i < NUM_LAYOUT_FIELDS; i++)
        if (!field_equal(&layout_fields[i], a, b)) return false;
    return true;
}

static void the_options_of_a_layout_make_it_again(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct model_config c = config_of(12);
    for (int i = 0; i < 300; i++) {
        struct layout l, again;
        struct error err;
        struct arena a;
        arena_init(&a);
        struct layout_options o = random_layout(&seed, &a, &c);
        if (layout_make(&l, &a, &o, &c, &err) == OK) {
            assert_ok(layout_make(&again, &a, &l.options, &c, &err));
            assert_string_equal(layout_text(&again, &a), layout_text(&l, &a));
            assert_memory_equal(again.stages, l.stages, l.pp * l.vpp * sizeof *l.stages);
            assert_true(same_options(&again.options, &l.options));
        }
        arena_release(&a);
    }
}

static void what_options_do_not_say_is_that_of_a_layout(void **state)
{
    (void)state;
    static const struct layout_options of_layout = {
        .tp = 2, .pp = 3, .ep = 4, .etp = 1, .virtual_stages = 2, .count_embedding = true};
    const struct {
        struct layout_options asked, completed;
    } cases[] = {
        {{0}, of_layout},
        {{.ep = 2},
         {.tp = 2, .pp = 3, .ep = 2, .etp = 1, .virtual_stages = 2, .count_embedding = true}},
        {{.tp = 8}, {.tp = 8, .pp = 3, .ep = 4, .virtual_stages = 2, .count_embedding = true}},
        {{.tp = 8, .etp = 2},
         {.tp = 8, .pp = 3, .ep = 4, .etp = 2, .virtual_stages = 2, .count_embedding = true}},
        {{.etp = 2},
         {.tp = 2, .pp = 3, .ep = 4, .etp = 2, .virtual_stages = 2, .count_embedding = true}},
        {{.cp = 2, .dp = 3},
         {.tp = 2,
          .pp = 3,
          .ep = 4,
          .etp = 1,
          .cp = 2,
          .dp = 3,
          .virtual_stages = 2,
          .count_embedding = true}},
        {{.pp = 1}, {.tp = 2, .pp = 1, .ep = 4, .etp = 1}},
        {{.count_loss = true}, {.tp = 2, .pp = 3, .ep = 4, .etp = 1, .count_loss = true}},
        {{.pipeline_layout = "E|t|L"},
         {.tp = 2, .pp = 3, .ep = 4, .etp = 1, .pipeline_layout = "E|t|L"}},
    };
    const struct layout l = {.tp = 2, .pp = 3, .vpp = 2, .ep = 4, .etp = 1, .options = of_layout};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct layout_options o = cases[i].asked;
        assert_int_equal(layout_is_given(&o), i > 0);
        layout_options_complete(&o, &l);
        if (!same_options(&o, &cases[i].completed)) fail_msg("case %zu", i);
    }
}

/* ---- the model's config ---- */

static void layers_with_experts_are_told_from_dense_ones(void **state)
{
    (void)state;
    const bool some[] = {false, true, true}, all[] = {true, true, true};
    struct model_config c = {.num_layers = 3};
    assert_false(model_layer_is_moe(&c, 0));
    assert_false(model_layers_differ(&c));
    c.num_experts = 8;
    assert_true(model_layer_is_moe(&c, 2));
    assert_false(model_layers_differ(&c));
    c.moe_layers = all;
    assert_false(model_layers_differ(&c));
    c.moe_layers = some;
    assert_false(model_layer_is_moe(&c, 0));
    assert_true(model_layer_is_moe(&c, 2));
    assert_true(model_layers_differ(&c));
    c = (struct model_config){.num_layers = UINT64_MAX, .num_experts = 8};
    assert_false(model_layers_differ(&c)); /* at once */
}

static void fields_of_the_config_are_found_by_name(void **state)
{
    (void)state;
    struct model_config c = {.rotary_base = 10000, .qk_layernorm = true, .rope_type = "yarn"};
    const struct scalar base = field_get(&model_field_find("rotary_base")->field, &c);
    assert_int_equal(base.kind, FIELD_REAL);
    assert_true(base.real == 10000);
    const struct scalar norm = field_get(&model_field_find("qk_layernorm")->field, &c);
    assert_int_equal(norm.kind, FIELD_BOOL);
    assert_true(norm.truth);
    const struct scalar type = field_get(&model_field_find("rope_type")->field, &c);
    assert_int_equal(type.kind, FIELD_TEXT);
    assert_string_equal(type.text, "yarn");
    assert_int_equal(model_field_find("num_layers")->field.kind, FIELD_UINT);
    assert_null(model_field_find("moe_layers"));
    assert_null(model_field_find(""));
    for (size_t i = 0; i < num_model_fields; i++)
        assert_ptr_equal(model_field_find(model_fields[i].field.name), &model_fields[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_distributed_as_megatron_does),
        cmocka_unit_test(layouts_that_cannot_be_are_refused_by_name),
        cmocka_unit_test(sizes_must_divide_the_model),
        cmocka_unit_test(a_layout_is_told_in_one_line),
        cmocka_unit_test(the_options_of_a_layout_make_it_again),
        cmocka_unit_test(what_options_do_not_say_is_that_of_a_layout),
        cmocka_unit_test(layers_with_experts_are_told_from_dense_ones),
        cmocka_unit_test(fields_of_the_config_are_found_by_name),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
