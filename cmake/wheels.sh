# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Brings Python wheels into a directory; nothing is installed into the system. Sourced by
# cuda-wheels.sh and check.sh; defines gw_wheels_bring and gw_test_wheels; the rest is its own.

# The reader of saved state that is not ours (tests/integration/test_state.py).
gw_test_wheels_safetensors=safetensors==0.5.3

# Unpacks wheels (zip files) into $1; what is executable in them stays so.
gw_wheels_unpack='
import os, sys, zipfile
for name in sys.argv[2:]:
    with zipfile.ZipFile(name) as wheel:
        for entry in wheel.infolist():
            path = wheel.extract(entry, sys.argv[1])
            if entry.external_attr >> 16 & 0o111 and not entry.is_dir():
                os.chmod(path, 0o755)
'

# Moves what is unpacked in $1 to $2, whole parts at a time: an interruption leaves no half of one.
gw_wheels_take() {
    local part
    mkdir -p "$2" || return
    for part in "$1"/*; do
        rm -rf -- "$2/${part##*/}" && mv -- "$part" "$2/${part##*/}" || return
    done
}

# gw_wheels_bring DIR UNDER WHEEL...: folder UNDER of the wheels (.: all that is in them) is in DIR
# after it. Returns 69 when they cannot be had; the caller says what to do then.
gw_wheels_bring() {
    local directory=$1 under=$2 work
    local -a pip=(python3 -m pip)
    shift 2
    mkdir -p "$directory" || return 69
    work=$(mktemp -d "$directory/download.XXXXXX") || return 69
    # Debian has pip in a package of its own; a virtual environment brings one.
    if ! "${pip[@]}" --version >/dev/null 2>&1; then
        python3 -m venv "$work/venv" >"$work/log" 2>&1 || true
        pip=("$work/venv/bin/python" -m pip)
    fi
    if ! { "${pip[@]}" download --no-deps --only-binary :all: --disable-pip-version-check \
               --dest "$work" "$@" &&
           python3 -c "$gw_wheels_unpack" "$work/unpacked" "$work"/*.whl &&
           gw_wheels_take "$work/unpacked/$under" "$directory/$under"; } >>"$work/log" 2>&1; then
        tail -n 5 "$work/log" >&2
        rm -rf -- "$work"
        return 69
    fi
    rm -rf -- "$work"
}

# gw_test_wheels DIR: what tests read with, in DIR. 69 and one line when it cannot be had: they are
# skipped then.
gw_test_wheels() {
    local wheel=$gw_test_wheels_safetensors
    # Its folder comes after the package's own.
    [[ ! -d $1/${wheel/==/-}.dist-info ]] || return 0
    gw_wheels_bring "$1" . "$wheel" && return 0
    echo "${0##*/}: could not bring $wheel: what tests it is skipped" >&2
    return 69
}
