/* The list of ops: signatures parse, shapes follow from them, errors
 * are refused. */
#include "kernels/op_table.h"

#include "common/count.h"
#include "tests/testing.h"

static struct error err;

#define ELEM2(a, b)                                                                                \
    {                                                                                              \
        .type = OPERAND_ELEM, .num_dims = 2, .shape = { a, b }                                     \
    }
#define ELEM1(a)                                                                                   \
    {                                                                                              \
        .type = OPERAND_ELEM, .num_dims = 1, .shape = { a }                                        \
    }

/* Prints a parsed signature again. */
static void print_side(char *to, size_t room, const struct op_row *row, const struct op_operand *o,
                       unsigned count)
{
    static const char *const types[] = {"", ":real", ":int", ":float", ":any", ":weight"};
    for (unsigned i = 0; i < count; i++) {
        size_t n = strlen(to);
        n += (size_t)snprintf(to + n, room - n, "%s%s%s[", i ? " " : "", o[i].name,
                              types[o[i].type]);
        for (unsigned d = 0; d < o[i].num_dims; d++)
            n += (size_t)snprintf(to + n, room - n, "%s%c", d ? "," : "", o[i].dims[d]);
        if (o[i].has_tail)
            n += (size_t)snprintf(to + n, room - n, "%s..", o[i].num_dims ? "," : "");
        n += (size_t)snprintf(to + n, room - n, "]%s", o[i].optional ? "?" : "");
        if (o[i].in_place >= 0)
            n += (size_t)snprintf(to + n, room - n, "=%s", row->in[o[i].in_place].name);
        if (o[i].may_be_infinite) (void)snprintf(to + n, room - n, "-inf");
    }
}

static void every_signature_is_read_as_it_is_written(void **state)
{
    (void)state;
    for (unsigned op = 0; op < NUM_ALL_OPS; op++) {
        const struct op_row *row = op_row(op);
        char text[256] = "";
        print_side(text, sizeof text, row, row->in, row->num_in);
        strcat(text, row->num_in ? " ->" : "->");
        if (row->num_out) strcat(text, " ");
        print_side(text, sizeof text, row, row->out, row->num_out);
        assert_string_equal(text, row->signature);
        assert_true(row->tolerance >= 0);
        for (unsigned k = 0; k < op; k++)
            assert_string_not_equal(op_row(k)->name, row->name);
    }
}

/* Only output 0 may take an input's place, of equal size: memory_plan asks for
 * it alone. Further outputs may take inputs' places only if both are held
 * values, which the optimizer changes in place. */
static void only_the_first_output_takes_a_place(void **state)
{
    (void)state;
    for (unsigned op = 0; op < NUM_ALL_OPS; op++) {
        const struct op_row *row = op_row(op);
        const bool updates = op == OP_ADAM || op == OP_SGD;
        for (unsigned i = 0; i < row->num_in; i++)
            assert_int_equal(row->in[i].in_place, -1);
        for (unsigned i = 1; i < row->num_out && !updates; i++)
            assert_int_equal(row->out[i].in_place, -1);
    }
}

static void shapes_of_outputs_follow(void **state)
{
    const struct operand stream[MAX_INPUTS] = {ELEM2(8, 64), ELEM2(8, 64), {0}, ELEM1(64)};
    struct operand out[MAX_OUTPUTS] = {0};
    struct op_sizes s = {0};
    const union op_params none = {0};
    (void)state;
    assert_ok(op_infer(OP_ADD_NORM, &none, stream, 0, &s, out, &err));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(out[i].num_dims, 2);
        assert_int_equal(out[i].shape[0], 8);
        assert_int_equal(out[i].shape[1], 64);
        assert_int_equal(out[i].type, OPERAND_ELEM);
    }
    assert_int_equal(out[2].num_dims, 0); /* not wanted */
    s = (struct op_sizes){0};
    assert_ok(op_infer(OP_ADD_NORM, &none, stream, 1 << 2, &s, out, &err));
    assert_int_equal(out[2].num_dims, 2);
    assert_int_equal(out[2].shape[0], 8);
    assert_int_equal(out[2].shape[1], 2);
    assert_int_equal(out[2].type, OPERAND_REAL);
}

