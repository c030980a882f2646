/* target.h - makes the plan for a format and a layout, and the small files that go with it. */
#ifndef FERRY_CONVERT_TARGET_H
#define FERRY_CONVERT_TARGET_H

#include "ckpt/checkpoint.h"
#include "ckpt/plan.h"
#include "ckpt/publish.h"
#include "common/args.h"
#include "convert/map/model_map.h"

struct target_options {
    const struct format *format;  /* convert/format.h */
    struct layout_options layout; /* of Megatron's formats */
    bool casts;
    enum dtype dtype;      /* that floating-point weights get, where casts */
    uint64_t divisible_by; /* --make-vocab-size-divisible-by; 0: the source's, else 128 */
    bool has_iteration;
    uint64_t iteration;
    bool transformer_engine;  /* names and extra states: TE's, else the local spec's */
    bool grouped_gemm;        /* in args, and for the names of experts in legacy files */
    bool common_as_object;    /* torch_dist: the common state in an object, not common.pt */
    uint64_t max_shard_bytes; /* hf */
    bool durable;
    /* Globs; NULL: none. What may be missing is left out of the destination, what may be unexpected
     * of the source. */
    const struct arg_list *allow_missing, *allow_unexpected;
};

/* What a target has to say of itself in the plan's report. */
struct target_facts {
    uint64_t padded_vocab;                     /* rows that are written; 0: not padded */
    uint64_t new_rows, carried_rows, cut_rows; /* of padding: zero, from the source, left out */
    bool per_layer_names;                      /* torch_dist, where layers differ */
    size_t num_target_tensors, num_weight_files;
    uint64_t cast_tensors;
    const char *flags; /* Megatron-LM's, beside --use-checkpoint-args; NULL or "": none */
};

struct target {
    struct target_options options;
    const struct format *format;
    const struct checkpoint *source;
    const struct model_map *map;   /* of the family; NULL: not known, and not needed */
    const struct model_maps *maps; /* borrowed */
    struct layout layout;
    struct plan plan;
    struct target_facts facts;
    struct notes notes; /* what the user should know; in the plan's arena */
    struct gaps gaps;   /* what the source lacks, and what of it has no place in the target */
    const char *unit; /* what is published within a root, "iter_0000010"; NULL: the folder itself */
    void *own;        /* the kind's */
};

/* One way to write checkpoints. */
struct target_kind {
    /* Adds files, segments and pieces to t->plan; lists gaps and notes. */
    enum status (*plan)(struct target *t, struct error *err);
    /* Writes the small files of the unit into folder, when the weights are there. */
    enum status (*write_small_files)(struct target *t, const char *folder, struct error *err);
    /* The files of the root that say which unit counts, in the order in which they are to appear.
     * In the plan's arena. NULL: there are none. */
    enum status (*root_files)(struct target *t, struct root_file **files, size_t *num_files,
                              struct error *err);
    void (*release)(struct target *t); /* of t->own, where that was set; NULL: nothing to do */
};
extern const struct target_kind target_hf, target_torch_dist, target_torch;

/* Bytes of the small files that are copied or made, for the disk that is needed; an estimate. */
enum { SMALL_FILES_BYTES = 1 << 20 };

/* Makes the plan. On failure release it too. ERR_UNSUPPORTED where tensors are missing
 * or left over and may not be: t->gaps lists them. */
MUST_CHECK enum status target_plan(struct target *t, const struct target_options *o,
                                   const struct checkpoint *source, const struct model_maps *maps,
                                   struct error *err);
void target_release(struct target *t);

/* An own tensor that is written (convert/naming.h). */
struct out_tensor {
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel, filled; /* filled: elements that there are, counted by the target */
};
struct out_tensors {
    struct out_tensor *items;
    size_t count, capacity;
    struct map names;
};
struct own_output;
/* The index of an own tensor, which is added, into arena a, where it is not there. */
size_t out_tensors_add(struct out_tensors *all, struct arena *a, const struct own_output *own);

/* Fills elements of a segment: pair is (flat in the own tensor, nested; element of the segment). */
MUST_CHECK enum status target_fill(struct target *t, const struct own_output *own,
                                   const struct pair *pair, uint32_t segment, struct error *err);

/* Whether a logical tensor is a parameter: no moment, no padding of the vocabulary. */
bool is_parameter(const struct tensor *x);
/* The dtype that tensor x gets. */
enum dtype target_dtype(const struct target *t, const struct tensor *x);

#endif
