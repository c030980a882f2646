/* param.h - the parameters of a model as ranks hold them: the stage, the split
 * dimension and its sections.
 *
 * This module is arithmetic only; the rows are data: convert/models/params.json
 * for Megatron-Core's parameters, a model map for those of a family.
 * convert/map/params.h makes a table of them for a config.
 *
 * - *section*: a part of the split dimension that ranks split by itself: each
 *   rank holds its part of gate and its part of up, not a half of [gate; up].
 * - *repeat*: a group of sections that occurs several times, as query heads,
 *   key and value occur once for each query group; ranks take whole repeats.
 *
 * All sizes are in elements. */
#ifndef FERRY_CKPT_PARAM_H
#define FERRY_CKPT_PARAM_H

#include "ckpt/view.h"
#include "common/status.h"

enum param_place { PLACE_EMBEDDING, PLACE_LAYER, PLACE_LAST }; /* first stage, its layer's, last */
enum split_group { PARAM_TP, PARAM_ETP };                      /* the ranks that split it */
enum { MAX_SECTIONS = 8 };
enum { STACK_LAYERS = 1, STACK_EXPERTS = 2 };

/* Specs of modules: Megatron's own, and Transformer Engine's, whose linears
 * include the norm before them. Models of the two register parameters in
 * different orders. */
enum param_order { ORDER_LOCAL, ORDER_TE, NUM_PARAM_ORDERS };

/* The place where a model registers a parameter. */
struct param_registered {
    unsigned module; /* number of its module in the model, from 1; 0: not known */
    unsigned number; /* of the parameter in its module */
};

struct param_section {
    const char *name;
    uint64_t size; /* rows of one repeat, by the config; 0: not known */
    bool shared;   /* ranks that share a repeat each have a copy (key, value) */
};

struct param_spec {
    const char *name;  /* logical: decoder.layers.{l}.mlp.experts.experts.{e}.linear_fc1.weight */
    const char *local; /* name in memory under Megatron's local spec; NULL: `name` */
    enum param_place place;
    enum split_group group;
    unsigned stacks;          /* STACK_*: leading axes along which a format may stack it */
    int split;                /* dimension; -1: every rank holds it whole */
    unsigned num_dims;        /* 0: the row gives no shape */
    uint64_t shape[MAX_AXES]; /* of the logical tensor without padding; 0: not known */
    uint64_t repeat;          /* number of repeats; 0: not known */
    unsigned num_sections;    /* 0: the dimension is one section */
    struct param_section sections[MAX_SECTIONS];
    bool even;   /* its sections have equal sizes, known or not */
    bool apart;  /* a format with keys may have one for each section: NAME.SECTION */
    bool padded; /* the rows are a vocabulary, padded so that ranks divide it */
    bool linear; /* the weight of a linear module, which has an _extra_state */
    bool buffer; /* a buffer of its module, never trained: no optimizer has it */
    bool own;    /* of the family: no model of Megatron-Core has it */
    bool mtp;    /* of a layer of multi-token prediction: mtp.layers.{l}. */
    struct param_registered registered[NUM_PARAM_ORDERS]; /* [enum param_order] */
};

struct param_table {
    const struct param_spec *specs; /* in the order in which files have them */
    size_t count;
    const struct param_spec **by_name; /* in the order of param_name_compare */
    const struct param_rows *rows;     /* its source rows (convert/map/params.h); may be NULL */
};

struct param {
    const struct param_spec *spec;
    uint64_t layer, expert; /* 0 where the name has none */
    const char *rest;       /* the name behind the layer's number, or all of it */
};

/* Finds spec, layer and expert of a logical name; false if no spec matches or t
 * is NULL. A state of the optimizer (optimizer.exp_avg.NAME) has the spec of
 * NAME. Numbers have no leading zeros. */
bool param_find(const struct param_table *t, const char *name, struct param *out);
/* Orders two parameters of one stage as a model registers them: < 0 if x comes
 * first. Experts come one by one, or by module if they are grouped. Parameters
 * of unknown place come last, in the order of the table. */
int param_registered_compare(const struct param *x, const struct param *y, enum param_order order,
                             bool grouped);
/* Sorts the specs into by_name, an array of `count`. */
void param_table_sort(struct param_table *t);
/* The order of by_name; a number, {l} and {e} are equal. */
int param_name_compare(const char *a, const char *b);

/* Whether the parameter belongs to one expert: its name has {e}. */
bool param_of_expert(const struct param_spec *s);

/* The purpose of a rank's part. The two differ only if more ranks split a
 * parameter than it has repeats. */
enum param_use {
    PARAM_STORED,  /* as Megatron stores it: an even split of the dimension, across sections */
    PARAM_COMPUTED /* for computing: size / repeat ranks share each repeat; each has its part of the
                      repeat's sections and a copy of the shared ones */
};

/* The parts of a parameter that one rank holds, in the order of its local
 * tensor. Consecutive shared sections are one part. */
struct param_parts {
    unsigned count;
    struct pair pairs[MAX_SECTIONS]; /* (flat in the whole, flat in the rank's tensor); nested */
    uint64_t start[MAX_SECTIONS][MAX_AXES], extent[MAX_SECTIONS][MAX_AXES]; /* boxes in the whole */
    uint64_t shape[MAX_AXES]; /* of the rank's tensor */
};

/* The parts of a parameter of `shape` (with padding) that rank `rank` of `size`
 * holds. A single rank holds it whole, whatever its sections. Only the
 * proportions of sections count. ERR_UNSUPPORTED, with `name`, unless
 *
 * - the dimension is repeat * (sum of the sections) * a whole number;
 * - size divides each section. */
MUST_CHECK enum status param_shard(const struct param_spec *s, const char *name, unsigned num_dims,
                                   const uint64_t *shape, uint64_t rank, uint64_t size,
                                   enum param_use use, struct param_parts *out, struct error *err);

/* The shape of the whole parameter, if each of `size` ranks stores a part of
 * shape `local`. */
MUST_CHECK enum status param_whole_shape(const struct param_spec *s, const char *name,
                                         unsigned num_dims, const uint64_t *local, uint64_t size,
                                         uint64_t *shape, struct error *err);

/* ---- padding of the vocabulary ---- */

/* vocab_size rounded up to a multiple of divisible_by * tp (Megatron's
 * calculate_padded_vocab_size). */
uint64_t padded_vocab_size(uint64_t vocab_size, uint64_t divisible_by, uint64_t tp);

/* The shape of a padded parameter with `rows` in place of the vocabulary size;
 * other shapes stay. The pairs of a shard may then reach past the true rows:
 * pair_clip() cuts them to the logical tensor. */
void param_padded_shape(const struct param_spec *s, unsigned num_dims, const uint64_t *shape,
                        uint64_t rows, uint64_t *out);

#endif
