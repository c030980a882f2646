/* Attention of bf16 and f16 through cuDNN, if the caller declares the spans.
 *
 * 1. Spans are on the GPU, and cuDNN plans need shapes on the host: so this
 *    takes only calls with uniform_sequences, without features that cuDNN's
 *    pattern lacks.
 * 2. Plans are made when the workspace is asked for. A call without a plan goes
 *    to our own kernels, so a run neither makes plans nor waits.
 * 3. Before a plan is used, a small case of its kind is compared with
 *    our kernels.
 * 4. cuDNN takes one stride from head to head. With several groups of
 *    several query heads, rows have two: then a launch is one sequence,
 *    whose groups are the batch, or one group of all sequences; whichever
 *    makes fewer launches. */
#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cudnn_plan.h"
#include "kernels/cuda/trust.h"

/* Shorter sequences are not worth a plan. */
enum { SHORTEST = 64, SMALL_LENGTH = 200, MAX_PLANS = 256, WORKSPACE_ALIGNMENT = 256 };

struct launches {
    struct cudnn_shape shape; /* of each launch */
    unsigned count;
    size_t q_step, kv_step, o_step; /* in elements, from launch to launch */
    /* Strides of stats from sequence to sequence and from group to group; a
     * group's heads are adjacent. */
    size_t stats_of_sequence, stats_of_group;
};

struct planned {
    struct cudnn_shape shape;
    struct cudnn_plan plan;
    bool usable;
};

static struct planned plans[MAX_PLANS];
static unsigned num_plans;

/* ---- whether, and how ---- */

static bool says_why()
{
    const char *value = getenv("FERRY_CUDA_CUDNN");
    return value && strcmp(value, "say") == 0;
}

static bool cudnn_is_off()
{
    const char *value = getenv("FERRY_CUDA_CUDNN");
    return value && strcmp(value, "0") == 0;
}

/* By shapes alone. A window longer than the sequences has no effect. */
static bool fits_cudnn(const union op_params *p, const struct operand *in)
{
    const uint64_t rows = in[0].shape[0], sequences = p->attention.uniform_sequences;
    if (cudnn_is_off() || sequences == 0 || rows % sequences != 0 || in[1].shape[0] != rows)
        return false;
    const uint64_t length = rows / sequences;
    if (length < SHORTEST || in[3].data || p->attention.softcap != 0) return false;
    if (p->attention.window != 0 && p->attention.window < length) return false;
    return attention_fits_mma(p, in);
}

/* Floats of a launch's stats, so that each begins as aligned as cuDNN
 * was told. */
static size_t stats_of_launch(const struct cudnn_shape *s)
{
    const size_t count = (size_t)(s->batch * s->heads * s->length);
    return (count + WORKSPACE_ALIGNMENT / 4 - 1) / (WORKSPACE_ALIGNMENT / 4) *
           (WORKSPACE_ALIGNMENT / 4);
}

static struct launches arrange_launches(enum elem_type elem, const union op_params *p,
                                        const struct operand *in, const struct operand *out)
{
    const struct head_shape h = p->attention.heads;
    const int64_t d = h.head_dim, sequences = p->attention.uniform_sequences;
    const int64_t length = (int64_t)in[0].shape[0] / sequences;
    const int64_t q_row = (int64_t)in[0].shape[1], kv_row = (int64_t)in[1].shape[1];
    const int64_t o_row = (int64_t)h.groups * h.queries * d;
    const int64_t q_group = p->attention.q_stride, kv_group = p->attention.kv_stride;
    const int64_t o_group = h.queries * d;
    const bool one_stride = h.queries == 1 || h.groups == 1;
    const bool by_sequence = !one_stride && sequences <= h.groups;
    struct launches l = {};
    struct cudnn_shape &s = l.shape;
    s.length = length;
    s.head_dim = d;
    s.causal = p->attention.causal;
    s.stats = out[1].data != NULL;
    s.f16 = elem == ELEM_F16;
    s.batch = by_sequence ? h.groups : sequences;
    s.heads = one_stride ? h.groups * h.queries : h.queries;
    s.kv_heads = one_stride ? h.groups : 1;
    s.q = {by_sequence ? q_group : length * q_row, h.queries == 1 ? q_group : d, q_row};
    s.kv = {by_sequence ? kv_group : length * kv_row, kv_group, kv_row};
    s.o = {by_sequence ? o_group : length * o_row, d, o_row};
    l.count = one_stride ? 1 : by_sequence ? (unsigned)sequences : h.groups;
    l.q_step = (size_t)(by_sequence ? length * q_row : q_group);
    l.kv_step = (size_t)(by_sequence ? length * kv_row : kv_group);
    l.o_step = (size_t)(by_sequence ? length * o_row : o_group);
    const bool by_group = !one_stride && !by_sequence;
    l.stats_of_sequence =
        by_sequence ? stats_of_launch(&s) : (size_t)length * h.queries * (by_group ? 1 : h.groups);
    l.stats_of_group = by_group ? stats_of_launch(&s) : (size_t)length * h.queries;
    return l;
}

