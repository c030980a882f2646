/* inflate.h - inflates raw deflate data (RFC 1951) from front to back. */
#ifndef FERRY_FORMATS_INFLATE_H
#define FERRY_FORMATS_INFLATE_H

#include <stdbool.h>
#include <zlib.h>

#include "formats/bytes.h"

struct inflater {
    z_stream z;   /* its position: total_in and total_out */
    bool started; /* false in {0} */
    uint64_t fed; /* bytes of the packed data that z has got */
    unsigned char in[16 << 10];
};

/* Starts at the first byte, also after an earlier start; false: no memory. */
MUST_CHECK bool inflater_start(struct inflater *i);
/* Gives the next bytes, *got of them, at most `room`. *code is zlib's: Z_OK while there is more,
 * Z_STREAM_END at the end, another if the data is broken or cut short. */
MUST_CHECK enum status inflater_next(struct inflater *i, const struct bytes *packed, void *to,
                                     size_t room, size_t *got, int *code, struct error *err);
void inflater_end(struct inflater *i);

#endif
