/* args_docs.c - help, manual page and completions from the tables of args.h. */
#include <string.h>

#include "common/args_internal.h"
#include "common/checked.h"
#include "common/count.h"

enum { LINE_COLUMNS = 100, HELP_COLUMN = 36 };

/* A walk over the options that help shows. */
struct shown {
    size_t at;
    const char *title; /* of the option's group */
    bool begins;       /* the first under its title */
};

static const struct arg *next_shown(const struct command *c, struct shown *x)
{
    const struct arg_group *group;
    const struct arg *a = arg_at(c, x->at++, &group);
    while (a && !a->help)
        a = arg_at(c, x->at++, &group);
    if (!a) return NULL;
    x->begins = !x->title || strcmp(x->title, group->title);
    x->title = group->title;
    return a;
}

/* ---- texts ---- */

/* A paragraph or an example. */
struct block {
    const char *text;
    size_t length;
    bool is_example;
};

/* The next block of a text (see args.h); *at moves behind it. */
static bool next_block(const char **at, struct block *b)
{
    *at += strspn(*at, "\n");
    *b = (struct block){.text = *at, .is_example = **at == ' '};
    while (**at && **at != '\n' && (**at == ' ') == b->is_example) {
        *at += strcspn(*at, "\n");
        b->length = (size_t)(*at - b->text);
        if (**at) (*at)++;
    }
    return b->length > 0;
}

static size_t columns_of(const char *text, size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += (text[i] & 0xC0) != 0x80;
    return n;
}

/* Adds words from `column` on; further lines begin at `indent`. */
static void add_wrapped(struct strbuf *out, size_t column, size_t indent, const char *text,
                        size_t length)
{
    const char *end = text + length;
    for (const char *p = text; p < end;) {
        size_t n = strcspn(p, " \n");
        if (n > (size_t)(end - p)) n = (size_t)(end - p);
        size_t columns = columns_of(p, n);
        if (n && column > indent && column + 1 + columns > LINE_COLUMNS) {
            strbuf_add_char(out, '\n');
            strbuf_add_repeated(out, ' ', indent);
            column = indent;
        } else if (n && p > text) {
            strbuf_add_char(out, ' ');
            column++;
        }
        strbuf_add(out, p, n);
        column += columns;
        p += n + strspn(p + n, " \n");
    }
}

/* Adds all blocks of a text except `without`, each after an empty line. */
static void add_text_without(struct strbuf *out, const char *text, const char *without)
{
    for (struct block b; text && next_block(&text, &b);) {
        if (b.text == without) continue;
        strbuf_add_char(out, '\n');
        if (b.is_example)
            strbuf_add(out, b.text, b.length);
        else
            add_wrapped(out, 0, 0, b.text, b.length);
        strbuf_add_char(out, '\n');
    }
}

static void add_paragraphs(struct strbuf *out, const char *text)
{
    add_text_without(out, text, NULL);
}

static struct block first_example(const char *text)
{
    for (struct block b; text && next_block(&text, &b);)
        if (b.is_example) return b;
    return (struct block){0};
}

static const char *value_name(const struct arg *a)
{
    if (!takes_value(a)) return NULL;
    return a->kind == ARG_CHOICE ? a->choices : a->value;
}

/* Help of an option, with its other names. */
static void add_phrase(struct strbuf *out, const struct arg *a)
{
    const char *names = a->names, *sep = "; also ";
    struct word name;
    strbuf_add_text(out, a->help);
    if (a->kind == ARG_LIST) strbuf_add_text(out, "; may be given several times");
    next_word(&names, ' ', &name);
    for (; next_word(&names, ' ', &name); sep = ", ") {
        strbuf_add_text(out, sep);
        strbuf_add(out, name.text, name.length);
    }
}

static void add_usage(struct strbuf *out, const struct command *c)
{
    strbuf_printf(out, "%s%s%s%s", c->name, c->num_groups ? " [OPTION]..." : "",
                  c->positional ? " " : "", c->positional ? c->positional : "");
}

