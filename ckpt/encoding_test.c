#include "ckpt/encoding.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"
#include "common/memory.h"
#include "tests/temporary.h"
#include "tests/testing.h"

enum { MOST_BYTES = 1 << 20, SMALL_BUFFER = 256, LARGE_BUFFER = 64 << 10 };

/* Random, in a file. */
struct example {
    struct arena arena;
    struct catalog catalog;
    struct encoded e;
    uint64_t shape[3];
    unsigned char *bytes; /* of the file */
    uint64_t size, codes_at, scales_at, zeros_at, nested_at;
    float global, numbers[QUANT_NUMBERS], nested_numbers[256];
    struct encoded_nested nested;
    char folder[TEMPORARY_PATH];
};

static struct error err;

static uint64_t *random_state(void)
{
    static uint64_t state;
    if (!state) state = test_seed();
    return &state;
}

static uint64_t below(uint64_t n)
{
    return test_below(random_state(), n);
}

/* A stored tensor of random bytes; returns its offset. */
static uint64_t add_stored(struct example *x, const char *name, enum dtype dtype, unsigned num_dims,
                           const uint64_t *shape)
{
    struct stored_tensor *t;
    const uint64_t at = x->size;
    assert_ok(stored_add_tensor(&x->catalog.stored, name, strlen(name), dtype, num_dims, shape, &t,
                                &err));
    t->pieces = arena_alloc(&x->arena, sizeof *t->pieces);
    t->pieces[0] = (struct stored_piece){.offset_bytes = at};
    t->num_pieces = 1;
    for (uint64_t i = 0; i < stored_tensor_bytes(t); i++)
        x->bytes[x->size++] = (unsigned char)below(256);
    return at;
}

static const struct tensor *wrapped(struct example *x, const char *name)
{
    struct tensor *t;
    assert_ok(catalog_wrap_stored(&x->catalog, &x->arena, stored_find(&x->catalog.stored, name), &t,
                                  &err));
    return t;
}

/* Numbers other than 0. */
static void make_scales(struct example *x, enum dtype dtype, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        unsigned char *at = x->bytes + x->scales_at + dtype_run_bytes(dtype, i);
        const float f = ldexpf(1 + (float)below(1000) / 1000, (int)below(20) - 10);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (dtype == DT_F32)
            memcpy(at, &bits, sizeof bits);
        else if (dtype == DT_BF16)
            memcpy(at, (const char *)&bits + 2, 2);
        else if (dtype == DT_F8_E4M3)
            *at = (unsigned char)(1 + below(0x7D));
        else
            *at = (unsigned char)(100 + below(50));
    }
}

/* Words of `per` elements in any order. */
static struct quant_words words_of(unsigned per, bool rows)
{
    struct quant_words w = {.rows = rows ? per : 1, .cols = rows ? 1 : per};
    for (unsigned k = 0; k < per; k++) {
        const uint64_t other = below(k + 1);
        w.slots[k] = w.slots[other];
        w.slots[other] = (unsigned char)k;
    }
    return w;
}

/* Words of codes, or none; they are full. */
static void make_words(struct example *x, unsigned num_dims, unsigned per)
{
    const bool rows = num_dims == 2 && below(2);
    if (below(2)) return;
    x->e.words = words_of(per, rows);
    if (rows) x->shape[0] = per * (1 + below(4));
}

/* Rows of groups in any order. */
static void make_lines(struct example *x)
{
    uint32_t *lines = arena_array(&x->arena, x->e.rows, sizeof *lines);
    for (uint64_t i = 0; i < x->e.rows; i++)
        lines[i] = (uint32_t)below(x->e.grid[0]);
    x->e.lines = lines;
}

/* Tables of codes, and of scales that are codes. */
static void make_tables(struct example *x, enum dtype scale)
{
    for (size_t i = 0; i < COUNT(x->nested_numbers); i++) {
        x->nested_numbers[i] = 1 + (float)below(1000) / 1000;
        x->numbers[i % QUANT_NUMBERS] = (float)below(1000) / 1000;
    }
    x->e.numbers = x->numbers;
    x->e.factor = below(2) ? 0.3f : 0;
    if (scale != DT_U8 || below(2)) return;
    const uint64_t groups = encoded_num_matrices(&x->e) * x->e.grid[0] * x->e.grid[1];
    x->nested = (struct encoded_nested){
        .numbers = x->nested_numbers, .block = 1 + below(20), .offset = (float)below(3)};
    const uint64_t count = groups / x->nested.block + 1;
    x->nested_at = add_stored(x, "nested", DT_F32, 1, &count);
    for (uint64_t i = 0; i < count; i++) {
        const float f = 1 + (float)below(100);
        memcpy(x->bytes + x->nested_at + i * sizeof f, &f, sizeof f);
    }
    x->nested.scales = wrapped(x, "nested");
    x->e.nested = &x->nested;
}

