/* Collectives as calls of a program, on the host, by four ranks: each result
 * beside its formula. */
#include "train/engine/collectives.h"

#include "common/count.h"
#include "train/loop/testing_run.h"

enum { RANKS = 4, COLUMNS = 3 };

/* Element of rank r's x: exact in f32, also summed up. */
static float number(unsigned r, uint64_t row, uint64_t column)
{
    return (float)(1000 * (r + 1) + 10 * row + column);
}

static float sum_of(uint64_t row, uint64_t column)
{
    float sum = 0;
    for (unsigned r = 0; r < RANKS; r++)
        sum += number(r, row, column);
    return sum;
}

/* Expected y [rows, COLUMNS] of rank r, and its number of rows. */
static float reduced(unsigned r, uint64_t row, uint64_t column)
{
    (void)r;
    return sum_of(row, column);
}

static float largest(unsigned r, uint64_t row, uint64_t column)
{
    (void)r;
    return number(RANKS - 1, row, column);
}

static float gathered(unsigned r, uint64_t row, uint64_t column)
{
    (void)r;
    return number((unsigned)(row / 8), row % 8, column);
}

static float scattered(unsigned r, uint64_t row, uint64_t column)
{
    return sum_of(2 * r + row, column);
}

static float same(unsigned r, uint64_t row, uint64_t column)
{
    return number(r, row, column);
}

static float sliced(unsigned r, uint64_t row, uint64_t column)
{
    return number(r, 2 * r + row, column);
}

static float shifted(unsigned r, uint64_t row, uint64_t column)
{
    return number((r + RANKS - 1) % RANKS, row, column);
}

static const struct {
    unsigned op;
    enum comm_reduction reduction;
    uint64_t rows; /* of y; x has 8 */
    float (*expected)(unsigned r, uint64_t row, uint64_t column);
} cases[] = {
    {OP_ALL_REDUCE, COMM_SUM, 8, reduced},   {OP_ALL_REDUCE, COMM_MAX, 8, largest},
    {OP_ALL_GATHER, COMM_SUM, 32, gathered}, {OP_REDUCE_SCATTER, COMM_SUM, 2, scattered},
    {OP_SLICE, COMM_SUM, 2, sliced},         {OP_SHIFT, COMM_SUM, 8, shifted},
    {OP_REPLICATE, COMM_SUM, 8, same},
};
enum { CASES = COUNT(cases) };

static enum status compare(struct test_run *t, const float *y, size_t k)
{
    const unsigned rank = t->comm.rank;
    for (uint64_t i = 0; i < cases[k].rows * COLUMNS; i++) {
        const float expected = cases[k].expected(rank, i / COLUMNS, i % COLUMNS);
        if (y[i] != expected)
            return fail(&err, ERR_OURS, "case %zu, rank %u: element %d is %g, not %g", k, rank,
                        (int)i, (double)y[i], (double)expected);
    }
    return OK;
}

/* All of them in one program, behind one another. */
static void each_gives_what_its_formula_says(void **state)
{
    struct test_run t;
    value_id y[CASES];
    (void)state;
    test_run_open(&t, RANKS);
    value_id x = test_run_input(&t, OPERAND_ELEM, 8, COLUMNS, "x");
    for (size_t k = 0; k < CASES; k++)
        y[k] = test_run_emit(&t, (struct emission){.op = cases[k].op,
                                                   .label = "together",
                                                   .collective = {GROUP_TP, cases[k].reduction, 0},
                                                   .in = {x},
                                                   .num_in = 1});
    test_run_allocate(&t);
    for (uint64_t i = 0; i < 8 * COLUMNS; i++)
        test_run_floats(&t, x)[i] = number(t.comm.rank, i / COLUMNS, i % COLUMNS);
    enum status st = run_program(&t.run, &err);
    for (size_t k = 0; k < CASES && !st; k++) {
        st = compare(&t, test_run_floats(&t, y[k]), k);
    }
    assert_ok(test_run_close(&t, st));
}

