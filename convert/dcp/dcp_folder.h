/* dcp_folder.h - the folders that torch.distributed.checkpoint writes: of .distcp files, or of
 * safetensors files. */
#ifndef FERRY_CONVERT_DCP_FOLDER_H
#define FERRY_CONVERT_DCP_FOLDER_H

#include "formats/stored.h"

/* Whether the folder has .metadata, that of a save that did not finish, or shards of safetensors
 * without whole files beside them. */
bool dcp_folder_matches(const char *folder);
/* Whether its .metadata has torchtitan's names; Megatron's. */
bool dcp_folder_is_titan(const char *folder);
bool dcp_folder_is_megatron(const char *folder);
/* Adds its tensors and objects to s. */
MUST_CHECK enum status dcp_folder_open(struct stored *s, const char *folder, struct error *err);

#endif
