# shellcheck shell=sh
# debian.sh - a Debian of minimal size in a folder, by debootstrap; sourced in the root of the tree.
#
# Packages come from where this machine takes them. Mounts are seen by the processes in there only.

# Says why this machine cannot make one.
why_no_debian() {
    if [ "$(id -u)" -ne 0 ]; then
        echo "it takes root"
    elif ! unshare --mount --pid --fork true 2>/dev/null; then
        echo "this process may not mount"
    elif ! command -v debootstrap >/dev/null && ! sh tests/deps.sh debootstrap >/dev/null 2>&1; then
        echo "debootstrap is not to be had"
    fi
}

# make_debian FOLDER SUITE [PACKAGES [COMPONENTS]] - its messages go to FOLDER.log. Folders are removed by remove_debian.
make_debian() {
    # shellcheck disable=SC2016 # for apt-get
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $2" 2>/dev/null |
        grep -m 1 '^https\?://')
    # shellcheck disable=SC2086 # none, or one word
    unshare --mount debootstrap --variant=minbase ${3:+--include="$3"} --components="${4:-main}" "$2" "$1" $mirror \
        >"$1.log" 2>&1 || return 1
    chmod 755 "$1" # as / is
    apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries|Force)' >"$1/etc/apt/apt.conf.d/90this-machine"
}

remove_debian() {
    rm -rf --one-file-system "$1" "$1.log"
}

# inside FOLDER COMMAND [VARIABLE=VALUE]... - runs COMMAND in /root there, with these variables and little else of
# this environment.
inside() {
    debian=$1 command=$2
    shift 2
    for name in http_proxy https_proxy no_proxy OPENBLAS_L2_SIZE; do
        value=$(printenv $name) && set -- "$@" "$name=$value"
    done
    # shellcheck disable=SC2016 # for the inner shell
    timeout --foreground 3600 unshare --mount --pid --fork --kill-child sh -c '
        root=$1 command=$2
        shift 2
        mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --rbind /sys "$root/sys" || exit 1
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@" \
            chroot "$root" sh -c "cd /root && $command"' - "$debian" "$command" "$@" </dev/null
}
