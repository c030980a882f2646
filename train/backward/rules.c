/* rules.c - the rule of each op: from gradients of outputs to gradients of
 * inputs. A row an op, at the end of the file. */
#include "train/backward/backward_internal.h"

/* ---- products ---- */

/* y = x w^T + bias: dx = dy w, dw = dy^T x. */
static void matmul_rule(struct walk *w, const struct call *c)
{
    const value_id x = c->in[0], weight = c->in[1], bias = c->in[2];
    const value_id dy = walk_output(w, c, 0);
    if (c->params.matmul.transpose_a || !c->params.matmul.transpose_b ||
        c->params.matmul.alpha != 1 || c->in[3] != NO_VALUE || !walk_is_parameter(w, weight)) {
        walk_fail(w, ERR_OURS, "only x w^T of a parameter w has a gradient");
        return;
    }
    struct held_gradient g = walk_parameter(w, bias);
    if (bias != NO_VALUE) CALL(w, OP_COLUMN_SUM, "dbias", IN(dy, g.sum), .into = {&g.into});
    g = walk_parameter(w, weight);
    CALL(w, OP_MATMUL, "dweight", IN(dy, x, NO_VALUE, g.sum), .into = {&g.into},
         .params.matmul = {.transpose_a = true, .alpha = 1});
    value_id dx = CALL(w, OP_MATMUL, "dx", IN(dy, weight, NO_VALUE, walk_so_far(w, x)),
                       .params.matmul = {.alpha = 1});
    walk_replace(w, x, dx);
}

static void grouped_matmul_rule(struct walk *w, const struct call *c)
{
    const value_id x = c->in[0], weight = c->in[1], counts = c->in[2];
    const value_id dy = walk_output(w, c, 0);
    struct held_gradient g = walk_parameter(w, weight);
    CALL(w, OP_GROUPED_WGRAD, "dweight", IN(dy, x, counts, g.sum), .into = {&g.into});
    walk_give(w, x, CALL(w, OP_GROUPED_DGRAD, "dx", IN(dy, weight, counts)));
}

/* ---- the residual stream ---- */

/* Gradient of a norm's input. other: its gradient from other readers. */
static value_id norm_gradient(struct walk *w, const struct call *c, value_id x,
                              const value_id *weights, unsigned y, value_id other)
{
    const value_id dy = walk_output(w, c, y), stats = c->out[y + 1];
    value_id dx, dweight, dbias;
    if (stats == NO_VALUE) walk_fail(w, ERR_OURS, "missing the statistics of this norm");
    struct held_gradient weight = walk_parameter(w, weights[0]),
                         bias = walk_parameter(w, weights[1]);
    CALL(w, OP_NORM_BACKWARD, "dx", IN(x, weights[0], stats, dy, other, weight.sum, bias.sum),
         .out = {&dx, &dweight, bias.into == NO_VALUE ? NULL : &dbias},
         .into = {NULL, &weight.into, &bias.into}, .params.norm = c->params.norm);
    return dx;
}

static void norm_rule(struct walk *w, const struct call *c)
{
    const value_id x = c->in[0];
    walk_replace(w, x, norm_gradient(w, c, x, c->in + 1, 0, walk_so_far(w, x)));
}

/* sum = a + b + bias: all three have the gradient of the sum. */
static void sum_gradients(struct walk *w, const struct call *c, value_id dsum)
{
    struct held_gradient bias = walk_parameter(w, c->in[2]);
    if (c->in[2] != NO_VALUE)
        CALL(w, OP_COLUMN_SUM, "dbias", IN(dsum, bias.sum), .into = {&bias.into});
    walk_give(w, c->in[0], dsum);
    walk_give(w, c->in[1], dsum);
}

static void add_norm_rule(struct walk *w, const struct call *c)
{
    sum_gradients(w, c, norm_gradient(w, c, c->out[0], c->in + 3, 1, walk_output(w, c, 0)));
}

static void add_rule(struct walk *w, const struct call *c)
{
    sum_gradients(w, c, walk_output(w, c, 0));
}

/* Its own backward, without the bias. */
static void dropout_rule(struct walk *w, const struct call *c)
{
    value_id dx = CALL(w, OP_DROPOUT, "dx", IN(walk_output(w, c, 0), NO_VALUE, c->in[2]),
                       .params = c->params);
    struct held_gradient bias = walk_parameter(w, c->in[1]);
    if (c->in[1] != NO_VALUE)
        CALL(w, OP_COLUMN_SUM, "dbias", IN(dx, bias.sum), .into = {&bias.into});
    walk_give(w, c->in[0], dx);
}

/* ---- attention and activations ---- */

