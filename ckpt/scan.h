/* scan.h - reads tensors panel by panel, of one catalog or the same ones of two side by side, on
 * several threads, in bounded memory.
 *
 * A *panel* is a run of a tensor's elements in their order, as many as fit a buffer. A *task* is a
 * run of panels that one thread reads one after the other; where tasks begin and end depends on the
 * tensors alone, not on threads or memory. Tasks are started in their order. */
#ifndef FERRY_CKPT_SCAN_H
#define FERRY_CKPT_SCAN_H

#include "ckpt/catalog.h"
#include "ckpt/panel.h"

struct scan_item {
    const struct tensor *tensors[2]; /* of as many elements; the second may be NULL */
    size_t element_bytes;            /* of what the visitor makes of one, where that is more */
    bool wide; /* the visitor takes elements by columns, so that panels should be large */
    /* What is wanted of the tensors, as in panel_read_parts; panels without any of it are passed
     * over. parts NULL: all. */
    const struct pair *parts;
    size_t num_parts;
};

/* Has an item read no more than these parts, which are kept and may be changed. What several of
 * them share is read once. */
void scan_item_read_parts(struct scan_item *item, struct pair *parts, size_t num_parts);

struct scan_task {
    size_t number, item;
    uint64_t low, high; /* elements */
    unsigned worker;
};

struct scan_panel {
    const struct scan_task *task;
    uint64_t low, count;
    void *elements[2];        /* in the tensors' dtypes; the visitor's until it returns */
    void *temp, *cast;        /* as large, for the visitor; cast is NULL unless it casts */
    struct cast_counts casts; /* from what is stored to the tensors' dtypes */
};

struct scan {
    const struct catalog *catalogs[2]; /* the second may be NULL */
    const struct scan_item *items;
    size_t num_items;
    unsigned threads;    /* 0: as many as there are CPUs */
    uint64_t max_memory; /* bytes resident, of the whole process; 0: no limit */
    bool direct_io, casts;
    uint64_t kept_bytes; /* that the visitor allocates while it runs */

    /* What is done with a task: whether it is to be read at all, each of its panels (where `wants`
     * says that this one is), its end. begin, wants and end may be NULL. Called from several
     * threads, for one task by one. */
    enum status (*begin)(void *context, const struct scan_task *t, bool *skip, struct error *err);
    bool (*wants)(void *context, const struct scan_task *t, uint64_t low, uint64_t count);
    enum status (*visit)(void *context, const struct scan_panel *p, struct error *err);
    enum status (*end)(void *context, const struct scan_task *t, struct error *err);
    void *context;
};

struct scan_result {
    uint64_t read_bytes;
};

unsigned scan_threads(const struct scan *s);   /* how many it will take */
size_t scan_count_tasks(const struct scan *s); /* which are numbered from 0 */

/* Bytes that will be resident, or ERR_MEMORY with the least --max-memory that works. What is
 * resident already counts, so ask when all else is allocated. */
MUST_CHECK enum status scan_memory(const struct scan *s, uint64_t *peak_bytes, struct error *err);

/* Bytes that a run without a limit allocates, buffers and all. */
uint64_t scan_own_bytes(const struct scan *s);

/* Visits all. The first failure ends it; ERR_INTERRUPTED after a signal. Messages name the tensor.
 */
MUST_CHECK enum status scan_run(const struct scan *s, struct scan_result *result,
                                struct error *err);

#endif
