#include "train/engine/memory_plan.h"

#include "kernels/op_table.h"
#include "tests/testing.h"

static struct error err;

/* Groups of one rank each: enough for programs that do not talk. */
static const struct groups alone;

/* A random program of sums: each call adds two values that are there. */
static void make_random(struct program *p, uint64_t *r)
{
    program_init(p, ELEM_F32, &alone);
    value_id values[64];
    size_t count = 2;
    for (size_t i = 0; i < 2; i++)
        values[i] =
            program_add_value(p, VALUE_INPUT, OPERAND_ELEM, 2, (uint64_t[]){4, 100}, "input");
    while (count < 60) {
        bool last = test_below(r, 6) == 0;
        value_id y = program_add_value(p, last ? VALUE_OUTPUT : VALUE_SCRATCH, OPERAND_ELEM, 2,
                                       (uint64_t[]){4, 100}, "y");
        struct call *c = program_add_call(p, OP_ADD, "add", -1);
        c->in[0] = values[test_below(r, count)];
        c->in[1] = values[count - 1 - test_below(r, count < 5 ? count : 5)];
        c->out[0] = y;
        values[count++] = y;
    }
}

/* Runs sums in the planned memory and by themselves: nothing may be overwritten too early. */
static void run_both(const struct program *p, bool *same)
{
    static float alone_values[128][400];
    char *regions[NUM_VALUE_CLASSES];
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        regions[k] = calloc(1, p->bytes[k] + 1);
    for (size_t i = 0; i < p->num_values; i++) {
        const struct program_value *v = &p->values[i];
        if (v->class != VALUE_INPUT) continue;
        float *data = (float *)(void *)(regions[v->class] + v->offset);
        for (unsigned k = 0; k < 400; k++)
            alone_values[i][k] = data[k] = (float)(i * 1000 + k);
    }
    *same = true;
    for (size_t n = 0; n < p->num_calls; n++) {
        const struct call *c = &p->calls[n];
        const struct program_value *a = &p->values[c->in[0]], *b = &p->values[c->in[1]];
        const struct program_value *y = &p->values[c->out[0]];
        const float *pa = (float *)(void *)(regions[a->class] + a->offset);
        const float *pb = (float *)(void *)(regions[b->class] + b->offset);
        float *py = (float *)(void *)(regions[y->class] + y->offset);
        for (unsigned k = 0; k < 400; k++) {
            alone_values[c->out[0]][k] = alone_values[c->in[0]][k] + alone_values[c->in[1]][k];
            py[k] = pa[k] + pb[k];
            *same &= py[k] == alone_values[c->out[0]][k];
        }
    }
    for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
        free(regions[k]);
}

/* Whether b lies where a does, and the op that makes b may write over that input. */
static bool takes_over(const struct program *p, const struct program_value *a,
                       const struct program_value *b)
{
    const struct call *c = &p->calls[b->first];
    const int input = op_row(c->op)->out[0].in_place;
    return a->last == b->first && a->offset == b->offset && input >= 0 &&
           &p->values[c->in[input]] == a;
}

static void check_pair(const struct program *p, const struct program_value *a,
                       const struct program_value *b)
{
    if (a == b || b->class != VALUE_SCRATCH || b->last < a->first || a->last < b->first) return;
    if (b->offset >= a->offset + a->bytes || a->offset >= b->offset + b->bytes) return;
    if (!takes_over(p, a, b) && !takes_over(p, b, a))
        fail_msg("values %zu and %zu share memory", (size_t)(a - p->values),
                 (size_t)(b - p->values));
}

/* Any two scratch values that live at once share no byte, and all lie inside of their region. */
static void check_plan(const struct program *p)
{
    for (size_t i = 0; i < p->num_values; i++) {
        const struct program_value *a = &p->values[i];
        if (a->class != VALUE_SCRATCH) continue;
        assert_true(a->offset + a->bytes <= p->bytes[VALUE_SCRATCH]);
        for (size_t k = 0; k < p->num_values; k++)
            check_pair(p, a, &p->values[k]);
    }
}

