/* tp_rules.h - how tensor parallel ranks split parameters, by
 * universal_checkpoint_info of a rank's model file (deepspeed/checkpoint/
 * constants.py, ds_to_universal.py:merge_tp_slices; module_inject/layers.py).
 *
 *   affine_map: {params: {PATTERN: {logical_shape, ranks: {RANK: {shard_shape,
 *       pieces: [{shape, dest, source, locations}]}}}}}
 *               dest and source: (offset, strides), in elements, in the part and
 *               in the whole; locations: ranks with the same piece
 *   tp_replicated_parameter_patterns            every rank has the whole
 *   parameter_with_row_parallelism_patterns     parts join along dim 1
 *   parameter_with_2_sub_params_cat_dim_0       a part is [a; b]: all a, then all b
 *   parameter_with_sub_params                   [{patterns, shape, partition_dim}],
 *               shape[partition_dim]: sizes of sub-parameters, or their number
 *   sub_param_shard_widths                      {PATTERN: [[width, per rank], per sub]}
 *   parameter_to_average_patterns               not supported
 *   autotp_unsupported_parameter_patterns       {PATTERN: why it cannot join}
 *   vocabulary_parameter_patterns, original_vocab_size
 *               rows past it are padding
 *
 * affine_map, of newer versions, has precedence. Else what no pattern matches
 * joins along dim 0. Patterns are Python's regular expressions, anchored at the
 * start. */
#ifndef FERRY_CONVERT_DEEPSPEED_TP_RULES_H
#define FERRY_CONVERT_DEEPSPEED_TP_RULES_H

#include "ckpt/view.h"
#include "formats/value.h"

/* A rank's part of a parameter. */
struct tp_rule {
    enum {
        TP_COPY,   /* all of it, as every rank */
        TP_CONCAT, /* joined in the order of ranks, along dim, each sub-parameter by itself */
        TP_PLACED  /* in pieces of known places */
    } kind;
    unsigned dim;
    unsigned num_subs;
    const uint64_t *widths; /* [num_subs] extents along dim; they add up to the part's */
    uint64_t max_rows;      /* of the whole; 0: no limit */
    unsigned num_dims;      /* of the whole, for TP_PLACED */
    const uint64_t *whole;
    struct pair *pieces; /* [num_pieces] (part, whole), nested */
    size_t num_pieces;
};

struct tp_rules;
/* Reads a rank's rules, into arena a; they point into `info`. ERR_CORRUPT,
 * ERR_UNSUPPORTED for a pattern that is none of POSIX's. */
MUST_CHECK enum status tp_rules_read(struct tp_rules **out, struct arena *a,
                                     const struct value *info, uint64_t rank, uint64_t num_ranks,
                                     struct error *err);
void tp_rules_release(struct tp_rules *r);
/* Sets the rule of a part of this shape, in arena a. ERR_CORRUPT if it cannot be
 * of this shape. */
MUST_CHECK enum status tp_rule_of(const struct tp_rules *r, struct arena *a, const char *name,
                                  unsigned num_dims, const uint64_t *shape, struct tp_rule *out,
                                  struct error *err);

#endif
