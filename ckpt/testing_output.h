/* testing_output.h - random plans for random sources (testing_source.h), and
 * the expected contents of their files.
 *
 * The places of a tensor's elements are kept as boxes, and the expected bytes
 * are computed from these one by one, without views and joins. */
#ifndef FERRY_CKPT_TESTING_OUTPUT_H
#define FERRY_CKPT_TESTING_OUTPUT_H

#include <zlib.h>

#include "ckpt/executor.h"
#include "ckpt/testing_source.h"
#include "common/checked.h"

enum { OUTPUT_FILES = 5, MAX_FILLS = 1024, PATTERN = 0xA5 };

/* A box of a tensor that goes into a segment: element (i, j, ..) to
 * first + i * stride[0] + .. */
struct fill {
    uint32_t segment;
    const struct tensor *tensor;
    struct box box;
    uint64_t first;
};

struct output {
    struct source *source;
    struct plan plan;
    char folder[TEMPORARY_PATH + 32];
    unsigned char *images[OUTPUT_FILES]; /* the expected contents of the files */
    bool finishes[OUTPUT_FILES];         /* the bytes between segments are written, as PATTERN */
    _Atomic unsigned finished[OUTPUT_FILES], wrong_crcs;
    struct copy_result *copies; /* the results of the plan's copies */
    size_t num_fills;
    struct fill fills[MAX_FILLS];
};

static inline void add_fill(struct output *o, const struct tensor *t, uint32_t segment,
                            const struct box *x, uint64_t first)
{
    struct pair pair;
    assert_true(o->num_fills < MAX_FILLS);
    o->fills[o->num_fills++] = (struct fill){segment, t, *x, first};
    assert_true(pair_of_box(&pair, x->num_dims, x->shape, x->start, x->extent, first, x->stride));
    plan_add_piece(&o->plan, t, segment, &pair);
}

static inline uint32_t add_segment(struct output *o, enum dtype dtype, uint64_t numel)
{
    uint64_t *seed = o->source->seed;
    uint32_t file = (uint32_t)test_below(seed, o->plan.num_files);
    return plan_add_segment(&o->plan, file, dtype, numel, test_below(seed, 2));
}

static inline void row_major(struct box *x, uint64_t unit)
{
    for (unsigned d = x->num_dims; d-- > 0; unit *= x->extent[d])
        x->stride[d] = unit;
}

/* Each of n parts along dimension d, which n divides, in a segment of its own,
 * in any order of its axes: row and column splits, transposes. */
static inline void split_into_segments(struct output *o, const struct tensor *t, enum dtype dtype,
                                       unsigned d, uint64_t n)
{
    struct box x = box_of_tensor(t);
    if (t->num_dims) x.extent[d] /= n;
    for (uint64_t i = 0; i < n; i++) {
        if (t->num_dims) x.start[d] = i * x.extent[d];
        (void)box_random_strides(&x, o->source->seed, false, false);
        add_fill(o, t, add_segment(o, dtype, box_count(&x)), &x, 0);
    }
}

/* The n parts side by side in one segment: element e of part i at n * e + i. */
static inline void interleave(struct output *o, const struct tensor *t, enum dtype dtype,
                              unsigned d, uint64_t n)
{
    struct box x = box_of_tensor(t);
    uint32_t segment = add_segment(o, dtype, t->numel);
    if (t->num_dims) x.extent[d] /= n;
    row_major(&x, n);
    for (uint64_t i = 0; i < n; i++) {
        if (t->num_dims) x.start[d] = i * x.extent[d];
        add_fill(o, t, segment, &x, i);
    }
}

/* A segment for each rank r of n: part r of the first half, then part r of the
 * second. */
