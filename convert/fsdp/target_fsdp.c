/* target_fsdp.c - writes FSDP's full state dicts, loadable by any number of
 * ranks, with FSDP1, FSDP2 or neither:
 *
 *   model.pt   {NAME: tensor}
 *   optim.pt   {"state": {NAME: {"step": 0-dim F32, "exp_avg": tensor, ...}},
 *               "param_groups": [{"lr": ..., "params": [NAME, ...]}]}
 *              (torch/distributed/fsdp:
 *              FullyShardedDataParallel.full_optim_state_dict)
 *   config.json and its companions, where the model is known
 *
 * FSDP has no masters beside the weights: mixed precision casts a copy of them
 * for each use. So the master of a narrower weight is written as the weight. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "convert/format.h"
#include "convert/hf/hf_model.h"
#include "convert/states.h"
#include "convert/torch_archive.h"
#include "convert/torch_groups.h"

struct fsdp_target {
    struct target *t;
    struct native_outputs native;      /* weights and states */
    struct value **values;             /* [native.out.count] */
    struct torch_archive model, optim; /* optim: only with states */
    cJSON *config;                     /* made here; NULL: copies the source's */
};

static enum status add_fsdp_output(void *context, const struct native_output *native,
                                   struct error *err)
{
    struct fsdp_target *x = context;
    struct arena *a = &x->t->plan.arena;
    const char *name =
        native->state ? arena_printf(a, "%s of %s", native->state, native->name) : native->name;
    return native_outputs_add(&x->native, name, native, NULL, err);
}

/* ---- states ---- */

/* Sets outcomes of all parts but the groups, which torch_groups_plan() sets. */
static void set_fsdp_outcomes(struct target *t)
{
    const struct training *had = &t->source->training.run;
    if (!t->num_states) return;
    for (unsigned p = 0; p < NUM_TRAINING_PARTS; p++)
        if (p != TRAINING_GROUPS && training_has(had, (enum training_part)p))
            t->outcomes[p] =
                (struct training_outcome){OUTCOME_DROPPED, "a full state cannot hold it"};
    if (had->step) {
        const bool more = had->iteration || had->consumed_train_samples;
        t->outcomes[TRAINING_PROGRESS] =
            (struct training_outcome){OUTCOME_TRANSLATED, more ? "only the step" : NULL};
    }
    if (had->optimizer)
        t->outcomes[TRAINING_OPTIMIZER] = (struct training_outcome){OUTCOME_TRANSLATED, NULL};
}

/* ---- values ---- */

/* Makes one file's tensors: parameters, or their states. */
static enum status place_tensors(struct fsdp_target *x, struct torch_archive *archive, bool states,
                                 struct error *err)
{
    for (size_t i = 0; i < x->native.out.count; i++) {
        const struct out_tensor *o = &x->native.out.items[i];
        const struct pair whole = pair_whole(0, 0, o->numel);
        uint32_t segment;
        if (!o->state == states) continue;
        x->values[i] = archive_tensor(archive, o->dtype, o->num_dims, o->shape, &segment);
        TRY(native_outputs_fill(&x->native, i, &whole, segment, err));
    }
    return OK;
}

static struct value *weights_value(const struct fsdp_target *x)
{
    struct arena *a = &x->t->plan.arena;
    struct value *dict = value_dict(a);
    const char *head, *embedding;
    for (size_t i = 0; i < x->native.out.count; i++)
        if (!x->native.out.items[i].state)
            value_dict_put(a, dict, value_text(a, x->native.out.items[i].name), x->values[i]);
    if (!hf_model_tied_head(x->t, &head, &embedding)) return dict;
    const size_t at = native_outputs_find(&x->native, embedding, NULL);
    if (at != SIZE_MAX && native_outputs_find(&x->native, head, NULL) == SIZE_MAX)
        value_dict_put(a, dict, value_text(a, head), x->values[at]);
    return dict;
}

