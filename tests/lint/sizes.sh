#!/usr/bin/env bash
# No source file over 500 lines: it wants to be two. Usage: sizes.sh <root of the tree>
set -uo pipefail
cd "$1" || exit 2
long=$(find . \( -path ./build -o -path ./.git \) -prune -o -type f \( -name '*.h' -o -name '*.cpp' -o \
  -name '*.cu' -o -name '*.cuh' -o -name '*.cmake' -o -name '*.sh' -o -name '*.py' \) -exec wc -l {} + |
  awk '$2 != "total" && $1 > 500 {print $2 ": " $1 " lines, at most 500"}')
[ -z "$long" ] || { echo "$long" && exit 1; }