static void values_that_live_at_once_share_no_memory(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 200; n++) {
        struct program p;
        uint64_t r = test_seed() + n;
        bool same;
        make_random(&p, &r);
        assert_ok(program_check(&p, &err));
        memory_plan_make(&p, cpu_ops(ELEM_F32));
        check_plan(&p);
        run_both(&p, &same);
        if (!same) fail_msg("seed %lu: something is overwritten", (unsigned long)(test_seed() + n));
        program_release(&p);
    }
}

/* A chain needs one place where ops can work in place, two where they cannot. */
static void a_chain_takes_as_little_as_it_can(void **state)
{
    (void)state;
    static const struct {
        unsigned op;
        uint64_t places;
    } cases[] = {{OP_ADD, 1}, {OP_ACTIVATION, 2}};
    for (size_t k = 0; k < 2; k++) {
        struct program p;
        program_init(&p, ELEM_F32, &alone);
        uint64_t shape[] = {8, 64};
        value_id x = program_add_value(&p, VALUE_INPUT, OPERAND_ELEM, 2, shape, "x"), first = x;
        for (unsigned i = 0; i < 10; i++) {
            value_id y = program_add_value(&p, VALUE_SCRATCH, OPERAND_ELEM, 2, shape, "y");
            struct call *c = program_add_call(&p, cases[k].op, "op", -1);
            c->in[0] = x;
            if (cases[k].op == OP_ADD) c->in[1] = first;
            c->out[0] = y;
            x = y;
        }
        memory_plan_make(&p, cpu_ops(ELEM_F32));
        assert_int_equal(p.bytes[VALUE_SCRATCH], cases[k].places * 8 * 64 * 4);
        program_release(&p);
    }
}

static void a_wrong_operand_is_named(void **state)
{
    (void)state;
    struct program p;
    program_init(&p, ELEM_F32, &alone);
    value_id x = program_add_value(&p, VALUE_INPUT, OPERAND_ELEM, 2, (uint64_t[]){8, 64}, "x");
    value_id w = program_add_value(&p, VALUE_INPUT, OPERAND_ELEM, 1, (uint64_t[]){65}, "w");
    value_id y = program_add_value(&p, VALUE_OUTPUT, OPERAND_ELEM, 2, (uint64_t[]){8, 64}, "y");
    struct call *c = program_add_call(&p, OP_NORM, "layers.3.norm", 3);
    c->in[0] = x;
    c->in[1] = w;
    c->out[0] = y;
    assert_fails(program_check(&p, &err), ERR_OURS, "layers.3.norm: norm: weight is elem[65] in");
    c->in[1] = NO_VALUE;
    assert_fails(program_check(&p, &err), ERR_OURS, "weight is absent");
    c->in[1] = y;
    assert_fails(program_check(&p, &err), ERR_OURS, "reads y before it is written");
    program_release(&p);
}

static void each_op_has_a_row(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NUM_ALL_OPS; i++)
        if (!op_row(i)) fail_msg("op %u has none", i);
}

/* z takes the place of y in the call that makes it. */
static void what_takes_a_place_is_counted_once(void **state)
{
    struct program p;
    struct strbuf text = {0};
    const uint64_t shape[] = {1000, 1000};
    (void)state;
    program_init(&p, ELEM_F32, &alone);
    value_id x = program_add_value(&p, VALUE_INPUT, OPERAND_ELEM, 2, shape, "x"), last = x;
    const char *const names[] = {"y", "z", "out"};
    for (unsigned i = 0; i < 3; i++) {
        struct call *c = program_add_call(&p, OP_ADD, names[i], -1);
        c->in[0] = last;
        c->in[1] = x;
        last = program_add_value(&p, i < 2 ? VALUE_SCRATCH : VALUE_OUTPUT, OPERAND_ELEM, 2, shape,
                                 names[i]);
        p.calls[i].out[0] = last;
    }
    memory_plan_make(&p, cpu_ops(ELEM_F32));
    memory_plan_print(&p, &text);
    assert_non_null(strstr(text.data, "scratch: 4.00 MB, of which 4.00 are alive"));
    strbuf_release(&text);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_live_at_once_share_no_memory),
        cmocka_unit_test(what_takes_a_place_is_counted_once),
        cmocka_unit_test(a_chain_takes_as_little_as_it_can),
        cmocka_unit_test(a_wrong_operand_is_named),
        cmocka_unit_test(each_op_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
