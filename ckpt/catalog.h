/* catalog.h - the tensors of a checkpoint:
 *
 * - *stored*: a tensor of a file;
 * - *native*: a tensor of the program that wrote the checkpoint, under its name
 *   there: a stored tensor, or runs of several where ranks have cut it;
 * - *logical*: one parameter, however files name and cut it.
 *
 * Logical names are Megatron-Core's on disk under the Transformer-Engine layer
 * spec, with the global layer number, one tensor an expert:
 *
 *   decoder.layers.3.mlp.experts.experts.7.linear_fc1.weight
 *   optimizer.STATE.NAME  a state: exp_avg, exp_avg_sq, or param, the master
 *                         weight; a weight of F32 or F64 is its own
 *   NAME.padding          rows past the true vocabulary
 *   carried.NAME          a tensor outside of the language model (convert/carried.h)
 *   encoding.NAME         a scale, or what else came with codes (convert/encodings.h)
 *
 * Weights are [out, in], linear_qkv in Megatron's group order, linear_fc1
 * [gate; up] of the whole parameter. A tied head is no tensor. */
#ifndef FERRY_CKPT_CATALOG_H
#define FERRY_CKPT_CATALOG_H

#include "ckpt/origin.h"
#include "ckpt/view.h"
#include "common/arena.h"
#include "common/dtype.h"
#include "common/map.h"
#include "formats/stored.h"

/* A part of a logical tensor and the place of its elements. pair.a is flat in
 * the logical tensor. pair.b counts elements
 *
 * - from offset_bytes of the file;
 * - ORIGIN_RANDOM*: of the random stream number `file`;
 * - ORIGIN_MEMORY: of `memory`;
 * - ORIGIN_HALVES: of the tensors `halves`;
 * - ORIGIN_ENCODED: of `encoded`, as numbers;
 * - ORIGIN_CODES, ORIGIN_SCALES, ORIGIN_GLOBAL_SCALE: of what `encoder` makes.
 *
 * Small, since there may be millions. */
struct piece {
    struct packed_pair pair;
    union {
        uint64_t offset_bytes;
        const void *memory; /* ORIGIN_MEMORY: the holder's; NULL in other processes */
        const struct halves *halves;
        const struct encoded *encoded;
        struct encoder *encoder;
    };
    uint32_t file;
    unsigned holder; /* the rank that writes it, if the tensor has pieces in memory (held.h) */
    enum origin_id origin : 8;
    enum dtype dtype : 8; /* as stored; cast to the tensor's when read */
    bool byte_swapped;
    float add; /* added to each element when read; joined pieces have 0 */
};

struct tensor {
    const char *name;
    const char *stored_name;   /* its (first) stored tensor, for messages; may be NULL */
    const char **stored_names; /* all its stored tensors, each once */
    size_t num_stored_names, stored_names_capacity;
    const char *same_as; /* the logical tensor whose pieces these are: a weight that is its own
                            master; else NULL */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel;
    struct piece *pieces;
    size_t num_pieces, pieces_capacity;
};

/* A tensor of F32 as kernels/cpu/remainders.h joins it. */
struct halves {
    struct tensor upper, lower; /* BF16; I16, or F32 with such numbers */
};

struct native_part {
    struct packed_pair pair; /* a: flat in the native tensor, nested; b: flat in the stored one, or
                                in the elements of `encoded` */
    size_t stored;           /* index into catalog.stored.tensors; of `encoded`: the codes */
    const struct encoded *encoded; /* NULL: elements are as stored */
};

struct native_tensor {
    const char *name;
    const char *state; /* optimizer state, as "exp_avg"; NULL: a parameter or a buffer */
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel;
    struct native_part *parts; /* on the heap: there may be one for each rank */
    size_t num_parts, parts_capacity;
    const char **logicals; /* of a parameter: the logical tensors with its elements, in order */
    size_t num_logicals, logicals_capacity;
    bool of_encoding; /* a scale, or what else came with codes: no weight */
};

struct catalog {
    struct arena *arena;  /* the owner's; holds all added tensors */
    struct stored stored; /* the files of stored pieces */
    struct native_tensor *native;
    size_t num_native, native_capacity;
    struct map native_names; /* see catalog_find_native */
    struct tensor *tensors;
    size_t num_tensors, tensors_capacity;
    struct map names;
    struct part_index *native_index, *stored_index; /* parts of the tensor used last */
    struct adder *adder;                            /* state of catalog_add_part() between calls */
};

void catalog_init(struct catalog *c, struct arena *a);
void catalog_release(struct catalog *c);

/* Adds a tensor without pieces (copies name and shape), or returns the one of
 * this name. ERR_CORRUPT if its dtype or shape differs, or the tensor exceeds
 * MAX_ELEMENTS. *out is valid until the next tensor is added. */
