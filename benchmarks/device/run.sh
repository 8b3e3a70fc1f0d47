#!/usr/bin/env bash
# Everything worth knowing from a machine with an NVIDIA GPU that is at hand for under ten minutes, in one folder: the
# device, its ceilings, a few ops checked, kernels beside the ceilings and beside PyTorch (where python3 has it), a
# training run, matrix products by measured algorithms, compute-sanitizer on a part of the suite, and the whole suite.
# What is worth most comes first. Every step has a time of its own and the rest goes on after a failure.
#
#   benchmarks/device/run.sh [--out FOLDER] [--build FOLDER] [--budget SECONDS] [--steps "a b ..."]
#                            [--dry-run] [--simulated]
#
#   --out        where results go: $OUT if that is set, else build/device-report
#   --build      an existing build to take as it is, for machines that lack what a build needs
#   --budget     seconds for all steps (570); a step that no longer fits is cut or left out, and with more all have more
#   --steps      only these; see --dry-run for their names
#   --dry-run    prints every step with its time and command, and runs nothing
#   --simulated  the same on the simulated device of the tests (preset sim), in small: to check this script
#
# Few files come out, since some ways home take only a few: summary.md, log.txt, bench.json, and what steps write.
# Exit code: 0 all steps passed or were left out with a reason, 1 some failed, 2 bad arguments.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${OUT:-$root/build/device-report} build="" budget=570 only="" dry=0 simulated=0
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }
bad() {
  echo "run.sh: $1; --help tells more" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage && exit 0 ;;
    --dry-run) dry=1 && shift && continue ;;
    --simulated) simulated=1 && shift && continue ;;
    --out | --build | --budget | --steps) [ $# -ge 2 ] || bad "$1 needs a value" ;;
    *) bad "unknown argument $1" ;;
  esac
  case $1 in
    --out) out=$2 ;;
    --build) build=$2 ;;
    --budget) budget=$2 ;;
    --steps) only=$2 ;;
  esac
  shift 2
done
[[ $budget =~ ^[1-9][0-9]*$ ]] || bad "--budget takes seconds, not '$budget'"
[ -n "$out" ] || bad "--out must not be empty"
[ -z "$build" ] || [ -d "$build" ] || [ "$dry" = 1 ] || bad "--build: no folder $build"
steps=(tools build query ceilings check kernels training torch tuning sanitizer tests)
for name in $only; do
  [[ " ${steps[*]} " = *" $name "* ]] || bad "--steps: no step '$name'; there are: ${steps[*]}"
done

