/* checkpoint.h - the state of a training run, from a checkpoint into arrays and
 * back.
 *
 * Weights, masters and moments of all parameters lie in flat *regions* of one
 * order: in each, parameter i begins at the same element,
 * parameters->items[i].offset / bytes of a weight, unless the region is sharded
 * (shard.h). Gaps between parameters are not read. All arrays are the caller's,
 * and on the host.
 *
 * Reads any checkpoint that source_open() opens, of any layout and format.
 * Writes a plan of convert/target.h whose tensors lie in memory. A checkpoint
 * appears complete or not at all (ckpt/publish.h), the root's tracker last. */
#ifndef FERRY_TRAIN_TRAINER_CHECKPOINT_H
#define FERRY_TRAIN_TRAINER_CHECKPOINT_H

#include "convert/format.h"
#include "convert/source.h"
#include "train/model/parameters.h"
#include "train/trainer/shard.h"

/* Kinds of regions. exp_avg is also SGD's momentum. */
enum held_kind { HELD_WEIGHT, HELD_MASTER, HELD_EXP_AVG, HELD_EXP_AVG_SQ, NUM_HELD };

/* One of several ranks. */
struct held_rank {
    const struct parameters *parameters;
    const struct groups *groups; /* the rank's place in them counts */
    const struct shard *shard;   /* as in struct train_state */
};

struct train_state {
    const struct parameters *parameters; /* of this rank */
    void *data[NUM_HELD];                /* NULL: the run has no such region */
    enum dtype dtype[NUM_HELD]; /* of the elements; that of weights is parameters->elem's */
    const struct shard *shard;  /* masters and moments are sharded so; NULL: they are whole */
    uint64_t padded_rows; /* rows of the vocabulary that all ranks hold, with padding; 0: no more
                             than the config's */
    const struct model_config *config;
    /* The checkpoint that the run began with. Saving uses its parameter specs,
     * family, config.json with companions, and args; a run from scratch makes
     * one without tensors. */
    const struct checkpoint *origin;

    /* To save: */
    const char *hf_folder;           /* of config.json with companions; NULL: the origin's */
    const char *tokenizer_folder;    /* of Megatron's tokenizer; NULL: the origin's */
    const struct training *training; /* complete; its iteration is the one to write */
    const cJSON *args; /* attributes of Megatron's args beside the origin's and the model's, by name
                          ("lr": 0.01); NULL: none */
    struct layout_options layout; /* to write; all 0: one rank */
    /* Several ranks write a checkpoint together: their parts, and the group of
     * all. NULL: this rank has all. */
    const struct held_rank *ranks; /* [world->size] */
    struct comm_group *world;
    /* States of random number generators: kept for ranks that had some, else
     * made from the seed. no_rng: none are written. */
    const struct rng_kept *rng; /* [num_rng] */
    size_t num_rng;
    uint64_t seed;
    bool no_rng;
    bool on_host;               /* written for Megatron-LM on hosts without GPUs */
    bool local_spec;            /* --transformer-impl local: names, and args */
    bool grouped_gemm;          /* --moe-grouped-gemm: the same, without local_spec */
    bool distributed_optimizer; /* states are written for Megatron-LM's distributed optimizer */
};

/* ---- which checkpoint ---- */

struct checkpoint_found {
    bool found;
    const char *path;  /* to be opened by source_open(); in the arena */
    int64_t iteration; /* -1: none, a model */
    const struct format *format;
    const char *note; /* as in struct iteration; NULL: none */
};

/* Finds the checkpoint at `path`: Megatron's root or one of its iterations, a
 * Hugging Face folder, a root of Hugging Face folders iter_N (the newest), or a
 * model in the hub's cache. has_step: that iteration. A missing path, or a
 * folder without checkpoint, returns OK with found false. ERR_IO or ERR_CORRUPT
 * if a tracker or step names an iteration that is missing or unreadable. In
 * arena a. */
MUST_CHECK enum status checkpoint_find(struct checkpoint_found *out, const char *path,
                                       bool has_step, uint64_t step, struct arena *a,
                                       struct error *err);
