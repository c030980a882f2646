#include "convert/megatron/optim/param_groups.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/megatron/optim/param_groups_internal.h"

/* Limits on all groups' pairs, since a short pickle may name one dict many
 * times. */
enum { MAX_PAIRS = 1 << 22, MAX_CHAINED = 1000 };

// clang-format off
#define OF_TRAINING(name, ...) {FIELD_ROW(struct training, name), {__VA_ARGS__}, false}
#define OF_GROUP(name, ...) {FIELD_ROW(struct param_group, name), {__VA_ARGS__}, false}

const struct spelt_field group_keys[] = {
    OF_GROUP(is_expert_parallel, "is_expert_parallel"),
    OF_GROUP(wd_mult, "wd_mult", "pre_wd_mult"),
    OF_GROUP(lr_mult, "lr_mult", "pre_lr_mult"),
    OF_GROUP(is_decoupled_lr, "is_decoupled_lr"),
    OF_GROUP(max_lr, "max_lr"),
    OF_GROUP(min_lr, "min_lr"),
    OF_GROUP(lr, "lr"),
    OF_GROUP(eps, "eps"),
    OF_GROUP(momentum, "momentum"),
    OF_GROUP(optimizer, "optimizer"),
    OF_GROUP(weight_decay, "weight_decay"),
    OF_GROUP(decoupled_weight_decay, "decoupled_weight_decay"),
    OF_GROUP(amsgrad, "amsgrad"),
    OF_GROUP(step, "step"),
};

const struct spelt_field schedule_keys[] = {
    OF_TRAINING(max_lr, "max_lr", "start_lr"),
    OF_TRAINING(lr_warmup_steps, "lr_warmup_steps", "warmup_steps", "warmup_iter"),
    OF_TRAINING(num_steps, "num_steps", "num_iters"),
    OF_TRAINING(lr_decay_style, "lr_decay_style", "decay_style"),
    OF_TRAINING(lr_decay_steps, "lr_decay_steps", "decay_steps", "end_iter"),
    OF_TRAINING(min_lr, "min_lr"),
    OF_TRAINING(start_wd, "start_wd"),
    OF_TRAINING(end_wd, "end_wd"),
    OF_TRAINING(wd_incr_style, "wd_incr_style"),
    OF_TRAINING(wd_incr_steps, "wd_incr_steps"),
};

static const struct spelt_field args_keys[] = {
    OF_TRAINING(consumed_train_samples, "consumed_train_samples"),
    OF_TRAINING(skipped_train_samples, "skipped_train_samples"),
    OF_TRAINING(consumed_valid_samples, "consumed_valid_samples"),
    OF_TRAINING(optimizer, "optimizer"),
};

static const struct spelt_field common_keys[] = {
    OF_TRAINING(iteration, "iteration"),
    OF_TRAINING(floating_point_operations, "num_floating_point_operations_so_far"),
};

static const struct spelt_field scaler_keys[] = {
    OF_TRAINING(loss_scale, "scale"),
    OF_TRAINING(growth_tracker, "growth_tracker"),
    {FIELD_ROW(struct training, hysteresis_tracker), {"hysteresis_tracker"}, true},
};
// clang-format on
const size_t num_group_keys = COUNT(group_keys);
const size_t num_schedule_keys = COUNT(schedule_keys);

/* ---- values ---- */

const char *spelt_key(const struct spelt_field *f, const struct value *dict)
{
    for (size_t i = 0; i < MAX_SPELLINGS && f->keys[i]; i++)
        if (value_get(dict, f->keys[i])) return f->keys[i];
    return NULL;
}

