#include "train/trainer/step.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/training.h"
#include "common/checked.h"
#include "common/memory.h"
#include "train/backward/backward.h"
#include "train/engine/memory_plan.h"
#include "train/model/bind.h"
#include "train/model/inputs.h"

enum { LR, WEIGHT_DECAY, CORRECTION_1, CORRECTION_2, FACTOR, CLIP, NUM_CONTROLS };
enum { SCALAR_SKIPPED = 5, SCALAR_NORM, SCALAR_ZEROS, NUM_SCALARS };

/* ---- parameters ---- */

/* Those without weight decay come last: the parameter group "vectors" (ckpt/training.h). */
static unsigned rank_of(const struct parameter *x)
{
    return group_members_find("vectors")->has(x->tensors[0], x->spec->num_dims);
}

static size_t elem_bytes(const struct step *s)
{
    return operand_bytes_of(OPERAND_ELEM, s->model->options.elem);
}

static size_t real_bytes(const struct step *s)
{
    return operand_bytes_of(OPERAND_REAL, s->model->options.elem);
}

bool step_has_masters(const struct step *s)
{
    return elem_bytes(s) < real_bytes(s);
}

/* Elements of parameters of a rank, and where those behind them begin. */
static void measure_parameters(struct step *s)
{
    const struct parameters *p = &s->model->parameters;
    uint64_t numel = 0;
    s->numel = s->num_decayed = 0;
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        if (!x->tensors) continue;
        const uint64_t bytes = ceil_div_u64(x->numel * elem_bytes(s), MEMORY_ALIGNMENT);
        s->numel = x->offset / elem_bytes(s) + bytes * MEMORY_ALIGNMENT / elem_bytes(s);
        if (rank_of(x) == 0) s->num_decayed = s->numel;
        numel += x->numel;
    }
    s->num_gaps = s->numel - numel;
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
        .loss = true,
        .trace_layer = -1,
        .train = training};
    return b;
}

/* Rows of logits at once: parts of one size, as far as they go. */
static uint64_t head_rows(const struct step *s, const struct build *b)
{
    const uint64_t rows = b->shape.tokens.rows, row = builder_vocab_rows(b) * real_bytes(s);
    const uint64_t most = max_u64(STEP_LOGIT_BYTES / row, 1);
    return ceil_div_u64(rows, ceil_div_u64(rows, most));
}

/* number: of MICRO_PROGRAMS. */
static enum status build_forward(struct built *out, const struct step *s, unsigned number,
                                 struct error *err)
{
    struct training_shape training = s->options.training;
    training.accumulates = number % MICRO_EVALUATES == MICRO_LATER;
    if (number >= MICRO_EVALUATES) training.hidden_dropout = training.attention_dropout = 0;
    const struct build b = build_of(s, &training);
    if (!training.head_rows) training.head_rows = head_rows(s, &b);
    return builder_make(out, &b, 0, s->model->layout.pp * s->model->layout.vpp, err);
}

static enum status add_backward(struct step *s, struct built *b, bool accumulates,
                                struct error *err)
{
    const struct training_values *t = &b->train;
    const struct backward backward = {
        .head = t->head,
        .head_chunks = t->head_chunks,
        .loss_scale = t->loss_scale,
        .balance_scale = t->balance_scale,
        .lookups = {{t->ids, t->id_order}, {t->positions, t->position_order}},
        .accumulates = accumulates,
        .gradient_type = s->options.gradients_are_elem ? OPERAND_ELEM : OPERAND_REAL};
    TRY(backward_make(&b->program, &backward, &s->forward_calls, err));
    if (s->num_slots > 1) b->program.second_part = s->forward_calls;
    return recompute(&b->program, &s->options.recompute, s->forward_calls, err);
}

/* A first program is made to learn which parameters there are; then they get their places. */
static enum status make_micro_batches(struct step *s, struct error *err)
{
    struct built probe = {0};
    enum status st = build_forward(&probe, s, MICRO_FIRST, err);
    built_release(&probe);
    if (st) return st;
    parameters_arrange(&s->model->parameters, rank_of);
    measure_parameters(s);
    for (unsigned i = 0; i < MICRO_PROGRAMS; i++) {
        TRY(build_forward(&s->micro[i], s, i, err));
        if (i < MICRO_EVALUATES) TRY(add_backward(s, &s->micro[i], i == MICRO_LATER, err));
        memory_plan_make(&s->micro[i].program, s->model->kernels);
    }
    return s->model->checkpoint ? parameters_bind(&s->model->parameters, s->model->checkpoint, err)
                                : OK;
}

/* ---- the update ---- */

