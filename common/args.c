#include "common/args.h"

#include <ctype.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "common/args_internal.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/memory.h"
#include "common/numbers.h"
#include "common/ranks.h"
#include "common/result.h"

/* ---- the tables ---- */

static void *field_of(void *options, const struct arg_group *group, const struct arg *a)
{
    return (char *)options + group->offset + a->offset;
}

static bool is_spelling(struct word name, struct word typed)
{
    if (name.length != typed.length) return false;
    for (size_t i = 0; i < name.length; i++)
        if (name.text[i] != args_fold(typed.text[i])) return false;
    return true;
}

const struct arg *args_find(const struct command *c, struct word typed,
                            const struct arg_group **group)
{
    const struct arg *a;
    for (size_t i = 0; (a = arg_at(c, i, group)); i++) {
        const char *names = a->names;
        for (struct word name; next_word(&names, ' ', &name);)
            if (is_spelling(name, typed)) return a;
    }
    return NULL;
}

/* ---- hints and guesses ---- */

/* The hint for a word; NULL: none. p may be NULL. */
static const char *hint_of(const struct arg_program *p, struct word typed)
{
    for (size_t i = 0; p && i < p->num_hints; i++) {
        const char *words = p->hints[i].words;
        for (struct word w; next_word(&words, ' ', &w);)
            if (is_spelling(w, typed)) return p->hints[i].text;
    }
    return NULL;
}

MUST_CHECK static enum status fail_unknown(const struct arg_program *p, const char *what,
                                           const struct args_guess *g, struct error *err)
{
    const char *hint = hint_of(p, g->typed);
    if (hint)
        return fail(err, ERR_USAGE, "unknown %s %.*s: %s", what, (int)g->typed.length,
                    g->typed.text, hint);
    struct strbuf typed = {0};
    strbuf_add_escaped(&typed, g->typed.text, g->typed.length);
    bool found = g->best.length > 0;
    enum status st = fail(err, ERR_USAGE, "unknown %s %s%s%.*s%s", what, typed.data,
                          found ? " (did you mean " : "", (int)g->best.length,
                          found ? g->best.text : "", found ? "?)" : "");
    strbuf_release(&typed);
    return st;
}

MUST_CHECK static enum status unknown_option(const struct arg_program *p, const struct command *c,
                                             struct word typed, struct error *err)
{
    struct args_guess g = {.typed = typed};
    const struct arg_group *group;
    const struct arg *a;
    for (size_t i = 0; (a = arg_at(c, i, &group)); i++) {
        const char *names = a->help || a->kind == ARG_NAMED ? a->names : "";
        for (struct word name; next_word(&names, ' ', &name);)
            args_guess(&g, name);
    }
    args_guess(&g, (struct word){"--help", strlen("--help")});
    return fail_unknown(p, "option", &g, err);
}

/* ---- values ---- */

static bool unit_bytes(const char *name, uint64_t *bytes)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"K", 1ull << 10},
        {"M", 1ull << 20},
        {"G", 1ull << 30},
        {"T", 1ull << 40},
        {"P", 1ull << 50},
        {"kB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"PB", 1000000000000000},
        {"KiB", 1ull << 10},
        {"MiB", 1ull << 20},
        {"GiB", 1ull << 30},
        {"TiB", 1ull << 40},
        {"PiB", 1ull << 50},
    };
    for (size_t i = 0; i < COUNT(units); i++)
        if (strcasecmp(units[i].name, name) == 0) {
            *bytes = units[i].bytes;
            return true;
        }
    return false;
}

static bool take_digits(const char **at, uint64_t *value, unsigned *num_digits)
{
    *value = 0;
    *num_digits = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++, (*num_digits)++)
        if (!mul_u64(*value, 10, value) || !add_u64(*value, (uint64_t)(**at - '0'), value))
            return false;
    return *num_digits > 0;
}

bool parse_size(const char *text, uint64_t *bytes)
{
    uint64_t whole, part = 0, unit;
    unsigned num_digits, num_decimals = 0;
    if (!take_digits(&text, &whole, &num_digits)) return false;
    if (*text == '.') {
        text++;
        if (!take_digits(&text, &part, &num_decimals)) return false;
    }
    if (!unit_bytes(text, &unit) || !mul_u64(whole, unit, &whole) || !mul_u64(part, unit, &part))
        return false;
    for (; num_decimals; num_decimals--)
        part /= 10;
    return add_u64(whole, part, bytes);
}

