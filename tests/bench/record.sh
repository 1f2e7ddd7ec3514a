#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The record of this machine, into results/NAME-*.json, with plots of the collectives beside them:
# every op, within 25 minutes on a machine that is left alone. README.md says how to read it.
#
#   tests/bench/record.sh NAME [BUILD [PART...] [OPTION...]]
#
# NAME says what the machine is (xeon-2cpu-quiet); BUILD: a release build (build/release). PART:
# only these documents, and those from node to node, which are made when they are named; each takes
# the place of that of the same name. OPTION: more for every op, such as --rounds 5. Peers: those of
# gwbench --install-peers, or of --peers-dir.
set -euo pipefail

# part | op and options
parts="
reduce-scatter       | reduce-scatter --sizes 4K,1M,64M --peers --plot
reduce-scatter-half  | reduce-scatter --sizes 64M --dtypes bf16,fp16
all-reduce           | all-reduce --sizes 4K,1M,64M --dtypes fp32,bf16
all-gather-mapped    | all-gather --sizes 4K,1M,64M
all-gather-private   | all-gather --private --sizes 1M,64M --peers --plot
latency              | latency --peers --rounds 5
fetch                | fetch --sizes 4K,1M
step                 | step --sizes 1M,16M
ready                | ready
storm                | storm --iterations 5
idle                 | idle --seconds 5
nodes-reduce-scatter | reduce-scatter --nodes 2,4 --sizes 1M,64M --shape none,1G,10G --peers
nodes-all-gather     | all-gather --nodes 2,4 --sizes 1M,64M --shape none,1G,10G --peers
nodes-storm          | storm --nodes 4 --jobs 1 --iterations 15
"
names=$(sed -n 's/ *|.*//p' <<<"$parts")

if (( $# < 1 )) || [[ ! $1 =~ ^[a-z0-9-]+$ ]]; then
    echo "usage: ${0##*/} NAME [BUILD [PART...] [OPTION...]]    NAME: small letters, digits," \
         "hyphens; PART:" $names >&2
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
chosen=()
while (( $# > 0 )) && [[ $1 != -* ]]; do
    if ! grep -qxF -e "$1" <<<"$names"; then
        echo "${0##*/}: no part is called '$1'; there are:" $names >&2
        exit 64
    fi
    chosen+=("$1")
    shift
done
(( ${#chosen[@]} > 0 )) || mapfile -t chosen < <(grep -v '^nodes-' <<<"$names")

# record PART OPTION...: a document takes its place when it is whole.
record() {
    local file=$results/$name-$1.json words began=$SECONDS
    read -ra words < <(sed -n "s/^$1 *| //p" <<<"$parts")
    [[ ${words[-1]} != --plot ]] || words+=("$results/$name-$1.svg")
    shift
    echo "${0##*/}: gwbench ${words[*]} $*"
    "$gwbench" "${words[@]}" "$@" --json >"$file.part"
    mv -- "$file.part" "$file"
    echo "${0##*/}: ${file##*/}: $(( SECONDS - began )) s"
}
trap 'rm -f -- "$results/$name"-*.part' EXIT

for part in "${chosen[@]}"; do
    record "$part" "$@"
done
echo "${0##*/}: ${#chosen[@]} documents in $SECONDS s"
