#include "convert/deepspeed/write/model_states.h"

#include <inttypes.h>
#include <string.h>

#include "convert/deepspeed/write/zero_values.h"
#include "convert/deepspeed/zero_layout.h"

/* Default of zero_optimization.sub_group_size. */
static const uint64_t SUB_GROUP_SIZE = 1000000000;

/* A planned file of the model. */
struct model_file {
    struct zero_run *r;
    struct arena *a;
    struct torch_archive *archive;
    bool is_partitioned; /* stage 3 */
    uint64_t rank, ranks;
    struct value **tensors; /* [native.out.count] of module */
};

static const struct out_tensor *param_of(const struct zero_run *r, size_t at)
{
    return &r->native.out.items[at];
}

/* ---- module ---- */

static enum status module_tensor(struct model_file *f, size_t at, struct error *err)
{
    const struct out_tensor *o = param_of(f->r, at);
    static const uint64_t none[] = {0};
    if (!f->is_partitioned || f->r->is_buffer[at])
        return zero_whole(f->r, f->archive, at, o->dtype, &f->tensors[at], err);
    f->tensors[at] = zero_tensor(f->r, f->archive, o->dtype, 1, none, NULL);
    return OK;
}

/* A tensor on the same storage, as for tied parameters. */
static struct value *same_storage(struct arena *a, const struct value *v)
{
    const struct value_tensor *t = v->tensor;
    return value_tensor(a, t->storage->key, t->dtype, t->num_dims, t->shape);
}

static enum status module_value(struct model_file *f, struct value **out, struct error *err)
{
    const struct zero_run *r = f->r;
    struct value *pairs;
    *out = zero_ordered_dict(f->a, &pairs);
    for (size_t i = 0; i < r->num_params; i++) {
        const size_t at = r->params[i];
        TRY(module_tensor(f, at, err));
        value_dict_add(f->a, pairs, param_of(r, at)->name, f->tensors[at]);
    }
    for (size_t i = 0; i < r->num_tied; i++)
        value_dict_add(f->a, pairs, r->tied[i].name, same_storage(f->a, f->tensors[r->tied[i].of]));
    return OK;
}

/* ---- shapes ---- */

size_t sub_groups_of(struct zero_run *r, const struct zero_group *g, uint64_t ranks,
                     size_t **sub_group)
{
    struct arena *a = &r->t->plan.arena;
    uint64_t *numel = arena_array(a, g->num_params, sizeof *numel);
    *sub_group = arena_array(a, g->num_params, sizeof **sub_group);
    for (size_t i = 0; i < g->num_params; i++)
        numel[i] = param_of(r, g->params[i])->numel;
    return zero3_sub_groups(numel, g->num_params, ranks, SUB_GROUP_SIZE, *sub_group);
}

static void add_shape(struct model_file *f, struct value *pairs, size_t at)
{
    const struct out_tensor *o = param_of(f->r, at);
    value_dict_add(f->a, pairs, o->name, zero_size(f->a, o->num_dims, o->shape));
}

/* A dict of shapes per group, or per sub-group. */
static struct value *param_shapes(struct model_file *f)
{
    struct zero_run *r = f->r;
    struct value *list = value_list(f->a, VALUE_LIST, 0, NULL), *pairs = NULL;
    for (size_t g = 0; g < r->num_groups; g++) {
        const struct zero_group *group = &r->groups[g];
        size_t *sub_group = arena_array(f->a, group->num_params, sizeof *sub_group);
        if (f->is_partitioned) (void)sub_groups_of(r, group, f->ranks, &sub_group);
        for (size_t i = 0; i < group->num_params; i++) {
            if (!i || sub_group[i] != sub_group[i - 1])
                value_append(f->a, list, zero_ordered_dict(f->a, &pairs));
            add_shape(f, pairs, group->params[i]);
        }
    }
    return list;
}

/* ---- frozen parameters ---- */

static bool is_frozen(const struct zero_run *r, size_t at)
{
    return !r->is_trained[at] && !r->is_buffer[at];
}

