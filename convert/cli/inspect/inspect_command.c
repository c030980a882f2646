/* inspect_command.c - ferry inspect: prints the format, model, config and
 * tensors of a checkpoint or file. */
#include <fnmatch.h>
#include <stdio.h>

#include "common/count.h"
#include "common/html_report.h"
#include "common/result.h"
#include "convert/cli/convert_commands.h"
#include "convert/cli/inspect/inspect_internal.h"
#include "convert/cli/record_write.h"

enum { LISTED_OF_FILE = 40 };

// clang-format off
#define AT(field) offsetof(struct inspect_flags, field)
static const struct arg inspect_args[] = {
    {"--tensors", ARG_TEXT, AT(tensors), "GLOB", NULL, "list tensors by name, such as '*' or '*.linear_fc1.*'; matches logical names, else names in the files, else Hugging Face's names. Exit code 2 if no tensor matches"},
    {"--stored", ARG_FLAG, AT(stored), NULL, NULL, "list tensors with the names and shards of the files"},
    {"--stats", ARG_FLAG, AT(stats), NULL, NULL, "print statistics of the listed tensors (all without --tensors): min, max, mean and standard deviation (numpy.std) of the finite elements, counts of NaN, infinities and zeros"},
    {"--args", ARG_FLAG, AT(args), NULL, NULL, "list the args of a Megatron checkpoint, or the values of its run_config.yaml"},
    {"--report", ARG_TEXT, AT(report), "FILE", NULL, "write an HTML page of model, sizes, all tensors (or those of --tensors), config, args and files; replaces an older report"},
};
static const struct arg_group inspect_groups[] = {
    {"Inspection", inspect_args, COUNT(inspect_args), 0},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(source)},
    {"Work of --stats", run_args, NUM_READ_ARGS, AT(run)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
};
// clang-format on

static void set_inspect_defaults(void *options)
{
    struct inspect_flags *f = options;
    f->source.ckpt_step = UINT64_MAX;
    f->run.max_memory = DEFAULT_MAX_MEMORY;
}

/* Whether a glob without a matching tensor matches another stored object. */
static bool matches_object(const struct inspection *x)
{
    for (size_t i = 0; x->stored && i < x->c->catalog.stored.num_objects; i++)
        if (fnmatch(x->f->tensors, x->c->catalog.stored.objects[i].name, 0) == 0) return true;
    return false;
}

/* A file lists its tensors by default; a folder only on request. */
static enum status find_tensors(struct inspection *x, struct tensor_names *n, bool is_file,
                                struct error *err)
{
    const bool listed = x->f->tensors || is_file || x->f->stats;
    const char *glob = x->f->tensors ? x->f->tensors : listed || x->f->report ? "*" : NULL;
    const bool may_have_none = is_file || !listed;
    if (!glob || (may_have_none && !x->c->catalog.stored.num_tensors)) return OK;
    x->is_listed = listed;
    enum status st = tensor_names_match(n, glob, &x->tensors, &x->num_tensors, err);
    if (st && x->f->tensors && matches_object(x)) return OK;
    if (!x->f->tensors && !x->f->stats && !x->f->output.json && x->num_tensors > LISTED_OF_FILE)
        x->more = x->num_tensors - LISTED_OF_FILE;
    return st;
}

static enum status find_stats(struct inspection *x, struct tensor_names *n, struct error *err)
{
    struct executor_options run = executor_options_of(&x->f->run, &x->f->output);
    struct stats_options o = {run.threads, run.max_memory, run.direct_io, run.progress};
    const struct tensor **tensors = arena_array(&n->arena, x->num_tensors, sizeof *tensors);
    for (size_t i = 0; i < x->num_tensors; i++)
        TRY(tensor_names_open(n, &x->tensors[i], &tensors[i], err));
    x->stats = arena_array(&n->arena, x->num_tensors, sizeof *x->stats);
    return tensor_stats(&x->c->catalog, tensors, x->num_tensors, &o, x->stats, err);
}

static void print_inspection(const struct inspection *x)
{
    struct strbuf text = {0};
    if (x->f->output.json) {
        result_set(inspection_json(x));
        return;
    }
    inspection_text(&text, x);
    fputs(text.data, stdout);
    strbuf_release(&text);
}

static enum status write_page(struct inspection *x, struct error *err)
{
    struct error none; /* without args the page has none */
    struct strbuf page = {0};
    struct arena a;
    if (!x->f->report) return OK;
    if (args_json(x->c, &x->page_args, &none)) none.text[0] = '\0';
    arena_init(&a);
    const struct html_environment e = html_report_environment(&a);
    inspection_html(&page, x, &e);
    enum status st = html_report_write(x->f->report, &page, err);
    strbuf_release(&page);
    arena_release(&a);
    return st;
}

static enum status inspect_opened(struct opened *o, const struct inspect_flags *f,
                                  struct error *err)
{
    bool stored = o->stored_only || f->stored;
    struct inspection x = {
        .c = &o->checkpoint, .f = f, .stored_only = o->stored_only, .stored = stored};
    struct tensor_names names;
    tensor_names_init(&names, x.c, &o->maps, stored);
    if (x.c->folder && record_read(x.c->folder, &x.record, &x.record_error)) x.record = NULL;
    enum status st = find_tensors(&x, &names, o->reading == AS_FILE, err);
    if (!st && f->stats) st = find_stats(&x, &names, err);
    if (!st && f->args) st = args_json(x.c, &x.args, err);
    if (!st) print_inspection(&x);
    if (!st) st = write_page(&x, err);
    cJSON_Delete(x.args);
    cJSON_Delete(x.page_args);
    cJSON_Delete(x.record);
    tensor_names_release(&names);
    return st;
}

static enum status run_inspect(void *options, const char *const *positional, size_t num_positional,
                               struct error *err)
{
    const struct inspect_flags *f = options;
    struct opened o;
    (void)num_positional;
    const struct source_options source = source_options_of(&f->source);
    if (f->report) TRY(html_report_check(f->report, err));
    enum status st =
        opened_open(&o, positional[0], &source, f->source.model_map, true, f->output.quiet, err);
    if (!st) st = inspect_opened(&o, f, err);
    opened_close(&o);
    return st;
}

const struct command command_inspect = {
    .name = "inspect",
    .summary = "describe a checkpoint: format, model, layout, tensors, optimizer",
    .positional = "PATH",
    .text =
        "PATH is any source of ferry convert, one .safetensors or torch.save file, or a folder of "
        "torch.distributed.checkpoint. The tensors of a single file are listed even without "
        "--tensors. In a list, <- precedes the stored names of a logical tensor, -> the logical "
        "name of a stored one.\n\n"
        "  ferry inspect ckpt --tensors '*.layers.0.*'\n"
        "  ferry inspect ckpt --stats --tensors '*norm*'\n"
        "  ferry inspect ckpt --report ckpt.html",
    .groups = inspect_groups,
    .num_groups = COUNT(inspect_groups),
    .options_bytes = sizeof(struct inspect_flags),
    .defaults = set_inspect_defaults,
    .run = run_inspect,
};
