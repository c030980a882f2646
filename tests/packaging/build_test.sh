#!/bin/sh
# build_test.sh FERRY - what is built is hardened, and the same in any folder.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=../cli/lib.sh
. "$tests_folder/cli/lib.sh"
root=$(dirname "$tests_folder") build=$(dirname "$ferry")

# All of these files have a line like that: readelf_says TEXT FILE...
readelf_says() {
    text=$1
    shift
    for file; do
        readelf --wide --file-header --dynamic --segments --dyn-syms "$file" >elf 2>/dev/null || is_wrong "readelf $file fails"
        grep -q -e "$text" elf || is_wrong "readelf of $file lacks '$text'"
    done
}

command -v readelf >/dev/null || {
    it "is hardened"
    skip "readelf is not here"
    exit 0
}

it "is a position-independent program"
readelf_says 'Flags: .*\bPIE\b' "$ferry"

it "binds all names at the start, and makes their table read-only"
readelf_says 'Flags: .*\bNOW\b' "$ferry" "$build"/libferry_*.so
readelf_says 'GNU_RELRO' "$ferry" "$build"/libferry_*.so

it "checks its stack"
readelf_says '__stack_chk_fail' "$ferry" "$build"/libferry_*.so

it "lets glibc check sizes"
case ${MAKEFLAGS-} in
*-O0* | *-fsanitize*) skip "built without optimizing, or with sanitizers" ;;
*) readelf_says '__memcpy_chk' "$ferry" "$build/libferry_engine.so" ;;
esac

it "calls files by the names that tests/faults/inject.c stands in for"
readelf --wide --dyn-syms "$ferry" | grep -E '__p?(read|write)(64)?_chk|__open(at)?(64)?_2' >checked &&
    is_wrong "faults miss these calls: $(cat checked)"

it "does not name the folder of its source"
for file in "$ferry" "$build"/libferry_*.so; do
    [ "${file##*/}" != libferry_cuda.so ] || continue # nvcc has no such option for its line numbers
    grep -qF "$root" "$file" && is_wrong "$file names $root"
done

it "is the same, debug data included, in another folder"
for folder in one "another folder"; do
    mkdir "$folder" && ln -s "$root"/* "$folder" && rm -f "$folder/build"
    run_program make -C "$folder" -j1 BUILD=out out/common/strbuf.o out/kernels/cpu/ops/cast_op.f32.v1.o out/embedded_models.o
    exits 0
done
for object in common/strbuf.o kernels/cpu/ops/cast_op.f32.v1.o embedded_models.o; do
    cmp -s "one/out/$object" "another folder/out/$object" || is_wrong "$object differs"
done
