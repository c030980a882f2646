/* Which calls become one, and which do not. */
#include "train/model/fuse.h"

#include "tests/testing.h"

static struct error err;

/* Groups of one rank each: enough for programs that do not talk. */
static const struct groups alone;

enum { HIDDEN = 16, WIDE = 24 };

/* A layer's way through an MLP: the stream takes up a branch, is normed, and
 * multiplied twice, with a gated activation between. */
struct mlp {
    struct program p;
    value_id stream, branch, norm_weight, w1, w2;
    value_id sum, normed, up, active, y;
    bool wants_stats;
};

static value_id add_value(struct mlp *x, enum value_class class, uint64_t rows, uint64_t columns)
{
    return program_add_value(&x->p, class, OPERAND_ELEM, columns ? 2 : 1,
                             (uint64_t[]){rows, columns}, "value");
}

static value_id add_product(struct mlp *x, value_id in, value_id w, const char *label)
{
    value_id y;
    const struct emission e = {.op = OP_MATMUL,
                               .label = label,
                               .params.matmul = {.transpose_b = true, .alpha = 1},
                               .in = {in, w},
                               .num_in = 2,
                               .out = {&y}};
    assert_ok(program_emit(&x->p, &e, &err));
    return y;
}

static void make(struct mlp *x, uint64_t rows)
{
    value_id stats;
    program_init(&x->p, ELEM_F32, &alone);
    x->stream = add_value(x, VALUE_INPUT, rows, HIDDEN);
    x->branch = add_value(x, VALUE_INPUT, rows, HIDDEN);
    x->norm_weight = add_value(x, VALUE_PARAMETER, HIDDEN, 0);
    x->w1 = add_value(x, VALUE_PARAMETER, 2 * WIDE, HIDDEN);
    x->w2 = add_value(x, VALUE_PARAMETER, HIDDEN, WIDE);
    const struct emission norm = {.op = OP_ADD_NORM,
                                  .label = "norm",
                                  .params.norm.epsilon = 0.5,
                                  .in = {x->stream, x->branch, NO_VALUE, x->norm_weight},
                                  .num_in = 4,
                                  .out = {&x->sum, &x->normed, x->wants_stats ? &stats : NULL}};
    assert_ok(program_emit(&x->p, &norm, &err));
    x->up = add_product(x, x->normed, x->w1, "fc1");
    const struct emission activation = {
        .op = OP_ACTIVATION,
        .label = "activation",
        .params.activation = {.kind = ACTIVATION_SILU, .gated = true},
        .in = {x->up, NO_VALUE},
        .num_in = 2,
        .out = {&x->active}};
    assert_ok(program_emit(&x->p, &activation, &err));
    x->y = add_product(x, x->active, x->w2, "fc2");
    x->p.values[x->y].class = VALUE_OUTPUT;
}

static void fuse(struct mlp *x, const char *ops)
{
    char is[128] = "";
    fuse_calls(&x->p);
    for (size_t i = 0; i < x->p.num_calls; i++) {
        strcat(is, i ? " " : "");
        strcat(is, op_row(x->p.calls[i].op)->name);
    }
    assert_string_equal(is, ops);
    assert_ok(program_check(&x->p, &err));
    program_release(&x->p);
}

static void a_norm_and_an_activation_join_the_product_behind_them(void **state)
{
    struct mlp x = {0};
    (void)state;
    make(&x, FUSED_ROWS);
    fuse_calls(&x.p);
    assert_int_equal(x.p.num_calls, 2);
    const struct call *first = &x.p.calls[0], *second = &x.p.calls[1];
    const value_id in[7] = {x.stream, x.branch, NO_VALUE, x.norm_weight, NO_VALUE, x.w1, NO_VALUE};
    assert_int_equal(first->op, OP_NORM_MATMUL);
    assert_memory_equal(first->in, in, sizeof in);
    assert_true(first->params.norm.epsilon == 0.5);
    assert_int_equal(first->out[0], x.up);
    assert_int_equal(first->out[1], x.sum);
    assert_string_equal(first->label, "fc1");
    assert_int_equal(second->op, OP_ACTIVATION_MATMUL);
    assert_int_equal(second->in[0], x.up);
    assert_int_equal(second->in[1], x.w2);
    assert_int_equal(second->in[2], NO_VALUE);
    assert_true(second->params.activation.gated);
    assert_int_equal(second->out[0], x.y);
    assert_int_equal(second->out[1], NO_VALUE);
    assert_ok(program_check(&x.p, &err));
    program_release(&x.p);
}

