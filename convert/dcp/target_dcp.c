/* target_dcp.c - writes DCP folders for FSDP and torchtitan.
 *
 *   __R_0.distcp   items of data parallel rank R: its rows of each tensor, as
 *                  Shard(0) splits them: ceil(rows / ranks) each; later ranks
 *                  have fewer, or none
 *   .metadata      the place of each item
 *
 * FSDP's keys are those of {"model": ..., "optim": ...}
 * (torch/distributed/checkpoint/state_dict.py: get_state_dict), torchtitan's
 * those of torchtitan/components/checkpointer/dcp.py. FSDP's weights are fp32
 * masters: where the source has masters beside narrower weights, they are
 * written as the weights. Rank 0's file holds objects and the step of each
 * parameter; equal ones share an item. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "common/text.h"
#include "convert/dcp/titan_names.h"
#include "convert/dcp_items.h"
#include "convert/format.h"
#include "convert/hf/hf_model.h"
#include "convert/native_outputs.h"
#include "convert/record.h"
#include "convert/states.h"
#include "convert/torch_groups.h"
#include "formats/dcp.h"
#include "formats/torch.h"

enum { MAX_DP = 1 << 16 };
enum { MAX_SHARED_BYTES = 1 << 16 }; /* longer texts are not compared, so share no item */

/* A tensor of the checkpoint, and the native outputs with elements of it. */
struct dcp_out {
    const char *name, *path;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel, filled;
    struct out_run {
        size_t native;    /* of native_outputs.out */
        struct pair pair; /* a: in the native tensor, b: in this one */
    } * runs;
    size_t num_runs, runs_capacity;
    struct dcp_chunk *chunks;
    size_t num_chunks, chunks_capacity;
};

struct rank_file {
    const struct dcp_target *x;
    uint32_t file; /* in the plan; UINT32_MAX: none */
    uint64_t bytes;
    struct dcp_item *items;
    size_t num_items, items_capacity;
};

/* An object, or a tensor of F32 of at most one dimension; its archive is part
 * of dcp_target.small. */
struct small {
    const char *name, *path;
    bool is_tensor;
    uint64_t rows; /* 0: no dimension */
    uint64_t offset, length;
};

struct dcp_target {
    struct target *t;
    bool titan, flatten, fused;
    struct titan_names names;
    const char *optim_key; /* "": states at the top */
    struct native_outputs native;
    struct dcp_out *out;
    size_t num_out, out_capacity;
    struct map out_names;
    uint64_t dp;
    struct rank_file *ranks; /* [dp] */
    struct small *smalls;
    size_t num_smalls, smalls_capacity;
    struct strbuf small;    /* first bytes of rank 0's file */
    struct map small_texts; /* text of a value -> first index in smalls */
    cJSON *config;          /* made here; NULL: copies the source's */
};

/* ---- names ---- */

static const char *joined(struct arena *a, const char *key, const char *rest, char between)
{
    return *key ? arena_printf(a, "%s%c%s", key, between, rest) : rest;
}

/* A tensor's name and its path of keys. */
struct key {
    const char *name, *path;
};

static struct key parameter_key(const struct dcp_target *x, const char *fqn)
{
    struct arena *a = &x->t->plan.arena;
    const char *model = x->titan ? "" : "model";
    return (struct key){joined(a, model, fqn, '.'), joined(a, model, fqn, '\x1f')};
}

/* "state" or "param_groups", then the parameter or group number, then the
 * key. */
static struct key optim_key(const struct dcp_target *x, const char *what, const char *of,
                            const char *key)
{
    struct arena *a = &x->t->plan.arena;
    const char between = x->flatten ? '.' : '\x1f';
    const char *flat = arena_printf(a, "%s.%s.%s", what, of, key);
    const char *path = arena_printf(a, "%s%c%s%c%s", what, between, of, between, key);
    return (struct key){joined(a, x->optim_key, flat, '.'), joined(a, x->optim_key, path, '\x1f')};
}

/* ---- tensors ---- */

static enum status add_dcp_output(void *context, const struct native_output *native,
                                  struct error *err)
{
    struct dcp_target *x = context;
    const char *name = native->name;
    if (native->state)
        name = arena_printf(&x->t->plan.arena, "%s\x1f%s", native->state, native->name);
    return native_outputs_add(&x->native, name, native, NULL, err);
}

