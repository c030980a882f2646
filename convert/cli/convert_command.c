/* convert_command.c - ferry convert: open, plan, check, execute, publish. */
#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/executor.h"
#include "ckpt/publish.h"
#include "ckpt/rendezvous.h"
#include "common/checked.h"
#include "common/clock.h"
#include "common/command_line.h"
#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "common/numbers.h"
#include "common/result.h"
#include "convert/cli/check_states.h"
#include "convert/cli/contents.h"
#include "convert/cli/convert_commands.h"
#include "convert/cli/integrity.h"
#include "convert/cli/options.h"
#include "convert/cli/record_write.h"
#include "convert/cli/training_flags.h"
#include "convert/cli/verify_written.h"
#include "convert/companions.h"
#include "convert/format.h"
#include "convert/megatron/megatron_args.h"

struct convert_flags {
    struct source_flags source;
    struct layout_options layout;
    struct trainer_flags trainer;
    struct run_flags run;
    struct output_flags output;
    const char *to, *torch_dtype, *export_weight_dtype, *transformer_impl, *megatron_model,
        *common_state, *verify, *optim_format;
    uint64_t divisible_by, iteration, max_shard_size, journal_every, rank, world_size, timeout;
    struct arg_list allow_missing, allow_unexpected;
    struct arg_config config;
    struct training_flags training;
    bool ferry_only, grouped_gemm, optim, no_optim, fully_reshardable, dry_run, resume, integrity,
        allow_overflow, allow_shifted, restart;
};

// clang-format off
#define AT(field) offsetof(struct convert_flags, field)
#define FIRST_CHOICE(name) #name
#define NEXT_CHOICE(name) "|" #name
static const struct arg convert_args[] = {
    {"--to --ckpt-format --ckpt-convert-format --target-format", ARG_CHOICE, AT(to), NULL, TO_CHOICES, "format of the destination; default: the source's if it is Megatron's, else torch_dist; other names:" OTHER_FORMATS},
    {"--source --load --load-dir --input --input-dir --src", ARG_POSITIONAL, 0, "SOURCE", NULL, "SOURCE as an option"},
    {"--destination --dest --save --save-dir --output --output-dir --hf-save-dir", ARG_POSITIONAL, 1, "DESTINATION", NULL, "DESTINATION as an option"},
    {"--config", ARG_CONFIG, AT(config), "FILE", NULL, "YAML file of options by name, also source and destination; the command line takes precedence"},
    {"--torch-dtype", ARG_TEXT, AT(torch_dtype), "DTYPE", NULL, "cast weights to DTYPE (bfloat16, float16, float32, float64); default: keep the stored dtypes"},
    {"--export-weight-dtype", ARG_CHOICE, AT(export_weight_dtype), NULL, "bf16|as-source|fp8-block|fp8-channel|fp8-tensor|mxfp8|mxfp4|nvfp4|int4", "encoding of weights in a Hugging Face folder. bf16 (default): those that came encoded (FP8, MXFP4 ...) are decoded, to F32 with --torch-dtype float32; as-source: they are encoded again, by their kept scales; others: linear layers are encoded anew; fp8-block and mxfp8 as transformers does, fp8-tensor, mxfp4, nvfp4 and int4 as compressed-tensors does"},
    {"--allow-overflow", ARG_FLAG, AT(allow_overflow), NULL, NULL, "publish the result even if the cast made finite values infinite"},
    {"--allow-shifted", ARG_FLAG, AT(allow_shifted), NULL, NULL, "write weights from master weights that Megatron-Core before 0.20 saved shifted; inspect names them"},
    {"--verify", ARG_CHOICE, AT(verify), NULL, "none|digest|full", "digest (default): compute per-tensor checksums while converting; full: also read the written files back from disk before publishing them"},
    {"--integrity", ARG_FLAG, AT(integrity), NULL, NULL, "write integrity.json, the SHA-256 of each file, for Megatron's --verify-integrity"},
    {"--resume", ARG_FLAG, AT(resume), NULL, NULL, "exit with 0, not 7, if the destination is already complete; the same command continues an interrupted run even without this option"},
    {"--restart", ARG_FLAG, AT(restart), NULL, NULL, "discard the files of an interrupted run and start from the beginning"},
    {"--journal-every", ARG_SIZE, AT(journal_every), "SIZE", NULL, "bytes between journal records; a killed run repeats at most this much; default 1GiB"},
    {"--dry-run", ARG_FLAG, AT(dry_run), NULL, NULL, "print the plan and write nothing; exits 0 only if every check of the plan passes"},
    {"--iteration", ARG_UINT_OR_0, AT(iteration), "N", NULL, "iteration to write; default: the source's; from Hugging Face: 0, as a release"},
    {"--make-vocab-size-divisible-by", ARG_UINT, AT(divisible_by), "N", NULL, "pad vocabulary rows to a multiple of N * tp; default: the source's, else 128"},
    {"--ferry-only", ARG_FLAG, AT(ferry_only), NULL, NULL, "write parameters that no model of Megatron-Core has into its formats, under names that only Ferry reads"},
    {"--megatron-model", ARG_CHOICE, AT(megatron_model), NULL, "gpt|hybrid", "keys and args of GPTModel or of HybridModel, whose layers are attention, MLP, Mamba ... alone; default: the source's"},
    {"--transformer-impl --saver-transformer-impl", ARG_CHOICE, AT(transformer_impl), NULL, "transformer_engine|local", "parameter names of the TE spec or the local spec; default: the source's, else transformer_engine"},
    {"--moe-grouped-gemm", ARG_FLAG, AT(grouped_gemm), NULL, NULL, "write experts as Transformer Engine's grouped linear layers: the flag in args, and their names in legacy files; default: as in the source's args"},
    {"--common-state", ARG_CHOICE, AT(common_state), NULL, "file|object", "storage of torch_dist's common state; file (default): common.pt, which every release reads; object: as Megatron-Core 0.19 writes it"},
    {"--max-shard-size", ARG_SIZE, AT(max_shard_size), "SIZE", NULL, "largest size of a safetensors file; default 5GB"},
    {"--allow-missing", ARG_LIST, AT(allow_missing), "GLOB", NULL, "tensors that may be missing in the source, such as '*.bias'"},
    {"--allow-unexpected", ARG_LIST, AT(allow_unexpected), "GLOB", NULL, "tensors of the source that may be left out"},
    {"--optim", ARG_FLAG, AT(optim), NULL, NULL, "write the optimizer state too; default for Megatron's formats, if the source has any"},
    {"--no-optim --no-load-optim --no-save-optim", ARG_FLAG, AT(no_optim), NULL, NULL, "leave the optimizer state out of the destination; --torch-dtype still casts weights from their masters"},
    {"--optim-format", ARG_CHOICE, AT(optim_format), NULL, OPTIM_FORMATS(FIRST_CHOICE, NEXT_CHOICE), "format of the optimizer state in Megatron's formats. torch_dist: fully_reshardable (every layout), fully_sharded_model_space (Megatron-Core before 0.14), not_distributed (for runs without --use-distributed-optimizer). torch: distributed (distrib_optim.pt), not_distributed (in the rank files). Default: the source's kind; of other trainers' runs, distributed"},
    {"--dist-ckpt-optim-fully-reshardable", ARG_FLAG, AT(fully_reshardable), NULL, NULL, "the same as --optim-format fully_reshardable"},
    {"--auto-detect-ckpt-format", ARG_IGNORED, 0, NULL, NULL, NULL},
};
static const struct arg ranks_args[] = {
    {"--rank --node-rank", ARG_UINT_OR_0, AT(rank), "N", NULL, "rank of this process, if several convert together; default: from torchrun, mpirun or srun (RANK and WORLD_SIZE, OMPI_COMM_WORLD_RANK and _SIZE, PMI_RANK and _SIZE, SLURM_PROCID and SLURM_STEP_NUM_TASKS), else 0"},
    {"--world-size --nnodes", ARG_UINT, AT(world_size), "N", NULL, "number of processes; each runs the same command and writes its share of the files, on a shared file system; default: as above, else 1"},
    {"--timeout", ARG_UINT_OR_0, AT(timeout), "SECONDS", NULL, "heartbeat timeout: seconds to wait for a process without a heartbeat, which may be restarted in that time; default 600"},
};
static const struct arg_group convert_groups[] = {
    {"Conversion", convert_args, COUNT(convert_args), 0},
    {"Layout of the destination (default: the source's own)", layout_args, NUM_LAYOUT_ARGS, AT(layout)},
    {"Destination of another trainer", trainer_args, NUM_TRAINER_ARGS, AT(trainer)},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(source)},
    {"Work", run_args, NUM_RUN_ARGS, AT(run)},
    {"Several processes, on one host or many", ranks_args, COUNT(ranks_args), 0},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
    {"Flags of training scripts: settings of the written optimizer", training_args, NUM_TRAINING_ARGS, AT(training)},
    {"Other options of Megatron-LM", NULL, 0, AT(training)},
};
// clang-format on

