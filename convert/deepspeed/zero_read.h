/* zero_read.h - reads the *_optim_states.pt of ranks that share an optimizer by
 * ZeRO: flat vectors with parameters as runs.
 *
 *   {optimizer_state_dict: S, ds_config, ds_version}
 *   S of stages 1 and 2 (runtime/zero/stage_1_and_2.py:state_dict) and of
 *   BF16_Optimizer, which has no zero_stage:
 *     base_optimizer_state   {state: {g: {step, exp_avg, ...}}, param_groups}, or
 *                            (elastic) a list of {exp_avg, ...}, one per group
 *     single_partition_of_fp32_groups
 *                            masters, one vector per group; stages 1 and 2
 *                            without padding
 *     partition_count, param_slice_mappings, param_alignment_paddings,
 *     loss_scaler, ...
 *   S of stage 3 (stage3.py:_rigid_state_dict), s a sub-group:
 *     optimizer_state_dict   {state: {s: {step, ...}}, param_groups}
 *     fp32_flat_groups       masters, one vector per sub-group
 *     partition_count, zero_stage, loss_scaler, ...
 *
 * zero_layout.h has the places of parameters in the vectors. Parameters have
 * the order of param_shapes; param_slice_mappings is wrong after
 * round_robin_gradients, so it is only compared. A *segment* here is the vector
 * of a group or sub-group. Each rank's part of each segment is a stored tensor
 * per state, FILE/KEY. */
#ifndef FERRY_CONVERT_DEEPSPEED_ZERO_READ_H
#define FERRY_CONVERT_DEEPSPEED_ZERO_READ_H

#include "convert/deepspeed/ds_folder.h"
#include "convert/deepspeed/ds_values.h"
#include "convert/states.h"

/* A parameter of param_shapes. */
struct ds_param {
    const char *name;        /* there */
    const char *native_name; /* of the native tensor; name unless a caller changes it */
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel;
    size_t segment;
    uint64_t begin;    /* in the segment: all ranks'; stage 3: each rank's */
    uint64_t whole_at; /* of a group of Muon: in the momentum of the first rank that has a part */
    enum dtype dtype;  /* of the weight; stage 3 */
};
struct ds_params {
    struct ds_param *items;
    size_t count, capacity;
    size_t *ends; /* [num_lists]: one past each list's last parameter */
    size_t num_lists, lists_capacity;
    struct map names; /* -> items */
};
/* Reads param_shapes: a list of dicts, or (very old) a dict, into arena a. path
 * is for messages. ERR_CORRUPT. */
MUST_CHECK enum status ds_params_read(struct ds_params *p, struct arena *a,
                                      const struct value *shapes, const char *path,
                                      struct error *err);
void ds_params_release(struct ds_params *p);

typedef enum status zero_add_run(void *context, const struct ds_param *p, const char *state,
                                 enum dtype dtype, size_t stored, const struct pair *run,
                                 struct error *err);

/* Adds to a native tensor the elements of a stored one that two pairs share:
 * piece, (in a rank's part, in the whole), nested; run, (in the part, in the
 * stored tensor). name: for messages. */
MUST_CHECK enum status zero_place_run(struct catalog *all, struct native_tensor *native,
                                      size_t stored, const struct pair *piece,
                                      const struct pair *run, const char *name, struct error *err);

struct zero_read {
    struct checkpoint *c;
    const char *folder;
    struct ds_params *params;
    size_t expected;  /* number of files by another file; 0: unknown */
    bool only_states; /* weights are elsewhere; else (stage 3) read from masters */
    /* Adds a run of a parameter, (flat in the parameter, in the stored tensor),
     * to a state's native tensor. NULL: parameters are whole. */
    zero_add_run *add_run;
    void *context;

    int64_t stage;  /* 1 without zero_stage */
    bool has_stage; /* false: BF16_Optimizer, or very old */
    uint64_t num_ranks;
    size_t num_segments;
    uint64_t *part;                 /* [num_segments] length in the first file */
    const char *states[MAX_STATES]; /* [0] is the master */
    size_t num_states;
    size_t *stored;          /* [num_ranks][num_segments][MAX_STATES]; 0: none, else index + 1 */
    struct ds_number *steps; /* [num_ranks][num_segments] */
    const struct value **groups; /* [num_groups] dicts of the first file, in c's arena */
    size_t num_groups;
    size_t *group_of;    /* [num_segments] */
    const char *version; /* ds_version of the first file */
    size_t other_versions, other_mappings;
    const char *first_other_version;
    bool aligned; /* with padding between parameters */
};

/* Reads one model parallel rank's files, in the order of dp. ERR_CORRUPT if one
 * is missing or they contradict one another, ERR_UNSUPPORTED for unsupported
 * contents. */
MUST_CHECK enum status zero_read_files(struct zero_read *z, const struct ds_file *files,
                                       size_t count, struct error *err);
/* Adds native tensors: each parameter's states and, unless only_states, its
 * weight. Calls states_unread() for unreadable states. */
MUST_CHECK enum status zero_read_finish(struct zero_read *z, struct error *err);
/* Then adds the groups. Group g has the parameters of group g of every tp-th of
 * `count` model parallel ranks; the others hold parts of the same
 * parameters. */
MUST_CHECK enum status zero_read_add_groups(const struct zero_read *all, size_t count, size_t tp,
                                            struct error *err);
/* Reads the loss scale of fp16 training from an object of
 * deepspeed.runtime.fp16.loss_scaler. */
void ds_read_loss_scale(struct checkpoint *c, const struct value *scaler, bool dynamic);

#endif
