#include "ckpt/executor.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "ckpt/digest.h"
#include "ckpt/testing_output.h"
#include "common/checked.h"
#include "common/threads.h"
#include "tests/temporary.h"

/* ---- random targets ---- */

enum { MAX_RANKS = 4 };

/* The least --max-memory, as the refusal says it. */
static uint64_t least_memory(const struct plan *p, const struct executor_options *options)
{
    struct executor_options o = *options;
    struct error err = {0};
    uint64_t peak;
    o.max_memory = 1;
    assert_fails(executor_memory(p, &o, &peak, &err), ERR_MEMORY,
                 "--max-memory 1 bytes is not enough for this plan: the least that works with ");
    const char *is = strstr(err.text, "threads is ");
    assert_non_null(is);
    return strtoull(is + strlen("threads is "), NULL, 10) << 20;
}

/* As processes would, one after the other: the last rank first, rank 0 last, which adds it up. */
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
        options->carries = output_results(o);
        if (options->max_memory) options->max_memory = least_memory(&o->plan, options);
        assert_ok(executor_run(&o->plan, o->folder, options, result, &err));
        written += result->written_bytes;
        read += result->read_bytes;
    }
    result->written_bytes = written;
    result->read_bytes = read;
    if (options->num_ranks > 1)
        assert_ok(executor_join(&o->plan, o->folder, options, journals, result, &err));
}

static uint64_t elements_written(const struct carry *c)
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
    uint64_t n = 0;
    for (uint64_t i = 0; i < t->numel && to != t->dtype; i++) {
        const void *in = values + i * dtype_bytes(t->dtype);
        (void)cast_elements(out, to, in, t->dtype, 1);
        n += is_finite(t->dtype, in) && !is_finite(to, out);
    }
    return n;
}

/* In each of those in which it is written. */
static uint64_t count_all_overflows(const struct output *o, const struct carry *c)
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
    for (size_t i = 0; i < o->plan.num_carries; i++) {
        const struct carry *c = &o->plan.carries[i];
        size_t t = (size_t)(c->source - o->source->catalog.tensors);
        uint64_t written = elements_written(c);
        uint64_t want = written ? o->source->overflowed[t] + count_all_overflows(o, c) : 0;
        assert_int_equal(o->carries[i].non_finite, written ? o->source->non_finite[t] : 0);
        assert_int_equal(o->carries[i].overflowed, want);
        overflowed += want;
    }
    assert_int_equal(r->overflowed, overflowed);
}

