#include "train/data/paths.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/data/blend.h"

static bool parse_number(const char *word, double *number)
{
    char *end;
    *number = strtod(word, &end);
    return end != word && end[strspn(end, " \t\n")] == '\0';
}

static const char *strip_blanks(struct arena *a, const char *word)
{
    while (isspace((unsigned char)*word))
        word++;
    size_t n = strlen(word);
    while (n && isspace((unsigned char)word[n - 1]))
        n--;
    return arena_text(a, word, n);
}

/* Number of numbers at even places, which fill numbers[]. */
static size_t parse_weights(const struct data_paths *paths, double *numbers)
{
    size_t count = 0;
    for (size_t i = 0; i + 1 < paths->count; i += 2)
        count += parse_number(paths->words[i], &numbers[i / 2]);
    return count;
}

static enum status check_weights(const struct data_paths *paths, const double *weights,
                                 size_t count, struct error *err)
{
    for (size_t k = 0; k < count; k++)
        if (!(weights[k] > 0) || !isfinite(weights[k]))
            return fail(err, ERR_USAGE, "%s %s: the weight must be above 0", paths->words[2 * k],
                        paths->words[2 * k + 1]);
    return OK;
}

enum status blend_paths_parse(struct blend_paths *out, const struct data_paths *paths,
                              struct arena *a, struct error *err)
{
    const size_t pairs = paths->count / 2;
    double *weights = arena_array(a, pairs + 1, sizeof *weights);
    const size_t numbers = paths->count % 2 ? 0 : parse_weights(paths, weights);
    const bool weighted = numbers > 0;
    if (weighted && numbers < pairs)
        return fail(err, ERR_USAGE, "data paths: some have a weight and some have none (%s ...)",
                    paths->words[0]);
    *out = (struct blend_paths){.count = weighted ? pairs : paths->count};
    if (out->count > MAX_BLENDED)
        return fail(err, ERR_UNSUPPORTED, "%zu datasets, expected at most %d", out->count,
                    MAX_BLENDED);
    out->prefixes = arena_array(a, out->count, sizeof *out->prefixes);
    for (size_t k = 0; k < out->count; k++)
        out->prefixes[k] = strip_blanks(a, paths->words[weighted ? 2 * k + 1 : k]);
    if (!weighted) return OK;
    TRY(check_weights(paths, weights, pairs, err));
    blend_normalize(weights, pairs);
    out->weights = weights;
    return OK;
}
