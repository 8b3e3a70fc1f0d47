#!/usr/bin/env bash
# benchmarks/device/run.sh --simulated: its steps with the programs that they call, on the simulated device. The step
# `tests` is left to the suite that this is a part of. Usage: run_script_simulated.sh <root of the tree> <build> <scratch folder>
set -uo pipefail
script=$1/benchmarks/device/run.sh out=$3
rm -rf "$out"
"$script" --simulated --budget 1140 --build "$2" --out "$out" --steps "tools query ceilings check kernels training torch tuning sanitizer" ||
  { echo "run.sh --simulated failed" && exit 1; }
faults=0
fault() {
  echo "$1"
  faults=$((faults + 1))
}
grep -q "^# simulated device, 20" "$out/summary.md" || fault "the summary does not begin with device and date"
row() { grep -qE "^\| $1 \| $2 \|" "$out/summary.md" || fault "'$1' is not '$2': $(grep "^| $1" "$out/summary.md")"; }
for step in tools ceilings check kernels training tuning; do row $step passed; done
for step in query torch sanitizer; do row $step "left out"; done
for op in attention linear max_pool2d relu residual_add scale; do
  grep -q "\"op\": \"$op\"" "$out/bench.json" || fault "bench.json has no $op"
done
grep -qE "\"declined\": \"cuDNN declined: (the device is simulated|this build was made without cuDNN's headers)\"" "$out/bench.json" || fault "bench.json does not say who declined"
grep -q '"device": "cuda:0"' "$out/bench.json" || fault "the kernels did not run on cuda"
grep -q '"failed"' "$out/bench.json" && fault "bench.json names failures"
[ "$(grep -cE '^linear_gelu, one product .* error ' "$out/log.txt")" -ge 2 ] || fault "no GELU in a product, without and with tuning"
[ "$(grep -c '"loss"' "$out/training.jsonl")" -ge 3 ] || fault "the training's log has no three steps"
[ "$faults" = 0 ]
