/* scan.h - reads the tensors of one catalog, or pairs of tensors of two catalogs, panel by panel on
 * several threads in bounded memory.
 *
 * A *panel* is a run of a tensor's elements in their order, as many as fit a buffer. A *task* is a
 * run of panels that one thread reads in order. The bounds of tasks depend on the tensors alone,
 * not on threads or memory, so a journal can name tasks. Tasks start in the order of their numbers.
 */
#ifndef FERRY_CKPT_SCAN_H
#define FERRY_CKPT_SCAN_H

#include "ckpt/catalog.h"
#include "ckpt/panel.h"

struct scan_item {
    const struct tensor *tensors[2]; /* with equal numbers of elements; the second may be NULL */
    size_t element_bytes; /* size of an element after the visitor's cast, if larger than the
                             tensors' */
    bool wide;            /* the visitor reads elements by columns, so panels should be large */
    /* The elements to read, as in panel_read_parts(); panels without any are skipped. parts NULL:
     * all elements. */
    const struct pair *parts;
    size_t num_parts;
};

/* Restricts an item to these parts, an array that the item keeps and may change. Elements in
 * several parts are read once. */
void scan_item_read_parts(struct scan_item *item, struct pair *parts, size_t num_parts);

struct scan_task {
    size_t number, item;
    uint64_t low, high; /* elements */
    unsigned worker;
};

struct scan_panel {
    const struct scan_task *task;
    uint64_t low, count;
    void *elements[2]; /* in the tensors' dtypes; the visitor may change them until it returns */
    void *temp, *cast; /* buffers of the same size for the visitor; cast is NULL unless it casts */
    struct cast_counts casts; /* casts from the stored dtypes to the tensors' */
};

struct scan {
    const struct catalog *catalogs[2]; /* the second may be NULL */
    const struct scan_item *items;
    size_t num_items;
    unsigned threads;    /* 0: as many as there are CPUs */
    uint64_t max_memory; /* bytes resident, of the whole process; 0: no limit */
    bool direct_io, casts;
    uint64_t kept_bytes; /* allocated by the visitor during the run */
    size_t kept_files;   /* that the visitor keeps open during the run: see scan_share_files() */

    /* Called by several threads at once, but for one task by one thread, in this order: begin (sets
     * *skip if the task need not be read); for each panel, wants (false: do not read it) and visit;
     * end. All but visit may be NULL. */
    enum status (*begin)(void *context, const struct scan_task *t, bool *skip, struct error *err);
    bool (*wants)(void *context, const struct scan_task *t, uint64_t low, uint64_t count);
    enum status (*visit)(void *context, const struct scan_panel *p, struct error *err);
    enum status (*end)(void *context, const struct scan_task *t, struct error *err);
    void *context;
};

struct scan_result {
    uint64_t read_bytes;
};

unsigned scan_threads(const struct scan *s);   /* number of threads of scan_run() */
size_t scan_count_tasks(const struct scan *s); /* tasks are numbered from 0 */

/* How many of `wanted` files the visitor may keep open during a run, beside those that are read:
 * for kept_files. ERR_IO if this process may not open as many as threads use at once. */
MUST_CHECK enum status scan_share_files(const struct scan *s, size_t wanted, size_t *kept,
                                        struct error *err);

/* Peak resident bytes, or ERR_MEMORY with the least --max-memory that works. Memory that is
 * resident now is part of the peak, so call it when all else is allocated. */
MUST_CHECK enum status scan_memory(const struct scan *s, uint64_t *peak_bytes, struct error *err);

/* Bytes that a run without a memory limit allocates, buffers included. */
uint64_t scan_own_bytes(const struct scan *s);

/* Visits all panels. The first failure ends the scan; ERR_INTERRUPTED after a signal. Messages name
 * the tensor. */
MUST_CHECK enum status scan_run(const struct scan *s, struct scan_result *result,
                                struct error *err);

#endif
