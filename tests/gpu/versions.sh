#!/bin/sh
# versions.sh BUILD LIBRARIES - prints the dependencies of a result: GPU, driver, system, and the libraries
# that libferry_cuda.so finds with LIBRARIES as its LD_LIBRARY_PATH.
set -u
build=$1 libraries=$2

line() {
    printf '%-9s %s\n' "$1" "$2"
}

line GPU "$(nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit --format=csv,noheader)"
line system "$(uname -sr), $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), $(ldd --version 2>&1 | head -n 1)"
line CPUs "$(getconf _NPROCESSORS_ONLN), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
line memory "$(awk '/^(MemTotal|MemAvailable)/ { printf "%s %.1f GB  ", $1, $2 / 1e6 }' /proc/meminfo)"
for folder in /dev/shm "${TMPDIR:-/tmp}"; do
    line space "$(df -Pk "$folder" | awk 'NR == 2 { printf "%s: %.1f GB free", $6, $4 / 1e6 }')"
done
line nvcc "$(nvcc --version 2>/dev/null | sed -n 's/.*release //p')"
for tool in ncu compute-sanitizer; do
    line "$tool" "$(command -v $tool || echo none)"
done
line Python "$(python3 -c 'import sys
from importlib import metadata
print(sys.version.split()[0])
for name in sorted({str(d.metadata["Name"]) for d in metadata.distributions()}):
    if name.split("-")[0] in ("torch", "triton", "transformers", "safetensors", "numpy", "nvidia"):
        print("         ", name, metadata.version(name))' 2>&1)"
LD_LIBRARY_PATH=$libraries ldd "$build/libferry_cuda.so" "$build/ferry" 2>&1 | grep -E ':$|cublas|not found' |
    sed -e "s,$build/,," -e 's,=> .*/site-packages/,=> site-packages/,' -e 's, (0x[0-9a-f]*),,'
