#include "train/engine/program.h"
#include "common/count.h"

#include <inttypes.h>
#include <string.h>

void program_init(struct program *p, enum elem_type elem, const struct groups *groups)
{
    *p = (struct program){.elem = elem, .groups = groups};
    arena_init(&p->arena);
}

void program_release(struct program *p)
{
    arena_release(&p->arena);
}

value_id program_add_value(struct program *p, enum value_class class, enum operand_type type,
                           unsigned num_dims, const uint64_t *shape, const char *name)
{
    value_id id = (value_id)p->num_values;
    struct program_value *v = ARENA_PUSH(&p->arena, p->values, p->num_values, p->values_capacity);
    *v = (struct program_value){.name = arena_copy_text(&p->arena, name),
                                .class = class,
                                .type = type,
                                .num_dims = num_dims,
                                .bytes = operand_bytes_of(type, p->elem)};
    for (unsigned d = 0; d < num_dims; d++) {
        v->shape[d] = shape[d];
        v->bytes *= shape[d];
    }
    return id;
}

struct call *program_add_call(struct program *p, unsigned op, const char *label, int layer)
{
    struct call *c = ARENA_PUSH(&p->arena, p->calls, p->num_calls, p->calls_capacity);
    *c = (struct call){.op = op, .label = label, .layer = layer, .workspace = NO_VALUE};
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        c->in[i] = NO_VALUE;
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        c->out[i] = NO_VALUE;
    return c;
}

struct operand program_operand(const struct program *p, value_id id)
{
    struct operand o = {0};
    if (id == NO_VALUE) return o;
    const struct program_value *v = &p->values[id];
    o.type = v->type;
    o.num_dims = v->num_dims;
    memcpy(o.shape, v->shape, sizeof o.shape);
    return o;
}

static void operands_of(const struct program *p, const value_id *ids, unsigned count,
                        struct operand *to)
{
    for (unsigned i = 0; i < count; i++)
        to[i] = program_operand(p, ids[i]);
}

/* Sizes that are known before any operand is read. */
static struct op_sizes sizes_of_group(const struct program *p, unsigned op,
                                      const struct collective *c)
{
    struct op_sizes s = {0};
    if (op >= NUM_OPS) (void)op_size_set(&s, 'G', p->groups->of[c->group].size);
    return s;
}

/* ---- emitting ---- */

/* Whether some rows of the outputs stay as they are. */
static bool is_partial(const struct program *p, const struct emission *e)
{
    const struct op_row *row = op_row(e->op);
    bool has_counts = true;
    for (unsigned i = 0; i < row->num_in; i++)
        if (row->in[i].optional && strcmp(row->in[i].name, "counts") == 0)
            has_counts = i < e->num_in && e->in[i] != NO_VALUE;
    if (row->flags & OP_PARTIAL_OF_PARTIAL) return p->values[e->in[0]].is_partial;
    return row->flags & OP_PARTIAL_ROWS && has_counts;
}

static bool has_home(const struct emission *e, unsigned i)
{
    return e->into[i] && *e->into[i] != NO_VALUE;
}

/* Before outputs are inferred: types, and the sizes that values to be written into have. */
static void prepare_outputs(const struct program *p, const struct emission *e,
                            struct op_sizes *sizes, struct operand *out, unsigned *wanted)
{
    const struct op_row *row = op_row(e->op);
    for (unsigned i = 0; i < row->num_out; i++) {
        out[i].type = e->type;
        *wanted |= (unsigned)(e->out[i] != NULL || has_home(e, i)) << i;
        if (!has_home(e, i)) continue;
        const struct program_value *v = &p->values[*e->into[i]];
        out[i].type = v->type;
        for (unsigned d = 0; d < row->out[i].num_dims && d < v->num_dims; d++)
            (void)op_size_set(sizes, row->out[i].dims[d], v->shape[d]);
    }
}

static value_id add_output(struct program *p, const struct emission *e, unsigned i,
                           const struct operand *o, bool partial)
{
    const struct op_row *row = op_row(e->op);
    const char *name =
        row->num_out == 1 ? e->label : arena_printf(&p->arena, "%s.%s", e->label, row->out[i].name);
    if (has_home(e, i)) return *e->into[i];
    value_id id = program_add_value(p, VALUE_SCRATCH, o->type, o->num_dims, o->shape, name);
    p->values[id].is_partial = partial;
    return id;
}

