#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "common/yaml.h"
#include "tests/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[TEMPORARY_PATH];

static int make_file(void **state)
{
    (void)state;
    int fd = temporary_file(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static enum status read_bytes(const char *text, size_t length, cJSON **tree, struct error *err)
{
    assert_int_equal(file_replace_all(path, text, length, false, err), OK);
    return yaml_read_file(path, 1 << 20, tree, err);
}

/* The tree of a text, as compact JSON in a buffer of ours. */
static const char *read_as_json(const char *text)
{
    static char buffer[4096];
    struct error err = {0};
    struct strbuf out = {0};
    cJSON *tree;
    if (read_bytes(text, strlen(text), &tree, &err)) fail_msg("%s: %s", text, err.text);
    json_print(&out, tree, -1);
    assert_true(out.length < sizeof buffer);
    memcpy(buffer, out.data, out.length + 1);
    cJSON_Delete(tree);
    strbuf_release(&out);
    return buffer;
}

static void assert_refused(const char *text, const char *message)
{
    struct error err = {0};
    char expected[TEMPORARY_PATH + 256];
    cJSON *tree = NULL;
    assert_int_equal(read_bytes(text, strlen(text), &tree, &err), ERR_CORRUPT);
    assert_null(tree);
    snprintf(expected, sizeof expected, "%s: %s", path, message);
    assert_string_equal(err.text, expected);
}

/* ---- reading ---- */

/* Left as in a file, right what yaml.safe_load of PyYAML 6 makes of it. */
static void plain_scalars_are_what_pyyaml_takes_them_for(void **state)
{
    (void)state;
    // clang-format off
    static const struct {
        const char *yaml, *json;
    } cases[] = {
        {"", "null"}, {"~", "null"}, {"null", "null"}, {"Null", "null"}, {"NULL", "null"},
        {"nUll", "\"nUll\""}, {"none", "\"none\""},

        {"yes", "true"}, {"Yes", "true"}, {"YES", "true"}, {"on", "true"}, {"ON", "true"},
        {"true", "true"}, {"True", "true"}, {"TRUE", "true"},
        {"no", "false"}, {"No", "false"}, {"off", "false"}, {"Off", "false"}, {"False", "false"},
        {"y", "\"y\""}, {"n", "\"n\""}, {"yEs", "\"yEs\""}, {"truely", "\"truely\""},

        {"0", "0"}, {"-1", "-1"}, {"+12", "12"}, {"1_000_000", "1000000"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"0x1F", "31"}, {"-0x10", "-16"}, {"0xffff_ffff_ffff_ffff", "18446744073709551615"},
        {"0b101", "5"}, {"017", "15"}, {"-010", "-8"}, {"00", "0"}, {"0_7", "7"},
        {"1:30", "90"}, {"-1:30:00", "-5400"}, {"190:20:30", "685230"},
        {"0o17", "\"0o17\""}, {"08", "\"08\""}, {"1:60", "\"1:60\""}, {"_1", "\"_1\""},
        {"1,000", "\"1,000\""}, {"0X1F", "\"0X1F\""}, {"1 2", "\"1 2\""},

        {"1.5", "1.5"}, {"10000.0", "10000.0"}, {"1.0e-06", "1.0e-06"}, {"-1.5E+3", "-1.5E+3"},
        {"1.", "1.0"}, {".5", "0.5"}, {"+1.5", "1.5"}, {"01.50", "1.5"}, {"1_0.2_5", "10.25"},
        {"1:30.5", "90.5"}, {"-1:00.5", "-60.5"}, {"1.e+3", "1000.0"},
        {".inf", "Infinity"}, {"-.Inf", "-Infinity"}, {"+.INF", "Infinity"}, {".nan", "NaN"},
        {".NaN", "NaN"}, {"1e5", "\"1e5\""}, {"1e-5", "\"1e-5\""}, {"1.5e5", "\"1.5e5\""},
        {"-.5", "\"-.5\""}, {"inf", "\"inf\""}, {"-.nan", "\"-.nan\""}, {"1.2.3", "\"1.2.3\""},
        {".", "\".\""}, {"-", "[null]"},

        {"\"1\"", "\"1\""}, {"'true'", "\"true\""}, {"''", "\"\""}, {"!!str 1", "\"1\""},
        {"=", "\"=\""}, {"<<", "\"<<\""},
        {"\"\\0\\x41\\u00e4\\U0001F6A2\\n\"", "\"\\u0000A\xC3\xA4\xF0\x9F\x9A\xA2\\n\""},
        {"|\n  a\n  b\n", "\"a\\nb\\n\""}, {">-\n  a\n  b\n", "\"a b\""},

        /* Unlike PyYAML: it makes dates of these two, and refuses a number
         * without digits. */
        {"2001-12-14", "\"2001-12-14\""},
        {"2001-12-14t21:59:43.10-05:00", "\"2001-12-14t21:59:43.10-05:00\""},
        {"0x_", "\"0x_\""},
        /* Integers beyond 64 bits, other than decimal ones, stay text. */
        {"0x10000000000000000", "\"0x10000000000000000\""},
        {"307445734561825860:16", "\"307445734561825860:16\""},
        {"307445734561825860:15", "18446744073709551615"},
    };
    // clang-format on
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_string_equal(read_as_json(cases[i].yaml), cases[i].json);
}

static void numbers_have_values_however_they_were_written(void **state)
{
    (void)state;
    struct error err = {0};
    cJSON *tree;
    uint64_t n;
    double v;
    static const char text[] = "layers: 0x20\neps: 1.0e-06\n";
    assert_int_equal(read_bytes(text, strlen(text), &tree, &err), OK);
    assert_true(json_as_u64(json_get(tree, "layers"), &n));
    assert_int_equal(n, 32);
    assert_true(json_as_double(json_get(tree, "eps"), &v));
    assert_true(v == 1e-6);
    cJSON_Delete(tree);
}

static void mappings_and_sequences_nest_in_both_styles(void **state)
{
    (void)state;
    assert_string_equal(read_as_json("a:\n"
                                     "  - 1\n"
                                     "  - b: {c: [x, 'y: z'], d: }\n"
                                     "    e: []\n"
                                     "f: {} # nothing\n"
                                     "? long key\n"
                                     ": 2\n"
                                     "1: yes\n"),
                        "{\"a\":[1,{\"b\":{\"c\":[\"x\",\"y: z\"],\"d\":null},\"e\":[]}],\"f\":{},"
                        "\"long key\":2,\"1\":true}");
}

static void an_empty_document_is_null(void **state)
{
    (void)state;
    assert_string_equal(read_as_json(""), "null");
    assert_string_equal(read_as_json("# nothing here\n"), "null");
    assert_string_equal(read_as_json("---\n...\n"), "null");
}

static void aliases_are_copied_out(void **state)
{
    (void)state;
    assert_string_equal(read_as_json("params_dtype: &id001\n"
                                     "  _target_: torch.float32\n"
                                     "pipeline_dtype: *id001\n"
                                     "list: [&n 7, *n, &n 8, *n]\n"
                                     "again: *n\n"),
                        "{\"params_dtype\":{\"_target_\":\"torch.float32\"},"
                        "\"pipeline_dtype\":{\"_target_\":\"torch.float32\"},"
                        "\"list\":[7,7,8,8],\"again\":8}");
}

static void merge_keys_fill_in_what_is_not_there(void **state)
{
    (void)state;
    assert_string_equal(read_as_json("base: &base {tp: 1, pp: 2}\n"
                                     "more: &more {pp: 3, ep: 4}\n"
                                     "one: {<<: *base, tp: 8}\n"
                                     "two: {tp: 8, <<: [*base, *more]}\n"
                                     "own: {<<: {a: &x 1}, b: *x}\n"
                                     "text: {'<<': 1}\n"),
                        "{\"base\":{\"tp\":1,\"pp\":2},\"more\":{\"pp\":3,\"ep\":4},"
                        "\"one\":{\"tp\":8,\"pp\":2},\"two\":{\"tp\":8,\"pp\":2,\"ep\":4},"
                        "\"own\":{\"b\":1,\"a\":1},\"text\":{\"<<\":1}}");
}

static void tags_are_dropped(void **state)
{
    (void)state;
    assert_string_equal(
        read_as_json("a: !!python/object:nemo.Config {b: !custom 1}\nc: !!set {d}\n"),
        "{\"a\":{\"b\":1},\"c\":{\"d\":null}}");
}

static void what_we_cannot_keep_is_refused_where_it_stands(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "line 3 column 1: a repeated key in a mapping"},
        {"{a: 1, \"\\x61\": 2}", "line 1 column 8: a repeated key in a mapping"},
        {"? [a, b]\n: 1\n", "line 1 column 3: a key that is not a scalar"},
        {"a: &x 1\n*x : 2\n", "line 2 column 1: a key that is not a scalar"},
        {"a: *x\n", "line 1 column 4: an alias of an unknown anchor"},
        {"a: &x [1, *x]\n", "line 1 column 11: an alias within its own anchor"},
        {"a: &x 1\nb: &x {c: *x}\n", "line 2 column 11: an alias within its own anchor"},
        {"<<: 1\n", "line 1 column 1: << takes a mapping or a sequence of mappings"},
        {"a: 1\n<<: [{b: 2}, 3]\n",
         "line 2 column 1: << takes a mapping or a sequence of mappings"},
        {"a: 1\n---\nb: 2\n", "line 2 column 1: a second document"},
        {"a: [1\nb: 2\n", "line 2 column 2: did not find expected ',' or ']'"},
        {"a: 1\n\tb: 2\n", "line 2 column 1: found a tab character that violates indentation"},
        {"a: 'b\n", "line 2 column 1: found unexpected end of stream"},
        {"a: \xFF\n", "byte 3: invalid leading UTF-8 octet"},
        {"a: \x01\n", "byte 3: control characters are not allowed"},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_refused(cases[i].yaml, cases[i].message);
}

static void nesting_is_taken_up_to_128(void **state)
{
    (void)state;
    char text[260];
    memset(text, '[', 129);
    memset(text + 129, ']', 129);
    text[258] = '\0';
    assert_refused(text, "line 1 column 129: nested more than 128 deep");
    text[257] = '\0';
    read_as_json(text + 1);
    /* The alias stands 65 deep and is 64 deep itself. */
    char *end = text + sprintf(text, "[&x ");
    memset(end, '[', 64);
    memset(end + 64, ']', 64);
    end += 128;
    end += sprintf(end, ",");
    memset(end, '[', 64);
    strcpy(end + 64, "*x");
    assert_refused(text, "line 1 column 198: nested more than 128 deep");
}

/* Nine aliases of nine aliases and so on: 9^9 nodes from 300 bytes. a5 has
 * (9^7 - 1) / 8, and so is the last that fits. */
static void aliases_that_multiply_are_refused(void **state)
{
    (void)state;
    struct strbuf text = {0};
    strbuf_add_text(&text, "a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for (int i = 1; i < 9; i++) {
        strbuf_printf(&text, "a%d: &a%d [", i, i);
        for (int k = 0; k < 9; k++)
            strbuf_printf(&text, "*a%d%s", i - 1, k < 8 ? "," : "]\n");
    }
    assert_refused(text.data, "line 7 column 10: more than 1,000,000 nodes");
    strbuf_release(&text);
}

static void a_file_larger_than_allowed_is_refused(void **state)
{
    (void)state;
    struct error err = {0};
    cJSON *tree;
    assert_int_equal(file_replace_all(path, "a: 1\n", 5, false, &err), OK);
    assert_int_equal(yaml_read_file(path, 4, &tree, &err), ERR_CORRUPT);
    assert_non_null(strstr(err.text, ": 5 bytes, at most 4 were expected"));
    assert_int_equal(yaml_read_file("/tmp/no such file", 4, &tree, &err), ERR_IO);
}

/* ---- printing ---- */

static cJSON *from_json(const char *text)
{
    cJSON *tree;
    assert_int_equal(json_parse(text, strlen(text), JSON_NAN, &tree, NULL), OK);
    return tree;
}

static void assert_printed(const char *json, const char *yaml)
{
    cJSON *tree = from_json(json);
    struct strbuf out = {0};
    yaml_print(&out, tree);
    assert_string_equal(out.data, yaml);
    strbuf_release(&out);
    cJSON_Delete(tree);
}

/* As yaml.safe_dump(tree, sort_keys=False, allow_unicode=True) of PyYAML 6
 * prints them. */
static void trees_print_in_block_style_as_from_pyyaml(void **state)
{
    (void)state;
    assert_printed("{\"a\":[1,[],{},[2,{\"b\":null,\"c\":\"x y\"}]],\"d\":{\"\xC3\xA4\":true}}",
                   "a:\n"
                   "- 1\n"
                   "- []\n"
                   "- {}\n"
                   "- - 2\n"
                   "  - b: null\n"
                   "    c: x y\n"
                   "d:\n"
                   "  \xC3\xA4: true\n");
    assert_printed("[1e-05,1e+16,1.5,2E5,-1e5,0.1,-3,NaN,Infinity,-Infinity]", "- 1.0e-05\n"
                                                                               "- 1.0e+16\n"
                                                                               "- 1.5\n"
                                                                               "- 2.0e+5\n"
                                                                               "- -1.0e+5\n"
                                                                               "- 0.1\n"
                                                                               "- -3\n"
                                                                               "- .nan\n"
                                                                               "- .inf\n"
                                                                               "- -.inf\n");
}

static void text_that_would_read_as_something_else_is_quoted(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",     "null", "~",    "yes",  "Off", "true", "1",          "-1.5",      "0x1F",
        "1:30", ".inf", ".nan", "1_0",  "0b1", "017",  "2001-12-14", "=",         "<<",
        "- a",  "a: b", "a #b", "#",    "[",   "{",    "*a",         "&a",        "!a",
        "|",    ">",    "%a",   "@a",   "`a",  "\"",   "'",          " a",        "a ",
        "a\nb", "\n",   "---",  "...",  "?",   "? a",  "-",          ":",         "a:",
        "\t",   "\x7F", "\r",   "\x01", ",",   "]",    "1.0e+5",     "a\n\n b\n",
    };
    cJSON *tree = cJSON_CreateArray(), *back;
    struct strbuf out = {0};
    struct error err = {0};
    for (size_t i = 0; i < COUNT(texts); i++) {
        cJSON *member = cJSON_CreateObject();
        cJSON_AddItemToObject(member, texts[i], cJSON_CreateString(texts[i]));
        cJSON_AddItemToArray(tree, member);
    }
    yaml_print(&out, tree);
    assert_int_equal(read_bytes(out.data, out.length, &back, &err), OK);
    if (!cJSON_Compare(tree, back, true)) fail_msg("%s", out.data);
    cJSON_Delete(tree);
    cJSON_Delete(back);
    strbuf_release(&out);
}