static void example_init(struct example *x)
{
    static const enum dtype scale_dtypes[] = {DT_F32, DT_BF16, DT_F8_E4M3, DT_U8, DT_F8_E8M0};
    static const enum dtype units[] = {DT_U8, DT_I32};
    const enum quant_code code = (enum quant_code)below(NUM_QUANT_CODES);
    const enum dtype unit = units[below(2)], scale = scale_dtypes[below(COUNT(scale_dtypes))];
    const unsigned num_dims = 2 + (unsigned)below(2);
    const uint64_t block[2] = {below(3) ? 1 + below(20) : 0, below(3) ? 1 + below(40) : 0};
    const bool zeros = num_dims == 2 && below(2);
    *x = (struct example){.bytes = must_malloc(MOST_BYTES)};
    arena_init(&x->arena);
    catalog_init(&x->catalog, &x->arena);
    stored_init(&x->catalog.stored);
    for (unsigned k = 0; k < num_dims; k++)
        x->shape[k] = 1 + below(k + 1 == num_dims ? 90 : 12);
    const unsigned bits = quant_infos[code].bits, per = 8 * (unsigned)dtype_bytes(unit) / bits;
    make_words(x, num_dims, per);
    encoded_set_grid(&x->e, num_dims, x->shape, block);
    const uint64_t rows = x->e.rows * encoded_num_matrices(&x->e);
    const bool tall = x->e.words.rows > 1;
    const uint64_t codes[] = {tall ? rows / per : rows,
                              tall ? x->e.cols : (x->e.cols + per - 1) / per};
    const uint64_t grid[] = {encoded_num_matrices(&x->e) * x->e.grid[0], x->e.grid[1]};
    const struct quant_words z = words_of(32 / bits, below(2));
    const uint64_t words[] = {(x->e.grid[0] + z.rows - 1) / z.rows,
                              (x->e.grid[1] + z.cols - 1) / z.cols},
                   one[] = {1};
    x->e.code = code;
    x->e.row_bytes = dtype_run_bytes(unit, codes[1]);
    x->codes_at = add_stored(x, "codes", unit, 2, codes);
    x->scales_at = add_stored(x, "scales", scale, 2, grid);
    x->zeros_at = add_stored(x, "zeros", DT_I32, 2, words);
    const uint64_t global_at = add_stored(x, "global", DT_F32, 1, one);
    make_scales(x, scale, grid[0] * grid[1]);
    x->global = 1;
    x->e.codes = wrapped(x, "codes");
    x->e.scales = wrapped(x, "scales");
    if (zeros) x->e.zeros = wrapped(x, "zeros");
    x->e.zero_words = z;
    x->e.zero_offset = (float)below(2);
    if (num_dims == 2 && !below(4)) make_lines(x);
    make_tables(x, scale);
    if (below(2)) {
        x->global = 0.3f;
        x->e.global = wrapped(x, "global");
        x->e.global_divides = below(2);
    }
    memcpy(x->bytes + global_at, &x->global, sizeof x->global);
}

static void example_write(struct example *x)
{
    struct file_stamp stamp;
    assert_true(temporary_folder(x->folder));
    const char *path = path_join(&x->arena, x->folder, "file");
    assert_ok(file_write_all(path, x->bytes, x->size, false, &err));
    assert_ok(file_stamp(path, &stamp, &err));
    (void)stored_add_file(&x->catalog.stored, path, &stamp);
}

static void example_release(struct example *x)
{
    catalog_release(&x->catalog);
    arena_release(&x->arena);
    free(x->bytes);
    assert_ok(path_remove(x->folder, &err));
}

/* The number of a code, from the lowest bits of words on. */
static float number_of(const struct encoded *e, const unsigned char *codes, uint64_t i)
{
    const unsigned half = codes[i / 2] >> i % 2 * 4 & 15;
    switch (e->code) {
    case QUANT_TABLE:
        return e->numbers[half];
    case QUANT_E4M3:
        return (float)dtype_load(DT_F8_E4M3, codes, i);
    case QUANT_E2M1:
        return (float)dtype_load(DT_F4, codes, i);
    case QUANT_I8:
        return (float)(signed char)codes[i];
    case QUANT_I4:
        return (float)half - 8;
    default:
        return (float)codes[i] - 128;
    }
}

