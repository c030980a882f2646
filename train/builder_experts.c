/* builder_experts.c - a router, and MLPs of which each token passes some. */
#include <inttypes.h>

#include "common/checked.h"
#include "train/builder_internal.h"

/* All experts of this rank behind one another: [experts, rows, columns]. */
static value_id expert_weights(struct builder *x, const char *name, uint64_t rows, uint64_t columns)
{
    struct arena *a = &x->p->arena;
    uint64_t count = x->c->num_experts / x->ep, first = x->b->groups->place.ep * count;
    const char **names = arena_array(a, count, sizeof *names);
    struct shard s = {
        .rank = x->b->groups->place.etp, .size = x->etp, .gated = x->c->gated_linear_unit};
    uint32_t number = 0;
    for (uint64_t i = 0; i < count; i++)
        names[i] = arena_printf(a, "decoder.layers.%d.mlp.experts.experts.%" PRIu64 ".%s", x->layer,
                                first + i, name);
    if (!x->st)
        x->st = parameters_add_stack(
            x->b->parameters, builder_full_name(x, arena_printf(a, "mlp.experts.%s", name)), names,
            count, &s, 2, (uint64_t[]){rows, columns}, &number, x->err);
    return x->st ? builder_matrix(x, OPERAND_ELEM, 1, 1, name)
                 : builder_held(x, VALUE_PARAMETER, number);
}

/* Where tokens go, and where they are. */
struct routed {
    value_id rows, weights, counts; /* of each token's slots; of each expert's rows */
    value_id tokens;                /* sorted by expert */
};

static value_id permuted(struct builder *x, value_id in, value_id rows, uint64_t num_rows)
{
    value_id y = builder_matrix(x, OPERAND_ELEM, num_rows, x->c->hidden_size, "permuted");
    struct call *c = builder_call(x, OP_PERMUTE, "permute");
    c->in[0] = in;
    c->in[1] = rows;
    c->out[0] = y;
    return y;
}

static value_id unpermuted(struct builder *x, value_id in, value_id rows, value_id weights)
{
    value_id y =
        builder_matrix(x, OPERAND_ELEM, builder_rows_of(x, rows), x->c->hidden_size, "unpermuted");
    struct call *c = builder_call(x, OP_UNPERMUTE, "unpermute");
    c->in[0] = in;
    c->in[1] = rows;
    c->in[2] = weights;
    c->out[0] = y;
    return y;
}

static struct routed route(struct builder *x, value_id in)
{
    struct routed r;
    uint64_t n = builder_rows_of(x, in), k = x->c->moe_router_topk, experts = x->c->num_experts;
    value_id w = builder_weight(x, "mlp.router.weight", experts, x->c->hidden_size);
    value_id logits = builder_product(x, OPERAND_REAL, in, w, NO_VALUE, "router");
    value_id chosen = builder_matrix(x, OPERAND_INT, n, k, "experts");
    builder_trace(x, logits, x->tp > 1, false, "router");
    r.weights = builder_matrix(x, OPERAND_REAL, n, k, "weights");
    struct call *c = builder_call(x, OP_ROUTE, "route");
    c->params.route.topk = (uint32_t)k;
    c->params.route.num_groups = 1;
    c->params.route.topk_groups = 1;
    c->params.route.after_choice = !x->c->moe_router_pre_softmax;
    c->params.route.scaling = 1;
    c->in[0] = logits;
    c->out[0] = r.weights;
    c->out[1] = chosen;
    r.rows = builder_matrix(x, OPERAND_INT, n, k, "rows");
    r.counts = builder_vector(x, OPERAND_INT, experts, "counts");
    c = builder_call(x, OP_SORT_BY_EXPERT, "sort");
    c->in[0] = chosen;
    c->out[0] = r.rows;
    c->out[1] = r.counts;
    r.tokens = permuted(x, in, r.rows, n * k);
    return r;
}

