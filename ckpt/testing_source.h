/* testing_source.h - random checkpoints for the tests of this folder.
 *
 * Tensors of random shapes are cut into random boxes, which lie in random bytes
 * of real files: row by row, with gaps, transposed, repeated (a stride of 0),
 * byte-swapped, in another dtype, in two halves, or in memory. The expected value of each
 * element is computed from the meaning of its piece, without views and joins. */
#ifndef FERRY_CKPT_TESTING_SOURCE_H
#define FERRY_CKPT_TESTING_SOURCE_H

#include <float.h>
#include <math.h>

#include "ckpt/catalog.h"
#include "ckpt/testing_view.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/random.h"
#include "tests/temporary.h"

enum { SOURCE_FILES = 3, SOURCE_TENSORS = 64, SOURCE_DIMS = 4 };

struct source {
    struct arena arena;
    struct catalog catalog;
    char folder[TEMPORARY_PATH];
    uint64_t *seed;
    unsigned in_memory,
        num_holders; /* number of pieces in memory, of 8; number of ranks that hold them */
    bool one_dtype;  /* pieces have their tensor's */
    bool no_halves;  /* every piece is in a file, in memory, or made up */
    struct {
        unsigned char *bytes;
        uint64_t size, capacity;
    } files[SOURCE_FILES];
    unsigned char *values[SOURCE_TENSORS]; /* of each tensor: its elements, row-major */
    uint64_t cast_elements;                /* elements that are stored in another dtype */
    /* For each tensor: stored elements that are NaN or infinite; elements that
     * the cast to its dtype made infinite. */
    uint64_t non_finite[SOURCE_TENSORS], overflowed[SOURCE_TENSORS];
};

/* ---- boxes, element by element ---- */

struct box {
    unsigned num_dims;
    uint64_t shape[SOURCE_DIMS]; /* of the tensor */
    uint64_t start[SOURCE_DIMS], extent[SOURCE_DIMS];
    uint64_t stride[SOURCE_DIMS]; /* of the other side */
};

static inline uint64_t box_count(const struct box *x)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < x->num_dims; d++)
        n *= x->extent[d];
    return n;
}

/* Element n of a box, in the box's row-major order: *a in the tensor, *b on the
 * other side. */
static inline void box_element(const struct box *x, uint64_t n, uint64_t *a, uint64_t *b)
{
    uint64_t row_major = 1;
    *a = *b = 0;
    for (unsigned d = x->num_dims; d-- > 0; n /= x->extent[d]) {
        uint64_t i = n % x->extent[d];
        *a += (x->start[d] + i) * row_major;
        *b += i * x->stride[d];
        row_major *= x->shape[d];
    }
}

static inline struct box box_of_tensor(const struct tensor *t)
{
    struct box x = {.num_dims = t->num_dims};
    for (unsigned d = 0; d < t->num_dims; d++)
        x.shape[d] = x.extent[d] = t->shape[d];
    return x;
}

/* Strides for a random order of the dimensions, outermost first; gaps:
 * sometimes with room between rows; repeat: sometimes 0. Returns the span. */
static inline uint64_t box_random_strides(struct box *x, uint64_t *seed, bool gaps, bool repeat)
{
    unsigned order[SOURCE_DIMS];
    bool transposed = test_below(seed, 2);
    for (unsigned d = 0; d < x->num_dims; d++)
        order[d] = d;
    for (unsigned d = x->num_dims; transposed && d > 1; d--) {
        unsigned other = (unsigned)test_below(seed, d), kept = order[d - 1];
        order[d - 1] = order[other];
        order[other] = kept;
    }
    uint64_t span = 1;
    for (unsigned k = x->num_dims; k-- > 0;) {
        uint64_t stride = span;
        if (gaps && test_below(seed, 4) == 0) stride += test_below(seed, 5);
        if (repeat && test_below(seed, 12) == 0) stride = 0;
        x->stride[order[k]] = stride;
        if (x->extent[order[k]]) span += (x->extent[order[k]] - 1) * stride;
    }
    return span;
}

/* ---- files ---- */

static inline void source_init(struct source *s, uint64_t *seed)
{
    *s = (struct source){.seed = seed, .in_memory = 1, .num_holders = 1};
    assert_true(temporary_folder(s->folder));
    arena_init(&s->arena);
    catalog_init(&s->catalog, &s->arena);
}

