#include "convert/megatron/megatron_target.h"
#include "convert/megatron/megatron_names.h"
#include "convert/published.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/yaml.h"
#include "convert/companions.h"
#include "convert/format.h"
#include "convert/hf_config.h"
#include "convert/megatron/args_tree.h"
#include "convert/megatron/config_difference.h"
#include "convert/megatron/optim/training_target.h"
#include "convert/record.h"
#include "convert/source_kind.h"
#include "formats/torch.h"

enum { DEFAULT_DIVISIBLE_BY = 128, MAX_MULTIPLE = 1 << 30 };

static bool has_args(const struct checkpoint *c)
{
    return c->format->has & FORMAT_ARGS;
}

static uint64_t divisible_by(const struct target *t)
{
    if (t->options.divisible_by) return t->options.divisible_by;
    uint64_t of_config = t->source->config.make_vocab_size_divisible_by;
    return of_config ? of_config : DEFAULT_DIVISIBLE_BY;
}

/* ---- padding of the vocabulary ---- */

static const char *padding_name(struct target *t, const struct tensor *x)
{
    return arena_printf(&t->plan.arena, "%s.target.padding", x->name);
}

const struct tensor *megatron_padding_of(struct target *t, const struct tensor *x)
{
    return catalog_find(&t->plan.made, padding_name(t, x));
}

struct clipping {
    struct catalog *c;
    struct tensor *to;
    const struct piece *piece;
};

static enum status add_clipped(void *context, const struct pair *p, struct error *err)
{
    struct clipping *x = context;
    (void)err;
    tensor_add_piece(x->c->arena, x->to, x->piece, p); /* a: the tensor, b: the file */
    return OK;
}

/* Rows of padding of tensor x: made with x, else the source's; NULL: none. */
static const struct tensor *padding_of(struct target *t, const struct tensor *x)
{
    const char *name = arena_printf(&t->plan.arena, "%s.padding", x->name);
    const struct tensor *made = catalog_find(&t->plan.made, name);
    return made ? made : catalog_find(&t->source->catalog, name);
}

/* Makes the target's rows of padding: the source's as far as they fit, then
 * zeros. */
static enum status make_padding(struct target *t, const struct tensor *x, struct error *err)
{
    struct catalog *made = &t->plan.made;
    uint64_t shape[MAX_AXES], row = x->numel / x->shape[0],
                              rows = t->facts.padded_vocab - x->shape[0];
    const struct tensor *old = padding_of(t, x);
    uint64_t stored = old ? old->shape[0] : 0, carried = min_u64(stored, rows);
    t->facts.carried_rows = carried;
    t->facts.new_rows = rows - carried;
    t->facts.cut_rows = stored - carried;
    if (rows == 0) return OK;
    memcpy(shape, x->shape, x->num_dims * sizeof *shape);
    shape[0] = rows;
    struct clipping clip = {.c = made};
    size_t num_pieces = old ? old->num_pieces : 0;
    const struct piece *pieces = old ? old->pieces : NULL;
    TRY(catalog_add(made, padding_name(t, x), x->dtype, x->num_dims, shape, &clip.to, err));
    for (size_t i = 0; i < num_pieces; i++) {
        const struct pair pair = pair_unpack(&pieces[i].pair);
        clip.piece = &pieces[i];
        TRY(pair_clip(&pair, 0, carried * row, clip.to->name, add_clipped, &clip, err));
    }
    const struct piece zero = {.origin = ORIGIN_ZERO, .dtype = clip.to->dtype};
    const struct pair added = pair_whole(carried * row, 0, (rows - carried) * row);
    if (rows > carried) tensor_add_piece(made->arena, clip.to, &zero, &added);
    return OK;
}

/* Pads a parameter and its states. Copies each tensor, since making one may
 * move the others. */
static enum status make_paddings(struct target *t, const struct tensor *x, struct error *err)
{
    for (size_t i = 0; i < t->num_states; i++) {
        const struct tensor *state = target_state(t, x, i);
        if (!state) continue;
        const struct tensor copy = *state;
        TRY(make_padding(t, &copy, err));
    }
    const struct tensor weight = *target_weight(t, x);
    return make_padding(t, &weight, err);
}

