#include "train/model/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"

uint64_t rope_dim(const struct model_config *c)
{
    uint64_t dim = (uint64_t)((double)c->kv_channels * c->rotary_percent);
    return dim - dim % 2;
}

static double max_positions(const struct model_config *c)
{
    uint64_t original = c->rope_original_max_position;
    return (double)(original ? original : c->max_position_embeddings);
}

uint64_t rope_max_positions(const struct model_config *c)
{
    const char *type = c->position_embedding_type;
    const double scaled = (double)c->rope_original_max_position * c->rope_factor;
    if (!type || strcmp(type, "rope") != 0) return 0;
    return max_u64(c->max_position_embeddings, scaled < 0x1p53 ? (uint64_t)scaled : 0);
}

/* The base, raised for sequences longer than in training. */
static double base_of(const struct model_config *c, uint64_t length)
{
    double dim = (double)rope_dim(c), trained = max_positions(c), f = c->rope_factor;
    double ratio = (double)length / trained;
    if (strcmp(c->rope_type, "dynamic") != 0 || ratio <= 1) return c->rotary_base;
    return c->rotary_base * pow(f * ratio - (f - 1), dim / (dim - 2));
}

static double llama3(const struct model_config *c, double inverse)
{
    double wave = 2 * M_PI / inverse, trained = max_positions(c);
    double low = c->rope_low_freq_factor, high = c->rope_high_freq_factor;
    if (wave > trained / low) return inverse / c->rope_factor;
    if (wave < trained / high) return inverse;
    double smooth = (trained / wave - low) / (high - low);
    return (1 - smooth) * inverse / c->rope_factor + smooth * inverse;
}

/* The dimension that makes `turns` turns over the trained length. */
static double yarn_dim(const struct model_config *c, double turns)
{
    return (double)rope_dim(c) * log(max_positions(c) / (turns * 2 * M_PI)) /
           (2 * log(c->rotary_base));
}

/* Dimensions with beta_fast turns or more stay; those below beta_slow are
 * divided. */
static double yarn(const struct model_config *c, double inverse, uint64_t i)
{
    double last = (double)rope_dim(c) - 1;
    double low = yarn_dim(c, c->rope_beta_fast), high = yarn_dim(c, c->rope_beta_slow);
    if (!c->rope_untruncated) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, last);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return inverse / c->rope_factor * ramp + inverse * (1 - ramp);
}

enum status rope_frequencies(const struct model_config *c, uint64_t length, double *inverse,
                             double *scale, struct error *err)
{
    const char *type = c->rope_type ? c->rope_type : "default";
    double base = base_of(c, length), dim = (double)rope_dim(c);
    bool known = strcmp(type, "default") == 0 || strcmp(type, "dynamic") == 0;
    *scale = strcmp(type, "yarn") == 0 ? c->rope_attention_factor : 1;
    for (uint64_t i = 0; i < rope_dim(c) / 2; i++) {
        inverse[i] = pow(base, -2 * (double)i / dim);
        if (strcmp(type, "linear") == 0)
            inverse[i] /= c->rope_factor;
        else if (strcmp(type, "llama3") == 0)
            inverse[i] = llama3(c, inverse[i]);
        else if (strcmp(type, "yarn") == 0)
            inverse[i] = yarn(c, inverse[i], i);
        else if (!known)
            return fail(err, ERR_UNSUPPORTED,
                        "rope_type %s is not supported (default, dynamic, linear, llama3, yarn)",
                        type);
    }
    return OK;
}

enum status rope_table(const struct model_config *c, uint64_t length, uint64_t num_positions,
                       bool wide, void *table, struct error *err)
{
    uint64_t dim = rope_dim(c), half = dim / 2;
    double *inverse = must_calloc(half + 1, sizeof *inverse), scale;
    enum status st = rope_frequencies(c, length, inverse, &scale, err);
    for (uint64_t at = 0; at < num_positions && !st; at++) {
        for (uint64_t i = 0; i < half; i++) {
            double angle = (float)at * (float)inverse[i];
            double x = cos(angle) * scale, y = sin(angle) * scale;
            if (wide) {
                ((double *)table)[at * dim + i] = x;
                ((double *)table)[at * dim + half + i] = y;
            } else {
                ((float *)table)[at * dim + i] = (float)x;
                ((float *)table)[at * dim + half + i] = (float)y;
            }
        }
    }
    free(inverse);
    return st;
}
