#include "train/data/shuffle.h"

void mt19937_seed(struct mt19937 *r, uint32_t seed)
{
    for (unsigned i = 0; i < MT19937_WORDS; i++) {
        r->words[i] = seed;
        seed = 1812433253u * (seed ^ seed >> 30) + i + 1;
    }
    r->next = MT19937_WORDS;
}

static void generate_words(struct mt19937 *r)
{
    enum { N = MT19937_WORDS, M = 397 };
    for (unsigned i = 0; i < N; i++) {
        const uint32_t y = (r->words[i] & 0x80000000u) | (r->words[(i + 1) % N] & 0x7FFFFFFFu);
        r->words[i] = r->words[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908B0DFu : 0);
    }
    r->next = 0;
}

uint32_t mt19937_next(struct mt19937 *r)
{
    if (r->next == MT19937_WORDS) generate_words(r);
    uint32_t y = r->words[r->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9D2C5680u;
    y ^= y << 15 & 0xEFC60000u;
    return y ^ y >> 18;
}

static uint64_t next_u64(struct mt19937 *r)
{
    const uint64_t high = mt19937_next(r);
    return high << 32 | mt19937_next(r);
}

/* The smallest 2^k - 1 that is at least max. */
static uint64_t mask_of(uint64_t max)
{
    for (unsigned shift = 1; shift < 64; shift *= 2)
        max |= max >> shift;
    return max;
}

uint64_t mt19937_up_to(struct mt19937 *r, uint64_t max)
{
    const uint64_t mask = mask_of(max);
    uint64_t n;
    if (max == 0) return 0;
    do {
        n = (max <= UINT32_MAX ? mt19937_next(r) : next_u64(r)) & mask;
    } while (n > max);
    return n;
}

void shuffle_u32(struct mt19937 *r, uint32_t *items, uint64_t count)
{
    for (uint64_t i = count; i-- > 1;) {
        const uint64_t j = mt19937_up_to(r, i);
        const uint32_t item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}