static void products_are_of_either_type_and_any_transposition(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        const bool ta = i & 1, tb = i & 2;
        const union op_params p = {.matmul = {.transpose_a = ta, .transpose_b = tb, .alpha = 1}};
        struct operand in[MAX_INPUTS] = {ELEM2(ta ? 5 : 3, ta ? 3 : 5),
                                         ELEM2(tb ? 7 : 5, tb ? 5 : 7), ELEM1(7)};
        struct operand out[MAX_OUTPUTS] = {{.type = i ? OPERAND_REAL : OPERAND_ELEM}};
        struct op_sizes s = {0};
        assert_ok(op_infer(OP_MATMUL, &p, in, 0, &s, out, &err));
        assert_int_equal(out[0].shape[0], 3);
        assert_int_equal(out[0].shape[1], 7);
        assert_int_equal(out[0].type, i ? OPERAND_REAL : OPERAND_ELEM);
        assert_int_equal(op_flops(OP_MATMUL, &p, in, out), 2 * 3 * 5 * 7);
        in[2].shape[0] = 6; /* the bias */
        s = (struct op_sizes){0};
        assert_fails(op_infer(OP_MATMUL, &p, in, 0, &s, out, &err), ERR_OURS, "matmul: ");
        in[2].shape[0] = 7;
        in[1].shape[tb]++; /* of the sum */
        s = (struct op_sizes){0};
        assert_fails(op_infer(OP_MATMUL, &p, in, 0, &s, out, &err), ERR_OURS, "do not fit");
    }
}

/* The cost of a fused op is that of its product: the rest is little. */
static void products_of_what_is_made_on_the_way(void **state)
{
    const union op_params gated = {.activation = {.kind = ACTIVATION_SILU, .gated = true}};
    const struct operand stream[MAX_INPUTS] = {ELEM2(2, 8), ELEM2(2, 8), {0}, ELEM1(8),
                                               {0},         ELEM2(5, 8), {0}};
    struct operand x[MAX_INPUTS] = {ELEM2(2, 16), ELEM2(5, 8)}, out[MAX_OUTPUTS] = {0};
    const union op_params none = {0};
    struct op_sizes s = {0};
    (void)state;
    assert_ok(op_infer(OP_NORM_MATMUL, &none, stream, 1 << 1, &s, out, &err));
    assert_int_equal(out[0].shape[0], 2);
    assert_int_equal(out[0].shape[1], 5);
    assert_int_equal(out[1].shape[1], 8);
    assert_int_equal(op_flops(OP_NORM_MATMUL, &none, stream, out), 2 * 2 * 5 * 8);
    s = (struct op_sizes){0};
    memset(out, 0, sizeof out);
    assert_ok(op_infer(OP_ACTIVATION_MATMUL, &gated, x, 0, &s, out, &err));
    assert_int_equal(out[0].shape[1], 5);
    assert_int_equal(op_flops(OP_ACTIVATION_MATMUL, &gated, x, out), 2 * 2 * 5 * 8);
    x[0].shape[1] = 8; /* no gate */
    s = (struct op_sizes){0};
    assert_fails(op_infer(OP_ACTIVATION_MATMUL, &gated, x, 0, &s, out, &err), ERR_OURS,
                 "do not fit");
}

static void rows_of_collectives_are_those_of_all_members(void **state)
{
    const union op_params none = {0};
    const struct operand in[MAX_INPUTS] = {
        {.data = NULL, .type = OPERAND_INT, .num_dims = 3, .shape = {12, 5, 2}}};
    static const struct {
        unsigned op;
        uint64_t rows;
    } cases[] = {{OP_ALL_GATHER, 48}, {OP_REDUCE_SCATTER, 3}, {OP_SLICE, 3}, {OP_SHIFT, 12}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct operand out[MAX_OUTPUTS] = {0};
        struct op_sizes s = {0};
        assert_true(op_size_set(&s, 'G', 4));
        assert_ok(op_infer(cases[i].op, &none, in, 0, &s, out, &err));
        assert_int_equal(out[0].num_dims, 3);
        assert_int_equal(out[0].shape[0], cases[i].rows);
        assert_int_equal(out[0].shape[1], 5);
        assert_int_equal(out[0].shape[2], 2);
        assert_int_equal(out[0].type, OPERAND_INT);
    }
    struct op_sizes s = {0};
    struct operand out[MAX_OUTPUTS] = {0};
    assert_true(op_size_set(&s, 'G', 5));
    assert_fails(op_infer(OP_SLICE, &none, in, 0, &s, out, &err), ERR_OURS, "slice: ");
}