/* Index of the tensor of this key; adds it if needed. */
static size_t out_of(struct dcp_target *x, const struct key *key, enum dtype dtype,
                     const struct titan_part *part)
{
    struct arena *a = &x->t->plan.arena;
    size_t at = x->num_out;
    if (!map_add(&x->out_names, key->name, at, &at)) return at;
    struct dcp_out *o = ARENA_PUSH(a, x->out, x->num_out, x->out_capacity);
    *o = (struct dcp_out){.name = key->name,
                          .path = key->path,
                          .dtype = dtype,
                          .num_dims = part->num_dims,
                          .shape = arena_copy(a, part->shape, part->num_dims * sizeof *part->shape),
                          .numel = 1};
    for (unsigned d = 0; d < o->num_dims; d++)
        o->numel *= o->shape[d];
    return at;
}

/* Sets the checkpoint's name of a native tensor's parameter. */
static enum status place_native(struct dcp_target *x, const struct out_tensor *o, bool fused,
                                struct titan_part *part, struct error *err)
{
    struct titan_names none = {0};
    return titan_from_hf(x->titan ? &x->names : &none, &x->t->plan.arena, o->native_name, fused,
                         o->num_dims, o->shape, part, err);
}

static enum status add_out(struct dcp_target *x, size_t i, struct error *err)
{
    const struct out_tensor *o = &x->native.out.items[i];
    struct arena *a = &x->t->plan.arena;
    struct titan_part part;
    TRY(place_native(x, o, x->fused && o->state, &part, err));
    const struct key key =
        o->state ? optim_key(x, "state", part.name, o->state) : parameter_key(x, part.name);
    const size_t at = out_of(x, &key, o->dtype, &part);
    struct dcp_out *out = &x->out[at];
    if (out->dtype != o->dtype)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: its parts have dtypes %s and %s; --no-optim leaves it out", out->name,
                    dtype_infos[out->dtype].name, dtype_infos[o->dtype].name);
    *ARENA_PUSH(a, out->runs, out->num_runs, out->runs_capacity) = (struct out_run){i, part.pair};
    out->filled += o->numel;
    return OK;
}

static enum status add_outs(struct dcp_target *x, struct error *err)
{
    TRY(native_outputs_check(&x->native, err));
    for (size_t i = 0; i < x->native.out.count; i++)
        TRY(add_out(x, i, err));
    for (size_t i = 0; i < x->num_out; i++)
        if (x->out[i].filled != x->out[i].numel)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: the source has %" PRIu64 " of its %" PRIu64 " elements",
                        x->out[i].name, x->out[i].filled, x->out[i].numel);
    return OK;
}

/* ---- chunks ---- */

static struct rank_file *file_of_rank(struct dcp_target *x, uint64_t rank)
{
    struct rank_file *f = &x->ranks[rank];
    if (f->file == UINT32_MAX)
        f->file = plan_add_file(&x->t->plan,
                                arena_printf(&x->t->plan.arena, "__%" PRIu64 "_0.distcp", rank));
    return f;
}

struct filling {
    struct dcp_target *x;
    size_t native;
    uint32_t segment;
    const char *name;
};

/* p.a: element of the segment, p.b: of the native tensor. */
static enum status fill_run(void *context, const struct pair *p, struct error *err)
{
    const struct filling *f = context;
    struct pair by_native = *p;
    TRY(pair_turn(&by_native, f->name, err));
    return native_outputs_fill(&f->x->native, f->native, &by_native, f->segment, err);
}

/* Plans elements [first, first + count) of a tensor for a segment. */
static enum status fill_chunk(struct dcp_target *x, const struct dcp_out *o, uint64_t first,
                              uint64_t count, uint32_t segment, struct error *err)
{
    for (size_t i = 0; i < o->num_runs; i++) {
        struct filling f = {x, o->runs[i].native, segment, o->name};
        struct pair by_out = o->runs[i].pair;
        TRY(pair_turn(&by_out, o->name, err));
        TRY(pair_clip(&by_out, first, count, o->name, fill_run, &f, err));
    }
    return OK;
}

/* Adds rows [first, first + rows) of a tensor; all of a tensor without
 * dimensions. */
