#include "train/program.h"

#include <inttypes.h>
#include <string.h>

#include "train/ops.h"

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
    *v = (struct program_value){.name = arena_text(&p->arena, name, strlen(name)),
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
    for (unsigned i = 0; i < MOST_INPUTS; i++)
        c->in[i] = NO_VALUE;
    for (unsigned i = 0; i < MOST_OUTPUTS; i++)
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

/* Whether a value may be read before any call of this program has written it. */
static bool is_given(const struct program_value *v)
{
    return v->class == VALUE_PARAMETER || v->class == VALUE_INPUT || v->class == VALUE_STATE;
}

static enum status check_order(const struct program *p, const struct call *c, bool *written,
                               struct error *err)
{
    for (unsigned i = 0; i < MOST_INPUTS; i++)
        if (c->in[i] != NO_VALUE && !written[c->in[i]])
            return fail(err, ERR_OURS, "%s: reads %s before it is written", c->label,
                        p->values[c->in[i]].name);
    for (unsigned i = 0; i < MOST_OUTPUTS; i++) {
        if (c->out[i] == NO_VALUE) continue;
        const struct program_value *v = &p->values[c->out[i]];
        if (v->class != VALUE_STATE && written[c->out[i]])
            return fail(err, ERR_OURS, "%s: %s is written twice", c->label, v->name);
        written[c->out[i]] = true;
    }
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
        if (!st) st = op_check(p, &p->calls[i], err);
    }
    arena_release(&scratch);
    return st;
}
