#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "tests/temporary.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static cJSON *parsed(const char *text)
{
    struct error err = {0};
    cJSON *tree;
    if (json_parse(text, strlen(text), JSON_STRICT, &tree, &err))
        fail_msg("%s: %s", text, err.text);
    return tree;
}

static void assert_printed(const cJSON *tree, int indent, const char *expected)
{
    struct strbuf out = {0};
    json_print(&out, tree, indent);
    assert_string_equal(out.data, expected);
    strbuf_release(&out);
}

static void assert_refused(const char *text, size_t length, unsigned flags, const char *message)
{
    struct error err = {0};
    cJSON *tree = cJSON_CreateNull(), *old = tree;
    assert_int_equal(json_parse(text, length, flags, &tree, &err), ERR_CORRUPT);
    assert_null(tree);
    assert_string_equal(err.text, message);
    cJSON_Delete(old);
}

/* ---- what is taken ---- */

static void texts_print_as_they_were_written(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "null",
        "true",
        "false",
        "0",
        "-0",
        "\"\"",
        "[]",
        "{}",
        "[[],{}]",
        "{\"\":0}",
        "{\"a\":{\"a\":{\"a\":[1,\"1\",null]}}}",
        "[0.5,-1,1e5,1E+5,1e-05,12345678901234567890123456789,0.1000]",
        "\"Gew\xC3\xB6lbe \xE2\x82\xAC \xF0\x9F\x9A\xA2 \x7F\"",
        "[\"\\b\\f\\n\\r\\t\\\"\\\\\\u0001\\u001f\"]",
        "{\"A\":1,\"a\":2}",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        cJSON *tree = parsed(texts[i]);
        assert_printed(tree, -1, texts[i]);
        cJSON_Delete(tree);
    }
}

static void all_four_blanks_may_stand_between_all_tokens(void **state)
{
    (void)state;
    cJSON *tree = parsed(" \t\r\n{ \"a\"\t:\r[\n1 , 2 ] , \"b\" : { } , \"c\":[ ]}\n\n");
    assert_printed(tree, -1, "{\"a\":[1,2],\"b\":{},\"c\":[]}");
    cJSON_Delete(tree);
}

static void escapes_become_their_characters(void **state)
{
    (void)state;
    cJSON *tree = parsed("[\"\\u0041\\/\\u00e4\\u20AC\\ud83d\\uDEA2\\\\u0041\"]");
    assert_printed(tree, -1, "[\"A/\xC3\xA4\xE2\x82\xAC\xF0\x9F\x9A\xA2\\\\u0041\"]");
    cJSON_Delete(tree);
}

static void nul_in_a_string_stands_as_c0_80_and_is_printed_as_an_escape(void **state)
{
    (void)state;
    cJSON *tree = parsed("{\"a\\u0000b\":\"\\u0000\\u0000\"}");
    assert_string_equal(tree->child->string, "a\xC0\x80"
                                             "b");
    assert_string_equal(json_as_text(tree->child), "\xC0\x80\xC0\x80");
    assert_printed(tree, -1, "{\"a\\u0000b\":\"\\u0000\\u0000\"}");
    cJSON_Delete(tree);
}

static void nesting_is_taken_up_to_128(void **state)
{
    (void)state;
    char text[2 * 129 + 1];
    struct error err = {0};
    cJSON *tree;
    memset(text, '[', 129);
    memset(text + 129, ']', 129);
    assert_int_equal(json_parse(text + 1, 256, JSON_STRICT, &tree, &err), OK);
    cJSON_Delete(tree);
    assert_refused(text, 258, JSON_STRICT, "line 1 column 129: nested more than 128 deep");
    /* As many again side by side are no deeper. */
    cJSON_Delete(parsed("[[[]],[[]],{\"a\":[]},[[]]]"));
}

static void a_million_open_brackets_are_refused_without_a_deep_stack(void **state)
{
    (void)state;
    enum { BYTES = 1000000 };
    char *text = malloc(BYTES);
    memset(text, '[', BYTES);
    assert_refused(text, BYTES, JSON_STRICT, "line 1 column 129: nested more than 128 deep");
    free(text);
}

/* ---- what is refused ---- */

