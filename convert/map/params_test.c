#include "convert/map/model_fit.h"
#include "convert/map/params.h"

#include <glob.h>
#include <limits.h>

#include "ckpt/testing_param.h"
#include "convert/map/model_map_internal.h"
#include "convert/testing_convert.h"

static const struct model_config small = {.num_layers = 2,
                                          .hidden_size = 12,
                                          .ffn_hidden_size = 10,
                                          .moe_ffn_hidden_size = 6,
                                          .num_attention_heads = 8,
                                          .num_query_groups = 2,
                                          .kv_channels = 2,
                                          .vocab_size = 11,
                                          .max_position_embeddings = 16,
                                          .num_experts = 4,
                                          .gated_linear_unit = true};

static const struct param_table *megatron(const struct model_config *c)
{
    const struct param_table *t;
    assert_ok(params_make(NULL, c, &scratch, &t, &err));
    return t;
}

static const struct param_spec *spec_of(const struct param_table *t, const char *name)
{
    struct param p;
    if (!param_find(t, name, &p)) fail_msg("%s is not found", name);
    return p.spec;
}

#define L1 "decoder.layers.1."

/* ---- Megatron's rows ---- */

/* The name of layer 17 and expert 120. */
static const char *with_numbers(const char *name)
{
    const char *l = strstr(name, "{l}"), *e = strstr(name, "{e}");
    if (!l) return name;
    if (!e) return arena_printf(&scratch, "%.*s17%s", (int)(l - name), name, l + 3);
    return arena_printf(&scratch, "%.*s17%.*s120%s", (int)(l - name), name, (int)(e - l) - 3, l + 3,
                        e + 3);
}

static void every_row_is_found_by_its_names(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"", "optimizer.exp_avg.", "optimizer.exp_avg_sq.",
                                           "optimizer.param."};
    const struct param_table *t = megatron(&small);
    assert_true(t->count > 30);
    for (size_t i = 0; i < 4 * t->count; i++) {
        const struct param_spec *s = &t->specs[i / 4];
        const char *logical = with_numbers(s->name), *rest = logical;
        struct param p;
        if (!param_find(t, arena_printf(&scratch, "%s%s", prefixes[i % 4], logical), &p) ||
            p.spec != s)
            fail_msg("%s is not found by its name", logical);
        assert_int_equal(p.layer, s->place == PLACE_LAYER || s->mtp ? 17 : 0);
        assert_int_equal(p.expert, param_of_expert(s) ? 120 : 0);
        if (s->place == PLACE_LAYER) rest += strlen("decoder.layers.17.");
        if (s->mtp) rest += strlen("mtp.layers.17.");
        assert_string_equal(p.rest, rest);
    }
}

static void rows_keep_to_what_the_code_counts_on(void **state)
{
    (void)state;
    const struct param_table *t = megatron(&small);
    for (size_t i = 0; i < t->count; i++) {
        const struct param_spec *s = &t->specs[i];
        assert_int_equal(strncmp(s->name, "decoder.layers.{l}.", 19) == 0, s->place == PLACE_LAYER);
        assert_int_equal(param_of_expert(s), s->group == PARAM_ETP);
        assert_int_equal(s->stacks, (s->place == PLACE_LAYER ? STACK_LAYERS : 0) |
                                        (param_of_expert(s) ? STACK_EXPERTS : 0));
        if (strstr(s->name, "bias")) assert_true(s->split <= 0);
        if (s->linear) assert_true(s->split >= 0);
    }
}

/* The order of registration of all rows that are trained, and the experts'
 * modules, which are neighbours: the placing of experts relies on it
 * (convert/megatron/optim/buckets.c). */
static void every_row_has_its_place_in_both_orders(void **state)
{
    (void)state;
    const struct param_table *t = megatron(&small);
    for (int order = 0; order < NUM_PARAM_ORDERS; order++) {
        unsigned first = UINT_MAX, last = 0;
        for (size_t i = 0; i < t->count; i++) {
            const struct param_spec *s = &t->specs[i];
            const unsigned module = s->registered[order].module;
            assert_int_equal(module == 0, s->buffer);
            assert_int_equal(s->buffer, strstr(s->name, "expert_bias") != NULL);
            if (!param_of_expert(s)) continue;
            first = module < first ? module : first;
            last = module > last ? module : last;
        }
        for (size_t i = 0; i < t->count; i++) {
            const unsigned module = t->specs[i].registered[order].module;
            assert_int_equal(param_of_expert(&t->specs[i]), module >= first && module <= last);
        }
    }
}