static bool parse_float(const char *text, double *out)
{
    char *end;
    if (text[strspn(text, "0123456789.eE+-")]) return false;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) return false;
    *out = v;
    return true;
}

static void list_add(struct arg_list *l, const char *item)
{
    l->items = must_realloc(l->items, (l->count + 1) * sizeof *l->items);
    l->items[l->count++] = item;
}

static bool is_choice(const char *choices, const char *value)
{
    for (struct word w; next_word(&choices, '|', &w);)
        if (strlen(value) == w.length && memcmp(value, w.text, w.length) == 0) return true;
    return false;
}

#define INT64_MAX_TEXT "9223372036854775807"

/* No other program reads numbers beyond INT64_MAX; "not given" is up there. */
static bool parse_between(const char *text, uint64_t least, uint64_t *out)
{
    return parse_u64(text, out) && *out >= least && *out <= INT64_MAX;
}

/* Puts value into the option's field. Returns the expected kind of value, or
 * NULL if value fits. */
static const char *set_value(const struct arg *a, void *field, const char *value)
{
    switch (a->kind) {
    case ARG_FLAG:
        *(bool *)field = true;
        return NULL;
    case ARG_FLAG_OFF:
        *(bool *)field = false;
        return NULL;
    case ARG_UINT:
        return parse_between(value, 1, field) ? NULL : "a whole number from 1 to " INT64_MAX_TEXT;
    case ARG_UINT_OR_0:
        return parse_between(value, 0, field) ? NULL : "a whole number from 0 to " INT64_MAX_TEXT;
    case ARG_SIZE:
        return parse_size(value, field) && *(uint64_t *)field
                   ? NULL
                   : "a size of at least 1 byte, such as 4096, 5GB, 8G or 1.5GiB";
    case ARG_FLOAT:
        return parse_float(value, field) ? NULL : "a number";
    case ARG_CHOICE:
        if (!is_choice(a->choices, value)) return a->choices;
        *(const char **)field = value;
        return NULL;
    case ARG_TEXT:
        *(const char **)field = value;
        return NULL;
    case ARG_CONFIG:
        ((struct arg_config *)field)->path = value;
        return NULL;
    case ARG_WORDS:
        ((struct arg_list *)field)->count = 0;
        list_add(field, value);
        return NULL;
    case ARG_LIST:
    case ARG_NAMED:
        list_add(field, value);
        return NULL;
    case ARG_NOTED:
        list_add(field, a->names);
        list_add(field, value);
        return NULL;
    case ARG_POSITIONAL:
    case ARG_IGNORED:
        return NULL;
    }
    return NULL;
}

/* ---- parsing ---- */

enum { MAX_NAMED = 8 };

/* A positional argument given by an option. */
struct named {
    struct word option;
    const char *value; /* NULL: not given */
};

struct parse {
    const struct arg_program *program; /* for hints; may be NULL */
    const struct command *command;
    const struct arg_alias *alias; /* typed alias; NULL: the command's own name */
    char **at, **end;              /* the rest of argv */
    void *options;
    const char **positional;
    size_t num_positional;
    struct named named[MAX_NAMED], from_file[MAX_NAMED]; /* by options of the line; of the file */
    struct error *err;
};

/* The option behind an alias's name for it. */
static struct word resolve_alias_option(const struct arg_alias *alias, struct word typed)
{
    const char *pairs = alias && alias->renames ? alias->renames : "";
    for (struct word from, to; next_word(&pairs, ' ', &from) && next_word(&pairs, ' ', &to);)
        if (is_spelling(from, typed)) return to;
    return typed;
}

/* NULL: the value has no other spelling. */
static const struct arg_spelling *find_spelling(const struct command *c, const struct arg *a,
                                                const char *value)
{
    for (size_t i = 0; i < c->num_spellings && value; i++) {
        const struct arg_spelling *s = &c->spellings[i];
        const size_t n = strlen(s->option);
        bool is_it = strncmp(a->names, s->option, n) == 0 && strchr(" ", a->names[n]);
        if (is_it && strcasecmp(s->typed, value) == 0) return s;
    }
    return NULL;
}

