/* args_guess.c - guesses the word a user meant. */
#include "common/args_internal.h"
#include "common/checked.h"

enum { LONGEST_GUESS = 64 };

static size_t common_prefix(struct word a, struct word b)
{
    size_t n = 0;
    while (n < a.length && n < b.length && args_fold(a.text[n]) == args_fold(b.text[n]))
        n++;
    return n;
}

/* Levenshtein's distance, one row at a time. */
static size_t edit_distance(struct word a, struct word b)
{
    size_t row[LONGEST_GUESS + 1];
    for (size_t j = 0; j <= b.length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a.length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.length; j++) {
            size_t change = diagonal + (args_fold(a.text[i - 1]) != args_fold(b.text[j - 1]));
            diagonal = row[j];
            row[j] = min_u64(change, min_u64(row[j], row[j - 1]) + 1);
        }
    }
    return row[b.length];
}

void args_guess(struct args_guess *g, struct word w)
{
    if (g->typed.length > LONGEST_GUESS || w.length > LONGEST_GUESS) return;
    size_t prefix = common_prefix(g->typed, w);
    bool is_beginning = prefix == g->typed.length && prefix > 4;
    size_t distance = is_beginning ? 1 : edit_distance(g->typed, w);
    if (distance > g->typed.length / 3) return;
    if (g->best.length && distance > g->distance) return;
    if (g->best.length && distance == g->distance && prefix <= g->prefix) return;
    g->best = w;
    g->distance = distance;
    g->prefix = prefix;
}
