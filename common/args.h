/* args.h - command lines as tables: one table gives parsing, --help, the manual
 * page and shell completions.
 *
 * An option has one or more names ("--tensor-model-parallel-size --tp"); help
 * shows the first. On the command line `_` counts as `-`, "--name=value" equals
 * "--name value", "--" ends the options, and options may stand anywhere. The
 * last value of a repeated option counts. A value that begins with "--" needs
 * "=". An unknown option is ERR_USAGE with the table's hint or the nearest
 * known option. An option can also give a positional argument (ARG_POSITIONAL);
 * words fill the remaining positions.
 *
 * Longer texts are paragraphs: an empty line ends a paragraph, a line end
 * within it is a blank, and lines that begin with a blank are examples, shown
 * unchanged. */
#ifndef FERRY_COMMON_ARGS_H
#define FERRY_COMMON_ARGS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"

enum arg_kind {
    ARG_FLAG,       /* bool; no value */
    ARG_FLAG_OFF,   /* bool; sets it to false: "--no-save-rng" */
    ARG_UINT,       /* uint64_t, decimal, from 1 to INT64_MAX: 0 in the field is "not given" */
    ARG_UINT_OR_0,  /* uint64_t, decimal, from 0 to INT64_MAX: UINT64_MAX is "not given" */
    ARG_SIZE,       /* uint64_t bytes, from 1: 4096, 5GB (5 * 10^9), 1.5GiB or 1.5G (1.5 * 2^30) */
    ARG_FLOAT,      /* double, finite */
    ARG_TEXT,       /* const char * */
    ARG_CHOICE,     /* const char *, one of choices */
    ARG_LIST,       /* struct arg_list; may be given several times */
    ARG_WORDS,      /* struct arg_list; all words up to the next option, at least one. A word that
                     * begins with "-" and a digit is a number. The last use counts */
    ARG_CONFIG,     /* struct arg_config; a file with options of the same command, parsed before
                     * those of the command line, which take precedence */
    ARG_POSITIONAL, /* positional argument number `offset`; an error if given twice */
    ARG_NOTED,      /* struct arg_list of pairs: the option's `names` and its value (NULL if
                     * `value` is NULL); for options that a command only reports */
    ARG_NAMED,      /* struct arg_list: the option as typed ("--fp8_margin=0"), without a value in a
                     * word of its own. `names` may hold many options that share a message;
                     * guesses include them even if `help` is NULL */
    ARG_IGNORED     /* accepted without effect; takes a value if `value` is not NULL */
};

struct arg_list {
    const char **items; /* on the heap; args_release */
    size_t count;
};

/* A file of options as words of a command line. On the heap; args_release. */
struct arg_config {
    const char *path; /* NULL: none */
    char **words;
    size_t num_words;
};

struct arg {
    const char *names; /* separated by blanks, with their dashes; also "-q" */
    enum arg_kind kind;
    size_t offset; /* of the field in the command's options struct */
    /* Name of the value in help: "N", "DIR"; NULL for flags and choices.
     * "NAME..." takes several words (ARG_WORDS, ARG_NOTED, ARG_NAMED). */
    const char *value;
    const char *choices; /* "bar|plain"; for ARG_CHOICE */
    const char *help;    /* a phrase with the default. NULL: accepted, but hidden */
};

/* Options under one title, which groups in a row may share; several commands may
 * share a group. */
struct arg_group {
    const char *title;      /* "Layout" */
    const struct arg *args; /* NULL: data, by struct command.made */
    size_t num_args;
    size_t offset; /* of the group's struct in the command's options struct */
};

/* Another spelling of a value: --to huggingface is --to hf. */
struct arg_spelling {
    const char *option; /* its first name */
    const char *typed, *means;
    const char *hint; /* if means is NULL: why it is no value, and the way on */
};

