/* inflate.h - inflates raw deflate data (RFC 1951) from front to back. */
#ifndef FERRY_FORMATS_INFLATE_H
#define FERRY_FORMATS_INFLATE_H

#include <stdbool.h>
#include <zlib.h>

#include "formats/bytes.h"

struct inflater {
    z_stream z;   /* its position: total_in and total_out */
    bool started; /* false in {0} */
    uint64_t fed; /* packed bytes given to z */
    unsigned char in[16 << 10];
};

/* Starts or restarts at the first byte; false: no memory. */
MUST_CHECK bool inflater_start(struct inflater *i);
/* Gives the next *got bytes, at most `room`. *code is zlib's: Z_OK before the
 * end, Z_STREAM_END at the end, another for broken or short data. */
MUST_CHECK enum status inflater_next(struct inflater *i, const struct bytes *packed, void *to,
                                     size_t room, size_t *got, int *code, struct error *err);
void inflater_end(struct inflater *i);

#endif
