#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds gradwire, starts gradwired in a directory of its own as the calling user, trains a small
# character language model on several ranks in ZeRO stages 0 to 3, and prints what was sent, what it
# cost, and whether the promises held. Stops everything it started and leaves nothing but build/.
# With --device cuda the ranks compute on GPUs; --fake-gpus are doubles of GPUs, driver, CUDA and
# NCCL, for machines without: right in what they compute, not in time.
# With --nodes each of so many nodes has a gradwired of its own, in a network namespace of its own
# where the kernel lets the caller make them, and mpirun launches the ranks.
# $GRADWIRE_BUILD (for tests): take the programs of that build; install and build nothing.
# Exit codes: 0, 1 a promise is broken or a run failed, 64 usage, else what could not be set up.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: ./demo.sh [options]
  --ranks N              training processes (4)
  --nodes N              spread over so many nodes, on this machine (1)
  --shape RATE           of the links between them, both ways, by tc: 1G, 100M bits per second
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

ranks=4 nodes=1 steps= text= bucket= hidden= link= json= device=host fake= shape=
while (( $# > 0 )); do
    case $1 in
        --help) usage; exit 0 ;;
        --fake-gpus) fake=1; shift; continue ;;
        --ranks | --nodes | --shape | --steps | --text | --bucket | --hidden | --link | --json | \
            --device)
            [[ -n ${2-} ]] || wrong "$1 needs a value" ;;
        *) wrong "$1: no such option" ;;
    esac
    case $1 in
        --ranks) whole "$1" "$2" 1 64; ranks=$number ;;
        --nodes) whole "$1" "$2" 1 16; nodes=$number ;;
        --steps) whole "$1" "$2" 1 100000; steps=$number ;;
        --text) text=$(realpath -m -- "$2") ;;
        --shape)
            [[ $2 =~ ^[1-9][0-9]{0,3}[GM]$ ]] ||
                wrong "$1 $2: must be bits per second, as 1G or 100M"
            shape=$2 ;;
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
(( nodes == 1 )) || [[ $device == host ]] || wrong "--nodes goes with --device host"
[[ -z $shape ]] || (( nodes > 1 )) || wrong "--shape goes with --nodes"
(( ranks >= nodes )) || wrong "--nodes $nodes: needs a rank for each; --ranks is $ranks"
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
    (( nodes == 1 )) || gw_install_deps nodes
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
daemons=() sockets=() gpus= rank_pids=()

stop_ranks() {
    local pid
    for pid in "${rank_pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${rank_pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    rank_pids=()
}