static void what_does_not_fit_is_named(void **state)
{
    const union op_params none = {0}, heads = {.rotary = {.heads = {2, 3, 8}, .rotary_dim = 6}};
    struct operand x[MAX_INPUTS] = {ELEM2(8, 64), ELEM1(65)}, out[MAX_OUTPUTS] = {ELEM2(8, 64)};
    struct op_sizes s = {0};
    (void)state;
    assert_fails(op_check(OP_NORM, &none, x, out, &s, &err), ERR_OURS, "norm: weight is elem[65]");
    x[1] = (struct operand){0};
    s = (struct op_sizes){0};
    assert_fails(op_check(OP_NORM, &none, x, out, &s, &err), ERR_OURS, "norm: weight is absent");
    x[1] = (struct operand)ELEM1(64);
    s = (struct op_sizes){0};
    assert_ok(op_check(OP_NORM, &none, x, out, &s, &err));
    out[0].type = OPERAND_REAL;
    s = (struct op_sizes){0};
    assert_fails(op_check(OP_NORM, &none, x, out, &s, &err), ERR_OURS, "norm: y is real[8,64]");
    out[0].type = OPERAND_ELEM;
    out[2] = (struct operand)ELEM1(3);
    s = (struct op_sizes){0};
    assert_fails(op_check(OP_NORM, &none, x, out, &s, &err), ERR_OURS, "more operands than in");
    struct operand qkv[MAX_INPUTS] = {
        ELEM2(4, 80),
        {.data = NULL, .type = OPERAND_REAL, .num_dims = 2, .shape = {9, 6}},
        {.data = NULL, .type = OPERAND_INT, .num_dims = 1, .shape = {4}}};
    struct operand y[MAX_OUTPUTS] = {ELEM2(4, 80)};
    s = (struct op_sizes){0};
    assert_ok(op_check(OP_ROTARY, &heads, qkv, y, &s, &err));
    qkv[0].shape[1] = y[0].shape[1] = 81; /* 2 groups of 3 + 2 heads of 8 are 80 */
    s = (struct op_sizes){0};
    assert_fails(op_check(OP_ROTARY, &heads, qkv, y, &s, &err), ERR_OURS, "do not fit");
}

static void weights_alone_may_be_coded(void **state)
{
    const union op_params p = {.matmul = {.transpose_b = true, .alpha = 1}}, none = {0};
    const struct weight_coding coding = {.group = 32};
    struct operand x[MAX_INPUTS] = {ELEM2(8, 64), ELEM2(16, 64)};
    struct operand out[MAX_OUTPUTS] = {ELEM2(8, 16)};
    struct op_sizes s = {0};
    (void)state;
    x[1].coding = &coding;
    assert_ok(op_check(OP_MATMUL, &p, x, out, &s, &err));
    x[0].coding = &coding;
    s = (struct op_sizes){0};
    assert_fails(op_check(OP_MATMUL, &p, x, out, &s, &err), ERR_OURS,
                 "matmul: a is coded elem[8,64]");
    x[1] = (struct operand)ELEM1(64);
    x[0].coding = NULL;
    x[1].coding = &coding;
    s = (struct op_sizes){0};
    assert_fails(op_check(OP_NORM, &none, x, out, &s, &err), ERR_OURS,
                 "norm: weight is coded elem[64]");
}

static void sizes_that_nothing_says_are_asked_for(void **state)
{
    const union op_params none = {0};
    const struct operand in[MAX_INPUTS] = {
        ELEM2(4, 16), {.data = NULL, .type = OPERAND_INT, .num_dims = 2, .shape = {4, 2}}};
    struct operand out[MAX_OUTPUTS] = {0};
    struct op_sizes s = {0};
    (void)state;
    assert_fails(op_infer(OP_PERMUTE, &none, in, 0, &s, out, &err), ERR_OURS, "the size R of");
    s = (struct op_sizes){0};
    assert_true(op_size_set(&s, 'R', 8));
    assert_ok(op_infer(OP_PERMUTE, &none, in, 0, &s, out, &err));
    assert_int_equal(out[0].shape[0], 8);
    assert_int_equal(out[0].shape[1], 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_signature_is_read_as_it_is_written),
        cmocka_unit_test(only_the_first_output_takes_a_place),
        cmocka_unit_test(shapes_of_outputs_follow),
        cmocka_unit_test(products_are_of_either_type_and_any_transposition),
        cmocka_unit_test(products_of_what_is_made_on_the_way),
        cmocka_unit_test(rows_of_collectives_are_those_of_all_members),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(weights_alone_may_be_coded),
        cmocka_unit_test(sizes_that_nothing_says_are_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
