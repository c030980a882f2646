#include "common/html.h"

#include "tests/testing.h"

static void text_is_no_markup(void **state)
{
    (void)state;
    struct strbuf s = {0};
    html_add_escaped(&s, "<a href='x'>&\"\x01\x7F\xC3");
    assert_string_equal(s.data, "&lt;a href=&#39;x&#39;&gt;&amp;&quot;"
                                "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    strbuf_clear(&s);
    html_add_name(&s, "a.b/<c>");
    assert_string_equal(s.data, "a.<wbr>b/<wbr>&lt;c&gt;");
    strbuf_clear(&s);
    html_add_row(&s, "term", "<");
    html_add_cell(&s, "n", ">");
    assert_string_equal(s.data, "<dt>term</dt><dd>&lt;</dd>\n<td class=\"n\">&gt;</td>");
    strbuf_release(&s);
}

static void a_page_needs_nothing_else(void **state)
{
    (void)state;
    static const char *const foreign[] = {"http:", "https:", "src=", "href=", "@import", "url("};
    struct strbuf s = {0};
    html_begin(&s, "<title>", "ferry x");
    html_end(&s, &(struct html_environment){"1.2.3", "<host>", "today", "ferry 'a&b'"}, "1 s");
    assert_int_equal(strncmp(s.data, "<!DOCTYPE html>", 15), 0);
    assert_non_null(strstr(s.data, "<title>&lt;title&gt; - ferry x</title>"));
    assert_non_null(strstr(s.data, "<dd>&lt;host&gt;</dd>"));
    assert_non_null(strstr(s.data, "</html>"));
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (strstr(s.data, foreign[i])) fail_msg("the page has %s", foreign[i]);
    strbuf_release(&s);
}

static void lines_become_rows(void **state)
{
    (void)state;
    struct strbuf s = {0};
    html_add_rows(&s, "a     b c\n      <d>\n  long_label e\nfinal");
    assert_string_equal(s.data, "<dt>a</dt><dd>b c<br>&lt;d&gt;</dd>\n"
                                "<dt>long_label</dt><dd>e</dd>\n<dt>final</dt><dd></dd>\n");
    strbuf_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_no_markup),
        cmocka_unit_test(lines_become_rows),
        cmocka_unit_test(a_page_needs_nothing_else),
    };
    return cmocka_run_group_tests_name("html", tests, NULL, NULL);
}
