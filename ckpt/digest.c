#include "ckpt/digest.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

void digest_add_elements(struct digest *d, enum dtype dtype, const void *elements, uint64_t count,
                         uint64_t first)
{
    unsigned bits = dtype_infos[dtype].bits, words = bits > 64 ? bits / 64 : 1;
    if (bits % 4) {
        bits = 8;
        count = dtype_run_bytes(dtype, count);
        first = dtype_run_bytes(dtype, first);
    }
    digest_add(d, elements, bits / words, count * words, first * words);
}

void digest_print(struct strbuf *out, const struct tensor_digest *d)
{
    strbuf_printf(out, "%s[", dtype_infos[d->dtype].name);
    for (unsigned k = 0; k < d->num_dims; k++)
        strbuf_printf(out, "%s%" PRIu64, k ? "," : "", d->shape[k]);
    strbuf_printf(out, "]:%016" PRIx64 "%016" PRIx64, d->sums.d[0], d->sums.d[1]);
}

static int by_logical_name(const void *a, const void *b)
{
    const struct tensor_digest *x = a, *y = b;
    bool moment_x = name_is_optimizer(x->name), moment_y = name_is_optimizer(y->name);
    return moment_x != moment_y ? moment_x - moment_y : strcmp(x->name, y->name);
}

/* Prints one list, closed by `last`. */
static void print_list(struct strbuf *out, const struct tensor_digest *digests, size_t count,
                       const char *last, char sum[SHA256_TEXT])
{
    size_t begin = out->length;
    for (size_t i = 0; i < count; i++) {
        strbuf_printf(out, "%s\t", digests[i].name);
        digest_print(out, &digests[i]);
        strbuf_add_char(out, '\n');
    }
    struct sha256 *s = sha256_start();
    if (count) sha256_add(s, out->data + begin, out->length - begin);
    sha256_finish(s, sum);
    strbuf_printf(out, "%s\t%s\n", last, sum);
}

void digest_print_all(struct strbuf *out, struct tensor_digest *digests, size_t count,
                      char whole[2][SHA256_TEXT])
{
    char own[2][SHA256_TEXT] = {"", ""};
    size_t weights = 0;
    if (count) qsort(digests, count, sizeof *digests, by_logical_name);
    while (weights < count && !name_is_optimizer(digests[weights].name))
        weights++;
    print_list(out, digests, weights, "*", own[0]);
    if (weights < count) print_list(out, digests + weights, count - weights, "optimizer.*", own[1]);
    if (whole) memcpy(whole, own, sizeof own);
}

/* ---- digests of a catalog ---- */

struct digesting {
    struct tensor_digest *digests;
    const struct scan_item *items;
    pthread_mutex_t lock;
    struct progress *progress;
};

static enum status add_panel(void *context, const struct scan_panel *p, struct error *err)
{
    struct digesting *x = context;
    struct tensor_digest *d = &x->digests[p->task->item];
    struct digest part = {{0}};
    (void)err;
    digest_add_elements(&part, d->dtype, p->elements[0], p->count, p->low);
    pthread_mutex_lock(&x->lock);
    digest_join(&d->sums, &part);
    pthread_mutex_unlock(&x->lock);
    progress_add(x->progress, dtype_run_bytes(d->dtype, p->count));
    return OK;
}

enum status digest_catalog(const struct catalog *c, const struct digest_options *o, struct arena *a,
                           struct tensor_digest **out, size_t *count, struct error *err)
{
    struct digesting x = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct scan_item *items = must_calloc(c->num_tensors + 1, sizeof *items);
    struct scan s = {.catalogs = {c, NULL},
                     .items = items,
                     .threads = o->threads,
                     .max_memory = o->max_memory,
                     .direct_io = o->direct_io,
                     .visit = add_panel,
                     .context = &x};
    struct scan_result result;
    uint64_t bytes = 0;
    x.digests = arena_array(a, c->num_tensors, sizeof *x.digests);
    for (size_t i = 0; i < c->num_tensors; i++) {
        const struct tensor *t = &c->tensors[i];
        if (name_is_padding(t->name) || (o->no_optim && name_is_optimizer(t->name))) continue;
        x.digests[s.num_items] = (struct tensor_digest){
            .name = t->name, .dtype = t->dtype, .num_dims = t->num_dims, .shape = t->shape};
        items[s.num_items++].tensors[0] = t;
        bytes += dtype_run_bytes(t->dtype, t->numel);
    }
    x.progress = progress_start(o->progress, "reading", bytes);
    enum status st = scan_run(&s, &result, err);
    progress_finish(x.progress, st == OK);
    free(items);
    *out = x.digests;
    *count = s.num_items;
    return st;
}
