#include "ckpt/executor.h"

#include <sys/stat.h>
#include <zlib.h>

#include "ckpt/digest.h"
#include "ckpt/testing_output.h"

/* ---- random targets ---- */

enum { MAX_RANKS = 4 };

/* An emulator's own memory grows meanwhile. */
static uint64_t enough_memory(const struct plan *p, const struct executor_options *o)
{
    return least_memory(p, o) + (test_is_emulated() ? (uint64_t)16 << 20 : 0);
}

/* As processes would, one after the other: the last rank first, rank 0 last,
 * which adds it up. */
static void run_ranks(struct output *o, struct executor_options *options,
                      struct executor_result *result)
{
    struct error err;
    const char *journals[MAX_RANKS] = {NULL};
    uint64_t written = 0, read = 0;
    plan_split(&o->plan, options->num_ranks);
    for (unsigned r = options->num_ranks; r-- > 0;) {
        options->rank = r;
        journals[r] = options->journal_path =
            path_join(&o->plan.arena, o->source->folder, arena_printf(&o->plan.arena, "j-%u", r));
        options->copies = output_results(o);
        if (options->max_memory) options->max_memory = enough_memory(&o->plan, options);
        assert_ok(executor_run(&o->plan, o->folder, options, result, &err));
        written += result->written_bytes;
        read += result->read_bytes;
    }
    result->written_bytes = written;
    result->read_bytes = read;
    if (options->num_ranks > 1)
        assert_ok(executor_join(&o->plan, o->folder, options, journals, result, &err));
}

static uint64_t elements_written(const struct plan_copy *c)
{
    uint64_t n = 0;
    for (size_t i = 0; i < c->num_pieces; i++) {
        const struct pair pair = pair_unpack(&c->pieces[i].pair);
        n += pair_count(&pair);
    }
    return n;
}

/* Elements of a tensor that are finite, and infinite in a dtype. */
static uint64_t count_overflows(const struct output *o, const struct tensor *t, enum dtype to)
{
    const unsigned char *values = o->source->values[t - o->source->catalog.tensors];
    unsigned char out[16];
    const double add = added_number(o, t);
    uint64_t n = 0;
    for (uint64_t i = 0; i < t->numel && (to != t->dtype || add != 0); i++) {
        const void *in = values + dtype_run_bytes(t->dtype, i);
        const double sum = add != 0 ? dtype_load(t->dtype, in, 0) + add : 0;
        const enum dtype from = add != 0 ? DT_F64 : t->dtype;
        if (add != 0) in = &sum;
        (void)cast_elements(out, to, in, from, 1);
        n += is_finite(from, in) && !is_finite(to, out);
    }
    return n;
}

/* In each of those in which it is written. */
static uint64_t count_all_overflows(const struct output *o, const struct plan_copy *c)
{
    bool counted[NUM_DTYPES] = {false};
    uint64_t n = 0;
    for (size_t i = 0; i < c->num_pieces; i++) {
        enum dtype to = o->plan.segments[c->pieces[i].segment].dtype;
        if (!counted[to]) n += count_overflows(o, c->source, to);
        counted[to] = true;
    }
    return n;
}

static void check_finite(const struct output *o, const struct executor_result *r)
{
    uint64_t overflowed = 0;
    for (size_t i = 0; i < o->plan.num_copies; i++) {
        const struct plan_copy *c = &o->plan.copies[i];
        size_t t = (size_t)(c->source - o->source->catalog.tensors);
        uint64_t written = elements_written(c);
        uint64_t want = written ? o->source->overflowed[t] + count_all_overflows(o, c) : 0;
        assert_int_equal(o->copies[i].non_finite, written ? o->source->non_finite[t] : 0);
        assert_int_equal(o->copies[i].overflowed, want);
        overflowed += want;
    }
    assert_int_equal(r->overflowed, overflowed);
}

static void check_digests(const struct output *o)
{
    for (size_t i = 0; i < o->plan.num_copies; i++) {
        const struct plan_copy *c = &o->plan.copies[i];
        const struct tensor *t = c->source;
        struct digest want = {{0}};
        bool hole = t->num_pieces && t->pieces[0].origin == ORIGIN_HOLE;
        digest_add_elements(&want, t->dtype, o->source->values[t - o->source->catalog.tensors],
                            hole || !elements_written(c) ? 0 : t->numel, 0);
        assert_memory_equal(&o->copies[i].read, &want, sizeof want);
    }
}

