/* step_run.c - micro-batches of a step: their slots, and the order of their
 * parts. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/memory.h"
#include "train/model/inputs.h"
#include "train/trainer/step_internal.h"

/* ---- slots ---- */

bool step_is_in_slots(unsigned class)
{
    return class == VALUE_INPUT || class == VALUE_SAVED;
}

/* An evaluation may have any number of micro-batches. */
static struct schedule_shape shape_of(const struct step *s, uint64_t micro_batches, bool evaluates)
{
    const unsigned pp = s->model->groups.sizes.pp, group = s->options.group ? s->options.group : pp;
    enum schedule_kind kind = s->options.schedule;
    const uint64_t rest = micro_batches % group;
    if (kind == SCHEDULE_1F1B && s->num_chunks > 1) kind = SCHEDULE_INTERLEAVED;
    if (kind == SCHEDULE_INTERLEAVED && evaluates && rest && rest < pp) kind = SCHEDULE_ONE_BY_ONE;
    return (struct schedule_shape){.kind = kind,
                                   .ranks = pp,
                                   .chunks = s->num_chunks,
                                   .micro_batches = micro_batches,
                                   .group = group,
                                   .forward_only = evaluates};
}

enum status step_schedule(const struct step *s, struct schedule *out, struct error *err)
{
    const struct schedule_shape shape = shape_of(s, max_u64(s->options.micro_batches, 1), false);
    return schedule_make(out, &shape, err);
}

/* Plans slots for the micro-batches that a schedule has under way. */
static enum status plan_slots(struct step *s, uint64_t micro_batches, bool evaluates,
                              struct error *err)
{
    struct schedule plan;
    const struct schedule_shape all = shape_of(s, max_u64(micro_batches, 1), evaluates),
                                shape = schedule_shortened(&all);
    const enum status st = schedule_make(&plan, &shape, err);
    for (unsigned c = 0; c < s->num_chunks && !st; c++) {
        struct step_chunk *x = &s->chunks[c];
        const struct schedule_depth depth = schedule_depth(&plan, s->model->groups.place.pp, c);
        if (!evaluates) x->num_slots = (unsigned)max_u64(depth.computed, s->options.num_slots);
        x->num_inputs = (unsigned)max_u64(max_u64(depth.with_inputs, x->num_slots), x->num_inputs);
    }
    schedule_release(&plan);
    return st;
}

enum status step_plan_slots(struct step *s, struct error *err)
{
    TRY(plan_slots(s, s->options.micro_batches, false, err));
    TRY(plan_slots(s, s->options.eval_micro_batches, true, err));
    for (unsigned c = 0; c < s->num_chunks; c++)
        s->chunks[c].slots =
            arena_array(&s->arena, s->chunks[c].num_inputs, sizeof *s->chunks[c].slots);
    return OK;
}

/* Index into step_chunk.micro. */
static unsigned program_of(bool first, bool evaluates)
{
    return (evaluates ? MICRO_EVALUATES : 0u) + (first ? MICRO_FIRST : MICRO_LATER);
}

/* The run of a micro-batch in its slots. */
static struct run run_of(const struct step *s, unsigned chunk, uint64_t number, unsigned program)
{
    const struct step_chunk *c = &s->chunks[chunk];
    struct run r = step_run_of(s, &c->micro[program].program);
    const uint64_t in = c->first[VALUE_INPUT] +
                        number % c->num_inputs * step_slot_bytes(c, VALUE_INPUT),
                   saved = c->first[VALUE_SAVED] +
                           number % c->num_slots * step_slot_bytes(c, VALUE_SAVED);
    r.regions[VALUE_INPUT] = (char *)r.regions[VALUE_INPUT] + in;
    if (r.regions[VALUE_SAVED]) r.regions[VALUE_SAVED] = (char *)r.regions[VALUE_SAVED] + saved;
    return r;
}

static enum status set_inputs(const struct step *s, const struct run *r, const struct input_data *x,
                              bool has_tables, struct error *err)
{
    const struct program *p = r->program;
    for (size_t k = 0; k < p->num_values; k++) {
        const struct program_value *v = &p->values[k];
        if (v->class != VALUE_INPUT || input_is_of_stage(v)) continue;
        if (has_tables && input_is_constant(v, x->config)) continue;
        TRY(input_fill(x, v, s->numbers, err));
        TRY(step_upload(r, (value_id)k, s->numbers, err));
    }
    return OK;
}

