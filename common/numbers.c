#include "common/numbers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *bytes_text(uint64_t bytes)
{
    static const char units[] = "kMGTPE";
    static char texts[8][24];
    static int turn;
    char *out = texts[turn = (turn + 1) % 8];
    double n = (double)bytes;
    int unit = -1;
    while (n >= 999.5 && unit < 5)
        n /= 1000, unit++;
    if (unit < 0)
        snprintf(out, sizeof *texts, "%" PRIu64 " B", bytes);
    else
        snprintf(out, sizeof *texts,
                 n < 9.995   ? "%.2f %cB"
                 : n < 99.95 ? "%.1f %cB"
                             : "%.0f %cB",
                 n, units[unit]);
    return out;
}

const char *grouped_text(uint64_t n)
{
    static char texts[8][32];
    static int turn;
    char *out = texts[turn = (turn + 1) % 8] + sizeof *texts - 1;
    *out = '\0';
    for (int digits = 0; n || !digits; n /= 10, digits++) {
        if (digits && digits % 3 == 0) *--out = ',';
        *--out = (char)('0' + n % 10);
    }
    return out;
}

bool parse_u64(const char *text, uint64_t *out)
{
    if (!*text || text[strspn(text, "0123456789")]) return false;
    errno = 0;
    unsigned long long v = strtoull(text, NULL, 10);
    if (errno == ERANGE) return false;
    *out = v;
    return true;
}
