#include "formats/testing_dtensor.h"

#include <string.h>

#include "common/count.h"
#include "tests/testing.h"

static struct error err;

static int setup(void **state)
{
    (void)state;
    arena_init(&values);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&values);
    return 0;
}

/* ---- boxes ---- */

/* The rows of a rank of a tensor of `rows` rows. */
static void check_rows(const struct mesh_axis *axes, size_t num_axes, uint64_t rows, uint64_t start,
                       uint64_t extent)
{
    const uint64_t shape[2] = {rows, 3};
    uint64_t at[2], n[2];
    assert_ok(dtensor_box(axes, num_axes, 2, shape, at, n, &err));
    if (at[0] != start || n[0] != extent || at[1] != 0 || n[1] != 3)
        fail_msg("rows %d from %d, columns %d from %d", (int)n[0], (int)at[0], (int)n[1],
                 (int)at[1]);
}

static void a_dimension_is_cut_into_parts_of_the_rounded_up_size(void **state)
{
    (void)state;
    static const uint64_t starts[] = {0, 2, 4, 5}, extents[] = {2, 2, 1, 0};
    for (uint64_t r = 0; r < 4; r++) {
        const struct mesh_axis axis = {4, r, true, 0, 1};
        check_rows(&axis, 1, 5, starts[r], extents[r]);
    }
}

static void a_replicated_tensor_is_whole_in_each_rank(void **state)
{
    (void)state;
    const struct mesh_axis axes[] = {{2, 1, false, 0, 0}, {3, 2, false, 0, 0}};
    check_rows(axes, 2, 5, 0, 5);
}

/* FSDP2 with tensor parallelism: (dp, tp), [_StridedShard(0, split_factor=2),
 * Shard(0)]: tp cuts 10 rows into 5 and 5, dp each of these into 3 and 2. */
static void a_strided_shard_cuts_behind_the_axes_of_its_factor(void **state)
{
    (void)state;
    static const uint64_t starts[2][2] = {{0, 5}, {3, 8}}, extents[2][2] = {{3, 3}, {2, 2}};
    for (uint64_t dp = 0; dp < 2; dp++)
        for (uint64_t tp = 0; tp < 2; tp++) {
            const struct mesh_axis axes[] = {{2, dp, true, 0, 2}, {2, tp, true, 0, 1}};
            check_rows(axes, 2, 10, starts[dp][tp], extents[dp][tp]);
        }
}

/* Two plain shards of one dimension: the left axis cuts first. */
static void plain_shards_cut_from_left_to_right(void **state)
{
    (void)state;
    const struct mesh_axis axes[] = {{2, 1, true, 0, 1}, {3, 1, true, 0, 1}};
    check_rows(axes, 2, 12, 8, 2);
}

static void what_has_no_box_is_refused(void **state)
{
    (void)state;
    static const struct {
        struct mesh_axis axis;
        enum status code;
        const char *says;
    } rows[] = {
        {{2, 2, true, 0, 1}, ERR_CORRUPT, "coordinate 2 is out of range on mesh axis 0 of size 2"},
        {{0, 0, true, 0, 1}, ERR_CORRUPT, "coordinate 0 is out of range on mesh axis 0 of size 0"},
        {{2, 0, true, 1, 1},
         ERR_CORRUPT,
         "a mesh axis shards dimension 1 of a tensor of 1 dimensions"},
        {{2, 0, true, 0, 2},
         ERR_UNSUPPORTED,
         "split factor 2 of mesh axis 0 in dimension 0 is not a product"},
    };
    const uint64_t shape = 5;
    uint64_t start, extent;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(dtensor_box(&rows[i].axis, 1, 1, &shape, &start, &extent, &err),
                         rows[i].code);
        assert_non_null(strstr(err.text, rows[i].says));
    }
}

static void huge_sizes_do_not_wrap(void **state)
{
    (void)state;
    const uint64_t shape = UINT64_MAX;
    uint64_t start, extent;
    const struct mesh_axis last = {UINT64_MAX, UINT64_MAX - 1, true, 0, 1},
                           half = {2, 1, true, 0, 1};
    assert_ok(dtensor_box(&last, 1, 1, &shape, &start, &extent, &err));
    assert_true(start == UINT64_MAX - 1 && extent == 1);
    assert_ok(dtensor_box(&half, 1, 1, &shape, &start, &extent, &err));
    assert_true(start == (UINT64_C(1) << 63) && extent == UINT64_MAX / 2);
}

/* ---- values ---- */

