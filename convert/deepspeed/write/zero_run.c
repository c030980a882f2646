#include "convert/deepspeed/write/zero_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/file.h"
#include "convert/deepspeed/write/param_order.h"
#include "convert/deepspeed/write/zero_values.h"
#include "convert/deepspeed/zero_layout.h"
#include "convert/format.h"
#include "convert/hf/hf_model.h"
#include "convert/hf/states_hf.h"
#include "convert/record.h"
#include "convert/states.h"

static struct arena *arena_of(struct zero_run *r)
{
    return &r->t->plan.arena;
}

/* ---- parameters ---- */

static enum status add_zero_output(void *context, const struct native_output *native,
                                   struct error *err)
{
    struct zero_run *r = context;
    const char *name =
        native->state ? hf_state_name(arena_of(r), native->state, native->name) : native->name;
    return native_outputs_add(&r->native, name, native, NULL, err);
}

static bool is_buffer(const struct checkpoint *c, const struct out_tensor *o)
{
    struct param p;
    return o->logical && c->params && param_find(c->params, o->logical, &p) && p.spec->buffer;
}

/* Sorts parameters as the module does; those of an unknown model keep the
 * source's order. */
static void order_params(struct zero_run *r)
{
    struct arena *a = arena_of(r);
    const char **names = arena_array(a, r->num_params, sizeof *names);
    const size_t *all = arena_copy(a, r->params, r->num_params * sizeof *all);
    for (size_t i = 0; i < r->num_params; i++)
        names[i] = r->native.out.items[all[i]].name;
    const size_t *order = r->t->source->names_alone ? NULL : param_order(a, names, r->num_params);
    r->place = arena_array(a, r->native.out.count, sizeof *r->place);
    for (size_t i = 0; i < r->num_params; i++) {
        r->params[i] = all[order ? order[i] : i];
        r->place[r->params[i]] = i;
    }
}

static void list_zero_params(struct zero_run *r)
{
    const struct out_tensors *out = &r->native.out;
    r->params = arena_array(arena_of(r), out->count, sizeof *r->params);
    r->is_trained = arena_array(arena_of(r), out->count, sizeof *r->is_trained);
    r->is_buffer = arena_array(arena_of(r), out->count, sizeof *r->is_buffer);
    for (size_t i = 0; i < out->count; i++) {
        if (out->items[i].state) continue;
        r->params[r->num_params++] = i;
        r->is_buffer[i] = is_buffer(r->t->source, &out->items[i]);
    }
    order_params(r);
}

/* ---- tied parameters ---- */

static void add_tied(struct zero_run *r, const char *name, const char *of)
{
    const size_t at = native_outputs_find(&r->native, of, NULL);
    if (at == SIZE_MAX || native_outputs_find(&r->native, name, NULL) != SIZE_MAX) return;
    *ARENA_PUSH(arena_of(r), r->tied, r->num_tied, r->tied_capacity) = (struct zero_tied){name, at};
}

/* Finds tied parameters: one tensor of the export with several names in the
 * module's state dict. */
static void find_tied(struct zero_run *r)
{
    const struct checkpoint *c = r->t->source;
    const char *head, *embedding;
    for (size_t i = 0; i < c->num_tied && c->names_alone; i++)
        add_tied(r, c->tied[i].name, c->tied[i].of);
    if (hf_model_tied_head(r->t, &head, &embedding)) add_tied(r, head, embedding);
}

/* ---- groups ---- */

/* Whether r->params have the module's order, which groups of a loading run
 * have, whatever the source's groups have: with round_robin_gradients
 * DeepSpeed's differ. Without a config, groups of other programs show the order
 * best. */
static bool has_known_order(const struct checkpoint *c)
{
    return !c->names_alone || c->format->has & FORMAT_ZERO;
}

static int by_param_place(const void *a, const void *b, void *place)
{
    const size_t *places = place;
    const size_t x = places[*(const size_t *)a], y = places[*(const size_t *)b];
    return x < y ? -1 : x > y;
}

