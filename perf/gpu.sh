#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, tests and measures on a GPU machine; leaves its report in $OUT (default: out/gpu).
# Usage: gpu.sh [--test] [--quick] [--build DIR]
#   --test   build and test only      --quick  measure up to 8192 tokens
#   --build  build folder (default build-gpu); it needs cmake, ninja, nvcc, a C++20 compiler, and
#            fmt, spdlog, GoogleTest from the system or from .gpu-deps (src/cmake/TileOnly.cmake)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build-gpu
test_only=false
quick=()
command="perf/gpu.sh $*"
while [ $# -gt 0 ]; do
  case $1 in
    --test) test_only=true; shift ;;
    --quick) quick=(--quick); shift ;;
    --build) [ $# -ge 2 ] || { echo "--build needs a folder" >&2; exit 2; }
             build=$2; shift 2 ;;
    -h | --help) sed -n '3,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option '$1'; try --help" >&2; exit 2 ;;
  esac
done
out=${OUT:-$root/out/gpu}
mkdir -p "$out"

begin=$SECONDS
cmake -S "$root" -B "$build" -G Ninja -DTESSERA_CUDA=ON -DTESSERA_TILE_ONLY=ON \
  >"$out/configure.log" 2>&1 || { tail -30 "$out/configure.log"; exit 3; }
cmake --build "$build" >"$out/build.log" 2>&1 || { tail -60 "$out/build.log"; exit 3; }
echo "built in $((SECONDS - begin)) s"
{
  echo "date: $(date -u +%Y-%m-%dT%H:%MZ)   command: $command"
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm \
    --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
  nvcc --version 2>/dev/null | tail -2 | head -1
} >"$out/conditions.txt"
cat "$out/conditions.txt"

# cuDNN is opened at run time; torch brings one.
cudnn=$(python3 -c "import nvidia.cudnn as c; print(list(c.__path__)[0] + '/lib')" 2>/dev/null ||
  true)
[ -z "$cudnn" ] || export LD_LIBRARY_PATH=$cudnn${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

begin=$SECONDS
failed=0
ctest --test-dir "$build" -L gpu -V --no-tests=error >"$out/tests.log" 2>&1 || failed=1
grep -E "error ratio|error of|FAILED|Failure|Skipped|tests passed|tests failed|%" \
  "$out/tests.log" | grep -v "^[0-9]*: .*RUN" | tail -60 || true
echo "tested in $((SECONDS - begin)) s"
if $test_only || [ "$failed" -ne 0 ]; then exit "$failed"; fi

"$build/bench_gpu_tile" "$out/tile.json" "${quick[@]}"
python3=$(command -v python3)
if "$python3" -c "import torch" 2>/dev/null; then
  "$python3" "$root/perf/torch_sdpa.py" "$out/torch.json" "${quick[@]}"
else
  echo "no torch here: no peers in the report"
fi
"$python3" "$root/perf/gpu_report.py" "$out"
