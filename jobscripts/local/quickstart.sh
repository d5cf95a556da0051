#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh machine to a picture: installs, builds, makes an input, measures this machine, runs
# attention in every scheme on 4 ranks and draws the result. A second run reuses build and input.
# Usage: quickstart.sh; more options of tessera-attention may follow: --set attention.mask=full
set -euo pipefail
here=$(dirname "$0")
. "$here/common.sh"
begin=$SECONDS
out=out/quickstart
ranks=4
deck=inputs/attention/quickstart.toml

bash "$here/install.sh"
python=$(find_python)
[ -n "$python" ] || die "no python3 with h5py, numpy and matplotlib"
TESSERA_TARGETS="tessera-attention tessera-comm tessera-plan tessera-info" bash "$here/build.sh"
cd "$root"
programs=build/drivers
mkdir -p "$out"
say "built after $((SECONDS - begin)) s"

# key NAME: a value of the deck, so that input and deck have one shape.
key() { sed -n "s/^$1 *= *\"\{0,1\}\([^\" #]*\).*/\1/p" "$deck" | head -n 1; }
generator=inputs/data/make_attention.py
if [ ! -s "$out/input.h5" ] || [ "$deck" -nt "$out/input.h5" ] ||
  [ "$generator" -nt "$out/input.h5" ]; then
  say "making $out/input.h5"
  "$python" "$generator" --sequence "$(key sequence)" --query-heads "$(key query_heads)" \
    --kv-heads "$(key kv_heads)" --head-dim "$(key head_dim)" --mask "$(key mask)" \
    --out "$out/input.h5"
fi

say "measuring this machine"
bash "$here/mpirun.sh" -n "$ranks" "$programs/tessera-comm" --quick \
  --head-dim "$(key head_dim)" --out "$out/machine.toml" \
  >"$out/machine.log" || { cat "$out/machine.log" >&2; exit 3; }
grep '^RESULT' "$out/machine.log"

say "running on $ranks ranks"
bash "$here/mpirun.sh" -n "$ranks" "$programs/tessera-attention" "$deck" --out "$out" \
  --set input.file="$out/input.h5" --set machine.file="$out/machine.toml" "$@"

"$python" perf/plot_attention.py "$out/report.json" --out "$out/attention.png"
say "done in $((SECONDS - begin)) s: $out/{results.h5,report.json,trace.json,attention.png}"
