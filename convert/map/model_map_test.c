#include "convert/map/model_map.h"

#include "common/map.h"
#include "convert/map/model_fit.h"
#include "convert/map/model_map_internal.h"

#include "common/count.h"
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

/* ---- a map against the formulas of model-mappings 1.4, written as loops ---- */

/* One Hugging Face tensor of a model, and the logical tensor that has claimed
 * each element. */
struct hf_tensor {
    const char *name;
    uint64_t numel;
    unsigned char *claimed;
};

struct checking {
    const struct model_map *map;
    const struct model_config *c;
    struct map names; /* of tensors -> index */
    struct hf_tensor *tensors;
    size_t count, capacity, num_logical;
};

/* The Hugging Face tensor and position of an element (row, column) of a logical
 * tensor. */
struct place {
    const char *name; /* without what stands before the layer's own name */
    uint64_t row, column, columns;
};

/* 1.4.1: row R of the fused tensor is of group g; its blocks are n queries, a
 * key, a value. */
static struct place qkv_place(const struct model_config *c, const char *bias_or_weight, uint64_t R,
                              uint64_t column, uint64_t columns)
{
    uint64_t n = c->num_attention_heads / c->num_query_groups, d = c->kv_channels;
    uint64_t x = R % d, b = R / d, g = b / (n + 2), j = b % (n + 2);
    struct place p = {.column = column, .columns = columns};
    const char *which = j < n ? "q" : j == n ? "k" : "v";
    p.row = j < n ? (g * n + j) * d + x : g * d + x;
    p.name = arena_printf(&scratch, "self_attn.%s_proj.%s", which, bias_or_weight);
    return p;
}

/* 2.18: columns of c_attn are [q | k | v], each head by head; its rows are the
 * input. */
static struct place gpt2_qkv_place(const struct model_config *c, const char *kind, uint64_t R,
                                   uint64_t column)
{
    struct place p = qkv_place(c, "weight", R, column, 0);
    uint64_t third = strstr(p.name, "q_proj") ? 0 : strstr(p.name, "k_proj") ? 1 : 2;
    uint64_t at = third * c->hidden_size + p.row;
    if (strcmp(kind, "bias") == 0) return (struct place){"attn.c_attn.bias", at, 0, 1};
    return (struct place){"attn.c_attn.weight", column, at, 3 * c->hidden_size};
}

/* Tensors that are only renamed or transposed (T), from tables T-LLAMA,
 * T-QKNORM, T-MOE, 2.3 and 2.18. */
static const char *const renamed[][3] = {
    {"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", ""},
    {"self_attention.linear_proj.weight", "self_attn.o_proj.weight", ""},
    {"self_attention.linear_proj.bias", "self_attn.o_proj.bias", ""},
    {"self_attention.q_layernorm.weight", "self_attn.q_norm.weight", ""},
    {"self_attention.k_layernorm.weight", "self_attn.k_norm.weight", ""},
    {"mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", ""},
    {"pre_mlp_layernorm.weight", "post_attention_layernorm.weight", ""},
    {"mlp.linear_fc2.weight", "mlp.down_proj.weight", ""},
    {"mlp.linear_fc2.bias", "mlp.down_proj.bias", ""},
};
static const char *const renamed_gpt2[][3] = {
    {"self_attention.linear_qkv.layer_norm_weight", "ln_1.weight", ""},
    {"self_attention.linear_qkv.layer_norm_bias", "ln_1.bias", ""},
    {"self_attention.linear_proj.weight", "attn.c_proj.weight", "T"},
    {"self_attention.linear_proj.bias", "attn.c_proj.bias", ""},
    {"mlp.linear_fc1.layer_norm_weight", "ln_2.weight", ""},
    {"mlp.linear_fc1.layer_norm_bias", "ln_2.bias", ""},
    {"mlp.linear_fc1.weight", "mlp.c_fc.weight", "T"},
    {"mlp.linear_fc1.bias", "mlp.c_fc.bias", ""},
    {"mlp.linear_fc2.weight", "mlp.c_proj.weight", "T"},
    {"mlp.linear_fc2.bias", "mlp.c_proj.bias", ""},
};
static const char *const outer[][3] = {
    {"embedding.word_embeddings.weight", "model.embed_tokens.weight", "transformer.wte.weight"},
    {"embedding.position_embeddings.weight", "", "transformer.wpe.weight"},
    {"decoder.final_layernorm.weight", "model.norm.weight", "transformer.ln_f.weight"},
    {"decoder.final_layernorm.bias", "", "transformer.ln_f.bias"},
    {"output_layer.weight", "lm_head.weight", "lm_head.weight"},
};

static struct place table_place(const char *const (*table)[3], size_t n, const char *rest,
                                uint64_t row, uint64_t column, uint64_t rows, uint64_t columns)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(table[i][0], rest)) continue;
        if (*table[i][2]) return (struct place){table[i][1], column, row, rows};
        return (struct place){table[i][1], row, column, columns};
    }
    fail_msg("no row for %s", rest);
    return (struct place){0};
}

/* 1.4.5: the first half of the rows is the gate's, the second up's. */
static struct place glu_place(const char *gate, const char *up, const char *end, uint64_t row,
                              uint64_t column, uint64_t rows, uint64_t columns)
{
    uint64_t half = rows / 2;
    return (struct place){arena_printf(&scratch, "%s%s", row < half ? gate : up, end), row % half,
                          column, columns};
}

static struct place layer_place(const struct checking *x, const char *rest, uint64_t row,
                                uint64_t column, uint64_t rows, uint64_t columns)
{
    const char *family = model_map_family(x->map), *expert = "mlp.experts.experts.", *end;
    bool mixtral = strcmp(family, "mixtral") == 0;
    if (strcmp(family, "gpt2") == 0) {
        if (strncmp(rest, "self_attention.linear_qkv.weight", 32) == 0)
            return gpt2_qkv_place(x->c, "weight", row, column);
        if (strcmp(rest, "self_attention.linear_qkv.bias") == 0)
            return gpt2_qkv_place(x->c, "bias", row, column);
        return table_place(renamed_gpt2, COUNT(renamed_gpt2), rest, row, column, rows, columns);
    }
    if (strcmp(rest, "self_attention.linear_qkv.weight") == 0)
        return qkv_place(x->c, "weight", row, column, columns);
    if (strcmp(rest, "self_attention.linear_qkv.bias") == 0)
        return qkv_place(x->c, "bias", row, column, columns);
    if (strcmp(rest, "mlp.linear_fc1.weight") == 0)
        return glu_place("mlp.gate", "mlp.up", "_proj.weight", row, column, rows, columns);
    if (strcmp(rest, "mlp.linear_fc1.bias") == 0)
        return glu_place("mlp.gate", "mlp.up", "_proj.bias", row, column, rows, columns);
    if (strcmp(rest, "mlp.router.weight") == 0)
        return (struct place){mixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight", row,
                              column, columns};
    if (strncmp(rest, expert, strlen(expert)))
        return table_place(renamed, COUNT(renamed), rest, row, column, rows, columns);
    unsigned long long e = strtoull(rest + strlen(expert), (char **)(uintptr_t)&end, 10);
    const char *before =
        arena_printf(&scratch, "%s.experts.%llu.", mixtral ? "block_sparse_moe" : "mlp", e);
    if (strcmp(end, ".linear_fc2.weight") == 0)
        return (struct place){
            arena_printf(&scratch, "%s%s.weight", before, mixtral ? "w2" : "down_proj"), row,
            column, columns};
    assert_string_equal(end, ".linear_fc1.weight");
    return glu_place(arena_printf(&scratch, "%s%s", before, mixtral ? "w1" : "gate_proj"),
                     arena_printf(&scratch, "%s%s", before, mixtral ? "w3" : "up_proj"), ".weight",
                     row, column, rows, columns);
}