enum cjson { CJSON_TAKES, CJSON_REFUSES };

// clang-format off
static const struct {
    const char *text;
    enum cjson cjson; /* cJSON_Parse alone; only what it takes needs our scanner */
    const char *message;
} refusals[] = {
    /* Numbers: cJSON hands what looks like one to strtod and goes on where that
     * stops. */
    {"[01]", CJSON_TAKES, "line 1 column 3: expected a comma or a closing bracket, not \"1\""},
    {"[-01]", CJSON_TAKES, "line 1 column 4: expected a comma or a closing bracket, not \"1\""},
    {"[1.]", CJSON_TAKES, "line 1 column 4: expected a digit, not \"]\""},
    {"[1.e5]", CJSON_TAKES, "line 1 column 4: expected a digit, not \"e\""},
    {"[-.5]", CJSON_TAKES, "line 1 column 3: expected a digit, not \".\""},
    {"1e", CJSON_TAKES, "line 1 column 3: expected a digit, but the text ends"},
    {"0x10", CJSON_TAKES, "line 1 column 2: expected the end of the text, not \"x\""},
    {"1-2", CJSON_TAKES, "line 1 column 2: expected the end of the text, not \"-\""},
    {"1e5e5", CJSON_TAKES, "line 1 column 4: expected the end of the text, not \"e\""},
    {"[.5]", CJSON_REFUSES, "line 1 column 2: expected a value, not \".\""},
    {"[+1]", CJSON_REFUSES, "line 1 column 2: expected a value, not \"+\""},
    {"[-]", CJSON_REFUSES, "line 1 column 3: expected a digit, not \"]\""},
    {"[--1]", CJSON_REFUSES, "line 1 column 3: expected a digit, not \"-\""},
    {"[NaN]", CJSON_REFUSES, "line 1 column 2: expected a value, not \"N\""},
    {"[Infinity]", CJSON_REFUSES, "line 1 column 2: expected a value, not \"I\""},
    {"[-Infinity]", CJSON_REFUSES, "line 1 column 3: expected a digit, not \"I\""},

    /* cJSON_Parse ignores anything behind the value. */
    {"{\"a\":1} x", CJSON_TAKES, "line 1 column 9: expected the end of the text, not \"x\""},
    {"{}{}", CJSON_TAKES, "line 1 column 3: expected the end of the text, not \"{\""},
    {"truex", CJSON_TAKES, "line 1 column 5: expected the end of the text, not \"x\""},

    /* Blanks: cJSON skips every byte up to 20, and a byte order mark. */
    {"\v[1]", CJSON_TAKES, "line 1 column 1: expected a value, not \"\\x0b\""},
    {"[1,\x01 2]", CJSON_TAKES, "line 1 column 4: expected a value, not \"\\x01\""},
    {"\xEF\xBB\xBF{}", CJSON_TAKES, "line 1 column 1: a byte order mark"},
    {"[1,\xC2\xA0" "2]", CJSON_REFUSES, "line 1 column 4: expected a value, not \"\xC2\xA0\""},

    /* Strings: cJSON copies every byte that is no quote or backslash. */
    {"\"a\nb\"", CJSON_TAKES, "line 1 column 3: a control character in a string"},
    {"\"\x01\"", CJSON_TAKES, "line 1 column 2: a control character in a string"},
    {"\"\xFF\"", CJSON_TAKES, "line 1 column 2: a string that is not UTF-8"},
    {"\"\xC0\x80\"", CJSON_TAKES, "line 1 column 2: a string that is not UTF-8"},
    {"\"\xED\xA0\x80\"", CJSON_TAKES, "line 1 column 2: a string that is not UTF-8"},
    {"\"\xE2\x82\"", CJSON_TAKES, "line 1 column 2: a string that is not UTF-8"},
    {"{\"\xFF\":1}", CJSON_TAKES, "line 1 column 3: a string that is not UTF-8"},
    /* Bad digits read as 0 there, and a NUL ends the string. */
    {"\"\\uZZZZ\"", CJSON_TAKES, "line 1 column 4: expected a hexadecimal digit, not \"Z\""},
    {"\"\\u12\"", CJSON_REFUSES, "line 1 column 6: expected a hexadecimal digit, not \"\\\"\""},
    {"\"\\ud800\"", CJSON_REFUSES, "line 1 column 2: half of a surrogate pair in a string"},
    {"\"\\udc00\"", CJSON_REFUSES, "line 1 column 2: half of a surrogate pair in a string"},
    {"\"\\ud800\\u0041\"", CJSON_REFUSES, "line 1 column 2: half of a surrogate pair in a string"},
    {"\"\\ud800\\ud800\"", CJSON_REFUSES, "line 1 column 2: half of a surrogate pair in a string"},
    {"\"\\ud800\\ue000\"", CJSON_REFUSES, "line 1 column 2: half of a surrogate pair in a string"},
    {"\"\\ud83d\\u\"", CJSON_REFUSES, "line 1 column 10: expected a hexadecimal digit, not \"\\\"\""},
    {"\"\\x41\"", CJSON_REFUSES,
     "line 1 column 3: expected one of \"\\/bfnrtu behind a backslash, not \"x\""},
    {"\"\\", CJSON_REFUSES,
     "line 1 column 3: expected one of \"\\/bfnrtu behind a backslash, but the text ends"},
    {"\"a", CJSON_REFUSES, "line 1 column 3: expected the end of a string, but the text ends"},
    {"'a'", CJSON_REFUSES, "line 1 column 1: expected a value, not \"'\""},

    /* Names: cJSON keeps them all, and finds the first. */
    {"{\"a\":1,\"b\":2,\"a\":3}", CJSON_TAKES, "line 1 column 14: \"a\" appears twice in its object"},
    {"{\"a\":1,\"\\u0061\":2}", CJSON_TAKES,
     "line 1 column 8: \"\\u0061\" appears twice in its object"},
    {"[{\"b\":[{\"a\":1}],\n\"a\":{\"\xC3\xA4\":1,\"\xC3\xA4\":1}}]", CJSON_TAKES,
     "line 2 column 12: \"\xC3\xA4\" appears twice in its object"},
    {"{a:1}", CJSON_REFUSES, "line 1 column 2: expected a name in quotes, not \"a\""},
    {"{1:1}", CJSON_REFUSES, "line 1 column 2: expected a name in quotes, not \"1\""},

    /* Structure. */
    {"", CJSON_REFUSES, "line 1 column 1: expected a value, but the text ends"},
    {" \n ", CJSON_REFUSES, "line 2 column 2: expected a value, but the text ends"},
    {"{\n  \"a\": 1,\n}", CJSON_REFUSES, "line 3 column 1: expected a name in quotes, not \"}\""},
    {"[1,]", CJSON_REFUSES, "line 1 column 4: expected a value, not \"]\""},
    {"[1 2]", CJSON_REFUSES, "line 1 column 4: expected a comma or a closing bracket, not \"2\""},
    {"[\"\xC3\xA4\",1}", CJSON_REFUSES,
     "line 1 column 7: expected a comma or a closing bracket, not \"}\""},
    {"{\"a\":1 \"b\":2}", CJSON_REFUSES,
     "line 1 column 8: expected a comma or a closing brace, not \"\\\"\""},
    {"{\"a\" 1}", CJSON_REFUSES, "line 1 column 6: expected a colon, not \"1\""},
    {"{\"a\"", CJSON_REFUSES, "line 1 column 5: expected a colon, but the text ends"},
    {"{", CJSON_REFUSES, "line 1 column 2: expected a name in quotes, but the text ends"},
    {"]", CJSON_REFUSES, "line 1 column 1: expected a value, not \"]\""},
    {"tru", CJSON_REFUSES, "line 1 column 1: expected a value, not \"t\""},
    {"True", CJSON_REFUSES, "line 1 column 1: expected a value, not \"T\""},
    {"/**/1", CJSON_REFUSES, "line 1 column 1: expected a value, not \"/\""},
};
// clang-format on

