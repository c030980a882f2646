#include "train/engine/memory_plan.h"

#include "common/checked.h"
#include "kernels/op_table.h"
#include "tests/testing.h"

static struct error err;

/* Groups of one rank each: enough for programs that do not talk. */
static const struct groups alone;

enum { ROWS = 4, COLUMNS = 100, NUMBERS = ROWS * COLUMNS, MOST_VALUES = 256, SLOTS = 3 };

static const uint64_t sum_shape[] = {ROWS, COLUMNS};

static void add_sum(struct program *p, value_id a, value_id b, value_id y)
{
    struct call *c = program_add_call(p, OP_ADD, "add", -1);
    c->in[0] = a;
    c->in[1] = b;
    c->out[0] = y;
}

/* The same sum in two calls, of the upper and of the lower rows; `views` says
 * whose. */
static void add_sum_of_views(struct program *p, value_id a, value_id b, value_id y, uint64_t views)
{
    const value_id whole[] = {a, b, y};
    const uint64_t cut = 1 + views % (ROWS - 1);
    value_id part[3];
    for (unsigned half = 0; half < 2; half++) {
        const uint64_t first = half ? cut : 0, count = half ? ROWS - cut : cut;
        for (unsigned i = 0; i < 3; i++)
            part[i] = program_add_view(p, whole[i], first, count, "view");
        add_sum(p, part[0], part[1], part[2]);
    }
}

/* A random program of sums: each call adds two values that are there, or rows
 * of them. */
static void make_random(struct program *p, uint64_t *r)
{
    program_init(p, ELEM_F32, &alone);
    value_id values[40];
    size_t count = 2;
    for (size_t i = 0; i < 2; i++)
        values[i] = program_add_value(p, VALUE_INPUT, OPERAND_ELEM, 2, sum_shape, "input");
    while (count < 40) {
        bool last = test_below(r, 6) == 0;
        value_id y = program_add_value(p, last ? VALUE_OUTPUT : VALUE_SCRATCH, OPERAND_ELEM, 2,
                                       sum_shape, "y");
        const value_id a = values[test_below(r, count)],
                       b = values[count - 1 - test_below(r, count < 5 ? count : 5)];
        if (!last && test_below(r, 3) == 0)
            add_sum_of_views(p, a, b, y, test_below(r, 9));
        else
            add_sum(p, a, b, y);
        if (!last) values[count++] = y;
    }
}

/* A place for each value: planned memory, or memory of its own. */
struct memory {
    const struct program *p;
    char *regions[NUM_VALUE_CLASSES];
    float own[MOST_VALUES][NUMBERS];
};

static float *planned_at(const struct memory *m, value_id id)
{
    const struct program_value *v = &m->p->values[id];
    const struct program_value *home = &m->p->values[program_home(m->p, id)];
    char *at = m->regions[home->class] + home->offset + (v == home ? 0 : v->offset);
    return (float *)(void *)at;
}

static float *own_at(struct memory *m, value_id id)
{
    const struct program_value *v = &m->p->values[id];
    const value_id home = program_home(m->p, id);
    return m->own[home] + (home == id ? 0 : v->offset / sizeof(float));
}

/* Runs calls [first, end) in planned memory and by themselves: nothing may be
 * overwritten too early. */
static bool run_both(struct memory *m, size_t first, size_t end)
{
    bool same = true;
    for (size_t n = first; n < end; n++) {
        const struct call *c = &m->p->calls[n];
        const float *a = planned_at(m, c->in[0]), *b = planned_at(m, c->in[1]);
        const float *own_a = own_at(m, c->in[0]), *own_b = own_at(m, c->in[1]);
        float *y = planned_at(m, c->out[0]), *own_y = own_at(m, c->out[0]);
        for (uint64_t k = 0; k < m->p->values[c->out[0]].bytes / sizeof(float); k++) {
            own_y[k] = own_a[k] + own_b[k];
            y[k] = a[k] + b[k];
            same &= y[k] == own_y[k];
        }
    }
    return same;
}