static void check_random_output(uint64_t *seed, uint64_t elements, unsigned num_tensors)
{
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_options options = {.threads = 1 + (unsigned)test_below(seed, 4),
                                       .fsync = test_below(seed, 40) == 0,
                                       .direct_io = test_below(seed, 8) == 0,
                                       .digests = true,
                                       .num_ranks = 1 + (unsigned)test_below(seed, MAX_RANKS),
                                       .progress = PROGRESS_NONE};
    struct executor_result result;
    uint64_t peak;
    source_init(&s, seed);
    for (unsigned i = 0; i < num_tensors; i++)
        (void)source_add_random(&s, elements);
    const struct tensor *zeros = source_add_zeros(&s, 40);
    source_write(&s);
    output_init(&o, &s, 1 + test_below(seed, OUTPUT_FILES));
    for (size_t i = 0; i < s.catalog.num_tensors; i++)
        if (test_below(seed, 8)) add_target(&o, &s.catalog.tensors[i]);
    for (uint64_t n = test_below(seed, 3); n > 0; n--)
        add_flat(&o, zeros);
    for (size_t i = 0; i < o.plan.num_copies; i++) {
        const struct tensor *t = o.plan.copies[i].source;
        if (dtype_is_float(t->dtype) && dtype_bytes(t->dtype) > 1 && test_below(seed, 6) == 0)
            plan_add_number(&o.plan, t, -1);
    }
    place_segments(&o);
    make_images(&o);
    assert_ok(plan_finish(&o.plan, &err));
    if (test_below(seed, 2)) options.max_memory = enough_memory(&o.plan, &options);
    assert_ok(executor_memory(&o.plan, &options, &peak, &err));
    if (options.max_memory) assert_in_range(peak, 1, options.max_memory);
    run_ranks(&o, &options, &result);
    check_output(&o, &result);
    check_digests(&o);
    check_finite(&o, &result);
    if (options.num_ranks > 1) { /* all is in the journals */
        options.resume = true;
        options.max_memory = 0; /* what is read of journals is resident too */
        run_ranks(&o, &options, &result);
        assert_int_equal(result.read_bytes, 0);
        for (size_t i = 0; i < o.plan.num_files; i++)
            check_file(&o, i);
        check_digests(&o);
        check_finite(&o, &result);
    }
    output_release(&o);
    source_release(&s);
}

static void every_byte_of_random_plans_is_as_worked_out_one_by_one(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < test_rounds(120); i++)
        check_random_output(&seed, 400, 12);
    for (int i = 0; i < test_rounds(12); i++)
        check_random_output(&seed, 400000, 5);
}

/* ---- what else there is ---- */

static uint64_t test_state;

static enum status keep_crcs(const struct plan *p, uint32_t file, void *crcs,
                             const struct file_writer *writer, struct error *err)
{
    (void)file, (void)err;
    for (uint32_t i = 0; i < p->num_segments; i++)
        ((uint32_t *)crcs)[i] = writer->crc(writer->context, i);
    return OK;
}

/* More than TASK_BYTES of one tensor: tasks of several threads, whose CRCs are
 * combined. */
