/* ferry.c - the program: one row a subcommand. */
#include <stdio.h>
#include <string.h>

#include "common/args.h"
#include "common/count.h"
#include "common/threads.h"
#include "common/version.h"
#include "convert/cli/convert_commands.h"
#include "convert/map/model_map.h"
#include "train/cli/engine_commands.h"
#include "validate/validate_commands.h"

static const struct command *const commands[] = {
    &command_convert, &command_verify, &command_digest,  &command_inspect,  &command_print,
    &command_models,  &command_synth,  &command_forward, &command_generate, &command_perplexity,
    &command_bench,   &command_data,   &command_train,   &command_doctor,
};

static const char about[] =
    "converts LLM checkpoints between formats and parallel layouts, and verifies them\n\n"
    "A conversion is a plan over byte ranges: no model is built, no Python and no GPU are needed, "
    "and memory grows with the number of pieces, not with their size.";

static const struct arg_alias aliases[] = {
    {"import", "convert", NULL,
     "--hf-model --source --hf-model-id --source --hf-path --source --megatron-path --destination"},
    {"export", "convert", "--to hf",
     "--hf-model --hf-config --hf-model-id --hf-config --megatron-path --source "
     "--hf-path --destination"},
    {"reshard", "convert", NULL, NULL},
    {"plan", "convert", "--dry-run", NULL},
    {"compare", "verify", NULL, NULL},
    {"diff", "verify", NULL, NULL},
    {"info", "inspect", NULL, NULL},
    {"show", "inspect", NULL, NULL},
};

static const struct arg_section sections[] = {
    {"EXIT STATUS",
     "0 success; 1 the comparison found a difference; 2 usage error; 3 unsupported, or tensors "
     "missing or unexpected; 4 input/output error or no space; 5 corrupt source; 6 not enough "
     "memory; 7 destination exists or is locked; 8 GPU error; 9 another process of the same job "
     "was lost, failed or disagrees; 10 NaN or infinity; 70 internal error; 130 interrupted.",
     "Exit codes"},
    {"ENVIRONMENT",
     "RANK and WORLD_SIZE (torchrun, or by hand), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), "
     "MV2_COMM_WORLD_RANK and _SIZE (MVAPICH), PMI_RANK and PMI_SIZE (MPICH), SLURM_PROCID and "
     "SLURM_STEP_NUM_TASKS (srun) give the rank of this process and the number of processes.\n\n"
     "FERRY_CPU limits the CPU instructions: v1, v3, v4 or amx. "
     "FERRY_CUDA_LIBRARY names the libferry_cuda.so to load. OMP_WAIT_POLICY is respected; "
     "if it is not set, idle threads spin only briefly.\n\n"
     "HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME and XDG_CACHE_HOME tell where models of the "
     "hub are, as in huggingface_hub. NO_COLOR and TERM=dumb turn colours off.",
     NULL},
    {"FILES",
     "ferry.json, in each written checkpoint: the source, the command, the files, and a "
     "digest of each tensor.\n\n"
     "ferry-hf/, in a Megatron checkpoint from a Hugging Face folder: its config, tokenizer and "
     "other small files, for the conversion back.\n\n"
     ".NAME.ferry-partial, beside the destination NAME: the data written so far, a journal "
     "(.ferry-journal) from which the same command continues, and a lock (.ferry-lock). It "
     "becomes the destination when it is complete.\n\n"
     ".NAME.ferry-train, beside a training run's destination NAME: its lock, which goes with the "
     "run.",
     NULL},
    {"EXAMPLES",
     "Hugging Face to Megatron, and back:\n\n"
     "  ferry convert Llama-3.2-1B ckpt --tp 2 --pp 2\n"
     "  ferry convert ckpt out-hf --to hf\n\n"
     "Change the layout, and prove that no value changed:\n\n"
     "  ferry convert ckpt ckpt8 --tp 8\n"
     "  ferry verify ckpt ckpt8\n\n"
     "Describe a checkpoint, and preview a conversion:\n\n"
     "  ferry inspect ckpt\n"
     "  ferry convert ckpt ckpt8 --tp 8 --dry-run",
     NULL},
    {"SEE ALSO",
     "README.md, GUIDE.md: formats, models, limits. RECIPES.md: whole jobs. JSON.md: the fields of "
     "--json. mpirun(1), srun(1).",
     NULL},
};