#define APART "add_norm matmul activation matmul"

static void what_others_need_stays(void **state)
{
    struct mlp x = {0};
    (void)state;
    make(&x, FUSED_ROWS + 1); /* more rows */
    fuse(&x, APART);
    make(&x, 4); /* outputs */
    x.p.values[x.normed].class = x.p.values[x.active].class = VALUE_OUTPUT;
    fuse(&x, APART);
    make(&x, 4); /* read a second time */
    (void)add_product(&x, x.normed, x.w1, "again");
    (void)add_product(&x, x.active, x.w2, "again");
    fuse(&x, APART " matmul matmul");
    make(&x, 4); /* read by way of a view */
    (void)program_add_view(&x.p, x.normed, 0, 1, "view");
    (void)program_add_view(&x.p, x.active, 0, 1, "view");
    fuse(&x, APART);
    x.wants_stats = true;
    make(&x, 4);
    fuse(&x, "add_norm matmul activation_matmul");
    x.wants_stats = false;
    make(&x, 4); /* no weights, but numbers that a call may have made just before */
    x.p.values[x.w1].class = x.p.values[x.w2].class = VALUE_INPUT;
    fuse(&x, APART);
    make(&x, 4); /* of REAL */
    x.p.values[x.up].type = OPERAND_REAL;
    fuse_calls(&x.p);
    assert_int_equal(x.p.calls[0].op, OP_ADD_NORM);
    program_release(&x.p);
}

/* The first two calls stay as they are. */
static void stays(struct mlp *x)
{
    const unsigned op = x->p.calls[0].op;
    fuse_calls(&x->p);
    assert_int_equal(x->p.calls[0].op, op);
    assert_int_equal(x->p.calls[1].op, OP_MATMUL);
    program_release(&x->p);
}

static void only_plain_products_and_what_is_before_them_are_joined(void **state)
{
    struct mlp x = {0};
    (void)state;
    make(&x, 4);
    x.p.calls[1].params.matmul.alpha = 2;
    stays(&x);
    make(&x, 4);
    x.p.calls[1].params.matmul.transpose_b = false;
    stays(&x);
    make(&x, 4);
    x.p.calls[1].params.matmul.transpose_a = true;
    stays(&x);
    make(&x, 4); /* a bias that is no weight */
    x.p.calls[1].in[2] = x.stream;
    stays(&x);
    make(&x, 4); /* adds to something */
    x.p.calls[1].in[3] = x.stream;
    stays(&x);
    make(&x, 4); /* multiplies something else */
    x.p.calls[1].in[0] = x.branch;
    (void)add_product(&x, x.normed, x.w1, "later");
    stays(&x);
    make(&x, 4); /* an activation of experts' rows, which are counted on the device */
    x.p.calls[2].in[1] = x.norm_weight;
    fuse_calls(&x.p);
    assert_int_equal(x.p.calls[1].op, OP_ACTIVATION);
    program_release(&x.p);
}

/* A norm that adds nothing up, and one whose statistics a backward pass needs. */
static void norms_alone_join_too(void **state)
{
    struct mlp x = {0};
    (void)state;
    for (int wants_stats = 0; wants_stats < 2; wants_stats++) {
        make(&x, 4);
        struct call *const norm = &x.p.calls[0];
        norm->op = OP_NORM;
        norm->in[1] = x.norm_weight;
        norm->in[3] = NO_VALUE;
        norm->out[0] = x.normed;
        norm->out[1] = wants_stats ? x.sum : NO_VALUE;
        norm->out[2] = NO_VALUE;
        fuse_calls(&x.p);
        const struct call *const first = &x.p.calls[0];
        assert_int_equal(first->op, wants_stats ? OP_NORM : OP_NORM_MATMUL);
        if (!wants_stats) {
            const value_id in[7] = {x.stream, NO_VALUE, NO_VALUE, x.norm_weight,
                                    NO_VALUE, x.w1,     NO_VALUE};
            assert_memory_equal(first->in, in, sizeof in);
        }
        program_release(&x.p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_norm_and_an_activation_join_the_product_behind_them),
        cmocka_unit_test(what_others_need_stays),
        cmocka_unit_test(only_plain_products_and_what_is_before_them_are_joined),
        cmocka_unit_test(norms_alone_join_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
