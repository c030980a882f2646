/* hf_folder.h - weights of a Hugging Face model folder and states of their
 * optimizer: finds the files as transformers finds weights
 * (modeling_utils.py:_get_resolved_checkpoint_files), and splits tensors into
 * shards.
 *
 *   1. model.safetensors             (ignores an index beside it, with a warning)
 *   2. model.safetensors.index.json  {"metadata": {...}, "weight_map": {tensor:
 *                                    file}}
 *   3. model-0000k-of-0000n.safetensors, all of k = 1..n, without an index
 *   4. the same three as pytorch_model.bin: files of torch.save
 *
 * States are in optimizer.safetensors, by rules 1 to 3, unknown to
 * transformers. Ignores other *.safetensors in the folder. Files may be links
 * (a hub cache). */
#ifndef FERRY_FORMATS_HF_FOLDER_H
#define FERRY_FORMATS_HF_FOLDER_H

#include "common/status.h"
#include "formats/stored.h"

/* Bytes of the largest index of shards. */
enum { HF_INDEX_CAP = 256 << 20 };

/* Whether the folder has weights in one of these forms; _matches: or a
 * config.json. */
bool hf_folder_has_weights(const char *folder);
bool hf_folder_matches(const char *folder);

/* The folder meant by `path`: for a model of a hub cache (models--ORG--NAME)
 * the snapshot of refs/main; for the name of a cached model, if path does not
 * exist, its snapshot (hub_cache.h); else path itself. In arena a. */
const char *hf_folder_resolve(struct arena *a, const char *path);

/* Adds all tensors to s. The index must name the tensors of the files.
 * num_files may be NULL. */
MUST_CHECK enum status hf_folder_open(struct stored *s, const char *folder, size_t *num_files,
                                      struct error *err);

/* Likewise for the optimizer's states; without any *num_files is 0. */
MUST_CHECK enum status hf_folder_open_optimizer(struct stored *s, const char *folder,
                                                size_t *num_files, struct error *err);

/* Base names of the files of a folder. */
extern const char hf_model[], hf_optimizer[]; /* "model", "optimizer" */

/* Splits tensors, in the order given, into shards as huggingface_hub does
 * (serialization/_base.py:split_state_dict_into_shards_factory): closes a shard
 * if the next tensor would pass max_bytes; a larger tensor gets its own shard
 * at once, in front of the open one. Sets shard[i] (from 0) for each tensor;
 * returns the number of shards. */
size_t hf_split_shards(const uint64_t *bytes, size_t num_tensors, uint64_t max_bytes,
                       uint32_t *shard);

/* "model.safetensors", or "model-00002-of-00007.safetensors" for shard 1 of 7;
 * the name of their index. In arena a. */
const char *hf_shard_name(struct arena *a, const char *base, size_t shard, size_t num_shards);
const char *hf_index_name(struct arena *a, const char *base);

#endif
