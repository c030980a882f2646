/* hf_model.h - the model of a checkpoint whose native tensors have Hugging
 * Face's names, in any files: Hugging Face folders, DeepSpeed, FSDP,
 * torchtitan.
 *
 * A reader of such files adds the native tensors (catalog_add_native; a state
 * of the optimizer has the name of its parameter) and calls hf_model_import().
 *
 * - A config.json gives the model.
 * - Without one the names alone count (naming_plain): each native tensor is a
 *   logical tensor of the same name, for all formats of these names and no
 *   others. */
#ifndef FERRY_CONVERT_HF_MODEL_H
#define FERRY_CONVERT_HF_MODEL_H

#include "convert/naming.h"

/* Reads the config.json of --hf-config, or of the first of folders[] (NULL at
 * the end) that has one: sets c->hf_folder, config, family, unknown, params and
 * layout, and *import for hf_model_import(). Without a config.json:
 *
 * - ERR_UNSUPPORTED if `required`;
 * - else c->hf_folder and c->family stay NULL. */
MUST_CHECK enum status hf_model_describe(struct checkpoint *c, const struct source_options *o,
                                         const struct model_maps *maps, const char *const *folders,
                                         bool required, struct naming_import *import,
                                         struct error *err);
/* Makes logical tensors of the native ones, completes the optimizer's states
 * and the members of parameter groups (convert/torch_groups.h), and checks that
 * every element is there once. */
MUST_CHECK enum status hf_model_import(const struct naming_import *import, struct error *err);

/* ---- writing ---- */

/* For target_kind.plan of a format of these names: checks that the source gives
 * what they need: a family and the size of the vocabulary, or nothing if names
 * alone count. */
MUST_CHECK enum status hf_model_check_export(const struct target *t, struct error *err);
/* Calls visit like naming.export, by Hugging Face's names or the source's
 * native ones. Lists gaps, and counts rows of padding, which are not written. */
MUST_CHECK enum status hf_model_export(struct target *t, export_visit *visit, void *context,
                                       struct error *err);

/* Whether the head is tied to the embedding and so is no tensor; *head and
 * *embedding are then their native names, in the plan's arena. Programs that
 * keep a module's state dict list it under both. */
bool hf_model_tied_head(struct target *t, const char **head, const char **embedding);

/* The config.json of a target: the source's, copied byte for byte with its
 * companions, unless it names another dtype or a quantisation; made from the
 * model's config if the source has none.
 *
 * - make: call it before anything is written, since the family may lack words
 *   for the config. *made is NULL if none is made; the caller deletes it.
 * - write: puts config.json and its companions into `folder`, or nothing if the
 *   model is not known. dtype is that of most weights, quantization (NULL: none)
 *   the quantization_config of weights that are encoded anew. */
MUST_CHECK enum status hf_model_make_config(const struct target *t, cJSON **made,
                                            struct error *err);
MUST_CHECK enum status hf_model_write_config(const struct target *t, const cJSON *made,
                                             const cJSON *quantization, enum dtype dtype,
                                             const char *folder, struct error *err);

#endif
