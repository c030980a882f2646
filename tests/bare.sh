#!/bin/sh
# bare.sh [SUITE [COMPONENTS]] - README's commands on a bare machine: in a Debian of minimal size with git and make,
# which debootstrap makes in a temporary folder, on a clone of what is committed, with nothing beside it.
#
# The first commands of README.md run there as they stand, from the clone to a verified checkpoint. Then
# `make demo` and `make check` run as on any new machine, and `make test` where variables of the environment say
# other threads, another CPU, another language and a folder with a blank; of its cases it takes FERRY_TEST_SHARE, and
# `make check` FERRY_CHECK_SHARE. FERRY_BARE_BUILD names a folder for a copy of the build folder; its file `skipped`
# lists the tests that skipped something. Ubuntu: bare.sh noble main,universe; Debian's package ubuntu-keyring has its
# keys.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=debian.sh
. tests/debian.sh
suite=${1:-bookworm} components=${2:-main}
passed=0 failed=0

skip() {
    echo "skipped: README's commands in a bare $suite ($1)"
    echo "bare: 0 passed, 0 failed, 1 skipped"
    exit 0
}

reason=$(why_no_debian)
[ -z "$reason" ] || skip "$reason"
root=$(mktemp -d "${TMPDIR:-/tmp}/ferry-bare.XXXXXX")
trap 'remove_debian "$root"' EXIT
trap 'exit 130' INT TERM

echo "making a bare $suite"
if ! make_debian "$root" "$suite" git,make "$components"; then
    tail -n 3 "$root.log"
    skip "debootstrap failed, as above"
fi
git clone -q --no-hardlinks . "$root/root/source" || exit 1
# shellcheck disable=SC2016 # for the shell there
sed -n 's/^    \$ //p' README.md | sed 's/ URL / "$URL" /' >"$root/root/first_commands"

try() { # COMMAND VARIABLE=VALUE...
    printf '\n$ %s\n' "$*"
    start=$(date +%s) tried=$1
    shift
    if inside "$root" "$tried" "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $tried $* in a bare $suite"
    fi
    echo "$tried: $(($(date +%s) - start)) s"
}

try "sh -eux first_commands" URL=/root/source CFLAGS=-Werror
try "cd ferry && make demo" CFLAGS=-Werror
try "cd ferry && make check" CFLAGS=-Werror FERRY_TEST_SHARE="${FERRY_CHECK_SHARE:-0/1}"
if [ -n "${FERRY_BARE_BUILD-}" ]; then
    mkdir -p "$FERRY_BARE_BUILD" && cp -a "$root/root/ferry/build/." "$FERRY_BARE_BUILD" || failed=$((failed + 1))
fi
inside "$root" "sh ferry/tests/deps.sh locales && localedef -i de_DE -f UTF-8 de_DE.UTF-8 && mkdir -p '/tmp/a blank'" ||
    failed=$((failed + 1))
try "cd ferry && make test${FERRY_TEST_SHARE:+ TEST_SHARE=$FERRY_TEST_SHARE}" OPENBLAS_CORETYPE=Nehalem OPENBLAS_NUM_THREADS=1 \
    OMP_NUM_THREADS=3 OMP_PROC_BIND=true LC_ALL=de_DE.UTF-8 TMPDIR='/tmp/a blank'
echo "bare: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
