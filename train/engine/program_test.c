/* Programs: what emitting an op adds, in which order values may be read and
 * written, what it costs.
 */
#include "train/engine/program.h"

#include "tests/testing.h"

static struct error err;

/* A group of each kind, of four ranks: for shapes alone. */
static struct groups four(void)
{
    struct groups g = {0};
    for (unsigned k = 0; k < NUM_GROUP_KINDS; k++)
        g.of[k].size = 4;
    return g;
}

static value_id add_input(struct program *p, enum operand_type type, uint64_t rows,
                          uint64_t columns)
{
    return program_add_value(p, VALUE_INPUT, type, columns ? 2 : 1, (uint64_t[]){rows, columns},
                             "input");
}

static void emitting_makes_values_of_the_right_shape(void **state)
{
    struct program p;
    struct groups g = four();
    value_id sum, y, stats;
    (void)state;
    program_init(&p, ELEM_BF16, &g);
    value_id x = add_input(&p, OPERAND_ELEM, 8, 64), w = add_input(&p, OPERAND_ELEM, 64, 0);
    const struct emission e = {.op = OP_ADD_NORM,
                               .label = "layers.1.norm",
                               .layer = 1,
                               .params.norm.epsilon = 0.5,
                               .in = {x, x, NO_VALUE, w},
                               .num_in = 4,
                               .out = {&sum, &y, &stats}};
    assert_ok(program_emit(&p, &e, &err));
    const struct call *c = &p.calls[0];
    assert_int_equal(p.num_calls, 1);
    assert_int_equal(c->op, OP_ADD_NORM);
    assert_int_equal(c->layer, 1);
    assert_true(c->params.norm.epsilon == 0.5);
    assert_int_equal(c->in[3], w);
    assert_int_equal(c->in[4], NO_VALUE);
    assert_int_equal(c->out[0], sum);
    assert_int_equal(c->out[1], y);
    assert_int_equal(c->out[2], stats);
    assert_string_equal(p.values[sum].name, "layers.1.norm.sum");
    assert_int_equal(p.values[sum].bytes, 8 * 64 * 2);
    assert_int_equal(p.values[stats].bytes, 8 * 2 * 4);
    assert_int_equal(p.values[stats].class, VALUE_SCRATCH);
    assert_ok(program_check(&p, &err));
    program_release(&p);
}

/* The op is not added, and the message names the call. */
static void what_does_not_fit_is_not_emitted(void **state)
{
    struct program p;
    struct groups g = four();
    (void)state;
    program_init(&p, ELEM_F32, &g);
    value_id x = add_input(&p, OPERAND_ELEM, 8, 64), w = add_input(&p, OPERAND_ELEM, 65, 0);
    const struct emission e = {.op = OP_NORM, .label = "layers.3.norm", .in = {x, w}, .num_in = 2};
    assert_fails(program_emit(&p, &e, &err), ERR_OURS,
                 "layers.3.norm: norm: weight is elem[65] in");
    assert_int_equal(p.num_calls, 0);
    assert_int_equal(p.num_values, 2);
    program_release(&p);
}

static void a_state_is_written_into(void **state)
{
    struct program p;
    struct groups g = four();
    value_id out;
    (void)state;
    program_init(&p, ELEM_F32, &g);
    value_id qkv = add_input(&p, OPERAND_ELEM, 4, 5 * 8), rows = add_input(&p, OPERAND_INT, 4, 0);
    value_id cache =
        program_add_value(&p, VALUE_STATE, OPERAND_ELEM, 2, (uint64_t[]){100, 16}, "cache");
    struct emission e = {.op = OP_CACHE_WRITE,
                         .label = "cache",
                         .params.cache_write.heads = {1, 3, 8},
                         .in = {qkv, rows},
                         .num_in = 2,
                         .out = {&out},
                         .into = {&cache}};
    for (unsigned i = 0; i < 2; i++) { /* a state may be written twice */
        assert_ok(program_emit(&p, &e, &err));
        assert_int_equal(out, cache);
    }
    assert_int_equal(p.num_values, 3);
    assert_ok(program_check(&p, &err));
    program_release(&p);
}

/* Rows behind those of experts are not written: what is known of one value
 * holds for those that are made of it row by row. */
