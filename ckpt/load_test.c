#include "ckpt/load.h"

#include "ckpt/testing_param.h"
#include "ckpt/testing_source.h"
#include "common/count.h"

enum { MAX_TARGETS = 256, UNTOUCHED = 0xEE };

/* ---- random targets ---- */

/* Arrays to load into, the targets that fill them, and the expected contents,
 * computed one element at a time. Elements outside of targets must not change. */
struct wanted {
    size_t num_targets, num_arrays;
    struct load_target targets[MAX_TARGETS];
    struct {
        unsigned char *memory, *image;
        uint64_t bytes;
    } arrays[MAX_TARGETS];
    uint64_t loaded_bytes;
};

/* An array of so many elements that parts of t fill. Returns its image, for the
 * caller to fill. */
static unsigned char *want(struct wanted *w, const struct tensor *t, enum dtype dtype,
                           const struct pair *parts, unsigned num_parts, uint64_t elements)
{
    const uint64_t bytes = dtype_run_bytes(dtype, elements);
    unsigned char *memory = malloc(bytes + 1), *image = malloc(bytes + 1);
    assert_true(memory && image && w->num_targets + num_parts <= MAX_TARGETS);
    memset(memory, UNTOUCHED, bytes);
    memset(image, UNTOUCHED, bytes);
    w->arrays[w->num_arrays].memory = memory;
    w->arrays[w->num_arrays].image = image;
    w->arrays[w->num_arrays++].bytes = bytes;
    for (unsigned i = 0; i < num_parts; i++) {
        w->targets[w->num_targets++] = (struct load_target){t, parts[i], dtype, memory};
        w->loaded_bytes += dtype_run_bytes(dtype, pair_count(&parts[i]));
    }
    return image;
}

/* Element `from` of t as element `to` of an image. */
static void put(const struct source *s, const struct tensor *t, enum dtype dtype, uint64_t from,
                unsigned char *image, uint64_t to)
{
    const unsigned char *values = s->values[t - s->catalog.tensors];
    (void)cast_elements(image + dtype_run_bytes(dtype, to), dtype,
                        values + dtype_run_bytes(t->dtype, from), t->dtype, 1);
}

static void want_box(struct wanted *w, const struct source *s, const struct tensor *t,
                     enum dtype dtype, struct box *x)
{
    struct pair part;
    uint64_t span = box_random_strides(x, s->seed, true, false), first = test_below(s->seed, 9);
    assert_true(pair_of_box(&part, x->num_dims, x->shape, x->start, x->extent, first, x->stride));
    unsigned char *image = want(w, t, dtype, &part, 1, first + span);
    for (uint64_t n = 0, a, b; n < box_count(x); n++) {
        box_element(x, n, &a, &b);
        put(s, t, dtype, a, image, first + b);
    }
}

static struct box random_box(const struct tensor *t, uint64_t *seed)
{
    struct box x = box_of_tensor(t);
    for (unsigned d = 0; d < t->num_dims; d++) {
        if (!t->shape[d] || test_below(seed, 2)) continue;
        x.start[d] = test_below(seed, t->shape[d]);
        x.extent[d] = test_below(seed, 30) ? 1 + test_below(seed, t->shape[d] - x.start[d]) : 0;
    }
    return x;
}

static void check_wanted(const struct wanted *w)
{
    for (size_t i = 0; i < w->num_arrays; i++)
        if (memcmp(w->arrays[i].memory, w->arrays[i].image, w->arrays[i].bytes))
            fail_msg("array %zu differs", i);
}

static void wanted_release(struct wanted *w)
{
    for (size_t i = 0; i < w->num_arrays; i++) {
        free(w->arrays[i].memory);
        free(w->arrays[i].image);
    }
    *w = (struct wanted){0};
}

static void load_and_check(struct source *s, struct wanted *w, unsigned threads)
{
    struct error err = {0};
    struct load_result r;
    const struct load_options o = {.threads = threads, .progress = PROGRESS_NONE};
    assert_ok(load_run(&s->catalog, w->targets, w->num_targets, &o, &r, &err));
    assert_int_equal(r.loaded_bytes, w->loaded_bytes);
    check_wanted(w);
}

