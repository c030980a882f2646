#include "convert/foreign.h"

#include <fnmatch.h>
#include <string.h>

#include "common/arena.h"
#include "common/count.h"
#include "common/file.h"

/* A program may be recognised by several names, a row each with the same
 * text. */
#define DEEPSPEED                                                                                  \
    .is_folder = true, .is = "a DeepSpeed folder without checkpoint files",                        \
    .way = "give a folder that has *_model_states.pt and *_optim_states.pt, or a folder "          \
           "global_stepN with them",                                                               \
    .optimizer = "DeepSpeed", .beside = "DeepSpeed's state in it is not read"
#define OPTIMIZER(file, program)                                                                   \
    .is_folder = true, .is = "an optimizer of " program " without the model's weights",            \
    .way = "give a folder that has the weights", .optimizer = program,                             \
    .beside = "the optimizer in it (" file ") is not read"
#define MERGE_LORA "merge it first: merge_and_unload() of peft, then save_pretrained()"
#define LORA                                                                                       \
    .is_folder = true, .is = "a LoRA adapter, not a whole model", .way = MERGE_LORA,               \
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
    .is = "a TensorFlow model",                                                                    \
    .way =                                                                                         \
        "load it in transformers with from_pretrained(..., from_tf=True), then save_pretrained()"
#define FLAX                                                                                       \
    .is = "a Flax model", .way = "load it in transformers with from_pretrained(..., "              \
                                 "from_flax=True), then save_pretrained()"
#define ORBAX                                                                                      \
    .is_folder = true, .is = "an Orbax checkpoint, as JAX programs write it",                      \
    .way = "export it to Hugging Face with the program that wrote it"
#define EXPORTED(what) .is = what, .way = "start from the Hugging Face model it was made from"
#define GGUF                                                                                       \
    .is = "a GGUF model of llama.cpp", .way = "start from the Hugging Face model it was made from"
#define NEMO1 .is = "a NeMo 1 model", .way = "export it to Hugging Face with NeMo's own scripts"
#define FSDP .is_folder = true, .is = "an FSDP checkpoint", .way = "read it with --from fsdp"
#define TORCH_FILE                                                                                 \
    .is_file = true, .is = "one torch.save file", .has_tensors = true,                             \
    .way = "ferry inspect and print show it; a model is a folder with config.json and "            \
           "pytorch_model.bin"

