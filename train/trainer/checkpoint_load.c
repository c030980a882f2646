/* checkpoint_load.c - a run's state from any checkpoint: loads weights, makes
 * states from them, then loads the states that are there. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "convert/states.h"
#include "kernels/cpu/cast.h"
#include "train/model/bind.h"
#include "train/trainer/checkpoint_internal.h"

struct loading {
    const struct train_state *s;
    const struct checkpoint *c;
    const struct checkpoint_load_options *o;
    bool has_states; /* to load */
    bool sgd;
    struct load_target *targets; /* on the heap */
    size_t num_targets, capacity;
    struct checkpoint_loaded *out;
    struct arena *arena; /* names */
};

/* ---- targets ---- */

struct adding {
    struct loading *l;
    const struct tensor *tensor;
    enum held_kind kind;
    enum dtype dtype; /* there */
};

static enum status add_target(void *context, const struct held_part *part, struct error *err)
{
    const struct adding *x = context;
    struct loading *l = x->l;
    (void)err;
    if (l->num_targets == l->capacity) {
        l->capacity = 2 * l->capacity + 64;
        l->targets = must_realloc(l->targets, l->capacity * sizeof *l->targets);
    }
    l->targets[l->num_targets++] = (struct load_target){x->tensor, part->pair, x->dtype,
                                                        held_at(l->s, x->kind, x->dtype, part->at)};
    return OK;
}

/* Adds targets for elements of the padded tensor from `first` on: `count` of
 * them, or as many as `from` has. */
static enum status add_targets(struct loading *l, const struct held_tensor *t,
                               const struct tensor *from, enum held_kind kind, uint64_t first,
                               uint64_t count, struct error *err)
{
    struct adding x = {l, from, kind, held_dtype(l->s, t, kind)};
    return held_each_part(l->s, t, kind, first, min_u64(count, from->numel), add_target, &x, err);
}

static const struct tensor *find_source_tensor(struct loading *l, const struct held_tensor *t,
                                               const char *state, bool padding)
{
    return catalog_find(&l->c->catalog, held_name(t, state, padding, l->arena));
}

static enum status check_shape(struct loading *l, const struct held_tensor *t,
                               const struct tensor *x, struct error *err)
{
    const struct param_spec *spec = t->of->spec;
    if (x->num_dims == spec->num_dims &&
        memcmp(x->shape, spec->shape, x->num_dims * sizeof *x->shape) == 0)
        return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: %s has shape %s, the model needs %s", l->c->path,
                x->name, shape_text(l->arena, x->num_dims, x->shape),
                shape_text(l->arena, spec->num_dims, spec->shape));
}

/* Adds the stored rows of padding too. */
static enum status add_tensor_targets(struct loading *l, const struct held_tensor *t,
                                      const struct tensor *from, const char *state,
                                      enum held_kind kind, struct error *err)
{
    TRY(check_shape(l, t, from, err));
    TRY(add_targets(l, t, from, kind, 0, t->numel, err));
    const struct tensor *padding = t->padding_numel ? find_source_tensor(l, t, state, true) : NULL;
    if (!padding && t->padding_numel && kind == HELD_WEIGHT)
        padding = find_source_tensor(l, t, NULL, true);
    if (!padding) return OK;
    return add_targets(l, t, padding, kind, t->numel, t->padding_numel, err);
}

/* Loads a weight from its master if the stored weight would be cast. */
static enum status add_weight_targets(void *context, const struct held_tensor *t, struct error *err)
{
    struct loading *l = context;
    const struct tensor *weight = find_source_tensor(l, t, NULL, false);
    if (!weight && bind_may_lack(l->c, t->of)) return OK;
    if (!weight)
        return fail(err, ERR_UNSUPPORTED, "%s: the checkpoint has no tensor %s", l->c->path,
                    t->name);
    const bool cast = weight->dtype != held_dtype(l->s, t, HELD_WEIGHT);
    const struct tensor *master =
        l->has_states && cast ? find_source_tensor(l, t, master_state, false) : NULL;
    return master ? add_tensor_targets(l, t, master, master_state, HELD_WEIGHT, err)
                  : add_tensor_targets(l, t, weight, NULL, HELD_WEIGHT, err);
}

static void count_made(struct loading *l, const struct held_tensor *t, enum held_kind kind)
{
    if (!l->out->made[kind]++) l->out->first[kind] = t->name;
}

static enum status add_state_targets(void *context, const struct held_tensor *t, struct error *err)
{
    struct loading *l = context;
    for (int k = HELD_MASTER; k < NUM_HELD; k++) {
        const enum held_kind kind = (enum held_kind)k;
        const char *state = held_state(kind, l->sgd);
        if (!l->s->data[k] || !held_is_trained(t)) continue;
        const struct tensor *from = l->has_states ? find_source_tensor(l, t, state, false) : NULL;
        if (from)
            TRY(add_tensor_targets(l, t, from, state, kind, err));
        else
            count_made(l, t, kind);
    }
    return OK;
}