static void partial_values_are_known(void **state)
{
    struct program p;
    struct groups g = four();
    value_id moved, gathered, back, active, whole;
    (void)state;
    program_init(&p, ELEM_F32, &g);
    value_id x = add_input(&p, OPERAND_ELEM, 4, 16), rows = add_input(&p, OPERAND_INT, 4, 2),
             counts = add_input(&p, OPERAND_INT, 6, 0);
    struct emission e = {.op = OP_PERMUTE,
                         .label = "permute",
                         .in = {x, rows},
                         .num_in = 2,
                         .sizes = {{'R', 8}},
                         .out = {&moved}};
    assert_ok(program_emit(&p, &e, &err));
    e = (struct emission){
        .op = OP_ALL_GATHER, .label = "gather", .in = {moved}, .num_in = 1, .out = {&gathered}};
    assert_ok(program_emit(&p, &e, &err));
    e = (struct emission){
        .op = OP_ACTIVATION, .label = "f", .in = {moved, counts}, .num_in = 2, .out = {&active}};
    assert_ok(program_emit(&p, &e, &err));
    e = (struct emission){
        .op = OP_UNPERMUTE, .label = "back", .in = {moved, rows}, .num_in = 2, .out = {&back}};
    assert_ok(program_emit(&p, &e, &err));
    e = (struct emission){
        .op = OP_ACTIVATION, .label = "f", .in = {x, NO_VALUE}, .num_in = 2, .out = {&whole}};
    assert_ok(program_emit(&p, &e, &err));
    assert_true(p.values[moved].is_partial);
    assert_true(p.values[gathered].is_partial);
    assert_int_equal(p.values[gathered].shape[0], 32);
    assert_true(p.values[active].is_partial);
    assert_false(p.values[back].is_partial);
    assert_false(p.values[whole].is_partial);
    program_release(&p);
}

static void values_are_written_once_and_before_they_are_read(void **state)
{
    struct program p;
    struct groups g = four();
    value_id y;
    (void)state;
    program_init(&p, ELEM_F32, &g);
    value_id x = add_input(&p, OPERAND_ELEM, 4, 16);
    struct emission e = {.op = OP_ADD, .label = "add", .in = {x, x}, .num_in = 2, .out = {&y}};
    assert_ok(program_emit(&p, &e, &err));
    assert_ok(program_check(&p, &err));
    p.calls[0].in[1] = y;
    assert_fails(program_check(&p, &err), ERR_OURS, "add: reads add before it is written");
    p.calls[0].in[1] = x;
    assert_ok(program_emit(&p, &e, &err));
    p.calls[1].out[0] = p.calls[0].out[0];
    assert_fails(program_check(&p, &err), ERR_OURS, "add: add is written twice");
    program_release(&p);
}

/* y = x + x, of rows [first, first + count) of both. */
static void add_rows(struct program *p, value_id x, value_id y, uint64_t first, uint64_t count)
{
    const value_id of_x = program_add_view(p, x, first, count, "rows of x"),
                   of_y = program_add_view(p, y, first, count, "rows of y");
    const struct emission e = {
        .op = OP_ADD, .label = "add rows", .in = {of_x, of_x}, .num_in = 2, .into = {&of_y}};
    assert_ok(program_emit(p, &e, &err));
}

static void each_row_of_a_base_is_written_once(void **state)
{
    struct program p;
    struct groups g = four();
    value_id z;
    (void)state;
    program_init(&p, ELEM_F32, &g);
    value_id x = add_input(&p, OPERAND_ELEM, 8, 16);
    value_id y = program_add_value(&p, VALUE_SCRATCH, OPERAND_ELEM, 2, (uint64_t[]){8, 16}, "y");
    add_rows(&p, x, y, 0, 3);
    add_rows(&p, x, y, 5, 3);
    assert_ok(program_check(&p, &err));
    /* Rows 3 and 4 are missing: y cannot be read, rows that are there can. */
    struct emission e = {.op = OP_ADD, .label = "whole", .in = {x, y}, .num_in = 2, .out = {&z}};
    assert_ok(program_emit(&p, &e, &err));
    assert_fails(program_check(&p, &err), ERR_OURS, "whole: reads y before it is written");
    p.num_calls--;
    const value_id there = program_add_view(&p, y, 6, 2, "there");
    e = (struct emission){
        .op = OP_ADD, .label = "rows", .in = {there, there}, .num_in = 2, .out = {&z}};
    assert_ok(program_emit(&p, &e, &err));
    assert_ok(program_check(&p, &err));
    add_rows(&p, x, y, 3, 3); /* row 5 again */
    assert_fails(program_check(&p, &err), ERR_OURS, "add rows: rows of y is written twice");
    p.num_calls--;
    add_rows(&p, x, y, 3, 2);
    e = (struct emission){.op = OP_ADD, .label = "whole", .in = {x, y}, .num_in = 2, .out = {&z}};
    assert_ok(program_emit(&p, &e, &err));
    assert_ok(program_check(&p, &err));
    program_release(&p);
}

