#!/bin/sh
# deps.sh PACKAGE... - installs those of Debian's packages that are not there yet. Where it may not, it
# says which are missing. On a system of another kind it says what is needed and goes on.
set -eu
if ! command -v dpkg-query >/dev/null; then
    echo "deps: this system has no dpkg; what is needed, by the names of Debian's packages: $*"
    exit 0
fi
missing=
for package; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
    as_root=sudo
    if ! command -v sudo >/dev/null; then
        echo "deps: packages are missing:$missing" >&2
        echo "deps: as root: apt-get update && apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
fi
echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # a list of words
if ! { $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends $missing; } \
    >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
