#include "kernels/cpu/axes.h"

#include <stdbool.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { MAX_BLOCK_AXES = 16 };

/* A block being copied: the remaining axes, the two fastest last. */
struct copy {
    size_t bytes; /* of an element */
    unsigned num_axes;
    struct axis axes[MAX_BLOCK_AXES];
};

/* Transposing goes in tiles of TILE x TILE elements, which fit the L1 cache. */
enum { TILE = 32 };

/* One row of b: n elements, a_stride apart in a and b_stride apart in b. */
#define STRIDED_ROW(type)                                                                          \
    for (uint64_t i = 0; i < n; i++, a += a_stride * sizeof(type), b += b_stride * sizeof(type))   \
    memcpy(b, a, sizeof(type))

static void copy_row(char *b, const char *a, size_t bytes, uint64_t n, uint64_t a_stride,
                     uint64_t b_stride)
{
    struct two_words {
        uint64_t low, high;
    };
    switch (bytes) {
    case 1:
        STRIDED_ROW(uint8_t);
        break;
    case 2:
        STRIDED_ROW(uint16_t);
        break;
    case 4:
        STRIDED_ROW(uint32_t);
        break;
    case 8:
        STRIDED_ROW(uint64_t);
        break;
    default:
        STRIDED_ROW(struct two_words);
        break;
    }
}

#ifdef __SSE2__
/* 8 x 8 elements of 2 bytes: rows of a, a_pitch bytes apart, become
 * b's columns. */
static void transpose_2(char *b, size_t b_pitch, const char *a, size_t a_pitch)
{
    __m128i r[8], s[8];
    for (size_t i = 0; i < 8; i++)
        r[i] = _mm_loadu_si128((const __m128i *)(const void *)(a + i * a_pitch));
    for (size_t i = 0; i < 4; i++) {
        s[2 * i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
        s[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + 4]);
    }
    for (size_t i = 0; i < 4; i++) {
        r[2 * i] = _mm_unpacklo_epi16(s[i], s[i + 4]);
        r[2 * i + 1] = _mm_unpackhi_epi16(s[i], s[i + 4]);
    }
    for (size_t i = 0; i < 4; i++) {
        _mm_storeu_si128((__m128i *)(void *)(b + 2 * i * b_pitch),
                         _mm_unpacklo_epi16(r[i], r[i + 4]));
        _mm_storeu_si128((__m128i *)(void *)(b + (2 * i + 1) * b_pitch),
                         _mm_unpackhi_epi16(r[i], r[i + 4]));
    }
}

/* 4 x 4 elements of 4 bytes. */
static void transpose_4(char *b, size_t b_pitch, const char *a, size_t a_pitch)
{
    __m128i r[4], s[4];
    for (size_t i = 0; i < 4; i++)
        r[i] = _mm_loadu_si128((const __m128i *)(const void *)(a + i * a_pitch));
    s[0] = _mm_unpacklo_epi32(r[0], r[2]);
    s[1] = _mm_unpackhi_epi32(r[0], r[2]);
    s[2] = _mm_unpacklo_epi32(r[1], r[3]);
    s[3] = _mm_unpackhi_epi32(r[1], r[3]);
    _mm_storeu_si128((__m128i *)(void *)b, _mm_unpacklo_epi32(s[0], s[2]));
    _mm_storeu_si128((__m128i *)(void *)(b + b_pitch), _mm_unpackhi_epi32(s[0], s[2]));
    _mm_storeu_si128((__m128i *)(void *)(b + 2 * b_pitch), _mm_unpacklo_epi32(s[1], s[3]));
    _mm_storeu_si128((__m128i *)(void *)(b + 3 * b_pitch), _mm_unpackhi_epi32(s[1], s[3]));
}
#endif

