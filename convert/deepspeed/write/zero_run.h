/* zero_run.h - the run of DeepSpeed that a checkpoint is written for: its parameters, groups and
 * stage of ZeRO. Both formats of DeepSpeed are written from it.
 *
 * Parameters are in the order of torch's named_parameters() (param_order.h). Those
 * with states are trained, and lie in groups (convert/torch_groups.h); the others are frozen, or
 * buffers. */
#ifndef FERRY_CONVERT_DEEPSPEED_WRITE_ZERO_RUN_H
#define FERRY_CONVERT_DEEPSPEED_WRITE_ZERO_RUN_H

#include "convert/own_outputs.h"
#include "convert/torch_archive.h"
#include "convert/torch_groups.h"

/* The release of DeepSpeed whose files are imitated. */
#define ZERO_DS_VERSION "0.19.8"

/* A group of parameters: the elements of each state make one flat vector. */
struct zero_group {
    const struct torch_out_group *of;
    size_t *params; /* [num_params] of own.out, in the order of the flat vector */
    size_t num_params;
    const char **states; /* [num_states]; the first is the master */
    size_t num_states;
    size_t *vectors; /* [num_states * num_params] of own.out: state k of parameter i is at
                        k * num_params + i */
    float step;      /* as torch.optim keeps it */
};

/* A parameter that the module's state dict has under a second name. */
struct zero_tied {
    const char *name;
    size_t of; /* in own.out */
};

struct zero_run {
    struct target *t;
    struct own_outputs own;
    struct zero_group *groups;
    size_t num_groups;
    size_t *params; /* [num_params] of own.out: all parameters and buffers */
    size_t num_params;
    size_t *place;                /* [own.out.count] of a parameter in params */
    bool *is_trained, *is_buffer; /* [own.out.count] */
    struct zero_tied *tied;
    size_t num_tied, tied_capacity;
    unsigned stage;
    uint64_t dp;
    uint64_t iteration;
    enum dtype dtype;                /* of most parameters */
    struct tensor *zeros;            /* what padding is filled from */
    struct torch_archive **archives; /* in the plan's arena */
    size_t num_archives, archives_capacity;
    cJSON *config; /* made here; NULL: the source's config.json is copied */
};

/* Sets t->own to a run with the parameters, groups and fates of t; nothing is planned yet.
 * ERR_UNSUPPORTED where parameters of a group differ in their states. */
MUST_CHECK enum status zero_run_begin(struct target *t, struct zero_run **out, struct error *err);
/* After the last file. */
void zero_run_end(struct zero_run *r);
void zero_run_release(struct target *t); /* of target_kind */

/* Of target_kind: config.json and its companions; for root_files, the tracker that names the unit.
 */
MUST_CHECK enum status zero_small_files(struct target *t, const char *folder, struct error *err);
MUST_CHECK enum status zero_root_files(struct target *t, const char *tracker,
                                       struct root_file **files, size_t *num_files);

/* ---- files ---- */

/* Begins a file of torch.save; lays out its value, the last step. */
struct torch_archive *zero_file(struct zero_run *r, const char *path);
MUST_CHECK enum status zero_file_end(struct zero_run *r, struct torch_archive *x,
                                     const struct value *root, struct error *err);
/* A tensor of a file and its segment, or one without elements. */
struct value *zero_tensor(struct zero_run *r, struct torch_archive *x, enum dtype dtype,
                          unsigned num_dims, const uint64_t *shape, uint32_t *segment);
/* A tensor without dimensions. */
struct value *zero_scalar(struct zero_run *r, struct torch_archive *x, float number);
/* The whole of own tensor `at` in dtype. */
MUST_CHECK enum status zero_whole(struct zero_run *r, struct torch_archive *x, size_t at,
                                  enum dtype dtype, struct value **out, struct error *err);
/* Elements [begin, begin + count) of own tensor `at` to `place` of a segment; of elements past its
 * end, zeros. */
MUST_CHECK enum status zero_fill(struct zero_run *r, size_t at, uint64_t begin, uint64_t count,
                                 uint64_t place, uint32_t segment, struct error *err);
void zero_fill_padding(struct zero_run *r, uint64_t place, uint64_t count, uint32_t segment);

/* ---- values ---- */

/* The dict of a group of torch.optim; params: a list. */
struct value *zero_param_group(struct zero_run *r, const struct zero_group *g,
                               struct value *params);
/* Adds what every dict of an optimizer has: the loss scaler and its flags. */
void zero_add_loss_scale(struct zero_run *r, struct value *dict);
/* {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, ...} */
struct value *zero_config(struct zero_run *r);

#endif