static enum status add_chunk(struct dcp_target *x, struct dcp_out *o, uint64_t rank, uint64_t first,
                             uint64_t rows, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    struct rank_file *f = file_of_rank(x, rank);
    uint64_t *offsets = arena_array(a, o->num_dims, sizeof *offsets);
    uint64_t *sizes = arena_copy(a, o->shape, o->num_dims * sizeof *sizes);
    uint64_t row = o->numel;
    struct torch_item layout;
    if (o->num_dims) {
        row = o->shape[0] ? o->numel / o->shape[0] : 0;
        offsets[0] = first;
        sizes[0] = rows;
    }
    torch_item_layout(&layout, o->dtype, o->num_dims, sizes);
    const uint64_t count = rows * row;
    const uint32_t segment = plan_add_segment(&x->t->plan, f->file, o->dtype, count, true);
    x->t->plan.segments[segment].offset_bytes = f->bytes + layout.data_offset;
    *ARENA_PUSH(a, f->items, f->num_items, f->items_capacity) =
        (struct dcp_item){segment, o->dtype, o->num_dims, sizes};
    *ARENA_PUSH(a, o->chunks, o->num_chunks, o->chunks_capacity) =
        (struct dcp_chunk){offsets, sizes, f->file, f->bytes, layout.total_bytes};
    f->bytes += layout.total_bytes;
    return count ? fill_chunk(x, o, first * row, count, segment, err) : OK;
}

static enum status add_chunks(struct dcp_target *x, struct dcp_out *o, struct error *err)
{
    const uint64_t rows = o->num_dims ? o->shape[0] : 1;
    const uint64_t most = (rows + x->dp - 1) / x->dp;
    if (!rows || !o->num_dims) return add_chunk(x, o, 0, 0, rows, err);
    for (uint64_t r = 0; r < x->dp && r * most < rows; r++)
        TRY(add_chunk(x, o, r, r * most, r * most + most < rows ? most : rows - r * most, err));
    return OK;
}

/* ---- objects and numbers ---- */

/* Adds an entry whose archive is [offset, end of small), or that of an earlier
 * equal value. */
static struct small *add_small(struct dcp_target *x, const struct key *key, uint64_t offset,
                               const char *text)
{
    struct arena *a = &x->t->plan.arena;
    size_t first = x->num_smalls;
    uint64_t length = x->small.length - offset;
    if (!map_add(&x->small_texts, text, first, &first)) {
        offset = x->smalls[first].offset;
        length = x->smalls[first].length;
    }
    struct small *s = ARENA_PUSH(a, x->smalls, x->num_smalls, x->smalls_capacity);
    *s = (struct small){.name = key->name, .path = key->path, .offset = offset, .length = length};
    return s;
}

static enum status add_value_object(struct dcp_target *x, const struct key *key,
                                    const struct value *v, struct error *err)
{
    struct strbuf text = {0};
    const uint64_t offset = x->small.length;
    enum status st = OK;
    value_print(&text, v, MAX_SHARED_BYTES);
    if (text.length >= MAX_SHARED_BYTES) strbuf_printf(&text, " %zu", x->num_smalls);
    const char *copy = arena_text(&x->t->plan.arena, text.data, text.length);
    strbuf_release(&text);
    if (!map_get(&x->small_texts, copy, NULL))
        st = torch_to_bytes(&x->small, "archive", v, NULL, err);
    if (st) return fail_in(err, "%s", key->name);
    (void)add_small(x, key, offset, copy);
    return OK;
}

/* Adds an F32 tensor of one number: without dimensions, or `rows` times. */
static void add_number_tensor(struct dcp_target *x, const struct key *key, float number,
                              uint64_t rows)
{
    struct arena *a = &x->t->plan.arena;
    struct torch_item layout;
    struct strbuf after = {0};
    const uint64_t offset = x->small.length, count = rows ? rows : 1;
    const char *text = arena_printf(a, "tensor(%a, %" PRIu64 ")", (double)number, rows);
    if (!map_get(&x->small_texts, text, NULL)) {
        float *numbers = arena_array(a, count, sizeof *numbers);
        for (uint64_t i = 0; i < count; i++)
            numbers[i] = number;
        torch_item_layout(&layout, DT_F32, rows != 0, &rows);
        const uint32_t crc = torch_crc(numbers, count * sizeof *numbers);
        torch_item_emit(DT_F32, rows != 0, &rows, crc, &x->small, &after);
        strbuf_add(&x->small, numbers, count * sizeof *numbers);
        strbuf_add(&x->small, after.data, after.length);
        strbuf_release(&after);
    }
    struct small *s = add_small(x, key, offset, text);
    s->is_tensor = true;
    s->rows = rows;
}