const char *value_class(const struct value *v, struct arena *a)
{
    static const char *const types[] = {[VALUE_NONE] = "None",
                                        [VALUE_BOOL] = "bool",
                                        [VALUE_INT] = "int",
                                        [VALUE_BIG_INT] = "int",
                                        [VALUE_FLOAT] = "float",
                                        [VALUE_TEXT] = "str",
                                        [VALUE_BYTES] = "bytes",
                                        [VALUE_LIST] = "list",
                                        [VALUE_TUPLE] = "tuple",
                                        [VALUE_SET] = "set",
                                        [VALUE_DICT] = "dict",
                                        [VALUE_GLOBAL] = "class",
                                        [VALUE_OBJECT] = "object",
                                        [VALUE_STORAGE] = "torch storage",
                                        [VALUE_TENSOR] = "torch.Tensor",
                                        [VALUE_NATIVE] = "object",
                                        [VALUE_SKIPPED] = "object"};
    struct strbuf text = {0};
    if (v->kind != VALUE_OBJECT || v->object->callable->kind != VALUE_GLOBAL) return types[v->kind];
    value_print(&text, v->object->callable, 200);
    const char *out = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

static bool is_absent(const struct value *v)
{
    return !v || v->kind == VALUE_NONE;
}

/* Reads an int past 64 bits, as for floating point operations. */
static bool big_number(const struct value *v, double *out)
{
    if (v->kind != VALUE_BIG_INT || v->count > 128) return false;
    const unsigned char *bytes = (const unsigned char *)v->text;
    *out = 0;
    for (uint32_t i = v->count; i-- > 0;)
        *out = *out * 256 + bytes[i];
    return !(bytes[v->count - 1] & 0x80); /* else negative */
}

static bool as_real(const struct training_reader *r, const struct value *v, double *out)
{
    if (value_as_float(v, out) || big_number(v, out)) return true;
    return v->kind == VALUE_TENSOR && r->scalar && r->scalar(r->context, v, out);
}

/* Reads a whole number from 0, of type int or float. */
static bool as_count(const struct training_reader *r, const struct value *v, uint64_t *out)
{
    int64_t integer;
    double real;
    const double limit = 9007199254740992.0; /* 2^53: larger floats are inexact */
    if (value_as_int(v, &integer)) {
        *out = (uint64_t)integer;
        return integer >= 0;
    }
    if (!as_real(r, v, &real) || !(real >= 0) || real > limit) return false;
    *out = (uint64_t)real;
    return !((double)*out < real);
}

static bool as_scalar(const struct training_reader *r, const struct value *v, struct scalar *s)
{
    const char *text;
    switch (s->kind) {
    case FIELD_UINT:
        return as_count(r, v, &s->number);
    case FIELD_REAL:
        return as_real(r, v, &s->real);
    case FIELD_BOOL:
        return value_as_bool(v, &s->truth);
    case FIELD_TEXT:
        text = value_as_text(v);
        s->text = text ? arena_copy_text(r->arena, text) : NULL;
        return text != NULL;
    }
    return false;
}

static enum status bad_value(struct training_reader *r, const char *where, const char *key,
                             const struct value *v, const char *expected, struct error *err)
{
    struct strbuf text = {0};
    value_print(&text, v, 60);
    enum status st = fail(err, ERR_CORRUPT, "%s: %s is %s (%s), not %s", where, key,
                          text.data ? text.data : "", value_class(v, r->arena), expected);
    strbuf_release(&text);
    return st;
}

/* Sets a field from its key in the dict; leaves it without such a key, or if
 * None. */
static enum status read_field(struct training_reader *r, const struct spelt_field *f,
                              const struct value *dict, void *of, const char *where,
                              struct error *err)
{
    static const char *const expected[] = {[FIELD_UINT] = "a whole number from 0",
                                           [FIELD_REAL] = "a number",
                                           [FIELD_BOOL] = "True or False",
                                           [FIELD_TEXT] = "a str"};
    const char *key = spelt_key(f, dict);
    const struct value *v = value_get(dict, key ? key : f->keys[0]);
    struct scalar s = {.kind = f->field.kind, .number = 0};
    int64_t below;
    if (is_absent(v)) return OK;
    if (f->falls_below_0 && value_as_int(v, &below) && below < 0) return OK;
    if (!as_scalar(r, v, &s)) return bad_value(r, where, key, v, expected[s.kind], err);
    field_set(&f->field, of, s);
    return OK;
}

static enum status read_fields(struct training_reader *r, const struct spelt_field *fields,
                               size_t count, const struct value *dict, void *of, const char *where,
                               struct error *err)
{
    for (size_t i = 0; i < count; i++)
        TRY(read_field(r, &fields[i], dict, of, where, err));
    return OK;
}

/* ---- groups ---- */

static enum status not_a(struct training_reader *r, const struct value *v, const char *where,
                         const char *expected, struct error *err)
{
    return fail(err, ERR_UNSUPPORTED, "%s has class %s, not %s: unknown contents", where,
                value_class(v, r->arena), expected);
}

static enum status read_betas(struct training_reader *r, const struct value *dict,
                              struct param_group *g, const char *where, struct error *err)
{
    const struct value *betas = value_get(dict, "betas");
    if (is_absent(betas)) return OK;
    bool pair = (betas->kind == VALUE_TUPLE || betas->kind == VALUE_LIST) && betas->count == 2;
    if (!pair || !as_real(r, betas->items[0], &g->beta1) || !as_real(r, betas->items[1], &g->beta2))
        return bad_value(r, where, "betas", betas, "two numbers", err);
    return OK;
}

/* Appends a group's settings as text, except its step and the numbers of its
 * parameters in some files. */
static void print_settings(struct strbuf *out, const struct value *dict)
{
    for (size_t i = 0; i < dict->count; i++) {
        const char *key = value_as_text(dict->items[2 * i]);
        if (text_equal(key, "params") || text_equal(key, "step")) continue;
        value_print(out, dict->items[2 * i], 64);
        strbuf_add_char(out, ':');
        value_print(out, dict->items[2 * i + 1], 128);
        strbuf_add_char(out, ',');
    }
}

static enum status add_new_group(struct training_reader *r, const struct param_group *g,
                                 const struct value *dict, const char *settings, const char *where,
                                 struct error *err)
{
    struct training *t = r->training;
    size_t num_native = t->num_groups, num_chains = t->num_groups;
    if (t->num_groups == MAX_PARAM_GROUPS)
        return fail(err, ERR_CORRUPT, "%s: more than %d different groups", where, MAX_PARAM_GROUPS);
    (void)map_add(&r->seen, arena_copy_text(r->arena, settings), t->num_groups, NULL);
    *ARENA_PUSH(r->arena, r->native_groups, num_native, r->native_capacity) = dict;
    *ARENA_PUSH(r->arena, r->chains, num_chains, r->chains_capacity) = r->chain;
    *training_add_group(t, r->arena) = *g;
    return OK;
}

/* Adds the group, or its step to an equal group. */
static enum status add_param_group(struct training_reader *r, const struct param_group *g,
                                   const struct value *dict, const char *where, struct error *err)
{
    struct strbuf text = {0};
    enum status st = OK;
    size_t old;
    print_settings(&text, dict);
    const char *settings = text.data ? text.data : "";
    if (!map_get(&r->seen, settings, &old))
        st = add_new_group(r, g, dict, settings, where, err);
    else if (!r->training->groups[old].step)
        r->training->groups[old].step = g->step;
    strbuf_release(&text);
    return st;
}

static enum status note_step(struct training_reader *r, uint64_t step, const char *where,
                             struct error *err)
{
    struct training *t = r->training;
    if (!step) return OK;
    if (t->step && t->step != step)
        return fail(err, ERR_CORRUPT,
                    "%s has made %" PRIu64 " steps, but %s %" PRIu64
                    ": parts of different checkpoints, or an interrupted save",
                    r->step_of, t->step, where, step);
    if (!t->step) r->step_of = arena_copy_text(r->arena, where);
    t->step = step;
    return OK;
}

/* common_step: the optimizer's, for groups without a step. */
static enum status read_group(struct training_reader *r, const struct value *dict,
                              uint64_t common_step, const char *where, struct error *err)
{
    struct param_group g;
    param_group_init(&g);
    if (dict->kind != VALUE_DICT) return not_a(r, dict, where, "dict", err);
    r->pairs_read += dict->count + 1;
    if (dict->count > MAX_GROUP_PAIRS || r->pairs_read > MAX_PAIRS)
        return fail(err, ERR_CORRUPT,
                    "%s: a group of %" PRIu32 " settings, %zu in all groups, too many", where,
                    dict->count, r->pairs_read);
    TRY(read_fields(r, group_keys, num_group_keys, dict, &g, where, err));
    TRY(read_betas(r, dict, &g, where, err));
    if (!g.step) g.step = common_step;
    TRY(note_step(r, g.step, where, err));
    return add_param_group(r, &g, dict, where, err);
}

/* ---- optimizers ---- */

/* Reads the step of optimizers that keep it per parameter: torch_dist has it
 * once, as common_step, a legacy file with each parameter. */
static enum status read_common_step(struct training_reader *r, const struct value *inner,
                                    uint64_t *step, const char *where, struct error *err)
{
    const struct value *state = value_get(inner, "state"), *v = value_get(state, "common_step");
    *step = 0;
    if (is_absent(v) && state && state->kind == VALUE_DICT && state->count)
        v = value_get(state->items[1], "step");
    if (is_absent(v) || as_count(r, v, step)) return OK;
    return bad_value(r, where, "the step in state", v, "a whole number from 0", err);
}

static enum status read_group_list(struct training_reader *r, const struct value *inner,
                                   const char *where, struct error *err)
{
    const struct value *list = value_get(inner, "param_groups");
    uint64_t step;
    if (is_absent(list)) return OK;
    const char *name = arena_printf(r->arena, "%s: param_groups", where);
    if (list->kind != VALUE_LIST && list->kind != VALUE_TUPLE)
        return not_a(r, list, name, "list", err);
    TRY(read_common_step(r, inner, &step, where, err));
    for (uint32_t i = 0; i < list->count; i++) {
        char of_group[512];
        snprintf(of_group, sizeof of_group, "%.400s[%" PRIu32 "]", name, i);
        TRY(read_group(r, list->items[i], step, of_group, err));
    }
    return OK;
}

/* The PyTorch optimizer in one of Megatron's: {state, param_groups}. */
static const struct value *inner_of(const struct value *v)
{
    if (value_get(v, "param_groups")) return v;
    const struct value *inner = value_get(v, "optimizer");
    return inner ? inner : value_get(v, "optimizer_state_dict");
}

static enum status read_single(struct training_reader *r, const struct value *v, const char *where,
                               struct error *err)
{
    if (v->kind != VALUE_DICT) return not_a(r, v, where, "dict", err);
    const struct value *inner = inner_of(v);
    if (value_get(v, "param_to_group_meta") || value_get(inner, "param_to_group_meta"))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: optimizers of Megatron-FSDP (param_to_group_meta) are not supported here",
                    where);
    TRY(training_reader_scaler(r, value_get(v, "grad_scaler"), where, err));
    if (is_absent(inner)) return OK;
    if (inner->kind != VALUE_DICT)
        return not_a(r, inner, arena_printf(r->arena, "%s: optimizer", where), "dict", err);
    return read_group_list(r, inner, where, err);
}

