/* pipeline.h - the layers of a pipeline: layer_II[-model_TT]-model_states.pt, a state dict each,
 * with names in the layer (pipeline_names.h). */
#ifndef FERRY_CONVERT_DEEPSPEED_PIPELINE_H
#define FERRY_CONVERT_DEEPSPEED_PIPELINE_H

#include "convert/deepspeed/model_states.h"
#include "convert/naming.h"

/* Adds the own tensors of all layers, under keys of torch_dist, and sets d->names. A layer that
 * several stages have counts once. */
MUST_CHECK enum status pipeline_read_layers(struct deepspeed *d, struct error *err);
/* hf_model_import() of such own tensors. ERR_CORRUPT where there are other layers than the config
 * says. */
MUST_CHECK enum status pipeline_import(struct deepspeed *d, const struct naming_import *import,
                                       struct error *err);

#endif
