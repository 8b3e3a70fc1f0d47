#!/usr/bin/env bash
# benchmarks/device/run.sh without a GPU: its arguments, its dry run, and how it goes on after failures, with stand-ins
# for every program it calls. Usage: run_script_test.sh <root of the tree> <scratch folder>
set -uo pipefail
script=$1/benchmarks/device/run.sh scratch=$2
rm -rf "$scratch"
mkdir -p "$scratch/bin" "$scratch/build/benchmarks" "$scratch/build/tests" "$scratch/build/examples"
faults=0
fault() {
  echo "$1"
  faults=$((faults + 1))
}
# refused <what is said> <arguments...>
refused() {
  local said=$1 text code
  shift
  text=$("$script" "$@" 2>&1) && code=0 || code=$?
  if [ "$code" != 2 ] || ! grep -qF -- "$said" <<<"$text"; then
    fault "run.sh $*: expected exit code 2 and '$said', got $code: $text"
  fi
}
refused "unknown argument --fast" --fast
refused "--budget takes seconds" --budget 10m
refused "--budget needs a value" --budget
refused "no step 'kernel'" --steps "tools kernel"
refused "no folder" --build "$scratch/nowhere"
"$script" --help | grep -q -- --simulated || fault "run.sh --help does not explain --simulated"

names="tools build query ceilings check kernels training torch tuning sanitizer tests"
for options in "" --simulated; do
  # shellcheck disable=SC2086
  text=$(OUT=$scratch/dry "$script" --dry-run $options) || fault "the dry run $options failed"
  got=$(awk '/at most/ { printf "%s%s", sep, $1; sep = " " }' <<<"$text")
  [ "$got" = "$names" ] || fault "the dry run $options has the steps '$got', not '$names'"
  sum=$(awk '/at most/ { sum += $4 } END { print sum }' <<<"$text")
  [ "$sum" -le 570 ] || fault "the dry run $options: the steps may take $sum s, more than there are"
done
"$script" --dry-run --budget 1140 --steps kernels | grep -q "at most 160 s" || fault "twice the time is not twice the time of a step"
[ ! -e "$scratch/dry" ] || fault "the dry run wrote something"

# Stand-ins: they note how they were called, and do what $STAND_IN says of them: fail, sleep, or nothing.
cat >"$scratch/bin/any" <<'PROGRAM'
#!/usr/bin/env bash
name=$(basename "$0")
echo "$name $* # device=${ACCRUE_TEST_DEVICE-} watched=${ACCRUE_TEST_WATCHED-} tune=${ACCRUE_GEMM_TUNE-}" >>"$CALLS"
case " $STAND_IN " in
  *" $name:fail "*) echo "$name says why"; exit 3 ;;
  *" $name:sleep "*) sleep 60 ;;
esac
case "$name $*" in
  *compute_cap,*) echo "Stand-in 9000, 9.0" ;;
  *compute_cap*) echo 9.0 ;;
  nvidia-smi*) echo "Stand-in 9000" ;;
esac
while [ $# -gt 0 ]; do
  [ "$1" != --json ] || echo '{"cases": []}' >"$2"
  [ "$1" != --out ] || { mkdir -p "$2" && echo '{}' >"$2/log.jsonl"; }
  shift
done
PROGRAM
chmod +x "$scratch/bin/any"
for name in nvidia-smi cmake ctest nvcc compute-sanitizer python3; do cp "$scratch/bin/any" "$scratch/bin/$name"; done
for name in benchmarks/cuda_query benchmarks/cuda_ceilings benchmarks/accrue-bench tests/accrue_test_kernels \
  examples/train_gpt; do
  cp "$scratch/bin/any" "$scratch/build/$name"
done

# played <name> <stand-ins that misbehave> <arguments...>: leaves $code and the report in $scratch/<name>
played() {
  local name=$1
  export STAND_IN=$2 CALLS=$scratch/$name.calls
  shift 2
  : >"$CALLS"
  PATH=$scratch/bin:$PATH "$script" --out "$scratch/$name" --build "$scratch/build" "$@" >"$scratch/$name.out" 2>&1
  code=$?
}
row() { grep -E "^\| $2 \| $3 \|" "$scratch/$1/summary.md" >/dev/null || fault "$1: '$2' is not '$3': $(grep "^| $2" "$scratch/$1/summary.md")"; }

played good ""
[ "$code" = 0 ] || fault "good: exit code $code: $(cat "$scratch/good.out")"
for step in tools query ceilings check kernels training torch tuning sanitizer tests; do row good "$step" passed; done
row good build "left out"
grep -q "^# Stand-in 9000, 20" "$scratch/good/summary.md" || fault "good: the summary does not begin with card and date"
[ "$(grep -c '^compute-sanitizer .* # device=cuda watched=1 ' "$scratch/good.calls")" = 4 ] ||
  fault "good: not every sanitizer watched a device"
grep -q "^accrue_test_kernels .* # device=cuda watched= " "$scratch/good.calls" || fault "good: no op was checked on cuda"
for tune in 0 1; do
  grep -q "^accrue-bench run --op linear .* tune=$tune$" "$scratch/good.calls" || fault "good: no products with ACCRUE_GEMM_TUNE=$tune"
done
grep -q "^accrue-bench run .*--device cuda" "$scratch/good.calls" || fault "good: the kernels were not timed on cuda"
grep -qF -- "-R ( on cuda:|^core:cuda)" "$scratch/good.calls" || fault "good: the tests were not those on cuda"
grep -q "^train_gpt --device cuda" "$scratch/good.calls" || fault "good: no training on cuda"
[ "$(find "$scratch/good" -type f | wc -l)" -le 8 ] || fault "good: more than 8 files: $(find "$scratch/good" -type f)"
[ -s "$scratch/good/training.jsonl" ] || fault "good: the training's log is missing"

played bad "ctest:fail accrue-bench:fail"
[ "$code" = 1 ] || fault "bad: exit code $code"
row bad tests "FAILED \(3\)"
grep -q "ctest says why" "$scratch/bad/summary.md" || fault "bad: the summary does not say why"
row bad kernels "FAILED \(3\)"
row bad torch "left out"
row bad training passed

played slow "cuda_ceilings:sleep" --budget 4 --steps "ceilings tests"
[ "$code" = 1 ] || fault "slow: exit code $code"
row slow ceilings "out of time"
row slow tests "left out"

played some "" --steps "tests tools"
[ "$code" = 0 ] || fault "some: exit code $code"
[ "$(grep -oE '^\| [a-z]+ ' "$scratch/some/summary.md" | tr -d '| \n')" = steptoolstests ] ||
  fault "some: not only the steps asked for: $(cat "$scratch/some/summary.md")"

if command -v shellcheck >/dev/null; then
  shellcheck -x --source-path="$1" "$script" "$1/tests/cuda/check_build.sh" "$1/tests/cuda/run_script_simulated.sh" "${BASH_SOURCE[0]}" || fault "shellcheck has something to say"
else
  echo "shellcheck is not here, so the scripts were not read by it"
fi
[ "$faults" = 0 ]
