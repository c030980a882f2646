#!/bin/sh
# train_check.sh FERRY - training on a GPU: families, types and dropout against the CPU, and runs of Megatron-LM
# repeated, as tests/trainer/golden_runs_test.sh does on a CPU. TAP; the exit code is 1 if a check failed.
# shellcheck disable=SC2317
set -u
ferry=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/check.sh"
. "$(dirname "$0")/trains.sh"

# Each of these runs prints a separate check.
repeats_golden_runs() {
    FERRY_TEST_DEVICE=cuda sh tests/trainer/golden_runs_test.sh "$ferry" >"$work/golden"
    sed 's/^\(not \)\{0,1\}ok [0-9]*/  &/' "$work/golden" >&3
    ! grep '^not ok' "$work/golden"
}

exec 3>&1
check_training
check "runs of Megatron-LM" repeats_golden_runs
exit "$failed"