static void what_rfc_8259_does_not_allow_is_refused_where_it_stands(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++)
        assert_refused(refusals[i].text, strlen(refusals[i].text), JSON_STRICT,
                       refusals[i].message);
}

/* The rows above say why the scanner is there; this keeps them true. */
static void cjson_takes_what_the_table_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        cJSON *tree = cJSON_Parse(refusals[i].text);
        if ((tree != NULL) != (refusals[i].cjson == CJSON_TAKES)) fail_msg("%s", refusals[i].text);
        cJSON_Delete(tree);
    }
}

/* A NUL neither ends a text nor is a blank, unlike in cJSON. */
static void nul_bytes_are_refused_wherever_they_stand(void **state)
{
    (void)state;
    assert_refused("{}\0\0", 4, JSON_STRICT,
                   "line 1 column 3: expected the end of the text, not \"\\x00\"");
    assert_refused("[\0]", 3, JSON_STRICT, "line 1 column 2: expected a value, not \"\\x00\"");
    assert_refused("\"\0\"", 3, JSON_STRICT, "line 1 column 2: a control character in a string");
    assert_refused(
        "\"\\\0\"", 4, JSON_STRICT,
        "line 1 column 3: expected one of \"\\/bfnrtu behind a backslash, not \"\\x00\"");
    assert_refused("\"\\u\0000\"", 6, JSON_STRICT,
                   "line 1 column 4: expected a hexadecimal digit, not \"\\x00\"");
}

