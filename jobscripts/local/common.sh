#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Helpers of the local scripts; to be sourced. Sets `root`, the top of the source tree.
# shellcheck disable=SC2034 # for the script that sources this
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$1" >&2; exit "${2:-3}"; }

# The Python for our scripts: the system's when it has the packages, since another python3 may come
# first in PATH without them. Empty when neither has.
find_python() {
  local python
  for python in /usr/bin/python3 python3; do
    if "$python" -c 'import importlib.util as u, sys
sys.exit(any(u.find_spec(m) is None for m in ("h5py", "numpy", "matplotlib")))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
}

# Parallel jobs: one per core, fewer when memory is short (a compiler takes up to 1.5 GB).
num_jobs() {
  local cores memory
  cores=$(nproc 2>/dev/null || echo 2)
  memory=$(awk '/MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo 2>/dev/null || echo 1)
  [ "${memory:-0}" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}
