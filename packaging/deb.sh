#!/bin/sh
# deb.sh FOLDER VERSION - packs what `make install PREFIX=/usr` put below FOLDER/debian/ferry as a Debian package beside
# FOLDER.
#
# DEBFULLNAME and DEBEMAIL name the maintainer, as for Debian's own tools. The same files make the same package, dated
# SOURCE_DATE_EPOCH.
set -eu
texts=$(cd "$(dirname "$0")" && pwd)
# v1.2-3-gabc follows 1.2: 1.2+3+gabc. 1.2+abc comes before 1.2, by its date: 1.2~20261129.abc
version=$(echo "$2" | sed -e "s/+/~$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M)./" -e 's/^v//; s/-/+/g; s/[~.]*$//')-1
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-Ferry maintainers} <${DEBEMAIL:-maintainers@ferry.invalid}>"
cd "$1"
mkdir debian/ferry/DEBIAN

# MPI's library is loaded in jobs of MPI alone.
printf 'Source: ferry\n\nPackage: ferry\nArchitecture: any\n' >debian/control
programs=debian/ferry/usr
set -- $programs/bin/ferry $programs/lib/ferry/libferry_engine.so
[ ! -e $programs/lib/ferry/libferry_mpi.so ] || set -- "$@" -dSuggests $programs/lib/ferry/libferry_mpi.so
dpkg-shlibdeps -Tdebian/depends "$@"
# The flavour of OpenBLAS that shares the engine's threads, first.
depends=$(sed -n 's/^shlibs:Depends=//p' debian/depends | sed 's/libopenblas0/libopenblas0-openmp | libopenblas0/')
suggests=$(sed -n 's/^shlibs:Suggests=//p' debian/depends)

cd debian/ferry
strip --remove-section=.comment --remove-section=.note usr/bin/ferry usr/lib/ferry/*.so
gzip -9n usr/share/man/man1/*.1
documents=usr/share/doc/ferry
install -m 644 "$texts/copyright" "$documents/copyright"
gzip -9n <"$documents/CHANGELOG.md" >"$documents/changelog.gz" && rm "$documents/CHANGELOG.md"
gzip -9n >"$documents/changelog.Debian.gz" <<EOF
ferry ($version) unstable; urgency=medium

  * Packed by make deb; changelog.gz has the changes.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
EOF
install -D -m 644 "$texts/lintian-overrides" usr/share/lintian/overrides/ferry
[ -e usr/lib/ferry/libferry_cuda.so ] || sed -i /cuda/d usr/share/lintian/overrides/ferry

size=$(du -k --apparent-size -s usr | cut -f 1)
find usr -type f -printf '%p\n' | LC_ALL=C sort | xargs -d '\n' md5sum >DEBIAN/md5sums
{
    cat <<EOF
Package: ferry
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $size
Depends: $depends
EOF
    [ -z "$suggests" ] || echo "Suggests: $suggests"
    cat "$texts/description"
} >DEBIAN/control
chmod -R u+rwX,go+rX,go-w .
cd ../../..
dpkg-deb --root-owner-group --build -Zxz "$OLDPWD" "ferry_${version}_$architecture.deb" >/dev/null
echo "ferry_${version}_$architecture.deb"
