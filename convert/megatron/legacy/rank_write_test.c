#include "convert/megatron/legacy/rank_write.h"

#include "common/text.h"
#include "convert/megatron/legacy/testing_legacy.h"

/* ---- one optimizer of a file ---- */

/* The weights of a file, in its order. */
struct weights {
    struct weight {
        const char *name;
        const struct value *tensor;
    } items[64];
    size_t count;
};

static enum status add_weight(void *context, const char *path, const struct value *tensor,
                              struct error *e)
{
    struct weights *w = context;
    (void)e;
    w->items[w->count++] = (struct weight){arena_copy_text(&scratch, path), tensor};
    return OK;
}

/* A master rounded is the weight; both are random, so it is the right one. */
static void check_master(struct opened *f, const struct weight *w, const struct value *master)
{
    uint64_t numel, count;
    const uint16_t *weight = tensor_elements(f, w->tensor, &numel);
    const float *elements = tensor_elements(f, master, &count);
    uint16_t *rounded = arena_array(&scratch, numel, sizeof *rounded);
    assert_int_equal(count, numel);
    assert_true(cast_elements(rounded, DT_BF16, elements, DT_F32, numel));
    if (memcmp(rounded, weight, numel * sizeof *rounded)) fail_msg("%s has another's", w->name);
}

static void check_states(struct opened *f, const struct weight *w, const struct value *states)
{
    static const char *const names[] = {"exp_avg", "exp_avg_sq"};
    uint64_t numel, count;
    (void)tensor_elements(f, w->tensor, &numel);
    assert_null(value_get(states, "param"));
    for (unsigned i = 0; i < 2; i++) {
        const struct value *v = value_get(states, names[i]);
        (void)tensor_elements(f, v, &count);
        assert_int_equal(count, numel);
        assert_int_equal(v->tensor->num_dims, w->tensor->tensor->num_dims);
    }
}

/* Checks that the groups, of matrices and of vectors, have the weights in their
 * order, numbered on and on. */
static void check_optimizer(struct opened *f, const struct value *v, bool split, bool experts)
{
    struct weights w = {.count = 0};
    const struct value *inner = value_get(v, "optimizer"), *state = value_get(inner, "state"),
                       *groups = value_get(inner, "param_groups"),
                       *masters = value_get(v, "fp32_from_fp16_params");
    int64_t next = 0, number, key;
    assert_ok(value_walk(value_get(f->t.root, "model"), "", add_weight, &w, &err));
    assert_int_equal(masters->count, groups->count);
    for (uint32_t g = 0; g < groups->count; g++) {
        const struct value *params = value_get(groups->items[g], "params");
        double decay = -1;
        uint32_t n = 0;
        assert_true(value_as_float(value_get(groups->items[g], "wd_mult"), &decay));
        for (size_t i = 0; i < w.count; i++) {
            const bool vector = w.items[i].tensor->tensor->num_dims == 1,
                       expert = strstr(w.items[i].name, ".experts.") != NULL;
            if (vector == (decay > 0) || (split && expert != experts)) continue;
            if (text_ends_with(w.items[i].name, "_extra_state")) continue;
            assert_true(n < params->count && value_as_int(params->items[n], &number));
            assert_int_equal(number, next);
            assert_true(value_as_int(state->items[2 * next], &key));
            assert_int_equal(key, next);
            check_master(f, &w.items[i], masters->items[g]->items[n]);
            check_states(f, &w.items[i], state->items[2 * next + 1]);
            n++, next++;
        }
        assert_int_equal(params->count, n);
        assert_int_equal(masters->items[g]->count, n);
    }
    assert_int_equal(state->count, next);
}

/* Reading the legacy checkpoint and writing it again as it came gives the same
 * states. */
static void check_back(void)
{
    const char *back = in_scratch("back");
    assert_ok(CONVERT(in_scratch("legacy"), back, "--to=hf", "--optim", "--true-vocab-size=11"));
    check_same_file(path_join(&scratch, back, "optimizer.safetensors"),
                    in_scratch("hf/optimizer.safetensors"));
    check_same_weights(back, in_scratch("hf"));
    assert_ok(path_remove(back, &err));
}

/* ---- tests ---- */

static void groups_have_the_parameters_in_the_order_of_the_model(void **state)
{
    (void)state;
    static const char *const tied[] = {"--tied", "--untied"};
    for (unsigned i = 0; i < 2; i++) {
        open_both("--model=llama", tied[i], "--optim-format=not_distributed", "--pp=2");
        for (unsigned rank = 0; rank < 4; rank++) {
            struct opened f;
            open_file(&f, arena_printf(&scratch, "mp_rank_%02u_%03u", rank % 2, rank / 2),
                      "model_optim_rng.pt");
            check_optimizer(&f, value_get(f.t.root, "optimizer"), false, false);
            close_file(&f);
        }
        check_back();
        close_both();
    }
}

static void experts_are_the_second_of_a_chain(void **state)
{
    (void)state;
    open_both("--model=mixtral", "--untied", "--optim-format=not_distributed", "--ep=2");
    for (unsigned rank = 0; rank < 4; rank++) {
        struct opened f;
        open_file(&f, arena_printf(&scratch, "mp_rank_%02u_%03u", rank % 2, rank / 2),
                  "model_optim_rng.pt");
        const struct value *chain = value_get(f.t.root, "optimizer");
        assert_int_equal(chain->kind, VALUE_LIST);
        assert_int_equal(chain->count, 2);
        check_optimizer(&f, chain->items[0], true, false);
        check_optimizer(&f, chain->items[1], true, true);
        close_file(&f);
    }
    check_back();
    close_both();
}

static void a_chain_by_numbers_becomes_a_list(void **state)
{
    (void)state;
    struct value *chain = value_dict(&scratch), *first = value_dict(&scratch),
                 *second = value_dict(&scratch);
    assert_ptr_equal(rank_write_chain(first, &scratch), first);
    value_dict_put(&scratch, chain, value_int(&scratch, 0), first);
    value_dict_put(&scratch, chain, value_int(&scratch, 1), second);
    const struct value *list = rank_write_chain(chain, &scratch);
    assert_int_equal(list->kind, VALUE_LIST);
    assert_int_equal(list->count, 2);
    assert_ptr_equal(list->items[0], first);
    assert_ptr_equal(list->items[1], second);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(groups_have_the_parameters_in_the_order_of_the_model),
        TEST(experts_are_the_second_of_a_chain),
        TEST(a_chain_by_numbers_becomes_a_list),
    };
    return cmocka_run_group_tests_name("rank_write", tests, load_maps, release_maps);
}