static bool is_of_vocabulary(const struct checkpoint *c, const struct tensor *x)
{
    struct param p;
    return is_parameter(x) && x->num_dims && param_find(c->params, x->name, &p) && p.spec->padded;
}

/* Sets the rows of the vocabulary's tensors: its size, or all stored rows if
 * the size is unknown. */
static enum status vocabulary_rows(const struct checkpoint *c, uint64_t *rows, struct error *err)
{
    const struct tensor *first = NULL;
    *rows = 0;
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *x = &c->catalog.tensors[i];
        if (!is_of_vocabulary(c, x)) continue;
        if (!first) first = x;
        if (!x->shape[0]) return fail(err, ERR_UNSUPPORTED, "%s has no rows", x->name);
        if (x->shape[0] != first->shape[0])
            return fail(err, ERR_UNSUPPORTED,
                        "%s has %" PRIu64 " rows, but %s has %" PRIu64
                        "; both hold the vocabulary: give its size, --true-vocab-size N",
                        first->name, first->shape[0], x->name, x->shape[0]);
        *rows = x->shape[0];
    }
    return OK;
}

/* Pads a known vocabulary as Megatron does; for an unknown size, keeps all
 * stored rows and rounds up. */
static enum status pad_vocabulary(struct target *t, struct error *err)
{
    uint64_t rows, multiple;
    TRY(vocabulary_rows(t->source, &rows, err));
    if (!rows) return OK;
    if (!mul_u64(divisible_by(t), t->layout.tp, &multiple) || multiple > MAX_MULTIPLE)
        return fail(err, ERR_USAGE, "--make-vocab-size-divisible-by %" PRIu64 " is too large",
                    divisible_by(t));
    t->facts.padded_vocab = padded_vocab_size(rows, divisible_by(t), t->layout.tp);
    for (size_t i = 0; i < t->source->catalog.num_tensors; i++) {
        const struct tensor *x = &t->source->catalog.tensors[i];
        if (is_of_vocabulary(t->source, x)) TRY(make_paddings(t, x, err));
    }
    return OK;
}

/* Refuses or notes what models of Megatron-Core lack. */
static enum status ferry_only(struct target *t, const char *what, struct error *err)
{
    if (!t->options.ferry_only)
        return fail(
            err, ERR_UNSUPPORTED,
            "%s: %s; --ferry-only writes such parameters, under names that only Ferry reads",
            t->source->path, what);
    notes_add(&t->notes, &t->plan.arena, "%s: such parameters have names that only Ferry reads",
              what);
    return OK;
}

static enum status check_biases(struct target *t, struct error *err)
{
    const struct model_config *c = &t->source->config;
    if (c->add_proj_bias == c->add_mlp_bias) return OK;
    return ferry_only(t,
                      c->add_proj_bias ? "its attention has biases but its MLP has none; Megatron "
                                         "has biases on all linear layers or on q, k and v only"
                                       : "its MLP has biases but its attention has none; Megatron "
                                         "has biases on all linear layers or on q, k and v only",
                      err);
}

/* Parameters of the family that no model of Megatron-Core has. */
static enum status check_own(struct target *t, struct error *err)
{
    const struct catalog *all = &t->source->catalog;
    struct arena *a = &t->plan.arena;
    const char *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < all->num_tensors; i++) {
        struct param p;
        const char *name = all->tensors[i].name;
        if (!is_parameter(&all->tensors[i]) || !param_find(t->source->params, name, &p) ||
            !p.spec->own)
            continue;
        if (!count++) first = name;
    }
    if (!count) return OK;
    return ferry_only(t,
                      arena_printf(a,
                                   "Megatron-Core has no model with %zu of its parameters, as %s",
                                   count, first),
                      err);
}