static inline void split_gated(struct output *o, const struct tensor *t, enum dtype dtype,
                               uint64_t n)
{
    struct box x = box_of_tensor(t);
    uint64_t half = x.extent[0] / 2;
    x.extent[0] = half / n;
    row_major(&x, 1);
    for (uint64_t r = 0; r < n; r++) {
        uint32_t segment = add_segment(o, dtype, 2 * box_count(&x));
        for (uint64_t h = 0; h < 2; h++) {
            x.start[0] = h * half + r * x.extent[0];
            add_fill(o, t, segment, &x, h * box_count(&x));
        }
    }
}

/* Appends t to the last segment, if that has this dtype. */
static inline void append(struct output *o, const struct tensor *t, enum dtype dtype)
{
    struct box x = box_of_tensor(t);
    uint32_t segment = (uint32_t)o->plan.num_segments - 1;
    if (!o->plan.num_segments || o->plan.segments[segment].dtype != dtype)
        segment = add_segment(o, dtype, 0);
    row_major(&x, 1);
    add_fill(o, t, segment, &x, o->plan.segments[segment].numel);
    o->plan.segments[segment].numel += t->numel;
}

/* Only some rows, as when a vocabulary is cut. */
static inline void some_rows(struct output *o, const struct tensor *t, enum dtype dtype)
{
    struct box x = box_of_tensor(t);
    if (t->num_dims && x.extent[0] > 1) {
        x.start[0] = test_below(o->source->seed, x.extent[0]);
        x.extent[0] -= x.start[0];
    }
    row_major(&x, 1);
    add_fill(o, t, add_segment(o, dtype, box_count(&x)), &x, 0);
}

static inline void add_target(struct output *o, const struct tensor *t)
{
    uint64_t *seed = o->source->seed;
    unsigned d = t->num_dims ? (unsigned)test_below(seed, t->num_dims) : 0;
    for (uint64_t copies = 1 + test_below(seed, 2); copies > 0; copies--) {
        enum dtype dtype = t->dtype;
        if (dtype_is_float(dtype) && test_below(seed, 3) == 0) dtype = random_float(seed);
        uint64_t side = t->num_dims ? t->shape[d] : 1, n = 1 + test_below(seed, 6);
        while (n > 1 && side % n)
            n--;
        switch (test_below(seed, 6)) {
        case 0:
            interleave(o, t, dtype, d, n);
            break;
        case 1:
            append(o, t, dtype);
            break;
        case 2:
            some_rows(o, t, dtype);
            break;
        case 3:
            if (t->num_dims && t->shape[0] % (2 * n) == 0) {
                split_gated(o, t, dtype, n);
                break;
            } /* fall through */
        default:
            split_into_segments(o, t, dtype, d, n);
        }
    }
}

static inline bool may_go_to(const struct tensor *t, enum dtype dtype)
{
    return t->numel && (t->dtype == dtype || (dtype_is_float(t->dtype) && dtype_is_float(dtype)));
}

/* A segment as a flat partition of an optimizer: runs of many tensors, in any
 * order, with gaps before some of them that are runs of `zeros`. */
static inline void add_flat(struct output *o, const struct tensor *zeros)
{
    uint64_t *seed = o->source->seed;
    const struct catalog *c = &o->source->catalog;
    const enum dtype dtype = random_float(seed);
    const uint32_t segment = add_segment(o, dtype, 0);
    uint64_t *numel = &o->plan.segments[segment].numel;
    for (uint64_t n = test_below(seed, 40); n > 0; n--) {
        const bool gap = test_below(seed, 3) == 0;
        const struct tensor *t = gap ? zeros : &c->tensors[test_below(seed, c->num_tensors)];
        if (!may_go_to(t, dtype)) continue;
        const uint64_t start = test_below(seed, t->numel);
        const struct box run = {.num_dims = 1,
                                .shape = {t->numel},
                                .start = {start},
                                .extent = {1 + test_below(seed, t->numel - start)},
                                .stride = {1}};
        add_fill(o, t, segment, &run, *numel);
        *numel += run.extent[0];
    }
}

