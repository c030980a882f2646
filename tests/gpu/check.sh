# check.sh - for the tests beside it: a check is a command that ends with 0. TAP; what it says is in
# $work/said. The test ends with:  exit "$failed"
# shellcheck shell=sh disable=SC2034,SC2154 # work and the exit are the test's
# shellcheck source=../share.sh
. "$(dirname "$0")/../share.sh"
number=0 failed=0

check() { # NAME COMMAND...
    name=$1
    number=$((number + 1))
    shift
    if "$@" >"$work/said" 2>&1; then
        echo "ok $number - $name"
    else
        failed=1
        sed 's/^/# /' "$work/said"
        echo "not ok $number - $name"
    fi
}
