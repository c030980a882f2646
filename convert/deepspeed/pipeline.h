/* pipeline.h - the layers of a pipeline: layer_II[-model_TT]-model_states.pt, a state dict each,
 * with names in the layer (pipeline_names.h). */
#ifndef FERRY_CONVERT_DEEPSPEED_PIPELINE_H
#define FERRY_CONVERT_DEEPSPEED_PIPELINE_H

#include "convert/deepspeed/model_states.h"
#include "convert/naming.h"

/* Sets d->tp, and checks that the files are those of so many ranks. */
MUST_CHECK enum status pipeline_count_ranks(struct deepspeed *d, struct error *err);

/* A tensor parallel rank's part of the parameters of a pipeline. */
struct pipeline_rank {
    struct deepspeed *d;
    uint64_t tp_rank;
};
/* A zero_add_run: the run is of the rank's part, and goes to its place in the whole parameter, by
 * the table of the model's parameters, d->c->params. context: a struct pipeline_rank. */
MUST_CHECK enum status pipeline_add_run(void *context, const struct ds_param *p, const char *state,
                                        enum dtype dtype, size_t stored, const struct pair *run,
                                        struct error *err);
/* Adds the own tensors of all layers, under keys of torch_dist, and sets d->names. A layer that
 * several stages have counts once. */
MUST_CHECK enum status pipeline_read_layers(struct deepspeed *d, struct error *err);
/* hf_model_import() of such own tensors. ERR_CORRUPT where there are other layers than the config
 * says. */
MUST_CHECK enum status pipeline_import(struct deepspeed *d, const struct naming_import *import,
                                       struct error *err);

#endif
