/* train_batch_schedule.c - --step-batch-size-schedule, as Megatron-LM reads it
 * (core/num_microbatches_calculator.py): TOKENS:SIZE, separated by commas or
 * blanks, in any order. Both may be "1.5K", "2e3" or "250B": K, M, B and T are
 * powers of 1000. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "train/cli/train_finish.h"

/* Removes the unit at the end of a number, and returns its factor. */
static double take_unit(char *number, size_t length)
{
    static const struct {
        char suffix;
        double factor;
    } units[] = {{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}};
    for (size_t i = 0; i < COUNT(units); i++)
        if (toupper((unsigned char)number[length - 1]) == units[i].suffix) {
            number[length - 1] = '\0';
            return units[i].factor;
        }
    return 1;
}

/* Parses a number of at least 0, rounded down. */
static bool parse_amount(const char *text, size_t length, uint64_t *out)
{
    char number[64], *end;
    if (!length || length >= sizeof number) return false;
    memcpy(number, text, length);
    number[length] = '\0';
    const double factor = take_unit(number, length);
    if (!number[0] || strspn(number, "0123456789.eE+") != strlen(number)) return false;
    const double n = strtod(number, &end) * factor;
    if (*end || !(n >= 0 && n < 9007199254740992.0)) return false;
    *out = (uint64_t)n;
    return true;
}

/* Thresholds count whole samples. */
static bool parse_step(const char *entry, size_t length, uint64_t seq_length,
                       struct batch_size_step *s)
{
    const char *colon = memchr(entry, ':', length);
    uint64_t tokens;
    if (!colon || !parse_amount(entry, (size_t)(colon - entry), &tokens)) return false;
    if (!parse_amount(colon + 1, length - (size_t)(colon + 1 - entry), &s->global_batch_size))
        return false;
    s->from_sample = tokens / (seq_length ? seq_length : 1); /* 0 is another problem */
    return s->global_batch_size > 0;
}

static int by_sample(const void *a, const void *b)
{
    const struct batch_size_step *x = a, *y = b;
    return (x->from_sample > y->from_sample) - (x->from_sample < y->from_sample);
}

static bool parse_steps(struct train_options *o)
{
    static const char separators[] = ", \t\n";
    const char *at = o->step_batch_size_schedule;
    struct batch_size_step *steps = NULL;
    size_t n = 0, capacity = 0;
    for (at += strspn(at, separators); *at; at += strspn(at, separators)) {
        const size_t length = strcspn(at, separators);
        struct batch_size_step s;
        if (!parse_step(at, length, o->seq_length, &s)) return false;
        *ARENA_PUSH(&o->arena, steps, n, capacity) = s;
        at += length;
    }
    if (n) qsort(steps, n, sizeof *steps, by_sample);
    o->batch_size_steps = steps;
    o->num_batch_size_steps = n;
    return n > 0;
}

void train_complete_batch_schedule(struct train_finish *x)
{
    struct train_options *o = x->o;
    const char *text = o->step_batch_size_schedule;
    if (!text) return;
    if (!parse_steps(o)) {
        train_problem(x,
                      "--step-batch-size-schedule: \"%s\" is not a list of TOKENS:SIZE such as "
                      "0:768,250B:1536",
                      text);
        return;
    }
    const struct batch_size_step *s = o->batch_size_steps;
    if (s[0].from_sample)
        train_problem(x, "--step-batch-size-schedule %s: the first size must start at 0 tokens",
                      text);
    for (size_t i = 1; i < o->num_batch_size_steps; i++)
        if (s[i].from_sample == s[i - 1].from_sample)
            train_problem(x, "--step-batch-size-schedule %s: two sizes start at sample %" PRIu64,
                          text, s[i].from_sample);
    if (!o->is_global_batch_size_given) o->global_batch_size = s[0].global_batch_size;
}