static inline void source_release(struct source *s)
{
    struct error err;
    catalog_release(&s->catalog);
    arena_release(&s->arena);
    for (size_t i = 0; i < SOURCE_FILES; i++)
        free(s->files[i].bytes);
    for (size_t i = 0; i < SOURCE_TENSORS; i++)
        free(s->values[i]);
    assert_ok(path_remove(s->folder, &err));
}

static inline void fill_random(uint64_t *seed, unsigned char *to, uint64_t bytes)
{
    for (uint64_t i = 0, word = 0; i < bytes; i++, word >>= 8) {
        if (i % 8 == 0) word = test_random(seed);
        to[i] = (unsigned char)word;
    }
}

/* Reserves bytes at the end of a file, after a small gap. Returns their offset. */
static inline uint64_t source_reserve(struct source *s, uint32_t file, uint64_t bytes)
{
    uint64_t offset = s->files[file].size + test_below(s->seed, 8), end = offset + bytes;
    if (end > s->files[file].capacity) {
        s->files[file].capacity = 2 * end;
        s->files[file].bytes = realloc(s->files[file].bytes, 2 * end);
        assert_non_null(s->files[file].bytes);
    }
    fill_random(s->seed, s->files[file].bytes + s->files[file].size, end - s->files[file].size);
    s->files[file].size = end;
    return offset;
}

static inline const char *source_path(struct source *s, size_t file)
{
    return arena_printf(&s->arena, "%s/source-%zu", s->folder, file);
}

/* Writes the files and puts them into the catalog. */
static inline void source_write(struct source *s)
{
    struct error err;
    for (size_t i = 0; i < SOURCE_FILES; i++) {
        struct file_stamp stamp;
        assert_ok(
            file_write_all(source_path(s, i), s->files[i].bytes, s->files[i].size, false, &err));
        assert_ok(file_stamp(source_path(s, i), &stamp, &err));
        assert_int_equal(stored_add_file(&s->catalog.stored, source_path(s, i), &stamp), i);
    }
}

/* ---- tensors ---- */

/* Element b of a piece, as its file or memory has it. */
static inline void piece_element(const struct source *s, const struct piece *piece, uint64_t b,
                                 unsigned char out[16])
{
    size_t bytes = dtype_bytes(piece->dtype), unit = bytes;
    if (piece->dtype == DT_C64 || piece->dtype == DT_C128) unit /= 2;
    const unsigned char *first = piece->origin == ORIGIN_MEMORY
                                     ? piece->memory
                                     : s->files[piece->file].bytes + piece->offset_bytes;
    const unsigned char *from = first + b * bytes;
    for (size_t i = 0; i < bytes; i++)
        out[i] = from[piece->byte_swapped ? i / unit * unit + (unit - 1 - i % unit) : i];
}

static inline bool is_finite(enum dtype dtype, const void *element)
{
    return !dtype_is_float(dtype) || fabs(dtype_load(dtype, element, 0)) <= DBL_MAX;
}

static inline void keep_value(struct source *s, const struct tensor *t, const struct piece *piece,
                              uint64_t a, uint64_t b)
{
    size_t bytes = dtype_bytes(t->dtype);
    size_t i = (size_t)(t - s->catalog.tensors);
    unsigned char *value = s->values[i] + a * bytes, stored[16];
    if (piece->origin == ORIGIN_ZERO || piece->origin == ORIGIN_HOLE) {
        memset(value, 0, bytes);
    } else if (piece->origin == ORIGIN_RANDOM_SQUARE) {
        random_squares(value, t->dtype, piece->file, b, 1);
    } else if (!piece_origin(piece)->has_dtype) {
        random_elements(value, t->dtype, piece->file, piece->origin == ORIGIN_RANDOM_ONE, b, 1);
    } else {
        piece_element(s, piece, b, stored);
        (void)cast_elements(value, t->dtype, stored, piece->dtype, 1);
        s->non_finite[i] += !is_finite(piece->dtype, stored);
        s->overflowed[i] += is_finite(piece->dtype, stored) && !is_finite(t->dtype, value);
    }
}

static inline enum dtype random_dtype(uint64_t *seed)
{
    static const enum dtype dtypes[] = {DT_BF16, DT_BF16, DT_F16, DT_F32, DT_F32,
                                        DT_F64,  DT_U8,   DT_I64, DT_C64, DT_C128};
    return dtypes[test_below(seed, COUNT(dtypes))];
}

static inline enum dtype random_float(uint64_t *seed)
{
    static const enum dtype dtypes[] = {DT_BF16, DT_F16, DT_F32, DT_F64};
    return dtypes[test_below(seed, COUNT(dtypes))];
}

