#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# One command for a machine with one NVIDIA GPU, its driver, and no network: builds gradwire, checks
# what needs a GPU, measures what only a GPU can tell. At most 8 minutes. README.md says more.
# Exit codes: 0, 1 a check failed, 64 usage, 69 no GPU or not all that is needed, 70 no build.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: tests/gpu/run.sh [options]
  --out FILE       results as JSON, written after every step
  --build DIR      take the programs of this build; build nothing
  --pack DIR       no GPU needed: build, and put all programs and libraries into DIR
  --packed DIR     run from such a DIR: needs Python and a driver, no compiler
  --fake           on the doubles of tests/fakegpu, reduced
  --only NAME,...  these steps alone
  --budget S       of the steps together, in seconds (460, less what the build took)
USAGE
}

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
build= pack= packed= fake= budget= suite=()
while (( $# > 0 )); do
    case $1 in
        --help) usage; exit 0 ;;
        --fake) fake=1; suite+=(--fake); shift; continue ;;
        --out | --build | --pack | --packed | --only | --budget) ;;
        *) echo "run.sh: $1: no such option (--help shows them)" >&2; exit 64 ;;
    esac
    [[ -n ${2-} ]] || { echo "run.sh: $1 needs a value" >&2; exit 64; }
    case $1 in
        --build) build=$(realpath -- "$2") ;;
        --pack) pack=$(realpath -m -- "$2") ;;
        --packed) packed=$(realpath -- "$2") ;;
        --out) suite+=(--out "$(realpath -m -- "$2")") ;;
        --budget) budget=$2 ;;
        *) suite+=("$1" "$2") ;;
    esac
    shift 2
done

targets=(gw_gpu)
if [[ -n $fake ]]; then
    targets+=(fakegpu fakegpu-ctl fakegpu_cuda fakegpu_cudart fakegpu_nccl charlm_kernels_cpu
              gpu_work_cpu)
fi
# NCCL: where the dynamic linker, or a Python that has its wheel, finds it.
find_nccl() {
    local python
    ldconfig -p 2>/dev/null | sed -n 's/.*libnccl\.so\.2 .* => //p' | head -n 1 | grep . && return
    for python in python3 /usr/bin/python3; do
        "$python" -c '
import pathlib, sys
for place in sys.path:
    for found in pathlib.Path(place or ".").glob("nvidia/nccl/lib/libnccl.so.2"):
        print(found)
        sys.exit(0)
sys.exit(1)' 2>/dev/null && return
    done
    [[ ! -e ${NCCL_HOME:-/none}/lib/libnccl.so.2 ]] || echo "$NCCL_HOME/lib/libnccl.so.2"
}
# To pack, what is missing is brought; else nothing is fetched, and cmake tells what is missing.
build_all() {
    local -a more=()
    local nccl log=$root/build/gpu.log
    build=$root/build/gpu
    cd -- "$root"
    mkdir -p build
    if [[ -n $pack ]]; then
        # shellcheck source=../../cmake/deps.sh
        . cmake/deps.sh
        gw_install_deps build
        # shellcheck source=../../cmake/cuda-wheels.sh
        . cmake/cuda-wheels.sh
        gw_cuda_wheels "$root/build/cuda-wheels"
    else
        nccl=$(find_nccl || true)
        nccl=${nccl%/lib*/libnccl.so.2}
        [[ ! -e $nccl/include/nccl.h ]] || more+=("-DGW_NCCL_ROOT=$nccl")
    fi
    ! command -v ninja >/dev/null || more+=(-G Ninja)
    echo "run.sh: building (build/gpu)"
    if ! { cmake -S . -B "$build" "${more[@]}" -DCMAKE_BUILD_TYPE=Release -DGW_CUDA=ON &&
           cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"; } >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        echo "run.sh: no build (build/gpu.log); tests/gpu/run.sh --pack makes one elsewhere" >&2
        exit 70
    fi
}
if [[ -n $packed ]]; then
    build=$packed
elif [[ -z $build ]]; then
    build_all
fi

# Programs, and every library they need but the C library's, the driver's, and NCCL's, which is too
# large to travel.
pack_all() {
    local file library
    local -a programs=(daemon/supervisor/gradwired daemon/engine/gradwire-engine
        daemon/engine/gradwire-cuda.so client/ctl/gwctl client/examples/charlm
        client/examples/charlm-cuda tests/bin/gpu_kernels tests/bin/gpu_speed
        tests/bin/gpu_trainer lib/libgw_kernels-cpu.so client/lib/libgradwire.so.0
        client/cuda/libgradwire-cuda.so.0)
    rm -rf -- "$pack"
    mkdir -p "$pack/deps"
    for file in "${programs[@]}"; do
        mkdir -p "$pack/$(dirname "$file")"
        cp -L -- "$build/$file" "$pack/$file"
        strip --strip-unneeded "$pack/$file"
        while read -r library; do
            cp -L -n -- "$library" "$pack/deps/"
        done < <(ldd "$build/$file" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | grep -vE \
            '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cuda|nccl))\.so[^/]*$')
    done
    mkdir -p "$pack/tests"
    cp -r -- "$root"/tests/{cases,demo,gpu,integration} "$pack/tests/"
    rm -rf -- "$pack"/tests/*/__pycache__
    echo "run.sh: packed into $pack, $(du -sh "$pack" | cut -f1)"
}
if [[ -n $pack ]]; then
    pack_all
    exit 0
fi

libraries=$build/deps
if [[ -n $fake ]]; then
    libraries=$build/tests/fakegpu/lib
    export FAKEGPU_KERNELS=$build/lib/libgw_kernels-cpu.so:$build/lib/libcharlm_kernels-cpu.so
    FAKEGPU_KERNELS+=:$build/lib/libgpu_work-cpu.so
    export GW_GPU_REDUCED=1
fi

if [[ -z $fake ]]; then
    GW_GPU_NCCL=$(find_nccl || true)
    export GW_GPU_NCCL
    if [[ -n $GW_GPU_NCCL ]]; then
        # A link in a directory of its own: other libraries beside it stay out.
        nccl=$(mktemp -d "${TMPDIR:-/tmp}/gradwire-nccl.XXXXXX")
        chmod 755 "$nccl"
        trap 'rm -rf -- "$nccl"' EXIT
        ln -s -- "$GW_GPU_NCCL" "$nccl/libnccl.so.2"
        libraries+=:$nccl
    elif [[ -n $packed ]]; then
        echo "run.sh: no libnccl.so.2 found: the plug-in cannot be opened (NCCL_HOME names it)" >&2
        exit 69
    fi
fi
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export GRADWIRE_BUILD=$build GW_TEST_DEVICE=cuda
for pair in LIB=client/lib/libgradwire.so CUDA_LIB=client/cuda/libgradwire-cuda.so; do
    file=$build/${pair#*=}
    [[ -e $file ]] || file=$file.0
    export "GRADWIRE_${pair%%=*}=$file"
done
# Steps for which no time is left are told as skipped.
suite+=(--budget "${budget:-$(( SECONDS < 400 ? 460 - SECONDS : 60 ))}")
status=0
python3 -B "$here/suite.py" "${suite[@]}" || status=$?
exit "$status"
