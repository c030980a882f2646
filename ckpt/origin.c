#include "ckpt/origin.h"

#include <inttypes.h>

#include "ckpt/block.h"
#include "ckpt/encoder.h"
#include "ckpt/encoding.h"
#include "ckpt/panel.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/remainders.h"

enum {
    CALL_BYTES = 4 << 10,  /* cost of one more system call, */
    SEEK_BYTES = 64 << 10, /* cost of one more access, */
    MOST_GAPS = 2,         /* elements decoded for one that is wanted */
};

/* ---- files ---- */

/* A complex element is two numbers. */
static bool dtype_is_complex(enum dtype dtype)
{
    return dtype == DT_C64 || dtype == DT_C128;
}

static enum status read_bytes(const struct fetching *f, uint64_t from, void *to, uint64_t count,
                              struct error *err)
{
    const uint64_t bytes = dtype_run_bytes(f->dtype, count);
    TRY(stored_read(f->reader->reader, f->piece->file,
                    f->piece->offset_bytes + dtype_run_bytes(f->dtype, from), to, bytes, err));
    f->reader->read_bytes += bytes;
    if (f->piece->byte_swapped) {
        size_t parts = dtype_is_complex(f->dtype) ? 2 : 1;
        swap_bytes(to, dtype_bytes(f->dtype) / parts, count * parts);
    }
    return OK;
}

/* Runs that are read one after the other. */
struct packing {
    const struct fetching *fetching;
    char *to;
};

static enum status read_packed_run(void *context, const struct block *b, uint64_t from, uint64_t to,
                                   bool *taken, struct error *err)
{
    struct packing *p = context;
    uint64_t count = block_count(b);
    (void)to;
    *taken = block_file_run(b) == count;
    if (!*taken) return OK;
    TRY(read_bytes(p->fetching, from, p->to, count, err));
    p->to += dtype_run_bytes(p->fetching->dtype, count);
    return OK;
}

static void pack_strides(struct block *b)
{
    uint64_t stride = 1;
    for (unsigned k = b->num_axes; k-- > 0;) {
        b->axes[k].a_stride = stride;
        stride *= b->axes[k].extent;
    }
}

/* Reads each run of the file by itself. All fit temp as they fit the buffer. */
static enum status read_packed(const struct fetching *f, const struct block *b, uint64_t from,
                               char *target, struct error *err)
{
    struct packing p = {f, f->reader->temp};
    struct block packed = *b;
    TRY(block_split(b, from, 0, read_packed_run, &p, err));
    pack_strides(&packed);
    copy_axes(target, f->reader->temp, dtype_bytes(f->dtype), packed.num_axes, packed.axes);
    return OK;
}

/* Reads directly where runs of the file are runs of the buffer; else through
 * temp, with one call for the block's whole span if that is cheaper than one a
 * run. */
static enum status read_block(void *context, const struct block *b, uint64_t from, uint64_t to,
                              bool *taken, struct error *err)
{
    const struct fetching *f = context;
    const size_t element = dtype_bytes(f->dtype); /* 0 in runs alone: see panel_read() */
    char *target = f->buffer + dtype_run_bytes(f->dtype, to), *temp = f->reader->temp;
    if (block_is_run(b)) return read_bytes(f, from, target, block_count(b), err);

    uint64_t count = block_count(b), span = block_span(b), run = block_file_run(b);
    uint64_t call = CALL_BYTES / element;
    bool span_is_cheaper = call + span <= count / run * (call + run);
    bool direct = run > 1 && b->axes[b->num_axes - 1].b_stride == 1;
    if (span_is_cheaper && span <= f->reader->buffer_bytes / element) {
        TRY(read_bytes(f, from, temp, span, err));
        copy_axes(target, temp, element, b->num_axes, b->axes);
        return OK;
    }
    if (!span_is_cheaper && !direct) return read_packed(f, b, from, target, err);
    *taken = false;
    return OK;
}

/* Prefetches runs together with small gaps between them: on a disk that is
 * cheaper than skipping the gaps. read_block() decides what is copied. */
static void expect_block(const struct fetching *f, const struct block *b, uint64_t from)
{
    size_t element = dtype_bytes(f->dtype);
    uint64_t count = block_count(b), span = block_span(b), runs = count / block_file_run(b);
    if (span <= count || (span - count) / runs > SEEK_BYTES / element) return;
    stored_expect(f->reader->reader, f->piece->file,
                  f->piece->offset_bytes + dtype_run_bytes(f->dtype, from),
                  dtype_run_bytes(f->dtype, span));
}

static enum status fetch_stored(const struct fetching *f, const struct block *b, uint64_t from,
                                uint64_t to, struct error *err)
{
    struct fetching reading = *f;
    expect_block(f, b, from);
    return block_split(b, from, to, read_block, &reading, err);
}

/* ---- memory ---- */

static enum status fetch_memory(const struct fetching *f, const struct block *b, uint64_t from,
                                uint64_t to, struct error *err)
{
    size_t element = dtype_bytes(f->dtype);
    if (!f->piece->memory)
        return fail(err, ERR_OURS, "its elements are in the memory of rank %u", f->piece->holder);
    copy_axes(f->buffer + to * element, (const char *)f->piece->memory + from * element, element,
              b->num_axes, b->axes);
    return OK;
}

/* ---- numbers ---- */

/* Makes the numbers from number `from` on. */
static enum status make_run(void *context, const struct block *b, uint64_t from, uint64_t to,
                            bool *taken, struct error *err)
{
    const struct fetching *f = context;
    char *target = f->buffer + dtype_run_bytes(f->dtype, to);
    (void)err;
    *taken = block_is_run(b);
    if (*taken && f->piece->origin == ORIGIN_RANDOM_SQUARE)
        random_squares(target, f->dtype, f->piece->file, from, block_count(b));
    else if (*taken)
        random_elements(target, f->dtype, f->piece->file, f->piece->origin == ORIGIN_RANDOM_ONE,
                        from, block_count(b));
    return OK;
}

