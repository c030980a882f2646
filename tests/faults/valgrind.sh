#!/bin/sh
# valgrind.sh FERRY - a small conversion there and back under valgrind: no bad access, nothing lost.
set -u
ferry=$(realpath "$1")
work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-valgrind.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work" || exit 1
passed=0 failed=0

checked() {
    if valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect \
        "$ferry" "$@" >said 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: ferry $*"
        tail -n 30 said
    fi
}

checked synth hf --model qwen3_moe --layers 2 --experts 4 --topk 2
checked convert hf dist --tp 2 --ep 2 --max-memory 1GiB
checked convert dist legacy --to torch --pp 2 --tp 1 --ep 1 --max-memory 1GiB
checked convert legacy back --to hf --verify full --max-memory 1GiB
checked inspect legacy --tensors '*'
checked digest back --max-memory 1GiB
echo "valgrind: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