static inline void put_in_memory(struct source *s, struct piece *piece, uint64_t bytes)
{
    unsigned char *memory = arena_alloc(&s->arena, bytes);
    fill_random(s->seed, memory, bytes);
    piece->origin = ORIGIN_MEMORY;
    piece->memory = memory;
    piece->byte_swapped = false;
}

static inline void add_box(struct source *s, struct tensor *t, struct box *x)
{
    struct piece piece = {.dtype = t->dtype, .file = (uint32_t)test_below(s->seed, SOURCE_FILES)};
    uint64_t count = box_count(x), span = box_random_strides(x, s->seed, true, true), a, b;
    if (test_below(s->seed, 10) == 0) piece.origin = ORIGIN_ZERO;
    if (dtype_is_float(t->dtype) && !s->one_dtype && test_below(s->seed, 6) == 0)
        piece.dtype = random_float(s->seed);
    piece.byte_swapped = test_below(s->seed, 4) == 0;
    piece.holder = (unsigned)test_below(s->seed, s->num_holders);
    if (piece.origin == ORIGIN_STORED && test_below(s->seed, 8) < s->in_memory)
        put_in_memory(s, &piece, dtype_run_bytes(piece.dtype, span));
    if (piece.origin == ORIGIN_STORED)
        piece.offset_bytes = source_reserve(s, piece.file, dtype_run_bytes(piece.dtype, span));
    struct pair pair;
    assert_true(pair_of_box(&pair, x->num_dims, x->shape, x->start, x->extent, 0, x->stride));
    tensor_add_piece(&s->arena, t, &piece, &pair);
    for (uint64_t n = 0; n < count; n++) {
        box_element(x, n, &a, &b);
        keep_value(s, t, &piece, a, b);
    }
    if (piece_dtype(&piece, t->dtype) != t->dtype) s->cast_elements += count;
}

/* Adds a box as it is, or two halves of it along some dimension, and so on. */
static inline void add_cut(struct source *s, struct tensor *t, struct box x, unsigned cuts)
{
    unsigned d = x.num_dims ? (unsigned)test_below(s->seed, x.num_dims) : 0;
    if (!x.num_dims || cuts == 0 || x.extent[d] < 2) {
        add_box(s, t, &x);
        return;
    }
    uint64_t at = 1 + test_below(s->seed, x.extent[d] - 1);
    struct box rest = x;
    x.extent[d] = at;
    rest.start[d] += at;
    rest.extent[d] -= at;
    add_cut(s, t, x, (cuts - 1) / 2);
    add_cut(s, t, rest, cuts - 1 - (cuts - 1) / 2);
}

static inline struct tensor *source_new_tensor(struct source *s, enum dtype dtype,
                                               unsigned num_dims, const uint64_t *shape)
{
    struct tensor *t;
    struct error err;
    char name[24];
    snprintf(name, sizeof name, "tensor.%zu", s->catalog.num_tensors);
    assert_in_range(s->catalog.num_tensors, 0, SOURCE_TENSORS - 1);
    assert_ok(catalog_add(&s->catalog, name, dtype, num_dims, shape, &t, &err));
    s->values[t - s->catalog.tensors] = malloc(dtype_run_bytes(dtype, t->numel) + 1);
    assert_non_null(s->values[t - s->catalog.tensors]);
    return t;
}

/* The F32 of a weight of BF16 and a remainder, by the definition of
 * kernels/cpu/remainders.h. */
static inline void join_element(const unsigned char *weight, const unsigned char *remainder,
                                unsigned char *out)
{
    uint16_t upper;
    int16_t lower;
    memcpy(&upper, weight, sizeof upper);
    memcpy(&lower, remainder, sizeof lower);
    const uint32_t bits = (uint32_t)(uint16_t)(upper - (lower < 0)) << 16 | (uint16_t)lower;
    memcpy(out, &bits, sizeof bits);
}

