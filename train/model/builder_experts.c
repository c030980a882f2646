/* builder_experts.c - a mixture of experts: the router and the experts' MLPs.
 */
#include <inttypes.h>

#include "common/checked.h"
#include "train/model/builder_internal.h"

/* Weights of all experts of this rank, stacked: [experts, rows, columns]. */
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
    const size_t before = x->b->parameters->count;
    if (builder_spec(x, names[0], &spec, &cut))
        x->st = parameters_add_stack(x->b->parameters, stack, names, count, spec, &cut, &number,
                                     x->err);
    builder_keep_codes(x, before);
    return builder_held(x, VALUE_PARAMETER, number);
}

/* The choice of the router. */
struct routed {
    value_id rows, weights,
        counts;      /* [tokens, topk] row and weight of each slot; rows of each expert */
    value_id tokens; /* a row for each slot, by expert */
};

/* Sets the factors of router losses: means over all tokens of the micro-batch,
 * of which tensor parallel ranks have successive parts. */
static void add_loss_params(const struct builder *x, uint64_t rows, union op_params *p)
{
    const struct training_shape *t = x->shape->train;
    const double all = (double)(rows * x->tp), experts = (double)x->c->num_experts;
    if (!t) return;
    p->route.sequence_length = t->balance_length;
    p->route.first_token = rows * x->b->groups->place.tp;
    const double counted = t->balance_length ? (double)t->balance_length : all;
    p->route.of_share = t->balance_is_global;
    p->route.balance = t->balance_is_global
                           ? t->balance_coefficient * experts / (all * x->b->groups->sizes.dp)
                           : t->balance_coefficient * experts / (p->route.topk * all * counted);
    p->route.z = t->z_coefficient / all;
}

/* Tokens of each expert, of all micro-batches of the step so far, on all tensor
 * and data parallel ranks. A state accumulates this rank's counts. */
static value_id count_globally(struct builder *x, value_id experts, const union op_params *p)
{
    const uint64_t shape[] = {1, x->c->num_experts};
    const char *name = builder_full_name(x, "mlp.router.global_counts");
    value_id held = builder_held(
        x, VALUE_STATE, parameters_add_state(x->b->parameters, name, OPERAND_INT, 2, shape));
    const value_id before = x->shape->train->accumulates ? held : NO_VALUE;
    value_id counts = emit(x, OP_COUNT_EXPERTS, "count_experts", IN(experts, before), .params = *p,
                           .sizes = {{'S', 1}, {'E', shape[1]}});
    emit(x, OP_COUNT_EXPERTS, "keep_counts", IN(experts, before), .params = *p, .into = {&held},
         .sizes = {{'S', 1}, {'E', shape[1]}});
    counts = builder_collective(x, OP_ALL_REDUCE, GROUP_TP, counts, "sum_counts");
    return builder_collective(x, OP_ALL_REDUCE, GROUP_DP, counts, "sum_counts");
}

/* Tokens of each expert, of each sequence or of all, on all tensor parallel
 * ranks. */
static value_id count_experts(struct builder *x, value_id experts, const union op_params *p)
{
    const uint64_t all = builder_rows_of(x, experts) * x->tp, length = p->route.sequence_length;
    if (x->shape->train->balance_is_global) return count_globally(x, experts, p);
    value_id counts =
        emit(x, OP_COUNT_EXPERTS, "count_experts", IN(experts, NO_VALUE), .params = *p,
             .sizes = {{'S', length ? ceil_div_u64(all, length) : 1}, {'E', x->c->num_experts}});
    return builder_collective(x, OP_ALL_REDUCE, GROUP_TP, counts, "sum_counts");
}

/* Experts chosen without the bias, counted by the balance loss (moe_utils.py:
 * compute_routing_scores_for_aux_loss). */
static value_id choice_without_bias(struct builder *x, value_id logits, value_id experts,
                                    const union op_params *p)
{
    value_id weights;
    if (!x->c->moe_router_enable_expert_bias) return experts;
    emit(x, OP_ROUTE, "route_without_bias", IN(logits, NO_VALUE), OUT(&weights, &experts),
         .params = *p);
    return experts;
}

