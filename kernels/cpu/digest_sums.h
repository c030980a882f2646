/* digest_sums.h - sums that tell whether two arrays have equal elements,
 * however they are split into parts.
 *
 * Let p = 2^61 - 1, and e_i the bits of element i of a tensor (i from 0,
 * row-major) as an unsigned little-endian integer:
 *
 *     D_k = sum over i of e_i * r_k^i  mod p
 *
 * with the primitive roots r_1 = 499170133717692731, r_2 = 2276945000874400884
 * of p. Sums of parts add up modulo p, in any order. Elements of 8 bytes count
 * as two of 4, the lower half first. Elements of 4 bits count from the lowest
 * bits of each byte up. In Python, for 2-byte elements:
 *
 *     p, r = 2**61 - 1, (499170133717692731, 2276945000874400884)
 *     e = [int.from_bytes(b[i:i+2], "little") for i in range(0, len(b), 2)]
 *     D = [sum(x * pow(r_k, i, p) for i, x in enumerate(e)) % p for r_k in r]
 *
 * Not a cryptographic hash: two tensors with one digest can be constructed. */
#ifndef FERRY_KERNELS_CPU_DIGEST_SUMS_H
#define FERRY_KERNELS_CPU_DIGEST_SUMS_H

#include <stddef.h>
#include <stdint.h>

#define DIGEST_MODULUS (((uint64_t)1 << 61) - 1)
#define DIGEST_ROOT_1 UINT64_C(499170133717692731)
#define DIGEST_ROOT_2 UINT64_C(2276945000874400884)

struct digest {
    uint64_t d[2]; /* both < p */
};

/* Adds elements first .. first + count - 1 of a tensor. element_bits: 4, 8, 16,
 * 32 or 64; with 4, first is even. Any alignment. Thread-safe. A call costs
 * about 0.25 us: one of 1 KiB runs at a quarter of the speed of one of 1
 * MiB. */
void digest_add(struct digest *d, const void *elements, unsigned element_bits, uint64_t count,
                uint64_t first);

/* Adds another part's digest. */
void digest_join(struct digest *d, const struct digest *other);

/* The implementations, for tests and benchmarks; digest_add() takes the
 * best one. */
enum digest_kind { DIGEST_PLAIN, DIGEST_AVX2, DIGEST_AVX512, NUM_DIGEST_KINDS };
int digest_kind_works(enum digest_kind kind); /* on this CPU */
void digest_add_by(enum digest_kind kind, struct digest *d, const void *elements,
                   unsigned element_bits, uint64_t count, uint64_t first);

#endif
