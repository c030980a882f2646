#include "common/args.h"
#include "common/count.h"
#include "tests/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h> /* (fail) is ours, fail its macro */

/* ---- options with several values, in a line and in a file ---- */

struct options {
    bool shuffle, keep, add;
    uint64_t size;
    double lr;
    const char *name;
    struct arg_list data, others, noted, globs;
    struct arg_config config;
};

#define AT(field) offsetof(struct options, field)
static const struct arg args[] = {
    {"--shuffle", ARG_FLAG, AT(shuffle), NULL, NULL, "a flag"},
    {"--no-keep", ARG_FLAG_OFF, AT(keep), NULL, NULL, "a flag that is on"},
    {"--add", ARG_FLAG, AT(add), NULL, NULL, "a flag"},
    {"--no-add", ARG_FLAG_OFF, AT(add), NULL, NULL, "its opposite"},
    {"--size", ARG_UINT, AT(size), "N", NULL, "a number"},
    {"--lr", ARG_FLOAT, AT(lr), "X", NULL, "a real number"},
    {"--name", ARG_TEXT, AT(name), "NAME", NULL, "a text"},
    {"--data", ARG_WORDS, AT(data), "W...", NULL, "several words"},
    {"--other-one --other-two", ARG_NAMED, AT(others), NULL, NULL, NULL},
    {"--other-value", ARG_NAMED, AT(others), "N", NULL, NULL},
    {"--other-list", ARG_NAMED, AT(others), "N...", NULL, NULL},
    {"--noted-list", ARG_NOTED, AT(noted), "N...", NULL, NULL},
    {"--glob", ARG_LIST, AT(globs), "GLOB", NULL, "one of several"},
    {"--from", ARG_POSITIONAL, 0, "FROM", NULL, "the first position"},
    {"--config", ARG_CONFIG, AT(config), "FILE", NULL, "options in a file"},
};
static const struct arg_group groups[] = {{"All", args, COUNT(args), 0}};

static void defaults(void *options)
{
    ((struct options *)options)->keep = true;
}

static const struct command command = {.name = "test",
                                       .groups = groups,
                                       .num_groups = 1,
                                       .options_bytes = sizeof(struct options),
                                       .defaults = defaults};

static const struct command with_positions = {.name = "test",
                                              .positional = "FROM [TO]",
                                              .groups = groups,
                                              .num_groups = 1,
                                              .options_bytes = sizeof(struct options)};
static const struct command *parsed_command = &command;

struct parsed {
    struct options o;
    const char *positional[16];
    size_t num_positional;
    struct error err;
};

static enum status parse(struct parsed *p, const char *const *words)
{
    char *argv[16];
    int argc = 0;
    for (; words[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    memset(p, 0, sizeof *p);
    return args_parse(parsed_command, argc, argv, &p->o, p->positional, &p->num_positional,
                      &p->err);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void check_list(const struct arg_list *l, const char *const *items)
{
    size_t n = 0;
    for (; items[n]; n++) {
        assert_true(n < l->count);
        assert_string_equal(l->items[n], items[n]);
    }
    assert_int_equal(l->count, n);
}

static void refused(const char *const *words, const char *message)
{
    struct parsed p;
    assert_int_equal(parse(&p, words), ERR_USAGE);
    assert_string_equal(p.err.text, message);
    args_release(&command, &p.o);
}

static void words_go_up_to_the_next_option(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&p, WORDS("--data", "0.3", "a", "-1", "-.5", "--shuffle", "--no-keep")),
                     OK);
    check_list(&p.o.data, WORDS("0.3", "a", "-1", "-.5"));
    assert_true(p.o.shuffle && !p.o.keep);
    assert_int_equal(p.num_positional, 0);
    args_release(&command, &p.o);
    assert_int_equal(parse(&p, WORDS("--data", "a", "b", "-", "--", "c")), ERR_USAGE);
    assert_string_equal(p.err.text, "\"c\" is one argument too many");
    args_release(&command, &p.o);
    refused(WORDS("--data"), "--data needs a value");
    refused(WORDS("--data", "--shuffle"),
            "--data needs a value (--data=--shuffle if that is the value)");
}

static void the_last_words_count_and_an_equals_sign_gives_one(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&p, WORDS("--data", "a", "b", "c", "--size", "3", "--data", "d", "e")),
                     OK);
    check_list(&p.o.data, WORDS("d", "e"));
    args_release(&command, &p.o);
    refused(WORDS("--data=a", "b"), "\"b\" is one argument too many");
}

