#include "common/utf8.h"

#include <stdint.h>
#include <string.h>

size_t utf8_sequence(const char *text, size_t length)
{
    const unsigned char *s = (const unsigned char *)text;
    if (length == 0) return 0;
    if (s[0] < 0x80) return 1;
    /* The second byte's range depends on the first; further ones are 80..BF. */
    size_t n = s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    if (n == 0 || n > length) return 0;
    unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    return n;
}

bool utf8_valid(const char *text, size_t length, size_t *bad)
{
    size_t i = 0;
    while (i < length) {
        uint64_t eight;
        if (length - i >= 8 && (memcpy(&eight, text + i, 8), !(eight & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        size_t n = utf8_sequence(text + i, length - i);
        if (n == 0) {
            if (bad) *bad = i;
            return false;
        }
        i += n;
    }
    return true;
}
