#!/usr/bin/env bash
# train_gpt on several processes: one hash over the numbers of ranks with --numerics exact, also when a run goes on
# with another number; the losses of one rank otherwise. Usage: train_gpt_ranks.sh <train_gpt> <text file> <folder>
source "${BASH_SOURCE[0]%/*}/train_gpt_common.sh" "$@"
head -c 20000 "$text" > "$work/text.txt"

# train <folder> <arguments...>: sets rc, out (stdout), err (stderr)
train() {
  local dir=$1
  shift
  run timeout -k 5 120 "$program" --device cpu --data "$work/text.txt" --out "$work/$dir" --layers 2 --channels 16 --heads 2 \
    --context 16 --dropout 0.1 --steps 4 --warmup 1 --batch 7 --eval-every 2 --eval-samples 4 --save-every 2 --sample 0 \
    --no-pictures --threads 1 --hash "$@"
}
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
run timeout -k 5 120 "$program" -n 3 --resume "$work/resumed"
expect_rc 0 "going on with 3 ranks"
[ "$(hash_of)" = "$reference" ] || fail "2, then 3 ranks: '$(hash_of)' instead of '$reference'"

train plain-1
train plain-2 -n 2
expect_rc 0 "default numerics on 2 ranks"
paste <(losses plain-1) <(losses plain-2) | awk '{d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 2e-6 * $1) bad = 1}
  END {exit NR != 4 || bad}' || fail "the losses of 2 ranks are not those of one"
[ "$(wc -l < "$work/plain-2/log.jsonl")" = 4 ] || fail "more than one rank writes the log"

# What ranks divide: the peak is the one that was planned, to the byte, and the losses stay.
declare -A peak
for division in none optimizer gradients parts parameters; do
  how=(--shard $division)
  [ $division = parts ] && how=(--shard gradients --reduce each)
  [ $division = parameters ] && how=(--shard parameters --reduce each --sample 3)
  train "plan-$division" -n 2 --dtype bf16 --micro 2 "${how[@]}" --plan
  expect_rc 0 "--plan with $division divided"
  peak[$division]=$(sed -nE 's/^  together +([0-9]+) .*/\1/p' <<< "$out")
  train "$division" -n 2 --dtype bf16 --micro 2 "${how[@]}"
  expect_rc 0 "$division divided"
  [ "$(sed -nE '$s/.*"peak_bytes":([0-9]+).*/\1/p' "$work/$division/log.jsonl")" = "${peak[$division]}" ] ||
    fail "$division divided: a peak of ${peak[$division]} was planned: $(tail -n 1 "$work/$division/log.jsonl")"
  paste <(losses none) <(losses "$division") | awk '{d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-3 * $1) bad = 1}
    END {exit NR != 4 || bad}' || fail "$division divided: other losses"
done
[ "${peak[none]}" -gt "${peak[optimizer]}" ] || fail "divided moments take as much: ${peak[*]}"
[ "${peak[gradients]}" -gt "${peak[parts]}" ] || fail "divided gradients take as much: ${peak[*]}"
train plan -n 2 --dtype bf16 --micro 2 --memory "$((peak[optimizer] + 1))" --plan
expect_text "one of 2 ranks" "--plan of two ranks"
expect_text "ranks divide" "--plan where not everything fits on each rank"

# refused <text> <arguments...>: on all ranks alike, before anything is allocated.
refused() {
  rm -rf "$work/refused"
  train refused -n 2 "${@:2}"
  expect_rc 2 "${*:2}"
  expect_text "$1" "${*:2}"
  [ ! -e "$work/refused" ] || fail "${*:2}: something has begun"
}
refused "--reduce each goes with" --shard optimizer --reduce each
refused "divide cannot be on the host yet" --shard optimizer --dtype bf16 --state-on-host
refused "each takes a GPU of its own" --device cuda:1
train alone --shard gradients --reduce each
expect_rc 0 "one rank divides nothing, whatever was asked for"

end