enum status program_emit(struct program *p, const struct emission *e, struct error *err)
{
    struct operand in[MAX_INPUTS] = {0}, out[MAX_OUTPUTS] = {0};
    struct op_sizes sizes = sizes_of_group(p, e->op, &e->collective);
    unsigned wanted = 0;
    for (unsigned i = 0; i < COUNT(e->sizes) && e->sizes[i].letter; i++)
        (void)op_size_set(&sizes, e->sizes[i].letter, e->sizes[i].size);
    prepare_outputs(p, e, &sizes, out, &wanted);
    operands_of(p, e->in, e->num_in, in);
    if (op_infer(e->op, &e->params, in, wanted, &sizes, out, err))
        return fail_in(err, "%s", e->label);
    const bool partial = is_partial(p, e);
    struct call *c = program_add_call(p, e->op, e->label, e->layer);
    c->params = e->params;
    c->collective = e->collective;
    memcpy(c->in, e->in, e->num_in * sizeof *c->in);
    /* The last output first: kept values lie in the order of their numbers, y before its sum. */
    for (unsigned i = MAX_OUTPUTS; i-- > 0;) {
        if (!out[i].num_dims) continue;
        c->out[i] = add_output(p, e, i, &out[i], partial);
        if (e->out[i]) *e->out[i] = c->out[i];
    }
    return OK;
}

/* ---- checking ---- */

/* Whether a value may be read before any call of this program has written it. */
static bool is_given(const struct program_value *v)
{
    return value_is_held(v->class) || v->class == VALUE_INPUT;
}

static enum status check_order(const struct program *p, const struct call *c, bool *written,
                               struct error *err)
{
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        if (c->in[i] != NO_VALUE && !written[c->in[i]])
            return fail(err, ERR_OURS, "%s: reads %s before it is written", c->label,
                        p->values[c->in[i]].name);
    for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
        if (c->out[i] == NO_VALUE) continue;
        const struct program_value *v = &p->values[c->out[i]];
        if (!value_is_held(v->class) && written[c->out[i]])
            return fail(err, ERR_OURS, "%s: %s is written twice", c->label, v->name);
        written[c->out[i]] = true;
    }
    return OK;
}

static enum status check_call(const struct program *p, const struct call *c, struct error *err)
{
    struct operand in[MAX_INPUTS], out[MAX_OUTPUTS];
    struct op_sizes sizes = sizes_of_group(p, c->op, &c->collective);
    operands_of(p, c->in, MAX_INPUTS, in);
    operands_of(p, c->out, MAX_OUTPUTS, out);
    if (op_check(c->op, &c->params, in, out, &sizes, err)) return fail_in(err, "%s", c->label);
    return OK;
}

enum status program_check(const struct program *p, struct error *err)
{
    struct arena scratch;
    enum status st = OK;
    arena_init(&scratch);
    bool *written = arena_array(&scratch, p->num_values + 1, sizeof *written);
    for (size_t i = 0; i < p->num_values; i++)
        written[i] = is_given(&p->values[i]);
    for (size_t i = 0; i < p->num_calls && !st; i++) {
        st = check_order(p, &p->calls[i], written, err);
        if (!st) st = check_call(p, &p->calls[i], err);
    }
    arena_release(&scratch);
    return st;
}

/* ---- cost ---- */

struct op_cost program_cost(const struct program *p, const struct call *c)
{
    struct operand in[MAX_INPUTS], out[MAX_OUTPUTS];
    operands_of(p, c->in, MAX_INPUTS, in);
    operands_of(p, c->out, MAX_OUTPUTS, out);
    struct op_cost cost = {.flops = op_flops(c->op, &c->params, in, out)};
    if (op_row(c->op)->flags & OP_READS_FEW_ROWS) {
        cost.bytes = 2 * (double)p->values[c->out[0]].bytes;
        return cost;
    }
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        if (c->in[i] != NO_VALUE) cost.bytes += (double)p->values[c->in[i]].bytes;
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        if (c->out[i] != NO_VALUE) cost.bytes += (double)p->values[c->out[i]].bytes;
    return cost;
}
