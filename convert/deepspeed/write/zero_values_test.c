#include "convert/deepspeed/write/zero_values.h"

#include <math.h>

#include "formats/pickle.h"
#include "tests/testing.h"

static struct error err;
static struct arena a;

static int begin(void **state)
{
    (void)state;
    arena_init(&a);
    return 0;
}

static int end(void **state)
{
    (void)state;
    arena_release(&a);
    return 0;
}

/* {"KEY": v} */
static struct value *dict_of(const char *key, struct value *v)
{
    struct value *dict = value_dict(&a);
    value_dict_add(&a, dict, key, v);
    return dict;
}

static void numbers_texts_and_containers_are_plain(void **state)
{
    struct value *numbers[] = {value_int(&a, 1), value_float(&a, 0.5), value_none(&a),
                               value_text(&a, "x"), value_bool(&a, true)};
    const struct value *v = dict_of("betas", value_list(&a, VALUE_TUPLE, 5, numbers));
    (void)state;
    assert_ptr_equal(zero_plain(v), v);
    assert_null(zero_plain(NULL));
}

/* An object of a file may be os.system(...) where the result is read; a
 * tensor's bytes lie in that file. */
static void objects_and_tensors_are_not_plain(void **state)
{
    (void)state;
    assert_null(zero_plain(value_instance(&a, "os", "system", NULL)));
    assert_null(zero_plain(dict_of("f", value_global(&a, "os", "system"))));
    assert_null(zero_plain(dict_of("lr", value_tensor(&a, "7", DT_F32, 0, NULL))));
}

static void a_value_that_contains_itself_is_not_plain(void **state)
{
    struct value *list = value_list(&a, VALUE_LIST, 0, NULL);
    (void)state;
    value_append(&a, list, list);
    assert_null(zero_plain(list));
}

/* 10^15 paths to one number. */
static void a_value_of_very_many_paths_is_not_plain(void **state)
{
    struct value *v = value_int(&a, 1);
    (void)state;
    for (size_t depth = 0; depth < 15; depth++) {
        struct value *list = value_list(&a, VALUE_LIST, 0, NULL);
        for (size_t i = 0; i < 10; i++)
            value_append(&a, list, v);
        v = list;
    }
    assert_null(zero_plain(v));
}

/* Good steps since the last overflow, which DeepSpeed counts from it. */
static void a_dynamic_scaler_stands_where_the_run_does(void **state)
{
    struct training run;
    int64_t number;
    double scale;
    (void)state;
    training_init(&run);
    run.loss_scale = 1024;
    run.growth_tracker = 17;
    run.hysteresis_tracker = 1;
    const struct value *v = zero_loss_scaler(&a, true, &run);
    assert_true(value_is_instance(v, "deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"));
    assert_true(value_as_float(value_get(v, "cur_scale"), &scale) && scale == 1024);
    assert_true(value_as_int(value_get(v, "cur_iter"), &number) && number == 17);
    assert_true(value_as_int(value_get(v, "last_overflow_iter"), &number) && number == -1);
    assert_true(value_as_int(value_get(v, "cur_hysteresis"), &number) && number == 1);
}

static void a_static_scaler_is_1(void **state)
{
    struct training run;
    double scale;
    (void)state;
    training_init(&run);
    run.loss_scale = 1024;
    const struct value *v = zero_loss_scaler(&a, false, &run);
    assert_true(value_is_instance(v, "deepspeed.runtime.fp16.loss_scaler", "LossScaler"));
    assert_true(value_as_float(value_get(v, "cur_scale"), &scale) && scale == 1);
}

static void values_of_deepspeed_can_be_pickled(void **state)
{
    static const uint64_t shape[] = {2, 3};
    struct strbuf out = {0};
    struct value *pairs, *dict = zero_ordered_dict(&a, &pairs);
    (void)state;
    value_dict_add(&a, pairs, "w", zero_size(&a, 2, shape));
    value_dict_add(&a, pairs, "s", zero_stage_value(&a, 2));
    value_dict_add(&a, pairs, "f", zero_fragment(&a, 4, 5));
    assert_ok(pickle_write(&out, dict, &err));
    strbuf_release(&out);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_texts_and_containers_are_plain),
        TEST(objects_and_tensors_are_not_plain),
        TEST(a_value_that_contains_itself_is_not_plain),
        TEST(a_value_of_very_many_paths_is_not_plain),
        TEST(a_dynamic_scaler_stands_where_the_run_does),
        TEST(a_static_scaler_is_1),
        TEST(values_of_deepspeed_can_be_pickled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
