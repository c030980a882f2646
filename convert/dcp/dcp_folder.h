/* dcp_folder.h - folders of torch.distributed.checkpoint: .distcp files, or
 * safetensors files. */
#ifndef FERRY_CONVERT_DCP_FOLDER_H
#define FERRY_CONVERT_DCP_FOLDER_H

#include "formats/stored.h"

/* Whether the folder has .metadata (also of an unfinished save), or safetensors
 * shards without whole files. */
bool dcp_folder_matches(const char *folder);
/* Whether .metadata has torchtitan's names; Megatron's names. */
bool dcp_folder_is_titan(const char *folder);
bool dcp_folder_is_megatron(const char *folder);
/* Adds its tensors and objects to s. */
MUST_CHECK enum status dcp_folder_open(struct stored *s, const char *folder, struct error *err);

#endif