/* Refuses or notes model features that args cannot express. */
static enum status check_config(struct target *t, struct error *err)
{
    const struct checkpoint *c = t->source;
    const char *flags = args_flags_beside(&c->config, t->hybrid, &t->plan.arena);
    bool trained = t->options.iteration || t->options.has_iteration; /* else a release */
    t->facts.flags = arena_printf(&t->plan.arena, "%s%s%s", flags,
                                  *flags && trained && !t->num_states ? " " : "",
                                  trained && !t->num_states ? "--no-load-optim --no-load-rng" : "");
    if (c->names_alone)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: missing config.json, needed for Megatron's names of its parameters; "
                    "--hf-config DIR gives one",
                    c->path);
    TRY(check_own(t, err));
    if (c->config_origin != CONFIG_OF_JSON) return OK;
    TRY(source_check_spellings(c, "converts", err));
    TRY(check_biases(t, err));
    /* without unknown fields, which the plan names */
    const struct checkpoint json = {.config = c->config, .config_origin = CONFIG_OF_JSON};
    struct checkpoint args = {.config_origin = CONFIG_OF_ARGS};
    struct config_difference *d;
    args.config = model_config_through_args(&c->config, &t->plan.arena);
    size_t n = config_differences(&json, &args, &t->plan.arena, &d);
    for (size_t i = 0; i < n; i++)
        notes_add(&t->notes, &t->plan.arena,
                  "Megatron's arguments cannot express %s %s: Megatron computes with %s; the "
                  "weights are exact, and ferry-hf/config.json keeps the value",
                  d[i].field, d[i].values[0], d[i].values[1]);
    return OK;
}

/* Notes stages without layers, unless a written pipeline layout shows them. */
static void note_empty_stages(struct target *t)
{
    const struct layout *l = &t->layout;
    for (uint64_t s = 0; s < l->pp * l->vpp && !l->options.pipeline_layout; s++)
        if (!l->stages[s].num_layers)
            notes_add(&t->notes, &t->plan.arena,
                      "pipeline stage %" PRIu64 " of 0 to %" PRIu64 " has no layers", s,
                      l->pp * l->vpp - 1);
}

/* Sets t->hybrid: whether HybridModel's keys and args are written. Models whose
 * layers are single mixers have no others. */
static enum status choose_model(struct target *t, struct error *err)
{
    const struct checkpoint *c = t->source;
    const enum megatron_model wanted = t->options.megatron_model;
    const struct hybrid_stack *h = hybrid_of_config(&c->config, &t->plan.arena);
    const bool single = h && !h->paired,
               hybrid = wanted == MEGATRON_MODEL_HYBRID ||
                        (wanted == MEGATRON_MODEL_SOURCE && (c->hybrid_model || single));
    if (wanted == MEGATRON_MODEL_GPT && single)
        return fail(err, ERR_UNSUPPORTED,
                    "--megatron-model gpt: a layer of this model is attention, an MLP, experts or "
                    "Mamba alone, as only HybridModel has them (hybrid)");
    if (wanted == MEGATRON_MODEL_HYBRID && !h)
        return fail(err, ERR_UNSUPPORTED,
                    "--megatron-model hybrid: HybridModel has no layers as this model's (%s)",
                    model_config_text(&c->config, "layer_kinds", &t->plan.arena));
    if (hybrid) t->hybrid = h;
    return OK;
}

enum status megatron_begin(struct target *t, struct error *err)
{
    const struct checkpoint *c = t->source;
    TRY(choose_model(t, err));
    TRY(layout_make(&t->layout, &t->plan.arena, &t->options.layout, &c->config, err));
    t->widens_states = true;
    TRY(target_take_states(t, true, err));
    TRY(training_target_check(t, err));
    training_target_begin(t);
    t->options.iteration = target_iteration(t);
    t->unit = arena_printf(&t->plan.arena, "iter_%07" PRIu64, t->options.iteration);
    TRY(check_config(t, err));
    note_empty_stages(t);
    return pad_vocabulary(t, err);
}

/* ---- parts ---- */

