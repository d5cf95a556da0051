#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills a job of 2 ranks at random points of its saves (field report OB-089): the file of the last
# complete save must be there and whole each time.
# Usage: io_kill.sh PROGRAM MPIRUN
set -euo pipefail
program=$1 mpirun=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
RANDOM=1
rounds=6 killed_in_a_save=0
for _ in $(seq $rounds); do
  setsid bash "$mpirun" -n 2 "$program" loop "$folder/x.h5" >"$folder/log" 2>&1 &
  job=$!
  for _ in $(seq 200); do # the first save of the round may take a while on a busy machine
    [ -e "$folder/x.h5" ] && break
    sleep 0.05
  done
  sleep "0.$((RANDOM % 900 + 100))"
  if ! kill -KILL -- "-$job" 2>/dev/null; then
    cat "$folder/log"
    echo "the job ended by itself"
    exit 1
  fi
  wait "$job" 2>/dev/null || true
  # The launcher is gone; its ranks notice that and end.
  for _ in $(seq 100); do
    pgrep -f "$program loop $folder" >/dev/null || break
    sleep 0.1
  done
  if compgen -G "$folder/x.h5.tmp-*" >/dev/null; then
    killed_in_a_save=$((killed_in_a_save + 1))
    rm -f "$folder"/x.h5.tmp-*
  fi
  "$program" check "$folder/x.h5"
done
echo "$killed_in_a_save of $rounds jobs were killed in the middle of a save"
[ "$killed_in_a_save" -gt 0 ]