static void attention_rule(struct walk *w, const struct call *c)
{
    const value_id q = c->in[0], kv = c->in[1], o = c->out[0], lse = c->out[1];
    value_id dq, dkv;
    if (c->in[3] != NO_VALUE) walk_fail(w, ERR_UNSUPPORTED, "attention sinks have no gradient");
    if (lse == NO_VALUE) walk_fail(w, ERR_OURS, "missing the lse of this attention");
    CALL(w, OP_ATTENTION_BACKWARD, "dx",
         IN(q, kv, c->in[2], c->in[4], o, lse, walk_output(w, c, 0)),
         .out = {&dq, q == kv ? NULL : &dkv}, .params = c->params);
    walk_give(w, q, dq);
    if (q != kv) walk_give(w, kv, dkv);
}

static void rotary_rule(struct walk *w, const struct call *c)
{
    union op_params p = c->params;
    p.rotary.inverse = !p.rotary.inverse;
    walk_give(w, c->in[0],
              CALL(w, OP_ROTARY, "dx", IN(walk_output(w, c, 0), c->in[1], c->in[2]), .params = p));
}

static void head_norm_rule(struct walk *w, const struct call *c)
{
    value_id dqkv, dq, dk;
    struct held_gradient q = walk_parameter(w, c->in[1]), k = walk_parameter(w, c->in[2]);
    CALL(w, OP_HEAD_NORM_BACKWARD, "dx",
         IN(c->in[0], c->in[1], c->in[2], walk_output(w, c, 0), q.sum, k.sum),
         .out = {&dqkv, &dq, &dk}, .into = {NULL, &q.into, &k.into}, .params = c->params);
    walk_give(w, c->in[0], dqkv);
}

static void activation_rule(struct walk *w, const struct call *c)
{
    walk_give(w, c->in[0],
              CALL(w, OP_ACTIVATION_BACKWARD, "dx", IN(c->in[0], walk_output(w, c, 0), c->in[1]),
                   .params = c->params));
}

/* ---- tables ---- */

static value_id row_order_of(struct walk *w, value_id ids)
{
    for (unsigned i = 0; i < 2; i++)
        if (w->b->lookups[i].ids == ids) return w->b->lookups[i].order;
    walk_fail(w, ERR_OURS, "missing the row order of this table lookup");
    return NO_VALUE;
}

static void table_gradient(struct walk *w, value_id dx, value_id ids, value_id table,
                           union op_params p)
{
    struct held_gradient g = walk_parameter(w, table);
    CALL(w, OP_EMBEDDING_BACKWARD, "dtable", IN(dx, ids, row_order_of(w, ids), g.sum),
         .into = {&g.into}, .params = p);
}

static void embedding_rule(struct walk *w, const struct call *c)
{
    table_gradient(w, walk_output(w, c, 0), c->in[0], c->in[1], c->params);
}

static void positions_rule(struct walk *w, const struct call *c)
{
    const value_id dy = walk_output(w, c, 0);
    table_gradient(w, dy, c->in[2], c->in[1], (union op_params){.embedding = {.scale = 1}});
    walk_give(w, c->in[0], dy);
}

/* ---- experts ---- */

/* Tokens of each expert, on all tensor parallel ranks, counted by the balance
 * loss of these logits. */
static value_id counts_of(const struct walk *w, value_id logits)
{
    for (size_t k = 0; k < w->num_calls; k++)
        if (w->calls[k].op == OP_BALANCE_LOSS && w->calls[k].in[0] == logits)
            return w->calls[k].in[1];
    return NO_VALUE;
}

static void route_rule(struct walk *w, const struct call *c)
{
    const bool balances = c->params.route.balance > 0;
    walk_replace(w, c->in[0],
                 CALL(w, OP_ROUTE_BACKWARD, "dlogits",
                      IN(c->in[0], c->out[1], walk_output(w, c, 0),
                         balances ? counts_of(w, c->in[0]) : NO_VALUE,
                         balances || c->params.route.z > 0 ? w->b->router_scale : NO_VALUE),
                      .params = c->params));
}

static void permute_rule(struct walk *w, const struct call *c)
{
    walk_give(w, c->in[0], CALL(w, OP_UNPERMUTE, "dx", IN(walk_output(w, c, 0), c->in[1])));
}

static void unpermute_rule(struct walk *w, const struct call *c)
{
    const value_id y = c->in[0], rows = c->in[1], weights = c->in[2];
    const bool weighted = weights != NO_VALUE;
    value_id dy, dweights;
    CALL(w, OP_UNPERMUTE_BACKWARD, "dy",
         IN(walk_output(w, c, 0), rows, weights, weighted ? y : NO_VALUE),
         .out = {&dy, weighted ? &dweights : NULL}, .sizes = {{'R', w->p->values[y].shape[0]}});
    walk_give(w, y, dy);
    if (weighted) walk_replace(w, weights, dweights); /* only one call reads them */
}

