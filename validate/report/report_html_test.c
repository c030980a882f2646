#include "validate/report/report_html.h"

#include "common/count.h"
#include "validate/testing_validate.h"

static const struct html_environment environment = {
    .version = "1.2.3", .host = "<host>", .time = "today", .command = "ferry verify 'a&b' \"c\""};

/* The page for two sides. In the scratch arena. */
static const char *page_of(const struct made *a, const struct made *b)
{
    struct compared_sides x;
    struct compare_options o = plain_options();
    struct verdict v = {.c = compare_sides(&x, a, b, &o), .seconds = 0.5};
    struct strbuf page = {0};
    report_html(&page, &v, &environment);
    const char *out = arena_text(&scratch, page.data, page.length);
    strbuf_release(&page);
    release_sides(&x);
    return out;
}

static size_t count_of(const char *page, const char *text)
{
    size_t n = 0;
    for (const char *at = page; (at = strstr(at, text)); at += strlen(text))
        n++;
    return n;
}

static void assert_has(const char *page, const char *text)
{
    if (!strstr(page, text)) fail_msg("the page lacks \"%s\"", text);
}

static struct made *model(uint64_t *seed, int layers)
{
    struct made *m = arena_alloc(&scratch, sizeof *m);
    for (int l = 0; l < layers; l++)
        made_fill(
            made_add(m, arena_printf(&scratch, "model.layers.%d.w", l), DT_BF16, SHAPE(12, 10)),
            seed);
    made_fill(made_add(m, "lm_head.weight", DT_BF16, SHAPE(12, 10)), seed);
    return m;
}

static void a_page_needs_nothing_else(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed, 4), *b = made_copy(a);
    made_set(&b->tensors[2], 7, 9);
    const char *page = page_of(a, b);
    assert_int_equal(strncmp(page, "<!DOCTYPE html>", 15), 0);
    static const char *const foreign[] = {"http:", "https:", "src=", "href=", "@import", "url("};
    for (size_t i = 0; i < COUNT(foreign); i++)
        if (strstr(page, foreign[i])) fail_msg("the page has %s", foreign[i]);
    assert_has(page, "prefers-color-scheme:dark");
    assert_has(page, "</html>");
}

static void it_shows_verdict_map_table_and_environment(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed, 4), *b = made_copy(a);
    made_set(&b->tensors[2], 7, 9);
    const char *page = page_of(a, b);
    assert_has(page, "<b>DIFFERENT</b><span>1 of 5 tensors");
    assert_int_equal(count_of(page, "<rect class=\"same\" x="), 4);
    assert_int_equal(count_of(page, "<rect class=\"h"), 1 + 9); /* a tensor, the legend */
    assert_int_equal(count_of(page, "<td class=\"t\">"), 5);
    assert_int_equal(count_of(page, "<tr class=\"equal\">"), 4);
    assert_has(page, "[0, 7]");
    assert_has(page, "no hint holds for 1 tensor<");
    assert_has(page, "1.2.3");
    assert_has(page, "&lt;host&gt;");
    assert_has(page, "ferry verify &#39;a&amp;b&#39; &quot;c&quot;");
    made_set(&b->tensors[2], 7, NAN);
    assert_int_equal(count_of(page_of(a, b), "<td class=\"n\" data-v=\"Infinity\">nan</td>"), 4);
    page = page_of(a, a);
    assert_has(page, "<b>identical</b>");
    assert_has(page, "id=\"all\" checked");
    assert_null(strstr(page, "<h2>Hints"));
}

static void names_of_files_are_no_markup(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed, 1), *b;
    made_fill(made_add(a, "</td><script>alert(1)</script>", DT_BF16, SHAPE(20)), &seed);
    made_fill(made_add(a, "layers.0.\"><img onerror='x'>&amp;\x01\x7F", DT_BF16, SHAPE(20)), &seed);
    b = made_copy(a);
    for (size_t i = 0; i < b->count; i++)
        memset(b->tensors[i].elements, 0, b->tensors[i].bytes);
    const char *page = page_of(a, b);
    assert_int_equal(count_of(page, "<script>"), 1);
    assert_null(strstr(page, "<img"));
    assert_has(page, "&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;");
    assert_has(page, "&quot;&gt;&lt;img onerror=&#39;x&#39;&gt;&amp;amp;\xEF\xBF\xBD\xEF\xBF\xBD");
}

static void layers_of_absurd_numbers_take_no_memory(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct made *a = model(&seed, 2);
    made_fill(made_add(a, "model.layers.999999999999999999.w", DT_BF16, SHAPE(4)), &seed);
    made_fill(made_add(a, "model.layers.511.w", DT_BF16, SHAPE(4)), &seed);
    const char *page = page_of(a, a);
    assert_int_equal(count_of(page, "<rect class=\"same\" x="), 2 + 1 + 1);
}

static void nothing_to_compare_is_a_page_too(void **state)
{
    (void)state;
    struct made *a = arena_alloc(&scratch, sizeof *a);
    assert_has(page_of(a, a), "<b>identical</b><span>0 tensors");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(a_page_needs_nothing_else),        TEST(it_shows_verdict_map_table_and_environment),
        TEST(names_of_files_are_no_markup),     TEST(layers_of_absurd_numbers_take_no_memory),
        TEST(nothing_to_compare_is_a_page_too),
    };
    return cmocka_run_group_tests_name("report_html", tests, NULL, NULL);
}