const char *megatron_key(const struct target *t, struct arena *a, const struct param *p,
                         unsigned stacks)
{
    const char *key = dist_key_of(a, t->source->params, p, stacks, !t->options.transformer_engine);
    return t->hybrid ? hybrid_key(t->hybrid, a, key) : key;
}

static enum status find_stage(const struct target *t, struct megatron_part *p, struct error *err)
{
    const struct layout *l = &t->layout;
    for (uint64_t s = 0; s < l->pp * l->vpp; s++) {
        const struct stage *stage = &l->stages[s];
        bool here = p->param.spec->place == PLACE_EMBEDDING ? stage->embedding
                    : p->param.spec->place == PLACE_LAST
                        ? stage->loss
                        : p->param.layer >= stage->first_layer &&
                              p->param.layer < stage->first_layer + stage->num_layers;
        if (!here) continue;
        p->pp_rank = s % l->pp;
        p->chunk = s / l->pp;
        return OK;
    }
    return fail(err, ERR_UNSUPPORTED, "%s: no stage of the layout holds it", p->tensor->name);
}

typedef enum status part_visit(void *context, const struct megatron_part *p, struct error *err);

static enum status each_rank(struct megatron_part *p, part_visit *visit, void *context,
                             struct error *err)
{
    struct param_parts parts;
    uint64_t ranks = p->param.spec->split < 0 ? 1 : p->tp_size;
    p->parts = &parts;
    for (p->tp_rank = 0; p->tp_rank < ranks; p->tp_rank++) {
        TRY(param_shard(p->param.spec, p->tensor->name, p->num_dims, p->whole, p->tp_rank,
                        p->tp_size, PARAM_STORED, &parts, err));
        TRY(visit(context, p, err));
    }
    return OK;
}

struct visiting {
    struct target *t;
    part_visit *visit;
    void *context;
};

static enum status visit_ranks(void *context, const struct native_output *native, struct error *err)
{
    const struct visiting *v = context;
    const struct target *t = v->t;
    const struct tensor *x = native->parts[0].logical;
    struct megatron_part p = {.tensor = x, .num_dims = x->num_dims, .native = native};
    p.whole = native->shape + native->num_dims - x->num_dims;
    (void)param_find(t->source->params, x->name,
                     &p.param); /* cannot fail: without a spec there is no key */
    p.tp_size = p.param.spec->group == PARAM_ETP ? t->layout.etp : t->layout.tp;
    if (param_of_expert(p.param.spec))
        p.ep_rank = p.param.expert / (t->source->config.num_experts / t->layout.ep);
    TRY(find_stage(t, &p, err));
    return each_rank(&p, v->visit, v->context, err);
}

struct placed {
    const struct tensor *tensor;
    struct param param;
    bool known;
};

/* Sorts in the target's order of registration; tensors without a row come
 * last. */
static int by_registration(const void *a, const void *b, void *target)
{
    const struct placed *x = a, *y = b;
    const struct target *t = target;
    if (!x->known || !y->known)
        return x->known != y->known ? y->known - x->known
                                    : strcmp(x->tensor->name, y->tensor->name);
    return param_registered_compare(&x->param, &y->param,
                                    t->options.transformer_engine ? ORDER_TE : ORDER_LOCAL,
                                    t->options.grouped_gemm);
}

const struct tensor **megatron_parameters(struct target *t, size_t *count)
{
    const struct checkpoint *c = t->source;
    const struct tensor **all =
        arena_array(&t->plan.arena, c->catalog.num_tensors + 1, sizeof *all);
    struct placed *placed = must_calloc(c->catalog.num_tensors + 1, sizeof *placed);
    *count = 0;
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        struct placed *x = &placed[*count];
        if (!is_parameter(&c->catalog.tensors[i])) continue;
        x->tensor = &c->catalog.tensors[i];
        x->known = param_find(c->params, x->tensor->name, &x->param);
        ++*count;
    }
    qsort_r(placed, *count, sizeof *placed, by_registration, t);
    for (size_t i = 0; i < *count; i++)
        all[i] = placed[i].tensor;
    free(placed);
    return all;
}

