/* format_fsdp.c - row of FSDP's torch.save files. */
#include "common/count.h"
#include "convert/format.h"

static const char *const fsdp_paths[] = {
    "model.pt",       "optim.pt",    "*_rank_[0-9]*.pt",       "pytorch_model_fsdp*.bin",
    "optimizer.bin",  "config.json", "generation_config.json", "ferry.json",
    "integrity.json",
};
static const char *const fsdp_weights[] = {"model.pt", "model_world_size_*_rank_*.pt",
                                           "pytorch_model_fsdp*.bin", NULL};
static const struct format_contents fsdp_contents = {
    .paths = fsdp_paths,
    .num_paths = COUNT(fsdp_paths),
    .signs = {fsdp_weights, NULL},
    .lacks = "model.pt",
};

const struct format format_fsdp = {
    .name = "fsdp",
    .title = "FSDP",
    .has = FORMAT_TORCH_GROUPS, /* a full state is not sharded */
    .becomes = &format_torch_dist,
    .naming = &naming_hf,
    .source = &source_fsdp,
    .target = &target_fsdp,
    .contents = &fsdp_contents,
    .states_in = "optim.pt",
    .last_entry = "model.pt",
};
