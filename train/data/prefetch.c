#include "train/data/prefetch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/memory.h"

/* One micro-batch. */
struct slot {
    uint64_t first, count; /* samples */
    struct data_rows rows; /* room for `room` of them */
    uint64_t room;
    enum status status;
    struct error err;
};

/* Slots [taken, filled) of the ring are read and wait for the consumer, counted
 * from 0 for ever; slot `filled` is being read. The consumer holds `kept` slots
 * before `taken`. */
struct prefetch {
    const struct data *data;
    enum data_split split;
    uint64_t seq_length;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned num_slots, kept; /* depth + kept; slots held by the consumer */
    struct slot *slots;

    /* under the lock */
    uint64_t taken, filled;
    struct sampler next; /* of slot `filled` */
    bool runs;           /* false: waits for the consumer's request */
    uint64_t restarts;   /* slots read before the last one are dropped */
    bool ends;
};

static struct slot *ring_slot(struct prefetch *p, uint64_t number)
{
    return &p->slots[number % p->num_slots];
}

/* ---- the thread ---- */

static bool has_work(const struct prefetch *p)
{
    const uint64_t first = p->taken > p->kept ? p->taken - p->kept : 0; /* the consumer's slots */
    return p->runs && p->filled - first < p->num_slots;
}

static enum status make_slot_room(struct slot *s, uint64_t count, uint64_t seq_length)
{
    if (count <= s->room) return OK;
    data_rows_release(&s->rows);
    s->room = 0;
    TRY(data_rows_allocate(&s->rows, count, seq_length, &s->err));
    s->room = count;
    return OK;
}

static void read_slot(const struct prefetch *p, struct slot *s)
{
    s->status = make_slot_room(s, s->count, p->seq_length);
    if (!s->status) s->status = data_read(p->data, p->split, s->first, s->count, &s->rows, &s->err);
}

/* Reads one slot without the lock. After a failure the thread waits: the
 * consumer may not want that micro-batch. */
static void fill_next_slot(struct prefetch *p)
{
    struct slot *s = ring_slot(p, p->filled);
    const uint64_t restarts = p->restarts;
    s->first = sampler_first(&p->next);
    s->count = p->next.micro_batch_size;
    pthread_mutex_unlock(&p->lock);
    read_slot(p, s);
    pthread_mutex_lock(&p->lock);
    if (restarts != p->restarts) return;
    if (s->status) p->runs = false;
    sampler_advance(&p->next);
    p->filled++;
    pthread_cond_broadcast(&p->changed);
}

static void *thread_main(void *context)
{
    struct prefetch *p = context;
    pthread_mutex_lock(&p->lock);
    while (!p->ends) {
        if (has_work(p))
            fill_next_slot(p);
        else
            pthread_cond_wait(&p->changed, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- the consumer ---- */

enum status prefetch_open(struct prefetch **out, const struct data *data, enum data_split split,
                          uint64_t seq_length, unsigned depth, unsigned kept, struct error *err)
{
    struct prefetch *p = must_calloc(1, sizeof *p);
    *p = (struct prefetch){.data = data,
                           .split = split,
                           .seq_length = seq_length,
                           .num_slots = (depth ? depth : 1) + (kept ? kept : 1),
                           .kept = kept ? kept : 1,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .changed = PTHREAD_COND_INITIALIZER};
    p->slots = must_calloc(p->num_slots, sizeof *p->slots);
    *out = p;
    errno = pthread_create(&p->thread, NULL, thread_main, p);
    if (!errno) return OK;
    *out = NULL;
    free(p->slots);
    free(p);
    return fail_errno(err, ERR_MEMORY, "cannot start the thread that reads data");
}

static bool is_wanted_slot(const struct slot *s, const struct sampler *sampler)
{
    return s->first == sampler_first(sampler) && s->count == sampler->micro_batch_size;
}

static bool same_place(const struct sampler *a, const struct sampler *b)
{
    return a->consumed == b->consumed && a->micro_batch_size == b->micro_batch_size &&
           a->dp_rank == b->dp_rank && a->dp_size == b->dp_size;
}

/* Drops slots read ahead. The thread finishes a slot that it reads now, without
 * the lock; then it sees `restarts` and reads that slot again. */
static void restart_reading(struct prefetch *p, const struct sampler *s)
{
    p->filled = p->taken;
    p->next = *s;
    p->runs = true;
    p->restarts++;
    pthread_cond_broadcast(&p->changed);
}

/* Whether the next slot, read or not, is the wanted one. A failed slot is read
 * again after its failure is taken. */
static bool comes_next(struct prefetch *p, const struct sampler *s)
{
    if (p->filled > p->taken) return is_wanted_slot(ring_slot(p, p->taken), s);
    return p->runs && same_place(&p->next, s);
}

enum status prefetch_next(struct prefetch *p, struct sampler *s, const struct data_rows **rows,
                          struct error *err)
{
    pthread_mutex_lock(&p->lock);
    if (!comes_next(p, s)) restart_reading(p, s);
    while (p->filled == p->taken)
        pthread_cond_wait(&p->changed, &p->lock);
    const struct slot *slot = ring_slot(p, p->taken++);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (slot->status) {
        if (err) *err = slot->err;
        return slot->status;
    }
    *rows = &slot->rows;
    sampler_advance(s);
    return OK;
}

void prefetch_close(struct prefetch *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->ends = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    for (unsigned i = 0; i < p->num_slots; i++)
        data_rows_release(&p->slots[i].rows);
    free(p->slots);
    free(p);
}
