#!/bin/sh
# oldest.sh OUT VERSION SUITE - builds the wheel of what is committed in a Debian of minimal size, so that it runs with
# that Debian's glibc and any newer one: OUT/ferry_llm-VERSION-py3-none-manylinux_2_NN_MACHINE.whl
set -u
out=$(realpath "$1") version=${2%-dirty} suite=$3
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=../tests/debian.sh
. tests/debian.sh

fail() {
    echo "oldest.sh: $1" >&2
    exit 1
}

reason=$(why_no_debian)
[ -z "$reason" ] || fail "$reason"
root=$(mktemp -d "${TMPDIR:-/tmp}/ferry-oldest.XXXXXX")
trap 'remove_debian "$root"' EXIT
trap 'exit 130' INT TERM

echo "making a bare $suite"
make_debian "$root" "$suite" make,python3 || fail "debootstrap failed: $(tail -n 3 "$root.log")"
git archive --prefix=ferry/ HEAD | tar -x -C "$root/root" || fail "git archive failed"
echo "$version" >"$root/root/ferry/VERSION"
# Warnings are those of an old compiler and of old headers.
inside "$root" "cd ferry && make deps-build && make wheel WARN=" \
    "SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)" || fail "the build failed"
cp "$root"/root/ferry/build/*.whl "$out"
ls -l "$out"/*.whl
