#include "train/data/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const split_names[NUM_SPLITS] = {"train", "valid", "test"};

static const char separators[] = ", /\t";

static enum status parse_shares(const char *text, double shares[NUM_SPLITS], struct error *err)
{
    unsigned count = 0;
    for (const char *at = text + strspn(text, separators); *at; at += strspn(at, separators)) {
        char *end;
        const double share = strtod(at, &end);
        const size_t digits = strspn(at, "0123456789.");
        if (digits == 0 || end != at + digits || !isfinite(share))
            return fail(err, ERR_USAGE,
                        "--split %s: \"%s\": expected up to three numbers such as 969,30,1", text,
                        at);
        if (count == NUM_SPLITS)
            return fail(err, ERR_USAGE,
                        "--split %s: expected at most three numbers: train, valid and test", text);
        shares[count++] = share;
        at = end;
    }
    return OK;
}

enum status split_parse(struct split_shares *out, const char *text, struct error *err)
{
    double shares[NUM_SPLITS] = {0};
    TRY(parse_shares(text, shares, err));
    const double sum = shares[0] + shares[1] + shares[2];
    if (!(sum > 0) || !isfinite(sum))
        return fail(err, ERR_USAGE, "--split %s: the numbers add up to %g", text, sum);
    out->bounds[0] = 0;
    for (unsigned k = 0; k < NUM_SPLITS; k++)
        out->bounds[k + 1] = out->bounds[k] + shares[k] / sum;
    return OK;
}

bool split_has_share(const struct split_shares *s, enum data_split split)
{
    return s->bounds[split] < s->bounds[split + 1];
}

/* Shares may add up to a little more than 1. */
static uint64_t split_border(double bound, uint64_t num_sequences)
{
    const double n = rint(bound * (double)num_sequences);
    return n < (double)num_sequences ? (uint64_t)n : num_sequences;
}

void split_range(const struct split_shares *s, enum data_split split, uint64_t num_sequences,
                 uint64_t *first, uint64_t *past)
{
    *first = split_border(s->bounds[split], num_sequences);
    *past = split_border(s->bounds[split + 1], num_sequences);
}