/* Elements [first, end) of a region. */
static value_id part_of(struct step *s, enum value_class class, uint64_t first, uint64_t end)
{
    const bool is_elem =
        class == VALUE_PARAMETER || (class == VALUE_GRADIENT && s->options.gradients_are_elem);
    const uint64_t count = end - first;
    static const char *const names[] = {"parameters", "gradients", "masters", "moments", "squares"};
    value_id id = program_add_value(&s->update, class, is_elem ? OPERAND_ELEM : OPERAND_REAL, 1,
                                    &count, names[class]);
    s->update.values[id].source = UINT32_MAX;
    s->update.values[id].offset = first * (is_elem ? elem_bytes(s) : real_bytes(s));
    return id;
}

static value_id add_value(struct step *s, enum value_class class, uint64_t count, const char *name)
{
    return program_add_value(&s->update, class, OPERAND_REAL, 1, &count, name);
}

#define IN(...) .in = {__VA_ARGS__}, .num_in = sizeof((value_id[]){__VA_ARGS__}) / sizeof(value_id)

/* One call for parameters [first, end). */
static enum status add_optimizer(struct step *s, uint64_t first, uint64_t end, double wd_mult,
                                 struct error *err)
{
    const struct step_options *o = &s->options;
    if (first == end) return OK;
    const value_id gradient = part_of(s, VALUE_GRADIENT, first, end),
                   weight = part_of(s, VALUE_PARAMETER, first, end),
                   master = step_has_masters(s) ? part_of(s, VALUE_MASTER, first, end) : NO_VALUE;
    const bool has_momentum = o->optimizer == OPTIMIZER_ADAM || o->momentum != 0;
    const value_id moment = has_momentum ? part_of(s, VALUE_MOMENT_1, first, end) : NO_VALUE;
    union op_params p = {.optimizer = {.beta1 = o->beta1,
                                       .beta2 = o->beta2,
                                       .epsilon = o->epsilon,
                                       .momentum = o->momentum,
                                       .lr_mult = 1,
                                       .wd_mult = wd_mult}};
    struct emission e = {.label = "optimizer", .layer = -1, .params = p};
    if (o->optimizer == OPTIMIZER_SGD) {
        e.op = OP_SGD;
        memcpy(e.in, (value_id[]){gradient, s->scalars, weight, moment, master}, 5 * sizeof *e.in);
        e.num_in = 5;
        e.into[0] = &weight, e.into[1] = &moment, e.into[2] = &master;
        return program_emit(&s->update, &e, err);
    }
    const value_id squares = part_of(s, VALUE_MOMENT_2, first, end);
    e.op = OP_ADAM;
    memcpy(e.in, (value_id[]){gradient, s->scalars, weight, moment, squares, master},
           6 * sizeof *e.in);
    e.num_in = 6;
    e.into[0] = &weight, e.into[1] = &moment, e.into[2] = &squares, e.into[3] = &master;
    return program_emit(&s->update, &e, err);
}

static enum status emit(struct step *s, unsigned op, const char *label, struct emission e,
                        struct error *err)
{
    e.op = op;
    e.label = label;
    e.layer = -1;
    return program_emit(&s->update, &e, err);
}

static enum status make_update(struct step *s, struct error *err)
{
    value_id sums;
    program_init(&s->update, s->model->options.elem, &s->model->groups);
    s->control = add_value(s, VALUE_INPUT, NUM_CONTROLS, "control");
    TRY(emit(s, OP_SQUARE_SUM, "gradient_norm",
             (struct emission){IN(part_of(s, VALUE_GRADIENT, 0, s->numel)), .out = {&sums}}, err));
    TRY(emit(s, OP_STEP_SCALARS, "scalars",
             (struct emission){IN(sums, s->control), .out = {&s->scalars}}, err));
    s->update.values[s->scalars].class = VALUE_OUTPUT;
    TRY(add_optimizer(s, 0, s->num_decayed, 1, err));
    TRY(add_optimizer(s, s->num_decayed, s->numel, 0, err));
    s->params_sums = NO_VALUE;
    if (s->options.params_norm) {
        const enum value_class class = step_has_masters(s) ? VALUE_MASTER : VALUE_PARAMETER;
        TRY(emit(s, OP_SQUARE_SUM, "params_norm",
                 (struct emission){IN(part_of(s, class, 0, s->numel)), .out = {&s->params_sums}},
                 err));
        s->update.values[s->params_sums].class = VALUE_OUTPUT;
    }
    TRY(program_check(&s->update, err));
    memory_plan_make(&s->update, s->model->kernels);
    return OK;
}

/* ---- the whole ---- */

/* Whether each slot has values of this class for itself. */
static bool is_in_slots(unsigned class)
{
    return class == VALUE_INPUT || class == VALUE_SAVED;
}

/* Of a region: what slots have in common, or one of them. */
static uint64_t slot_bytes(const struct step *s, unsigned class)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < MICRO_PROGRAMS; i++)
        bytes = max_u64(bytes, s->micro[i].program.bytes[class]);
    return bytes;
}

