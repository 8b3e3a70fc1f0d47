#!/usr/bin/env bash
# train_gpt on several processes: one hash over the numbers of ranks with --numerics exact, also when a run goes on
# with another number; the losses of one rank otherwise. Usage: train_gpt_ranks.sh <train_gpt> <text file> <folder>
set -uo pipefail
program=$(realpath "$1")
text=$2
work=$(realpath -m "$3")
rm -rf "$work"
mkdir -p "$work"
head -c 20000 "$text" > "$work/text.txt"
export OMP_WAIT_POLICY=passive
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# train <folder> <arguments...>: sets rc, out (stdout), err (stderr)
train() {
  local dir=$1
  shift
  timeout -k 5 120 "$program" --device cpu --data "$work/text.txt" --out "$work/$dir" --layers 2 --channels 16 --heads 2 \
    --context 16 --dropout 0.1 --steps 4 --warmup 1 --batch 7 --eval-every 2 --eval-samples 4 --save-every 2 --sample 0 \
    --no-pictures --threads 1 --hash "$@" > "$work/stdout" 2> "$work/stderr"
  rc=$?
  out=$(cat "$work/stdout")
  err=$(cat "$work/stderr")
}
hash_of() { grep -E '^weights [0-9a-f]{16}$' <<< "$out"; }
expect_rc() { [ "$rc" = "$1" ] || fail "$2: exit code $rc, expected $1: $err"; }
# losses <folder>: of the log
losses() { grep -oE '"loss":[0-9.]+' "$work/$1/log.jsonl" | cut -d: -f2; }

train one --numerics exact
expect_rc 0 "one rank"
reference=$(hash_of)
[ -n "$reference" ] || fail "no line 'weights <16 hex digits>' in: $out"
for ranks in 2 3; do
  train "exact-$ranks" -n $ranks --numerics exact --micro $((ranks - 1))
  expect_rc 0 "exact on $ranks ranks"
  [ "$(hash_of)" = "$reference" ] || fail "$ranks ranks: '$(hash_of)' instead of one '$reference'"
  [ "$(losses one)" = "$(losses "exact-$ranks")" ] || fail "$ranks ranks: the losses differ in exact mode"
done

# 2 steps on 2 ranks, then 2 on 3.
train resumed -n 2 --numerics exact
expect_rc 0 "the run to go on with"
rm -rf "$work/resumed/step-4"
timeout -k 5 120 "$program" -n 3 --resume "$work/resumed" > "$work/stdout" 2> "$work/stderr"
rc=$?
out=$(cat "$work/stdout")
err=$(cat "$work/stderr")
expect_rc 0 "going on with 3 ranks"
[ "$(hash_of)" = "$reference" ] || fail "2, then 3 ranks: '$(hash_of)' instead of '$reference'"

train plain-1
train plain-2 -n 2
expect_rc 0 "default numerics on 2 ranks"
paste <(losses plain-1) <(losses plain-2) | awk '{d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 2e-6 * $1) bad = 1}
  END {exit NR != 4 || bad}' || fail "the losses of 2 ranks are not those of one"
[ "$(wc -l < "$work/plain-2/log.jsonl")" = 4 ] || fail "more than one rank writes the log"

[ "$failures" = 0 ] && echo "all well"
exit $((failures > 0))