/* Adds the losses of this rank's tokens, without coefficients, to those of
 * other layers. */
static void add_router_losses(struct builder *x, value_id logits, value_id experts,
                              const union op_params *with)
{
    const struct training_shape *t = x->shape->train;
    struct training_values *out = &x->out->train;
    union op_params p = *with;
    if (!t) return;
    const bool adds = x->routers_begun || t->accumulates;
    x->routers_begun = true;
    if (t->balance_coefficient > 0) {
        value_id sum = builder_sum(x, "balance_loss");
        experts = choice_without_bias(x, logits, experts, &p);
        p.route.balance /= t->balance_coefficient;
        out->balance_sum = emit(x, OP_BALANCE_LOSS, "balance_loss",
                                IN(logits, count_experts(x, experts, &p), adds ? sum : NO_VALUE),
                                .params = p, .into = {&sum});
    }
    if (t->z_coefficient > 0) {
        value_id sum = builder_sum(x, "z_loss");
        p.route.z /= t->z_coefficient;
        out->z_sum = emit(x, OP_Z_LOSS, "z_loss", IN(logits, adds ? sum : NO_VALUE), .params = p,
                          .into = {&sum});
    }
}

/* Counts tokens for the step's update of the bias. */
static void count_for_bias(struct builder *x, value_id experts)
{
    const struct training_shape *t = x->shape->train;
    const uint64_t shape[] = {1, x->c->num_experts};
    const union op_params p = {.route = {.topk = (uint32_t)x->c->moe_router_topk}};
    if (!x->c->moe_router_enable_expert_bias || !t || t->bias_update_rate == 0) return;
    const char *name =
        builder_full_name(x, arena_printf(&x->p->arena, "mlp.router.expert_bias%s", EXPERT_COUNTS));
    value_id counts = builder_held(
        x, VALUE_STATE, parameters_add_state(x->b->parameters, name, OPERAND_INT, 2, shape));
    emit(x, OP_COUNT_EXPERTS, "count_for_bias", IN(experts, t->accumulates ? counts : NO_VALUE),
         .params = p, .into = {&counts}, .sizes = {{'S', 1}, {'E', shape[1]}});
}

/* As Megatron-Core's topk_routing_with_score_function (moe_utils.py) */
static union op_params route_params(struct builder *x)
{
    const struct model_config *c = x->c;
    const char *scores = c->moe_router_score_function;
    const bool sigmoid = scores && strcmp(scores, "sigmoid") == 0;
    if (!x->st && scores && !sigmoid)
        x->st = fail(x->err, ERR_UNSUPPORTED,
                     "moe_router_score_function %s is not supported (softmax, sigmoid)", scores);
    if (!x->st && !sigmoid && c->moe_router_enable_expert_bias)
        x->st = fail(x->err, ERR_UNSUPPORTED,
                     "moe_router_enable_expert_bias needs moe_router_score_function sigmoid");
    const double factor = c->moe_router_topk_scaling_factor;
    return (union op_params){.route = {.topk = (uint32_t)c->moe_router_topk,
                                       .num_groups = 1,
                                       .topk_groups = 1,
                                       .sigmoid = sigmoid,
                                       .after_choice = !sigmoid && !c->moe_router_pre_softmax,
                                       .normalize = sigmoid && c->moe_router_topk > 1,
                                       .scaling = factor != 0 ? factor : 1}};
}

static struct routed route_tokens(struct builder *x, value_id in)
{
    struct routed r;
    value_id chosen, bias = NO_VALUE;
    uint64_t n = builder_rows_of(x, in), k = x->c->moe_router_topk, experts = x->c->num_experts;
    union op_params p = route_params(x);
    add_loss_params(x, n, &p);
    if (x->c->moe_router_enable_expert_bias) bias = builder_buffer(x, "mlp.router.expert_bias");
    value_id w = builder_weight(x, "mlp.router.weight");
    value_id logits = builder_product(x, OPERAND_REAL, in, w, NO_VALUE, "router");
    builder_trace(x, logits, x->tp > 1, false, "router");
    emit(x, OP_ROUTE, "route", IN(logits, bias), OUT(&r.weights, &chosen), .params = p);
    emit(x, OP_SORT_BY_EXPERT, "sort", IN(chosen), OUT(&r.rows, &r.counts),
         .sizes = {{'E', experts}});
    add_router_losses(x, logits, chosen, &p);
    count_for_bias(x, chosen);
    r.tokens = emit(x, OP_PERMUTE, "permute", IN(in, r.rows), .sizes = {{'R', n * k}});
    return r;
}

