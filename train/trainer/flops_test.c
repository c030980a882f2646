#include "train/trainer/flops.h"

#include <math.h>

#include "tests/testing.h"

static struct model_config gpt2(uint64_t layers, uint64_t hidden, uint64_t heads)
{
    return (struct model_config){.num_layers = layers,
                                 .hidden_size = hidden,
                                 .ffn_hidden_size = 4 * hidden,
                                 .num_attention_heads = heads,
                                 .num_query_groups = heads,
                                 .kv_channels = hidden / heads};
}

static struct model_config llama(uint64_t layers, uint64_t hidden, uint64_t ffn, uint64_t heads)
{
    return (struct model_config){.num_layers = layers,
                                 .hidden_size = hidden,
                                 .ffn_hidden_size = ffn,
                                 .num_attention_heads = heads,
                                 .num_query_groups = 8,
                                 .kv_channels = hidden / heads,
                                 .gated_linear_unit = true};
}

/* GFLOP a token: linear and attention, as published tables round them. */
static void check(struct model_config c, uint64_t vocab, uint64_t seq_length, double linear,
                  double attention, double unit)
{
    const struct flops f = flops_of_model(&c, vocab);
    const double pairs = f.per_pair * (double)seq_length;
    if (fabs(f.per_token / 1e9 - linear) > unit / 2 || fabs(pairs / 1e9 - attention) > unit / 2)
        fail_msg("%g and %g instead of %g and %g", f.per_token / 1e9, pairs / 1e9, linear,
                 attention);
    assert_true(flops_of_batch(&f, 1, seq_length) == (double)seq_length * (f.per_token + pairs));
}

static void known_models_have_known_flops(void **state)
{
    (void)state;
    check(gpt2(12, 768, 12), 50304, 1024, 0.741, 0.057, 0.001);
    check(gpt2(24, 1024, 16), 50304, 1024, 2.121, 0.151, 0.001);
    check(gpt2(36, 1280, 20), 50304, 1024, 4.633, 0.283, 0.001);
    check(gpt2(48, 1600, 25), 50304, 1024, 9.330, 0.472, 0.001);
    /* 7.415 is published, which is six times all parameters, norms included. */
    check(llama(16, 2048, 8192, 32), 128256, 4096, 7.414, 0.805, 0.001);
    check(llama(16, 2048, 8192, 32), 128256, 8192, 7.414, 1.611, 0.001);
    check(llama(32, 4096, 14336, 32), 128256, 4096, 45.03, 3.22, 0.01);
    check(llama(32, 4096, 14336, 32), 128256, 8192, 45.03, 6.44, 0.01);
}

/* GPT-2 large, 32 x 1024: 12 * 36 * 1280^2 + 50304 * 1280 = 772177920 weights
 * in products. */
static void a_step_is_counted_exactly(void **state)
{
    (void)state;
    const struct model_config c = gpt2(36, 1280, 16);
    const struct flops f = flops_of_model(&c, 50304);
    assert_true(f.per_token == 6.0 * 772177920);
    assert_true(flops_of_batch(&f, 32, 1024) ==
                6.0 * 772177920 * 32768 + 6.0 * 32768 * 1024 * 1280 * 36);
}

/* Expected numbers: num_floating_point_operations of Megatron-LM d98e8a64ddf3. */
static void megatrons_own_function_gives_the_same(void **state)
{
    (void)state;
    static const bool moe_layers[4] = {false, true, false, true};
    struct model_config c = llama(4, 32, 48, 4);
    c.num_query_groups = 2;
    struct flops f = flops_of_model(&c, 128);
    assert_true(flops_of_batch(&f, 8, 32) == 59768832);
    c.num_experts = 8;
    c.moe_router_topk = 3;
    c.moe_layers = moe_layers;
    f = flops_of_model(&c, 128);
    assert_true(flops_of_batch(&f, 8, 32) == 88080384);
    c.moe_ffn_hidden_size = 24;
    f = flops_of_model(&c, 128);
    assert_true(flops_of_batch(&f, 8, 32) == 66846720);
    c = gpt2(36, 1280, 16);
    f = flops_of_model(&c, 50304);
    assert_true(flops_of_batch(&f, 32, 1024) == 161093485854720);
    c = llama(32, 4096, 14336, 32);
    f = flops_of_model(&c, 128256);
    assert_true(flops_of_batch(&f, 64, 8192) == 2.698531388050637e+16);
}

/* Mixtral-like: layers 1 and 3 have experts. By hand, with h 32, q 32, kv 16:
 * attention 32 * (32 + 32) + 32 * 32 = 3072; dense MLP 3 * 32 * 48 = 4608;
 * experts 2 * 3 * 32 * 24 = 4608 by chance, 3 * ... = 6912 with three;
 * head 32 * 128 = 4096. */
static void a_layer_of_experts_counts_those_that_a_token_sees(void **state)
{
    (void)state;
    static const bool moe_layers[4] = {false, true, false, true};
    struct model_config c = llama(4, 32, 48, 4);
    c.num_query_groups = 2;
    c.num_experts = 8;
    c.moe_router_topk = 3;
    c.moe_ffn_hidden_size = 24;
    c.moe_layers = moe_layers;
    struct flops f = flops_of_model(&c, 128);
    assert_true(f.per_token == 6.0 * (4 * 3072 + 2 * 4608 + 2 * 6912 + 4096));
    assert_true(f.per_pair == 6.0 * 32 * 4);
    c.moe_ffn_hidden_size = 0; /* that of the dense layers */
    f = flops_of_model(&c, 128);
    assert_true(f.per_token == 6.0 * (4 * 3072 + 2 * 4608 + 2 * 3 * 4608 + 4096));
}

static void heads_may_be_wider_than_the_model(void **state)
{
    (void)state;
    struct model_config c = gpt2(1, 8, 2);
    c.kv_channels = 16;
    const struct flops f = flops_of_model(&c, 10);
    assert_true(f.per_token == 6.0 * (8 * 3 * 32 + 32 * 8 + 2 * 8 * 32 + 8 * 10));
    assert_true(f.per_pair == 6.0 * 32);
}

static void packed_documents_see_their_own_tokens_only(void **state)
{
    (void)state;
    const struct model_config c = gpt2(2, 8, 2);
    const struct flops f = flops_of_model(&c, 10);
    assert_true(flops_of_packed(&f, 8, 8 * 8) == flops_of_batch(&f, 1, 8));
    assert_true(flops_of_packed(&f, 8, 3 * 3 + 5 * 5) == 8 * f.per_token + 34 * f.per_pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_models_have_known_flops),
        cmocka_unit_test(a_step_is_counted_exactly),
        cmocka_unit_test(megatrons_own_function_gives_the_same),
        cmocka_unit_test(a_layer_of_experts_counts_those_that_a_token_sees),
        cmocka_unit_test(heads_may_be_wider_than_the_model),
        cmocka_unit_test(packed_documents_see_their_own_tokens_only),
    };
    return cmocka_run_group_tests_name("flops", tests, NULL, NULL);
}
