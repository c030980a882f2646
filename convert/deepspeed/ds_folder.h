/* ds_folder.h - folder and files of a DeepSpeed checkpoint.
 *
 *   ROOT/latest                    text: the tag; ROOT/latest_universal if universal
 *   ROOT/TAG/                      global_stepN unless the program named it
 *     mp_rank_MM_model_states.pt                   no ZeRO, stages 1, 2; pipeline
 *     zero_pp_rank_D_mp_rank_MM_model_states.pt    stage 3, per data parallel rank
 *     [bf16_|fp16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt
 *     layer_II[-model_TT]-model_states.pt          a pipeline's layer
 *     layer_L_expert_E_mp_rank_MM_model_states.pt  experts
 *   ROOT/TAG_universal/zero/NAME/STATE.pt          universal
 *
 * (deepspeed/runtime/engine.py:_get_ckpt_name, _get_zero_ckpt_name;
 * runtime/pipe/module.py) "pp_rank" in a name is the data parallel rank. */
#ifndef FERRY_CONVERT_DEEPSPEED_DS_FOLDER_H
#define FERRY_CONVERT_DEEPSPEED_DS_FOLDER_H

#include "convert/source_kind.h"

enum ds_file_kind {
    DS_MODEL,      /* mp_rank_MM_model_states.pt */
    DS_RANK_MODEL, /* zero_pp_rank_D_mp_rank_MM_model_states.pt */
    DS_OPTIM,      /* *zero_pp_rank_D_mp_rank_MM_optim_states.pt */
    DS_LAYER,      /* layer_II[-model_TT]-model_states.pt */
    DS_EXPERT      /* of experts, weights or states */
};

struct ds_file {
    const char *name; /* in the tag's folder */
    enum ds_file_kind kind;
    uint64_t dp, mp; /* DS_LAYER: dp is the layer's number, mp the tensor parallel rank */
};

/* Sorted by kind, mp and dp. */
struct ds_files {
    struct ds_file *items;
    size_t count, capacity;
};

/* Whether path is such a folder, or a root of some. universal: of the universal
 * form. */
bool ds_folder_matches(const char *path, bool universal);
/* Sets the tag's folder: path itself, or the one of --ckpt-step or the file
 * `latest`, or the only one. ERR_CORRUPT, ERR_IO, ERR_USAGE. In arena a. */
MUST_CHECK enum status ds_folder_find(struct arena *a, const char *path,
                                      const struct source_options *o, bool universal,
                                      const char **folder, struct error *err);
/* Lists the recognised files of the tag's folder. */
MUST_CHECK enum status ds_files_list(struct arena *a, const char *folder, struct ds_files *out,
                                     struct error *err);
/* The first file of a kind; *count: their number. */
const struct ds_file *ds_files_of(const struct ds_files *files, enum ds_file_kind kind,
                                  size_t *count);

#endif