static void named_options_are_kept_as_they_were_typed(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&p, WORDS("--other_two", "--other-value", "3", "--other-list", "1", "2",
                                     "--other-value=4", "--noted-list", "5", "6", "--size", "7")),
                     OK);
    check_list(&p.o.others,
               WORDS("--other_two", "--other-value", "--other-list", "--other-value=4"));
    check_list(&p.o.noted, WORDS("--noted-list", "5"));
    assert_int_equal(p.o.size, 7);
    args_release(&command, &p.o);
    refused(WORDS("--other-tow"), "unknown option --other-tow (did you mean --other-two?)");
}

/* ---- a file ---- */

static char path[TEMPORARY_PATH];

static enum status parse_file(struct parsed *p, const char *yaml, const char *const *words)
{
    const char *line[16] = {0};
    size_t n = 0;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(yaml, f);
    fclose(f);
    for (; words[n]; n++)
        line[n] = words[n];
    line[n++] = "--config";
    line[n++] = path;
    return parse(p, line);
}

static void a_file_comes_before_the_line(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse_file(&p,
                                "shuffle: true\nno_keep: true\nsize: 3\n--lr: 1e-3\nname: '--x'\n"
                                "data: [0.5, a, 2, b]\nother_value: 3\nother-list: [1, 2]\n",
                                WORDS("--size", "4")),
                     OK);
    assert_true(p.o.shuffle && !p.o.keep);
    assert_int_equal(p.o.size, 4);
    assert_true(p.o.lr > 0.00099 && p.o.lr < 0.00101);
    assert_string_equal(p.o.name, "--x");
    check_list(&p.o.data, WORDS("0.5", "a", "2", "b"));
    check_list(&p.o.others, WORDS("--other_value=3", "--other-list"));
    assert_string_equal(p.o.config.path, path);
    args_release(&command, &p.o);
    assert_int_equal(p.o.config.num_words, 0);
}

static void a_file_gives_lists_and_positions(void **state)
{
    (void)state;
    struct parsed p;
    parsed_command = &with_positions;
    assert_int_equal(parse_file(&p, "from: a\nglob: ['*.bias', x]\n", WORDS("--glob", "y")), OK);
    check_list(&p.o.globs, WORDS("*.bias", "x", "y"));
    assert_int_equal(p.num_positional, 1);
    assert_string_equal(p.positional[0], "a");
    args_release(&command, &p.o);
    assert_int_equal(parse_file(&p, "from: a\n", WORDS("--from", "b", "c")), OK);
    assert_int_equal(p.num_positional, 2);
    assert_string_equal(p.positional[0], "b");
    args_release(&command, &p.o);
    assert_int_equal(parse_file(&p, "from: a\n", WORDS("b", "c")), ERR_USAGE);
    assert_string_equal(p.err.text, "\"c\" is one argument too many: FROM is given by --from a");
    args_release(&command, &p.o);
    parsed_command = &command;
}

static void false_and_null_are_not_given(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse_file(&p, "shuffle: false\nsize: null\nno-keep: no\ndata: one\n",
                                WORDS("--data", "x", "y")),
                     OK);
    assert_true(!p.o.shuffle && p.o.keep && p.o.size == 0);
    check_list(&p.o.data, WORDS("x", "y"));
    args_release(&command, &p.o);
    assert_int_equal(parse_file(&p, "", WORDS("--shuffle")), OK);
    args_release(&command, &p.o);
}

