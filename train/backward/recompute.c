#include "train/backward/recompute.h"

#include <string.h>

/* A program being rewritten. Arrays are [num_values], for values before it. */
struct rewrite {
    struct program *p;
    struct call *before; /* the calls, [num_before] */
    size_t num_before, num_values;
    bool *dropped;
    value_id *again; /* replacement of a dropped value; NO_VALUE: not made yet */
    uint32_t *maker; /* the forward call that writes a value; UINT32_MAX: none */
};

/* ---- choosing dropped values ---- */

/* Counts of several micro-batches: those of later ones may be added before
 * backward. */
static bool counts_on(const struct call *c)
{
    return c->op == OP_COUNT_EXPERTS && c->in[1] != NO_VALUE;
}

static void drop_output(struct rewrite *w, const struct call *c, unsigned output)
{
    value_id id = c->out[output];
    if (counts_on(c)) return;
    if (id != NO_VALUE && w->p->values[id].class == VALUE_SCRATCH) w->dropped[id] = true;
}

static void drop_modules(struct rewrite *w, const struct call *c, unsigned modules)
{
    if (c->op == OP_ATTENTION && modules & RECOMPUTE_CORE_ATTENTION) {
        drop_output(w, c, 0);
        drop_output(w, c, 1);
    }
    if (c->op == OP_NORM && modules & RECOMPUTE_NORMS) drop_output(w, c, 0);
    if (c->op == OP_ADD_NORM && modules & RECOMPUTE_NORMS) drop_output(w, c, 1);
    if (c->op == OP_ACTIVATION && modules & RECOMPUTE_ACTIVATIONS) drop_output(w, c, 0);
}

/* The program may be a pipeline stage. */
static int first_layer(const struct rewrite *w, size_t forward_calls)
{
    size_t k = 0;
    while (k < forward_calls && w->before[k].layer < 0)
        k++;
    return k < forward_calls ? w->before[k].layer : 0;
}

/* Whether layer `layer` of the program is recomputed; *begins: first of its
 * group. */
static bool is_in_group(const struct recompute_options *o, int layer, bool *begins)
{
    *begins = o->method == RECOMPUTE_BLOCK || (uint64_t)layer % o->num_layers == 0;
    return layer >= 0 && (o->method == RECOMPUTE_UNIFORM || (uint64_t)layer < o->num_layers);
}

static void drop_layers(struct rewrite *w, size_t forward_calls, const struct recompute_options *o)
{
    const int first = first_layer(w, forward_calls);
    int last = -1; /* the layer of the call before */
    for (size_t k = 0; k < forward_calls; k++) {
        const struct call *c = &w->before[k];
        bool begins, is_first = c->layer != last;
        last = c->layer;
        if (!is_in_group(o, c->layer < 0 ? -1 : c->layer - first, &begins)) continue;
        for (unsigned i = 0; i < MAX_OUTPUTS; i++)
            if (!(is_first && begins && c->op == OP_ADD_NORM && i == 0)) drop_output(w, c, i);
    }
}

/* Drops copies that forward calls read; those read by backward alone are made
 * once. */
static void drop_copies(struct rewrite *w, size_t forward_calls)
{
    for (size_t k = 0; k < forward_calls; k++)
        for (unsigned i = 0; i < MAX_INPUTS; i++) {
            const value_id id = w->before[k].in[i];
            const uint32_t maker = id == NO_VALUE ? UINT32_MAX : w->maker[id];
            if (maker == UINT32_MAX) continue;
            if (op_row(w->before[maker].op)->flags & OP_IS_COPY)
                for (unsigned o = 0; o < MAX_OUTPUTS; o++)
                    drop_output(w, &w->before[maker], o);
        }
}

static bool is_stream_norm(const struct call *c)
{
    return c->op == OP_NORM || c->op == OP_ADD_NORM;
}

/* The calls of each layer behind its second norm. */
static void drop_mlps(struct rewrite *w, size_t forward_calls)
{
    int layer = -1;
    unsigned norms = 0;
    for (size_t k = 0; k < forward_calls; k++) {
        const struct call *c = &w->before[k];
        if (c->layer != layer) norms = 0;
        layer = c->layer;
        for (unsigned i = 0; i < MAX_OUTPUTS && norms == 2 && layer >= 0; i++)
            drop_output(w, c, i);
        norms += is_stream_norm(c);
    }
}

static void choose_dropped(struct rewrite *w, size_t forward_calls,
                           const struct recompute_options *o)
{
    if (o->granularity == RECOMPUTE_SELECTIVE && o->modules & RECOMPUTE_MLP)
        drop_mlps(w, forward_calls);
    if (o->granularity == RECOMPUTE_FULL) drop_layers(w, forward_calls, o);
    for (size_t k = 0; k < forward_calls && o->granularity == RECOMPUTE_SELECTIVE; k++)
        if (w->before[k].layer >= 0) drop_modules(w, &w->before[k], o->modules);
    drop_copies(w, forward_calls);
}