static enum status fragment(struct model_file *f, size_t at, struct value **out, struct error *err)
{
    const struct out_tensor *o = param_of(f->r, at);
    const uint64_t part = zero3_part(o->numel, f->ranks);
    uint32_t segment = 0;
    if (!f->is_partitioned) {
        *out = same_storage(f->a, f->tensors[at]);
        return OK;
    }
    *out = zero_tensor(f->r, f->archive, o->dtype, 1, &part, &segment);
    return part ? zero_fill(f->r, at, f->rank * part, part, 0, segment, err) : OK;
}

static enum status frozen_params(struct model_file *f, struct value *shapes,
                                 struct value *fragments, struct error *err)
{
    const struct zero_run *r = f->r;
    for (size_t i = 0; i < r->num_params; i++) {
        const size_t at = r->params[i];
        struct value *v;
        if (!is_frozen(r, at)) continue;
        add_shape(f, shapes, at);
        TRY(fragment(f, at, &v, err));
        value_dict_add(f->a, fragments, param_of(r, at)->name, v);
    }
    return OK;
}

/* Adds frozen parameters; apart: with their own keys, as where gradients are
 * partitioned. */
static enum status add_frozen(struct model_file *f, struct value *dict, bool apart,
                              struct error *err)
{
    struct value *both[2], *pairs[2] = {NULL};
    for (size_t i = 0; i < 2; i++)
        both[i] = apart ? zero_ordered_dict(f->a, &pairs[i]) : value_none(f->a);
    if (apart) TRY(frozen_params(f, pairs[0], pairs[1], err));
    value_dict_add(f->a, dict, "frozen_param_shapes", both[0]);
    value_dict_add(f->a, dict, "frozen_param_fragments", both[1]);
    return OK;
}

/* ---- the optimizer of stage 0 ---- */

/* A state dict of torch.optim: numbers parameters through the groups. */
static enum status plain_optimizer(struct model_file *f, struct value **out, struct error *err)
{
    const struct zero_run *r = f->r;
    struct value *state = value_dict(f->a), *groups = value_list(f->a, VALUE_LIST, 0, NULL);
    int64_t number = 0;
    for (size_t g = 0; g < r->num_groups; g++) {
        const struct zero_group *group = &r->groups[g];
        struct value *params = value_list(f->a, VALUE_LIST, 0, NULL);
        for (size_t i = 0; i < group->num_params; i++, number++) {
            struct value *of = value_dict(f->a), *v;
            value_dict_add(f->a, of, "step", zero_scalar(f->r, f->archive, group->step));
            for (size_t k = 1; k < group->num_states; k++) {
                TRY(zero_whole(f->r, f->archive, group->vectors[k * group->num_params + i], DT_F32,
                               &v, err));
                value_dict_add(f->a, of, group->states[k], v);
            }
            value_dict_put(f->a, state, value_int(f->a, number), of);
            value_append(f->a, params, value_int(f->a, number));
        }
        value_append(f->a, groups, zero_param_group(f->r, group, params));
    }
    *out = value_dict(f->a);
    value_dict_add(f->a, *out, "state", state);
    value_dict_add(f->a, *out, "param_groups", groups);
    return OK;
}

/* ---- the dict ---- */

/* A scheduler's position, in torch's and DeepSpeed's keys; its shape comes from
 * the run. */
static struct value *scheduler_position(struct model_file *f)
{
    const int64_t steps = (int64_t)f->r->iteration;
    struct value *dict = value_dict(f->a), *lambdas = value_list(f->a, VALUE_LIST, 0, NULL);
    for (size_t g = 0; g < f->r->num_groups; g++)
        value_append(f->a, lambdas, value_none(f->a));
    value_dict_add(f->a, dict, "last_epoch", value_int(f->a, steps));
    value_dict_add(f->a, dict, "_step_count", value_int(f->a, steps + 1));
    value_dict_add(f->a, dict, "lr_lambdas", lambdas);
    value_dict_add(f->a, dict, "last_batch_iteration", value_int(f->a, steps - 1));
    return dict;
}

