/* scan.h - reads the tensors of one catalog, or pairs or triples of tensors,
 * panel by panel on several threads in bounded memory.
 *
 * - *panel*: a run of a tensor's elements in order, as many as fit a buffer.
 * - *task*: a run of panels that one thread reads in order. Tasks start in the
 *   order of their numbers. Their bounds depend on the tensors alone, not on
 *   threads or memory, so a journal can name tasks. */
#ifndef FERRY_CKPT_SCAN_H
#define FERRY_CKPT_SCAN_H

#include "ckpt/catalog.h"
#include "ckpt/panel.h"

enum { SCAN_TENSORS = 3 };

struct scan_item {
    /* With equal numbers of elements; all but the first may be NULL. */
    const struct tensor *tensors[SCAN_TENSORS];
    size_t element_bytes; /* size of an element after the visitor's cast, if larger than the
                             tensors' */
    bool wide;            /* the visitor reads by columns: panels should be large */
    /* The elements to read, as in panel_read_parts(); other panels are skipped.
     * NULL: all elements. */
    const struct pair *parts;
    size_t num_parts;
};

/* Restricts an item to these parts, an array that it keeps and may change.
 * Elements in several parts are read once. */
void scan_item_read_parts(struct scan_item *item, struct pair *parts, size_t num_parts);

struct scan_task {
    size_t number, item;
    uint64_t low, high; /* elements */
    unsigned worker;
};

struct scan_panel {
    const struct scan_task *task;
    uint64_t low, count;
    void *elements[SCAN_TENSORS]; /* in the tensors' dtypes; the visitor may change them */
    void *temp, *cast; /* buffers of equal size for the visitor; cast is NULL unless it casts */
    struct cast_counts casts; /* from stored dtypes to the tensors' */
};

struct scan {
    const struct catalog *catalogs[SCAN_TENSORS]; /* those of tensors; may be NULL as they */
    const struct scan_item *items;
    size_t num_items;
    unsigned threads;    /* 0: as many as there are CPUs */
    uint64_t max_memory; /* bytes resident, of the whole process; 0: no limit */
    bool direct_io, casts;
    uint64_t kept_bytes; /* allocated by the visitor during the run */
    size_t kept_files;   /* kept open by the visitor: see scan_share_files() */

    /* Called by several threads at once, for one task by one thread, in this
     * order (all but visit may be NULL):
     *
     * - begin: sets *skip if the task need not be read;
     * - for each panel: wants (false: do not read it), visit;
     * - end. */
    enum status (*begin)(void *context, const struct scan_task *t, bool *skip, struct error *err);
    bool (*wants)(void *context, const struct scan_task *t, uint64_t low, uint64_t count);
    enum status (*visit)(void *context, const struct scan_panel *p, struct error *err);
    enum status (*end)(void *context, const struct scan_task *t, struct error *err);
    void *context;
};

struct scan_result {
    uint64_t read_bytes;
};

unsigned scan_threads(const struct scan *s);   /* threads of scan_run() */
size_t scan_count_tasks(const struct scan *s); /* tasks are numbered from 0 */

/* Sets *kept, for kept_files: how many of `wanted` files the visitor may keep
 * open beside the files read. ERR_IO if this process may open too few for its
 * threads. */
MUST_CHECK enum status scan_share_files(const struct scan *s, size_t wanted, size_t *kept,
                                        struct error *err);

/* Peak resident bytes. ERR_MEMORY if they exceed max_memory; then *peak_bytes
 * is the least limit that works, as the message says.
 * Memory that is resident now counts: call it when all else is allocated. */
MUST_CHECK enum status scan_memory(const struct scan *s, uint64_t *peak_bytes, struct error *err);

/* Bytes that a run without a memory limit allocates, with buffers. */
uint64_t scan_own_bytes(const struct scan *s);

/* Visits all panels. The first failure ends the scan; ERR_INTERRUPTED after a
 * signal. Messages name the tensor. */
MUST_CHECK enum status scan_run(const struct scan *s, struct scan_result *result,
                                struct error *err);

#endif
