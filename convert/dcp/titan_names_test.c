#include "convert/dcp/titan_names.h"

#include "common/count.h"
#include "tests/testing.h"

static struct arena a;
static struct error err;
/* 2 groups of 3 heads of 4 rows, which has no size twice */
static const struct titan_names names = {true, true, 2, 3, 4, 2};

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&a);
    return 0;
}

/* The row of torchtitan's tensor that row `row` of Hugging Face's is; columns:
 * 5. */
static uint64_t row_of(const struct pair *p, uint64_t row)
{
    uint64_t rest = row * 5 - p->a_offset, at = p->b_offset;
    for (unsigned k = 0; k < p->num_axes; k++) {
        const struct axis *x = &p->axes[k];
        at += rest / x->a_stride * x->b_stride;
        rest %= x->a_stride;
    }
    return at / 5;
}

static void names_go_there_and_back(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"tok_embeddings.weight", "model.embed_tokens.weight"},
        {"layers.17.attention.qkv_linear.wq.weight", "model.layers.17.self_attn.q_proj.weight"},
        {"layers.0.feed_forward.w3.weight", "model.layers.0.mlp.up_proj.weight"},
        {"layers.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
        {"lm_head.weight", "lm_head.weight"},
    };
    const uint64_t shape[] = {24, 5};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct titan_part *parts;
        size_t count;
        assert_ok(titan_to_hf(&names, &a, rows[i][0], 2, shape, &parts, &count, &err));
        assert_int_equal(count, 1);
        assert_string_equal(parts[0].name, rows[i][1]);
        assert_ok(titan_from_hf(&names, &a, rows[i][1], false, 2, shape, parts, &err));
        assert_string_equal(parts[0].name, rows[i][0]);
    }
}

static void older_names_are_read(void **state)
{
    (void)state;
    struct titan_part *parts;
    size_t count;
    assert_ok(titan_to_hf(&names, &a, "output.weight", 0, NULL, &parts, &count, &err));
    assert_string_equal(parts[0].name, "lm_head.weight");
    assert_ok(
        titan_to_hf(&names, &a, "layers.3.attention.wk.weight", 0, NULL, &parts, &count, &err));
    assert_string_equal(parts[0].name, "model.layers.3.self_attn.k_proj.weight");
}

static void other_names_stay_and_are_not_written(void **state)
{
    (void)state;
    static const char *const others[] = {"freqs_cis", "layers..ffn_norm.weight",
                                         "layers.1.ffn_norm.weight.x", "layers.x.ffn_norm.weight"};
    struct titan_part *parts;
    size_t count;
    const uint64_t shape[] = {7};
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_ok(titan_to_hf(&names, &a, others[i], 1, shape, &parts, &count, &err));
        assert_string_equal(parts[0].name, others[i]);
    }
    assert_fails(
        titan_from_hf(&names, &a, "model.layers.0.mlp.shared.weight", false, 1, shape, parts, &err),
        ERR_UNSUPPORTED, "torchtitan's name of this parameter is unknown");
}

/* torchtitan/models/llama3/state_dict_adapter.py: w.view(heads, dim / 2, 2,
 * in).transpose(1, 2) */
static void rows_of_q_are_rotated(void **state)
{
    (void)state;
    const uint64_t shape[] = {24, 5};
    struct titan_part part;
    assert_ok(titan_from_hf(&names, &a, "model.layers.0.self_attn.q_proj.weight", false, 2, shape,
                            &part, &err));
    for (uint64_t head = 0; head < 6; head++)
        for (uint64_t half = 0; half < 2; half++)
            for (uint64_t i = 0; i < 2; i++)
                assert_int_equal(row_of(&part.pair, head * 4 + half * 2 + i),
                                 head * 4 + i * 2 + half);
}

static void wqkv_has_a_groups_heads_together(void **state)
{
    (void)state;
    const uint64_t shape[] = {40, 5}; /* 2 * (3 + 2) * 4 */
    static const uint64_t heads[] = {3, 1, 1}, first[] = {0, 3, 4};
    struct titan_part *parts;
    size_t count;
    assert_ok(titan_to_hf(&names, &a, "layers.1.attention.qkv_linear.wqkv.weight", 2, shape, &parts,
                          &count, &err));
    assert_int_equal(count, 3);
    assert_string_equal(parts[2].name, "model.layers.1.self_attn.v_proj.weight");
    for (size_t k = 0; k < 3; k++) {
        assert_int_equal(parts[k].shape[0], 8 * heads[k]);
        for (uint64_t row = 0; row < 8 * heads[k]; row++) {
            const uint64_t head = row / 4, group = head / heads[k], in = head % heads[k];
            const uint64_t r = row % 4, rotated = r % 2 * 2 + r / 2;
            assert_int_equal(row_of(&parts[k].pair, row),
                             (group * 5 + first[k] + in) * 4 + (k < 2 ? rotated : r));
        }
    }
}

static void other_numbers_of_rows_are_refused(void **state)
{
    (void)state;
    const uint64_t shape[] = {23, 5};
    struct titan_part *parts;
    size_t count;
    assert_fails(
        titan_to_hf(&names, &a, "layers.1.attention.wq.weight", 2, shape, &parts, &count, &err),
        ERR_UNSUPPORTED, "has 23 rows; the config requires 24");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

static void a_layers_experts_are_one_tensor(void **state)
{
    static const char w2[] = "layers.1.moe.routed_experts.inner_experts.w2_EDF";
    const uint64_t stack[] = {2, 5, 3}, three[] = {3, 5, 3};
    struct titan_part *parts, part;
    size_t count;
    (void)state;
    assert_ok(titan_to_hf(&names, &a, w2, 3, stack, &parts, &count, &err));
    assert_int_equal(count, 2);
    assert_string_equal(parts[1].name, "model.layers.1.mlp.experts.1.down_proj.weight");
    assert_int_equal(parts[1].num_dims, 2);
    assert_int_equal(parts[1].shape[0], 5);
    assert_int_equal(parts[1].pair.b_offset, 15);
    assert_ok(titan_from_hf(&names, &a, parts[1].name, true, 2, stack + 1, &part, &err));
    assert_string_equal(part.name, w2);
    assert_int_equal(part.num_dims, 3);
    assert_int_equal(part.shape[0], 2);
    assert_int_equal(part.pair.b_offset, 15);
    assert_fails(titan_to_hf(&names, &a, w2, 3, three, &parts, &count, &err), ERR_UNSUPPORTED,
                 "has 3 experts; the config requires 2");
    assert_fails(titan_from_hf(&names, &a, "model.layers.1.mlp.experts.2.down_proj.weight", true, 2,
                               stack + 1, &part, &err),
                 ERR_UNSUPPORTED, "the config has 2 experts");
    assert_string_equal(titan_expert_bias(&a, w2), "layers.1.moe.expert_bias_E");
    assert_null(titan_expert_bias(&a, "layers.1.moe.router.gate.weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_layers_experts_are_one_tensor),
        TEST(names_go_there_and_back),
        TEST(older_names_are_read),
        TEST(other_names_stay_and_are_not_written),
        TEST(rows_of_q_are_rotated),
        TEST(wqkv_has_a_groups_heads_together),
        TEST(other_numbers_of_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
