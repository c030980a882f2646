#include "train/backward/backward_internal.h"

#include <string.h>

/* ---- gradients of values ---- */

bool walk_is_parameter(const struct walk *w, value_id id)
{
    return id != NO_VALUE && w->p->values[id].class == VALUE_PARAMETER;
}

value_id walk_so_far(const struct walk *w, value_id input)
{
    return input == NO_VALUE ? NO_VALUE : w->gradients[input];
}

void walk_replace(struct walk *w, value_id input, value_id gradient)
{
    w->gradients[input] = gradient;
}

value_id walk_output(const struct walk *w, const struct call *c, unsigned output)
{
    return walk_so_far(w, c->out[output]);
}

void walk_give(struct walk *w, value_id input, value_id gradient)
{
    if (input == NO_VALUE || gradient == NO_VALUE) return;
    value_id before = walk_so_far(w, input);
    if (before != NO_VALUE) gradient = CALL(w, OP_ADD, "add", IN(before, gradient));
    walk_replace(w, input, gradient);
}

/* ---- replicated and rank-local values ---- */

/* A view is rank-local if its value is. */
static bool is_rank_local(const struct walk *w, value_id id)
{
    const struct program_value *v = &w->p->values[id];
    return w->rank_local[id] || (v->class == VALUE_VIEW && is_rank_local(w, v->rows_of));
}

/* Whether an operand other than a parameter is rank-local. */
static bool reads_rank_local(const struct walk *w, const struct call *c)
{
    bool rank_local = false;
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        if (c->in[i] != NO_VALUE && !walk_is_parameter(w, c->in[i]))
            rank_local |= is_rank_local(w, c->in[i]);
    return rank_local;
}

/* A call that reads a shard of a parameter gives its ranks partial gradients.
 */
static bool reads_tp_shard(const struct walk *w, const struct call *c)
{
    bool parts = false;
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        parts |= walk_is_parameter(w, c->in[i]) && w->p->values[c->in[i]].tp_sharded;
    return parts;
}

static bool gives_rank_local(const struct walk *w, const struct call *c)
{
    const bool over_tp = c->op >= NUM_OPS && c->collective.group == GROUP_TP;
    if (over_tp && c->op == OP_ALL_REDUCE) return false;
    if (over_tp && c->op == OP_ALL_GATHER) return !c->collective.replicated;
    return over_tp || reads_rank_local(w, c) || reads_tp_shard(w, c);
}

/* Whether an operand was made by a call. */
static bool reads_computed(const struct walk *w, const struct call *c)
{
    bool made = false;
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        if (c->in[i] != NO_VALUE)
            made |= w->p->values[program_home(w->p, c->in[i])].class >= VALUE_OUTPUT;
    return made;
}

/* A collective before each call with rank-local results makes the gradient
 * whole again. */
static void find_rank_local(struct walk *w)
{
    for (size_t i = 0; i < w->num_values; i++)
        w->rank_local[i] = w->p->values[i].class == VALUE_INPUT && w->p->values[i].tp_sharded;
    for (size_t k = 0; k < w->num_calls; k++) {
        const struct call *c = &w->calls[k];
        w->call = *c;
        if (reads_tp_shard(w, c) && reads_computed(w, c) && !reads_rank_local(w, c))
            walk_fail(w, ERR_OURS, "no collective sums this partial gradient");
        for (unsigned i = 0; i < MAX_OUTPUTS; i++)
            if (c->out[i] != NO_VALUE) w->rank_local[c->out[i]] = gives_rank_local(w, c);
    }
}

/* ---- gradients of parameters ---- */

static value_id find_held(const struct walk *w, uint32_t source)
{
    for (size_t i = w->num_values; i < w->p->num_values; i++) {
        const struct program_value *v = &w->p->values[i];
        if (v->class == VALUE_GRADIENT && v->source == source) return (value_id)i;
    }
    return NO_VALUE;
}

/* It has the parameter's shape, and its place in another region. */
static value_id add_held(struct walk *w, value_id parameter)
{
    const struct program_value v = w->p->values[parameter];
    const char *name = arena_printf(&w->p->arena, "gradient of %s", v.name);
    value_id id =
        program_add_value(w->p, VALUE_GRADIENT, w->b->gradient_type, v.num_dims, v.shape, name);
    const uint64_t element = v.offset / operand_bytes_of(OPERAND_ELEM, w->p->elem);
    w->p->values[id].source = v.source;
    w->p->values[id].offset = element * operand_bytes_of(w->b->gradient_type, w->p->elem);
    return id;
}

/* A whole parameter gets its whole gradient only if all ranks do the same with
 * it in the call whose rule runs. */
static unsigned sums_of(const struct walk *w, value_id parameter)
{
    const struct program_value *v = &w->p->values[parameter];
    const bool is_part = !v->tp_sharded && reads_rank_local(w, &w->call);
    return v->sums | (unsigned)(is_part && v->sums & 1u << GROUP_DP) << GROUP_TP;
}

struct held_gradient walk_parameter(struct walk *w, value_id parameter)
{
    struct held_gradient g = {NO_VALUE, NO_VALUE};
    if (!walk_is_parameter(w, parameter)) return g;
    const unsigned sums = sums_of(w, parameter);
    g.into = find_held(w, w->p->values[parameter].source);
    if (g.into == NO_VALUE) {
        g.into = add_held(w, parameter);
        w->p->values[g.into].sums = sums;
    }
    if (w->p->values[g.into].sums != sums)
        walk_fail(w, ERR_OURS, "a parameter's gradient is whole here and partial elsewhere");
    if (w->b->accumulates || w->written[parameter]) g.sum = g.into;
    w->written[parameter] = true;
    return g;
}

/* ---- calls ---- */