static const struct arg_group *made_group(const struct arg_group *g)
{
    static struct arg_group group;
    return megatron_options_make(&group, g, training_flag_make);
}

static void set_convert_defaults(void *options)
{
    struct convert_flags *f = options;
    f->source.ckpt_step = f->iteration = UINT64_MAX;
    f->run.max_memory = DEFAULT_MAX_MEMORY;
    f->journal_every = 1 << 30;
    f->rank = UINT64_MAX;
    f->timeout = 600;
}

static const uint64_t MAX_SHARD_BYTES = 5000000000;

/* One run of the command. */
struct run {
    const struct convert_flags *flags;
    struct model_maps maps;
    struct arena arena;
    struct checkpoint source;
    struct gaps gaps; /* the source's and the target's, without the allowed ones */
    struct training_given given;
    struct target target;
    struct publishing publishing;
    struct executor_options executor;
    struct ranks ranks;
    struct rendezvous rendezvous;
    const char *work;    /* identifies the work: only a run with the same text is continued */
    const char *command; /* the command line without --resume and --restart; NULL: not known */
    bool waits_quietly;
    struct conversion report;
    struct executor_result result;
    bool opened, planned;
    bool is_read;         /* the source is opened */
    bool already_there;   /* the destination is complete already: nothing is written */
    bool read_back_wrong; /* the staged files read back differently */
};

/* ---- options ---- */

static const struct format *target_format(const struct run *r)
{
    const struct format *from = r->source.format;
    const struct format *to = from->becomes ? from->becomes : from;
    return trainer_format(&r->flags->trainer, r->flags->to, to);
}

