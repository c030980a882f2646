/* pipeline_names.h - names of parameters in a pipeline of DeepSpeed, as Megatron-DeepSpeed builds
 * it: INDEX.LOCAL, the number of a layer of the pipeline and a name in that layer
 * ("2.self_attention.dense.weight"), or tied_modules.KEY.LOCAL of a layer that several stages have.
 *
 * Layers without parameters count too, so indices have gaps (deepspeed/runtime/pipe/module.py). The
 * layers that have self_attention are the model's, in their order. Names in them are those of
 * Megatron-LM before Megatron-Core. */
#ifndef FERRY_CONVERT_DEEPSPEED_PIPELINE_NAMES_H
#define FERRY_CONVERT_DEEPSPEED_PIPELINE_NAMES_H

#include "ckpt/checkpoint.h"

struct pipeline_names {
    uint64_t *layers; /* indices of the layers that have self_attention, ascending when ended */
    size_t num_layers, capacity;
};

/* Splits INDEX.LOCAL; false: the name has another form. *local is in name. */
bool pipeline_name_parse(const char *name, uint64_t *index, const char **local);
/* Every name is noted first; then pipeline_names_end() once. In arena a. */
void pipeline_names_note(struct pipeline_names *n, struct arena *a, uint64_t index,
                         const char *local);
void pipeline_names_end(struct pipeline_names *n);
/* The key of torch_dist of a parameter, in arena a; NULL: the name is not known. */
const char *pipeline_name_key(const struct pipeline_names *n, struct arena *a,
                              const struct param_table *t, const char *name);

#endif