/* Rank r sends r + i rows to member i: of number(r, i, column). */
static void rows_go_where_counts_say(void **state)
{
    struct test_run t;
    value_id y, came;
    (void)state;
    test_run_open(&t, RANKS);
    value_id x = test_run_input(&t, OPERAND_ELEM, 20, COLUMNS, "x"),
             counts = test_run_input(&t, OPERAND_INT, RANKS, 0, "counts");
    test_run_emit(&t, (struct emission){.op = OP_ALL_TO_ALL,
                                        .label = "exchange",
                                        .collective.group = GROUP_TP,
                                        .in = {x, counts},
                                        .num_in = 2,
                                        .out = {&y, &came},
                                        .sizes = {{'Q', 20}, {'U', RANKS}}});
    t.program.values[came].class = VALUE_OUTPUT;
    test_run_allocate(&t);
    const unsigned rank = t.comm.rank;
    float *to = test_run_floats(&t, x);
    for (unsigned i = 0; i < RANKS; i++) {
        test_run_ints(&t, counts)[i] = (int32_t)(rank + i);
        for (unsigned n = 0; n < (rank + i) * COLUMNS; n++)
            *to++ = number(rank, i, n % COLUMNS);
    }
    enum status st = run_program(&t.run, &err);
    const float *from = test_run_floats(&t, y);
    for (unsigned i = 0; i < RANKS && !st; i++) {
        if (test_run_ints(&t, came)[i] != (int32_t)(rank + i))
            st = fail(&err, ERR_OURS, "rank %u: %d rows came from %u", rank,
                      test_run_ints(&t, came)[i], i);
        for (unsigned n = 0; n < (rank + i) * COLUMNS && !st; n++)
            if (*from++ != number(i, rank, n % COLUMNS))
                st = fail(&err, ERR_OURS, "rank %u: a row of %u is wrong", rank, i);
    }
    assert_ok(test_run_close(&t, st));
}

/* More rows than were planned for are refused before anything is moved. */
static void more_rows_than_planned_are_refused(void **state)
{
    struct test_run t;
    value_id y, came;
    (void)state;
    test_run_open(&t, 2);
    value_id x = test_run_input(&t, OPERAND_ELEM, 4, COLUMNS, "x"),
             counts = test_run_input(&t, OPERAND_INT, 2, 0, "counts");
    test_run_emit(&t, (struct emission){.op = OP_ALL_TO_ALL,
                                        .label = "layers.1.exchange",
                                        .collective.group = GROUP_TP,
                                        .in = {x, counts},
                                        .num_in = 2,
                                        .out = {&y, &came},
                                        .sizes = {{'Q', 4}, {'U', 2}}});
    test_run_allocate(&t);
    test_run_ints(&t, counts)[0] = 3;
    test_run_ints(&t, counts)[1] = 2;
    enum status st = run_program(&t.run, &err);
    assert_int_equal(test_run_close(&t, st), ERR_OURS);
    assert_non_null(strstr(err.text, "layers.1.exchange: 5 rows, planned for 4"));
}

/* Two ranks send to one another at once more than is sent ahead. */
static void messages_cross(void **state)
{
    enum { ROWS = COMM_SENT_AHEAD / COLUMNS / sizeof(float) + 100 };
    struct test_run t;
    (void)state;
    test_run_open(&t, 2);
    const unsigned other = 1 - t.comm.rank;
    value_id x = test_run_input(&t, OPERAND_ELEM, ROWS, COLUMNS, "x"),
             y = test_run_input(&t, OPERAND_ELEM, ROWS, COLUMNS, "y");
    test_run_allocate(&t);
    for (uint64_t i = 0; i < ROWS * COLUMNS; i++)
        test_run_floats(&t, x)[i] = number(t.comm.rank, i / COLUMNS, i % COLUMNS);
    const size_t bytes = ROWS * COLUMNS * sizeof(float);
    const struct comm_message messages[] = {{true, other, test_run_floats(&t, x), bytes},
                                            {false, other, test_run_floats(&t, y), bytes}};
    enum status st = collectives_exchange(t.run.collectives, GROUP_TP, messages, 2, &err);
    for (uint64_t i = 0; i < ROWS * COLUMNS && !st; i++)
        if (test_run_floats(&t, y)[i] != number(other, i / COLUMNS, i % COLUMNS))
            st = fail(&err, ERR_OURS, "element %d is wrong", (int)i);
    assert_ok(test_run_close(&t, st));
}

/* The device's library waits for the host only if it must know numbers. */
static void who_waits_for_the_host(void **state)
{
    struct collectives staged = {.linked = false}, linked = {.linked = true};
    (void)state;
    for (unsigned op = 0; op < NUM_ALL_OPS; op++) {
        const struct call c = {.op = op};
        const bool moves = op >= NUM_OPS && op != OP_SLICE && op != OP_REPLICATE;
        assert_int_equal(collectives_wait_for_host(&staged, &c), moves);
        assert_int_equal(collectives_wait_for_host(&linked, &c), op == OP_ALL_TO_ALL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_gives_what_its_formula_says),
        cmocka_unit_test(rows_go_where_counts_say),
        cmocka_unit_test(more_rows_than_planned_are_refused),
        cmocka_unit_test(messages_cross),
        cmocka_unit_test(who_waits_for_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
