#include "convert/format.h"
#include "common/count.h"

#include <string.h>

/* ---- Hugging Face ---- */

static const char *const hf_paths[] = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "*.safetensors.index.json",
    "optimizer.safetensors",
    "optimizer-*-of-*.safetensors",
    "training.json",
    "pytorch_model.bin",
    "*.bin.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "configuration_*.py", /* Python code of the model */
    "modeling_*.py",
    "tokenization_*.py",
    "README.md",
    "LICENSE*",
    ".gitattributes",
    "ferry.json",
    "integrity.json",
};
static const char *const hf_config[] = {"config.json", NULL};
static const char *const hf_weights[] = {"model.safetensors", "pytorch_model.bin",
                                         "*.safetensors.index.json", "*.bin.index.json", NULL};
static const struct format_contents hf_contents = {
    .paths = hf_paths,
    .num_paths = COUNT(hf_paths),
    .signs = {hf_config, hf_weights},
    .lacks = "config.json and weights",
};

const struct format format_hf = {
    .name = "hf",
    .title = "Hugging Face",
    .has = FORMAT_CONFIG_JSON | FORMAT_SHARDS | FORMAT_ASKS_OPTIM,
    .becomes = &format_torch_dist,
    .naming = &naming_hf,
    .source = &source_hf,
    .target = &target_hf,
    .contents = &hf_contents,
    .last_entry = "config.json",
};

/* ---- Megatron ---- */

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
    "tokenizer/*",
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
    .root_signs = megatron_roots,
    .unit_glob = "iter_[0-9][0-9][0-9][0-9][0-9][0-9][0-9]",
};

/* ---- DeepSpeed ---- */

static const char *const deepspeed_paths[] = {
    "*_model_states.pt", "*_optim_states.pt", "zero/optimizer_state.pt",
    "zero/*/*.pt",       "config.json",       "integrity.json",
    "ferry.json",
};
static const char *const deepspeed_weights[] = {"*_model_states.pt", NULL};
static const char *const deepspeed_roots[] = {"global_step[0-9]*", "latest", "latest_universal",
                                              NULL};
static const struct format_contents deepspeed_contents = {
    .paths = deepspeed_paths,
    .num_paths = COUNT(deepspeed_paths),
    .signs = {deepspeed_weights, NULL},
    .lacks = "*_model_states.pt file",
};

const struct format format_deepspeed = {
    .name = "deepspeed",
    .title = "DeepSpeed",
    .has = FORMAT_ITERATIONS | FORMAT_DATA_PARALLEL | FORMAT_ZERO | FORMAT_TORCH_GROUPS,
    .naming = &naming_hf,
    .target = &target_deepspeed,
    .contents = &deepspeed_contents,
    .root_signs = deepspeed_roots,
    .unit_glob = "global_step[0-9]*",
};

const struct format format_deepspeed_universal = {
    .name = "deepspeed_universal",
    .title = "DeepSpeed",
    .has = FORMAT_ITERATIONS | FORMAT_ZERO | FORMAT_TORCH_GROUPS,
    .naming = &naming_hf,
    .target = &target_deepspeed_universal,
    .contents = &deepspeed_contents,
    .root_signs = deepspeed_roots,
    .unit_glob = "global_step[0-9]*_universal",
};

/* ---- all ---- */

#define FORMAT_ROW(name) &format_##name,
#define FORMAT_WORD(word, name)
static const struct format *const formats[] = {FORMATS(FORMAT_ROW, FORMAT_ROW, FORMAT_WORD)};
#undef FORMAT_ROW
#undef FORMAT_WORD

#define FORMAT_ROW(name)
#define FORMAT_WORD(word, name) {#word, &format_##name},
static const struct {
    const char *word;
    const struct format *format;
} words[] = {FORMATS(FORMAT_ROW, FORMAT_ROW, FORMAT_WORD)};
#undef FORMAT_ROW
#undef FORMAT_WORD

const struct format *format_find(const char *name)
{
    for (size_t i = 0; i < COUNT(formats); i++)
        if (strcmp(formats[i]->name, name) == 0) return formats[i];
    for (size_t i = 0; i < COUNT(words); i++)
        if (strcmp(words[i].word, name) == 0) return words[i].format;
    return NULL;
}

const struct format *format_of_path(const char *path, const struct source_options *o,
                                    const struct format **also)
{
    const struct format *found = NULL, *other = NULL;
    if (o && o->format) {
        if (also) *also = NULL;
        return o->format;
    }
    for (size_t i = COUNT(formats); i-- > 0;) {
        if (!formats[i]->source || !formats[i]->source->matches(path, o)) continue;
        if (found && !other) other = formats[i];
        if (!found) found = formats[i];
        if (!also) break;
    }
    if (also) *also = other;
    return found;
}

void format_tell_publishing(const struct format *f, struct publish_options *o)
{
    o->root_title = f->title;
    o->root_signs = f->root_signs;
    o->last_entry = f->last_entry;
}
