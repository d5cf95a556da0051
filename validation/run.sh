#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The test command: installs what is missing, builds, runs all tests, prints a summary. The last
# line is "N passed, N failed, N skipped"; the exit code is 0 only when some ran and none failed.
# Usage: run.sh [-L LABEL] [-R REGEX] [--sanitize]
#   -L  tests with this label only: unit, mpi, cases, gpu, slow ...   -R  tests whose name matches
#   --sanitize  address and undefined-behaviour sanitizers, on the unit and the 4-rank tests
# Where nvcc is found, the CUDA build (build-cuda/) and its gpu tests take part, unless a filter
# does not name gpu. Tests that need a device are skipped without one.
set -euo pipefail
. "$(dirname "$0")/../jobscripts/local/common.sh"
preset=release
filter=()
while [ $# -gt 0 ]; do
  case $1 in
    -L | -R) [ $# -ge 2 ] || die "$1 needs a value" 2
             filter+=("$1" "$2"); shift 2 ;;
    --sanitize) preset=sanitize; shift ;;
    -h | --help) sed -n '3,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "unknown option '$1'; try --help" 2 ;;
  esac
done


with_cuda() {
  [ "$preset" = release ] || return 1
  [ ${#filter[@]} -eq 0 ] || [[ ${filter[*]} = *gpu* ]] || return 1
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] && return 0
  say "no nvcc here: the CUDA kernels and their tests are not built"
  return 1
}

begin=$SECONDS
bash "$root/jobscripts/local/install.sh"
bash "$root/jobscripts/local/build.sh" "$preset"
say "built after $((SECONDS - begin)) s"
presets=("$preset")
if with_cuda; then
  # Only what differs from the plain build: device code, and the programs that link it.
  TESSERA_TARGETS="gpu_tests gpu_benches tessera-attention tessera-comm tessera-info" \
    bash "$root/jobscripts/local/build.sh" cuda
  presets+=(cuda)
  say "built with CUDA after $((SECONDS - begin)) s"
fi

cd "$root"
export GTEST_COLOR=no
# Multi-rank tests claim two processors each (CTest PROCESSORS), so two cores are not overloaded.
jobs=$(nproc)
[ "$jobs" -ge 2 ] || jobs=2
folder=build
[ "$preset" = release ] || folder=build-$preset
results=$root/$folder/tests.xml
log=$folder/tests.log
: >"$log"
echo "<testsuite>" >"$results"
for p in "${presets[@]}"; do
  say "testing ($p)"
  only=("${filter[@]}")
  [ "$p" != cuda ] || only+=(-L gpu) # the others ran in the plain build
  part=$results.$p
  rm -f "$part"
  ctest --preset "$p" "${only[@]}" -j "$jobs" --output-on-failure --no-tests=ignore \
    --output-junit "$part" >>"$log" 2>&1 || true
  [ -e "$part" ] || { tail -n 40 "$log" >&2; die "ctest --preset $p left no results" 1; }
  sed -n '/<testcase/,$p' "$part" | sed '/<\/testsuite>/d' >>"$results"
done
echo "</testsuite>" >>"$results"
python=$(command -v /usr/bin/python3 || command -v python3) || die "no python3"
"$python" "$root/validation/summary.py" "$results" "$log" $((SECONDS - begin))