/* "import, reshard, export (--to hf)" */
static void add_aliases(struct strbuf *out, const struct arg_program *p, const struct command *c)
{
    for (size_t i = 0; i < p->num_aliases; i++) {
        const struct arg_alias *a = &p->aliases[i];
        if (strcmp(a->command, c->name)) continue;
        strbuf_printf(out, "%s%s%s%s%s", out->length ? ", " : "", a->name, a->adds ? " (" : "",
                      a->adds ? a->adds : "", a->adds ? ")" : "");
    }
}

/* Explains a kind of value, once behind the options; NULL: none. */
static const char *value_text(const struct command *c)
{
    const struct arg_group *group;
    const struct arg *a;
    for (size_t i = 0; (a = arg_at(c, i, &group)); i++)
        if (a->kind == ARG_SIZE && a->help)
            return "SIZE is a number of bytes, with or without a unit: kB, MB, GB, TB and PB are "
                   "powers of 1000; K, M, G, T, P and KiB, MiB, GiB, TiB, PiB are powers of 1024.";
    return NULL;
}

/* ---- --help ---- */

static void help_option(struct strbuf *out, const struct arg *a)
{
    size_t start = out->length;
    const char *value = value_name(a);
    strbuf_printf(out, "  %.*s%s%s", (int)strcspn(a->names, " "), a->names, value ? " " : "",
                  value ? value : "");
    size_t column = columns_of(out->data + start, out->length - start);
    if (column + 2 > HELP_COLUMN) {
        strbuf_add_char(out, '\n');
        column = 0;
    }
    strbuf_add_repeated(out, ' ', HELP_COLUMN - column);
    struct strbuf phrase = {0};
    add_phrase(&phrase, a);
    add_wrapped(out, HELP_COLUMN, HELP_COLUMN, phrase.data, phrase.length);
    strbuf_add_char(out, '\n');
    strbuf_release(&phrase);
}

void args_help(struct strbuf *out, const char *program, const struct command *c)
{
    const struct arg *a;
    struct shown x = {0};
    strbuf_printf(out, "usage: %s ", program);
    add_usage(out, c);
    strbuf_printf(out, "\n\n%s\n", c->summary);
    const struct block example = first_example(c->text);
    if (example.text) strbuf_printf(out, "\n%.*s\n", (int)example.length, example.text);
    while ((a = next_shown(c, &x))) {
        if (x.begins) strbuf_printf(out, "\n%s\n", x.title);
        help_option(out, a);
    }
    add_paragraphs(out, value_text(c));
    add_text_without(out, c->text, example.text);
}

void args_program_help(struct strbuf *out, const struct arg_program *p)
{
    size_t widest = 0;
    for (size_t i = 0; i < p->num_commands; i++)
        widest = max_u64(widest, strlen(p->commands[i]->name));
    strbuf_printf(out, "usage: %s COMMAND [OPTION]... [ARGUMENT]...\n", p->name);
    add_paragraphs(out, p->about);
    strbuf_add_text(out, "\nCommands\n");
    for (size_t i = 0; i < p->num_commands; i++) {
        const struct command *c = p->commands[i];
        struct strbuf phrase = {0}, aliases = {0};
        strbuf_add_text(&phrase, c->summary);
        add_aliases(&aliases, p, c);
        if (aliases.length) strbuf_printf(&phrase, "; also: %s", aliases.data);
        strbuf_printf(out, "  %-*s  ", (int)widest, c->name);
        add_wrapped(out, widest + 4, widest + 4, phrase.data, phrase.length);
        strbuf_add_char(out, '\n');
        strbuf_release(&phrase);
        strbuf_release(&aliases);
    }
    for (size_t i = 0; i < p->num_sections; i++) {
        if (!p->sections[i].help_title) continue;
        strbuf_printf(out, "\n%s\n", p->sections[i].help_title);
        const char *text = p->sections[i].text;
        add_wrapped(out, 0, 0, text, strlen(text));
        strbuf_add_char(out, '\n');
    }
    strbuf_printf(out, "\n%s COMMAND --help lists the options of a command.\n", p->name);
}

