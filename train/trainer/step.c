#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "train/backward/backward.h"
#include "train/engine/memory_plan.h"
#include "train/model/bind.h"
#include "train/trainer/step_internal.h"

bool step_has_masters(const struct step *s)
{
    return step_elem_bytes(s) < step_real_bytes(s);
}

/* ---- programs ---- */

static struct build build_of(const struct step *s, const struct training_shape *training)
{
    struct model *m = s->model;
    struct build b = {.config = &m->config,
                      .params = m->params,
                      .layout = &m->layout,
                      .groups = &m->groups,
                      .parameters = &m->parameters,
                      .elem = m->options.elem,
                      .vocab_rows = s->options.vocab_rows};
    b.shape = (struct forward_shape){
        .tokens = tokens_shape(&s->options.shape, &m->groups.sizes, m->groups.sizes.tp),
        .num_positions = s->options.shape.length,
        .sequence_parallel = m->options.sequence_parallel && m->groups.sizes.tp > 1,
        .cp = m->options.cp_kind,
        .loss = true,
        .trace_layer = -1,
        .train = training};
    return b;
}

/* Rows of logits at once: chunks of one size but the last. All begin at a
 * multiple of MEMORY_ALIGNMENT, also in arrays with one number per row. */
static uint64_t head_rows(const struct step *s, const struct build *b)
{
    enum { UNIT = MEMORY_ALIGNMENT / 4 };
    const uint64_t rows = b->shape.tokens.rows, row = builder_vocab_rows(b) * step_real_bytes(s);
    const uint64_t least = ceil_div_u64(rows, STEP_HEAD_CHUNKS),
                   most = max_u64(max_u64(STEP_LOGIT_BYTES / row / UNIT, 1) * UNIT, least);
    return ceil_div_u64(ceil_div_u64(rows, ceil_div_u64(rows, most)), UNIT) * UNIT;
}

/* number: index into step_chunk.micro. Without a pipeline all stages are one
 * chunk. */
static enum status build_forward(struct built *out, const struct step *s, unsigned chunk,
                                 unsigned number, struct error *err)
{
    const struct model *m = s->model;
    const uint64_t pp = m->layout.pp;
    struct training_shape training = s->options.training;
    training.accumulates = number % MICRO_EVALUATES == MICRO_LATER;
    if (number >= MICRO_EVALUATES)
        training.hidden_dropout = training.attention_dropout = training.bias_update_rate = 0;
    struct build b = build_of(s, &training);
    b.shape.head_rows = s->options.head_rows ? s->options.head_rows : head_rows(s, &b);
    if (pp == 1) return builder_make(out, &b, 0, m->layout.vpp, err);
    return builder_make(out, &b, chunk * pp + m->groups.place.pp, 1, err);
}

/* Whether another micro-batch or chunk may run between the two parts of one. */
static bool has_two_parts(const struct step *s, const struct step_chunk *c)
{
    return c->num_slots > 1 || s->num_chunks > 1;
}

static enum status add_backward(struct step *s, struct step_chunk *c, struct built *b,
                                bool accumulates, struct error *err)
{
    const struct training_values *t = &b->train;
    const struct backward backward = {
        .stage = {b->ends.in, b->ends.out, b->ends.out_gradient},
        .head = t->head,
        .head_chunks = t->head_chunks,
        .loss_scale = t->loss_scale,
        .router_scale = t->router_scale,
        .lookups = {{t->ids, t->id_order}, {t->positions, t->position_order}},
        .accumulates = accumulates,
        .gradient_type = s->options.gradients_are_elem ? OPERAND_ELEM : OPERAND_REAL};
    TRY(backward_make(&b->program, &backward, &c->forward_calls, &b->ends.in_gradient, err));
    if (has_two_parts(s, c)) b->program.second_part = c->forward_calls;
    return recompute(&b->program, &s->options.recompute, c->forward_calls, err);
}

/* Copies the groups over which gradients are summed to the parameters. */
static void note_sums(struct parameters *p, const struct program *probe)
{
    for (size_t i = 0; i < probe->num_values; i++)
        if (probe->values[i].class == VALUE_GRADIENT)
            p->items[probe->values[i].source].sums = probe->values[i].sums;
}

/* Builds a first program to learn which parameters exist, before they get their
 * places. */
static enum status probe_parameters(struct step *s, unsigned chunk, struct error *err)
{
    struct built probe = {0};
    enum status st = build_forward(&probe, s, chunk, MICRO_FIRST, err);
    if (!st) st = add_backward(s, &s->chunks[chunk], &probe, false, err);
    if (!st) note_sums(&s->model->parameters, &probe.program);
    built_release(&probe);
    return st;
}

