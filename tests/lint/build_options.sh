#!/usr/bin/env bash
# The two commands of the README share build/release: whatever the quickstart leaves out of it (-D), tests/run.sh must
# put in again (-D or -U). Usage: build_options.sh <root of the tree>
set -uo pipefail
cd "$1" || exit 2
configured() { sed -nE "s/^ *run cmake --preset release (.*)/\1/p" "$1" | grep -oE -- "-[$2]ACCRUE_[A-Z_]+" | cut -c3- | sort -u; }
narrowed=$(configured examples/quickstart.sh D)
[ -n "$narrowed" ] || { echo "examples/quickstart.sh: no line 'run cmake --preset release ...' with options"; exit 1; }
missing=$(comm -23 <(echo "$narrowed") <(configured tests/run.sh DU))
[ -z "$missing" ] || { echo "tests/run.sh: does not give back" $missing; exit 1; }
