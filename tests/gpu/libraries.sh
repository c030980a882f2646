#!/bin/sh
# libraries.sh BUILD - copies what the programs and libraries of BUILD load from this system into
# BUILD/tests/gpu/lib: a machine with a GPU may have no OpenBLAS. What libc is made of stays.
set -eu
build=$1
to=$build/tests/gpu/lib
mkdir -p "$to"
ldd "$build/ferry" "$build/libferry_engine.so" |
    sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -v -e '/libc\.so' -e '/libm\.so' -e '/libdl\.so' -e '/libpthread\.so' -e '/librt\.so' -e '/build/' |
    while read -r library; do
        cp -L "$library" "$to/"
        strip "$to/$(basename "$library")" 2>/dev/null || true
    done
du -sh "$to" | sed 's/^/  libraries: /'
