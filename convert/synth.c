/* synth.c - ferry synth: a model made up of random numbers, of any supported architecture and size.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/executor.h"
#include "ckpt/publish.h"
#include "common/json.h"
#include "common/result.h"
#include "convert/commands.h"
#include "convert/contents.h"
#include "convert/format.h"
#include "convert/options.h"
#include "convert/params.h"
#include "convert/report.h"
#include "kernels/cpu/random.h"

struct synth_flags {
    struct run_flags run;
    struct output_flags output;
    const char *model, *model_map, *dtype;
    uint64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, positions, experts, topk,
        moe_ffn;
    uint64_t seed, max_shard_size;
    bool tied, untied, sparse;
};

// clang-format off
#define AT(field) offsetof(struct synth_flags, field)
#define UINT(names, field, help) {names, ARG_UINT, AT(field), "N", NULL, help}
static const struct arg synth_args[] = {
    {"--model", ARG_TEXT, AT(model), "FAMILY", NULL, "architecture (see ferry models)"},
    {"--model-map", ARG_TEXT, AT(model_map), "FILE", NULL, "a model map of your own, beside the built-in ones"},
    UINT("--layers --num-layers", layers, "layers; default 4"),
    UINT("--hidden --hidden-size", hidden, "hidden size; default 64"),
    UINT("--heads --num-attention-heads", heads, "attention heads; default 8"),
    UINT("--kv-heads --num-query-groups", kv_heads, "key/value heads (query groups); default 2, or as many as --heads if that is odd"),
    UINT("--head-dim --kv-channels", head_dim, "default: hidden / heads"),
    UINT("--ffn-hidden-size", ffn, "default: twice hidden"),
    UINT("--vocab-size", vocab, "default 1000"),
    UINT("--max-position-embeddings", positions, "default 2048"),
    UINT("--experts --num-experts", experts, "number of experts; default 8, in families with experts"),
    UINT("--topk --moe-router-topk", topk, "experts per token; default 2"),
    UINT("--moe-ffn-hidden-size", moe_ffn, "FFN size of one expert; default: half of hidden"),
    {"--tied", ARG_FLAG, AT(tied), NULL, NULL, "tie the output layer to the embedding; default: as is usual in the family"},
    {"--untied", ARG_FLAG, AT(untied), NULL, NULL, "do not tie the output layer"},
    {"--dtype --torch-dtype", ARG_TEXT, AT(dtype), "DTYPE", NULL, "default bf16"},
    {"--seed", ARG_UINT_OR_0, AT(seed), "N", NULL, "default 1"},
    {"--max-shard-size", ARG_SIZE, AT(max_shard_size), "SIZE", NULL, "default 5GB"},
    {"--sparse", ARG_FLAG, AT(sparse), NULL, NULL, "sparse files with real headers and no data (all zeros), which take no disk space"},
};
static const struct arg_group synth_groups[] = {
    {"Model", synth_args, sizeof synth_args / sizeof *synth_args, 0},
    {"Work", run_args, NUM_RUN_ARGS, AT(run)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
};
// clang-format on

static void set_defaults(void *options)
{
    struct synth_flags *f = options;
    f->dtype = "bf16";
    f->seed = 1;
    f->max_shard_size = 5000000000;
    f->run.max_memory = 256 << 20;
}

/* ---- config.json ---- */

static uint64_t or_default(uint64_t n, uint64_t other)
{
    return n ? n : other;
}

/* The config that is asked for, as far as flags say it; the family's own defaults fill the rest. */
static struct model_config wanted_config(const struct synth_flags *f)
{
    struct model_config c = {.num_layers = or_default(f->layers, 4),
                             .hidden_size = or_default(f->hidden, 64),
                             .num_attention_heads = or_default(f->heads, 8),
                             .vocab_size = or_default(f->vocab, 1000),
                             .max_position_embeddings = or_default(f->positions, 2048),
                             .num_experts = or_default(f->experts, 8),
                             .moe_router_topk = or_default(f->topk, 2)};
    c.num_query_groups =
        or_default(f->kv_heads, c.num_attention_heads % 2 ? c.num_attention_heads : 2);
    c.kv_channels = or_default(f->head_dim, c.hidden_size / c.num_attention_heads);
    c.ffn_hidden_size = or_default(f->ffn, 2 * c.hidden_size);
    c.moe_ffn_hidden_size = or_default(f->moe_ffn, (c.hidden_size + 1) / 2);
    return c;
}