static struct place place_of(const struct checking *x, const char *logical, uint64_t row,
                             uint64_t column, uint64_t rows, uint64_t columns)
{
    bool gpt2 = strcmp(model_map_family(x->map), "gpt2") == 0;
    const char *layers = "decoder.layers.", *rest;
    for (size_t i = 0; i < COUNT(outer); i++)
        if (strcmp(outer[i][0], logical) == 0)
            return (struct place){outer[i][gpt2 ? 2 : 1], row, column, columns};
    assert_int_equal(strncmp(logical, layers, strlen(layers)), 0);
    unsigned long long l = strtoull(logical + strlen(layers), (char **)(uintptr_t)&rest, 10);
    struct place p = layer_place(x, rest + 1, row, column, rows, columns);
    p.name =
        arena_printf(&scratch, "%s.%llu.%s", gpt2 ? "transformer.h" : "model.layers", l, p.name);
    return p;
}

static struct hf_tensor *hf_of(struct checking *x, const struct mapped_part *part)
{
    size_t at = x->count;
    char *name = arena_printf(&scratch, "%s", part->hf_name);
    if (map_add(&x->names, name, at, &at)) {
        uint64_t numel = 1;
        for (unsigned d = 0; d < part->num_dims; d++)
            numel *= part->shape[d];
        *ARENA_PUSH(&scratch, x->tensors, x->count, x->capacity) =
            (struct hf_tensor){name, numel, arena_alloc(&scratch, numel)};
    }
    return &x->tensors[at];
}

static void pair_elements(const struct pair *p, unsigned axis, uint64_t a, uint64_t b,
                          void (*visit)(void *context, uint64_t a, uint64_t b), void *context)
{
    if (axis == p->num_axes) {
        visit(context, a, b);
        return;
    }
    for (uint64_t i = 0; i < p->axes[axis].extent; i++)
        pair_elements(p, axis + 1, a + i * p->axes[axis].a_stride, b + i * p->axes[axis].b_stride,
                      visit, context);
}

struct part_check {
    struct checking *x;
    const struct mapped_tensor *t;
    const struct mapped_part *part;
    struct hf_tensor *hf;
    unsigned char *claimed; /* [elements of t] */
    uint64_t rows, columns;
};

static void check_element(void *context, uint64_t a, uint64_t b)
{
    struct part_check *k = context;
    struct place p =
        place_of(k->x, k->t->name, a / k->columns, a % k->columns, k->rows, k->columns);
    if (strcmp(p.name, k->part->hf_name) || p.row * p.columns + p.column != b)
        fail_msg("%s element %llu is %s %llu, not %s %llu", k->t->name, (unsigned long long)a,
                 k->part->hf_name, (unsigned long long)b, p.name,
                 (unsigned long long)(p.row * p.columns + p.column));
    assert_in_range(b, 0, k->hf->numel - 1);
    assert_int_equal(k->hf->claimed[b]++, 0);
    assert_int_equal(k->claimed[a]++, 0);
}

static enum status check_tensor(void *context, const struct mapped_tensor *t, struct error *e)
{
    struct part_check k = {.x = context, .t = t};
    (void)e;
    k.rows = t->shape[0];
    k.columns = t->num_dims > 1 ? t->shape[1] : 1;
    k.claimed = arena_alloc(&scratch, k.rows * k.columns);
    for (size_t i = 0; i < t->num_parts; i++) {
        k.part = &t->parts[i];
        k.hf = hf_of(k.x, k.part);
        struct pair nested = k.part->pair;
        assert_true(pair_nest(&nested));
        pair_elements(&k.part->pair, 0, k.part->pair.a_offset, k.part->pair.b_offset, check_element,
                      &k);
    }
    for (uint64_t i = 0; i < k.rows * k.columns; i++)
        assert_int_equal(k.claimed[i], 1);
    k.x->num_logical++;
    return OK;
}

/* Random sizes of which no two are equal by chance; sizes that a family fixes
 * are fixed. */
static struct model_config random_model(const char *family, uint64_t *seed)
{
    static const uint64_t heads[] = {1, 2, 3, 4, 6, 9};
    struct model_config c = {.num_layers = 1 + test_below(seed, 3),
                             .num_attention_heads = heads[test_below(seed, 6)],
                             .kv_channels = 2 * (1 + test_below(seed, 4)),
                             .hidden_size = 1 + test_below(seed, 20),
                             .ffn_hidden_size = 1 + test_below(seed, 20),
                             .vocab_size = 1 + test_below(seed, 30),
                             .max_position_embeddings = 1 + test_below(seed, 9),
                             .untie_embeddings_and_output_weights = test_below(seed, 2)};
    do
        c.num_query_groups = 1 + test_below(seed, c.num_attention_heads);
    while (c.num_attention_heads % c.num_query_groups);
    if (strcmp(family, "gpt2") == 0) {
        c.num_query_groups = c.num_attention_heads;
        c.hidden_size = c.num_attention_heads * c.kv_channels;
        return c;
    }
    c.add_qkv_bias = strcmp(family, "qwen2") == 0;
    c.qk_layernorm = strncmp(family, "qwen3", 5) == 0;
    if (strcmp(family, "llama") == 0) c.add_qkv_bias = c.add_bias_linear = test_below(seed, 2);
    if (strcmp(family, "mixtral") && strcmp(family, "qwen3_moe")) return c;
    c.num_experts = 1 + test_below(seed, 4);
    c.moe_ffn_hidden_size = 1 + test_below(seed, 9);
    if (strcmp(family, "mixtral") == 0) return c;
    bool *moe = arena_alloc(&scratch, c.num_layers);
    for (uint64_t l = 0; l < c.num_layers; l++)
        moe[l] = test_below(seed, 2);
    c.moe_layers = moe;
    return c;
}

