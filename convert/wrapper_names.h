/* wrapper_names.h - names of parameters without the modules that wrap a model: FSDP's
 * _fsdp_wrapped_module, torch.compile's _orig_mod, activation checkpointing's
 * _checkpoint_wrapped_module, and a leading `module`, which DistributedDataParallel adds. torch's
 * state_dict functions take them out; programs that call model.state_dict() leave them in. */
#ifndef FERRY_CONVERT_WRAPPER_NAMES_H
#define FERRY_CONVERT_WRAPPER_NAMES_H

#include "ckpt/checkpoint.h"
#include "common/map.h"

/* The name without wrappers: `name` itself where there are none, else in arena a. */
const char *name_without_wrappers(struct arena *a, const char *name);

/* The names of a checkpoint. */
struct wrapper_names {
    struct checkpoint *c;
    struct map originals; /* stripped name -> index of names */
    const char **names;   /* as the files have them */
    size_t num_names, capacity;
    size_t num_stripped;
    const char *first; /* that was stripped, as its file has it */
};

void wrapper_names_init(struct wrapper_names *w, struct checkpoint *c);
void wrapper_names_release(struct wrapper_names *w);
/* *out is the name without wrappers, in the arena of c. A name may come several times.
 * ERR_UNSUPPORTED where two names become equal. */
MUST_CHECK enum status wrapper_names_strip(struct wrapper_names *w, const char *name,
                                           const char **out, struct error *err);
/* Notes how many names had wrappers, if any had. */
void wrapper_names_note(const struct wrapper_names *w);

#endif
