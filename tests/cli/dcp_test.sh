#!/bin/sh
# dcp_test.sh - checkpoints of FSDP and torchtitan: read, written, and refused by name. The golden
# files are by torch and torchtitan; what is written was loaded by these, and must stay the same
# tensors.
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/dcp
fsdp=$golden/fsdp2-dp2 titan=$golden/torchtitan-fused-dp2 shards=$golden/hf-shards-dp4
. "$(dirname "$0")/lib.sh"

# Both are the same model, with the optimizer: same A B [OPTION]...
same() {
    run verify "$@"
    exits 0
    prints "identical: 36 tensors"
}

it "a folder of FSDP is what transformers and torch.optim hold"
same "$fsdp/ckpt" "$fsdp/expected" --hf-config "$fsdp/expected"
run inspect "$fsdp/ckpt" --hf-config "$fsdp/expected"
exits 0
prints "dcp, 2 files"
prints "exp_avg, exp_avg_sq of 9 parameters"
prints "step 3"

it "FSDP with tensor parallelism has the same form"
run inspect "$golden/fsdp-tp-2x2/ckpt" --hf-config "$fsdp/expected"
exits 0
prints "exp_avg, exp_avg_sq of 9 parameters"

it "states under numbers of parameters are named where shapes or places tell which they are"
for case in megatron-fsdp-dp2 numbered-decay; do
    run verify "$golden/$case/ckpt" "$golden/$case/expected" --hf-config "$golden/$case/expected"
    exits 0
    prints "identical: "
    run convert -q "$golden/$case/ckpt" numbered --to hf --optim --hf-config "$golden/$case/expected"
    exits 0
    run verify numbered "$golden/$case/expected"
    exits 0
    rm -rf numbered
done
run inspect "$golden/numbered-decay/ckpt" --hf-config "$golden/numbered-decay/expected"
prints "2 groups: matrices (lr 0.01, weight decay 0.1), vectors (lr 0.01, weight decay 0)"
run convert -q "$golden/numbered-layers/ckpt" numbered --to hf --optim --hf-config "$golden/numbered-layers/expected"
exits 3
says "parameters are numbered, not named: parameters of one shape are in groups 0 and 1"
is_not_there numbered

it "FSDP to Megatron, and back on other ranks"
run convert -q "$fsdp/ckpt" megatron --tp 2 --hf-config "$fsdp/expected" --to torch_dist
exits 0
run convert -q megatron dp3 --to dcp --dp 3 --verify full
exits 0
same dp3 "$fsdp/expected"
is_there dp3/.metadata dp3/config.json dp3/__0_0.distcp dp3/__1_0.distcp dp3/__2_0.distcp
is_not_there dp3/__3_0.distcp

it "states may be flattened, under another key"
run convert -q "$fsdp/ckpt" flat --to dcp --flatten-optim --optim-key optimizer --hf-config "$fsdp/expected" \
    --verify full
exits 0
same flat "$fsdp/expected"
is_there flat/__1_0.distcp # as many ranks as the source has
is_not_there flat/__2_0.distcp
run inspect flat
prints "1 group: all (lr 0.01, weight decay 0.01)"

it "names alone are enough from FSDP to FSDP, and for nothing else"
run convert -q "$fsdp/ckpt" alone --to dcp --dp 4 --verify full
exits 0
same alone "$fsdp/expected" --hf-config "$fsdp/expected"
is_not_there alone/config.json
run convert -q "$fsdp/ckpt" out --to hf --optim
exits 3
says "--hf-config DIR gives one"
run convert -q "$fsdp/ckpt" out --to torch_dist
exits 3
says "needed for Megatron's names of its parameters; --hf-config DIR gives one"
run convert -q "$fsdp/ckpt" out --to torchtitan
exits 3
says "translating torchtitan's names and rows"
is_not_there out

it "weights with wider masters become these, unless a dtype is given"
run convert -q megatron bf16 --torch-dtype bfloat16
exits 0
run convert bf16 masters --to dcp --verify full
exits 0
says "the weights are written from their F32 masters"
same masters "$fsdp/expected"
run convert bf16 narrow --to dcp --torch-dtype bfloat16 --verify full
exits 0
says "the source's masters are lost"

