#include "convert/states.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/masters.h"
#include "common/count.h"
#include "common/text.h"

enum { MAX_STATE_BYTES = 64 };

const char master_state[] = "param";

bool state_is_valid(const char *state)
{
    const size_t length = strlen(state);
    return length && length <= MAX_STATE_BYTES && !strchr(state, '.');
}

const char *state_name(struct arena *a, const char *state, const char *parameter)
{
    return arena_printf(a, "optimizer.%s.%s", state, parameter);
}

static bool is_among(const char *const *list, size_t count, const char *state, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(list[i], state, length) == 0 && !list[i][length]) return true;
    return false;
}

static int by_rank(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    const bool master_x = strcmp(x, master_state) == 0, master_y = strcmp(y, master_state) == 0;
    return master_x != master_y ? master_y - master_x : strcmp(x, y);
}

size_t states_list(const struct catalog *c, struct arena *a, const char ***out)
{
    size_t count = 0, capacity = 0, length;
    const char **list = NULL, *state;
    for (size_t i = 0; i < c->num_tensors && count <= MAX_STATES; i++) {
        if (!name_of_state(c->tensors[i].name, &state, &length)) continue;
        if (!is_among(list, count, state, length))
            *ARENA_PUSH(a, list, count, capacity) = arena_text(a, state, length);
    }
    if (count) qsort(list, count, sizeof *list, by_rank);
    *out = list;
    return count;
}

void states_unread(struct checkpoint *c, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    if (c->training.optimizer.unread) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    c->training.optimizer.unread = arena_copy_text(&c->arena, text);
}

/* ---- completing ---- */

/* Whether the parameter has any state of the list. */
static bool has_states(const struct catalog *c, struct arena *scratch, const char *parameter,
                       const char *const *states, size_t num_states)
{
    for (size_t i = 0; i < num_states; i++)
        if (catalog_find(c, state_name(scratch, states[i], parameter))) return true;
    return false;
}

bool weight_is_its_master(enum dtype weight)
{
    return dtype_is_float(weight) && dtype_bytes(weight) >= dtype_bytes(DT_F32);
}

/* Adds a tensor of the catalog's tensor i, in dtype, as its master. */
static enum status add_master(struct checkpoint *c, size_t i, enum dtype dtype, struct error *err)
{
    struct tensor *master;
    const struct tensor *weight = &c->catalog.tensors[i];
    const char *name = state_name(&c->arena, master_state, weight->name);
    TRY(catalog_add(&c->catalog, name, dtype, weight->num_dims, weight->shape, &master, err));
    weight = &c->catalog.tensors[i]; /* the array may have moved */
    master->same_as = weight->name;
    master->stored_name = weight->stored_name;
    tensor_add_pieces(&c->arena, master, weight);
    return OK;
}

/* States, besides the master, of an optimizer's parameters. */
struct optimizer_states {
    const char *optimizer;
    bool has[MAX_STATES];
};
enum { MAX_OPTIMIZERS = 4 };

struct completing {
    struct checkpoint *c;
    struct arena scratch;
    const char **states;
    size_t num_states;
    bool is_split; /* hidden matrices have another optimizer than the rest */
    struct optimizer_states optimizers[MAX_OPTIMIZERS];
    size_t num_optimizers;
    const char *first_without, *first_partly, *first_lacked;
    size_t without, partly; /* parameters without states; with some only */
};

/* Whether the parameter has a state, as its own tensor. */
static bool has_state(struct completing *x, const char *state, const char *parameter)
{
    return catalog_find(&x->c->catalog, state_name(&x->scratch, state, parameter)) != NULL;
}

/* The parameters' optimizer, by their groups; NULL: all have the same. */
static const char *optimizer_of(const struct completing *x, const struct tensor *t)
{
    const struct training *run = &x->c->training.run;
    struct param p;
    const struct param_group *g = NULL;
    if (!x->is_split) return NULL;
    if (param_find(x->c->params, t->name, &p) && param_of_expert(p.spec))
        g = training_group_of(run, t->name, t->num_dims, true);
    if (!g) g = training_group_of(run, t->name, t->num_dims, false);
    return g ? g->optimizer : NULL;
}

/* Lists the states of each optimizer.
 *
 * A parameter has all, or none. */
static void list_optimizers(struct completing *x)
{
    for (size_t i = 0; i < x->c->catalog.num_tensors; i++) {
        const struct tensor *t = &x->c->catalog.tensors[i];
        size_t at = 0;
        if (name_is_optimizer(t->name) || name_is_padding(t->name)) continue;
        const char *optimizer = optimizer_of(x, t);
        while (at < x->num_optimizers && !text_equal(x->optimizers[at].optimizer, optimizer))
            at++;
        if (at == MAX_OPTIMIZERS) continue;
        if (at == x->num_optimizers) x->optimizers[x->num_optimizers++].optimizer = optimizer;
        for (size_t k = 0; k < x->num_states; k++)
            x->optimizers[at].has[k] |=
                strcmp(x->states[k], master_state) && has_state(x, x->states[k], t->name);
    }
}

/* A state that others of its optimizer have, and a parameter with states lacks;
 * NULL: none. */
static const char *lacked_state(struct completing *x, const struct tensor *t)
{
    const char *optimizer = optimizer_of(x, t);
    for (size_t at = 0; at < x->num_optimizers; at++)
        for (size_t k = 0; k < x->num_states; k++)
            if (text_equal(x->optimizers[at].optimizer, optimizer) && x->optimizers[at].has[k] &&
                !has_state(x, x->states[k], t->name))
                return x->states[k];
    return NULL;
}

