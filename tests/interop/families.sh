#!/bin/sh
# families.sh --install - makes the virtual environments of what follows.
# families.sh FERRY [OPTION of families.py]... - checks that models of every family, as two releases of transformers
# make and save them, come back from Megatron's layout as they were. The older release is that of interop.sh. The newer
# one has an environment of its own (FERRY_VENV-hf5; 100 MB), which takes torch and the rest from the first one's.
# FERRY_FIXTURES names a folder of more models whose configs are varied; by default ../shared/fixtures.
set -eu
ferry=$1
shift
here=$(realpath "$(dirname "$0")")
. "$here/environment.sh"
venv=${FERRY_VENV:-$HOME/.cache/ferry-interop}
fixtures=${FERRY_FIXTURES:-$here/../../../shared/fixtures}

sh "$here/../interop.sh" --install
older=$(sed -n 's/^transformers==//p' "$here/requirements.txt")
newer=$(sed -n 's/^transformers==//p' "$here/requirements-hf5.txt")
pins="$(cat "$venv/ferry-pins" "$here/requirements-hf5.txt")"

install() {
    python3 -m venv --clear "$venv-hf5" &&
        "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
            >"$("$venv-hf5/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/interop.pth" &&
        "$venv-hf5/bin/pip" install --no-compile -r "$here/requirements-hf5.txt"
}

make_once "$venv-hf5" "$pins" "transformers $newer" "interop-models: 0 passed, 1 failed, 0 skipped"
[ "$ferry" != --install ] || exit 0
export OMP_NUM_THREADS=1
exec python3 "$here/families.py" "$(realpath "$ferry")" --fixtures "$fixtures" \
    --python "$older=$venv/bin/python" --python "$newer=$venv-hf5/bin/python" "$@"