/* ---- running ---- */

static size_t plan_bytes(const struct planned *e)
{
    return (e->plan.workspace_bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT *
           WORKSPACE_ALIGNMENT;
}

static size_t workspace_bytes(const struct planned *e, const struct launches *l)
{
    const struct cudnn_shape &s = l->shape;
    return plan_bytes(e) + (s.stats ? stats_of_launch(&s) * l->count * sizeof(float) : 0);
}

/* lse [rows, heads] from cuDNN's [.., length]; one element a thread. */
__global__ void unpack_stats(float *lse, const float *stats, size_t items, unsigned groups,
                             unsigned queries, unsigned length, size_t of_sequence, size_t of_group)
{
    const size_t item = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= items) return;
    const size_t row = item / (groups * queries), head = item % (groups * queries);
    lse[item] = stats[row / length * of_sequence + head / queries * of_group +
                      head % queries * length + row % length];
}

/* Element i of an operand with two-byte elements. */
static char *element(const struct operand &o, size_t i)
{
    return data_of<char>(o) + 2 * i;
}

static enum status run_launches(const union op_params *p, const struct operand *in,
                                const struct operand *out, const struct planned *e,
                                const struct launches *l, void *workspace, struct error *err)
{
    const struct head_shape h = p->attention.heads;
    const struct cudnn_shape &s = l->shape;
    float *stats = reinterpret_cast<float *>(static_cast<char *>(workspace) + plan_bytes(e));
    for (unsigned i = 0; i < l->count; i++) {
        struct cudnn_operands o = {};
        o.q = element(in[0], i * l->q_step);
        o.k = element(in[1], i * l->kv_step + p->attention.k_at);
        o.v = element(in[1], i * l->kv_step + p->attention.v_at);
        o.o = element(out[0], i * l->o_step);
        o.stats = s.stats ? stats + i * stats_of_launch(&s) : NULL;
        o.scale = (float)p->attention.scale;
        TRY(cudnn_plan_run(&e->plan, &s, &o, workspace, err));
    }
    if (!s.stats) return OK;
    const size_t items = in[0].shape[0] * h.groups * h.queries;
    return launch("attention", err, unpack_stats, dim3(blocks_for(items, 256)), 256, 0,
                  data_of<float>(out[1]), stats, items, h.groups, h.queries, (unsigned)s.length,
                  l->stats_of_sequence, l->stats_of_group);
}

/* ---- comparison with our own kernels ---- */

/* A small case with enough sequences to have launches of the op's kind. */
static struct op_call small_case(const struct op_call *o)
{
    const uint32_t sequences = o->p.attention.uniform_sequences;
    const uint32_t most = sequences <= o->p.attention.heads.groups ? 2 : 3;
    const uint64_t length = o->in[0].shape[0] / sequences;
    return attention_small_case(o, std::min(sequences, most),
                                std::min<uint64_t>(length, SMALL_LENGTH));
}

static enum status run_own(const struct op_call *call, const void *context, void *workspace,
                           struct error *err)
{
    (void)context;
    return call->elem == ELEM_F16
               ? attention_own<f16>(&call->p, call->in, call->out, workspace, err)
               : attention_own<bf16>(&call->p, call->in, call->out, workspace, err);
}

struct cudnn_run {
    const struct planned *planned;
    const struct launches *launches;
};

static enum status run_cudnn(const struct op_call *call, const void *context, void *workspace,
                             struct error *err)
{
    const struct cudnn_run *r = static_cast<const struct cudnn_run *>(context);
    return run_launches(&call->p, call->in, call->out, r->planned, r->launches, workspace, err);
}

static enum status compare_with_own(const struct op_call *call, const struct planned *e,
                                    const struct launches *l, struct error *err)
{
    const struct cudnn_run r = {e, l};
    const struct contender own = {"own", attention_own_workspace(&call->p, call->in), run_own,
                                  NULL};
    const struct contender cudnn = {"cuDNN", workspace_bytes(e, l), run_cudnn, &r};
    return check_agreement(call, attention_small_spans, &own, &cudnn, err);
}

