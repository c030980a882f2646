/* Judges made-up weights in the memory of ranks beside comparisons of files. */
#include "validate/forward/loaded.h"

#include "validate/testing_validate.h"

enum { F32_TENSORS = 4, ALL_TENSORS = 5 };

/* Four tensors in F32, one in BF16. */
static struct made *some(void)
{
    static const char *const names[] = {"a", "b", "c", "d", "half"};
    uint64_t seed = test_seed();
    struct made *m = arena_alloc(&scratch, sizeof *m);
    for (size_t i = 0; i < ALL_TENSORS; i++)
        made_fill(made_add(m, names[i], i < F32_TENSORS ? DT_F32 : DT_BF16, SHAPE(30, 20)), &seed);
    return m;
}

/* A tensor as it is in the memory of a run in f32. `change` is added to a sum. */
static void take(struct loaded *l, unsigned side, const struct made_tensor *t, uint64_t change)
{
    struct tensor_digest d = {
        .name = t->name, .dtype = DT_F32, .num_dims = t->num_dims, .shape = t->shape};
    if (t->dtype == DT_F32) digest_add_elements(&d.sums, DT_F32, t->elements, t->numel, 0);
    d.sums.d[0] += change;
    loaded_take(l, side, &d);
}

static void take_all(struct loaded *l, unsigned side, const struct made *m)
{
    for (size_t i = 0; i < m->count; i++)
        take(l, side, &m->tensors[i], 0);
}

/* Judges, and compares the text. */
static void assert_told(struct loaded *l, const struct comparison *files, bool passes,
                        const char *text)
{
    struct strbuf told = {0};
    loaded_judge(l, files);
    loaded_text(&told, l);
    assert_string_equal(told.data, text);
    assert_int_equal(loaded_passes(l), passes);
    strbuf_release(&told);
}

static struct compare_options digesting_options(void)
{
    struct compare_options o = plain_options();
    o.digests = true;
    o.digests_of = DT_F32;
    return o;
}

static void equal_weights_are_compared_with_files_where_these_are_read_as_they_are(void **state)
{
    (void)state;
    const struct compare_options o = digesting_options();
    struct made *m = some();
    struct compared_sides x;
    struct loaded l;
    loaded_init(&l);
    take_all(&l, 0, m);
    take_all(&l, 1, m);
    assert_told(&l, compare_sides(&x, m, m, &o), true,
                "in memory: 5 tensors, equal in A and B; 4 are equal to both files");
    loaded_release(&l);
    release_sides(&x);
}

static void what_differs_in_memory_alone_is_told(void **state)
{
    (void)state;
    const struct compare_options o = digesting_options();
    struct made *m = some();
    struct compared_sides x;
    struct loaded l;
    loaded_init(&l);
    take_all(&l, 0, m);
    take_all(&l, 1, m);
    take(&l, 1, made_find(m, "b"), 1);
    take(&l, 1, made_find(m, "half"), 1);
    take(&l, 0, made_find(m, "d"), 1);
    take(&l, 1, made_find(m, "d"), 1);
    assert_told(&l, compare_sides(&x, m, m, &o), false,
                "in memory: 2 of 5 tensors equal in A and B; 1 is DIFFERENT: half; "
                "2 are NOT equal to both files: b, d; 2 are equal to both files");
    loaded_release(&l);
    release_sides(&x);
}

static void what_differs_in_files_passes_where_these_pass(void **state)
{
    (void)state;
    struct compare_options o = digesting_options();
    struct made *a = some(), *b = made_copy(a);
    struct compared_sides x;
    struct loaded l;
    o.tolerance = (struct tolerance){.by_bounds = true, .atol = 1};
    made_set(made_find(b, "a"), 7, made_get(made_find(a, "a"), 7) + 0.5);
    made_set(made_find(b, "b"), 7, made_get(made_find(a, "b"), 7) + 5);
    loaded_init(&l);
    take_all(&l, 0, a);
    take_all(&l, 1, b);
    assert_told(&l, compare_sides(&x, a, b, &o), false,
                "in memory: 3 of 5 tensors equal in A and B; 1 is different as in the files; "
                "1 is DIFFERENT: b; 2 are equal to both files");
    loaded_release(&l);
    release_sides(&x);
}

