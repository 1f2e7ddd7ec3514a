#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The whole record of this machine: every op, dtype and peer, into results/NAME-*.json, and plots of
# the collectives beside them. An hour and a half; README.md says how to read it.
#
#   tests/bench/record.sh NAME [BUILD [OPTION...]]
#
# NAME says what the machine is (xeon-2cpu-quiet); BUILD: a release build (build/release); OPTION:
# more for every op, such as --rounds 5. Peers: those of gwbench --install-peers, or of --peers-dir.
set -euo pipefail

if (( $# < 1 )) || [[ ! $1 =~ ^[a-z0-9-]+$ ]]; then
    echo "usage: ${0##*/} NAME [BUILD [OPTION...]]    NAME: small letters, digits, hyphens" >&2
    exit 64
fi
here=$(cd -- "${BASH_SOURCE[0]%/*}" && pwd)
name=$1
build=${2:-$here/../../build/release}
shift $(( $# > 1 ? 2 : 1 ))
results=${GWBENCH_RESULTS:-$here/results}
gwbench=$build/client/bench/gwbench
if [[ ! -x $gwbench ]]; then
    echo "${0##*/}: $gwbench is not there: build it (cmake --preset release, cmake --build" \
         "--preset release), or name the build" >&2
    exit 69
fi

# record FILE OP OPTION...: a document takes its place when it is whole.
record() {
    local file=$results/$name-$1.json
    shift
    echo "${0##*/}: gwbench $*"
    "$gwbench" "$@" --json >"$file.part"
    mv -- "$file.part" "$file"
}
trap 'rm -f -- "$results/$name"-*.part' EXIT

all=(--dtypes fp32,bf16,fp16)
for op in reduce-scatter all-reduce; do
    record $op $op "${all[@]}" --peers --plot "$results/$name-$op.svg" "$@"
done
record all-gather-private all-gather --private "${all[@]}" --peers \
    --plot "$results/$name-all-gather-private.svg" "$@"
record all-gather-mapped all-gather "${all[@]}" "$@"
record latency latency --peers "$@"
record fetch fetch "${all[@]}" "$@"
record step step --sizes 1M,64M "${all[@]}" "$@"
record ready ready "$@"
record storm storm "$@"
record idle idle --seconds 5 "$@"
for op in reduce-scatter all-gather; do
    record nodes-$op $op --nodes 2,4 --sizes 1M,64M --shape none,1G,10G --peers "$@"
done
record nodes-storm storm --nodes 4 --jobs 1 --iterations 15 "$@"