/* Whether all keys of a dict are numbers. */
static bool is_chained_dict(const struct value *v)
{
    if (v->kind != VALUE_DICT || !v->count) return false;
    for (size_t i = 0; i < v->count; i++)
        if (v->items[2 * i]->kind != VALUE_INT) return false;
    return true;
}

static enum status read_chained(struct training_reader *r, const struct value *v, const char *where,
                                struct error *err)
{
    const size_t stride = v->kind == VALUE_DICT ? 2 : 1;
    if (v->count > MAX_CHAINED)
        return fail(err, ERR_CORRUPT, "%s: %" PRIu32 " optimizers", where, v->count);
    for (size_t i = 0; i < v->count; i++) {
        int64_t number = (int64_t)i;
        if (stride == 2) (void)value_as_int(v->items[2 * i], &number);
        const struct value *one = v->items[stride * i + stride - 1];
        if (is_absent(one)) continue;
        const char *name = arena_printf(r->arena, "%s[%" PRId64 "]", where, number);
        r->chain = (unsigned)number;
        TRY(read_single(r, one, name, err));
    }
    r->chain = 0;
    return OK;
}

enum status training_reader_optimizer(struct training_reader *r, const struct value *optimizer,
                                      const char *where, struct error *err)
{
    if (is_absent(optimizer)) return OK;
    const bool list = optimizer->kind == VALUE_LIST || optimizer->kind == VALUE_TUPLE;
    if (list || is_chained_dict(optimizer)) return read_chained(r, optimizer, where, err);
    return read_single(r, optimizer, where, err);
}