static void large_tensors_are_shared_by_threads(void **state)
{
    (void)state;
    enum { ROWS = 3500, COLUMNS = 10000 };
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    struct strbuf bytes = {0};
    const uint64_t shape[] = {ROWS, COLUMNS};
    test_state = test_seed();
    source_init(&s, &test_state);
    struct tensor *t = source_new_tensor(&s, DT_BF16, 2, shape);
    struct piece made = {.origin = ORIGIN_RANDOM, .dtype = DT_BF16, .file = 77};
    const struct pair pair = pair_whole(0, 0, t->numel);
    tensor_add_piece(&s.arena, t, &made, &pair);
    random_elements(s.values[0], DT_BF16, 77, 0, 0, t->numel);
    output_init(&o, &s, 0);
    uint32_t file = plan_add_file(&o.plan, "halves"), crcs[3];
    o.plan.files[file].finish = keep_crcs;
    o.plan.files[file].finish_context = crcs;
    struct box x = box_of_tensor(t);
    x.extent[1] /= 2;
    row_major(&x, 1);
    for (uint64_t half = 0; half < 2; half++) {
        x.start[1] = half * COLUMNS / 2;
        add_fill(&o, t, plan_add_segment(&o.plan, file, DT_BF16, t->numel / 2, true), &x, 0);
        o.plan.segments[half].offset_bytes = half * t->numel;
    }
    x = box_of_tensor(t); /* the first task alone has to do with this one */
    x.extent[0] = 1;
    row_major(&x, 1);
    add_fill(&o, t, plan_add_segment(&o.plan, file, DT_BF16, COLUMNS, true), &x, 0);
    o.plan.segments[2].offset_bytes = t->numel * 2;
    o.plan.files[file].size_bytes = t->numel * 2 + COLUMNS * 2;
    assert_ok(plan_finish(&o.plan, &err));
    assert_ok(executor_run(&o.plan, o.folder, &two_threads, &r, &err));

    assert_ok(file_read_all(path_join(&s.arena, o.folder, "halves"), UINT64_MAX, &bytes, &err));
    assert_int_equal(bytes.length, t->numel * 2 + COLUMNS * 2);
    assert_memory_equal(bytes.data + t->numel * 2, s.values[0], COLUMNS * 2);
    for (uint64_t i = 0; i < 2 * ROWS; i++)
        assert_memory_equal(bytes.data + i * COLUMNS,
                            s.values[0] + (i % ROWS * 2 + i / ROWS) * COLUMNS, COLUMNS);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(crcs[i], crc32_z(0, (unsigned char *)bytes.data + i * t->numel, t->numel));
    strbuf_release(&bytes);
    output_release(&o);
    source_release(&s);
}

/* As large panels have long runs of a transposed source: smaller ones read it
 * several times. */
static void a_transposed_tensor_is_read_once(void **state)
{
    (void)state;
    enum { SIDE = 2048 };
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    const uint64_t shape[] = {SIDE, SIDE};
    test_state = test_seed();
    source_init(&s, &test_state);
    struct tensor *t = source_new_tensor(&s, DT_BF16, 2, shape);
    struct piece piece = {.dtype = DT_BF16};
    const struct pair pair = {.num_axes = 2, .axes = {{SIDE, SIDE, 1}, {SIDE, 1, SIDE}}};
    piece.offset_bytes = source_reserve(&s, 0, t->numel * 2);
    tensor_add_piece(&s.arena, t, &piece, &pair);
    for (uint64_t i = 0; i < t->numel; i++)
        keep_value(&s, t, &piece, i, i % SIDE * SIDE + i / SIDE);
    source_write(&s);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_BF16);
    make_images(&o);
    assert_ok(plan_finish(&o.plan, &err));
    assert_ok(executor_run(&o.plan, o.folder, &two_threads, &r, &err));
    check_output(&o, &r);
    assert_int_equal(r.read_bytes, t->numel * 2);
    output_release(&o);
    source_release(&s);
}

/* A panel has room for the widest form that its elements have on their way. */
static void narrow_tensors_may_be_stored_wide(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    const struct tensor *wide = source_of_one(&s, DT_F64, 1500000);
    struct tensor *t = source_new_tensor(&s, DT_BF16, 1, wide->shape);
    struct piece piece = s.catalog.tensors[0].pieces[0];
    tensor_add_pieces(&s.arena, t, &s.catalog.tensors[0]);
    for (uint64_t i = 0; i < t->numel; i++)
        keep_value(&s, t, &piece, i, i);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_BF16);
    make_images(&o);
    assert_ok(plan_finish(&o.plan, &err));
    assert_ok(executor_run(&o.plan, o.folder, &one_thread, &r, &err));
    check_output(&o, &r);
    assert_int_equal(r.cast_elements, t->numel);
    output_release(&o);
    source_release(&s);
}

