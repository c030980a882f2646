/* Expected numbers: transformers 4.57, modeling_rope_utils.ROPE_INIT_FUNCTIONS. */
#include "train/model/rope.h"

#include <math.h>

#include "tests/testing.h"

static struct error err;

static const struct model_config plain = {.kv_channels = 16,
                                          .rotary_percent = 1,
                                          .rotary_base = 10000,
                                          .rope_type = "default",
                                          .max_position_embeddings = 64};

static void check(const struct model_config *c, uint64_t length, double scale,
                  const double expected[8])
{
    double inverse[8], got;
    assert_ok(rope_frequencies(c, length, inverse, &got, &err));
    assert_true(fabs(got - scale) < 1e-12);
    for (unsigned i = 0; i < 8; i++)
        if (!(fabs(inverse[i] / expected[i] - 1) < 1e-6))
            fail_msg("frequency %u is %.9g, not %.9g", i, inverse[i], expected[i]);
}

static void linear_divides_all(void **state)
{
    (void)state;
    struct model_config c = plain;
    c.rope_type = "linear";
    c.rope_factor = 4;
    check(&c, 20, 1,
          (double[]){0.25, 0.079056941, 0.025, 0.00790569466, 0.0025, 0.000790569466, 0.00025,
                     7.90569466e-05});
}

static void dynamic_depends_on_the_length(void **state)
{
    (void)state;
    struct model_config c = plain;
    c.rope_type = "dynamic";
    c.rope_factor = 2;
    check(
        &c, 64, 1,
        (double[]){1, 0.316227764, 0.1, 0.0316227786, 0.01, 0.00316227786, 0.001, 0.000316227786});
    check(&c, 100, 1,
          (double[]){1, 0.283945143, 0.0806248412, 0.0228930302, 0.00650036521, 0.001845747,
                     0.000524090894, 0.000148813066});
}

static void llama3_divides_what_turns_slowly(void **state)
{
    (void)state;
    struct model_config c = plain;
    c.rope_type = "llama3";
    c.rope_factor = 8;
    c.rope_low_freq_factor = 1;
    c.rope_high_freq_factor = 4;
    c.rope_original_max_position = 32;
    check(&c, 20, 1,
          (double[]){1, 0.0958399773, 0.0125, 0.00395284733, 0.00125, 0.000395284733, 0.000125,
                     3.95284733e-05});
}

static void yarn_has_a_ramp_and_a_scale(void **state)
{
    (void)state;
    struct model_config c = plain;
    c.rope_type = "yarn";
    c.rope_factor = 4;
    c.rope_beta_fast = 32, c.rope_beta_slow = 1, c.rope_attention_factor = 1.138629436111989;
    c.rope_original_max_position = 64;
    check(&c, 20, 1.138629436111989,
          (double[]){1, 0.237170815, 0.05, 0.00790569466, 0.0025, 0.000790569466, 0.00025,
                     7.90569466e-05});
    c.rope_factor = 8, c.rope_attention_factor = 1.2079441541679836;
    c.rope_original_max_position = 4096;
    check(&c, 20, 1.2079441541679836,
          (double[]){1, 0.316227764, 0.1, 0.0247052945, 0.00562499976, 0.00108703296, 0.000125,
                     3.95284733e-05});
    c.rope_beta_fast = 4, c.rope_beta_slow = 0.5;
    check(&c, 20, 1.2079441541679836,
          (double[]){1, 0.316227764, 0.1, 0.0316227786, 0.00999999978, 0.00223994674,
                     0.000416666677, 3.95284733e-05});
    c.rope_beta_fast = 32, c.rope_beta_slow = 1, c.rope_untruncated = true;
    check(&c, 20, 1.2079441541679836,
          (double[]){1, 0.316227764, 0.1, 0.0281120818, 0.00598313287, 0.000972857641,
                     0.000125000006, 3.95284733e-05});
}

static void other_kinds_are_refused_by_name(void **state)
{
    (void)state;
    struct model_config c = plain;
    double inverse[8], scale;
    c.rope_type = "longrope";
    assert_fails(rope_frequencies(&c, 20, inverse, &scale, &err), ERR_UNSUPPORTED, "longrope");
}

static void a_table_has_cosines_then_sines(void **state)
{
    (void)state;
    double wide[5 * 16];
    float narrow[5 * 16];
    assert_ok(rope_table(&plain, 5, 5, true, wide, &err));
    assert_ok(rope_table(&plain, 5, 5, false, narrow, &err));
    for (unsigned i = 0; i < 8; i++) {
        double angle = 3 * pow(10000, -2.0 * i / 16);
        assert_true(fabs(wide[3 * 16 + i] - cos(angle)) < 1e-6);
        assert_true(fabs(wide[3 * 16 + 8 + i] - sin(angle)) < 1e-6);
        assert_true(narrow[3 * 16 + 8 + i] == (float)wide[3 * 16 + 8 + i]);
    }
}

static void a_scaling_adds_positions(void **state)
{
    (void)state;
    struct model_config c = plain;
    assert_int_equal(rope_max_positions(&c), 0);
    c.position_embedding_type = "rope";
    assert_int_equal(rope_max_positions(&c), 64);
    c.rope_type = "yarn", c.rope_factor = 4, c.rope_original_max_position = 64;
    assert_int_equal(rope_max_positions(&c), 256);
    c.max_position_embeddings = 1024;
    assert_int_equal(rope_max_positions(&c), 1024);
    c.position_embedding_type = "learned_absolute";
    assert_int_equal(rope_max_positions(&c), 0);
}

static void only_a_part_of_a_head_may_turn(void **state)
{
    (void)state;
    struct model_config c = plain;
    c.rotary_percent = 0.4; /* 6.4 of 16 */
    assert_int_equal(rope_dim(&c), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_divides_all),
        cmocka_unit_test(dynamic_depends_on_the_length),
        cmocka_unit_test(llama3_divides_what_turns_slowly),
        cmocka_unit_test(yarn_has_a_ramp_and_a_scale),
        cmocka_unit_test(other_kinds_are_refused_by_name),
        cmocka_unit_test(a_table_has_cosines_then_sines),
        cmocka_unit_test(a_scaling_adds_positions),
        cmocka_unit_test(only_a_part_of_a_head_may_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
