#include <inttypes.h>
#include <stdlib.h>

#include "common/checked.h"
#include "train/data/packed.h"

uint64_t packing_places(uint64_t length, uint64_t seq_length)
{
    return length < 2 ? 0 : min_u64(length - 1, seq_length);
}

/* A binary tree over samples: node i has the largest room below it; its
 * children are 2 i and 2 i + 1; the samples are the last `width` nodes. */
struct rooms {
    uint64_t width;
    uint64_t *room;
};

static bool rooms_init(struct rooms *t, uint64_t count, uint64_t seq_length)
{
    t->width = 1;
    while (t->width < count)
        t->width *= 2;
    t->room = calloc(2 * t->width, sizeof *t->room);
    for (uint64_t i = 1; t->room && i < 2 * t->width; i++)
        t->room[i] = seq_length;
    return t->room != NULL;
}

/* Takes places of the first sample with room; returns its number. */
static uint64_t rooms_take(struct rooms *t, uint64_t places)
{
    uint64_t i = 1;
    while (i < t->width)
        i = t->room[2 * i] >= places ? 2 * i : 2 * i + 1;
    const uint64_t sample = i - t->width;
    t->room[i] -= places;
    while (i /= 2)
        t->room[i] = max_u64(t->room[2 * i], t->room[2 * i + 1]);
    return sample;
}

/* Stable sort of documents by sample. sample_of: UINT64_MAX: none. firsts must
 * be zero. */
static void sort_by_sample(struct packing *p, const uint64_t *sample_of, uint64_t count)
{
    for (uint64_t k = 0; k < count; k++)
        if (sample_of[k] != UINT64_MAX) p->firsts[sample_of[k] + 1]++;
    for (uint64_t i = 0; i < p->num_samples; i++)
        p->firsts[i + 1] += p->firsts[i];
    for (uint64_t k = 0; k < count; k++)
        if (sample_of[k] != UINT64_MAX) p->documents[p->firsts[sample_of[k]]++] = k;
    for (uint64_t i = p->num_samples; i > 0; i--)
        p->firsts[i] = p->firsts[i - 1];
    p->firsts[0] = 0;
}

static void place_documents(struct packing *p, struct rooms *t, const uint64_t *lengths,
                            uint64_t count, uint64_t seq_length, uint64_t *sample_of)
{
    for (uint64_t k = 0; k < count; k++) {
        const uint64_t places = packing_places(lengths[k], seq_length);
        sample_of[k] = places ? rooms_take(t, places) : UINT64_MAX;
        p->num_left_out += places == 0;
        p->num_cut += places && lengths[k] - 1 > seq_length;
        if (places) p->num_samples = max_u64(p->num_samples, sample_of[k] + 1);
    }
}

enum status packing_make(struct packing *p, const uint64_t *lengths, uint64_t count,
                         uint64_t seq_length, struct error *err)
{
    struct rooms t = {.width = 0};
    uint64_t *sample_of = calloc(count + 1, sizeof *sample_of);
    *p = (struct packing){.firsts = calloc(count + 1, sizeof *p->firsts),
                          .documents = calloc(count + 1, sizeof *p->documents)};
    const bool fits = rooms_init(&t, count, seq_length) && sample_of && p->firsts && p->documents;
    if (fits) {
        place_documents(p, &t, lengths, count, seq_length, sample_of);
        sort_by_sample(p, sample_of, count);
    }
    free(sample_of);
    free(t.room);
    if (fits) return OK;
    packing_release(p);
    return fail(err, ERR_MEMORY, "no memory to pack %" PRIu64 " documents", count);
}

void packing_release(struct packing *p)
{
    free(p->firsts);
    free(p->documents);
    *p = (struct packing){.num_samples = 0};
}