/* Sends rows to the ranks of their experts, or back. counts: rows for each. */
static value_id exchange_rows(struct builder *x, value_id in, value_id counts, uint64_t bound,
                              uint64_t num_counts, value_id *recv_counts)
{
    value_id y;
    emit(x, OP_ALL_TO_ALL, "exchange", IN(in, counts), OUT(&y, recv_counts),
         .collective.group = GROUP_EP, .sizes = {{'Q', bound}, {'U', num_counts}});
    return y;
}

/* MLPs of this rank's experts on rows sorted by expert; with ETP, shards of
 * them. */
static value_id expert_mlps(struct builder *x, value_id in, value_id counts)
{
    value_id w1 = expert_weights(x, "linear_fc1.weight");
    value_id w2 = expert_weights(x, "linear_fc2.weight");
    value_id f = emit(x, OP_GROUPED_MATMUL, "fc1", IN(in, w1, counts));
    return emit(x, OP_GROUPED_MATMUL, "fc2", IN(builder_activated(x, f, counts), w2, counts));
}

/* Sends rows to the ranks of their experts, runs the MLPs there, and returns
 * the results. */
static value_id distributed_experts(struct builder *x, const struct routed *r)
{
    uint64_t here = x->c->num_experts / x->ep, sent = builder_rows_of(x, r->tokens);
    uint64_t tokens = sent / x->c->moe_router_topk;
    uint64_t bound = x->ep > 1 ? x->ep * tokens * min_u64(x->c->moe_router_topk, here) : sent;
    value_id in = r->tokens, counts = r->counts, recv_counts, ignored;
    if (x->ep > 1) in = exchange_rows(x, in, counts, bound, x->ep * here, &counts);
    recv_counts = counts;
    in = builder_collective(x, OP_ALL_GATHER, GROUP_ETP, in, "gather");
    counts = builder_collective(x, OP_ALL_GATHER, GROUP_ETP, counts, "gather_counts");
    value_id rows, totals;
    emit(x, OP_SORT_RECEIVED, "sort_received", IN(counts), OUT(&rows, &totals),
         .params.sort_received = {.senders_per_block = x->ep, .rows_per_block = bound},
         .sizes = {{'R', x->etp * bound}, {'E', here}});
    in = emit(x, OP_PERMUTE, "permute", IN(in, rows), .sizes = {{'R', x->etp * bound}});
    value_id y = emit(x, OP_UNPERMUTE, "unpermute", IN(expert_mlps(x, in, totals), rows));
    y = builder_collective(x, OP_REDUCE_SCATTER, GROUP_ETP, y, "reduce");
    if (x->ep > 1) y = exchange_rows(x, y, recv_counts, sent, x->c->num_experts, &ignored);
    return y;
}

void builder_experts(struct builder *x)
{
    bool sliced = x->tp > 1;
    value_id in =
        builder_normed(x, "pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias", "mlp_norm");
    builder_trace(x, in, sliced && x->shape->sequence_parallel, false, "mlp_norm");
    if (!x->shape->sequence_parallel) in = builder_collective(x, OP_SLICE, GROUP_TP, in, "slice");
    struct routed r = route_tokens(x, in);
    value_id y =
        x->ep == 1 && x->etp == 1 ? expert_mlps(x, r.tokens, r.counts) : distributed_experts(x, &r);
    y = emit(x, OP_UNPERMUTE, "unpermute", IN(y, r.rows, r.weights));
    builder_trace(x, y, sliced, false, "mlp");
    if (!x->shape->sequence_parallel && x->tp > 1)
        y = emit(x, OP_ALL_GATHER, "gather", IN(y),
                 .collective = {.group = GROUP_TP, .replicated = true});
    builder_branch(x, y, NO_VALUE, DROPOUT_AFTER_MLP);
}
