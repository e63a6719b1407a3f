#!/usr/bin/env bash
# The kernels' tests on other CPUs than this x86, under the emulation of qemu-user: ten minutes each.
#
#     tools/other_cpus.sh [PYTHON]
#
# On Debian: apt install qemu-user; dpkg --add-architecture arm64 && apt update, so that an ARM's Python can be had.
# Memory is read and written in the order that x86 keeps: what an ARM may reorder is not tested by this.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$("${1:-python}" -c "import sys; print(sys.executable)")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tests="-m pytest -q -p no:cacheprovider tests/test_kernels.py tests/test_compiled.py tests/test_tuning.py"
export PYTHONDONTWRITEBYTECODE=1
export G_SLICE=always-malloc # else, after a fork, the emulator may wait for its own memory for ever

for cpu in Haswell SandyBridge Nehalem; do # AVX2, AVX, SSE4.2; OpenBLAS, left to itself, takes each for a Haswell
    echo "$cpu"
    NUMBA_CACHE_DIR=$folder/$cpu OPENBLAS_CORETYPE=$cpu qemu-x86_64 -cpu $cpu "$python" $tests
done

version=3.11 # Debian 12's
packages="python$version-minimal libpython$version-minimal libpython$version-stdlib libc6 libgcc-s1 libstdc++6 zlib1g libssl3 libffi8
    libexpat1 liblzma5 libbz2-1.0 libuuid1"
(
    cd "$folder"
    apt-get download $(printf "%s:arm64 " $packages)
    for package in *.deb; do dpkg -x "$package" arm; done
)
"$python" -m pip install -q --target "$folder/site" -c requirements.txt --only-binary=:all: --python-version $version \
    --platform=manylinux_2_{17,27,28}_aarch64 numpy numba pytest regex threadpoolctl
for cpu in cortex-a72 neoverse-n1 max; do # without and with sdot, and with bfdot
    echo "$cpu"
    NUMBA_CACHE_DIR=$folder/$cpu PYTHONPATH=$folder/site \
        qemu-aarch64 -cpu $cpu -L "$folder/arm" "$folder/arm/usr/bin/python$version" $tests
done
