#include "convert/megatron/legacy/flat_write.h"

#include "convert/megatron/legacy/testing_legacy.h"
#include "convert/megatron/optim/flat_place.h"

/* Puts a parameter's state where its shard lies in the buffer. */
static void put_param(float *buffer, const struct placed_param *p, const struct bucket_cell *cell,
                      const char *state)
{
    const struct param_spec *s = p->of->param.spec;
    const struct layout *l = &legacy.layout;
    const char *name = arena_printf(&scratch, "optimizer.%s.%s", state, p->of->name);
    const float *from = elements_of(&hf, name);
    const uint64_t known = catalog_find(&hf.catalog, name)->numel, *shape = p->of->shape,
                   columns = p->of->num_dims > 1 ? shape[1] : 1,
                   ranks = s->group == PARAM_ETP ? l->etp : l->tp;
    struct param_parts parts;
    uint64_t *of = arena_array(&scratch, shape[0] * columns, sizeof *of), n = 0;
    assert_ok(param_shard(s, p->of->name, p->of->num_dims, shape, cell->tp_rank % ranks, ranks,
                          PARAM_STORED, &parts, &err));
    for (unsigned i = 0; i < parts.count; i++) /* boxes, one after the other */
        for (uint64_t row = 0; row < parts.extent[i][0]; row++)
            for (uint64_t k = 0; k < (columns > 1 ? parts.extent[i][1] : 1); k++)
                of[n++] =
                    (parts.start[i][0] + row) * columns + (columns > 1 ? parts.start[i][1] : 0) + k;
    assert_int_equal(n, p->numel);
    for (uint64_t i = 0; i < n; i++)
        if (of[i] < known) buffer[p->start_unpadded + i] = from[of[i]];
}

static void check_buffer(struct opened *f, const struct value *states, const struct param_buffer *b,
                         const struct bucket_cell *cell)
{
    static const char *const names[] = {"param", "exp_avg", "exp_avg_sq"};
    int64_t unpadded = 0;
    assert_true(value_as_int(value_get(states, "numel_unpadded"), &unpadded));
    assert_int_equal(unpadded, b->numel_unpadded);
    assert_int_equal(states->count, 4);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t numel;
        const float *found = tensor_elements(f, value_get(states, names[i]), &numel);
        float *expected = arena_array(&scratch, b->numel_unpadded, sizeof *expected);
        for (size_t k = 0; k < b->num_params; k++)
            put_param(expected, &b->params[k], cell, names[i]);
        assert_int_equal(numel, b->numel_unpadded);
        for (uint64_t k = 0; k < numel; k++)
            if (memcmp(&found[k], &expected[k], sizeof *found))
                fail_msg("%s: element %llu is %g, not %g", names[i], (unsigned long long)k,
                         (double)found[k], (double)expected[k]);
    }
}

/* Checks {buckets_coalesced: True, 0: {(D, D): states}} of a cell. */
static void check_cell(struct opened *f, const struct value *v, const struct bucket_cell *cell)
{
    struct trained_param *params;
    struct param_buffer *buffers;
    size_t num_params, num_buffers;
    bool coalesced = false;
    const struct bucket_rules rules = bucket_rules_of_args(
        value_get(legacy.training.common, "args"), legacy.transformer_engine_names);
    assert_ok(trained_params(&legacy, &scratch, &params, &num_params, &err));
    assert_ok(buckets_place(params, num_params, &legacy.layout, &legacy.config, &rules, cell, NULL,
                            0, &scratch, &buffers, &num_buffers, &err));
    assert_true(value_as_bool(value_get(v, "buckets_coalesced"), &coalesced) && coalesced);
    assert_int_equal(num_buffers, 1);
    assert_int_equal(v->count, 2);
    check_buffer(f, v->items[3]->items[1], &buffers[0], cell);
}

static void every_element_of_a_tied_model_is_in_its_buffer(void **state)
{
    (void)state;
    open_both("--model=llama", "--tied", "--optim-format=distributed", "--pp=2");
    for (unsigned tp = 0; tp < 2; tp++)
        for (unsigned pp = 0; pp < 2; pp++) {
            const struct bucket_cell cell = {.tp_rank = tp, .pp_rank = pp};
            struct opened f;
            open_file(&f, arena_printf(&scratch, "mp_rank_%02u_%03u", tp, pp), "distrib_optim.pt");
            check_cell(&f, f.t.root, &cell);
            close_file(&f);
        }
    close_both();
}

/* The first of the ranks that share dense buffers has them: tensor rank r's are
 * in expert rank r / etp % ep. */
static void experts_are_in_a_buffer_of_their_own(void **state)
{
    (void)state;
    open_both("--model=mixtral", "--untied", "--optim-format=distributed", "--ep=2");
    assert_int_equal(legacy.layout.etp, 2);
    for (unsigned tp = 0; tp < 2; tp++)
        for (unsigned ep = 0; ep < 2; ep++) {
            const struct bucket_cell dense = {.tp_rank = tp},
                                     experts = {.experts = true, .tp_rank = tp, .ep_rank = ep};
            const char *rank = arena_printf(&scratch, "mp_rank_%02u_%03u", tp, ep);
            struct opened f;
            if (!path_exists(
                    path_join(&scratch, path_join(&scratch, iteration, rank), "distrib_optim.pt")))
                fail_msg("%s has none", rank);
            open_file(&f, rank, "distrib_optim.pt");
            assert_int_equal(f.t.root->kind, VALUE_LIST);
            assert_int_equal(f.t.root->count, 2);
            assert_int_equal(f.t.root->items[0]->kind, ep ? VALUE_NONE : VALUE_DICT);
            if (!ep) check_cell(&f, f.t.root->items[0], &dense);
            check_cell(&f, f.t.root->items[1], &experts);
            close_file(&f);
        }
    close_both();
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_element_of_a_tied_model_is_in_its_buffer),
        TEST(experts_are_in_a_buffer_of_their_own),
    };
    return cmocka_run_group_tests_name("flat_write", tests, load_maps, release_maps);
}
