#include "convert/map/pattern.h"

#include "common/count.h"
#include "tests/testing.h"

/* g 2, r 3, d 4, s (r+2)*d = 20, h 5, i 6, E 7, e 2 */
static bool lookup(const void *context, const char *name, size_t length, int64_t index,
                   struct term *out)
{
    static const char letters[] = "grdshiEe";
    static const int64_t values[] = {2, 3, 4, 20, 5, 6, 7, 2};
    (void)context, (void)index;
    const char *at = length == 1 ? strchr(letters, *name) : NULL;
    if (!at) return false;
    *out = term_whole(values[at - letters]);
    return true;
}

static const struct expr_names names = {.value = lookup};
static struct error err;

static struct pattern_view view(const char *text)
{
    struct pattern_view v;
    assert_ok(pattern_eval(text, &names, &v, &err));
    return v;
}

static void shapes_are_the_totals_of_the_dimensions(void **state)
{
    (void)state;
    struct pattern_view v = view("(g (r d)[0 of s]) h");
    assert_int_equal(v.num_dims, 2);
    assert_int_equal(v.shape[0], 40);
    assert_int_equal(v.shape[1], 5);
    v = view("1[e of E] i[i of 2*i] h");
    assert_int_equal(v.num_dims, 3);
    assert_int_equal(v.shape[0], 7);
    assert_int_equal(v.shape[1], 12);
    assert_int_equal(v.offset, (2 * 12 + 6) * 5);
    assert_int_equal(view("").num_dims, 0);
}

/* The row of the fused tensor that holds key row x of group g (model-mappings
 * 1.4.1). */
static void keys_lie_behind_the_queries_of_their_group(void **state)
{
    (void)state;
    struct pattern_view fused = view("(g d[r*d of s]) h"), key = view("(g d) h");
    struct pair p;
    assert_ok(pattern_pair(&fused, &key, &p, &err));
    assert_int_equal(pair_count(&p), 2 * 4 * 5);
    assert_int_equal(p.a_offset, 12 * 5);
    assert_int_equal(p.num_axes, 2); /* d and h continue each other on both sides */
    assert_int_equal(p.axes[0].a_stride, 20 * 5);
    assert_int_equal(p.axes[0].b_stride, 4 * 5);
}

static void transposed_and_interleaved_tensors_are_views_too(void **state)
{
    (void)state;
    struct pattern_view a = view("i h"), b = view("h (i 1[0 of 2])");
    struct pair p;
    assert_ok(pattern_pair(&a, &b, &p, &err));
    assert_int_equal(p.axes[0].a_stride, 5);
    assert_int_equal(p.axes[0].b_stride, 2);
    assert_int_equal(p.axes[1].a_stride, 1);
    assert_int_equal(p.axes[1].b_stride, 12);
    assert_int_equal(b.shape[1], 12);
}

static void wrong_patterns_are_refused(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"(g d", "missing )"},   {"g) d", "unmatched )"},     {"x h", "unknown name"},
        {"i[h of i]", "larger"}, {"i[0 i]", "OFFSET of"},     {"2 h", "the only number"},
        {"h + i", "an axis"},    {"h[0 of 1-h]", "negative"},
    };
    struct pattern_view v, a = view("i h"), b = view("i d"), c = view("i i");
    struct pair p;
    for (size_t i = 0; i < COUNT(texts); i++)
        assert_fails(pattern_eval(texts[i][0], &names, &v, &err), ERR_USAGE, texts[i][1]);
    assert_fails(pattern_pair(&a, &b, &p, &err), ERR_USAGE, "\"h\"");
    assert_fails(pattern_pair(&c, &a, &p, &err), ERR_USAGE, "\"i\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_the_totals_of_the_dimensions),
        cmocka_unit_test(keys_lie_behind_the_queries_of_their_group),
        cmocka_unit_test(transposed_and_interleaved_tensors_are_views_too),
        cmocka_unit_test(wrong_patterns_are_refused),
    };
    return cmocka_run_group_tests_name("pattern", tests, NULL, NULL);
}
