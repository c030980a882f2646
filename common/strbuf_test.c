#include "common/count.h"
#include "common/strbuf.h"
#include "common/utf8.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void text_grows_and_stays_ended_by_nul(void **state)
{
    (void)state;
    struct strbuf s = {0};
    for (size_t i = 0; i < 1000; i++) {
        strbuf_add_char(&s, (char)('a' + i % 26));
        assert_int_equal(s.length, i + 1);
        assert_int_equal(s.data[i], 'a' + i % 26);
        assert_int_equal(s.data[i + 1], '\0');
    }
    assert_memory_equal(s.data, "abcdef", 6);
    strbuf_release(&s);
    assert_null(s.data);
}

static void nothing_added_is_an_empty_text(void **state)
{
    (void)state;
    struct strbuf s = {0};
    strbuf_add(&s, NULL, 0);
    assert_string_equal(s.data, "");
    assert_int_equal(s.length, 0);
    strbuf_release(&s);
    strbuf_printf(&s, "%s", "");
    assert_string_equal(s.data, "");
    strbuf_release(&s);
    strbuf_add_escaped(&s, "", 0);
    assert_string_equal(s.data, "");
    strbuf_release(&s);
}

static void numbers_are_added_as_printf_adds_them(void **state)
{
    (void)state;
    static const int64_t numbers[] = {0, 7, -1, 10, 61, 1234567890123456789, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct strbuf added = {0}, printed = {0};
        strbuf_add_i64(&added, numbers[i]);
        strbuf_printf(&printed, "%" PRId64, numbers[i]);
        assert_string_equal(added.data, printed.data);
        strbuf_release(&added);
        strbuf_release(&printed);
    }
}

static void bytes_with_nul_are_kept(void **state)
{
    (void)state;
    struct strbuf s = {0};
    strbuf_add(&s, "a\0b", 3);
    strbuf_add_repeated(&s, '\0', 2);
    assert_int_equal(s.length, 5);
    assert_memory_equal(s.data, "a\0b\0\0", 6);
    strbuf_release(&s);
}

static void clear_keeps_the_memory_and_forgets_the_text(void **state)
{
    (void)state;
    struct strbuf s = {0};
    strbuf_clear(&s);
    strbuf_add_text(&s, "shard");
    const char *data = s.data;
    strbuf_clear(&s);
    assert_string_equal(s.data, "");
    strbuf_add_text(&s, "chunk");
    assert_ptr_equal(s.data, data);
    assert_string_equal(s.data, "chunk");
    strbuf_release(&s);
}

static void printf_appends_texts_of_any_length(void **state)
{
    (void)state;
    struct strbuf s = {0};
    strbuf_printf(&s, "%d of %s", 3, "30");
    strbuf_printf(&s, "%s", "");
    strbuf_printf(&s, "%500d", 7);
    assert_int_equal(s.length, 507);
    assert_memory_equal(s.data, "3 of 30 ", 8);
    assert_string_equal(s.data + 505, " 7");
    strbuf_release(&s);
}

static void what_could_disturb_a_terminal_is_escaped(void **state)
{
    (void)state;
    static const struct {
        const char *text, *escaped;
    } cases[] = {
        {"model.layers.0", "model.layers.0"},
        {"Gew\xC3\xB6lbe \xF0\x9F\x9A\xA2", "Gew\xC3\xB6lbe \xF0\x9F\x9A\xA2"},
        {"a\"b\\c", "a\\\"b\\\\c"},
        {"\033[31mred\n\x7F", "\\x1b[31mred\\x0a\\x7f"},
        {"\xFF\xC3", "\\xff\\xc3"},
        {"\xC0\x80", "\\xc0\\x80"},
        {"\xC2\x9B"
         "31m",
         "\\xc2\\x9b31m"}, /* U+009B is CSI, as ESC [ is */
        {"\xC2\xA0", "\xC2\xA0"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct strbuf s = {0};
        strbuf_add_escaped(&s, cases[i].text, strlen(cases[i].text));
        assert_string_equal(s.data, cases[i].escaped);
        strbuf_release(&s);
    }
}

/* The rows of table 3-7 of the Unicode standard at their ends, and one step
 * past each. */
static void utf8_sequences_are_those_of_the_standard(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t length;
    } cases[] = {
        {"\x7F", 1},
        {"\x80", 0},
        {"\xC1\xBF", 0},
        {"\xC2\x80", 2},
        {"\xDF\xBF", 2},
        {"\xC2\x7F", 0},
        {"\xC2\xC0", 0},
        {"\xE0\xA0\x80", 3},
        {"\xE0\x9F\xBF", 0},
        {"\xE1\x80\x80", 3},
        {"\xEC\xBF\xBF", 3},
        {"\xED\x9F\xBF", 3},
        {"\xED\xA0\x80", 0},
        {"\xEE\x80\x80", 3},
        {"\xEF\xBF\xBF", 3},
        {"\xE1\x80\x7F", 0},
        {"\xE1\x80", 0},
        {"\xF0\x90\x80\x80", 4},
        {"\xF0\x8F\xBF\xBF", 0},
        {"\xF3\xBF\xBF\xBF", 4},
        {"\xF4\x8F\xBF\xBF", 4},
        {"\xF4\x90\x80\x80", 0},
        {"\xF5\x80\x80\x80", 0},
        {"\xF1\x80\x80", 0},
        {"\xF1\x80\x80\xC0", 0},
        {"\xFF", 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(utf8_sequence(cases[i].text, strlen(cases[i].text)), cases[i].length);
    assert_int_equal(utf8_sequence("", 0), 0);
    assert_int_equal(utf8_sequence("\0", 1), 1);
}

static void the_first_broken_byte_is_found_wherever_it_stands(void **state)
{
    (void)state;
    char text[40];
    size_t bad;
    for (size_t at = 0; at < sizeof text; at++) {
        memset(text, 'x', sizeof text);
        bad = sizeof text;
        assert_true(utf8_valid(text, sizeof text, &bad));
        text[at] = '\xBF';
        assert_false(utf8_valid(text, sizeof text, &bad));
        assert_int_equal(bad, at);
        assert_false(utf8_valid(text, sizeof text, NULL));
    }
    assert_true(utf8_valid("12345678\xE2\x82\xAC", 11, NULL));
    assert_false(utf8_valid("12345678\xE2\x82\xAC", 10, &bad));
    assert_int_equal(bad, 8);
    assert_true(utf8_valid("", 0, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_grows_and_stays_ended_by_nul),
        cmocka_unit_test(nothing_added_is_an_empty_text),
        cmocka_unit_test(numbers_are_added_as_printf_adds_them),
        cmocka_unit_test(bytes_with_nul_are_kept),
        cmocka_unit_test(clear_keeps_the_memory_and_forgets_the_text),
        cmocka_unit_test(printf_appends_texts_of_any_length),
        cmocka_unit_test(what_could_disturb_a_terminal_is_escaped),
        cmocka_unit_test(utf8_sequences_are_those_of_the_standard),
        cmocka_unit_test(the_first_broken_byte_is_found_wherever_it_stands),
    };
    return cmocka_run_group_tests_name("strbuf", tests, NULL, NULL);
}
