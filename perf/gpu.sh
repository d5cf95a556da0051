#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, tests and measures on a machine with any number of GPUs; leaves its report in $OUT
# (default: out/gpu) and everything behind it in out/gpu-run, where later calls find it.
# Usage: gpu.sh [--stages LIST] [--test] [--tests REGEX] [--quick] [--budget SECONDS] [--build DIR]
#   --stages  some of build,test,tile,flex,comm,ours,peers,pass,throttle,report (default: all), run
#             in this order; a stage that fails makes the exit code 1, later ones run all the same
#   --test    the same as --stages build,test
#   --tests   of stage test: only those whose name matches, where a call has little time
#   --quick   short lengths and few repeats, kept apart in out/gpu-run-quick
#   --budget  of stage ours, and of stage peers (default 240): what does not fit is named; another
#             call goes on with it, since reports of ours newer than the program are kept
#   --build   build folder (default build-gpu); it needs cmake, ninja, nvcc, a C++20 compiler, MPI,
#             HDF5, and headers from the system or from .gpu-deps (src/cmake/Dependencies.cmake)
# shellcheck disable=SC2317 # stages are called by name
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
all_stages="build test tile flex comm ours peers pass throttle report"
stages=$all_stages build=$root/build-gpu budget=240 run=$root/out/gpu-run quick=() tests=.
command="perf/gpu.sh $*"

refuse() { echo "error: $1" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --stages | --budget | --build | --tests)
      [ $# -ge 2 ] || refuse "$1 needs a value; try --help" ;;&
    --stages) stages=${2//,/ }; shift 2 ;;
    --budget) budget=$2; shift 2 ;;
    --tests) tests=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --test) stages="build test"; shift ;;
    --quick) quick=(--quick) run=$root/out/gpu-run-quick; shift ;;
    -h | --help) sed -n '3,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) refuse "unknown option '$1'; try --help" ;;
  esac
done
for stage in $stages; do
  [[ " $all_stages " == *" $stage "* ]] || refuse "no stage '$stage': there are ${all_stages// /, }"