/* Position n of a text such as "SOURCE DESTINATION". */
static struct word position_name(const struct command *c, size_t n)
{
    const char *words = c->positional;
    struct word w = {0};
    for (size_t i = 0; i <= n; i++)
        (void)next_word(&words, ' ', &w);
    return w;
}

MUST_CHECK static enum status take_named(struct parse *p, size_t n, struct word option,
                                         const char *value)
{
    struct named *x = &p->named[n];
    const struct word name = position_name(p->command, n);
    if (!*value)
        return fail(p->err, ERR_USAGE, "%.*s: the name is empty", (int)option.length, option.text);
    if (x->value)
        return fail(p->err, ERR_USAGE, "%.*s is given twice: %.*s %s and %.*s %s", (int)name.length,
                    name.text, (int)x->option.length, x->option.text, x->value, (int)option.length,
                    option.text, value);
    *x = (struct named){option, value};
    return OK;
}

/* Inserts positional arguments given by options among the words, in order. */
MUST_CHECK static enum status merge_named(struct parse *p)
{
    size_t num_named = 0, last = 0;
    for (size_t i = 0; i < MAX_NAMED; i++) {
        if (!p->named[i].value) p->named[i] = p->from_file[i];
        if (p->named[i].value) num_named++, last = i;
    }
    for (size_t i = 0; num_named && i <= last; i++) {
        const struct named *x = &p->named[i];
        if (!x->value && i < p->num_positional) continue;
        if (!x->value) {
            const struct word name = position_name(p->command, i);
            return fail(p->err, ERR_USAGE, "%.*s is missing", (int)name.length, name.text);
        }
        memmove(p->positional + i + 1, p->positional + i,
                (p->num_positional - i) * sizeof *p->positional);
        p->positional[i] = x->value;
        p->num_positional++;
    }
    return OK;
}

/* Word n is one too many; the message names a position that an option gave. */
MUST_CHECK static enum status fail_extra_word(const struct parse *p, size_t n)
{
    for (size_t i = 0; i < MAX_NAMED && i < n; i++) {
        const struct named *x = &p->named[i];
        const struct word name = position_name(p->command, i);
        if (x->value)
            return fail(p->err, ERR_USAGE,
                        "\"%s\" is one argument too many: %.*s is given by %.*s %s",
                        p->positional[n], (int)name.length, name.text, (int)x->option.length,
                        x->option.text, x->value);
    }
    return fail(p->err, ERR_USAGE, "\"%s\" is one argument too many", p->positional[n]);
}

/* Takes the words behind the first value. */
static void take_words(struct parse *p, const struct arg *a, void *field)
{
    for (; p->at < p->end && is_value(*p->at); p->at++)
        if (a->kind == ARG_WORDS) list_add(field, *p->at);
}

/* Parses the option *p->at; moves behind it and its values. */
MUST_CHECK static enum status parse_option(struct parse *p)
{
    const char *text = *p->at++;
    struct word typed = {text, strcspn(text, "=")};
    const char *value = text[typed.length] ? text + typed.length + 1 : NULL;
    const struct arg_group *group;
    const struct arg *a = args_find(p->command, resolve_alias_option(p->alias, typed), &group);
    if (is_spelling((struct word){"--help", 6}, typed))
        return fail(p->err, ERR_USAGE, "--help takes no value");
    if (!a) return unknown_option(p->program, p->command, typed, p->err);

    int length = (int)typed.length;
    const bool goes_on = !value && takes_several(a);
    if (value && !takes_value(a))
        return fail(p->err, ERR_USAGE, "%.*s takes no value", length, text);
    if (!value && takes_value(a)) {
        if (p->at == p->end) return fail(p->err, ERR_USAGE, "%.*s needs a value", length, text);
        value = *p->at++;
        if (strncmp(value, "--", 2) == 0)
            return fail(p->err, ERR_USAGE, "%.*s needs a value (%.*s=%s if that is the value)",
                        length, text, length, text, value);
    }
    const struct arg_spelling *spelling = find_spelling(p->command, a, value);
    if (spelling && !spelling->means)
        return fail(p->err, ERR_USAGE, "%.*s %s: %s", length, text, value, spelling->hint);
    if (spelling) value = spelling->means;
    if (a->kind == ARG_POSITIONAL) return take_named(p, a->offset, typed, value);
    void *field = field_of(p->options, group, a);
    const char *must_be = set_value(a, field, a->kind == ARG_NAMED ? text : value);
    if (!must_be && goes_on) take_words(p, a, field);
    if (!must_be) return OK;
    return fail(p->err, ERR_USAGE, "%.*s: \"%s\" is not %s%s", length, text, value,
                a->kind == ARG_CHOICE ? "one of " : "", must_be);
}

