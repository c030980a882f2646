/* synth_command.c - ferry synth: a model of random weights, in any supported
 * architecture, size and format, with optimizer state on request. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/executor.h"
#include "ckpt/publish.h"
#include "common/clock.h"
#include "common/count.h"
#include "common/json.h"
#include "common/numbers.h"
#include "common/result.h"
#include "convert/cli/contents.h"
#include "convert/cli/convert_commands.h"
#include "convert/cli/megatron_options.h"
#include "convert/cli/options.h"
#include "convert/cli/report.h"
#include "convert/format.h"
#include "convert/map/params.h"
#include "convert/megatron/optim/param_groups.h"
#include "convert/record.h"
#include "convert/states.h"
#include "kernels/cpu/random.h"

struct synth_flags {
    struct run_flags run;
    struct output_flags output;
    struct layout_options layout;
    struct trainer_flags trainer;
    const char *model, *model_map, *dtype, *to, *encoding;
    struct model_config sizes; /* 0: the default */
    struct arg_list fields;    /* ARG_NOTED: others, by Megatron's options */
    uint64_t seed, max_shard_size;
    bool tied, untied, sparse, optim;
};

// clang-format off
#define AT(field) offsetof(struct synth_flags, field)
/* Options, field of the config c, default, help. */
#define FIRST_SIZES(X)                                                                                                                                                                                         \
    X("--layers --num-layers",            num_layers,              4,                                                       "layers; default 4")                                                               \
    X("--hidden --hidden-size",           hidden_size,             64,                                                      "hidden size; default 64")                                                         \
    X("--heads --num-attention-heads",    num_attention_heads,     8,                                                       "attention heads; default 8")                                                      \
    X("--kv-heads --num-query-groups",    num_query_groups,        c.num_attention_heads % 2 ? c.num_attention_heads : 2,   "key/value heads (query groups); default 2, or as many as --heads if the family needs it or that is odd") \
    X("--head-dim --kv-channels",         kv_channels,             c.hidden_size / c.num_attention_heads,                   "head dimension; default: hidden / heads")
#define FFN_SIZE(X)                                                                                                                                                                                            \
    X("--ffn-hidden-size",                ffn_hidden_size,         2 * c.hidden_size,                                       "FFN size; default: twice hidden")
#define MORE_SIZES(X)                                                                                                                                                                                          \
    X("--vocab-size",                     vocab_size,              1000,                                                    "vocabulary size; default 1000")                                                                    \
    X("--max-position-embeddings",        max_position_embeddings, 2048,                                                    "maximum number of positions; default 2048")                                                                    \
    X("--experts --num-experts",          num_experts,             8,                                                       "number of experts; default 8, in families with experts")                          \
    X("--topk --moe-router-topk",         moe_router_topk,         2,                                                       "experts per token; default 2")                                                    \
    X("--moe-ffn-hidden-size",            moe_ffn_hidden_size,     (c.hidden_size + 1) / 2,                                 "FFN size of one expert; default: half of hidden")