/* Fields that flags decide; where the family has no such field, a flag for it is an error. */
static const struct {
    const char *field, *flag;
    size_t given;
} decided[] = {
    {"num_layers", "--layers", AT(layers)},
    {"hidden_size", "--hidden", AT(hidden)},
    {"num_attention_heads", "--heads", AT(heads)},
    {"num_query_groups", "--kv-heads", AT(kv_heads)},
    {"kv_channels", "--head-dim", AT(head_dim)},
    {"vocab_size", "--vocab-size", AT(vocab)},
    {"max_position_embeddings", "--max-position-embeddings", AT(positions)},
    {"num_experts", "--experts", AT(experts)},
    {"moe_router_topk", "--topk", AT(topk)},
    {"moe_ffn_hidden_size", "--moe-ffn-hidden-size", AT(moe_ffn)},
    {"ffn_hidden_size", "--ffn-hidden-size", AT(ffn)},
};

static enum status make_config(const struct synth_flags *f, const struct model_map *map,
                               struct arena *a, struct model_config *c, struct error *err)
{
    struct model_config wanted = wanted_config(f);
    cJSON *hf = cJSON_CreateObject();
    enum status st = OK;
    for (size_t i = 0; i < sizeof decided / sizeof *decided && !st; i++) {
        uint64_t n = field_get(&model_field_find(decided[i].field)->field, &wanted).number;
        bool given = *(const uint64_t *)(const void *)((const char *)f + decided[i].given) > 0;
        const char *name = model_map_hf_field(map, decided[i].field);
        if (name && (given || !json_get(hf, name))) {
            cJSON_DeleteItemFromObjectCaseSensitive(hf, name);
            cJSON_AddItemToObject(hf, name, json_new_u64(n));
        } else if (!name && given) {
            st = fail(err, ERR_USAGE, "%s: models of family %s have no such size", decided[i].flag,
                      model_map_family(map));
        }
    }
    if (f->tied || f->untied) cJSON_AddBoolToObject(hf, "tie_word_embeddings", f->tied);
    if (!st) st = model_config_from_hf(map, hf, a, c, err);
    cJSON_Delete(hf);
    return st;
}

/* ---- tensors ---- */

struct making {
    const struct synth_flags *flags;
    struct checkpoint *checkpoint;
    enum dtype dtype;
};

static enum status add_random(void *context, const struct mapped_tensor *m, struct error *err)
{
    struct making *x = context;
    struct tensor *t;
    TRY(catalog_add(&x->checkpoint->catalog, m->name, x->dtype, m->num_dims, m->shape, &t, err));
    bool norm = strstr(m->name, "norm") && strstr(m->name, "weight");
    struct piece piece = {.origin = x->flags->sparse ? ORIGIN_HOLE
                                    : norm           ? ORIGIN_RANDOM_ONE
                                                     : ORIGIN_RANDOM,
                          .dtype = x->dtype,
                          .file = random_stream(x->flags->seed, m->name),
                          .pair = pair_whole(0, 0, t->numel)};
    catalog_add_piece(&x->checkpoint->catalog, t, &piece);
    return OK;
}

static const struct format synthetic = {.name = "synth"};