static struct value *param_value(struct fsdp_target *x, size_t param, double step)
{
    struct arena *a = &x->t->plan.arena;
    struct value *dict = value_dict(a);
    const double known = isfinite(step) ? step : (double)x->t->training.step;
    const float number = (float)known;
    value_dict_add(
        a, dict, "step",
        archive_bytes(&x->optim, DT_F32, 0, NULL, arena_copy(a, &number, sizeof number)));
    for (size_t i = 0; i < x->t->num_states; i++) {
        const char *state = x->t->states[i];
        const size_t at =
            native_outputs_find(&x->native, x->native.out.items[param].native_name, state);
        if (at != SIZE_MAX) value_dict_add(a, dict, state, x->values[at]);
    }
    return dict;
}

/* A group's dict. New groups lack initial_lr, which only a schedule adds:
 * torch's set_state_dict with full_state_dict=True fails on a key that the
 * run's groups lack, and takes the run's where the file lacks one. */
static struct value *group_value(struct arena *a, const struct torch_out_group *g)
{
    struct torch_out_group plain = *g;
    struct param_group fields = *g->fields;
    if (!g->native) fields.max_lr = NAN;
    plain.fields = &fields;
    return torch_group_value(a, &plain);
}

static struct value *optim_value(struct fsdp_target *x, const struct torch_out_group *groups,
                                 size_t num_groups)
{
    struct arena *a = &x->t->plan.arena;
    struct value *root = value_dict(a), *state = value_dict(a);
    struct value *list = value_list(a, VALUE_LIST, 0, NULL);
    for (size_t g = 0; g < num_groups; g++) {
        struct value *group = group_value(a, &groups[g]);
        struct value *names = value_list(a, VALUE_LIST, 0, NULL);
        for (size_t i = 0; i < groups[g].num_params; i++) {
            const size_t at = groups[g].params[i];
            struct value *name = value_text(a, x->native.out.items[at].name);
            value_append(a, names, name);
            value_dict_put(a, state, name, param_value(x, at, groups[g].steps[i]));
        }
        value_dict_add(a, group, "params", names);
        value_append(a, list, group);
    }
    value_dict_add(a, root, "state", state);
    value_dict_add(a, root, "param_groups", list);
    return root;
}

/* ---- the plan ---- */

static enum status plan_optim(struct fsdp_target *x, struct error *err)
{
    struct target *t = x->t;
    struct torch_out_group *groups;
    size_t num_groups;
    if (!t->num_states) return OK;
    TRY(torch_groups_plan(t, &x->native, &groups, &num_groups, err));
    if (!t->training.step)
        notes_add(&t->notes, &t->plan.arena,
                  "the number of updates that the states have seen is unknown: step 0 is written, "
                  "and Adam corrects their bias as at the start");
    archive_begin(&x->optim, &t->plan, "optim.pt");
    TRY(place_tensors(x, &x->optim, true, err));
    return archive_lay_out(&x->optim, "optim", optim_value(x, groups, num_groups), err);
}

static enum status plan_fsdp(struct target *t, struct error *err)
{
    struct fsdp_target *x = arena_alloc(&t->plan.arena, sizeof *x);
    x->t = t;
    native_outputs_init(&x->native, t);
    t->state = x;
    TRY(hf_model_check_export(t, err));
    TRY(hf_model_make_config(t, &x->config, err));
    TRY(target_take_trained(t, err));
    set_fsdp_outcomes(t);
    TRY(hf_model_export(t, add_fsdp_output, x, err));
    TRY(native_outputs_check(&x->native, err));
    x->values = arena_array(&t->plan.arena, x->native.out.count + 1, sizeof *x->values);
    archive_begin(&x->model, &t->plan, "model.pt");
    TRY(place_tensors(x, &x->model, false, err));
    TRY(archive_lay_out(&x->model, "model", weights_value(x), err));
    TRY(plan_optim(x, err));
    t->facts.num_target_tensors = x->native.out.count;
    t->facts.num_weight_files = t->plan.num_files;
    return OK;
}

static enum status write_fsdp_files(struct target *t, const char *folder, struct error *err)
{
    const struct fsdp_target *x = t->state;
    return hf_model_write_config(t, x->config, NULL, native_outputs_main_dtype(&x->native), folder,
                                 err);
}

static void release_fsdp(struct target *t)
{
    struct fsdp_target *x = t->state;
    cJSON_Delete(x->config);
    native_outputs_release(&x->native);
    archive_release(&x->model);
    archive_release(&x->optim);
}

const struct target_kind target_fsdp = {plan_fsdp, write_fsdp_files, NULL, release_fsdp};