static void every_built_in_map_follows_the_formulas_element_by_element(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const char *const families[] = {"gpt2",  "llama", "mistral",  "mixtral",
                                           "qwen2", "qwen3", "qwen3_moe"};
    for (size_t i = 0; i < COUNT(families) * 12; i++) {
        struct checking x = {.map = model_map_of_family(&maps, families[i % COUNT(families)])};
        struct model_config c = random_model(model_map_family(x.map), &seed);
        x.c = &c;
        assert_ok(model_map_expand(x.map, &c, NULL, check_tensor, &x, &err));
        for (size_t k = 0; k < x.count; k++)
            for (uint64_t b = 0; b < x.tensors[k].numel; b++)
                if (x.tensors[k].claimed[b] != 1)
                    fail_msg("%s: element %llu of %s is taken %d times", model_map_family(x.map),
                             (unsigned long long)b, x.tensors[k].name, x.tensors[k].claimed[b]);
        map_release(&x.names);
    }
}

/* ---- the order of the names ---- */

static enum status collect_name(void *context, const struct mapped_tensor *t, struct error *e)
{
    struct strbuf *out = context;
    (void)e;
    for (size_t i = 0; i < t->num_parts; i++)
        strbuf_printf(out, "%s\n", t->parts[i].hf_name);
    return OK;
}

static const char *names_of(const struct model_map *map, const struct model_config *c)
{
    struct strbuf out = {0};
    strbuf_add_text(&out, "");
    assert_ok(model_map_expand(map, c, NULL, collect_name, &out, &err));
    const char *text = arena_text(&scratch, out.data, out.length);
    strbuf_release(&out);
    return text;
}

static const struct model_config small = {.num_layers = 1,
                                          .hidden_size = 8,
                                          .ffn_hidden_size = 6,
                                          .num_attention_heads = 2,
                                          .num_query_groups = 1,
                                          .kv_channels = 4,
                                          .vocab_size = 5,
                                          .max_position_embeddings = 4,
                                          .num_experts = 2,
                                          .moe_router_topk = 1,
                                          .moe_ffn_hidden_size = 3,
                                          .qk_layernorm = true,
                                          .untie_embeddings_and_output_weights = true};

static void names_come_as_transformers_lists_them(void **state)
{
    (void)state;
    assert_string_equal(names_of(model_map_of_family(&maps, "qwen3_moe"), &small),
                        "model.embed_tokens.weight\n"
                        "model.layers.0.self_attn.q_proj.weight\n"
                        "model.layers.0.self_attn.k_proj.weight\n"
                        "model.layers.0.self_attn.v_proj.weight\n"
                        "model.layers.0.self_attn.o_proj.weight\n"
                        "model.layers.0.self_attn.q_norm.weight\n"
                        "model.layers.0.self_attn.k_norm.weight\n"
                        "model.layers.0.mlp.gate.weight\n"
                        "model.layers.0.mlp.experts.0.gate_proj.weight\n"
                        "model.layers.0.mlp.experts.0.up_proj.weight\n"
                        "model.layers.0.mlp.experts.0.down_proj.weight\n"
                        "model.layers.0.mlp.experts.1.gate_proj.weight\n"
                        "model.layers.0.mlp.experts.1.up_proj.weight\n"
                        "model.layers.0.mlp.experts.1.down_proj.weight\n"
                        "model.layers.0.input_layernorm.weight\n"
                        "model.layers.0.post_attention_layernorm.weight\n"
                        "model.norm.weight\n"
                        "lm_head.weight\n");
}

static bool without_prefix(const void *context, const char *name)
{
    (void)context;
    return strcmp(name, "wte.weight") == 0;
}

static void gpt2_prefix_is_the_one_that_the_files_have(void **state)
{
    (void)state;
    struct hf_names have = {.has = without_prefix};
    struct model_config c = small;
    struct strbuf out = {0};
    c.num_query_groups = 2;
    c.num_experts = 0;
    const struct model_map *map = model_map_of_family(&maps, "gpt2");
    assert_ok(model_map_expand(map, &c, &have, collect_name, &out, &err));
    assert_int_equal(strncmp(out.data, "wte.weight\nwpe.weight\nh.0.ln_1.weight\n", 38), 0);
    strbuf_release(&out);
    assert_int_equal(strncmp(names_of(map, &c), "transformer.wte.weight\n", 23), 0);
}

/* ---- maps of users ---- */

/* A map that extends llama, with these further members. */
static const char *derived(const char *members)
{
    return json_text(arena_printf(
        &scratch, "{'family':'own','model_type':'own','architecture':'Own','extends':'llama'%s%s}",
        *members ? "," : "", members));
}

static enum status load_text(struct model_maps *m, const char *text)
{
    return model_maps_load(m, write_scratch("map.json", text), &err);
}

static const struct model_map *load_own(struct model_maps *m, const char *members)
{
    assert_ok(load_text(m, derived(members)));
    assert_int_equal(m->num_maps, maps.num_maps + 1);
    assert_string_equal(model_maps_family(m, 0), "own");
    return model_maps_at(m, 0);
}

static void a_derived_map_replaces_rows_in_their_place_and_inserts_after(void **state)
{
    (void)state;
    struct model_maps m;
    struct model_config c = small;
    c.qk_layernorm = false;
    c.num_experts = 0;
    const struct model_map *map = load_own(
        &m, "'tensors':["
            "{'megatron':'decoder.layers.{l}.self_attention.linear_proj.weight','shape':'h q',"
            "'hf_shape':'q h','hf':'model.layers.{l}.attn.out'},"
            "{'megatron':'decoder.layers.{l}.mlp.router.bias','shape':'1','hf':'one.{l}'},"
            "{'megatron':'decoder.layers.{l}.mlp.router.expert_bias','shape':'d','hf':'two.{l}',"
            "'after':'decoder.layers.{l}.mlp.linear_fc2.bias'},"
            "{'megatron':'decoder.layers.{l}.self_attention.core_attention.softmax_offset','shape':"
            "'h','hf':'three.{l}'}]");
    assert_string_equal(names_of(map, &c), "model.embed_tokens.weight\n"
                                           "model.layers.0.self_attn.q_proj.weight\n"
                                           "model.layers.0.self_attn.k_proj.weight\n"
                                           "model.layers.0.self_attn.v_proj.weight\n"
                                           "model.layers.0.attn.out\n"
                                           "one.0\n"
                                           "model.layers.0.mlp.gate_proj.weight\n"
                                           "model.layers.0.mlp.up_proj.weight\n"
                                           "model.layers.0.mlp.down_proj.weight\n"
                                           "two.0\n"
                                           "three.0\n"
                                           "model.layers.0.input_layernorm.weight\n"
                                           "model.layers.0.post_attention_layernorm.weight\n"
                                           "model.norm.weight\n"
                                           "lm_head.weight\n");
    model_maps_release(&m);
}

