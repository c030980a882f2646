#include "kernels/cpu/remainders.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

bool is_remainder(double number)
{
    return number >= INT16_MIN && number <= INT16_MAX && !(number > floor(number));
}

/* Remainder i; false: it is none. */
static bool remainder_of(const char *remainders, enum dtype dtype, size_t i, int16_t *out)
{
    float number;
    if (dtype == DT_I16) {
        memcpy(out, remainders + i * sizeof *out, sizeof *out);
        return true;
    }
    memcpy(&number, remainders + i * sizeof number, sizeof number);
    if (!is_remainder((double)number)) return false;
    *out = (int16_t)number;
    return true;
}

size_t join_remainders(void *masters, const void *weights, const void *remainders, enum dtype dtype,
                       size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t weight;
        int16_t remainder;
        if (!remainder_of(remainders, dtype, i, &remainder)) return i;
        memcpy(&weight, (const char *)weights + i * sizeof weight, sizeof weight);
        const uint32_t upper = (uint16_t)(weight - (remainder < 0));
        const uint32_t master = upper << 16 | (uint16_t)remainder;
        memcpy((char *)masters + i * sizeof master, &master, sizeof master);
    }
    return n;
}