#define SIZE_ARG(names, field, usual, help) {names, ARG_UINT, AT(sizes.field), "N", NULL, help},
static const struct arg synth_args[] = {
    {"--model", ARG_TEXT, AT(model), "FAMILY", NULL, "architecture (see ferry models); required"},
    {"--model-map", ARG_TEXT, AT(model_map), "FILE", NULL, "your own model map, in addition to the built-in ones"},
    FIRST_SIZES(SIZE_ARG) FFN_SIZE(SIZE_ARG) MORE_SIZES(SIZE_ARG)
    {"--tied", ARG_FLAG, AT(tied), NULL, NULL, "tie the output layer to the embedding; default: the family's usual setting"},
    {"--untied", ARG_FLAG, AT(untied), NULL, NULL, "do not tie the output layer"},
    {"--dtype --torch-dtype", ARG_TEXT, AT(dtype), "DTYPE", NULL, "dtype of the weights; default bf16"},
    {"--encoding --export-weight-dtype", ARG_CHOICE, AT(encoding), NULL, "bf16|fp8-block|fp8-channel|fp8-tensor|mxfp8|mxfp4|nvfp4|int4", "encoding of linear layers, in a Hugging Face folder; default bf16: none"},
    {"--seed", ARG_UINT_OR_0, AT(seed), "N", NULL, "seed of the random weights; default 1"},
    {"--optim", ARG_FLAG, AT(optim), NULL, NULL, "write the state of an AdamW run after 1000 steps too: moments, master weights in float32, step, groups, schedule"},
    {"--to", ARG_CHOICE, AT(to), NULL, TO_CHOICES, "format of the destination; default hf"},
    {"--max-shard-size", ARG_SIZE, AT(max_shard_size), "SIZE", NULL, "largest size of a safetensors file; default 5GB"},
    {"--sparse", ARG_FLAG, AT(sparse), NULL, NULL, "write sparse files: real headers, and zeros that take no disk space"},
};
static const struct arg_group synth_groups[] = {
    {"Model", synth_args, COUNT(synth_args), 0},
    {"Layout of Megatron's formats (default: one rank)", layout_args, NUM_LAYOUT_ARGS, AT(layout)},
    {"Destination of another trainer", trainer_args, NUM_TRAINER_ARGS, AT(trainer)},
    {"Work", run_args, NUM_RUN_ARGS, AT(run)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
    {"Other options of Megatron-LM", NULL, 0, 0},
};


/* If config.json has one name for two sizes, the first default and the last
 * given value count. So the FFN of experts comes before the dense one. */
static const struct size {
    const char *names;
    struct field field;
} sizes[] = {
#define SIZE(names, field, usual, help) {names, FIELD_ROW(struct model_config, field)},
    FIRST_SIZES(SIZE) MORE_SIZES(SIZE) FFN_SIZE(SIZE)
};
enum { NUM_SIZES = COUNT(sizes) };
// clang-format on

static bool make_field_option(struct arg *to, const struct megatron_option *o, const char *title)
{
    (void)title;
    to->kind = ARG_NOTED;
    to->offset = AT(fields);
    return o->field != NULL;
}

static const struct arg_group *made_group(const struct arg_group *g)
{
    static struct arg_group group;
    return megatron_options_make(&group, g, make_field_option);
}

static void set_synth_defaults(void *options)
{
    struct synth_flags *f = options;
    f->dtype = "bf16";
    f->seed = 1;
    f->run.max_memory = DEFAULT_MAX_MEMORY;
}

static const uint64_t MAX_SHARD_BYTES = 5000000000;

/* ---- config.json ---- */

/* Sizes from options, and defaults for the others; the family's defaults fill
 * the rest. */
static struct model_config wanted_sizes(const struct synth_flags *f)
{
    struct model_config c = f->sizes;
#define GIVE_DEFAULT(names, field, usual, help)                                                    \
    if (!c.field) c.field = usual;
    FIRST_SIZES(GIVE_DEFAULT) FFN_SIZE(GIVE_DEFAULT) MORE_SIZES(GIVE_DEFAULT) return c;
}

static bool size_is_given(const struct synth_flags *f, const struct size *size)
{
    return scalar_is_given(field_get(&size->field, &f->sizes));
}

static enum status check_given_sizes(const struct synth_flags *f, const struct model_map *map,
                                     struct error *err)
{
    for (const struct size *s = sizes; s < sizes + NUM_SIZES; s++)
        if (size_is_given(f, s) && !model_map_hf_field(map, s->field.name))
            return fail(err, ERR_USAGE, "%.*s does not apply to models of family %s",
                        (int)strcspn(s->names, " "), s->names, model_map_family(map));
    return OK;
}

static void add_sizes(const struct synth_flags *f, const struct model_map *map, cJSON *hf)
{
    const struct model_config wanted = wanted_sizes(f);
    for (size_t i = 0; i < NUM_SIZES; i++) {
        const char *name = model_map_hf_field(map, sizes[i].field.name);
        if (!name || (json_get(hf, name) && !size_is_given(f, &sizes[i]))) continue;
        cJSON_DeleteItemFromObjectCaseSensitive(hf, name);
        cJSON_AddItemToObject(hf, name, scalar_json(field_get(&sizes[i].field, &wanted)));
    }
}

static void add_fields(const struct synth_flags *f, const struct model_map *map, cJSON *hf)
{
    for (size_t i = 0; i + 1 < f->fields.count; i += 2) {
        const char *names = f->fields.items[i], *value = f->fields.items[i + 1];
        const char *name = model_map_hf_field(map, megatron_option_find(names)->field->field.name);
        cJSON *item = NULL;
        struct error no_json;
        if (!name) continue;
        if (!value)
            item = cJSON_CreateTrue();
        else if (json_parse(value, strlen(value), JSON_STRICT, &item, &no_json))
            item = cJSON_CreateString(value);
        json_put(hf, name, item);
    }
}

/* Checks that the model has the values given. */
static enum status check_fields(const struct synth_flags *f, const struct model_map *map,
                                const struct model_config *c, struct arena *a, struct error *err)
{
    static const struct scalar_style style = {10, "true", "false", "none"};
    for (size_t i = 0; i + 1 < f->fields.count; i += 2) {
        const char *names = f->fields.items[i], *value = f->fields.items[i + 1];
        const struct model_field *field = megatron_option_find(names)->field;
        const char *has = scalar_text(field_get(&field->field, c), &style, a);
        const bool knows = model_map_hf_field(map, field->field.name);
        if (!megatron_value_equal(value ? value : "true", has))
            return fail(err, ERR_USAGE, "%.*s%s%s: %s %s%s%s", (int)strcspn(names, " "), names,
                        value ? " " : "", value ? value : "",
                        knows ? "models of family" : "synth does not set it in models of family",
                        model_map_family(map), knows ? " made by synth have " : "",
                        knows ? has : "");
    }
    return OK;
}

static enum status try_config(const struct synth_flags *f, const struct model_map *map,
                              struct arena *a, struct model_config *c, struct error *err)
{
    cJSON *hf = cJSON_CreateObject();
    add_sizes(f, map, hf);
    add_fields(f, map, hf);
    if (f->tied || f->untied) cJSON_AddBoolToObject(hf, "tie_word_embeddings", f->tied);
    enum status st = model_config_from_hf(map, hf, a, c, err);
    cJSON_Delete(hf);
    return st ? st : check_fields(f, map, c, a, err);
}

static enum status make_config(const struct synth_flags *f, const struct model_map *map,
                               struct arena *a, struct model_config *c, struct error *err)
{
    struct synth_flags full = *f;
    TRY(check_given_sizes(f, map, err));
    enum status st = try_config(f, map, a, c, err);
    if (!st || f->sizes.num_query_groups) return st;
    full.sizes.num_query_groups = wanted_sizes(f).num_attention_heads;
    return try_config(&full, map, a, c, err); /* latent attention needs as many */
}

/* ---- tensors ---- */

struct making {
    const struct synth_flags *flags;
    struct checkpoint *checkpoint;
    enum dtype dtype;
};

/* Adds a tensor with the shape of a mapped one and the numbers of a stream. */
static enum status add_random(struct making *x, const struct mapped_tensor *m, const char *name,
                              enum dtype dtype, enum origin_id origin, const char *stream,
                              struct error *err)
{
    struct tensor *t;
    TRY(catalog_add(&x->checkpoint->catalog, name, dtype, m->num_dims, m->shape, &t, err));
    if (x->flags->sparse) origin = ORIGIN_HOLE;
    const struct piece piece = {
        .origin = origin, .dtype = dtype, .file = random_stream(x->flags->seed, stream)};
    const struct pair all = pair_whole(0, 0, t->numel);
    tensor_add_piece(&x->checkpoint->arena, t, &piece, &all);
    return OK;
}

/* Adds the states of a parameter. Its master has the same numbers, so the
 * weight is the rounded master; an F32 weight is its own master. The second
 * moment is the square of the first, so the next optimizer step has an ordinary
 * size. */
static enum status add_parameter_states(struct making *x, const struct mapped_tensor *m,
                                        enum origin_id weight, struct error *err)
{
    struct arena *a = &x->checkpoint->arena;
    const char *first = state_name(a, "exp_avg", m->name);
    const char *second = state_name(a, "exp_avg_sq", m->name);
    const char *master = state_name(a, master_state, m->name);
    if (x->dtype != DT_F32) TRY(add_random(x, m, master, DT_F32, weight, m->name, err));
    TRY(add_random(x, m, first, DT_F32, ORIGIN_RANDOM, first, err));
    return add_random(x, m, second, DT_F32, ORIGIN_RANDOM_SQUARE, first, err);
}

static enum status add_synth_parameter(void *context, const struct mapped_tensor *m,
                                       struct error *err)
{
    struct making *x = context;
    bool norm = strstr(m->name, "norm") && strstr(m->name, "weight");
    const enum origin_id origin = norm ? ORIGIN_RANDOM_ONE : ORIGIN_RANDOM;
    TRY(add_random(x, m, m->name, x->dtype, origin, m->name, err));
    return x->flags->optim ? add_parameter_states(x, m, origin, err) : OK;
}

/* The state of an AdamW run with a constant learning rate. */
static void make_training(struct checkpoint *c)
{
    enum { STEPS = 1000, BATCH = 256 };
    static const struct training_given given = {.lr = 3e-4,
                                                .min_lr = 3e-5,
                                                .weight_decay = 0.1,
                                                .adam_beta1 = 0.9,
                                                .adam_beta2 = 0.95,
                                                .adam_eps = 1e-8,
                                                .lr_decay_style = "constant",
                                                .lr_decay = 2 * STEPS * BATCH};
    struct training *t = &c->training.run;
    c->training.optimizer = (struct optimizer_info){.present = true, .kind = "made up"};
    t->iteration = t->step = STEPS;
    t->consumed_train_samples = STEPS * BATCH;
    t->floating_point_operations = 0;
    t->optimizer = "adam";
    (void)training_complete(t, &given, false, &c->arena);
}

static const struct format synthetic = {.name = "synth"};

static enum status make_catalog(const struct synth_flags *f, const struct model_maps *maps,
                                struct checkpoint *c, struct error *err)
{
    struct making x = {.flags = f, .checkpoint = c};
    if (!f->model) return fail(err, ERR_USAGE, "--model FAMILY is required (see `ferry models`)");
    const struct model_map *map = model_map_of_family(maps, f->model);
    if (!map)
        return fail(err, ERR_UNSUPPORTED,
                    "--model %s: unknown family; `ferry models` lists the families", f->model);
    if (!dtype_from_user(f->dtype, &x.dtype) || !dtype_is_float(x.dtype))
        return fail(err, ERR_USAGE, "--dtype %s: not one of bfloat16, float16, float32, float64",
                    f->dtype);
    if (f->tied && f->untied) return fail(err, ERR_USAGE, "--tied and --untied exclude each other");
    c->format = &synthetic;
    c->config_origin = CONFIG_OF_JSON;
    c->family = model_map_family(map);
    struct layout_options one = {0};
    enum status st = make_config(f, map, &c->arena, &c->config, err);
    if (st == ERR_CORRUPT) return err->code = ERR_USAGE; /* the sizes come from options */
    TRY(st);
    params_use(c, maps, map);
    TRY(layout_make(&c->layout, &c->arena, &one, &c->config, err));
    if (f->optim) make_training(c);
    return model_map_expand(map, &c->config, NULL, add_synth_parameter, &x, err);
}

/* ---- the command ---- */

static enum status check_space(struct target *t, const char *destination, bool sparse,
                               struct error *err)
{
    uint64_t needed = sparse ? SMALL_FILES_BYTES : t->plan.target_bytes + SMALL_FILES_BYTES,
             free_bytes;
    TRY(folder_free_bytes(publish_existing_parent(&t->plan.arena, destination), &free_bytes, err));
    if (needed <= free_bytes) return OK;
    return fail(err, ERR_IO, "%s: no space: %s needed, %s free", destination, bytes_text(needed),
                bytes_text(free_bytes));
}

static void set_synth_result(const struct synth_flags *f, const struct target *t,
                             const char *destination, const struct publishing *p)
{
    const struct conversion c = {.source = t->source, .target = t, .destination = destination};
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "family", t->source->family);
    cJSON_AddBoolToObject(o, "sparse", f->sparse);
    report_target_json(o, &c);
    if (p->replaces.folder) report_replaces_json(o, &p->replaces);
    result_set(o);
}

