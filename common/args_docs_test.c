#include "common/testing_args.h"

#include "tests/temporary.h"

/* ---- help ---- */

static const char program_help_text[] = "usage: ferry COMMAND [OPTION]... [ARGUMENT]...\n"
                                        "\n"
                                        "carries checkpoints between formats\n"
                                        "\n"
                                        "It needs no GPU.\n"
                                        "\n"
                                        "Commands\n"
                                        "  convert  carry a checkpoint to another format or "
                                        "layout; also: import, export (--tp 7 --pp=2)\n"
                                        "  verify   compare two checkpoints; also: diff\n"
                                        "\n"
                                        "Exit codes\n"
                                        "0 done; 1 different.\n"
                                        "\n"
                                        "ferry COMMAND --help lists the options of a command.\n";

static void help_goes_to_stdout_where_asked_for_and_else_to_stderr(void **state)
{
    (void)state;
    const char *const *asked[] = {WORDS("--help"), WORDS("-h"), WORDS("help")};
    for (size_t i = 0; i < COUNT(asked); i++) {
        run_main(asked[i]);
        assert_int_equal(ran.code, OK);
        assert_string_equal(ran.out, program_help_text);
        assert_string_equal(ran.err, "");
    }
    run_main(WORDS(NULL));
    assert_int_equal(ran.code, ERR_USAGE);
    assert_string_equal(ran.out, "");
    assert_string_equal(ran.err, program_help_text);
}

// clang-format off
static const char convert_help_text[] =
    "usage: ferry convert [OPTION]... SOURCE DESTINATION\n"
    "\n"
    "carry a checkpoint to another format or layout\n"
    "\n"
    "  ferry convert a b --tp 2\n"
    "  ferry convert 'c' \"d\" \\\n"
    "\n"
    "Layout\n"
    "  --tensor-model-parallel-size N    the source's own; also --tp\n"
    "  --pipeline-model-parallel-size N  the source's own; also --pp\n"
    "\n"
    "Other\n"
    "  --overwrite                       replace what is there; also -f\n"
    "  --max-memory SIZE                 buffers; 2GiB. A phrase that is long enough to need more than\n"
    "                                    one line, so that it is broken between words and goes on below\n"
    "  --seed N                          default 0\n"
    "  --lr X                            learning rate\n"
    "  --torch-dtype DTYPE               as stored\n"
    "  --progress auto|bar|torch_dist    auto; also --progress-style\n"
    "  --allow-missing GLOB_OF_THE_NAMES\n"
    "                                    tensors that may be missing; may be given several times\n"
    "\n"
    "SIZE is a number of bytes, with or without a unit: kB, MB, GB, TB and PB are powers of 1000; K, M,\n"
    "G, T, P and KiB, MiB, GiB, TiB, PiB are powers of 1024.\n"
    "\n"
    "The first paragraph, whose lines are joined.\n"
    "\n"
    ".A second one - with ~ and ^.\n";
// clang-format on

static void a_command_tells_its_options_aligned_and_wrapped(void **state)
{
    (void)state;
    const char *const *asked[] = {WORDS("convert", "--help"), WORDS("convert", "a", "-x", "-h"),
                                  WORDS("help", "convert")};
    for (size_t i = 0; i < COUNT(asked); i++) {
        run_main(asked[i]);
        assert_int_equal(ran.code, OK);
        assert_string_equal(ran.out, convert_help_text);
    }
    run_main(WORDS("convert", "--", "--help", "b")); /* a word like others */
    assert_string_equal(ran.out, "2 --help b tp 0\n");
}

static void no_line_of_help_is_longer_than_100_columns(void **state)
{
    (void)state;
    struct strbuf text = {0};
    static const struct arg one = {"--a",
                                   ARG_FLAG,
                                   0,
                                   NULL,
                                   NULL,
                                   "aaaaaaaaa \xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3"
                                   "\xA4\xC3\xA4\xC3\xA4 aaaaaaaaa aaaaaaaaa aaaaaaaaa aaaaaaaaa "
                                   "aaaa bb"};
    const struct arg_group group = {"G", &one, 1, 0};
    struct command c = {.name = "c", .summary = "s", .groups = &group, .num_groups = 1};
    args_help(&text, "p", &c);
    const char *line = strstr(text.data, "  --a");
    assert_non_null(line);
    /* 36 columns, 6 words of 9 and one of 4 letters, 6 blanks: exactly 100,
     * umlauts as one each. */
    assert_int_equal(strcspn(line, "\n"), 100 + 9);
    assert_string_equal(strchr(line, '\n'), "\n                                    bb\n");
    strbuf_release(&text);
}