static void views_lie_in_their_base(void **state)
{
    struct program p;
    struct groups g = four();
    (void)state;
    program_init(&p, ELEM_BF16, &g);
    value_id x = add_input(&p, OPERAND_ELEM, 8, 16);
    value_id rows = program_add_view(&p, x, 2, 5, "rows"),
             of_rows = program_add_view(&p, rows, 1, 3, "3");
    assert_int_equal(p.values[rows].offset, 2 * 16 * 2);
    assert_int_equal(p.values[rows].bytes, 5 * 16 * 2);
    assert_int_equal(program_home(&p, of_rows), x);
    assert_int_equal(p.values[of_rows].offset, 3 * 16 * 2);
    assert_int_equal(p.values[of_rows].shape[0], 3);
    value_id y = program_add_value(&p, VALUE_SCRATCH, OPERAND_ELEM, 2, (uint64_t[]){3, 16}, "y");
    program_make_view(&p, y, x, 4);
    assert_int_equal(program_home(&p, y), x);
    assert_int_equal(p.values[y].offset, 4 * 16 * 2);
    program_release(&p);
}

static void costs_are_what_is_read_and_written(void **state)
{
    struct program p;
    struct groups g = four();
    value_id y;
    (void)state;
    program_init(&p, ELEM_BF16, &g);
    value_id x = add_input(&p, OPERAND_ELEM, 4, 16), w = add_input(&p, OPERAND_ELEM, 32, 16);
    struct emission e = {.op = OP_MATMUL,
                         .label = "product",
                         .params.matmul = {.transpose_b = true, .alpha = 1},
                         .type = OPERAND_REAL,
                         .in = {x, w},
                         .num_in = 2,
                         .out = {&y}};
    assert_ok(program_emit(&p, &e, &err));
    struct op_cost cost = program_cost(&p, &p.calls[0]);
    assert_true(cost.flops == 2 * 4 * 16 * 32);
    assert_true(cost.bytes == 4 * 16 * 2 + 32 * 16 * 2 + 4 * 32 * 4);
    value_id ids = add_input(&p, OPERAND_INT, 4, 0);
    e = (struct emission){
        .op = OP_EMBEDDING, .label = "rows", .in = {ids, w}, .num_in = 2, .out = {&y}};
    assert_ok(program_emit(&p, &e, &err));
    cost = program_cost(&p, &p.calls[1]); /* not the whole table */
    assert_true(cost.bytes == 4 * 4 + 2 * 4 * 16 * 2);
    program_release(&p);
}

/* Two tokens of two groups of two queries, of heads of 8; a cache of 64 rows. */
static void of_a_cache_the_rows_of_tokens_cost(void **state)
{
    struct program p;
    struct groups g = four();
    const struct head_shape heads = {2, 2, 8};
    (void)state;
    program_init(&p, ELEM_BF16, &g);
    value_id qkv = add_input(&p, OPERAND_ELEM, 2, 64), table = add_input(&p, OPERAND_REAL, 99, 8);
    value_id positions = add_input(&p, OPERAND_INT, 2, 0), rows = add_input(&p, OPERAND_INT, 2, 0);
    value_id cache = program_add_value(&p, VALUE_STATE, OPERAND_ELEM, 2, (uint64_t[]){64, 32}, "c");
    struct emission e = {.op = OP_CACHE_WRITE,
                         .label = "cache",
                         .params.cache_write.heads = heads,
                         .in = {qkv, rows},
                         .num_in = 2,
                         .into = {&cache}};
    assert_ok(program_emit(&p, &e, &err));
    assert_true(program_cost(&p, &p.calls[0]).bytes == 2 * 2 * 32 * 2);
    e = (struct emission){.op = OP_ROTARY_CACHE,
                          .label = "rotary",
                          .params.rotary = {.heads = heads, .rotary_dim = 8},
                          .in = {qkv, table, positions, rows},
                          .num_in = 4,
                          .into = {NULL, &cache}};
    assert_ok(program_emit(&p, &e, &err));
    struct op_cost cost = program_cost(&p, &p.calls[1]);
    assert_true(cost.bytes == 2 * 2 * 64 * 2 + 2 * 8 * 4 + 2 * 4 + 2 * 4 + 2 * 32 * 2);
    assert_true(cost.flops == 2 * 64 + 2 * 32);
    program_release(&p);
}