static void check_random_parts(uint64_t *seed, uint64_t elements, unsigned num_tensors)
{
    static struct wanted w;
    struct source s;
    source_init(&s, seed);
    for (unsigned i = 0; i < num_tensors; i++)
        (void)source_add_random(&s, elements);
    source_write(&s);
    for (uint64_t n = test_below(seed, 3 * num_tensors); n > 0; n--) {
        const struct tensor *t = &s.catalog.tensors[test_below(seed, num_tensors)];
        enum dtype dtype = t->dtype;
        struct box x = random_box(t, seed);
        if (dtype_is_float(dtype) && test_below(seed, 2)) dtype = random_float(seed);
        want_box(&w, &s, t, dtype, &x);
    }
    load_and_check(&s, &w, 1 + (unsigned)test_below(seed, 4));
    wanted_release(&w);
    source_release(&s);
}

static void random_parts_are_what_the_source_has(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < test_rounds(150); i++)
        check_random_parts(&seed, 400, 12);
    for (int i = 0; i < test_rounds(12); i++)
        check_random_parts(&seed, 400000, 5);
}

/* ---- what ranks hold ---- */

/* The local tensor of one rank; a target for each of its parts fills it. */
static void want_shard(struct wanted *w, const struct source *s, const struct tensor *t,
                       const struct cut *c, uint64_t rank)
{
    static uint64_t held[MAX_SHARD_ELEMENTS];
    struct param_parts parts;
    struct error err = {0};
    uint64_t numel = held_elements(c, rank, held);
    assert_ok(cut_shard(c, t->name, rank, &parts, &err));
    unsigned char *image = want(w, t, DT_F32, parts.pairs, parts.count, numel);
    for (uint64_t i = 0; i < numel; i++)
        put(s, t, DT_F32, held[i], image, i);
}

static void ranks_get_their_rows_columns_and_sections(void **state)
{
    (void)state;
    static const struct param_spec specs[] = {
        {.split = -1, .repeat = 1},
        {.split = 0, .repeat = 1},
        {.split = 1, .repeat = 1},
        {.split = 0, .repeat = 1, .num_sections = 2, .even = true},
        {.split = 1, .repeat = 1, .num_sections = 2, .sections = {{"a", 2, 0}, {"b", 1, 0}}},
        {.split = 0,
         .repeat = 2,
         .num_sections = 3,
         .sections = {{"q", 4, 0}, {"k", 1, 1}, {"v", 1, 1}}},
    };
    uint64_t seed = test_seed();
    for (size_t i = 0; i < COUNT(specs); i++) {
        static struct wanted w;
        struct source s;
        struct cut c = {&specs[i], 2, {48, 24}, 1, PARAM_COMPUTED};
        source_init(&s, &seed);
        struct tensor *t = source_new_tensor(&s, DT_BF16, c.num_dims, c.shape);
        add_cut(&s, t, box_of_tensor(t), 3);
        source_write(&s);
        for (c.size = 1; c.size <= 8; c.size *= 2)
            for (uint64_t rank = 0; rank < c.size; rank++)
                want_shard(&w, &s, t, &c, rank);
        load_and_check(&s, &w, 2);
        wanted_release(&w);
        source_release(&s);
    }
}

/* ---- what else there is ---- */

static uint64_t test_state;

static const struct load_options two_threads = {.threads = 2, .progress = PROGRESS_NONE};

static void a_tensor_is_read_once_for_all_that_want_it(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F64, DT_F16, DT_BF16, DT_F32};
    static struct wanted w;
    struct source s;
    struct error err = {0};
    struct load_result r;
    test_state = test_seed();
    source_init(&s, &test_state);
    (void)source_add_run(&s, DT_F32, 1500000);
    (void)source_add_run(&s, DT_F32, 1000);
    source_write(&s);
    for (size_t i = 0; i < 2 * COUNT(dtypes); i++) {
        const struct tensor *t = &s.catalog.tensors[i % 2];
        struct box x = box_of_tensor(t);
        want_box(&w, &s, t, dtypes[i / 2], &x);
    }
    assert_ok(load_run(&s.catalog, w.targets, w.num_targets, &two_threads, &r, &err));
    check_wanted(&w);
    assert_int_equal(r.read_bytes, 1501000 * 4);
    assert_int_equal(r.loaded_bytes, 1501000 * (4 + 2 + 8 + 2 + 2 + 4));
    wanted_release(&w);
    source_release(&s);
}