/* ---- groups ---- */

/* Whether a value consists of numbers and texts, as settings do. */
static bool is_setting(const struct value *v, unsigned depth)
{
    const bool is_list = v->kind == VALUE_LIST || v->kind == VALUE_TUPLE;
    if (v->kind <= VALUE_TEXT) return true;
    if (!is_list || depth == 0) return false;
    for (uint32_t i = 0; i < v->count; i++)
        if (!is_setting(v->items[i], depth - 1)) return false;
    return true;
}

/* A group's settings: the source's, then the rest of torch's AdamW. */
static struct value *settings_of(struct dcp_target *x, const struct torch_out_group *g)
{
    struct arena *a = &x->t->plan.arena;
    struct torch_out_group made = *g;
    made.native = NULL;
    struct value *dict = torch_group_value(a, g), *more = torch_group_value(a, &made);
    for (uint32_t i = 0; g->native && i < more->count; i++) {
        const char *key = value_as_text(more->items[2 * i]);
        if (!value_get(dict, key)) value_dict_add(a, dict, key, more->items[2 * i + 1]);
    }
    return dict;
}

static enum status add_settings(struct dcp_target *x, const char *of, const struct value *dict,
                                struct error *err)
{
    for (uint32_t i = 0; i < dict->count; i++) {
        const char *name = value_as_text(dict->items[2 * i]);
        if (!name || !is_setting(dict->items[2 * i + 1], 4)) continue;
        const struct key key = optim_key(x, "param_groups", of, name);
        TRY(add_value_object(x, &key, dict->items[2 * i + 1], err));
    }
    return OK;
}

static void add_step(struct dcp_target *x, const char *fqn, double step)
{
    const struct key key = optim_key(x, "state", fqn, "step");
    add_number_tensor(x, &key, (float)(isnan(step) ? (double)x->t->training.step : step), 0);
}

/* Adds a group's parameters and their steps; of the three in wqkv, the first
 * counts. */
static enum status add_dcp_group(struct dcp_target *x, size_t number,
                                 const struct torch_out_group *g, struct map *seen,
                                 struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const struct value *dict = settings_of(x, g);
    struct value *params = value_list(a, VALUE_LIST, 0, NULL);
    for (size_t i = 0; i < g->num_params; i++) {
        struct titan_part part;
        TRY(place_native(x, &x->native.out.items[g->params[i]], x->fused, &part, err));
        if (!map_add(seen, part.name, number, NULL)) continue;
        value_append(a, params, value_text(a, part.name));
        add_step(x, part.name, g->steps[i]);
        if (x->flatten) TRY(add_settings(x, part.name, dict, err));
    }
    if (x->flatten) return OK;
    const char *of = arena_printf(a, "%zu", number);
    const struct key key = optim_key(x, "param_groups", of, "params");
    TRY(add_settings(x, of, dict, err));
    return add_value_object(x, &key, params, err);
}

static enum status add_groups(struct dcp_target *x, struct error *err)
{
    struct torch_out_group *groups;
    struct map seen = {0};
    size_t count;
    enum status st = torch_groups_plan(x->t, &x->native, &groups, &count, err);
    for (size_t g = 0; g < count && !st; g++)
        st = add_dcp_group(x, g, &groups[g], &seen, err);
    map_release(&seen);
    return st;
}

/* ---- torchtitan's run ---- */

static const uint64_t MAX_COPIED_BYTES = 1 << 28; /* of a dataloader's state */