/* The local spec has norms as modules of their own; the one of attention is its
 * layer's first. */
static void the_local_spec_registers_the_first_norm_first(void **state)
{
    (void)state;
    const struct param_table *t = megatron(&small);
    const struct param_spec *norm = spec_of(t, L1 "self_attention.linear_qkv.layer_norm_weight"),
                            *qkv = spec_of(t, L1 "self_attention.linear_qkv.weight"),
                            *proj = spec_of(t, L1 "self_attention.linear_proj.weight");
    assert_true(norm->registered[ORDER_LOCAL].module < proj->registered[ORDER_LOCAL].module);
    assert_int_equal(norm->registered[ORDER_TE].module, qkv->registered[ORDER_TE].module);
    assert_true(norm->registered[ORDER_TE].number < qkv->registered[ORDER_TE].number);
    assert_true(proj->registered[ORDER_TE].module < qkv->registered[ORDER_TE].module);
}

/* Experts have a size of their own, query groups repeat, and only gated MLPs
 * have sections. */
static void sizes_are_those_of_the_config(void **state)
{
    (void)state;
    struct model_config plain = small;
    const struct param_table *t = megatron(&small), *again;
    const struct param_spec *fc1 = spec_of(t, L1 "mlp.linear_fc1.weight"),
                            *expert = spec_of(t, L1 "mlp.experts.experts.3.linear_fc1.weight"),
                            *qkv = spec_of(t, L1 "self_attention.linear_qkv.weight");
    assert_int_equal(fc1->num_sections, 2);
    assert_int_equal(fc1->shape[0], 20);
    assert_int_equal(fc1->sections[1].size, 10);
    assert_int_equal(expert->shape[0], 12);
    assert_int_equal(expert->sections[0].size, 6);
    assert_int_equal(qkv->repeat, 2);
    assert_int_equal(qkv->shape[0], 2 * (8 + 2 + 2));
    assert_int_equal(qkv->sections[0].size, 8);
    assert_true(!qkv->sections[0].shared && qkv->sections[1].shared && qkv->sections[2].shared);
    plain.gated_linear_unit = false;
    plain.kv_channels = 3;
    assert_ok(params_again(t, &plain, &scratch, &again, &err));
    fc1 = spec_of(again, L1 "mlp.linear_fc1.weight");
    assert_int_equal(fc1->num_sections, 0);
    assert_int_equal(fc1->shape[0], 10);
    assert_int_equal(spec_of(again, L1 "self_attention.linear_qkv.bias")->shape[0], 2 * 18);
    assert_string_equal(fc1->name, spec_of(t, L1 "mlp.linear_fc1.weight")->name);
}

/* If args do not give the size of the MLP, gate and up are halves all the same. */
static void gate_and_up_are_halves_whatever_the_config_says(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 10, 1000};
    for (size_t i = 0; i < 3; i++) {
        struct model_config c = {.gated_linear_unit = true, .ffn_hidden_size = sizes[i]};
        const struct param_spec *s = spec_of(megatron(&c), L1 "mlp.linear_fc1.weight");
        struct cut cut = {s, 2, {24, 5}, 4, PARAM_STORED};
        struct param_parts parts;
        check_shards(&cut);
        assert_ok(cut_shard(&cut, "fc1", 1, &parts, &err));
        assert_int_equal(parts.count, 2);
        assert_int_equal(parts.start[1][0], 12 + 3);
        cut.shape[0] = 9;
        assert_fails(cut_shard(&cut, "fc1", 0, &parts, &err), ERR_UNSUPPORTED,
                     "fc1: 9 rows do not split into gate and up of equal size");
    }
}

