#include "train/model/fuse.h"

#include <string.h>

/* Output that may become part of a product; -1: the op cannot. */
static int passed_on(const struct call *c)
{
    if (c->op == OP_NORM && c->out[1] == NO_VALUE) return 0;
    if (c->op == OP_ADD_NORM && c->out[2] == NO_VALUE) return 1;
    if (c->op == OP_ACTIVATION && c->in[1] == NO_VALUE) return 0;
    return -1;
}

static bool is_parameter(const struct program *p, value_id id)
{
    return p->values[id].class == VALUE_PARAMETER;
}

/* y = a w^T + bias of ELEM; w and the bias are parameters, w is not coded. */
static bool is_plain_product(const struct program *p, const struct call *c)
{
    return c->op == OP_MATMUL && c->params.matmul.transpose_b && !c->params.matmul.transpose_a &&
           c->params.matmul.alpha == 1 && c->in[3] == NO_VALUE && is_parameter(p, c->in[1]) &&
           !p->values[c->in[1]].coding && (c->in[2] == NO_VALUE || is_parameter(p, c->in[2])) &&
           p->values[c->out[0]].type == OPERAND_ELEM;
}

static bool has_view(const struct program *p, value_id id)
{
    for (size_t i = 0; i < p->num_values; i++)
        if (p->values[i].class == VALUE_VIEW && p->values[i].base == id) return true;
    return false;
}

/* Number of operands of calls. */
static unsigned count_uses(const struct program *p, value_id id)
{
    unsigned uses = 0;
    for (size_t k = 0; k < p->num_calls; k++) {
        for (unsigned i = 0; i < MAX_INPUTS; i++)
            uses += p->calls[k].in[i] == id;
        for (unsigned i = 0; i < MAX_OUTPUTS; i++)
            uses += p->calls[k].out[i] == id;
    }
    return uses;
}

static bool can_fuse(const struct program *p, const struct call *made, const struct call *product)
{
    const int output = passed_on(made);
    if (output < 0 || !is_plain_product(p, product)) return false;
    const value_id a = made->out[output];
    return product->in[0] == a && p->values[a].class == VALUE_SCRATCH &&
           p->values[a].shape[0] <= FUSED_ROWS && count_uses(p, a) == 2 && !has_view(p, a);
}

/* The product, with the inputs of `made` in place of a. */
static struct call fuse_pair(const struct call *made, const struct call *product)
{
    const value_id w = product->in[1], bias = product->in[2];
    struct call c = *product;
    memset(c.in, 0xff, sizeof c.in); /* NO_VALUE */
    c.params = made->params;
    if (made->op == OP_ACTIVATION) {
        c.op = OP_ACTIVATION_MATMUL;
        c.in[0] = made->in[0], c.in[1] = w, c.in[2] = bias;
        return c;
    }
    const unsigned weight = made->op == OP_ADD_NORM ? 3 : 1;
    c.op = OP_NORM_MATMUL;
    c.in[0] = made->in[0];
    if (made->op == OP_ADD_NORM) c.in[1] = made->in[1], c.in[2] = made->in[2];
    c.in[3] = made->in[weight], c.in[4] = made->in[weight + 1];
    c.in[5] = w, c.in[6] = bias;
    if (made->op == OP_ADD_NORM) c.out[1] = made->out[0];
    return c;
}

void fuse_calls(struct program *p)
{
    size_t kept = 0;
    for (size_t k = 0; k < p->num_calls; k++) {
        const struct call *c = &p->calls[k];
        const bool fuses = k + 1 < p->num_calls && can_fuse(p, c, c + 1);
        const struct call next = fuses ? fuse_pair(c, c + 1) : *c;
        p->calls[kept++] = next;
        k += fuses;
    }
    p->num_calls = kept;
}