/* Refuses states of an optimizer that lacks one of all its parameters. */
static void check_optimizers(struct completing *x)
{
    static const struct {
        const char *optimizer, *state;
    } needed[] = {{"adam", "exp_avg"},
                  {"adam", "exp_avg_sq"},
                  {"lion", "exp_avg"},
                  {"muon", "momentum_buffer"}};
    for (size_t n = 0; n < COUNT(needed); n++)
        for (size_t at = 0; at < x->num_optimizers; at++) {
            bool has = false;
            if (!text_equal(x->optimizers[at].optimizer, needed[n].optimizer)) continue;
            for (size_t k = 0; k < x->num_states; k++)
                has |= x->optimizers[at].has[k] && strcmp(x->states[k], needed[n].state) == 0;
            if (!has)
                states_unread(x->c, "%s of the parameters that %s has is in no file",
                              needed[n].state, needed[n].optimizer);
        }
}

/* Whether a parameter, neither a buffer nor rows of padding. */
static bool is_trained(const struct checkpoint *c, const char *name)
{
    struct param p;
    return !name_is_padding(name) &&
           !(c->params && param_find(c->params, name, &p) && p.spec->buffer);
}

/* Completes the states of a parameter, or of its rows of padding. */
static enum status complete_states(struct completing *x, size_t i, struct error *err)
{
    const struct tensor *t = &x->c->catalog.tensors[i];
    const bool has = has_states(&x->c->catalog, &x->scratch, t->name, x->states, x->num_states);
    if (!has && is_trained(x->c, t->name))
        if (!x->without++) x->first_without = t->name;
    const char *lacked = has && is_trained(x->c, t->name) ? lacked_state(x, t) : NULL;
    if (lacked && !x->partly++) {
        x->first_partly = t->name;
        x->first_lacked = lacked;
    }
    if (has && weight_is_its_master(t->dtype) && !has_state(x, master_state, t->name))
        return add_master(x->c, i, t->dtype, err);
    return OK;
}

static bool may_have_states(const char *name)
{
    return !name_is_optimizer(name) && !name_is_of_encoding(name) && !name_is_carried(name);
}

enum status states_complete(struct checkpoint *c, struct error *err)
{
    struct completing x = {.c = c};
    const size_t count = c->catalog.num_tensors;
    enum status st = OK;
    arena_init(&x.scratch);
    x.num_states = states_list(&c->catalog, &x.scratch, &x.states);
    if (x.num_states > MAX_STATES) {
        states_unread(c, "more than %d kinds of state, such as %s and %s", MAX_STATES, x.states[0],
                      x.states[1]);
        x.num_states = 0;
    }
    x.is_split = c->params && training_is_split(&c->training.run);
    if (x.num_states) list_optimizers(&x);
    if (x.is_split && x.num_states) check_optimizers(&x);
    for (size_t i = 0; i < count && x.num_states && !st; i++)
        if (may_have_states(c->catalog.tensors[i].name)) st = complete_states(&x, i, err);
    if (!x.num_states && c->training.optimizer.present)
        states_unread(c, "it holds no state of a parameter");
    if (x.partly && x.is_split)
        states_unread(c, "%s has no %s, which other parameters of its optimizer have",
                      x.first_partly, x.first_lacked);
    else if (x.partly && !st)
        checkpoint_note(c, "%zu parameter%s some optimizer states: %s%s", x.partly,
                        x.partly == 1 ? " lacks" : "s lack", x.first_partly,
                        x.partly > 1 ? ", ..." : "");
    if (x.without && x.num_states && !st && !c->training.optimizer.unread)
        checkpoint_note(c, "%zu %s%s no optimizer state, like frozen parameters%s: %s%s", x.without,
                        c->params ? "parameter" : "tensor", x.without == 1 ? " has" : "s have",
                        c->params ? "" : " and buffers", x.first_without,
                        x.without > 1 ? ", ..." : "");
    arena_release(&x.scratch);
    return st;
}

enum status states_widen(struct checkpoint *c, const struct catalog *other, size_t *num_made,
                         struct error *err)
{
    struct arena scratch;
    const char **states;
    const size_t count = c->catalog.num_tensors;
    enum status st = OK;
    arena_init(&scratch);
    const size_t num_states = states_list(&c->catalog, &scratch, &states);
    *num_made = 0;
    for (size_t i = 0; i < count && !st; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        const char *name = state_name(&scratch, master_state, t->name);
        const struct tensor *master = catalog_find(other, name);
        if (!master || dtype_bytes(master->dtype) <= dtype_bytes(t->dtype) ||
            catalog_find(&c->catalog, name) ||
            !has_states(&c->catalog, &scratch, t->name, states, num_states))
            continue;
        st = add_master(c, i, master->dtype, err);
        ++*num_made;
    }
    arena_release(&scratch);
    return st;
}

enum status states_prove(struct checkpoint *c, struct error *err)
{
    struct masters_result r;
    const struct optimizer_info *o = &c->training.optimizer;
    if (!o->inferred || o->unread) return OK;
    if (o->remainders && !o->placed)
        states_unread(c, "its masters are remainders, which round to any weight, and nothing else "
                         "proves which parameter they belong to");
    TRY(masters_compare(&c->catalog, &(struct masters_options){0}, &r, err));
    if (r.differ)
        states_unread(
            c,
            "%zu of %zu weights are not their master weights rounded (%s at element %" PRIu64
            "), so states cannot be assigned to parameters",
            r.differ, r.compared, r.first, r.at);
    return OK;
}
