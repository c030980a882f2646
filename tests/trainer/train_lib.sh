# shellcheck shell=sh
# train_lib.sh - cli/lib.sh, and more for tests of ferry train beside runs of Megatron-LM, which begin with
# tests_folder=$(cd "$(dirname "$0")/.." && pwd)  and  . "$tests_folder/trainer/train_lib.sh"
#
# The runs in tests/golden/train are always there; more runs and checkpoints of Megatron-LM are in
# $FERRY_FIXTURES, by default ../shared/fixtures beside the checkout.
# shellcheck source=../cli/lib.sh disable=SC2154 # the test sets it
. "$tests_folder/cli/lib.sh"
# shellcheck disable=SC2034 # for the tests
runs=$tests_folder/golden/train models=$tests_folder/golden/train/models data=$tests_folder/golden/megatron-data
more=${FERRY_FIXTURES:-$tests_folder/../../shared/fixtures}/megatron-train

# The steps of half a run that is killed there; fewer where only a share of the cases is tried.
# shellcheck disable=SC2034 # for the tests
if is_share; then half_steps=10; else half_steps=50; fi

# The command line of a run of Megatron-LM, for one rank: line_of NAME
line_of() {
    sed -n "s/^$1	pretrain_gpt.py //p" "$runs/commands.txt" | sed \
        -e 's/--\(tensor-model\|pipeline-model\|expert-model\)-parallel-size [0-9]*/--\1-parallel-size 1/g' \
        -e 's/ --sequence-parallel//' \
        -e 's/ --num-layers-per-virtual-pipeline-stage [0-9]*//' \
        -e 's/ --num-virtual-stages-per-pipeline-rank [0-9]*//'
}

# The folder of its first weights; nothing if it is not there.
model_of() {
    case $1 in
    gpt2*) name=gpt2 ;;
    moe*) name=mixtral ;;
    qwen2*) name=qwen2 ;;
    *) name=llama ;;
    esac
    for folder in "$models/$name" "$more/models/$name"; do
        [ ! -e "$folder" ] || { echo "$folder" && return; }
    done
}

# A folder of its own with the data, which is where a run is.
enter() {
    mkdir -p "$scratch/runs/$1" && cd "$scratch/runs/$1" || exit 1
    for file in u16 i32; do ln -sf "$data/$file.bin" "$data/$file.idx" .; done
}

# One thread, for several that wait for one another are slow beside other tests, on the device that FERRY_TEST_DEVICE
# names, where it is set: train OPTION... With $fault, which
# is FERRY_FAULT of faults/inject.c, or $counts, the file of FERRY_FAULT_COUNT, only ferry sees them.
inject=$(dirname "$ferry")/inject.so fault='' counts=''
train() {
    if [ -n "$fault$counts" ]; then
        run_program env "LD_PRELOAD=$inject" ${fault:+"FERRY_FAULT=$fault"} \
            ${counts:+"FERRY_FAULT_COUNT=$counts"} "$ferry" train --threads 1 "$@"
    else
        run train --threads 1 ${FERRY_TEST_DEVICE:+--device "$FERRY_TEST_DEVICE"} "$@"
    fi
    ran="train, in $(basename "$PWD")"
}

# trains_as NAME OPTION... - the line of that run, then these options
trains_as() {
    name=$1
    shift
    # shellcheck disable=SC2046 # words
    train $(line_of "$name") "$@"
}

# Compares two runs by same_run.py: matches WHAT A B LIMIT...
matches() {
    difference=$(python3 "$tests_folder/trainer/same_run.py" "$@" 2>&1) ||
        is_wrong "$ran
$*: $difference"
}

# same_checkpoints A B OPTION... - by ferry verify
same_checkpoints() {
    "$ferry" verify -q "$@" >difference 2>&1 || is_wrong "verify $*: $(head -n 12 difference)"
}

can_inject() {
    [ -e "$inject" ] && [ -z "${FERRY_EMULATOR-}" ]
}

# How often a run has called a function of libc, by the file of $counts: calls_of NAME FILE
calls_of() {
    sed -n "s/^$1 //p" "$2"
}