/* Every beginning of a valid text is refused or valid, and read within its
 * bounds: the copy has no byte behind it. */
static void a_text_cut_anywhere_is_never_read_past_its_end(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":[1,-2.5e+10,true,false,null,{}],\"\\u00e4\":\"\\ud83d\\ude00\\n\xE2\x82\xAC\"}";
    for (size_t n = 0; n < sizeof text - 1; n++) {
        char *cut = malloc(n ? n : 1);
        memcpy(cut, text, n);
        cJSON *tree;
        assert_int_equal(json_parse(cut, n, JSON_STRICT, &tree, NULL), ERR_CORRUPT);
        free(cut);
    }
    cJSON_Delete(parsed(text));
}

static void names_are_told_apart_by_case_and_object(void **state)
{
    (void)state;
    cJSON *tree = parsed("{\"dtype\":1,\"Dtype\":{\"dtype\":2},\"DTYPE\":[{\"x\":1},{\"x\":1}]}");
    uint64_t v;
    assert_true(json_as_u64(json_get(tree, "dtype"), &v));
    assert_int_equal(v, 1);
    assert_true(json_as_u64(json_get(json_get(tree, "Dtype"), "dtype"), &v));
    assert_int_equal(v, 2);
    assert_null(json_get(tree, "dtypE"));
    assert_null(json_get(json_get(tree, "DTYPE"), "x"));
    assert_null(json_get(NULL, "x"));
    cJSON_Delete(tree);
}

/* ---- numbers ---- */

static void python_numbers_are_taken_where_allowed(void **state)
{
    (void)state;
    static const char text[] = "[NaN,Infinity,-Infinity,-1]";
    cJSON *tree;
    double v;
    assert_int_equal(json_parse(text, strlen(text), JSON_NAN, &tree, NULL), OK);
    assert_printed(tree, -1, text);
    assert_true(json_as_double(cJSON_GetArrayItem(tree, 0), &v) && isnan(v));
    assert_true(json_as_double(cJSON_GetArrayItem(tree, 1), &v) && isinf(v) && v > 0);
    assert_true(json_as_double(cJSON_GetArrayItem(tree, 2), &v) && isinf(v) && v < 0);
    cJSON_Delete(tree);
    assert_refused("-NaN", 4, JSON_NAN, "line 1 column 2: expected a digit, not \"N\"");
    assert_refused("Inf", 3, JSON_NAN, "line 1 column 1: expected a digit, not \"I\"");
}