/* The first row that matches counts. */
// clang-format off
static const struct foreign rows[] = {
    {{"zero_to_fp32.py"},          DEEPSPEED},
    {{"global_step[0-9]*"},        DEEPSPEED},
    {{"adapter_config.json"},      LORA},
    {{"pytorch_lora_weights.*"},   .is_folder = true, .is = "a diffusers LoRA adapter", .way = "Ferry reads language models only"},
    {{"pytorch_lora_weights.*"},   LORA_FILE}, {{"adapter_model.*"}, LORA_FILE},
    {{"model_index.json"},         .is_folder = true, .is = "a diffusers pipeline", .way = "Ferry reads language models only"},
    {{"models--*--*"},             .is_folder = true, .is = "a Hugging Face hub cache",
     .way = "give the name of one of its models, ORG/NAME (HF_HUB_CACHE sets the cache), or its folder models--ORG--NAME"},
    {{"*.gguf"},                   .is_folder = true, GGUF},
    {{"*.gguf"},                   .is_file = true, GGUF},
    {{"*.nemo"},                   .is_file = true, NEMO1},
    {{"model_config.yaml", "model_weights*"}, .is_folder = true, NEMO1},
    {{"model_world_size_*_rank_*.pt"}, FSDP}, {{"pytorch_model_fsdp*.bin"}, FSDP}, {{"model.pt"}, FSDP},
    {{"pytorch_model_fsdp_[0-9]*"}, .is_folder = true, .is = "an FSDP checkpoint of accelerate",
     .way = "its folder pytorch_model_fsdp_0 has no .metadata, so the save did not finish"},
    {{"trainer_state.json", "optimizer.pt"}, .is_folder = true, .is = "a checkpoint of transformers' Trainer without the model's weights",
     .way = "give a folder that has the weights", .optimizer = "transformers' Trainer",
     .beside = "the Trainer's optimizer in it (optimizer.pt) is not read"},
    {{"trainer_state.json", "optimizer.bin"}, OPTIMIZER("optimizer.bin", "transformers' Trainer")},
    {{"optimizer.pt"}, OPTIMIZER("optimizer.pt", "torch.optim")},
    {{"optimizer.bin"}, OPTIMIZER("optimizer.bin", "accelerate")},
    {{"optimizer_[0-9]*"}, OPTIMIZER("optimizer_N", "accelerate")},
    {{"consolidated.*.pth"}, .is_folder = true, META},
    {{"consolidated.*.pth"}, .is_file = true, META, .has_tensors = true},
    {{"consolidated*.safetensors", "params.json"}, .is_folder = true, .is = "a model in Mistral's own format",
     .way = "give the Hugging Face folder of the same model"},
    {{"rank[0-9]*.safetensors"}, .is_folder = true, EXPORTED("a TensorRT-LLM checkpoint")},
    {{"rank[0-9]*.engine"}, .is_folder = true, EXPORTED("a TensorRT-LLM engine")},
    {{"_CHECKPOINT_METADATA"}, ORBAX}, {{"_METADATA"}, ORBAX}, {{"manifest.ocdbt"}, ORBAX}, {{"ocdbt.process_*"}, ORBAX},
    {{"tf_model*.h5"}, .is_folder = true, TENSORFLOW}, {{"saved_model.pb"}, .is_folder = true, TENSORFLOW},
    {{"*.data-[0-9]*-of-[0-9]*"}, .is_folder = true, TENSORFLOW}, {{"*.h5"}, .is_file = true, TENSORFLOW},
    {{"flax_model*.msgpack"}, .is_folder = true, FLAX}, {{"*.msgpack"}, .is_file = true, FLAX},
    {{"*.onnx"}, .is_folder = true, EXPORTED("a model exported to ONNX")},
    {{"*.onnx"}, .is_file = true, EXPORTED("a model exported to ONNX")},
    {{"*.npz"}, .is_folder = true, EXPORTED("a model as numpy arrays, as MLX writes it")},
    {{"*.npz"}, .is_file = true, EXPORTED("a model as numpy arrays, as MLX writes it")},
    {{"weights", "context"}, .is_folder = true, .is = "a NeMo 2 checkpoint",
     .way = "give its folder weights, which is torch_dist, and --hf-config DIR"},
    {{"*.distcp"}, .is_file = true, .is = "one file of a distributed checkpoint",
     .way = "give its folder"},
    {{".metadata"}, .is_folder = true, .is = "a torch.distributed.checkpoint folder with Megatron's names but without Megatron's metadata.json",
     .way = "give the folder as Megatron wrote it; ferry inspect and print show this one"},
    {{"step-[0-9]*"}, .is_folder = true, .is = "a folder of steps without a complete torchtitan checkpoint",
     .way = "give one of its folders step-N"},
    {{"checkpoint-[0-9]*"}, .is_folder = true, .is = "a folder of checkpoints by transformers' Trainer",
     .way = "give one of its folders checkpoint-N"},
    {{"iter_[0-9]*"}, .is_folder = true, .is = "a folder of Megatron iterations without a tracker file",
     .way = "give one of its folders iter_N"},
    {{"model_optim_rng.pt"}, .is_file = true, .is_folder = true, .is = "one rank of a Megatron checkpoint",
     .way = "give the folder with all mp_rank_* folders", .has_tensors = true},
    {{"*.safetensors"}, .is_file = true, .is = "one safetensors file", .has_tensors = true,
     .way = "ferry inspect and print show it; a model is a folder with config.json and weights"},
    {{"*.safetensors"}, .is_folder = true, .is = "a folder of safetensors files without a model's file names",
     .way = "ferry inspect and print show each file; a model has model.safetensors, or model-00001-of-0000N.safetensors and so on"},
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

bool foreign_is_lora(const char *parameter)
{
    static const char *const modules[] = {".lora_A.", ".lora_B.", ".lora_embedding_A.",
                                          ".lora_embedding_B."};
    for (size_t i = 0; i < COUNT(modules); i++)
        if (strstr(parameter, modules[i])) return true;
    return false;
}

enum status foreign_refuse_lora(const char *path, const char *parameter, struct error *err)
{
    return fail(err, ERR_UNSUPPORTED, "%s: this has a LoRA adapter that is not merged (%s): %s",
                path, parameter, MERGE_LORA);
}