/* Adds two tensors: a weight, and remainders that are joined with it. */
static inline struct tensor *source_add_halves(struct source *s, unsigned num_dims,
                                               const uint64_t *shape)
{
    struct error err;
    const unsigned in_memory = s->in_memory;
    s->in_memory = 0;
    s->one_dtype = true;
    const size_t first = s->catalog.num_tensors;
    for (size_t i = 0; i < 2; i++) {
        struct tensor *t = source_new_tensor(s, i ? DT_I16 : DT_BF16, num_dims, shape);
        add_cut(s, t, box_of_tensor(t), (unsigned)test_below(s->seed, 7));
    }
    s->in_memory = in_memory;
    s->one_dtype = false;
    struct tensor *weight = &s->catalog.tensors[first], *t = weight + 1;
    unsigned char *joined = malloc(dtype_run_bytes(DT_F32, t->numel));
    assert_non_null(joined);
    for (uint64_t i = 0; i < t->numel; i++) {
        unsigned char *value = joined + dtype_run_bytes(DT_F32, i);
        join_element(s->values[first] + i * 2, s->values[first + 1] + i * 2, value);
        s->non_finite[first + 1] += !is_finite(DT_F32, value);
    }
    free(s->values[first + 1]);
    s->values[first + 1] = joined;
    assert_ok(tensor_join_halves(&s->arena, t, weight, &err));
    return t;
}

/* Adds a tensor with a random shape and cut, of about `elements` at most;
 * pieces have several dtypes, or are made up. */
static inline struct tensor *source_add_random(struct source *s, uint64_t elements)
{
    uint64_t shape[SOURCE_DIMS];
    unsigned num_dims = (unsigned)test_below(s->seed, SOURCE_DIMS + 1);
    for (unsigned d = 0; d < num_dims; d++) {
        uint64_t side = elements;
        for (unsigned k = d + 1; k < num_dims; k++) /* a side of what is left, roughly even */
            side = side > 16 ? side / 6 : side;
        if (side > elements) side = elements;
        shape[d] = test_below(s->seed, 40) ? 1 + test_below(s->seed, side ? side : 1) : 0;
        elements /= shape[d] ? shape[d] : 1;
    }
    enum dtype dtype = random_dtype(s->seed);
    uint64_t numel;
    if (dtype == DT_F32 && !s->no_halves && test_below(s->seed, 4) == 0 &&
        shape_numel(shape, num_dims, &numel) && numel &&
        s->catalog.num_tensors + 2 <= SOURCE_TENSORS)
        return source_add_halves(s, num_dims, shape);
    struct tensor *t = source_new_tensor(s, dtype, num_dims, shape);
    if (dtype_is_float(dtype) && t->numel && test_below(s->seed, 8) == 0) {
        static const enum origin_id random[] = {ORIGIN_RANDOM, ORIGIN_RANDOM_ONE,
                                                ORIGIN_RANDOM_SQUARE};
        struct piece made = {.origin = random[test_below(s->seed, COUNT(random))],
                             .dtype = dtype,
                             .file = (uint32_t)test_random(s->seed)};
        const struct pair pair = pair_whole(0, test_below(s->seed, 100), t->numel);
        tensor_add_piece(&s->arena, t, &made, &pair);
        for (uint64_t i = 0; i < t->numel; i++)
            keep_value(s, t, &made, i, pair.b_offset + i);
        return t;
    }
    if (t->numel) add_cut(s, t, box_of_tensor(t), (unsigned)test_below(s->seed, 7));
    return t;
}

/* Adds a tensor of zeros that are stored nowhere, for the gaps of segments. */
static inline struct tensor *source_add_zeros(struct source *s, uint64_t numel)
{
    struct tensor *t = source_new_tensor(s, DT_F32, 1, &numel);
    const struct piece zeros = {.origin = ORIGIN_ZERO, .dtype = DT_F32};
    const struct pair all = pair_whole(0, 0, numel);
    memset(s->values[t - s->catalog.tensors], 0, dtype_run_bytes(DT_F32, numel));
    tensor_add_piece(&s->arena, t, &zeros, &all);
    return t;
}

/* Adds one contiguous tensor of random bytes, in file 0. */
static inline struct tensor *source_add_run(struct source *s, enum dtype dtype, uint64_t numel)
{
    struct tensor *t = source_new_tensor(s, dtype, 1, &numel);
    struct piece piece = {.dtype = dtype};
    const struct pair pair = pair_whole(0, 0, numel);
    piece.offset_bytes = source_reserve(s, 0, dtype_run_bytes(dtype, numel));
    tensor_add_piece(&s->arena, t, &piece, &pair);
    memcpy(s->values[t - s->catalog.tensors], s->files[0].bytes + piece.offset_bytes,
           dtype_run_bytes(dtype, numel));
    return t;
}

/* A source, written, of one such tensor. */
static inline struct tensor *source_of_one(struct source *s, enum dtype dtype, uint64_t numel)
{
    static uint64_t random; /* of the last one */
    random = test_seed();
    source_init(s, &random);
    struct tensor *t = source_add_run(s, dtype, numel);
    source_write(s);
    return t;
}

#endif
