# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Brings what compiles the CUDA code where no CUDA toolkit 13 or NCCL is installed: Python wheels of
# pinned versions, unpacked into one directory. Nothing is installed into the system. Sourced by
# demo.sh and check.sh; defines gw_cuda_wheels; the rest is its own.

gw_cuda_wheels_toolkit=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
                        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
gw_cuda_wheels_nccl=(nvidia-nccl-cu13==2.28.9)

# Unpacks wheels (zip files) into $1; what is executable in them stays so.
gw_cuda_unpack='
import os, sys, zipfile
for name in sys.argv[2:]:
    with zipfile.ZipFile(name) as wheel:
        for entry in wheel.infolist():
            path = wheel.extract(entry, sys.argv[1])
            if entry.external_attr >> 16 & 0o111 and not entry.is_dir():
                os.chmod(path, 0o755)
'

# Moves what is unpacked in $1 to $2, whole parts at a time: an interruption leaves no half of one.
gw_cuda_wheels_take() {
    local part
    mkdir -p "$2/nvidia" || return
    for part in "$1"/nvidia/*; do
        rm -rf -- "$2/nvidia/${part##*/}" && mv -- "$part" "$2/nvidia/" || return
    done
}

# gw_cuda_wheels DIR: after it, cmake finds toolkit and NCCL, installed or in DIR. Returns 69 with
# one clear line when they cannot be had.
gw_cuda_wheels() {
    local directory=$1 missing work
    local -a wheels=() pip=(python3 -m pip)
    missing=$(cmake "-DGW_CUDA_WHEELS=$directory" -P "${BASH_SOURCE[0]%/*}/cuda-find.cmake") ||
        return 69
    [[ $missing != *toolkit* ]] || wheels+=("${gw_cuda_wheels_toolkit[@]}")
    [[ $missing != *nccl* ]] || wheels+=("${gw_cuda_wheels_nccl[@]}")
    (( ${#wheels[@]} > 0 )) || return 0
    echo "${0##*/}: bringing ${wheels[*]} (a few hundred MB, into $directory)"
    mkdir -p "$directory" || return 69
    work=$(mktemp -d "$directory/download.XXXXXX") || return 69
    # Debian has pip in a package of its own; a virtual environment brings one.
    if ! "${pip[@]}" --version >/dev/null 2>&1; then
        python3 -m venv "$work/venv" >"$work/log" 2>&1 || true
        pip=("$work/venv/bin/python" -m pip)
    fi
    if ! { "${pip[@]}" download --no-deps --only-binary :all: --disable-pip-version-check \
               --dest "$work" "${wheels[@]}" &&
           python3 -c "$gw_cuda_unpack" "$work" "$work"/*.whl &&
           gw_cuda_wheels_take "$work" "$directory"; } >>"$work/log" 2>&1; then
        tail -n 5 "$work/log" >&2
        rm -rf -- "$work"
        echo "${0##*/}: could not bring ${wheels[*]}: install CUDA 13 and NCCL >= 2.28, or let" \
             "this machine reach a Python package index" >&2
        return 69
    fi
    rm -rf -- "$work"
}
