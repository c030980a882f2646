#include "convert/megatron/optim/training_target.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/text.h"
#include "convert/format.h"
#include "convert/megatron/optim/buckets.h"
#include "convert/states.h"

static const char sharding_type[] = "distrib_optim_sharding_type";

/* Whether the source's optimizer is distributed, by the common state: layer-wise
 * runs have a sharding type beside use_distributed_optimizer False. */
static bool source_is_distributed(const struct checkpoint *c)
{
    bool is_distributed = true;
    const struct value *common = c->training.common;
    if (value_get(value_get(common, "content_metadata"), sharding_type)) return true;
    (void)value_as_bool(value_get(value_get(common, "args"), "use_distributed_optimizer"),
                        &is_distributed);
    return is_distributed;
}

static bool writes_state(const struct target *t, const char *state)
{
    for (size_t i = 0; i < t->num_states; i++)
        if (strcmp(t->states[i], state) == 0) return true;
    return false;
}

/* Whether states are SGD's, which Megatron never distributes. */
static bool is_sgd(const struct target *t)
{
    return writes_state(t, "momentum_buffer") && !training_is_split(&t->training);
}

static void choose_format(struct target *t)
{
    if (t->options.optim_format != OPTIM_DEFAULT) return;
    t->options.optim_format = !source_is_distributed(t->source) || is_sgd(t) ? OPTIM_not_distributed
                              : t->format->has & FORMAT_COMMON_OBJECT ? OPTIM_fully_reshardable
                                                                      : OPTIM_distributed;
}

bool training_target_is_distributed(const struct target *t)
{
    return t->options.optim_format != OPTIM_not_distributed;
}

/* ---- what becomes of each part ---- */

static bool is_from_megatron(const struct target *t)
{
    return t->source->training.native_groups != NULL;
}

bool training_object_is_rng(const char *name)
{
    return text_starts_with(name, "rng_state/");
}

static const char *of_sizes(struct target *t, const char *what, uint64_t from, uint64_t to)
{
    return from == to ? NULL
                      : arena_printf(&t->plan.arena, "%s %" PRIu64 " -> %" PRIu64, what, from, to);
}

/* Why random number generator states are not written; NULL: they are. There is
 * one per tensor and pipeline parallel rank; with --data-parallel-random-init,
 * per rank. */
static const char *no_rng(struct target *t)
{
    const struct layout *from = &t->source->layout, *to = &t->layout;
    bool each_rank = false;
    const struct value *args = value_get(t->source->training.common, "args");
    if (t->source->format != t->format || !(t->format->has & FORMAT_COMMON_OBJECT))
        return "copied only within torch_dist";
    const char *why = of_sizes(t, "tp", from->tp, to->tp);
    if (!why) why = of_sizes(t, "pp", from->pp, to->pp);
    if (!why) why = of_sizes(t, "ep", from->ep, to->ep);
    (void)value_as_bool(value_get(args, "data_parallel_random_init"), &each_rank);
    return why || !each_rank ? why : "they belong to data parallel ranks";
}

static void set_rng_outcome(struct target *t)
{
    const struct training_state *had = &t->source->training;
    struct training_outcome *outcome = &t->outcomes[TRAINING_RNG];
    *outcome = (struct training_outcome){had->rng.wanted ? OUTCOME_MADE : OUTCOME_NONE, NULL};
    if (had->rng.wanted || !had->run.has_rng) return;
    const char *why = no_rng(t);
    *outcome = (struct training_outcome){why ? OUTCOME_DROPPED : OUTCOME_COPIED, why};
}

static void set_training_outcomes(struct target *t)
{
    const struct training *had = &t->source->training.run;
    const enum state_outcome kept = is_from_megatron(t) ? OUTCOME_COPIED : OUTCOME_TRANSLATED;
    for (unsigned p = 0; p < NUM_TRAINING_PARTS; p++) {
        const bool is = training_has(&t->training, (enum training_part)p);
        if (training_has(had, (enum training_part)p))
            t->outcomes[p].outcome = kept;
        else if (is)
            t->outcomes[p].outcome = OUTCOME_MADE;
    }
    set_rng_outcome(t);
}

/* Notes settings of another program's groups that Megatron's groups lack. */
static void note_lost(struct target *t)
{
    struct arena *a = &t->plan.arena;
    const struct training *run = &t->source->training.run;
    double decay = 0;
    bool amsgrad = false, coupled = false;
    if (is_from_megatron(t)) return;
    for (size_t i = 0; i < run->num_groups; i++) {
        const struct param_group *g = &run->groups[i];
        const bool of_all = g->members && strcmp(g->members, "all") == 0;
        if (of_all && g->weight_decay > 0) decay = g->weight_decay;
        amsgrad |= g->amsgrad;
        coupled |= !g->decoupled_weight_decay;
    }
    if (decay > 0)
        t->facts.changed_decay =
            arena_printf(a, "weight decay %g of parameters of one dimension becomes 0", decay);
    if (decay > 0)
        notes_add(&t->notes, a,
                  "weight decay %g of all parameters is written for matrices only: Megatron has "
                  "none for biases and parameters of one dimension",
                  decay);
    if (amsgrad)
        notes_add(&t->notes, a, "amsgrad is not written: Megatron's groups have no such key");
    if (coupled)
        notes_add(&t->notes, a,
                  "weight decay is part of the gradient (decoupled_weight_decay: false), but "
                  "groups are written for AdamW, Megatron's default");
    if (run->consumed_tokens)
        notes_add(&t->notes, a, "consumed_tokens is not written: Megatron counts samples");
}