done
[[ $budget =~ ^[0-9]+$ ]] || refuse "--budget $budget: give whole seconds"
out=${OUT:-$root/out/gpu}
mkdir -p "$out" "$run/logs" || exit 4
is_quick() { [ ${#quick[@]} -gt 0 ]; }

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
gpu_name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
if [ "$gpus" -gt 1 ]; then transports="peer nccl"; else transports="peer"; fi
# cuDNN and NCCL are opened at run time; torch brings them.
for package in cudnn nccl; do
  folder=$(python3 -c "import nvidia.$package as p; print(list(p.__path__)[0] + '/lib')" \
    2>/dev/null)
  [ -z "$folder" ] || export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done

# limit SECONDS COMMAND...: nothing may hang.
limit() { timeout --kill-after=15 "$@" </dev/null; }
# ranks SECONDS N PROGRAM...
ranks() { limit "$1" bash "$root/jobscripts/local/mpirun.sh" -n "$2" "${@:3}"; }
# logged NAME COMMAND...: output to NAME.log, whose end is shown when it fails.
logged() {
  "${@:2}" >"$run/logs/$1.log" 2>&1 && return
  local code=$?
  echo "failed with exit code $code$([ "$code" != 124 ] || echo ", out of time")"
  tail -n 25 "$run/logs/$1.log"
  return 1
}
has_torch() { python3 -c "import torch" 2>/dev/null || { echo "no torch here: no peers"; false; }; }
# The machine model measured with a transport; before it was measured, a published one.
machine_of() {
  if [ -f "$run/machine-$1.toml" ]; then echo "$run/machine-$1.toml"
  else echo "$root/inputs/machines/h100-8x400g.toml"; fi
}

stage_build() {
  logged configure limit 300 cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DTESSERA_CUDA=ON || return 1
  sed -n 's/^-- \(Without .*\)/\1/p' "$run/logs/configure.log"
  logged build limit 1800 cmake --build "$build" || return 1
  "$build/drivers/tessera-info" | tee "$run/info.txt"
}

# Ranks that share a GPU take turns on it; through this daemon they work side by side, which makes
# tests of 8 and 9 ranks ten times faster. Without it they run all the same.
start_mps() {
  command -v nvidia-cuda-mps-control >/dev/null || return
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
  nvidia-cuda-mps-control -d || unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}
stop_mps() {
  [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return
  echo quit | nvidia-cuda-mps-control
  rm -rf "$CUDA_MPS_PIPE_DIRECTORY"
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}
trap stop_mps EXIT

# The test of faults without the daemon; all others with it, as many side by side as there are
# cores, up to half of the processes that the daemon takes.
stage_test() {
  local failed=0 jobs
  jobs=$(nproc)
  [ "$jobs" -le 24 ] || jobs=24
  local some=(limit 1800 ctest --test-dir "$build" -L gpu -R "$tests" -V)
  "${some[@]}" -E '^gpu[.]gpu_' >"$run/logs/tests.log" 2>&1 || failed=1
  start_mps
  "${some[@]}" -j "$jobs" -E '^gpu[.]faults$' >>"$run/logs/tests.log" 2>&1 || failed=1
  stop_mps
  if ! grep -q "tests passed" "$run/logs/tests.log"; then
    echo "no test is called $tests" >&2
    failed=1
  fi
  grep -E "error ratio|error of|FAILED|Failure|Skipped|tests passed|tests failed|%|Test +#" \
    "$run/logs/tests.log" | grep -v "^[0-9]*: .*RUN" | tail -n 100 >"$run/tests.txt"
  tail -n 40 "$run/tests.txt"
  return "$failed"
}

stage_tile() {
  local failed=0
  rm -f "$run/tile.json" "$run/torch.json"  # of an older program
  limit 300 "$build/perf/bench_gpu_tile" "$run/tile.json" "${quick[@]}" || failed=1
  has_torch || return "$failed"
  limit 300 python3 "$root/perf/torch_sdpa.py" "$run/torch.json" "${quick[@]}" || failed=1
  return "$failed"
}

# Masks with gaps beside FlexAttention; what stage tile did not measure is measured here.
stage_flex() {
  local failed=0
  rm -f "$run/flex.json"
  if [ ! "$run/tile.json" -nt "$build/perf/bench_gpu_tile" ]; then
    limit 120 "$build/perf/bench_gpu_tile" "$run/tile.json" "${quick[@]:---masks}" || return 1
  fi
  has_torch || return 1
  limit 200 python3 "$root/perf/torch_flex.py" "$run/tile.json" "$run/flex.json" \
    2>"$run/logs/flex.log" || { failed=1; tail -n 15 "$run/logs/flex.log"; }
  return "$failed"
}

stage_comm() {
  local failed=0 t
  for t in $transports; do
    ranks 200 "$gpus" "$build/drivers/tessera-comm" --device cuda --transport "$t" \
      --name "$gpus x $gpu_name, $t" --out "$run/machine-$t.toml" "${quick[@]}" || failed=1
  done
  [ "$gpus" -gt 1 ] || return "$failed"
  echo "NCCL held to one channel:"
  NCCL_MAX_NCHANNELS=1 NCCL_MAX_P2P_NCHANNELS=1 ranks 200 "$gpus" "$build/drivers/tessera-comm" \
    --device cuda --transport nccl --name "$gpus x $gpu_name, nccl, 1 channel" --quick \
    --out "$run/machine-nccl1.toml" >"$run/logs/comm-nccl1.log" 2>&1 || failed=1
  tail -n 1 "$run/logs/comm-nccl1.log"
  return "$failed"
}

# attention NAME SECONDS RANKS DECK KEY=VALUE...: one run; its report is NAME.json.
attention() {
  local name=$1 seconds=$2 number=$3 deck=$root/inputs/attention/$4 set=() pair
  for pair in "${@:5}"; do set+=(--set "$pair"); done
  logged "$name" ranks "$seconds" "$number" "$build/drivers/tessera-attention" "$deck" \
    --out "$run/last" --json "$run/last/report.json" "${set[@]}" || return 1
  mv "$run/last/report.json" "$run/$name.json"
}

# Lines of "tokens transport kv_heads mask channels ranks", in the order in which they are run.
cases_of_ours() {
  local n t kv mask lengths="8192 16384 32768 65536" long="131072 262144"
  if is_quick; then lengths="8192 16384" long=; fi
  for n in $lengths $long; do echo "$n peer 32 causal 0 $gpus"; done
  for t in $transports; do
    for mask in causal full; do for kv in 32 8; do
      [ "$t $kv $mask" != "peer 32 causal" ] || continue
      for n in $lengths; do echo "$n $t $kv $mask 0 $gpus"; done
      [ "$t $kv $mask" != "nccl 32 causal" ] ||
        printf "%s nccl 32 causal 1 $gpus\n" 8192 32768
    done; done
  done
  # One GPU under masks with gaps, beside FlexAttention.
  for mask in causal full window documents; do
    if [ "$gpus" -gt 1 ] || [ "$mask" = window ] || [ "$mask" = documents ]; then
      echo "$n peer 32 $mask 0 1"
    fi
  done
  for n in $long; do for t in $transports; do for mask in causal full; do for kv in 32 8; do
    [ "$t $kv $mask" = "peer 32 causal" ] || echo "$n $t $kv $mask 0 $gpus"
  done; done; done; done
}

schemes_on() {
  local list="ring,all_gather,mesh"
  [ $((32 % $1)) != 0 ] || list+=",ulysses"
  [ "$1" -lt 4 ] || list+=",double_ring,unified"
  if [ "$1" = 1 ]; then echo ring; else echo "$list"; fi
}

# Lengths of the documents that bench_gpu_tile ran under.
documents_of_tile() {
  if [ ! -f "$run/tile.json" ]; then
    echo "no documents without tile.json: run stage tile or flex first" >&2
    return 1
  fi
  python3 - "$run/tile.json" <<'END'
import json, sys
masks = {mask["name"]: mask["bands"] for mask in json.load(open(sys.argv[1]))["masks"]}
print(",".join(str(band[1] - band[0]) for band in masks["documents"]))
END
}

# Names of reports: ours_<ranks>_<transport>_<tokens>_<mask>_kv<heads>.json
run_case() {
  local n=$1 t=$2 kv=$3 mask=$4 channels=$5 number=$6 seconds=$7 repeats=20 warmup=3 lengths
  if [ "$n" -ge 65536 ] || is_quick; then repeats=5 warmup=1; fi
  local set=("attention.sequence=$n" "attention.kv_heads=$kv" "attention.mask=$mask"
    "attention.schemes=$(schemes_on "$number")" "parallel.transport=$t" "run.warmup=$warmup"
    "run.repeats=$repeats" "machine.file=$(machine_of "$t$([ "$channels" = 0 ] || echo 1)")")
  [ "$channels" = 0 ] || set+=("parallel.nccl_channels=$channels")
  [ "$mask" != window ] || set+=("attention.window=4096")
  if [ "$mask" = documents ]; then
    lengths=$(documents_of_tile) || return 1
    set+=("attention.document_lengths=$lengths")
  fi
  attention "$name" "$seconds" "$number" gpu.toml "${set[@]}" || return 1
  grep -o "forward_best=.*" "$run/logs/$name.log"
}

stage_ours() {
  local failed=0 begin=$SECONDS left=() kept=0 n t kv mask channels number name key coming at spent
  local -A last=()
  while read -r n t kv mask channels number; do
    name=ours_${number}_$t$([ "$channels" = 0 ] || echo 1)_${n}_${mask}_kv$kv
    if [ "$run/$name.json" -nt "$build/drivers/tessera-attention" ]; then
      kept=$((kept + 1))
      continue
    fi
    rm -f "$run/$name.json"  # of an older program
    # A longer case takes 2 to 4 times as long as the one before it, with fewer repeats the same.
    key="$t $kv $mask $channels $number"
    coming=$((3 * ${last[$key]:-5})) spent=$((SECONDS - begin))
    if [ $((spent + coming)) -gt "$budget" ]; then
      left+=("$name")
      continue
    fi
    at=$SECONDS
    printf '%-38s ' "$name"
    run_case "$n" "$t" "$kv" "$mask" "$channels" "$number" $((budget - spent + 60)) || failed=1
    last[$key]=$((SECONDS - at))
  done < <(cases_of_ours)
  [ "$kept" = 0 ] || echo "kept $kept reports that are newer than the program"
  [ ${#left[@]} = 0 ] || echo "left out by --budget $budget: ${left[*]}"
  return "$failed"
}

# A case that ends the processes (an illegal memory access, as seen with cuDNN and NCCL of torch
# 2.11) is noted in the report; another start goes on behind it.
stage_peers() {
  local begin=$SECONDS rest=$budget
  rm -f "$run/peers.json"
  has_torch || return 1
  while [ "$rest" -gt 0 ]; do
    limit $((rest + 120)) python3 -m torch.distributed.run --standalone --nproc-per-node="$gpus" \
      "$root/perf/torch_peers.py" "$run/peers.json" --resume --budget "$rest" "${quick[@]}" \
      2>"$run/logs/peers.log" && return
    grep -q '"running"' "$run/peers.json" 2>/dev/null || break  # it did not come to a case
    grep -m 1 -i 'error' "$run/logs/peers.log" | cut -c 1-200
    rest=$((budget - (SECONDS - begin)))
  done
  tail -n 15 "$run/logs/peers.log"
  return 1
}

stage_pass() {
  rm -f "$run/pass.json"
  ranks 300 1 "$build/perf/bench_gpu_pass" "$run/pass.json" "$(machine_of peer)" "${quick[@]}"
}

# 9 ranks on one GPU; the machine is that of one rank, whose ninth each of them gets, with links of
# the rate that transfers are slowed down to.
stage_throttle() {
  local rate=$((64 << 20)) machine=$run/machine-throttle.toml
  rm -f "$run/throttle.json"
  logged comm-one ranks 120 1 "$build/drivers/tessera-comm" --device cuda --quick \
    --out "$run/machine-one.toml" || return 1
  sed -e 's/^name = .*/name = "9 ranks on one GPU, slow links"/' \
    -e 's/^ranks_per_node = .*/ranks_per_node = 9/' \
    -e 's/^cores_per_node = .*/cores_per_node = 1/' \
    -e "s/^bandwidth_b_s = .*/bandwidth_b_s = $rate.0/" \
    "$run/machine-one.toml" >"$machine"
  CUDA_VISIBLE_DEVICES=0 attention throttle 300 9 gpu-throttle.toml \
    "machine.file=$machine" "parallel.throttle=$rate" || return 1
  python3 "$root/perf/mesh_against_ring.py" "$run/throttle.json"
}

stage_report() { limit 120 python3 "$root/perf/gpu_report.py" "$run"; }

# At most 7 files, since some machines hand back no more: the rest in one archive.
collect() {
  {
    cat "$run/calls.txt"
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm \
      --format=csv,noheader 2>/dev/null | sort | uniq -c || echo "no nvidia-smi"
    nvcc --version 2>/dev/null | tail -n 2 | head -n 1
  } >"$run/conditions.txt"
  local machine file
  machine=$(machine_of peer)
  [[ $machine != "$run"/* ]] || cp "$machine" "$run/machine.toml"
  for file in report.txt report.md gpu.png conditions.txt machine.toml tests.txt; do
    [ ! -f "$run/$file" ] || cp "$run/$file" "$out/"
  done
  tar -C "$run" --exclude=./last -czf "$out/reports.tar.gz" .
}

echo "date: $(date -u +%Y-%m-%dT%H:%MZ)   command: $command" | tee -a "$run/calls.txt"
echo "$gpus GPUs${gpu_name:+: $gpu_name}"
status=0
for stage in $all_stages; do
  [[ " $stages " == *" $stage "* ]] || continue
  begin=$SECONDS result=ok
  echo "== $stage"
  collect  # conditions for the report, and files so far in case this call is ended
  if [ "$gpus" = 0 ] && [[ " build test report " != *" $stage "* ]]; then
    echo "no GPU here (nvidia-smi -L lists none)"
    result=FAILED
  else
    "stage_$stage" || result=FAILED
  fi
  [ $result = ok ] || status=1
  echo "== $stage: $result after $((SECONDS - begin)) s" | tee -a "$run/stages.txt"
done
collect
exit $status
