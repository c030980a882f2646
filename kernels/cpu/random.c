#include "kernels/cpu/random.h"

#include <math.h>
#include <stdbool.h>

#include "kernels/cpu/cast.h"

enum { LANES = 4, BLOCK = 512 };

/* splitmix64's output function (Steele, Lea, Flood 2014) */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t random_seed_of(uint64_t seed, const char *name)
{
    uint64_t h = mix(seed + 0x9E3779B97F4A7C15u);
    for (; *name; name++)
        h = mix(h ^ (unsigned char)*name);
    return h;
}

uint32_t random_stream(uint64_t seed, const char *name)
{
    return (uint32_t)(random_seed_of(seed, name) >> 32);
}

/* One word's four 16-bit numbers become elements 4 * word .. 4 * word + 3. */
static void make_words(float *to, uint32_t stream, float mean, uint64_t first_word, size_t words)
{
    const float scale = 0.02f * 1.7320508f / 32768; /* sqrt(3), for a uniform distribution */
    for (size_t i = 0; i < words; i++) {
        uint64_t z = mix(((uint64_t)stream << 32) + (first_word + i) * 0x9E3779B97F4A7C15u);
        for (int lane = 0; lane < LANES; lane++, z >>= 16)
            to[i * LANES + (size_t)lane] = mean + ((float)(int16_t)(z & 0xFFFF) + 0.5f) * scale;
    }
}

static void make_elements(void *to, enum dtype dtype, uint32_t stream, float mean, bool squares,
                          uint64_t first, size_t count)
{
    float block[BLOCK];
    char *out = to;
    for (size_t done = 0; done < count;) {
        uint64_t at = first + done, skip = at % LANES;
        size_t n = BLOCK - skip < count - done ? BLOCK - skip : count - done;
        make_words(block, stream, mean, at / LANES, (skip + n + LANES - 1) / LANES);
        for (size_t i = skip; squares && i < skip + n; i++)
            block[i] *= block[i];
        (void)cast_elements(out + dtype_run_bytes(dtype, done), dtype, block + skip, DT_F32, n);
        done += n;
    }
}

void random_elements(void *to, enum dtype dtype, uint32_t stream, float mean, uint64_t first,
                     size_t count)
{
    make_elements(to, dtype, stream, mean, false, first, count);
}

void random_squares(void *to, enum dtype dtype, uint32_t stream, uint64_t first, size_t count)
{
    make_elements(to, dtype, stream, 0, true, first, count);
}

double random_uniform(uint64_t seed, uint64_t index)
{
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    return (double)(mix(mix(seed + golden) + index * golden) >> 11) * 0x1p-53;
}

double random_normal(uint64_t seed, uint64_t index)
{
    const double turn = 6.28318530717958647693;
    const double u = 1 - random_uniform(seed, 2 * index); /* not 0 */
    return sqrt(-2 * log(u)) * cos(turn * random_uniform(seed, 2 * index + 1));
}
