#!/bin/sh
# checkpoints_test.sh FERRY - what a run saves, as Megatron-LM with the same line would: names of parameters, the
# form of the optimizer, args, states of random numbers.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=train_lib.sh
. "$tests_folder/trainer/train_lib.sh"
enter checkpoints

# One iteration of a golden run: begins NAME MODEL OPTION...
begins() {
    name=$1 model=$2
    shift 2
    rm -rf out log.jsonl
    trains_as "$name" --load "$models/$model" --save out --log-jsonl log.jsonl --exit-interval 1 "$@"
    exits 0
}

# Checks lines of ferry inspect.
shows() {
    run inspect out
    for line; do prints "$line"; done
}

it "names of parameters are those of --transformer-impl, or of the checkpoint that the run began with"
for format in torch_dist torch; do
    tries 2 || continue
    begins moe mixtral --ckpt-format $format
    shows "parameter naming of the local spec"
    mv out local
    begins moe mixtral --ckpt-format $format --transformer-impl transformer_engine
    shows "parameter naming of the TE spec"
    same_checkpoints out local
    rm -r out log.jsonl
    train --load local --ckpt-format $format --seq-length 32 --micro-batch-size 2 --train-iters 20 --lr 5e-3 --data-path u16 \
        --save out --exit-interval 2 --override-opt_param-scheduler
    exits 0
    shows "parameter naming of the local spec"
    rm -r local
done

it "--moe-grouped-gemm names experts so"
begins moe mixtral --ckpt-format torch --transformer-impl transformer_engine --moe-grouped-gemm
grep -q 'linear_fc1.weight0' out/iter_0000001/mp_rank_00/model_optim_rng.pt || is_wrong "names of experts"
begins moe mixtral --ckpt-format torch --transformer-impl transformer_engine
grep -q 'local_experts.0.linear_fc1' out/iter_0000001/mp_rank_00/model_optim_rng.pt || is_wrong "names of experts"

it "the optimizer is kept as --use-distributed-optimizer says"
for precision in "" --bf16; do
    # shellcheck disable=SC2086 # a word or none
    begins fp32 llama $precision
    shows "optimizer  distributed, fully_reshardable"
    # shellcheck disable=SC2086
    begins fp32 llama $precision --ckpt-format torch
    shows "optimizer  distributed, in distrib_optim.pt"
    # shellcheck disable=SC2086
    begins fp32-plain-optimizer llama $precision
    shows "optimizer  not distributed"
    # shellcheck disable=SC2086
    begins fp32-plain-optimizer llama $precision --ckpt-format torch
    shows "optimizer  not distributed, in the rank files"
done

it "both optimizers save the same states in f64, where a weight is its own master"
begins fp32 llama --dtype f64
mv out sharded
for format in torch_dist torch; do
    tries 2 || continue
    begins fp32-plain-optimizer llama --dtype f64 --ckpt-format $format
    same_checkpoints sharded out
done
rm -rf sharded

# A run of 20 steps, and one that is saved at 10 and goes on, are the same: goes_on OPTION...
goes_on() {
    for how in "" "--exit-interval 10"; do
        rm -rf out log.jsonl
        # shellcheck disable=SC2086 # words or none
        trains_as fp32-plain-optimizer --load "$models/llama" --save out --log-jsonl log.jsonl "$@" $how
        exits 0
        [ -n "$how" ] || { rm -rf straight && mkdir straight && mv out log.jsonl straight; }
    done
    trains_as fp32-plain-optimizer --save out --log-jsonl log.jsonl "$@"
    exits 0
    matches bits straight/log.jsonl log.jsonl
    same_checkpoints out straight/out
}

it "an optimizer that is not distributed goes on, bit for bit"
for format in torch_dist torch; do
    ! tries 6 || goes_on --ckpt-format $format
    ! tries 6 || goes_on --ckpt-format $format --bf16
    ! tries 6 || goes_on --ckpt-format $format --optimizer sgd --lr 0.05
done

it "so does SGD without momentum, which has no states"
for format in torch_dist torch; do
    tries 2 || continue
    goes_on --ckpt-format $format --optimizer sgd --lr 0.05 --sgd-momentum 0
    shows "optimizer  none" "schedule: cosine, lr 0.05"
    goes_on --ckpt-format $format --optimizer sgd --lr 0.05 --sgd-momentum 0 --bf16
done

it "a tokenizer of the checkpoint goes along, though --keep-last removes the first one"
begins fp32 llama
mkdir out/iter_0000001/tokenizer
echo '{}' >out/iter_0000001/tokenizer/tokenizer.json
cp -r out/iter_0000001/tokenizer wanted
trains_as fp32 --save out --save-interval 1 --keep-last 1 --save-hf hf --exit-interval 3
exits 0
is_not_there out/iter_0000001
same_files wanted out/iter_0000003/tokenizer
is_there hf/iter_0000003/tokenizer.json

it "args of a checkpoint say how it was trained"
trains_as fp32 --load "$models/llama" --save said
run inspect said --args
for line in "lr                                        0.005" "min_lr                                    0.0005" \
    "seq_length                                32" "global_batch_size                         8" \
    "train_iters                               20" "seed                                      1234" \
    "use_distributed_optimizer                 True"; do
    prints "  $line"
