#!/usr/bin/env bash
# clang-tidy over every source file of the libraries, with the checks of .clang-tidy. Not part of the gates: it
# takes minutes. Usage: tests/lint/tidy.sh [build folder] [file ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source cmake/setup.sh
install_packages clang-tidy-14
build=${1:-build/release}
[ -f "$build/compile_commands.json" ] || { echo "tidy: configure $build first" >&2 && exit 2; }
[ $# -le 1 ] || shift
if [ $# -eq 0 ] || [ "$1" = "$build" ]; then
  # *_cpu.cpp and *_isa.cpp are compiled several times with GCC's target pragmas; clang does not know them.
  mapfile -t files < <(find core kernels nn optim dist data -name '*.cpp' ! -name '*_cpu.cpp' ! -name '*_isa.cpp')
else
  files=("$@")
fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(build_jobs)" clang-tidy-14 --quiet -p "$build" \
  --warnings-as-errors='*'
