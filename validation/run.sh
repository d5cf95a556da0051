#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The test command: installs what is missing, builds, runs all tests, prints a summary. The last
# line is "N passed, N failed, N skipped"; the exit code is 0 only when some ran and none failed.
# Usage: run.sh [-L LABEL] [-R REGEX] [--sanitize]
#   -L  tests with this label only: unit, mpi, cases, slow ...   -R  tests whose name matches
#   --sanitize  address and undefined-behaviour sanitizers, on the unit and the 4-rank tests
set -euo pipefail
. "$(dirname "$0")/../jobscripts/local/common.sh"
preset=release
filter=()
while [ $# -gt 0 ]; do
  case $1 in
    -L | -R) [ $# -ge 2 ] || die "$1 needs a value" 2
             filter+=("$1" "$2"); shift 2 ;;
    --sanitize) preset=sanitize; shift ;;
    -h | --help) sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "unknown option '$1'; try --help" 2 ;;
  esac
done

begin=$SECONDS
bash "$root/jobscripts/local/install.sh"
bash "$root/jobscripts/local/build.sh" "$preset"
say "built after $((SECONDS - begin)) s; testing"

cd "$root"
folder=build
[ "$preset" = release ] || folder=build-$preset
results=$root/$folder/tests.xml
rm -f "$results"
export GTEST_COLOR=no
# Multi-rank tests claim two processors each (CTest PROCESSORS), so two cores are not overloaded.
jobs=$(nproc)
[ "$jobs" -ge 2 ] || jobs=2
ctest --preset "$preset" "${filter[@]}" -j "$jobs" --output-on-failure --no-tests=error \
  --output-junit "$results" >"$folder/tests.log" 2>&1 || true
python=$(command -v /usr/bin/python3 || command -v python3) || die "no python3"
"$python" "$root/validation/summary.py" "$results" "$folder/tests.log" $((SECONDS - begin))
