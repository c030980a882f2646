#include "kernels/ceilings.h"

#include <string.h>

#include "common/clock.h"
#include "common/count.h"
#include "common/median.h"
#include "tests/testing.h"

static struct error err;

static void the_median_is_the_middle_or_the_mean_of_two(void **state)
{
    (void)state;
    double odd[] = {5, 1, 9}, even[] = {7, 1, 3, 100}, one[] = {2};
    assert_true(median(odd, 3) == 5 && median(even, 4) == 5 && median(one, 1) == 2);
}

/* ---- a device whose products take known times ---- */

static unsigned runs;
static uint64_t largest_side, most_bytes;
static double clock_seconds, rate, mark_seconds;

static enum status multiply(const union op_params *p, const struct operand *in,
                            const struct operand *out, void *workspace, struct error *e)
{
    const double side = (double)in[0].shape[0];
    (void)p, (void)out, (void)workspace, (void)e;
    runs++;
    if (in[0].shape[0] > largest_side) largest_side = in[0].shape[0];
    clock_seconds += 2 * side * side * side / rate;
    return OK;
}

static struct op_kernel kernels[NUM_OPS] = {[OP_MATMUL] = {.run = multiply}};

static const struct op_kernel *slow_ops(enum elem_type elem)
{
    (void)elem;
    return kernels;
}

static enum status allocate(void **out, uint64_t bytes, const char *what, struct error *e)
{
    if (bytes > most_bytes) return fail(e, ERR_MEMORY, "no memory for %s", what);
    *out = malloc(bytes);
    return OK;
}

static enum status slow_copy(void *to, const void *from, uint64_t bytes, struct error *e)
{
    (void)to, (void)from, (void)e;
    runs++;
    clock_seconds += 2 * (double)bytes / rate;
    return OK;
}

static enum status synchronize(struct error *e)
{
    (void)e;
    return OK;
}

static double marks[CEILING_MAX_REPEATS + 1];

static enum status slow_timer_create(void **timer, size_t num_marks, struct error *e)
{
    (void)e;
    assert_true(num_marks <= COUNT(marks));
    *timer = marks;
    return OK;
}

static void slow_timer_free(void *timer)
{
    (void)timer;
}

static enum status slow_timer_mark(void *timer, size_t mark, struct error *e)
{
    (void)timer, (void)e;
    clock_seconds += mark_seconds;
    marks[mark] = clock_seconds;
    return OK;
}

static enum status slow_timer_seconds(void *timer, size_t from, size_t to, double *seconds,
                                      struct error *e)
{
    (void)timer, (void)e;
    *seconds = marks[to] - marks[from];
    return OK;
}

static const struct device_timers timers = {slow_timer_create, slow_timer_free, slow_timer_mark,
                                            slow_timer_seconds};

static struct device slow_device(double flops, uint64_t bytes)
{
    struct device d = cpu_device;
    d.allocate = allocate;
    d.release = free;
    d.copy = slow_copy;
    d.synchronize = synchronize;
    d.ops = slow_ops;
    d.timers = &timers;
    rate = flops;
    most_bytes = bytes;
    runs = 0;
    largest_side = 0;
    clock_seconds = mark_seconds = 0;
    return d;
}

static bool is_near(double a, double b)
{
    return a > b * (1 - 1e-9) && a < b * (1 + 1e-9);
}

static void matrices_grow_until_a_product_takes_a_while(void **state)
{
    (void)state;
    double found;
    struct device d = slow_device(100e9, 1 << 30);
    assert_ok(ceiling_of_products(&d, ELEM_F32, 3, &found, &err));
    assert_true(is_near(found, 100e9));
    assert_int_equal(largest_side, 1024); /* 21 ms; 512: 3 ms */
    assert_int_equal(runs, 3 * 5);
    assert_true(clock_seconds < 1);
    d = slow_device(0.2e9, 1 << 30);
    assert_ok(ceiling_of_products(&d, ELEM_F32, 3, &found, &err));
    assert_true(is_near(found, 0.2e9) && clock_seconds < 1);
}

