/* numbers.h - numbers as people read them. */
#ifndef FERRY_COMMON_NUMBERS_H
#define FERRY_COMMON_NUMBERS_H

#include <stdint.h>

/* "2.47 GB", in decimal units. Static text, which holds for the next seven calls. */
const char *bytes_text(uint64_t bytes);
/* "1,235,814,400". Likewise. */
const char *grouped_text(uint64_t n);

#endif