static void integers_are_exact_or_none(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_u64, is_i64;
        uint64_t u64;
        int64_t i64;
    } cases[] = {
        {"0", true, true, 0, 0},
        {"9007199254740993", true, true, 9007199254740993, 9007199254740993},
        {"9223372036854775807", true, true, INT64_MAX, INT64_MAX},
        {"9223372036854775808", true, false, 1ull << 63, 0},
        {"18446744073709551615", true, false, UINT64_MAX, 0},
        {"18446744073709551616", false, false, 0, 0},
        {"-1", false, true, 0, -1},
        {"-9223372036854775808", false, true, 0, INT64_MIN},
        {"-9223372036854775809", false, false, 0, 0},
        {"-0", false, true, 0, 0},
        {"2.0", true, true, 2, 2}, /* Python's json makes floats of them, and counts with these */
        {"1e3", true, true, 1000, 1000},
        {"-2.50e1", false, true, 0, -25},
        {"0.0", true, true, 0, 0},
        {"-0.0", false, true, 0, 0},
        {"8.5", false, false, 0, 0},
        {"1e-3", false, false, 0, 0},
        {"9007199254740991.0", true, true, 9007199254740991, 9007199254740991},
        {"9007199254740992.0", false, false, 0, 0}, /* 2^53 + 1 reads so, too */
        {"-9007199254740992.0", false, false, 0, 0},
        {"1e400", false, false, 0, 0},
        {"\"2\"", false, false, 0, 0},
        {"true", false, false, 0, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        cJSON *item = parsed(cases[i].text);
        uint64_t u64 = 0;
        int64_t i64 = 0;
        assert_int_equal(json_as_u64(item, &u64), cases[i].is_u64);
        assert_int_equal(json_as_i64(item, &i64), cases[i].is_i64);
        assert_true(u64 == cases[i].u64);
        assert_true(i64 == cases[i].i64);
        cJSON_Delete(item);
    }
    cJSON *nan = NULL;
    assert_int_equal(json_parse("NaN", 3, JSON_NAN, &nan, &(struct error){0}), OK);
    assert_false(json_as_u64(nan, &(uint64_t){0}) || json_as_i64(nan, &(int64_t){0}));
    cJSON_Delete(nan);
    assert_false(json_as_u64(NULL, &(uint64_t){0}));
    assert_false(json_as_i64(NULL, &(int64_t){0}));
    assert_false(json_as_double(NULL, &(double){0}));
    assert_null(json_as_text(NULL));
    assert_false(json_is_number(NULL));
}

static void built_numbers_print_exactly(void **state)
{
    (void)state;
    cJSON *tree = cJSON_CreateArray();
    cJSON_AddItemToArray(tree, json_new_u64(UINT64_MAX));
    cJSON_AddItemToArray(tree, json_new_i64(INT64_MIN));
    assert_printed(tree, -1, "[18446744073709551615,-9223372036854775808]");
    cJSON_Delete(tree);
}

/* Python's repr of these numbers. */
static void doubles_have_the_digits_of_python(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {0.1, "0.1"},
        {-0.1, "-0.1"},
        {1e-5, "1e-05"},
        {1.5e-7, "1.5e-07"},
        {0.0001, "0.0001"},
        {0.00012345, "0.00012345"},
        {10000, "10000.0"},
        {100000, "100000.0"},
        {500000, "500000.0"},
        {123456.789, "123456.789"},
        {1e15, "1000000000000000.0"},
        {9007199254740993.0, "9007199254740992.0"},
        {1e16, "1e+16"},
        {1.2345678901234568e20, "1.2345678901234568e+20"},
        {1e100, "1e+100"},
        {2.0 / 3, "0.6666666666666666"},
        {0x1p-44, "5.684341886080802e-14"}, /* the nearest 16 digits lie outside on one side */
        {DBL_MAX, "1.7976931348623157e+308"},
        {DBL_MIN, "2.2250738585072014e-308"},
        {DBL_TRUE_MIN, "5e-324"},
        {9.5367431640625e-07, "9.5367431640625e-07"},
        {INFINITY, "Infinity"},
        {-INFINITY, "-Infinity"},
        {NAN, "NaN"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        cJSON *item = json_new_double(cases[i].value);
        assert_printed(item, -1, cases[i].text);
        cJSON_Delete(item);
    }
}

static void random_doubles_read_back_as_they_were(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)time(NULL), x = seed * 2 + 1;
    for (int i = 0; i < 20000; i++) {
        double v, back;
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift64 */
        memcpy(&v, &x, sizeof v);
        if (!isfinite(v)) continue;
        cJSON *item = json_new_double(v);
        assert_true(json_as_double(item, &back));
        if (memcmp(&v, &back, sizeof v)) fail_msg("seed %llu: %a", (unsigned long long)seed, v);
        cJSON_Delete(item);
    }
}

