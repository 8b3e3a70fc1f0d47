#!/usr/bin/env bash
# What ranks hold of parameters, gradients and optimizer state by what they divide (ZeRO's stages 0 to 3), measured by
# the allocator of rank 0 at its peak, beside 16 bytes per parameter divided as docs/distributed.md says.
# Usage: benchmarks/dist/state.sh <train_gpt> [ranks...]
set -euo pipefail
program=$1
shift
[ $# -gt 0 ] || set -- 2 4
root=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
parameters=10770432
mib() { awk -v n="$1" 'BEGIN {printf "%.1f", n / 1048576}'; }
printf '%5s %-16s %10s %10s %10s %14s %12s\n' ranks divided parameter gradient optimizer together_MiB formula_MiB
for ranks in "$@"; do
  for division in none optimizer gradients gradients/each parameters/each; do
    how=(--shard "${division%/*}")
    [ "$division" = "${division%/*}" ] || how+=(--reduce "${division#*/}")
    "$program" -n "$ranks" --device cpu --data "$root/examples/data/king_james.txt" --layers 6 --channels 384 --heads 6 \
      --context 64 --batch "$ranks" --micro 1 --steps 2 --warmup 1 --eval-every 0 --save-every 0 --sample 0 --threads 1 \
      --no-pictures "${how[@]}" --out "$work/run" > "$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
    case $division in
      none) formula=$((16 * parameters)) ;;
      optimizer | gradients) formula=$((8 * parameters + 8 * parameters / ranks)) ;;
      gradients/each) formula=$((4 * parameters + 12 * parameters / ranks)) ;;
      parameters/each) formula=$((16 * parameters / ranks)) ;;
    esac
    part() { grep -oE "peak .*" "$work/out" | grep -oE "$1 [0-9.]+ [KMG]iB" | head -1 | awk '{print $2 ($3 == "KiB" ? "K" : $3 == "GiB" ? "G" : "M")}'; }
    p=$(part parameter) g=$(part gradient) o=$(part optimizer)
    sum=$(printf '%s\n' "$p" "$g" "$o" | awk '{v = $1 + 0} /K$/ {v /= 1024} /G$/ {v *= 1024} {s += v} END {printf "%.1f", s}')
    printf '%5d %-16s %10s %10s %10s %14s %12s\n' "$ranks" "$division" "$p" "$g" "$o" "$sum" "$(mib $formula)"
    rm -rf "$work/run"
  done
done