static void shards_of_every_row_are_what_a_plain_loop_says(void **state)
{
    (void)state;
    const struct param_table *t = megatron(&small);
    for (size_t i = 0; i < t->count; i++)
        for (uint64_t size = 1; size <= 8; size *= 2)
            for (int use = PARAM_STORED; use <= PARAM_COMPUTED; use++) {
                const struct param_spec *s = &t->specs[i];
                struct cut c = {s, s->num_dims, {0}, size, (enum param_use)use};
                struct param_parts parts;
                param_padded_shape(s, s->num_dims, s->shape, 16, c.shape);
                if (!s->num_dims || param_shard(s, "x", s->num_dims, c.shape, 0, size,
                                                (enum param_use)use, &parts, &err))
                    continue; /* the MLP has 10 columns, which 4 ranks do not divide */
                check_shards(&c);
            }
}

/* ---- against the maps ---- */

struct against {
    const struct param_table *params;
    unsigned compared;
};

static enum status same_shape(void *context, const struct mapped_tensor *t, struct error *e)
{
    struct against *x = context;
    const struct param_spec *s = spec_of(x->params, t->name);
    (void)e;
    if (!s->num_dims) return OK;
    assert_int_equal(s->num_dims, t->num_dims);
    for (unsigned d = 0; d < t->num_dims; d++)
        if (s->shape[d] != t->shape[d])
            fail_msg("dimension %u of %s is %llu by its row, %llu by the map", d, t->name,
                     (unsigned long long)s->shape[d], (unsigned long long)t->shape[d]);
    x->compared++;
    return OK;
}

static void shapes_are_those_of_the_maps_of_all_golden_models(void **state)
{
    (void)state;
    struct model_maps maps;
    glob_t files;
    assert_ok(model_maps_load(&maps, NULL, &err));
    assert_int_equal(glob("tests/golden/config/*.json", 0, NULL, &files), 0);
    assert_int_equal(glob("tests/golden/hf/*/config.json", GLOB_APPEND, NULL, &files), 0);
    assert_true(files.gl_pathc >= 18);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const struct model_map *map;
        struct model_config c;
        struct against x = {0};
        cJSON *tree;
        assert_ok(json_read_file(files.gl_pathv[i], 1 << 20, JSON_NAN, &tree, &err));
        assert_ok(model_map_of_config(&maps, tree, &map, &err));
        assert_ok(model_config_from_hf(map, tree, &scratch, &c, &err));
        cJSON_Delete(tree);
        assert_ok(params_make(map, &c, &scratch, &x.params, &err));
        assert_ok(model_map_expand(map, &c, NULL, same_shape, &x, &err));
        assert_true(x.compared > 10);
        assert_ok(model_fit_params(&c, &scratch, &x.params, &err));
        assert_ok(model_map_expand(map, &c, NULL, same_shape, &x, &err));
    }
    globfree(&files);
    model_maps_release(&maps);
}

/* ---- a map's own rows ---- */

/* Loads a map that extends llama with these members; its table for `small`
 * outlives it. */
static const struct param_table *load_own(const char *members)
{
    struct model_maps maps;
    const struct param_table *t = NULL;
    const char *path = write_scratch(
        "map.json", json_text(arena_printf(&scratch,
                                           "{'family':'own','extends':'llama','model_type':'own',"
                                           "'architecture':'Own',%s}",
                                           members)));
    enum status st = model_maps_load(&maps, path, &err);
    if (!st) st = params_make(model_map_of_family(&maps, "own"), &small, &scratch, &t, &err);
    model_maps_release(&maps);
    if (st) print_error("%s\n", err.text);
    assert_int_equal(st, OK);
    return t;
}

static void check_own(const struct param_table *t, const char *name, uint64_t size)
{
    const struct param_spec *s = spec_of(t, name);
    for (int use = PARAM_STORED; use <= PARAM_COMPUTED; use++) {
        struct cut c = {s, s->num_dims, {s->shape[0], s->shape[1], 1}, size, (enum param_use)use};
        check_shards(&c);
    }
}

