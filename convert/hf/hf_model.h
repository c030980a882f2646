/* hf_model.h - the model of a checkpoint whose own tensors have Hugging Face's names, in whatever
 * files they lie: Hugging Face folders, DeepSpeed, FSDP, torchtitan.
 *
 * A reader of such files adds the own tensors (catalog_add_own; a state of the optimizer has the
 * name of its parameter) and calls hf_model_import(). A config.json says what model they are.
 * Without one the names alone count (naming_plain): each own tensor is a logical tensor under its
 * own name, which can be written to all formats of these names, and to no others. */
#ifndef FERRY_CONVERT_HF_MODEL_H
#define FERRY_CONVERT_HF_MODEL_H

#include "convert/naming.h"

/* Reads the config.json of --hf-config, or of the first of folders[] (NULL at the end) that has
 * one: sets c->hf_folder, config, family, unknown, params and layout, and *import for
 * hf_model_import(). Without a config.json: ERR_UNSUPPORTED if `required`, else c->hf_folder and
 * c->family stay NULL. */
MUST_CHECK enum status hf_model_describe(struct checkpoint *c, const struct source_options *o,
                                         const struct model_maps *maps, const char *const *folders,
                                         bool required, struct naming_import *import,
                                         struct error *err);
/* Makes logical tensors of the own ones, completes the states of the optimizer, the members of
 * parameter groups (convert/torch_groups.h), and checks that every element is there once. */
MUST_CHECK enum status hf_model_import(const struct naming_import *import, struct error *err);

/* ---- writing ---- */

/* For target_kind.plan of a format of these names: whether the source says what they need. A source
 * whose own names alone count needs nothing; others need a family, and the size of the
 * vocabulary. */
MUST_CHECK enum status hf_model_check_export(const struct target *t, struct error *err);
/* Calls visit as naming.export does, by Hugging Face's names or by the source's own. Lists gaps,
 * and counts rows of padding, which are not written. */
MUST_CHECK enum status hf_model_export(struct target *t, export_visit *visit, void *context,
                                       struct error *err);

/* The names of a head that is tied to the embedding, and of the embedding: torch's state_dict() has
 * both. In arena a. false: the model has no tied head, or is not known. */
bool hf_model_tied_head(const struct target *t, struct arena *a, const char **head,
                        const char **embedding);

/* The config.json of a target: made from the config of the model where the source has none, else
 * the source's, which is copied byte for byte with its companions unless it says another dtype or a
 * quantisation. begin comes before anything is written, since the family may have no words for the
 * config; *made is NULL where none is made, and the caller deletes it. write puts config.json and
 * its companions into `folder`, or nothing where the model is not known; dtype is that of most
 * weights. */
MUST_CHECK enum status hf_model_make_config(const struct target *t, cJSON **made,
                                            struct error *err);
MUST_CHECK enum status hf_model_write_config(const struct target *t, const cJSON *made,
                                             enum dtype dtype, const char *folder,
                                             struct error *err);

#endif