/* ---- man pages ---- */

/* Escapes roff's own characters and those it would typeset differently. */
static void add_roff(struct strbuf *out, const char *text, size_t length)
{
    static const struct {
        char c;
        const char *roff;
    } escapes[] = {{'\\', "\\e"},  {'-', "\\-"},    {'~', "\\(ti"}, {'^', "\\(ha"},
                   {'`', "\\(ga"}, {'\'', "\\(aq"}, {'"', "\\(dq"}, {'|', "|\\:"}};
    for (size_t i = 0; i < length; i++) {
        const char *roff = NULL;
        for (size_t e = 0; e < COUNT(escapes); e++)
            if (escapes[e].c == text[i]) roff = escapes[e].roff;
        if (text[i] == '.' && (i == 0 || text[i - 1] == '\n')) strbuf_add_text(out, "\\&");
        if (roff)
            strbuf_add_text(out, roff);
        else
            strbuf_add_char(out, text[i]);
    }
}

static void add_roff_text(struct strbuf *out, const char *text)
{
    add_roff(out, text, strlen(text));
}

/* The blocks of a text; the first follows a
 * heading, which ends a paragraph. */
static void man_section(struct strbuf *out, const char *title, const char *text)
{
    const char *separator = "";
    if (!text || !*text) return;
    strbuf_printf(out, ".SH \"%s\"\n", title);
    for (struct block b; next_block(&text, &b); separator = ".PP\n") {
        strbuf_printf(out, "%s%s", separator, b.is_example ? ".EX\n" : "");
        add_roff(out, b.text, b.length);
        strbuf_add_text(out, b.is_example ? "\n.EE\n" : "\n");
    }
}

static void man_option(struct strbuf *out, const struct arg *a)
{
    strbuf_add_text(out, ".TP\n\\fB");
    add_roff(out, a->names, strcspn(a->names, " "));
    strbuf_add_text(out, "\\fR");
    if (value_name(a)) {
        strbuf_add_text(out, " \\fI");
        add_roff_text(out, value_name(a));
        strbuf_add_text(out, "\\fR");
    }
    struct strbuf phrase = {0};
    add_phrase(&phrase, a);
    strbuf_add_char(out, '\n');
    add_roff(out, phrase.data, phrase.length);
    strbuf_add_char(out, '\n');
    strbuf_release(&phrase);
}

/* No words are hyphenated, so that names of
 * options can be searched and copied. */
static void man_head(struct strbuf *out, const struct arg_program *p, const char *page,
                     const char *phrase, size_t length)
{
    strbuf_add_text(out, ".TH \"");
    add_roff_text(out, page);
    strbuf_printf(out, "\" 1 \"\" \"%s %s\"\n.ad l\n.nh\n.SH NAME\n", p->name, p->version);
    add_roff_text(out, page);
    strbuf_add_text(out, " \\- ");
    add_roff(out, phrase, length);
    strbuf_add_text(out, "\n.SH SYNOPSIS\n");
}

static void add_page_name(struct strbuf *out, const struct arg_program *p, const struct command *c)
{
    strbuf_printf(out, "%s-%s", p->name, c->name);
}

static void man_options(struct strbuf *out, const struct command *c)
{
    const struct arg *a;
    struct shown x = {0};
    if (c->num_groups) strbuf_add_text(out, ".SH OPTIONS\n");
    while ((a = next_shown(c, &x))) {
        if (x.begins) {
            strbuf_add_text(out, ".SS \"");
            add_roff_text(out, x.title);
            strbuf_add_text(out, "\"\n");
        }
        man_option(out, a);
    }
    if (value_text(c)) {
        strbuf_add_text(out, ".PP\n");
        add_roff_text(out, value_text(c));
        strbuf_add_char(out, '\n');
    }
}

