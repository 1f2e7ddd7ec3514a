#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing, builds gradwire five ways, runs every test, and prints the totals last:
#
#   release   all tests but those that drop an ordering edge; CUDA code on doubles of GPUs
#   debug     the tests that drop one (GW_TEST_EDGES)
#   asan      AddressSanitizer and UndefinedBehaviorSanitizer: unit, fuzz, end to end, security
#   tsan      ThreadSanitizer: the tests of shared pages
#   coverage  unit, simulator and fuzz once more: branches taken in the pure parts, 95 % at least
#
# use: ./check.sh [release] [debug] [asan] [tsan] [coverage]     (none: all)
# Output of each step is in build/<preset>/*.log. Exit code 0 only if nothing failed.
set -uo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 1
presets=("$@")
(( $# )) || presets=(release debug asan tsan coverage)
for preset in "${presets[@]}"; do
    case $preset in
        release | debug | asan | tsan | coverage) ;;
        *) echo "use: ./check.sh [release] [debug] [asan] [tsan] [coverage]" >&2; exit 64 ;;
    esac
done

. cmake/deps.sh
gw_install_deps test
. cmake/cuda-wheels.sh
cuda=AUTO skipped=()
if ! gw_cuda_wheels "$PWD/build/cuda-wheels"; then
    cuda=OFF
    skipped=(--skipped "everything of CUDA: no toolkit and NCCL here, and none could be brought")
fi
gw_test_wheels "$PWD/build/test-wheels" || true # the tests that miss it say so
jobs=$(nproc)
# Neither a caller's settings nor a running daemon of the node may decide anything.
unset GRADWIRE_SOCKET GRADWIRE_RUNTIME_DIR GRADWIRE_ENGINE GRADWIRE_DROP_EDGE GRADWIRE_DEBUG
unset LD_PRELOAD ASAN_OPTIONS UBSAN_OPTIONS LSAN_OPTIONS TSAN_OPTIONS CFLAGS LDFLAGS DESTDIR

failed=() results=()

# The doubles of CUDA are run by the first two; sanitizers see the host's side.
cuda_of() {
    case $1 in
        release | debug) echo "-DGW_CUDA=$cuda" ;;
        *) echo -DGW_CUDA=OFF ;;
    esac
}

# step PRESET NAME COMMAND...: output into build/PRESET/NAME.log; its end is shown on failure
step() {
    local preset=$1 name=$2 log=build/$1/$2.log started=$SECONDS
    shift 2
    printf 'check.sh: %-8s %-10s' "$preset" "$name"
    if "$@" >"$log" 2>&1; then
        printf ' %4d s\n' $((SECONDS - started))
    else
        printf ' %4d s  FAILED, see %s\n' $((SECONDS - started)) "$log"
        return 1
    fi
}

run_tests() {
    local preset=$1
    local -a which
    case $preset in
        release) which=(-LE '^edges$') ;;
        debug) which=(-L '^edges$') ;;
        asan) which=(-L '^(unit|fuzz|e2e|security)$') ;;
        tsan) which=(-L '^tsan$') ;;
        coverage)
            which=(-L '^coverage$')
            find build/coverage -name '*.gcda' -delete
            ;;
    esac
    # Where the kernel spreads addresses widely, older sanitizers find their shadow taken.
    local -a fixed=()
    if [[ $preset == [at]san ]] && setarch -R true 2>/dev/null; then
        fixed=(setarch -R)
    fi
    rm -rf "build/$preset/junit" "build/$preset/reports" "build/$preset/ctest.xml"
    mkdir -p "build/$preset/junit" "build/$preset/reports"
    step "$preset" test "${fixed[@]}" ctest --test-dir "build/$preset" -j "$jobs" \
        --output-on-failure --no-tests=error --output-junit ctest.xml \
        --test-output-size-passed 10000000 --test-output-size-failed 10000000 "${which[@]}"
}

for preset in "${presets[@]}"; do
    mkdir -p "build/$preset"
    target=all
    [[ $preset != tsan && $preset != coverage ]] || target=gw_${preset}_tests
    if ! step "$preset" configure cmake --preset "$preset" -DGW_TESTS=ON $(cuda_of "$preset") ||
       ! step "$preset" build cmake --build --preset "$preset" --target "$target" -j "$jobs"; then
        tail -n 30 "build/$preset/configure.log" "build/$preset/build.log" 2>/dev/null
        failed+=(--failed "build of $preset")
        continue
    fi
    if ! run_tests "$preset"; then
        sed -n '/The following tests FAILED/,$p' "build/$preset/test.log"
    fi
    if [[ $preset == coverage ]]; then
        step coverage branches python3 -B tests/coverage.py build/coverage ||
            failed+=(--failed "branch coverage of the pure parts")
        cat build/coverage/branches.log
    fi
    results+=("$preset=build/$preset")
done

echo
exec python3 -B tests/summary.py "${failed[@]}" "${skipped[@]}" "${results[@]}"
