/* format_megatron.c - rows of Megatron formats. */
#include "common/count.h"
#include "convert/format.h"

static const char *const megatron_paths[] = {
    ".metadata",
    "metadata.json",
    "*.distcp",
    "common.pt",
    "mp_rank_*/*.pt", /* weights, optimizer, rng, and a dataloader's state for each dp rank */
    "run_config.yaml",
    "train_state.pt",
    "integrity.json",
    "ferry.json",
    MEGATRON_HF_FOLDER "/config.json",
    MEGATRON_TOKENIZER_FOLDER "/*",
    "modelopt_run_config.yaml",
    "modelopt_state/.metadata",
    "modelopt_state/metadata.json",
    "modelopt_state/*.distcp",
    "modelopt_state/common.pt",
    "hf/*.json", /* Megatron-Bridge's export */
    "hf/*.safetensors",
};
static const char *const megatron_weights[] = {".metadata", "mp_rank_*", NULL};
static const char *const megatron_roots[] = {
    "iter_*", "release", "latest_checkpointed_iteration.txt", "latest_train_state.pt", NULL};
static const struct format_contents megatron_contents = {
    .paths = megatron_paths,
    .num_paths = COUNT(megatron_paths),
    .signs = {megatron_weights, NULL},
    .lacks = ".metadata or mp_rank_* folder",
    .companion_folders = MEGATRON_HF_FOLDER " hf",
};

const struct format format_torch_dist = {
    .name = "torch_dist",
    .title = "Megatron",
    .has = FORMAT_LAYOUT | FORMAT_PADDING | FORMAT_ITERATIONS | FORMAT_ARGS | FORMAT_COMMON_OBJECT,
    .naming = &naming_megatron,
    .source = &source_torch_dist,
    .target = &target_torch_dist,
    .contents = &megatron_contents,
    .tokenizer_in = MEGATRON_TOKENIZER_FOLDER,
    .root_signs = megatron_roots,
    .unit_glob = "iter_[0-9][0-9][0-9][0-9][0-9][0-9][0-9]",
};

const struct format format_torch = {
    .name = "torch",
    .title = "Megatron",
    .has = FORMAT_LAYOUT | FORMAT_PADDING | FORMAT_ITERATIONS | FORMAT_ARGS,
    .naming = &naming_megatron,
    .source = &source_torch,
    .target = &target_torch,
    .contents = &megatron_contents,
    .tokenizer_in = MEGATRON_TOKENIZER_FOLDER,
    .root_signs = megatron_roots,
    .unit_glob = "iter_[0-9][0-9][0-9][0-9][0-9][0-9][0-9]",
};

const struct format format_fsdp_dtensor = {
    .name = "fsdp_dtensor",
    .title = "Megatron",
    .has = FORMAT_PADDING | FORMAT_ITERATIONS | FORMAT_ARGS,
    .becomes = &format_torch_dist,
    .naming = &naming_megatron,
    .source = &source_fsdp_dtensor,
    .contents = &megatron_contents,
    .tokenizer_in = MEGATRON_TOKENIZER_FOLDER,
    .root_signs = megatron_roots,
    .unit_glob = "iter_[0-9][0-9][0-9][0-9][0-9][0-9][0-9]",
};
