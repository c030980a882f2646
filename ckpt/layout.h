/* layout.h - the sizes of a parallel layout, and the layers of its stages. The
 * shards of a parameter: param.h.
 *
 * Sizes as in Megatron-Core: tensor (tp), pipeline (pp) with virtual stages
 * (vpp), expert (ep) and expert tensor (etp) parallel.
 *
 * A *stage* is one model chunk. Stages are numbered in model order, stage s =
 * chunk * pp + pp_rank; each has a run of consecutive layers, possibly empty.
 * How layers are dealt: megatron/core/transformer/transformer_layer.py
 * (get_transformer_layer_offset) and pipeline_parallel_layer_layout.py.
 *
 * Ranks within a pipeline stage (parallel_state.py, order tp-cp-ep-dp-pp):
 *
 *   dense parameters: rank = tp + tp_size * dp
 *   experts:          rank = etp + etp_size * (ep + ep_size * edp) */
#ifndef FERRY_CKPT_LAYOUT_H
#define FERRY_CKPT_LAYOUT_H

#include "ckpt/model_config.h"
#include "common/arena.h"
#include "common/status.h"

struct stage {
    uint64_t first_layer, num_layers;
    bool embedding, loss;
};

// clang-format off
/* The fields of a layout that a user or a file gives. 0, false and NULL: not
 * given. */
#define LAYOUT_FIELDS(X)                                                                           \
    X(UINT, tp)                                                                                    \
    X(UINT, pp)                                                                                    \
    X(UINT, ep)                                                                                    \
    X(UINT, etp)                                                                                   \
    X(UINT, cp)                       /* ranks of context parallelism hold the same parameters, */ \
    X(UINT, dp)                       /* and so do those of data parallelism */                    \
    X(UINT, virtual_stages)           /* chunks a rank (vpp) */                                    \
    X(UINT, layers_per_virtual_stage) /* the same, given by layers of a chunk */                   \
    X(UINT, first_layers)             /* of the first pipeline rank; 0: by rule */                 \
    X(UINT, last_layers)                                                                           \
    X(BOOL, count_embedding)          /* as a layer when layers are dealt */                       \
    X(BOOL, count_loss)                                                                            \
    X(TEXT, pipeline_layout)          /* "Et*3|(tt|)*29,m|L" */

/* The sizes of a layout, each at least 1. */
#define LAYOUT_SIZES(X) X(UINT, tp) X(UINT, pp) X(UINT, vpp) X(UINT, ep) X(UINT, etp)
// clang-format on

struct layout_options {
    LAYOUT_FIELDS(FIELD_MEMBER)
};

#define LAYOUT_COUNT(kind, name) +1
enum { NUM_LAYOUT_FIELDS = LAYOUT_FIELDS(LAYOUT_COUNT) };
extern const struct field layout_fields[NUM_LAYOUT_FIELDS]; /* of struct layout_options */

struct layout {
    LAYOUT_SIZES(FIELD_MEMBER)
    struct stage *stages;          /* [vpp * pp] */
    struct layout_options options; /* complete: layout_make() makes this layout of them */
};

/* Whether any field of o is given. */
bool layout_is_given(const struct layout_options *o);
/* Completes o from l: sizes, and, unless o gives any field about pipeline
 * stages, how layers are dealt. etp stays open if o gives tp. */
void layout_options_complete(struct layout_options *o, const struct layout *l);

/* Makes the layout of o for this model; etp defaults to tp. ERR_UNSUPPORTED,
 * naming both, if the layers cannot be dealt so or a size does not divide
 * another. Stages lie in arena a. */
MUST_CHECK enum status layout_make(struct layout *l, struct arena *a,
                                   const struct layout_options *o,
                                   const struct model_config *config, struct error *err);
/* The stages of pipeline rank p are p, p + pp, p + 2 pp, ... */
const struct stage *layout_stage(const struct layout *l, uint64_t chunk, uint64_t pp_rank);
/* "TP2 PP4 VPP2 EP8 ETP1", without sizes of 1 after TP, and without ETP equal
 * to TP. */
const char *layout_text(const struct layout *l, struct arena *a);
/* Ranks of one pipeline stage: the least common multiple of tp and ep * etp. */
uint64_t layout_stage_ranks(const struct layout *l);
/* Whether a rank of a stage has tensor parallel rank tp and expert parallel
 * rank ep. */
bool layout_has_rank(const struct layout *l, uint64_t tp, uint64_t ep);

#endif
