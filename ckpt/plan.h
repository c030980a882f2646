/* plan.h - what a conversion will do, known before the first byte is written.
 *
 * The target is output *files*; each has *segments*, runs of bytes that hold a target tensor
 * (row-major), and bytes between them (headers, pickles, directories) that its format writes when
 * the segments are done and their CRC-32s known. A target piece says which elements of a logical
 * tensor are which elements of a segment. Source and target pieces of one tensor, joined, are the
 * copies; the join is made panel by panel when it runs, so a plan is as small as what it describes.
 */
#ifndef FERRY_CKPT_PLAN_H
#define FERRY_CKPT_PLAN_H

#include "ckpt/catalog.h"

struct segment {
    uint32_t file;
    enum dtype dtype;
    bool wants_crc;        /* by output_file.finish */
    uint64_t offset_bytes; /* in the file */
    uint64_t numel;
};

struct target_piece {
    uint32_t segment;
    struct pair pair; /* a: flat in the logical tensor, nested; b: element of the segment */
};

/* One logical tensor that is carried. */
struct carry {
    const struct tensor *source;
    struct target_piece *pieces;
    size_t num_pieces, pieces_capacity;
};

/* Writes count bytes at offset of the output file in work, and tells the CRC-32 of those of its
 * segments that want one. */
struct file_writer {
    enum status (*put)(void *context, uint64_t offset, const void *bytes, size_t count,
                       struct error *err);
    uint32_t (*crc)(void *context, uint32_t segment);
    void *context;
};

struct plan;

struct output_file {
    const char *path; /* relative to what is published; NULL: it is no file but memory */
    void *memory;     /* of the caller's, whose segments need not be filled */
    uint64_t size_bytes;
    unsigned rank;     /* which writes it; set by plan_split, but of held ones */
    bool held, shared; /* by plan_finish: ranks hold elements of it, and several do (held.h) */
    uint32_t first_segment, num_segments; /* of plan->by_file */
    /* Writes all bytes of the file that are in no segment. Called once, by one thread, when all its
     * segments are complete. NULL: there are none. */
    enum status (*finish)(const struct plan *plan, uint32_t file, void *context,
                          const struct file_writer *writer, struct error *err);
    void *finish_context;
};

struct plan {
    struct arena arena;
    const struct catalog *source; /* the caller's */
    struct catalog made;          /* tensors of the target's own, as padding: in arena; what of
                                   * them is stored lies in the source's files */
    struct output_file *files;
    size_t num_files, files_capacity;
    struct segment *segments;
    size_t num_segments, segments_capacity;
    uint32_t *by_file; /* segments of each file, by offset; set by plan_finish */
    struct carry *carries;
    size_t num_carries, carries_capacity;
    struct map carried; /* names -> carry */
    const char *twice;  /* a name that two tensors have; NULL: none has */
    uint64_t source_bytes, target_bytes;
};

void plan_init(struct plan *p, const struct catalog *source);
void plan_release(struct plan *p);

uint32_t plan_add_file(struct plan *p, const char *path);
/* An array instead of a file. Of one plan, all are arrays or none is. */
uint32_t plan_add_memory(struct plan *p, void *memory);
/* A segment whose place in the file is set later (plan->segments[i].offset_bytes). */
uint32_t plan_add_segment(struct plan *p, uint32_t file, enum dtype dtype, uint64_t numel,
                          bool wants_crc);
/* Says that elements of tensor t go into a segment. t is the caller's, and stays where it is. */
void plan_add_piece(struct plan *p, const struct tensor *t, uint32_t segment,
                    const struct pair *pair);

/* The dtype that a piece goes out in. */
enum dtype plan_piece_dtype(const struct plan *p, const struct target_piece *piece);

/* Sorts and checks: each source tensor has all its elements; each segment is filled by its pieces,
 * each element once; segments of a file do not overlap and lie inside it; dtypes can be cast, and
 * have whole bytes. A hole is our mistake (ERR_OURS). Where segments lie in memory is the caller's
 * to know. */
MUST_CHECK enum status plan_finish(struct plan *p, struct error *err);

/* Deals the files of a finished plan out to num_ranks ranks, so that each has about as many bytes:
 * the largest first, always to the rank that has least. Every process gets the same. Those whose
 * elements ranks hold have theirs. */
void plan_split(struct plan *p, unsigned num_ranks);

#endif
