/* param.h - the parameters of a model as ranks hold them: the stage of each, the dimension that is
 * split, and the sections of that dimension.
 *
 * This module only does the arithmetic. The rows are data: convert/models/params.json for
 * Megatron-Core's parameters, a model map for those of one family; convert/map/params.h makes a
 * table of them for a config.
 *
 * A *section* is a part of the split dimension that ranks split by itself: each rank holds its part
 * of gate and its part of up, not a half of [gate; up]. A *repeat* is a group of sections that
 * occurs several times, as query heads, key and value occur once for each query group; ranks take
 * whole repeats. All sizes are in elements. */
#ifndef FERRY_CKPT_PARAM_H
#define FERRY_CKPT_PARAM_H

#include "ckpt/view.h"
#include "common/status.h"

enum param_place { PLACE_EMBEDDING, PLACE_LAYER, PLACE_LAST }; /* first stage, its layer's, last */
enum split_group { PARAM_TP, PARAM_ETP };                      /* the ranks that split it */
enum { MAX_SECTIONS = 8 };
enum { STACK_LAYERS = 1, STACK_EXPERTS = 2 };

/* Specs of modules: Megatron's own, and Transformer Engine's, whose linears have the norm before
 * them. Models of the two register their parameters in different orders. */
enum param_order { ORDER_LOCAL, ORDER_TE, NUM_PARAM_ORDERS };

/* Where a model registers a parameter. */
struct param_registered {
    unsigned module; /* number of its module among those of a model, from 1; 0: not known */
    unsigned number; /* of the parameter in its module */
};

struct param_section {
    const char *name;
    uint64_t size; /* rows of one repeat, by the config; 0: not known */
    bool shared;   /* ranks that share a repeat have a copy each (key, value) */
};

struct param_spec {
    const char *name;  /* logical: decoder.layers.{l}.mlp.experts.experts.{e}.linear_fc1.weight */
    const char *local; /* in memory under Megatron's local spec where that differs; else NULL */
    enum param_place place;
    enum split_group group;
    unsigned stacks;          /* STACK_*: which leading axes a format may stack it along */
    int split;                /* dimension; -1: every rank holds it whole */
    unsigned num_dims;        /* 0: the row gives no shape */
    uint64_t shape[MAX_AXES]; /* of the logical tensor, by the config, without padding; a dimension
                               * of 0 is not known */
    uint64_t repeat;          /* number of repeats; 0: not known */
    unsigned num_sections;    /* 0: the dimension is one section */
    struct param_section sections[MAX_SECTIONS];
    bool even;   /* its sections are of one size, known or not */
    bool padded; /* the rows are a vocabulary, padded to what ranks divide */
    bool linear; /* the weight of a linear module: it has an _extra_state */
    bool buffer; /* a buffer of its module: never trained, so no optimizer has it */
    struct param_registered registered[NUM_PARAM_ORDERS]; /* [enum param_order] */
};

struct param_table {
    const struct param_spec *specs; /* in the order in which files have them */
    size_t count;
    const struct param_spec **by_name; /* in the order of param_name_compare */
    const struct param_rows
        *rows; /* the rows that it was made from (convert/map/params.h); may be NULL */
};

struct param {
    const struct param_spec *spec;
    uint64_t layer, expert; /* 0 where the name has none */
    const char *rest;       /* the name behind the layer's number, or the whole name */
};

/* The spec, layer and expert of a logical name; false where no spec fits, or t is NULL. States of
 * the optimizer (optimizer.exp_avg.NAME) have the spec of NAME. Numbers are written one way: no
 * 017. */
bool param_find(const struct param_table *t, const char *name, struct param *out);
/* The order in which a model registers two parameters of one stage: < 0 if x comes first. Experts
 * come one by one, or by module if they are grouped. Parameters whose place is not known come last,
 * in the order of the table. */
int param_registered_compare(const struct param *x, const struct param *y, enum param_order order,
                             bool grouped);
/* Sorts the specs into by_name, an array of `count`. */
void param_table_sort(struct param_table *t);
/* The order of by_name: any number, {l} and {e} are alike. */
int param_name_compare(const char *a, const char *b);

/* Whether the parameter is one expert's: its name has {e}. */
bool param_of_expert(const struct param_spec *s);

/* The purpose of a rank's part. The two differ only if more ranks split a parameter than it has
 * repeats. */
enum param_use {
    PARAM_STORED,  /* as Megatron stores it: an even split of the dimension, through sections */
    PARAM_COMPUTED /* for computing: size / repeat ranks share each repeat; each has its part of the
                      repeat's sections and a copy of the shared ones */
};

/* The parts of a parameter that one rank holds, in the order in which they lie in its own tensor.
 * Shared sections that follow one another are one part. */
struct param_parts {
    unsigned count;
    struct pair pairs[MAX_SECTIONS]; /* (flat in the whole, flat in the rank's own); nested */
    uint64_t start[MAX_SECTIONS][MAX_AXES], extent[MAX_SECTIONS][MAX_AXES]; /* boxes of the whole
                                                                             */
    uint64_t shape[MAX_AXES]; /* of the rank's own tensor */
};

/* The parts of a parameter of `shape` (with padding) that rank `rank` of `size` holds. A single
 * rank holds it whole, whatever its sections. Only the proportions of sections count: the dimension
 * must be repeat * (sum of the sections) * a whole number. ERR_UNSUPPORTED, with `name`, if it is
 * not, or size does not divide a section. */
MUST_CHECK enum status param_shard(const struct param_spec *s, const char *name, unsigned num_dims,
                                   const uint64_t *shape, uint64_t rank, uint64_t size,
                                   enum param_use use, struct param_parts *out, struct error *err);

/* The shape of the whole parameter of which each of `size` ranks stores a part of `local` shape. */
MUST_CHECK enum status param_whole_shape(const struct param_spec *s, const char *name,
                                         unsigned num_dims, const uint64_t *local, uint64_t size,
                                         uint64_t *shape, struct error *err);

/* ---- padding of the vocabulary ---- */

/* vocab_size rounded up to a multiple of divisible_by * tp (Megatron's
 * calculate_padded_vocab_size). */
uint64_t padded_vocab_size(uint64_t vocab_size, uint64_t divisible_by, uint64_t tp);

/* For a padded parameter: the shape with `rows` in place of the vocabulary size; for others the
 * same shape. The pairs of a shard then reach past the true rows; pair_clip() cuts them to the
 * elements of the logical tensor. */
void param_padded_shape(const struct param_spec *s, unsigned num_dims, const uint64_t *shape,
                        uint64_t rows, uint64_t *out);

#endif
