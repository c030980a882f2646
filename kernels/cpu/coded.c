#include "kernels/cpu/coded.h"

#include "kernels/cpu/cast.h"

/* Elements that are decoded at once. */
enum { AT_ONCE = 512 };

static uint64_t aligned(uint64_t bytes)
{
    const uint64_t unit = 16;
    return (bytes + unit - 1) / unit * unit;
}

static uint64_t num_codes(const struct weight_coding *c)
{
    return UINT64_C(1) << c->bits;
}

bool coding_place(struct weight_coding *c, uint64_t rows, uint64_t cols)
{
    const unsigned bits = c->bits = quant_infos[c->code].bits;
    const uint64_t scale = c->scales_are_e8m0 ? 1 : sizeof(float);
    c->scales_at = aligned(rows * (cols * bits / 8));
    c->numbers_at = c->scales_at + aligned(rows * coding_groups(c, cols) * scale);
    c->bytes = c->numbers_at + num_codes(c) * sizeof(float);
    return cols * bits % 8 == 0;
}

void coding_write_numbers(const struct weight_coding *c, void *data)
{
    const float one = 1;
    for (uint64_t i = 0; i < num_codes(c); i++) {
        const uint8_t code = (uint8_t)i;
        const struct quant_run run = {.code = c->code, .count = 1, .group = 1, .scales = &one};
        quant_decode(&run, &code, DT_F32, (char *)data + c->numbers_at + i * sizeof(float));
    }
}

/* Scales [first, first + count); `to`: room for them. */
static const float *scales_of(const struct weight_coding *c, const char *data, uint64_t first,
                              uint64_t count, float *to)
{
    const char *scales = data + c->scales_at;
    if (!c->scales_are_e8m0) return (const float *)(const void *)scales + first;
    for (uint64_t i = 0; i < count; i++)
        to[i] = quant_e8m0(((const uint8_t *)scales)[first + i]);
    return to;
}

/* Reads at most AT_ONCE elements. */
static void read_some(const struct operand *w, uint64_t row, uint64_t col, uint64_t count,
                      enum dtype dtype, void *to)
{
    const struct weight_coding *c = w->coding;
    const uint64_t cols = w->shape[w->num_dims - 1], bits = c->bits;
    const uint64_t first = col / c->group, groups = (col + count - 1) / c->group - first + 1;
    const char *codes = (const char *)w->data + row * (cols * bits / 8) + col * bits / 8;
    float scales[AT_ONCE];
    double rounded[AT_ONCE]; /* of any dtype */
    const struct quant_run run = {
        .code = c->code,
        .first = col * bits % 8 != 0,
        .count = count,
        .group = c->group,
        .phase = col % c->group,
        .scales = scales_of(c, w->data, row * coding_groups(c, cols) + first, groups, scales),
    };
    if (dtype == c->dtype) {
        quant_decode(&run, codes, dtype, to);
        return;
    }
    quant_decode(&run, codes, c->dtype, rounded);
    (void)cast_elements(to, dtype, rounded, c->dtype, count);
}

void coded_read(const struct operand *w, uint64_t row, uint64_t col, uint64_t count,
                enum dtype dtype, void *to)
{
    char *out = to;
    for (uint64_t end = col + count, n; col < end; col += n, out += dtype_run_bytes(dtype, n)) {
        n = end - col < AT_ONCE ? end - col : AT_ONCE;
        read_some(w, row, col, n, dtype, out);
    }
}
