#include "convert/foreign.h"

#include <fnmatch.h>

#include "common/arena.h"
#include "common/count.h"
#include "common/file.h"

/* One program's checkpoints are recognised by several names: a row for each, with the same text. */
#define DEEPSPEED                                                                                  \
    .is_folder = true, .is = "a folder of DeepSpeed's without files of a checkpoint",              \
    .way = "give one that has *_model_states.pt and *_optim_states.pt in it, or in a folder "      \
           "global_stepN",                                                                         \
    .optimizer = "of DeepSpeed", .beside = "the state of DeepSpeed in it is not read"
#define LORA                                                                                       \
    .is_folder = true, .is = "a LoRA adapter, not a whole model",                                  \
    .way = "merge it first: merge_and_unload() of peft, then save_pretrained()",                   \
    .beside = "the LoRA adapter in it (adapter_config.json) is not merged"
#define LORA_FILE                                                                                  \
    .is_file = true, .is = "the weights of a LoRA adapter, not a whole model",                     \
    .has_tensors = true,                                                                           \
    .way = "ferry inspect and print show them; merge the adapter first: merge_and_unload() of "    \
           "peft, then save_pretrained()"
#define META                                                                                       \
    .is = "a model in Meta's own format",                                                          \
    .way = "give the Hugging Face folder of the same model, or make it: "                          \
           "transformers' convert_llama_weights_to_hf.py"
#define TENSORFLOW                                                                                 \
    .is = "a model of TensorFlow",                                                                 \
    .way = "transformers reads it by from_pretrained(..., from_tf=True); then save_pretrained()"
#define FLAX                                                                                       \
    .is = "a model of Flax",                                                                       \
    .way = "transformers reads it by from_pretrained(..., from_flax=True); then save_pretrained()"
#define ORBAX                                                                                      \
    .is_folder = true, .is = "a checkpoint of Orbax, as JAX programs write it",                    \
    .way = "the program that wrote it exports it to Hugging Face"
#define EXPORTED(what) .is = what, .way = "start from the Hugging Face model that it was made of"
#define GGUF                                                                                       \
    .is = "a GGUF model of llama.cpp",                                                             \
    .way = "start from the Hugging Face model that it was made of"
#define NEMO1 .is = "a model of NeMo 1", .way = "NeMo's own scripts export it to Hugging Face"
#define FSDP .is_folder = true, .is = "a checkpoint of FSDP", .way = "--from fsdp reads it"
#define TORCH_FILE                                                                                 \
    .is_file = true, .is = "one file of torch.save", .has_tensors = true,                          \
    .way = "ferry inspect and print show it; a model is a folder: config.json, and weights that "  \
           "are called pytorch_model.bin"

