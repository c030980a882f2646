/* inflate.h - raw deflate data (RFC 1951), inflated from front to back. */
#ifndef FERRY_FORMATS_INFLATE_H
#define FERRY_FORMATS_INFLATE_H

#include <stdbool.h>
#include <zlib.h>

#include "formats/bytes.h"

struct inflater {
    z_stream z;   /* total_in and total_out tell how far it is */
    bool started; /* false in {0} */
    uint64_t fed; /* bytes of the packed data that z was given */
    unsigned char in[16 << 10];
};

/* At the front, for the first time or again; false: no memory. */
MUST_CHECK bool inflater_start(struct inflater *i);
/* The next bytes, *got of them, at most `room`. *code is what zlib says: Z_OK while there is more,
 * Z_STREAM_END behind the last byte, all else where the data is broken or cut short. */
MUST_CHECK enum status inflater_next(struct inflater *i, const struct bytes *packed, void *to,
                                     size_t room, size_t *got, int *code, struct error *err);
void inflater_end(struct inflater *i);

#endif
