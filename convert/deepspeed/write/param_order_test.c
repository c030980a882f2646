#include "convert/deepspeed/write/param_order.h"

#include <string.h>

#include "common/count.h"
#include "tests/testing.h"

static void check_order(const char *const *names, const char *const *wanted, size_t count)
{
    struct arena a;
    arena_init(&a);
    const size_t *order = param_order(&a, names, count);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(names[order[i]], wanted[i]);
    arena_release(&a);
}

/* As Qwen2ForCausalLM registers them. */
static void weight_and_bias_of_a_module_stand_together(void **state)
{
    static const char *const names[] = {"m.0.q.weight", "m.0.k.weight", "m.0.q.bias",
                                        "m.0.k.bias",   "m.0.o.weight", "norm.weight"};
    static const char *const wanted[] = {"m.0.q.weight", "m.0.q.bias",   "m.0.k.weight",
                                         "m.0.k.bias",   "m.0.o.weight", "norm.weight"};
    (void)state;
    check_order(names, wanted, COUNT(names));
}

/* As MixtralForCausalLM registers them: numbers, not texts, are compared. */
static void numbered_modules_come_by_their_numbers(void **state)
{
    static const char *const names[] = {"e.9.w1.weight",  "e.9.w3.weight",  "e.9.w2.weight",
                                        "e.10.w1.weight", "e.10.w3.weight", "e.10.w2.weight"};
    static const char *const wanted[] = {"e.9.w1.weight",  "e.9.w2.weight",  "e.9.w3.weight",
                                         "e.10.w1.weight", "e.10.w2.weight", "e.10.w3.weight"};
    (void)state;
    check_order(names, wanted, COUNT(names));
}

static void own_parameters_come_before_modules(void **state)
{
    static const char *const names[] = {"attn.q.weight", "attn.sinks", "head"};
    static const char *const wanted[] = {"head", "attn.sinks", "attn.q.weight"};
    (void)state;
    check_order(names, wanted, COUNT(names));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weight_and_bias_of_a_module_stand_together),
        cmocka_unit_test(numbered_modules_come_by_their_numbers),
        cmocka_unit_test(own_parameters_come_before_modules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
