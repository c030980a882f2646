#include "ckpt/plan.h"

#include "tests/testing.h"

static struct arena arena;
static struct catalog c;
static struct plan p;
static struct error err;

static int setup(void **state)
{
    (void)state;
    arena_init(&arena);
    catalog_init(&c, &arena);
    plan_init(&p, &c);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    plan_release(&p);
    catalog_release(&c);
    arena_release(&arena);
    return 0;
}

/* A tensor of n elements in one piece. */
static struct tensor *add_tensor(const char *name, enum dtype dtype, uint64_t n)
{
    struct tensor *t;
    struct piece piece = {.dtype = dtype};
    const struct pair pair = pair_whole(0, 0, n);
    assert_ok(catalog_add(&c, name, dtype, 1, &n, &t, &err));
    if (n) tensor_add_piece(c.arena, t, &piece, &pair);
    return t;
}

static uint32_t add_segment_at(uint32_t file, enum dtype dtype, uint64_t numel, uint64_t offset)
{
    uint32_t segment = plan_add_segment(&p, file, dtype, numel, false);
    p.segments[segment].offset_bytes = offset;
    return segment;
}

static void fill(const struct tensor *t, uint32_t segment, uint64_t from, uint64_t to, uint64_t n)
{
    const struct pair pair = pair_whole(from, to, n);
    plan_add_piece(&p, t, segment, &pair);
}

/* One file of 100 bytes with one filled segment of 10 BF16 at byte 8. */
static struct tensor *add_ordinary(void)
{
    struct tensor *t = add_tensor("w", DT_BF16, 10);
    uint32_t file = plan_add_file(&p, "out");
    fill(t, add_segment_at(file, DT_BF16, 10, 8), 0, 0, 10);
    p.files[file].size_bytes = 100;
    return t;
}

static void a_plan_that_fits_is_sorted_and_summed_up(void **state)
{
    (void)state;
    struct tensor *t = add_ordinary();
    uint32_t other = plan_add_file(&p, "other");
    p.files[other].size_bytes = 40;
    uint32_t late = add_segment_at(other, DT_F32, 5, 20);
    uint32_t early = add_segment_at(other, DT_F32, 5, 0);
    struct tensor *u = add_tensor("u", DT_F32, 10);
    fill(u, late, 0, 0, 5);
    fill(u, early, 5, 0, 5);
    assert_ok(plan_finish(&p, &err));
    assert_int_equal(p.num_copies, 2);
    assert_ptr_equal(p.copies[0].source, t);
    assert_int_equal(p.copies[1].num_pieces, 2);
    assert_int_equal(p.source_bytes, 20 + 40);
    assert_int_equal(p.target_bytes, 100 + 40);
    assert_int_equal(p.files[other].num_segments, 2);
    assert_int_equal(p.by_file[p.files[other].first_segment], early);
    assert_int_equal(p.by_file[p.files[other].first_segment + 1], late);
    assert_int_equal(p.files[0].first_segment, 0);
}

/* Columns [from, from + extent) of a tensor of 8 columns. */
static void fill_columns(const struct tensor *t, uint32_t segment, uint64_t from, uint64_t extent)
{
    const uint64_t shape[] = {t->numel / 8, 8}, start[] = {0, from}, box[] = {shape[0], extent};
    struct pair pair;
    assert_true(pair_of_box(&pair, 2, shape, start, box, 0, NULL));
    plan_add_piece(&p, t, segment, &pair);
}

static void pieces_with_equal_axes_share_them_and_others_do_not(void **state)
{
    (void)state;
    struct tensor *w = add_tensor("w", DT_BF16, 32), *u = add_tensor("u", DT_BF16, 32);
    uint32_t file = plan_add_file(&p, "out");
    static const uint64_t bounds[][2] = {{0, 2}, {2, 2}, {4, 4}};
    uint64_t at = 0;
    for (size_t i = 0; i < 6; i++) {
        const uint64_t *b = bounds[i % 3];
        fill_columns(i < 3 ? w : u, add_segment_at(file, DT_BF16, 4 * b[1], at), b[0], b[1]);
        at += 8 * b[1];
    }
    p.files[file].size_bytes = at;
    assert_ok(plan_finish(&p, &err));
    const struct target_piece *of_w = p.copies[0].pieces;
    assert_ptr_equal(of_w[0].pair.axes, of_w[1].pair.axes);
    assert_ptr_not_equal(of_w[1].pair.axes, of_w[2].pair.axes);
    for (size_t i = 0; i < 6; i++) {
        const struct pair pair = pair_unpack(&p.copies[i / 3].pieces[i % 3].pair);
        assert_int_equal(pair.a_offset, bounds[i % 3][0]);
        assert_int_equal(pair_count(&pair), 4 * bounds[i % 3][1]);
    }
}