/* Inputs of micro-batches, then those of the update; outputs likewise. */
static void measure_regions(struct step *s)
{
    const struct step_options *o = &s->options;
    uint64_t *bytes = s->region_bytes;
    const uint64_t reals = s->numel * real_bytes(s);
    bytes[VALUE_PARAMETER] = s->model->parameters.bytes;
    bytes[VALUE_GRADIENT] = o->gradients_are_elem ? s->numel * elem_bytes(s) : reals;
    bytes[VALUE_MASTER] = step_has_masters(s) ? reals : 0;
    bytes[VALUE_MOMENT_1] = o->optimizer == OPTIMIZER_ADAM || o->momentum != 0 ? reals : 0;
    bytes[VALUE_MOMENT_2] = o->optimizer == OPTIMIZER_ADAM ? reals : 0;
    for (unsigned k = VALUE_INPUT; k < NUM_VALUE_CLASSES; k++)
        bytes[k] = slot_bytes(s, k) * (is_in_slots(k) ? s->num_slots : 1);
    bytes[VALUE_INPUT] += s->update.bytes[VALUE_INPUT];
    bytes[VALUE_OUTPUT] += s->update.bytes[VALUE_OUTPUT];
    bytes[VALUE_SCRATCH] = max_u64(bytes[VALUE_SCRATCH], s->update.bytes[VALUE_SCRATCH]);
}

enum status step_make(struct step *s, struct model *m, const struct step_options *o,
                      struct error *err)
{
    const unsigned ranks = groups_world_size(&m->groups.sizes);
    *s = (struct step){.model = m, .options = *o, .num_slots = o->num_slots ? o->num_slots : 1};
    arena_init(&s->arena);
    s->slots = arena_array(&s->arena, s->num_slots, sizeof *s->slots);
    program_init(&s->update, m->options.elem, &m->groups);
    if (ranks > 1)
        return fail(err, ERR_UNSUPPORTED, "%u ranks: no gradients are summed over ranks", ranks);
    TRY(make_micro_batches(s, err));
    program_release(&s->update);
    TRY(make_update(s, err));
    measure_regions(s);
    return OK;
}