/* Where the code of [row, col] is, in lines of `across` words. */
static uint64_t place_of(const struct quant_words *w, uint64_t across, uint64_t row, uint64_t col)
{
    const uint64_t word = row / w->rows * across + col / w->cols;
    return word * w->rows * w->cols + w->slots[row % w->rows * w->cols + col % w->cols];
}

static float stored_scale(const struct example *x, uint64_t group)
{
    const unsigned char *scales = x->bytes + x->scales_at;
    const struct encoded_nested *n = x->e.nested;
    float scale;
    if (!n && x->e.scales->dtype == DT_U8) return ldexpf(1, scales[group] - 127);
    if (!n) return (float)dtype_load(x->e.scales->dtype, scales, group);
    memcpy(&scale, x->bytes + x->nested_at + group / n->block * sizeof scale, sizeof scale);
    const float product = n->numbers[scales[group]] * scale;
    return product + n->offset;
}

/* By the words of encoding.h. */
static float expected(const struct example *x, uint64_t i)
{
    const struct encoded *e = &x->e;
    const uint64_t row = i / e->cols, col = i % e->cols, m = row % e->rows;
    const uint64_t line = e->lines ? e->lines[m] : m / e->block[0];
    const uint64_t group = (row / e->rows * e->grid[0] + line) * e->grid[1] + col / e->block[1];
    const unsigned char *codes = x->bytes + x->codes_at;
    const struct quant_words *z = &e->zero_words;
    const uint64_t bits = quant_infos[e->code].bits, across = e->row_bytes * 8 / bits;
    const float stored = stored_scale(x, group);
    const float scale = !e->global || e->nested ? stored
                        : e->global_divides     ? stored / x->global
                                                : stored * x->global;
    const uint64_t place =
        e->words.rows ? place_of(&e->words, across / (e->words.rows * e->words.cols), row, col)
                      : row * across + col;
    const uint64_t zero_place =
        place_of(z, (e->grid[1] + z->cols - 1) / z->cols, line, col / e->block[1]);
    const float zero =
        e->zeros ? number_of(e, x->bytes + x->zeros_at, zero_place) + e->zero_offset : 0;
    const float product = (number_of(e, codes, place) - zero) * scale;
    return e->factor != 0 ? product * e->factor : product;
}

static void check_runs(struct example *x, uint64_t buffer_bytes)
{
    const uint64_t numel = x->e.rows * x->e.cols * encoded_num_matrices(&x->e);
    struct stored_reader *reader = stored_reader_create(&x->catalog.stored, 2);
    struct panel_reader r = {.reader = reader,
                             .buffer_bytes = buffer_bytes,
                             .temp = must_malloc(buffer_bytes),
                             .cast = must_malloc(buffer_bytes)};
    float *out = must_malloc((numel + 1) * sizeof *out);
    for (int round = 0; round < 20; round++) {
        const uint64_t low = below(numel), count = 1 + below(numel - low);
        out[count] = 12345;
        assert_ok(encoded_read(&r, &x->e, low, count, DT_F32, out, &err));
        for (uint64_t i = 0; i < count; i++) {
            const float want = expected(x, low + i);
            if (memcmp(&out[i], &want, sizeof want) && !(isnan(out[i]) && isnan(want)))
                fail_msg("element %" PRIu64 " of %s is %g, expected %g", low + i,
                         quant_infos[x->e.code].name, (double)out[i], (double)want);
        }
        assert_true(out[count] > 12344 && out[count] < 12346);
    }
    free(out);
    free(r.temp);
    free(r.cast);
    stored_reader_free(reader);
}

static void runs_are_decoded_from_wherever_they_begin(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct example x;
        example_init(&x);
        example_write(&x);
        check_runs(&x, round % 2 ? SMALL_BUFFER : LARGE_BUFFER);
        example_release(&x);
    }
}

static enum status read_all(struct example *x)
{
    const uint64_t numel = x->e.rows * x->e.cols * encoded_num_matrices(&x->e);
    char temp[LARGE_BUFFER], cast[LARGE_BUFFER];
    struct stored_reader *reader = stored_reader_create(&x->catalog.stored, 2);
    struct panel_reader r = {
        .reader = reader, .buffer_bytes = LARGE_BUFFER, .temp = temp, .cast = cast};
    float *out = must_malloc(numel * sizeof *out);
    const enum status st = encoded_read(&r, &x->e, 0, numel, DT_F32, out, &err);
    free(out);
    stored_reader_free(reader);
    return st;
}