/* ---- what other programs read ---- */

/* Runs a shell command with text in the file $F; returns its exit code, prints
 * into ran.out. */
static int shell(const struct strbuf *text, const char *command)
{
    char path[TEMPORARY_PATH], line[1024];
    int fd = temporary_file(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text->data, text->length), text->length);
    close(fd);
    setenv("F", path, 1);
    snprintf(line, sizeof line, "exec 2>&1; %s", command);
    FILE *p = popen(line, "r");
    assert_non_null(p);
    ran.out[fread(ran.out, 1, sizeof ran.out - 1, p)] = '\0';
    int status = pclose(p);
    unlink(path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void assert_has_no_warnings(const struct strbuf *page)
{
    if (shell(page, "command -v groff")) return;
    assert_int_equal(shell(page, "groff -man -ww -z -rCHECKSTYLE=3 \"$F\""), 0);
    assert_string_equal(ran.out, "");
    assert_int_equal(shell(page, "groff -man -Tascii -P-cbou \"$F\""), 0);
}

static void the_man_page_lists_the_commands(void **state)
{
    (void)state;
    struct strbuf page = {0};
    args_man_page(&page, &ferry);
    assert_non_null(strstr(page.data, ".nh\n.SH NAME\nferry \\- carries checkpoints between "));
    assert_non_null(strstr(page.data, ".TP\n\\fBferry\\-verify\\fR(1)\ncompare two checkpoints\n"));
    assert_non_null(strstr(page.data, ".SH \"EXIT STATUS\"\n0 done; 1 different.\n"));
    assert_non_null(strstr(page.data, ".SH \"FILES\"\nferry.json\n.PP\n.EX\n  an example\n"));
    assert_null(strstr(page.data, "max\\-memory"));
    assert_has_no_warnings(&page);
    strbuf_release(&page);
}

static void each_command_has_a_page_of_roff_without_warnings(void **state)
{
    (void)state;
    struct strbuf page = {0};
    args_man_page_of(&page, &ferry, ferry.commands[0]);
    assert_non_null(strstr(page.data, ".TH \"ferry\\-convert\" 1 "));
    assert_non_null(strstr(page.data, ".TP\n\\fB\\-\\-max\\-memory\\fR \\fISIZE\\fR\n"));
    assert_non_null(strstr(page.data, ".PP\nSIZE is a number of bytes, "));
    assert_non_null(strstr(page.data, ".EX\n  ferry convert a b \\-\\-tp 2\n"));
    assert_non_null(strstr(page.data, ".PP\n\\&.A second one \\- with \\(ti and \\(ha.\n"));
    assert_null(strstr(page.data, "auto\\-detect"));
    assert_non_null(strstr(page.data, ".PP\nAlso: import, export (\\-\\-tp 7 \\-\\-pp=2).\n"));
    assert_non_null(strstr(page.data, ".SH \"EXIT STATUS\"\n0 done; 1 different.\n"));
    assert_null(strstr(page.data, ".SH \"FILES\""));
    assert_has_no_warnings(&page);
    if (*ran.out) {
        assert_non_null(strstr(ran.out, "ferry convert [OPTION]... SOURCE DESTINATION\n"));
        assert_non_null(strstr(ran.out, "ferry convert 'c' \"d\" \\\n"));
        assert_non_null(strstr(ran.out, ".A second one - with ~ and ^.\n"));
    }
    strbuf_release(&page);
}

/* bash's candidates after these words; the last one is being typed. */
static void assert_completes(const struct strbuf *script, const char *words, const char *offered)
{
    char command[512];
    snprintf(
        command, sizeof command,
        "bash -u -c '. \"$0\"; COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _ferry; "
        "echo \"${COMPREPLY[*]-}\"' \"$F\"",
        words);
    assert_int_equal(shell(script, command), 0);
    ran.out[strcspn(ran.out, "\n")] = '\0';
    assert_string_equal(ran.out, offered);
}

static void bash_completes_commands_options_and_choices(void **state)
{
    (void)state;
    struct strbuf script = {0};
    if (shell(&script, "command -v bash") != 0) skip();
    args_bash_completion(&script, &ferry);
    static const struct {
        const char *words, *offered;
    } cases[] = {
        {"ferry \"\"", "convert verify import export diff help --help --version"},
        {"ferry c", "convert"},
        {"ferry help v", "verify"},
        {"ferry convert --t", "--tensor-model-parallel-size --tp --torch-dtype"},
        {"ferry convert --auto", ""},
        {"ferry verify -", "--json --help"},
        {"ferry convert --progress \"\"", "auto bar torch_dist"},
        {"ferry convert --progress_style b", "bar"},
        {"ferry convert a --progress =", "auto bar torch_dist"},
        {"ferry convert a --progress = t", "torch_dist"},
        {"ferry convert a", ""}, /* nothing: bash goes on with file names */
        {"ferry convert --torch-dtype \"\"", "f32 bf16"},
        {"ferry import --torch-dtype b", "bf16"},
        {"ferry export --t", "--tensor-model-parallel-size --tp --torch-dtype"},
        {"ferry convert --allow-missing \"\"", ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_completes(&script, cases[i].words, cases[i].offered);
    strbuf_release(&script);
}

static void zsh_completes_the_same(void **state)
{
    (void)state;
    struct strbuf script = {0};
    args_zsh_completion(&script, &ferry);
    assert_non_null(strstr(script.data, "    convert|import|export)\n"));
    assert_non_null(strstr(script.data, "'--tp[the source'\\''s own]:N: ' \\\n"));
    assert_non_null(strstr(script.data, "'--progress[auto]:value:(auto bar torch_dist)' \\\n"));
    assert_non_null(strstr(script.data, "'--torch-dtype[as stored]:DTYPE:(f32 bf16)' \\\n"));
    if (shell(&script, "command -v zsh") != 0) {
        strbuf_release(&script);
        skip();
    }
    assert_int_equal(shell(&script, "zsh -n \"$F\""), 0);
    assert_string_equal(ran.out, "");
    /* The arguments of _arguments and _describe. */
    assert_int_equal(shell(&script,
                           "zsh -fc 'compdef() { :; }; . \"$0\"; _describe() { print $#commands; };"
                           " _arguments() { print $# $words[1] $CURRENT; };"
                           " words=(ferry c); CURRENT=2; _ferry;"
                           " words=(ferry export a --tp 2); CURRENT=5; _ferry' \"$F\""),
                     0);
    assert_string_equal(ran.out, "6\n16 export 4\n");
    strbuf_release(&script);
}

static void fish_completes_the_same(void **state)
{
    (void)state;
    struct strbuf script = {0};
    static const struct {
        const char *words, *offered;
    } cases[] = {
        {"ferry conv", "convert"},
        {"ferry exp", "export"},
        {"ferry import --torch-dtype b", "bf16"},
        {"ferry convert --auto-d", ""},
        {"ferry convert --tens", "--tensor-model-parallel-size"},
    };
    args_fish_completion(&script, &ferry);
    assert_non_null(strstr(script.data, "complete -c ferry -n __fish_use_subcommand -f -a verify "
                                        "-d 'compare two checkpoints'\n"));
    assert_non_null(strstr(script.data, " -l tp -x -d 'the source\\'s own'\n"));
    assert_non_null(strstr(script.data, " import export' -s f -d 'replace what is there'\n"));
    for (size_t i = 0; i < COUNT(cases) && shell(&script, "command -v fish") == 0; i++) {
        char command[256];
        snprintf(command, sizeof command,
                 "fish -N -c 'source \"$F\"; complete -C \"%s\"' | cut -f 1", cases[i].words);
        assert_int_equal(shell(&script, command), 0);
        ran.out[strcspn(ran.out, "\n")] = '\0';
        assert_string_equal(ran.out, cases[i].offered);
    }
    strbuf_release(&script);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_goes_to_stdout_where_asked_for_and_else_to_stderr),
        cmocka_unit_test(a_command_tells_its_options_aligned_and_wrapped),
        cmocka_unit_test(no_line_of_help_is_longer_than_100_columns),
        cmocka_unit_test(the_man_page_lists_the_commands),
        cmocka_unit_test(each_command_has_a_page_of_roff_without_warnings),
        cmocka_unit_test(bash_completes_commands_options_and_choices),
        cmocka_unit_test(zsh_completes_the_same),
        cmocka_unit_test(fish_completes_the_same),
    };
    return cmocka_run_group_tests_name("args_docs", tests, NULL, NULL);
}