/* ---- recomputing ---- */

static value_id copy_value(struct rewrite *w, value_id id)
{
    const struct program_value v = w->p->values[id];
    const char *name = arena_printf(&w->p->arena, "%s again", v.name);
    value_id copy = program_add_value(w->p, VALUE_SCRATCH, v.type, v.num_dims, v.shape, name);
    w->p->values[copy].is_partial = v.is_partial;
    return copy;
}

/* The norm of a kept sum. */
static struct call as_norm(const struct call *c)
{
    struct call norm = *c;
    norm.op = OP_NORM;
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        norm.in[i] = NO_VALUE;
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        norm.out[i] = NO_VALUE;
    norm.in[0] = c->out[0];
    norm.in[1] = c->in[3];
    norm.in[2] = c->in[4];
    norm.out[0] = c->out[1];
    norm.out[1] = c->out[2];
    return norm;
}

static value_id recomputed_value(struct rewrite *w, value_id id);

/* Kept outputs are not written again: nobody reads the copies. */
static void recompute_value(struct rewrite *w, value_id id)
{
    const struct call *made = &w->before[w->maker[id]];
    struct call c = *made;
    if (c.op == OP_ADD_NORM && !w->dropped[c.out[0]]) c = as_norm(made);
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        c.in[i] = recomputed_value(w, c.in[i]);
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        if (c.out[i] == NO_VALUE) continue;
        value_id copy = copy_value(w, c.out[i]);
        if (w->dropped[c.out[i]]) w->again[c.out[i]] = copy;
        c.out[i] = copy;
    }
    c.label = arena_printf(&w->p->arena, "%s.again", made->label);
    *program_add_call(w->p, c.op, c.label, c.layer) = c;
}

static value_id recomputed_view(struct rewrite *w, value_id id)
{
    const struct program_value view = w->p->values[id], base = w->p->values[view.base];
    const value_id again = recomputed_value(w, view.base);
    if (again != view.base && w->again[id] == NO_VALUE)
        w->again[id] = program_add_view(w->p, again, view.offset / (base.bytes / base.shape[0]),
                                        view.shape[0], view.name);
    return again == view.base ? id : w->again[id];
}

/* The value to read instead of `id`. */
static value_id recomputed_value(struct rewrite *w, value_id id)
{
    if (id == NO_VALUE || id >= w->num_values) return id;
    if (w->p->values[id].class == VALUE_VIEW && w->p->values[id].base < w->num_values)
        return recomputed_view(w, id);
    if (!w->dropped[id]) return id;
    if (w->again[id] == NO_VALUE) recompute_value(w, id);
    return w->again[id];
}

/* ---- the whole ---- */

static void find_makers(struct rewrite *w, size_t forward_calls)
{
    memset(w->maker, 0xff, w->num_values * sizeof *w->maker);
    for (size_t k = 0; k < forward_calls; k++)
        for (unsigned i = 0; i < MAX_OUTPUTS; i++)
            if (w->before[k].out[i] != NO_VALUE) w->maker[w->before[k].out[i]] = (uint32_t)k;
}

static void rewrite_backward(struct rewrite *w, size_t forward_calls)
{
    w->p->num_calls = forward_calls;
    for (size_t k = forward_calls; k < w->num_before; k++) {
        struct call c = w->before[k];
        for (unsigned i = 0; i < MAX_INPUTS; i++)
            c.in[i] = recomputed_value(w, c.in[i]);
        *program_add_call(w->p, c.op, c.label, c.layer) = c;
    }
}

enum status recompute(struct program *p, const struct recompute_options *o, size_t forward_calls,
                      struct error *err)
{
    struct arena scratch;
    if (o->granularity == RECOMPUTE_FULL && o->num_layers == 0)
        return fail(err, ERR_USAGE, "--recompute-num-layers 0: expected at least 1");
    arena_init(&scratch);
    struct rewrite w = {.p = p,
                        .num_before = p->num_calls,
                        .num_values = p->num_values,
                        .before =
                            arena_copy(&scratch, p->calls, p->num_calls * sizeof(struct call)),
                        .dropped = arena_array(&scratch, p->num_values + 1, sizeof(bool)),
                        .again = arena_array(&scratch, p->num_values + 1, sizeof(value_id)),
                        .maker = arena_array(&scratch, p->num_values + 1, sizeof(uint32_t))};
    memset(w.again, 0xff, p->num_values * sizeof *w.again); /* NO_VALUE */
    find_makers(&w, forward_calls);
    choose_dropped(&w, forward_calls, o);
    rewrite_backward(&w, forward_calls);
    arena_release(&scratch);
    return program_check(p, err);
}