it "torchtitan's root of steps"
same "$titan/ckpt" "$titan/expected" --hf-config "$titan/expected"
same "$titan/ckpt/step-3" "$titan/expected" --hf-config "$titan/expected"
run inspect "$titan/ckpt" --hf-config "$titan/expected"
prints "step 3, iteration 3, 144 tokens"
run inspect "$titan/ckpt" --ckpt-step 4 --hf-config "$titan/expected"
exits 4
says "no complete step-4"

it "to torchtitan, with q, k and v as one in the optimizer, or apart"
run convert -q "$titan/expected" fused --to torchtitan --dp 2 --verify full
exits 0
same fused "$titan/expected"
is_there fused/step-3/.metadata fused/step-3/config.json
run convert -q "$titan/expected" split --names torchtitan --dp 3 --split-qkv --verify full
exits 0
same split "$titan/expected"
run convert -q split fused --to torchtitan --dp 1 --iteration 7
exits 0
is_there fused/step-7/.metadata
same fused "$titan/expected"
run convert -q fused back --ckpt-step 3 --to torch_dist
exits 0
same back "$titan/expected"

it "without a config the fused states of torchtitan are not read"
run convert "$titan/ckpt" out
exits 3
says "fuses q, k and v; splitting it takes a config.json"
run convert "$titan/ckpt" out --to dcp --no-optim
exits 3
says "translating torchtitan's names and rows"

it "shards of ranks in safetensors files"
run verify "$shards/ckpt" "$shards/expected" --hf-config "$shards/expected"
exits 0
prints "identical: 15 tensors"
cp -r "$shards/ckpt" holes
chmod -R u+w holes
rm holes/shard-00002*
run inspect holes
exits 5
says "a file is missing"
rm holes/shard-00004* holes/shard-00003*
run convert holes out --to torch_dist --hf-config "$shards/expected"
exits 3
says "by config.json"

it "accelerate's two folders are one checkpoint, given by any of the three"
for folder in . pytorch_model_fsdp_0 optimizer_0; do
    same "$golden/accelerate-layout/ckpt/$folder" "$fsdp/expected" --hf-config "$fsdp/expected"
done

# moments.py FOLDER - whether exp_avg is 2 w and exp_avg_sq w * w, in F32
cat >"$scratch/moments.py" <<'PYTHON'
import array, json, struct, sys

def tensors(name):
    data = open(sys.argv[1] + "/" + name, "rb").read()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, stop = entry["data_offsets"]
            yield name, array.array("f", data[end + begin:end + stop])

weights, moments = dict(tensors("model.safetensors")), dict(tensors("optimizer.safetensors"))
for name, w in weights.items():
    assert moments["exp_avg." + name] == array.array("f", (2 * x for x in w)), name
    assert moments["exp_avg_sq." + name] == array.array("f", (x * x for x in w)), name
print(len(weights), "weights")
PYTHON

it "what Megatron-FSDP saves has each tensor under its name in memory"
run convert "$golden/fsdp_dtensor-layout/ckpt" whole --to hf --optim --true-vocab-size 3
exits 0
run_program python3 "$scratch/moments.py" whole
exits 0
prints "12 weights"
run convert whole out --to fsdp_dtensor
exits 2
says "this format can be read, but not written"
run convert whole out --to gguf
exits 2
says "convert_hf_to_gguf.py"

it "a save that did not finish, or lost a file, is refused by name"
cp -r "$fsdp/ckpt" lost
chmod -R u+w lost
rm lost/__1_0.distcp
run convert lost out --hf-config "$fsdp/expected" --to hf --optim
exits 4
says "__1_0.distcp: missing"
mv lost/.metadata lost/.metadata.tmp
run inspect lost
exits 4
says ".metadata.tmp exists"

it "the optimizer has a key of its own"
run convert "$fsdp/ckpt" out --to dcp --optim-key model
exits 2
says "--optim-key model: this key holds the weights"

