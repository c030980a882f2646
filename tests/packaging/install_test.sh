#!/bin/sh
# install_test.sh FERRY - `make install`, `make uninstall` and `make deb`, of the build that FERRY is in.
tests_folder=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=../cli/lib.sh
. "$tests_folder/cli/lib.sh"
root=$(dirname "$tests_folder")
build=$(realpath --relative-to="$root" "$(dirname "$ferry")")
installed="$PWD/a blank/usr/local"

makes() { # TARGET [VARIABLE=VALUE]...
    run_program make -s --no-print-directory -C "$root" -j1 "BUILD=$build" "$@"
    exits 0
}

it "installs program, libraries, pages, documents and recipes"
makes install DESTDIR="$PWD/a blank" INSTALL_CUDA_LIBS=
(cd "$installed" && find . -type f | sort) >files
for file in ./bin/ferry ./lib/ferry/libferry_engine.so ./share/man/man1/ferry.1 ./share/doc/ferry/README.md \
    ./share/doc/ferry/docs/DESIGN.md ./share/ferry/recipes/gpt2-124m.yaml ./share/bash-completion/completions/ferry \
    ./share/zsh/site-functions/_ferry; do
    grep -qx "$file" files || is_wrong "$file is not installed"
done
for file in "$root"/*.md "$root"/docs/*.md; do
    is_there "$installed/share/doc/ferry/${file#"$root/"}"
done

it "installs whole pages, and recipes where README's links lead"
grep -q '^\.TH' "$installed/share/man/man1/ferry.1" || is_wrong "ferry.1 is no manual page"
for file in "$installed"/share/bash-completion/completions/* "$installed"/share/zsh/site-functions/*; do
    [ -s "$file" ] || is_wrong "$file is empty"
done
is_there "$installed/share/doc/ferry/recipes/gpt2-124m.yaml"

it "strips what it installs, and nothing else"
for file in "$installed/bin/ferry" "$installed"/lib/ferry/*.so; do
    readelf --wide --sections "$file" | grep -q '\.debug_info\|\.symtab' && is_wrong "$file is not stripped"
done
readelf --wide --sections "$ferry" | grep -q '\.symtab' || is_wrong "$ferry is stripped"

it "runs and computes from there"
built=$ferry ferry=$installed/bin/ferry
synth_model model --layers 2
run bench model --seq 8 --repeats 1
exits 0
ferry=$built

it "installs NVIDIA's libraries and licences where libferry_cuda.so looks for them"
cuda=$build/cuda-libs-of-test # make takes no blanks, which TMPDIR may have
for name in cu13/lib/libcublasLt.so.13 nccl/lib/libnccl.so.2 cudnn/lib/libcudnn.so.9; do
    mkdir -p "$root/$cuda/nvidia/${name%/*}" && echo library >"$root/$cuda/nvidia/$name"
done
licences=$cuda/nvidia_cublas-1.dist-info/licenses
mkdir -p "$root/$licences" && echo terms >"$root/$licences/License.txt"
makes install-cuda-libs DESTDIR="$PWD/a blank" CUDA_LIBS="$cuda"
rm -r "${root:?}/$cuda"
# shellcheck disable=SC2016 # for ld.so
make -s -C "$root" -f Makefile -f - print-paths 2>/dev/null >paths <<'EOF'
print-paths:
	@echo '$(CUDA_PATHS)'
EOF
for name in libcublasLt.so.13 libnccl.so.2 libcudnn.so.9; do
    found=no
    for folder in $(sed "s,[$]ORIGIN,lib/ferry,g" paths | tr : ' '); do
        [ ! -e "$installed/$folder/$name" ] || found=yes
    done
    [ $found = yes ] || is_wrong "$name is in no folder of $(cat paths)"
done
is_there "$installed/lib/ferry/cuda-libs/nvidia_cublas-1.dist-info/licenses/License.txt"

it "removes all of it"
makes uninstall DESTDIR="$PWD/a blank"
find "$installed" ! -type d >left
[ ! -s left ] || is_wrong "left behind: $(cat left)"
is_not_there "$installed/lib/ferry" "$installed/share/ferry" "$installed/share/doc/ferry"

it "packs a Debian package with dependencies, sums, copyright and changes"
if ! command -v dpkg-shlibdeps >/dev/null; then
    skip "dpkg-dev is not here"
    exit 0
fi
makes deb VERSION=v1.2-3-gabc DEBEMAIL=someone@ferry.invalid
deb=$(tail -n 1 "$stdout")
mv "$root/$build/$deb" . || is_wrong "make deb says $deb"
dpkg-deb --info "$deb" >info
dpkg-deb --extract "$deb" packed && dpkg-deb --control "$deb" control
for text in 'Version: 1.2+3+gabc-1' 'Depends: .*libc6 .*libcjson1' 'Depends: .*libopenblas0-openmp | libopenblas0' \
    'Maintainer: Ferry maintainers <someone@ferry.invalid>'; do
    grep -q "$text" info || is_wrong "the package lacks '$text': $(cat info)"
done
grep '^ Depends:' info | grep -q libopenmpi && is_wrong "the package depends on MPI: $(cat info)"
for file in copyright changelog.gz changelog.Debian.gz README.md docs/DESIGN.md; do
    is_there "packed/usr/share/doc/ferry/$file"
done
(cd packed && md5sum --quiet -c ../control/md5sums) || is_wrong "md5sums differ"
[ "$(find packed -type f | wc -l)" -eq "$(wc -l <control/md5sums)" ] || is_wrong "md5sums lacks files"
grep -q 'No licence has been chosen' packed/usr/share/doc/ferry/copyright || is_wrong "copyright does not say what is open"

it "gives a version before a release an order"
makes deb VERSION=0.1.0+abc SOURCE_DATE_EPOCH=86400
deb=$(tail -n 1 "$stdout")
mv "$root/$build/$deb" . || is_wrong "make deb says $deb"
version=$(dpkg-deb --field "$deb" Version)
[ "$version" = "0.1.0~197001020000.abc-1" ] || is_wrong "its version is $version"
dpkg --compare-versions "$version" lt 0.1.0-1 || is_wrong "$version is not before 0.1.0"
