/* engine_agree.c - checks that all ranks of a job have the same command line: a
 * launcher starts each rank with its own. */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/memory.h"
#include "common/sha256.h"
#include "common/strbuf.h"
#include "train/loop/engine.h"

/* Includes the NUL, so that "a" "b" differs from "ab". */
static void add_word(struct sha256 *s, const char *word)
{
    sha256_add(s, word, strlen(word) + 1);
}

static enum status agree_on(const struct engine *e, const char *const *words, size_t num_words,
                            const char *what, struct error *err)
{
    char digest[SHA256_TEXT];
    struct sha256 *s = sha256_start();
    for (size_t i = 0; i < num_words; i++)
        add_word(s, words[i]);
    sha256_finish(s, digest);
    return e->agree(digest, sizeof digest, what, err);
}

static bool is_option(const char *word)
{
    return word[0] == '-' && !(word[1] >= '0' && word[1] <= '9');
}

/* Adds the option of word i with its values up to word i: "--lr 1e-3". */
static void add_option(struct strbuf *out, const char *const *words, size_t i)
{
    size_t first = i;
    while (first > 0 && !is_option(words[first]))
        first--;
    if (!is_option(words[first])) first = i;
    for (; first <= i; first++) {
        if (out->length) strbuf_add_char(out, ' ');
        strbuf_add_escaped(out, words[first], strlen(words[first]));
    }
}

/* Adds the first word that differs to the message, the same one on all ranks. */
static enum status name_word(const struct engine *e, const char *const *words, size_t num_words,
                             const char *what, struct error *err)
{
    struct strbuf here = {0};
    enum status st = OK;
    size_t i = 0;
    for (; i <= num_words; i++) {
        st = agree_on(e, words + i, i < num_words, what, err);
        if (st) break;
    }
    if (st != ERR_USAGE)
        return st ? st
                  : fail(err, ERR_OURS, "the digests of the %s differ, but none of its words",
                         what);
    if (i < num_words) add_option(&here, words, i);
    const struct error why = *err;
    st = fail(err, ERR_USAGE, "%s (here: %s)", why.text, i < num_words ? here.data : "its end");
    strbuf_release(&here);
    return st;
}

enum status engine_agree_on(const struct engine *e, const char *const *words, size_t num_words,
                            const char *what, struct error *err)
{
    const enum status st = agree_on(e, words, num_words, what, err);
    return st == ERR_USAGE ? name_word(e, words, num_words, what, err) : st;
}

/* Each word ends with a NUL. */
static const char **split_nul_words(const struct strbuf *text, size_t *num_words)
{
    const char **words = must_calloc(text->length + 1, sizeof *words);
    *num_words = 0;
    for (size_t at = 0; at < text->length; at += strlen(text->data + at) + 1)
        words[(*num_words)++] = text->data + at;
    return words;
}

static void read_command_line(struct strbuf *out)
{
    FILE *f = fopen("/proc/self/cmdline", "re");
    char part[4096];
    for (size_t n; f && (n = fread(part, 1, sizeof part, f)) > 0;)
        strbuf_add(out, part, n);
    if (f) (void)fclose(f);
}

static enum status agree_on_line(const struct engine *e, struct error *err)
{
    struct strbuf line = {0};
    size_t num_words;
    read_command_line(&line);
    const char **words = split_nul_words(&line, &num_words);
    enum status st = engine_agree_on(e, words, num_words, "command line", err);
    free(words);
    strbuf_release(&line);
    return st;
}

enum status engine_agree_on_words(const struct engine *e, struct error *err)
{
    char folder[PATH_MAX] = "";
    const char *const word = getcwd(folder, sizeof folder) ? folder : "";
    TRY(agree_on_line(e, err));
    return engine_agree_on(e, &word, 1, "working folder", err);
}