/* The root's files without ferry.json, which a synthetic model does not have. */
static enum status list_root_files(struct target *t, struct root_file **files, size_t *num_files,
                                   struct error *err)
{
    size_t count = 0;
    *num_files = 0;
    if (!t->format->target->root_files) return OK;
    TRY(t->format->target->root_files(t, files, &count, err));
    for (size_t i = 0; i < count; i++)
        if (strcmp((*files)[i].name, record_name)) (*files)[(*num_files)++] = (*files)[i];
    return OK;
}

/* Fills the staging folder and publishes it. */
static enum status write_files(struct target *t, struct publishing *p,
                               const struct executor_options *o, struct error *err)
{
    struct executor_result result;
    struct root_file *files = NULL;
    size_t num_files;
    TRY(executor_run(&t->plan, p->folder, o, &result, err));
    TRY(target_small_files(t, p->folder, err));
    TRY(list_root_files(t, &files, &num_files, err));
    return publish_commit(p, files, num_files, err);
}

static void print_created(const struct target *t, const char *destination,
                          const struct publishing *p, double seconds)
{
    fprintf(stderr, "created %s: %s, %zu tensors in %zu file%s, %s in %.2f s\n", destination,
            t->source->family, t->facts.num_target_tensors, t->facts.num_weight_files,
            t->facts.num_weight_files == 1 ? "" : "s", bytes_text(t->plan.target_bytes), seconds);
    if (p->replaces.folder)
        fprintf(stderr, "replaced %zu file%s, %s of %s\n", p->replaces.num_files,
                p->replaces.num_files == 1 ? "" : "s", bytes_text(p->replaces.bytes),
                p->replaces.folder);
}