static enum status run_load(struct loading *l, struct error *err)
{
    struct load_result result;
    enum status st =
        load_run(&l->c->catalog, l->targets, l->num_targets, &l->o->load, &result, err);
    l->num_targets = 0;
    return st;
}

/* ---- states that are made ---- */

struct making {
    const struct train_state *s;
    const struct held_tensor *t;
};

static enum status make_run(void *context, const struct held_run *r, struct error *err)
{
    const struct making *m = context;
    const struct train_state *s = m->s;
    (void)err;
    if (s->data[HELD_MASTER])
        (void)cast_elements(held_at(s, HELD_MASTER, s->dtype[HELD_MASTER], r->at),
                            s->dtype[HELD_MASTER],
                            held_at(s, HELD_WEIGHT, s->dtype[HELD_WEIGHT], m->t->first + r->first),
                            s->dtype[HELD_WEIGHT], r->count);
    for (int k = HELD_EXP_AVG; k < NUM_HELD; k++)
        if (s->data[k])
            memset(held_at(s, (enum held_kind)k, s->dtype[k], r->at), 0,
                   dtype_run_bytes(s->dtype[k], r->count));
    return OK;
}

/* Makes all states before any are loaded; those that the checkpoint lacks stay. */
static enum status make_states(void *context, const struct held_tensor *t, struct error *err)
{
    const struct loading *l = context;
    struct making m = {l->s, t};
    if (!held_is_trained(t)) return OK;
    return held_each_run(l->s, t, HELD_MASTER, make_run, &m, err);
}

static const char *why_made(const struct loading *l)
{
    if (l->o->no_optimizer) return "the optimizer is not loaded";
    return l->has_states ? "the checkpoint lacks them" : "the checkpoint has no optimizer";
}

/* "the checkpoint has no optimizer: masters are the weights, moments are 0";
 * names parameters if only some lack states. */
static const char *note_made(const struct loading *l)
{
    static const char *const what[NUM_HELD] = {
        [HELD_MASTER] = "masters are the weights",
        [HELD_EXP_AVG] = "first moments are 0",
        [HELD_EXP_AVG_SQ] = "second moments are 0",
    };
    const char *text = NULL;
    for (int k = HELD_MASTER; k < NUM_HELD; k++) {
        const uint64_t n = l->out->made[k];
        if (!n) continue;
        const char *of =
            l->has_states ? arena_printf(l->arena, " of %" PRIu64 " parameter%s (%s%s)", n,
                                         n == 1 ? "" : "s", l->out->first[k], n == 1 ? "" : ", ...")
                          : "";
        text = text ? arena_printf(l->arena, "%s, %s%s", text, what[k], of)
                    : arena_printf(l->arena, "%s: %s%s", why_made(l), what[k], of);
    }
    return text;
}

/* ---- all ---- */

static enum status check_optimizer(const struct loading *l, struct error *err)
{
    const struct optimizer_info *has = &l->c->training.optimizer;
    if (!has->present || l->o->no_optimizer) return OK;
    if (has->shifted && !l->o->allow_shifted)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %s, are shifted: a run would go on from other weights; "
                    "--no-load-optim leaves the optimizer out, --allow-shifted goes on",
                    l->c->path, has->shifted);
    if (!has->unread) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: its optimizer (%s) cannot be read: %s; --no-load-optim leaves it out",
                l->c->path, has->kind ? has->kind : "unknown kind", has->unread);
}

static enum status load_regions(struct loading *l, struct error *err)
{
    TRY(check_optimizer(l, err));
    TRY(held_each(l->s, add_weight_targets, l, err));
    TRY(run_load(l, err));
    TRY(held_each(l->s, make_states, l, err));
    TRY(held_each(l->s, add_state_targets, l, err));
    return l->num_targets ? run_load(l, err) : OK;
}

/* The iteration is in one of two places. */
static void take_training(struct loading *l)
{
    struct checkpoint_loaded *out = l->out;
    out->training = training_copy(&l->c->training.run, l->arena);
    if (!out->training.iteration && l->c->training.iteration > 0)
        out->training.iteration = (uint64_t)l->c->training.iteration;
}

enum status checkpoint_load(const struct train_state *s, const struct checkpoint *c,
                            const struct checkpoint_load_options *o, struct checkpoint_loaded *out,
                            struct arena *a, struct error *err)
{
    const struct training *run_of = s->training ? s->training : &c->training.run;
    struct loading l = {.s = s, .c = c, .o = o, .out = out, .arena = a};
    *out = (struct checkpoint_loaded){.has_optimizer = false};
    l.has_states = c->training.optimizer.present && !o->no_optimizer;
    l.sgd = held_is_sgd(run_of);
    enum status st = load_regions(&l, err);
    free(l.targets);
    if (st) return st;
    out->has_optimizer = l.has_states;
    out->has_schedule = !o->no_optimizer && training_has(&c->training.run, TRAINING_SCHEDULE);
    out->note = note_made(&l);
    for (size_t i = 0; i < c->catalog.num_tensors; i++)
        out->num_left += name_is_of_encoding(c->catalog.tensors[i].name);
    take_training(&l);
    return OK;
}
