#!/bin/sh
# interop.sh --install - makes the virtual environment of what follows.
# interop.sh FERRY [OPTION of interop/interop.py]... - checks ferry against transformers and
# Megatron-Core, in a virtual environment outside the tree (FERRY_VENV; some 2.5 GB), which is made
# at the first run and when the pinned versions change. FERRY_PEERS names a folder of further programs
# that load and save with the real GPTModel; by default ../shared/peers, where it is there.
set -eu
ferry=$1
shift
here=$(realpath "$(dirname "$0")")
venv=${FERRY_VENV:-$HOME/.cache/ferry-interop}
peers=${FERRY_PEERS:-$here/../../shared/peers}
torch=torch==2.13.0
pins="$torch $(cat "$here/interop/requirements.txt" "$here/interop/requirements-nodeps.txt")"

install() {
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --no-compile "$torch" # first and alone: see requirements.txt
    "$venv/bin/pip" install --no-compile "$torch" -r "$here/interop/requirements.txt"
    "$venv/bin/pip" install --no-compile --no-deps -r "$here/interop/requirements-nodeps.txt"
    printf '%s' "$pins" >"$venv/ferry-pins"
}

mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9 # one who installs there at the same time
if [ "$(cat "$venv/ferry-pins" 2>/dev/null)" != "$pins" ]; then
    echo "installing what is compared with into $venv (several minutes)"
    if ! (install) >"$venv.log" 2>&1; then
        tail -n 20 "$venv.log"
        echo "interop: 0 passed, 1 failed, 0 skipped"
        exit 1
    fi
fi
exec 9>&-
[ "$ferry" != --install ] || exit 0
ferry=$(realpath "$ferry")
[ ! -d "$peers" ] || set -- "$@" --peers "$peers"
exec "$venv/bin/python" -W ignore "$here/interop/interop.py" "$ferry" "$@"
