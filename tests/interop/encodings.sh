#!/bin/sh
# encodings.sh FERRY|--install [OPTION of encodings.py]... - checks encoded weights beside the programs that encode them:
# compressed-tensors, transformers, ModelOpt, torchao and bitsandbytes. These have an environment of their own
# (FERRY_VENV-encodings; 300 MB), which takes the rest from those of families.sh.
set -eu
ferry=$1
shift
here=$(realpath "$(dirname "$0")")
. "$here/environment.sh"
sh "$here/families.sh" --install
base=${FERRY_VENV:-$HOME/.cache/ferry-interop}
venv=$base-encodings
pins="$(cat "$base-hf5/ferry-pins" "$here/requirements-encodings.txt")"

packages_of() {
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

install() {
    python3 -m venv --clear "$venv" &&
        for other in "$base-hf5" "$base"; do # the newer transformers comes first
            packages_of "$other"
        done >"$(packages_of "$venv")/interop.pth" &&
        "$venv/bin/pip" install --no-compile --no-deps -r "$here/requirements-encodings.txt"
}

make_once "$venv" "$pins" "what encodes weights" "interop-encodings: 0 passed, 1 failed"
[ "$ferry" != --install ] || exit 0
export OMP_NUM_THREADS=1
exec "$venv/bin/python" "$here/encodings.py" "$(realpath "$ferry")" "$@" 2>/dev/null