static void text_that_needs_no_quotes_has_none(void **state)
{
    (void)state;
    assert_printed("{\"_target_\":\"torch.nn.functional.silu\",\"path\":\"/a b/c-d_e.bin\","
                   "\"e\":\"1e-5\",\"version\":\"1.2.3\"}",
                   "_target_: torch.nn.functional.silu\n"
                   "path: /a b/c-d_e.bin\n"
                   "e: 1e-5\n"
                   "version: 1.2.3\n");
}

static uint64_t seed;

static unsigned random_below(unsigned n)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17; /* xorshift64 */
    return (unsigned)(seed >> 32) % n;
}

static void add_random_text(struct strbuf *out)
{
    static const char *const parts[] = {
        "a",
        "B",
        " ",
        "  ",
        "\n",
        "\t",
        ":",
        ": ",
        "#",
        " #",
        "-",
        "- ",
        "?",
        "\"",
        "'",
        "\\",
        "{",
        "}",
        "[",
        "]",
        ",",
        "&",
        "*",
        "!",
        "|",
        ">",
        "%",
        "@",
        "`",
        "1",
        "0x",
        ".",
        "~",
        "\r",
        "\n\n",
        "...",
        "---",
        "yes",
        "\x7F",
        "\x01",
        "\xC3\xA4",
        "\xC2\x85",
        "\xE2\x80\xA8",
        "\xEF\xBB\xBF",
        "\xF0\x9F\x9A\xA2",
        "\xC0\x80",
        "a longer word and another one ",
    };
    strbuf_clear(out);
    strbuf_add_text(out, "");
    for (unsigned n = random_below(12); n; n--)
        strbuf_add_text(out, parts[random_below(COUNT(parts))]);
}

