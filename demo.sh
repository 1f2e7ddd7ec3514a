#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds gradwire, starts gradwired in a directory of its own as the calling user, trains a small
# character language model on several ranks in ZeRO stages 0 to 3, and prints what was sent, what it
# cost, and whether the promises held. Stops everything it started and leaves nothing but build/.
# With --device cuda the ranks compute on GPUs; --fake-gpus are doubles of GPUs, driver, CUDA and
# NCCL, for machines without: right in what they compute, not in time.
# $GRADWIRE_BUILD (for tests): take the programs of that build; install and build nothing.
# Exit codes: 0, 1 a promise is broken or a run failed, 64 usage, else what could not be set up.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: ./demo.sh [options]
  --ranks N              training processes (4)
  --steps K              optimizer steps of each run (50)
  --text FILE            text to train on (the files of /usr/share/common-licenses)
  --bucket BYTES         of a gradient bucket (655360)
  --hidden H             width of the model's hidden layers (512)
  --link BYTES_PER_S     simulated link of the paced runs (so that communication takes half of
                         backward)
  --device host|cuda     where ranks compute and gradients lie (host); cuda: a GPU for each rank
  --fake-gpus            with --device cuda: on doubles of GPUs, where there are none; a smaller
                         model and fewer steps, unless given; times mean nothing then
  --json FILE            write all figures there
  --help
USAGE
}

wrong() {
    echo "demo.sh: $* (--help shows the options)" >&2
    exit 64
}

# whole OPTION VALUE MIN MAX: sets $number, without the leading zeros that mean octal elsewhere.
whole() {
    [[ $2 =~ ^[0-9]{1,15}$ ]] && (( 10#$2 >= $3 && 10#$2 <= $4 )) ||
        wrong "$1 $2: must be a whole number from $3 to $4"
    number=$(( 10#$2 ))
}

ranks=4 steps= text= bucket= hidden= link= json= device=host fake=
while (( $# > 0 )); do
    case $1 in
        --help) usage; exit 0 ;;
        --fake-gpus) fake=1; shift; continue ;;
        --ranks | --steps | --text | --bucket | --hidden | --link | --json | --device)
            [[ -n ${2-} ]] || wrong "$1 needs a value" ;;
        *) wrong "$1: no such option" ;;
    esac
    case $1 in
        --ranks) whole "$1" "$2" 1 64; ranks=$number ;;
        --steps) whole "$1" "$2" 1 100000; steps=$number ;;
        --text) text=$(realpath -m -- "$2") ;;
        --bucket)
            whole "$1" "$2" 4 1000000000000
            (( number % 4 == 0 )) || wrong "$1 $2: must be a multiple of 4, the bytes of a value"
            bucket=$number ;;
        --hidden) whole "$1" "$2" 1 16384; hidden=$number ;;
        --link) whole "$1" "$2" 1 1000000000000; link=$number ;;
        --json) json=$(realpath -m -- "$2") ;;
        --device)
            [[ $2 == host || $2 == cuda ]] || wrong "$1 $2: must be host or cuda"
            device=$2 ;;
    esac
    shift 2
done
[[ -z $fake || $device == cuda ]] || wrong "--fake-gpus goes with --device cuda"
steps=${steps:-${fake:+8}} steps=${steps:-50}
hidden=${hidden:-${fake:+48}} hidden=${hidden:-512}
bucket=${bucket:-${fake:+16384}} bucket=${bucket:-655360}
if [[ -n $text && ! ( -f $text && -r $text && -s $text ) ]]; then
    echo "demo.sh: --text $text: not a readable file with something in it" >&2
    exit 66
fi
if [[ -n $json && ! ( -f $json && -w $json ) &&
      ! ( ! -e $json && -w $(dirname -- "$json") ) ]]; then
    echo "demo.sh: --json $json: cannot be written" >&2
    exit 73
fi

cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
build=${GRADWIRE_BUILD:-$PWD/build/release}
report=(python3 -B "$PWD/tests/demo/report.py")

# ---- build ---------------------------------------------------------------------------------------