/* Runs have inputs and saved values of their own, and share all else. */
static void open_memory(struct memory m[SLOTS], const struct program *p)
{
    assert_true(p->num_values <= MOST_VALUES);
    for (unsigned s = 0; s < SLOTS; s++) {
        m[s].p = p;
        for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
            m[s].regions[k] = s == 0 || k == VALUE_INPUT || k == VALUE_SAVED
                                  ? calloc(1, p->bytes[k] + 1)
                                  : m[0].regions[k];
        for (value_id i = 0; i < p->num_values; i++)
            for (unsigned k = 0; k < NUMBERS && p->values[i].class == VALUE_INPUT; k++)
                own_at(&m[s], i)[k] = planned_at(&m[s], i)[k] = (float)(s + i * 1000 + k);
    }
}

static void close_memory(const struct memory m[SLOTS])
{
    for (unsigned s = 0; s < SLOTS; s++)
        for (unsigned k = 0; k < NUM_VALUE_CLASSES; k++)
            if (s == 0 || k == VALUE_INPUT || k == VALUE_SAVED) free(m[s].regions[k]);
}

/* Whether b lies where a does, and the op that makes b may write over that
 * input. */
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

/* Any two scratch values that live at once share no byte, and all lie inside of
 * their region. */
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
    static struct memory m[SLOTS];
    (void)state;
    for (uint64_t n = 0; n < 200; n++) {
        struct program p;
        uint64_t r = test_seed() + n;
        make_random(&p, &r);
        assert_ok(program_check(&p, &err));
        memory_plan_make(&p, cpu_ops(ELEM_F32));
        check_plan(&p);
        open_memory(m, &p);
        if (!run_both(&m[0], 0, p.num_calls))
            fail_msg("seed %lu: something is overwritten", (unsigned long)(test_seed() + n));
        close_memory(m);
        program_release(&p);
    }
}

/* First parts of several runs, then their second parts, in another order. */
static void parts_of_several_runs_may_be_mixed(void **state)
{
    static struct memory m[SLOTS];
    (void)state;
    for (uint64_t n = 0; n < 100; n++) {
        struct program p;
        uint64_t r = test_seed() + n;
        bool same = true;
        make_random(&p, &r);
        p.second_part = 1 + test_below(&r, p.num_calls - 1);
        memory_plan_make(&p, cpu_ops(ELEM_F32));
        check_plan(&p);
        open_memory(m, &p);
        for (unsigned s = 0; s < SLOTS; s++)
            same &= run_both(&m[s], 0, p.second_part);
        for (unsigned s = 0; s < SLOTS; s++)
            same &= run_both(&m[(s + 2) % SLOTS], p.second_part, p.num_calls);
        if (!same) fail_msg("seed %lu: something is overwritten", (unsigned long)(test_seed() + n));
        close_memory(m);
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

/* y = x + x, w = y + rows of y, out = w + x: w must not overwrite what is read
 * as rows. */
static void a_base_has_one_place_until_its_views_are_read(void **state)
{
    struct program p;
    (void)state;
    program_init(&p, ELEM_F32, &alone);
    value_id values[4];
    for (unsigned i = 0; i < 4; i++)
        values[i] = program_add_value(&p,
                                      i == 0   ? VALUE_INPUT
                                      : i == 3 ? VALUE_OUTPUT
                                               : VALUE_SCRATCH,
                                      OPERAND_ELEM, 2, sum_shape, "value");
    add_sum_of_views(&p, values[0], values[0], values[1], 1);
    add_sum(&p, values[1], program_add_view(&p, values[1], 0, ROWS, "all rows"), values[2]);
    add_sum(&p, values[2], values[0], values[3]);
    memory_plan_make(&p, cpu_ops(ELEM_F32));
    assert_true(p.values[values[1]].offset != p.values[values[2]].offset);
    assert_int_equal(p.bytes[VALUE_SCRATCH],
                     2 * ceil_div_u64(NUMBERS * 4, MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT);
    program_release(&p);
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
        cmocka_unit_test(parts_of_several_runs_may_be_mixed),
        cmocka_unit_test(a_base_has_one_place_until_its_views_are_read),
        cmocka_unit_test(what_takes_a_place_is_counted_once),
        cmocka_unit_test(a_chain_takes_as_little_as_it_can),
        cmocka_unit_test(a_wrong_operand_is_named),
        cmocka_unit_test(each_op_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
