#include "convert/foreign.h"

#include <fnmatch.h>

#include "common/arena.h"
#include "common/file.h"

/* What one program writes has several marks: a row each, with the same words. */
#define DEEPSPEED                                                                                  \
    .is_folder = true, .is = "a DeepSpeed checkpoint",                                             \
    .way = "zero_to_fp32.py, which DeepSpeed leaves beside it, makes a pytorch_model.bin of it; "  \
           "with the model's config.json that is a Hugging Face folder",                           \
    .beside = "the state of DeepSpeed in it is not read"
#define LORA                                                                                       \
    .is_folder = true, .is = "a LoRA adapter, not a whole model",                                  \
    .way = "merge it first: merge_and_unload() of peft, then save_pretrained()",                   \
    .beside = "the LoRA adapter in it (adapter_config.json) is not merged"
#define GGUF                                                                                       \
    .is = "a GGUF model of llama.cpp",                                                             \
    .way = "start from the Hugging Face model that it was made of"
#define NEMO1 .is = "a model of NeMo 1", .way = "NeMo's own scripts export it to Hugging Face"
#define TORCH_FILE                                                                                 \
    .is_file = true, .is = "one file of torch.save", .has_tensors = true,                          \
    .way = "ferry inspect and print show it; a model is a folder: config.json, and weights that "  \
           "are called pytorch_model.bin"

/* The first row that fits counts. */
// clang-format off
static const struct foreign rows[] = {
    {{"zero_to_fp32.py"},          DEEPSPEED},
    {{"global_step[0-9]*"},        DEEPSPEED},
    {{"*zero_pp_rank_*_states.pt"}, DEEPSPEED},
    {{"mp_rank_*_model_states.pt"}, DEEPSPEED},
    {{"adapter_config.json"},      LORA},
    {{"*.gguf"},                   .is_folder = true, GGUF},
    {{"*.gguf"},                   .is_file = true, GGUF},
    {{"*.nemo"},                   .is_file = true, NEMO1},
    {{"model_config.yaml", "model_weights*"}, .is_folder = true, NEMO1},
    {{"weights", "context"}, .is_folder = true, .is = "a checkpoint of NeMo 2",
     .way = "its folder weights is one of torch_dist: give that, and --hf-config DIR"},
    {{"*.distcp"}, .is_file = true, .is = "one file of a distributed checkpoint",
     .way = "give its folder"},
    {{".metadata"}, .is_folder = true, .is = "a checkpoint of torch.distributed.checkpoint, as FSDP and torchtitan write it",
     .way = "ferry inspect and print show it; python -m torch.distributed.checkpoint.format_utils dcp_to_torch makes one file of it"},
    {{"step-[0-9]*"}, .is_folder = true, .is = "a folder of checkpoints by torchtitan", .way = "give one of its folders step-N"},
    {{"checkpoint-[0-9]*"}, .is_folder = true, .is = "a folder of checkpoints by transformers' Trainer",
     .way = "give one of its folders checkpoint-N"},
    {{"iter_[0-9]*"}, .is_folder = true, .is = "a folder of Megatron's iterations without its tracker file",
     .way = "give one of its folders iter_N"},
    {{"model_optim_rng.pt"}, .is_file = true, .is_folder = true, .is = "one rank's part of a Megatron checkpoint",
     .way = "give the folder that holds all its mp_rank_*", .has_tensors = true},
    {{"*.safetensors"}, .is_file = true, .is = "one file of safetensors", .has_tensors = true,
     .way = "ferry inspect and print show it; a model is a folder: config.json and weights"},
    {{"*.pt"}, TORCH_FILE}, {{"*.pth"}, TORCH_FILE}, {{"*.ckpt"}, TORCH_FILE}, {{"*.bin"}, TORCH_FILE},
};
// clang-format on
enum { NUM_ROWS = sizeof rows / sizeof *rows };

static bool any_matches(const char *glob, const struct name_list *names)
{
    for (size_t i = 0; i < names->count; i++)
        if (fnmatch(glob, names->names[i], 0) == 0) return true;
    return false;
}

static bool row_fits(const struct foreign *f, bool is_folder, const struct name_list *names)
{
    if (is_folder ? !f->is_folder : !f->is_file) return false;
    for (size_t i = 0; i < sizeof f->names / sizeof *f->names; i++)
        if (f->names[i] && !any_matches(f->names[i], names)) return false;
    return true;
}

const struct foreign *foreign_find(const char *path)
{
    struct arena a;
    bool is_folder = path_is_folder(path);
    const struct foreign *found = NULL;
    arena_init(&a);
    char *name = path_base(&a, path);
    struct name_list names = {&name, 1};
    if (!is_folder || !folder_list(path, &a, &names, NULL))
        for (size_t i = 0; i < NUM_ROWS && !found; i++)
            if (row_fits(&rows[i], is_folder, &names)) found = &rows[i];
    arena_release(&a);
    return found;
}

enum status foreign_refuse(const struct foreign *f, const char *path, struct error *err)
{
    return fail(err, ERR_UNSUPPORTED, "%s: this is %s: %s", path, f->is, f->way);
}