static void a_map_alone_adds_parameters_of_any_sections(void **state)
{
    (void)state;
    const struct param_table *t = load_own(
        "'sizes':{'z':'4*heads','heads':'num_attention_heads','n':'2*kv_channels'},'parameters':["
        "{'name':'decoder.layers.{l}.mixer.in_proj.weight','shape':'2*z+2*n+heads h','split':0,"
        "'linear':true,'sections':{'z':'z','x':'z','B':'n','C':'n','dt':'heads'}},"
        "{'name':'decoder.layers.{l}.mixer.out_proj.weight','shape':'h z+n','split':1,"
        "'sections':{'a':'z','b':'n'}},"
        "{'name':'decoder.layers.{l}.self_attention.linear_qgkv.weight','shape':'g*(2*r+2)*d h',"
        "'split':0,'repeat':'g','shared':['k','v'],"
        "'sections':{'q':'r*d','gate':'r*d','k':'d','v':'d'}},"
        "{'name':'decoder.layers.{l}.mlp.linear_fc2.weight','shape':'h i','linear':true}]");
    const struct param_table *base = megatron(&small);
    const struct param_spec *in = spec_of(t, L1 "mixer.in_proj.weight");
    assert_int_equal(t->count, base->count + 3);
    assert_int_equal(in->num_sections, 5);
    assert_int_equal(in->shape[0], 32 + 32 + 4 + 4 + 8);
    assert_true(in->linear && !in->even && in->place == PLACE_LAYER && in->group == PARAM_TP);
    for (uint64_t size = 1; size <= 4; size *= 2) {
        check_own(t, L1 "mixer.in_proj.weight", size);
        check_own(t, L1 "mixer.out_proj.weight", size);
        check_own(t, L1 "self_attention.linear_qgkv.weight", 2 * size);
    }
    /* a row with a known name replaces that row; the others stay */
    const struct param_spec *fc2 = spec_of(t, L1 "mlp.linear_fc2.weight");
    assert_int_equal(fc2->split, -1);
    assert_int_equal(fc2 - t->specs, spec_of(base, L1 "mlp.linear_fc2.weight") - base->specs);
    assert_int_equal(spec_of(t, L1 "mlp.linear_fc1.weight")->shape[0], 20);
}

/* A size that a map redefines applies to the map's rows, not to Megatron's. */
static void rows_of_a_map_go_by_its_sizes(void **state)
{
    (void)state;
    const struct param_table *t =
        load_own("'sizes':{'c':'7'},'parameters':[{'name':'decoder.layers.{l}.x.weight',"
                 "'shape':'c h'}]");
    assert_int_equal(spec_of(t, L1 "x.weight")->shape[0], 7);
    assert_int_equal(spec_of(t, L1 "mlp.linear_fc1.weight")->shape[0], 20);
}

/* Megatron's rows pass the checks of a map's rows: their sections and shapes
 * agree. */
static void the_programs_rows_pass_the_checks_of_a_map(void **state)
{
    (void)state;
    struct strbuf text = {0};
    cJSON *tree;
    assert_ok(json_read_file("convert/models/params.json", 1 << 20, JSON_STRICT, &tree, &err));
    strbuf_add_text(&text, "'sizes':");
    json_print(&text, json_get(tree, "sizes"), -1);
    strbuf_add_text(&text, ",'parameters':");
    json_print(&text, json_get(tree, "parameters"), -1);
    cJSON_Delete(tree);
    assert_int_equal(load_own(text.data)->count, megatron(&small)->count);
    strbuf_release(&text);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(every_row_is_found_by_its_names),
        TEST(rows_keep_to_what_the_code_counts_on),
        TEST(every_row_has_its_place_in_both_orders),
        TEST(the_local_spec_registers_the_first_norm_first),
        TEST(sizes_are_those_of_the_config),
        TEST(gate_and_up_are_halves_whatever_the_config_says),
        TEST(shards_of_every_row_are_what_a_plain_loop_says),
        TEST(shapes_are_those_of_the_maps_of_all_golden_models),
        TEST(a_map_alone_adds_parameters_of_any_sections),
        TEST(rows_of_a_map_go_by_its_sizes),
        TEST(the_programs_rows_pass_the_checks_of_a_map),
    };
    return cmocka_run_group_tests_name("params", tests, NULL, NULL);
}