/* Places segments one behind the other with random gaps. */
static inline void place_segments(struct output *o)
{
    uint64_t end[OUTPUT_FILES] = {0}, *seed = o->source->seed;
    for (size_t i = 0; i < o->plan.num_segments; i++) {
        struct segment *s = &o->plan.segments[i];
        s->offset_bytes = end[s->file] + test_below(seed, 3) * test_below(seed, 100);
        end[s->file] = s->offset_bytes + dtype_run_bytes(s->dtype, s->numel);
    }
    for (size_t i = 0; i < o->plan.num_files; i++)
        o->plan.files[i].size_bytes = end[i] + test_below(seed, 3) * test_below(seed, 100);
}

/* The number that is added to a tensor's elements when they are written. */
static inline double added_number(const struct output *o, const struct tensor *t)
{
    for (size_t i = 0; i < o->plan.num_copies; i++)
        if (o->plan.copies[i].source == t) return o->plan.copies[i].add;
    return 0;
}

static inline void make_images(struct output *o)
{
    for (size_t i = 0; i < o->plan.num_files; i++) {
        o->images[i] = malloc(o->plan.files[i].size_bytes + 1);
        assert_non_null(o->images[i]);
        memset(o->images[i], o->finishes[i] ? PATTERN : 0, o->plan.files[i].size_bytes);
    }
    for (size_t i = 0; i < o->num_fills; i++) {
        const struct fill *f = &o->fills[i];
        const struct segment *s = &o->plan.segments[f->segment];
        size_t to = dtype_bytes(s->dtype), from = dtype_bytes(f->tensor->dtype);
        const unsigned char *values = o->source->values[f->tensor - o->source->catalog.tensors];
        unsigned char *image = o->images[s->file] + s->offset_bytes;
        for (uint64_t n = 0, a, b; n < box_count(&f->box); n++) {
            box_element(&f->box, n, &a, &b);
            const double add = added_number(o, f->tensor),
                         sum = add != 0 ? dtype_load(f->tensor->dtype, values, a) + add : 0;
            if (add != 0)
                (void)cast_elements(image + (f->first + b) * to, s->dtype, &sum, DT_F64, 1);
            else
                (void)cast_elements(image + (f->first + b) * to, s->dtype, values + a * from,
                                    f->tensor->dtype, 1);
        }
    }
}

static inline bool crc_is_right(const struct output *o, uint32_t segment, uint32_t crc)
{
    const struct segment *s = &o->plan.segments[segment];
    if (!s->wants_crc) return true;
    const unsigned char *image = o->images[s->file],
                        *bytes = image ? image + s->offset_bytes : NULL;
    return crc == (uint32_t)crc32_z(0, bytes, dtype_run_bytes(s->dtype, s->numel));
}

/* Writes all gaps, and counts; in a worker's thread, where no assert can stand. */
static inline enum status finish_file(const struct plan *plan, uint32_t file, void *context,
                                      const struct file_writer *writer, struct error *err)
{
    struct output *o = context;
    const struct output_file *f = &plan->files[file];
    unsigned char pattern[256];
    uint64_t at = 0;
    memset(pattern, PATTERN, sizeof pattern);
    o->finished[file]++;
    for (uint32_t i = 0; i <= f->num_segments; i++) {
        uint32_t segment = i < f->num_segments ? plan->by_file[f->first_segment + i] : 0;
        const struct segment *s = i < f->num_segments ? &plan->segments[segment] : NULL;
        for (uint64_t end = s ? s->offset_bytes : f->size_bytes, n; at < end; at += n) {
            n = min_u64(end - at, sizeof pattern);
            TRY(writer->put(writer->context, at, pattern, n, err));
        }
        if (!s) break;
        o->wrong_crcs += !crc_is_right(o, segment, writer->crc(writer->context, segment));
        at = s->offset_bytes + dtype_run_bytes(s->dtype, s->numel);
    }
    return OK;
}