static void what_nobody_wants_is_not_read(void **state)
{
    (void)state;
    enum { PANEL = 1 << 20 }; /* bytes that are read at once */
    static struct wanted w;
    struct source s;
    struct error err = {0};
    struct load_result r;
    test_state = test_seed();
    source_init(&s, &test_state);
    const size_t t = (size_t)(source_add_run(&s, DT_U8, 8 * PANEL) - s.catalog.tensors);
    (void)source_add_run(&s, DT_F64, 100000); /* not at all */
    source_write(&s);
    struct box x = box_of_tensor(&s.catalog.tensors[t]);
    x.start[0] = 3 * PANEL + 7, x.extent[0] = PANEL; /* of two panels */
    want_box(&w, &s, &s.catalog.tensors[t], DT_U8, &x);
    assert_ok(load_run(&s.catalog, w.targets, w.num_targets, &two_threads, &r, &err));
    check_wanted(&w);
    assert_int_equal(r.read_bytes, PANEL);
    assert_int_equal(r.loaded_bytes, PANEL);

    w.targets[0].part = pair_whole(5, 0, 0);
    assert_ok(load_run(&s.catalog, w.targets, 1, &two_threads, &r, &err));
    assert_ok(load_run(&s.catalog, NULL, 0, &two_threads, &r, &err));
    assert_int_equal(r.read_bytes + r.loaded_bytes, 0);
    wanted_release(&w);
    source_release(&s);
}

/* How a matrix lies in a file: by rows, in TP parts of its columns, or by
 * columns. */
enum lies { BY_ROWS, IN_PARTS, BY_COLUMNS };

static struct tensor *add_matrix(struct source *s, enum lies how, uint64_t rows, uint64_t columns)
{
    enum { PARTS = 4 };
    const uint64_t shape[] = {rows, columns}, parts = how == IN_PARTS ? PARTS : 1;
    struct tensor *t = source_new_tensor(s, DT_BF16, 2, shape);
    for (uint64_t i = 0, a, b; i < parts; i++) {
        struct box x = box_of_tensor(t);
        struct piece piece = {.dtype = DT_BF16, .file = (uint32_t)i % SOURCE_FILES};
        x.extent[1] = columns / parts;
        x.start[1] = i * x.extent[1];
        x.stride[0] = how == BY_COLUMNS ? 1 : x.extent[1];
        x.stride[1] = how == BY_COLUMNS ? rows : 1;
        struct pair pair;
        assert_true(pair_of_box(&pair, 2, shape, x.start, x.extent, 0, x.stride));
        piece.offset_bytes = source_reserve(s, piece.file, box_count(&x) * 2);
        tensor_add_piece(&s->arena, t, &piece, &pair);
        for (uint64_t n = 0; n < box_count(&x); n++) {
            box_element(&x, n, &a, &b);
            keep_value(s, t, &piece, a, b);
        }
    }
    return t;
}

/* Loads one rank's eighth of the columns; returns the bytes that were read, of
 * 8 * 1024. */
static uint64_t bytes_of_an_eighth(enum lies how, uint64_t rows, uint64_t columns, enum dtype dtype)
{
    static struct wanted w;
    struct source s;
    struct error err = {0};
    struct load_result r;
    test_state = test_seed();
    source_init(&s, &test_state);
    const struct tensor *t = add_matrix(&s, how, rows, columns);
    source_write(&s);
    struct box x = box_of_tensor(t);
    x.extent[1] = columns / 8;
    x.start[1] = test_below(&test_state, 8) * x.extent[1];
    want_box(&w, &s, t, dtype, &x);
    assert_ok(load_run(&s.catalog, w.targets, w.num_targets, &two_threads, &r, &err));
    check_wanted(&w);
    wanted_release(&w);
    source_release(&s);
    return r.read_bytes * 8 * 1024 / (rows * columns * 2);
}

static void columns_of_wide_rows_are_read_alone(void **state)
{
    (void)state;
    for (int how = BY_ROWS; how <= BY_COLUMNS; how++) {
        assert_int_equal(bytes_of_an_eighth((enum lies)how, 64, 32768, DT_BF16), 1024);
        assert_int_equal(bytes_of_an_eighth((enum lies)how, 64, 32768, DT_F32), 1024);
    }
}

/* Passing by a gap takes one more call: rows of 512 bytes are read in one with
 * those before. */
static void columns_of_narrow_rows_are_read_with_what_lies_between(void **state)
{
    (void)state;
    assert_in_range(bytes_of_an_eighth(BY_ROWS, 8192, 256, DT_F32), 8 * 1000, 8 * 1024);
    assert_int_equal(bytes_of_an_eighth(BY_COLUMNS, 8192, 256, DT_F32), 1024);
}

