/* layout.h - the sizes of a parallel layout, and which layers each of its stages has. What ranks
 * hold of one parameter: param.h.
 *
 * Sizes after Megatron-Core: tensor (tp), pipeline (pp) with virtual stages (vpp), expert (ep) and
 * expert tensor (etp) parallel. A *stage* is one model chunk; stages are numbered in the order of
 * the model, so stage s = chunk * pp + pp_rank, and each has a run of consecutive layers, which may
 * be empty. How layers are dealt: megatron/core/transformer/transformer_layer.py
 * (get_transformer_layer_offset) and pipeline_parallel_layer_layout.py.
 *
 * Ranks within a pipeline stage: rank = tp + tp_size * dp for dense parameters, and
 * rank = etp + etp_size * (ep + ep_size * edp) for experts (parallel_state.py, order
 * tp-cp-ep-dp-pp). */
#ifndef FERRY_CKPT_LAYOUT_H
#define FERRY_CKPT_LAYOUT_H

#include "ckpt/model_config.h"
#include "common/arena.h"
#include "common/status.h"

struct stage {
    uint64_t first_layer, num_layers;
    bool embedding, loss;
};

struct layout {
    uint64_t tp, pp, vpp, ep, etp;      /* each at least 1 */
    struct stage *stages;               /* [vpp * pp] */
    const char *pipeline_layout;        /* as given; NULL: by rule */
    uint64_t first_layers, last_layers; /* of the first and last pipeline rank; 0: by rule */
    bool count_embedding, count_loss;   /* as a layer each when layers are dealt */
};

/* How a layout is asked for. 0 and NULL: not given. */
struct layout_options {
    uint64_t tp, pp, ep, etp;
    uint64_t virtual_stages;           /* chunks a rank (vpp) */
    uint64_t layers_per_virtual_stage; /* the other way to say it */
    uint64_t first_layers, last_layers;
    bool count_embedding, count_loss;
    const char *pipeline_layout; /* "Et*3|(tt|)*29,m|L" */
};

/* The layout of o for this model; etp not given is tp. ERR_UNSUPPORTED where the layers cannot be
 * dealt so, or a size does not divide what it must (naming both). Stages lie in arena a. */
MUST_CHECK enum status layout_make(struct layout *l, struct arena *a,
                                   const struct layout_options *o,
                                   const struct model_config *config, struct error *err);
/* The stages of pipeline rank p are p, p + pp, p + 2 pp, ... */
const struct stage *layout_stage(const struct layout *l, uint64_t chunk, uint64_t pp_rank);
/* "TP2 PP4 VPP2 EP8 ETP1"; behind TP, sizes of 1 are left out, and ETP where it is TP. */
const char *layout_text(const struct layout *l, struct arena *a);
/* Ranks of one pipeline stage: the fewest that tp and ep * etp both divide. */
uint64_t layout_stage_ranks(const struct layout *l);
/* Whether a rank of a stage is tensor parallel rank tp and expert parallel rank ep. */
bool layout_has_rank(const struct layout *l, uint64_t tp, uint64_t ep);

#endif
