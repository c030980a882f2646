#!/bin/sh
# source_test.sh - what a model folder can look like, and what is said of one that is none yet.
golden=$(realpath "$(dirname "$0")/../golden")
. "$(dirname "$0")/lib.sh"
synth_model m --max-shard-size 200kB

it "a name that is not local is answered with the command that downloads it"
run convert meta-llama/Llama-3.2-1B out
exits 4
says "hf download meta-llama/Llama-3.2-1B"

it "what can be no name on the hub is not"
for path in "" ./a /a a/b/c a/ nowhere model.safetensors a/model.safetensors "a b" "a
b"; do
    run convert "$path" out
    exits 4
    says ": no such file or folder"
    ! grep -q "hf download" "$stderr" || is_wrong "$path is advised to be downloaded"
done

it "a Git LFS pointer is called by its name"
mkdir lfs
cp m/config.json lfs
cat >lfs/model.safetensors <<POINTER
version https://git-lfs.github.com/spec/v1
oid sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
size 976000
POINTER
run convert lfs out
exits 5
says "Git LFS pointer"
says "git lfs pull"

it "the cache of the Hugging Face hub is read through its links, by snapshot or by model"
cache=hub/models--someone--model
mkdir -p $cache/blobs $cache/snapshots/0abc $cache/refs
printf 0abc >$cache/refs/main
for file in m/*; do
    blob=$(sha256sum <"$file" | cut -c 1-64)
    cp "$file" "$cache/blobs/$blob"
    ln -s "../../blobs/$blob" "$cache/snapshots/0abc/${file#m/}"
done
for path in $cache/snapshots/0abc $cache; do
    run convert "$path" out --overwrite
    exits 0
    run convert out back --to hf --max-shard-size 200kB --overwrite
    same_files m back
done

it "a model in the hub's cache is found by its name, wherever the cache is, and a note says so"
snapshot=$PWD/hub/models--someone--model/snapshots/0abc
for variable in HF_HUB_CACHE HUGGINGFACE_HUB_CACHE; do
    run_program env -u HF_HUB_CACHE -u HF_HOME "$variable=$PWD/hub" "$ferry" verify m someone/model
    exits 0
    says " someone/model: snapshot 0abc of the hub cache, $snapshot"
done
mkdir -p xdg/huggingface home/.cache/huggingface
ln -s "$PWD/hub" xdg/huggingface/hub
ln -s "$PWD/hub" home/.cache/huggingface/hub
for setting in "HF_HOME=$PWD/xdg/huggingface" "XDG_CACHE_HOME=$PWD/xdg" "HOME=$PWD/home"; do
    run_program env -u HF_HUB_CACHE -u HUGGINGFACE_HUB_CACHE -u HF_HOME -u XDG_CACHE_HOME "$setting" \
        "$ferry" inspect someone/model
    exits 0
    prints "family     llama"
done
export HF_HUB_CACHE="$PWD/hub"
run convert someone/model out --overwrite
exits 0
says "note: someone/model: snapshot 0abc of the hub cache"
run convert out back --to hf --max-shard-size 200kB --overwrite
same_files m back
run digest someone/model
exits 0
run print someone/model lm_head.weight
exits 0

mkdir nameless
cp m/*.safetensors* nameless
run verify m nameless --hf-config someone/model
exits 0

it "a revision of it is a branch, a tag or a commit"
mkdir -p hub/models--someone--model/refs/pr
printf 0abc >hub/models--someone--model/refs/pr/7
for revision in main pr/7 0abc; do
    run inspect "someone/model@$revision"
    exits 0
    says "someone/model@$revision: snapshot 0abc of the hub cache"
done
run inspect someone/model@v2
exits 4
says "someone/model@v2: the hub cache has this model, but not its revision v2"
says "hf download someone/model --revision v2"
run inspect someone/model@../../../models--someone--model/refs
exits 4
says "no such file or folder"

it "a folder of the same name comes first, and what the cache does not have is to be downloaded"
mkdir someone
cp -r m someone/model
run verify m someone/model
exits 0
says_nothing
rm -r someone
run inspect someone/else
exits 4
says "someone/else: no such folder, here or in the hub cache"
says "hf download someone/else"

it "a snapshot of which files are missing is refused, with the file"
cp -r hub cut
rm "cut/models--someone--model/snapshots/0abc/model-00002-of-00003.safetensors"
run_program env "HF_HUB_CACHE=$PWD/cut" "$ferry" convert someone/model out --overwrite
exits 4
says "cut/models--someone--model/snapshots/0abc/model-00002-of-00003.safetensors: missing"
says "did the download finish?"
rm cut/models--someone--model/snapshots/0abc/*.safetensors*
run_program env "HF_HUB_CACHE=$PWD/cut" "$ferry" inspect someone/model
exits 4
says "cut/models--someone--model/snapshots/0abc: its weights are missing"
unset HF_HUB_CACHE

it "a download that did not finish is called that"
cp -r m unfinished
rm unfinished/model-00002-of-*.safetensors
run convert unfinished out
exits 4
says "model-00002-of-"
says "did the download finish?"

it "an index that leaves the folder is refused"
cp -r m leaving
sed 's,"model-00001,"../m/model-00001,' m/model.safetensors.index.json >leaving/model.safetensors.index.json
run convert leaving out
exits 5
says "outside the folder"

it "a folder without config.json says what is missing"
mkdir bare
cp m/*.safetensors bare
run convert bare out
exits 3
says "config.json"

it "of a family without a map the nearest one is named, by names and shapes of tensors"
cp -r m unknown
sed -i 's/"model_type": "[a-z0-9_]*"/"model_type": "brand_new"/' unknown/config.json
run convert unknown out
exits 3
says 'model_type "brand_new" is not supported'
says "the nearest is llama, which matches "
says "tensors by name and shape; --model llama uses that map, and "
run convert unknown unknown-out --model llama --dry-run
exits 0

it "weights without config.json can be looked at, and are a model with another one's"
run inspect bare
exits 0
says "bare: weights without a config.json"
prints "39 stored tensors"
run verify m bare --hf-config m
exits 0

it "one safetensors file can be looked at, but is no model"
run inspect m/model-00001-of-00003.safetensors
exits 0
prints "safetensors"
run convert m/model-00001-of-00003.safetensors out
exits 3
says "this is one safetensors file: ferry inspect and print show it; a model is a folder"

it "expert tensor parallel ranks of a model without experts say nothing of its layout"
bridge=$golden/megatron/llama-bridge-0.3.1/checkpoint
cp -r "$bridge" dense
sed -i 's/\( tensor_model_parallel_size\): 1/\1: 2/' dense/iter_0000000/run_config.yaml
grep -q ' tensor_model_parallel_size: 2' dense/iter_0000000/run_config.yaml || is_wrong "no TP2"
run inspect dense
exits 0
prints "layout     TP2"
says_nothing

it "a Megatron checkpoint may have as many layers and experts as a Hugging Face model"
sed -i 's/num_moe_experts: null/num_moe_experts: 50000/; s/ num_layers: 4/ num_layers: 50/' dense/iter_0000000/run_config.yaml
run convert dense out --dry-run
says "stacks 4 layers, but the model has 50" # this far: the numbers alone are none that cannot be
sed -i 's/ num_layers: 50/ num_layers: 201/' dense/iter_0000000/run_config.yaml
run convert dense out --dry-run
exits 5
says "impossible model of 201 layers"

# foreign TEXT PATH [COMMAND...]: refused by its name, whatever asks; where inspect shows it, too.
foreign() {
    words=$1 path=$2
    for command in convert digest verify inspect; do
        case $command in
        convert) run convert "$path" out --dry-run ;;
        verify) run verify "$path" "$path" ;;
        *) run $command "$path" ;;
        esac
        exits 3
        says "$path: this is $words"
    done
}

# touched FOLDER FILE...: a folder with files of these names; a name with / is in a folder within.
touched() {
    folder=$1
    shift
    for file; do
        mkdir -p "$(dirname "$folder/$file")"
        echo junk >"$folder/$file"
    done
}

it "what other programs write is called by its name, with the way on"
touched ds latest zero_to_fp32.py global_step3/junk
touched lora adapter_config.json adapter_model.safetensors README.md
touched gguf llama-Q4_K_M.gguf README.md
touched nemo2 weights/metadata.json context/model.yaml
touched nemo1 model_config.yaml model_weights.ckpt
touched files model.nemo __0_0.distcp model.gguf
touched titan step-10/.metadata.tmp
touched trainer checkpoint-500/model.safetensors runs/x
touched zarr key/.zarray common.pt
echo '{"sharded_backend": "zarr", "sharded_backend_version": 1}' >zarr/metadata.json
foreign "a DeepSpeed folder without checkpoint files: give a folder that has" ds
foreign "a LoRA adapter, not a whole model: merge it first" lora
foreign "a GGUF model of llama.cpp: start from the Hugging Face model" gguf
foreign "a GGUF model of llama.cpp: start from the Hugging Face model" files/model.gguf
foreign "a NeMo 2 checkpoint: give its folder weights, which is torch_dist" nemo2
foreign "a NeMo 1 model: export it to Hugging Face with NeMo's own scripts" nemo1
foreign "a NeMo 1 model: export it to Hugging Face with NeMo's own scripts" files/model.nemo
foreign "one file of a distributed checkpoint: give its folder" files/__0_0.distcp
foreign "a folder of steps without a complete torchtitan checkpoint: give one" titan
foreign "a folder of checkpoints by transformers' Trainer: give one of its folders" trainer
foreign "a Zarr checkpoint of NeMo 1 or an older Megatron-Core: load it" zarr

touched lora_of_diffusers pytorch_lora_weights.safetensors
touched pipeline model_index.json unet/config.json
touched cache models--a--b/refs/main version.txt
touched accelerate pytorch_model_fsdp_0/__0_0.distcp scheduler.bin
touched trainer_only trainer_state.json optimizer.pt
touched meta consolidated.00.pth params.json tokenizer.model
touched mistral consolidated.safetensors params.json
touched trt rank0.safetensors rank1.safetensors
touched engine rank0.engine config.json
touched orbax _CHECKPOINT_METADATA d/x
touched orbax_state _METADATA manifest.ocdbt ocdbt.process_0/x
touched tensorflow tf_model.h5 config.json
touched tensorflow1 model.ckpt.data-00000-of-00001 model.ckpt.index checkpoint
touched saved saved_model.pb variables/variables.index
touched flax flax_model.msgpack config.json
touched onnx model.onnx config.json
touched mlx weights.npz config.json
touched unnamed diffusion_pytorch_model.safetensors config.json
touched files keras.h5 flax.msgpack model.onnx weights.npz
cp m/config.json trt
cp m/config.json accelerate
foreign "a diffusers LoRA adapter: Ferry reads language models only" lora_of_diffusers
foreign "a diffusers pipeline: Ferry reads language models only" pipeline
foreign "a Hugging Face hub cache: give the name of one of its models" cache
foreign "an FSDP checkpoint of accelerate: its folder pytorch_model_fsdp_0 has no" accelerate
foreign "a checkpoint of transformers' Trainer without the model's weights" trainer_only
foreign "a model in Meta's own format: give the Hugging Face folder" meta
foreign "a model in Mistral's own format: give the Hugging Face folder" mistral
foreign "a TensorRT-LLM checkpoint: start from the Hugging Face model" trt
foreign "a TensorRT-LLM engine: start from the Hugging Face model" engine
foreign "an Orbax checkpoint, as JAX programs write it" orbax
foreign "an Orbax checkpoint, as JAX programs write it" orbax_state
foreign "a TensorFlow model: load it in transformers" tensorflow
foreign "a TensorFlow model: load it in transformers" tensorflow1
foreign "a TensorFlow model: load it in transformers" saved
foreign "a TensorFlow model: load it in transformers" files/keras.h5
foreign "a Flax model: load it in transformers" flax
foreign "a Flax model: load it in transformers" files/flax.msgpack
foreign "a model exported to ONNX: start from" onnx
foreign "a model exported to ONNX: start from" files/model.onnx
foreign "a model as numpy arrays, as MLX writes it: start from" mlx
foreign "a model as numpy arrays, as MLX writes it: start from" files/weights.npz
foreign "a folder of safetensors files without a model's file names" unnamed

it "the weights of an adapter are shown, and are no model"
mkdir adapter
cp m/model-00001-of-00003.safetensors adapter/adapter_model.safetensors
run convert adapter/adapter_model.safetensors out
exits 3
says "this is the weights of a LoRA adapter, not a whole model"
run inspect adapter/adapter_model.safetensors
exits 0
prints "safetensors file"

it "weights quantised in an unknown way are refused, and shown"
mkdir mlx4
cp m/*.safetensors* mlx4
sed 's/^{/{"quantization": {"group_size": 64, "bits": 4}, /' m/config.json >mlx4/config.json
run convert mlx4 out
exits 3
says "mlx4: its weights are quantised in a way that Ferry does not know: no quant_method, bits 4; dequantise them first"
run inspect mlx4
exits 0
says "quantised in a way that Ferry does not know"

it "a GGUF file is told by its content, too"
printf 'GGUF\003\000\000\000\000\000\000\000\000\000\000\000' >model
run inspect model
exits 3
says "this is a GGUF file"

it "a folder of Megatron without its metadata.json is shown, and is no model"
"$ferry" convert -q m megatron
cp -r megatron/iter_0000000 fsdp
rm -r fsdp/metadata.json fsdp/common.pt fsdp/ferry*
run convert fsdp out --dry-run
exits 3
says "fsdp: this is a torch.distributed.checkpoint folder with Megatron's names"
run inspect fsdp
exits 0
says "give the folder as Megatron wrote it"
prints "DCP folder"
run convert m/model-00001-of-00003.safetensors out
exits 3
mkdir root
mv fsdp root/iter_0000000
foreign "a folder of Megatron iterations without a tracker file" root

it "a file or a folder of one rank is told, and what it is a part of"
"$ferry" convert -q m legacy --to torch --tp 2
for part in legacy/iter_0000000/mp_rank_00 legacy/iter_0000000/mp_rank_00/model_optim_rng.pt; do
    run convert "$part" out --dry-run
    exits 3
    says "$part: this is one rank of a Megatron checkpoint: give the folder"
done
run inspect "$part"
exits 0
prints "torch.save file"
cp "$part" alone.pt
run convert alone.pt out
exits 3
says "alone.pt: this is one torch.save file: ferry inspect and print show it"

it "a stray metadata.json, or what DeepSpeed or peft left beside, does not hide a model"
cp -r m beside
echo '{"author": "someone"}' >beside/metadata.json
run verify m beside
exits 0
says_nothing
mkdir beside/global_step500
run verify m beside
exits 0
says "beside: DeepSpeed's state in it is not read"
rmdir beside/global_step500
echo '{}' >beside/trainer_state.json
touch beside/optimizer.pt beside/rank0.pt
run verify m beside
exits 0
says "beside: the Trainer's optimizer in it (optimizer.pt) is not read"
run convert beside out --tp 2
exits 3
says "beside holds optimizer state (transformers' Trainer) that cannot be read: it is of another program; --no-optim leaves it out"
run inspect beside
prints "optimizer  transformers' Trainer, "
run convert beside beside-tp2 --tp 2 --no-optim
exits 0
rm beside/trainer_state.json
for file in optimizer.pt optimizer.bin optimizer_0.bin optimizer_0; do
    rm -rf beside/optimizer*
    touch "beside/$file"
    run convert beside of-none --tp 2
    exits 3
    says "beside holds optimizer state ("
    says "--no-optim leaves it out"
    [ ! -e of-none ] || is_wrong "of-none was written beside $file"
    run inspect beside
    says "the optimizer in it (optimizer"
done
rm -rf beside/optimizer*
touched beside original/consolidated.00.pth model.onnx consolidated.safetensors params.json
run verify m beside
exits 0
says_nothing
echo '{}' >beside/adapter_config.json
run verify m beside
exits 0
says "beside: the LoRA adapter in it (adapter_config.json) is not merged"

it "a folder without weights, an empty one and one that may not be read are told apart"
mkdir empty tokenizer
cp m/config.json tokenizer
run convert empty out
exits 3
says "empty: an empty folder"
run inspect empty
exits 3
says "empty: an empty folder"
run convert tokenizer out
exits 4
says "tokenizer: its weights are missing"
mkdir tokenizer/model.safetensors
run convert tokenizer out
exits 5
says "tokenizer/model.safetensors: a folder, expected a file of weights"
cp -r m hidden
chmod 000 hidden
run_as_nobody convert hidden out
exits 4
says "hidden: Permission denied"
chmod 755 hidden

it "what makes a Megatron checkpoint no known model is told, not that weights are missing"
cp -r "$bridge" heads
rm heads/iter_0000000/run_config.yaml
run inspect heads
exits 0
says "unknown number of heads, given by neither args nor run_config.yaml"
prints "DCP folder"
prints "9 stored tensors"

it "other files of the folder come along to Megatron and back"
cp -r m with_tokenizer
echo '{"version": "1.0"}' >with_tokenizer/tokenizer.json
echo '{"eos_token_id": 2}' >with_tokenizer/generation_config.json
run convert with_tokenizer tokenized --tp 2
exits 0
run convert tokenized tokenized_back --to hf --max-shard-size 200kB
exits 0
same_files with_tokenizer tokenized_back

it "config.json may begin with a byte order mark, and have whole numbers written as floats"
cp -r m marked
{
    printf '\357\273\277'
    sed 's/"hidden_size": 64,/"hidden_size": 64.0,/; s/"vocab_size": 1000,/"vocab_size": 1e3,/' m/config.json
} >marked/config.json
[ "$(grep -c -e '"hidden_size": 64.0' -e '1e3' marked/config.json)" -eq 2 ] || is_wrong "$(cat m/config.json)"
run verify m marked
exits 0
says_nothing

it "fields of config.json that nobody knows come back as they were"
cp -r m extra
sed 's/^{/{"x_custom": {"a": [1, 2.50, null, "\\u00e9"]}, /' m/config.json >extra/config.json
run convert extra extra_ckpt
exits 0
run convert extra_ckpt extra_back --to hf --max-shard-size 200kB
exits 0
grep -q x_custom extra_back/config.json || is_wrong "x_custom is lost"

it "a fused query, key and value without dimensions is refused by its rows"
cp -r "$golden/legacy/gpt2-v0-tp2/checkpoint" scalar
chmod -R u+w scalar
python3 - <<'SCRIPT' || is_wrong "the file is not edited"
import glob, re, zipfile
for path in glob.glob("scalar/**/model_optim_rng.pt", recursive=True):
    with zipfile.ZipFile(path) as z:
        entries = [(i.filename, z.read(i)) for i in z.infolist()]
    with zipfile.ZipFile(path, "w") as z:
        for name, data in entries:
            if name.endswith("data.pkl"):
                at = data.index(b"query_key_value.weight")
                shape = re.search(rb"QK\x00(K.K.\x86)q.(K.K.\x86)", data[at:], re.S)
                for part in (2, 1):  # the stride, then the shape: an empty tuple
                    data = data[: at + shape.start(part)] + b")" + data[at + shape.end(part) :]
            z.writestr(name, data)
SCRIPT
run convert scalar nothing --to hf --true-vocab-size 43
exits 3
says "checkpoint_version 0 is not supported with grouped queries or 1 rows"
is_not_there nothing
