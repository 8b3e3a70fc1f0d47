#!/usr/bin/env bash
# docs/planning.md shows what accrue-plan prints, and it answers as it should.
# Usage: plan.sh <accrue-plan> <docs/planning.md>
set -euo pipefail
plan=$1 document=$2
fail() { echo "plan.sh: $*" && exit 1; }

# Every console block: `$ accrue-plan ...`, then its output.
blocks=0
while IFS= read -r number; do
  block=$(tail -n "+$((number + 1))" "$document" | sed '/^```/,$d')
  command=$(head -n 1 <<<"$block")
  [[ $command == '$ accrue-plan '* ]] || fail "line $number: not a command: $command"
  read -ra arguments <<<"${command#'$ accrue-plan '}"
  out=$("$plan" "${arguments[@]}" 2>&1) || true
  diff <(tail -n +2 <<<"$block") <(echo "$out") || fail "line $number: another output"
  blocks=$((blocks + 1))
done < <(grep -n '^```console' "$document" | cut -d: -f1)
[ "$blocks" -ge 2 ] || fail "$document shows $blocks commands, expected two or more"

# exits <code> <arguments>: and leaves what was printed in $out.
exits() {
  local code=0
  out=$("$plan" "${@:2}" 2>&1) || code=$?
  [ "$code" -eq "$1" ] || fail "$* ended with $code: $out"
}
small=(--layers 2 --channels 64 --heads 4 --context 32 --vocabulary 500 --batch 7)
exits 0 "${small[@]}"
exits 0 "${small[@]}" --shape llama --kv-heads 2 --dtype bf16 --optimizer sgd --memory 4MiB
[[ $out == *"Chosen: micro-batch"* ]] || fail "nothing chosen: $out"
exits 2 "${small[@]}" --micro 8
exits 2 --model 3B
# What it says is needed, is enough; one byte less is not.
exits 77 "${small[@]}" --memory 1000
least=$(sed -nE 's/.*smallest that works is ([0-9]+) bytes.*/\1/p' <<<"$out")
exits 0 "${small[@]}" --memory "$least"
exits 77 "${small[@]}" --memory "$((least - 1))"
exits 0 "${small[@]}" --micro 3 --recompute blocks --loss-rows 16 --mlp-rows 8
[[ $out == *"Chosen: micro-batch 3, computed again: block 0-1, MLPs 8 rows at a time, logits 16 rows at a time."* ]] ||
  fail "not what was asked for: $out"
# Of several ranks: what each of them needs, and what they divide.
exits 0 "${small[@]}" --ranks 3 --dtype bf16
[[ $out == *"one of 3 ranks"*"divided: gradients, in each micro-batch"* ]] || fail "no divisions: $out"
exits 0 "${small[@]}" --ranks 3 --shard gradients --reduce each
[[ $out == *"3 samples of 32 tokens"*"ranks divide gradients, in each micro-batch"* ]] || fail "not what was asked for: $out"
exits 0 "${small[@]}" --shard gradients
[[ $out != *divide* ]] || fail "one rank divides something: $out"
exits 2 "${small[@]}" --ranks 2 --shard optimizer --reduce each
exits 0 "${small[@]}" --ranks 2 --shard parameters --reduce each
[[ $out == *"ranks divide parameters, and gradients in each micro-batch"* ]] || fail "not what was asked for: $out"