MUST_CHECK static enum status parse_words(struct parse *p)
{
    bool options_ended = false;
    while (p->at < p->end) {
        const char *text = *p->at;
        if (!options_ended && strcmp(text, "--") == 0) {
            options_ended = true;
            p->at++;
        } else if (!options_ended && text[0] == '-' && text[1]) {
            TRY(parse_option(p));
        } else {
            p->positional[p->num_positional++] = text;
            p->at++;
        }
    }
    return OK;
}

/* Compares the number of words with command->positional. */
MUST_CHECK static enum status check_positional(const struct parse *p)
{
    const char *words = p->command->positional ? p->command->positional : "";
    size_t n = 0;
    bool repeats = false;
    for (struct word w; next_word(&words, ' ', &w); n++) {
        if (n >= p->num_positional && w.text[0] != '[')
            return fail(p->err, ERR_USAGE, "%.*s is missing", (int)w.length, w.text);
        repeats = repeats || memmem(w.text, w.length, "...", 3);
    }
    if (p->num_positional > n && !repeats) return fail_extra_word(p, n);
    return OK;
}

/* The field of the last file of options on the line; NULL: none. */
MUST_CHECK static enum status find_config(struct parse *p, struct arg_config **x)
{
    *x = NULL;
    for (char **at = p->at; at < p->end && strcmp(*at, "--"); at++) {
        const struct word typed = {*at, strcspn(*at, "=")};
        const struct arg_group *group;
        const struct arg *a = (*at)[0] == '-' ? args_find(p->command, typed, &group) : NULL;
        if (!a || a->kind != ARG_CONFIG) continue;
        *x = field_of(p->options, group, a);
        (*x)->path = (*at)[typed.length] ? *at + typed.length + 1 : at + 1 < p->end ? at[1] : NULL;
        if (!(*x)->path) return fail(p->err, ERR_USAGE, "%s needs a value", *at);
    }
    return OK;
}

/* Options of a file come first, so those of the line win. */
MUST_CHECK static enum status parse_config(struct parse *p)
{
    struct arg_config *x;
    TRY(find_config(p, &x));
    if (!x) return OK;
    TRY(args_config_read(p->command, x, p->err));
    struct parse file = *p;
    file.at = x->words;
    file.end = x->num_words ? x->words + x->num_words : x->words;
    file.alias = NULL;
    if (parse_words(&file)) return fail_in(p->err, "%s", x->path);
    memcpy(p->from_file, file.named, sizeof p->from_file);
    return OK;
}

MUST_CHECK static enum status parse_all(struct parse *p, size_t *num_positional)
{
    memset(p->options, 0, p->command->options_bytes);
    if (p->command->defaults) p->command->defaults(p->options);
    TRY(parse_config(p));
    TRY(parse_words(p));
    TRY(merge_named(p));
    *num_positional = p->num_positional;
    return check_positional(p);
}

enum status args_parse(const struct command *c, int argc, char **argv, void *options,
                       const char **positional, size_t *num_positional, struct error *err)
{
    struct parse p = {.command = c,
                      .at = argv,
                      .end = argv + argc,
                      .options = options,
                      .positional = positional,
                      .err = err};
    return parse_all(&p, num_positional);
}

static bool is_list(const struct arg *a)
{
    return a->kind == ARG_LIST || a->kind == ARG_WORDS || a->kind == ARG_NOTED ||
           a->kind == ARG_NAMED;
}

void args_release(const struct command *c, void *options)
{
    const struct arg_group *group;
    const struct arg *a;
    for (size_t i = 0; (a = arg_at(c, i, &group)); i++) {
        if (a->kind == ARG_CONFIG) args_config_release(field_of(options, group, a));
        if (!is_list(a)) continue;
        struct arg_list *list = field_of(options, group, a);
        free(list->items);
        *list = (struct arg_list){0};
    }
}