enum status megatron_each_part(struct target *t, unsigned stacks, part_visit *visit, void *context,
                               struct error *err)
{
    struct visiting v = {t, visit, context};
    return t->format->naming->export(&(struct naming_export){t, stacks}, visit_ranks, &v, err);
}

uint64_t megatron_stage_rank(const struct layout *l, const struct megatron_part *p)
{
    return param_of_expert(p->param.spec) ? p->tp_rank + l->etp * p->ep_rank : p->tp_rank;
}

/* ---- the common state ---- */

static enum dtype most_common_dtype(const struct target *t)
{
    uint64_t count[NUM_DTYPES] = {0};
    int most = DT_F32;
    for (size_t i = 0; i < t->source->catalog.num_tensors; i++)
        if (is_parameter(&t->source->catalog.tensors[i]))
            count[target_dtype(t, &t->source->catalog.tensors[i])] +=
                t->source->catalog.tensors[i].numel;
    for (int i = 0; i < NUM_DTYPES; i++)
        if (count[i] > count[most]) most = i;
    return (enum dtype)most;
}

static struct args_facts facts_of(const struct target *t)
{
    return (struct args_facts){
        .config = &t->source->config,
        .layout = &t->layout,
        .hybrid = t->hybrid,
        .was_hybrid = t->source->hybrid_model,
        .dtype = most_common_dtype(t),
        .casts = t->options.casts,
        .transformer_engine = t->options.transformer_engine,
        .grouped_gemm = t->options.grouped_gemm,
        .padded_vocab = t->facts.padded_vocab,
        .divisible_by = divisible_by(t),
        .iteration = t->options.iteration,
        .ckpt_format = t->format->name,
        .training = &t->training,
        .has_optimizer = t->num_states > 0,
        .is_distributed = training_target_is_distributed(t),
        .is_split = training_is_split(&t->training),
        .is_model_space = t->options.optim_format == OPTIM_fully_sharded_model_space,
        .has_rng = t->outcomes[TRAINING_RNG].outcome == OUTCOME_COPIED ||
                   t->outcomes[TRAINING_RNG].outcome == OUTCOME_MADE,
    };
}

/* Whether a key of the common state is made, or not copied. */
static bool is_made(const struct target *t, const char *key)
{
    static const char *const made[] = {
        "args",      "checkpoint_version", "iteration", "num_floating_point_operations_so_far",
        "optimizer", "content_metadata",   "rng_state", "rerun_state_machine"};
    static const char *const schedules[] = {"opt_param_scheduler", "lr_scheduler"};
    for (size_t i = 0; i < COUNT(made); i++)
        if (strcmp(made[i], key) == 0) return true;
    for (size_t i = 0; t->num_states && i < COUNT(schedules); i++)
        if (strcmp(schedules[i], key) == 0) return true;
    return false;
}

/* Copies the rest of the source's common state. */
static void copy_common(struct target *t, struct value *to)
{
    const struct value *from = t->source->training.common;
    for (uint32_t i = 0; from && from->kind == VALUE_DICT && i < from->count; i++) {
        const char *key = value_as_text(from->items[2 * i]);
        struct value *v = from->items[2 * i + 1];
        if (!key || is_made(t, key)) continue;
        if (value_holds_tensor(v))
            notes_add(&t->notes, &t->plan.arena,
                      "common state: %s is left out, since it holds tensors", key);
        else
            value_dict_set(&t->plan.arena, to, key, v);
    }
}

/* The source's args, updated, or new args. */
static struct value *begin_args(struct target *t, const struct args_facts *facts)
{
    struct arena *a = &t->plan.arena;
    const struct value *args = value_get(t->source->training.common, "args");
    const char *left_out;
    if (!args || args->kind != VALUE_OBJECT) return args_make(a, facts);
    struct value *updated = args_update(a, args, facts, &left_out);
    if (left_out)
        notes_add(&t->notes, a,
                  "args: left out, since they hold tensors or classes that some releases of "
                  "Megatron-Core cannot load: %s",
                  left_out);
    return updated;
}