/* ---- printing ---- */

/* json.dump(..., indent=2, ensure_ascii=False), and indent=0. */
static void indented_text_is_that_of_python(void **state)
{
    (void)state;
    cJSON *tree = parsed("{\"a\":[1,[],{},[2.50]],\"b\":{\"\xC3\xA4\":null},\"c\":[true,\"x\"]}");
    assert_printed(tree, 2,
                   "{\n"
                   "  \"a\": [\n"
                   "    1,\n"
                   "    [],\n"
                   "    {},\n"
                   "    [\n"
                   "      2.50\n"
                   "    ]\n"
                   "  ],\n"
                   "  \"b\": {\n"
                   "    \"\xC3\xA4\": null\n"
                   "  },\n"
                   "  \"c\": [\n"
                   "    true,\n"
                   "    \"x\"\n"
                   "  ]\n"
                   "}");
    cJSON_Delete(tree);
    tree = parsed("[1,{\"a\":2}]");
    assert_printed(tree, 0, "[\n1,\n{\n\"a\": 2\n}\n]");
    cJSON_Delete(tree);
}

/* For a file's name, say: the output must be JSON all the same. */
static void text_that_is_no_utf8_is_printed_with_replacement_characters(void **state)
{
    (void)state;
    struct strbuf out = {0};
    json_print_text(&out, "a\xFF\xC3(\xC0\x80\xC0");
    assert_string_equal(out.data, "\"a\xEF\xBF\xBD\xEF\xBF\xBD(\\u0000\xEF\xBF\xBD\"");
    cJSON *back = parsed(out.data);
    assert_string_equal(json_as_text(back), "a\xEF\xBF\xBD\xEF\xBF\xBD(\xC0\x80\xEF\xBF\xBD");
    cJSON_Delete(back);
    strbuf_release(&out);
}

/* ---- files, and size ---- */

static void a_file_is_read_and_named_in_what_is_wrong_with_it(void **state)
{
    (void)state;
    char path[TEMPORARY_PATH], message[TEMPORARY_PATH + 128];
    struct error err = {0};
    cJSON *tree;
    int fd = temporary_file(path);
    assert_true(fd >= 0);
    assert_int_equal(file_write(fd, path, "{\"a\": 1}\n", 9, 0, &err), OK);
    assert_int_equal(json_read_file(path, 9, JSON_STRICT, &tree, &err), OK);
    assert_printed(tree, -1, "{\"a\":1}");
    cJSON_Delete(tree);

    assert_int_equal(json_read_file(path, 8, JSON_STRICT, &tree, &err), ERR_CORRUPT);
    snprintf(message, sizeof message, "%s: 9 bytes, at most 8 were expected", path);
    assert_string_equal(err.text, message);
    assert_null(tree);

    assert_int_equal(file_write(fd, path, "[", 1, 0, &err), OK);
    assert_int_equal(json_read_file(path, 100, JSON_STRICT, &tree, &err), ERR_CORRUPT);
    snprintf(message, sizeof message,
             "%s: line 1 column 5: expected a comma or a closing bracket, not \":\"", path);
    assert_string_equal(err.text, message);

    assert_int_equal(file_write(fd, path, "\xEF\xBB\xBF[32.0] \n", 10, 0, &err), OK);
    assert_int_equal(json_read_file(path, 100, JSON_STRICT, &tree, &err), OK);
    assert_printed(tree, -1, "[32.0]");
    cJSON_Delete(tree);
    assert_int_equal(file_write(fd, path, "\xEF\xBB\xBF\xEF\xBB\xBF[]   ", 11, 0, &err), OK);
    assert_int_equal(json_read_file(path, 100, JSON_STRICT, &tree, &err), ERR_CORRUPT);

    close(fd);
    unlink(path);
    assert_int_equal(json_read_file(path, 100, JSON_STRICT, &tree, &err), ERR_IO);
    assert_null(tree);
}

