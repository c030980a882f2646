#include "convert/cli/megatron_options.h"

#include <string.h>

#include "common/arena.h"
#include "common/count.h"

#include "tests/testing.h"

static const struct megatron_option *option(const char *names)
{
    size_t count;
    (void)megatron_options(&count);
    return megatron_option_find(names);
}

static void a_declared_field_is_an_option_by_its_row_alone(void **state)
{
    (void)state;
    const struct megatron_option *o = option("--moe-shared-expert-gate");
    assert_non_null(o);
    assert_string_equal(o->field->field.name, "moe_shared_expert_gate");
    assert_null(o->value);
    assert_string_equal(o->why, "not implemented: the shared expert's output is multiplied by a "
                                "gate");
    assert_string_equal(option("--moe-latent-size")->value, "N");
    assert_string_equal(option("--activation-func-clamp-value")->value, "X");
    /* one that only counts with another, which is refused */
    assert_null(option("--kv-lora-rank")->why);
    assert_string_equal(option("--multi-latent-attention")->why,
                        "not implemented: keys and values come from a latent vector");
}

static void a_field_of_the_model_is_an_option_under_its_name_in_args(void **state)
{
    (void)state;
    assert_string_equal(option("--swiglu")->field->field.name, "gated_linear_unit");
    assert_string_equal(option("--num-layers")->value, "N");
    assert_null(option("--num-layers")->why);
    assert_string_equal(option("--disable-bias-linear")->field->field.name, "add_bias_linear");
    assert_null(option("--add-bias-linear"));   /* listed under another name */
    assert_null(option("--padded-vocab-size")); /* of storage */
    assert_null(option("--hidden-siz"));        /* names are compared whole */
}

static void an_option_has_a_name_in_args(void **state)
{
    (void)state;
    static const struct {
        const char *names, *arg;
        bool unsets;
    } rows[] = {{"--norm-epsilon --layernorm-epsilon", "norm_epsilon", false},
                {"--disable-bias-linear", "add_bias_linear", true},
                {"--no-bias-gelu-fusion", "bias_gelu_fusion", true}};
    struct arena a;
    arena_init(&a);
    for (size_t i = 0; i < COUNT(rows); i++) {
        bool unsets;
        assert_string_equal(megatron_arg_name(rows[i].names, &unsets, &a), rows[i].arg);
        assert_int_equal(unsets, rows[i].unsets);
    }
    arena_release(&a);
}

static bool make_all(struct arg *to, const struct megatron_option *o, const char *title)
{
    assert_string_equal(title, "all");
    to->kind = o->only ? ARG_NOTED : ARG_NAMED;
    return !o->is_of_training;
}

static void no_option_is_listed_twice(void **state)
{
    (void)state;
    static const struct arg_group all = {"all", NULL, 0, 0};
    static struct arg_group group;
    assert_ptr_equal(megatron_options_make(&group, &all, make_all), &group);
    assert_true(group.num_args > 500);
    for (size_t i = 0; i < group.num_args; i++) {
        assert_memory_equal(group.args[i].names, "--", 2);
        for (size_t k = 0; k < i; k++)
            if (strcmp(group.args[i].names, group.args[k].names) == 0)
                fail_msg("%s is listed twice", group.args[i].names);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_declared_field_is_an_option_by_its_row_alone),
        cmocka_unit_test(a_field_of_the_model_is_an_option_under_its_name_in_args),
        cmocka_unit_test(an_option_has_a_name_in_args),
        cmocka_unit_test(no_option_is_listed_twice),
    };
    return cmocka_run_group_tests_name("megatron_options", tests, NULL, NULL);
}
