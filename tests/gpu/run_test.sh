#!/bin/sh
# run_test.sh FERRY - a rehearsal of tests/gpu/run with an emulated GPU and an nvidia-smi of our own:
# its results when all is well, when time runs out and when it is killed. TAP.
# shellcheck disable=SC2317
set -u
build=$(cd "$(dirname "$1")" && pwd)
FERRY_CUDA_LIBRARY=$build/emulated/libferry_cuda.so
if [ ! -e "$FERRY_CUDA_LIBRARY" ] || [ ! -x "$build/tests/gpu/ops_check" ]; then
    echo "ok 1 - a rehearsal of tests/gpu/run # SKIP not built"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TMPDIR=$work
OMP_NUM_THREADS=1
FERRY_GPU_SMALL=1
OUT=$work/out
export FERRY_CUDA_LIBRARY TMPDIR OMP_NUM_THREADS FERRY_GPU_SMALL OUT
. "$(dirname "$0")/check.sh"

# Not the tree itself: RESULTS.md goes there.
tree=$work/tree
mkdir -p "$tree/tests/gpu" "$work/bin" "$work/none"
cp tests/gpu/run tests/gpu/*.sh tests/gpu/*.py "$tree/tests/gpu/"
ln -s "$PWD/tests/golden" "$tree/tests/golden"
ln -s "$build" "$tree/build"

tool() { # FOLDER NAME LINE...
    printf '%s\n' '#!/bin/sh' "$3" >"$work/$1/$2"
    chmod +x "$work/$1/$2"
}
# shellcheck disable=SC2016 # for the tool
tool bin nvidia-smi 'case $* in *compute_cap*) echo "${CAPABILITY:-8.0}" ;; *) echo "an emulated GPU" ;; esac'
tool bin ncu 'echo "==ERROR== Failed to initialize the profiler: LibraryNotLoaded"; exit 1'
tool none nvidia-smi 'echo "no devices were found"; exit 6'

run_smoke() { # CODE [VARIABLE=VALUE]...: what it says is in $work/output
    expected=$1
    shift
    env PATH="$work/bin:$PATH" "$@" sh "$tree/tests/gpu/run" smoke >"$work/output" 2>&1
    code=$?
    cat "$work/output"
    [ "$code" -eq "$expected" ]
}

says() { # TEXT: in its last line
    tail -n 1 "$work/output" | grep -F "$1"
}

has_row() { # STEP RESULT
    cat "$OUT/RESULTS.md"
    grep -q "^| $1 | $2 | [0-9]* |$" "$OUT/RESULTS.md"
}

nothing_without_gpu() {
    run_smoke 0 PATH="$work/none:$PATH" && says "gpu: skipped (no GPU)" && [ ! -e "$OUT" ]
}

# Few files: job systems limit how many come back.
leaves_its_files() {
    ls -lR "$OUT"
    for file in RESULTS.md smoke.log ncu.txt clocks.csv matmul.txt; do
        [ -s "$OUT/$file" ] || return
    done
    cmp "$OUT/RESULTS.md" "$tree/tests/gpu/RESULTS.md" && [ "$(find "$OUT" -type f | wc -l)" -le 8 ]
}

all_is_well() {
    run_smoke 0 && says "gpu: 0 failed, 2 skipped" && leaves_its_files && has_row prefill ok &&
        has_row sm90 "skipped: few_rows_sm90: not for.*" && grep "MB of a model would be in" "$OUT/RESULTS.md" &&
        has_row ncu "skipped: LibraryNotLoaded" && grep "tokens/s" "$OUT/RESULTS.md"
}

keeps_other_parts() {
    grep "found before" "$OUT/RESULTS.md" && [ "$(grep -c "^<!-- right -->" "$OUT/RESULTS.md")" -eq 1 ]
}

uses_sm90() {
    run_smoke 0 CAPABILITY=9.0 EMULATED_SM90=right && has_row sm90 ok && has_row decode ok &&
        grep "^matmul \[1, .*: few_rows_sm90 takes" "$OUT/smoke.log"
}

goes_on_without_sm90() {
    run_smoke 1 CAPABILITY=9.0 EMULATED_SM90=traps && has_row sm90 "FAILED (1)" && has_row ops ok &&
        has_row decode ok && ! grep "^few_rows_sm90" "$OUT/smoke.log"
}

tries_without_it() {
    run_smoke 1 CAPABILITY=9.0 EMULATED_SM90=traps-64 && says "gpu: 1 failed, 1 skipped" && has_row sm90 ok &&
        has_row prefill ok && has_row decode "FAILED (.*)" && has_row decode_plain ok &&
        grep "^few_rows_sm90: .*an emulated error\|^matmul .* few_rows_sm90 fails" "$OUT/RESULTS.md"
}

misses_sm90() {
    run_smoke 1 CAPABILITY=9.0 FERRY_GPU_SECONDS=19 &&
        has_row sm90 "FAILED: skipped: few_rows_sm90: not for.*"
}

# Enough for versions, sm90 and golden, which need 5 and 10 s at least, but not for steps that need 20.
skips_what_does_not_fit() {
    run_smoke 0 FERRY_GPU_SECONDS=19 && says "gpu: 0 failed, 5 skipped" && has_row versions ok &&
        has_row golden ok && has_row ops "skipped: no time left"
}

a_failure_fails() {
    run_smoke 1 FERRY_CUDA_LIBRARY=/none FERRY_GPU_SECONDS=100 &&
        has_row ops "FAILED: skipped: no GPU.*"
}

# Once the second step is done.
leaves_results_when_killed() {
    rm -rf "$OUT"
    PATH=$work/bin:$PATH sh "$tree/tests/gpu/run" smoke >/dev/null 2>&1 &
    until grep -q '^| ops' "$OUT/RESULTS.md" 2>/dev/null || ! kill -0 $!; do
        sleep 0.1
    done
    kill -KILL $!
    wait $!
    has_row versions ok && has_row ops ok && grep -q '^=== ops: ok' "$OUT/smoke.log" &&
        keeps_other_parts && ! grep -q '^| decode' "$OUT/RESULTS.md"
}

# The steps of `fast` with a model, up to the last. A cut in later steps would take longer.
measures_a_model() {
    rm -rf "$OUT"
    PATH=$work/bin:$PATH sh "$tree/tests/gpu/run" fast >"$work/output" 2>&1 &
    until grep -q '^| user_generate_16' "$OUT/RESULTS.md" 2>/dev/null || ! kill -0 $!; do
        sleep 0.1
    done
    kill $!
    wait $!
    for step in prefill prefill_own decode decode_4 decode_16 decode_long user_forward user_perplexity user_generate \
        user_generate_4 user_generate_16; do
        has_row "$step" ok || return
    done >"$work/rows"
    cat "$OUT/RESULTS.md"
    grep -q "^| decode_16 | [0-9.]* | [0-9]* | *| *|$" "$OUT/RESULTS.md" &&
        grep -q "^- user_forward: [0-9.]* s$" "$OUT/RESULTS.md" &&
        grep -q "^- user_generate_16: [0-9.]* s, [0-9]* tokens/s after the first$" "$OUT/RESULTS.md"
}

# Steps of this test.
steps() { # SECONDS COMMAND...
    # shellcheck disable=SC2034 # these are for steps.sh
    (
        cd "$tree" || exit
        . tests/gpu/steps.sh
        part=smoke out=$OUT commit=none child=''
        work=$(mktemp -d)
        touch "$work/gpus"
        smoke_results() { :; }
        begin_part "$(date +%s)" "$1"
        shift
        "$@"
    )
}

is_cut() {
    steps 100 step slow 1 0 sleep 20
    has_row slow "FAILED: cut after [1-5] s" && grep -q '^=== slow: FAILED' "$OUT/smoke.log"
}

# A command that survives SIGTERM.
is_cut_by_the_deadline() {
    steps 2 step deaf 100 1 sh -c "trap '' TERM; echo begun; sleep 20"
    has_row deaf "FAILED: cut after [1-9] s" && grep -q begun "$OUT/smoke.log"
}

is_skipped_without_its_modules() {
    steps 100 python_step "sys no_such_module" torch 10 1 -c 'print("run")'
    has_row torch "skipped: no no_such_module.*"
}

writes_little_of_much() {
    steps 100 step loud 20 0 sh -c 'yes begin | head -c 3000000; echo end'
    has_row loud ok && tail -n 2 "$OUT/smoke.log" | grep end && [ "$(wc -c <"$OUT/smoke.log")" -lt 1100000 ]
}

check "without a GPU it says so" nothing_without_gpu
printf '%s\n' '<!-- right -->' 'found before' '<!-- end of right -->' >"$tree/tests/gpu/RESULTS.md"
! tries 6 || check "smoke leaves its files" all_is_well
! tries 6 || check "kernels for compute capability 9.0 are used where they can be" uses_sm90
! tries 6 || check "where one traps, later steps go on without it" goes_on_without_sm90
! tries 6 || check "where it traps in a later step, that is tried without it" tries_without_it
check "where one is missing, that is a failure" misses_sm90
check "what other parts found before stays" keeps_other_parts
check "steps that no longer fit are skipped" skips_what_does_not_fit
check "a step without a GPU is a failure" a_failure_fails
! tries 6 || check "killed, it leaves what it has" leaves_results_when_killed
! tries 6 || check "whole commands and steps of decoding are timed" measures_a_model
check "a step that takes too long is cut" is_cut
check "so is one that the deadline ends" is_cut_by_the_deadline
check "a Python program is skipped without its modules" is_skipped_without_its_modules
check "a log is not without end" writes_little_of_much
exit "$failed"
