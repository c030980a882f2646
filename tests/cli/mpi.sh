# shellcheck shell=sh
# mpi.sh - lib.sh, and more for tests of what mpirun starts. Without mpirun the test ends here.
. "$(dirname "$0")/lib.sh"
build=$(dirname "$ferry")

# For root, and for more ranks than CPUs; our own library is not installed.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export LD_LIBRARY_PATH="$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# MPI keeps what it has to the end.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"

if ! command -v mpirun >/dev/null || [ ! -e "$build/libferry_mpi.so" ]; then
    it "${0##*/}: ranks of mpirun do what they should"
    skip "no mpirun, or no libferry_mpi.so"
    exit
fi

# run_ranks N ARGUMENT... - ferry as N ranks, which have a minute.
run_ranks() {
    ranks_run=$1
    shift
    run_program timeout 300 mpirun -np "$ranks_run" "$ferry" "$@"
}
