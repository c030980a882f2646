#include "ckpt/masters.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/scan.h"
#include "common/checked.h"
#include "common/memory.h"
#include "kernels/cpu/cast.h"

enum { SAMPLE_RUNS = 8, SAMPLE_RUN = 32 }; /* sampled runs of a large parameter, elements of each */

struct comparing {
    struct scan_item *items;
    struct pair *parts; /* [items] the sample of each */
    size_t num_items;
    bool all;
    pthread_mutex_t lock;
    uint64_t *first; /* [items] the first element that differs; UINT64_MAX: none */
};

/* Runs of elements, spread from the tensor's first to its last. */
static struct pair sample_of(const struct tensor *t)
{
    const uint64_t steps = SAMPLE_RUNS - 1, last = t->numel - SAMPLE_RUN, stride = last / steps;
    if (t->numel <= SAMPLE_RUNS * SAMPLE_RUN) return pair_whole(0, 0, t->numel);
    return (struct pair){.num_axes = 2,
                         .a_offset = last % steps,
                         .axes = {{SAMPLE_RUNS, stride, SAMPLE_RUN}, {SAMPLE_RUN, 1, 1}}};
}

static void add_item(struct comparing *x, const struct tensor *weight, const struct tensor *master)
{
    struct scan_item *item = &x->items[x->num_items];
    *item = (struct scan_item){.tensors = {weight, master}};
    x->parts[x->num_items] = sample_of(weight);
    if (!x->all) scan_item_read_parts(item, &x->parts[x->num_items], 1);
    x->first[x->num_items++] = UINT64_MAX;
}

/* Adds the parameters whose masters are stored separately. */
static void add_items(struct comparing *x, const struct catalog *c)
{
    static const char before[] = "optimizer.param.";
    const size_t n = sizeof before - 1;
    for (size_t i = 0; i < c->num_tensors; i++) {
        const struct tensor *master = &c->tensors[i];
        const char *name = master->name;
        const struct tensor *weight =
            strncmp(name, before, n) == 0 ? catalog_find(c, name + n) : NULL;
        if (weight && !master->same_as && !tensor_is_joined(master) && weight->numel &&
            !name_is_padding(name) && cast_exists(weight->dtype, master->dtype))
            add_item(x, weight, master);
    }
}

/* ---- elements ---- */

/* An element as a number. */
static double number(const void *elements, uint64_t i, enum dtype dtype)
{
    double out = 0;
    (void)cast_elements(&out, DT_F64, (const char *)elements + dtype_run_bytes(dtype, i), dtype, 1);
    return out;
}

static bool same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || !(a < b || a > b || isnan(a) || isnan(b));
}

/* A panel of a weight and of its master. */
struct both {
    const struct scan_panel *panel;
    enum dtype weight, master;
};

static const void *at_element(const void *elements, enum dtype dtype, uint64_t i)
{
    return (const char *)elements + dtype_run_bytes(dtype, i);
}

/* Whether element i, a weight of BF16, is its master of F32 rounded up, if the
 * master lies halfway between two: Transformer Engine rounds half up if it
 * stores remainders. */
static bool is_half_up(const struct both *b, const void *weights, const void *masters, uint64_t i)
{
    uint16_t weight;
    uint32_t master;
    if (b->weight != DT_BF16 || b->master != DT_F32) return false;
    memcpy(&weight, at_element(weights, b->weight, i), sizeof weight);
    memcpy(&master, at_element(masters, b->master, i), sizeof master);
    return (uint16_t)master == 0x8000 && weight == (uint16_t)((master >> 16) + 1);
}

/* Whether elements [from, from + count) of the panel's weight equal its rounded
 * master; if not, *at is the first that differs. All NaN are equal. */
static bool same_elements(const struct both *b, uint64_t from, uint64_t count, uint64_t *at)
{
    const void *weight = at_element(b->panel->elements[0], b->weight, from);
    const void *master = at_element(b->panel->elements[1], b->master, from), *rounded = master;
    if (b->weight != b->master) {
        (void)cast_elements(b->panel->cast, b->weight, master, b->master, count);
        rounded = b->panel->cast;
    }
    if (memcmp(weight, rounded, dtype_run_bytes(b->weight, count)) == 0) return true;
    for (uint64_t i = 0; i < count; i++) {
        *at = from + i;
        if (!same_number(number(weight, i, b->weight), number(rounded, i, b->weight)) &&
            !is_half_up(b, weight, master, i))
            return false;
    }
    return true;
}

/* Compares the sample's runs in the panel. */
static bool same_sample(const struct pair *part, const struct both *b, uint64_t *at)
{
    const struct axis *runs = &part->axes[0];
    const uint64_t length = part->num_axes == 2 ? part->axes[1].extent : runs->extent,
                   count = part->num_axes == 2 ? runs->extent : 1;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t begin = part->a_offset + i * runs->a_stride;
        const uint64_t low = max_u64(begin, b->panel->low),
                       high = min_u64(begin + length, b->panel->low + b->panel->count);
        if (low < high && !same_elements(b, low - b->panel->low, high - low, at)) return false;
    }
    return true;
}

static enum status compare_panel(void *context, const struct scan_panel *p, struct error *err)
{
    struct comparing *x = context;
    const struct scan_item *item = &x->items[p->task->item];
    const struct both b = {p, item->tensors[0]->dtype, item->tensors[1]->dtype};
    uint64_t at;
    (void)err;
    if (x->all ? same_elements(&b, 0, p->count, &at)
               : same_sample(&x->parts[p->task->item], &b, &at))
        return OK;
    pthread_mutex_lock(&x->lock);
    if (p->low + at < x->first[p->task->item]) x->first[p->task->item] = p->low + at;
    pthread_mutex_unlock(&x->lock);
    return OK;
}

static void count_result(const struct comparing *x, struct masters_result *out)
{
    out->compared = x->num_items;
    for (size_t i = 0; i < x->num_items; i++) {
        if (x->first[i] == UINT64_MAX) continue;
        if (out->differ++) continue;
        out->first = x->items[i].tensors[0]->name;
        out->at = x->first[i];
    }
}

enum status masters_compare(const struct catalog *c, const struct masters_options *o,
                            struct masters_result *out, struct error *err)
{
    struct comparing x = {.all = o->all};
    struct scan_result read;
    x.items = must_calloc(c->num_tensors + 1, sizeof *x.items);
    x.parts = must_calloc(c->num_tensors + 1, sizeof *x.parts);
    x.first = must_calloc(c->num_tensors + 1, sizeof *x.first);
    pthread_mutex_init(&x.lock, NULL);
    add_items(&x, c);
    struct scan scan = {.catalogs = {c, c},
                        .items = x.items,
                        .num_items = x.num_items,
                        .threads = o->threads,
                        .max_memory = o->max_memory,
                        .casts = true,
                        .visit = compare_panel,
                        .context = &x};
    *out = (struct masters_result){0};
    enum status st = x.num_items ? scan_run(&scan, &read, err) : OK;
    count_result(&x, out);
    pthread_mutex_destroy(&x.lock);
    free(x.items);
    free(x.parts);
    free(x.first);
    return st;
}