static enum status arrange_parameters(struct step *s, struct error *err)
{
    for (unsigned c = 0; c < s->num_chunks; c++)
        TRY(probe_parameters(s, c, err));
    parameters_arrange(&s->model->parameters, step_place_of, step_range_unit(s));
    step_find_ranges(s);
    return OK;
}

static enum status make_chunk(struct step *s, unsigned chunk, struct error *err)
{
    struct step_chunk *c = &s->chunks[chunk];
    for (unsigned i = 0; i < MICRO_PROGRAMS; i++) {
        TRY(build_forward(&c->micro[i], s, chunk, i, err));
        if (i < MICRO_EVALUATES) TRY(add_backward(s, c, &c->micro[i], i == MICRO_LATER, err));
        memory_plan_make(&c->micro[i].program, s->model->kernels);
    }
    return OK;
}

static enum status make_micro_batches(struct step *s, struct error *err)
{
    TRY(step_plan_slots(s, err));
    TRY(arrange_parameters(s, err));
    for (unsigned c = 0; c < s->num_chunks; c++)
        TRY(make_chunk(s, c, err));
    return s->model->checkpoint ? parameters_bind(&s->model->parameters, s->model->checkpoint, err)
                                : OK;
}

/* ---- the whole ---- */

uint64_t step_slot_bytes(const struct step_chunk *c, unsigned class)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < MICRO_PROGRAMS; i++)
        bytes = max_u64(bytes, c->micro[i].program.bytes[class]);
    return bytes;
}

/* Bytes of a class that each slot has for itself. Sets where each chunk's slots
 * begin. */
static uint64_t measure_slots(struct step *s, unsigned class)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < s->num_chunks; i++) {
        struct step_chunk *c = &s->chunks[i];
        c->first[class] = bytes;
        bytes += step_slot_bytes(c, class) * (class == VALUE_INPUT ? c->num_inputs : c->num_slots);
    }
    return bytes;
}

static uint64_t measure_shared(const struct step *s, unsigned class)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < s->num_chunks; i++)
        bytes = max_u64(bytes, step_slot_bytes(&s->chunks[i], class));
    return bytes;
}

/* The update's inputs lie behind those of micro-batches; outputs likewise. */
static void measure_regions(struct step *s)
{
    const struct step_options *o = &s->options;
    uint64_t *bytes = s->region_bytes;
    const uint64_t states = s->shard.numel * step_real_bytes(s);
    bytes[VALUE_PARAMETER] = s->model->parameters.bytes;
    bytes[VALUE_GRADIENT] =
        s->numel * (o->gradients_are_elem ? step_elem_bytes(s) : step_real_bytes(s));
    bytes[VALUE_MASTER] = step_has_masters(s) ? states : 0;
    bytes[VALUE_MOMENT_1] = o->optimizer == OPTIMIZER_ADAM || o->momentum != 0 ? states : 0;
    bytes[VALUE_MOMENT_2] = o->optimizer == OPTIMIZER_ADAM ? states : 0;
    for (unsigned k = VALUE_INPUT; k < NUM_VALUE_CLASSES; k++)
        bytes[k] = step_is_in_slots(k) ? measure_slots(s, k) : measure_shared(s, k);
    bytes[VALUE_INPUT] += s->update.bytes[VALUE_INPUT];
    bytes[VALUE_OUTPUT] += s->update.bytes[VALUE_OUTPUT];
    bytes[VALUE_SCRATCH] = max_u64(bytes[VALUE_SCRATCH], s->update.bytes[VALUE_SCRATCH]);
}

/* Refuses micro-batches that TP pads, if routers count tokens: padding would
 * count too. */
static enum status check_router_tokens(const struct step *s, struct error *err)
{
    const struct group_sizes *sizes = &s->model->groups.sizes;
    const struct batch *b = &s->options.shape;
    const struct training_shape *t = &s->options.training;
    const bool moves_bias =
        s->model->config.moe_router_enable_expert_bias && t->bias_update_rate != 0;
    if ((t->balance_coefficient > 0 || t->z_coefficient > 0 || moves_bias) &&
        b->num_sequences * b->length % sizes->tp)
        return fail(err, ERR_UNSUPPORTED,
                    "a micro-batch of %" PRIu64
                    " tokens is not a multiple of TP %u: routers would count the padding",
                    b->num_sequences * b->length, sizes->tp);
    return OK;
}

enum status step_make(struct step *s, struct model *m, const struct step_options *o,
                      struct error *err)
{
    *s = (struct step){.model = m, .options = *o};
    arena_init(&s->arena);
    s->num_chunks = m->layout.pp > 1 ? (unsigned)m->layout.vpp : 1;
    s->chunks = arena_array(&s->arena, s->num_chunks, sizeof *s->chunks);
    program_init(&s->update, m->options.elem, &m->groups);
    TRY(check_router_tokens(s, err));
    TRY(make_micro_batches(s, err));
    TRY(step_make_update(s, err));
    measure_regions(s);
    return OK;
}