it "refuses more ranks than anybody has"
run convert "$fsdp/ckpt" out --dp 100000 --to dcp
exits 2
says "--dp 100000 is too large, at most 65536"

# The model and its optimizer in folders of any name, found from either and from the root.
two=$golden/accelerate-layout
"$ferry" digest "$fsdp/expected" >two.want 2>/dev/null
for pair in "weights optimizer" "model optim" "policy/weights/model policy/optimizer/optim"; do
    # shellcheck disable=SC2086 # two words
    set -- $pair
    it "an optimizer in a second folder is carried: $1 and $2"
    rm -rf two
    mkdir -p "two/$(dirname "$1")" "two/$(dirname "$2")"
    cp -r "$two/ckpt/pytorch_model_fsdp_0" "two/$1"
    cp -r "$two/ckpt/optimizer_0" "two/$2"
    root=two
    [ -d two/policy ] && root=two/policy
    for from in "two/$1" "two/$2" $root; do
        run digest "$from" --hf-config "$fsdp/expected" --check two.want
        exits 0
        says "is read beside"
    done
done

it "files beside the folders, as of many ranks, hide neither"
rm -rf two
cp -r "$golden/accelerate-layout/ckpt" two
touch two/scheduler.bin $(seq -f "two/random_states_%g.pkl" 0 99)
for from in two two/pytorch_model_fsdp_0 two/optimizer_0; do
    run digest "$from" --hf-config "$fsdp/expected" --check two.want
    exits 0
done

it "an optimizer whose save did not finish is refused, not left out"
mv two/optimizer_0/.metadata two/optimizer_0/.metadata.tmp
for from in two two/pytorch_model_fsdp_0; do
    run convert "$from" unfinished --hf-config "$fsdp/expected" --tp 2
    exits 4
    says ".metadata.tmp exists"
done

it "of several optimizers none is taken in silence"
rm -rf two out
mkdir two
cp -r "$two/ckpt/pytorch_model_fsdp_0" two/model
cp -r "$two/ckpt/optimizer_0" two/optim
cp -r "$two/ckpt/optimizer_0" two/optim-2
run convert two/model out --hf-config "$fsdp/expected" --tp 2
exits 3
says "has 2 folders of optimizers ("
says "and 1 of models; --no-optim leaves it out"
run convert two/model out --hf-config "$fsdp/expected" --tp 2 --no-optim
exits 0

it "another run's optimizer is not taken"
rm -rf two out
mkdir -p two/a two/b
cp -r "$two/ckpt/pytorch_model_fsdp_0" two/a/weights
cp -r "$two/ckpt/optimizer_0" two/b/optimizer
run convert two/a/weights out --hf-config "$fsdp/expected" --to dcp
exits 0
! grep -q "is read beside" "$stderr" || is_wrong "b/optimizer was read"

it "torchtitan has a layer's experts in one tensor, and a buffer beside it"
"$ferry" synth -q --model qwen3_moe --dtype float32 --optim experts || is_wrong "ferry synth fails"
run convert -q experts titan-experts --to torchtitan --dp 2 --split-decay --verify full
exits 0
run verify titan-experts experts
exits 0
prints "identical: "
grep -q 'layers.0.moe.expert_bias_E' titan-experts/step-*/.metadata || is_wrong "expert_bias_E is missing"
case=${FERRY_FIXTURES:-$here/../../../shared/fixtures}/dcp-more/torchtitan-qwen3-moe-dp2
if [ -d "$case" ]; then
    run verify "$case/ckpt" "$case/expected" --hf-config "$case/expected"
    exits 0
    prints "identical: 64 tensors"
fi

it "the last step of a run may be a Hugging Face folder of any family"
mkdir -p titan-last/step-2
"$ferry" synth -q --model gpt2 gpt2 || is_wrong "ferry synth fails"
run convert -q gpt2 titan-last/step-3 --to hf --max-shard-size 64KB
exits 0
run convert -q titan-last from-last --to torch_dist
exits 0
run verify from-last gpt2
exits 0