/* b[c][r] = a[r][c], of contiguous columns in a and contiguous rows in b. */
static void transpose_tile(char *b, size_t b_pitch, const char *a, size_t a_pitch, size_t bytes,
                           uint64_t rows, uint64_t columns)
{
#ifdef __SSE2__
    uint64_t block = bytes == 2 ? 8 : bytes == 4 ? 4 : 0;
    if (block && rows % block == 0 && columns % block == 0) {
        for (uint64_t r = 0; r < rows; r += block)
            for (uint64_t c = 0; c < columns; c += block)
                (bytes == 2 ? transpose_2 : transpose_4)(b + c * b_pitch + r * bytes, b_pitch,
                                                         a + r * a_pitch + c * bytes, a_pitch);
        return;
    }
#endif
    for (uint64_t c = 0; c < columns; c++)
        copy_row(b + c * b_pitch, a + c * bytes, bytes, rows, a_pitch / bytes, 1);
}

/* The last two axes, if a is contiguous along `y` and b along `x`. */
static void transpose(char *b, const char *a, size_t bytes, const struct axis *x,
                      const struct axis *y)
{
    size_t a_pitch = x->a_stride * bytes, b_pitch = y->b_stride * bytes;
    for (uint64_t r = 0; r < x->extent; r += TILE)
        for (uint64_t c = 0; c < y->extent; c += TILE) {
            uint64_t rows = x->extent - r < TILE ? x->extent - r : TILE;
            uint64_t columns = y->extent - c < TILE ? y->extent - c : TILE;
            transpose_tile(b + c * b_pitch + r * bytes, b_pitch, a + r * a_pitch + c * bytes,
                           a_pitch, bytes, rows, columns);
        }
}

/* Moves the axis on which `side` is contiguous to position `at`; false if
 * none is. */
static bool move_axis(struct copy *c, bool side_b, unsigned at)
{
    for (unsigned k = 0; k <= at; k++) {
        struct axis x = c->axes[k];
        if ((side_b ? x.b_stride : x.a_stride) != 1) continue;
        memmove(c->axes + k, c->axes + k + 1, (at - k) * sizeof x);
        c->axes[at] = x;
        return true;
    }
    return false;
}

static void copy_from(const struct copy *c, unsigned axis, char *b, const char *a)
{
    unsigned left = c->num_axes - axis;
    const struct axis *x = &c->axes[axis];
    if (left == 0) {
        memcpy(b, a, c->bytes);
    } else if (left == 1) {
        if (x->a_stride == 1 && x->b_stride == 1)
            memcpy(b, a, x->extent * c->bytes);
        else
            copy_row(b, a, c->bytes, x->extent, x->a_stride, x->b_stride);
    } else if (left == 2 && x[0].b_stride == 1 && x[1].a_stride == 1) {
        transpose(b, a, c->bytes, &x[0], &x[1]);
    } else {
        for (uint64_t i = 0; i < x->extent; i++)
            copy_from(c, axis + 1, b + i * x->b_stride * c->bytes, a + i * x->a_stride * c->bytes);
    }
}

void copy_axes(void *b, const void *a, size_t element_bytes, unsigned num_axes,
               const struct axis *axes)
{
    struct copy c = {.bytes = element_bytes};
    for (unsigned k = 0; k < num_axes; k++) {
        if (axes[k].extent == 0) return;
        if (axes[k].extent > 1) c.axes[c.num_axes++] = axes[k];
    }
    /* The axis on which both are contiguous goes last. If there is none, a's
     * goes last and b's before it, to be transposed. Others keep their
     * order. */
    if (c.num_axes && move_axis(&c, false, c.num_axes - 1) && c.num_axes > 1 &&
        c.axes[c.num_axes - 1].b_stride != 1)
        (void)move_axis(&c, true, c.num_axes - 2);
    copy_from(&c, 0, b, a);
}

void swap_bytes(void *elements, size_t element_bytes, size_t count)
{
    char *p = elements;
    for (size_t i = 0; i < count; i++, p += element_bytes)
        for (size_t k = 0; k < element_bytes / 2; k++) {
            char byte = p[k];
            p[k] = p[element_bytes - 1 - k];
            p[element_bytes - 1 - k] = byte;
        }
}