static cJSON *random_tree(unsigned depth)
{
    struct strbuf text = {0};
    bool is_object = random_below(2);
    cJSON *tree;
    if (depth && random_below(2)) {
        tree = is_object ? cJSON_CreateObject() : cJSON_CreateArray();
        for (unsigned n = random_below(5); n; n--) {
            add_random_text(&text);
            cJSON *child = random_tree(depth - 1);
            if (!is_object)
                cJSON_AddItemToArray(tree, child);
            else if (json_get(tree, text.data))
                cJSON_Delete(child);
            else
                cJSON_AddItemToObject(tree, text.data, child);
        }
    } else if (random_below(4) == 0) {
        tree = json_new_i64((int64_t)seed);
    } else {
        add_random_text(&text);
        tree = cJSON_CreateString(text.data);
    }
    strbuf_release(&text);
    return tree;
}

static void random_trees_read_back_as_they_were_printed(void **state)
{
    (void)state;
    struct strbuf out = {0};
    struct error err = {0};
    uint64_t first = seed = 20261121;
    for (int i = 0; i < 300; i++) {
        cJSON *tree = random_tree(4), *back = NULL;
        strbuf_clear(&out);
        yaml_print(&out, tree);
        enum status st = read_bytes(out.data, out.length, &back, &err);
        if (st) fail_msg("seed %llu, tree %d: %s", (unsigned long long)first, i, err.text);
        if (!cJSON_Compare(tree, back, true))
            fail_msg("seed %llu, tree %d: %s", (unsigned long long)first, i, out.data);
        cJSON_Delete(tree);
        cJSON_Delete(back);
    }
    strbuf_release(&out);
}