build_all() {
    # shellcheck source=cmake/deps.sh
    . cmake/deps.sh
    local -a first=() targets=(gradwired gradwire-engine gwctl charlm)
    if [[ -n $fake ]]; then gw_install_deps test; else gw_install_deps build; fi
    if [[ $device == cuda ]]; then
        # shellcheck source=cmake/cuda-wheels.sh
        . cmake/cuda-wheels.sh
        gw_cuda_wheels "$PWD/build/cuda-wheels"
        targets+=(charlm-cuda gw_plugin_cuda)
    fi
    echo "demo.sh: building (build/release)"
    mkdir -p build
    [[ -e $build/CMakeCache.txt ]] || first=(-DGW_TESTS=OFF)
    if [[ -n $fake ]]; then
        first=(-DGW_TESTS=ON)
        targets+=(fakegpu fakegpu_cuda fakegpu_cudart fakegpu_nccl gw_kernels_cpu
                  charlm_kernels_cpu)
    fi
    if ! { cmake --preset release "${first[@]}" &&
           cmake --build --preset release --target "${targets[@]}"; } \
         >build/demo.log 2>&1; then
        tail -n 40 build/demo.log >&2
        echo "demo.sh: the build failed; all of its output is in build/demo.log" >&2
        exit 70
    fi
}
[[ -n ${GRADWIRE_BUILD-} ]] || build_all
charlm=$build/client/examples/charlm
program=$charlm
[[ $device == host ]] || program=$build/client/examples/charlm-cuda
gwctl=$build/client/ctl/gwctl

# ---- what is started, and how it ends ------------------------------------------------------------

work=$(mktemp -d "${TMPDIR:-/tmp}/gradwire-demo.XXXXXX")
runtime=$work/run
daemon= gpus= rank_pids=()

stop_ranks() {
    local pid
    for pid in "${rank_pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${rank_pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    rank_pids=()
}

