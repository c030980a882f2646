/* step_update.c - the update of a step: sums gradients over ranks, computes
 * their norm, runs the optimizer. Each is one call per span of adjacent
 * parameters with the same update. With sharded states (shard.h) a rank sums
 * gradients of its own parts, updates these, and gathers the other parameters
 * from the ranks that updated them. */
#include <string.h>

#include "ckpt/training.h"
#include "common/checked.h"
#include "train/engine/memory_plan.h"
#include "train/trainer/step_internal.h"

/* ---- ranges of parameters ---- */

/* False for the parameter group "vectors" (ckpt/training.h). */
static bool has_weight_decay(const struct parameter *x)
{
    return !group_members_find("vectors")->has(x->tensors[0], x->spec->num_dims);
}

unsigned step_place_of(const struct parameter *x)
{
    const bool is_expert = x->spec->group == PARAM_ETP, is_whole = x->spec->split < 0;
    const bool is_part = x->sums & 1u << GROUP_TP, is_tied = x->sums & 1u << GROUP_EMBEDDING;
    return (has_weight_decay(x) ? 0u : 16u) + (is_expert ? 8u : 0u) + (is_whole ? 4u : 0u) +
           (is_part ? 2u : 0u) + (is_tied ? 1u : 0u);
}

/* Keeps the bits of groups with several members. */
static unsigned real_groups(const struct step *s, unsigned groups)
{
    unsigned real = 0;
    for (unsigned k = 0; k < NUM_GROUP_KINDS; k++)
        if (s->model->groups.of[k].size > 1) real |= groups & 1u << k;
    return real;
}

uint64_t step_range_unit(const struct step *s)
{
    return shard_unit(&s->model->groups) * MEMORY_ALIGNMENT;
}

/* The range of a parameter: the last one if it fits, else a new one. */
static struct param_range *range_of(struct step *s, const struct parameter *x)
{
    const struct param_range r = {.first = x->offset / step_elem_bytes(s),
                                  .decays = has_weight_decay(x),
                                  .sums = real_groups(s, x->sums),
                                  .copies = real_groups(s, parameter_copies(x))};
    struct param_range *last = s->num_ranges ? &s->ranges[s->num_ranges - 1] : NULL;
    if (last && last->decays == r.decays && last->sums == r.sums && last->copies == r.copies)
        return last;
    if (last) last->end = r.first;
    s->ranges[s->num_ranges] = r;
    return &s->ranges[s->num_ranges++];
}

void step_find_ranges(struct step *s)
{
    const struct parameters *p = &s->model->parameters;
    const size_t elem = step_elem_bytes(s);
    const uint64_t unit = step_range_unit(s) / elem;
    const struct shard_options o = {.shards = s->options.shards_states,
                                    .bucket_numel = s->options.bucket_numel,
                                    .alignment = MEMORY_ALIGNMENT / elem};
    s->numel = s->num_params = s->num_ranges = 0;
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        if (!parameter_is_trained(x)) continue;
        struct param_range *r = range_of(s, x);
        r->end = s->numel = ceil_div_u64(x->offset / elem + x->numel, unit) * unit;
        r->num_params += x->numel;
        s->num_params += x->numel;
    }
    shard_make(&s->shard, s->ranges, s->num_ranges, &s->model->groups, &o, &s->arena);
}

/* Whether this rank counts the range in sums: the first of the ranks with the
 * same elements does. Each data parallel rank counts its own part of a bucket. */
static bool counts_here(const struct step *s, const struct param_range *r)
{
    const unsigned copies = r->copies & ~(1u << shard_group(r));
    for (unsigned k = 0; k < NUM_GROUP_KINDS; k++)
        if (copies & 1u << k && s->model->groups.of[k].index > 0) return false;
    return true;
}

/* One rank counts the gaps of a range; the sum over all ranks does not depend
 * on which. */
