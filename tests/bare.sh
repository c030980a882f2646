#!/bin/sh
# bare.sh [SUITE [COMPONENTS]] - the two commands of README's "Try it" on a bare machine: in a Debian of minimal
# size with git and make, which debootstrap makes in a temporary folder, on a clone of what is committed.
#
# Ubuntu: bare.sh noble main,universe; Debian's package ubuntu-keyring has its keys. Packages come from
# where this machine takes them. What is mounted is so for these processes only.
set -u
suite=${1:-bookworm} components=${2:-main}
passed=0 failed=0

skip() {
    echo "skipped: make demo and make test in a bare $suite ($1)"
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
git clone -q --no-hardlinks "$(dirname "$0")/.." "$root/root/ferry" || exit 1

# COMMAND in there, with little of this environment.
inside() {
    # shellcheck disable=SC2016 # for the inner shell
    timeout --foreground 1500 unshare --mount --pid --fork --kill-child sh -c '
        root=$1 command=$2
        mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys" || exit 1
        for name in http_proxy https_proxy no_proxy OPENBLAS_CORETYPE OPENBLAS_L2_SIZE; do
            value=$(printenv $name) && set -- "$@" "$name=$value"
        done
        shift 2
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root FERRY_TEST_FEWEST=1 "$@" \
            chroot "$root" sh -c "cd /root/ferry && $command"' - "$root" "$1" </dev/null
}

for command in "make demo" "make test"; do
    printf '\n$ %s\n' "$command"
    start=$(date +%s)
    if inside "$command"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $command in a bare $suite"
    fi
    echo "$command: $(($(date +%s) - start)) s"
done
echo "bare: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