static struct value *args_of(struct target *t, const struct args_facts *facts)
{
    struct arena *a = &t->plan.arena;
    struct value *args = begin_args(t, facts);
    for (const cJSON *i = t->options.args ? t->options.args->child : NULL; i; i = i->next)
        value_dict_set(a, args->object->state, i->string, args_value(a, i->string, i));
    return args;
}

struct value *megatron_common_state(struct target *t, bool per_layer, struct tensor_data *data)
{
    static const char operations[] = "num_floating_point_operations_so_far";
    struct arena *a = &t->plan.arena;
    struct args_facts facts = facts_of(t);
    struct value *d = value_dict(a), *content = value_dict(a);
    const double made = t->training.floating_point_operations;
    struct value *done = value_get(t->source->training.common, operations);
    if (!done && isfinite(made) && made > 0) done = value_float(a, made);
    value_dict_set(a, d, "args", args_of(t, &facts));
    value_dict_set(a, d, "checkpoint_version", value_float(a, 3.0));
    value_dict_set(a, d, "iteration", value_int(a, (int64_t)t->options.iteration));
    value_dict_set(a, d, operations, done && !value_holds_tensor(done) ? done : value_int(a, 0));
    copy_common(t, d);
    value_dict_set(a, content, "singleton_local_shards", value_bool(a, false));
    value_dict_set(a, content, "chained_optim_avoid_prefix", value_bool(a, !facts.is_model_space));
    if (per_layer) value_dict_set(a, content, "non_homogeneous_layers", value_bool(a, true));
    training_target_common(t, d, content, data);
    value_dict_set(a, d, "content_metadata", content);
    return d;
}

/* ---- small files ---- */

/* Makes Megatron-Bridge's train_state: a dict of 0-dim tensors with all eight
 * keys (training/state.py:TrainState.load_state_dict). Bridge writes int32;
 * larger numbers become int64. */
static enum status make_train_state(struct target *t, struct strbuf *out, struct error *err)
{
    static const char *const ints[] = {"step", "consumed_train_samples", "skipped_train_samples",
                                       "consumed_valid_samples"};
    static const char *const bools[] = {"do_train", "do_valid", "do_test"};
    struct arena a;
    int64_t numbers[4] = {(int64_t)t->options.iteration};
    int32_t small[4];
    double operations = 0;
    const uint8_t no = 0;
    const void *data[8];
    size_t n = 0;
    char key[8];
    bool wide = false;
    const struct training *run = &t->training;
    numbers[1] = (int64_t)run->consumed_train_samples;
    numbers[2] = (int64_t)run->skipped_train_samples;
    numbers[3] = (int64_t)run->consumed_valid_samples;
    for (size_t i = 0; i < 4; i++) {
        wide |= numbers[i] < INT32_MIN || numbers[i] > INT32_MAX;
        small[i] = (int32_t)numbers[i];
    }
    if (isfinite(run->floating_point_operations)) operations = run->floating_point_operations;
    const float few = (float)operations;
    arena_init(&a);
    struct value *d = value_dict(&a);
    for (size_t i = 0; i < 4; i++, n++) {
        snprintf(key, sizeof key, "%zu", n);
        value_dict_set(&a, d, ints[i], value_tensor(&a, key, wide ? DT_I64 : DT_I32, 0, NULL));
        data[n] = wide ? (const void *)&numbers[i] : &small[i];
    }
    snprintf(key, sizeof key, "%zu", n);
    value_dict_set(&a, d, "floating_point_operations_so_far",
                   value_tensor(&a, key, DT_F32, 0, NULL));
    data[n++] = &few;
    for (size_t i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "%zu", n);
        value_dict_set(&a, d, bools[i], value_tensor(&a, key, DT_BOOL, 0, NULL));
        data[n++] = &no;
    }
    enum status st = torch_to_bytes(out, "train_state", d, data, err);
    arena_release(&a);
    return st;
}

/* The source's train_state.pt if it has one of the same iteration; else a new
 * one from its args. */
