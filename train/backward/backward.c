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

/* ---- gradients of parameters ---- */

static value_id find_held(const struct walk *w, uint32_t source)
{
    for (size_t i = w->num_values; i < w->p->num_values; i++) {
        const struct program_value *v = &w->p->values[i];
        if (v->class == VALUE_GRADIENT && v->source == source) return (value_id)i;
    }
    return NO_VALUE;
}

/* It has the parameter's shape, and its place in a region of another type. */
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

struct held_gradient walk_parameter(struct walk *w, value_id parameter)
{
    struct held_gradient g = {NO_VALUE, NO_VALUE};
    if (!walk_is_parameter(w, parameter)) return g;
    g.into = find_held(w, w->p->values[parameter].source);
    if (g.into == NO_VALUE) g.into = add_held(w, parameter);
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
    if (w->st) { /* placeholders: the program is never run */
        for (unsigned i = 0; i < MAX_OUTPUTS; i++)
            if (e.out[i]) *e.out[i] = w->call.in[0];
    }
    return *e.out[0];
}

/* ---- the walk ---- */

static bool has_gradient(const struct walk *w, const struct call *c)
{
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        if (walk_output(w, c, i) != NO_VALUE) return true;
    return c->op == OP_TOKEN_LOSS && c->out[0] == w->b->loss;
}

static void walk_back(struct walk *w)
{
    for (size_t k = w->num_calls; k-- > 0 && !w->st;) {
        w->call = w->p->calls[k];
        if (!has_gradient(w, &w->call)) continue;
        rule_function *rule = backward_rule(w->call.op);
        if (rule)
            rule(w, &w->call);
        else
            w->st = fail(w->err, ERR_UNSUPPORTED, "%s: %s has no gradient", w->call.label,
                         op_row(w->call.op)->name);
    }
}

/* Every parameter that the forward calls read. */
static void check_parameters(struct walk *w)
{
    for (size_t i = 0; i < w->num_values && !w->st; i++)
        if (walk_is_parameter(w, (value_id)i) && !w->written[i])
            w->st = fail(w->err, ERR_OURS, "%s: no call makes its gradient", w->p->values[i].name);
}

enum status backward_make(struct program *p, const struct backward *b, size_t *forward_calls,
                          struct error *err)
{
    struct arena scratch;
    arena_init(&scratch);
    struct walk w = {.p = p,
                     .b = b,
                     .num_values = p->num_values,
                     .num_calls = p->num_calls,
                     .gradients = arena_array(&scratch, p->num_values + 1, sizeof(value_id)),
                     .written = arena_array(&scratch, p->num_values + 1, sizeof(bool)),
                     .err = err};
    memset(w.gradients, 0xff, p->num_values * sizeof *w.gradients); /* NO_VALUE */
    *forward_calls = p->num_calls;
    walk_back(&w);
    check_parameters(&w);
    arena_release(&scratch);
    return w.st ? w.st : program_check(p, err);
}
