/* Parameters of config and layout, and the elements of a checkpoint that fill
 * them. */
#include "train/model/bind.h"

#include "ckpt/testing_view.h"
#include "common/count.h"
#include "convert/open.h"
#include "tests/testing.h"
#include "train/engine/memory_plan.h"
#include "train/model/model.h"

static struct error err;

/* Rows of two sections, one of a vocabulary, one that the config does not tell
 * of. */
static const struct param_spec gated = {.name = "a",
                                        .num_dims = 2,
                                        .shape = {12, 3},
                                        .repeat = 1,
                                        .num_sections = 2,
                                        .sections = {{"gate", 8, false}, {"up", 4, false}}};
static const struct param_spec rows = {
    .name = "b", .num_dims = 2, .shape = {5, 3}, .repeat = 1, .padded = true};
static const struct param_spec unknown = {.name = "c", .split = -1, .num_dims = 1};

static uint32_t add(struct parameters *p, const struct param_spec *spec, struct cut cut)
{
    uint32_t number;
    assert_ok(parameters_add(p, spec->name, spec, &cut, &number, &err));
    return number;
}

static void a_name_is_one_parameter(void **state)
{
    struct parameters p;
    const struct cut half = {.rank = 1, .size = 2, .rows = 8};
    const uint64_t cache[] = {7, 2};
    uint32_t number;
    (void)state;
    parameters_init(&p, ELEM_BF16);
    assert_int_equal(add(&p, &gated, half), 0);
    assert_int_equal(add(&p, &rows, half), 1);
    assert_int_equal(add(&p, &gated, half), 0);
    assert_int_equal(parameters_add_state(&p, "cache", OPERAND_ELEM, 2, cache), 2);
    assert_int_equal(parameters_add_state(&p, "cache", OPERAND_ELEM, 2, cache), 2);
    assert_fails(parameters_add(&p, "c", &unknown, &half, &number, &err), ERR_UNSUPPORTED,
                 "c: the config does not give its shape");
    assert_fails(parameters_add(&p, "d", &gated, &(struct cut){.size = 3}, &number, &err),
                 ERR_UNSUPPORTED, "d: 8 rows are not divisible by tensor parallel size 3");
    assert_int_equal(p.count, 3);
    assert_int_equal(p.items[0].shape[0], 6); /* 4 of gate, 2 of up */
    assert_int_equal(p.items[0].numel, 18);
    assert_int_equal(p.items[0].cut->count, 2);
    assert_int_equal(p.items[1].shape[0], 4); /* of 8, of which 5 are no padding */
    for (size_t i = 0; i < p.count; i++)
        assert_int_equal(p.items[i].offset, i * MEMORY_ALIGNMENT);
    assert_int_equal(p.bytes, 3 * MEMORY_ALIGNMENT);
    parameters_release(&p);
}

static void a_stack_has_a_dimension_in_front(void **state)
{
    struct parameters p;
    const struct cut all = {.size = 1};
    char names[2][8] = {"e.0", "e.1"};
    const char *const tensors[] = {names[0], names[1]};
    uint32_t number;
    (void)state;
    parameters_init(&p, ELEM_F32);
    assert_ok(parameters_add_stack(&p, "e", tensors, 2, &gated, &all, &number, &err));
    const struct parameter *x = &p.items[number];
    names[1][2] = 'x'; /* they are copied */
    assert_int_equal(x->num_dims, 3);
    assert_int_equal(x->shape[0], 2);
    assert_int_equal(x->shape[1], 12);
    assert_int_equal(x->shape[2], 3);
    assert_int_equal(x->numel, 72);
    assert_string_equal(x->tensors[1], "e.1");
    parameters_release(&p);
}

/* ---- what fills them ---- */

static struct opened opened;

static void open_model(const char *model)
{
    const struct source_options none = {0};
    char path[128];
    snprintf(path, sizeof path, "tests/golden/hf/%s", model);
    assert_ok(opened_open(&opened, path, &none, NULL, true, true, &err));
}

static enum status make_pass(struct model *m, struct pass *p, const struct layout_options *l,
                             unsigned rank)
{
    const struct model_options o = {.layout = *l, .elem = ELEM_F32};
    const struct batch b = {.num_sequences = 1, .length = 4};
    const struct pass_options logits = {.logits = true, .trace_layer = -1};
    TRY(model_simulate(m, &opened.checkpoint, &o, rank, &err));
    return pass_make(p, m, &b, &logits, &err);
}

/* How often ranks hold each element of each tensor, to held[tensor][element].
 * Every element of a parameter is filled at most once, and at least once where
 * it is no padding of the vocabulary. */