static void check_digests(const struct output *o)
{
    for (size_t i = 0; i < o->plan.num_carries; i++) {
        const struct carry *c = &o->plan.carries[i];
        const struct tensor *t = c->source;
        struct digest want = {{0}};
        bool hole = t->num_pieces && t->pieces[0].origin == ORIGIN_HOLE;
        digest_add_elements(&want, t->dtype, o->source->values[t - o->source->catalog.tensors],
                            hole || !elements_written(c) ? 0 : t->numel, 0);
        assert_memory_equal(&o->carries[i].read, &want, sizeof want);
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
    place_segments(&o);
    make_images(&o);
    assert_ok(plan_finish(&o.plan, &err));
    if (test_below(seed, 2)) options.max_memory = least_memory(&o.plan, &options);
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
    for (int i = 0; i < 120; i++)
        check_random_output(&seed, 400, 12);
    for (int i = 0; i < 12; i++)
        check_random_output(&seed, 400000, 5);
}

/* ---- what else there is ---- */

static uint64_t test_state;

/* A source of one contiguous tensor of the given dtype, U8 in most tests. */
static struct tensor *one_tensor(struct source *s, enum dtype dtype, uint64_t numel)
{
    test_state = test_seed();
    source_init(s, &test_state);
    struct tensor *t = source_new_tensor(s, dtype, 1, &numel);
    struct piece piece = {.dtype = dtype};
    const struct pair pair = pair_whole(0, 0, numel);
    piece.offset_bytes = source_reserve(s, 0, numel * dtype_bytes(dtype));
    tensor_add_piece(&s->arena, t, &piece, &pair);
    memcpy(s->values[0], s->files[0].bytes + piece.offset_bytes, numel * dtype_bytes(dtype));
    source_write(s);
    return t;
}

/* One more output file that holds all of t, without finish. */
static uint32_t add_whole(struct output *o, const struct tensor *t, enum dtype dtype)
{
    char path[32];
    snprintf(path, sizeof path, "whole-%zu", o->plan.num_files);
    uint32_t file = plan_add_file(&o->plan, path);
    struct box x = box_of_tensor(t);
    row_major(&x, 1);
    add_fill(o, t, plan_add_segment(&o->plan, file, dtype, t->numel, true), &x, 0);
    o->plan.files[file].size_bytes = t->numel * dtype_bytes(dtype);
    return file;
}

static const struct executor_options one_thread = {.threads = 1, .progress = PROGRESS_NONE},
                                     two_threads = {.threads = 2, .progress = PROGRESS_NONE};

static enum status keep_crcs(const struct plan *p, uint32_t file, void *crcs,
                             const struct file_writer *writer, struct error *err)
{
    (void)file, (void)err;
    for (uint32_t i = 0; i < p->num_segments; i++)
        ((uint32_t *)crcs)[i] = writer->crc(writer->context, i);
    return OK;
}

/* More than TASK_BYTES of one tensor: tasks of several threads, whose CRCs are combined. */
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

/* As large panels have long runs of a transposed source: smaller ones read it several times. */
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
    const struct tensor *wide = one_tensor(&s, DT_F64, 1500000);
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
    const struct tensor *t = one_tensor(&s, DT_U8, 100000);
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
    const struct tensor *t = one_tensor(&s, DT_F32, 5000000);
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
    (void)one_tensor(&s, DT_U8, 10);
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

/* As ZeRO-3 stores a model: two ranks with a run each of the flat masters, in F32, and no weights.
 * Numbers half-way between two of BF16, a little more, one that overflows, and ordinary ones. */
static const float zero3_numbers[] = {0x1.01p0f,   0x1.03p0f, -0x1.01p0f, 0x1.010002p0f,
                                      0x1.ffp127f, 3.14159f,  1e-40f,     0.5f};
static const uint16_t zero3_rounded[] = {0x3F80, 0x3F82, 0xBF80, 0x3F81,
                                         0x7F80, 0x4049, 0x0001, 0x3F00};
enum { ZERO3_NUMEL = COUNT(zero3_numbers), ZERO3_RANKS = 2, ZERO3_RUN = 5 };

/* Adds tensor NAME of this dtype, made of an own tensor of the same dtype whose parts are the
 * stored masters. */
static void add_of_masters(struct source *s, const char *name, const char *state, enum dtype dtype,
                           const void *values)
{
    const uint64_t numel = ZERO3_NUMEL;
    struct own_tensor *own;
    struct error err;
    assert_ok(catalog_add_own(&s->catalog, "w", state, dtype, 1, &numel, &own, &err));
    for (uint64_t r = 0; r < ZERO3_RANKS; r++) {
        const uint64_t first = r * ZERO3_RUN;
        const struct pair run = pair_whole(first, 0, min_u64(numel - first, ZERO3_RUN));
        assert_ok(
            catalog_add_own_part(&s->catalog, own, &s->catalog.stored.tensors[r], &run, &err));
    }
    struct tensor *t = source_new_tensor(s, dtype, 1, &numel);
    const struct pair all = pair_whole(0, 0, numel);
    t->name = name;
    assert_ok(catalog_add_part(&s->catalog, t, own, &all, &err));
    assert_int_equal(t->num_pieces, ZERO3_RANKS);
    assert_int_equal(t->pieces[1].dtype, DT_F32);
    memcpy(s->values[t - s->catalog.tensors], values, numel * dtype_bytes(dtype));
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
    options.carries = output_results(&o);
    assert_ok(executor_run(&o.plan, o.folder, &options, &r, &err));
    check_output(&o, &r);
    struct digest numbers = {{0}}, rounded = {{0}};
    digest_add_elements(&numbers, DT_F32, zero3_numbers, ZERO3_NUMEL, 0);
    digest_add_elements(&rounded, DT_BF16, zero3_rounded, ZERO3_NUMEL, 0);
    const struct digest *read[] = {&rounded, &numbers, &numbers},
                        *written[] = {&rounded, &rounded, &numbers};
    for (size_t i = 0; i < COUNT(read); i++) {
        assert_memory_equal(&o.carries[i].read, read[i], sizeof *read[i]);
        assert_memory_equal(&o.carries[i].written, written[i], sizeof *written[i]);
        assert_int_equal(o.carries[i].non_finite, 0);
        assert_int_equal(o.carries[i].overflowed, i < 2);
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
    (void)one_tensor(&s, DT_BF16, 10);
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

/* Segments of a stored tensor and a hole: one behind the other, alone, and in turns. */
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
    (void)one_tensor(&s, DT_BF16, N);
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

static void more_files_are_open_than_are_usual(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    struct rlimit old, few;
    enum { FILES = 100 };
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){FILES / 2, old.rlim_max};
    const struct tensor *t = one_tensor(&s, DT_U8, 1000);
    output_init(&o, &s, 0);
    for (int i = 0; i < FILES; i++)
        (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    enum status st = executor_run(&o.plan, o.folder, &two_threads, &r, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_ok(st);
    assert_int_equal(r.written_bytes, FILES * 1000);
    output_release(&o);
    source_release(&s);
}

/* Tensors of which each of many source files has a run, and a plan that cuts them over as many
 * output files: all files are used for each tensor. */
struct many_files {
    struct arena arena;
    struct catalog catalog;
    struct plan plan;
    char folder[TEMPORARY_PATH], out[TEMPORARY_PATH + 8];
};

enum { MANY = 150, MANY_TENSORS = 3, MANY_RUN = 8, MANY_NUMEL = MANY * MANY_RUN };

static unsigned char many_value(uint64_t tensor, uint64_t element)
{
    return (unsigned char)(tensor * 31 + element * 7 + element / 256);
}

static void add_source_file(struct many_files *m, uint32_t file)
{
    unsigned char bytes[MANY_TENSORS * MANY_RUN];
    struct file_stamp stamp;
    struct error err;
    const char *path = arena_printf(&m->arena, "%s/source-%u", m->folder, file);
    for (uint64_t i = 0; i < sizeof bytes; i++)
        bytes[i] = many_value(i / MANY_RUN, file * MANY_RUN + i % MANY_RUN);
    assert_ok(file_write_all(path, bytes, sizeof bytes, false, &err));
    assert_ok(file_stamp(path, &stamp, &err));
    assert_int_equal(stored_add_file(&m->catalog.stored, path, &stamp), file);
}

static void many_init(struct many_files *m)
{
    const uint64_t numel = MANY_NUMEL;
    struct tensor *t;
    struct error err;
    *m = (struct many_files){.folder = ""};
    assert_true(temporary_folder(m->folder));
    snprintf(m->out, sizeof m->out, "%s/out", m->folder);
    arena_init(&m->arena);
    catalog_init(&m->catalog, &m->arena);
    for (uint32_t i = 0; i < MANY; i++)
        add_source_file(m, i);
    for (uint64_t k = 0; k < MANY_TENSORS; k++) {
        assert_ok(catalog_add(&m->catalog, arena_printf(&m->arena, "t%d", (int)k), DT_U8, 1, &numel,
                              &t, &err));
        for (uint32_t i = 0; i < MANY; i++) {
            const struct piece piece = {.dtype = DT_U8, .file = i, .offset_bytes = k * MANY_RUN};
            const struct pair run = pair_whole(i * MANY_RUN, 0, MANY_RUN);
            tensor_add_piece(&m->arena, t, &piece, &run);
        }
    }
    plan_init(&m->plan, &m->catalog);
    for (uint32_t i = 0; i < MANY; i++) {
        const uint32_t file = plan_add_file(&m->plan, arena_printf(&m->arena, "out-%u", i));
        m->plan.files[file].size_bytes = MANY_TENSORS * MANY_RUN;
        (void)plan_add_segment(&m->plan, file, DT_U8, MANY_TENSORS * MANY_RUN, true);
    }
    for (uint64_t k = 0; k < MANY_TENSORS; k++)
        for (uint32_t i = 0; i < MANY; i++) {
            const struct pair run = pair_whole(i * MANY_RUN, k * MANY_RUN, MANY_RUN);
            plan_add_piece(&m->plan, &m->catalog.tensors[k], i, &run);
        }
    assert_ok(plan_finish(&m->plan, &err));
}

static void many_release(struct many_files *m)
{
    struct error err;
    plan_release(&m->plan);
    catalog_release(&m->catalog);
    arena_release(&m->arena);
    assert_ok(path_remove(m->folder, &err));
}

static void check_many(struct many_files *m)
{
    struct error err;
    struct strbuf bytes = {0};
    for (uint32_t i = 0; i < MANY; i++) {
        bytes.length = 0;
        assert_ok(
            file_read_all(arena_printf(&m->arena, "%s/out-%u", m->out, i), 1000, &bytes, &err));
        assert_int_equal(bytes.length, MANY_TENSORS * MANY_RUN);
        for (uint64_t k = 0; k < bytes.length; k++)
            assert_int_equal((unsigned char)bytes.data[k],
                             many_value(k / MANY_RUN, i * MANY_RUN + k % MANY_RUN));
    }
    strbuf_release(&bytes);
}

/* In a process of its own that may open `limit` files, and never more. Returns the status. */
static enum status run_limited(const struct plan *p, const char *folder, rlim_t limit,
                               const struct executor_options *o, struct error *err)
{
    const struct rlimit few = {limit, limit};
    struct executor_result r;
    uint64_t peak;
    if (setrlimit(RLIMIT_NOFILE, &few)) return DIFFERENT;
    TRY(executor_memory(p, o, &peak, err));
    return executor_run(p, folder, o, &r, err);
}

static int status_of_limited(const struct many_files *m, rlim_t limit,
                             const struct executor_options *o, const char *message)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct error err = {0};
        enum status st = run_limited(&m->plan, m->out, limit, o, &err);
        if (st && (!message || !strstr(err.text, message))) fprintf(stderr, "%s\n", err.text);
        _exit(st && message && !strstr(err.text, message) ? DIFFERENT : (int)st);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_low_limit_of_open_files_is_enough(void **state)
{
    (void)state;
    struct many_files m;
    for (unsigned way = 0; way < 4; way++) {
        many_init(&m);
        const struct executor_options o = {
            .threads = 1 + way,
            .fsync = way == 1 || way == 3,
            .direct_io = way == 2,
            .journal_path = way == 3 ? arena_printf(&m.arena, "%s/journal", m.folder) : NULL,
            .work = "w",
            .journal_bytes = 1,
            .progress = PROGRESS_NONE};
        assert_int_equal(status_of_limited(&m, 40, &o, NULL), OK);
        check_many(&m);
        many_release(&m);
    }
}

static void a_limit_that_cannot_do_is_named_by_the_plan(void **state)
{
    (void)state;
    struct many_files m;
    const struct executor_options o = {.threads = 8, .progress = PROGRESS_NONE};
    many_init(&m);
    assert_int_equal(status_of_limited(&m, 24, &o,
                                       "8 threads need 32 open files, 8 to read, 8 to write and 16 "
                                       "others: `ulimit -n` is 24 and leaves "),
                     ERR_IO);
    assert_int_equal(access(m.out, F_OK), -1);
    many_release(&m);
}

/* ---- failures ---- */

/* Plans one tensor of 100,000 bytes as two files, changes something by `spoil`, runs. */
static void check_failure(void (*spoil)(struct output *o), enum status status, const char *text)
{
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    const struct tensor *t = one_tensor(&s, DT_U8, 100000);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_U8);
    (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    spoil(&o);
    assert_fails(executor_run(&o.plan, o.folder, &one_thread, &r, &err), status, text);
    output_release(&o);
    source_release(&s);
}

static void truncate_source(struct output *o)
{
    assert_int_equal(truncate(source_path(o->source, 0), 50000), 0);
}

static void remove_source(struct output *o)
{
    assert_int_equal(unlink(source_path(o->source, 0)), 0);
}

static void replace_source(struct output *o)
{
    struct error err;
    const char *path = source_path(o->source, 0);
    assert_ok(
        file_replace_all(path, o->source->files[0].bytes, o->source->files[0].size, false, &err));
}

/* As a file that is overwritten while it is being read. */
static enum status touch_source(const struct plan *plan, uint32_t file, void *context,
                                const struct file_writer *writer, struct error *err)
{
    struct output *o = context;
    const struct timespec times[2] = {{1, 0}, {1, 0}};
    (void)plan, (void)file, (void)writer, (void)err;
    return utimensat(AT_FDCWD, source_path(o->source, 0), times, 0) ? ERR_OURS : OK;
}

static void touch_source_at_the_end(struct output *o)
{
    o->plan.files[1].finish = touch_source;
    o->plan.files[1].finish_context = o;
}

/* The stamp of a file that was already shorter when it was opened: a header that lies. */
static void shorten_source_behind_our_back(struct output *o)
{
    struct stored_file *f = &o->source->catalog.stored.files[0];
    truncate_source(o);
    struct error err;
    uint64_t size = f->size_bytes;
    assert_ok(file_stamp(f->path, &f->stamp, &err));
    f->size_bytes = size;
}

static void a_source_that_changed_is_named(void **state)
{
    (void)state;
    check_failure(truncate_source, ERR_IO, "source-0: changed while it was read");
    check_failure(replace_source, ERR_IO, "tensor.0: ");
    check_failure(replace_source, ERR_IO, "source-0: changed while it was read");
    check_failure(remove_source, ERR_IO, "source-0: No such file");
    check_failure(touch_source_at_the_end, ERR_IO, "source-0: changed while it was read");
    check_failure(shorten_source_behind_our_back, ERR_CORRUPT, "source-0: ends at 50000");
}

static void make_output(struct output *o)
{
    struct error err;
    assert_ok(folder_create(o->folder, &err));
    assert_ok(file_write_all(path_join(&o->plan.arena, o->folder, "whole-1"), "x", 1, false, &err));
}

static void same_path_twice(struct output *o)
{
    o->plan.files[1].path = o->plan.files[0].path;
}

static void output_below_a_file(struct output *o)
{
    make_output(o);
    o->plan.files[0].path = "whole-1/x";
}

static enum status refuse(const struct plan *plan, uint32_t file, void *context,
                          const struct file_writer *writer, struct error *err)
{
    (void)plan, (void)context, (void)writer;
    return fail(err, ERR_NUMERIC, "file %u cannot be finished", file);
}

static void finish_refuses(struct output *o)
{
    o->plan.files[1].finish = refuse;
}

static void finish_of_a_file_without_segments_refuses(struct output *o)
{
    uint32_t file = plan_add_file(&o->plan, "empty");
    o->plan.files[file].finish = refuse;
}

/* Plans that plan_finish() would have refused. */
static void forget_a_segment(struct output *o)
{
    o->plan.carries[0].num_pieces = 1;
}

static void write_a_half(struct output *o)
{
    o->plan.carries[0].pieces[1].pair.count /= 2;
}

static void write_a_half_twice(struct output *o)
{
    struct target_piece *pieces = arena_array(&o->plan.arena, 3, sizeof *pieces);
    pieces[0] = o->plan.carries[0].pieces[0];
    pieces[1] = pieces[2] = o->plan.carries[0].pieces[1];
    pieces[1].pair.count = pieces[2].pair.count /= 2;
    o->plan.carries[0].pieces = pieces;
    o->plan.carries[0].num_pieces = 3;
}

static void what_cannot_be_written_is_an_error_that_names_it(void **state)
{
    (void)state;
    check_failure(make_output, ERR_IO, "out/whole-1: File exists");
    check_failure(same_path_twice, ERR_IO, "out/whole-0: File exists");
    check_failure(output_below_a_file, ERR_IO, "out/whole-1: ");
    check_failure(finish_refuses, ERR_NUMERIC, "file 1 cannot be finished");
    check_failure(finish_of_a_file_without_segments_refuses, ERR_NUMERIC, "file 2 cannot");
}

static void a_file_that_was_not_filled_is_noticed(void **state)
{
    (void)state;
    check_failure(forget_a_segment, ERR_OURS, "whole-1: not complete");
    check_failure(write_a_half, ERR_OURS, "whole-1: not complete");
    check_failure(write_a_half_twice, ERR_OURS, "a segment was written to byte 50000 of 100000");
}

static void a_file_that_outgrows_the_system_is_an_error_that_names_it(void **state)
{
    (void)state;
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){65536, old.rlim_max};
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    const struct tensor *t = one_tensor(&s, DT_U8, 100000);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum status st = executor_run(&o.plan, o.folder, &one_thread, &r, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(st, ERR_IO);
    assert_non_null(strstr(err.text, "out/whole-0: setting its size: File too large"));
    output_release(&o);
    source_release(&s);
}

/* ---- memory ---- */

/* Sanitizers have memory of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
enum { SANITIZED = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) };
#else
enum { SANITIZED = 0 };
#endif

static uint64_t most_resident(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss << 10;
}

/* In a process of its own, whose memory starts small. Returns 0, or what went wrong. */
static int run_with_least_memory(const struct source *s, unsigned threads)
{
    static struct output o;
    struct source copy = *s;
    struct error err = {0};
    struct executor_result r;
    struct executor_options options = {.threads = threads, .progress = PROGRESS_NONE};
    uint64_t peak;
    output_init(&o, &copy, 0);
    for (size_t i = 0; i < 2; i++)
        (void)add_whole(&o, &s->catalog.tensors[0], DT_BF16);
    if (plan_finish(&o.plan, &err)) return 1;
    options.max_memory = least_memory(&o.plan, &options);
    if (executor_memory(&o.plan, &options, &peak, &err) || peak > options.max_memory) return 2;
    if (executor_run(&o.plan, o.folder, &options, &r, &err)) return 3;
    if (!SANITIZED && most_resident() > options.max_memory) return 4;
    options.max_memory -= 3 << 20; /* rounding is at most 1 MiB, and 1 to 2 are spare */
    if (executor_memory(&o.plan, &options, &peak, &err) != ERR_MEMORY) return 5;
    plan_release(&o.plan);
    return 0;
}

static void the_least_memory_that_is_named_is_enough(void **state)
{
    (void)state;
    struct source s;
    (void)one_tensor(&s, DT_F32, 10 << 20);
    for (unsigned threads = 1; threads <= 4; threads += 3) {
        struct error err;
        pid_t child = fork();
        if (child == 0) _exit(run_with_least_memory(&s, threads));
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_ok(path_remove(path_join(&s.arena, s.folder, "out"), &err));
    }
    source_release(&s);
}

static void each_thread_takes_a_stack_and_its_buffers(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    const struct tensor *t = one_tensor(&s, DT_U8, 1000);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    const struct executor_options many = {.threads = 129};
    uint64_t more = least_memory(&o.plan, &many) - least_memory(&o.plan, &one_thread);
    /* 128 stacks of 1 MiB, and two buffers of 64 KiB each */
    assert_in_range(more, 143u << 20, 145u << 20);
    output_release(&o);
    source_release(&s);
}

static void buffers_that_the_system_does_not_give_are_an_error(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    struct rlimit old, small;
    const struct executor_options options = {.threads = 1000, .progress = PROGRESS_NONE};
    if (SANITIZED || !test_can_limit_address_space()) skip(); /* sanitizers map terabytes */
    const struct tensor *t = one_tensor(&s, DT_U8, 1000);
    output_init(&o, &s, 0);
    (void)add_whole(&o, t, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    small = (struct rlimit){1u << 30, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
    enum status st = executor_run(&o.plan, o.folder, &options, &r, &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(st, ERR_MEMORY);
    assert_non_null(strstr(err.text, "no memory for buffers of 1048576 bytes"));
    output_release(&o);
    source_release(&s);
}

/* ---- interrupts; no test that runs a plan stands behind these ---- */

/* Ends the process's work once the output file is there. */
static void *terminate_when_begun(void *path)
{
    while (!path_exists(path))
        sched_yield();
    raise(SIGTERM);
    return NULL;
}

/* In a process of its own: 1 where a run of a single task was cut short. */
static int run_and_be_terminated(struct source *s)
{
    static struct output o;
    struct error err = {0};
    struct executor_result r;
    pthread_t killer;
    char path[TEMPORARY_PATH + 64];
    output_init(&o, s, 0);
    (void)add_whole(&o, &s->catalog.tensors[1], DT_F32);
    if (plan_finish(&o.plan, &err)) return 2;
    interrupt_install();
    snprintf(path, sizeof path, "%s/whole-0", o.folder);
    if (pthread_create(&killer, NULL, terminate_when_begun, path)) return 2;
    enum status st = executor_run(&o.plan, o.folder, &one_thread, &r, &err);
    pthread_join(killer, NULL);
    return st == ERR_INTERRUPTED && r.written_bytes < o.plan.files[0].size_bytes;
}

/* The signal may come too late where the machine is busy; it must not each time. */
static void an_interrupt_ends_a_task_between_panels(void **state)
{
    (void)state;
    struct source s;
    const uint64_t numel = 15 << 20; /* a little less than TASK_BYTES */
    (void)one_tensor(&s, DT_U8, 10);
    struct tensor *t = source_new_tensor(&s, DT_F32, 1, &numel);
    struct piece made = {.origin = ORIGIN_RANDOM, .dtype = DT_F32};
    const struct pair pair = pair_whole(0, 0, numel);
    tensor_add_piece(&s.arena, t, &made, &pair);
    bool cut = false;
    for (int i = 0; i < 30 && !cut; i++) {
        struct error err;
        int status;
        pid_t child = fork();
        if (child == 0) _exit(run_and_be_terminated(&s));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
        cut = WEXITSTATUS(status) == 1;
        assert_ok(path_remove(path_join(&s.arena, s.folder, "out"), &err));
    }
    assert_true(cut);
    source_release(&s);
}

static enum status terminate(const struct plan *plan, uint32_t file, void *context,
                             const struct file_writer *writer, struct error *err)
{
    (void)plan, (void)file, (void)context, (void)writer, (void)err;
    raise(SIGTERM);
    return OK;
}

static void an_interrupt_ends_the_run_between_tasks(void **state)
{
    (void)state;
    static struct output o;
    struct source s;
    struct error err = {0};
    struct executor_result r;
    struct sigaction old[3];
    const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const struct tensor *t = one_tensor(&s, DT_U8, 100000);
    struct tensor *later = source_new_tensor(&s, DT_U8, 1, &t->numel);
    tensor_add_pieces(&s.arena, later, &s.catalog.tensors[0]);
    output_init(&o, &s, 0);
    (void)add_whole(&o, &s.catalog.tensors[0], DT_U8);
    (void)add_whole(&o, later, DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    o.plan.files[0].finish = terminate;
    for (size_t i = 0; i < 3; i++)
        sigaction(signals[i], NULL, &old[i]);
    interrupt_install();
    assert_fails(executor_run(&o.plan, o.folder, &one_thread, &r, &err), ERR_INTERRUPTED,
                 "interrupted");
    assert_int_equal(r.written_bytes, 100000); /* of the first file, and nothing of the second */
    assert_true(path_exists(path_join(&s.arena, o.folder, "whole-0")));
    assert_false(path_exists(path_join(&s.arena, o.folder, "whole-1")));

    raise(SIGINT); /* the first one only asks */
    output_release(&o);
    output_init(&o, &s, 0);
    (void)add_whole(&o, &s.catalog.tensors[0], DT_U8);
    assert_ok(plan_finish(&o.plan, &err));
    assert_fails(executor_run(&o.plan, o.folder, &two_threads, &r, &err), ERR_INTERRUPTED,
                 "interrupted");
    assert_int_equal(r.written_bytes, 0);
    for (size_t i = 0; i < 3; i++)
        sigaction(signals[i], &old[i], NULL);
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
        cmocka_unit_test(more_files_are_open_than_are_usual),
        cmocka_unit_test(a_low_limit_of_open_files_is_enough),
        cmocka_unit_test(a_limit_that_cannot_do_is_named_by_the_plan),
        cmocka_unit_test(a_source_that_changed_is_named),
        cmocka_unit_test(what_cannot_be_written_is_an_error_that_names_it),
        cmocka_unit_test(a_file_that_was_not_filled_is_noticed),
        cmocka_unit_test(a_file_that_outgrows_the_system_is_an_error_that_names_it),
        cmocka_unit_test(the_least_memory_that_is_named_is_enough),
        cmocka_unit_test(each_thread_takes_a_stack_and_its_buffers),
        cmocka_unit_test(buffers_that_the_system_does_not_give_are_an_error),
        cmocka_unit_test(an_interrupt_ends_a_task_between_panels),
        cmocka_unit_test(an_interrupt_ends_the_run_between_tasks),
    };
    return cmocka_run_group_tests_name("executor", tests, NULL, NULL);
}
