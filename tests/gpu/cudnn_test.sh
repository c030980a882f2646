#!/bin/sh
# cudnn_test.sh FERRY - cuDNN's plans for our attention, without a GPU. TAP.
set -u
folder=$(dirname "$1")/tests/gpu
if [ ! -x "$folder/cudnn_plans" ]; then
    echo "ok 1 - plans of cuDNN # SKIP not built"
    exit 0
fi
LD_LIBRARY_PATH=$folder/driver:${LD_LIBRARY_PATH:-} "$folder/cudnn_plans" 2>/dev/null
