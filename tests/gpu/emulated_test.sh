#!/bin/sh
# emulated_test.sh FERRY - all that runs on GPUs, on an emulated one: ops against the CPU's, models and
# layouts of the engine's tests by each way of communication, and graphs. TAP.
# shellcheck disable=SC2317
set -u
ferry=$1
build=$(dirname "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
FERRY_CUDA_LIBRARY=$build/emulated/libferry_cuda.so
OMP_NUM_THREADS=1
export FERRY_CUDA_LIBRARY OMP_NUM_THREADS
if [ ! -e "$FERRY_CUDA_LIBRARY" ]; then
    echo "ok 1 - an emulated GPU # SKIP not built"
    exit 0
fi
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/trains.sh"
unset FERRY_TEST_SHARE # its groups are taken, each whole

engine_test() { # PROGRAM
    FERRY_TEST_DEVICE=cuda CMOCKA_MESSAGE_OUTPUT=STDOUT "$build/train/loop/$1"
}

weights_test() {
    FERRY_TEST_DEVICE=cuda CMOCKA_MESSAGE_OUTPUT=STDOUT "$build/train/model/weights_test"
}

# One graph if nothing waits for the host; one between any two collectives if all of them do.
graphs_are() { # COUNT OPTION...
    count=$1
    shift
    "$ferry" bench tests/golden/hf/llama3.2 --device cuda --decode --seq 8 --repeats 2 "$@" |
        tee /dev/stderr | grep -q "graphs: $count\$"
}

# Short ops are timed as separate graphs: marks would take longer. Except ops that read by other ops'
# integers.
times_as_graphs() { # MODEL TEXT
    "$ferry" bench "tests/golden/hf/$1" --device cuda --decode --seq 8 --repeats 2 | tee /dev/stderr |
        grep -q "^each op timed as a graph of its calls in all layers$2\$"
}

# A command that succeeds with this text.
says() { # TEXT COMMAND...
    text=$1
    shift
    "$@" >"$work/output" || return 1
    cat "$work/output"
    grep -q "$text" "$work/output"
}

lists_ops() {
    "$build/tests/gpu/ops_check" --small --trials 1 --only add,norm,digest --without norm >"$work/output" || return 1
    cat "$work/output"
    [ "$(awk '$1 == "ok" && $3 == "f32" { print $2 }' "$work/output" | tr '\n' ' ')" = "add digest " ]
}

# A search for products of f16 ignores those of bf16 in the file, and both stay.
types_have_lines_of_their_own() {
    lines=''
    for dtype in bf16 fp16 bf16; do
        FERRY_CUDA_TUNE=1 FERRY_CUDA_CACHE="$work/types" "$ferry" bench "$golden" --device cuda --dtype "$dtype" \
            --seq 8 --repeats 1 || return 1
        lines="$lines $(wc -l <"$work/types")"
    done
    echo "lines:$lines"
    # shellcheck disable=SC2086 # words
    set -- $lines
    [ "$1" -gt 0 ] && [ "$2" -eq $((2 * $1)) ] && [ "$3" -eq "$2" ]
}

lacks() { # TEXT FILE
    ! grep "$1" "$2"
}

# The report of ops_check on an op with some kernels allowed, in $work/OP.
op_with_sm90() { # OP CODE TEXT VARIABLE=VALUE...
    op=$1 code=$2 text=$3
    shift 3
    env "$@" "$build/tests/gpu/ops_check" --small --seed 2 --trials 9 --only "$op" >"$work/$op" 2>&1
    got=$?
    [ "$got" -eq "$code" ] && says "$text" cat "$work/$op"
}

with_sm90() { # CODE TEXT VARIABLE=VALUE...
    op_with_sm90 matmul "$@"
}

# All those kernels against the portable ones, in $work/sm90.
check_sm90() { # CODE
    "$build/tests/gpu/ops_check" --sm90 --small --trials 4 >"$work/sm90" 2>&1
    got=$?
    cat "$work/sm90"
    [ "$got" -eq "$1" ]
}

# A forward pass in which the first algorithm of each product cannot run. $work/searched lists the
# attempts.
searched() { # VARIABLE=VALUE
    env EMULATED_CUBLASLT=fails FERRY_CUDA_CACHE="$work/cache/found" "$@" \
        "$ferry" verify "$golden" "$golden/logits.safetensors" --forward --device cuda >"$work/searched" 2>&1
    got=$?
    cat "$work/searched"
    return "$got"
}

# The time of all ops by the device's marks is close to that of a run by the host's clock: they are
# separate runs, on a shared machine.
times_add_up() {
    "$ferry" bench tests/golden/hf/llama3.2 --device cuda --seq 8 --repeats 5 | tee /dev/stderr |
        awk 'NR == 1 { whole = $1 } /%.*%$/ && NR > 4 { sum += $4 }
             END { exit !(whole > 0 && sum > whole / 50 && sum < 50 * whole) }'
}

# A command that fails with this code and text, within seconds.
fails() { # CODE TEXT COMMAND...
    code=$1 text=$2
    shift 2
    "$@" >"$work/output" 2>&1
    got=$?
    cat "$work/output"
    [ "$got" -eq "$code" ] && grep -q "$text" "$work/output"
}

golden=tests/golden/hf/llama2
cp -r "$golden" "$work/nan"
chmod -R u+w "$work/nan"
size=$(wc -c <"$work/nan/model.safetensors") # f16; what lies at the end is a projection's last row
printf '\000\176' | dd of="$work/nan/model.safetensors" bs=1 seek=$((size - 2)) conv=notrunc 2>/dev/null

compute() { # OPTION...
    timeout 300 "$ferry" forward "$work/nan" --input-ids "$golden/logits.safetensors" --out "$work/out.safetensors" \
        --device cuda --tp 2 "$@"
}

fused_are_searched() {
    "$ferry" bench tests/golden/hf/llama3.2 --device cuda --decode --seq 8 --repeats 2 --dtype bf16 >"$work/bench" 2>&1
    cat "$work/bench"
    [ "$(grep -c "^add_norm and product .*: fused .* us, in turn .* us$" "$work/bench")" -eq "$1" ]
}

# ---- groups of checks, which a share of them takes one by one ----

check_search() {
    check "ferry doctor opens it" says "^CUDA .*an emulated GPU.*\[ok\]" "$ferry" doctor
    check "and asks its libraries" says "^cuBLASLt .*13\.1\.0.*\[ok\]" "$ferry" doctor
    check "ops_check takes some ops, and leaves some out" lists_ops
    check "ops_check refuses an unknown op" fails 2 "usage: ops_check" "$build/tests/gpu/ops_check" --only matmull
    check "large attention is for cuDNN" says "^skipped: attention \[1 x 8192, 32/8, 128\] f16: no cudnn" \
        "$build/tests/gpu/ops_check" --large
    check "a search leaves out what fails" searched FERRY_CUDA_TUNE=1
    check "its file is read" searched FERRY_CUDA_TUNE=0
    check "and spares what fails" lacks "cannot be run" "$work/searched"
    check "without either the next one is taken" searched FERRY_CUDA_CACHE=/dev/null
    check "once the first has failed" says "cannot be run" cat "$work/searched"
    check "the file of a search has bf16 and f16 apart" types_have_lines_of_their_own
}

check_other_cublaslt() {
    for less in nothing no-bias refuses errs; do
        check "products where cuBLASLt knows less: $less" env EMULATED_CUBLASLT="$less" \
            "$build/tests/gpu/ops_check" --small --trials 8 --only matmul
    done
}

check_ops() {
    check "ops beside the CPU's" "$build/tests/gpu/ops_check" --small --trials 5
}

check_small_blocks() {
    EMULATED_SHARED=101376
    export EMULATED_SHARED
    check "ops where a block has 99 KB of shared memory" "$build/tests/gpu/ops_check" --small --trials 5 \
        --only attention,attention_backward,grouped_matmul,grouped_dgrad,grouped_wgrad
    unset EMULATED_SHARED
}

check_few_rows_sm90() {
    check "kernels of compute capability 9.0 are not for others" \
        says "^skipped: few_rows_sm90: not for" "$build/tests/gpu/ops_check" --sm90
    EMULATED_SM90=right
    export EMULATED_SM90
    check "where they are, one that agrees is used" with_sm90 0 "few_rows_sm90: .*: agrees" FERRY_CUDA_SM90=first,say
    check "it is one of those that are timed" with_sm90 0 "^matmul .*: few_rows_sm90 takes" FERRY_CUDA_SM90=say \
        FERRY_CUDA_TUNE=1 FERRY_CUDA_CACHE="$work/timed"
    awk '{ $17 = 1; print }' "$work/timed" >"$work/portable" # after 16 words of a key: few_rows
    check "a file says what is used" with_sm90 0 "^matmul .*: few_rows is used" FERRY_CUDA_SM90=say \
        FERRY_CUDA_CACHE="$work/portable"
    check "without another" lacks "^matmul .*: few_rows_sm90" "$work/matmul"
    check "but for one that is to be the first" with_sm90 0 "^matmul .*: few_rows_sm90 is used" \
        FERRY_CUDA_SM90=first,say FERRY_CUDA_TUNE=1 FERRY_CUDA_CACHE="$work/portable"
    check "and is not used untimed" with_sm90 0 "^ok *matmul/few_rows_sm90" FERRY_CUDA_SM90=say
    check "nor looked at" lacks "^few_rows_sm90:" "$work/matmul"
    unset EMULATED_SM90
}

check_attention_sm90() {
    EMULATED_SM90=right
    export EMULATED_SM90
    check "attention is computed by a kernel for compute capability 9.0 that agrees" op_with_sm90 attention 0 \
        "attention_sm90: .*, heads of [0-9]*, causal, .*: agrees" FERRY_CUDA_SM90=first,say
    unset EMULATED_SM90
}

check_own_check_of_sm90() {
    EMULATED_SM90=right
    export EMULATED_SM90
    check "each kernel for compute capability 9.0 is there, and agrees" check_sm90 0
    for kernel in few_rows_sm90 attention_sm90; do
        for type in bf16 f16; do
            check "it computes what the portable one does: $kernel $type" says "^ok *$kernel $type worst" cat "$work/sm90"
        done
    done
    check "unless they are turned off" \
        says "^skipped: few_rows_sm90" env FERRY_CUDA_SM90=0 "$build/tests/gpu/ops_check" --sm90
    unset EMULATED_SM90
}

check_wrong_sm90() {
    EMULATED_SM90=wrong
    export EMULATED_SM90
    check "a kernel of attention that does not agree is not used" op_with_sm90 attention 1 \
        "attention_sm90: .*, heads of [0-9]*.*: output [01] is off by" FERRY_CUDA_SM90=first,say
    check "attention is right without it" says "^ok *attention *bf16" cat "$work/attention"
    for type in bf16 f16; do
        check "one that does not agree is not used: $type" with_sm90 1 "few_rows_sm90: $type .*: output 0 is off by" \
            FERRY_CUDA_SM90=first,say
        check "products are right without it: $type" says "^ok *matmul *$type" cat "$work/matmul"
    done
    unset EMULATED_SM90
}

check_own_check_of_wrong_sm90() {
    EMULATED_SM90=wrong
    export EMULATED_SM90
    check "the check of wrong kernels fails" check_sm90 1
    for type in bf16 f16; do
        check "for few_rows_sm90 $type" says "^FAILED few_rows_sm90 $type worst" cat "$work/sm90"
        check "for attention_sm90 $type" says "^FAILED attention_sm90 $type worst" cat "$work/sm90"
    done
    EMULATED_SM90=fails
    check "one that fails says so" with_sm90 1 "^few_rows_sm90: .*: matmul: an emulated error" FERRY_CUDA_SM90=first
    check "and is not used" says "^ok *matmul *bf16" cat "$work/matmul"
    EMULATED_SM90=traps
    check "one that traps says so" with_sm90 1 "^few_rows_sm90: .*: matmul: an emulated error" FERRY_CUDA_SM90=first
    check "and no product hides it" says "^FAILED matmul *bf16" cat "$work/matmul"
    unset EMULATED_SM90
}

check_models() {
    check "models and layouts, staged through the host" engine_test forward_test
    check "generation, as graphs" engine_test generate_test
    check "weights that stay codes" engine_test as_stored_test
}

check_weights_and_training() {
    check "weights, through buffers of the host" weights_test
    EMULATED_PINNED=$(((48 << 20) + (128 << 10))) # what a device that is opened takes
    export EMULATED_PINNED
    check "that cannot be pinned" weights_test
    unset EMULATED_PINNED
    check "logits in fp16 are those of transformers" says "^forward: within rounding" "$ferry" verify \
        tests/golden/hf/llama3.2 tests/golden/hf/llama3.2/logits.safetensors --forward --dtype fp16 --device cuda --tp 2
    check_training
}

check_shared_gpu() {
    check "several runs of several ranks, from one process" \
        "$ferry" verify "$golden" "$golden" --forward --device cuda --tp 2
    check "ranks of one GPU cannot have NCCL" fails 3 "two ranks share a GPU" \
        "$ferry" bench "$golden" --device cuda --tp 2 --seq 8 --collectives nccl
    check "nor can ranks on CPUs" fails 3 "no GPUs" "$ferry" bench "$golden" --tp 2 --seq 8 --collectives nccl
    EMULATED_MEMORY=50000000
    export EMULATED_MEMORY
    check "what two ranks of one GPU need is more than it has" fails 6 "with the 1 rank sharing it" \
        "$ferry" bench "$golden" --device cuda --tp 2 --seq 8
    EMULATED_GPUS=2
    export EMULATED_GPUS
    check "with a GPU each it is not" "$ferry" bench "$golden" --device cuda --tp 2 --seq 8
    EMULATED_MEMORY=150000000 EMULATED_GPUS=4
    plans_large() {
        "$ferry" train --num-layers 2 --hidden-size 512 --num-attention-heads 8 --vocab-size 4096 --mock-data --seq-length 16 \
            --max-position-embeddings 16 --micro-batch-size 1 --global-batch-size 4 --train-iters 1 --lr 1e-3 --bf16 --dp 4 \
            --device cuda --dry-run "$@"
    }
    check "states that do not fit each rank may do so in parts" fails 0 "; --use-distributed-optimizer fits (1" \
        plans_large
    check "which then fit" plans_large --use-distributed-optimizer
    unset EMULATED_MEMORY
    check "NaN in generation are named, behind a step that has begun" fails 10 "has NaN" \
        "$ferry" generate "$work/nan" --prompt-ids 1,2,3 --max-new-tokens 4 --device cuda
    unset EMULATED_GPUS
}

check_several_gpus() {
    EMULATED_GPUS=8
    export EMULATED_GPUS
    check "collectives of one rank" "$build/tests/gpu/collectives_check"
    check "models and layouts, by NCCL" engine_test forward_test
    check "training, on four ranks with a GPU each" trains_alike llama3.2 1e-5 --tp 2 --dp 2 --sequence-parallel
    check "training, on four ranks that shard states, with a GPU each" trains_alike llama3.2 1e-5 --tp 2 --dp 2 \
        --use-distributed-optimizer --ddp-bucket-size 3000
    check "training, on stages of two chunks with a GPU each" trains_alike qwen3 1e-5 --pp 2 --dp 2 \
        --pipeline-model-parallel-layout "E|t|tt|L" --micro-batch-size 1 --global-batch-size 8 \
        --use-distributed-optimizer --ddp-bucket-size 3000
    check "training, of experts on two ranks with a GPU each" trains_alike mixtral 1e-5 --ep 2 --moe-aux-loss-coeff 0.01
    check "NaN on one rank are named, by NCCL" fails 10 "has NaN" compute --collectives nccl
    check "NaN on one rank are named, staged" fails 10 "has NaN" compute --collectives staged
    unset EMULATED_GPUS
}

check_graphs() {
    EMULATED_GPUS=8
    export EMULATED_GPUS
    check "a step of decoding is one graph" graphs_are 1
    check "its ops are timed as graphs of their own" times_as_graphs llama3.2 ""
    check "but for those that need what others chose" times_as_graphs mixtral "; timed between .*: .*fc1.*"
    check "in fp16, too" graphs_are 1 --dtype fp16
    check "by NCCL it still is" graphs_are 1 --tp 2
    FERRY_CUDA_TUNE=1 FERRY_CUDA_CACHE=/dev/null EMULATED_SM90=right
    export FERRY_CUDA_TUNE FERRY_CUDA_CACHE EMULATED_SM90
    check "and behind a search" graphs_are 1
    unset FERRY_CUDA_TUNE FERRY_CUDA_CACHE EMULATED_SM90
    FERRY_CUDA_TUNE=1 FERRY_CUDA_CACHE=$work/fused FERRY_CUDA_SM90=say
    export FERRY_CUDA_TUNE FERRY_CUDA_CACHE FERRY_CUDA_SM90
    check "products with what makes their rows are searched, too" fused_are_searched 2
    check "once" fused_are_searched 0
    unset FERRY_CUDA_TUNE FERRY_CUDA_CACHE FERRY_CUDA_SM90
    check "staged it is many" graphs_are 8 --tp 2 --collectives staged
    EMULATED_NO_GRAPHS=1
    export EMULATED_NO_GRAPHS
    check "times of ops add up to that of a run" times_add_up
    check "where one rank can make none, no rank has" graphs_are "0: .*" --tp 2
    unset EMULATED_NO_GRAPHS EMULATED_GPUS
}

# The first and the last four go together where ten shares are taken.
for group in search other_cublaslt shared_gpu few_rows_sm90 small_blocks attention_sm90 own_check_of_sm90 wrong_sm90 \
    own_check_of_wrong_sm90 models ops several_gpus weights_and_training graphs; do
    ! tries 14 || "check_$group"
done
exit "$failed"
