/* step_traffic.c - bytes that a rank sends in one step, counted from its
 * programs and the schedule. Collectives are modelled as rings in which each
 * member sends its part. */
#include "train/trainer/step_internal.h"

#include "common/checked.h"

static uint64_t program_value_bytes(const struct program *p, value_id id)
{
    const struct operand o = program_operand(p, id);
    return operand_numel(&o) * operand_bytes_of(o.type, p->elem);
}

/* The part of `whole` bytes that a member lacks, or does not keep. */
static uint64_t others_part(uint64_t whole, unsigned members)
{
    return whole * (members - 1) / members;
}

/* Operands have space for the worst case. If tokens spread evenly over experts,
 * a rank sends as many rows as it receives: those of the smaller operand.
 * Counts go before rows. */
static uint64_t exchanged_bytes(const struct program *p, const struct call *c, unsigned members)
{
    return others_part(min_u64(program_value_bytes(p, c->in[0]), program_value_bytes(p, c->out[0])),
                       members) +
           others_part(program_value_bytes(p, c->in[1]), members);
}

static uint64_t sent_by_call(const struct program *p, const struct call *c)
{
    const unsigned members = p->groups->of[c->collective.group].size;
    switch (c->op) {
    case OP_ALL_REDUCE:
        return 2 * others_part(program_value_bytes(p, c->in[0]), members);
    case OP_ALL_GATHER:
        return others_part(program_value_bytes(p, c->out[0]), members);
    case OP_REDUCE_SCATTER:
        return others_part(program_value_bytes(p, c->in[0]), members);
    case OP_ALL_TO_ALL:
        return exchanged_bytes(p, c, members);
    case OP_SHIFT:
        return members > 1 ? program_value_bytes(p, c->in[0]) : 0;
    default:
        return 0;
    }
}

static uint64_t sent_by_program(const struct program *p, enum group_kind kind)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->num_calls; i++)
        if (p->calls[i].op >= NUM_OPS && p->calls[i].collective.group == kind)
            bytes += sent_by_call(p, &p->calls[i]);
    return bytes;
}

static uint64_t sent_by_messages(const struct step *s, const struct schedule *plan)
{
    const struct schedule_rank *r = &plan->ranks[s->model->groups.place.pp];
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->num_messages; i++) {
        const struct schedule_message *m = &r->messages[i];
        const struct built *b = &s->chunks[m->chunk].micro[MICRO_FIRST];
        if (m->sends)
            bytes += program_value_bytes(&b->program,
                                         m->is_gradient ? b->ends.in_gradient : b->ends.out);
    }
    return bytes;
}

uint64_t step_traffic(const struct step *s, const struct schedule *plan, enum group_kind kind)
{
    const uint64_t later = plan->shape.micro_batches - 1;
    uint64_t bytes = sent_by_program(&s->update, kind);
    for (unsigned c = 0; c < s->num_chunks; c++) {
        const struct built *micro = s->chunks[c].micro;
        bytes += sent_by_program(&micro[MICRO_FIRST].program, kind) +
                 sent_by_program(&micro[MICRO_LATER].program, kind) * later;
    }
    return kind == GROUP_PP ? bytes + sent_by_messages(s, plan) : bytes;
}