stop_all() {
    trap '' INT TERM HUP
    stop_ranks
    local node
    for node in "${!daemons[@]}"; do
        timeout 10 "$gwctl" --runtime-dir "$work/node$node" stop --engines >/dev/null 2>&1 || true
        kill "${daemons[node]}" 2>/dev/null || true
        wait "${daemons[node]}" 2>/dev/null || true
    done
    daemons=()
    stop_network
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
    "$double/fakegpu" --gpus "$ranks" --seed "${GW_CUDA_SEED:-1}" --socket "$FAKEGPU_SOCKET" \
        --report "$work/gpus.json" &>"$work/gpus.log" &
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

# The nodes' network: by node its interface, and a command that enters it, which may be empty.
network= interfaces=() enter=()

start_network() {
    local interface prefix
    (( nodes > 1 )) || return 0
    mkfifo "$work/network.in" "$work/network.out"
    python3 -B "$PWD/tests/integration/network.py" "$nodes" \
        ${shape:+"${shape//[GM]/}$( [[ $shape == *G ]] && echo gbit || echo mbit)"} \
        <"$work/network.in" >"$work/network.out" &
    network=$!
    exec 8>"$work/network.in" 9<"$work/network.out"
    while (( ${#interfaces[@]} < nodes )) && read -r -u 9 interface _ prefix; do
        interfaces+=("$interface") enter+=("$prefix")
    done
    if (( ${#interfaces[@]} < nodes )); then
        echo "demo.sh: the nodes' network was not made" >&2
        exit 69
    fi
    local joined="each in a network namespace of its own, joined by veth"
    if [[ -n ${enter[0]} ]]; then
        joined+=${shape:+ that tc shapes to bits per second of $shape}
    else
        joined="all on loopback${shape:+, which is not shaped}"
    fi
    echo "demo.sh: $nodes nodes, $joined"
}

stop_network() {
    [[ -n $network ]] || return 0
    exec 8>&- 9<&-
    wait "$network" 2>/dev/null || true
    network=
}

# One on each node.
start_daemons() {
    local node
    mkdir -p "$work/runs"
    for (( node = 0; node < nodes; node++ )); do start_daemon "$node"; done
}

start_daemon() {
    local i node=$1 conf=$work/node$1.conf log=$work/node$1.log
    local -a own=()
    mkdir -p "$work/node$node"
    : >"$conf"
    if (( nodes > 1 )); then
        printf '[nodes]\nnode_name = node%d\nstar_interface = %s\n' "$node" \
            "${interfaces[node]}" >"$conf"
        # All nodes are one machine: shared memory would reach from one to the other.
        read -r -a own <<<"${enter[node]}"
        own+=(env UCX_TLS=tcp "UCX_NET_DEVICES=${interfaces[node]}")
    fi
    "${own[@]}" "$build/daemon/supervisor/gradwired" --foreground \
        --runtime-dir "$work/node$node" --device "$device" --config "$conf" \
        --engine "$build/daemon/engine/gradwire-engine" 2>"$log" 8>&- 9<&- &
    daemons[node]=$!
    sockets[node]=$work/node$node/gradwired.sock
    for (( i = 0; i < 100; i++ )); do
        [[ -S ${sockets[node]} ]] && return
        kill -0 "${daemons[node]}" 2>/dev/null || break
        sleep 0.1
    done
    echo "demo.sh: gradwired did not start:" >&2
    cat "$log" >&2
    [[ $device == host || -n $fake ]] ||
        echo "demo.sh: --fake-gpus runs the same on doubles of GPUs" >&2
    exit 69
}

done_runs=0 all_runs=13
[[ $device == host ]] || all_runs=12 # mapped is the host's
(( nodes == 1 )) || all_runs=19
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
    local log
    for log in "$work"/node*.log; do
        [[ ! -s $log ]] || { echo "gradwired:"; tail -n 20 "$log"; } >&2
    done
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

# place blocks|dealt|one: sets node_of, the node of each rank, and spans, how many those are. Blocks
# are in order, and the first ones may be a rank larger; dealt is in turn; one: all on the first.
place() {
    local rank in_larger=$(( ranks % nodes * (ranks / nodes + 1) ))
    node_of=() spans=$nodes
    [[ $1 != one ]] || spans=1
    for (( rank = 0; rank < ranks; rank++ )); do
        case $1 in
            one) node_of+=(0) ;;
            dealt) node_of+=($(( rank % nodes ))) ;;
            blocks)
                if (( rank < in_larger )); then
                    node_of+=($(( rank / (ranks / nodes + 1) )))
                else
                    node_of+=($(( ranks % nodes + (rank - in_larger) / (ranks / nodes) )))
                fi ;;
        esac
    done
}

# rank_of DIRECTORY RANK OPTIONS...: becomes that rank of the run.
rank_of() {
    local directory=$1 rank=$2 node=${node_of[$2]}
    local -a own=()
    shift 2
    (( nodes == 1 )) || read -r -a own <<<"${enter[node]}"
    exec "${own[@]}" "$program" --rank "$rank" --world "$ranks" --nodes "$spans" \
        --id-file "$directory/id" --socket "${sockets[node]}" --bucket "$bucket" --measure \
        "${common[@]}" --out "$directory/rank-$rank.json" --dump "$directory/rank-$rank.params" "$@"
}

# What mpirun starts: this very rank_of, for the rank that mpirun says.
launch() {
    local mpirun
    local -a options=(-n "$ranks")
    mpirun=$(command -v mpirun.mpich || command -v mpirun.openmpi || command -v mpirun)
    if "$mpirun" --version 2>&1 | grep -q "Open MPI"; then
        options+=(--oversubscribe --bind-to none)
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    {
        declare -p ranks nodes spans node_of enter sockets program bucket common
        declare -f rank_of
        echo 'rank_of "$1" "${PMI_RANK-${OMPI_COMM_WORLD_RANK-}}" "${@:2}"'
    } >"$work/rank.sh"
    "$mpirun" "${options[@]}" bash "$work/rank.sh" "$@" \
        </dev/null 2>>"$work/messages" 8>&- 9<&- &
    rank_pids+=($!)
}

# train NAME OPTIONS...: all ranks of one run, on the nodes where place put them.
train() {
    local directory=$work/runs/$1 rank
    mkdir "$directory"
    progress "$1"
    shift
    if (( nodes > 1 )); then
        echo "${node_of[*]}" >"$directory/nodes"
        launch "$directory" "$@"
    else
        for (( rank = 0; rank < ranks; rank++ )); do
            rank_of "$directory" "$rank" "$@" 2>>"$work/messages" &
            rank_pids+=($!)
        done
    fi
    wait_ranks "run ${directory##*/}"
    keep_checksum "$directory"
}

# ---- the runs ------------------------------------------------------------------------------------

if [[ -n $fake ]]; then start_gpus; fi
start_network
start_daemons
place blocks
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
if (( nodes > 1 )); then
    place dealt
    for stage in 0 1 2 3; do train "stage-$stage-dealt" --stage "$stage"; done
    place one
    for stage in 2 3; do train "stage-$stage-one-node" --stage "$stage"; done
fi
[[ $device == cuda ]] || train stage-3-mapped --stage 3 --gather mapped
place blocks
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
