#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# One command for a machine with one NVIDIA GPU, its driver and the CUDA toolkit: builds gradwire
# with its CUDA plug-in, checks what one GPU can show, and measures. At most 8 minutes. No network
# is needed where the build's packages are installed; else pack on a build machine and carry it.
# See README.md here.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: tests/gpu/run.sh [options]
  --out FILE      results as JSON (gpu-results.json); valid after every step
  --build DIR     take the programs of this build; build nothing
  --fake          on the doubles of tests/fakegpu, reduced: shows that this script works
  --pack DIR      build, and copy programs and libraries to DIR; run nothing
  --packed DIR    run what --pack left
  --help
USAGE
}

out=$PWD/gpu-results.json build='' fake='' pack='' packed=''
while (( $# > 0 )); do
    case $1 in
        --help) usage; exit 0 ;;
        --fake) fake=1; shift; continue ;;
        --out | --build | --pack | --packed)
            [[ -n ${2-} ]] || { echo "run.sh: $1 needs a value" >&2; exit 64; } ;;
        *) echo "run.sh: $1: no such option (--help shows them)" >&2; exit 64 ;;
    esac
    case $1 in
        --out) out=$(realpath -m -- "$2") ;;
        --build) build=$(realpath -e -- "$2") ;;
        --pack) pack=$(realpath -m -- "$2") ;;
        --packed) packed=$(realpath -e -- "$2") ;;
    esac
    shift 2
done
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
source=${packed:-$(cd -- "$here/../.." && pwd)}

build_all() {
    cd -- "$source"
    # shellcheck source=../../cmake/deps.sh
    . cmake/deps.sh
    gw_install_deps build
    # shellcheck source=../../cmake/cuda-wheels.sh
    . cmake/cuda-wheels.sh
    gw_cuda_wheels "$source/build/cuda-wheels"
    echo "run.sh: building (build/release)"
    mkdir -p build
    if ! { cmake --preset release -DGW_CUDA=ON -DGW_TESTS=ON &&
           cmake --build --preset release --target gw_gpu; } >build/gpu.log 2>&1; then
        tail -n 40 build/gpu.log >&2
        echo "run.sh: the build failed; all of its output is in build/gpu.log" >&2
        exit 70
    fi
    build=$source/build/release
}

# Everything that the suite runs, at the places of a build, and the libraries that a bare machine
# may lack. NCCL is large and belongs to the GPU machine.
pack_all() {
    local file library
    local -a files=(daemon/supervisor/gradwired daemon/engine/gradwire-engine
                    daemon/engine/gradwire-cuda.so client/ctl/gwctl client/lib/libgradwire.so
                    client/cuda/libgradwire-cuda.so client/examples/charlm
                    client/examples/charlm-cuda tests/bin/gpu_kernels tests/bin/gpu_speed
                    tests/bin/gpu_trainer lib/libgw_kernels-cpu.so)
    mkdir -p "$pack/lib" "$pack/tests"
    for file in "${files[@]}"; do
        mkdir -p "$pack/build/$(dirname "$file")"
        cp -L "$build/$file" "$pack/build/$file"
    done
    for file in "${files[@]}"; do
        ldd "$build/$file" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
    done | sort -u | while read -r library; do
        case ${library##*/} in
            libc.so* | libm.so* | ld-linux* | libpthread* | libdl* | librt*) ;;
            libnccl* | libcuda.so*) ;;
            *) cp -L "$library" "$pack/lib/" ;;
        esac
    done
    cp -r "$source/tests/gpu" "$source/tests/integration" "$pack/tests/"
    du -sh "$pack"
}

if [[ -n $packed ]]; then
    build=$packed/build
    export LD_LIBRARY_PATH=$packed/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
elif [[ -z $build ]]; then
    build_all
fi
if [[ -n $pack ]]; then
    pack_all
    exit 0
fi
exec python3 -B "$source/tests/gpu/suite.py" --build "$build" --source "$source" --out "$out" \
    ${fake:+--fake}