void args_man_page_of(struct strbuf *out, const struct arg_program *p, const struct command *c)
{
    struct strbuf page = {0}, usage = {0}, aliases = {0};
    add_page_name(&page, p, c);
    man_head(out, p, page.data, c->summary, strlen(c->summary));
    strbuf_printf(&usage, "%s ", p->name);
    add_usage(&usage, c);
    strbuf_add_text(out, "\\fB");
    add_roff_text(out, usage.data);
    strbuf_add_text(out, "\\fR\n");
    add_aliases(&aliases, p, c);
    if (aliases.length) {
        strbuf_add_text(out, ".PP\nAlso: ");
        add_roff_text(out, aliases.data);
        strbuf_add_text(out, ".\n");
    }
    man_section(out, "DESCRIPTION", c->text);
    man_options(out, c);
    for (size_t i = 0; i < p->num_sections; i++)
        if (p->sections[i].help_title) man_section(out, p->sections[i].title, p->sections[i].text);
    strbuf_printf(out, ".SH \"SEE ALSO\"\n\\fB%s\\fR(1)\n", p->name);
    strbuf_release(&page);
    strbuf_release(&usage);
    strbuf_release(&aliases);
}

void args_man_page(struct strbuf *out, const struct arg_program *p)
{
    const char *about = p->about;
    const size_t phrase = strcspn(about, "\n");
    man_head(out, p, p->name, about, phrase);
    strbuf_printf(out, "\\fB%s\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...\n",
                  p->name);
    man_section(out, "DESCRIPTION", about + phrase);
    strbuf_add_text(out, ".SH COMMANDS\n");
    for (size_t i = 0; i < p->num_commands; i++) {
        struct strbuf page = {0};
        add_page_name(&page, p, p->commands[i]);
        strbuf_add_text(out, ".TP\n\\fB");
        add_roff_text(out, page.data);
        strbuf_add_text(out, "\\fR(1)\n");
        add_roff_text(out, p->commands[i]->summary);
        strbuf_add_char(out, '\n');
        strbuf_release(&page);
    }
    for (size_t i = 0; i < p->num_sections; i++)
        man_section(out, p->sections[i].title, p->sections[i].text);
}

/* ---- bash completion ---- */

static void add_replaced(struct strbuf *out, const char *text, char from, char to)
{
    for (; *text; text++)
        strbuf_add_char(out, *text == from ? to : *text);
}

/* The possible values of an option; empty: any. */
static void add_choices(struct strbuf *out, const struct arg_program *p, const struct arg *a)
{
    if (a->kind == ARG_CHOICE)
        add_replaced(out, a->choices, '|', ' ');
    else if (a->value && p->add_values)
        p->add_values(out, a->value);
}

/* The command's name and aliases as a pattern of case. */
static void add_pattern(struct strbuf *out, const struct arg_program *p, const struct command *c)
{
    strbuf_add_text(out, c->name);
    for (size_t i = 0; i < p->num_aliases; i++)
        if (strcmp(p->aliases[i].command, c->name) == 0)
            strbuf_printf(out, "|%s", p->aliases[i].name);
}

static void complete_command(struct strbuf *out, const struct arg_program *p,
                             const struct command *c)
{
    const struct arg_group *group;
    const struct arg *a;
    strbuf_add_text(out, "    ");
    add_pattern(out, p, c);
    strbuf_add_text(out, ")\n        options='");
    for (size_t i = 0; (a = arg_at(c, i, &group)); i++)
        if (a->help) strbuf_printf(out, "%s ", a->names);
    strbuf_add_text(out, "--help'\n        case $prev in\n");
    for (size_t i = 0; (a = arg_at(c, i, &group)); i++) {
        struct strbuf choices = {0};
        if (a->help) add_choices(&choices, p, a);
        if (choices.length) {
            strbuf_add_text(out, "        ");
            add_replaced(out, a->names, ' ', '|');
            strbuf_printf(out, ") words='%s' ;;\n", choices.data);
        }
        strbuf_release(&choices);
    }
    strbuf_add_text(out, "        esac\n        ;;\n");
}