static const char *printed(const struct model_map *map)
{
    struct strbuf out = {0};
    model_map_print(&out, map);
    const char *text = arena_text(&scratch, out.data, out.length);
    strbuf_release(&out);
    return text;
}

static void a_derived_map_replaces_config_rows_in_their_place(void **state)
{
    (void)state;
    struct model_maps m;
    const struct model_map *map =
        load_own(&m, "'config':[{'megatron':'num_attention_heads','hf':'heads'},"
                     "{'how':'rope','default':5},"
                     "{'megatron':'add_mlp_bias','value':true}]");
    const char *text = printed(map);
    /* kv_channels' default divides by the heads, so they must stay before it */
    assert_non_null(strstr(text, "copy      heads\n"));
    assert_true(strstr(text, "copy      heads\n") < strstr(text, "head_dim"));
    assert_null(strstr(text, "copy      mlp_bias"));
    assert_non_null(strstr(text, "  add_mlp_bias                         value     true\n"));
    assert_non_null(strstr(text, "rope        default 5\n"));
    assert_string_equal(model_map_hf_field(map, "num_attention_heads"), "heads");
    assert_string_equal(model_map_hf_field(map, "num_query_groups"), "num_key_value_heads");
    assert_null(model_map_hf_field(map, "add_bias_linear"));
    model_maps_release(&m);
}

static void sizes_hows_and_ignored_names_can_be_added(void **state)
{
    (void)state;
    struct model_maps m;
    struct model_config c = small;
    const struct model_map *map = load_own(
        &m, "'sizes':{'E':'num_experts','i':'moe_ffn_hidden_size'},"
            "'hows':{'stack':[{'megatron':'i[0 of 2*i] h','hf':'1[e of E] (i 1[0 of 2]) h'},"
            "{'megatron':'i[i of 2*i] h','hf':'1[e of E] (i 1[1 of 2]) h','tensor':0}]},"
            "'tensors':[{'megatron':'decoder.layers.{l}.mlp.experts.experts.{e}.linear_fc1.weight',"
            "'how':'stack','when':'moe[l]','hf':'x.{l}.gate_up'}],"
            "'ignored':'*.junk'");
    assert_true(model_map_ignores(map, "a.junk"));
    assert_true(model_map_ignores(map, "model.layers.3.self_attn.rotary_emb.inv_freq"));
    assert_true(model_map_ignores(map, "freqs_cis"));
    assert_false(model_map_ignores(map, "a.junk.b"));
    assert_non_null(strstr(names_of(map, &c), "x.0.gate_up\nx.0.gate_up\nx.0.gate_up\n"));
    model_maps_release(&m);
}

/* Checks sizes that depend on layer l through another size. */
static enum status check_layer_sizes(void *context, const struct mapped_tensor *t,
                                     struct error *error)
{
    unsigned layer;
    (void)error;
    if (!strstr(t->name, ".mlp.linear_fc2.weight")) return OK;
    assert_int_equal(sscanf(t->name, "decoder.layers.%u.", &layer), 1);
    const struct model_config *c = context;
    assert_int_equal(t->shape[1], c->ffn_hidden_size * (layer + 1));
    assert_int_equal(t->parts[0].shape[0], t->shape[1]);
    return OK;
}

static void sizes_may_differ_from_layer_to_layer(void **state)
{
    (void)state;
    struct model_maps m;
    struct model_config c = small;
    c.num_experts = 0;
    c.num_layers = 3;
    const struct model_map *map =
        load_own(&m, "'sizes':{'widened':'ffn_hidden_size * times','times':'l + 1'},'tensors':["
                     "{'megatron':'decoder.layers.{l}.mlp.linear_fc2.weight','shape':'h widened',"
                     "'hf_shape':'widened h','hf':'down.{l}'}]");
    assert_ok(model_map_expand(map, &c, NULL, check_layer_sizes, &c, &err));
    model_maps_release(&m);

    assert_fails(load_text(&m, derived("'sizes':{'times':'l + 1'},'tensors':["
                                       "{'megatron':'decoder.final_layernorm.weight',"
                                       "'shape':'times','hf':'norm'}]")),
                 ERR_USAGE, "an unknown name");
    model_maps_release(&m);
}

static void fields_of_config_json_may_have_long_names(void **state)
{
    (void)state;
    struct model_maps m;
    char name[400];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    (void)load_own(&m, arena_printf(&scratch, "'unsupported':[{'when':'hf.%s','why':'b'}]", name));
    model_maps_release(&m);
}

static void a_map_of_a_known_family_takes_its_place(void **state)
{
    (void)state;
    struct model_maps m;
    struct model_config c = {.gated_linear_unit = true,
                             .normalization = "RMSNorm",
                             .position_embedding_type = "rope",
                             .rotary_percent = 1};
    cJSON *config = json_tree("{'model_type':'llama'}");
    const struct model_map *map;
    assert_ok(load_text(&m, json_text("{'family':'llama','about':'mine','model_type':'llama',"
                                      "'architecture':'X','extends':'llama'}")));
    assert_string_equal(model_map_about(model_map_of_family(&m, "llama")), "mine");
    assert_ok(model_map_of_config(&m, config, &map, &err));
    assert_string_equal(model_map_about(map), "mine");
    assert_non_null(model_fit(&m, &c));
    assert_string_equal(model_map_about(model_fit(&m, &c)), "mine");
    cJSON_Delete(config);
    model_maps_release(&m);
}

/* A correct row of tensors, to which further members are added. */
#define FC2 "'megatron':'decoder.layers.{l}.mlp.linear_fc2.weight'"
#define ROW(members) "'tensors':[{" members "}]"
#define CONFIG(members) "'config':[{" members "}]"
#define PARAM(members) "'parameters':[{" members "}]"
#define XW "'name':'decoder.layers.{l}.x.weight'"

#define NORM(name) "{'megatron':'decoder.layers.{l}." name "','hf':'{l}.n','shape':'h'}"
#define QKV                                                                                        \
    "'tensors':[{'megatron':'decoder.layers.{l}.self_attention.linear_qkv.weight',"                \
    "'hf':'{l}.q','shape':'h'}"
#define ROUTER "{'megatron':'decoder.layers.{l}.mlp.router.weight','hf':'{l}.r','shape':'E h'}"
#define EXPERTS                                                                                    \
    "'sizes':{'h':'hidden_size','E':'num_experts'},"                                               \
    "'config':[{'megatron':'num_experts','hf':'num_experts','default':0}],"