/* ---- plans ---- */

static struct planned *find_plan(const struct cudnn_shape *s)
{
    for (unsigned i = 0; i < num_plans; i++)
        if (memcmp(&plans[i].shape, s, sizeof *s) == 0) return &plans[i];
    return NULL;
}

static void print_cudnn_plan(const struct cudnn_shape *s, const char *what)
{
    if (!says_why()) return;
    (void)fprintf(stderr, "cuDNN %u: attention [%lld, %lld/%lld, %lld, %lld] %s%s%s: %s\n",
                  cudnn_version(), (long long)s->batch, (long long)s->heads, (long long)s->kv_heads,
                  (long long)s->length, (long long)s->head_dim, s->f16 ? "f16" : "bf16",
                  s->causal ? " causal" : "", s->stats ? " lse" : "", what);
}

static struct planned *prepare_plan(const struct op_call *o);

/* Compares a small case directly; a larger case is trusted if its small
 * case is. */
static enum status approve_plan(const struct op_call *o, const struct planned *e,
                                const struct launches *l, struct error *err)
{
    const struct op_call small = small_case(o);
    const struct launches of_small = arrange_launches(o->elem, &small.p, small.in, small.out);
    if (memcmp(&of_small.shape, &l->shape, sizeof l->shape) == 0)
        return compare_with_own(o, e, l, err);
    const struct planned *like = prepare_plan(&small);
    return like && like->usable ? OK : fail(err, ERR_UNSUPPORTED, "its small case was refused");
}

static enum status make_planned(struct planned *e, const struct op_call *o,
                                const struct launches *l, struct error *err)
{
    TRY(cudnn_open(cuda_stream, err));
    TRY(cudnn_plan_make(&e->plan, &l->shape, NULL, err));
    return approve_plan(o, e, l, err);
}

/* The plan of an op, made if new, usable or not. NULL if there is no room for
 * more, or while a graph is recorded. */
static struct planned *prepare_plan(const struct op_call *o)
{
    const struct launches l = arrange_launches(o->elem, &o->p, o->in, o->out);
    struct planned *e = find_plan(&l.shape);
    struct error err;
    if (e || num_plans == MAX_PLANS || cuda_is_capturing()) return e;
    e = &plans[num_plans++];
    *e = {};
    e->shape = l.shape;
    e->usable = make_planned(e, o, &l, &err) == OK;
    if (!e->usable) cudnn_plan_release(&e->plan);
    print_cudnn_plan(&l.shape, e->usable ? "used" : err.text);
    return e;
}

void attention_cudnn_close(void)
{
    while (num_plans > 0)
        cudnn_plan_release(&plans[--num_plans].plan);
    cudnn_close();
}

/* ---- the op ---- */

template <typename E> size_t attention_cudnn_workspace(WORKSPACE_ARGUMENTS)
{
    if (!fits_cudnn(p, in)) return 0;
    const struct op_call o = op_call_of(ELEM_OF<E>, p, in, out);
    const struct launches l = arrange_launches(ELEM_OF<E>, p, in, out);
    const struct planned *e = prepare_plan(&o);
    return e && e->usable ? workspace_bytes(e, &l) : 0;
}

template <typename E> bool attention_cudnn_takes(WORKSPACE_ARGUMENTS)
{
    if (!fits_cudnn(p, in) || !fits_width<E>(WIDTH<E>, {in[0].data, in[1].data, out[0].data}))
        return false;
    const struct launches l = arrange_launches(ELEM_OF<E>, p, in, out);
    const struct planned *e = find_plan(&l.shape);
    return e && e->usable;
}

template <typename E> enum status attention_cudnn(OP_ARGUMENTS)
{
    const struct launches l = arrange_launches(ELEM_OF<E>, p, in, out);
    return run_launches(p, in, out, find_plan(&l.shape), &l, workspace, err);
}

#define FOR_TYPE(E)                                                                                \
    template size_t attention_cudnn_workspace<E>(WORKSPACE_ARGUMENTS);                             \
    template bool attention_cudnn_takes<E>(WORKSPACE_ARGUMENTS);                                   \
    template enum status attention_cudnn<E>(OP_ARGUMENTS);
FOR_TYPE(bf16)
FOR_TYPE(f16)
#undef FOR_TYPE
