#!/bin/sh
# pack.sh BUILD - packs what tests/gpu/run needs into BUILD/gpu.tar.gz: the program, its libraries and
# the tests, stripped, with libraries that they load from this system (a machine with a GPU may have no
# OpenBLAS). Not packed: libc's parts; libgcc_s, which every system has and NVIDIA's libraries need as
# new as theirs; and NVIDIA's libraries, which are PyTorch's there.
set -eu
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lib"
for file in ferry libferry_engine.so libferry_cuda.so tests/gpu/ops_check tests/gpu/gpu_ops_bench tests/gpu/collectives_check \
    train/loop/forward_test train/loop/generate_test train/loop/as_stored_test; do
    mkdir -p "$work/$(dirname "$file")"
    cp "$build/$file" "$work/$file"
    strip "$work/$file"
done
ldd "$build/ferry" "$build/libferry_engine.so" "$build/train/loop/forward_test" |
    sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -v -e '/libc\.so' -e '/libgcc_s\.so' -e '/libm\.so' -e '/libdl\.so' -e '/libpthread\.so' -e '/librt\.so' |
    while read -r library; do
        case $library in
        */libferry_*) ;;
        *) cp -L "$library" "$work/lib/" ;;
        esac
    done
git rev-parse --short HEAD >"$work/commit" 2>/dev/null || echo unknown >"$work/commit"
tar -C "$work" -czf "$build/gpu.tar.gz" .
du -h "$build/gpu.tar.gz" | sed 's/^/  packed: /'