static void what_does_not_fit_is_left_out(void **state)
{
    (void)state;
    double found;
    struct device d = slow_device(100e9, 3 * 512 * 512 * 4);
    assert_ok(ceiling_of_products(&d, ELEM_F32, 1, &found, &err));
    assert_true(is_near(found, 100e9) && largest_side == 512);
    d = slow_device(100e9, 1000);
    assert_fails(ceiling_of_products(&d, ELEM_F32, 1, &found, &err), ERR_MEMORY, "a large product");
}

static void copies_count_what_is_read_and_written(void **state)
{
    (void)state;
    double found;
    struct device d = slow_device(40e9, (uint64_t)1 << 33);
    assert_ok(ceiling_of_copies(&d, 2, &found, &err));
    assert_true(is_near(found, 40e9));
}

/* A copy of 1 GiB takes 0.5 ms. */
static void marks_take_little_of_fast_copies(void **state)
{
    (void)state;
    double found;
    struct device d = slow_device(4000e9, (uint64_t)1 << 33);
    mark_seconds = 5e-6;
    assert_ok(ceiling_of_copies(&d, 3, &found, &err));
    assert_true(found > 0.999 * 4000e9 && found < 4000e9);
    assert_true(clock_seconds < 0.2);
}

static void this_cpu_multiplies(void **state)
{
    (void)state;
    double found, begun = seconds_now();
    assert_ok(ceiling_of_products(&cpu_device, ELEM_F32, 1, &found, &err));
    assert_true(found > 1e6 && seconds_now() - begun < 60);
}

/* ---- published ---- */

static void gpus_are_known_by_their_names(void **state)
{
    (void)state;
    static const struct {
        const char *description;
        double half, f32, f64;
    } rows[] = {
        {"NVIDIA A100-SXM4-80GB, 85 GB", 312, 19.5, 19.5},
        {"NVIDIA A100 80GB PCIe, 85 GB", 312, 19.5, 19.5},
        {"A100-SXM4-40GB, 42 GB", 312, 19.5, 19.5}, /* by old drivers */
        {"NVIDIA H100 80GB HBM3, 85 GB", 989, 67, 67},
        {"NVIDIA H100 PCIe, 85 GB", 756, 51, 51},
        {"NVIDIA H100 NVL, 100 GB", 835, 60, 60},
        {"NVIDIA H200, 151 GB", 989, 67, 67},
        {"NVIDIA H200 NVL, 151 GB", 835, 60, 60},
        {"NVIDIA GH200 480GB, 102 GB", 990, 67, 67},
        {"NVIDIA L4, 24 GB", 121, 30.3, 0},
        {"NVIDIA L40S, 48 GB", 362, 91.6, 0},
        {"NVIDIA B200, 192 GB", 2250, 75, 37},
        {"NVIDIA H100 80GB HBM3 MIG 1g.10gb, 10 GB", 0, 0, 0},
        {"NVIDIA A10G, 24 GB", 0, 0, 0},
        {"NVIDIA GeForce RTX 4090, 25 GB", 0, 0, 0},
        {"emulated GPU, 4 GB", 0, 0, 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *d = rows[i].description;
        assert_true(ceiling_published(d, ELEM_BF16) == 1e12 * rows[i].half);
        assert_true(ceiling_published(d, ELEM_F16) == 1e12 * rows[i].half);
        assert_true(ceiling_published(d, ELEM_F32) == 1e12 * rows[i].f32);
        assert_true(ceiling_published(d, ELEM_F64) == 1e12 * rows[i].f64);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_median_is_the_middle_or_the_mean_of_two),
        cmocka_unit_test(matrices_grow_until_a_product_takes_a_while),
        cmocka_unit_test(what_does_not_fit_is_left_out),
        cmocka_unit_test(copies_count_what_is_read_and_written),
        cmocka_unit_test(marks_take_little_of_fast_copies),
        cmocka_unit_test(this_cpu_multiplies),
        cmocka_unit_test(gpus_are_known_by_their_names),
    };
    return cmocka_run_group_tests_name("ceilings", tests, NULL, NULL);
}