/* Copies an object of a torchtitan source unchanged. */
static enum status copy_object(struct dcp_target *x, const struct stored_object *o,
                               struct error *err)
{
    const struct stored *s = &x->t->source->catalog.stored;
    const uint64_t offset = x->small.length;
    const struct key key = {o->name, o->nested_path};
    if (offset > MAX_COPIED_BYTES || o->size_bytes > MAX_COPIED_BYTES - offset)
        return fail(err, ERR_UNSUPPORTED, "%s has %" PRIu64 " bytes, too many to copy", o->name,
                    o->size_bytes);
    struct stored_reader *r = stored_reader_create(s, 1);
    strbuf_add_repeated(&x->small, '\0', (size_t)o->size_bytes);
    enum status st = stored_read(r, o->file, o->offset_bytes, x->small.data + offset,
                                 (size_t)o->size_bytes, err);
    stored_reader_free(r);
    if (!st)
        (void)add_small(x, &key, offset, arena_printf(&x->t->plan.arena, "copy of %s", o->name));
    return st;
}

static enum status copy_objects(struct dcp_target *x, const char *prefix, bool *copied,
                                struct error *err)
{
    const struct checkpoint *c = x->t->source;
    *copied = false;
    if (!(c->format->has & FORMAT_FUSED_QKV)) return OK;
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++) {
        const char *rest = c->catalog.stored.objects[i].name;
        if (!text_skip_prefix(&rest, prefix) || (*rest && *rest != '.')) continue;
        *copied = true;
        TRY(copy_object(x, &c->catalog.stored.objects[i], err));
    }
    return OK;
}

/* Adds the buffers beside experts, which balance nothing yet. */
static void add_expert_biases(struct dcp_target *x)
{
    struct map seen = {0};
    for (size_t i = 0; i < x->num_out; i++) {
        const char *name = titan_expert_bias(&x->t->plan.arena, x->out[i].name);
        if (!name || !titan_is_expert_bias(name) || !map_add(&seen, name, i, NULL)) continue;
        const struct key key = {name, name};
        add_number_tensor(x, &key, 0, x->out[i].shape[0]);
    }
    map_release(&seen);
}

static enum status add_titan_run(struct dcp_target *x, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const struct training *run = &x->t->training;
    const struct key step = {"train_state.step", "train_state\x1fstep"},
                     tokens = {"train_state.ntokens_seen", "train_state\x1fntokens_seen"},
                     epoch = {"lr_scheduler.last_epoch", "lr_scheduler\x1flast_epoch"},
                     loader = {"dataloader", "dataloader"};
    const int64_t iteration = (int64_t)x->t->options.iteration;
    bool copied;
    if (!x->t->num_states) return OK;
    TRY(add_value_object(x, &step, value_int(a, iteration), err));
    TRY(add_value_object(x, &tokens, value_int(a, (int64_t)run->consumed_tokens), err));
    TRY(copy_objects(x, "lr_scheduler", &copied, err));
    if (!copied) TRY(add_value_object(x, &epoch, value_int(a, iteration), err));
    TRY(copy_objects(x, "dataloader", &copied, err));
    return copied ? OK : add_value_object(x, &loader, value_none(a), err);
}

/* ---- the plan ---- */

static void set_dcp_outcomes(struct target *t, bool titan)
{
    const struct training *had = &t->source->training.run;
    const bool same = t->source->format == t->format;
    static const enum training_part lost[] = {TRAINING_SCHEDULE, TRAINING_LOSS_SCALE, TRAINING_RNG};
    if (!t->num_states) return;
    for (unsigned p = 0; p < NUM_TRAINING_PARTS; p++)
        if (p != TRAINING_GROUPS && training_has(had, (enum training_part)p))
            t->outcomes[p].outcome = same ? OUTCOME_COPIED : OUTCOME_TRANSLATED;
    for (size_t i = 0; i < COUNT(lost); i++)
        if (training_has(had, lost[i]))
            t->outcomes[lost[i]] = (struct training_outcome){
                OUTCOME_DROPPED, titan ? "torchtitan makes it from the run's config"
                                       : "an FSDP folder cannot hold it"};
}

static enum status check_titan_names(const struct dcp_target *x, struct error *err)
{
    const struct checkpoint *c = x->t->source;
    const bool from_titan = c->format->has & FORMAT_FUSED_QKV;
    if (!c->names_alone || from_titan == x->titan) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: translating torchtitan's names and rows to or from Hugging Face's takes a "
                "config.json: --hf-config DIR",
                c->path);
}