static bool counts_gaps(const struct step *s, const struct param_range *r)
{
    const unsigned group = shard_group(r);
    return counts_here(s, r) && (group == NUM_GROUP_KINDS || !s->model->groups.of[group].index);
}

void step_first_sums(const struct step *s, double sums[NUM_SUMS])
{
    memset(sums, 0, NUM_SUMS * sizeof *sums);
    for (unsigned i = 0; i < s->num_ranges; i++) {
        const struct param_range *r = &s->ranges[i];
        if (counts_gaps(s, r)) sums[SUM_ZEROS] -= (double)(r->end - r->first - r->num_params);
    }
}

/* ---- elements as values ---- */

/* Elements [first, first + count) of regions; `at` is their start in masters
 * and moments. */
struct span {
    uint64_t first, count, at;
    const struct param_range *range;
};

static struct span whole_of(const struct shard_bucket *b)
{
    return (struct span){b->first, b->end - b->first, b->first, b->range};
}

static struct span own_of(const struct shard_bucket *b)
{
    return (struct span){b->own, b->own_end - b->own, b->at, b->range};
}

/* The longest span of whole buckets, or of a rank's own parts, from a bucket
 * on, in which all ranges are `alike`; *next: the bucket behind it. */
static struct span join_spans(const struct step *s, size_t bucket, size_t *next,
                              struct span (*of)(const struct shard_bucket *b),
                              bool (*alike)(const struct step *s, const struct param_range *a,
                                            const struct param_range *b))
{
    struct span x = of(&s->shard.buckets[bucket]);
    for (*next = bucket + 1; *next < s->shard.num_buckets; ++*next) {
        const struct span y = of(&s->shard.buckets[*next]);
        if (y.first != x.first + x.count || !alike(s, x.range, y.range)) break;
        x.count += y.count;
    }
    return x;
}

static bool count_alike(const struct step *s, const struct param_range *a,
                        const struct param_range *b)
{
    return counts_here(s, a) == counts_here(s, b);
}

static bool decay_alike(const struct step *s, const struct param_range *a,
                        const struct param_range *b)
{
    (void)s;
    return a->decays == b->decays;
}

/* Adds the value of a span's elements in a region. */
static value_id add_span_value(struct step *s, enum value_class class, const struct span *x)
{
    const bool is_elem =
        class == VALUE_PARAMETER || (class == VALUE_GRADIENT && s->options.gradients_are_elem);
    const bool is_state = class != VALUE_PARAMETER && class != VALUE_GRADIENT;
    static const char *const names[] = {"parameters", "gradients", "masters", "moments", "squares"};
    value_id id = program_add_value(&s->update, class, is_elem ? OPERAND_ELEM : OPERAND_REAL, 1,
                                    &x->count, names[class]);
    s->update.values[id].source = UINT32_MAX;
    s->update.values[id].offset =
        (is_state ? x->at : x->first) * (is_elem ? step_elem_bytes(s) : step_real_bytes(s));
    return id;
}

/* Adds the value of a buffer or state of programs. */
static value_id add_held_value(struct step *s, uint32_t number)
{
    const struct parameter *x = &s->model->parameters.items[number];
    value_id id =
        program_add_value(&s->update, VALUE_STATE, x->type, x->num_dims, x->shape, x->name);
    s->update.values[id].source = number;
    s->update.values[id].offset = x->offset;
    return id;
}

static value_id add_input(struct step *s, uint64_t count, const char *name)
{
    return program_add_value(&s->update, VALUE_INPUT, OPERAND_REAL, 1, &count, name);
}

#define IN(...) .in = {__VA_ARGS__}, .num_in = sizeof((value_id[]){__VA_ARGS__}) / sizeof(value_id)

static enum status emit_call(struct step *s, unsigned op, const char *label, struct emission e,
                             struct error *err)
{
    e.op = op;
    e.label = label;
    e.layer = -1;
    return program_emit(&s->update, &e, err);
}

/* ---- sums over ranks ---- */

