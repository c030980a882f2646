#!/bin/sh
# trainers.sh --install - makes the virtual environments of what follows.
# trainers.sh FERRY [OPTION of trainers.py]... - checks ferry against PyTorch's FSDP, torchtitan and
# DeepSpeed: what it writes is loaded by them, and their next training step is that from their own
# checkpoint. Each has an environment outside the tree (FERRY_VENV-dcp, FERRY_VENV-deepspeed), which is made
# at the first run and when the pinned versions change. Programs that load with the real software and
# checkpoints of it are in FERRY_PEERS and FERRY_FIXTURES, by default ../shared/peers and ../shared/fixtures; without
# them all is skipped.
set -eu
ferry=$1
shift
here=$(realpath "$(dirname "$0")")
venv=${FERRY_VENV:-$HOME/.cache/ferry-interop}
peers=${FERRY_PEERS:-$here/../../../shared/peers}
fixtures=${FERRY_FIXTURES:-$here/../../../shared/fixtures}
torch=torch==2.13.0

install() { # NAME LAST_PACKAGE...
    name=$1
    shift
    folder=$venv-$name
    pins="$torch $(cat "$here/requirements-$name.txt") $*"
    [ "$(cat "$folder/ferry-pins" 2>/dev/null)" != "$pins" ] || return 0
    echo "installing what is compared with into $folder (some minutes)"
    mkdir -p "$folder"
    if ! {
        python3 -m venv --clear "$folder" &&
            "$folder/bin/pip" install --no-compile "$torch" && # first and alone, else pip brings CUDA
            "$folder/bin/pip" install --no-compile "$torch" -r "$here/requirements-$name.txt" &&
            { [ $# -eq 0 ] || DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "$folder/bin/pip" install --no-compile --no-deps --no-build-isolation "$@"; }
    } >"$folder.log" 2>&1; then
        tail -n 20 "$folder.log"
        return 1
    fi
    printf '%s' "$pins" >"$folder/ferry-pins"
}

if ! [ -d "$peers" ] || ! [ -d "$fixtures" ]; then
    echo "trainers: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
mkdir -p "$(dirname "$venv")"
exec 9>"$venv-trainers.lock"
flock 9 # one who installs there at the same time
if ! install dcp || ! install deepspeed deepspeed==0.19.8; then
    echo "trainers: 0 passed, 1 failed, 0 skipped"
    exit 1
fi
exec 9>&-
[ "$ferry" != --install ] || exit 0
exec python3 "$here/trainers.py" "$(realpath "$ferry")" --venv "$venv" --peers "$peers" --fixtures "$fixtures" "$@"