#define DIFFER " are the same option, with different values"

static void two_keys_of_an_option_may_say_the_same(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse_file(&p,
                                "size: 3\n--size: 3\nlr: 1e-3\n-lr: 0.001\n"
                                "add: true\nno-add: false\nother-one: true\nother-two: true\n"
                                "noted-list: 1\nother-value: 2\n",
                                WORDS("--shuffle")),
                     OK);
    assert_int_equal(p.o.size, 3);
    assert_true(p.o.add);
    args_release(&command, &p.o);
}

static void mistakes_name_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        {"shuffel: true\n", "unknown option --shuffel (did you mean --shuffle?)"},
        {"shuffle: 1\n", "--shuffle takes no value"},
        {"size: big\n", "--size: \"big\" is not a whole number from 1 to 9223372036854775807"},
        {"size: [1]\n", "size: found a list, expected one value"},
        {"size: {a: 1}\n", "size: found a mapping, expected a value"},
        {"size: true\n", "size: found true, expected a value"},
        {"data: [[1]]\n", "data: a list item is neither a text nor a number"},
        {"data: []\n", "data: an empty list"},
        {"data: [-x]\n", "data: list item \"-x\" looks like an option"},
        {"config: b.yaml\n", "config: a file of options cannot name another"},
        {"size: 1\nname: x\n--size: 2\n", "size (line 1) and --size (line 3)" DIFFER},
        {"other_two: true\n\nother-two: false\n",
         "other_two (line 1) and other-two (line 3)" DIFFER},
        {"\nsize: 1\n--size: null\n", "size (line 2) and --size (line 3)" DIFFER},
        {"add: true\nno-add: true\n", "add (line 1) and no-add (line 2)" DIFFER},
        {"no-add: false\nadd: false\n", "no-add (line 1) and add (line 2)" DIFFER},
        {"data: [a, b]\n-data: [a]\n", "data (line 1) and -data (line 2)" DIFFER},
        {"[1]\n", "not a mapping of options to values"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct parsed p;
        char message[TEMPORARY_PATH + 256];
        snprintf(message, sizeof message, "%s: %s", path, cases[i].message);
        assert_int_equal(parse_file(&p, cases[i].yaml, WORDS("--shuffle")), ERR_USAGE);
        assert_string_equal(p.err.text, message);
        args_release(&command, &p.o);
    }
}

static void a_file_that_cannot_be_read_is_an_error(void **state)
{
    (void)state;
    struct parsed p;
    assert_int_equal(parse(&p, WORDS("--config", "/nowhere/x.yaml")), ERR_IO);
    assert_non_null(strstr(p.err.text, "/nowhere/x.yaml"));
    args_release(&command, &p.o);
    assert_int_equal(parse_file(&p, "a: 1\na: 2\n", WORDS("--shuffle")), ERR_USAGE);
    assert_non_null(strstr(p.err.text, path));
    args_release(&command, &p.o);
    refused(WORDS("--config"), "--config needs a value");
}

static int make_file(void **state)
{
    (void)state;
    const int fd = temporary_file(path);
    return fd < 0 || close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_go_up_to_the_next_option),
        cmocka_unit_test(the_last_words_count_and_an_equals_sign_gives_one),
        cmocka_unit_test(named_options_are_kept_as_they_were_typed),
        cmocka_unit_test(a_file_comes_before_the_line),
        cmocka_unit_test(a_file_gives_lists_and_positions),
        cmocka_unit_test(false_and_null_are_not_given),
        cmocka_unit_test(two_keys_of_an_option_may_say_the_same),
        cmocka_unit_test(mistakes_name_the_file),
        cmocka_unit_test(a_file_that_cannot_be_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