/* ---- ranks ---- */

/* Adds the collective that computes the gradient of the first operand. */
static void by_collective(struct walk *w, const struct call *c, unsigned op)
{
    walk_give(w, c->in[0],
              CALL(w, op, "dx", IN(walk_output(w, c, 0)), .collective.group = c->collective.group));
}

/* All ranks do the same with the sum: each has the whole gradient. */
static void all_reduce_rule(struct walk *w, const struct call *c)
{
    walk_give(w, c->in[0], walk_output(w, c, 0));
}

static void replicate_rule(struct walk *w, const struct call *c)
{
    by_collective(w, c, OP_ALL_REDUCE);
}

static void all_gather_rule(struct walk *w, const struct call *c)
{
    by_collective(w, c, c->collective.replicated ? OP_SLICE : OP_REDUCE_SCATTER);
}

static void reduce_scatter_rule(struct walk *w, const struct call *c)
{
    by_collective(w, c, OP_ALL_GATHER);
}

static void slice_rule(struct walk *w, const struct call *c)
{
    by_collective(w, c, OP_ALL_GATHER);
}

/* Rows go back to where they came from. */
static void all_to_all_rule(struct walk *w, const struct call *c)
{
    const struct program_value *x = &w->p->values[c->in[0]], *counts = &w->p->values[c->in[1]];
    value_id dx, ignored;
    CALL(w, OP_ALL_TO_ALL, "dx", IN(walk_output(w, c, 0), c->out[1]), .out = {&dx, &ignored},
         .collective = c->collective, .sizes = {{'Q', x->shape[0]}, {'U', counts->shape[0]}});
    walk_give(w, c->in[0], dx);
}

/* ---- the loss ---- */

/* vocab_backward multiplies by the loss scale. */
static void weighted_sum_rule(struct walk *w, const struct call *c)
{
    walk_replace(w, c->in[0], c->in[1]);
}

/* The call that writes a value. */
static const struct call *maker_of(const struct walk *w, value_id id)
{
    for (size_t k = 0; k < w->num_calls; k++)
        for (unsigned i = 0; i < MAX_OUTPUTS; i++)
            if (w->calls[k].out[i] == id) return &w->calls[k];
    return NULL;
}

/* Cross entropy as a whole: the gradient of logits follows from the sums over
 * all ranks. */
static void token_loss_rule(struct walk *w, const struct call *c)
{
    const struct call *sum = maker_of(w, c->in[0]);
    while (sum && sum->op == OP_ALL_REDUCE)
        sum = maker_of(w, sum->in[0]);
    if (!sum || sum->op != OP_VOCAB_SUM) {
        walk_fail(w, ERR_OURS, "expected sums over logits");
        return;
    }
    const value_id logits = sum->in[0], max = sum->in[1], targets = sum->in[2];
    walk_replace(w, logits,
                 CALL(w, OP_VOCAB_BACKWARD, "dlogits",
                      IN(logits, max, c->in[0], targets, walk_output(w, c, 0), w->b->loss_scale),
                      .params = sum->params));
}

/* ---- the table ---- */

static rule_function *const rules[NUM_ALL_OPS] = {
    [OP_EMBEDDING] = embedding_rule,
    [OP_POSITIONS] = positions_rule,
    [OP_NORM] = norm_rule,
    [OP_ADD_NORM] = add_norm_rule,
    [OP_ADD] = add_rule,
    [OP_DROPOUT] = dropout_rule,
    [OP_MATMUL] = matmul_rule,
    [OP_HEAD_NORM] = head_norm_rule,
    [OP_ROTARY] = rotary_rule,
    [OP_ATTENTION] = attention_rule,
    [OP_ACTIVATION] = activation_rule,
    [OP_ROUTE] = route_rule,
    [OP_PERMUTE] = permute_rule,
    [OP_UNPERMUTE] = unpermute_rule,
    [OP_GROUPED_MATMUL] = grouped_matmul_rule,
    [OP_TOKEN_LOSS] = token_loss_rule,
    [OP_WEIGHTED_SUM] = weighted_sum_rule,
    [OP_ALL_REDUCE] = all_reduce_rule,
    [OP_REPLICATE] = replicate_rule,
    [OP_ALL_GATHER] = all_gather_rule,
    [OP_REDUCE_SCATTER] = reduce_scatter_rule,
    [OP_SLICE] = slice_rule,
    [OP_ALL_TO_ALL] = all_to_all_rule,
};

rule_function *backward_rule(unsigned op)
{
    return rules[op];
}