void step_release(struct step *s)
{
    if (!s->model) return;
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        if (s->regions[k] && k != VALUE_STATE) s->model->device->release(s->regions[k]);
    for (unsigned c = 0; c < s->num_chunks; c++)
        for (unsigned i = 0; i < MICRO_PROGRAMS; i++)
            built_release(&s->chunks[c].micro[i]);
    schedule_release(&s->schedule);
    free(s->messages);
    free(s->numbers);
    program_release(&s->update);
    arena_release(&s->arena);
}

uint64_t step_bytes(const struct step *s)
{
    uint64_t bytes = 0;
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        bytes += s->region_bytes[k];
    return bytes;
}

/* States lie in the region of parameters. */
static const char *const region_names[NUM_VALUE_CLASSES] = {
    [VALUE_PARAMETER] = "parameters",    [VALUE_GRADIENT] = "gradients",
    [VALUE_MASTER] = "masters",          [VALUE_MOMENT_1] = "first moments",
    [VALUE_MOMENT_2] = "second moments", [VALUE_INPUT] = "inputs",
    [VALUE_OUTPUT] = "kept outputs",     [VALUE_SAVED] = "saved activations",
    [VALUE_SCRATCH] = "activations",
};

const char *step_region_name(enum value_class class)
{
    return region_names[class];
}

struct run step_run_of(const struct step *s, const struct program *p)
{
    struct run r = {.program = p,
                    .collectives = &s->model->collectives,
                    .device = s->model->device,
                    .kernels = s->model->kernels};
    memcpy(r.regions, s->regions, sizeof r.regions);
    return r;
}

/* The update's inputs and outputs lie behind those of micro-batches. */
static void set_update(struct step *s)
{
    s->update_run = step_run_of(s, &s->update);
    for (unsigned k = VALUE_INPUT; k <= VALUE_OUTPUT; k++)
        s->update_run.regions[k] = (char *)s->regions[k] + s->region_bytes[k] - s->update.bytes[k];
}

enum status step_upload(const struct run *r, value_id id, const void *data, struct error *err)
{
    return r->device->upload(run_data(r, id), data, r->program->values[id].bytes, err);
}

/* Uploads an input of the update. */
static enum status upload_reals(struct step *s, value_id id, const double *from, unsigned count,
                                struct error *err)
{
    float narrow[NUM_CONTROLS];
    if (s->model->options.elem == ELEM_F64) return step_upload(&s->update_run, id, from, err);
    for (unsigned i = 0; i < count; i++)
        narrow[i] = (float)from[i];
    return step_upload(&s->update_run, id, narrow, err);
}

static uint64_t largest_input(const struct step *s)
{
    uint64_t most = 0;
    for (unsigned c = 0; c < s->num_chunks; c++)
        for (unsigned i = 0; i < MICRO_PROGRAMS; i++) {
            const struct program *p = &s->chunks[c].micro[i].program;
            for (size_t k = 0; k < p->num_values; k++)
                if (p->values[k].class == VALUE_INPUT) most = max_u64(most, p->values[k].bytes);
        }
    return most;
}

enum status step_allocate(struct step *s, struct error *err)
{
    double sums[NUM_SUMS];
    const struct device *device = s->model->device;
    for (unsigned c = 0; c < s->num_chunks; c++)
        for (unsigned i = 0; i < MICRO_PROGRAMS; i++)
            TRY(collectives_reserve(&s->model->collectives, &s->chunks[c].micro[i].program, err));
    TRY(collectives_reserve(&s->model->collectives, &s->update, err));
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        if (s->region_bytes[k])
            TRY(device->allocate(&s->regions[k], s->region_bytes[k], region_names[k], err));
    s->regions[VALUE_STATE] = s->regions[VALUE_PARAMETER];
    s->numbers = must_malloc(largest_input(s) + 1);
    set_update(s);
    step_first_sums(s, sums);
    return upload_reals(s, s->first_sums, sums, NUM_SUMS, err);
}

/* Sets the masters from element `to` on to the weights from element `from` on. */
static enum status make_masters(struct step *s, uint64_t from, uint64_t to, uint64_t count,
                                struct error *err)
{
    char *weights = s->regions[VALUE_PARAMETER], *masters = s->regions[VALUE_MASTER];
    const struct operand in[MAX_INPUTS] = {{.data = weights + from * step_elem_bytes(s),
                                            .type = OPERAND_ELEM,
                                            .num_dims = 1,
                                            .shape = {count}}};
    const struct operand out[MAX_OUTPUTS] = {{.data = masters + to * step_real_bytes(s),
                                              .type = OPERAND_REAL,
                                              .num_dims = 1,
                                              .shape = {count}}};
    const union op_params none = {0};
    return s->model->kernels[OP_CAST].run(&none, in, out, NULL, err);
}

