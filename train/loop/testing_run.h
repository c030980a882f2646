/* testing_run.h - a program that is built by hand, run on the CPU by one rank
 * or several. */
#ifndef FERRY_TRAIN_LOOP_TESTING_RUN_H
#define FERRY_TRAIN_LOOP_TESTING_RUN_H

#include "tests/testing.h"
#include "train/engine/memory_plan.h"
#include "train/engine/run.h"

struct test_run {
    struct comm comm;
    struct groups groups;
    struct collectives collectives;
    struct program program;
    struct run run;
};

static struct error err;

/* tp ranks; those other than the first end in test_run_close. */
static inline void test_run_open(struct test_run *t, unsigned tp)
{
    const struct group_sizes sizes = {.tp = tp, .cp = 1, .dp = 1, .pp = 1, .ep = 1, .etp = tp};
    memset(t, 0, sizeof *t);
    assert_ok(comm_local_open(&t->comm, tp, &err));
    assert_ok(groups_open(&t->groups, &t->comm, &sizes, &err));
    assert_ok(collectives_open(&t->collectives, &t->groups, &cpu_device, COLLECTIVES_CHOOSE, &err));
    program_init(&t->program, ELEM_F32, &t->groups);
}

static inline value_id test_run_input(struct test_run *t, enum operand_type type, uint64_t rows,
                                      uint64_t columns, const char *name)
{
    return program_add_value(&t->program, VALUE_INPUT, type, columns ? 2 : 1,
                             (uint64_t[]){rows, columns}, name);
}

/* The first result of an op of some inputs, as an output that stays. */
static inline value_id test_run_emit(struct test_run *t, struct emission e)
{
    value_id y = NO_VALUE;
    if (!e.out[0]) e.out[0] = &y;
    assert_ok(program_emit(&t->program, &e, &err));
    struct program_value *v = &t->program.values[*e.out[0]];
    if (v->class != VALUE_VIEW) v->class = VALUE_OUTPUT;
    return *e.out[0];
}

/* Memory for all values; outputs hold NaN. */
static inline void test_run_allocate(struct test_run *t)
{
    struct program *p = &t->program;
    assert_ok(program_check(p, &err));
    memory_plan_make(p, cpu_ops(p->elem));
    p->bytes[VALUE_PARAMETER] = 1 << 12; /* the model's: at the beginning of their region here */
    t->run = (struct run){.program = p,
                          .collectives = &t->collectives,
                          .device = &cpu_device,
                          .kernels = cpu_ops(p->elem)};
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        assert_ok(cpu_device.allocate(&t->run.regions[k], p->bytes[k] + 1, "a test", &err));
    memset(t->run.regions[VALUE_OUTPUT], 0xFF, p->bytes[VALUE_OUTPUT]);
}

static inline float *test_run_floats(const struct test_run *t, value_id id)
{
    return run_data(&t->run, id);
}

static inline int32_t *test_run_ints(const struct test_run *t, value_id id)
{
    return run_data(&t->run, id);
}

/* st: whether this rank is content. Ranks other than 0 end here. */
static inline enum status test_run_close(struct test_run *t, enum status st)
{
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        if (t->run.regions[k]) cpu_device.release(t->run.regions[k]);
    if (st) comm_fail(&t->comm, &err);
    collectives_close(&t->collectives);
    program_release(&t->program);
    groups_close(&t->groups);
    return comm_close(&t->comm, st, &err);
}

#endif
