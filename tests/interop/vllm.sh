#!/bin/sh
# vllm.sh FERRY|--install [OPTION of vllm_reads.py]... - checks that vLLM takes the encoded weights that Ferry writes. It
# has an environment of its own (FERRY_VENV-vllm; 336 MB to fetch, 300 MB without its kernels), which takes the rest from
# that of encodings.sh.
set -eu
ferry=$1
shift
here=$(realpath "$(dirname "$0")")
. "$here/environment.sh"
sh "$here/encodings.sh" --install
base=${FERRY_VENV:-$HOME/.cache/ferry-interop}
venv=$base-vllm
pins="$(cat "$base-encodings/ferry-pins" "$here/requirements-vllm.txt")"

packages_of() {
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

install() {
    python3 -m venv --clear "$venv" &&
        for other in "$base-encodings" "$base-hf5" "$base"; do
            packages_of "$other"
        done >"$(packages_of "$venv")/interop.pth" &&
        "$venv/bin/pip" install --no-compile --no-cache-dir --no-deps -r "$here/requirements-vllm.txt" &&
        find "$(packages_of "$venv")/vllm" -type f \( -name '*.so' -o -name 'vllm-rs' \) -delete # for GPUs
}

make_once "$venv" "$pins" "vLLM" "interop-vllm: 0 passed, 1 failed"
[ "$ferry" != --install ] || exit 0
export OMP_NUM_THREADS=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
exec "$venv/bin/python" "$here/vllm_reads.py" "$(realpath "$ferry")" "$@" 2>/dev/null