static const struct {
    const char *members, *message;
} mistakes[] = {
    /* the map */
    {"'foo':1", "\"foo\" is not one of: family about"},
    {"'about':1", "about is not a string"},
    {"'detect':'!num_experts'", "\"detect\" is not one of: family about"},
    {"'prefixes':[1]", "a name that is not a string"},
    {"'prefixes':{}", "a name that is not a string"},
    {"'sizes':[]", "sizes is not an object"},
    {"'sizes':{'x':1}", "size x is not a string"},
    {"'sizes':{'x':'hidden_size / 7'}", "size x: \"hidden_size / 7\": 48 is not divisible by 7"},
    {"'sizes':{'x':'x'}", "size x: \"x\": an unknown name"},
    {"'hows':[]", "hows is not an object"},
    {"'ignored':[[]]", "ignored: a name that is not a string"},
    /* the config */
    {"'config':{}", "config is not a list"},
    {"'config':[1]", "config[0]: not an object"},
    {CONFIG("'megatron':'hidden_size','hf':'a','hff':1"), "config[0] (hidden_size): \"hff\" is no"},
    {CONFIG("'megatron':'hidden_size','hf hff':'a'"), "\"hf hff\" is not one of"},
    {CONFIG("'megatron':'sizes','hf':'a'"), "megatron is not the name of a field of the config"},
    {CONFIG("'hf':'a'"), "config[0] (a): megatron is not the name of a field of the config"},
    {CONFIG("'megatron':'hidden_size'"), "config[0] (hidden_size): exactly one of hf and value"},
    {CONFIG("'megatron':'hidden_size','hf':'a','value':1"), "exactly one of hf and value"},
    {CONFIG("'megatron':'hidden_size','how':'value','hf':'a'"), "exactly one of hf and value"},
    {CONFIG("'megatron':'hidden_size','how':'copy','value':1"), "exactly one of hf and value"},
    {CONFIG("'megatron':'hidden_size','hf':'a','how':'zzz'"), "how \"zzz\" is not known"},
    {CONFIG("'megatron':'hidden_size','hf':'a','how':1"), "how is not a string"},
    {CONFIG("'megatron':'hidden_size','hf':'a','only':'both'"), "only must be import or export"},
    {CONFIG("'megatron':'hidden_size','hf':'a','how':'activation'"), "for fields of another type"},
    {CONFIG("'megatron':'qk_layernorm','hf':'a','how':'activation'"), "of another type"},
    {CONFIG("'megatron':'hidden_size','hf':'a','default':true"), "a is not a whole number"},
    {CONFIG("'megatron':'hidden_size','hf':'a','default':-1"), "a is not a whole number"},
    {CONFIG("'megatron':'hidden_size','hf':'a','default':'zzz'"),
     "its default zzz cannot be evaluated"},
    {CONFIG("'megatron':'hidden_size','hf':'a','null':'x'"), "its default x cannot be evaluated"},
    {CONFIG("'megatron':'hidden_size','value':1.5"), "hidden_size is not a whole number"},
    {CONFIG("'megatron':'layernorm_epsilon','hf':'a','default':'b'"), "a is not a finite number"},
    {CONFIG("'megatron':'qk_layernorm','value':1"), "qk_layernorm is neither true nor false"},
    {CONFIG("'megatron':'normalization','value':1"), "normalization is not a string"},
    {CONFIG("'megatron':'normalization','value':'a','null':1"), "null does not go with value"},
    {CONFIG("'megatron':'normalization','value':'a','default':1"), "takes no default"},
    {CONFIG("'megatron':'activation_func','hf':'a','how':'activation','default':'b'"),
     "config[0] (activation_func): config.json: a \"b\" is not known"},
    {CONFIG("'how':'rope','hf':'a'"), "config[0] (rope): this how takes neither megatron"},
    {CONFIG("'how':'rope','null':1"), "config[0] (rope): this how takes no null"},
    {CONFIG("'how':'rope','null':1"), "this how takes no null"},
    {"'unsupported':{}", "unsupported is not a list"},
    {"'unsupported':[{'when':'hf.a'}]", "unsupported[0] (hf.a): when and why are required"},
    {"'unsupported':[{'when':'zzz','why':'b'}]", "unsupported[0] (zzz): \"zzz\": an unknown name"},
    {"'unsupported':[[]]", "unsupported[0]: not an object"},
    /* names that Megatron's files spell otherwise */
    {PARAM("'name':'decoder.layers.{l}.input_norm.weight','shape':'h'"),
     "parameters[0] (decoder.layers.{l}.input_norm.weight): Megatron's files mean "
     "decoder.layers.{l}.self_attention.linear_qkv.layer_norm_weight by it"},
    {PARAM("'name':'decoder.layers.{l}.attention.dense.bias','shape':'h'"),
     "Megatron's files mean decoder.layers.{l}.self_attention.linear_proj.bias by it"},
    {PARAM("'name':'final_norm.weight','place':'last','shape':'h'"),
     "Megatron's files mean decoder.final_layernorm.weight by it"},
    {QKV "," NORM("input_layernorm.weight") "]",
     "tensor decoder.layers.{l}.input_layernorm.*: Megatron's files name it "
     "decoder.layers.{l}.self_attention.linear_qkv.layer_norm_* in layers with"},
    {"'tensors':[" NORM("pre_mlp_layernorm.weight") "]",
     "tensor decoder.layers.{l}.pre_mlp_layernorm.*: Megatron's files name it "
     "decoder.layers.{l}.mlp.linear_fc1.layer_norm_* in layers without"},
    {EXPERTS "'tensors':[" NORM("mlp.linear_fc1.layer_norm_weight") "," ROUTER "]",
     "tensor decoder.layers.{l}.mlp.linear_fc1.layer_norm_*: Megatron's files name it "
     "decoder.layers.{l}.pre_mlp_layernorm.* in layers with"},
    {EXPERTS "'tensors':[" NORM("pre_mlp_layernorm.weight") "]",
     "in layers without decoder.layers.{l}.mlp.router.weight"},
    /* the parameters */
    {"'parameters':{}", "parameters is not a list"},
    {"'parameters':[1]", "parameters[0]: not an object"},
    {PARAM("'shape':'h'"), "parameters[0]: name is required"},
    {PARAM("'name':'x.weight','shape':'h'"), "parameters[0] (x.weight): place is required"},
    {PARAM("'name':'x.weight','place':'first'"), "place \"first\" is not known"},
    {PARAM("'name':'x.weight','place':'layer'"), "place must be \"layer\" for a name with {l}"},
    {PARAM(XW ",'place':'last'"), "place must be \"layer\" for a name with {l}"},
    {PARAM("'name':'decoder.layers.{l}.{p}x'"), "expected {l}, {e}"},
    {PARAM("'name':'vision.{l}.x'"), "a name with {l} must begin with decoder.layers.{l}."},
    {PARAM("'name':'decoder.layers.{l}.x.{e}.y'"),
     "{e} must begin with decoder.layers.{l}.mlp.exp"},
    {PARAM(XW ",'halves':2"),
     "parameters[0] (decoder.layers.{l}.x.weight): \"halves\" is not one of"},
    {PARAM(XW ",'group':'dp'"), "group \"dp\" is not known"},
    {PARAM(XW ",'split':-1"), "split is not the number of a dimension"},
    {PARAM(XW ",'split':8"), "split is not the number of a dimension"},
    {PARAM(XW ",'split':2,'shape':'h i'"), "it has 2 dimensions, but ranks split dimension 2"},
    {PARAM(XW ",'shape':'h zzz'"), "x.weight): \"zzz\": an unknown name"},
    {PARAM(XW ",'shape':'h l'"), "\"l\": an unknown name"},
    {PARAM(XW ",'shape':'h 0-h'"), "\"0-h\" is negative"},
    {PARAM(XW ",'shape':'h h h h h h h h h'"), "it has more than 8 dimensions"},
    {PARAM(XW ",'shape':1"), "shape is not a string"},
    {PARAM(XW ",'linear':1"), "linear is neither true nor false"},
    {PARAM(XW ",'padded':true,'split':1"), "padded is for a parameter split along dimension 0"},
    {PARAM(XW ",'stacks':'experts'"), "stacks has an axis whose placeholder is not in the name"},
    {PARAM(XW ",'stacks':['rows']"), "stacks \"rows\" is not known"},
    {PARAM(XW ",'local':'x'"), "only one of the names has {l}"},
    {PARAM(XW ",'sections':{'a':'h'}"), "sections need split"},
    {PARAM(XW ",'split':1,'shape':'h h','sections':{'a':'h'},'apart':true"),
     "apart is for sections along dimension 0 that do not repeat"},
    {PARAM(XW ",'split':0,'apart':true"), "apart is for sections along dimension 0"},
    {PARAM(XW ",'apart':1"), "apart is neither true nor false"},
    {PARAM(XW ",'split':0,'sections':[]"), "sections is not an object"},
    {PARAM(XW ",'split':0,'sections':{'a':1}"), "section a is not a string"},
    {PARAM(XW ",'split':0,'sections':{'a':'zzz'}"), "\"zzz\": an unknown name"},
    {PARAM(XW ",'split':0,'repeat':'g'"), "sections_when and repeat need sections"},
    {PARAM(XW ",'split':0,'sections':{'a':'h'},'sections_when':'zzz'"), "\"zzz\": an unknown name"},
    {PARAM(XW ",'split':0,'sections':{'a':'h'},'repeat':'zzz'"), "\"zzz\": an unknown name"},
    {PARAM(XW ",'split':0,'sections':{'a':'h'},'shared':'b'"),
     "shared \"b\" is not the name of a section"},
    {PARAM(XW ",'split':0,'sections':{'a':'1','b':'1','c':'1','d':'1','e':'1','f':'1','g':'1',"
              "'h':'1','i':'1'}"),
     "more than 8 sections"},
    {PARAM(XW ",'split':0,'shape':'3*h','sections':{'a':'h','b':'h'}"),
     "its sections fill 96 of the 144 elements of dimension 0"},
    {PARAM(XW ",'split':1,'shape':'h g*h','repeat':'g','sections':{'a':'h','b':'h'}"),
     "its sections fill 192 of the 96 elements of dimension 1"},
    {"'parameters':[{" XW "},{" XW "}]",
     "parameters[1] (decoder.layers.{l}.x.weight): duplicate name"},
    /* the tensors */
    {"'tensors':{}", "tensors is not a list"},
    {"'tensors':['a']", "tensors[0]: not an object"},
    {ROW(FC2),
     "tensors[0] (decoder.layers.{l}.mlp.linear_fc2.weight): exactly one of how and shape"},
    {ROW(FC2 ",'shape':'h i'"), "megatron and hf are required"},
    {ROW("'shape':'h i','hf':'a'"), "tensors[0]: megatron and hf are required"},
    {ROW(FC2 ",'shape':'h i','hf':[]"), "megatron and hf are required"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','what':1"), "\"what\" is not one of"},
    {ROW(FC2 ",'shape':1,'hf':'a.{l}'"), "shape is not a string"},
    {ROW(FC2 ",'shape':'h i','hf':'{mtp}a'"), "{mtp} needs the map's mtp"},
    {"'mtp':'mtp.{l}.'," ROW(FC2 ",'shape':'h i','hf':'{mtp}a'"),
     "a row of mtp.layers.{l} or a copy"},
    {"'mtp':'mtp.{zzz}.'", "\"zzz\": an unknown name"},
    {"'mtp':1", "mtp is not a string"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','copy':1"), "copy is neither true nor false"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','add':0.5"), "add is not a whole number"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','add':'1'"), "add is not a whole number"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','add':1"), "add is for a tensor of one dimension"},
    {ROW(FC2 ",'shape':'h i','hf':1"), "a name that is not a string"},
    {ROW(FC2 ",'shape':'h i','hf':['a.{l}',1]"), "a name that is not a string"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','when':1"), "when is not a string"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','when':'zzz'"), "linear_fc2.weight: \"zzz\": an unknown"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','with':[]"), "with is not an object"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','with':{'i':1}"), "size i is not a string"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','how':'glu'"), "exactly one of how and shape"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','rest':'h'"), "rest needs how"},
    {ROW(FC2 ",'how':'glu','hf_shape':'h','hf':'a.{l}'"), "hf_shape needs shape"},
    {ROW(FC2 ",'how':'zzz','hf':'a.{l}'"), "how \"zzz\" is not known"},
    {ROW(FC2 ",'how':'glu','rest':'h','hf':'a.{l}'"),
     "hf has 1 names, but its parts are of 2 tensors"},
    {ROW(FC2 ",'how':'glu','rest':'h','hf':['a.{l}','b.{l}','c.{l}']"),
     "hf has 3 names, but its parts are of 2 tensors"},
    {ROW(FC2 ",'shape':'h i','hf':'a'"), "only one of the names has {l}"},
    {ROW("'megatron':'output_layer.weight','shape':'V h','hf':'a.{l}'"),
     "only one of the names has {l}"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}.{e}'"), "hf has {e}, but megatron has not"},
    {"'prefixes':[]," ROW(FC2 ",'shape':'h i','hf':'{p}a.{l}'"),
     "hf has {p}, but the map has no prefixes"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}.{x}'"), "\"a.{l}.{x}\": expected {l}, {e}, {p} or {mtp}"},
    {ROW("'megatron':'decoder.layers.{l}.mlp.zzz','shape':'h','hf':'a.{l}'"),
     "Megatron-Core has no parameter of this name"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','after':'zzz'"),
     "after \"zzz\" is not the name of a row"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','after':1"), "after is not a string"},
    {ROW(FC2 ",'shape':'h zzz','hf':'a.{l}'"), "\"zzz\": an unknown name"},
    {ROW(FC2 ",'shape':'h (i','hf':'a.{l}'"), "missing )"},
    {ROW(FC2 ",'shape':'h i','hf_shape':'h V','hf':'a.{l}'"), "axis \"i\" must occur once"},
    {ROW(FC2 ",'shape':'h i','hf_shape':'h','hf':'a.{l}'"), "two patterns have 2 and 1 axes"},
    {ROW(FC2 ",'shape':'h','hf':'a.{l}'"), "it has 1 dimensions, but Megatron splits dimension 1"},
    {ROW(FC2 ",'shape':'h e','hf':'a.{l}'"), "\"e\": an unknown name"},
    {ROW(FC2 ",'shape':'h i[0 of 2*i]','hf_shape':'h i','hf':'a.{l}'"),
     "its parts hold 2688 of 5376 elements of decoder.layers.{l}.mlp.linear_fc2.weight"},
    {ROW(FC2 ",'shape':'h i','hf_shape':'h i[i of 2*i]','hf':'a.{l}'"),
     "linear_fc2.weight: its parts hold 2688 of 5376 elements of a.{l}"},
    {"'hows':{'a':1}," ROW(FC2 ",'how':'a','hf':'a.{l}'"), "how \"a\" is not known"},
    {"'hows':{'a':[]}," ROW(FC2 ",'how':'a','hf':'a.{l}'"), "how \"a\" is not known"},
    {"'hows':{'a':[1]}," ROW(FC2 ",'how':'a','hf':'a.{l}'"), "not an object"},
    {"'hows':{'a':[{'megatron':'h'}]}," ROW(FC2 ",'how':'a','hf':'a.{l}'"),
     "a part must be {megatron, hf [, tensor]}"},
    {"'hows':{'a':[{'megatron':'h i','hf':'h i','tensor':-1}]}," ROW(FC2 ",'how':'a','hf':'a.{l}'"),
     "a part must be {megatron, hf [, tensor]}"},
    {"'hows':{'a':[{'megatron':'h i','hf':'h i','x':1}]}," ROW(FC2 ",'how':'a','hf':'a.{l}'"),
     "\"x\" is not one of"},
    {"'hows':{'a':[{'megatron':'h i','hf':'h i'}]}," ROW(FC2 ",'how':'a','rest':'h','hf':'a.{l}'"),
     "how \"a\" has no \"...\" to hold rest"},
    {"'hows':{'a':[{'megatron':'h i[0 of 2*i]','hf':'h i'},{'megatron':'h i[0 of 2*i]','hf':'h i'}"
     "]}," ROW(FC2 ",'how':'a','hf':['a.{l}','b.{l}']"),
     "its parts of decoder.layers.{l}.mlp.linear_fc2.weight overlap"},
    {"'hows':{'a':[{'megatron':'h i[0 of 2*i]','hf':'h i'},{'megatron':'h i[0 of i]','hf':'h i'}"
     "]}," ROW(FC2 ",'how':'a','hf':['a.{l}','b.{l}']"),
     "its parts belong to tensors of different shapes"},
    {"'hows':{'a':[{'megatron':'h i[0 of 2*i]','hf':'h i'},"
     "{'megatron':'h i[i of 2*i]','hf':'h i[0 of 2*i]','tensor':0}]}," ROW(
         FC2 ",'how':'a','hf':'a.{l}'"),
     "a.{l} has two shapes"},
    {"'hows':{'a':[{'megatron':'h i[0 of 2*i]','hf':'h i','tensor':0},"
     "{'megatron':'h i[i of 2*i]','hf':'h i','tensor':0}]}," ROW(FC2 ",'how':'a','hf':'a.{l}'"),
     "its parts of a.{l} overlap"},
    {"'sizes':{'E':'num_experts','f':'moe_ffn_hidden_size'}," ROW(
         "'megatron':'decoder.layers.{l}.mlp.experts.experts.{e}.linear_fc2.weight',"
         "'shape':'h f','hf_shape':'1[0 of E] h f','hf':'a.{l}'"),
     "its parts of a.{l} overlap"},
    /* other spellings */
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','also':{}"), "also is not a list"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','also':[1]"), "not an object"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','also':[{'hf':'b.{l}','shape':'h i','when':'1'}]"),
     "\"when\" is not one of: hf how shape hf_shape rest with"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','also':[{'hf':'b.{l}'}]"),
     "exactly one of how and shape is required"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','also':[{'hf':'b.{l}','shape':'h x'}]"), "unknown name"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','also':[{'hf':'b','shape':'h i'}]"),
     "only one of the names has {l}"},
    {ROW(FC2 ",'shape':'h i','hf':'a.{l}','also':[{'hf':'b.{l}','shape':'h i',"
             "'hf_shape':'h i[0 of 2*i]'}]"),
     "elements of b.{l}"},
};