static void add_progress(struct model_file *f, struct value *dict)
{
    const struct zero_run *r = f->r;
    const struct training_state *s = &r->t->source->training;
    const struct value *schedule = zero_plain(s->torch_schedule);
    const int64_t samples = (int64_t)s->run.consumed_train_samples;
    value_dict_add(f->a, dict, "lr_scheduler",
                   schedule ? (struct value *)schedule : scheduler_position(f));
    value_dict_add(f->a, dict, "data_sampler", value_none(f->a));
    value_dict_add(f->a, dict, "random_ltd", value_none(f->a));
    value_dict_add(f->a, dict, "skipped_steps", value_int(f->a, 0));
    value_dict_add(f->a, dict, "global_steps", value_int(f->a, (int64_t)r->iteration));
    if (samples > 0) value_dict_add(f->a, dict, "global_samples", value_int(f->a, samples));
}

static struct value *shared_params(struct model_file *f)
{
    const struct zero_run *r = f->r;
    struct value *shared = value_dict(f->a);
    for (size_t i = 0; i < r->num_tied && f->rank == 0; i++) /* as DeepSpeed, in the first file */
        value_dict_add(f->a, shared, r->tied[i].name,
                       value_text(f->a, param_of(r, r->tied[i].of)->name));
    return shared;
}

static void add_buffer_names(struct model_file *f, struct value *dict)
{
    const struct zero_run *r = f->r;
    struct value *names = value_list(f->a, VALUE_LIST, 0, NULL);
    for (size_t i = 0; i < r->num_params; i++)
        if (r->is_buffer[r->params[i]])
            value_append(f->a, names, value_text(f->a, param_of(r, r->params[i])->name));
    value_dict_add(f->a, dict, "buffer_names", names);
}

static void add_world(struct model_file *f, struct value *dict)
{
    struct value *degrees = value_dict(f->a);
    value_dict_add(f->a, degrees, "pp_degree", value_int(f->a, 1));
    value_dict_add(f->a, degrees, "tp_degree", value_int(f->a, 1));
    value_dict_add(f->a, dict, "dp_world_size", value_int(f->a, (int64_t)f->ranks));
    value_dict_add(f->a, dict, "mp_world_size", value_int(f->a, 1));
    value_dict_add(f->a, dict, "checkpoint_parallel_dimensions", degrees);
    value_dict_add(f->a, dict, "ds_config", zero_config(f->r));
    value_dict_add(f->a, dict, "ds_version", value_text(f->a, ZERO_DS_VERSION));
}

static enum status add_optimizer(struct model_file *f, struct value *dict, struct error *err)
{
    const bool has_zero = f->r->num_groups && (f->is_partitioned || f->r->stage);
    struct value *optimizer = value_none(f->a);
    if (f->r->num_groups && !has_zero) TRY(plain_optimizer(f, &optimizer, err));
    value_dict_add(f->a, dict, "optimizer", optimizer);
    value_dict_add(f->a, dict, "param_shapes", has_zero ? param_shapes(f) : value_none(f->a));
    value_dict_add(f->a, dict, "shared_params", has_zero ? shared_params(f) : value_none(f->a));
    return add_frozen(f, dict, has_zero && (f->is_partitioned || f->r->stage == 2), err);
}

static enum status plan_file(struct model_file *f, const char *path, struct error *err)
{
    struct value *dict = value_dict(f->a), *module;
    f->archive = zero_file(f->r, path);
    f->tensors = arena_array(f->a, f->r->native.out.count, sizeof *f->tensors);
    TRY(module_value(f, &module, err));
    value_dict_add(f->a, dict, "module", module);
    add_buffer_names(f, dict);
    TRY(add_optimizer(f, dict, err));
    add_progress(f, dict);
    add_world(f, dict);
    return zero_file_end(f->r, f->archive, dict, err);
}

enum status model_states_whole(struct zero_run *r, struct error *err)
{
    struct model_file f = {.r = r, .a = &r->t->plan.arena, .ranks = r->dp};
    return plan_file(&f, "mp_rank_00_model_states.pt", err);
}

enum status model_states_part(struct zero_run *r, uint64_t rank, uint64_t ranks, struct error *err)
{
    struct model_file f = {
        .r = r, .a = &r->t->plan.arena, .is_partitioned = true, .rank = rank, .ranks = ranks};
    return plan_file(
        &f, arena_printf(f.a, "zero_pp_rank_%" PRIu64 "_mp_rank_00_model_states.pt", rank), err);
}