static enum optim_format optim_format_of(const struct convert_flags *f)
{
    if (f->fully_reshardable) return OPTIM_fully_reshardable;
    return f->optim_format ? optim_format_find(f->optim_format) : OPTIM_DEFAULT;
}

static enum megatron_model megatron_model_of(const struct convert_flags *f)
{
    if (!f->megatron_model) return MEGATRON_MODEL_SOURCE;
    return strcmp(f->megatron_model, "gpt") ? MEGATRON_MODEL_HYBRID : MEGATRON_MODEL_GPT;
}

static struct target_options target_options_of(const struct run *r, const struct source_options *s)
{
    const struct convert_flags *f = r->flags;
    struct layout_options layout = f->layout;
    layout_options_complete(&layout, &r->source.layout);
    bool local = f->transformer_impl
                     ? strcmp(f->transformer_impl, "local") == 0
                     : r->source.format->has & FORMAT_ARGS && !r->source.transformer_engine_names;
    return (struct target_options){
        .format = target_format(r),
        .layout = layout,
        .casts = s->casts,
        .dtype = s->dtype,
        .divisible_by = f->divisible_by,
        .has_iteration = f->iteration != UINT64_MAX,
        .iteration = f->iteration,
        .ferry_only = f->ferry_only,
        .megatron_model = megatron_model_of(f),
        .transformer_engine = !local,
        .grouped_gemm =
            f->grouped_gemm ||
            (!local && args_have_grouped_gemm(value_get(r->source.training.common, "args"))),
        .common_as_object = f->common_state && strcmp(f->common_state, "object") == 0,
        .max_shard_bytes = f->max_shard_size ? f->max_shard_size : MAX_SHARD_BYTES,
        .encoding = target_encoding_of(f->export_weight_dtype),
        .durable = !f->run.no_fsync,
        .optimizer = r->source.training.optimizer.present && !f->no_optim,
        .optim_format = optim_format_of(f),
        .allow_missing = &f->allow_missing,
        .allow_unexpected = &f->allow_unexpected,
        .allow_shifted = f->allow_shifted,
    };
}

/* Refuses options that do not apply to the destination's format. */
static enum status check_convert_flags(const struct run *r, const struct target_options *to,
                                       struct error *err)
{
    const struct convert_flags *f = r->flags;
    const struct {
        const char *flag;
        bool given;
        enum format_column for_what;
    } flags[] = {
        {"a parallel layout (--tp, --pp, ...)", layout_is_given(&f->layout), FORMAT_LAYOUT},
        {"--export-weight-dtype", f->export_weight_dtype != NULL, FORMAT_CONFIG_JSON},
        {"--iteration", f->iteration != UINT64_MAX, FORMAT_ITERATIONS},
        {"--optim-format", optim_format_of(f) != OPTIM_DEFAULT, FORMAT_ARGS},
        {"--make-vocab-size-divisible-by", f->divisible_by > 0, FORMAT_PADDING},
        {"--ferry-only", f->ferry_only, FORMAT_ARGS},
        {"--megatron-model", f->megatron_model != NULL, FORMAT_ARGS},
        {"--transformer-impl", f->transformer_impl != NULL, FORMAT_ARGS},
        {"--moe-grouped-gemm", f->grouped_gemm, FORMAT_ARGS},
        {"--common-state", f->common_state != NULL, FORMAT_COMMON_OBJECT},
        {"--max-shard-size", f->max_shard_size > 0, FORMAT_SHARDS},
    };
    for (size_t i = 0; i < COUNT(flags); i++)
        if (flags[i].given && !(to->format->has & flags[i].for_what))
            return fail(err, ERR_USAGE, "%s does not apply to format %s", flags[i].flag,
                        to->format->name);
    return trainer_flags_check(&f->trainer, to->format, err);
}

/* ---- checks ---- */

static bool verifies(const struct run *r, const char *how)
{
    return strcmp(r->flags->verify ? r->flags->verify : "digest", how) == 0;
}

/* Adds the names that are not allowed. */
static void add_names(struct arena *a, const char ***to, size_t *count, size_t *capacity,
                      const char *const *names, size_t num_names, const struct arg_list *allowed)
{
    for (size_t i = 0; i < num_names; i++)
        if (!globs_match(allowed, names[i])) *ARENA_PUSH(a, *to, *count, *capacity) = names[i];
}

static void add_gaps(struct run *r, const struct gaps *g, bool all)
{
    struct gaps *to = &r->gaps;
    const struct convert_flags *f = r->flags;
    add_names(&r->arena, &to->missing, &to->num_missing, &to->missing_capacity, g->missing,
              g->num_missing, all ? NULL : &f->allow_missing);
    add_names(&r->arena, &to->unexpected, &to->num_unexpected, &to->unexpected_capacity,
              g->unexpected, g->num_unexpected, all ? NULL : &f->allow_unexpected);
}

static void list_names(const char *what, const char *flag, const char *const *names, size_t count)
{
    if (!count) return;
    fprintf(stderr, "%zu %s (%s GLOB allows them):\n", count, what, flag);
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, "  %s\n", names[i]);
}

