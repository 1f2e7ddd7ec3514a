# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What building and testing need, and how it gets onto a Debian 12 or 13. Sourced by demo.sh and
# check.sh; defines gw_install_deps and nothing else of use. Asks the system before the package
# manager: what is there already, from wherever, is not installed again.

gw_deps_has_command() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1; }
# pip, or what makes a virtual environment that has it (cmake/wheels.sh).
gw_deps_has_pip() {
    python3 -c "import pip" 2>/dev/null || python3 -c "import ensurepip" 2>/dev/null
}
gw_deps_has_library() { pkg-config --exists "$1" 2>/dev/null; }
# mpi.h of the MPI named; its compiler says where, if it is there.
gw_deps_has_mpi_header() {
    echo '#include <mpi.h>' | "mpicc.$1" -fsyntax-only -x c - >/dev/null 2>&1
}
# The Python that tests/CMakeLists.txt will take: the system's own, else any.
gw_deps_has_module() {
    /usr/bin/python3 -c "import $1" 2>/dev/null || python3 -c "import $1" 2>/dev/null
}

# package, how to ask for it, what to ask for
gw_deps_build="
build-essential command gcc
build-essential command make
cmake command cmake
ninja-build command ninja
pkg-config command pkg-config
protobuf-c-compiler command protoc-c
libprotobuf-c-dev library libprotobuf-c
libuv1-dev library libuv
libsodium-dev library libsodium
libsystemd-dev library libsystemd
libjansson-dev library jansson
libinih-dev library inih
libhwloc-dev library hwloc
libucx-dev library ucx
python3 command python3
python3-venv pip venv
g++ command g++
"
gw_deps_test="
libcmocka-dev library cmocka
python3-pytest module pytest
python3-jsonschema module jsonschema
mandoc command mandoc
mpich command mpirun.mpich
libmpich-dev mpi_header mpich
openmpi-bin command mpirun.openmpi
libopenmpi-dev mpi_header openmpi
python3-numpy module numpy
strace command strace
librsvg2-bin command rsvg-convert
systemd command systemd-analyze
"

# What demo.sh --nodes runs: nodes in network namespaces, ranks by mpirun.
gw_deps_nodes="
iproute2 command ip
mpich command mpirun
"

# Prints the packages of a table that are missing, each once.
gw_deps_missing() {
    local package how what
    while read -r package how what; do
        [[ -z $package ]] || "gw_deps_has_$how" "$what" || echo "$package"
    done <<<"$1" | sort -u
}

# gw_install_deps build|test|nodes: installs what is missing. Exit code 69 with one clear line when
# it cannot.
gw_install_deps() {
    local table=$gw_deps_build missing log
    local -a as_root=()
    [[ $1 == build ]] || table+=$gw_deps_nodes
    [[ $1 != test ]] || table+=$gw_deps_test
    missing=$(gw_deps_missing "$table" | tr '\n' ' ')
    missing=${missing% }
    [[ -n $missing ]] || return 0
    if ! gw_deps_has_command apt-get; then
        echo "${0##*/}: missing (Debian's names): $missing. Install them, this system has no" \
             "apt-get." >&2
        exit 69
    fi
    if (( EUID != 0 )); then
        if ! gw_deps_has_command sudo || { [[ ! -t 0 ]] && ! sudo -n true 2>/dev/null; }; then
            echo "${0##*/}: missing packages, and no right to install them. As root:" \
                 "apt-get install $missing" >&2
            exit 69
        fi
        as_root=(sudo)
    fi
    echo "${0##*/}: installing $missing"
    log=$(mktemp "${TMPDIR:-/tmp}/gradwire-apt.XXXXXX")
    # shellcheck disable=SC2086 # a list of words
    if ! { "${as_root[@]}" apt-get -q -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 update &&
           "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
               apt-get -q -y -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 \
               --no-install-recommends install $missing; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        echo "${0##*/}: apt-get could not install: $missing" >&2
        exit 69
    fi
    rm -f "$log"
}
