#!/bin/sh
# emulated_test.sh FERRY - the GPU's kernels on an emulated GPU, beside the CPU's ops. TAP.
set -u
check=$(dirname "$1")/tests/gpu/ops_check_emulated
if [ ! -x "$check" ]; then
    echo "ok 1 - kernels on an emulated GPU # SKIP not built"
    exit 0
fi
said=$(OMP_NUM_THREADS=1 "$check" --small --trials 5)
code=$?
echo "$said" | sed -e 's/^ok */ok 1 - /' -e 's/^FAILED/not ok 1 - /'
exit "$code"
