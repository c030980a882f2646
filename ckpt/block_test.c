#include "ckpt/block.h"

#include <math.h>

#include "ckpt/testing_view.h"
#include "kernels/cpu/cast.h"

enum { SIDES = 3 };

/* A random box of a row-major array, and the same elements in another order
 * with gaps. */
static struct pair random_pair(uint64_t *seed, uint64_t most)
{
    struct pair p = {.num_axes = SIDES, .a_offset = test_below(seed, 7)};
    uint64_t a = 1, b = 1;
    for (unsigned k = SIDES; k-- > 0;) {
        uint64_t extent = 1 + test_below(seed, k == SIDES - 1 ? most : 40);
        p.axes[k] = (struct axis){extent, a, 0};
        a *= extent + test_below(seed, 2) * test_below(seed, 3);
    }
    unsigned first = (unsigned)test_below(seed, SIDES);
    for (unsigned i = 0; i < SIDES; i++) {
        struct axis *x = &p.axes[(first + SIDES - 1 - i) % SIDES];
        x->b_stride = b;
        b *= x->extent;
    }
    return p;
}

static struct cast_counts cast_one_by_one(const struct casting *c, const struct pair *p)
{
    struct cast_counts n = {0};
    for (uint64_t i = 0, a, b; i < pair_count(p); i++) {
        pair_element(p, i, &a, &b);
        char *to = (char *)c->to + dtype_run_bytes(c->to_dtype, b);
        const char *from = (const char *)c->from + dtype_run_bytes(c->from_dtype, a);
        const double x = dtype_load(c->from_dtype, from, 0), sum = x + c->add;
        if (c->add != 0) {
            const bool rounded =
                cast_elements(to, c->to_dtype, &sum, DT_F64, 1) || !sum_is_exact(x, c->add);
            n.elements += rounded;
            n.changed += rounded;
            n.overflowed += cast_overflows(to, c->to_dtype, &sum, DT_F64, 1);
            continue;
        }
        n.elements++;
        n.changed += cast_elements(to, c->to_dtype, from, c->from_dtype, 1);
        n.overflowed += cast_overflows(to, c->to_dtype, from, c->from_dtype, 1);
    }
    return n;
}

static uint64_t span_of(struct pair p, bool b)
{
    uint64_t span = b ? p.b_offset : p.a_offset;
    for (unsigned k = 0; k < p.num_axes; k++)
        span += (p.axes[k].extent - 1) * (b ? p.axes[k].b_stride : p.axes[k].a_stride);
    return span + 1;
}

static void check_cast(uint64_t *seed, uint64_t most)
{
    static const enum dtype dtypes[] = {DT_BF16, DT_F16, DT_F32, DT_F64};
    struct pair p = random_pair(seed, most);
    struct casting c = {.to_dtype = dtypes[test_below(seed, 4)],
                        .from_dtype = dtypes[test_below(seed, 4)],
                        .add = test_below(seed, 3) ? 0 : -1};
    uint64_t to = dtype_run_bytes(c.to_dtype, span_of(p, true)),
             from = dtype_run_bytes(c.from_dtype, span_of(p, false));
    unsigned char *source = malloc(from), *got = calloc(1, to), *want = calloc(1, to);
    assert_true(source && got && want);
    for (uint64_t i = 0; i < from; i++)
        source[i] = (unsigned char)test_random(seed);
    struct cast_counts counts = {0};
    c.from = source;
    c.to = want;
    struct cast_counts wanted = cast_one_by_one(&c, &p);
    if (c.to_dtype == c.from_dtype && c.add == 0) wanted = (struct cast_counts){0};
    c.to = got;
    c.counts = &counts;
    cast_pair(&c, &p);
    assert_memory_equal(got, want, to);
    assert_memory_equal(&counts, &wanted, sizeof counts);
    free(source);
    free(got);
    free(want);
}

static void casts_are_those_of_each_element(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 200; i++)
        check_cast(&seed, 12);
    for (int i = 0; i < 60; i++)
        check_cast(&seed, 700);
}

/* Takes blocks of at most two elements, and records their places. */
struct taking {
    uint64_t count, last;
    bool in_order;
};

static enum status take_two(void *context, const struct block *b, uint64_t file, uint64_t buffer,
                            bool *taken, struct error *err)
{
    struct taking *t = context;
    (void)buffer, (void)err;
    *taken = block_count(b) <= 2;
    if (!*taken) return OK;
    t->in_order &= t->count == 0 || file > t->last;
    t->last = file;
    t->count += block_count(b);
    return OK;
}

static void sums_are_exact_if_they_come_back(void **state)
{
    (void)state;
    assert_true(sum_is_exact(1.5, -1) && sum_is_exact(0x1p-52, -1) && sum_is_exact(0, -1));
    assert_false(sum_is_exact(1e-40, -1)); /* -1 */
    assert_false(sum_is_exact(-0.0, -1));  /* comes back as 0 */
    assert_true(sum_is_exact((double)NAN, -1) && sum_is_exact((double)INFINITY, -1));
}

static void halves_are_offered_in_the_order_of_the_file(void **state)
{
    (void)state;
    const struct pair p = {.num_axes = 3, .axes = {{5, 1, 21}, {7, 100, 3}, {3, 10, 1}}};
    struct taking t = {.in_order = true};
    struct error err;
    struct block b = block_of(&p, true);
    assert_ok(block_split(&b, 0, 0, take_two, &t, &err));
    assert_int_equal(t.count, 105);
    assert_true(t.in_order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_are_those_of_each_element),
        cmocka_unit_test(sums_are_exact_if_they_come_back),
        cmocka_unit_test(halves_are_offered_in_the_order_of_the_file),
    };
    return cmocka_run_group_tests_name("block", tests, NULL, NULL);
}
