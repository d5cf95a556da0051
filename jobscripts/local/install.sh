#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks every command and library that Tessera needs, each by itself, and installs what is missing
# by package name where that is possible (root and apt). Elsewhere it names what is missing and what
# provides it. Says nothing when all is there. TESSERA_SKIP_INSTALL=1 leaves everything to CMake.
# shellcheck disable=SC2317 # the checks are called through a table
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ "${TESSERA_SKIP_INSTALL:-0}" = 1 ] && exit 0

# Folders that compilers and find_package look into: system, modules (CPATH), Spack (prefixes).
prefixes() {
  local p
  printf '%s\n' /usr /usr/local
  for p in "${CMAKE_PREFIX_PATH:-}" "${CPATH:-}" "${C_INCLUDE_PATH:-}" "${CPLUS_INCLUDE_PATH:-}"; do
    tr ':;' '\n' <<<"$p"
  done
  compgen -v | grep -E '_(ROOT|DIR|HOME|PREFIX)$' | while read -r p; do printf '%s\n' "${!p}"; done
}

mapfile -t places < <(prefixes | grep '^/' | sort -u)
has_command() { command -v "$1" >/dev/null 2>&1; }
has_header() { # has_header FILE...: one of the files below any place
  local place file
  for file in "$@"; do
    for place in "${places[@]}"; do
      [ -e "$place/include/$file" ] || [ -e "$place/$file" ] && return 0
    done
  done
  return 1
}
has_blas() {
  local place
  for place in "${places[@]}" "${MKLROOT:-/none}"; do
    # The name without a version, which is what a linker needs.
    compgen -G "$place/lib*/lib*blas*.so" >/dev/null && return 0
    compgen -G "$place/lib/*/lib*blas*.so" >/dev/null && return 0
    compgen -G "$place/lib*/lib*blas*.a" >/dev/null && return 0
    compgen -G "$place/lib*/libmkl_rt.so" >/dev/null && return 0
  done
  return 1
}
has_compiler() {
  local cxx=${CXX:-c++} version
  has_command "$cxx" || return 1
  version=$("$cxx" -dumpversion 2>/dev/null) || return 0 # another vendor's: CMake will tell
  "$cxx" --version 2>/dev/null | grep -qi clang && return 0
  [ "${version%%.*}" -ge 11 ]
}
has_cmake() {
  has_command cmake || return 1
  local v
  v=$(cmake --version | sed -n '1s/[^0-9]*\([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  [ "${v% *}" -gt 3 ] || [ "${v#* }" -ge 25 ]
}
has_python() { [ -n "$(find_python)" ]; }
has_hdf5() {
  has_command h5pcc || has_command h5cc || has_header hdf5.h hdf5/openmpi/hdf5.h hdf5/mpich/hdf5.h \
    hdf5/serial/hdf5.h
}

# what is it | how to see it | Debian packages | Spack or module name
needs='C++20 compiler (g++ >= 11 or clang >= 14)|has_compiler|g++|gcc
CMake >= 3.25|has_cmake|cmake|cmake
make or ninja|has_command ninja || has_command make|ninja-build|ninja
MPI launcher (mpirun, mpiexec or srun)|has_command mpirun || has_command mpiexec || has_command srun|openmpi-bin|openmpi
MPI headers and libraries|has_command mpicc || has_command cc|libopenmpi-dev|openmpi
HDF5, best with MPI|has_hdf5|libhdf5-openmpi-dev|hdf5 +mpi
Kokkos >= 3.4|has_header Kokkos_Core.hpp trilinos/Kokkos_Core.hpp kokkos/Kokkos_Core.hpp|libtrilinos-kokkos-dev|kokkos
BLAS|has_blas|libopenblas-serial-dev|openblas
fmt|has_header fmt/format.h|libfmt-dev|fmt
spdlog|has_header spdlog/spdlog.h|libspdlog-dev|spdlog
nlohmann-json|has_header nlohmann/json.hpp|nlohmann-json3-dev|nlohmann-json
CLI11|has_header CLI/CLI.hpp|libcli11-dev|cli11
toml11|has_header toml.hpp toml11/toml.hpp|libtoml11-dev|toml11
Random123|has_header Random123/philox.h|librandom123-dev|random123
GoogleTest|has_header gtest/gtest.h|libgtest-dev|googletest
Google Benchmark|has_header benchmark/benchmark.h|libbenchmark-dev|benchmark
Python 3 with h5py, numpy, matplotlib|has_python|python3 python3-h5py python3-numpy python3-matplotlib|py-h5py py-matplotlib'

# Fills `names`, `packages` and `specs` with what is missing.
find_missing() {
  names=() packages=() specs=()
  local what check package spec
  while IFS= read -r line; do
    # The check itself may hold "||", so the fields are cut from both ends.
    what=${line%%|*} spec=${line##*|}
    check=${line#*|} check=${check%|*} package=${check##*|} check=${check%|*}
    if ! eval "$check"; then
      names+=("$what") specs+=("$spec")
      packages+=("$package")
    fi
  done <<<"$needs"
}

find_missing
[ ${#names[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && has_command apt-get; then
  read -ra install <<<"${packages[*]}"
  say "installing ${install[*]}"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  apt-get update -qq >"$log" 2>&1 || say "apt-get update failed; trying with the old lists"
  # ccache and git only make things nicer: a machine without them is fine.
  apt-get install -y -qq --no-install-recommends "${install[@]}" >>"$log" 2>&1 ||
    { tail -n 20 "$log" >&2; say "apt-get install failed"; }
  rm -f "$log"
  hash -r
  find_missing
  [ ${#names[@]} -eq 0 ] && exit 0
fi

{
  echo "error: Tessera needs what is missing here:"
  for i in "${!names[@]}"; do
    printf '  %-42s Debian: %s; Spack or module: %s\n' "${names[i]}" "${packages[i]}" "${specs[i]}"
  done
  echo "  try: load the modules or 'spack load' them, or set CMAKE_PREFIX_PATH to their prefixes."
  echo "       TESSERA_SKIP_INSTALL=1 skips this check when CMake knows better."
} >&2
exit 3