/* The number of ranks of a DCP source, by its files; else 1. */
static uint64_t ranks_of_source(const struct checkpoint *c)
{
    const struct stored *s = &c->catalog.stored;
    uint64_t count = 0;
    if (!(c->format->has & FORMAT_DATA_PARALLEL)) return 1;
    for (size_t i = 0; i < s->num_files; i++)
        count += !s->files[i].coding && text_ends_with(s->files[i].path, "_0.distcp");
    return count ? count : 1;
}

static enum status begin_dcp(struct dcp_target *x, struct error *err)
{
    struct target *t = x->t;
    const struct target_options *o = &t->options;
    struct arena *a = &t->plan.arena;
    x->flatten = x->titan || o->flatten_optim;
    x->fused = x->titan && !o->split_qkv;
    x->optim_key = x->titan ? "optimizer" : o->optim_key ? o->optim_key : "optim";
    if (strcmp(x->optim_key, "model") == 0)
        return fail(err, ERR_USAGE, "--optim-key model: this key holds the weights");
    x->dp = o->dp ? o->dp : ranks_of_source(t->source);
    t->facts.dp = x->dp;
    if (x->dp > MAX_DP)
        return fail(err, ERR_USAGE, "--dp %" PRIu64 " is too large, at most %d", x->dp, MAX_DP);
    x->ranks = arena_array(a, x->dp, sizeof *x->ranks);
    for (uint64_t r = 0; r < x->dp; r++)
        x->ranks[r] = (struct rank_file){.x = x, .file = UINT32_MAX};
    TRY(hf_model_check_export(t, err));
    TRY(check_titan_names(x, err));
    if (x->titan) TRY(titan_names_init(&x->names, t->source, err));
    TRY(hf_model_make_config(t, &x->config, err));
    TRY(target_take_trained(t, err));
    set_dcp_outcomes(t, x->titan);
    if (x->titan) {
        t->options.iteration = target_iteration(t);
        t->unit = arena_printf(a, "step-%" PRIu64, t->options.iteration);
    }
    return OK;
}

static enum status emit_file(const struct plan *plan, uint32_t file, void *context,
                             const struct file_writer *writer, struct error *err)
{
    const struct rank_file *f = context;
    struct strbuf first = {0};
    (void)file;
    if (f == f->x->ranks) strbuf_add(&first, f->x->small.data, f->x->small.length);
    enum status st = dcp_items_emit(plan, f->items, f->num_items, &first, writer, err);
    strbuf_release(&first);
    return st;
}

static void end_files(struct dcp_target *x)
{
    struct plan *plan = &x->t->plan;
    for (uint64_t r = 0; r < x->dp; r++) {
        if (x->ranks[r].file == UINT32_MAX) continue;
        struct output_file *f = &plan->files[x->ranks[r].file];
        f->size_bytes = x->ranks[r].bytes;
        f->finish = emit_file;
        f->finish_context = &x->ranks[r];
    }
    x->t->facts.num_target_tensors = x->num_out;
    x->t->facts.num_weight_files = plan->num_files;
}

static enum status plan_folder(struct target *t, bool titan, struct error *err)
{
    struct dcp_target *x = arena_alloc(&t->plan.arena, sizeof *x);
    x->t = t;
    x->titan = titan;
    t->state = x;
    native_outputs_init(&x->native, t);
    TRY(begin_dcp(x, err));
    TRY(hf_model_export(t, add_dcp_output, x, err));
    TRY(add_outs(x, err));
    TRY(add_groups(x, err));
    if (titan) add_expert_biases(x);
    if (titan) TRY(add_titan_run(x, err));
    file_of_rank(x, 0)->bytes = x->small.length;
    for (size_t i = 0; i < x->num_out; i++)
        TRY(add_chunks(x, &x->out[i], err));
    end_files(x);
    return OK;
}

static enum status plan_dcp(struct target *t, struct error *err)
{
    return plan_folder(t, false, err);
}

static enum status plan_torchtitan(struct target *t, struct error *err)
{
    return plan_folder(t, true, err);
}

/* ---- small files ---- */

static struct dcp_tensor dcp_tensor_of(const struct dcp_out *o)
{
    return (struct dcp_tensor){.name = o->name,
                               .dtype = o->dtype,
                               .num_dims = o->num_dims,
                               .shape = o->shape,
                               .chunks = o->chunks,
                               .num_chunks = o->num_chunks,
                               .nested_path = o->path};
}