static float group_step(const struct zero_run *r, const struct torch_out_group *g)
{
    for (size_t i = 0; i < g->num_params; i++)
        if (isfinite(g->steps[i])) return (float)g->steps[i];
    return (float)(g->fields->step ? g->fields->step : r->t->source->training.run.step);
}

static size_t find_state(const struct zero_run *r, size_t param, const char *state)
{
    return native_outputs_find(&r->native, r->native.out.items[param].native_name, state);
}

/* Lists a group's states: its first parameter's, which all others must have. */
static enum status list_states(struct zero_run *r, struct zero_group *g, struct error *err)
{
    const struct target *t = r->t;
    const struct out_tensor *all = r->native.out.items;
    g->states = arena_array(arena_of(r), t->num_states, sizeof *g->states);
    g->vectors = arena_array(arena_of(r), t->num_states * g->num_params, sizeof *g->vectors);
    for (size_t k = 0; k < t->num_states; k++) {
        size_t *vectors = g->vectors + g->num_states * g->num_params, there = 0;
        for (size_t i = 0; i < g->num_params; i++) {
            vectors[i] = find_state(r, g->params[i], t->states[k]);
            there += vectors[i] != SIZE_MAX;
        }
        if (there == 0 && k) continue;
        for (size_t i = 0; i < g->num_params; i++)
            if (vectors[i] == SIZE_MAX)
                return fail(err, ERR_UNSUPPORTED,
                            "%s lacks state %s, which other parameters of its group have: "
                            "DeepSpeed has one vector per state and group",
                            all[g->params[i]].name, t->states[k]);
        g->states[g->num_states++] = t->states[k];
    }
    return OK;
}

static enum status add_zero_group(struct zero_run *r, const struct torch_out_group *of,
                                  struct error *err)
{
    struct zero_group *g = &r->groups[r->num_groups];
    if (!of->num_params) return OK; /* torch.optim allows no empty group */
    r->num_groups++;
    g->of = of;
    g->num_params = of->num_params;
    g->params = arena_copy(arena_of(r), of->params, of->num_params * sizeof *g->params);
    g->step = group_step(r, of);
    if (has_known_order(r->t->source))
        qsort_r(g->params, g->num_params, sizeof *g->params, by_param_place, r->place);
    for (size_t i = 0; i < g->num_params; i++)
        r->is_trained[g->params[i]] = true;
    return list_states(r, g, err);
}

static enum status add_groups(struct zero_run *r, struct error *err)
{
    struct torch_out_group *groups;
    size_t num_groups;
    TRY(torch_groups_plan(r->t, &r->native, &groups, &num_groups, err));
    r->groups = arena_array(arena_of(r), num_groups, sizeof *r->groups);
    if (training_is_split(&r->t->source->training.run))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: states of %s beside another optimizer's are not written for DeepSpeed, "
                    "which keeps Muon's momentum by whole parameters; --to hf --optim keeps them, "
                    "--no-optim leaves them out",
                    r->t->source->path, r->t->source->training.run.optimizer);
    for (size_t g = 0; g < num_groups; g++)
        TRY(add_zero_group(r, &groups[g], err));
    return OK;
}

/* ---- the training ---- */

static void set_zero_outcomes(struct zero_run *r)
{
    struct target *t = r->t;
    const struct training_state *s = &t->source->training;
    if (!t->num_states) return;
    if (training_has(&s->run, TRAINING_PROGRESS))
        t->outcomes[TRAINING_PROGRESS].outcome = OUTCOME_TRANSLATED;
    if (training_has(&s->run, TRAINING_OPTIMIZER))
        t->outcomes[TRAINING_OPTIMIZER].outcome = OUTCOME_TRANSLATED;
    if (zero_plain(s->torch_schedule))
        t->outcomes[TRAINING_SCHEDULE].outcome = OUTCOME_COPIED;
    else if (training_has(&s->run, TRAINING_SCHEDULE))
        t->outcomes[TRAINING_SCHEDULE] = (struct training_outcome){
            OUTCOME_DROPPED, "DeepSpeed's and torch's schedulers take their shape from the run; "
                             "the position is written"};
    if (training_has(&s->run, TRAINING_LOSS_SCALE))
        t->outcomes[TRAINING_LOSS_SCALE] =
            r->dtype == DT_F16
                ? (struct training_outcome){OUTCOME_TRANSLATED, NULL}
                : (struct training_outcome){OUTCOME_DROPPED, "only fp16 runs have one"};
    if (s->run.has_rng)
        t->outcomes[TRAINING_RNG] =
            (struct training_outcome){OUTCOME_DROPPED, "DeepSpeed's files cannot hold it"};
}

