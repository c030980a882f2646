/* plan.h - the output files of a conversion and the source of each byte, complete before any byte
 * is written.
 *
 * The target is output *files*. Each has *segments*, runs of bytes that hold a target tensor
 * (row-major), and bytes between them (headers, pickles, directories), which its format writes when
 * the segments are complete and their CRC-32s known. A segment may be filled by many tensors: a
 * flat partition of an optimizer holds a run of each. What no tensor fills is planned too, from a
 * tensor of ORIGIN_ZERO, or of ORIGIN_HOLE, which leaves the file sparse. A target piece maps
 * elements of a logical tensor to elements of a segment. The copies are the joins of source and
 * target pieces of a tensor; the executor joins them panel by panel, so a plan only holds the
 * pieces that were added. */
#ifndef FERRY_CKPT_PLAN_H
#define FERRY_CKPT_PLAN_H

#include "ckpt/catalog.h"

struct segment {
    uint32_t file;
    enum dtype dtype;
    bool wants_crc;        /* by output_file.finish */
    bool has_holes;        /* elements that nobody writes: zeros; set by plan_finish */
    uint64_t offset_bytes; /* in the file */
    uint64_t numel;
};

struct target_piece {
    struct packed_pair pair; /* a: flat in the logical tensor, nested; b: element of the segment */
    uint32_t segment;
};

/* A source tensor and all the target pieces that it goes to. */
struct carry {
    const struct tensor *source;
    struct target_piece *pieces;
    size_t num_pieces, pieces_capacity;
};

/* For output_file.finish: put writes count bytes at an offset of the file, crc returns the CRC-32
 * of a segment that wants one. */
struct file_writer {
    enum status (*put)(void *context, uint64_t offset, const void *bytes, size_t count,
                       struct error *err);
    uint32_t (*crc)(void *context, uint32_t segment);
    void *context;
};

struct plan;

struct output_file {
    const char *path; /* relative to the destination; NULL: an array in memory */
    void *memory;     /* the caller's array; its segments may stay incomplete */
    uint64_t size_bytes;
    unsigned rank;     /* the rank that writes it; set by plan_split, or by plan_finish if held */
    bool held, shared; /* set by plan_finish: a rank holds elements of it; several do (held.h) */
    uint32_t first_segment, num_segments; /* of plan->by_file */
    /* Writes the bytes between the segments. Called once, when all segments are complete. NULL: no
     * bytes between segments. */
    enum status (*finish)(const struct plan *plan, uint32_t file, void *context,
                          const struct file_writer *writer, struct error *err);
    void *finish_context;
};

struct plan {
    struct arena arena;
    const struct catalog *source; /* the caller's */
    struct catalog made;          /* tensors made for the target, as padding; in arena. Their
                                   * stored pieces lie in the source's files */
    struct output_file *files;
    size_t num_files, files_capacity;
    struct segment *segments;
    size_t num_segments, segments_capacity;
    uint32_t *by_file; /* segments of each file, by offset; set by plan_finish */
    struct carry *carries;
    size_t num_carries, carries_capacity;
    struct map carried; /* names -> carry */
    const char *twice;  /* a name that two added tensors share; NULL: none */
    uint64_t source_bytes, target_bytes;
};

void plan_init(struct plan *p, const struct catalog *source);
void plan_release(struct plan *p);

uint32_t plan_add_file(struct plan *p, const char *path);
/* An array instead of a file. A plan has only files or only arrays. */
uint32_t plan_add_memory(struct plan *p, void *memory);
/* A segment whose place in the file is set later (plan->segments[i].offset_bytes). */
uint32_t plan_add_segment(struct plan *p, uint32_t file, enum dtype dtype, uint64_t numel,
                          bool wants_crc);
/* Plans elements of tensor t for a segment. The plan keeps the pointer t. */
void plan_add_piece(struct plan *p, const struct tensor *t, uint32_t segment,
                    const struct pair *pair);

/* The dtype of a piece's segment. */
enum dtype plan_piece_dtype(const struct plan *p, const struct target_piece *piece);

/* Sorts and checks: each source tensor has all its elements; each segment is filled by its pieces,
 * each element once; segments of a file do not overlap and lie inside it; dtypes can be cast, and
 * have whole bytes. ERR_OURS if a segment is incomplete. Segments in memory are not checked. */
MUST_CHECK enum status plan_finish(struct plan *p, struct error *err);

/* Assigns the files of a finished plan to num_ranks ranks with about equal bytes: the largest file
 * first, each to the rank with the fewest bytes so far. The result is the same in every process.
 * Files of held tensors keep the rank of plan_finish. */
void plan_split(struct plan *p, unsigned num_ranks);

#endif
