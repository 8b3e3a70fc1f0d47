#!/usr/bin/env bash
# One logical batch over one rank, over two, and over one with two threads: tokens per second, the ways taking turns,
# medians of the rounds. Usage: benchmarks/dist/scaling.sh <train_gpt> [rounds]
set -euo pipefail
program=$1 rounds=${2:-5}
root=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for _ in $(seq "$rounds"); do
  for way in "--threads 1" "-n 2 --threads 1" "--threads 2"; do
    # shellcheck disable=SC2086
    "$program" --device cpu --data "$root/examples/data/king_james.txt" --layers 6 --channels 384 --heads 6 --context 256 \
      --batch 8 --micro 2 --steps 6 --warmup 1 --eval-every 0 --save-every 0 --sample 0 --no-pictures --quiet \
      --out "$work/run" $way > "$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
    rate=$(grep -oE '"tokens_per_second":[0-9.e+]+' "$work/run/log.jsonl" | tail -1 | cut -d: -f2)
    echo "$rate" >> "$work/${way// /_}"
    rm -rf "$work/run"
  done
done
for way in "--threads 1" "-n 2 --threads 1" "--threads 2"; do
  sort -g "$work/${way// /_}" | awk -v way="$way" '{v[NR] = $1} END {printf "%-18s %8.0f tokens/s (%.0f to %.0f)\n", way, v[int((NR + 1) / 2)], v[1], v[NR]}'
done