static enum status fetch_random(const struct fetching *f, const struct block *b, uint64_t from,
                                uint64_t to, struct error *err)
{
    struct fetching making = *f;
    return block_split(b, from, to, make_run, &making, err);
}

/* ---- halves ---- */

static enum status join_run(void *context, const struct block *b, uint64_t from, uint64_t to,
                            bool *taken, struct error *err)
{
    const struct fetching *f = context;
    const struct halves *h = f->piece->halves;
    const uint64_t count = block_count(b);
    char *out = f->buffer + dtype_run_bytes(DT_F32, to), *upper = f->reader->cast;
    char *lower = h->lower.dtype == DT_F32 ? out : upper + dtype_run_bytes(DT_BF16, count);
    *taken = block_is_run(b);
    if (!*taken) return OK;
    TRY(panel_read(f->reader, &h->upper, from, count, upper, err));
    TRY(panel_read(f->reader, &h->lower, from, count, lower, err));
    const size_t joined = join_remainders(out, upper, lower, h->lower.dtype, count);
    if (joined == count) return OK;
    return fail(err, ERR_CORRUPT,
                "element %" PRIu64 " of %s is no whole number of 16 bits, as the others are",
                from + joined, h->lower.stored_name);
}

static enum status fetch_halves(const struct fetching *f, const struct block *b, uint64_t from,
                                uint64_t to, struct error *err)
{
    struct fetching joining = *f;
    if (f->buffer == f->reader->cast)
        return fail(err, ERR_OURS, "halves are F32, not their tensor's dtype");
    return block_split(b, from, to, join_run, &joining, err);
}

/* ---- encoded tensors ---- */

/* Decodes a run, or the span of a block with few gaps: gate and up of gpt-oss
 * lie row by row. */
static enum status decode_run(void *context, const struct block *b, uint64_t from, uint64_t to,
                              bool *taken, struct error *err)
{
    const struct fetching *f = context;
    const struct encoded *e = f->piece->encoded;
    const uint64_t count = block_count(b), span = block_span(b);
    const size_t element = dtype_bytes(f->dtype);
    char *target = f->buffer + to * element, *temp = f->reader->temp;
    if (block_is_run(b)) return encoded_read(f->reader, e, from, count, f->dtype, target, err);
    *taken = span / count <= MOST_GAPS && span <= f->reader->buffer_bytes / element;
    if (!*taken) return OK;
    TRY(encoded_read(f->reader, e, from, span, f->dtype, temp, err));
    copy_axes(target, temp, element, b->num_axes, b->axes);
    return OK;
}

static enum status fetch_encoded(const struct fetching *f, const struct block *b, uint64_t from,
                                 uint64_t to, struct error *err)
{
    struct fetching decoding = *f;
    if (f->buffer == f->reader->cast)
        return fail(err, ERR_OURS, "a number is added to an encoded tensor");
    return block_split(b, from, to, decode_run, &decoding, err);
}

static enum status encode_run(void *context, const struct block *b, uint64_t from, uint64_t to,
                              bool *taken, struct error *err)
{
    const struct fetching *f = context;
    struct encoder *e = f->piece->encoder;
    char *out = f->buffer + dtype_run_bytes(f->dtype, to);
    *taken = block_is_run(b);
    if (!*taken) return OK;
    if (f->piece->origin == ORIGIN_GLOBAL_SCALE)
        return encoder_read_global(f->reader, e, (float *)(void *)out, err);
    if (f->piece->origin == ORIGIN_SCALES)
        return encoder_read_scales(f->reader, e, from, block_count(b), out, err);
    return encoder_read_codes(f->reader, e, f->dtype, from, block_count(b), out, err);
}

static enum status fetch_encoding(const struct fetching *f, const struct block *b, uint64_t from,
                                  uint64_t to, struct error *err)
{
    struct fetching encoding = *f;
    return block_split(b, from, to, encode_run, &encoding, err);
}

static const struct origin origins[NUM_ORIGINS] = {
    [ORIGIN_STORED] = {.is_stored = true, .has_dtype = true, .fetch = fetch_stored},
    [ORIGIN_ZERO] = {.fetch = NULL},
    [ORIGIN_RANDOM] = {.fetch = fetch_random},
    [ORIGIN_RANDOM_ONE] = {.fetch = fetch_random},
    [ORIGIN_HOLE] = {.is_hole = true},
    [ORIGIN_MEMORY] = {.is_memory = true, .has_dtype = true, .fetch = fetch_memory},
    [ORIGIN_RANDOM_SQUARE] = {.fetch = fetch_random},
    [ORIGIN_HALVES] = {.is_joined = true, .has_dtype = true, .fetch = fetch_halves},
    [ORIGIN_ENCODED] = {.is_joined = true, .fetch = fetch_encoded},
    [ORIGIN_CODES] = {.is_joined = true, .fetch = fetch_encoding},
    [ORIGIN_SCALES] = {.is_joined = true, .fetch = fetch_encoding},
    [ORIGIN_GLOBAL_SCALE] = {.is_joined = true, .fetch = fetch_encoding},
};

const struct origin *piece_origin(const struct piece *piece)
{
    return &origins[piece->origin];
}

enum dtype piece_dtype(const struct piece *piece, enum dtype tensor_dtype)
{
    return piece_origin(piece)->has_dtype ? piece->dtype : tensor_dtype;
}