enum status training_reader_scaler(struct training_reader *r, const struct value *scaler,
                                   const char *where, struct error *err)
{
    if (is_absent(scaler) || isfinite(r->training->loss_scale)) return OK;
    const char *name = arena_printf(r->arena, "%s: grad_scaler", where);
    if (scaler->kind != VALUE_DICT) return not_a(r, scaler, name, "dict", err);
    return read_fields(r, scaler_keys, COUNT(scaler_keys), scaler, r->training, name, err);
}

/* ---- the common state ---- */

static enum status read_args(struct training_reader *r, const struct value *args, struct error *err)
{
    double lr;
    TRY(read_fields(r, args_keys, COUNT(args_keys), args, r->training, "args", err));
    (void)value_as_bool(value_get(args, "apply_wd_to_qk_layernorm"), &r->decays_qk_norms);
    if (value_as_float(value_get(args, "decoupled_lr"), &lr)) r->decoupled_lr = lr;
    return OK;
}

static enum status read_schedule(struct training_reader *r, const struct value *common,
                                 struct error *err)
{
    const struct value *s = value_get(common, "opt_param_scheduler");
    if (is_absent(s)) s = value_get(common, "lr_scheduler");
    if (is_absent(s)) return OK;
    if (s->kind != VALUE_DICT) return not_a(r, s, "opt_param_scheduler", "dict", err);
    r->native_schedule = s;
    return read_fields(r, schedule_keys, num_schedule_keys, s, r->training, "opt_param_scheduler",
                       err);
}