/* ---- the run ---- */

static void make_zeros(struct zero_run *r)
{
    struct tensor *z = r->zeros = arena_alloc(arena_of(r), sizeof *z);
    *z = (struct tensor){.name = "optimizer.zeros.padding", .dtype = DT_F32, .num_dims = 1};
}

enum status zero_run_begin(struct target *t, struct zero_run **out, struct error *err)
{
    struct zero_run *r = *out = arena_alloc(&t->plan.arena, sizeof *r);
    const struct checkpoint *c = t->source;
    *r = (struct zero_run){.t = t, .dp = t->options.dp ? t->options.dp : max_u64(c->dp, 1)};
    native_outputs_init(&r->native, t);
    t->state = r;
    t->widens_states = true;
    r->stage = t->options.zero >= 0 ? (unsigned)t->options.zero : c->has_zero ? c->zero : 1;
    r->iteration = t->options.iteration = target_iteration(t);
    TRY(hf_model_check_export(t, err));
    TRY(hf_model_make_config(t, &r->config, err));
    TRY(target_take_states(t, true, err));
    r->iteration = t->options.iteration = target_iteration(t);
    TRY(hf_model_export(t, add_zero_output, r, err));
    TRY(native_outputs_check(&r->native, err));
    r->dtype = native_outputs_main_dtype(&r->native);
    list_zero_params(r);
    find_tied(r);
    TRY(add_groups(r, err));
    make_zeros(r);
    set_zero_outcomes(r);
    t->facts.num_target_tensors = r->native.out.count;
    t->facts.masters_alone = r->stage == 3;
    return OK;
}

void zero_run_end(struct zero_run *r)
{
    struct tensor *z = r->zeros;
    const struct piece piece = {.origin = ORIGIN_ZERO, .dtype = z->dtype};
    const struct pair whole = pair_whole(0, 0, z->numel);
    z->shape = arena_copy(arena_of(r), &z->numel, sizeof z->numel);
    if (z->numel) tensor_add_piece(arena_of(r), z, &piece, &whole);
}

void zero_run_release(struct target *t)
{
    struct zero_run *r = t->state;
    for (size_t i = 0; i < r->num_archives; i++)
        archive_release(r->archives[i]);
    cJSON_Delete(r->config);
    native_outputs_release(&r->native);
}

enum status zero_small_files(struct target *t, const char *folder, struct error *err)
{
    const struct zero_run *r = t->state;
    return hf_model_write_config(t, r->config, NULL, r->dtype, folder, err);
}

enum status zero_root_files(struct target *t, const char *tracker, struct root_file **files,
                            size_t *num_files)
{
    struct arena *a = &t->plan.arena;
    *files = arena_array(a, 2, sizeof **files);
    (*files)[0] = (struct root_file){.name = record_name,
                                     .link = arena_printf(a, "%s/%s", t->unit, record_name)};
    (*files)[1] =
        (struct root_file){.name = tracker, .bytes = t->unit, .num_bytes = strlen(t->unit)};
    *num_files = 2;
    return OK;
}

/* ---- files ---- */

struct torch_archive *zero_file(struct zero_run *r, const char *path)
{
    struct torch_archive *x = arena_alloc(arena_of(r), sizeof *x);
    *ARENA_PUSH(arena_of(r), r->archives, r->num_archives, r->archives_capacity) = x;
    archive_begin(x, &r->t->plan, path);
    r->t->facts.num_weight_files++;
    return x;
}

/* torch.save names the archive's folder after the file. */
enum status zero_file_end(struct zero_run *r, struct torch_archive *x, const struct value *root,
                          struct error *err)
{
    const char *base = path_base(arena_of(r), r->t->plan.files[x->file].path);
    const char *stem = arena_text(arena_of(r), base, strcspn(base, "."));
    return archive_lay_out(x, stem, root, err);
}