void step_release(struct step *s)
{
    if (!s->model) return;
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        if (s->regions[k] && k != VALUE_STATE) s->model->device->release(s->regions[k]);
    for (unsigned i = 0; i < MICRO_PROGRAMS; i++)
        built_release(&s->micro[i]);
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

void step_print_memory(const struct step *s, struct strbuf *out)
{
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        if (s->region_bytes[k])
            strbuf_printf(out, "  %-15s %12.2f MB\n", region_names[k],
                          (double)s->region_bytes[k] / 1e6);
    strbuf_printf(out, "  %-15s %12.2f MB\n", "together", (double)step_bytes(s) / 1e6);
}

static struct run run_of(const struct step *s, const struct program *p)
{
    struct run r = {.program = p,
                    .collectives = &s->model->collectives,
                    .device = s->model->device,
                    .kernels = s->model->kernels};
    memcpy(r.regions, s->regions, sizeof r.regions);
    return r;
}

static void set_slot(struct step *s, unsigned slot)
{
    for (unsigned i = 0; i < MICRO_PROGRAMS; i++) {
        struct run *r = &s->slots[slot].runs[i];
        *r = run_of(s, &s->micro[i].program);
        for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
            if (is_in_slots(k) && r->regions[k])
                r->regions[k] = (char *)s->regions[k] + slot * slot_bytes(s, k);
    }
}

/* The update's inputs and outputs lie behind those of micro-batches. */
static void set_update(struct step *s)
{
    s->update_run = run_of(s, &s->update);
    for (unsigned k = VALUE_INPUT; k <= VALUE_OUTPUT; k++)
        s->update_run.regions[k] = (char *)s->regions[k] + s->region_bytes[k] - s->update.bytes[k];
}

enum status step_allocate(struct step *s, struct error *err)
{
    const struct device *device = s->model->device;
    for (unsigned i = 0; i < MICRO_PROGRAMS; i++)
        TRY(collectives_reserve(&s->model->collectives, &s->micro[i].program, err));
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        if (s->region_bytes[k])
            TRY(device->allocate(&s->regions[k], s->region_bytes[k], region_names[k], err));
    s->regions[VALUE_STATE] = s->regions[VALUE_PARAMETER];
    for (unsigned i = 0; i < s->num_slots; i++)
        set_slot(s, i);
    set_update(s);
    return OK;
}

enum status step_begin(struct step *s, bool loaded, struct error *err)
{
    if (loaded || !step_has_masters(s)) return OK;
    const struct operand in[MAX_INPUTS] = {
        {s->regions[VALUE_PARAMETER], OPERAND_ELEM, 1, {s->numel}}};
    const struct operand out[MAX_OUTPUTS] = {
        {s->regions[VALUE_MASTER], OPERAND_REAL, 1, {s->numel}}};
    const union op_params none = {0};
    return s->model->kernels[OP_CAST].run(&none, in, out, NULL, err);
}

/* ---- micro-batches ---- */

static enum status upload(const struct run *r, value_id id, const void *data, struct error *err)
{
    return r->device->upload(run_data(r, id), data, r->program->values[id].bytes, err);
}

static enum status set_inputs(const struct run *r, const struct input_data *x, bool has_tables,
                              struct error *err)
{
    const struct program *p = r->program;
    for (size_t k = 0; k < p->num_values; k++) {
        const struct program_value *v = &p->values[k];
        if (v->class != VALUE_INPUT || (has_tables && input_is_constant(v, x->config))) continue;
        void *numbers = must_malloc(v->bytes + 1);
        enum status st = input_fill(x, v, numbers, err);
        if (!st) st = upload(r, (value_id)k, numbers, err);
        free(numbers);
        if (st) return st;
    }
    return OK;
}

/* The first of the runs whose inputs lie in the same places: those of evaluations have others. */
static const struct run *first_of_kind(const struct step_slot *slot, const struct micro_batch *b)
{
    return &slot->runs[b->evaluates ? MICRO_EVALUATES : 0];
}

/* Inputs of a micro-batch, into its slot. */
static enum status fill_slot(struct step *s, struct step_slot *slot, const struct micro_batch *b,
                             struct error *err)
{
    struct model *m = s->model;
    const struct run *first = first_of_kind(slot, b);
    struct input_data x = {.config = &m->config,
                           .wide = m->options.elem == ELEM_F64,
                           .loss_scale = b->loss_scale,
                           .balance_scale = b->balance_scale};
    struct arena scratch;
    slot->run = first + (b->first ? MICRO_FIRST : MICRO_LATER);
    arena_init(&scratch);
    input_data_make(&x, &scratch, &b->batch, &m->groups, 0, false);
    enum status st = set_inputs(slot->run, &x, slot->tables == first, err);
    slot->tables = st ? NULL : first;
    arena_release(&scratch);
    return st;
}

enum status step_forward(struct step *s, unsigned slot, const struct micro_batch *b,
                         struct error *err)
{
    struct step_slot *x = &s->slots[slot];
    TRY(fill_slot(s, x, b, err));
    s->last_slot = x;
    return run_queue(x->run, 0, b->evaluates ? x->run->program->num_calls : s->forward_calls, err);
}

enum status step_backward(struct step *s, unsigned slot, struct error *err)
{
    const struct run *r = s->slots[slot].run;
    return run_queue(r, s->forward_calls, r->program->num_calls, err);
}

enum status step_find_nan(struct step *s, struct error *err)
{
    if (!s->last_slot) return OK;
    struct run r = *s->last_slot->run;
    r.check_numbers = true;
    return run_queue(&r, 0, r.program->num_calls, err);
}

/* ---- updates ---- */

static enum status upload_reals(struct step *s, value_id id, const double *from, unsigned count,
                                struct error *err)
{
    float narrow[NUM_CONTROLS];
    if (s->model->options.elem == ELEM_F64) return upload(&s->update_run, id, from, err);
    for (unsigned i = 0; i < count; i++)
        narrow[i] = (float)from[i];
    return upload(&s->update_run, id, narrow, err);
}

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

/* The first numbers of a value, as doubles. */
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

enum status step_wait_loss(struct step *s, double *loss, struct error *err)
{
    TRY(run_wait(&s->update_run, err));
    return download_reals(&s->slots[0].runs[0], s->micro[0].train.loss_sum, loss, 1, err);
}

enum status step_wait(struct step *s, struct step_result *out, struct error *err)
{
    double scalars[NUM_SCALARS], params[1] = {0};
    *out = (struct step_result){0};
    TRY(step_wait_loss(s, &out->loss, err));
    TRY(download_reals(&s->slots[0].runs[0], s->micro[0].train.balance_sum, &out->balance, 1, err));
    TRY(download_reals(&s->update_run, s->scalars, scalars, NUM_SCALARS, err));
    TRY(download_reals(&s->update_run, s->params_sums, params, 1, err));
    out->grad_norm = scalars[SCALAR_NORM];
    out->params_norm = sqrt(params[0]);
    /* Rounded, where there are very many. */
    out->num_zeros = (uint64_t)fmax(scalars[SCALAR_ZEROS] - (double)s->num_gaps, 0);
    out->skipped = scalars[SCALAR_SKIPPED] != 0;
    return OK;
}
