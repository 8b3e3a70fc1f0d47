#!/bin/bash
# Every kernel agrees with its reference at the sizes that are timed. A case that is declined has no figure: who declined
# it, and why, stands on the screen and in the JSON.
#   bench_test.sh <accrue-bench> <scratch folder>
set -u
bench=$1
scratch=$2
mkdir -p "$scratch"
faults=0
fault() {
  echo "$*"
  faults=$((faults + 1))
}

"$bench" run --seconds 0 --json "$scratch/bench.json" | tee "$scratch/text"
[ "${PIPESTATUS[0]}" = 0 ] || fault "a kernel does not agree, or the run failed"
why="cuDNN declined: not on a CUDA device"
asked=$(grep -c "^attention_[a-z]*_cudnn " "$scratch/text")
declined=$(grep -c "^attention_[a-z]*_cudnn .* bfloat16 *$why$" "$scratch/text")
[ "$declined" -gt 0 ] || fault "no line says that cuDNN declined"
[ "$declined" = "$asked" ] || fault "cuDNN was asked $asked times and declined $declined times"
# Keys come in the order of the alphabet: figures would stand between "dtype" and the kernel.
[ "$(grep -A2 "\"declined\": \"$why\"" "$scratch/bench.json" | grep -c '"kernel": "attention_[a-z]*_cudnn"')" = "$declined" ] ||
  fault "the JSON does not say who declined"
! grep -A4 '"declined"' "$scratch/bench.json" | grep -E '"(seconds|rate|error)"' || fault "the JSON has figures"
[ "$faults" = 0 ]