static void text_that_is_no_utf8_is_printed_with_replacement_characters(void **state)
{
    (void)state;
    struct strbuf out = {0};
    cJSON *tree = cJSON_CreateString("a\xFF\xC3(\xC0\x80");
    yaml_print(&out, tree);
    assert_string_equal(out.data, "\"a\xEF\xBF\xBD\xEF\xBF\xBD(\\0\"\n");
    cJSON_Delete(tree);
    strbuf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_scalars_are_what_pyyaml_takes_them_for),
        cmocka_unit_test(numbers_have_values_however_they_were_written),
        cmocka_unit_test(mappings_and_sequences_nest_in_both_styles),
        cmocka_unit_test(an_empty_document_is_null),
        cmocka_unit_test(aliases_are_copied_out),
        cmocka_unit_test(merge_keys_fill_in_what_is_not_there),
        cmocka_unit_test(tags_are_dropped),
        cmocka_unit_test(what_we_cannot_keep_is_refused_where_it_stands),
        cmocka_unit_test(nesting_is_taken_up_to_128),
        cmocka_unit_test(aliases_that_multiply_are_refused),
        cmocka_unit_test(a_file_larger_than_allowed_is_refused),
        cmocka_unit_test(trees_print_in_block_style_as_from_pyyaml),
        cmocka_unit_test(text_that_would_read_as_something_else_is_quoted),
        cmocka_unit_test(text_that_needs_no_quotes_has_none),
        cmocka_unit_test(random_trees_read_back_as_they_were_printed),
        cmocka_unit_test(text_that_is_no_utf8_is_printed_with_replacement_characters),
    };
    return cmocka_run_group_tests_name("yaml", tests, make_file, remove_file);
}