static void transposes_read_their_source_once(void **state)
{
    (void)state;
    enum { SIDE = 1500 };
    static struct wanted w;
    struct source s;
    struct error err = {0};
    struct load_result r;
    const uint64_t shape[] = {SIDE, SIDE};
    test_state = test_seed();
    source_init(&s, &test_state);
    struct tensor *t = source_new_tensor(&s, DT_BF16, 2, shape);
    struct piece piece = {.dtype = DT_BF16};
    const struct pair pair = pair_whole(0, 0, SIDE * SIDE);
    piece.offset_bytes = source_reserve(&s, 0, t->numel * 2);
    tensor_add_piece(&s.arena, t, &piece, &pair);
    source_write(&s);
    const struct pair transposed = {.num_axes = 2, .axes = {{SIDE, SIDE, 1}, {SIDE, 1, SIDE}}};
    unsigned char *image = want(&w, t, DT_BF16, &transposed, 1, t->numel);
    for (uint64_t i = 0; i < t->numel; i++)
        memcpy(image + (i % SIDE * SIDE + i / SIDE) * 2,
               s.files[0].bytes + piece.offset_bytes + i * 2, 2);
    assert_ok(load_run(&s.catalog, w.targets, w.num_targets, &two_threads, &r, &err));
    check_wanted(&w);
    assert_int_equal(r.read_bytes, t->numel * 2);
    wanted_release(&w);
    source_release(&s);
}

static void parts_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct source s;
    struct error err = {0};
    struct load_result r;
    float memory[16];
    const struct tensor *t = source_of_one(&s, DT_F32, 10);
    struct load_target target = {t, pair_whole(0, 0, 10), DT_I64, memory};
    struct load_options o = two_threads;
    assert_fails(load_run(&s.catalog, &target, 1, &o, &r, &err), ERR_UNSUPPORTED,
                 "tensor.0: F32 cannot be cast to I64");
    target.dtype = DT_F32;
    target.part = pair_whole(1, 0, 10);
    assert_fails(load_run(&s.catalog, &target, 1, &o, &r, &err), ERR_OURS,
                 "tensor.0: the plan takes elements past its end");
    target.part = (struct pair){.num_axes = 2, .axes = {{3, 2, 3}, {3, 1, 1}}};
    assert_fails(load_run(&s.catalog, &target, 1, &o, &r, &err), ERR_OURS,
                 "tensor.0: not a nested view");
    target.part = pair_whole(0, 0, 10);
    o.max_memory = 1;
    assert_fails(load_run(&s.catalog, &target, 1, &o, &r, &err), ERR_MEMORY,
                 "2 threads need at least");
    assert_int_equal(r.read_bytes + r.loaded_bytes, 0);
    source_release(&s);
}

static void elements_that_are_stored_nowhere_are_named(void **state)
{
    (void)state;
    struct source s;
    struct error err = {0};
    struct load_result r;
    float memory[16];
    (void)source_of_one(&s, DT_F32, 10);
    const uint64_t shape[] = {3, 4};
    struct tensor *t = source_new_tensor(&s, DT_F32, 2, shape);
    struct piece piece = s.catalog.tensors[0].pieces[0];
    const struct pair ten = pair_whole(0, 0, 10);
    tensor_add_piece(&s.arena, t, &piece, &ten);
    struct load_target target = {t, pair_whole(0, 0, 12), DT_F32, memory};
    assert_fails(load_run(&s.catalog, &target, 1, &two_threads, &r, &err), ERR_CORRUPT,
                 "tensor.1 [3, 4]: its parts hold 10 of 12 elements");
    source_release(&s);
}

static void a_source_that_changed_is_named(void **state)
{
    (void)state;
    struct source s;
    struct error err = {0};
    struct load_result r;
    float memory[16];
    const struct tensor *t = source_of_one(&s, DT_F32, 10);
    const struct load_target target = {t, pair_whole(0, 0, 10), DT_F32, memory};
    assert_ok(path_remove(source_path(&s, 0), &err));
    assert_ok(file_write_all(source_path(&s, 0), "short", 5, false, &err));
    assert_fails(load_run(&s.catalog, &target, 1, &two_threads, &r, &err), ERR_IO,
                 "source-0: changed");
    source_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_parts_are_what_the_source_has),
        cmocka_unit_test(ranks_get_their_rows_columns_and_sections),
        cmocka_unit_test(a_tensor_is_read_once_for_all_that_want_it),
        cmocka_unit_test(what_nobody_wants_is_not_read),
        cmocka_unit_test(columns_of_wide_rows_are_read_alone),
        cmocka_unit_test(columns_of_narrow_rows_are_read_with_what_lies_between),
        cmocka_unit_test(transposes_read_their_source_once),
        cmocka_unit_test(parts_that_cannot_be_are_refused),
        cmocka_unit_test(elements_that_are_stored_nowhere_are_named),
        cmocka_unit_test(a_source_that_changed_is_named),
    };
    return cmocka_run_group_tests_name("load", tests, NULL, NULL);
}
