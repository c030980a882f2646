#!/bin/sh
# doctor_test.sh - what ferry doctor finds, with and without libraries, limits and a GPU.
. "$(dirname "$0")/lib.sh"
build=$(dirname "$ferry")
unset FERRY_CUDA_LIBRARY RANK WORLD_SIZE

# The line of NAME has this state: line NAME STATE
line() {
    grep -qE "^$1 .* \[$2\]" "$stdout" || is_wrong "$ran: $1 is not $2: $(grep "^$1" "$stdout")"
}

synth_model m

it "names version, CPU, libraries, limits and folders"
run doctor
exits 0
says_nothing
line ferry ok
prints "ferry          $(cat "$build/VERSION"), "
line engine ok
prints "in use: CPU, "
line OpenBLAS ok
line job ok
prints "[ok]"
for name in CPUs memory "ulimit -n" "ulimit -v" "ulimit -f" "ulimit -l" "this folder" TMPDIR MPI mpirun "GPU driver" CUDA; do
    grep -qE "^$name " "$stdout" || is_wrong "no line of $name"
done

it "names the kind of MPI"
state=missing
[ ! -e "$build/libferry_mpi.so" ] || state=ok
line MPI $state

it "says how to build for GPUs, as a command that wants one does"
if [ -e "$build/libferry_cuda.so" ]; then
    skip "this build has libferry_cuda.so"
else
    line CUDA missing
    prints "this build has no libferry_cuda.so  [missing]  make cuda-libs; make"
    run generate m --prompt-ids 1,2 --device cuda
    exits 8
    says "this build has no CUDA support (libferry_cuda.so): make cuda-libs; make; see ferry doctor"
fi

it "answers in JSON"
run doctor --json
exits 0
prints '"compute": true'
prints '"name": "ulimit -n"'

it "a program without its libraries converts, and says so"
cp "$ferry" alone
run_program ./alone doctor
exits 0
line engine missing
prints "this build has no libferry_engine.so  [missing]  to run and train models: make"
run_program ./alone doctor --json
prints '"compute": false'
run_program ./alone generate m --prompt-ids 1,2
exits 3
says "libferry_engine.so is neither beside ferry nor in ../lib/ferry"

it "an installed program has its library in lib/ferry"
mkdir -p installed/bin installed/lib/ferry
cp "$ferry" installed/bin && cp "$build/libferry_engine.so" installed/lib/ferry
run_program installed/bin/ferry doctor
line engine ok
prints "/lib/ferry/libferry_engine.so"

it "a library that is none is a warning"
echo none >libferry_engine.so
run_program ./alone doctor
exits 0
line engine warning
prints "cannot load the engine: "
rm libferry_engine.so

it "an engine of another version is a warning, and refused by commands that need it"
version=$(cat "$build/VERSION")
other=$(printf '%s' "$version" | tr 0-9 1-90)
LC_ALL=C sed "s/$version/$other/" "$build/libferry_engine.so" >libferry_engine.so
run_program ./alone doctor
exits 0
line engine warning
prints "libferry_engine.so has version $other, ferry has version $version  [warning]"
run_program ./alone generate m --prompt-ids 1,2
exits 3
says "libferry_engine.so has version $other, ferry has version $version"
rm libferry_engine.so

it "low limits are warnings"
# shellcheck disable=SC3045 # dash has them, too
run_program sh -c "ulimit -n 64; ulimit -f 100000; exec \"\$@\"" - "$ferry" doctor
exits 0
line "ulimit -n" warning
prints "ulimit -n      64  [warning]  checkpoints of many files are slower"
line "ulimit -f" warning
# shellcheck disable=SC3045
run_program sh -c "ulimit -v 100000; exec \"\$@\"" - "$ferry" doctor
exits 0
line engine warning
line "ulimit -v" warning

it "variables of a job without a valid rank break every command"
run_program env RANK=5 WORLD_SIZE=2 "$ferry" doctor
exits 3
line job broken
says "ferry doctor: job: RANK=5 and WORLD_SIZE=2"
run_program env RANK=1 WORLD_SIZE=2 "$ferry" doctor
exits 0
prints "rank 1 of 2  [ok]  ferry train takes mpirun or srun"
run_program env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$ferry" doctor
exits 0
prints_nothing

it "works without home, path and folder"
mkdir gone
run_program sh -c "cd gone && rmdir ../gone && exec env -i \"\$0\" doctor" "$ferry"
exits 0
line mpirun missing
line "this folder" missing

it "lists GPUs by the driver alone"
if ! command -v cc >/dev/null; then
    skip "no C compiler"
else
    mkdir driver
    cat >driver.c <<'END'
#include <stddef.h>
#include <stdio.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *v) { *v = 13010; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetName(char *s, int n, int d) { snprintf(s, (size_t)n, "Model %d", d); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = 80000000000 + (size_t)d; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 8 - d : 6; return 0; }
int cuGetErrorString(int code, const char **s) { *s = code ? "an error" : "none"; return 0; }
END
    cc -shared -fPIC -o driver/libcuda.so.1 driver.c || is_wrong "no driver"
    run_program env LD_LIBRARY_PATH=driver "$ferry" doctor
    exits 0
    prints "CUDA 13.1, 2 GPUs  [ok]"
    prints "GPU 0          Model 0, 80.0 GB, compute capability 8.6  [ok]"
    prints "compute capability 7.6  [warning]  Ferry runs on compute capability 8.0 or newer"
fi