static void count_elements(const struct model *m, unsigned **held)
{
    for (size_t i = 0; i < m->parameters.count; i++) {
        const struct parameter *x = &m->parameters.items[i];
        bool *filled = calloc(x->numel, sizeof *filled);
        uint64_t count = 0, a, b;
        for (size_t k = 0; k < x->num_parts; k++)
            for (uint64_t e = 0; e < pair_count(&x->parts[k].part); e++, count++) {
                pair_element(&x->parts[k].part, e, &a, &b);
                assert_true(b < x->numel && !filled[b]);
                filled[b] = true;
                assert_true(a < x->parts[k].tensor->numel);
                held[x->parts[k].tensor - opened.checkpoint.catalog.tensors][a]++;
            }
        if (x->spec && !x->spec->padded) assert_int_equal(count, x->numel);
        free(filled);
    }
}

/* Together the ranks hold every element of every tensor. */
static void check_layout(const struct layout_options *l)
{
    const struct checkpoint *c = &opened.checkpoint;
    unsigned **held = calloc(c->catalog.num_tensors, sizeof *held);
    const struct model_options o = {.layout = *l};
    struct group_sizes s = model_group_sizes(&o);
    for (size_t i = 0; i < c->catalog.num_tensors; i++)
        held[i] = calloc(c->catalog.tensors[i].numel + 1, sizeof **held);
    for (unsigned rank = 0; rank < groups_world_size(&s); rank++) {
        struct model m;
        struct pass p = {0};
        assert_ok(make_pass(&m, &p, l, rank));
        count_elements(&m, held);
        const size_t parts = m.parameters.items[0].num_parts;
        assert_ok(parameters_bind(&m.parameters, c, &err)); /* once is enough */
        assert_int_equal(m.parameters.items[0].num_parts, parts);
        pass_release(&p);
        model_close(&m);
    }
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        for (uint64_t e = 0; e < c->catalog.tensors[i].numel; e++)
            if (!held[i][e])
                fail_msg("%s: nobody has element %d", c->catalog.tensors[i].name, (int)e);
        free(held[i]);
    }
    free(held);
}

static void ranks_hold_every_element(void **state)
{
    static const struct {
        const char *model;
        struct layout_options layout;
    } cases[] = {
        {"gpt2", {.tp = 1}},
        {"gpt2", {.tp = 4}},
        {"llama3.1", {.tp = 2}},
        {"llama3.2", {.tp = 4}}, /* more ranks than query groups */
        {"qwen2.5", {.tp = 2, .pp = 2, .first_layers = 2}},
        {"mixtral", {.tp = 2, .ep = 2, .etp = 2}},
        {"qwen3-moe", {.tp = 2, .ep = 4, .etp = 1}},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        open_model(cases[i].model);
        check_layout(&cases[i].layout);
        opened_close(&opened);
    }
}

static struct tensor *tensor_of(const char *name)
{
    for (size_t i = 0; i < opened.checkpoint.catalog.num_tensors; i++)
        if (strcmp(opened.checkpoint.catalog.tensors[i].name, name) == 0)
            return &opened.checkpoint.catalog.tensors[i];
    return NULL;
}

/* Whatever is changed in the checkpoint is found by binding, and named. */
static void what_a_checkpoint_lacks_is_named(void **state)
{
    struct model m;
    struct pass p = {0};
    (void)state;
    open_model("llama3.1");
    struct tensor *t = tensor_of("decoder.layers.1.mlp.linear_fc2.weight");
    assert_non_null(t);
    const uint64_t *right = t->shape, wide[] = {right[0], right[1] + 2};
    t->shape = wide;
    assert_fails(make_pass(&m, &p, &(struct layout_options){.tp = 2}, 0), ERR_UNSUPPORTED,
                 "decoder.layers.1.mlp.linear_fc2.weight: shape");
    pass_release(&p);
    model_close(&m);
    t->shape = right;
    struct parameters q;
    parameters_init(&q, ELEM_F32);
    (void)add(&q, &gated, (struct cut){.size = 1});
    assert_fails(parameters_bind(&q, &opened.checkpoint, &err), ERR_UNSUPPORTED,
                 "a: the checkpoint has no such tensor");
    parameters_release(&q);
    opened_close(&opened);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_one_parameter),
        cmocka_unit_test(a_stack_has_a_dimension_in_front),
        cmocka_unit_test(ranks_hold_every_element),
        cmocka_unit_test(what_a_checkpoint_lacks_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
