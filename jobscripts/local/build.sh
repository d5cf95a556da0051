#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures and builds. Usage: build.sh [PRESET] [CMAKE OPTIONS...]; presets: release (default,
# folder build/), cuda, debug, sanitize. TESSERA_TARGETS="a b" builds only these.
set -euo pipefail
. "$(dirname "$0")/common.sh"
preset=${1:-release}
[ $# -gt 0 ] && shift
cd "$root"
folder=build
[ "$preset" = release ] || folder=build-$preset
if [ ! -e "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then
  export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
  cat "$log" >&2
  exit 3
fi
# What this build does without, and what that costs.
sed -n 's/^-- \(Without .*\)/\1/p' "$log"
say "building in $folder/"
read -ra targets <<<"${TESSERA_TARGETS:-all}"
cmake --build --preset "$preset" -j "$(num_jobs)" --target "${targets[@]}"
