/* catalog.h - all tensors of one opened checkpoint under their logical names, and its attributes.
 *
 * A *logical* tensor is one parameter, whatever the files call it and however they cut it: named as
 * Megatron-Core names it on disk under the Transformer-Engine layer spec, with the global layer
 * number, one tensor an expert (decoder.layers.3.mlp.experts.experts.7.linear_fc1.weight); weights
 * are [out, in], linear_qkv in Megatron's group order, linear_fc1 [gate; up] of the whole
 * parameter. A moment of the optimizer is optimizer.exp_avg.NAME, optimizer.exp_avg_sq.NAME, a
 * master weight optimizer.param.NAME. A tied head is no tensor. Rows past the true vocabulary are
 * NAME.padding. */
#ifndef FERRY_CKPT_CATALOG_H
#define FERRY_CKPT_CATALOG_H

#include "ckpt/layout.h"
#include "ckpt/model_config.h"
#include "ckpt/param.h"
#include "ckpt/view.h"
#include "common/arena.h"
#include "common/dtype.h"
#include "common/map.h"
#include "formats/stored.h"
#include "formats/value.h"

enum piece_source {
    PIECE_STORED,     /* bytes of a file */
    PIECE_ZERO,       /* elements of value 0: rows that are new */
    PIECE_RANDOM,     /* numbers made from a seed (ferry synth), about 0 */
    PIECE_RANDOM_ONE, /* the same about 1 */
    PIECE_HOLE        /* no bytes at all: a sparse file (ferry synth --sparse) */
};

/* A part of a logical tensor and where its elements lie. pair.a is flat in the logical tensor,
 * pair.b counts elements from offset_bytes of the file (PIECE_RANDOM*: of the stream of numbers
 * `file`). */
struct piece {
    enum piece_source source;
    enum dtype dtype; /* as stored; the tensor's, but for tensors fused from several dtypes */
    uint32_t file;
    bool byte_swapped;
    uint64_t offset_bytes;
    struct pair pair;
};

struct tensor {
    const char *name;
    const char *stored_name;   /* of its (first) stored tensor, for messages; may be NULL */
    const char **stored_names; /* of all that it is made of, each once */
    size_t num_stored_names, stored_names_capacity;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel;
    struct piece *pieces;
    size_t num_pieces, pieces_capacity;
};

/* What a file says of its optimizer; moments are tensors of the catalog where they can be. */
struct optimizer_info {
    bool present;
    const char *kind; /* "distributed, fully_reshardable", for people */
    uint64_t size_bytes;
    const char *unread; /* why not all of it became tensors of the catalog; NULL: it did */
};

/* Who says what the config has. */
enum config_origin {
    CONFIG_OF_TENSORS, /* their names and shapes alone */
    CONFIG_OF_ARGS,    /* Megatron's args, or run_config.yaml */
    CONFIG_OF_JSON     /* config.json */
};

struct catalog {
    struct arena arena;
    const char *path;   /* as the user gave it */
    const char *folder; /* where the files lie: the iteration's folder, or path */
    const char *format; /* "hf", "torch_dist", "torch": what --to calls it */
    struct stored stored;

    struct tensor *tensors;
    size_t num_tensors, tensors_capacity;
    struct map names;

    struct model_config config;
    const struct param_table *params; /* of config, in arena (convert/params.h); NULL: not known */
    enum config_origin config_origin;
    const char *beyond;   /* what args or run_config.yaml say that the config has no place for, as
                           * "apply_layernorm_1p True"; NULL: nothing */
    bool contradicts;     /* the config tells of other tensors than there are */
    const char *family;   /* of the model map; NULL: not known */
    struct layout layout; /* as found; all 1 for Hugging Face */
    bool transformer_engine_names; /* in-memory names (legacy) or extra states say so */
    int64_t iteration;             /* -1: none */
    bool release;                  /* chosen by the tracker word "release" */
    const char *hf_folder; /* where config.json and what travels with it lie; NULL: nowhere */
    struct value *common;  /* Megatron's common state (a dict with args), in arena; NULL: none */
    struct optimizer_info optimizer;
    char **notes; /* what the user should know, a line each */
    size_t num_notes, notes_capacity;

    /* Tensors, by their own names, that the model should have and the files do not, and the other
     * way round. Opening lists them all; who needs the model whole refuses. */
    const char **missing, **unexpected;
    size_t num_missing, missing_capacity, num_unexpected, unexpected_capacity;
    size_t num_mapped, num_ignored; /* stored tensors that became logical ones; that nobody needs */

    struct stored_index *index; /* of the stored tensor that was looked at last */
};

void catalog_init(struct catalog *c, const char *path);
void catalog_release(struct catalog *c);
void catalog_note(struct catalog *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Adds a tensor without pieces (name and shape are copied), or returns the one that is there if its
 * dtype and shape are the same; ERR_CORRUPT where they are not, or where it has more than
 * MOST_ELEMENTS. *out is valid until the next tensor is added. */
MUST_CHECK enum status catalog_add(struct catalog *c, const char *name, enum dtype dtype,
                                   unsigned num_dims, const uint64_t *shape, struct tensor **out,
                                   struct error *err);
struct tensor *catalog_find(const struct catalog *c, const char *name);
/* Adds a piece to a tensor; pair.a must be nested. */
void catalog_add_piece(struct catalog *c, struct tensor *t, const struct piece *piece);
/* Adds the part of a stored tensor that `part` picks: part.a is flat in the logical tensor t,
 * part.b flat in the stored tensor (both row-major). Joined with the stored pieces; quick for a
 * stored tensor of many pieces that is taken apart into many logical ones, one after the other. */
MUST_CHECK enum status catalog_add_stored(struct catalog *c, struct tensor *t,
                                          const struct stored_tensor *stored,
                                          const struct pair *part, struct error *err);
/* A stored tensor as a logical one of its own name, so that it is read as all are: added, or the
 * one that is there. */
MUST_CHECK enum status catalog_wrap_stored(struct catalog *c, const struct stored_tensor *stored,
                                           struct tensor **out, struct error *err);
/* Lists a name, which is copied. ERR_CORRUPT where 100,000 are missing already: a config of a few
 * hundred bytes may ask for millions that are not there. */
MUST_CHECK enum status catalog_add_missing(struct catalog *c, const char *name, struct error *err);
void catalog_add_unexpected(struct catalog *c, const char *name); /* copied */
/* ERR_UNSUPPORTED where tensors are unexpected or missing: how many, and the first of them. */
MUST_CHECK enum status catalog_check_names(const struct catalog *c, struct error *err);
/* Checks that the pieces of each tensor tile it: ERR_CORRUPT naming the first that do not. */
MUST_CHECK enum status catalog_check(struct catalog *c, struct error *err);
MUST_CHECK enum status catalog_check_tensor(struct catalog *c, const struct tensor *t,
                                            struct error *err);

/* What a logical name says: rows past the true vocabulary; a moment or a master weight. */
bool name_is_padding(const char *name);
bool name_is_optimizer(const char *name);

/* "1 tensor WHAT: first", "7 tensors WHAT: first, second, third, fourth, fifth and 2 more" */
const char *count_names_text(struct arena *a, const char *what, const char *const *names,
                             size_t count);
/* "[2048, 512]" */
const char *shape_text(struct arena *a, unsigned num_dims, const uint64_t *shape);

#endif