struct value *zero_tensor(struct zero_run *r, struct torch_archive *x, enum dtype dtype,
                          unsigned num_dims, const uint64_t *shape, uint32_t *segment)
{
    bool empty = false;
    (void)r;
    for (unsigned d = 0; d < num_dims; d++)
        empty |= shape[d] == 0;
    if (empty) return archive_bytes(x, dtype, num_dims, shape, "");
    return archive_tensor(x, dtype, num_dims, shape, segment);
}

struct value *zero_scalar(struct zero_run *r, struct torch_archive *x, float number)
{
    return archive_bytes(x, DT_F32, 0, NULL, arena_copy(arena_of(r), &number, sizeof number));
}

enum status zero_whole(struct zero_run *r, struct torch_archive *x, size_t at, enum dtype dtype,
                       struct value **out, struct error *err)
{
    const struct out_tensor *o = &r->native.out.items[at];
    uint32_t segment = 0;
    *out = zero_tensor(r, x, dtype, o->num_dims, o->shape, &segment);
    return o->numel ? zero_fill(r, at, 0, o->numel, 0, segment, err) : OK;
}

enum status zero_fill(struct zero_run *r, size_t at, uint64_t begin, uint64_t count, uint64_t place,
                      uint32_t segment, struct error *err)
{
    const uint64_t numel = r->native.out.items[at].numel;
    const uint64_t there = begin < numel ? min_u64(count, numel - begin) : 0;
    const struct pair pair = pair_whole(begin, place, there);
    if (there) TRY(native_outputs_fill(&r->native, at, &pair, segment, err));
    zero_fill_padding(r, place + there, count - there, segment);
    return OK;
}

void zero_fill_padding(struct zero_run *r, uint64_t place, uint64_t count, uint32_t segment)
{
    const struct pair pair = pair_whole(0, place, count);
    if (!count) return;
    if (r->zeros->numel < count) r->zeros->numel = count;
    plan_add_piece(&r->t->plan, r->zeros, segment, &pair);
}

/* ---- values ---- */

struct value *zero_param_group(struct zero_run *r, const struct zero_group *g, struct value *params)
{
    struct arena *a = arena_of(r);
    const struct value *from = torch_group_value(a, g->of);
    struct value *dict = value_dict(a);
    for (uint32_t i = 0; i < from->count; i++) {
        struct value *key = from->items[2 * i], *v = from->items[2 * i + 1];
        const char *name = value_as_text(key);
        /* names of its parameters (since torch 2.6); here it has one flat
         * vector */
        if (!name || strcmp(name, "param_names") == 0 || !zero_plain(v)) continue;
        value_dict_set(a, dict, name, v);
    }
    value_dict_set(a, dict, "params", params);
    return dict;
}

void zero_add_loss_scale(struct zero_run *r, struct value *dict)
{
    struct arena *a = arena_of(r);
    const bool is_dynamic = r->dtype == DT_F16;
    value_dict_add(a, dict, "loss_scaler",
                   zero_loss_scaler(a, is_dynamic, &r->t->source->training.run));
    value_dict_add(a, dict, "dynamic_loss_scale", value_bool(a, is_dynamic));
    value_dict_add(a, dict, "overflow", value_bool(a, false));
}

struct value *zero_config(struct zero_run *r)
{
    struct arena *a = arena_of(r);
    struct value *config = value_dict(a), *zero = value_dict(a);
    static const struct {
        const char *key;
        enum dtype dtype;
    } precisions[] = {{"bf16", DT_BF16}, {"fp16", DT_F16}};
    value_dict_add(a, zero, "stage", value_int(a, r->stage));
    value_dict_add(a, config, "zero_optimization", zero);
    for (size_t i = 0; i < 2; i++) {
        struct value *enabled = value_dict(a);
        value_dict_add(a, enabled, "enabled", value_bool(a, r->dtype == precisions[i].dtype));
        value_dict_add(a, config, precisions[i].key, enabled);
    }
    return config;
}
