/* format_dcp.c - rows of DCP formats. */
#include "common/count.h"
#include "convert/format.h"

static const char *const dcp_paths[] = {
    ".metadata",         "*.distcp",
    "config.json",       "generation_config.json",
    "tokenizer.json",    "tokenizer_config.json",
    "tokenizer.model",   "special_tokens_map.json",
    "added_tokens.json", "vocab.json",
    "merges.txt",        "chat_template.jinja",
    "ferry.json",
};
static const char *const dcp_weights[] = {".metadata", NULL};
static const struct format_contents dcp_contents = {
    .paths = dcp_paths,
    .num_paths = COUNT(dcp_paths),
    .signs = {dcp_weights, NULL},
    .lacks = ".metadata",
};

const struct format format_dcp = {
    .name = "dcp",
    .title = "FSDP",
    .has = FORMAT_DATA_PARALLEL | FORMAT_TORCH_GROUPS | FORMAT_NESTED,
    .becomes = &format_torch_dist,
    .naming = &naming_hf,
    .source = &source_dcp,
    .target = &target_dcp,
    .contents = &dcp_contents,
    .states_in = "the same files",
    .last_entry = ".metadata",
};

static const char *const torchtitan_roots[] = {"step-[0-9]*", NULL};

const struct format format_torchtitan = {
    .name = "torchtitan",
    .title = "torchtitan",
    .has = FORMAT_DATA_PARALLEL | FORMAT_TORCH_GROUPS | FORMAT_FUSED_QKV | FORMAT_ITERATIONS,
    .becomes = &format_torch_dist,
    .naming = &naming_hf,
    .source = &source_torchtitan,
    .target = &target_torchtitan,
    .contents = &dcp_contents,
    .states_in = "the same files",
    .root_signs = torchtitan_roots,
    .unit_glob = "step-[0-9]*",
};
