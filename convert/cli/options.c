#include "convert/cli/options.h"

#include <string.h>

#include "common/checked.h"
#include "common/count.h"

// clang-format off
#define FLAG(type, names, field, help) {names, ARG_FLAG, offsetof(type, field), NULL, NULL, help}
#define UINT(type, names, field, help) {names, ARG_UINT, offsetof(type, field), "N", NULL, help}
#define TEXT(type, names, field, value, help) {names, ARG_TEXT, offsetof(type, field), value, NULL, help}

#define OTHER_FORMAT(word, name) "|" #word
#define READ_FORMAT(name) {"--to", #name, NULL, "this format can be read, but not written"},
#define SPELLED_FORMAT(word, name) {"--to", #word, #name, NULL},
#define FROM_HF "Ferry writes Hugging Face folders (--to hf); "
const struct arg_spelling to_spellings[] = {
    FORMATS(NO_FORMAT, NO_FORMAT, READ_FORMAT, SPELLED_FORMAT)
    {"--to", "gguf", NULL, FROM_HF "llama.cpp's convert_hf_to_gguf.py makes GGUF of them"},
    {"--to", "mlx", NULL, FROM_HF "mlx_lm.convert makes MLX models of them"},
    {"--to", "onnx", NULL, FROM_HF "optimum-cli export onnx makes ONNX models of them"},
    {"--to", "nemo", NULL, FROM_HF "NeMo imports them (llm.import_ckpt)"},
};
const struct arg source_args[] = {
    {"--from --source-format", ARG_CHOICE, offsetof(struct source_flags, from), NULL, FORMATS(FIRST_FORMAT, NEXT_FORMAT, NEXT_FORMAT, OTHER_FORMAT), "format to read SOURCE as, if its folder holds several; default: the recognised one, preferably with an optimizer"},
    TEXT(struct source_flags, "--hf-config", hf_config, "DIR", "folder with the model's config.json (and tokenizer), for fields missing in the checkpoint"),
    TEXT(struct source_flags, "--model", family, "FAMILY", "model family (see ferry models); default: from the checkpoint"),
    TEXT(struct source_flags, "--model-map", model_map, "FILE", "your own model map, in addition to the built-in ones"),
    {"--ckpt-step", ARG_UINT_OR_0, offsetof(struct source_flags, ckpt_step), "N", NULL, "iteration to read; default: from the tracker file"},
    UINT(struct source_flags, "--true-vocab-size", true_vocab_size, "vocabulary size without padding, if the checkpoint does not give it"),
    {"--allow-config", ARG_LIST, offsetof(struct source_flags, allow_config), "FIELD", NULL, "compute and export despite unknown fields of config.json, args or run_config.yaml whose name matches this glob"},
};

const struct arg layout_args[] = {
    UINT(struct layout_options, "--tensor-model-parallel-size --tp --target-tensor-parallel-size", tp, "tensor parallel ranks"),
    UINT(struct layout_options, "--pipeline-model-parallel-size --pp --target-pipeline-parallel-size", pp, "pipeline ranks"),
    UINT(struct layout_options, "--expert-model-parallel-size --ep --target-expert-parallel-size", ep, "expert parallel ranks"),
    UINT(struct layout_options, "--expert-tensor-parallel-size --etp", etp, "tensor parallel ranks of experts; default: --tp"),
    UINT(struct layout_options, "--num-virtual-stages-per-pipeline-rank --vpp --virtual-pipeline-model-parallel-size", virtual_stages, "virtual pipeline stages (model chunks) per pipeline rank"),
    UINT(struct layout_options, "--num-layers-per-virtual-pipeline-stage", layers_per_virtual_stage, "virtual pipeline stages, given as layers per chunk"),
    UINT(struct layout_options, "--decoder-first-pipeline-num-layers --num-layers-in-first-pipeline-stage", first_layers, "layers of the first pipeline rank"),
    UINT(struct layout_options, "--decoder-last-pipeline-num-layers --num-layers-in-last-pipeline-stage", last_layers, "layers of the last pipeline rank"),
    FLAG(struct layout_options, "--account-for-embedding-in-pipeline-split", count_embedding, "count the embedding as a layer when distributing layers"),
    FLAG(struct layout_options, "--account-for-loss-in-pipeline-split", count_loss, "count the loss as a layer when distributing layers"),
    TEXT(struct layout_options, "--pipeline-model-parallel-layout", pipeline_layout, "LAYOUT", "explicit stage layout, such as Et*3|(tt|)*29,L"),
};

const struct arg trainer_args[] = {
    {"--data-parallel-size --dp --world", ARG_UINT, offsetof(struct trainer_flags, dp), "N", NULL, "number of data parallel ranks to shard for (dcp, torchtitan, deepspeed); default: the source's, else 1"},
    {"--zero --zero-stage", ARG_CHOICE, offsetof(struct trainer_flags, zero), NULL, "0|1|2|3", "ZeRO stage of a DeepSpeed destination; default: the source's, else 1"},
    {"--names", ARG_CHOICE, offsetof(struct trainer_flags, names), NULL, "hf|torchtitan", "parameter names in a dcp destination; torchtitan is the same as --to torchtitan"},
    {"--optim-key", ARG_TEXT, offsetof(struct trainer_flags, optim_key), "KEY", NULL, "key of the optimizer in a dcp destination; default optim (accelerate: optimizer)"},
    {"--flatten-optim", ARG_FLAG, offsetof(struct trainer_flags, flatten_optim), NULL, NULL, "write the optimizer of a dcp destination as flatten_optimizer_state_dict=True does"},
    {"--split-qkv", ARG_FLAG, offsetof(struct trainer_flags, split_qkv), NULL, NULL, "torchtitan: separate optimizer states of q, k and v, for runs with fuse_qkv=False"},
    {"--split-decay", ARG_FLAG, offsetof(struct trainer_flags, split_decay), NULL, NULL, "two parameter groups for torch.optim: parameters of one dimension without weight decay, all others with it; default: the source's groups, else one"},
};