/* Ranks with other tokens first, as in Megatron-Core (finalize_model_grads.py). */
static const enum group_kind sum_order[] = {GROUP_DP, GROUP_CP, GROUP_EDP, GROUP_TP,
                                            GROUP_EMBEDDING};

/* A rank gets only its own part's sums of a sharded bucket, and continues with
 * these. */
static enum status sum_bucket(struct step *s, const struct shard_bucket *b, struct error *err)
{
    const struct span whole = whole_of(b), own = own_of(b);
    value_id x = add_span_value(s, VALUE_GRADIENT, &whole);
    for (unsigned k = 0; k < sizeof sum_order / sizeof *sum_order; k++) {
        const enum group_kind group = sum_order[k];
        if (!(b->range->sums & 1u << group)) continue;
        const bool scatters = s->shard.is_sharded && group == shard_group(b->range);
        const value_id to = scatters ? add_span_value(s, VALUE_GRADIENT, &own) : x;
        TRY(emit_call(s, scatters ? OP_REDUCE_SCATTER : OP_ALL_REDUCE, "gradients",
                      (struct emission){IN(x), .collective.group = group, .into = {&to}}, err));
        x = to;
    }
    return OK;
}

static enum status sum_gradients(struct step *s, struct error *err)
{
    for (size_t i = 0; i < s->shard.num_buckets; i++)
        TRY(sum_bucket(s, &s->shard.buckets[i], err));
    return OK;
}

/* Adds square_sum over all parameters of all ranks. */
static enum status sum_squares(struct step *s, enum value_class class, const char *label,
                               value_id *sums, struct error *err)
{
    *sums = s->first_sums;
    for (size_t i = 0, next; i < s->shard.num_buckets; i = next) {
        const struct span x = join_spans(s, i, &next, own_of, count_alike);
        if (!counts_here(s, x.range)) continue;
        TRY(emit_call(s, OP_SQUARE_SUM, label,
                      (struct emission){IN(add_span_value(s, class, &x), *sums), .out = {sums}},
                      err));
    }
    if (s->model->groups.of[GROUP_WORLD].size == 1) return OK;
    return emit_call(s, OP_ALL_REDUCE, label,
                     (struct emission){IN(*sums), .collective.group = GROUP_WORLD, .out = {sums}},
                     err);
}

/* ---- the optimizer ---- */

static enum status add_optimizer(struct step *s, const struct span *x, struct error *err)
{
    const struct step_options *o = &s->options;
    const value_id gradient = add_span_value(s, VALUE_GRADIENT, x),
                   weight = add_span_value(s, VALUE_PARAMETER, x),
                   master = step_has_masters(s) ? add_span_value(s, VALUE_MASTER, x) : NO_VALUE;
    const bool has_momentum = o->optimizer == OPTIMIZER_ADAM || o->momentum != 0;
    const value_id moment = has_momentum ? add_span_value(s, VALUE_MOMENT_1, x) : NO_VALUE;
    const union op_params p = {.optimizer = {.beta1 = o->beta1,
                                             .beta2 = o->beta2,
                                             .epsilon = o->epsilon,
                                             .momentum = o->momentum,
                                             .lr_mult = 1,
                                             .wd_mult = x->range->decays ? 1 : 0}};
    if (o->optimizer == OPTIMIZER_SGD)
        return emit_call(s, OP_SGD, "optimizer",
                         (struct emission){IN(gradient, s->scalars, weight, moment, master),
                                           .into = {&weight, &moment, &master}, .params = p},
                         err);
    const value_id squares = add_span_value(s, VALUE_MOMENT_2, x);
    return emit_call(s, OP_ADAM, "optimizer",
                     (struct emission){IN(gradient, s->scalars, weight, moment, squares, master),
                                       .into = {&weight, &moment, &squares, &master}, .params = p},
                     err);
}

static enum status add_optimizers(struct step *s, struct error *err)
{
    for (size_t i = 0, next; i < s->shard.num_buckets; i = next) {
        const struct span x =
            join_spans(s, i, &next, s->shard.is_sharded ? own_of : whole_of, decay_alike);
        TRY(add_optimizer(s, &x, err));
    }
    return OK;
}