/* States that Megatron's distributed optimizer, which takes Adam only, ignores
 * (megatron/core/optimizer/distrib_optimizer.py). */
static void find_passed_over(struct target *t)
{
    struct arena *a = &t->plan.arena;
    const char *names = "";
    if (!training_target_is_distributed(t)) return;
    if (training_is_split(&t->training)) {
        /* optimizer_state_keys goes by --optimizer for the other one, too */
        if (text_equal(t->training.optimizer, "lion") && writes_state(t, "exp_avg_sq"))
            t->facts.passed_over = "exp_avg_sq, which Megatron-Core up to 0.19 does not read "
                                   "beside Lion (not_distributed keeps it)";
        return;
    }
    for (size_t i = 0; i < t->num_states; i++)
        if (strcmp(t->states[i], "exp_avg") && strcmp(t->states[i], "exp_avg_sq") &&
            strcmp(t->states[i], master_state))
            names = arena_printf(a, "%s%s%s", names, *names ? ", " : "", t->states[i]);
    if (*names)
        t->facts.passed_over = arena_printf(
            a, "%s, which Megatron's distributed Adam does not read (not_distributed keeps it)",
            names);
}

/* ---- optimizers of hidden matrices ---- */

bool training_target_is_split_off(const struct target *t, const char *logical)
{
    const char *state;
    size_t length;
    const char *parameter = name_of_state(logical, &state, &length);
    if (!training_is_split(&t->training)) return false;
    const struct tensor *weight =
        catalog_find(&t->source->catalog, parameter ? parameter : logical);
    return weight && training_hidden_matrix(weight->name, weight->num_dims);
}

/* Whether t writes the state of a parameter, apart from masters, which an F32
 * weight lacks. */
static bool has_kind(const struct target *t, const char *state, const char *parameter,
                     struct arena *scratch)
{
    return strcmp(state, master_state) == 0 ||
           catalog_find(&t->source->catalog, state_name(scratch, state, parameter));
}

static bool has_any(const struct target *t, const char *parameter, struct arena *scratch)
{
    for (size_t i = 0; i < t->num_states; i++)
        if (catalog_find(&t->source->catalog, state_name(scratch, t->states[i], parameter)))
            return true;
    return false;
}

/* Names a state that one of two parameters of an optimizer lacks; NULL: none. */
static const char *find_difference(const struct target *t, const char *x, const char *y,
                                   struct arena *scratch)
{
    for (size_t i = 0; i < t->num_states; i++)
        if (has_kind(t, t->states[i], x, scratch) != has_kind(t, t->states[i], y, scratch))
            return t->states[i];
    return NULL;
}

/* Checks that the parameters of each optimizer have the same states.
 *
 * Hidden matrices and the rest may have two. */
static enum status check_alike(const struct target *t, struct arena *scratch, struct error *err)
{
    const struct catalog *c = &t->source->catalog;
    const char *firsts[2] = {NULL, NULL};
    for (size_t i = 0; i < c->num_tensors; i++) {
        const char *name = c->tensors[i].name, *state;
        if (!is_parameter(&c->tensors[i]) || !has_any(t, name, scratch)) continue;
        const char **first = &firsts[training_target_is_split_off(t, name)];
        if (!*first) *first = name;
        if ((state = find_difference(t, *first, name, scratch)) == NULL) continue;
        const bool lacks = !has_kind(t, state, name, scratch);
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %s has no %s, but %s has: Megatron's formats keep the same states of all "
                    "parameters of an optimizer (with muon and lion, hidden matrices have their "
                    "own); --to hf --optim keeps them, --no-optim leaves them out",
                    t->source->path, lacks ? name : *first, state, lacks ? *first : name);
    }
    return OK;
}

/* Whether Megatron has an optimizer with these states:
 *
 * - Adam,
 * - SGD, never distributed,
 * - two that groups name. */
static enum status check_kind(const struct target *t, struct error *err)
{
    const enum optim_format format = t->options.optim_format;
    if (is_sgd(t) && format != OPTIM_DEFAULT && format != OPTIM_not_distributed)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: its states are SGD's (momentum_buffer), and Megatron's distributed "
                    "optimizer has Adam's only: use --optim-format not_distributed",
                    t->source->path);
    if (training_is_split(&t->training)) {
        if (!(t->format->has & FORMAT_COMMON_OBJECT) || format == OPTIM_fully_sharded_model_space)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: states of %s beside another optimizer's are written in torch_dist, as "
                        "fully_reshardable or not_distributed; --no-optim leaves them out",
                        t->source->path, t->training.optimizer);
        return OK;
    }
    if (!writes_state(t, "exp_avg") || writes_state(t, "exp_avg_sq")) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: the states of %s (exp_avg without exp_avg_sq) cannot be written in Megatron's "
                "formats, where it is the optimizer of hidden matrices alone; --to hf --optim "
                "keeps them, --no-optim leaves them out",
                t->source->path,
                t->training.optimizer && strcmp(t->training.optimizer, "adam")
                    ? t->training.optimizer
                    : "lion");
}