/* ---- main ---- */

static void print_help(FILE *to, const struct arg_program *p, const struct command *c)
{
    struct strbuf text = {0};
    if (c)
        args_help(&text, p->name, c);
    else
        args_program_help(&text, p);
    fputs(text.data, to);
    strbuf_release(&text);
}

static const struct command *command_named(const struct arg_program *p, const char *name)
{
    for (size_t i = 0; i < p->num_commands; i++)
        if (strcmp(p->commands[i]->name, name) == 0) return p->commands[i];
    return NULL;
}

/* *alias: the typed one; NULL: the command's own name. */
MUST_CHECK static enum status find_command(const struct arg_program *p, const char *typed,
                                           const struct command **c, const struct arg_alias **alias,
                                           struct error *err)
{
    *alias = NULL;
    struct word w = {typed, strlen(typed)};
    struct args_guess g = {.typed = w};
    for (size_t i = 0; i < p->num_commands; i++) {
        struct word name = {p->commands[i]->name, strlen(p->commands[i]->name)};
        if (is_spelling(name, w)) {
            *c = p->commands[i];
            return OK;
        }
        args_guess(&g, name);
    }
    for (size_t i = 0; i < p->num_aliases; i++) {
        struct word name = {p->aliases[i].name, strlen(p->aliases[i].name)};
        args_guess(&g, name);
        if (!is_spelling(name, w)) continue;
        *alias = &p->aliases[i];
        *c = command_named(p, p->aliases[i].command);
        return OK;
    }
    return fail_unknown(p, typed[0] == '-' ? "option" : "command", &g, err);
}

