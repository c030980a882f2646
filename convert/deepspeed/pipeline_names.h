/* pipeline_names.h - parameter names of a DeepSpeed pipeline as built by
 * Megatron-DeepSpeed: INDEX.LOCAL, a pipeline layer's number and a name in that
 * layer ("2.self_attention.dense.weight"), or tied_modules.KEY.LOCAL of a layer
 * that several stages have.
 *
 * Layers without parameters count too, so indices have gaps
 * (deepspeed/runtime/pipe/module.py). Layers with self_attention are the
 * model's, in their order, with Megatron-LM's names from before
 * Megatron-Core. */
#ifndef FERRY_CONVERT_DEEPSPEED_PIPELINE_NAMES_H
#define FERRY_CONVERT_DEEPSPEED_PIPELINE_NAMES_H

#include "ckpt/checkpoint.h"

struct pipeline_names {
    uint64_t *layers; /* indices of layers with self_attention, ascending when ended */
    size_t num_layers, capacity;
};

/* Splits INDEX.LOCAL; *local points into name; false: another form. */
bool pipeline_name_parse(const char *name, uint64_t *index, const char **local);
/* Note every name first, then call pipeline_names_end() once. In arena a. */
void pipeline_names_note(struct pipeline_names *n, struct arena *a, uint64_t index,
                         const char *local);
void pipeline_names_end(struct pipeline_names *n);
/* A parameter's torch_dist key, in arena a; NULL: unknown name. */
const char *pipeline_name_key(const struct pipeline_names *n, struct arena *a,
                              const struct param_table *t, const char *name);

#endif