void args_bash_completion(struct strbuf *out, const struct arg_program *p)
{
    const char *program = p->name;
    strbuf_printf(out, "# bash completion for %s, made from its own tables\n_%s()\n{\n", program,
                  program);
    strbuf_add_text(out, "    local commands='");
    for (size_t i = 0; i < p->num_commands; i++)
        strbuf_printf(out, "%s ", p->commands[i]->name);
    for (size_t i = 0; i < p->num_aliases; i++)
        strbuf_printf(out, "%s ", p->aliases[i].name);
    /* bash splits --option=value at the =. */
    strbuf_add_text(out, "help'\n"
                         "    local cur=${COMP_WORDS[COMP_CWORD]} options= words=\n"
                         "    local prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
                         "    if [[ $cur == = ]]; then\n"
                         "        cur=\n"
                         "    elif [[ $prev == = ]]; then\n"
                         "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
                         "    fi\n"
                         "    prev=${prev//_/-}\n"
                         "    case ${COMP_WORDS[1]} in\n"
                         "    help) words=$commands ;;\n");
    for (size_t i = 0; i < p->num_commands; i++)
        complete_command(out, p, p->commands[i]);
    strbuf_add_text(out, "    esac\n"
                         "    if ((COMP_CWORD == 1)); then\n"
                         "        words=\"$commands --help --version\"\n"
                         "    elif [[ -z $words && $cur == -* ]]; then\n"
                         "        words=$options\n"
                         "    fi\n"
                         "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                         "}\n");
    strbuf_printf(out, "complete -o bashdefault -o default -F _%s %s\n", program, program);
}

/* ---- zsh completion ---- */

/* Text within '...' of a specification; zsh reads [ ] : itself. */
static void add_zsh_text(struct strbuf *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\'')
            strbuf_add_text(out, "'\\''");
        else if (strchr("[]:\\", text[i]))
            strbuf_printf(out, "\\%c", text[i]);
        else
            strbuf_add_char(out, text[i]);
    }
}

/* Whether the value may be a file name. */
static bool is_text(const struct arg *a)
{
    return a->kind == ARG_TEXT || a->kind == ARG_POSITIONAL || a->kind == ARG_WORDS ||
           a->kind == ARG_CONFIG;
}

/* '--tp[tensor parallel ranks]:N:' for each name. */
static void zsh_option(struct strbuf *out, const struct arg_program *p, const struct arg *a)
{
    const char *names = a->names;
    struct strbuf choices = {0};
    add_choices(&choices, p, a);
    for (struct word name; next_word(&names, ' ', &name);) {
        strbuf_printf(out, "            '%s%.*s[", a->kind == ARG_LIST ? "*" : "", (int)name.length,
                      name.text);
        add_zsh_text(out, a->help, strlen(a->help));
        strbuf_add_char(out, ']');
        if (takes_value(a)) {
            strbuf_add_char(out, ':');
            add_zsh_text(out, a->value ? a->value : "value", strlen(a->value ? a->value : "value"));
            if (choices.length)
                strbuf_printf(out, ":(%s)", choices.data);
            else
                strbuf_add_text(out, is_text(a) ? ":_files" : ": ");
        }
        strbuf_add_text(out, "' \\\n");
    }
    strbuf_release(&choices);
}

static void zsh_command(struct strbuf *out, const struct arg_program *p, const struct command *c)
{
    const struct arg_group *group;
    const struct arg *a;
    strbuf_add_text(out, "    ");
    add_pattern(out, p, c);
    strbuf_add_text(out, ")\n        _arguments -S \\\n");
    for (size_t i = 0; (a = arg_at(c, i, &group)); i++)
        if (a->help) zsh_option(out, p, a);
    strbuf_add_text(out, "            '--help[show help]' '*:file:_files'\n        ;;\n");
}

