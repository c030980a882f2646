#include "validate/compare/places.h"

#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "tests/testing.h"

static struct arena arena;

static int begin(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int end(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

static void names_tell_stack_layer_expert_and_kind(void **state)
{
    static const struct {
        const char *name, *stack, *kind;
        int64_t layer, expert;
        enum region region;
    } rows[] = {
        {"decoder.layers.3.mlp.experts.experts.7.linear_fc1.weight", "decoder.layers",
         "mlp.experts.experts.*.linear_fc1.weight", 3, 7, REGION_LAYER},
        {"optimizer.exp_avg.decoder.layers.12.mlp.linear_fc2.bias",
         "optimizer.exp_avg.decoder.layers", "mlp.linear_fc2.bias", 12, -1, REGION_LAYER},
        {"transformer.h.0.attn.c_attn.weight", "transformer.h", "attn.c_attn.weight", 0, -1,
         REGION_LAYER},
        {"model.layers.5.block_sparse_moe.experts.10.w2.weight", "model.layers",
         "block_sparse_moe.experts.*.w2.weight", 5, 10, REGION_LAYER},
        {"model.layers.5.mlp.0.weight", "model.layers", "mlp.0.weight", 5, -1, REGION_LAYER},
        {"0.weight", "", "weight", 0, -1, REGION_LAYER},
        {"embedding.word_embeddings.weight", NULL, "embedding.word_embeddings.weight", -1, -1,
         REGION_EMBEDDINGS},
        {"wte.weight", NULL, "wte.weight", -1, -1, REGION_EMBEDDINGS},
        {"lm_head.weight", NULL, "lm_head.weight", -1, -1, REGION_HEAD},
        {"embed_out.weight", NULL, "embed_out.weight", -1, -1, REGION_HEAD},
        {"decoder.final_layernorm.weight", NULL, "decoder.final_layernorm.weight", -1, -1,
         REGION_OTHER},
        {"", NULL, "", -1, -1, REGION_OTHER},
        {"..", NULL, "..", -1, -1, REGION_OTHER},
        {"layers.99999999999999999999.x", NULL, "layers.99999999999999999999.x", -1, -1,
         REGION_OTHER},
        {"step.7", NULL, "step.7", -1, -1, REGION_OTHER},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct place p = place_of_name(&arena, rows[i].name);
        assert_int_equal(p.region, rows[i].region);
        assert_int_equal(p.layer, rows[i].layer);
        assert_int_equal(p.expert, rows[i].expert);
        assert_string_equal(p.kind, rows[i].kind);
        assert_true(!p.stack == !rows[i].stack);
        if (p.stack) assert_string_equal(p.stack, rows[i].stack);
    }
}

static void tensors_of_layers_and_experts_are_of_one_kind(void **state)
{
    (void)state;
    struct place a = place_of_name(&arena,
                                   "decoder.layers.3.mlp.experts.experts.7.linear_fc1.weight"),
                 b = place_of_name(&arena,
                                   "decoder.layers.0.mlp.experts.experts.1.linear_fc1.weight"),
                 c = place_of_name(&arena, "mtp.layers.0.mlp.experts.experts.1.linear_fc1.weight"),
                 d = place_of_name(&arena, "mlp.experts.experts.*.linear_fc1.weight");
    assert_true(place_same_kind(&a, &b));
    assert_false(place_same_kind(&a, &c));
    assert_false(place_same_kind(&a, &d));
}

static void places_come_in_the_order_of_a_model(void **state)
{
    static const char *const names[] = {"model.embed_tokens.weight", "model.layers.2.x",
                                        "model.layers.10.x", "model.norm.weight", "lm_head.weight"};
    (void)state;
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 5; k++) {
            struct place x = place_of_name(&arena, names[i]), y = place_of_name(&arena, names[k]);
            int order = place_compare(&x, &y);
            assert_true(i < k ? order < 0 : i > k ? order > 0 : order == 0);
        }
}

static void the_main_stack_is_not_named(void **state)
{
    (void)state;
    struct place p = place_of_name(&arena, "decoder.layers.3.mlp.linear_fc2.weight");
    assert_string_equal(place_text(&arena, &p, "decoder.layers"), "layer 3");
    assert_string_equal(place_text(&arena, &p, "encoder.layers"), "decoder.layers.3");
    assert_string_equal(place_kind_text(&arena, &p, "decoder.layers"), "mlp.linear_fc2.weight");
    assert_string_equal(place_kind_text(&arena, &p, NULL),
                        "decoder.layers.*.mlp.linear_fc2.weight");
    p = place_of_name(&arena, "wpe.weight");
    assert_string_equal(place_text(&arena, &p, NULL), "embeddings");
    assert_string_equal(place_kind_text(&arena, &p, NULL), "wpe.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_tell_stack_layer_expert_and_kind, begin, end),
        cmocka_unit_test_setup_teardown(tensors_of_layers_and_experts_are_of_one_kind, begin, end),
        cmocka_unit_test_setup_teardown(places_come_in_the_order_of_a_model, begin, end),
        cmocka_unit_test_setup_teardown(the_main_stack_is_not_named, begin, end),
    };
    return cmocka_run_group_tests_name("places", tests, NULL, NULL);
}
