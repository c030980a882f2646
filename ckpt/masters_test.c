#include "ckpt/masters.h"

#include <string.h>

#include "kernels/cpu/cast.h"
#include "tests/testing.h"

enum { NUMEL = 5000 };

static struct error err;
static float master[NUMEL];
static uint16_t weight[NUMEL];

struct fixture {
    struct arena arena;
    struct catalog catalog;
};

static struct tensor *add(struct fixture *x, const char *name, enum dtype dtype, uint64_t numel,
                          const void *memory)
{
    struct tensor *t;
    assert_ok(catalog_add(&x->catalog, name, dtype, 1, &numel, &t, &err));
    const struct piece piece = {.origin = ORIGIN_MEMORY, .dtype = dtype, .memory = memory};
    const struct pair all = pair_whole(0, 0, numel);
    tensor_add_piece(&x->arena, t, &piece, &all);
    return t;
}

static void begin(struct fixture *x, enum dtype dtype, uint64_t numel)
{
    arena_init(&x->arena);
    catalog_init(&x->catalog, &x->arena);
    for (int i = 0; i < NUMEL; i++)
        master[i] = 0.1f * (float)(i - 100);
    (void)cast_elements(weight, dtype == DT_F32 ? DT_BF16 : dtype, master, DT_F32, NUMEL);
    add(x, "a", dtype, numel, dtype == DT_F32 ? (const void *)master : weight);
    add(x, "optimizer.param.a", DT_F32, numel, master);
    add(x, "b", DT_BF16, numel, weight); /* without a master */
    add(x, "optimizer.exp_avg.b", DT_F32, numel, master);
}

static void end(struct fixture *x)
{
    catalog_release(&x->catalog);
    arena_release(&x->arena);
}

static struct masters_result compare(const struct fixture *x, bool all)
{
    struct masters_result out;
    assert_ok(masters_compare(&x->catalog, &(struct masters_options){.all = all}, &out, &err));
    return out;
}

static void rounded_masters_are_weights(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DT_BF16, DT_F16, DT_F32};
    static const uint64_t sizes[] = {1, 255, 256, 257, 300, NUMEL};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 6; k++)
            for (int all = 0; all < 2; all++) {
                struct fixture x;
                begin(&x, dtypes[i], sizes[k]);
                struct masters_result r = compare(&x, all);
                assert_int_equal(r.compared, 1);
                assert_int_equal(r.differ, 0);
                end(&x);
            }
}

static void a_shift_is_found_by_the_sample(void **state)
{
    (void)state;
    struct fixture x;
    begin(&x, DT_BF16, NUMEL);
    memmove(weight + 1, weight, (NUMEL - 1) * sizeof *weight);
    struct masters_result r = compare(&x, false);
    assert_int_equal(r.differ, 1);
    assert_string_equal(r.first, "a");
    end(&x);
}

static void one_element_is_found_by_all(void **state)
{
    (void)state;
    struct fixture x;
    begin(&x, DT_BF16, NUMEL);
    weight[1234] ^= 1;
    assert_int_equal(compare(&x, false).differ, 0);
    struct masters_result r = compare(&x, true);
    assert_int_equal(r.differ, 1);
    assert_int_equal(r.at, 1234);
    end(&x);
}

static void nan_is_nan_and_a_weight_that_is_its_own_master_is_not_compared(void **state)
{
    (void)state;
    struct fixture x;
    begin(&x, DT_BF16, NUMEL);
    uint32_t odd = 0x7f800001;
    memcpy(&master[7], &odd, sizeof odd);
    weight[7] = 0xffc1;
    assert_int_equal(compare(&x, true).differ, 0);
    catalog_find(&x.catalog, "optimizer.param.a")->same_as = "a";
    assert_int_equal(compare(&x, true).compared, 0);
    end(&x);
}

static void a_master_halfway_may_be_rounded_up(void **state)
{
    (void)state;
    struct fixture x;
    begin(&x, DT_BF16, NUMEL);
    const uint32_t halfway = 0x3f808000, above = 0x3f808001;
    memcpy(&master[7], &halfway, sizeof halfway);
    weight[7] = 0x3f80; /* to even */
    assert_int_equal(compare(&x, true).differ, 0);
    weight[7] = 0x3f81; /* up */
    assert_int_equal(compare(&x, true).differ, 0);
    weight[7] = 0x3f7f;
    assert_int_equal(compare(&x, true).differ, 1);
    weight[7] = 0x3f82;
    assert_int_equal(compare(&x, true).differ, 1);
    memcpy(&master[7], &above, sizeof above);
    weight[7] = 0x3f80;
    assert_int_equal(compare(&x, true).differ, 1);
    end(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounded_masters_are_weights),
        cmocka_unit_test(a_shift_is_found_by_the_sample),
        cmocka_unit_test(one_element_is_found_by_all),
        cmocka_unit_test(a_master_halfway_may_be_rounded_up),
        cmocka_unit_test(nan_is_nan_and_a_weight_that_is_its_own_master_is_not_compared),
    };
    return cmocka_run_group_tests_name("masters", tests, NULL, NULL);
}
