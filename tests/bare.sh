#!/bin/sh
# bare.sh [SUITE [COMPONENTS]] - README's commands on a bare machine: in a Debian of minimal size with git and make,
# which debootstrap makes in a temporary folder, on a clone of what is committed, with nothing beside it.
#
# The first commands of README.md run there as they stand, from the clone to a verified checkpoint. Then
# `make demo` and `make check` run as on any new machine, and `make test` where variables of the environment say
# other threads, another CPU, another language and a folder with a blank; of its cases it takes FERRY_TEST_SHARE, and
# `make check` FERRY_CHECK_SHARE. FERRY_BARE_BUILD names a folder for a copy of the build folder; its file `skipped`
# lists the tests that skipped something. Ubuntu: bare.sh noble main,universe; Debian's package ubuntu-keyring has its keys. Packages come from
# where this machine takes them. Mounts are seen by these processes only.
set -u
suite=${1:-bookworm} components=${2:-main}
passed=0 failed=0

skip() {
    echo "skipped: README's commands in a bare $suite ($1)"
    echo "bare: 0 passed, 0 failed, 1 skipped"
    exit 0
}

[ "$(id -u)" -eq 0 ] || skip "it takes root"
unshare --mount --pid --fork true 2>/dev/null || skip "this process may not mount"
command -v debootstrap >/dev/null || sh "$(dirname "$0")/deps.sh" debootstrap >/dev/null 2>&1 ||
    skip "debootstrap is not to be had"

root=$(mktemp -d "${TMPDIR:-/tmp}/ferry-bare.XXXXXX")
trap 'rm -rf --one-file-system "$root" "$root.log"' EXIT
trap 'exit 130' INT TERM

# shellcheck disable=SC2016 # for apt-get
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" 2>/dev/null |
    grep -m 1 '^https\?://')
echo "making a bare $suite"
# shellcheck disable=SC2086 # none, or one word
if ! unshare --mount debootstrap --variant=minbase --include=git,make --components="$components" "$suite" "$root" $mirror \
    >"$root.log" 2>&1; then
    tail -n 3 "$root.log"
    skip "debootstrap failed, as above"
fi
chmod 755 "$root" # as / is
apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries|Force)' >"$root/etc/apt/apt.conf.d/90this-machine"
git clone -q --no-hardlinks "$(dirname "$0")/.." "$root/root/source" || exit 1
# shellcheck disable=SC2016 # for the shell there
sed -n 's/^    \$ //p' "$(dirname "$0")/../README.md" | sed 's/ URL / "$URL" /' >"$root/root/first_commands"

# Runs COMMAND in there, with these variables and little else of this environment: inside COMMAND VARIABLE=VALUE...
inside() {
    command=$1
    shift
    for name in http_proxy https_proxy no_proxy OPENBLAS_L2_SIZE; do
        value=$(printenv $name) && set -- "$@" "$name=$value"
    done
    # shellcheck disable=SC2016 # for the inner shell
    timeout --foreground 3600 unshare --mount --pid --fork --kill-child sh -c '
        root=$1 command=$2
        shift 2
        mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys" || exit 1
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@" \
            chroot "$root" sh -c "cd /root && $command"' - "$root" "$command" "$@" </dev/null
}

try() { # COMMAND VARIABLE=VALUE...
    printf '\n$ %s\n' "$*"
    start=$(date +%s)
    if inside "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $* in a bare $suite"
    fi
    echo "$1: $(($(date +%s) - start)) s"
}

try "sh -eux first_commands" URL=/root/source CFLAGS=-Werror
try "cd ferry && make demo" CFLAGS=-Werror
try "cd ferry && make check" CFLAGS=-Werror FERRY_TEST_SHARE="${FERRY_CHECK_SHARE:-0/1}"
if [ -n "${FERRY_BARE_BUILD-}" ]; then
    mkdir -p "$FERRY_BARE_BUILD" && cp -a "$root/root/ferry/build/." "$FERRY_BARE_BUILD" || failed=$((failed + 1))
fi
inside "cd ferry && sh tests/deps.sh locales && localedef -i de_DE -f UTF-8 de_DE.UTF-8 && mkdir -p '/tmp/a blank'" || failed=$((failed + 1))
try "cd ferry && make test${FERRY_TEST_SHARE:+ TEST_SHARE=$FERRY_TEST_SHARE}" OPENBLAS_CORETYPE=Nehalem OPENBLAS_NUM_THREADS=1 \
    OMP_NUM_THREADS=3 OMP_PROC_BIND=true LC_ALL=de_DE.UTF-8 TMPDIR='/tmp/a blank'
echo "bare: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