/* Begins the result of --json before parsing: it also reports wrong words. */
static void begin_result(const struct command *c, int argc, char **argv)
{
    static const struct word json = {"--json", 6};
    const struct arg_group *group;
    const struct arg *a = args_find(c, json, &group);
    if (!a || a->kind != ARG_FLAG || ranks_print_by_rank_0()) return;
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (strcmp(argv[i], "--json") == 0) result_begin(c->name);
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

/* Waits for rank 0 to print a usage error, which ranks mostly share; the
 * launcher then ends them all. A rank that lives on has an error of its own and
 * prints it. */
MUST_CHECK static bool ended_after_rank_0(struct error *err)
{
    if (!ranks_print_by_rank_0()) return false;
    bool is_ended = nanosleep(&(struct timespec){.tv_sec = 2}, NULL) != 0;
    if (is_ended) err->text[0] = '\0';
    return is_ended;
}

MUST_CHECK static enum status defer_to_rank_0(enum status st, struct error *err)
{
    return st && ended_after_rank_0(err) ? ERR_INTERRUPTED : st;
}

/* Words of an alias come first, so the typed ones win. */
static size_t put_words(char **out, char *added, int argc, char **argv)
{
    size_t n = 0;
    for (char *word; (word = strsep(&added, " "));)
        out[n++] = word;
    memcpy(out + n, argv, (size_t)argc * sizeof *argv);
    return n + (size_t)argc;
}

MUST_CHECK static enum status run_parsed(const struct arg_program *p, const struct command *c,
                                         const struct arg_alias *alias, int argc, char **argv,
                                         struct error *err)
{
    char *added = alias && alias->adds ? must_strdup(alias->adds) : NULL;
    const size_t room = (size_t)argc + (added ? strlen(added) : 0) + 1;
    char **words = must_calloc(room, sizeof *words);
    void *options = must_calloc(1, c->options_bytes);
    const char **positional = must_calloc(room, sizeof *positional);
    size_t num_positional;
    struct parse x = {.program = p,
                      .command = c,
                      .alias = alias,
                      .at = words,
                      .end = words + put_words(words, added, argc, argv),
                      .options = options,
                      .positional = positional,
                      .err = err};
    enum status st = defer_to_rank_0(parse_all(&x, &num_positional), err);
    if (!st) st = c->run(options, positional, num_positional, err);
    args_release(c, options);
    free(options);
    free(positional);
    free(words);
    free(added);
    return st;
}

static const char *const version_words[] = {"--version", "-V", "version", NULL},
                         *const help_words[] = {"help", "--help", "-h", NULL};

static bool is_one_of(const char *word, const char *const *words)
{
    while (*words && strcmp(*words, word))
        words++;
    return *words;
}

/* The first line is the version alone; the
 * others say what this build has. */
static void print_version(const struct arg_program *p, bool as_json)
{
    cJSON *build = cJSON_CreateObject();
    if (p->add_build) p->add_build(build);
    if (as_json) {
        result_begin("version");
        result_set(build);
        result_end(OK, NULL);
        return;
    }
    printf("%s %s\n", p->name, p->version);
    for (const cJSON *i = build->child; i; i = i->next)
        printf("%-9s %s\n", i->string, cJSON_IsString(i) ? i->valuestring : "none");
    cJSON_Delete(build);
}

/* `ferry help`, `ferry help COMMAND`, and options of the program itself. */
MUST_CHECK static enum status run_program(const struct arg_program *p, int argc, char **argv,
                                          struct error *err)
{
    const struct command *c = NULL;
    const struct arg_alias *alias;
    if (is_one_of(argv[0], version_words)) {
        print_version(p, argc > 1 && strcmp(argv[1], "--json") == 0);
        return OK;
    }
    if (strcmp(argv[0], "help") == 0 && argc > 1) TRY(find_command(p, argv[1], &c, &alias, err));
    print_help(stdout, p, c);
    return OK;
}

static int print_error_line(const struct arg_program *p, const struct command *c, enum status st,
                            const struct error *err)
{
    if (!st || !err->text[0]) return (int)st;
    struct strbuf text = {0};
    strbuf_printf(&text, "%s%s%s: ", p->name, c ? " " : "", c ? c->name : "");
    for (const char *t = err->text; *t; t++)
        if (iscntrl((unsigned char)*t) && *t != '\n') /* names come from files */
            strbuf_printf(&text, "\\x%02x", (unsigned)*t);
        else
            strbuf_add_char(&text, *t);
    strbuf_add_char(&text, '\n');
    fwrite(text.data, 1, text.length, stderr); /* in one piece: other ranks write there, too */
    strbuf_release(&text);
    return (int)st;
}

/* A reader such as head(1) has closed the pipe. */
static bool is_pipe_closed(int fd)
{
    struct pollfd p = {.fd = fd};
    return poll(&p, 1, 0) == 1 && p.revents & POLLERR;
}

/* Ends as programs do that do not ignore
 * SIGPIPE: in silence. */
static void end_by_closed_pipe(void)
{
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

/* The last flush shows a full disk or a closed pipe, at the latest. */
MUST_CHECK static enum status flush_stdout(struct error *err)
{
    const bool failed = fflush(stdout) != 0;
    if (!failed && !ferror(stdout)) return OK;
    if (failed) (void)!fail_errno(err, ERR_IO, "standard output");
    if (is_pipe_closed(STDOUT_FILENO)) end_by_closed_pipe();
    return failed ? ERR_IO : fail(err, ERR_IO, "standard output: incomplete write");
}

/* Sets *c once a command is named. */
MUST_CHECK static enum status run_words(const struct arg_program *p, const struct command **c,
                                        int argc, char **argv, struct error *err)
{
    if (is_one_of(argv[0], version_words) || is_one_of(argv[0], help_words))
        return run_program(p, argc, argv, err);
    const struct arg_alias *alias;
    TRY(defer_to_rank_0(find_command(p, argv[0], c, &alias, err), err));
    if (asks_for_help(argc - 1, argv + 1)) {
        print_help(stdout, p, *c);
        return OK;
    }
    begin_result(*c, argc - 1, argv + 1);
    enum status st = run_parsed(p, *c, alias, argc - 1, argv + 1, err);
    result_end(st, err);
    return st;
}

int args_main(const struct arg_program *p, int argc, char **argv)
{
    const struct command *c = NULL;
    struct error err = {0};
    if (argc < 2) {
        if (!ended_after_rank_0(&err)) print_help(stderr, p, NULL);
        return ERR_USAGE;
    }
    enum status st = run_words(p, &c, argc - 1, argv + 1, &err);
    int code = print_error_line(p, c, st, &err);
    st = flush_stdout(&err);
    return code > DIFFERENT || !st ? code : print_error_line(p, c, st, &err);
}