static const char *first_gap(struct run *r)
{
    const struct gaps *g = &r->gaps;
    const char *name = g->num_missing ? g->missing[0] : g->unexpected[0];
    return g->num_missing + g->num_unexpected == 1 ? name
                                                   : arena_printf(&r->arena, "%s, ...", name);
}

static enum status check_gaps(struct run *r, struct error *err)
{
    const struct gaps *g = &r->gaps;
    if (!g->num_missing && !g->num_unexpected) return OK;
    list_names("tensors are missing", "--allow-missing", g->missing, g->num_missing);
    list_names("tensors of the source have no place in the model and would be left out",
               "--allow-unexpected", g->unexpected, g->num_unexpected);
    return fail(err, ERR_UNSUPPORTED, "%s: %zu tensors missing, %zu unexpected: %s", r->source.path,
                g->num_missing, g->num_unexpected, first_gap(r));
}

static enum status check_space(struct run *r, struct error *err)
{
    struct conversion *c = &r->report;
    uint64_t staged = publish_staged_bytes(&r->publishing);
    c->disk_needed = r->target.plan.target_bytes + SMALL_FILES_BYTES;
    c->disk_needed -= min_u64(c->disk_needed, staged);
    TRY(folder_free_bytes(publish_existing_parent(&r->arena, c->destination), &c->disk_free, err));
    if (c->disk_needed <= c->disk_free || r->ranks.rank) return OK; /* rank 0 checks for all */
    return fail(err, ERR_IO, "%s: no space: %s needed, %s free, short by %s", c->destination,
                bytes_text(c->disk_needed), bytes_text(c->disk_free),
                bytes_text(c->disk_needed - c->disk_free));
}

/* The text of run.work. */
static const char *work_of(struct run *r)
{
    char source[SHA256_TEXT];
    source_fingerprint(&r->source.catalog, r->source.path, source);
    companions_fingerprint(r->source.hf_folder, source);
    tokenizer_fingerprint(target_tokenizer(&r->target), source);
    return arena_printf(&r->arena, "%s %.16s of %u %s %s %s", r->report.fingerprint, source,
                        r->ranks.size, r->target.format->name,
                        r->target.unit ? r->target.unit : "-",
                        r->executor.digests ? "digests" : "-");
}

/* The difference from an interrupted run, to follow "an interrupted run"; "":
 * none. */
static const char *difference_from(const struct run *r, const struct publish_left *left)
{
    char source[2][17];
    unsigned ranks[2];
    static const char format[] = "%*64s %16s of %u";
    struct arena *a = r->publishing.arena;
    if (left->same_work) return "";
    if (!left->work || sscanf(left->work, format, source[0], &ranks[0]) != 2 ||
        sscanf(r->work, format, source[1], &ranks[1]) != 2)
        return " of another version of ferry";
    if (strcmp(source[0], source[1]))
        return " of another source, or of this source before it changed";
    if (ranks[0] != ranks[1])
        return arena_printf(a, " of %u process%s, not %u", ranks[0], ranks[0] == 1 ? "" : "es",
                            ranks[1]);
    return " with other arguments";
}

static void print_command(const char *command)
{
    for (const char *t = command; t && *t; t++)
        if (iscntrl((unsigned char)*t)) return; /* control characters must not reach a terminal */
    if (command) fprintf(stderr, "  %s\n", command);
}

/* Files of another interrupted command are discarded only with --restart or
 * --overwrite. */
static enum status check_left(const struct run *r, struct error *err)
{
    const struct publishing *p = &r->publishing;
    const char *command = p->left.command;
    if (!publish_refuses_left(p)) return OK;
    if (command && !r->ranks.rank) {
        fprintf(stderr, "an interrupted run exists, started by\n");
        print_command(command);
    }
    return fail(err, ERR_EXISTS,
                "%s: %s holds %s of an interrupted run%s; its own command and source continue it, "
                "--restart or --overwrite discards it",
                r->report.destination, p->staging,
                p->left.bytes ? bytes_text(p->left.bytes) : "files", r->report.left_difference);
}

static bool is_made(void *run, const char *unit_folder)
{
    const struct run *r = run;
    return record_is_of(unit_folder, NULL, r->report.fingerprint);
}

static enum status may_replace(void *run, const char *folder, struct publish_replaced *out,
                               struct error *err)
{
    struct run *r = run;
    return contents_may_replace(&r->target, folder, out, err);
}

/* Checks that all files of a destination that this plan wrote still exist. */
static enum status check_complete(struct run *r, struct error *err)
{
    struct root_file *files = NULL;
    size_t num_files = 0;
    struct target *t = &r->target;
    TRY(record_check_files(r->publishing.unit_folder, &r->target.plan, err));
    if (t->format->target->root_files)
        TRY(t->format->target->root_files(t, &files, &num_files, err));
    for (size_t i = 0; i < num_files; i++)
        if (!path_exists(path_join(&t->plan.arena, r->report.destination, files[i].name)))
            return fail(err, ERR_EXISTS,
                        "%s: was complete, but %s is missing; --overwrite replaces it",
                        r->report.destination, files[i].name);
    return OK;
}

/* Adds the facts of the existing ferry.json to the message "exists and is not
 * empty". */
static void add_existing_record(struct run *r, struct error *err)
{
    char why[sizeof err->text];
    memcpy(why, err->text, sizeof why);
    (void)!fail(err, ERR_EXISTS, "%s (%s)", why,
                is_made(r, r->publishing.unit_folder)
                    ? "it is complete, from the same source and arguments: --resume accepts it as "
                      "success"
                    : "its ferry.json records other arguments or another source, or the source has "
                      "changed since");
}

