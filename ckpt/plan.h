/* plan.h - the output files of a conversion and the source of each byte,
 * complete before any byte is written.
 *
 * - *file*: has segments, and bytes between them (headers, pickles,
 *   directories), which its format writes once the segments are complete and
 *   their CRC-32s known.
 * - *segment*: a run of bytes that holds a target tensor (row-major). Many
 *   tensors may fill one: a flat partition of an optimizer holds a run of each.
 * - *target piece*: maps elements of a logical tensor to elements of a segment.
 * - *copy*: a source tensor and its target pieces. The executor joins source
 *   and target pieces panel by panel.
 *
 * Elements without a source are planned too: from a tensor of ORIGIN_ZERO, or
 * of ORIGIN_HOLE, which leaves the file sparse. */
#ifndef FERRY_CKPT_PLAN_H
#define FERRY_CKPT_PLAN_H

#include "ckpt/catalog.h"

struct segment {
    uint32_t file;
    enum dtype dtype : 8;
    bool wants_crc;        /* for output_file.finish */
    bool has_holes;        /* unwritten elements, zeros; set by plan_finish */
    uint64_t offset_bytes; /* in the file */
    uint64_t numel;
};

struct target_piece {
    struct packed_pair pair; /* a: flat in the logical tensor, nested; b: element of the segment */
    uint32_t segment;
};

/* A source tensor and all its target pieces. */
struct plan_copy {
    const struct tensor *source;
    double add; /* added to each element when written; digests are of what is read */
    struct target_piece *pieces;
    size_t num_pieces, pieces_capacity;
};

/* For output_file.finish: put writes count bytes at an offset of the file, crc
 * returns the CRC-32 of a segment that wants one. */
struct file_writer {
    enum status (*put)(void *context, uint64_t offset, const void *bytes, size_t count,
                       struct error *err);
    uint32_t (*crc)(void *context, uint32_t segment);
    void *context;
};

struct plan;

struct output_file {
    const char *path; /* relative to the destination; NULL: an array in memory */
    void *memory;     /* the caller's array; segments may stay incomplete */
    uint64_t size_bytes;
    unsigned rank;     /* the rank that writes it; set by plan_split, or by plan_finish if held */
    bool held, shared; /* set by plan_finish: a rank holds elements of it; several do (held.h) */
    uint32_t first_segment, num_segments; /* of plan->by_file */
    /* Writes the bytes between the segments; called once, when all segments are
     * complete. NULL: there are none. */
    enum status (*finish)(const struct plan *plan, uint32_t file, void *context,
                          const struct file_writer *writer, struct error *err);
    void *finish_context;
};

struct plan {
    struct arena arena;
    const struct catalog *source; /* the caller's */
    struct catalog made; /* tensors made for the target, as padding; in arena. Their stored pieces
                            lie in the source's files */
    struct output_file *files;
    size_t num_files, files_capacity;
    struct segment *segments;
    size_t num_segments, segments_capacity;
    uint32_t *by_file; /* segments of each file, by offset; set by plan_finish */
    struct plan_copy *copies;
    size_t num_copies, copies_capacity;
    struct map copy_names;           /* name -> index of its copy */
    struct packed_pair last_strided; /* of the last piece with axes, which the next may share */
    const char *twice;               /* a name shared by two added tensors; NULL: none */
    uint64_t source_bytes, target_bytes;
};

void plan_init(struct plan *p, const struct catalog *source);
void plan_release(struct plan *p);

uint32_t plan_add_file(struct plan *p, const char *path);
/* Adds an array instead of a file. A plan has only files or only arrays. */
uint32_t plan_add_memory(struct plan *p, void *memory);
/* Adds a segment; its place is set later (plan->segments[i].offset_bytes). */
uint32_t plan_add_segment(struct plan *p, uint32_t file, enum dtype dtype, uint64_t numel,
                          bool wants_crc);
/* Plans elements of tensor t for a segment. Keeps the pointer t. */
void plan_add_piece(struct plan *p, const struct tensor *t, uint32_t segment,
                    const struct pair *pair);

/* Adds a number to all elements of tensor t when they are written. A hole stays
 * one. */
void plan_add_number(struct plan *p, const struct tensor *t, double number);

/* The dtype of a piece's segment. */
enum dtype plan_piece_dtype(const struct plan *p, const struct target_piece *piece);
/* The dtype of which the digest of a copy's written elements is: that of its
 * first piece, or the source's where a number is added. */
enum dtype plan_digest_dtype(const struct plan *p, const struct plan_copy *c);

/* Sorts and checks the plan; ERR_OURS if a segment is incomplete:
 *
 * - source tensors are complete, and their dtypes can be cast;
 * - elements of a fraction of a byte move in runs of whole bytes;
 * - pieces fill each segment, each element once;
 * - segments lie inside their file and do not overlap.
 *
 * Segments in memory are not checked. */
MUST_CHECK enum status plan_finish(struct plan *p, struct error *err);

/* Assigns the files of a finished plan to num_ranks ranks with about equal
 * bytes: the largest file first, each to the rank with the fewest bytes so far.
 * Equal in every process. Files of held tensors keep the rank of plan_finish. */
void plan_split(struct plan *p, unsigned num_ranks);

#endif