done

# One iteration behind a checkpoint of Megatron-LM, into a folder of its own: goes_from FOLDER CHECKPOINT OPTION...
goes_from() {
    folder=$1 checkpoint=$2
    shift 2
    rm -rf "$folder"
    trains_as fp32-plain-optimizer --load "$checkpoint" --save "$folder" --ckpt-format torch --exit-interval 1 "$@"
    exits 0
}

# same_random A B: the rank files are the same, and with them the states of random numbers.
same_random() {
    cmp -s "$1"/iter_*/mp_rank_00/model_optim_rng.pt "$2"/iter_*/mp_rank_00/model_optim_rng.pt
}

plain=$tests_folder/golden/megatron-training/fp32-plain-optimizer
it "states of random numbers go on, but for --no-load-rng and another layout, which begin anew"
goes_from own "$plain"
grep -q "random number" "$stderr" && is_wrong "$(cat "$stderr")"
goes_from own-again "$plain"
same_random own own-again || is_wrong "two runs differ"
goes_from anew "$plain" --no-load-rng
same_random own anew && is_wrong "--no-load-rng changes nothing"
run convert -q "$plain" tp2 --true-vocab-size 128 --tp 2 # which drops them
goes_from of-tp2 tp2
same_random anew of-tp2 || is_wrong "nothing had states, and they are not made from the seed"
train --load "$tests_folder/golden/megatron/llama-HEAD-torch-optimizer-tp2pp2/checkpoint" --true-vocab-size 43 --mock-data \
    --bf16 --seq-length 16 --micro-batch-size 2 --train-iters 20 --lr 1e-2 --save of-tp2pp2 --exit-interval 1 \
    --override-opt_param-scheduler
exits 0
says "states of random number generators are made from --seed: the checkpoint has TP2 PP2 DP1"

it "so do those of a GPU where the checkpoint has a host's, and the reverse"
anew="states of random number generators are made from --seed: the checkpoint's are not from"
on_gpu="--distributed-backend nccl --device cpu"
# shellcheck disable=SC2086 # words
{
    goes_from gpu "$plain" $on_gpu
    says "$anew a GPU (--distributed-backend nccl)"
    goes_from gpu-anew "$plain" $on_gpu --no-load-rng
    same_random gpu gpu-anew || is_wrong "a host's states are those of a GPU"
    goes_from gpu-again gpu $on_gpu
    grep -q "random number" "$stderr" && is_wrong "$(cat "$stderr")"
}
goes_from host gpu
says "$anew a host without GPUs (--distributed-backend gloo)"
goes_from host-anew gpu --no-load-rng
same_random host host-anew || is_wrong "states of a GPU are a host's"

it "--no-save-rng writes none, and args say so"
goes_from none "$plain" --no-save-rng
run inspect none --args
prints "  no_save_rng                               True"
grep -q "states of random number generators" "$stdout" && is_wrong "there are states"
run inspect own --args
prints "  no_save_rng                               False"
prints "states of random number generators"

# The keys that PyTorch's Adam has and others lack, and how often they are in the files: adam_in FOLDER
adam_in() {
    cat "$1"/iter_*/common.pt "$1"/iter_*/mp_rank_00/model_optim_rng.pt 2>/dev/null |
        LC_ALL=C grep -aoE 'foreach|differentiable|step' | sort | uniq -c
}

it "--no-save-rng leaves the optimizer as it is: PyTorch's Adam with gloo"
for format in torch_dist torch; do
    tries 2 || continue
    begins fp32-plain-optimizer llama --ckpt-format $format
    with=$(adam_in out)
    begins fp32-plain-optimizer llama --ckpt-format $format --no-save-rng
    [ "$(adam_in out)" = "$with" ] || is_wrong "$with with states, $(adam_in out) without"
    case $with in *foreach*) ;; *) is_wrong "it is not PyTorch's Adam: $with" ;; esac
    begins fp32-plain-optimizer llama --ckpt-format $format --distributed-backend nccl --device cpu
    case $(adam_in out) in *foreach*) is_wrong "it is PyTorch's Adam without gloo" ;; esac
done

# biases FOLDER - the digests of what balances experts
biases() {
    "$ferry" digest "$1" 2>/dev/null | grep expert_bias
}

it "the bias of experts is converted to any layout and format as it is, in float32 beside weights in bfloat16"
"$ferry" convert -q "$runs/moe-bias/final" split --to torch --tp 2 --ep 2 --pp 2 || is_wrong "not split"
"$ferry" convert -q split cast --to torch_dist --torch-dtype bfloat16 || is_wrong "not cast"
"$ferry" convert -q cast dealt --to torch --pp 2 --ep 4 || is_wrong "not dealt"
[ "$(biases "$runs/moe-bias/final" | wc -l)" -eq 4 ] || is_wrong "biases: $(biases "$runs/moe-bias/final")"
for folder in split cast dealt; do
    [ "$(biases $folder)" = "$(biases "$runs/moe-bias/final")" ] || is_wrong "$folder: $(biases $folder)"
done