/* Runs all checks of the plan and returns the first failure; the report shows
 * all of them. */
static enum status check_plan(struct run *r, struct error *err)
{
    struct error later;
    struct publish_options how = {
        .may_replace = may_replace,
        .is_made = is_made,
        .context = r,
        .work = r->work,
        .command = r->command,
        .overwrite = r->flags->run.overwrite,
        .resume = r->flags->resume,
        .restart = r->flags->restart,
        .joins = r->ranks.rank > 0,
    };
    format_tell_publishing(r->target.format, &how);
    enum status st = publish_check(&r->publishing, &r->arena, r->report.destination, r->target.unit,
                                   r->source.path, &how, err);
    if (st == ERR_EXISTS && r->publishing.unit_folder &&
        path_exists(path_join(&r->arena, r->publishing.unit_folder, record_name)))
        add_existing_record(r, err);
    r->report.replaces = r->publishing.replaces;
    r->report.left = r->publishing.left;
    r->report.left_difference = difference_from(r, &r->publishing.left);
    r->report.discards = publish_discards_left(&r->publishing);
    r->report.finishes = r->publishing.finished;
    r->already_there = !st && r->publishing.complete && !r->publishing.replaces.folder;
    if (r->already_there) st = check_complete(r, err);
    if (!st) st = check_left(r, err);
    enum status space = check_space(r, st ? &later : err);
    if (!st) st = space;
    enum status memory =
        executor_memory(&r->target.plan, &r->executor, &r->report.peak_memory, st ? &later : err);
    if (st && st == space && memory)
        return fail(err, st, "%s; and %s", arena_printf(&r->arena, "%s", err->text), later.text);
    return st ? st : memory;
}

/* ---- steps ---- */

static enum status parse_torch_dtype(struct source_options *o, const char *torch_dtype,
                                     struct error *err)
{
    o->casts = torch_dtype != NULL;
    if (torch_dtype && (!dtype_from_user(torch_dtype, &o->dtype) || !dtype_is_float(o->dtype)))
        return fail(err, ERR_USAGE,
                    "--torch-dtype %s: not one of bfloat16, float16, float32, float64",
                    torch_dtype);
    return OK;
}

static enum status open_and_plan(struct run *r, const char *source, struct error *err)
{
    struct source_options options = source_options_of(&r->flags->source);
    TRY(parse_torch_dtype(&options, r->flags->torch_dtype, err));
    TRY(training_flags_given(&r->flags->training, &r->given, err));
    r->opened = true;
    options.allow_missing = &r->flags->allow_missing;
    TRY(source_open(&r->source, source, &options, &r->maps, err));
    source_note_unused(&r->source, &options);
    r->is_read = true;
    add_gaps(r, &r->source.gaps, true);
    const bool optimizer = r->source.training.optimizer.present && !r->flags->no_optim;
    TRY(training_flags_check(&r->flags->training, &r->source, target_format(r), options.casts,
                             options.dtype, optimizer && target_format(r)->has & FORMAT_ARGS,
                             r->flags->output.quiet, err));
    const struct states_wanted wanted = {
        .to = target_format(r), .optim = r->flags->optim, .no_optim = r->flags->no_optim};
    const struct masters_options how = {.all = verifies(r, "full") && !r->flags->dry_run,
                                        .threads = (unsigned)r->flags->run.threads,
                                        .max_memory = r->flags->run.max_memory};
    enum status st = check_states(&r->source, &wanted, err);
    if (!st && optimizer) st = check_masters(&r->source, &how, err);
    if (!r->flags->output.quiet) notes_print(&r->source.notes);
    r->gaps = (struct gaps){0};
    add_gaps(r, &r->source.gaps, false);
    TRY(check_gaps(r, err));
    TRY(st);
    struct target_options to = target_options_of(r, &options);
    TRY(check_convert_flags(r, &to, err));
    trainer_flags_apply(&r->flags->trainer, &to);
    to.given = &r->given;
    r->planned = true;
    r->report.begun = &r->target;
    st = target_plan(&r->target, &to, &r->source, &r->maps, err);
    if (!r->flags->output.quiet) notes_print(&r->target.notes);
    add_gaps(r, &r->target.gaps, false);
    if (st && (r->gaps.num_missing || r->gaps.num_unexpected)) return check_gaps(r, err);
    return st;
}

/* Reads the written files back, past the page cache if the file system allows
 * it. */
static enum status verify_staged(struct run *r, struct error *err)
{
    struct source_options options = source_options_of(&r->flags->source);
    struct digest_options d = {.threads = r->executor.threads,
                               .max_memory = r->executor.max_memory,
                               .direct_io = r->executor.fsync,
                               .progress = r->executor.progress};
    options.allow_missing = &r->flags->allow_missing;
    return verify_written(&r->target.plan, r->report.copies, r->publishing.folder, &options,
                          &r->maps, &d, err);
}