stop_all() {
    trap '' INT TERM HUP
    stop_ranks
    if [[ -n $daemon ]]; then
        timeout 10 "$gwctl" --socket "$runtime/admin.sock" stop --engines >/dev/null 2>&1 || true
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
        daemon=
    fi
    stop_gpus || true
    rm -rf -- "$work"
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The doubles' server, and for all that follows the libraries that ask it.
start_gpus() {
    local double=$build/tests/fakegpu
    export FAKEGPU_SOCKET=$work/gpus CUDA_FAKEGPU_SOCKET=$work/gpus # also for root's engines
    export FAKEGPU_KERNELS=$build/lib/libgw_kernels-cpu.so:$build/lib/libcharlm_kernels-cpu.so
    "$double/fakegpu" --gpus "$ranks" --socket "$FAKEGPU_SOCKET" --report "$work/gpus.json" \
        &>"$work/gpus.log" &
    gpus=$!
    for (( i = 0; i < 100; i++ )); do
        [[ -S $FAKEGPU_SOCKET ]] && break
        sleep 0.1
    done
    export LD_LIBRARY_PATH=$double/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# 1: the doubles saw a rule of CUDA or NCCL broken.
stop_gpus() {
    local status=0
    [[ -n $gpus ]] || return 0
    kill "$gpus" 2>/dev/null || true
    wait "$gpus" || status=$?
    gpus=
    (( status == 0 )) && return
    echo "demo.sh: the doubles of GPUs saw rules broken:" >&2
    cat "$work/gpus.json" "$work/gpus.log" >&2 || true
    return 1
}

start_daemon() {
    local i
    mkdir -p "$runtime" "$work/runs"
    : >"$work/gradwired.conf"
    "$build/daemon/supervisor/gradwired" --foreground --runtime-dir "$runtime" \
        --device "$device" --config "$work/gradwired.conf" \
        --engine "$build/daemon/engine/gradwire-engine" \
        2>"$work/gradwired.log" &
    daemon=$!
    for (( i = 0; i < 100; i++ )); do
        [[ -S $runtime/gradwired.sock ]] && return
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    echo "demo.sh: gradwired did not start:" >&2
    cat "$work/gradwired.log" >&2
    [[ $device == host || -n $fake ]] ||
        echo "demo.sh: --fake-gpus runs the same on doubles of GPUs" >&2
    exit 69
}

done_runs=0 all_runs=13
[[ $device == host ]] || all_runs=12 # mapped is the host's
# One line that is written over on a terminal, and grows elsewhere.
progress() {
    if [[ -t 2 ]]; then
        printf '\r\033[K%s' "demo.sh: run $((++done_runs)) of $all_runs: $1" >&2
    else
        printf '%s' "${2-}$((++done_runs))/$all_runs " >&2
    fi
}

# The others have a second to say what they saw of it.
fail() {
    echo >&2
    echo "demo.sh: $1 (a process ended with exit code $2):" >&2
    (( ${#rank_pids[@]} < 2 )) || sleep 1
    stop_ranks
    cat "$work/messages" >&2
    [[ ! -s $work/gradwired.log ]] || { echo "gradwired:"; tail -n 20 "$work/gradwired.log"; } >&2
    exit 1
}

common=(--steps "$steps" --hidden "$hidden")
[[ -z $text ]] || common+=(--text "$text")

# What is compared is a checksum: the parameters themselves are not kept.
keep_checksum() {
    local file
    for file in "$1"/rank-*.params; do
        sha256sum "$file" >"${file%.params}.sha256"
        rm "$file"
    done
}

# alone NAME MODE...: one process without gradwired, in the background.
alone() {
    local directory=$work/runs/$1
    shift
    mkdir "$directory"
    "$program" "$@" "${common[@]}" --out "$directory/rank-0.json" \
        --dump "$directory/rank-0.params" 2>>"$work/messages" &
    rank_pids+=($!)
}

# Waits for all processes; the first that fails ends the others.
wait_ranks() {
    local ended pid left
    while (( ${#rank_pids[@]} > 0 )); do
        wait -n -p ended "${rank_pids[@]}" || fail "$1 failed" $?
        left=()
        for pid in "${rank_pids[@]}"; do [[ $pid == "$ended" ]] || left+=("$pid"); done
        rank_pids=("${left[@]}")
    done
}

# train NAME OPTIONS...: all ranks of one run.
train() {
    local directory=$work/runs/$1 rank
    mkdir "$directory"
    progress "$1"
    shift
    for (( rank = 0; rank < ranks; rank++ )); do
        "$program" --rank "$rank" --world "$ranks" --id-file "$directory/id" \
            --socket "$runtime/gradwired.sock" --bucket "$bucket" --measure "${common[@]}" \
            --out "$directory/rank-$rank.json" --dump "$directory/rank-$rank.params" "$@" \
            2>>"$work/messages" &
        rank_pids+=($!)
    done
    wait_ranks "run ${directory##*/}"
    keep_checksum "$directory"
}

# ---- the runs ------------------------------------------------------------------------------------

if [[ -n $fake ]]; then start_gpus; fi
start_daemon
: >"$work/messages"
began=$SECONDS
"$charlm" --model-tsv "${common[@]}" >"$work/runs/model.tsv"
progress reference "demo.sh: runs "
alone reference --reference "$ranks"
progress plain
alone plain --plain "$ranks"
wait_ranks "reference or plain run"
keep_checksum "$work/runs/reference"
keep_checksum "$work/runs/plain"
for stage in 0 1 2 3; do
    train "stage-$stage-off" --stage "$stage" --overlap off
    train "stage-$stage-on" --stage "$stage" --overlap on
done
[[ $device == cuda ]] || train stage-3-mapped --stage 3 --gather mapped
[[ -n $link ]] || link=$("${report[@]}" link "$work/runs/stage-2-off")
if (( link > 0 )); then # one rank alone sends nothing
    train stage-2-paced-off --stage 2 --overlap off --link "$link"
    train stage-2-paced-on --stage 2 --overlap on --link "$link"
fi
[[ -t 2 ]] && printf '\r\033[K' >&2 || echo >&2
echo "demo.sh: $ranks rank$( (( ranks == 1 )) || echo s), $steps steps, buckets of $bucket bytes," \
    "$done_runs runs in $((SECONDS - began)) s"

status=0
"${report[@]}" tables "$work/runs" ${json:+--json "$json"} || status=$?
stop_gpus || status=1
exit "$status"
