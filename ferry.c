/* ferry.c - the program: one row a subcommand. */
#include <stdio.h>
#include <string.h>

#include "common/args.h"
#include "common/threads.h"
#include "common/version.h"
#include "convert/commands.h"
#include "train/cli/commands.h"
#include "validate/commands.h"

static const struct command *const commands[] = {
    &command_convert,  &command_verify,     &command_digest, &command_inspect,
    &command_print,    &command_models,     &command_synth,  &command_forward,
    &command_generate, &command_perplexity, &command_bench,
};

static const char about[] =
    "carries LLM checkpoints between formats and parallel layouts, and proves that they arrived\n\n"
    "A conversion is a plan over byte ranges: no model is built, no Python and no GPU are needed, "
    "and "
    "memory does not grow with the model.\n\n"
    "Exit codes: 0 done; 1 compared and different; 2 usage; 3 unsupported, or tensors missing or "
    "unexpected; 4 input/output or space; 5 source corrupt; 6 not enough memory; 7 "
    "destination "
    "exists or is busy; 8 a GPU; 9 another process of the same job was lost, failed or disagrees; "
    "10 NaN or infinity; 70 a mistake of ours; 130 interrupted.";

/* Words that other tools have taught. */
static const struct arg_hint hints[] = {
    {"import",
     "ferry convert SOURCE DESTINATION, of a Hugging Face folder, writes a Megatron checkpoint"},
    {"export", "ferry convert SOURCE DESTINATION --to hf writes a Hugging Face folder"},
    {"reshard", "ferry convert SOURCE DESTINATION --tp N --pp N writes it for another layout"},
    {"plan", "ferry convert SOURCE DESTINATION --dry-run prints the plan and writes nothing"},
    {"diff compare check", "ferry verify A B compares two checkpoints"},
    {"doctor info show ls", "ferry inspect PATH says what a checkpoint is"},
    {"run infer", "ferry generate PATH generates, ferry forward PATH computes logits"},
    {"version", "ferry --version tells it"},
    {"--load --load-dir --hf-model --hf-model-id --hf-path --source --src --input --input-dir "
     "--megatron-path --save --save-dir --dest --output --output-dir --hf-save-dir",
     "folders are given as words, without an option before them"},
    {"--force", "ferry convert --overwrite replaces what is at the destination"},
    {"--bf16 --fp16 --params-dtype --dtype",
     "weights stay as they are stored; ferry convert --torch-dtype casts them"},
    {"--data-parallel-size --dp --context-parallel-size --cp --use-distributed-optimizer "
     "--sequence-parallel --micro-batch-size --global-batch-size --seq-length --use-mcore-models",
     "it does not change how weights are stored: leave it out"},
    {"--ckpt-convert-format --target-format --format",
     "ferry convert --to says the format of the destination"},
    {"--trust-remote-code", "no code of a model is run: leave it out"},
};

static const struct arg_program ferry = {
    .name = "ferry",
    .version = FERRY_VERSION,
    .about = about,
    .commands = commands,
    .num_commands = sizeof commands / sizeof *commands,
    .hints = hints,
    .num_hints = sizeof hints / sizeof *hints,
};

/* What `make docs` asks for, and no help shows: --man-page and --bash-completion. */
static bool print_docs(const char *what)
{
    struct strbuf text = {0};
    if (strcmp(what, "--man-page") == 0) args_man_page(&text, &ferry);
    if (strcmp(what, "--bash-completion") == 0) args_bash_completion(&text, &ferry);
    bool printed = text.length > 0;
    if (printed) fputs(text.data, stdout);
    strbuf_release(&text);
    return printed;
}

int main(int argc, char **argv)
{
    interrupt_install();
    if (argc == 2 && print_docs(argv[1])) return fflush(stdout) ? ERR_IO : OK;
    return args_main(&ferry, argc, argv);
}
