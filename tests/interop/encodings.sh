#!/bin/sh
# encodings.sh FERRY [OPTION of encodings.py]... - checks encoded weights beside the programs that encode them:
# compressed-tensors and transformers, in the newer environment of families.sh.
set -eu
ferry=$(realpath "$1")
shift
here=$(realpath "$(dirname "$0")")
sh "$here/families.sh" --install
export OMP_NUM_THREADS=1
exec "${FERRY_VENV:-$HOME/.cache/ferry-interop}-hf5/bin/python" "$here/encodings.py" "$ferry" "$@" 2>/dev/null
