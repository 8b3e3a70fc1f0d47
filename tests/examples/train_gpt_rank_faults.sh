#!/usr/bin/env bash
# train_gpt on several processes when something goes wrong: signals while it saves, flags that are no flags, losses
# that are no numbers. Usage: train_gpt_rank_faults.sh <train_gpt> <text file> <folder>
source "${BASH_SOURCE[0]%/*}/train_gpt_common.sh" "$@"
head -c 20000 "$text" > "$work/text.txt"

small=(--device cpu --data "$work/text.txt" --layers 2 --channels 16 --heads 2 --context 16 --dropout 0.1 --batch 7
  --eval-every 0 --sample 0 --no-pictures --threads 1 --hash --numerics exact --schedule constant --warmup 2)
train() { # train <arguments...>
  run timeout -k 5 60 "$program" "$@"
}

# 13: one rank is told to stop, and then, while they save, all are told again and again. Nothing comes of that.
train "${small[@]}" --out "$work/straight" --steps 30 --save-every 0
expect_rc 0 "a straight run on one rank"
straight=$(grep -E '^weights [0-9a-f]{16}$' "$work/stdout")
"$program" -n 2 "${small[@]}" --out "$work/stopped" --steps 30 --save-every 1 > "$work/stdout" 2> "$work/stderr" &
launcher=$!
for _ in $(seq 400); do
  [ "$(wc -l 2> /dev/null < "$work/stopped/log.jsonl" || echo 0)" -ge 3 ] && break
  sleep 0.02
done
ranks=$(pgrep -P $launcher)
[ "$(wc -w <<< "$ranks")" = 2 ] || fail "two ranks were expected, there are: $ranks"
kill -TERM "${ranks%%$'\n'*}"
again=0
while kill -0 $launcher 2> /dev/null; do
  # shellcheck disable=SC2086
  kill -USR1 $ranks 2> /dev/null && kill -TERM $ranks 2> /dev/null && again=$((again + 1))
  sleep 0.005
done
wait $launcher
rc=$?
expect_rc 81 "told to stop, again and again"
[ "$again" -ge 2 ] || fail "the second signal came too late"
train -n 3 --resume "$work/stopped"
expect_rc 0 "going on with three ranks"
grep -qxF "$straight" "$work/stdout" || fail "gone on after signals: not the weights of a straight run"

# 22: every rank says the same, nobody has begun anything.
refused() { # refused <words> <arguments...>
  local words=$1
  shift
  train -n 2 --out "$work/refused" --data "$work/text.txt" "$@"
  expect_rc 2 "$*"
  [ "$(grep -cF -- "$words" "$work/stderr")" = 2 ] || fail "$*: not both ranks say: $words"
  [ ! -e "$work/refused" ] || fail "$*: a folder was made"
}
refused "--no-such-flag" --no-such-flag 1
refused "--batch" --batch 0
refused "--layers" --layers many
refused "is not a size" --memory=-1
refused "--lr" --lr inf
refused "--numerics" --numerics both
refused "--warmup (9) must be smaller than --steps (5)" --steps 5 --warmup 9

# 25: no finite gradient, step after step.
train -n 2 "${small[@]}" --out "$work/diverged" --steps 20 --save-every 1 --optimizer sgd --lr 1e6 --clip 0 --max-skipped 3
expect_rc 79 "a loss that is not finite"
grep -q "3 steps in a row were skipped" "$work/stdout" "$work/stderr" || fail "it is not said how often"
grep -q "rank 1 had gradients that were not finite" "$work/stdout" "$work/stderr" || fail "it is not said who"

end
