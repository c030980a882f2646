/* format_hf.c - the row of Hugging Face folders. */
#include "common/count.h"
#include "convert/format.h"

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
    .states_in = "optimizer.safetensors",
    .last_entry = "config.json",
};