static inline void output_init(struct output *o, struct source *s, size_t num_files)
{
    memset(o, 0, offsetof(struct output, fills));
    o->source = s;
    snprintf(o->folder, sizeof o->folder, "%s/out", s->folder);
    plan_init(&o->plan, &s->catalog);
    for (uint32_t i = 0; i < num_files; i++) {
        char path[32];
        snprintf(path, sizeof path, i % 2 ? "sub/deep/file-%u" : "file-%u", i);
        assert_int_equal(plan_add_file(&o->plan, path), i);
        o->finishes[i] = test_below(s->seed, 4) > 0;
        if (!o->finishes[i]) continue;
        o->plan.files[i].finish = finish_file;
        o->plan.files[i].finish_context = o;
    }
}

static inline void output_release(struct output *o)
{
    struct error err;
    plan_release(&o->plan);
    free(o->copies);
    for (size_t i = 0; i < OUTPUT_FILES; i++)
        free(o->images[i]);
    assert_ok(path_remove(o->folder, &err));
}

/* An array for the results of all copies of the plan. */
static inline struct copy_result *output_results(struct output *o)
{
    free(o->copies);
    o->copies = calloc(o->plan.num_copies + 1, sizeof *o->copies);
    assert_non_null(o->copies);
    return o->copies;
}

static inline void check_file(const struct output *o, size_t file)
{
    struct error err;
    struct strbuf bytes = {0};
    char path[TEMPORARY_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", o->folder, o->plan.files[file].path);
    assert_ok(file_read_all(path, UINT64_MAX, &bytes, &err));
    assert_int_equal(bytes.length, o->plan.files[file].size_bytes);
    for (uint64_t i = 0; i < bytes.length; i++)
        if ((unsigned char)bytes.data[i] != o->images[file][i])
            fail_msg("%s: byte %llu of %zu", path, (unsigned long long)i, bytes.length);
    strbuf_release(&bytes);
}

static inline void check_output(const struct output *o, const struct executor_result *r)
{
    uint64_t written = 0;
    for (size_t i = 0; i < o->plan.num_files; i++) {
        check_file(o, i);
        assert_int_equal(o->finished[i], o->finishes[i]);
        if (o->finishes[i]) written += o->plan.files[i].size_bytes;
    }
    assert_int_equal(o->wrong_crcs, 0);
    for (uint32_t i = 0; i < o->plan.num_segments; i++) {
        const struct segment *s = &o->plan.segments[i];
        if (!o->finishes[s->file]) written += dtype_run_bytes(s->dtype, s->numel);
    }
    assert_int_equal(r->written_bytes, written); /* each byte once */
}

/* One more output file that holds all of t, without finish. */
static inline uint32_t add_whole(struct output *o, const struct tensor *t, enum dtype dtype)
{
    char path[32];
    snprintf(path, sizeof path, "whole-%zu", o->plan.num_files);
    uint32_t file = plan_add_file(&o->plan, path);
    struct box x = box_of_tensor(t);
    row_major(&x, 1);
    add_fill(o, t, plan_add_segment(&o->plan, file, dtype, t->numel, true), &x, 0);
    o->plan.files[file].size_bytes = dtype_run_bytes(dtype, t->numel);
    return file;
}

/* ---- the executor ---- */

static const struct executor_options one_thread = {.threads = 1, .progress = PROGRESS_NONE},
                                     two_threads = {.threads = 2, .progress = PROGRESS_NONE};

/* The least --max-memory, as the refusal says it. */
static inline uint64_t least_memory(const struct plan *p, const struct executor_options *options)
{
    struct executor_options o = *options;
    struct error err = {0};
    uint64_t peak;
    o.max_memory = 1;
    assert_fails(executor_memory(p, &o, &peak, &err), ERR_MEMORY,
                 "--max-memory 1 bytes is not enough for this plan: ");
    const char *is = strstr(err.text, "threads need at least ");
    assert_non_null(is);
    return strtoull(is + strlen("threads need at least "), NULL, 10) << 20;
}

#endif