/* Memory is f32: a value that B's file rounded to bf16 is another number there. */
static void another_dtype_explains_what_a_cast_makes_and_no_more(void **state)
{
    (void)state;
    const struct compare_options o = digesting_options();
    for (unsigned changed = 0; changed < 2; changed++) {
        uint64_t seed = test_seed();
        struct made *a = arena_alloc(&scratch, sizeof *a), *b = arena_alloc(&scratch, sizeof *b);
        struct made_tensor *x = made_fill(made_add(a, "w", DT_F32, SHAPE(30, 20)), &seed),
                           *y = made_add(b, "w", DT_BF16, SHAPE(30, 20));
        struct compared_sides sides;
        struct loaded l;
        for (uint64_t i = 0; i < x->numel; i++)
            made_set(y, i, made_get(x, i));
        if (changed) made_set(y, 7, made_get(x, 7) * 1.1 + 1);
        loaded_init(&l);
        take(&l, 0, x, 0);
        take(&l, 1, y, 1);
        assert_told(&l, compare_sides(&sides, a, b, &o), !changed,
                    changed ? "in memory: 0 of 1 tensors equal in A and B; 1 is DIFFERENT: w"
                            : "in memory: 0 of 1 tensors equal in A and B; "
                              "1 is different as in the files");
        loaded_release(&l);
        release_sides(&sides);
    }
}

static void few_names_are_shown(void **state)
{
    (void)state;
    const struct compare_options o = plain_options();
    struct made *m = some();
    struct compared_sides x;
    struct loaded l;
    loaded_init(&l);
    take_all(&l, 0, m);
    for (size_t i = 0; i < m->count; i++)
        take(&l, 1, &m->tensors[i], 1);
    assert_told(&l, compare_sides(&x, m, m, &o), false,
                "in memory: 0 of 5 tensors equal in A and B; 5 are DIFFERENT: a, b, c and 2 more");
    loaded_release(&l);
    release_sides(&x);
}

static void what_is_left_out_or_on_one_side_is_no_difference(void **state)
{
    (void)state;
    struct compare_options o = digesting_options();
    const char *names[] = {"b"};
    const struct arg_list ignore = {names, 1};
    struct made *m = some();
    struct compared_sides x;
    struct loaded l;
    o.ignore = &ignore;
    loaded_init(&l);
    take_all(&l, 0, m);
    for (size_t i = 0; i < 4; i++)
        take(&l, 1, &m->tensors[i], i == 1);
    assert_told(&l, compare_sides(&x, m, m, &o), true,
                "in memory: 3 tensors, equal in A and B; 3 are equal to both files; "
                "1 is on one side only; 1 is left out");
    loaded_release(&l);
    release_sides(&x);
}

static void tensors_that_no_rank_wants_are_counted(void **state)
{
    (void)state;
    const struct compare_options o = digesting_options();
    struct made *m = some();
    struct compared_sides x;
    struct loaded l;
    loaded_init(&l);
    for (unsigned side = 0; side < 2; side++)
        for (size_t i = 0; i < 3; i++)
            take(&l, side, &m->tensors[i], 0);
    assert_told(&l, compare_sides(&x, m, m, &o), true,
                "in memory: 3 tensors, equal in A and B; 3 are equal to both files; "
                "2 are not loaded by any rank");
    loaded_release(&l);
    release_sides(&x);
}

static void a_file_of_results_has_no_weights(void **state)
{
    (void)state;
    struct loaded l;
    loaded_init(&l);
    take_all(&l, 0, some());
    assert_told(&l, NULL, true, "in memory: 5 tensors of A");
    loaded_release(&l);
}

static void json_names_what_differs(void **state)
{
    (void)state;
    const struct compare_options o = digesting_options();
    struct made *m = some();
    struct compared_sides x;
    struct loaded l;
    cJSON *j = cJSON_CreateObject();
    loaded_init(&l);
    take_all(&l, 0, m);
    take_all(&l, 1, m);
    take(&l, 1, made_find(m, "half"), 1);
    loaded_judge(&l, compare_sides(&x, m, m, &o));
    loaded_json(j, &l);
    char *told = cJSON_PrintUnformatted(j);
    assert_string_equal(
        told, "{\"weights_in_memory\":{\"tensors\":5,\"as_stored\":4,\"not_loaded\":0,\"equal\":4,"
              "\"differ_as_stored\":0,\"one_side\":0,\"left_out\":0,"
              "\"different\":[\"half\"],\"not_as_stored\":[]}}");
    free(told);
    cJSON_Delete(j);
    loaded_release(&l);
    release_sides(&x);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(equal_weights_are_compared_with_files_where_these_are_read_as_they_are),
        TEST(what_differs_in_memory_alone_is_told),
        TEST(what_differs_in_files_passes_where_these_pass),
        TEST(another_dtype_explains_what_a_cast_makes_and_no_more),
        TEST(few_names_are_shown),
        TEST(what_is_left_out_or_on_one_side_is_no_difference),
        TEST(tensors_that_no_rank_wants_are_counted),
        TEST(a_file_of_results_has_no_weights),
        TEST(json_names_what_differs),
    };
    return cmocka_run_group_tests_name("loaded", tests, NULL, NULL);
}
