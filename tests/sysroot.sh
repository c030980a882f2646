#!/bin/sh
# sysroot.sh FOLDER ARCH PACKAGE... - Debian's packages of another architecture, and what they depend on, unpacked
# in FOLDER for a cross compiler and an emulator. This machine's own packages stay as they are; apt gets
# an empty system of its own. Does nothing where FOLDER has been made from the same list.
set -eu
folder=$1 arch=$2
shift 2
[ "$(cat "$folder/packages" 2>/dev/null)" != "$*" ] || exit 0
rm -rf "$folder"
apt=$folder.apt
rm -rf "$apt"
mkdir -p "$folder" "$apt/lists/partial" "$apt/archives/partial"
: >"$apt/status"
trap 'rm -rf "$apt"' EXIT

other_apt() {
    apt-get -qq -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User="$(id -un)" \
        -o Dir::State="$(realpath "$apt")" -o Dir::State::status="$(realpath "$apt/status")" \
        -o Dir::Cache="$(realpath "$apt")" "$@" >"$apt/log" 2>&1 || { cat "$apt/log" >&2; return 1; }
}

other_apt update
other_apt install --yes --no-install-recommends --download-only "$@"
for package in "$apt"/archives/*.deb; do
    dpkg-deb -x "$package" "$folder"
done
# The links of update-alternatives.
for file in "$folder"/usr/lib/*/openblas-openmp/lib*.so* "$folder"/usr/include/*/openblas-openmp/*.h; do
    ln -sf "openblas-openmp/${file##*/}" "${file%/*/*}/"
done
# Links from the root of it become relative.
find "$folder" -type l -lname '/*' | while read -r link; do
    ln -sfr "$folder$(readlink "$link")" "$link"
done
printf '%s' "$*" >"$folder/packages"