/* The header of a checkpoint with many experts: 6 MB, 47,000 tensors. */
static void add_header(struct strbuf *out)
{
    unsigned long long at = 0;
    strbuf_add_text(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < 47000; i++, at += 29360128)
        strbuf_printf(out,
                      ",\"model.layers.%d.mlp.experts.%d.down_proj.weight\":{\"dtype\":\"BF16\","
                      "\"shape\":[7168,2048],\"data_offsets\":[%llu,%llu]}",
                      i / 768, i % 768, at, at + 29360128);
    strbuf_add_char(out, '}');
}

/* CPU time of this process: other programs and a slow emulator do not count. */
static double cpu_seconds_to_parse(const struct strbuf *text, enum status expected)
{
    struct timespec from, to;
    cJSON *tree;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    assert_int_equal(json_parse(text->data, text->length, JSON_STRICT, &tree, NULL), expected);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    cJSON_Delete(tree);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/* As many names as the header, each in an object of its own, so none is
 * repeated. */
static void add_names_apart(struct strbuf *out)
{
    strbuf_add_char(out, '[');
    for (int i = 0; i < 47000; i++)
        strbuf_printf(out,
                      "{\"model.layers.%d.mlp.experts.%d.down_proj.weight\":{\"dtype\":\"BF16\","
                      "\"shape\":[7168,2048],\"data_offsets\":[0,29360128]}},",
                      i / 768, i % 768);
    strbuf_add_text(out, "0]");
}

/* A quadratic search for repeated names takes 50 times as long. */
static void names_given_twice_are_found_in_a_moment(void **state)
{
    (void)state;
    struct strbuf apart = {0}, header = {0};
    add_names_apart(&apart);
    add_header(&header);
    double limit = 15 * cpu_seconds_to_parse(&apart, OK);
    assert_true(cpu_seconds_to_parse(&header, OK) < limit);

    header.length--;
    strbuf_add_text(&header, ",\"model.layers.0.mlp.experts.0.down_proj.weight\":0}");
    assert_true(cpu_seconds_to_parse(&header, ERR_CORRUPT) < limit);
    strbuf_release(&header);
    strbuf_release(&apart);
}

static void an_item_is_replaced_in_its_place_or_added(void **state)
{
    (void)state;
    struct error err;
    struct strbuf text = {0};
    cJSON *tree;
    assert_int_equal(json_parse("{\"a\":1,\"A\":2,\"b\":3}", 19, JSON_STRICT, &tree, &err), OK);
    json_put(tree, "A", json_new_u64(7));
    json_put(tree, "c", cJSON_CreateNull());
    json_print(&text, tree, -1);
    assert_string_equal(text.data, "{\"a\":1,\"A\":7,\"b\":3,\"c\":null}");
    strbuf_release(&text);
    cJSON_Delete(tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_print_as_they_were_written),
        cmocka_unit_test(all_four_blanks_may_stand_between_all_tokens),
        cmocka_unit_test(escapes_become_their_characters),
        cmocka_unit_test(nul_in_a_string_stands_as_c0_80_and_is_printed_as_an_escape),
        cmocka_unit_test(nesting_is_taken_up_to_128),
        cmocka_unit_test(a_million_open_brackets_are_refused_without_a_deep_stack),
        cmocka_unit_test(what_rfc_8259_does_not_allow_is_refused_where_it_stands),
        cmocka_unit_test(cjson_takes_what_the_table_says),
        cmocka_unit_test(nul_bytes_are_refused_wherever_they_stand),
        cmocka_unit_test(a_text_cut_anywhere_is_never_read_past_its_end),
        cmocka_unit_test(names_are_told_apart_by_case_and_object),
        cmocka_unit_test(python_numbers_are_taken_where_allowed),
        cmocka_unit_test(integers_are_exact_or_none),
        cmocka_unit_test(built_numbers_print_exactly),
        cmocka_unit_test(doubles_have_the_digits_of_python),
        cmocka_unit_test(random_doubles_read_back_as_they_were),
        cmocka_unit_test(indented_text_is_that_of_python),
        cmocka_unit_test(text_that_is_no_utf8_is_printed_with_replacement_characters),
        cmocka_unit_test(a_file_is_read_and_named_in_what_is_wrong_with_it),
        cmocka_unit_test(an_item_is_replaced_in_its_place_or_added),
        cmocka_unit_test(names_given_twice_are_found_in_a_moment),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