/* The same for --load: ERR_IO if nothing is found. */
MUST_CHECK enum status checkpoint_find_to_load(struct checkpoint_found *out, const char *path,
                                               bool has_step, uint64_t step, struct arena *a,
                                               struct error *err);

/* ---- load ---- */

struct checkpoint_load_options {
    struct load_options load;
    bool no_optimizer;  /* --no-load-optim, --finetune: masters and moments are made */
    bool allow_shifted; /* --allow-shifted: optimizer_info.shifted (ckpt/checkpoint.h) */
};

struct checkpoint_loaded {
    struct training training; /* what the checkpoint says; in arena `a` of the call */
    bool has_optimizer;       /* states of it were loaded */
    bool has_schedule; /* training has one that counts: it is not left out with the optimizer */
    uint64_t made[NUM_HELD];     /* parameters (one a logical tensor) whose state was made */
    const char *first[NUM_HELD]; /* the first of them */
    const char *note;            /* what was made and why, a line for the user; NULL: nothing was */
    uint64_t num_left;           /* scales and the like of encoded weights, which are not saved */
};

/* Fills the regions of s from c, opened by source_open(), for the parameters of
 * s with tensors. States that c lacks are made: the master is the loaded
 * weight, a moment is 0. A weight that c stores in another dtype is cast from
 * its master, if c has one. Rows of padding come from c if it stores them;
 * others keep the caller's weight, with a master equal to it and moments of 0.
 * ERR_UNSUPPORTED if c lacks a weight, has one of another shape, or has an
 * unreadable optimizer that is not left out. */
MUST_CHECK enum status checkpoint_load(const struct train_state *s, const struct checkpoint *c,
                                       const struct checkpoint_load_options *o,
                                       struct checkpoint_loaded *out, struct arena *a,
                                       struct error *err);

/* ---- save ---- */

struct checkpoint_target {
    const char *dir;
    const struct format *format; /* torch_dist, torch: DIR is the root; hf: DIR/iter_N */
    bool overwrite;              /* replace the iteration if it is there */
    bool no_optimizer;           /* weights alone */
    uint64_t keep_last;          /* older iterations that stay, this one counted; 0: all */
    unsigned threads;            /* 0: as many as there are CPUs */
    bool fsync;
    bool quiet; /* notes of the plan are not printed */
    const struct model_maps *maps;
};

/* Writes DIR/iter_NNNNNNN, and for Megatron's formats the tracker. s may be a
 * snapshot that another thread writes: s and all it points to must not change
 * until the call returns. Older iterations are removed only once the new one is
 * complete; an error tells if that fails. ERR_EXISTS if the iteration exists
 * and overwrite is not set; ERR_IO, naming the file, if the disk is full:
 * written files are removed, and previous ones stay. Collective over several
 * ranks: all get the same status. */
MUST_CHECK enum status checkpoint_save(const struct train_state *s,
                                       const struct checkpoint_target *to, struct error *err);

/* The Hugging Face family of a run's model: the origin's, unless the line
 * changes the model. NULL: none known. Uses arena a. */
const char *checkpoint_family(const struct checkpoint *origin, const struct model_config *config,
                              const struct model_maps *maps, struct arena *a);

/* The iterations that a run will save: multiples of `interval` (0: none) behind
 * `after`, and the last one. */
struct checkpoint_saves {
    uint64_t after, interval, last;
};
/* Checks, without writing, that they can be saved: ERR_EXISTS as above, ERR_IO
 * if the folder is not writable. */
MUST_CHECK enum status checkpoint_check_target(const struct checkpoint_target *to,
                                               const struct checkpoint_saves *saves,
                                               struct error *err);
/* Whether that iteration is there. */
bool checkpoint_has(const struct checkpoint_target *to, uint64_t iteration);
/* The folder of config.json and its companions in a saved iteration; in arena
 * a. */
const char *checkpoint_hf_folder(const struct checkpoint_target *to, uint64_t iteration,
                                 struct arena *a);
/* The folder of a tokenizer's files there; NULL: the format has none. */
const char *checkpoint_tokenizer_folder(const struct checkpoint_target *to, uint64_t iteration,
                                        struct arena *a);

#endif
