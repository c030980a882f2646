/* wrapper_names.h - strips wrapper modules from parameter names: FSDP's
 * _fsdp_wrapped_module, torch.compile's _orig_mod, activation checkpointing's
 * _checkpoint_wrapped_module, and DistributedDataParallel's leading `module`.
 * torch's state_dict functions strip them; model.state_dict() does not. */
#ifndef FERRY_CONVERT_WRAPPER_NAMES_H
#define FERRY_CONVERT_WRAPPER_NAMES_H

#include "ckpt/checkpoint.h"
#include "common/map.h"

/* The name without wrappers: `name` itself if it has none, else in arena a. */
const char *name_without_wrappers(struct arena *a, const char *name);

/* The names of a checkpoint. */
struct wrapper_names {
    struct checkpoint *c;
    struct map originals; /* stripped name -> index of names */
    const char **names;   /* as the files have them */
    size_t num_names, capacity;
    size_t num_stripped;
    const char *first; /* first stripped name, as its file has it */
};

void wrapper_names_init(struct wrapper_names *w, struct checkpoint *c);
void wrapper_names_release(struct wrapper_names *w);
/* Sets *out to the name without wrappers, in c's arena. A name may be given
 * repeatedly. ERR_UNSUPPORTED if two names become equal. */
MUST_CHECK enum status wrapper_names_strip(struct wrapper_names *w, const char *name,
                                           const char **out, struct error *err);
/* Notes the number of stripped names, if any. */
void wrapper_names_note(const struct wrapper_names *w);

#endif
