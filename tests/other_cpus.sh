#!/usr/bin/env bash
# The kernels' tests as on lesser CPUs than this one, which must be an x86 with AVX2: numba compiles for what it is told.
#
#     tests/other_cpus.sh [PYTHON]
#
# On an ARM machine, or one that qemu-user emulates, pytest tests/test_kernels.py tests/test_compiled.py is the same test.
set -euo pipefail
cd "$(dirname "$0")/.."
NUMBA_CACHE_DIR=$(mktemp -d)
export NUMBA_CACHE_DIR
trap 'rm -rf "$NUMBA_CACHE_DIR"' EXIT
sse=+sse2,+sse3,+ssse3,+sse4.1,+sse4.2
for cpu in "haswell $sse,+avx,+avx2,+fma" "sandybridge $sse,+avx" "nehalem $sse"; do
    read -r NUMBA_CPU_NAME NUMBA_CPU_FEATURES <<< "$cpu"
    export NUMBA_CPU_NAME NUMBA_CPU_FEATURES
    echo "$NUMBA_CPU_NAME"
    "${1:-python}" -m pytest -q tests/test_kernels.py tests/test_compiled.py
done
