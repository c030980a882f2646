/* catalog.h - the tensors of a checkpoint: as its program names them, and under logical names.
 *
 * A *stored* tensor is one of a file. An *own* tensor is one of the program that wrote the
 * checkpoint, under the name that it has there: one stored tensor, or runs of several where ranks
 * have cut it. A *logical* tensor is one parameter, whatever the files call it and however they cut
 * it: named as Megatron-Core names it on disk under the Transformer-Engine layer spec, with the
 * global layer number, one tensor an expert
 * (decoder.layers.3.mlp.experts.experts.7.linear_fc1.weight); weights are [out, in], linear_qkv in
 * Megatron's group order, linear_fc1 [gate; up] of the whole parameter. A state of the
 * optimizer is optimizer.STATE.NAME: optimizer.exp_avg.NAME, optimizer.exp_avg_sq.NAME, the master
 * weight optimizer.param.NAME; a weight of F32 is its own master. A tied head is no tensor. Rows
 * past the true vocabulary are NAME.padding. */
#ifndef FERRY_CKPT_CATALOG_H
#define FERRY_CKPT_CATALOG_H

#include "ckpt/origin.h"
#include "ckpt/view.h"
#include "common/arena.h"
#include "common/dtype.h"
#include "common/map.h"
#include "formats/stored.h"

/* A part of a logical tensor and the place of its elements. pair.a is flat in the logical tensor,
 * pair.b counts elements from offset_bytes of the file (ORIGIN_RANDOM*: of the random stream number
 * `file`; ORIGIN_MEMORY: of `memory`). There may be millions, so they are small. */
struct piece {
    struct packed_pair pair;
    union {
        uint64_t offset_bytes;
        const void *memory; /* ORIGIN_MEMORY: the holder's; NULL in other processes */
    };
    uint32_t file;
    unsigned holder; /* the rank that writes it, if the tensor has pieces in memory (held.h) */
    enum origin_id origin : 8;
    enum dtype dtype : 8; /* as stored; may differ from the tensor's: cast when it is read */
    bool byte_swapped;
};

struct tensor {
    const char *name;
    const char *stored_name;   /* of its (first) stored tensor, for messages; may be NULL */
    const char **stored_names; /* of all its stored tensors, each once */
    size_t num_stored_names, stored_names_capacity;
    const char *same_as; /* the logical name of the tensor whose pieces these are: a weight that is
                            its own master; else NULL */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel;
    struct piece *pieces;
    size_t num_pieces, pieces_capacity;
};

struct own_part {
    struct packed_pair pair; /* a: flat in the own tensor, nested; b: flat in the stored one */
    size_t stored;           /* index into catalog.stored.tensors */
};

struct own_tensor {
    const char *name;
    const char
        *state; /* the optimizer state "exp_avg" and the like; NULL: a parameter or a buffer */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel;
    struct own_part *parts; /* on the heap, since there may be one for each rank */
    size_t num_parts, parts_capacity;
    const char *logical; /* of a parameter: the logical tensor that has elements of it; of several
                            the last that was added; NULL: none, or not known */
};

struct catalog {
    struct arena *arena;  /* the owner's; holds all added tensors */
    struct stored stored; /* the files of stored pieces */
    struct own_tensor *own;
    size_t num_own, own_capacity;
    struct map own_names; /* see catalog_find_own */
    struct tensor *tensors;
    size_t num_tensors, tensors_capacity;
    struct map names;
    struct part_index *own_index,
        *stored_index;   /* index of the parts of the tensor that was used last */
    struct adder *adder; /* what catalog_add_part() keeps from call to call */
};

void catalog_init(struct catalog *c, struct arena *a);
void catalog_release(struct catalog *c);

/* Adds a tensor without pieces (name and shape are copied), or returns the existing one of this
 * name if dtype and shape are equal. ERR_CORRUPT if they differ, or the tensor has more than
 * MAX_ELEMENTS. *out is valid until the next tensor is added. */
MUST_CHECK enum status catalog_add(struct catalog *c, const char *name, enum dtype dtype,
                                   unsigned num_dims, const uint64_t *shape, struct tensor **out,
                                   struct error *err);
struct tensor *catalog_find(const struct catalog *c, const char *name);
/* Adds a piece with this pair to a tensor, in arena a; pair->a must be nested, piece->pair is
 * ignored. */
void tensor_add_piece(struct arena *a, struct tensor *t, const struct piece *piece,
                      const struct pair *pair);
/* Adds copies of all pieces of another tensor. */
void tensor_add_pieces(struct arena *a, struct tensor *t, const struct tensor *of);
/* Adds the part of an own tensor that `part` selects: part.a is flat in the logical tensor t,
 * part.b flat in the own one (both row-major). It is joined with the parts of the own tensor, and
 * these with the stored pieces. Fast for a tensor of many parts or pieces that is taken apart into
 * many logical ones, one after the other. */
MUST_CHECK enum status catalog_add_part(struct catalog *c, struct tensor *t,
                                        const struct own_tensor *own, const struct pair *part,
                                        struct error *err);

/* Adds an own tensor without parts, or returns the existing one of this state and name, as
 * catalog_add() does. The catalog keeps the pointers name and state. *out is valid until the next
 * one is added. */
MUST_CHECK enum status catalog_add_own(struct catalog *c, const char *name, const char *state,
                                       enum dtype dtype, unsigned num_dims, const uint64_t *shape,
                                       struct own_tensor **out, struct error *err);
/* Adds elements of a stored tensor of the catalog to an own one. The stored tensor may have another
 * dtype: then its elements are cast when they are read, and digests are of the own tensor's dtype.
 * ERR_OURS where pair.a is not nested. */
MUST_CHECK enum status catalog_add_own_part(struct catalog *c, struct own_tensor *own,
                                            const struct stored_tensor *stored,
                                            const struct pair *pair, struct error *err);
/* Adds an own tensor that is a whole stored tensor, with its dtype and shape. */
MUST_CHECK enum status catalog_own_stored(struct catalog *c, const char *name, const char *state,
                                          const struct stored_tensor *stored, struct error *err);
const struct own_tensor *catalog_find_own(const struct catalog *c, const char *name,
                                          const char *state);

/* Sets the logical name that an own tensor of the catalog has; it must outlive the catalog. */
void own_set_logical(struct catalog *c, const struct own_tensor *own, const char *logical);

/* A stored tensor as a tensor that can be read, under its stored name, in arena a. It is not added
 * to the catalog. */
MUST_CHECK enum status catalog_wrap_stored(const struct catalog *c, struct arena *a,
                                           const struct stored_tensor *stored, struct tensor **out,
                                           struct error *err);
/* Checks that the pieces of each tensor tile it. ERR_CORRUPT names the first tensor that they do
 * not tile. */
MUST_CHECK enum status catalog_check(const struct catalog *c, struct error *err);
MUST_CHECK enum status tensor_check(const struct tensor *t, struct error *err);

/* By a logical name: whether it is of rows past the true vocabulary; of a moment or a master
 * weight. */
bool name_is_padding(const char *name);
bool name_is_optimizer(const char *name);
/* NAME in "optimizer.STATE.NAME"; STATE is the *length bytes at *state (both may be NULL). NULL:
 * the name is of no state. */
const char *name_of_state(const char *name, const char **state, size_t *length);

/* "[2048, 512]" */
const char *shape_text(struct arena *a, unsigned num_dims, const uint64_t *shape);

#endif