void walk_fail(struct walk *w, enum status st, const char *what)
{
    if (!w->st) w->st = fail(w->err, st, "%s: %s", w->call.label, what);
}

value_id walk_call(struct walk *w, unsigned op, const char *suffix, struct emission e)
{
    value_id first = NO_VALUE;
    e.op = op;
    e.label = arena_printf(&w->p->arena, "%s.%s", w->call.label, suffix);
    e.layer = w->call.layer;
    if (!e.out[0]) e.out[0] = &first;
    if (!w->st) w->st = program_emit(w->p, &e, w->err);
    if (w->st) { /* placeholders: the program never runs */
        for (unsigned i = 0; i < MAX_OUTPUTS; i++)
            if (e.out[i]) *e.out[i] = w->call.in[0];
    }
    return *e.out[0];
}

/* ---- the walk ---- */

/* Gradients of views are rows of the gradient of their value. */
static void join_views(struct walk *w, value_id id)
{
    const struct program_value v = w->p->values[id];
    const uint64_t first = v.class == VALUE_VIEW ? v.offset : 0;
    value_id whole = NO_VALUE;
    for (value_id i = 0; i < w->num_values; i++) {
        const struct program_value view = w->p->values[i];
        const value_id part = walk_so_far(w, i);
        if (view.class != VALUE_VIEW || view.rows_of != id || part == NO_VALUE) continue;
        if (whole == NO_VALUE)
            whole = program_add_value(w->p, VALUE_SCRATCH, OPERAND_ELEM, v.num_dims, v.shape,
                                      arena_printf(&w->p->arena, "gradient of %s", v.name));
        if (w->p->values[part].class != VALUE_SCRATCH)
            walk_fail(w, ERR_OURS, "two views have one gradient");
        else
            program_make_view(w->p, part, whole, (view.offset - first) / (v.bytes / v.shape[0]));
    }
    walk_give(w, id, whole);
}

static bool has_gradient(struct walk *w, const struct call *c)
{
    bool has = c->op == OP_WEIGHTED_SUM;
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        if (c->out[i] != NO_VALUE) join_views(w, c->out[i]);
        has |= walk_output(w, c, i) != NO_VALUE;
    }
    return has;
}

/* Passes the gradients of the call's outputs to its inputs. */
static void apply_rule(struct walk *w)
{
    rule_function *rule = backward_rule(w->call.op);
    if (rule)
        rule(w, &w->call);
    else
        w->st = fail(w->err, ERR_UNSUPPORTED, "%s: %s has no gradient", w->call.label,
                     op_row(w->call.op)->name);
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        if (w->call.out[i] != NO_VALUE) walk_replace(w, w->call.out[i], NO_VALUE);
}

/* Forward calls [first, end) */
static void walk_back(struct walk *w, size_t first, size_t end)
{
    for (size_t k = end; k-- > first && !w->st;) {
        w->call = w->calls[k];
        if (has_gradient(w, &w->call)) apply_rule(w);
    }
}

/* Adds the calls of each chunk, and their gradients behind them. */
static void walk_head(struct walk *w)
{
    const size_t head = w->b->head;
    if (!w->b->head_chunks) return;
    const size_t chunk = (w->num_calls - head) / w->b->head_chunks;
    w->p->num_calls = head;
    for (size_t first = head; first < w->num_calls; first += chunk) {
        for (size_t k = first; k < first + chunk; k++)
            *program_add_call(w->p, w->calls[k].op, w->calls[k].label, -1) = w->calls[k];
        walk_back(w, first, first + chunk);
    }
}

/* Every parameter read by forward calls needs a gradient. */
static void check_parameters(struct walk *w)
{
    for (size_t i = 0; i < w->num_values && !w->st; i++)
        if (walk_is_parameter(w, (value_id)i) && !w->written[i])
            w->st = fail(w->err, ERR_OURS, "%s: no call makes its gradient", w->p->values[i].name);
}

/* The gradient for the previous stage lives until the next run. */
static value_id take_in_gradient(struct walk *w)
{
    const value_id id = walk_so_far(w, w->b->stage.in);
    if (id != NO_VALUE && w->p->values[id].class == VALUE_SCRATCH)
        w->p->values[id].class = VALUE_OUTPUT;
    return id;
}

static enum status refuse_codes(const struct program *p, struct error *err)
{
    for (size_t i = 0; i < p->num_values; i++)
        if (p->values[i].coding)
            return fail(err, ERR_UNSUPPORTED, "%s: a weight that stays coded has no gradient",
                        p->values[i].name);
    return OK;
}

enum status backward_make(struct program *p, const struct backward *b, size_t *forward_calls,
                          value_id *in_gradient, struct error *err)
{
    struct arena scratch;
    TRY(refuse_codes(p, err));
    arena_init(&scratch);
    struct walk w = {.p = p,
                     .b = b,
                     .num_values = p->num_values,
                     .num_calls = p->num_calls,
                     .calls = arena_copy(&scratch, p->calls, p->num_calls * sizeof *p->calls),
                     .gradients = arena_array(&scratch, p->num_values + 1, sizeof(value_id)),
                     .written = arena_array(&scratch, p->num_values + 1, sizeof(bool)),
                     .rank_local = arena_array(&scratch, p->num_values + 1, sizeof(bool)),
                     .err = err};
    memset(w.gradients, 0xff, p->num_values * sizeof *w.gradients); /* NO_VALUE */
    *forward_calls = b->head;
    find_rank_local(&w);
    walk_give(&w, b->stage.out, b->stage.out_gradient);
    walk_head(&w);
    walk_back(&w, 0, b->head);
    *in_gradient = take_in_gradient(&w);
    check_parameters(&w);
    arena_release(&scratch);
    return w.st ? w.st : program_check(p, err);
}