/* Fills a micro-batch's slot of inputs. Evaluations have other offsets. */
static enum status fill_slot(struct step *s, const struct run *r, struct step_slot *slot,
                             const struct micro_batch *b, struct error *err)
{
    struct model *m = s->model;
    struct input_data x = {.config = &m->config,
                           .wide = m->options.elem == ELEM_F64,
                           .loss_scale = b->loss_scale,
                           .router_scale = b->router_scale};
    struct arena scratch;
    arena_init(&scratch);
    input_data_make(&x, &scratch, &b->batch, &m->groups, false);
    const bool has_tables = slot->has_tables && slot->of_evaluation == b->evaluates;
    const enum status st = set_inputs(s, r, &x, has_tables, err);
    *slot = (struct step_slot){!st, b->evaluates};
    arena_release(&scratch);
    return st;
}

/* ---- parts of a micro-batch ---- */

enum status step_forward(struct step *s, unsigned chunk, uint64_t number,
                         const struct micro_batch *b, struct error *err)
{
    struct step_chunk *c = &s->chunks[chunk];
    const struct run r = run_of(s, chunk, number, program_of(b->first, b->evaluates));
    TRY(fill_slot(s, &r, &c->slots[number % c->num_inputs], b, err));
    s->last_run = r;
    s->last_ends = &c->micro[program_of(b->first, b->evaluates)].ends;
    s->last_forward_calls = b->evaluates ? r.program->num_calls : c->forward_calls;
    return run_queue(&r, 0, b->evaluates ? r.program->num_calls : c->forward_calls, err);
}

enum status step_backward(struct step *s, unsigned chunk, uint64_t number, bool first,
                          struct error *err)
{
    const struct run r = run_of(s, chunk, number, program_of(first, false));
    return run_queue(&r, s->chunks[chunk].forward_calls, r.program->num_calls, err);
}

/* Whether any rank of this stage received numbers that are not finite from
 * another stage. */
static enum status stage_has_nan(const struct step *s, value_id id, bool *has, struct error *err)
{
    static const enum group_kind stage[] = {GROUP_TP, GROUP_CP, GROUP_DP};
    bool finite = true;
    *has = false;
    if (s->model->groups.sizes.pp == 1) return OK;
    if (id != NO_VALUE) TRY(run_is_finite(&s->last_run, id, &finite, err));
    *has = !finite;
    for (size_t i = 0; i < COUNT(stage); i++)
        TRY(comm_any(&s->model->groups.of[stage[i]], has, err));
    return OK;
}

/* Runs calls [first, end) again. A stage that received the bad number waits for
 * the stage that made it to fail. *is_of_another: no stage found it. */
static enum status find_nan(const struct step *s, value_id from, size_t first, size_t end,
                            bool *is_of_another, struct error *err)
{
    struct run r = s->last_run;
    TRY(stage_has_nan(s, from, is_of_another, err));
    if (*is_of_another) return comm_barrier(&s->model->groups.of[GROUP_WORLD], err);
    r.check_numbers = true;
    return run_queue(&r, first, end, err);
}

enum status step_find_nan(struct step *s, struct error *err)
{
    if (!s->last_run.program) return OK;
    const size_t middle = s->last_forward_calls, end = s->last_run.program->num_calls;
    bool is_of_another;
    TRY(find_nan(s, s->last_ends->in, 0, middle, &is_of_another, err));
    if (middle == end || is_of_another) return OK;
    return find_nan(s, s->last_ends->out_gradient, middle, end, &is_of_another, err);
}

/* ---- the schedule ---- */

/* The message's data on this rank. */
static struct comm_message message_of(const struct step *s, const struct schedule_message *m)
{
    const unsigned program = program_of(m->micro_batch == 0, s->schedule.shape.forward_only);
    const struct run r = run_of(s, m->chunk, m->micro_batch, program);
    const struct stage_ends *ends = &s->chunks[m->chunk].micro[program].ends;
    const value_id id = m->sends ? (m->is_gradient ? ends->in_gradient : ends->out)
                                 : (m->is_gradient ? ends->out_gradient : ends->in);
    return (struct comm_message){m->sends, m->peer, run_data(&r, id), r.program->values[id].bytes};
}

