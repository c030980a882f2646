/* quant_bench.c - codes decoded and encoded by one CPU, in GB of BF16 a second. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/memory.h"
#include "kernels/cpu/quant.h"

enum { LENGTH = 1 << 18, ROUNDS = 200 };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void row(const char *name, enum quant_code code, size_t group)
{
    unsigned char *codes = must_malloc(LENGTH);
    float *scales = must_malloc(LENGTH * sizeof *scales),
          *numbers = must_malloc(LENGTH * sizeof *numbers);
    void *out = must_malloc(LENGTH * sizeof *numbers);
    for (size_t i = 0; i < LENGTH; i++) {
        codes[i] = (unsigned char)(rand() & 0x7E);
        scales[i] = 0.01f;
        numbers[i] = (float)(rand() % 2001 - 1000) * 1e-4f;
    }
    const struct quant_run run = {.code = code, .count = LENGTH, .group = group, .scales = scales};
    double begin = seconds();
    for (int i = 0; i < ROUNDS; i++)
        quant_decode(&run, codes, DT_BF16, out);
    const double decoding = seconds() - begin;
    begin = seconds();
    for (int i = 0; i < ROUNDS; i++)
        quant_encode(&run, numbers, codes);
    const double encoding = seconds() - begin, bytes = 2.0 * LENGTH * ROUNDS * 1e-9;
    printf("%-62s %.1f GB/s, %.1f GB/s\n", name, bytes / decoding, bytes / encoding);
    free(codes);
    free(scales);
    free(numbers);
    free(out);
}

int main(void)
{
    row("FP8 in blocks of 128 columns: decode, encode", QUANT_E4M3, 128);
    row("MXFP8, groups of 32", QUANT_E4M3, 32);
    row("MXFP4, groups of 32", QUANT_E2M1, 32);
    row("NVFP4, groups of 16", QUANT_E2M1, 16);
    row("INT4, groups of 32", QUANT_I4, 32);
    return 0;
}