enum status training_reader_common(struct training_reader *r, const struct value *common,
                                   struct error *err)
{
    TRY(read_fields(r, common_keys, COUNT(common_keys), common, r->training, "the common state",
                    err));
    TRY(read_args(r, value_get(common, "args"), err));
    TRY(read_schedule(r, common, err));
    return training_reader_optimizer(r, value_get(common, "optimizer"), "optimizer", err);
}

/* ---- members ---- */

static bool is_number(double x, double number)
{
    return x >= number && x <= number;
}

/* Whether the group has its own learning rates: newer releases say so; older
 * ones have lr_mult. */
static bool has_own_lr(const struct training_reader *r, size_t i)
{
    bool is_default = true;
    const double lr_mult = r->training->groups[i].lr_mult;
    (void)value_as_bool(value_get(r->native_groups[i], "default_config"), &is_default);
    return !is_default || (isfinite(lr_mult) && !is_number(lr_mult, 1));
}

/* Whether the group is --decoupled-lr's: some releases set is_decoupled_lr,
 * others only max_lr. */
static bool is_decoupled(const struct training_reader *r, size_t i)
{
    const struct param_group *g = &r->training->groups[i];
    return g->is_decoupled_lr || (has_own_lr(r, i) && is_number(g->max_lr, r->decoupled_lr));
}

