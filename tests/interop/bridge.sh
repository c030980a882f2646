#!/bin/sh
# bridge.sh --install - makes the environment of what follows.
# bridge.sh FERRY [OPTION of bridge.py]... - compares what ferry writes for Megatron with the models that Megatron-Bridge
# builds of the same Hugging Face folders. Bridge and its Megatron-Core are on PyPI for Python 3.12 alone, but nothing in
# them needs it: their wheels are unpacked into a folder (FERRY_VENV-bridge; 40 MB), which the Python of families.sh takes.
set -eu
ferry=$1
shift
here=$(realpath "$(dirname "$0")")
. "$here/environment.sh"
venv=${FERRY_VENV:-$HOME/.cache/ferry-interop}
fixtures=${FERRY_FIXTURES:-$here/../../../shared/fixtures}

sh "$here/families.sh" --install
pins=$(cat "$here/requirements-bridge.txt")

install() {
    rm -rf "$venv-bridge"
    "$venv/bin/pip" download --no-deps --only-binary :all: --python-version 3.12 -d "$venv-bridge/wheels" \
        -r "$here/requirements-bridge.txt" || return 1
    for wheel in "$venv-bridge"/wheels/*.whl; do
        "$venv/bin/python" -m zipfile -e "$wheel" "$venv-bridge" || return 1
    done
    rm -r "$venv-bridge/wheels"
}

make_once "$venv-bridge" "$pins" Megatron-Bridge "interop-bridge: 0 passed, 1 failed, 0 skipped"
[ "$ferry" != --install ] || exit 0
export OMP_NUM_THREADS=1 PYTHONPATH="$venv-bridge"
exec "$venv-hf5/bin/python" -W ignore "$here/bridge.py" "$(realpath "$ferry")" --fixtures "$fixtures" "$@"