case $out in /*) ;; *) out=$PWD/$out ;; esac
case ${build:-/} in /*) ;; *) build=$PWD/$build ;; esac
cd "$root" || exit 1
preset=cuda && [ "$simulated" = 0 ] || preset=sim
given=$build
build=${build:-build/$preset}
jobs=$(nproc 2>/dev/null || echo 2)
log=$out/log.txt
rows=() failures=0

# step <name> <seconds> <function>: runs it within its time and what is left, and notes how it went. A function that
# returns 77 was left out; the last line it printed says why.
step() {
  local name=$1 seconds=$2 action=$3 left begin code verdict tail
  [ -z "$only" ] || [[ " $only " = *" $name "* ]] || return 0
  [ "$budget" -le 570 ] || seconds=$((seconds * budget / 570))
  if [ "$dry" = 1 ]; then
    printf '%-10s at most %3d s\n' "$name" "$seconds"
    declare -f "$action" | sed '1,2d;$d'
    return 0
  fi
  left=$((budget - SECONDS))
  [ "$left" -ge "$seconds" ] || seconds=$left
  printf '\n===== %s (at most %d s)\n' "$name" "$seconds" | tee -a "$log"
  if [ "$seconds" -le 0 ]; then
    rows+=("| $name | left out | 0 s | no time left |")
    return 0
  fi
  begin=$SECONDS
  timeout --kill-after=5 "$seconds" bash -c "$action" >"$out/.step" 2>&1 </dev/null
  code=$?
  tee -a "$log" <"$out/.step"
  tail=$(grep -av '^[[:space:]]*$' "$out/.step" | tail -n 1 | tr -d '|`' | cut -c1-120)
  case $code in
    0) verdict=passed ;;
    77) verdict="left out" ;;
    124 | 137) verdict="out of time" failures=$((failures + 1)) ;;
    *) verdict="FAILED ($code)" failures=$((failures + 1)) ;;
  esac
  rows+=("| $name | $verdict | $((SECONDS - begin)) s | $tail |")
  printf '===== %s: %s after %d s\n' "$name" "$verdict" $((SECONDS - begin)) | tee -a "$log"
}

left_out() {
  echo "left out: $1"
  exit 77
}

step_tools() {
  uname -srm
  nproc
  for tool in cmake ninja g++ nvcc compute-sanitizer python3; do
    printf '%-18s %s\n' "$tool" "$(command -v "$tool" || echo 'not here')"
  done
  nvcc --version 2>/dev/null | tail -n 1
  [ "$simulated" = 1 ] || nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,clocks.max.sm,ecc.mode.current --format=csv
}

# Only for the architecture that is here: 9.0 has kernels of its own variant (90a).
architecture() {
  local of
  of=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
  [ "$of" != 90 ] || of=90a
  echo "${of:-native}"
}

# What all steps but the last need; that one builds the rest of the suite. A process of tests for each file, since every
# process opens the device.
step_build() {
  [ -z "$given" ] || left_out "an existing build was given: $given"
  options=(-DACCRUE_CPU_ISAS="portable;avx2" -DACCRUE_BENCHMARKS=ON -DACCRUE_TEST_FILES=ON)
  targets=(cuda_ceilings accrue-bench accrue_test_kernels train_gpt)
  [ "$simulated" = 1 ] || options+=("-DCMAKE_CUDA_ARCHITECTURES=$(architecture)-real")
  [ "$simulated" = 1 ] || targets=(cuda_query "${targets[@]}")
  cmake --preset "$preset" "${options[@]}" && cmake --build "$build" --parallel "$jobs" --target "${targets[@]}"
}

step_query() {
  [ "$simulated" = 0 ] || left_out "the simulated device has no driver to ask"
  "$build/benchmarks/cuda_query"
}

step_ceilings() {
  options=()
  [ "$simulated" = 0 ] || options=(--mib 1 --size 16)
  "$build/benchmarks/cuda_ceilings" "${options[@]}"
}

# A few ops of every kind.
check_cases="gelu*,layer_norm*,softmax*,adamw*,attention*,embedding*"

step_check() {
  cases=$check_cases
  [ "$simulated" = 0 ] || cases="gelu*"
  ACCRUE_TEST_DEVICE=cuda "$build/tests/accrue_test_kernels" -w NoTests "$cases"
}

step_kernels() {
  options=(--seconds 0.05)
  # Those that ask cuDNN or cuBLASLt for more than their own kernels, and one of each kind.
  [ "$simulated" = 0 ] || options=(--op "attention,linear,max_pool2d,relu,residual_add,scale" --tiny --seconds 0)
  "$build/benchmarks/accrue-bench" run "${options[@]}" --device cuda --json "$out/bench.json"
}

step_training() {
  options=(--dtype bf16 --layers 6 --heads 6 --channels 384 --context 256 --batch 64 --steps 200 --eval-every 100)
  [ "$simulated" = 0 ] || options=(--layers 1 --heads 1 --channels 32 --context 16 --batch 2 --steps 3 --sample 0 --no-pictures)
  "$build/examples/train_gpt" --device cuda "${options[@]}" --hash --save-every 0 --out "$out/.training" ||
    return 1 # its own codes mean other things here
  cp "$out/.training/log.jsonl" "$out/training.jsonl"
}

step_torch() {
  [ "$simulated" = 0 ] || left_out "times of the simulated device mean nothing"
  [ -s "$out/bench.json" ] || left_out "the kernels were not timed"
  command -v python3 >/dev/null || left_out "no python3 on this machine"
  python3 benchmarks/device/torch_kernels.py "$out/bench.json" --seconds 0.05 | tee "$out/beside_pytorch.md"
  exit "${PIPESTATUS[0]}"
}

# Decision 8: the first of cuBLASLt's heuristics, or the fastest measured?
step_tuning() {
  options=(--dtype bfloat16 --seconds 0.05)
  [ "$simulated" = 0 ] || options=(--dtype bfloat16 --tiny --seconds 0)
  for tune in 0 1; do
    echo "ACCRUE_GEMM_TUNE=$tune"
    ACCRUE_GEMM_TUNE=$tune "$build/benchmarks/accrue-bench" run --op linear "${options[@]}" --device cuda || exit
  done
}

# The whole suite would take hours under it.
step_sanitizer() {
  [ "$simulated" = 0 ] || left_out "the simulated device checks what compute-sanitizer checks, in every test"
  command -v compute-sanitizer >/dev/null || left_out "no compute-sanitizer on this machine"
  failed=0
  for check in memcheck initcheck racecheck synccheck; do
    echo "--- $check"
    ACCRUE_TEST_DEVICE=cuda ACCRUE_TEST_WATCHED=1 timeout 15 compute-sanitizer --tool "$check" --error-exitcode 9 \
      --print-limit 20 "$build/tests/accrue_test_kernels" -w NoTests "$check_cases" 2>&1 | tee "$out/sanitizer.txt"
    failed=${PIPESTATUS[0]}
    if [ "$failed" = 124 ] && ! grep -qE '^=+ .*(Error|Invalid|hazard|Uninitialized|divergent)' "$out/sanitizer.txt"; then
      echo "$check: not finished within its time, nothing found until then" && failed=0
    fi
    [ "$failed" = 0 ] || break
  done
  exit "$failed"
}

step_tests() {
  options=(--no-tests=error --timeout 60 --parallel "$jobs" --output-on-failure)
  if [ "$simulated" = 1 ]; then options+=(-R "kernels on cuda:gelu"); else options+=(-R "( on cuda:|^core:cuda)"); fi
  if [ -z "$given" ] && [ "$simulated" = 0 ]; then
    cmake --build "$build" --parallel "$jobs" --target accrue_test_{core,nn,optim,dist,data} || exit
  fi
  ctest --test-dir "$build" "${options[@]}" --output-junit "$out/tests.xml"
}

if [ "$dry" = 0 ]; then
  mkdir -p "$out" || bad "--out: cannot make $out"
  : >"$log"
  for name in "${steps[@]}"; do export -f "step_$name"; done
  export -f left_out architecture
  export root out build given preset jobs simulated check_cases
  export OMP_WAIT_POLICY=passive
fi
step tools 10 step_tools
step build 200 step_build
step query 5 step_query
step ceilings 20 step_ceilings
step check 20 step_check
step kernels 80 step_kernels
step training 40 step_training
step torch 40 step_torch
step tuning 20 step_tuning
step sanitizer 65 step_sanitizer
step tests 60 step_tests
[ "$dry" = 0 ] || exit 0

card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
[ "$simulated" = 0 ] || card="simulated device"
{
  echo "# ${card:-no card that nvidia-smi knows}, $(date -u +%Y-%m-%d)"
  echo
  echo "accrue $(git rev-parse --short HEAD 2>/dev/null || echo of no known commit), $SECONDS s in all; everything printed is in log.txt."
  echo
  echo "| step | outcome | time | last words |"
  echo "|---|---|---:|---|"
  printf '%s\n' "${rows[@]}"
  for name in query ceilings kernels tuning; do
    text=$(awk -v name="$name" '/^===== / { on = $2 == name; next } on && NF { print "    " $0 }' "$log")
    [ -z "$text" ] || printf '\n## %s\n\n%s\n' "$name" "$text"
  done
} >"$out/summary.md"
rm -rf "$out/.step" "$out/.training"
printf '\n'
sed -n '1,/^## /{/^## /d;p}' "$out/summary.md"
[ "$failures" = 0 ]
