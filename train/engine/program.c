#include "train/engine/program.h"
#include "common/checked.h"
#include "common/count.h"

#include <assert.h>
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

/* Bytes of one row. */
static uint64_t value_row_bytes(const struct program_value *v)
{
    return v->shape[0] ? v->bytes / v->shape[0] : 0;
}

value_id program_add_view(struct program *p, value_id of, uint64_t first, uint64_t count,
                          const char *name)
{
    struct program_value v = p->values[of];
    const value_id base = program_home(p, of);
    v.shape[0] = count;
    value_id id = program_add_value(p, VALUE_VIEW, v.type, v.num_dims, v.shape, name);
    p->values[id].base = base;
    p->values[id].rows_of = of;
    p->values[id].offset = (of == base ? 0 : v.offset) + first * value_row_bytes(&p->values[of]);
    p->values[id].is_partial = v.is_partial;
    return id;
}

void program_make_view(struct program *p, value_id id, value_id base, uint64_t first)
{
    struct program_value *v = &p->values[id];
    assert(v->class == VALUE_SCRATCH && p->values[base].class != VALUE_VIEW);
    v->class = VALUE_VIEW;
    v->base = v->rows_of = base;
    v->offset = first * value_row_bytes(&p->values[base]);
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
    o.coding = v->coding;
    return o;
}

static void operands_of(const struct program *p, const value_id *ids, unsigned count,
                        struct operand *to)
{
    for (unsigned i = 0; i < count; i++)
        to[i] = program_operand(p, ids[i]);
}

/* Sizes known before any operand. */
static struct op_sizes sizes_of_group(const struct program *p, unsigned op,
                                      const struct collective *c)
{
    struct op_sizes s = {0};
    if (op >= NUM_OPS) (void)op_size_set(&s, 'G', p->groups->of[c->group].size);
    return s;
}

/* ---- emitting ---- */

/* Whether some rows of the outputs stay unwritten. */
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

/* Sets types, and sizes of given values, before outputs are inferred. */
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

static value_id add_output_value(struct program *p, const struct emission *e, unsigned i,
                                 const struct operand *o, bool partial)
{
    const struct op_row *row = op_row(e->op);
    const char *name =
        row->num_out == 1 ? e->label : arena_printf(&p->arena, "%s.%s", e->label, row->out[i].name);
    if (has_home(e, i)) return *e->into[i];
    if (row->flags & OP_IS_ALIAS)
        return program_add_view(p, e->in[0], 0, p->values[e->in[0]].shape[0], name);
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
    /* The last output first: kept values lie in the order of their numbers, y
     * before its sum. */
    for (unsigned i = MAX_OUTPUTS; i-- > 0;) {
        if (!out[i].num_dims) continue;
        c->out[i] = add_output_value(p, e, i, &out[i], partial);
        if (e->out[i]) *e->out[i] = c->out[i];
    }
    return OK;
}

/* ---- checking ---- */

/* Whether a value may be read before any call of this program has written it. */
static bool is_given_value(const struct program_value *v)
{
    return value_is_held(v->class) || v->class == VALUE_INPUT;
}

/* Values written so far, whole or through their views. */
struct written {
    const struct program *p;
    bool *whole;     /* [num_values] written by a call */
    value_id *views; /* [num_values] a base's first view, a view's next one; NO_VALUE: none */
};

/* The bytes of a view in its base; all bytes of a base. */
static struct program_value extent_of(const struct program *p, value_id id)
{
    struct program_value v = p->values[id];
    if (v.class != VALUE_VIEW) v.offset = 0;
    return v;
}

/* Bytes of `id` written by calls: its home as a whole, or views of it. Views do
 * not overlap, else they were not written: each byte counts once. */
static uint64_t written_bytes(const struct written *w, value_id id)
{
    const value_id home = program_home(w->p, id);
    const struct program_value v = extent_of(w->p, id);
    uint64_t bytes = 0;
    if (w->whole[home]) return v.bytes;
    for (value_id k = w->views[home]; k != NO_VALUE; k = w->views[k]) {
        const struct program_value *o = &w->p->values[k];
        const uint64_t begin = max_u64(o->offset, v.offset),
                       end = min_u64(o->offset + o->bytes, v.offset + v.bytes);
        if (w->whole[k] && begin < end) bytes += end - begin;
    }
    return bytes;
}

