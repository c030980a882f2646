#include "formats/inflate.h"

#include "common/checked.h"

bool inflater_start(struct inflater *i)
{
    inflater_end(i);
    i->z = (z_stream){0};
    i->fed = 0;
    i->started = inflateInit2(&i->z, -MAX_WBITS) == Z_OK;
    return i->started;
}

enum status inflater_next(struct inflater *i, const struct bytes *packed, void *to, size_t room,
                          size_t *got, int *code, struct error *err)
{
    if (!i->z.avail_in) {
        size_t n = (size_t)min_u64(packed->size_bytes - i->fed, sizeof i->in);
        TRY(bytes_read(packed, i->fed, i->in, n, err));
        i->fed += n;
        i->z.next_in = i->in;
        i->z.avail_in = (uInt)n;
    }
    room = (size_t)min_u64(room, 1u << 30);
    i->z.next_out = to;
    i->z.avail_out = (uInt)room;
    *code = inflate(&i->z, Z_NO_FLUSH);
    *got = room - i->z.avail_out;
    return OK;
}

void inflater_end(struct inflater *i)
{
    if (i->started) inflateEnd(&i->z);
    i->started = false;
}
