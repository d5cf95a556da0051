#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tessera-attention when one rank dies or hangs in the middle: all ranks end within 10 s, the
# message names the rank, no results are left half-written.
# Usage: rank_faults.sh PROGRAM MPIRUN.SH kill | hang
set -uo pipefail
program=$1 mpirun=$2 case=$3
folder=$(mktemp -d)
fail() { echo "FAILED $case: $1"; cat "$folder/log"; exit 1; }
job=
cleanup() {
  [ -z "$job" ] || kill -KILL "$job" 2>/dev/null
  rm -rf "$folder"
}
trap cleanup EXIT

cat >"$folder/long.toml" <<'TOML'
[attention]
schemes = ["ring"]
passes = ["forward"]
sequence = 1024
query_heads = 2
kv_heads = 2
head_dim = 64
dtype = "f32"
[run]
warmup = 1
repeats = 100000
[verify]
enabled = false
TOML
watchdog=60
[ "$case" = hang ] && watchdog=3
bash "$mpirun" -n 3 "$program" "$folder/long.toml" --out "$folder/out" --watchdog "$watchdog" \
  >"$folder/log" 2>&1 &
job=$!

# The ranks in the order of their start: the children of the launcher.
ranks=()
for _ in $(seq 100); do
  read -ra ranks <"/proc/$job/task/$job/children" || true
  grep -q "1 of 1" "$folder/log" && [ ${#ranks[@]} -eq 3 ] && break
  sleep 0.1
done
[ ${#ranks[@]} -eq 3 ] || fail "${#ranks[@]} ranks were started"
sleep 1.5
kill -0 "$job" || fail "the job ended by itself"
begin=$SECONDS
if [ "$case" = kill ]; then kill -KILL "${ranks[1]}"; else kill -STOP "${ranks[1]}"; fi
wait "$job"
code=$?
job=
# Gone, or dead and not yet collected by the init process; the launcher may end before its ranks do.
for pid in "${ranks[@]}"; do
  while :; do
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$pid/status" 2>/dev/null)
    case $state in "" | Z | X) break ;; esac
    [ $((SECONDS - begin)) -le 10 ] || fail "process $pid is still there in state $state"
    sleep 0.1
  done
done
took=$((SECONDS - begin))
[ "$took" -le 10 ] || fail "took $took s"
if [ "$case" = kill ]; then
  [ "$code" -ne 0 ] || fail "exit code 0"
  text="rank 1 .*signal 9"
else
  [ "$code" -eq 6 ] || fail "exit code $code instead of 6"
  # Which rank is missing shows only when the others wait for its messages, not in a barrier.
  text="watchdog: .*\(rank 1\|collective\)"
fi
grep -q -- "$text" "$folder/log" || fail "no '$text' in the output"
[ ! -e "$folder/out/results.h5" ] || fail "results of an unfinished run"
echo "ok: $case ended with code $code after $took s: $(grep -m1 -- "$text" "$folder/log")"
