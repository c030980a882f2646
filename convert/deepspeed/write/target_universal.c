/* target_universal.c - writes a universal DeepSpeed checkpoint, which loads
 * with any number of data parallel ranks: global_stepN_universal with
 *
 *   mp_rank_00_model_states.pt                 for stages 1 and 2
 *   zero_pp_rank_0_mp_rank_00_model_states.pt  for stage 3
 *   zero/optimizer_state.pt                    hyperparameters, loss scale
 *   zero/NAME/STATE.pt                         {"param": the whole tensor}; the
 *                                              master is fp32.pt
 *   zero/NAME/step.pt                          updates that it has seen
 *
 * and `latest_universal` beside it. Stages 1 and 2 read param_groups and
 * step.pt, stage 3 optimizer_state_dict (deepspeed/runtime/base_optimizer.py
 * and runtime/zero/stage3.py: load_hp_checkpoint_state_from_checkpoint_dir*),
 * so one folder serves both; --zero N leaves out the model's file of the other
 * stages. */
#include <inttypes.h>
#include <string.h>

#include "common/file.h"
#include "convert/deepspeed/write/model_states.h"
#include "convert/deepspeed/write/zero_values.h"
#include "convert/format.h"
#include "convert/states.h"

/* A state's file; NULL: its name is no file name, or means another file. */
static const char *state_file(const char *state)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    if (strcmp(state, master_state) == 0) return "fp32";
    if (strcmp(state, "fp32") == 0 || strcmp(state, "step") == 0) return NULL;
    return state[strspn(state, letters)] ? NULL : state;
}

static enum status check_file_names(const struct zero_run *r, struct error *err)
{
    const struct target *t = r->t;
    for (size_t k = 0; k < t->num_states; k++)
        if (!state_file(t->states[k]))
            return fail(err, ERR_UNSUPPORTED, "optimizer state %s: not usable as a file name",
                        t->states[k]);
    for (size_t i = 0; i < r->num_params; i++) {
        const char *name = r->native.out.items[r->params[i]].name;
        if (strchr(name, '/') || !path_is_safe(name) || strcmp(name, ".") == 0)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: not usable as a folder name, which a universal checkpoint needs for "
                        "each parameter",
                        name);
    }
    return OK;
}

/* ---- zero/NAME ---- */

static enum status plan_state(struct zero_run *r, const char *param, const char *file, size_t at,
                              struct error *err)
{
    struct arena *a = &r->t->plan.arena;
    struct torch_archive *x = zero_file(r, arena_printf(a, "zero/%s/%s.pt", param, file));
    struct value *dict = value_dict(a), *v;
    TRY(zero_whole(r, x, at, DT_F32, &v, err));
    value_dict_add(a, dict, "param", v);
    return zero_file_end(r, x, dict, err);
}

static enum status plan_param(struct zero_run *r, const struct zero_group *g, size_t i,
                              struct error *err)
{
    struct arena *a = &r->t->plan.arena;
    const char *name = r->native.out.items[g->params[i]].name;
    for (size_t k = 0; k < g->num_states; k++)
        TRY(plan_state(r, name, state_file(g->states[k]), g->vectors[k * g->num_params + i], err));
    struct torch_archive *x = zero_file(r, arena_printf(a, "zero/%s/step.pt", name));
    return zero_file_end(r, x, zero_scalar(r, x, g->step), err);
}

/* ---- zero/optimizer_state.pt ---- */

static struct value *param_groups(struct zero_run *r)
{
    struct arena *a = &r->t->plan.arena;
    struct value *list = value_list(a, VALUE_LIST, 0, NULL);
    for (size_t g = 0; g < r->num_groups; g++) {
        struct value *number = value_int(a, (int64_t)g);
        value_append(a, list,
                     zero_param_group(r, &r->groups[g], value_list(a, VALUE_LIST, 1, &number)));
    }
    return list;
}

static enum status plan_optimizer(struct zero_run *r, struct error *err)
{
    struct arena *a = &r->t->plan.arena;
    struct value *dict = value_dict(a), *optimizer = value_dict(a), *state = value_dict(a);
    struct torch_archive *x = zero_file(r, "zero/optimizer_state.pt");
    for (size_t g = 0; g < r->num_groups; g++) {
        struct value *of = value_dict(a);
        value_dict_add(a, of, "step", zero_scalar(r, x, r->groups[g].step));
        value_dict_put(a, state, value_int(a, (int64_t)g), of);
    }
    value_dict_add(a, optimizer, "state", state);
    value_dict_add(a, optimizer, "param_groups", param_groups(r));
    value_dict_add(a, dict, "zero_stage", zero_stage_value(a, r->stage));
    zero_add_loss_scale(r, dict);
    value_dict_add(a, dict, "ds_version", value_text(a, ZERO_DS_VERSION));
    value_dict_add(a, dict, "param_groups", param_groups(r));
    value_dict_add(a, dict, "optimizer_state_dict", optimizer);
    return zero_file_end(r, x, dict, err);
}

/* ---- the plan ---- */

static enum status check_run(struct zero_run *r, struct error *err)
{
    struct target *t = r->t;
    if (!r->num_groups)
        return fail(err, ERR_UNSUPPORTED,
                    "a universal checkpoint consists of the optimizer's tensors, but there is no "
                    "optimizer to write; use --to deepspeed for weights alone");
    if (r->stage == 0 && t->options.zero < 0) r->stage = 1;
    if (r->stage == 0)
        return fail(err, ERR_USAGE,
                    "--zero 0: universal checkpoints are for runs of stages 1 to 3");
    if (r->num_groups > 1 && t->options.zero != 1 && t->options.zero != 2)
        notes_add(&t->notes, &t->plan.arena,
                  "a stage 3 run of DeepSpeed that loads a universal checkpoint gives all "
                  "parameter groups the settings of the first");
    return check_file_names(r, err);
}

static enum status plan_universal(struct target *t, struct error *err)
{
    struct zero_run *r;
    const int zero = t->options.zero;
    TRY(zero_run_begin(t, &r, err));
    t->facts.masters_alone = true;
    TRY(check_run(r, err));
    t->unit = arena_printf(&t->plan.arena, "global_step%" PRIu64 "_universal", r->iteration);
    if (zero != 3) TRY(model_states_whole(r, err));
    if (zero < 0 || zero == 3) TRY(model_states_part(r, 0, 1, err));
    TRY(plan_optimizer(r, err));
    for (size_t g = 0; g < r->num_groups; g++)
        for (size_t i = 0; i < r->groups[g].num_params; i++)
            TRY(plan_param(r, &r->groups[g], i, err));
    zero_run_end(r);
    return OK;
}

static enum status universal_root_files(struct target *t, struct root_file **files,
                                        size_t *num_files, struct error *err)
{
    (void)err;
    return zero_root_files(t, "latest_universal", files, num_files);
}

const struct target_kind target_deepspeed_universal = {plan_universal, zero_small_files,
                                                       universal_root_files, zero_run_release};
