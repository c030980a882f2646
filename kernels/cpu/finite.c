#include "kernels/cpu/finite.h"

#include <string.h>

enum { BLOCK = 4096 }; /* elements; only blocks with non-finite ones are counted */

/* Elements e that are not finite: (e & mask) == pattern. */
static const struct {
    uint64_t mask, pattern;
} non_finite[NUM_DTYPES] = {
    [DT_F8_E5M2] = {0x7C, 0x7C},
    [DT_F8_E4M3] = {0x7F, 0x7F},
    [DT_F8_E8M0] = {0xFF, 0xFF},
    [DT_F8_E4M3FNUZ] = {0xFF, 0x80},
    [DT_F8_E5M2FNUZ] = {0xFF, 0x80},
    [DT_F16] = {0x7C00, 0x7C00},
    [DT_BF16] = {0x7F80, 0x7F80},
    [DT_F32] = {0x7F800000, 0x7F800000},
    [DT_F64] = {0x7FF0000000000000, 0x7FF0000000000000},
};

/* The loops of one width. `any` is as wide as an element, so that vectors hold
 * equally many of both. */
#define COUNT_FUNCTION(name, type, attribute)                                                      \
    attribute static uint64_t name(const char *from, size_t n, uint64_t wide_mask,                 \
                                   uint64_t wide_pattern)                                          \
    {                                                                                              \
        const type mask = (type)wide_mask, pattern = (type)wide_pattern;                           \
        uint64_t count = 0;                                                                        \
        for (size_t low = 0; low < n; low += BLOCK) {                                              \
            const char *block = from + low * sizeof(type);                                         \
            size_t length = n - low < BLOCK ? n - low : BLOCK;                                     \
            type e, any = 0;                                                                       \
            for (size_t i = 0; i < length; i++) {                                                  \
                memcpy(&e, block + i * sizeof e, sizeof e);                                        \
                any |= (type) - ((type)(e & mask) == pattern);                                     \
            }                                                                                      \
            for (size_t i = 0; any && i < length; i++) {                                           \
                memcpy(&e, block + i * sizeof e, sizeof e);                                        \
                count += (type)(e & mask) == pattern;                                              \
            }                                                                                      \
        }                                                                                          \
        return count;                                                                              \
    }

/* Each plain function has a twin for wider vectors, chosen at run time. */
#if defined(__x86_64__)
#define COUNT_FUNCTIONS(name, type)                                                                \
    COUNT_FUNCTION(name##_plain, type, )                                                           \
    COUNT_FUNCTION(name##_avx2, type, __attribute__((target("avx2"))))                             \
    static uint64_t name(const char *from, size_t n, uint64_t mask, uint64_t pattern)              \
    {                                                                                              \
        return __builtin_cpu_supports("avx2") ? name##_avx2(from, n, mask, pattern)                \
                                              : name##_plain(from, n, mask, pattern);              \
    }
#else
#define COUNT_FUNCTIONS(name, type) COUNT_FUNCTION(name, type, )
#endif

COUNT_FUNCTIONS(count_8, uint8_t)
COUNT_FUNCTIONS(count_16, uint16_t)
COUNT_FUNCTIONS(count_32, uint32_t)
COUNT_FUNCTIONS(count_64, uint64_t)

uint64_t count_non_finite(enum dtype dtype, const void *elements, size_t n)
{
    uint64_t mask = non_finite[dtype].mask, pattern = non_finite[dtype].pattern;
    if (!mask) return 0;
    switch (dtype_bytes(dtype)) {
    case 1:
        return count_8(elements, n, mask, pattern);
    case 2:
        return count_16(elements, n, mask, pattern);
    case 4:
        return count_32(elements, n, mask, pattern);
    default:
        return count_64(elements, n, mask, pattern);
    }
}
