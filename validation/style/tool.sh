#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a tool over the sources when it is here, else says so and skips (77).
# Usage: tool.sh ROOT shellcheck | clang-format
set -euo pipefail
cd "$1"
tool=$2
command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
files_named() { # all files below the source folders whose name matches one of the patterns
  local pattern args=()
  for pattern in "$@"; do args+=(-o -name "$pattern"); done
  find src kernels drivers validation perf inputs jobscripts .ci -type f \
    \( "${args[@]:1}" \) -print0 2>/dev/null
}
case $tool in
  shellcheck)
    files_named '*.sh' '*.sbatch' '*.pbs' run | xargs -0 shellcheck -x -P SCRIPTDIR -S warning ;;
  clang-format)
    version=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
    # Other versions format differently; the sources keep to this one.
    [ "$version" = 14 ] || { echo "skipped: clang-format is $version, needs 14"; exit 77; }
    files_named '*.hpp' '*.cpp' | xargs -0 clang-format --dry-run -Werror ;;
esac
echo "$tool has nothing to say"