static enum status write_target(const struct synth_flags *f, struct target *t,
                                const char *destination, struct error *err)
{
    struct executor_options executor = executor_options_of(&f->run, &f->output);
    struct publishing p;
    struct publish_options how = {.may_replace = contents_may_replace,
                                  .context = t,
                                  .work = "synth",
                                  .overwrite = f->run.overwrite};
    double start = seconds_now();
    uint64_t peak;
    format_tell_publishing(t->format, &how);
    TRY(publish_check(&p, &t->plan.arena, destination, t->unit, "", &how, err));
    TRY(check_space(t, destination, f->sparse, err));
    TRY(executor_memory(&t->plan, &executor, &peak, err));
    TRY(publish_begin(&p, executor.fsync, err));
    enum status st = write_files(t, &p, &executor, err);
    if (st) {
        publish_abandon(&p);
        return st;
    }
    if (!f->output.quiet) print_created(t, destination, &p, seconds_now() - start);
    set_synth_result(f, t, destination, &p);
    return OK;
}

/* Refuses options that do not apply to the format. */
static enum status check_synth_flags(const struct synth_flags *f, const struct format *format,
                                     struct error *err)
{
    const bool layout = layout_is_given(&f->layout) && !(format->has & FORMAT_LAYOUT);
    if (f->encoding && !(format->has & FORMAT_CONFIG_JSON))
        return fail(err, ERR_USAGE, "--encoding does not apply to format %s", format->name);
    if (!layout && (!f->max_shard_size || format->has & FORMAT_SHARDS))
        return trainer_flags_check(&f->trainer, format, err);
    return fail(err, ERR_USAGE, "%s does not apply to format %s",
                layout ? "a parallel layout (--tp, --pp, ...)" : "--max-shard-size", format->name);
}