const struct arg run_args[] = {
    UINT(struct run_flags, "--threads", threads, "number of threads; default: number of CPUs"),
    {"--max-memory", ARG_SIZE, offsetof(struct run_flags, max_memory), "SIZE", NULL, "memory limit of the process; default 256MiB"},
    FLAG(struct run_flags, "--direct-io", direct_io, "bypass the page cache when reading"),
    FLAG(struct run_flags, "--no-fsync", no_fsync, "do not wait until the data is on disk"),
    FLAG(struct run_flags, "--overwrite", overwrite, "replace the checkpoint at the destination once the new one is complete; refused if its folder holds other files"),
};

const struct arg output_args[] = {
    FLAG(struct output_flags, "--json", json, "print the result, or the error, as one JSON object on stdout (fields: JSON.md)"),
    {"--progress", ARG_CHOICE, offsetof(struct output_flags, progress), NULL, PROGRESS_STYLES, "progress on stderr; auto (default): a bar on a terminal, else occasional lines; json: JSON lines"},
    FLAG(struct output_flags, "-q --quiet", quiet, "print errors only"),
    FLAG(struct output_flags, "-v --verbose", verbose, "print details"),
};
// clang-format on

_Static_assert(COUNT(to_spellings) == NUM_TO_SPELLINGS, "options.h");
_Static_assert(COUNT(source_args) == NUM_SOURCE_ARGS, "options.h");
_Static_assert(COUNT(layout_args) == NUM_LAYOUT_ARGS, "options.h");
_Static_assert(COUNT(trainer_args) == NUM_TRAINER_ARGS, "options.h");
_Static_assert(COUNT(run_args) == NUM_RUN_ARGS, "options.h");
_Static_assert(COUNT(output_args) == NUM_OUTPUT_ARGS, "options.h");

struct executor_options executor_options_of(const struct run_flags *r, const struct output_flags *o)
{
    struct executor_options out = {.threads = (unsigned)min_u64(r->threads, UINT32_MAX),
                                   .max_memory = r->max_memory,
                                   .fsync = !r->no_fsync,
                                   .direct_io = r->direct_io};
    out.progress = progress_style_named(o->progress, o->quiet);
    return out;
}

struct source_options source_options_of(const struct source_flags *f)
{
    return (struct source_options){.format = f->from ? format_find(f->from) : NULL,
                                   .hf_config = f->hf_config,
                                   .family = f->family,
                                   .has_ckpt_step = f->ckpt_step != UINT64_MAX,
                                   .ckpt_step = f->ckpt_step,
                                   .true_vocab_size = f->true_vocab_size,
                                   .allow_config = &f->allow_config};
}

const struct format *trainer_format(const struct trainer_flags *f, const char *to,
                                    const struct format *without)
{
    const struct format *format = to ? format_find(to) : f->names ? format_find("dcp") : without;
    const bool titan = f->names && strcmp(f->names, "torchtitan") == 0;
    return titan && format->has & FORMAT_NESTED ? format_find("torchtitan") : format;
}

enum status trainer_flags_check(const struct trainer_flags *f, const struct format *to,
                                struct error *err)
{
    const struct {
        const char *flag;
        bool given;
        unsigned for_any;
    } flags[] = {
        {"--data-parallel-size (--dp)", f->dp > 0, FORMAT_DATA_PARALLEL},
        {"--zero", f->zero != NULL, FORMAT_ZERO},
        {"--split-decay", f->split_decay, FORMAT_TORCH_GROUPS},
        {"--names", f->names != NULL, FORMAT_NESTED | FORMAT_FUSED_QKV},
        {"--optim-key", f->optim_key != NULL, FORMAT_NESTED},
        {"--flatten-optim", f->flatten_optim, FORMAT_NESTED},
        {"--split-qkv", f->split_qkv, FORMAT_FUSED_QKV},
    };
    if (!to->target)
        return fail(err, ERR_USAGE, "--to %s: this format can be read, but not written", to->name);
    for (size_t i = 0; i < COUNT(flags); i++)
        if (flags[i].given && !(to->has & flags[i].for_any))
            return fail(err, ERR_USAGE, "%s does not apply to format %s", flags[i].flag, to->name);
    if (f->names && to->has & FORMAT_FUSED_QKV && strcmp(f->names, "hf") == 0)
        return fail(err, ERR_USAGE, "--names hf does not apply to format %s, which has other names",
                    to->name);
    return OK;
}

void trainer_flags_apply(const struct trainer_flags *f, struct target_options *to)
{
    to->dp = f->dp;
    to->zero = f->zero ? f->zero[0] - '0' : -1;
    to->split_decay = f->split_decay;
    to->optim_key = f->optim_key;
    to->flatten_optim = f->flatten_optim;
    to->split_qkv = f->split_qkv;
}
