#!/bin/sh
# emulated_test.sh FERRY - everything that runs on GPUs on an emulated one: its ops beside the CPU's,
# the models and layouts of the engine's tests, by each way that ranks talk, and graphs. TAP.
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
number=0 failed=0

check() { # NAME COMMAND...
    name=$1
    number=$((number + 1))
    shift
    if "$@" >"$work/said" 2>&1; then
        echo "ok $number - $name"
    else
        failed=1
        sed 's/^/# /' "$work/said"
        echo "not ok $number - $name"
    fi
}

engine_test() { # PROGRAM
    FERRY_TEST_DEVICE=cuda CMOCKA_MESSAGE_OUTPUT=STDOUT "$build/train/$1"
}

# One graph where nothing waits for the host; one between any two collectives where all do.
graphs_are() { # COUNT OPTION...
    count=$1
    shift
    "$ferry" bench tests/golden/hf/llama3.2 --device cuda --decode --seq 8 --repeats 2 "$@" |
        tee /dev/stderr | grep -q "graphs: $count\$"
}

check "ops beside the CPU's" "$build/tests/gpu/ops_check" --small --trials 5
check "models and layouts, staged through the host" engine_test forward_test
check "generation, as graphs" engine_test generate_test
EMULATED_GPUS=8
export EMULATED_GPUS
check "collectives of one rank" "$build/tests/gpu/collectives_check"
check "models and layouts, by NCCL" engine_test forward_test
check "a step of decoding is one graph" graphs_are 1
check "by NCCL it still is" graphs_are 1 --tp 2
check "staged it is many" graphs_are 8 --tp 2 --collectives staged
exit "$failed"
