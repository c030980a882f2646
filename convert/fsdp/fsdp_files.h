/* fsdp_files.h - finds the torch.save files of an FSDP checkpoint in its
 * folder.
 *
 *   full    model.pt and optim.pt; accelerate's pytorch_model_fsdp.bin and
 *           optimizer.bin
 *   ranks   PREFIX RANK SUFFIX per rank: verl's model_world_size_4_rank_0.pt and
 *           optim_world_size_4_rank_0.pt, accelerate's
 *           pytorch_model_fsdp_0_rank0.bin, and any other name that ends with
 *           rank, a number, and .pt, .pth or .bin */
#ifndef FERRY_CONVERT_FSDP_FSDP_FILES_H
#define FERRY_CONVERT_FSDP_FSDP_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "common/arena.h"
#include "common/status.h"

struct fsdp_set {
    const char **paths; /* [count], by rank; NULL: missing. One for a full state */
    const char **names; /* [count]: file names, also of missing files */
    size_t count, num_missing;
};
struct fsdp_files {
    const char *folder;
    struct fsdp_set weights, optimizer; /* no optimizer: count is 0 */
    bool by_rank;
    const char **others; /* files of other states: random numbers, schedules */
    size_t num_others, others_capacity;
};

/* Whether path is such a folder, or the weights file of a full state. */
bool fsdp_files_match(const char *path);
/* ERR_UNSUPPORTED if the folder has no such files, or several sets; ERR_IO. */
MUST_CHECK enum status fsdp_files_find(struct fsdp_files *out, struct arena *a, const char *path,
                                       struct error *err);

/* "a.pt, b.pt, c.pt and 5 more", in arena a. */
const char *fsdp_names_text(struct arena *a, const char *const *names, size_t count);

#endif