/* Adds a tied head with the embedding's items. */
static void add_tied_head(struct dcp_target *x, struct dcp_tensor *tensors, size_t *count)
{
    const struct titan_names none = {0};
    const char *head, *embedding;
    const uint64_t one[2] = {1, 1};
    struct titan_part from, to;
    struct key key;
    size_t at;
    if (!hf_model_tied_head(x->t, &head, &embedding)) return;
    const struct titan_names *names = x->titan ? &x->names : &none;
    if (titan_from_hf(names, &x->t->plan.arena, embedding, false, 2, one, &from, NULL) ||
        titan_from_hf(names, &x->t->plan.arena, head, false, 2, one, &to, NULL))
        return;
    key = parameter_key(x, from.name);
    if (!map_get(&x->out_names, key.name, &at)) return;
    key = parameter_key(x, to.name);
    if (map_get(&x->out_names, key.name, NULL)) return;
    tensors[*count] = dcp_tensor_of(&x->out[at]);
    tensors[*count].name = key.name;
    tensors[(*count)++].nested_path = key.path;
}

/* A small tensor in rank 0's file. */
static struct dcp_tensor dcp_small(struct dcp_target *x, const struct small *s)
{
    struct arena *a = &x->t->plan.arena;
    struct dcp_chunk *chunk = arena_alloc(a, sizeof *chunk);
    const uint64_t *shape = arena_copy(a, &s->rows, sizeof s->rows);
    *chunk = (struct dcp_chunk){arena_array(a, 1, sizeof *chunk->offsets), shape, x->ranks[0].file,
                                s->offset, s->length};
    return (struct dcp_tensor){.name = s->name,
                               .dtype = DT_F32,
                               .num_dims = s->rows != 0,
                               .shape = shape,
                               .chunks = chunk,
                               .num_chunks = 1,
                               .nested_path = s->path};
}

static enum status write_metadata(struct dcp_target *x, const char *folder, struct error *err)
{
    struct plan *plan = &x->t->plan;
    struct arena *a = &plan->arena;
    const char **paths = arena_array(a, plan->num_files, sizeof *paths);
    struct dcp_tensor *tensors = arena_array(a, x->num_out + x->num_smalls + 1, sizeof *tensors);
    struct dcp_object *objects = arena_array(a, x->num_smalls, sizeof *objects);
    size_t num_tensors = 0, num_objects = 0;
    for (size_t i = 0; i < plan->num_files; i++)
        paths[i] = plan->files[i].path;
    for (size_t i = 0; i < x->num_out; i++)
        tensors[num_tensors++] = dcp_tensor_of(&x->out[i]);
    add_tied_head(x, tensors, &num_tensors);
    for (size_t i = 0; i < x->num_smalls; i++) {
        const struct small *s = &x->smalls[i];
        if (s->is_tensor)
            tensors[num_tensors++] = dcp_small(x, s);
        else
            objects[num_objects++] =
                (struct dcp_object){s->name, x->ranks[0].file, s->offset, s->length, s->path};
    }
    return dcp_write_metadata(path_join(a, folder, ".metadata"), paths, tensors, num_tensors,
                              objects, num_objects, x->t->options.durable, err);
}

static enum status write_dcp_files(struct target *t, const char *folder, struct error *err)
{
    struct dcp_target *x = t->state;
    TRY(hf_model_write_config(t, x->config, NULL, native_outputs_main_dtype(&x->native), folder,
                              err));
    return write_metadata(x, folder, err);
}

static enum status titan_root_files(struct target *t, struct root_file **files, size_t *num_files,
                                    struct error *err)
{
    struct arena *a = &t->plan.arena;
    (void)err;
    *files = arena_array(a, 1, sizeof **files);
    (*files)[(*num_files)++] = (struct root_file){
        .name = record_name, .link = arena_printf(a, "%s/%s", t->unit, record_name)};
    return OK;
}

static void release_dcp(struct target *t)
{
    struct dcp_target *x = t->state;
    cJSON_Delete(x->config);
    native_outputs_release(&x->native);
    map_release(&x->out_names);
    map_release(&x->small_texts);
    strbuf_release(&x->small);
}

const struct target_kind target_dcp = {plan_dcp, write_dcp_files, NULL, release_dcp};
const struct target_kind target_torchtitan = {plan_torchtitan, write_dcp_files, titan_root_files,
                                              release_dcp};