static void segments_with_holes_are_found(void **state)
{
    (void)state;
    struct tensor *t = add_ordinary();
    uint32_t s = add_segment_at(0, DT_BF16, 10, 28);
    assert_fails(plan_finish(&p, &err), ERR_OURS, "1 of 2 segments are filled");
    fill(t, s, 0, 0, 4);
    fill(t, s, 5, 5, 5);
    assert_fails(plan_finish(&p, &err), ERR_OURS, "out: w is planned for 9 of 10 elements");
    fill(t, s, 4, 4, 1);
    assert_ok(plan_finish(&p, &err));
}

static void an_empty_tensor_does_not_stand_for_a_hole(void **state)
{
    (void)state;
    (void)add_ordinary();
    struct tensor *none = add_tensor("none", DT_BF16, 0);
    uint32_t empty = add_segment_at(0, DT_BF16, 0, 28);
    fill(none, empty, 0, 0, 0);
    assert_ok(plan_finish(&p, &err));
    (void)add_segment_at(0, DT_BF16, 3, 28);
    assert_fails(plan_finish(&p, &err), ERR_OURS, "1 of 2 segments are filled");
}

static void elements_that_come_twice_or_lie_past_the_end_are_found(void **state)
{
    (void)state;
    struct tensor *t = add_ordinary();
    fill(t, 0, 3, 3, 1);
    assert_fails(plan_finish(&p, &err), ERR_OURS,
                 "out: elements of w are planned twice or past their segment's end");
    p.copies[0].num_pieces = 1;
    assert_ok(plan_finish(&p, &err));
    p.copies[0].pieces[0].pair.b_offset = 1;
    assert_fails(plan_finish(&p, &err), ERR_OURS, "are planned twice or past");
}

static void elements_that_the_source_does_not_have_are_found(void **state)
{
    (void)state;
    (void)add_ordinary();
    p.copies[0].pieces[0].pair.a_offset = 1;
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: the plan takes elements past its end");
    p.copies[0].pieces[0].pair.a_offset = 11;
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: the plan takes elements past its end");
}

static void a_source_that_is_not_whole_is_found(void **state)
{
    (void)state;
    struct tensor *t = add_ordinary();
    t->num_pieces = 0;
    assert_fails(plan_finish(&p, &err), ERR_CORRUPT, "w [10]: its parts hold 0 of 10 elements");
}

static void segments_of_a_file_that_overlap_are_found(void **state)
{
    (void)state;
    struct tensor *t = add_ordinary();
    uint32_t s = add_segment_at(0, DT_BF16, 10, 27);
    fill(t, s, 0, 0, 10);
    assert_fails(plan_finish(&p, &err), ERR_OURS,
                 "out: a segment at 27 overlaps another or lies outside the file");
    p.segments[s].offset_bytes = 28;
    assert_ok(plan_finish(&p, &err));
    p.segments[s].offset_bytes = 8;
    assert_fails(plan_finish(&p, &err), ERR_OURS, "out: a segment at 8 overlaps");
}

static void segments_outside_their_file_are_found(void **state)
{
    (void)state;
    (void)add_ordinary();
    p.files[0].size_bytes = 27;
    assert_fails(plan_finish(&p, &err), ERR_OURS,
                 "out: a segment at 8 overlaps another or lies outside the file");
    p.files[0].size_bytes = 28;
    assert_ok(plan_finish(&p, &err));
    p.segments[0].offset_bytes = 29;
    assert_fails(plan_finish(&p, &err), ERR_OURS,
                 "out: a segment at 29 overlaps another or lies outside the file");
    p.segments[0].offset_bytes = UINT64_MAX - 10;
    assert_fails(plan_finish(&p, &err), ERR_OURS, "overlaps another or lies outside the file");
}

/* As safetensors has it: an empty tensor lies where the next one begins, or the
 * last one ended. */