struct command {
    const char *name;       /* "convert" */
    const char *summary;    /* one line */
    const char *positional; /* "SOURCE DESTINATION"; [] is optional, ... repeats */
    const char *text;       /* paragraphs for --help and the man page; may be NULL */
    const struct arg_group *groups;
    size_t num_groups;
    /* Makes a group without args. NULL: all have args. */
    const struct arg_group *(*made)(const struct arg_group *group);
    const struct arg_spelling *spellings;
    size_t num_spellings;
    size_t options_bytes;            /* of the options struct; zeroed before parsing */
    void (*defaults)(void *options); /* may be NULL: all zero */
    enum status (*run)(void *options, const char *const *positional, size_t num_positional,
                       struct error *err);
};

/* The message for a command or an option of another program. */
struct arg_hint {
    const char *words; /* separated by blanks: "import", "--load --save" */
    const char *text;
};

/* Another name of a command. */
struct arg_alias {
    const char *name, *command;
    const char *adds; /* options put before the typed ones: "--to hf"; NULL: none */
    /* Options with another name under this alias, in pairs:
     * "--hf-model --hf-config". NULL: none */
    const char *renames;
};

/* A part of the manual page, after the commands: "EXIT STATUS", paragraphs. */
struct arg_section {
    const char *title, *text;
    const char *help_title; /* title in --help; NULL: not in --help */
};

struct arg_program {
    const char *name, *version;
    /* Adds texts and nulls, for --version. May be NULL. */
    void (*add_build)(cJSON *o);
    /* The text behind "ferry - "; more paragraphs may follow an empty line. */
    const char *about;
    const struct command *const *commands;
    size_t num_commands;
    const struct arg_alias *aliases;
    size_t num_aliases;
    const struct arg_section *sections;
    size_t num_sections;
    /* Completion: adds the possible values of an option by its `value`
     * ("FAMILY"), separated by blanks. May be NULL. */
    void (*add_values)(struct strbuf *out, const char *value);
    const struct arg_hint *hints; /* shown instead of the nearest known word */
    size_t num_hints;
};

/* Parses argv[0..argc), without program and command name, into options. Call
 * args_release() afterwards, even after a failure. options and positional[]
 * (room for argc) point into argv. Checks the count against
 * command->positional. */
MUST_CHECK enum status args_parse(const struct command *c, int argc, char **argv, void *options,
                                  const char **positional, size_t *num_positional,
                                  struct error *err);
void args_release(const struct command *c, void *options);

/* The program's main: `ferry COMMAND ...`, `ferry --help`, `ferry --version`,
 * `ferry version --json`, `ferry help COMMAND`.
 *
 * Parses, runs, and prints a non-empty error on stderr ("ferry convert: ...").
 * Among processes of one launcher (ranks.h) rank 0 prints an error of the
 * command line first, and the launcher then ends the others, which wait for
 * that. Returns the exit code; ERR_IO also if stdout could not be written. */
int args_main(const struct arg_program *p, int argc, char **argv);

/* Texts made from the tables. */
void args_help(struct strbuf *out, const char *program, const struct command *c);
void args_man_page(struct strbuf *out, const struct arg_program *p);
void args_man_page_of(struct strbuf *out, const struct arg_program *p, const struct command *c);
void args_bash_completion(struct strbuf *out, const struct arg_program *p);
void args_zsh_completion(struct strbuf *out, const struct arg_program *p);
void args_fish_completion(struct strbuf *out, const struct arg_program *p);

/* A file of ARG_CONFIG is a YAML mapping of options to values. Keys are names
 * with or without dashes in front, `_` counts as `-`. A flag takes true (false
 * and null: not given), several words are a list, and so is ARG_LIST. Two keys of one option must
 * have the same value. Errors name the file; unknown
 * keys are refused as on the command line. */

/* Reads a size as ARG_SIZE does, and also 0. Units are those of coreutils, k to
 * P in upper or lower case: kB is a power of 1000, k and KiB are powers of
 * 1024. */
bool parse_size(const char *text, uint64_t *bytes);

#endif
