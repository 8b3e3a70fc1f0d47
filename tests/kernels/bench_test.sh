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
asked=$(grep -c "^[a-z0-9_]*_cudnn " "$scratch/text")
declined=$(grep -c "^[a-z0-9_]*_cudnn .* [a-z]*[0-9]* *$why$" "$scratch/text")
for op in attention max_pool2d; do
  grep -q "^${op}_backward_cudnn .* bfloat16 *$why$" "$scratch/text" || fault "no line says that cuDNN declined $op"
done
[ "$declined" = "$asked" ] || fault "cuDNN was asked $asked times and declined $declined times"
# Keys come in the order of the alphabet: figures would stand between "dtype" and the kernel.
[ "$(grep -A2 "\"declined\": \"$why\"" "$scratch/bench.json" | grep -c '"kernel": "[a-z0-9_]*_cudnn"')" = "$declined" ] ||
  fault "the JSON does not say who declined"
! grep -A4 '"declined"' "$scratch/bench.json" | grep -E '"(seconds|rate|error)"' || fault "the JSON has figures"

# As docs/benchmarking.md writes it. Short names of dtypes are names.
documented=$(sed -nE 's,^build/release/benchmarks/accrue-bench (run .*) result\.json$,\1,p' "${BASH_SOURCE[0]%/*}/../../docs/benchmarking.md")
[ -n "$documented" ] || fault "docs/benchmarking.md has no example"
# shellcheck disable=SC2086
"$bench" $documented "$scratch/documented.json" --seconds 0 > "$scratch/text" || fault "the documented '$documented' fails"
[ "$(grep -c '^layer_norm.* float32 ' "$scratch/text")" -gt 0 ] || fault "the documented run has no case"
! grep -q 'bfloat16' "$scratch/text" || fault "--dtype f32 lets other dtypes through"
for dtype in bf16:bfloat16 f64:float64; do
  [ "$("$bench" list --op gelu --dtype "${dtype%:*}")" = "$("$bench" list --op gelu --dtype "${dtype#*:}")" ] || fault "${dtype%:*} is not ${dtype#*:}"
done
[ "$("$bench" list --op gelu,silu)" = "$("$bench" list --op gelu; "$bench" list --op silu)" ] || fault "--op takes no list"
pattern=$("$bench" list --op layer_norm 768) || fault "no pattern may follow --op"
[ "$pattern" = "$("$bench" list 768 --op layer_norm)" ] && [ -n "$pattern" ] || fault "a pattern behind --op selects something else"
for ops in gelo gelu,gelo; do
  if "$bench" list --op "$ops" >"$scratch/text" 2>&1; then fault "--op $ops is taken"; fi
  grep -q "gelo.* not in " "$scratch/text" || fault "what is wrong with --op $ops is not said: $(cat "$scratch/text")"
done
[ "$faults" = 0 ]