static void empty_segments_may_lie_anywhere_between_others(void **state)
{
    (void)state;
    struct tensor *t = add_ordinary();
    fill(t, add_segment_at(0, DT_BF16, 10, 28), 0, 0, 10);
    uint32_t between = add_segment_at(0, DT_F32, 0, 28);
    (void)add_segment_at(0, DT_F32, 0, 8);
    (void)add_segment_at(0, DT_F32, 0, 100);
    assert_ok(plan_finish(&p, &err));
    assert_int_equal(p.by_file[2], between);
    p.segments[between].offset_bytes = 101;
    assert_fails(plan_finish(&p, &err), ERR_OURS,
                 "a segment at 101 overlaps another or lies outside the file");
}

static void dtypes_that_cannot_be_cast_are_refused(void **state)
{
    (void)state;
    (void)add_ordinary();
    p.segments[0].dtype = DT_U8;
    assert_fails(plan_finish(&p, &err), ERR_UNSUPPORTED, "w: BF16 cannot be cast to U8");
    p.segments[0].dtype = DT_F32;
    assert_ok(plan_finish(&p, &err));
    c.tensors[0].pieces[0].dtype = DT_I32; /* stored in another one */
    assert_fails(plan_finish(&p, &err), ERR_UNSUPPORTED, "w: I32 cannot be cast to BF16");
    c.tensors[0].pieces[0].origin = ORIGIN_ZERO;
    assert_ok(plan_finish(&p, &err));
}

static void elements_of_a_fraction_of_a_byte_move_in_blocks(void **state)
{
    (void)state;
    struct tensor *t = add_tensor("f4", DT_F4, 8);
    uint32_t file = plan_add_file(&p, "out");
    p.files[file].size_bytes = 4;
    fill(t, add_segment_at(file, DT_F4, 4, 0), 0, 0, 4);
    fill(t, add_segment_at(file, DT_F4, 4, 2), 4, 0, 4);
    assert_ok(plan_finish(&p, &err));
    assert_int_equal(p.source_bytes, 4);
    p.copies[0].pieces[1].pair.a_offset = 5;
    assert_fails(plan_finish(&p, &err), ERR_UNSUPPORTED,
                 "f4: elements of dtype F4 cannot be taken one by one");
}

static void a_tensor_may_go_out_in_several_dtypes(void **state)
{
    (void)state;
    struct tensor *t = add_ordinary();
    uint32_t s = add_segment_at(0, DT_F32, 10, 28);
    fill(t, s, 0, 0, 10);
    assert_ok(plan_finish(&p, &err));
    p.segments[s].dtype = DT_U8;
    assert_fails(plan_finish(&p, &err), ERR_UNSUPPORTED, "w: BF16 cannot be cast to U8");
}

static void memory_need_not_be_filled(void **state)
{
    (void)state;
    float there[10];
    struct tensor *t = add_tensor("w", DT_BF16, 10);
    uint32_t file = plan_add_memory(&p, there);
    fill(t, add_segment_at(file, DT_F32, 10, 0), 2, 5, 3);
    fill(t, add_segment_at(file, DT_F32, 10, 0), 2, 8, 1);
    assert_ok(plan_finish(&p, &err));
    p.copies[0].pieces[1].pair.a_offset = 10;
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: the plan takes elements past its end");
    p.copies[0].pieces[1].pair.a_offset = 9;
    (void)plan_add_file(&p, "out");
    assert_fails(plan_finish(&p, &err), ERR_OURS, "the plan has both files and arrays in memory");
}

static void holes_have_no_cast(void **state)
{
    (void)state;
    struct tensor *t = add_ordinary();
    t->pieces[0].origin = ORIGIN_HOLE;
    assert_ok(plan_finish(&p, &err));
    assert_true(p.segments[0].has_holes);
    p.segments[0].wants_crc = true;
    assert_ok(plan_finish(&p, &err));
    p.segments[0].dtype = DT_F32;
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: a hole cannot have a cast");
}

static void two_tensors_of_one_name_are_refused(void **state)
{
    (void)state;
    struct tensor other = *add_ordinary();
    const struct pair all = pair_whole(0, 0, other.numel);
    assert_ok(plan_finish(&p, &err));
    plan_add_piece(&p, &other, 0, &all);
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: two tensors of one name are planned");
}

static void a_hole_beside_what_is_none_is_refused(void **state)
{
    (void)state;
    struct tensor *t = add_ordinary();
    struct piece rest = {.dtype = DT_BF16};
    const struct pair rest_pair = pair_whole(6, 0, 4);
    t->pieces[0].pair.count = 6;
    tensor_add_piece(c.arena, t, &rest, &rest_pair);
    assert_ok(plan_finish(&p, &err));
    t->pieces[0].origin = ORIGIN_HOLE;
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: some of its pieces are holes");
    t->pieces[0].origin = ORIGIN_STORED;
    t->pieces[1].origin = ORIGIN_HOLE;
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: some of its pieces are holes");
    t->pieces[0].origin = ORIGIN_HOLE;
    assert_ok(plan_finish(&p, &err));
}