static enum status make_catalog(const struct synth_flags *f, const struct model_maps *maps,
                                struct checkpoint *c, struct error *err)
{
    struct making x = {.flags = f, .checkpoint = c};
    if (!f->model) return fail(err, ERR_USAGE, "--model FAMILY is wanted (see `ferry models`)");
    const struct model_map *map = model_map_of_family(maps, f->model);
    if (!map)
        return fail(err, ERR_UNSUPPORTED,
                    "--model %s: there is no such family; `ferry models` lists them", f->model);
    if (!dtype_from_user(f->dtype, &x.dtype) || !dtype_is_float(x.dtype))
        return fail(err, ERR_USAGE, "--dtype %s: one of bfloat16, float16, float32, float64",
                    f->dtype);
    if (f->tied && f->untied) return fail(err, ERR_USAGE, "--tied and --untied exclude each other");
    c->format = &synthetic;
    c->family = model_map_family(map);
    struct layout_options one = {0};
    enum status st = make_config(f, map, &c->arena, &c->config, err);
    if (st == ERR_CORRUPT) return err->code = ERR_USAGE; /* of sizes that flags give */
    TRY(st);
    params_use(c, maps, map);
    TRY(layout_make(&c->layout, &c->arena, &one, &c->config, err));
    return model_map_expand(map, &c->config, NULL, add_random, &x, err);
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

static void answer(const struct synth_flags *f, const struct target *t, const char *destination,
                   const struct publishing *p)
{
    const struct conversion c = {.source = t->source, .target = t, .destination = destination};
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "family", t->source->family);
    cJSON_AddBoolToObject(o, "sparse", f->sparse);
    report_target_json(o, &c);
    if (p->replaces.folder) report_replaces_json(o, &p->replaces);
    result_set(o);
}

static enum status write_model(const struct synth_flags *f, struct checkpoint *c,
                               const struct model_maps *maps, const char *destination,
                               struct error *err)
{
    struct target t;
    struct publishing p;
    struct executor_result result;
    struct executor_options executor = executor_options_of(&f->run, &f->output);
    struct target_options to = {
        .format = &format_hf, .max_shard_bytes = f->max_shard_size, .durable = executor.fsync};
    double start = seconds_now();
    uint64_t peak;
    struct publish_options how = {.may_replace = contents_may_replace,
                                  .context = &t,
                                  .work = "synth",
                                  .overwrite = f->run.overwrite};
    format_tell_publishing(&format_hf, &how);
    enum status st = target_plan(&t, &to, c, maps, err);
    if (!st) st = publish_check(&p, &c->arena, destination, NULL, "", &how, err);
    if (!st) st = check_space(&t, destination, f->sparse, err);
    if (!st) st = executor_memory(&t.plan, &executor, &peak, err);
    if (!st) st = publish_begin(&p, executor.fsync, err);
    if (!st) {
        st = executor_run(&t.plan, p.folder, &executor, &result, err);
        if (!st) st = t.format->target->write_small_files(&t, p.folder, err);
        if (!st) st = publish_commit(&p, NULL, 0, err);
        if (st) publish_abandon(&p);
    }
    if (!st && !f->output.quiet)
        fprintf(stderr, "created %s: %s, %zu tensors in %zu file%s, %s in %.2f s\n", destination,
                c->family, t.facts.num_target_tensors, t.facts.num_weight_files,
                t.facts.num_weight_files == 1 ? "" : "s", bytes_text(t.plan.target_bytes),
                seconds_now() - start);
    if (!st && !f->output.quiet && p.replaces.folder)
        fprintf(stderr, "replaced %zu file%s, %s of %s\n", p.replaces.num_files,
                p.replaces.num_files == 1 ? "" : "s", bytes_text(p.replaces.bytes),
                p.replaces.folder);
    if (!st) answer(f, &t, destination, &p);
    target_release(&t);
    return st;
}

static enum status synth(void *options, const char *const *positional, size_t num_positional,
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
    .summary =
        "create a Hugging Face model of random weights, of any supported architecture and size",
    .positional = "DESTINATION",
    .text = "For tests and benchmarks: the same options give the same bytes.\n\n"
            "  ferry synth --model llama --layers 16 --hidden 2048 --heads 32 --kv-heads 8 "
            "--ffn-hidden-size 8192 --vocab-size 128256 --tied out",
    .groups = synth_groups,
    .num_groups = sizeof synth_groups / sizeof *synth_groups,
    .options_bytes = sizeof(struct synth_flags),
    .defaults = set_defaults,
    .run = synth,
};
