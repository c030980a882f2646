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

enum { NUM_COMMANDS = sizeof commands / sizeof *commands };

/* What `make docs` asks for, and no help shows: --man-page and --bash-completion. */
static bool print_docs(const char *what)
{
    struct strbuf text = {0};
    if (strcmp(what, "--man-page") == 0)
        args_man_page(&text, "ferry", FERRY_VERSION, about, commands, NUM_COMMANDS);
    if (strcmp(what, "--bash-completion") == 0)
        args_bash_completion(&text, "ferry", commands, NUM_COMMANDS);
    bool printed = text.length > 0;
    if (printed) fputs(text.data, stdout);
    strbuf_release(&text);
    return printed;
}

int main(int argc, char **argv)
{
    interrupt_install();
    if (argc == 2 && print_docs(argv[1])) return fflush(stdout) ? ERR_IO : OK;
    return args_main(commands, NUM_COMMANDS, "ferry", FERRY_VERSION, about, argc, argv);
}
