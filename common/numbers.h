/* numbers.h - numbers as people read and write them. */
#ifndef FERRY_COMMON_NUMBERS_H
#define FERRY_COMMON_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

/* "2.47 GB", in decimal units. A static buffer, valid until the eighth call after this
 * one. */
const char *bytes_text(uint64_t bytes);
/* "1,235,814,400". Likewise. */
const char *grouped_text(uint64_t n);

/* Reads text that is decimal digits only; false for any other text and for numbers above
 * UINT64_MAX. */
bool parse_u64(const char *text, uint64_t *out);

#endif