static void what_is_replicated_is_read_once(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    const struct tensor *t = source_of_one(&s, DT_U8, 100000);
    output_init(&o, &s, 0);
    for (int i = 0; i < OUTPUT_FILES; i++)
        (void)add_whole(&o, t, DT_U8);
    make_images(&o);
    assert_ok(plan_finish(&o.plan, &err));
    assert_int_equal(o.plan.source_bytes, 100000);
    assert_int_equal(o.plan.target_bytes, OUTPUT_FILES * 100000);
    assert_ok(executor_run(&o.plan, o.folder, &two_threads, &r, &err));
    check_output(&o, &r);
    assert_int_equal(r.read_bytes, 100000);
    assert_int_equal(r.cast_elements, 0);
    output_release(&o);
    source_release(&s);
}

static void casts_are_counted_and_what_they_change(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    const struct tensor *t = source_of_one(&s, DT_F32, 5000000);
    const struct executor_options as_many_as_cpus = {.fsync = true, .progress = PROGRESS_NONE};
    uint64_t changed = 0;
    for (uint64_t i = 0; i < t->numel; i++) {
        uint16_t element;
        changed += cast_elements(&element, DT_BF16, s.values[0] + 4 * i, DT_F32, 1);
    }
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_BF16);
    (void)add_whole(&o, t, DT_BF16);
    make_images(&o);
    assert_ok(plan_finish(&o.plan, &err));
    assert_ok(executor_run(&o.plan, o.folder, &as_many_as_cpus, &r, &err));
    check_output(&o, &r);
    assert_int_equal(r.cast_elements, 5000000);
    assert_int_equal(r.changed_elements, changed);
    assert_in_range(changed, 1, 4999999);
    output_release(&o);
    source_release(&s);
}

static void files_without_segments_are_finished_too(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    (void)source_of_one(&s, DT_U8, 10);
    const uint64_t none[] = {0, 7};
    const struct tensor *empty = source_new_tensor(&s, DT_F32, 2, none);
    output_init(&o, &s, 4);
    for (uint32_t i = 0; i < 4; i++) {
        o.finishes[i] = i != 1;
        o.plan.files[i].finish = i == 1 ? NULL : finish_file;
        o.plan.files[i].finish_context = &o;
        o.plan.files[i].size_bytes = i == 2 ? 0 : 1000;
    }
    struct box x = box_of_tensor(empty);
    add_fill(&o, empty, plan_add_segment(&o.plan, 3, DT_F32, 0, true), &x, 0);
    make_images(&o);
    assert_ok(plan_finish(&o.plan, &err));
    assert_ok(executor_run(&o.plan, o.folder, &two_threads, &r, &err));
    check_output(&o, &r);
    output_release(&o);
    source_release(&s);
}

/* As ZeRO-3 stores a model: two ranks with a run each of the flat masters, in
 * F32, and no weights. Numbers half-way between two of BF16, a little more, one
 * that overflows, and ordinary ones. */
static const float zero3_numbers[] = {0x1.01p0f,   0x1.03p0f, -0x1.01p0f, 0x1.010002p0f,
                                      0x1.ffp127f, 3.14159f,  1e-40f,     0.5f};
static const uint16_t zero3_rounded[] = {0x3F80, 0x3F82, 0xBF80, 0x3F81,
                                         0x7F80, 0x4049, 0x0001, 0x3F00};
enum { ZERO3_NUMEL = COUNT(zero3_numbers), ZERO3_RANKS = 2, ZERO3_RUN = 5 };

/* Adds tensor NAME of this dtype, made of a native tensor of the same dtype
 * whose parts are the stored masters. */
static void add_of_masters(struct source *s, const char *name, const char *state, enum dtype dtype,
                           const void *values)
{
    const uint64_t numel = ZERO3_NUMEL;
    struct native_tensor *native;
    struct error err;
    assert_ok(catalog_add_native(&s->catalog, "w", state, dtype, 1, &numel, &native, &err));
    for (uint64_t r = 0; r < ZERO3_RANKS; r++) {
        const uint64_t first = r * ZERO3_RUN;
        const struct pair run = pair_whole(first, 0, min_u64(numel - first, ZERO3_RUN));
        assert_ok(catalog_add_native_part(&s->catalog, native, &s->catalog.stored.tensors[r], &run,
                                          &err));
    }
    struct tensor *t = source_new_tensor(s, dtype, 1, &numel);
    const struct pair all = pair_whole(0, 0, numel);
    t->name = name;
    assert_ok(catalog_add_part(&s->catalog, t, native, &all, &err));
    assert_int_equal(t->num_pieces, ZERO3_RANKS);
    assert_int_equal(t->pieces[1].dtype, DT_F32);
    memcpy(s->values[t - s->catalog.tensors], values, dtype_run_bytes(dtype, numel));
}

