/* stored_names_test.c - tensors that differ are reported under the names in the
 * files, with the stored tensors that differ and the position of the first
 * difference. */
#include "validate/compare/parts.h"
#include "validate/compare/stored_names.h"
#include "validate/report/verdict.h"
#include "validate/testing_validate.h"

enum { HIDDEN = 16, HEADS = 8, GROUPS = 2, HEAD = 8, FFN = 24, LAYERS = 3 };

static const char config[] =
    "{'architectures': ['LlamaForCausalLM'], 'model_type': 'llama', 'hidden_size': 16, "
    "'num_attention_heads': 8, 'num_key_value_heads': 2, 'head_dim': 8, 'num_hidden_layers': 3, "
    "'intermediate_size': 24, 'vocab_size': 32, 'rms_norm_eps': 1e-05, 'rope_theta': 10000.0, "
    "'max_position_embeddings': 64, 'tie_word_embeddings': false, 'hidden_act': 'silu'}";

static const char *layer(int l, const char *rest)
{
    return arena_printf(&scratch, "model.layers.%d.%s", l, rest);
}

static struct made *llama(uint64_t *seed)
{
    struct made *m = arena_alloc(&scratch, sizeof *m);
    m->config = config;
    made_add(m, "model.embed_tokens.weight", DT_BF16, SHAPE(32, HIDDEN));
    for (int l = 0; l < LAYERS; l++) {
        made_add(m, layer(l, "input_layernorm.weight"), DT_BF16, SHAPE(HIDDEN));
        made_add(m, layer(l, "post_attention_layernorm.weight"), DT_BF16, SHAPE(HIDDEN));
        made_add(m, layer(l, "self_attn.q_proj.weight"), DT_BF16, SHAPE(HEADS * HEAD, HIDDEN));
        made_add(m, layer(l, "self_attn.k_proj.weight"), DT_BF16, SHAPE(GROUPS * HEAD, HIDDEN));
        made_add(m, layer(l, "self_attn.v_proj.weight"), DT_BF16, SHAPE(GROUPS * HEAD, HIDDEN));
        made_add(m, layer(l, "self_attn.o_proj.weight"), DT_BF16, SHAPE(HIDDEN, HEADS * HEAD));
        made_add(m, layer(l, "mlp.gate_proj.weight"), DT_BF16, SHAPE(FFN, HIDDEN));
        made_add(m, layer(l, "mlp.up_proj.weight"), DT_BF16, SHAPE(FFN, HIDDEN));
        made_add(m, layer(l, "mlp.down_proj.weight"), DT_BF16, SHAPE(HIDDEN, FFN));
    }
    made_add(m, "model.norm.weight", DT_BF16, SHAPE(HIDDEN));
    made_add(m, "lm_head.weight", DT_BF16, SHAPE(32, HIDDEN));
    for (size_t i = 0; i < m->count; i++)
        made_fill(&m->tensors[i], seed);
    return m;
}

/* A folder that is read as a model. */
static const char *write_model(const struct made *m, const char *folder)
{
    const char *file = made_write(m, folder), *path = in_scratch(folder);
    assert_int_equal(rename(file, path_join(&scratch, path, "model.safetensors")), 0);
    return path;
}

static struct comparison *compare_models(struct compared_sides *x, const struct made *a,
                                         const struct made *b)
{
    struct sides_options open = {.no_optim = false};
    struct compare_options o = plain_options();
    const char *const paths[2] = {write_model(a, "a"), write_model(b, "b")};
    sides_init(x->sides);
    assert_ok(model_maps_load(&x->maps, NULL, &err));
    assert_ok(sides_open(x->sides, paths, &open, &x->maps, &err));
    assert_ok(compare_run(&x->comparison, x->sides, &o, &err));
    return &x->comparison;
}

static const char *text_of(struct comparison *c)
{
    struct strbuf text = {0};
    verdict_text(&text, &(struct verdict){.c = c}, false);
    const char *out = arena_text(&scratch, text.data, text.length);
    strbuf_release(&text);
    return out;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is not in:\n%s", part, text);
}

static void lacks(const char *text, const char *part)
{
    if (strstr(text, part)) fail_msg("\"%s\" is in:\n%s", part, text);
}

/* Every element of every tensor is found where it was put. */
static void each_element_is_found_in_its_stored_tensor(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *m = llama(&seed);
    for (size_t i = 0; i < m->count; i++) /* a value that no other element has */
        for (uint64_t k = 0; k < m->tensors[i].numel; k++)
            ((uint16_t *)m->tensors[i].elements)[k] = (uint16_t)(k | i << 10);
    struct compared_sides x;
    const struct comparison *c = compare_models(&x, m, m);
    struct stored_reader *files = stored_reader_create(&c->sides[0].checkpoint.catalog.stored, 4);
    char temp[64];
    struct panel_reader reader = {.reader = files, .buffer_bytes = sizeof temp, .temp = temp};
    for (size_t i = 0; i < c->num_tensors; i++) {
        const struct tensor *t = c->tensors[i].tensors[0];
        for (uint64_t k = 0; k < t->numel; k++) {
            struct stored_element o;
            uint16_t element;
            assert_ok(panel_read(&reader, t, k, 1, &element, &err));
            assert_true(stored_element_of(&c->sides[0].checkpoint, t, k, &o));
            const struct made_tensor *from = made_find(m, o.stored->name);
            assert_int_equal(element, ((const uint16_t *)from->elements)[o.index]);
            assert_int_equal(element >> 10, from - m->tensors);
        }
        struct stored_element o;
        assert_false(stored_element_of(&c->sides[0].checkpoint, t, t->numel, &o));
    }
    stored_reader_free(files);
    release_sides(&x);
}

/* Changes one element of each stored tensor in turn: only that tensor is
 * reported, with the position. */