static struct packed_pair packed(unsigned num_axes, const struct axis *axes)
{
    struct pair pair = {.num_axes = num_axes};
    memcpy(pair.axes, axes, num_axes * sizeof *axes);
    return pair_pack(&p.arena, &pair);
}

static void views_whose_size_overflows_are_refused(void **state)
{
    (void)state;
    (void)add_ordinary();
    struct packed_pair *pair = &p.copies[0].pieces[0].pair;
    const uint64_t half = UINT64_C(1) << 32; /* half * half is 0 elements, and spans 1 */
    *pair = packed(2, (struct axis[]){{half, half, 1}, {half, 1, half}});
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: not a nested view");
    *pair = packed(1, (struct axis[]){{10, 1, UINT64_MAX}});
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: not a nested view");
}

static void views_that_repeat_elements_are_refused_and_others_nested(void **state)
{
    (void)state;
    struct tensor *t = add_tensor("w", DT_U8, 6);
    uint32_t file = plan_add_file(&p, "out");
    p.files[file].size_bytes = 6;
    uint32_t s = add_segment_at(file, DT_U8, 6, 0);
    /* A transpose, with the axes the wrong way round. */
    const struct pair pair = {.num_axes = 2, .axes = {{3, 1, 2}, {2, 3, 1}}};
    plan_add_piece(&p, t, s, &pair);
    assert_ok(plan_finish(&p, &err));
    assert_int_equal(p.copies[0].pieces[0].pair.axes[0].a_stride, 3);
    p.copies[0].pieces[0].pair = packed(2, (struct axis[]){{2, 1, 3}, {3, 1, 1}});
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: not a nested view");
    p.copies[0].pieces[0].pair = packed(2, (struct axis[]){{2, 3, 1}, {3, 1, 1}});
    assert_fails(plan_finish(&p, &err), ERR_OURS, "w: not a nested view");
}

static void a_segment_of_more_elements_than_can_be_is_found(void **state)
{
    (void)state;
    (void)add_ordinary();
    struct tensor *t = add_tensor("huge", DT_U8, MAX_ELEMENTS);
    uint32_t s = add_segment_at(0, DT_U8, MAX_ELEMENTS + 1, 28);
    fill(t, s, 0, 0, MAX_ELEMENTS);
    fill(t, s, 0, MAX_ELEMENTS, 1);
    p.files[0].size_bytes = UINT64_MAX;
    assert_fails(plan_finish(&p, &err), ERR_OURS,
                 "out: a segment at 28 overlaps another or lies outside the file");
}

static void nothing_at_all_is_a_plan_too(void **state)
{
    (void)state;
    assert_ok(plan_finish(&p, &err));
    assert_int_equal(plan_add_file(&p, "alone"), 0);
    p.files[0].size_bytes = 12;
    assert_ok(plan_finish(&p, &err));
    assert_int_equal(p.target_bytes, 12);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_plan_that_fits_is_sorted_and_summed_up),
        TEST(pieces_with_equal_axes_share_them_and_others_do_not),
        TEST(segments_with_holes_are_found),
        TEST(an_empty_tensor_does_not_stand_for_a_hole),
        TEST(elements_that_come_twice_or_lie_past_the_end_are_found),
        TEST(elements_that_the_source_does_not_have_are_found),
        TEST(a_source_that_is_not_whole_is_found),
        TEST(segments_of_a_file_that_overlap_are_found),
        TEST(segments_outside_their_file_are_found),
        TEST(empty_segments_may_lie_anywhere_between_others),
        TEST(dtypes_that_cannot_be_cast_are_refused),
        TEST(elements_of_a_fraction_of_a_byte_move_in_blocks),
        TEST(a_tensor_may_go_out_in_several_dtypes),
        TEST(memory_need_not_be_filled),
        TEST(holes_have_no_cast),
        TEST(two_tensors_of_one_name_are_refused),
        TEST(a_hole_beside_what_is_none_is_refused),
        TEST(views_whose_size_overflows_are_refused),
        TEST(views_that_repeat_elements_are_refused_and_others_nested),
        TEST(a_segment_of_more_elements_than_can_be_is_found),
        TEST(nothing_at_all_is_a_plan_too),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