static void zero3_init(struct source *s)
{
    const uint64_t run = ZERO3_RUN;
    struct stored_tensor *stored;
    struct error err;
    test_state = test_seed();
    source_init(s, &test_state);
    for (uint32_t r = 0; r < ZERO3_RANKS; r++) {
        const size_t bytes = (r ? ZERO3_NUMEL - ZERO3_RUN : ZERO3_RUN) * sizeof *zero3_numbers;
        const uint64_t offset = source_reserve(s, r, ZERO3_RUN * sizeof *zero3_numbers);
        memcpy(s->files[r].bytes + offset, zero3_numbers + r * ZERO3_RUN, bytes);
        const char *name = r ? "rank.1" : "rank.0";
        assert_ok(stored_add_tensor(&s->catalog.stored, name, strlen(name), DT_F32, 1, &run,
                                    &stored, &err));
        stored->pieces = arena_alloc(&s->catalog.stored.arena, sizeof *stored->pieces);
        stored->pieces[stored->num_pieces++] =
            (struct stored_piece){.file = r, .offset_bytes = offset};
    }
}

static void masters_are_weights_too_with_digests_of_either_dtype(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    struct executor_options options = two_threads;
    zero3_init(&s);
    add_of_masters(&s, "rounded", NULL, DT_BF16, zero3_rounded); /* cast when it is read */
    add_of_masters(&s, "cast", "weight", DT_F32, zero3_numbers); /* when it is written */
    add_of_masters(&s, "master", "param", DT_F32, zero3_numbers);
    source_write(&s);
    output_init(&o, &s, 0);
    (void)add_whole(&o, &s.catalog.tensors[0], DT_BF16);
    (void)add_whole(&o, &s.catalog.tensors[1], DT_BF16);
    (void)add_whole(&o, &s.catalog.tensors[2], DT_F32);
    make_images(&o);
    assert_memory_equal(o.images[0], zero3_rounded, sizeof zero3_rounded);
    assert_memory_equal(o.images[1], zero3_rounded, sizeof zero3_rounded);
    assert_ok(plan_finish(&o.plan, &err));
    options.digests = true;
    options.copies = output_results(&o);
    assert_ok(executor_run(&o.plan, o.folder, &options, &r, &err));
    check_output(&o, &r);
    struct digest numbers = {{0}}, rounded = {{0}};
    digest_add_elements(&numbers, DT_F32, zero3_numbers, ZERO3_NUMEL, 0);
    digest_add_elements(&rounded, DT_BF16, zero3_rounded, ZERO3_NUMEL, 0);
    const struct digest *read[] = {&rounded, &numbers, &numbers},
                        *written[] = {&rounded, &rounded, &numbers};
    for (size_t i = 0; i < COUNT(read); i++) {
        assert_memory_equal(&o.copies[i].read, read[i], sizeof *read[i]);
        assert_memory_equal(&o.copies[i].written, written[i], sizeof *written[i]);
        assert_int_equal(o.copies[i].non_finite, 0);
        assert_int_equal(o.copies[i].overflowed, i < 2);
    }
    assert_int_equal(r.cast_elements, 2 * ZERO3_NUMEL);
    assert_int_equal(r.changed_elements, 2 * (ZERO3_NUMEL - 1)); /* all but 0.5 */
    assert_int_equal(r.overflowed, 2);
    output_release(&o);
    source_release(&s);
}