static void a_dtensor_of_either_mesh_has_the_box_of_its_rank(void **state)
{
    (void)state;
    for (int is_new = 0; is_new < 2; is_new++) {
        struct dtensor d;
        struct value *mesh = is_new ? new_mesh(4, 1) : old_mesh(4, 1);
        assert_ok(dtensor_read(&d, &values, dtensor_of("0", 2, mesh, placement("Shard", 0)), &err));
        assert_int_equal(d.num_parts, 1);
        assert_true(d.sharded && d.dtype == DT_F32 && d.num_dims == 2);
        assert_true(d.shape[0] == 5 && d.shape[1] == 3);
        assert_true(d.parts->start[0] == 2 && d.parts->extent[0] == 2);
        assert_true(d.parts->start[1] == 0 && d.parts->extent[1] == 3);
    }
}

/* Classes in C++ are pickled as calls: Shard(0). */
static void a_placement_may_be_a_call(void **state)
{
    (void)state;
    struct dtensor d;
    struct value *called =
        value_instance(&values, "torch.distributed.tensor.placement_types", "Shard", NULL);
    called->object->args = tuple(1, &(uint64_t){0});
    called->object->by_new = false;
    assert_ok(dtensor_read(&d, &values, dtensor_of("0", 1, old_mesh(4, 2), called), &err));
    assert_true(d.parts->start[0] == 4 && d.parts->extent[0] == 1);
}

static void a_dtensor_that_contradicts_itself_is_refused(void **state)
{
    (void)state;
    struct dtensor d;
    assert_int_equal(
        dtensor_read(&d, &values, dtensor_of("0", 3, old_mesh(4, 1), placement("Shard", 0)), &err),
        ERR_CORRUPT);
    assert_non_null(strstr(err.text, "dimension 0 of its local tensor has 3 elements, expected 2"));
    assert_int_equal(dtensor_read(&d, &values,
                                  dtensor_of("0", 5, old_mesh(4, 1), placement("Partial", 0)),
                                  &err),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "its placement Partial is not supported"));
    assert_int_equal(
        dtensor_read(&d, &values, dtensor_of("0", 5, old_mesh(4, 1), placement("Shard", 2)), &err),
        ERR_CORRUPT);
    assert_int_equal(
        dtensor_read(&d, &values, dtensor_of("0", 5, old_mesh(4, 4), placement("Shard", 0)), &err),
        ERR_CORRUPT);
}

static void a_sharded_tensor_has_the_boxes_of_its_shards(void **state)
{
    (void)state;
    struct dtensor d;
    assert_ok(dtensor_read(&d, &values, sharded_of("0", 3, 2), &err));
    assert_true(d.num_parts == 1 && d.dtype == DT_F32 && d.shape[0] == 5);
    assert_true(d.parts->start[0] == 3 && d.parts->extent[0] == 2);
    assert_ok(dtensor_read(&d, &values, sharded_of("0", 5, 0), &err));
    assert_true(d.num_parts == 0 && d.shape[0] == 5);
    assert_int_equal(dtensor_read(&d, &values, sharded_of("0", 4, 2), &err), ERR_CORRUPT);
    assert_non_null(strstr(err.text, "2 elements at 4 along dimension 0, which has 5"));
}

static void a_plain_tensor_is_its_only_part(void **state)
{
    (void)state;
    struct dtensor d;
    const uint64_t shape[] = {5, 3};
    assert_ok(dtensor_read(&d, &values, value_tensor(&values, "0", DT_F16, 2, shape), &err));
    assert_true(!d.sharded && d.num_parts == 1 && d.parts->start[0] == 0);
    assert_false(dtensor_matches(value_int(&values, 1)));
    assert_int_equal(dtensor_read(&d, &values, value_none(&values), &err), ERR_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(a_dimension_is_cut_into_parts_of_the_rounded_up_size),
        TEST(a_replicated_tensor_is_whole_in_each_rank),
        TEST(a_strided_shard_cuts_behind_the_axes_of_its_factor),
        TEST(plain_shards_cut_from_left_to_right),
        TEST(what_has_no_box_is_refused),
        TEST(huge_sizes_do_not_wrap),
        TEST(a_dtensor_of_either_mesh_has_the_box_of_its_rank),
        TEST(a_placement_may_be_a_call),
        TEST(a_dtensor_that_contradicts_itself_is_refused),
        TEST(a_sharded_tensor_has_the_boxes_of_its_shards),
        TEST(a_plain_tensor_is_its_only_part),
#undef TEST
    };
    return cmocka_run_group_tests_name("dtensor", tests, NULL, NULL);
}