static void one_element_is_told_where_it_is_stored(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct made *a = llama(&seed);
    for (size_t i = 0; i < a->count; i++) {
        struct made *b = made_copy(a);
        struct made_tensor *t = &b->tensors[i];
        uint64_t at = test_below(&seed, t->numel), columns = t->num_dims > 1 ? t->shape[1] : 1;
        made_set(t, at, 77);
        struct compared_sides x;
        const char *text = text_of(compare_models(&x, a, b));
        has(text, t->num_dims > 1 ? arena_printf(&scratch, "    first   %s [%llu, %llu]\n", t->name,
                                                 (unsigned long long)(at / columns),
                                                 (unsigned long long)(at % columns))
                                  : arena_printf(&scratch, "    first   %s [%llu]\n", t->name,
                                                 (unsigned long long)at));
        release_sides(&x);
    }
}

static void fused_tensors_are_told_with_the_parts_that_differ(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = llama(&seed), *b = made_copy(a);
    for (int l = 0; l < LAYERS; l++) /* all of v, in groups between q and k */
        made_fill(made_find(b, layer(l, "self_attn.v_proj.weight")), &seed);
    made_set(made_find(b, layer(1, "mlp.up_proj.weight")), 5 * HIDDEN + 7, 77);
    struct compared_sides x;
    const char *text = text_of(compare_models(&x, a, b));
    has(text, "  decoder.layers.*.self_attention.linear_qkv.weight (3 tensors)\n"
              "    A, B    model.layers.*.self_attn.{q,k,v}_proj.weight\n"
              "    differ  model.layers.*.self_attn.v_proj.weight\n");
    has(text, "  decoder.layers.1.mlp.linear_fc1.weight\n"
              "    A, B    model.layers.1.mlp.{gate,up}_proj.weight\n"
              "    differ  model.layers.1.mlp.up_proj.weight\n"
              "    first   model.layers.1.mlp.up_proj.weight [5, 7]\n");
    release_sides(&x);
}

/* Layers that differ in different parts are reported on separate lines. */
static void names_are_shortened_only_where_they_are_alike(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = llama(&seed), *b = made_copy(a);
    made_set(made_find(b, layer(0, "mlp.up_proj.weight")), 3, 77);
    made_set(made_find(b, layer(2, "mlp.up_proj.weight")), 3, 77);
    made_set(made_find(b, layer(1, "mlp.gate_proj.weight")), 3, 77);
    struct compared_sides x;
    const char *text = text_of(compare_models(&x, a, b));
    has(text, "  decoder.layers.*.mlp.linear_fc1.weight (2 tensors)\n");
    has(text, "    differ  model.layers.*.mlp.up_proj.weight\n");
    has(text, "  decoder.layers.1.mlp.linear_fc1.weight\n");
    has(text, "    differ  model.layers.1.mlp.gate_proj.weight\n");
    release_sides(&x);
}

static void where_all_parts_differ_none_is_picked(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = llama(&seed), *b = made_copy(a);
    made_set(made_find(b, layer(0, "mlp.up_proj.weight")), 3, 77);
    made_set(made_find(b, layer(0, "mlp.gate_proj.weight")), 9, 77);
    struct compared_sides x;
    const char *text = text_of(compare_models(&x, a, b));
    has(text, "    A, B    model.layers.0.mlp.{gate,up}_proj.weight\n"
              "    first   model.layers.0.mlp.gate_proj.weight [0, 9]\n");
    lacks(text, "\n    differ ");
    release_sides(&x);
}

static void json_has_all_stored_names_and_where_they_differ(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = llama(&seed), *b = made_copy(a);
    made_set(made_find(b, layer(1, "self_attn.k_proj.weight")), 5 * HIDDEN + 7, 77);
    struct compared_sides x;
    cJSON *o = verdict_json(&(struct verdict){.c = compare_models(&x, a, b)});
    const cJSON *t = NULL;
    cJSON_ArrayForEach(t, cJSON_GetObjectItem(o, "tensors"))
    {
        if (strcmp(cJSON_GetObjectItem(t, "name")->valuestring,
                   "decoder.layers.1.self_attention.linear_qkv.weight") == 0)
            break;
    }
    assert_non_null(t);
    char *names = cJSON_PrintUnformatted(cJSON_GetObjectItem(t, "stored_names")),
         *where = cJSON_PrintUnformatted(cJSON_GetObjectItem(t, "stored_differences"));
    assert_string_equal(names, "{\"a\":[\"model.layers.1.self_attn.q_proj.weight\","
                               "\"model.layers.1.self_attn.k_proj.weight\","
                               "\"model.layers.1.self_attn.v_proj.weight\"],"
                               "\"b\":[\"model.layers.1.self_attn.q_proj.weight\","
                               "\"model.layers.1.self_attn.k_proj.weight\","
                               "\"model.layers.1.self_attn.v_proj.weight\"]}");
    assert_string_equal(
        where, "{\"a\":[{\"name\":\"model.layers.1.self_attn.k_proj.weight\",\"first\":[5,7]}],"
               "\"b\":[{\"name\":\"model.layers.1.self_attn.k_proj.weight\",\"first\":[5,7]}]}");
    free(names);
    free(where);
    cJSON_Delete(o);
    release_sides(&x);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(each_element_is_found_in_its_stored_tensor),
        TEST(one_element_is_told_where_it_is_stored),
        TEST(fused_tensors_are_told_with_the_parts_that_differ),
        TEST(names_are_shortened_only_where_they_are_alike),
        TEST(where_all_parts_differ_none_is_picked),
        TEST(json_has_all_stored_names_and_where_they_differ),
    };
    return cmocka_run_group_tests_name("stored_names", tests, NULL, NULL);
}