/* Exchanges the messages between action k and the one before it. */
static enum status exchange_slot(struct step *s, const struct schedule_rank *r, size_t k,
                                 struct error *err)
{
    const size_t first = schedule_first_message(r, k), end = r->actions[k].messages_before;
    for (size_t i = first; i < end; i++)
        s->messages[i - first] = message_of(s, &r->messages[i]);
    return collectives_exchange(&s->model->collectives, GROUP_PP, s->messages,
                                (unsigned)(end - first), err);
}

/* Bytes of one message. */
static uint64_t message_bytes(const struct step *s)
{
    const struct built *b = &s->chunks[0].micro[MICRO_FIRST];
    const value_id id = b->ends.in != NO_VALUE ? b->ends.in : b->ends.out;
    return id == NO_VALUE ? 0 : b->program.values[id].bytes;
}

/* Allocates memory for the most messages at once. */
static enum status reserve_messages(struct step *s, struct error *err)
{
    const struct schedule_rank *r = &s->schedule.ranks[s->model->groups.place.pp];
    size_t most = 1;
    for (size_t k = 0; k <= r->count; k++)
        most = max_u64(most, r->actions[k].messages_before - schedule_first_message(r, k));
    free(s->messages);
    s->messages = must_calloc(most, sizeof *s->messages);
    return collectives_reserve_bytes(&s->model->collectives, most * message_bytes(s), err);
}

static enum status check_depth(const struct step *s, struct error *err)
{
    for (unsigned c = 0; c < s->num_chunks; c++) {
        const struct schedule_depth depth =
            schedule_depth(&s->schedule, s->model->groups.place.pp, c);
        if (!s->schedule.shape.forward_only && depth.computed > s->chunks[c].num_slots)
            return fail(err, ERR_OURS, "%" PRIu64 " micro-batches under way, planned for %u",
                        depth.computed, s->chunks[c].num_slots);
        if (depth.with_inputs > s->chunks[c].num_inputs)
            return fail(err, ERR_OURS, "inputs of %" PRIu64 " micro-batches, planned for %u",
                        depth.with_inputs, s->chunks[c].num_inputs);
    }
    return OK;
}

/* Makes the schedule, unless it equals that of the step before, as usual. */
static enum status take_schedule(struct step *s, uint64_t micro_batches, bool evaluates,
                                 struct error *err)
{
    const struct schedule_shape shape = shape_of(s, micro_batches, evaluates);
    const struct schedule_shape *own = &s->schedule.shape;
    if (s->schedule.ranks && own->micro_batches == micro_batches && own->forward_only == evaluates)
        return OK;
    schedule_release(&s->schedule);
    TRY(schedule_make(&s->schedule, &shape, err));
    TRY(check_depth(s, err));
    return reserve_messages(s, err);
}

uint64_t step_window(const struct step *s, uint64_t micro_batches, bool evaluates)
{
    struct schedule plan;
    struct error ignored;
    const struct schedule_shape shape = shape_of(s, micro_batches, evaluates);
    uint64_t window = micro_batches;
    if (s->num_chunks == 1) return 1;
    if (!schedule_make(&plan, &shape, &ignored))
        window = schedule_window(&plan, s->model->groups.place.pp);
    schedule_release(&plan);
    return window;
}

static enum status run_action(struct step *s, const struct schedule_action *a, step_next *next,
                              void *context, struct error *err)
{
    struct micro_batch b;
    if (a->is_backward) return step_backward(s, a->chunk, a->micro_batch, a->micro_batch == 0, err);
    TRY(next(context, a->micro_batch, &b, err));
    b.first = a->micro_batch == 0;
    b.evaluates = s->schedule.shape.forward_only;
    return step_forward(s, a->chunk, a->micro_batch, &b, err);
}

enum status step_run(struct step *s, uint64_t micro_batches, bool evaluates, step_next *next,
                     void *context, struct error *err)
{
    TRY(take_schedule(s, micro_batches, evaluates, err));
    const struct schedule_rank *r = &s->schedule.ranks[s->model->groups.place.pp];
    for (size_t k = 0; k < r->count; k++) {
        TRY(exchange_slot(s, r, k, err));
        TRY(run_action(s, &r->actions[k], next, context, err));
    }
    return exchange_slot(s, r, r->count, err);
}