static void mistakes_are_refused_by_the_rows_name(void **state)
{
    (void)state;
    unsigned failures = 0;
    for (size_t i = 0; i < COUNT(mistakes); i++) {
        struct model_maps m;
        enum status st = load_text(&m, derived(mistakes[i].members));
        const char *map = strstr(err.text, "/map.json: model map own: ");
        if (st != ERR_USAGE || !map || strstr(map + 20, "model map") ||
            !strstr(err.text, mistakes[i].message)) {
            print_error("%s: %d \"%s\" lacks \"%s\"\n", mistakes[i].members, (int)st, err.text,
                        mistakes[i].message);
            failures++;
        }
        model_maps_release(&m);
    }
    assert_int_equal(failures, 0);
}

static void texts_that_are_no_map_are_refused(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"", "map.json"},
        {"[]", "a list of no maps"},
        {"[3]", "not an object"},
        {"3", "not an object"},
        {"{'family':'x'}", "family, model_type and architecture are required"},
        {"{'family':1}", "family is not a string"},
        {"{'family':'x','family':'y'}", "twice"},
        {"{'family':'x','model_type':'x','architecture':'X','extends':'zzz'}",
         "it extends \"zzz\", which does not exist"},
        {"{'family':'x','model_type':'x','architecture':'X','extends':[]}",
         "extends is not a string"},
    };
    struct model_maps m;
    for (size_t i = 0; i < COUNT(texts); i++) {
        assert_int_not_equal(load_text(&m, json_text(texts[i][0])), OK);
        if (!strstr(err.text, texts[i][1]))
            fail_msg("%s: \"%s\" lacks \"%s\"", texts[i][0], err.text, texts[i][1]);
        model_maps_release(&m);
    }
    assert_fails(model_maps_load(&m, in_scratch("nothing.json"), &err), ERR_IO, "nothing.json");
    model_maps_release(&m);
}