/* The first row that fits counts. */
// clang-format off
static const struct foreign rows[] = {
    {{"zero_to_fp32.py"},          DEEPSPEED},
    {{"global_step[0-9]*"},        DEEPSPEED},
    {{"adapter_config.json"},      LORA},
    {{"pytorch_lora_weights.*"},   .is_folder = true, .is = "a LoRA adapter of diffusers", .way = "Ferry reads language models only"},
    {{"pytorch_lora_weights.*"},   LORA_FILE}, {{"adapter_model.*"}, LORA_FILE},
    {{"model_index.json"},         .is_folder = true, .is = "a pipeline of diffusers", .way = "Ferry reads language models only"},
    {{"models--*--*"},             .is_folder = true, .is = "a cache of the Hugging Face hub",
     .way = "give the name of one of its models, as ORG/NAME (HF_HUB_CACHE says where the cache is), or its folder models--ORG--NAME"},
    {{"*.gguf"},                   .is_folder = true, GGUF},
    {{"*.gguf"},                   .is_file = true, GGUF},
    {{"*.nemo"},                   .is_file = true, NEMO1},
    {{"model_config.yaml", "model_weights*"}, .is_folder = true, NEMO1},
    {{"model_world_size_*_rank_*.pt"}, FSDP}, {{"pytorch_model_fsdp*.bin"}, FSDP}, {{"model.pt"}, FSDP},
    {{"pytorch_model_fsdp_[0-9]*"}, .is_folder = true, .is = "a checkpoint of FSDP as accelerate writes it",
     .way = "its folder pytorch_model_fsdp_0 has no .metadata, so the save did not finish"},
    {{"trainer_state.json", "optimizer.pt"}, .is_folder = true, .is = "what transformers' Trainer saves, without the model's weights",
     .way = "give a folder that has them", .optimizer = "of transformers' Trainer",
     .beside = "the Trainer's optimizer in it (optimizer.pt) is not read"},
    {{"consolidated.*.pth"}, .is_folder = true, META},
    {{"consolidated.*.pth"}, .is_file = true, META, .has_tensors = true},
    {{"consolidated*.safetensors", "params.json"}, .is_folder = true, .is = "a model in Mistral's own format",
     .way = "give the Hugging Face folder of the same model"},
    {{"rank[0-9]*.safetensors"}, .is_folder = true, EXPORTED("a checkpoint of TensorRT-LLM")},
    {{"rank[0-9]*.engine"}, .is_folder = true, EXPORTED("an engine of TensorRT-LLM")},
    {{"_CHECKPOINT_METADATA"}, ORBAX}, {{"_METADATA"}, ORBAX}, {{"manifest.ocdbt"}, ORBAX}, {{"ocdbt.process_*"}, ORBAX},
    {{"tf_model*.h5"}, .is_folder = true, TENSORFLOW}, {{"saved_model.pb"}, .is_folder = true, TENSORFLOW},
    {{"*.data-[0-9]*-of-[0-9]*"}, .is_folder = true, TENSORFLOW}, {{"*.h5"}, .is_file = true, TENSORFLOW},
    {{"flax_model*.msgpack"}, .is_folder = true, FLAX}, {{"*.msgpack"}, .is_file = true, FLAX},
    {{"*.onnx"}, .is_folder = true, EXPORTED("a model exported to ONNX")},
    {{"*.onnx"}, .is_file = true, EXPORTED("a model exported to ONNX")},
    {{"*.npz"}, .is_folder = true, EXPORTED("a model as numpy arrays, as MLX writes it")},
    {{"*.npz"}, .is_file = true, EXPORTED("a model as numpy arrays, as MLX writes it")},
    {{"weights", "context"}, .is_folder = true, .is = "a checkpoint of NeMo 2",
     .way = "its folder weights is one of torch_dist: give that, and --hf-config DIR"},
    {{"*.distcp"}, .is_file = true, .is = "one file of a distributed checkpoint",
     .way = "give its folder"},
    {{".metadata"}, .is_folder = true, .is = "a checkpoint of torch.distributed.checkpoint with Megatron's names, and without Megatron's metadata.json",
     .way = "give the folder as Megatron wrote it; ferry inspect and print show this one"},
    {{"step-[0-9]*"}, .is_folder = true, .is = "a folder of steps, none of which is a complete checkpoint of torchtitan",
     .way = "give one of its folders step-N"},
    {{"checkpoint-[0-9]*"}, .is_folder = true, .is = "a folder of checkpoints by transformers' Trainer",
     .way = "give one of its folders checkpoint-N"},
    {{"iter_[0-9]*"}, .is_folder = true, .is = "a folder of Megatron's iterations without its tracker file",
     .way = "give one of its folders iter_N"},
    {{"model_optim_rng.pt"}, .is_file = true, .is_folder = true, .is = "one rank's part of a Megatron checkpoint",
     .way = "give the folder that holds all its mp_rank_*", .has_tensors = true},
    {{"*.safetensors"}, .is_file = true, .is = "one file of safetensors", .has_tensors = true,
     .way = "ferry inspect and print show it; a model is a folder: config.json and weights"},
    {{"*.safetensors"}, .is_folder = true, .is = "a folder of safetensors files that are not called as a model's are",
     .way = "ferry inspect and print show each file; a model's are called model.safetensors, or model-00001-of-0000N.safetensors and so on"},
    {{"*.pt"}, TORCH_FILE}, {{"*.pth"}, TORCH_FILE}, {{"*.ckpt"}, TORCH_FILE}, {{"*.bin"}, TORCH_FILE},
};
// clang-format on
enum { NUM_ROWS = COUNT(rows) };

static bool any_matches(const char *glob, const struct name_list *names)
{
    for (size_t i = 0; i < names->count; i++)
        if (fnmatch(glob, names->names[i], 0) == 0) return true;
    return false;
}

static bool row_fits(const struct foreign *f, bool is_folder, const struct name_list *names)
{
    if (is_folder ? !f->is_folder : !f->is_file) return false;
    for (size_t i = 0; i < COUNT(f->names); i++)
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

uint64_t foreign_bytes(const struct foreign *f, const char *folder)
{
    struct arena a;
    struct name_list names;
    uint64_t bytes = 0;
    arena_init(&a);
    if (!folder_list(folder, &a, &names, NULL))
        for (size_t i = 0; i < names.count; i++) {
            const struct name_list one = {&names.names[i], 1};
            bool fits = false;
            for (size_t k = 0; k < COUNT(f->names); k++)
                fits |= f->names[k] && any_matches(f->names[k], &one);
            if (fits) bytes += path_allocated_bytes(path_join(&a, folder, names.names[i]));
        }
    arena_release(&a);
    return bytes;
}

enum status foreign_refuse(const struct foreign *f, const char *path, struct error *err)
{
    return fail(err, ERR_UNSUPPORTED, "%s: this is %s: %s", path, f->is, f->way);
}
