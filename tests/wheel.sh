#!/bin/sh
# wheel.sh BUILD [SUITE...] - installs the newest wheel of BUILD as a user does, in virtual environments of Debians of
# minimal size, and runs the module's tests there: it converts, verifies and trains. auditwheel says what it needs.
set -u
build=$(realpath "$1")
shift
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=debian.sh
. tests/debian.sh
[ $# -gt 0 ] || set -- bullseye bookworm trixie
passed=0 failed=0 skipped=0 root=
work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-wheel.XXXXXX")
trap 'remove_debian "$work"' EXIT
trap 'exit 130' INT TERM

# shellcheck disable=SC2012 # names without blanks
wheel=$(ls -t "$build"/ferry_llm-*.whl 2>/dev/null | head -n 1)
if [ -z "$wheel" ]; then
    echo "wheel.sh: no wheel in $build: make wheel-oldest" >&2
    exit 2
fi
echo "$wheel"

skip() {
    skipped=$((skipped + 1))
    echo "skipped: $1"
}

count() { # CODE WHAT
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $2"
    fi
}

# The tag promises a glibc that has all symbols.
audit() {
    if ! { python3 -m venv "$work/audit" &&
        "$work/audit/bin/pip" install -q --disable-pip-version-check auditwheel; } >"$work.log" 2>&1; then
        skip "auditwheel is not to be had"
        return 0
    fi
    said=$("$work/audit/bin/auditwheel" show "$wheel" 2>&1)
    echo "$said"
    needs=$(echo "$said" | tr '\n' ' ' |
        sed -n 's/.*consistent with the following platform tag: *"manylinux_2_\([0-9]*\)_.*/\1/p')
    has=$(basename "$wheel" | sed 's/.*-manylinux_2_\([0-9]*\)_.*/\1/')
    [ "${needs:-99}" -le "$has" ]
    count $? "glibc 2.$needs is needed, the tag says 2.$has"
}

try() { # SUITE
    root=$work/$1
    mkdir "$root"
    echo "making a bare $1"
    make_debian "$root" "$1" python3-venv || { tail -n 3 "$root.log"; skip "debootstrap failed, as above"; return 0; }
    cp "$wheel" python/ferry_test.py "$root/root"
    inside "$root" "python3 -m venv v && v/bin/pip install --no-index --disable-pip-version-check *.whl &&
        v/bin/ferry --version && v/bin/python -m unittest ferry_test"
    count $? "the wheel in a bare $1"
    rm -rf --one-file-system "$root"
}

audit
reason=$(why_no_debian)
for suite; do
    if [ -n "$reason" ]; then skip "the wheel in a bare $suite ($reason)"; else try "$suite"; fi
done
echo "wheel: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