/* ---- finding ---- */

static void unknown_model_types_are_refused_with_those_that_are_known(void **state)
{
    (void)state;
    const struct model_map *map;
    cJSON *other = json_tree("{'model_type':'zzz'}"), *none = json_tree("{'model_type':1}");
    assert_fails(model_map_of_config(&maps, other, &map, &err), ERR_UNSUPPORTED,
                 "model_type \"zzz\" is not supported; --model-map FILE adds a map; there are maps "
                 "for afmoe, apertus, apertus1p5_text");
    assert_fails(model_map_of_config(&maps, none, &map, &err), ERR_CORRUPT,
                 "model_type is missing, or not a string");
    cJSON_Delete(other);
    cJSON_Delete(none);
}

/* Many maps, each but the first extending the one after it. */
enum { MANY = 150 };

static struct embedded_file *chain_of_maps(void)
{
    struct embedded_file *files = arena_array(&scratch, num_embedded_models + MANY, sizeof *files);
    for (size_t i = 0; i < MANY; i++) {
        const char *base =
            i + 1 < MANY ? arena_printf(&scratch, "family_number_%zu", i + 1) : "llama";
        files[i].name = "a.json";
        files[i].text =
            json_text(arena_printf(&scratch,
                                   "{'family':'family_number_%zu','model_type':'type_number_%zu',"
                                   "'architecture':'A','extends':'%s'}",
                                   i, i, base));
        files[i].length = strlen(files[i].text);
    }
    memcpy(files + MANY, embedded_models, num_embedded_models * sizeof *files);
    return files;
}

