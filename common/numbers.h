/* numbers.h - numbers as people read and write them. */
#ifndef FERRY_COMMON_NUMBERS_H
#define FERRY_COMMON_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

/* "2.47 GB", in decimal units. A static buffer, overwritten by the eighth call
 * after this one. */
const char *bytes_text(uint64_t bytes);
/* "1,235,814,400". A static buffer, as bytes_text(). */
const char *grouped_text(uint64_t n);

/* Reads decimal digits; false for other text and above UINT64_MAX. */
bool parse_u64(const char *text, uint64_t *out);

#endif