MUST_CHECK enum status catalog_add(struct catalog *c, const char *name, enum dtype dtype,
                                   unsigned num_dims, const uint64_t *shape, struct tensor **out,
                                   struct error *err);
struct tensor *catalog_find(const struct catalog *c, const char *name);
/* Adds a piece with this pair to a tensor, in arena a. pair->a must be nested;
 * piece->pair is ignored. */
void tensor_add_piece(struct arena *a, struct tensor *t, const struct piece *piece,
                      const struct pair *pair);
/* Adds copies of all pieces of another tensor. */
void tensor_add_pieces(struct arena *a, struct tensor *t, const struct tensor *of);
/* Adds a number to all elements of a tensor, when they are read. */
void tensor_add_number(struct tensor *t, double number);
/* Makes a tensor of remainders the F32 tensor whose upper halves are a weight of
 * BF16; it gets the stored names of both. Neither has pieces of other dtypes,
 * and the weight's must not change any more. ERR_CORRUPT if t is incomplete or
 * of another shape. */
MUST_CHECK enum status tensor_join_halves(struct arena *a, struct tensor *t,
                                          const struct tensor *weight, struct error *err);
/* Whether it is such a tensor. */
bool tensor_is_joined(const struct tensor *t);
/* Adds the part of a native tensor that `part` selects: part.a is flat in the
 * logical tensor t, part.b in the native one (both row-major). Joins it with
 * the parts of the native tensor, and these with the stored pieces. Fast for a
 * tensor of many parts or pieces that becomes many logical ones, one after the
 * other. */
MUST_CHECK enum status catalog_add_part(struct catalog *c, struct tensor *t,
                                        const struct native_tensor *native, const struct pair *part,
                                        struct error *err);

/* Adds a native tensor without parts, or returns the one of this state and
 * name, like catalog_add(). Keeps the pointers name and state. *out is valid
 * until the next one is added. */
MUST_CHECK enum status catalog_add_native(struct catalog *c, const char *name, const char *state,
                                          enum dtype dtype, unsigned num_dims,
                                          const uint64_t *shape, struct native_tensor **out,
                                          struct error *err);
/* Adds elements of a stored tensor of the catalog to a native one. If the
 * stored dtype differs, elements are cast when read, and digests are of the
 * native tensor's dtype. ERR_OURS if pair.a is not nested. */
MUST_CHECK enum status catalog_add_native_part(struct catalog *c, struct native_tensor *native,
                                               const struct stored_tensor *stored,
                                               const struct pair *pair, struct error *err);
/* Adds a native tensor that is one stored tensor, with its dtype and shape. */
MUST_CHECK enum status catalog_native_stored(struct catalog *c, const char *name, const char *state,
                                             const struct stored_tensor *stored, struct error *err);
/* Makes a native tensor of codes one of e's elements, by pair. Keeps e.
 * ERR_OURS if pair.a is not nested. */
MUST_CHECK enum status catalog_decode_native(struct catalog *c, const struct native_tensor *native,
                                             const struct encoded *e, enum dtype dtype,
                                             unsigned num_dims, const uint64_t *shape,
                                             const struct pair *pair, struct error *err);
const struct native_tensor *catalog_find_native(const struct catalog *c, const char *name,
                                                const char *state);

/* Adds the name of a logical tensor with elements of a native one, unless it
 * was the last added. It must outlive the catalog. */
void native_add_logical(struct catalog *c, const struct native_tensor *native, const char *logical);
/* Renames all native tensors: names[i], which the catalog keeps, is that of
 * native[i]. ERR_UNSUPPORTED, and no change, if two become equal. */
MUST_CHECK enum status catalog_rename_native(struct catalog *c, const char *const *names,
                                             struct error *err);

/* Makes a readable tensor of a stored one, under its stored name, in arena a.
 * It is not added to the catalog. */
MUST_CHECK enum status catalog_wrap_stored(const struct catalog *c, struct arena *a,
                                           const struct stored_tensor *stored, struct tensor **out,
                                           struct error *err);
/* Checks that the pieces of each tensor tile it. ERR_CORRUPT names the first
 * tensor that fails. */
MUST_CHECK enum status catalog_check(const struct catalog *c, struct error *err);
MUST_CHECK enum status tensor_check(const struct tensor *t, struct error *err);

/* Whether a logical name is that of padding rows; of a moment or a master
 * weight; of a tensor that is carried along; of one that came with codes. */
bool name_is_padding(const char *name);
bool name_is_optimizer(const char *name);
bool name_is_carried(const char *name);
bool name_is_of_encoding(const char *name);
/* NAME in "optimizer.STATE.NAME"; STATE is the *length bytes at *state (both
 * may be NULL). NULL: not the name of a state. */
const char *name_of_state(const char *name, const char **state, size_t *length);

/* "[2048, 512]" */
const char *shape_text(struct arena *a, unsigned num_dims, const uint64_t *shape);

#endif