/* An embedded map is found by the beginning of its text, before it is read. */
/* A folder of maps: one extends another, and the program's. */
static void maps_of_a_folder_are_found(void **state)
{
    (void)state;
    const char *folder = in_scratch("models");
    struct model_maps m;
    const char *differs;
    assert_ok(folder_create(folder, &err));
    write_scratch("models/1.json", derived(""));
    write_scratch("models/2.json", json_text("{'family':'further','model_type':'further',"
                                             "'architecture':'F','extends':'own'}"));
    write_scratch("models/notes.txt", "no map");
    setenv("FERRY_MODELS", folder, 1);
    assert_ok(model_maps_load(&m, NULL, &err));
    const struct model_map *map = model_map_of_family(&m, "further");
    assert_non_null(map);
    cJSON *own = model_map_own_json(&m, map);
    assert_int_equal(cJSON_GetArraySize(own), 2);
    assert_null(model_map_own_json(&m, model_map_of_family(&m, "llama")));
    const char *travelled = in_scratch("travelled.json");
    assert_ok(json_write_file(travelled, own, false, &err));
    cJSON_Delete(own);
    assert_ok(model_maps_add(&m, travelled, &differs, &err));
    assert_null(differs);
    model_maps_release(&m);
    unsetenv("FERRY_MODELS");
    /* without the folder, from the file */
    assert_ok(model_maps_load(&m, write_scratch("map.json", derived("'about':'another'")), &err));
    assert_ok(model_maps_add(&m, travelled, &differs, &err));
    assert_string_equal(differs, "own");
    assert_non_null(model_map_of_family(&m, "further"));
    assert_fails(model_maps_add(&m, write_scratch("x.json", "{}"), &differs, &err), ERR_CORRUPT,
                 "expected a list of maps");
    assert_fails(model_maps_add(&m, write_scratch("y.json", "[{}]"), &differs, &err), ERR_USAGE,
                 "family, model_type and architecture are required");
    model_maps_release(&m);
}

static void maps_are_found_without_reading_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < maps.num_maps; i++) {
        const struct model_map *map = model_maps_at(&maps, i), *found;
        struct model_maps unread;
        assert_ok(model_maps_load(&unread, NULL, &err));
        assert_string_equal(model_maps_family(&unread, i), model_map_family(map));
        for (unsigned k = 0; k < map->num_model_types; k++) {
            cJSON *config = cJSON_CreateObject();
            cJSON_AddStringToObject(config, "model_type", map->model_types[k]);
            assert_ok(model_map_of_config(&unread, config, &found, &err));
            assert_string_equal(model_map_family(found), model_map_family(map));
            cJSON_Delete(config);
        }
        model_maps_release(&unread);
    }
}

static void there_may_be_any_number_of_maps(void **state)
{
    (void)state;
    struct model_maps m;
    const struct model_map *map;
    cJSON *first = json_tree("{'model_type':'type_number_0'}"),
          *none = json_tree("{'model_type':'zzz'}");
    assert_ok(map_load_files(&m, chain_of_maps(), num_embedded_models + MANY, NULL, &err));
    assert_int_equal(m.num_maps, MANY + num_embedded_models - 9); /* the nine files of no family */
    assert_ok(model_map_of_config(&m, first, &map, &err));
    assert_string_equal(model_map_family(map), "family_number_0");
    assert_fails(model_map_of_config(&m, none, &map, &err), ERR_UNSUPPORTED,
                 "more, which `ferry models` lists");
    model_maps_release(&m);

    assert_fails(map_load_files(&m, chain_of_maps(), MANY, NULL, &err), ERR_OURS,
                 " extends a map that does not exist");
    model_maps_release(&m);
    cJSON_Delete(first);
    cJSON_Delete(none);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(every_built_in_map_follows_the_formulas_element_by_element),
        TEST(names_come_as_transformers_lists_them),
        TEST(gpt2_prefix_is_the_one_that_the_files_have),
        TEST(a_derived_map_replaces_rows_in_their_place_and_inserts_after),
        TEST(a_derived_map_replaces_config_rows_in_their_place),
        TEST(sizes_hows_and_ignored_names_can_be_added),
        TEST(sizes_may_differ_from_layer_to_layer),
        TEST(fields_of_config_json_may_have_long_names),
        TEST(a_map_of_a_known_family_takes_its_place),
        TEST(mistakes_are_refused_by_the_rows_name),
        TEST(texts_that_are_no_map_are_refused),
        TEST(unknown_model_types_are_refused_with_those_that_are_known),
        TEST(maps_are_found_without_reading_them),
        TEST(maps_of_a_folder_are_found),
        TEST(there_may_be_any_number_of_maps),
    };
    return cmocka_run_group_tests_name("model_map", tests, load_maps, release_maps);
}
