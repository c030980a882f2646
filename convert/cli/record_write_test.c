#include "convert/cli/record_write.h"

#include <string.h>

#include "common/count.h"
#include "tests/testing.h"

enum { MAX_WRITTEN = 8 };

/* A plan of tensors, each in a segment of its own, and what a run of it has
 * found. */
struct written {
    struct plan plan;
    struct tensor tensors[MAX_WRITTEN];
    struct plan_copy copies[MAX_WRITTEN];
    struct segment segments[MAX_WRITTEN];
    struct target_piece pieces[MAX_WRITTEN];
    struct copy_result results[MAX_WRITTEN];
    struct arena arena;
};

static void written_init(struct written *x)
{
    *x = (struct written){.plan = {.num_copies = 0}};
    x->plan.copies = x->copies;
    x->plan.segments = x->segments;
    arena_init(&x->arena);
}

/* A tensor that is `from` in the source and `to` in the target. */
static void add(struct written *x, const char *name, enum dtype from, enum dtype to)
{
    static const uint64_t shape[] = {2, 3};
    const size_t i = x->plan.num_copies++;
    assert_true(i < MAX_WRITTEN);
    x->tensors[i] = (struct tensor){.name = name, .dtype = from, .num_dims = 2, .shape = shape};
    x->segments[i] = (struct segment){.dtype = to};
    x->pieces[i] = (struct target_piece){.segment = (uint32_t)i};
    x->copies[i] =
        (struct plan_copy){.source = &x->tensors[i], .pieces = &x->pieces[i], .num_pieces = 1};
    x->results[i].written.d[0] = i + 1;
    x->results[i].read.d[0] = i + 101;
}

/* The digest of this name; NULL: none. */
static const struct tensor_digest *digest_of(struct written *x, const char *name, bool written)
{
    struct tensor_digest *all;
    const struct tensor_digest *found = NULL;
    size_t count;
    record_digests(&x->plan, x->results, written, &x->arena, &all, &count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(all[i].name, name)) continue;
        assert_null(found);
        found = &all[i];
    }
    return found;
}

static void a_weight_that_is_its_own_master_is_listed_as_both(void **state)
{
    (void)state;
    struct written x;
    written_init(&x);
    add(&x, "a.weight", DT_F32, DT_F32);
    add(&x, "optimizer.exp_avg.a.weight", DT_F32, DT_F32);
    add(&x, "optimizer.exp_avg_sq.a.weight", DT_F32, DT_F32);
    for (int written = 0; written < 2; written++) {
        const struct tensor_digest *master = digest_of(&x, "optimizer.param.a.weight", written);
        assert_non_null(master);
        assert_int_equal(master->sums.d[0], written ? 1 : 101);
        assert_int_equal(master->dtype, DT_F32);
        assert_int_equal(master->num_dims, 2);
        assert_non_null(digest_of(&x, "a.weight", written));
    }
    arena_release(&x.arena);
}

static void so_is_one_of_f64(void **state)
{
    (void)state;
    struct written x;
    written_init(&x);
    add(&x, "a.weight", DT_F64, DT_F64);
    add(&x, "optimizer.exp_avg.a.weight", DT_F64, DT_F64);
    assert_int_equal(digest_of(&x, "optimizer.param.a.weight", true)->dtype, DT_F64);
    arena_release(&x.arena);
}

static void no_master_is_listed_where_a_reader_adds_none(void **state)
{
    (void)state;
    struct written x;
    written_init(&x);
    add(&x, "stored.weight", DT_F32, DT_F32);
    add(&x, "optimizer.exp_avg.stored.weight", DT_F32, DT_F32);
    add(&x, "optimizer.param.stored.weight", DT_F32, DT_F32);
    add(&x, "frozen.weight", DT_F32, DT_F32);
    add(&x, "narrow.weight", DT_BF16, DT_BF16);
    add(&x, "optimizer.exp_avg.narrow.weight", DT_F32, DT_F32);
    add(&x, "stored.weight.padding", DT_F32, DT_F32);
    assert_int_equal(digest_of(&x, "optimizer.param.stored.weight", true)->sums.d[0], 3);
    assert_null(digest_of(&x, "optimizer.param.frozen.weight", true));
    assert_null(digest_of(&x, "optimizer.param.narrow.weight", true));
    assert_null(digest_of(&x, "stored.weight.padding", true));
    arena_release(&x.arena);
}

static void the_dtype_that_was_written_decides(void **state)
{
    (void)state;
    struct written x;
    written_init(&x);
    add(&x, "wide.weight", DT_BF16, DT_F32);
    add(&x, "optimizer.exp_avg.wide.weight", DT_F32, DT_F32);
    assert_non_null(digest_of(&x, "optimizer.param.wide.weight", true));
    assert_null(digest_of(&x, "optimizer.param.wide.weight", false));
    arena_release(&x.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_weight_that_is_its_own_master_is_listed_as_both),
        cmocka_unit_test(so_is_one_of_f64),
        cmocka_unit_test(no_master_is_listed_where_a_reader_adds_none),
        cmocka_unit_test(the_dtype_that_was_written_decides),
    };
    return cmocka_run_group_tests_name("record_write", tests, NULL, NULL);
}