static struct op_cost cost_of(struct program *p, struct emission e)
{
    value_id y;
    e.label = "op", e.out[0] = &y;
    assert_ok(program_emit(p, &e, &err));
    return program_cost(p, &p->calls[p->num_calls - 1]);
}

/* 3 tokens of two groups of 3 queries, a key and a value, of 8 elements. */
static void costs_leave_out_what_is_not_read(void **state)
{
    struct program p;
    struct groups g = four();
    const struct head_shape heads = {2, 3, 8};
    const union op_params rotary = {.rotary = {.heads = heads, .rotary_dim = 4}};
    union op_params attention = {.attention = {.heads = heads, .pairs = 6}};
    (void)state;
    program_init(&p, ELEM_BF16, &g);
    value_id qkv = add_input(&p, OPERAND_ELEM, 3, 80), table = add_input(&p, OPERAND_REAL, 100, 4),
             positions = add_input(&p, OPERAND_INT, 3, 0), spans = add_input(&p, OPERAND_INT, 2, 6),
             cache = add_input(&p, OPERAND_ELEM, 50, 32);
    struct op_cost cost = cost_of(
        &p, (struct emission){
                .op = OP_ROTARY, .params = rotary, .in = {qkv, table, positions}, .num_in = 3});
    assert_true(cost.bytes == 2 * 3 * 80 * 2 + 3 * 4 * 4 + 3 * 4); /* 3 rows of the table */
    value_id x = program_add_value(&p, VALUE_SCRATCH, OPERAND_ELEM, 2, (uint64_t[]){3, 80}, "x");
    struct emission e = {
        .op = OP_ROTARY, .params = rotary, .in = {x, table, positions}, .num_in = 3};
    cost = cost_of(&p, e); /* in its place: half of 4 of 5 heads */
    assert_true(cost.bytes == 2 * 3 * 32 * 2 + 3 * 4 * 4 + 3 * 4);
    e = (struct emission){
        .op = OP_ATTENTION, .params = attention, .in = {qkv, qkv, spans}, .num_in = 3};
    e.params.attention.q_stride = e.params.attention.kv_stride = 40;
    cost = cost_of(&p, e);
    assert_true(cost.flops == 4 * 6 * 6 * 8);
    assert_true(cost.bytes == 3 * 80 * 2 + 2 * 6 * 4 + 3 * 48 * 2);
    e.in[1] = cache; /* of 50 rows at most 6 are seen; of qkv queries are read */
    cost = cost_of(&p, e);
    assert_true(cost.bytes == 3 * 48 * 2 + 6 * 32 * 2 + 2 * 6 * 4 + 3 * 48 * 2);
    program_release(&p);
}

static void costs_count_experts_that_rows_can_have(void **state)
{
    struct program p;
    struct groups g = four();
    (void)state;
    program_init(&p, ELEM_BF16, &g);
    value_id x = add_input(&p, OPERAND_ELEM, 3, 16), counts = add_input(&p, OPERAND_INT, 8, 0);
    value_id w = program_add_value(&p, VALUE_INPUT, OPERAND_ELEM, 3, (uint64_t[]){8, 4, 16}, "w");
    struct op_cost cost =
        cost_of(&p, (struct emission){.op = OP_GROUPED_MATMUL, .in = {x, w, counts}, .num_in = 3});
    assert_true(cost.bytes == 3 * 16 * 2 + 3 * 4 * 16 * 2 + 8 * 4 + 3 * 4 * 2);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emitting_makes_values_of_the_right_shape),
        cmocka_unit_test(what_does_not_fit_is_not_emitted),
        cmocka_unit_test(a_state_is_written_into),
        cmocka_unit_test(partial_values_are_known),
        cmocka_unit_test(values_are_written_once_and_before_they_are_read),
        cmocka_unit_test(each_row_of_a_base_is_written_once),
        cmocka_unit_test(views_lie_in_their_base),
        cmocka_unit_test(costs_are_what_is_read_and_written),
        cmocka_unit_test(costs_leave_out_what_is_not_read),
        cmocka_unit_test(costs_count_experts_that_rows_can_have),
        cmocka_unit_test(of_a_cache_the_rows_of_tokens_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
