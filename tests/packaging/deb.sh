#!/bin/sh
# deb.sh PACKAGE... - what `make deb` packed: lintian's opinion; it is installed, run and removed in a bare Debian.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=../debian.sh
. tests/debian.sh
passed=0 failed=0 skipped=0

skip() {
    echo "skipped: the package in a bare Debian ($1)"
    echo "deb: $passed passed, $failed failed, 1 skipped"
    [ "$failed" -eq 0 ]
    exit
}

try() { # TITLE COMMAND...
    title=$1
    shift
    if "$@" >"$root.said" 2>&1; then
        passed=$((passed + 1))
        echo "passed: $title"
    else
        failed=$((failed + 1))
        echo "FAILED: $title"
        tail -n 20 "$root.said"
    fi
}

root=$(mktemp -d "${TMPDIR:-/tmp}/ferry-deb.XXXXXX")
trap 'remove_debian "$root"; rm -f "$root.said"' EXIT
trap 'exit 130' INT TERM

if sh tests/deps.sh lintian; then
    try "lintian" lintian --allow-root --fail-on error,warning "$@"
else
    skipped=1
fi
reason=$(why_no_debian)
[ -z "$reason" ] || skip "$reason"
# shellcheck source=/dev/null
make_debian "$root" "$(. /etc/os-release && echo "$VERSION_CODENAME")" || skip "debootstrap failed: $(tail -n 1 "$root.log")"
cp "$@" "$root/root"
try "it is installed with what it depends on" inside "$root" \
    'apt-get update && apt-get install -y --no-install-recommends /root/*.deb'
try "it converts, verifies and computes" inside "$root" 'cd /root && ferry synth -q --model llama --layers 2 model &&
    ferry convert -q model megatron --tp 2 && ferry verify model megatron && ferry bench model --seq 8 --repeats 1'
try "its recipes are there, and its files are whole" inside "$root" \
    'ls /usr/share/ferry/recipes/*.yaml && dpkg --verify ferry'
try "it is removed" inside "$root" 'apt-get purge -y ferry && ! command -v ferry'
left=$(cd "$root" && find usr etc -path '*ferry*')
try "nothing is left" test -z "$left"
echo "deb: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
