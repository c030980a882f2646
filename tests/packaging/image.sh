#!/bin/sh
# image.sh VERSION - builds packaging/Dockerfile, and converts in the image.
#
# By docker or podman where one runs; else the lines of the Dockerfile are followed in a Debian of debootstrap for each
# stage, which is what an image of Debian is made of. Says how large the last stage is.
set -u
version=$1
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=../debian.sh
. tests/debian.sh
repository=$PWD
dockerfile=$repository/packaging/Dockerfile
use='ferry synth -q --model llama --layers 2 model && ferry convert -q model megatron --tp 2 &&
    ferry verify model megatron && ferry bench model --seq 8 --repeats 1'

skip() {
    echo "skipped: the image ($1)"
    echo "image: 0 passed, 0 failed, 1 skipped"
    exit 0
}

fail() {
    echo "FAILED: $1"
    [ ! -s "$work/log" ] || tail -n 20 "$work/log"
    echo "image: 0 passed, 1 failed"
    exit 1
}

work=$(mktemp -d "${TMPDIR:-/tmp}/ferry-image.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

build_by() { # docker, or what takes its commands
    echo "building by $1"
    make -C "$repository" image CONTAINERS="$1" VERSION="$version" >"$work/log" 2>&1 || fail "$1 does not build it"
    "$1" run --rm ferry --version >"$work/log" 2>&1 || fail "its entry point does not run"
    "$1" run --rm --entrypoint sh ferry -c "$use" >"$work/log" 2>&1 || fail "it does not convert"
    "$1" image ls ferry
}

# A stage begins as a copy of one Debian, without documents, languages and caches, as Debian's slim images are.
begin_stage() { # IMAGE as NAME
    root=$work/${3:-unnamed} folder=/ arguments=''
    suite=${1#debian:} suite=${suite%-slim}
    [ "debian:$suite-slim" = "$1" ] || fail "FROM $1: it is no slim Debian"
    if [ ! -d "$work/debian" ]; then
        make_debian "$work/debian" "$suite" || skip "debootstrap failed: $(tail -n 1 "$work/debian.log")"
        printf '%s\n' 'path-exclude /usr/share/doc/*' 'path-include /usr/share/doc/*/copyright' \
            'path-exclude /usr/share/man/*' 'path-exclude /usr/share/locale/*' >"$work/debian/etc/dpkg/dpkg.cfg.d/slim"
        printf '%s\n' 'Dir::Cache::pkgcache "";' 'Dir::Cache::srcpkgcache "";' 'APT::Keep-Downloaded-Packages "false";' \
            'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };' >"$work/debian/etc/apt/apt.conf.d/docker-clean"
        (cd "$work/debian" && rm -rf usr/share/doc/* usr/share/man/* usr/share/locale/* var/cache/apt/* \
            var/lib/apt/lists/*)
    fi
    cp -a "$work/debian" "$root"
}

copy() { # [--from=STAGE] FROM TO
    case $1 in
    --from=*) cp -a "$work/${1#--from=}/$2" "$root/$3" ;;
    *)
        [ "$1 $2" = ". ." ] || fail "COPY $*: only COPY . . is known"
        sed 's,^,./,' "$repository/.dockerignore" >"$work/ignored"
        tar --create --anchored --exclude-from="$work/ignored" --directory="$repository" . |
            tar --extract --no-same-owner --directory="$root$folder"
        ;;
    esac
}

follow() { # INSTRUCTION REST
    instruction=$1
    shift
    # shellcheck disable=SC2086 # words of a line
    case $instruction in
    FROM) begin_stage $1 ;;
    WORKDIR) folder=$1 && mkdir -p "$root$folder" ;;
    ARG)
        [ "$1" = VERSION ] || fail "ARG $1 is not known"
        arguments="$arguments VERSION=$version"
        ;;
    COPY) copy $1 ;;
    RUN)
        echo "RUN $1" >"$work/log"
        inside "$root" "cd $folder && { $1; }" $arguments >>"$work/log" 2>&1 || fail "RUN $1"
        ;;
    ENTRYPOINT) entry=$1 ;;
    *) fail "$instruction is not known" ;;
    esac
}

build_by_debootstrap() {
    # One line an instruction.
    sed -e '/^#/d' -e '/^$/d' -e ':join' -e '/\\$/{N;s/\\\n */ /;b join' -e '}' "$dockerfile" >"$work/lines"
    while read -r instruction rest <&3; do
        echo "$instruction $rest"
        follow "$instruction" "$rest"
    done 3<"$work/lines"
    [ "$entry" = '["ferry"]' ] || fail "ENTRYPOINT $entry"
    inside "$root" "cd $folder && ferry --version && $use" >"$work/log" 2>&1 || fail "it does not convert"
    [ "$(head -n 1 "$work/log")" = "ferry $version" ] || fail "its version is not $version"
    head -n 1 "$work/log"
    echo "the image takes $(du -sm "$root" | cut -f 1) MB, Debian $(du -sm "$work/debian" | cut -f 1) MB of it"
}

if docker info >/dev/null 2>&1; then
    build_by docker
elif podman info >/dev/null 2>&1; then
    build_by podman
else
    reason=$(why_no_debian)
    [ -z "$reason" ] || skip "$reason"
    build_by_debootstrap
fi
echo "image: 1 passed, 0 failed"
