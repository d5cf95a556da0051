#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The one place for launcher options that root, containers and oversubscription need.
# Usage: mpirun.sh -n RANKS PROGRAM [ARGUMENTS...]; more mpirun options may stand before PROGRAM.
set -euo pipefail
launcher=${TESSERA_MPIRUN:-mpirun}
options=()
if "$launcher" --version 2>/dev/null | grep -qi "open mpi\|open-rte"; then
  options+=(--oversubscribe --bind-to none)
  [ "$(id -u)" = 0 ] && options+=(--allow-run-as-root)
  # Ranks share cores: a waiting rank must give its core to a computing one.
  export OMPI_MCA_mpi_yield_when_idle=${OMPI_MCA_mpi_yield_when_idle:-1}
  # One host: shared memory and loopback, whatever adapters the host shows to its containers.
  export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1} OMPI_MCA_btl=${OMPI_MCA_btl:-^openib,uct,ofi}
  # Single-copy transfers need ptrace rights that containers often lack; messages still go by
  # shared memory. No warning about it.
  export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}
fi
exec "$launcher" "${options[@]}" "$@"
