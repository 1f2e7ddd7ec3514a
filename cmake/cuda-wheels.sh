# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Brings what compiles the CUDA code where no CUDA toolkit 13 or NCCL is installed: Python wheels of
# pinned versions, unpacked into one directory. Nothing is installed into the system. Sourced by
# demo.sh and check.sh; defines gw_cuda_wheels; the rest is its own.

gw_cuda_wheels_toolkit=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
                        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
gw_cuda_wheels_nccl=(nvidia-nccl-cu13==2.28.9)

# shellcheck source=cmake/wheels.sh
. "${BASH_SOURCE[0]%/*}/wheels.sh"

# gw_cuda_wheels DIR: after it, cmake finds toolkit and NCCL, installed or in DIR. Returns 69 with
# one clear line when they cannot be had.
gw_cuda_wheels() {
    local directory=$1 missing
    local -a wheels=()
    missing=$(cmake "-DGW_CUDA_WHEELS=$directory" -P "${BASH_SOURCE[0]%/*}/cuda-find.cmake") ||
        return 69
    [[ $missing != *toolkit* ]] || wheels+=("${gw_cuda_wheels_toolkit[@]}")
    [[ $missing != *nccl* ]] || wheels+=("${gw_cuda_wheels_nccl[@]}")
    (( ${#wheels[@]} > 0 )) || return 0
    echo "${0##*/}: bringing ${wheels[*]} (a few hundred MB, into $directory)"
    if ! gw_wheels_bring "$directory" nvidia "${wheels[@]}"; then
        echo "${0##*/}: could not bring ${wheels[*]}: install CUDA 13 and NCCL >= 2.28, or let" \
             "this machine reach a Python package index" >&2
        return 69
    fi
}
