#include "convert/states.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/masters.h"

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

struct completing {
    struct checkpoint *c;
    struct arena scratch;
    const char **states;
    size_t num_states;
    const char *first_without, *first_partly;
    size_t without, partly; /* parameters without states; with some only */
};

/* Whether a parameter with states lacks one besides the master. */
static bool lacks_some(struct completing *x, const char *parameter)
{
    for (size_t i = 0; i < x->num_states; i++)
        if (strcmp(x->states[i], master_state) &&
            !catalog_find(&x->c->catalog, state_name(&x->scratch, x->states[i], parameter)))
            return true;
    return false;
}

static bool has_master(struct completing *x, const char *parameter)
{
    return catalog_find(&x->c->catalog, state_name(&x->scratch, master_state, parameter)) != NULL;
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
    if (has && is_trained(x->c, t->name) && lacks_some(x, t->name))
        if (!x->partly++) x->first_partly = t->name;
    if (has && t->dtype == DT_F32 && !has_master(x, t->name))
        return add_master(x->c, i, DT_F32, err);
    return OK;
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
    for (size_t i = 0; i < count && x.num_states && !st; i++)
        if (!name_is_optimizer(c->catalog.tensors[i].name)) st = complete_states(&x, i, err);
    if (!x.num_states && c->training.optimizer.present)
        states_unread(c, "it holds no state of a parameter");
    if (x.partly && !st)
        checkpoint_note(c, "%zu parameter%s some optimizer states: %s%s", x.partly,
                        x.partly == 1 ? " lacks" : "s lack", x.first_partly,
                        x.partly > 1 ? ", ..." : "");
    if (x.without && x.num_states && !st)
        checkpoint_note(c, "%zu parameter%s no optimizer state, like frozen parameters: %s%s",
                        x.without, x.without == 1 ? " has" : "s have", x.first_without,
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
