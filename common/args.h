/* args.h - command lines as tables: one table gives parsing, --help, man page and completion.
 *
 * An option has one or more spellings ("--tensor-model-parallel-size --tp"); help shows the first.
 * In what a user types, `_` counts as `-`, "--name=value" and "--name value" are the same, "--"
 * ends the options, and options may stand anywhere. If one is given twice, the last value counts. A
 * value that begins with "--" must be written with "=". An unknown option is ERR_USAGE; the message
 * has the table's hint for it or the nearest known option. A positional argument can also be given
 * by an option (ARG_POSITIONAL); the other words fill the remaining positions.
 *
 * Longer texts are paragraphs: an empty line ends one, line ends within it are blanks, and lines
 * that begin with a blank are examples, shown as they stand. */
#ifndef FERRY_COMMON_ARGS_H
#define FERRY_COMMON_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"

enum arg_kind {
    ARG_FLAG,       /* bool; no value */
    ARG_FLAG_OFF,   /* the same, and sets it to false: "--no-save-rng" */
    ARG_UINT,       /* uint64_t, decimal, from 1 to INT64_MAX: 0 in the field is "not given" */
    ARG_UINT_OR_0,  /* the same from 0, where 0 means something: UINT64_MAX is "not given" */
    ARG_SIZE,       /* uint64_t bytes, from 1: 4096, 5GB (5 * 10^9), 1.5GiB or 1.5G (1.5 * 2^30) */
    ARG_FLOAT,      /* double, finite */
    ARG_TEXT,       /* const char * */
    ARG_CHOICE,     /* const char *, one of choices */
    ARG_LIST,       /* struct arg_list; may be given several times */
    ARG_WORDS,      /* struct arg_list; all the words up to the next option, at least one. A word
                     * that begins with "-" and a digit is a number. The last time counts */
    ARG_CONFIG,     /* struct arg_config; a file with options of the same command, which count as
                     * if they stood before those of the line */
    ARG_POSITIONAL, /* the positional argument number `offset`; twice is an error */
    ARG_NOTED,  /* struct arg_list of pairs: the option's `names`, and its value (NULL if `value`
                 * is NULL); for options that a command only reports */
    ARG_NAMED,  /* struct arg_list: the option as it was typed ("--fp8_margin=0"), without its value
                 * if that is a word of its own. `names` may be many options that one message is
                 * about; a mistyped one of them is guessed though help does not show it */
    ARG_IGNORED /* accepted with its value (if value is not NULL) and without effect */
};

struct arg_list {
    const char **items; /* on the heap; args_release */
    size_t count;
};

/* What ARG_CONFIG read: the words stand in for a command line. On the heap; args_release. */
struct arg_config {
    const char *path; /* NULL: none */
    char **words;
    size_t num_words;
};

struct arg {
    const char *names; /* separated by a blank, all with their dashes; also "-q" */
    enum arg_kind kind;
    size_t offset; /* of the field in the command's options struct */
    /* What the value is called: "N", "DIR"; NULL for flags and choices. ARG_WORDS, ARG_NOTED and
     * ARG_NAMED: "NAME..." takes several words. */
    const char *value;
    const char *choices; /* "bar|plain"; for ARG_CHOICE */
    const char *help;    /* a phrase with the default. NULL: accepted, but not shown */
};

/* Options that stand together, and that several commands may share. */
struct arg_group {
    const char *title; /* "Layout" */
    const struct arg *args;
    size_t num_args;
    size_t offset; /* of the group's struct in the command's options struct */
};

/* Another spelling of a value: --to huggingface is --to hf. */
struct arg_spelling {
    const char *option; /* its first name */
    const char *typed, *means;
};

struct command {
    const char *name;       /* "convert" */
    const char *summary;    /* one line */
    const char *positional; /* "SOURCE DESTINATION"; a name in [] is optional, ... repeats */
    const char *text;       /* paragraphs for --help and the man page; may be NULL */
    const struct arg_group *groups;
    size_t num_groups;
    const struct arg_spelling *spellings;
    size_t num_spellings;
    size_t options_bytes;            /* of the options struct; zeroed before parsing */
    void (*defaults)(void *options); /* may be NULL: all zero */
    enum status (*run)(void *options, const char *const *positional, size_t num_positional,
                       struct error *err);
};

/* The message for a word that is a command or an option of another program. */
struct arg_hint {
    const char *words; /* separated by a blank: "import", "--load --save" */
    const char *text;
};

/* Another name of a command. */
struct arg_alias {
    const char *name, *command;
    const char *adds; /* options in front of those that are typed: "--to hf"; NULL */
    /* Options that have another name under this alias, in pairs: "--hf-model --hf-config". NULL */
    const char *renames;
};

/* A part of the manual page, after the commands: "EXIT STATUS", paragraphs. */
struct arg_section {
    const char *title, *text;
    const char *help_title; /* its title in --help; NULL: not shown there */
};

struct arg_program {
    const char *name, *version;
    /* The text behind "ferry - "; paragraphs may follow after an empty line. */
    const char *about;
    const struct command *const *commands;
    size_t num_commands;
    const struct arg_alias *aliases;
    size_t num_aliases;
    const struct arg_section *sections;
    size_t num_sections;
    /* Adds the possible values of an option whose `value` is "FAMILY", say, separated by blanks,
     * for completion. May be NULL. */
    void (*add_values)(struct strbuf *out, const char *value);
    const struct arg_hint *hints; /* used instead of the nearest known word */
    size_t num_hints;
};

/* Parses argv[0..argc) (without program and command name) into options, which keep pointers into
 * argv; args_release afterwards, after a failure too. positional[] is filled with pointers into
 * argv (room for argc of them) and counted against command->positional. */
MUST_CHECK enum status args_parse(const struct command *c, int argc, char **argv, void *options,
                                  const char **positional, size_t *num_positional,
                                  struct error *err);
void args_release(const struct command *c, void *options);

/* The program's main: `ferry COMMAND ...`, `ferry --help`, `ferry --version` or `ferry version`,
 * `ferry help COMMAND`.
 * Parses, runs, and prints the error on stderr ("ferry convert: ..."), unless its text is empty. If
 * a launcher started several processes (ranks.h), the others wait before they print an error of the
 * command line: rank 0 prints it first, and the launcher then ends them. Returns the exit code;
 * ERR_IO also if stdout could not be written. */
int args_main(const struct arg_program *p, int argc, char **argv);

/* Texts made from the tables. */
void args_help(struct strbuf *out, const char *program, const struct command *c);
void args_man_page(struct strbuf *out, const struct arg_program *p);
void args_bash_completion(struct strbuf *out, const struct arg_program *p);
void args_zsh_completion(struct strbuf *out, const struct arg_program *p);

/* A file of ARG_CONFIG is YAML, a mapping of options to values: keys are the names with or without
 * dashes in front, `_` counts as `-`; a flag has true (false and null: not given), several words
 * are a list. Errors name the file; unknown keys are refused as on the line. */

/* Reads a size as ARG_SIZE does; 0 is allowed. Units are those of coreutils, k to P in upper or
 * lower case: kB is a power of 1000; k and KiB are powers of 1024. */
bool parse_size(const char *text, uint64_t *bytes);

#endif