static void example_of_f32_scales(struct example *x)
{
    for (;;) {
        example_init(x);
        if (x->e.scales->dtype == DT_F32 && x->e.code == QUANT_I8 && !x->e.zeros) return;
        catalog_release(&x->catalog);
        arena_release(&x->arena);
        free(x->bytes);
    }
}

static void scales_that_are_no_numbers_are_refused(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct example x;
        example_of_f32_scales(&x);
        memcpy(x.bytes + x.scales_at, &bad[i], sizeof *bad);
        example_write(&x);
        assert_fails(read_all(&x), ERR_CORRUPT, "scales: scale 0 is");
        example_release(&x);
    }
}

static void a_scale_of_zero_is_refused_unless_codes_are_zero(void **state)
{
    (void)state;
    const float zero = 0;
    for (int all = 0; all < 2; all++) {
        struct example x;
        example_of_f32_scales(&x);
        memcpy(x.bytes + x.scales_at, &zero, sizeof zero);
        memset(x.bytes + x.codes_at, 0, x.scales_at - x.codes_at);
        if (!all) x.bytes[x.codes_at] = 1;
        example_write(&x);
        if (all)
            assert_ok(read_all(&x));
        else
            assert_fails(read_all(&x), ERR_CORRUPT,
                         "scales: a scale of row 0 is 0, but not all its codes");
        example_release(&x);
    }
}

/* The mistakes, by their words. */
static float mistaken(const struct example *x, uint64_t i)
{
    struct example wrong = *x;
    const struct encoded *e = &x->e;
    const uint64_t row = i / e->cols, col = i % e->cols, m = row % e->rows;
    const uint64_t first = row / e->rows * e->grid[0];
    const uint64_t line = e->lines ? e->lines[m] : m / e->block[0], group = col / e->block[1];
    const size_t bytes = dtype_bytes(e->scales->dtype);
    const uint64_t size = x->size;
    wrong.bytes = must_malloc(size);
    memcpy(wrong.bytes, x->bytes, size);
    if (e->mistake == MISTAKE_HALVES_SWAPPED)
        for (uint64_t k = x->codes_at; k < x->scales_at; k++)
            wrong.bytes[k] = (unsigned char)(x->bytes[k] >> 4 | x->bytes[k] << 4);
    if (e->mistake == MISTAKE_GRID_TRANSPOSED)
        memcpy(wrong.bytes + x->scales_at + ((first + line) * e->grid[1] + group) * bytes,
               x->bytes + x->scales_at + ((first + group) * e->grid[1] + line) * bytes, bytes);
    const float out = expected(&wrong, i);
    free(wrong.bytes);
    return out;
}

static void mistakes_are_made_as_their_words_say(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        struct example x;
        do { /* what both can be made of */
            example_init(&x);
            x.e.mistake = round % 2 ? MISTAKE_HALVES_SWAPPED : MISTAKE_GRID_TRANSPOSED;
            if (encoded_may_be(&x.e, x.e.mistake)) break;
            catalog_release(&x.catalog);
            arena_release(&x.arena);
            free(x.bytes);
        } while (true);
        example_write(&x);
        const uint64_t numel = x.e.rows * x.e.cols * encoded_num_matrices(&x.e);
        char temp[LARGE_BUFFER], cast[LARGE_BUFFER];
        struct stored_reader *reader = stored_reader_create(&x.catalog.stored, 2);
        struct panel_reader r = {
            .reader = reader, .buffer_bytes = LARGE_BUFFER, .temp = temp, .cast = cast};
        float *out = must_malloc(numel * sizeof *out);
        assert_ok(encoded_read(&r, &x.e, 0, numel, DT_F32, out, &err));
        for (uint64_t i = 0; i < numel; i += 1 + below(9)) {
            const float want = mistaken(&x, i);
            assert_true(!memcmp(&out[i], &want, sizeof want) || (isnan(out[i]) && isnan(want)));
        }
        free(out);
        stored_reader_free(reader);
        example_release(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_are_decoded_from_wherever_they_begin),
        cmocka_unit_test(mistakes_are_made_as_their_words_say),
        cmocka_unit_test(scales_that_are_no_numbers_are_refused),
        cmocka_unit_test(a_scale_of_zero_is_refused_unless_codes_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