/* A group's kind of optimizer by its settings, as Megatron names it. */
static const char *optimizer_of(const struct param_group *g)
{
    if (g->optimizer) return g->optimizer;
    if (isfinite(g->momentum) && !isfinite(g->beta1)) return "muon";
    return isfinite(g->eps) ? "adam" : "lion";
}

/* Where the first optimizer of a chain is of another kind than the rest, sets
 * the optimizers of groups. */
static void set_optimizers(struct training_reader *r)
{
    struct training *t = r->training;
    const char *first = NULL;
    bool is_split = false;
    for (size_t i = 0; i < t->num_groups; i++)
        if (!r->chains[i] && !first) first = optimizer_of(&t->groups[i]);
    for (size_t i = 0; i < t->num_groups && first; i++)
        is_split |= r->chains[i] && strcmp(optimizer_of(&t->groups[i]), first);
    if (is_split && !t->optimizer) t->optimizer = first;
    for (size_t i = 0; i < t->num_groups; i++) {
        const char *kind = optimizer_of(&t->groups[i]);
        t->groups[i].optimizer = !is_split ? NULL : strcmp(kind, first) == 0 ? t->optimizer : kind;
    }
}

/* Whether all groups of group i's optimizer, except those of decoupled learning
 * rates, have one wd_mult. */
static bool decay_alike(const struct training_reader *r, size_t of)
{
    const struct param_group *groups = r->training->groups, *first = NULL;
    for (size_t i = 0; i < r->training->num_groups; i++) {
        if (is_decoupled(r, i) || !text_equal(groups[i].optimizer, groups[of].optimizer)) continue;
        if (!first) first = &groups[i];
        if (isfinite(first->wd_mult) != isfinite(groups[i].wd_mult)) return false;
        if (isfinite(first->wd_mult) && !is_number(groups[i].wd_mult, first->wd_mult)) return false;
    }
    return true;
}

static const char *members_of(const struct training_reader *r, size_t i)
{
    const struct param_group *g = &r->training->groups[i];
    const bool is_first = g->optimizer && text_equal(g->optimizer, r->training->optimizer);
    const bool qk = r->decays_qk_norms;
    if (is_decoupled(r, i)) return is_number(g->wd_mult, 0) ? NULL : "embeddings";
    if (has_own_lr(r, i)) return NULL;
    if (is_first) return decay_alike(r, i) ? "hidden_matrices" : NULL;
    if (decay_alike(r, i)) return "all";
    if (is_number(g->wd_mult, 1)) return qk ? "matrices_and_qk_norms" : "matrices";
    if (is_number(g->wd_mult, 0)) return qk ? "vectors_without_qk_norms" : "vectors";
    return NULL;
}

/* Forgets members that several groups would have. */
static void forget_repeated(struct training *t)
{
    for (size_t i = 0; i < t->num_groups; i++) {
        const char *members = t->groups[i].members;
        bool repeated = false;
        for (size_t k = i + 1; k < t->num_groups && members; k++) {
            bool same = text_equal(members, t->groups[k].members) &&
                        t->groups[k].is_expert_parallel == t->groups[i].is_expert_parallel;
            if (same) t->groups[k].members = NULL;
            repeated |= same;
        }
        if (repeated) t->groups[i].members = NULL;
    }
}

void training_reader_finish(struct training_reader *r)
{
    struct training *t = r->training;
    set_optimizers(r);
    for (size_t i = 0; i < t->num_groups; i++)
        t->groups[i].members = members_of(r, i);
    forget_repeated(t);
}

/* ---- begin and end ---- */

void training_reader_init(struct training_reader *r, struct training *training, struct arena *a,
                          bool (*scalar)(void *context, const struct value *tensor, double *out),
                          void *context)
{
    *r = (struct training_reader){.training = training, .arena = a, .scalar = scalar};
    r->context = context;
    r->decoupled_lr = NAN;
    training_init(training);
}

void training_reader_release(struct training_reader *r)
{
    map_release(&r->seen);
}
