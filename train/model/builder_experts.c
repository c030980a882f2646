/* builder_experts.c - a mixture of experts: the router, and the MLPs that it chooses from. */
#include <inttypes.h>

#include "common/checked.h"
#include "train/model/builder_internal.h"

/* The weights of all experts of this rank, stacked: [experts, rows, columns]. */
static value_id expert_weights(struct builder *x, const char *name)
{
    struct arena *a = &x->p->arena;
    uint64_t count = x->c->num_experts / x->ep, first = x->b->groups->place.ep * count;
    const char **names = arena_array(a, count, sizeof *names);
    const char *stack = builder_full_name(x, arena_printf(a, "mlp.experts.%s", name));
    const struct param_spec *spec;
    struct cut cut;
    uint32_t number = 0;
    for (uint64_t i = 0; i < count; i++)
        names[i] = builder_full_name(
            x, arena_printf(a, "mlp.experts.experts.%" PRIu64 ".%s", first + i, name));
    if (builder_spec(x, names[0], &spec, &cut))
        x->st = parameters_add_stack(x->b->parameters, stack, names, count, spec, &cut, &number,
                                     x->err);
    return builder_held(x, VALUE_PARAMETER, number);
}

/* The choice of the router. */
struct routed {
    value_id rows, weights,
        counts;      /* [tokens, topk] row and weight of each slot; rows of each expert */
    value_id tokens; /* a row for each slot, sorted by expert */
};

/* The load-balancing loss without its coefficient, added to that of other layers: this rank's
 * tokens with the counts of all tensor parallel ones. */
static void add_balance_loss(struct builder *x, value_id logits, value_id counts, double balance)
{
    value_id sum = builder_sum(x, "balance_loss");
    const bool adds = x->balance_begun || x->shape->train->accumulates;
    x->balance_begun = true;
    x->out->train.balance_sum = emit(
        x, OP_BALANCE_LOSS, "balance_loss", IN(logits, counts, adds ? sum : NO_VALUE),
        .params.route.balance = balance / x->shape->train->balance_coefficient, .into = {&sum});
}

static struct routed route(struct builder *x, value_id in)
{
    struct routed r;
    value_id chosen;
    uint64_t n = builder_rows_of(x, in), k = x->c->moe_router_topk, experts = x->c->num_experts;
    const struct training_shape *t = x->shape->train;
    const double all = (double)(n * x->tp); /* tokens of the micro-batch: each rank has a part */
    const double balance =
        t ? t->balance_coefficient * (double)experts / ((double)k * all * all) : 0;
    value_id w = builder_parameter(x, "mlp.router.weight");
    value_id logits = builder_product(x, OPERAND_REAL, in, w, NO_VALUE, "router");
    builder_trace(x, logits, x->tp > 1, false, "router");
    emit(x, OP_ROUTE, "route", IN(logits), OUT(&r.weights, &chosen),
         .params.route = {.topk = (uint32_t)k,
                          .num_groups = 1,
                          .topk_groups = 1,
                          .after_choice = !x->c->moe_router_pre_softmax,
                          .scaling = 1,
                          .balance = balance});
    emit(x, OP_SORT_BY_EXPERT, "sort", IN(chosen), OUT(&r.rows, &r.counts),
         .sizes = {{'E', experts}});
    if (balance > 0)
        add_balance_loss(x, logits,
                         builder_collective(x, OP_ALL_REDUCE, GROUP_TP, r.counts, "sum_counts"),
                         balance);
    r.tokens = emit(x, OP_PERMUTE, "permute", IN(in, r.rows), .sizes = {{'R', n * k}});
    return r;
}

/* Sends rows to the ranks of their experts, or back; counts: rows for each of them. */
static value_id exchanged(struct builder *x, value_id in, value_id counts, uint64_t bound,
                          uint64_t num_counts, value_id *came)
{
    value_id y;
    emit(x, OP_ALL_TO_ALL, "exchange", IN(in, counts), OUT(&y, came), .collective.group = GROUP_EP,
         .sizes = {{'Q', bound}, {'U', num_counts}});
    return y;
}

/* The MLPs of this rank's experts on rows sorted by expert; with ETP, a rank has a part of each. */
static value_id expert_mlps(struct builder *x, value_id in, value_id counts)
{
    value_id w1 = expert_weights(x, "linear_fc1.weight");
    value_id w2 = expert_weights(x, "linear_fc2.weight");
    value_id f = emit(x, OP_GROUPED_MATMUL, "fc1", IN(in, w1, counts));
    return emit(x, OP_GROUPED_MATMUL, "fc2", IN(builder_activated(x, f, counts), w2, counts));
}

/* Sends rows to the ranks of their experts, runs the MLPs there and sends the results back. */
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
    value_id rows, totals;
    emit(x, OP_SORT_RECEIVED, "sort_received", IN(counts), OUT(&rows, &totals),
         .params.sort_received = {.senders_per_block = x->ep, .rows_per_block = bound},
         .sizes = {{'R', x->etp * bound}, {'E', here}});
    in = emit(x, OP_PERMUTE, "permute", IN(in, rows), .sizes = {{'R', x->etp * bound}});
    value_id y = emit(x, OP_UNPERMUTE, "unpermute", IN(expert_mlps(x, in, totals), rows));
    y = builder_collective(x, OP_REDUCE_SCATTER, GROUP_ETP, y, "reduce");
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
    y = emit(x, OP_UNPERMUTE, "unpermute", IN(y, r.rows, r.weights));
    builder_trace(x, y, sliced, false, "mlp");
    if (!x->shape->sequence_parallel && x->tp > 1)
        y = emit(x, OP_ALL_GATHER, "gather", IN(y),
                 .collective = {.group = GROUP_TP, .alike = true});
    builder_branch(x, y, NO_VALUE, DROPOUT_AFTER_MLP);
}
