/* format_deepspeed.c - rows of DeepSpeed formats. */
#include "common/count.h"
#include "convert/format.h"

static const char *const deepspeed_paths[] = {
    "*_states.pt",    "config.json",           "generation_config.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "ferry.json",     "integrity.json",
};
static const char *const deepspeed_files[] = {"*_states.pt", NULL};
static const struct format_contents deepspeed_contents = {
    .paths = deepspeed_paths,
    .num_paths = COUNT(deepspeed_paths),
    .signs = {deepspeed_files, NULL},
    .lacks = "*_states.pt files",
};
static const char *const deepspeed_roots[] = {"latest", "global_step*", "latest_universal", NULL};

const struct format format_deepspeed = {
    .name = "deepspeed",
    .title = "DeepSpeed",
    .has = FORMAT_ITERATIONS | FORMAT_DATA_PARALLEL | FORMAT_ZERO | FORMAT_TORCH_GROUPS,
    .becomes = &format_torch_dist,
    .naming = &naming_hf,
    .source = &source_deepspeed,
    .target = &target_deepspeed,
    .contents = &deepspeed_contents,
    .states_in = "*_optim_states.pt",
    .root_signs = deepspeed_roots,
    .unit_glob = "global_step[0-9]*",
};

static const char *const universal_paths[] = {
    "*_model_states.pt", "zero/optimizer_state.pt", "zero/*/*.pt",           "config.json",
    "tokenizer.json",    "generation_config.json",  "tokenizer_config.json", "tokenizer.model",
    "ferry.json",        "integrity.json",
};
static const char *const universal_files[] = {"zero", NULL};
static const struct format_contents universal_contents = {
    .paths = universal_paths,
    .num_paths = COUNT(universal_paths),
    .signs = {universal_files, NULL},
    .lacks = "zero folder",
};

const struct format format_deepspeed_universal = {
    .name = "deepspeed_universal",
    .title = "DeepSpeed",
    .has = FORMAT_ITERATIONS | FORMAT_ZERO | FORMAT_TORCH_GROUPS,
    .becomes = &format_torch_dist,
    .naming = &naming_hf,
    .source = &source_deepspeed_universal,
    .target = &target_deepspeed_universal,
    .contents = &universal_contents,
    .states_in = "zero/",
    .root_signs = deepspeed_roots,
    .unit_glob = "global_step[0-9]*_universal",
};