static void holes_leave_a_sparse_file(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    struct stat st;
    enum { SIDE = 12000 };
    const uint64_t shape[] = {SIDE, SIDE};
    (void)source_of_one(&s, DT_BF16, 10);
    struct tensor *t = source_new_tensor(&s, DT_BF16, 2, shape);
    struct piece hole = {.origin = ORIGIN_HOLE, .dtype = DT_BF16};
    const struct pair pair = pair_whole(0, 0, t->numel);
    tensor_add_piece(&s.arena, t, &hole, &pair);
    output_init(&o, &s, 1);
    o.finishes[0] = true;
    o.plan.files[0].finish = finish_file;
    o.plan.files[0].finish_context = &o;
    struct box x = box_of_tensor(t);
    x.stride[0] = 1, x.stride[1] = SIDE; /* transposed, which makes no difference */
    uint32_t segment = plan_add_segment(&o.plan, 0, DT_BF16, t->numel, false);
    add_fill(&o, t, segment, &x, 0);
    o.plan.segments[segment].offset_bytes = 4096;
    o.plan.files[0].size_bytes = 4096 + 2 * t->numel;
    assert_ok(plan_finish(&o.plan, &err));
    assert_ok(executor_run(&o.plan, o.folder, &two_threads, &r, &err));
    const char *path = path_join(&s.arena, o.folder, o.plan.files[0].path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4096 + 2 * t->numel);
    assert_in_range(st.st_blocks * 512, 0, 1 << 16);
    assert_int_equal(r.written_bytes, 4096);
    assert_int_equal(o.finished[0], 1);
    output_release(&o);
    source_release(&s);
}

/* Segments of a stored tensor and a hole: one behind the other, alone, and in
 * turns. */
static void holes_have_their_crc(void **state)
{
    (void)state;
    enum { N = 1000, SEGMENTS = 4 };
    static const struct {
        int64_t stored, hole; /* first elements; -1: not there */
        uint64_t step;
    } segments[SEGMENTS] = {{0, N, 1}, {N, 0, 1}, {-1, 0, 1}, {1, 0, 2}};
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    (void)source_of_one(&s, DT_BF16, N);
    struct tensor *hole = source_new_tensor(&s, DT_BF16, 1, (const uint64_t[]){N});
    const struct tensor *t = &s.catalog.tensors[0];
    struct piece piece = {.origin = ORIGIN_HOLE, .dtype = DT_BF16};
    const struct pair pair = pair_whole(0, 0, N);
    tensor_add_piece(&s.arena, hole, &piece, &pair);
    memset(s.values[1], 0, N * 2);
    output_init(&o, &s, 1);
    o.finishes[0] = true;
    o.plan.files[0].finish = finish_file;
    o.plan.files[0].finish_context = &o;
    for (int i = 0; i < SEGMENTS; i++) {
        struct box x = box_of_tensor(t);
        uint32_t segment = plan_add_segment(&o.plan, 0, DT_BF16, 0, true);
        x.stride[0] = segments[i].step;
        if (segments[i].stored >= 0) add_fill(&o, t, segment, &x, (uint64_t)segments[i].stored);
        add_fill(&o, hole, segment, &x, (uint64_t)segments[i].hole);
        o.plan.segments[segment].numel = segments[i].stored >= 0 ? 2 * N : N;
        o.plan.segments[segment].offset_bytes = (uint64_t)i * 8 * N;
    }
    o.plan.files[0].size_bytes = SEGMENTS * 8 * N;
    make_images(&o);
    assert_ok(plan_finish(&o.plan, &err));
    assert_ok(executor_run(&o.plan, o.folder, &two_threads, &r, &err));
    check_file(&o, 0);
    assert_int_equal(o.finished[0], 1);
    assert_int_equal(o.wrong_crcs, 0);
    output_release(&o);
    source_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_of_random_plans_is_as_worked_out_one_by_one),
        cmocka_unit_test(large_tensors_are_shared_by_threads),
        cmocka_unit_test(a_transposed_tensor_is_read_once),
        cmocka_unit_test(narrow_tensors_may_be_stored_wide),
        cmocka_unit_test(what_is_replicated_is_read_once),
        cmocka_unit_test(casts_are_counted_and_what_they_change),
        cmocka_unit_test(files_without_segments_are_finished_too),
        cmocka_unit_test(masters_are_weights_too_with_digests_of_either_dtype),
        cmocka_unit_test(holes_leave_a_sparse_file),
        cmocka_unit_test(holes_have_their_crc),
    };
    return cmocka_run_group_tests_name("executor", tests, NULL, NULL);
}