/* Rows to the ranks of the experts, or back; counts says how many for each. */
static value_id exchanged(struct builder *x, value_id in, value_id counts, uint64_t bound,
                          uint64_t num_counts, value_id *came)
{
    value_id y = builder_matrix(x, OPERAND_ELEM, bound, x->c->hidden_size, "exchanged");
    *came = builder_vector(x, OPERAND_INT, num_counts, "counts");
    struct call *c = builder_call(x, OP_ALL_TO_ALL, "exchange");
    c->collective.group = GROUP_EP;
    c->in[0] = in;
    c->in[1] = counts;
    c->out[0] = y;
    c->out[1] = *came;
    return y;
}

/* Tokens of this rank's experts, sorted by expert, through their MLPs (a part of each with ETP). */
static value_id expert_mlps(struct builder *x, value_id in, value_id counts)
{
    uint64_t hidden = x->c->hidden_size, share = x->c->moe_ffn_hidden_size / x->etp;
    uint64_t columns = share * (x->c->gated_linear_unit ? 2 : 1), rows = builder_rows_of(x, in);
    value_id w1 = expert_weights(x, "linear_fc1.weight", columns, hidden);
    value_id w2 = expert_weights(x, "linear_fc2.weight", hidden, share);
    value_id f = builder_matrix(x, OPERAND_ELEM, rows, columns, "fc1");
    struct call *c = builder_call(x, OP_GROUPED_MATMUL, "fc1");
    c->in[0] = in;
    c->in[1] = w1;
    c->in[2] = counts;
    c->out[0] = f;
    value_id a = builder_activated(x, f, counts),
             y = builder_matrix(x, OPERAND_ELEM, rows, hidden, "fc2");
    c = builder_call(x, OP_GROUPED_MATMUL, "fc2");
    c->in[0] = a;
    c->in[1] = w2;
    c->in[2] = counts;
    c->out[0] = y;
    return y;
}

/* Tokens sorted by expert, of all experts, to the ranks that have them, and what comes back. */
static value_id distributed_experts(struct builder *x, const struct routed *r)
{
    uint64_t here = x->c->num_experts / x->ep, sent = builder_rows_of(x, r->tokens);
    uint64_t tokens = sent / x->c->moe_router_topk;
    uint64_t bound = x->ep > 1 ? x->ep * tokens * min_u64(x->c->moe_router_topk, here) : sent;
    value_id in = r->tokens, counts = r->counts, came, ignored;
    if (x->ep > 1) in = exchanged(x, in, counts, bound, x->ep * here, &counts);
    came = counts;
    in = builder_collective(x, OP_ALL_GATHER, GROUP_ETP, in, "gather");
    counts = builder_collective(x, OP_ALL_GATHER, GROUP_ETP, counts, "gather_counts");
    value_id rows = builder_matrix(x, OPERAND_INT, x->etp * bound, 1, "rows");
    value_id totals = builder_vector(x, OPERAND_INT, here, "totals");
    struct call *c = builder_call(x, OP_SORT_RECEIVED, "sort_received");
    c->params.sort_received.senders_per_block = x->ep;
    c->params.sort_received.rows_per_block = bound;
    c->in[0] = counts;
    c->out[0] = rows;
    c->out[1] = totals;
    value_id y = expert_mlps(x, permuted(x, in, rows, x->etp * bound), totals);
    y = builder_collective(x, OP_REDUCE_SCATTER, GROUP_ETP, unpermuted(x, y, rows, NO_VALUE),
                           "reduce");
    if (x->ep > 1) y = exchanged(x, y, came, sent, x->c->num_experts, &ignored);
    return y;
}

void builder_experts(struct builder *x)
{
    bool sliced = x->tp > 1;
    value_id in =
        builder_normed(x, "pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias", "mlp_norm");
    builder_trace(x, in, sliced && x->shape->sequence_parallel, false, "mlp_norm");
    if (!x->shape->sequence_parallel) in = builder_collective(x, OP_SLICE, GROUP_TP, in, "slice");
    struct routed r = route(x, in);
    value_id y =
        x->ep == 1 && x->etp == 1 ? expert_mlps(x, r.tokens, r.counts) : distributed_experts(x, &r);
    y = unpermuted(x, y, r.rows, r.weights);
    builder_trace(x, y, sliced, false, "mlp");
    if (!x->shape->sequence_parallel)
        y = builder_collective(x, OP_ALL_GATHER, GROUP_TP, y, "gather");
    builder_branch(x, y, NO_VALUE);
}
