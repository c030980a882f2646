/* pipeline.h - reads a pipeline's layers: layer_II[-model_TT]-model_states.pt,
 * a state dict each with names in the layer (pipeline_names.h). */
#ifndef FERRY_CONVERT_DEEPSPEED_PIPELINE_H
#define FERRY_CONVERT_DEEPSPEED_PIPELINE_H

#include "convert/deepspeed/model_states.h"
#include "convert/naming.h"

/* Sets d->tp; checks that every rank has its files. */
MUST_CHECK enum status pipeline_count_ranks(struct deepspeed *d, struct error *err);

/* A tensor parallel rank's part of a pipeline's parameters. */
struct pipeline_rank {
    struct deepspeed *d;
    uint64_t tp_rank;
};
/* A zero_add_run: places a run of the rank's part in the whole parameter, by
 * d->c->params. context: a struct pipeline_rank. */
MUST_CHECK enum status pipeline_add_run(void *context, const struct ds_param *p, const char *state,
                                        enum dtype dtype, size_t stored, const struct pair *run,
                                        struct error *err);
/* Adds native tensors of all layers under torch_dist keys, and sets d->names. A
 * layer of several stages counts once. */
MUST_CHECK enum status pipeline_read_layers(struct deepspeed *d, struct error *err);
/* hf_model_import() for these native tensors. ERR_CORRUPT if the layers differ
 * from the config's. */
MUST_CHECK enum status pipeline_import(struct deepspeed *d, const struct naming_import *import,
                                       struct error *err);

#endif