/* Writes all files without weights: small files, ferry.json, integrity.json. */
static enum status write_other_files(struct run *r, struct error *err)
{
    const char *folder = r->publishing.folder;
    TRY(target_small_files(&r->target, folder, err));
    if (verifies(r, "full")) {
        enum status st = verify_staged(r, err);
        r->read_back_wrong = st && st != ERR_INTERRUPTED;
        if (st) return st;
    }
    TRY(record_write(&r->report, folder, r->flags->integrity ? integrity_name : NULL,
                     r->executor.fsync, err));
    if (!r->flags->integrity) return OK;
    return integrity_write(folder, r->executor.threads, r->executor.fsync, err);
}

/* Comes after all files are written: the same command with --allow-overflow
 * publishes them. */
static enum status check_overflow(const struct run *r, struct error *err)
{
    struct strbuf names = {0};
    if (!r->result.overflowed || r->flags->allow_overflow) return OK;
    size_t tensors = report_counts(&names, &r->report, REPORT_OVERFLOWED);
    enum status st =
        fail(err, ERR_NUMERIC,
             "%s: %" PRIu64 " finite element%s of %zu tensor%s %s infinite as %s: %s; nothing was "
             "published; the same command with --allow-overflow publishes the result",
             r->report.destination, r->result.overflowed, r->result.overflowed == 1 ? "" : "s",
             tensors, tensors == 1 ? "" : "s", r->result.overflowed == 1 ? "is" : "are",
             dtype_infos[r->target.options.dtype].name, names.data);
    strbuf_release(&names);
    return st;
}

static enum status write_all(struct run *r, struct error *err)
{
    struct plan *p = &r->target.plan;
    TRY(executor_run(p, r->publishing.folder, &r->executor, &r->result, err));
    if (r->ranks.size > 1) {
        TRY(rendezvous_wait_ranks(&r->rendezvous, p, err));
        TRY(executor_join(p, r->publishing.folder, &r->executor, r->rendezvous.journals, &r->result,
                          err));
    }
    TRY(check_overflow(r, err));
    return write_other_files(r, err);
}

/* Prints the number of bytes kept and the command that continues. */
static void print_kept(const struct run *r, enum status st)
{
    const struct publishing *p = &r->publishing;
    struct strbuf done = {0};
    progress_bytes(&done, publish_done_bytes(p), r->target.plan.target_bytes);
    fprintf(stderr, "%s are kept in %s; the same command%s", done.data, p->staging,
            st == ERR_NUMERIC ? " with --allow-overflow" : "");
    if (r->ranks.size > 1) fprintf(stderr, ", run again by %u processes,", r->ranks.size);
    fprintf(stderr, " %s%s\n", st == ERR_NUMERIC ? "publishes it" : "continues",
            r->command ? ":" : "");
    print_command(r->command && st == ERR_NUMERIC
                      ? arena_printf(p->arena, "%s --allow-overflow", r->command)
                      : r->command);
    strbuf_release(&done);
}

/* Keeps the written files if a later run can continue them, and the error text
 * for ranks that wait. */
static void keep_after_failure(struct run *r, enum status st, struct error *err)
{
    struct publishing *p = &r->publishing;
    bool done = !r->read_back_wrong && (p->left.bytes || r->result.in_journal);
    if (st == ERR_INTERRUPTED)
        (void)!fail(err, st, done ? "interrupted" : "interrupted: nothing is kept");
    if (p->finished || p->moved) {
        fprintf(stderr, "%s lacks its last files; the same command writes them\n",
                r->report.destination);
        publish_abandon(p);
        return;
    }
    if (r->ranks.size == 1 && !done) {
        publish_abandon(p);
        return;
    }
    if (r->read_back_wrong) (void)!publish_forget(p, NULL);
    publish_keep(p, err->text);
    if (st != ERR_EXISTS && publish_done_bytes(p)) print_kept(r, st);
}

/* The work of rank 0. */
static enum status write_and_publish(struct run *r, struct error *err)
{
    struct root_file *files = NULL;
    size_t num_files = 0;
    TRY(publish_begin(&r->publishing, r->executor.fsync, err));
    r->report.run = lock_run(r->publishing.lock);
    r->executor.resume = r->publishing.continues;
    enum status st = r->publishing.finished ? OK : write_all(r, err);
    if (!st && r->target.format->target->root_files)
        st = r->target.format->target->root_files(&r->target, &files, &num_files, err);
    if (!st) st = publish_commit(&r->publishing, files, num_files, err);
    if (st) keep_after_failure(r, st, err);
    return st;
}

/* The work of the other ranks: each writes its share of the files, rank 0
 * publishes them. */
static enum status write_share(struct run *r, struct error *err)
{
    struct rendezvous *v = &r->rendezvous;
    enum rendezvous_left left;
    enum status st = OK;
    TRY(rendezvous_join(v, &left, err));
    r->already_there = left == LEFT_NOTHING;
    if (r->already_there) return OK;
    r->executor.resume = true;
    if (left == LEFT_SHARE)
        st = executor_run(&r->target.plan, r->publishing.folder, &r->executor, &r->result, err);
    if (!st) st = rendezvous_wait_published(v, err);
    if (st == ERR_INTERRUPTED) (void)!fail(err, st, "interrupted");
    if (st) rendezvous_leave(v, err->text);
    return st;
}