/* Each rank has the new parameters of only its own part of a sharded bucket. */
static enum status gather_parameters(struct step *s, struct error *err)
{
    for (size_t i = 0; s->shard.is_sharded && i < s->shard.num_buckets; i++) {
        const struct shard_bucket *b = &s->shard.buckets[i];
        const struct span whole = whole_of(b), own = own_of(b);
        const unsigned group = shard_group(b->range);
        if (group == NUM_GROUP_KINDS) continue;
        const value_id from = add_span_value(s, VALUE_PARAMETER, &own),
                       to = add_span_value(s, VALUE_PARAMETER, &whole);
        TRY(emit_call(
            s, OP_ALL_GATHER, "parameters",
            (struct emission){IN(from), .collective.group = (enum group_kind)group, .into = {&to}},
            err));
    }
    return OK;
}

/* ---- the bias of experts ---- */

/* Updates the buffer by the tokens of all ranks, even if the optimizer skips
 * the step (finalize_model_grads.py: _update_router_expert_bias). */
static enum status update_bias(struct step *s, uint32_t buffer, uint32_t counted, struct error *err)
{
    static const enum group_kind others[] = {GROUP_TP, GROUP_DP, GROUP_CP};
    value_id counts = add_held_value(s, counted), bias = add_held_value(s, buffer);
    for (unsigned k = 0; k < sizeof others / sizeof *others; k++)
        if (s->model->groups.of[others[k]].size > 1)
            TRY(emit_call(
                s, OP_ALL_REDUCE, "expert_counts",
                (struct emission){IN(counts), .collective.group = others[k], .into = {&counts}},
                err));
    const union op_params p = {.expert_bias = {.rate = s->options.training.bias_update_rate}};
    return emit_call(s, OP_UPDATE_EXPERT_BIAS, "expert_bias",
                     (struct emission){IN(counts, bias), .into = {&bias}, .params = p}, err);
}

/* Updates all layers with counted tokens. */
static enum status update_biases(struct step *s, struct error *err)
{
    const struct parameters *p = &s->model->parameters;
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        size_t counts;
        if (!x->tensors || !x->spec->buffer) continue;
        if (map_get(&p->names, arena_printf(&s->arena, "%s%s", x->name, EXPERT_COUNTS), &counts))
            TRY(update_bias(s, (uint32_t)i, (uint32_t)counts, err));
    }
    return OK;
}

/* ---- the whole ---- */

static enum status add_params_norm(struct step *s, struct error *err)
{
    const enum value_class class = step_has_masters(s) ? VALUE_MASTER : VALUE_PARAMETER;
    s->params_sums = NO_VALUE;
    if (!s->options.params_norm) return OK;
    TRY(sum_squares(s, class, "params_norm", &s->params_sums, err));
    s->update.values[s->params_sums].class = VALUE_OUTPUT;
    return OK;
}

enum status step_make_update(struct step *s, struct error *err)
{
    value_id sums;
    program_release(&s->update);
    program_init(&s->update, s->model->options.elem, &s->model->groups);
    s->control = add_input(s, NUM_CONTROLS, "control");
    s->first_sums = add_input(s, NUM_SUMS, "first_sums");
    TRY(update_biases(s, err));
    TRY(sum_gradients(s, err));
    TRY(sum_squares(s, VALUE_GRADIENT, "gradient_norm", &sums, err));
    TRY(emit_call(s, OP_STEP_SCALARS, "scalars",
                  (struct emission){IN(sums, s->control), .out = {&s->scalars}}, err));
    s->update.values[s->scalars].class = VALUE_OUTPUT;
    TRY(add_optimizers(s, err));
    TRY(gather_parameters(s, err));
    TRY(add_params_norm(s, err));
    TRY(program_check(&s->update, err));
    memory_plan_make(&s->update, s->model->kernels);
    return OK;
}
