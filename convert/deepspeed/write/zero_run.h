/* zero_run.h - the DeepSpeed run that a checkpoint is written for: its
 * parameters, groups and ZeRO stage. Both DeepSpeed formats use it.
 *
 * Parameters have the order of torch's named_parameters() (param_order.h).
 * Those with states are trained and lie in groups (convert/torch_groups.h); the
 * others are frozen, or buffers. */
#ifndef FERRY_CONVERT_DEEPSPEED_WRITE_ZERO_RUN_H
#define FERRY_CONVERT_DEEPSPEED_WRITE_ZERO_RUN_H

#include "convert/native_outputs.h"
#include "convert/torch_archive.h"
#include "convert/torch_groups.h"

/* The DeepSpeed release whose files are imitated. */
#define ZERO_DS_VERSION "0.19.8"

/* A group of parameters; each state is one flat vector. */
struct zero_group {
    const struct torch_out_group *of;
    size_t *params; /* [num_params] of native.out, in vector order */
    size_t num_params;
    const char **states; /* [num_states]; the first is the master */
    size_t num_states;
    size_t *vectors; /* [num_states][num_params] of native.out */
    float step;      /* as torch.optim keeps it */
};

/* A second name of a parameter in the module's state dict. */
struct zero_tied {
    const char *name;
    size_t of; /* in native.out */
};

struct zero_run {
    struct target *t;
    struct native_outputs native;
    struct zero_group *groups;
    size_t num_groups;
    size_t *params; /* [num_params] of native.out: all parameters and buffers */
    size_t num_params;
    size_t *place;                /* [native.out.count] index in params */
    bool *is_trained, *is_buffer; /* [native.out.count] */
    struct zero_tied *tied;
    size_t num_tied, tied_capacity;
    unsigned stage;
    uint64_t dp;
    uint64_t iteration;
    enum dtype dtype;                /* of most parameters */
    struct tensor *zeros;            /* source of padding */
    struct torch_archive **archives; /* in the plan's arena */
    size_t num_archives, archives_capacity;
    cJSON *config; /* made here; NULL: copies the source's */
};

/* Sets t->state to a run with t's parameters, groups and outcomes; plans
 * nothing yet. ERR_UNSUPPORTED if parameters of a group differ in their
 * states. */
MUST_CHECK enum status zero_run_begin(struct target *t, struct zero_run **out, struct error *err);
/* Call after the last file. */
void zero_run_end(struct zero_run *r);
void zero_run_release(struct target *t); /* for target_kind */

/* For target_kind: config.json and its companions; root files with the tracker
 * that names the unit. */
MUST_CHECK enum status zero_small_files(struct target *t, const char *folder, struct error *err);
MUST_CHECK enum status zero_root_files(struct target *t, const char *tracker,
                                       struct root_file **files, size_t *num_files);

/* ---- files ---- */

/* Begins a torch.save file; zero_file_end() lays out its value, as the last
 * step. */
struct torch_archive *zero_file(struct zero_run *r, const char *path);
MUST_CHECK enum status zero_file_end(struct zero_run *r, struct torch_archive *x,
                                     const struct value *root, struct error *err);
/* A file's tensor and its segment, or a tensor without elements. */
struct value *zero_tensor(struct zero_run *r, struct torch_archive *x, enum dtype dtype,
                          unsigned num_dims, const uint64_t *shape, uint32_t *segment);
/* A tensor without dimensions. */
struct value *zero_scalar(struct zero_run *r, struct torch_archive *x, float number);
/* The whole native tensor `at` in dtype. */
MUST_CHECK enum status zero_whole(struct zero_run *r, struct torch_archive *x, size_t at,
                                  enum dtype dtype, struct value **out, struct error *err);
/* Plans elements [begin, begin + count) of native tensor `at` to `place` of a
 * segment; zeros past its end. */
MUST_CHECK enum status zero_fill(struct zero_run *r, size_t at, uint64_t begin, uint64_t count,
                                 uint64_t place, uint32_t segment, struct error *err);
void zero_fill_padding(struct zero_run *r, uint64_t place, uint64_t count, uint32_t segment);

/* ---- values ---- */

/* The dict of a torch.optim group; params: a list. */
struct value *zero_param_group(struct zero_run *r, const struct zero_group *g,
                               struct value *params);
/* Adds the loss scaler and its flags, part of every optimizer's dict. */
void zero_add_loss_scale(struct zero_run *r, struct value *dict);
/* {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, ...} */
struct value *zero_config(struct zero_run *r);

#endif