static enum status execute_plan(struct run *r, struct error *err)
{
    r->rendezvous =
        (struct rendezvous){.publishing = &r->publishing,
                            .ranks = r->ranks,
                            .plan = r->report.fingerprint,
                            .timeout_seconds = (unsigned)min_u64(r->flags->timeout, UINT32_MAX),
                            .quiet = r->waits_quietly,
                            .is_there = record_is_of};
    rendezvous_init(&r->rendezvous);
    r->executor.journal_path = r->rendezvous.journals[r->ranks.rank];
    r->executor.journal_bytes = r->flags->journal_every;
    r->executor.work = r->rendezvous.work;
    r->executor.keep_going = rendezvous_keep_going;
    r->executor.is_ours = rendezvous_is_ours;
    r->executor.asking_context = &r->rendezvous;
    enum status st = r->ranks.rank ? write_share(r, err) : write_and_publish(r, err);
    if (st == ERR_INTERRUPTED) rendezvous_end_together(&r->rendezvous);
    return st;
}

static void print_plan(const struct run *r)
{
    struct strbuf text = {0};
    report_plan(&text, &r->report);
    fputs(text.data, stderr);
    strbuf_release(&text);
}

/* Sets the JSON result. A failed run has only the members known so far. */
static void set_convert_result(const struct run *r, enum status st)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddBoolToObject(o, "dry_run", r->flags->dry_run);
    cJSON_AddBoolToObject(o, "already_complete", r->already_there);
    report_plan_json(o, &r->report);
    /* after an overflow too: the result names its tensors */
    if (!r->flags->dry_run && (!st || st == ERR_NUMERIC))
        report_result_json(o, &r->report, &r->result);
    result_set(o);
}

static void print_end(const struct run *r, bool done)
{
    struct strbuf text = {0};
    if (done && !r->flags->output.quiet && r->already_there) {
        fprintf(stderr, "%s is already complete, from the same source and arguments\n",
                r->report.destination);
    } else if (done && !r->flags->output.quiet && r->publishing.finished) {
        fprintf(stderr, "%s lacked only its last files, which are written now\n",
                r->report.destination);
    } else if (done && !r->flags->output.quiet) {
        report_result(&text, &r->report, &r->result);
        fputs(text.data, stderr);
    } else if (!done && !r->flags->output.quiet) {
        fputs("dry run: nothing written\n", stderr);
    }
    strbuf_release(&text);
}

/* The destination must be the root of iterations, not the folder of one. */
static enum status check_root(struct run *r, struct error *err)
{
    const char *name = path_base(&r->arena, r->report.destination);
    const char *glob = r->target.format->unit_glob;
    if (!r->target.unit || !glob || fnmatch(glob, name, 0)) return OK;
    return fail(err, ERR_USAGE,
                "%s: is the folder of an iteration; give the folder above it, and the iteration by "
                "--iteration N",
                r->report.destination);
}

/* The command that continues a run has no need of these. */
static const char *const not_continued[] = {"--restart", "--resume", NULL};

static enum status convert_source(struct run *r, const char *source, const char *destination,
                                  struct error *err)
{
    const struct convert_flags *f = r->flags;
    double start = seconds_now();
    r->report = (struct conversion){.source = &r->source,
                                    .gaps = &r->gaps,
                                    .destination = destination,
                                    .max_memory = f->run.max_memory};
    r->executor = executor_options_of(&f->run, &f->output);
    r->executor.rank = r->report.ranks.rank = r->ranks.rank;
    r->executor.num_ranks = r->report.ranks.size = r->ranks.size;
    r->executor.digests = r->report.has_digests = !verifies(r, "none");
    TRY(model_maps_load(&r->maps, f->source.model_map, err));
    enum status st = open_and_plan(r, source, err);
    if (st) {
        if (r->is_read) set_convert_result(r, st);
        return st;
    }
    r->report.target = &r->target;
    plan_fingerprint(&r->target.plan, r->source.path, r->report.fingerprint);
    companions_fingerprint(r->source.hf_folder, r->report.fingerprint);
    tokenizer_fingerprint(target_tokenizer(&r->target), r->report.fingerprint);
    if (r->target.num_states) training_fingerprint(&r->target.training, r->report.fingerprint);
    plan_split(&r->target.plan, r->ranks.size);
    r->report.copies = r->executor.copies =
        arena_array(&r->target.plan.arena, r->target.plan.num_copies, sizeof *r->report.copies);
    r->work = work_of(r);
    r->command = command_line_text(&r->arena, not_continued);
    st = check_root(r, err);
    if (!st) st = check_plan(r, err);
    bool goes_on = !st && !r->already_there;
    if (f->dry_run || f->output.verbose || (goes_on && !f->output.quiet)) print_plan(r);
    if (goes_on && !f->dry_run) st = execute_plan(r, err);
    r->report.seconds = seconds_now() - start;
    set_convert_result(r, st);
    if (!st || f->dry_run) print_end(r, !f->dry_run);
    return st;
}

/* Rank and size by the options, or by the environment if neither option is
 * given. */