static void zsh_name(struct strbuf *out, const char *name, const char *what)
{
    strbuf_printf(out, "        '%s:", name);
    add_zsh_text(out, what, strlen(what));
    strbuf_add_text(out, "'\n");
}

void args_zsh_completion(struct strbuf *out, const struct arg_program *p)
{
    strbuf_printf(out,
                  "#compdef %s\n# zsh completion for %s, made from its own tables\n_%s() {\n"
                  "    local -a commands=(\n",
                  p->name, p->name, p->name);
    for (size_t i = 0; i < p->num_commands; i++)
        zsh_name(out, p->commands[i]->name, p->commands[i]->summary);
    for (size_t i = 0; i < p->num_aliases; i++)
        zsh_name(out, p->aliases[i].name, p->aliases[i].command);
    zsh_name(out, "help", "help of a command");
    strbuf_add_text(out, "    )\n"
                         "    if ((CURRENT == 2)) || [[ $words[2] == help ]]; then\n"
                         "        _describe command commands\n"
                         "        return\n"
                         "    fi\n"
                         "    local command=$words[2]\n"
                         "    shift words\n"
                         "    ((CURRENT--))\n"
                         "    case $command in\n");
    for (size_t i = 0; i < p->num_commands; i++)
        zsh_command(out, p, p->commands[i]);
    strbuf_printf(out,
                  "    esac\n}\nif [[ $funcstack[1] == _%s ]]; then\n    _%s \"$@\"\nelse\n"
                  "    compdef _%s %s\nfi\n",
                  p->name, p->name, p->name, p->name);
}

/* ---- fish completion ---- */

/* Text within '...'. */
static void add_fish_text(struct strbuf *out, const char *text)
{
    for (; *text; text++)
        strbuf_printf(out, strchr("'\\", *text) ? "\\%c" : "%c", *text);
}

/* A line for each name: -l of a long one,
 * -s of a short one. */
static void fish_option(struct strbuf *out, const struct arg_program *p, const struct command *c,
                        const struct arg *a)
{
    const char *names = a->names;
    struct strbuf choices = {0};
    add_choices(&choices, p, a);
    for (struct word name; next_word(&names, ' ', &name);) {
        const size_t dashes = name.length > 2 ? 2 : 1;
        strbuf_printf(out, "complete -c %s -n '__fish_seen_subcommand_from ", p->name);
        struct strbuf words = {0};
        add_pattern(&words, p, c);
        add_replaced(out, words.data, '|', ' ');
        strbuf_release(&words);
        strbuf_printf(out, "' -%c %.*s", dashes == 2 ? 'l' : 's', (int)(name.length - dashes),
                      name.text + dashes);
        if (choices.length)
            strbuf_printf(out, " -x -a '%s'", choices.data);
        else if (takes_value(a))
            strbuf_add_text(out, is_text(a) ? " -r -F" : " -x");
        strbuf_add_text(out, " -d '");
        add_fish_text(out, a->help);
        strbuf_add_text(out, "'\n");
    }
    strbuf_release(&choices);
}

static void fish_name(struct strbuf *out, const struct arg_program *p, const char *name,
                      const char *what)
{
    strbuf_printf(out, "complete -c %s -n __fish_use_subcommand -f -a %s -d '", p->name, name);
    add_fish_text(out, what);
    strbuf_add_text(out, "'\n");
}

void args_fish_completion(struct strbuf *out, const struct arg_program *p)
{
    const struct arg_group *group;
    const struct arg *a;
    strbuf_printf(out, "# fish completion for %s, made from its own tables\n", p->name);
    for (size_t i = 0; i < p->num_commands; i++)
        fish_name(out, p, p->commands[i]->name, p->commands[i]->summary);
    for (size_t i = 0; i < p->num_aliases; i++)
        fish_name(out, p, p->aliases[i].name, p->aliases[i].command);
    for (size_t c = 0; c < p->num_commands; c++)
        for (size_t i = 0; (a = arg_at(p->commands[c], i, &group)); i++)
            if (a->help) fish_option(out, p, p->commands[c], a);
}
