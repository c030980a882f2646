/* bytes_decode.c - contents of packed data: bytes_decode() of bytes.h. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/checked.h"
#include "common/memory.h"
#include "formats/bytes.h"
#include "formats/inflate.h"

/* ---- inflated ---- */

/* Inflating goes forward; an earlier offset starts at the first byte. */
struct inflated {
    pthread_mutex_t mutex; /* held during a read */
    const struct bytes *packed;
    struct inflater inflater;
    unsigned char skipped[16 << 10];
};

static enum status inflate_next(struct inflated *x, const struct bytes *b, void *to, size_t count,
                                struct error *err)
{
    for (size_t done = 0, got; done < count; done += got) {
        int code;
        TRY(inflater_next(&x->inflater, x->packed, (char *)to + done, count - done, &got, &code,
                          err));
        if (done + got < count && code != Z_OK)
            return fail(
                err, ERR_CORRUPT,
                "%s: deflated data at %" PRIu64 " ends or breaks at byte %" PRIu64 " of %" PRIu64,
                b->path, x->packed->start, (uint64_t)x->inflater.z.total_out, b->size_bytes);
    }
    return OK;
}

static enum status inflate_at(struct inflated *x, const struct bytes *b, uint64_t at, void *to,
                              size_t count, struct error *err)
{
    struct inflater *i = &x->inflater;
    if ((!i->started || at < i->z.total_out) && !inflater_start(i))
        return fail(err, ERR_MEMORY, "%s: no memory to inflate", b->path);
    while (i->z.total_out < at) {
        size_t n = (size_t)min_u64(at - i->z.total_out, sizeof x->skipped);
        TRY(inflate_next(x, b, x->skipped, n, err));
    }
    return inflate_next(x, b, to, count, err);
}

static enum status read_inflated(const struct bytes *b, uint64_t at, void *to, size_t count,
                                 struct error *err)
{
    struct inflated *x = b->from.state;
    pthread_mutex_lock(&x->mutex);
    enum status st = inflate_at(x, b, at, to, count, err);
    if (st) inflater_end(&x->inflater); /* the next read starts at the first byte */
    pthread_mutex_unlock(&x->mutex);
    return st;
}

static void free_inflated(struct bytes *b)
{
    struct inflated *x = b->from.state;
    inflater_end(&x->inflater);
    pthread_mutex_destroy(&x->mutex);
    free(x);
}

static void *make_inflated(const struct bytes *packed)
{
    struct inflated *x = must_calloc(1, sizeof *x);
    x->packed = packed;
    pthread_mutex_init(&x->mutex, NULL);
    return x;
}

/* ---- decoders ---- */

static const struct {
    struct bytes_kind kind;
    void *(*make)(const struct bytes *packed);
} decoders[] = {
    [BYTES_DEFLATED] = {{read_inflated, NULL, free_inflated}, make_inflated},
};

void bytes_decode(struct bytes *b, enum bytes_coding coding, const struct bytes *packed,
                  uint64_t size_bytes)
{
    *b = (struct bytes){
        .kind = &decoders[coding].kind,
        .path = packed->path,
        .size_bytes = size_bytes,
        .from.state = decoders[coding].make(packed),
    };
}