enum status step_begin(struct step *s, bool loaded, struct error *err)
{
    if (loaded || !step_has_masters(s)) return OK;
    if (!s->shard.is_sharded) return make_masters(s, 0, 0, s->numel, err);
    for (size_t i = 0; i < s->shard.num_buckets; i++) {
        const struct shard_bucket *b = &s->shard.buckets[i];
        TRY(make_masters(s, b->own, b->at, b->own_end - b->own, err));
    }
    return OK;
}

/* ---- updates ---- */

enum status step_update(struct step *s, const struct step_control *c, struct error *err)
{
    const double t = (double)c->update, numbers[NUM_CONTROLS] = {
                                            [LR] = c->lr,
                                            [WEIGHT_DECAY] = c->weight_decay,
                                            [CORRECTION_1] = 1 / (1 - pow(s->options.beta1, t)),
                                            [CORRECTION_2] = 1 / (1 - pow(s->options.beta2, t)),
                                            [FACTOR] = c->factor,
                                            [CLIP] = c->clip,
                                        };
    TRY(upload_reals(s, s->control, numbers, NUM_CONTROLS, err));
    return run_queue(&s->update_run, 0, s->update.num_calls, err);
}

/* Downloads the first numbers of a value, as doubles. */
static enum status download_reals(const struct run *r, value_id id, double *to, unsigned count,
                                  struct error *err)
{
    double wide[NUM_SCALARS];
    float narrow[NUM_SCALARS];
    const bool f64 = r->program->elem == ELEM_F64;
    if (id == NO_VALUE) return OK;
    TRY(r->device->download(f64 ? (void *)wide : narrow, run_data(r, id), count * (f64 ? 8 : 4),
                            err));
    for (unsigned i = 0; i < count; i++)
        to[i] = f64 ? wide[i] : (double)narrow[i];
    return OK;
}

static enum status sum_over(const struct step *s, enum group_kind kind, double *x,
                            struct error *err)
{
    struct comm_group *g = &s->model->groups.of[kind];
    return g->size > 1 ? g->comm->backend->all_reduce(g, x, 1, COMM_F64, COMM_SUM, err) : OK;
}

/* Adds up a sum of each chunk over this rank's chunks. sum: its offset in
 * training_values. */
static enum status download_sums(const struct step *s, size_t sum, double *out, struct error *err)
{
    *out = 0;
    for (unsigned c = 0; c < s->num_chunks; c++) {
        const struct built *b = &s->chunks[c].micro[MICRO_FIRST];
        const struct run r = step_run_of(s, &b->program);
        double x = 0;
        TRY(download_reals(&r, *(const value_id *)((const char *)&b->train + sum), &x, 1, err));
        *out += x;
    }
    return OK;
}

/* Sums over ranks with other tokens, and over stages. */
static enum status sum_over_ranks(const struct step *s, double *x, struct error *err)
{
    TRY(sum_over(s, GROUP_DP, x, err));
    TRY(sum_over(s, GROUP_CP, x, err));
    return sum_over(s, GROUP_PP, x, err);
}

enum status step_wait_loss(struct step *s, double *loss, struct error *err)
{
    TRY(run_wait(&s->update_run, err));
    TRY(download_sums(s, offsetof(struct training_values, loss_sum), loss, err));
    return sum_over_ranks(s, loss, err);
}

/* sum: its offset in training_values. Each rank has the sum of its tokens and
 * layers. */
static enum status wait_router_loss(const struct step *s, size_t sum, double *loss,
                                    struct error *err)
{
    TRY(download_sums(s, sum, loss, err));
    TRY(sum_over_ranks(s, loss, err));
    return sum_over(s, GROUP_TP, loss, err);
}

enum status step_wait(struct step *s, struct step_result *out, struct error *err)
{
    double scalars[NUM_SCALARS], params[1] = {0};
    *out = (struct step_result){0};
    TRY(step_wait_loss(s, &out->loss, err));
    if (s->model->config.num_experts) { /* collective, also for stages without experts */
        const size_t balance = offsetof(struct training_values, balance_sum),
                     z = offsetof(struct training_values, z_sum);
        TRY(wait_router_loss(s, balance, &out->balance, err));
        TRY(wait_router_loss(s, z, &out->z_loss, err));
    }
    TRY(download_reals(&s->update_run, s->scalars, scalars, NUM_SCALARS, err));
    TRY(download_reals(&s->update_run, s->params_sums, params, 1, err));
    out->grad_norm = scalars[SCALAR_NORM];
    out->params_norm = sqrt(params[0]);
    /* Large counts are rounded. */
    out->num_zeros = (uint64_t)fmax(scalars[SCALAR_ZEROS], 0);
    out->skipped = scalars[SCALAR_SKIPPED] != 0;
    return OK;
}