static enum status check_order(const struct call *c, struct written *w, struct error *err)
{
    const struct program_value *values = w->p->values;
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        if (c->in[i] != NO_VALUE && written_bytes(w, c->in[i]) < values[c->in[i]].bytes)
            return fail(err, ERR_OURS, "%s: reads %s before it is written", c->label,
                        values[c->in[i]].name);
    for (unsigned i = 0; i < MAX_OUTPUTS && !(op_row(c->op)->flags & OP_IS_ALIAS); i++) {
        const value_id id = c->out[i];
        if (id == NO_VALUE || value_is_held(values[program_home(w->p, id)].class)) continue;
        if (w->whole[id] || written_bytes(w, id) > 0)
            return fail(err, ERR_OURS, "%s: %s is written twice", c->label, values[id].name);
        w->whole[id] = true;
    }
    return OK;
}

static void begin_written(struct written *w, struct arena *a)
{
    const size_t n = w->p->num_values;
    w->whole = arena_array(a, n + 1, sizeof *w->whole);
    w->views = arena_array(a, n + 1, sizeof *w->views);
    memset(w->views, 0xff, n * sizeof *w->views); /* NO_VALUE */
    for (value_id i = 0; i < n; i++) {
        w->whole[i] = is_given_value(&w->p->values[i]);
        if (w->p->values[i].class != VALUE_VIEW) continue;
        w->views[i] = w->views[w->p->values[i].base];
        w->views[w->p->values[i].base] = i;
    }
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
    struct written w = {.p = p};
    enum status st = OK;
    arena_init(&scratch);
    begin_written(&w, &scratch);
    for (size_t i = 0; i < p->num_calls && !st; i++) {
        st = check_order(&p->calls[i], &w, err);
        if (!st) st = check_call(p, &p->calls[i], err);
    }
    arena_release(&scratch);
    return st;
}

/* ---- cost ---- */

/* Whether the memory plan puts the first output in place of the first input. */
static bool is_in_place(const struct program *p, const struct call *c)
{
    if (c->in[0] == NO_VALUE || c->out[0] == NO_VALUE) return false;
    const struct program_value *in = &p->values[c->in[0]], *out = &p->values[c->out[0]];
    return op_row(c->op)->out[0].in_place == 0 && in->class == out->class &&
           in->offset == out->offset;
}

/* A repeated input is read once. */
static void leave_out_repeated(const struct call *c, struct operand *in)
{
    for (unsigned i = 1; i < MAX_INPUTS; i++)
        for (unsigned k = 0; k < i; k++)
            if (c->in[i] == c->in[k]) in[i] = (struct operand){0};
}

/* Bytes of an element in memory. */
static double element_bytes(const struct program *p, const struct operand *o)
{
    if (o->coding) return (double)o->coding->bytes / (double)operand_numel(o);
    return (double)operand_bytes_of(o->type, p->elem);
}

struct op_cost program_cost(const struct program *p, const struct call *c)
{
    struct operand in[MAX_INPUTS], out[MAX_OUTPUTS];
    const bool in_place = is_in_place(p, c);
    operands_of(p, c->in, MAX_INPUTS, in);
    operands_of(p, c->out, MAX_OUTPUTS, out);
    struct op_cost cost = {.flops = op_flops(c->op, &c->params, in, out)};
    leave_out_repeated(c, in);
    const unsigned few_copied = OP_IS_COPY | OP_FEW_ROWS;
    double read = 0, written = 0;
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        read += op_moved(c->op, in, &in[i]) * element_bytes(p, &in[i]) *
                op_share_read(c->op, &c->params, in, i, in_place);
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        written += op_moved(c->op, in, &out[i]) * (double)operand_bytes_of(out[i].type, p->elem) *
                   (in_place && i == 0 ? op_share_read(c->op, &c->params, in, 0, true) : 1);
    if ((op_row(c->op)->flags & few_copied) == few_copied) read = written;
    cost.bytes = read + written;
    return cost;
}
