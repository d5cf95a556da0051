#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tessera-comm on a number of ranks: the machine file is complete and plausible, the output says the
# conditions, bad calls end with the right code and one message.
# Usage: parallel_comm.sh PROGRAM MPIRUN.SH RANKS PYTHON
set -uo pipefail
program=$1 mpirun=$2 ranks=$3 python=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "FAILED: $1"; cat "$folder/log"; exit 1; }

bash "$mpirun" -n "$ranks" "$program" --quick --head-dim 64 --name here --out "$folder/new/m.toml" \
  >"$folder/log" 2>&1 || fail "exit code $?"
grep -q "^RESULT program=tessera-comm ranks=$ranks " "$folder/log" || fail "no RESULT line"
[ "$ranks" -eq 1 ] || grep -q "latency of every pair" "$folder/log" || fail "no matrix"
[ "$(find "$folder/new" -type f | wc -l)" -eq 1 ] || fail "files were left behind"
"$python" - "$folder/new/m.toml" "$ranks" <<'PY' || fail "the machine file is not right"
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    data = tomllib.load(file)
machine, rates, ranks = data["machine"], data["rates"], int(sys.argv[2])
assert machine["name"] == "here" and machine["ranks_per_node"] == ranks, machine
assert 0 <= machine["overlap"] <= 1 and machine["cores_per_node"] >= 1, machine
for tier in ("intra", "inter"):
    assert 1e-9 < machine[tier]["latency_s"] < 1 and machine[tier]["bandwidth_b_s"] > 1e5, machine
pairs = {(r["op"], r["dtype"]) for r in rates}
ops = ("attention.forward", "attention.backward")
assert pairs == {(o, t) for o in ops for t in ("f64", "f32", "bf16", "f16")}, rates
assert len(rates) == len(pairs), rates
assert all(1e7 < r["flops_s"] < 1e14 and 0 <= r["overhead_s"] < 1 for r in rates), rates
print(f"{ranks} ranks: {machine}, {len(rates)} rates")
PY

expect() { # expect CODE TEXT ARGUMENTS...
  local code=$1 text=$2 got
  shift 2
  bash "$mpirun" -n "$ranks" "$program" "$@" >"$folder/log" 2>&1
  got=$?
  [ "$got" -eq "$code" ] || fail "exit code $got instead of $code for $*"
  [ "$(grep -c -- "$text" "$folder/log")" -eq 1 ] || fail "'$text' not said exactly once for $*"
  echo "ok: $* -> $code, $text"
}
expect 2 "did you mean '--quick'" --quik
expect 2 "head-dim" --head-dim 4
touch "$folder/file"
expect 4 "cannot create the folder" --quick --head-dim 64 --out "$folder/file/m.toml"