static enum status train_state_bytes(struct target *t, struct strbuf *out, struct error *err)
{
    struct arena *a = &t->plan.arena;
    const char *kept = path_join(a, t->source->folder, "train_state.pt");
    if (t->options.has_iteration || !has_args(t->source) || !path_exists(kept))
        return make_train_state(t, out, err);
    return file_read_all(kept, CONFIG_FILE_CAP, out, err);
}

static enum status write_run_config(struct target *t, const char *path, struct error *err)
{
    struct args_facts facts = facts_of(t);
    struct strbuf text = {0};
    struct arena *a = &t->plan.arena;
    const char *kept = path_join(a, t->source->folder, "run_config.yaml");
    cJSON *tree;
    if (has_args(t->source) && path_exists(kept)) {
        TRY(yaml_read_file(kept, CONFIG_FILE_CAP, &tree, err));
        run_config_update(tree, &facts);
    } else {
        tree = run_config_make(&facts);
    }
    yaml_print(&text, tree);
    cJSON_Delete(tree);
    enum status st = file_write_all(path, text.data, text.length, t->options.durable, err);
    strbuf_release(&text);
    return st;
}

/* Writes config.json and its companions; after a cast, with the new dtype. */
static enum status write_hf_folder(struct target *t, const char *folder, struct error *err)
{
    struct arena *a = &t->plan.arena;
    const char *from = t->source->hf_folder;
    if (!from) return OK;
    TRY(folder_create(folder, err));
    TRY(published_write(t->source, folder, t->options.durable, err));
    TRY(published_map_write(t->source, t->maps, folder, t->options.durable, err));
    if (t->options.casts)
        TRY(hf_config_write_dtype(from, path_join(a, folder, "config.json"), t->options.dtype,
                                  t->options.durable, err));
    return copy_companions(from, folder, NULL, t->options.durable, err);
}

enum status megatron_small_files(struct target *t, const char *folder, struct error *err)
{
    struct arena *a = &t->plan.arena;
    struct strbuf bytes = {0};
    enum status st = train_state_bytes(t, &bytes, err);
    if (!st)
        st = file_write_all(path_join(a, folder, "train_state.pt"), bytes.data, bytes.length,
                            t->options.durable, err);
    strbuf_release(&bytes);
    TRY(st);
    if (!t->hybrid) TRY(write_run_config(t, path_join(a, folder, "run_config.yaml"), err));
    return write_hf_folder(t, path_join(a, folder, MEGATRON_HF_FOLDER), err);
}

/* Whether to write a "release", as weights without training are: then any
 * version of Megatron-LM asks for nothing else. Megatron-Bridge reads the
 * number in its tracker. */
static bool is_release(const struct target *t)
{
    return t->options.iteration == 0 && !t->options.has_iteration && !t->num_states;
}

const char *megatron_tracker(const struct target *t, struct arena *a)
{
    return is_release(t) ? "release" : arena_printf(a, "%" PRIu64, t->options.iteration);
}

enum status megatron_root_files(struct target *t, struct root_file **files, size_t *num_files,
                                struct error *err)
{
    struct arena *a = &t->plan.arena;
    struct strbuf state = {0};
    *files = arena_array(a, 4, sizeof **files);
    (*files)[(*num_files)++] = (struct root_file){
        .name = record_name, .link = arena_printf(a, "%s/%s", t->unit, record_name)};
    TRY(train_state_bytes(t, &state, err));
    (*files)[(*num_files)++] = (struct root_file){.name = "latest_train_state.pt",
                                                  .bytes = arena_copy(a, state.data, state.length),
                                                  .num_bytes = state.length};
    strbuf_release(&state);
    if (is_release(t))
        (*files)[(*num_files)++] = (struct root_file){.name = "release", .link = t->unit};
    const char *text = megatron_tracker(t, a);
    (*files)[(*num_files)++] = (struct root_file){
        .name = "latest_checkpointed_iteration.txt", .bytes = text, .num_bytes = strlen(text)};
    return OK;
}