static enum status write_model(const struct synth_flags *f, struct checkpoint *c,
                               const struct model_maps *maps, const char *destination,
                               struct error *err)
{
    struct target t;
    struct target_options to = {.format = trainer_format(&f->trainer, f->to, &format_hf),
                                .layout = f->layout,
                                .ferry_only = true,
                                .transformer_engine = true,
                                .max_shard_bytes =
                                    f->max_shard_size ? f->max_shard_size : MAX_SHARD_BYTES,
                                .encoding = target_encoding_of(f->encoding),
                                .durable = executor_options_of(&f->run, &f->output).fsync,
                                .zero = -1,
                                .optimizer = f->optim};
    TRY(check_synth_flags(f, to.format, err));
    trainer_flags_apply(&f->trainer, &to);
    enum status st = target_plan(&t, &to, c, maps, err);
    if (!f->output.quiet) notes_print(&t.notes);
    if (!st) st = write_target(f, &t, destination, err);
    target_release(&t);
    return st;
}

static enum status run_synth(void *options, const char *const *positional, size_t num_positional,
                             struct error *err)
{
    const struct synth_flags *f = options;
    struct model_maps maps;
    struct checkpoint c;
    (void)num_positional;
    checkpoint_init(&c, positional[0]);
    enum status st = model_maps_load(&maps, f->model_map, err);
    if (!st) st = make_catalog(f, &maps, &c, err);
    if (!st) st = write_model(f, &c, &maps, positional[0], err);
    checkpoint_release(&c);
    model_maps_release(&maps);
    return st;
}

const struct command command_synth = {
    .name = "synth",
    .summary = "create a model of random weights, in any supported architecture, size and format",
    .positional = "DESTINATION",
    .text = "For tests and benchmarks: the same options give the same bytes.\n\n"
            "  ferry synth --model llama --layers 16 --hidden 2048 --heads 32 --kv-heads 8 "
            "--ffn-hidden-size 8192 --vocab-size 128256 --tied out\n"
            "  ferry synth --model llama --optim --to torch_dist --tp 8 out\n\n"
            "Other fields of the model take Megatron-LM's options, such as --q-lora-rank 24.",
    .groups = synth_groups,
    .num_groups = COUNT(synth_groups),
    .made = made_group,
    .spellings = to_spellings,
    .num_spellings = NUM_TO_SPELLINGS,
    .options_bytes = sizeof(struct synth_flags),
    .defaults = set_synth_defaults,
    .run = run_synth,
};
