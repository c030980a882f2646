/* shuffle.h - generator and shuffle of NumPy's legacy RandomState, bit for bit.
 *
 * MT19937 (Matsumoto and Nishimura, 1998), seeded by the recurrence with
 * 1812433253. Fisher-Yates shuffle from the last element down; masked rejection
 * draws each index (numpy/random: _legacy_seeding, random_interval,
 * RandomState.shuffle). */
#ifndef FERRY_TRAIN_DATA_SHUFFLE_H
#define FERRY_TRAIN_DATA_SHUFFLE_H

#include <stdint.h>

enum { MT19937_WORDS = 624 };

struct mt19937 {
    uint32_t words[MT19937_WORDS];
    unsigned next; /* the first word that was not drawn yet */
};

void mt19937_seed(struct mt19937 *r, uint32_t seed);
uint32_t mt19937_next(struct mt19937 *r);
/* Uniform in [0, max]; no draw if max is 0. Takes words of 32 bits if max fits,
 * else of 64 bits, the high half first. */
uint64_t mt19937_up_to(struct mt19937 *r, uint64_t max);

/* As numpy.random.RandomState.shuffle of a 1-D array. */
void shuffle_u32(struct mt19937 *r, uint32_t *items, uint64_t count);

#endif