static enum status ranks_of(const struct convert_flags *f, struct ranks *out, struct error *err)
{
    *out = (struct ranks){.size = (unsigned)f->world_size};
    if (f->rank == UINT64_MAX && !f->world_size) return ranks_from_environment(out, err);
    if (f->rank == UINT64_MAX && f->world_size == 1) return OK;
    if (f->rank == UINT64_MAX)
        return fail(err, ERR_USAGE,
                    "--world-size %" PRIu64 " needs --rank: it counts the processes that convert "
                    "together; --dp counts the data parallel ranks to shard for",
                    f->world_size);
    if (!f->world_size) return fail(err, ERR_USAGE, "--rank needs --world-size");
    out->rank = (unsigned)f->rank;
    if (f->rank < f->world_size && f->world_size <= MAX_RANKS_OF_A_JOB) return OK;
    if (f->world_size > MAX_RANKS_OF_A_JOB)
        return fail(err, ERR_USAGE, "--world-size %" PRIu64 ": at most %d", f->world_size,
                    MAX_RANKS_OF_A_JOB);
    return fail(err, ERR_USAGE, "--rank %" PRIu64 " is out of range for --world-size %" PRIu64,
                f->rank, f->world_size);
}

/* Refuses URLs and an unexpanded ~, which would become folder names. */
static enum status check_destination(const char *path, struct error *err)
{
    if (strstr(path, "://"))
        return fail(err, ERR_USAGE, "%s: is a URL; the destination must be a local folder", path);
    if (strncmp(path, "~/", 2) == 0)
        return fail(err, ERR_USAGE,
                    "%s: the shell has not expanded ~; write $HOME, or ./~/ for a "
                    "folder of that name",
                    path);
    return OK;
}

static enum status run_convert(void *options, const char *const *positional, size_t num_positional,
                               struct error *err)
{
    struct convert_flags *f = options;
    struct run r = {.flags = options, .waits_quietly = f->output.quiet};
    (void)num_positional;
    arena_init(&r.arena);
    if (f->resume && f->restart)
        return fail(err, ERR_USAGE, "--resume and --restart exclude each other");
    if (f->optim && f->no_optim)
        return fail(err, ERR_USAGE, "--optim and --no-optim exclude each other");
    if (f->fully_reshardable && f->optim_format &&
        optim_format_find(f->optim_format) != OPTIM_fully_reshardable)
        return fail(err, ERR_USAGE,
                    "--dist-ckpt-optim-fully-reshardable and --optim-format %s exclude each other",
                    f->optim_format);
    TRY(check_destination(positional[1], err));
    TRY(ranks_of(f, &r.ranks, err));
    if (r.ranks.size > 1 && !r.ranks.rank && f->rank == UINT64_MAX && !f->output.quiet)
        fprintf(stderr, "rank 0 of %u, from the environment (--world-size 1 converts alone)\n",
                r.ranks.size);
    if (r.ranks.rank && !f->output.verbose && !f->dry_run) f->output.quiet = true;
    /* rank 0 prints the result for all, except in a dry run with --rank */
    if (r.ranks.rank && (f->rank == UINT64_MAX || !f->dry_run)) result_silence();
    enum status st = convert_source(&r, positional[0], positional[1], err);
    if (st && *err->text && r.ranks.size > 1) (void)!fail_in(err, "rank %u", r.ranks.rank);
    if (r.planned) target_release(&r.target);
    if (r.opened) checkpoint_release(&r.source);
    arena_release(&r.arena);
    model_maps_release(&r.maps);
    return st;
}

const struct command command_convert = {
    .name = "convert",
    .summary = "convert a checkpoint to another format or parallel layout",
    .positional = "SOURCE DESTINATION",
    .text =
        "SOURCE is a Hugging Face folder (safetensors or .bin) or the name of a model in the hub's "
        "cache (org/name); a Megatron checkpoint in the "
        "torch_dist or the legacy torch format (the root with its tracker file, or one "
        "iter_NNNNNNN); or a checkpoint of DeepSpeed, FSDP or torchtitan (with --hf-config DIR, "
        "the "
        "folder of the Hugging Face model, unless a config.json is beside it). The format is "
        "detected. DESTINATION is created, and appears when it is "
        "complete; other iterations of an existing Megatron root are not touched. After an "
        "interrupt, a kill or a failure, the same command continues.\n\n"
        "  ferry convert Llama-3.2-1B ckpt --tp 2 --pp 2\n"
        "  ferry convert ckpt ckpt8 --tp 8 --to torch\n"
        "  ferry convert ckpt8 out-hf --to hf\n"
        "  ferry convert zero3-run ckpt --tp 4 --hf-config base\n"
        "  ferry convert ckpt fsdp --to dcp --dp 8\n\n"
        "Several hosts share the work: run the same command on each, on a shared file "
        "system:\n\n"
        "  srun -N 4 --ntasks-per-node 1 -K ferry convert SOURCE DESTINATION --tp 8\n\n"
        "Restart a dead process on any host while the others wait (--timeout):\n\n"
        "  ferry convert SOURCE DESTINATION --tp 8 --rank 2 --world-size 4\n\n"
        "After all have ended, the same command with as many processes continues.\n\n"
        "Flags of a training script are accepted. Flags of the model (--num-layers, --swiglu, "
        "...) are compared with it; flags of the optimizer (--lr, --min-lr, ...) replace its "
        "settings in the source; others (--use-distributed-optimizer, --cp, ...) change nothing, "
        "and a note names them.",
    .groups = convert_groups,
    .num_groups = COUNT(convert_groups),
    .made = made_group,
    .spellings = to_spellings,
    .num_spellings = NUM_TO_SPELLINGS,
    .options_bytes = sizeof(struct convert_flags),
    .defaults = set_convert_defaults,
    .run = run_convert,
};