enum status training_target_check(const struct target *t, struct error *err)
{
    struct arena scratch;
    if (!t->source->catalog.stored.num_files) return OK; /* a run of ours: Adam or SGD */
    arena_init(&scratch);
    enum status st = check_kind(t, err);
    if (!st) st = check_alike(t, &scratch, err);
    arena_release(&scratch);
    return st;
}

/* Replaces groups outside Megatron's rule by one of all parameters, with the
 * first group's settings. */
static bool drop_odd_groups(struct target *t)
{
    struct training *run = &t->training;
    bool odd = false;
    if (is_from_megatron(t)) return false;
    for (size_t i = 0; i < run->num_groups; i++)
        odd |= !run->groups[i].members;
    if (!odd) return false;
    run->num_groups = 1;
    run->groups[0].members = "all";
    return true;
}

void training_target_begin(struct target *t)
{
    struct arena *a = &t->plan.arena;
    struct training_given nothing;
    choose_format(t);
    if (!t->num_states) return;
    training_given_init(&nothing);
    const bool dropped = drop_odd_groups(t);
    note_lost(t);
    find_passed_over(t);
    const char *unknown = training_complete(
        &t->training, t->options.given ? t->options.given : &nothing, is_from_megatron(t), a);
    if (unknown)
        notes_add(&t->notes, a,
                  "the source lacks the optimizer's %s: give the next run's values (--lr, "
                  "--min-lr, ...), since Megatron-LM finds parameter groups by max_lr and min_lr; "
                  "it takes an incomplete schedule with --override-opt_param-scheduler",
                  unknown);
    if (!t->training.step)
        notes_add(&t->notes, a, "the optimizer's number of steps is unknown: 0 is written");
    set_training_outcomes(t);
    if (dropped)
        t->outcomes[TRAINING_GROUPS] = (struct training_outcome){
            OUTCOME_DROPPED,
            "they do not follow Megatron's rule; new groups have the settings of the first"};
}

/* ---- values ---- */

/* Whether Adam is PyTorch's, by Megatron's groups; without them, on hosts
 * without GPUs, which have neither Transformer Engine's nor Apex's. */
static bool is_torch_adam(const struct training_state *s)
{
    for (size_t i = 0; i < s->run.num_groups && s->native_groups; i++)
        if (s->native_groups[i] && isfinite(s->run.groups[i].eps))
            return value_get(s->native_groups[i], "foreach") != NULL;
    return s->on_host;
}

/* Whether experts have biases, so that a group of them has vectors. */
static bool have_expert_vectors(const struct checkpoint *c)
{
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        struct param p;
        const struct tensor *x = &c->catalog.tensors[i];
        if (x->num_dims == 1 && param_find(c->params, x->name, &p) && param_of_expert(p.spec))
            return true;
    }
    return false;
}

/* Whether weights are narrower than their masters. */
static bool is_mixed(const struct target *t)
{
    const struct catalog *c = &t->source->catalog;
    for (size_t i = 0; i < c->num_tensors; i++)
        if (is_parameter(&c->tensors[i]) &&
            dtype_bytes(target_dtype(t, &c->tensors[i])) < dtype_bytes(DT_F32))
            return true;
    return false;
}

void training_target_common(struct target *t, struct value *common, struct value *content,
                            struct tensor_data *data)
{
    struct arena *a = &t->plan.arena;
    const struct training_state *s = &t->source->training;
    const bool model_space = t->options.optim_format == OPTIM_fully_sharded_model_space;
    const bool distributed = training_target_is_distributed(t);
    const char *type =
        optim_format_names[model_space ? OPTIM_fully_sharded_model_space : OPTIM_fully_reshardable];
    if (!t->num_states) return;
    const struct optimizer_form form = {
        .wrapper = distributed   ? OPTIMIZER_DISTRIBUTED
                   : is_mixed(t) ? OPTIMIZER_MIXED
                                 : OPTIMIZER_FP32,
        .is_mixed = is_mixed(t),
        .sharding_type = distributed && t->format->has & FORMAT_COMMON_OBJECT ? type : NULL,
        .torch_adam = is_torch_adam(s),
        .experts_split = buckets_split_experts(&t->layout, false),
        .expert_vectors = have_expert_vectors(t->source),
        .native = s->native_groups,
    };
    value_dict_set(a, common, "optimizer", optimizer_value(&t->training, &form, data, a));
    value_dict_set(a, common, "opt_param_scheduler",
                   schedule_value(&t->training, s->native_schedule, a));
    if (!form.sharding_type) return;
    value_dict_set(a, content, sharding_type, value_text(a, type));
    if (!model_space)
        value_dict_set(a, content, "distrib_optim_fully_reshardable_mem_efficient",
                       value_bool(a, false));
}