/* Words of other tools, for commands that do not take them. */
static const struct arg_hint hints[] = {
    {"check", "ferry verify A B compares two checkpoints"},
    {"ls", "ferry inspect PATH describes a checkpoint"},
    {"run infer", "ferry generate PATH generates, ferry forward PATH computes logits"},
    {"--hf-model --hf-model-id --hf-path --megatron-path",
     "ferry import and ferry export take these options; ferry convert SOURCE DESTINATION needs "
     "none"},
    {"--load --load-dir --source --src --input --input-dir "
     "--save --save-dir --dest --output --output-dir --hf-save-dir",
     "give folders without an option before them"},
    {"--force", "ferry convert --overwrite replaces the destination"},
    {"--checkpoint-dir --checkpoint-path --ckpt-dir --input-name-or-path",
     "give folders without an option before them"},
    {"--outtype --quantize --quantization",
     "Ferry does not quantize; ferry convert --torch-dtype casts, and other programs quantize its "
     "Hugging Face folders"},
    {"--gpus --nproc-per-node", "a conversion needs no GPU: leave it out"},
    {"--safe-serialization --distributed-timeout --target-num-experts",
     "it has no effect here: leave it out"},
    {"--bf16 --fp16 --params-dtype --dtype --precision",
     "weights keep their stored dtype; ferry convert --torch-dtype casts them"},
    {"--data-parallel-size --dp --context-parallel-size --cp --use-distributed-optimizer "
     "--sequence-parallel --micro-batch-size --global-batch-size --seq-length --use-mcore-models",
     "it does not change how weights are stored: leave it out"},
    {"--format", "ferry convert --to sets the format of the destination"},
    {"--lora-dim --lora-rank --lora-r --lora-alpha --peft-scheme",
     "an adapter (LoRA) is merged into its model first, in peft by merge_and_unload()"},
    {"--model-type", "models are GPT models (decoder only): leave it out"},
    {"--trust-remote-code", "Ferry runs no code of a model: leave it out"},
};

/* Values of an option, for shell completion. */
static void add_values(struct strbuf *out, const char *value)
{
    struct model_maps maps;
    struct error err;
    if (strcmp(value, "FAMILY") || model_maps_load(&maps, NULL, &err)) return;
    for (size_t i = 0; i < maps.num_maps; i++)
        strbuf_printf(out, "%s%s", i ? " " : "", model_maps_family(&maps, i));
    model_maps_release(&maps);
}

static const struct arg_program ferry = {
    .name = "ferry",
    .version = ferry_version,
    .add_build = version_add_build,
    .about = about,
    .commands = commands,
    .num_commands = COUNT(commands),
    .aliases = aliases,
    .num_aliases = COUNT(aliases),
    .sections = sections,
    .num_sections = COUNT(sections),
    .add_values = add_values,
    .hints = hints,
    .num_hints = COUNT(hints),
};

/* Prints the files of `make docs`, whose options no help shows. */
static bool print_docs(const char *what, const char *command)
{
    struct strbuf text = {0};
    if (command) {
        for (size_t i = 0; i < COUNT(commands) && strcmp(what, "--man-page") == 0; i++)
            if (strcmp(commands[i]->name, command) == 0)
                args_man_page_of(&text, &ferry, commands[i]);
    } else if (strcmp(what, "--man-page") == 0) {
        args_man_page(&text, &ferry);
    } else if (strcmp(what, "--commands") == 0) {
        for (size_t i = 0; i < COUNT(commands); i++)
            strbuf_printf(&text, "%s\n", commands[i]->name);
    }
    if (strcmp(what, "--fish-completion") == 0) args_fish_completion(&text, &ferry);
    if (strcmp(what, "--bash-completion") == 0) args_bash_completion(&text, &ferry);
    if (strcmp(what, "--zsh-completion") == 0) args_zsh_completion(&text, &ferry);
    bool printed = text.length > 0;
    if (printed) fputs(text.data, stdout);
    strbuf_release(&text);
    return printed;
}

int main(int argc, char **argv)
{
    interrupt_install();
    if ((argc == 2 || argc == 3) && print_docs(argv[1], argv[2]))
        return fflush(stdout) ? ERR_IO : OK;
    return args_main(&ferry, argc, argv);
}
