#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How a job ends when something goes wrong: every case must end within 10 s with the right exit
# code and a message that names the rank. Usage: parallel_faults.sh PROGRAM MPIRUN.SH CASE
set -uo pipefail
program=$1 mpirun=$2 case=$3
fail() { echo "FAILED $case: $1"; echo "--- output"; cat "$log"; exit 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# expect CODE TEXT COMMAND...: runs the command, checks code, text and time.
expect() {
  local code=$1 text=$2 begin=$SECONDS got
  shift 2
  timeout 30 "$@" >"$log" 2>&1
  got=$?
  [ "$code" = any ] && [ "$got" -eq 0 ] && fail "exit code 0"
  [ "$code" = any ] || [ "$got" -eq "$code" ] || fail "exit code $got instead of $code"
  grep -q -- "$text" "$log" || fail "no '$text' in the output"
  [ $((SECONDS - begin)) -le 10 ] || fail "took $((SECONDS - begin)) s"
  echo "ok: $case ended with code $got after $((SECONDS - begin)) s: $(grep -m1 -- "$text" "$log")"
}

case $case in
  ok)      expect 0 "done on 3 ranks" bash "$mpirun" -n 3 "$program" ok 30 ;;
  agreed)  expect 4 "\[rank 2 .*\] cannot read slab" bash "$mpirun" -n 3 "$program" agreed
           [ "$(grep -c "cannot read slab" "$log")" -eq 1 ] || fail "said more than once" ;;
  throw)   expect 7 "\[rank 2 .*\] error: NaN in tile 3" bash "$mpirun" -n 3 "$program" throw ;;
  memory)  expect 3 "\[rank 2 .*\] error: out of memory" bash "$mpirun" -n 3 "$program" memory ;;
  kill)    expect any "rank 2 .*signal 9" bash "$mpirun" -n 3 "$program" kill 30 ;;
  hang)    expect 6 "\[rank 0\] watchdog: .*from rank 2" bash "$mpirun" -n 3 "$program" hang 2 ;;
  single)  # OB-120: four tasks were started, each sees one rank
           unset OMPI_COMM_WORLD_SIZE PMI_SIZE
           SLURM_NTASKS=4 expect 3 "SLURM_NTASKS=4 tasks" "$program" ok
           grep -q "srun --mpi=pmix" "$log" || fail "no hint"
           SLURM_STEP_NUM_TASKS=2 expect 3 "SLURM_STEP_NUM_TASKS=2" "$program" ok
           FLUX_JOB_SIZE=8 expect 3 "FLUX_JOB_SIZE=8" "$program" ok
           SLURM_NTASKS=1 expect 0 "done on 1 ranks" "$program" ok
           TESSERA_ALLOW_SINGLETON=1 SLURM_NTASKS=4 expect 0 "done on 1 ranks" "$program" ok
           SLURM_NTASKS=4 expect 0 "done on 1 ranks" bash "$mpirun" -n 1 "$program" ok ;;
  stop)    # the first SIGTERM asks, the program ends by itself with code 75
           expect 75 "asked to stop" timeout --preserve-status -s TERM 2 "$program" stop
           # shellcheck disable=SC2016 # expanded by the inner shell
           # the second one ends a program that takes its time
           expect 143 "asked to stop" \
             bash -c '"$0" stop 20 & sleep 1; kill $!; sleep 1; kill $!; wait $!' "$program" ;;
  *)       echo "unknown case $case"; exit 2 ;;
esac
