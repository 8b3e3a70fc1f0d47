#!/bin/bash
# accrue-bench has no figure for a case that is declined, and says who declined it and why: on the screen and in the JSON.
#   bench_declines_test.sh <accrue-bench> <scratch folder>
set -u
bench=$1
scratch=$2
mkdir -p "$scratch"
faults=0
fault() {
  echo "$*"
  faults=$((faults + 1))
}

text=$("$bench" run attention_backward_cudnn --seconds 0 --json "$scratch/bench.json") || fault "exit code $?"
lines=$(grep -c "^attention_backward_cudnn .* bfloat16 *cuDNN declined: not on a CUDA device$" <<<"$text")
[ "$lines" -gt 0 ] || fault "no line says that cuDNN declined: $text"
[ "$(grep -c ^attention <<<"$text")" = "$lines" ] || fault "a line does not say so: $text"
[ "$(grep -c '"declined": "cuDNN declined: not on a CUDA device"' "$scratch/bench.json")" = "$lines" ] ||
  fault "the JSON does not say so: $(cat "$scratch/bench.json")"
! grep -E '"(seconds|rate|error)"' "$scratch/bench.json" || fault "the JSON has figures"
[ "$faults" = 0 ]
