#!/bin/sh
# python_test.sh - the Python module beside the program, and how a wheel is packed; the tests are in python/.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"
export PYTHONPATH="$root/python" FERRY_PROGRAM="$ferry" PYTHONDONTWRITEBYTECODE=1

for test in ferry_test.Commands ferry_test.Options ferry_test.Processes ferry_test.Types make_wheel_test; do
    it "python: $test"
    if ! command -v python3 >/dev/null; then
        skip "no python3"
        continue
    fi
    run_program timeout 300 python3 -m unittest "$test"
    exits 0
    [ "$code" -eq 0 ] || is_wrong "$(cat "$stderr")"
done
