#!/usr/bin/env bash
# One hash of weights and moments over numbers of ranks, micro-batch sizes, what the ranks divide, and runs that go on
# with others of all three (docs/numerics.md, exact mode). Usage: train_gpt_hash.sh <train_gpt> <text file> <folder>
# ACCRUE_SWEEP=full: all combinations, instead of every pair of ranks and division.
source "${BASH_SOURCE[0]%/*}/train_gpt_common.sh" "$@"
head -c 4000 "$text" > "$work/text.txt"

worlds=(1 2 3 4 6 8)
divisions=(none optimizer gradients gradients/each parameters/each)
micros=(1 2 3 7)

# Each is <ranks> <micro-batch> <division>; neighbours have little in common.
list=()
rounds=${#divisions[@]}
[ "${ACCRUE_SWEEP:-}" = full ] && rounds=$((${#divisions[@]} * ${#micros[@]}))
for ((round = 0; round < rounds; ++round)); do
  for ((w = 0; w < ${#worlds[@]}; ++w)); do
    list+=("${worlds[w]} ${micros[(w + round + round / ${#divisions[@]}) % ${#micros[@]}]} ${divisions[(w + round) % ${#divisions[@]}]}")
  done
done

# train <folder> <dtype> <arguments...>
train() {
  run timeout -k 5 120 "$program" --device cpu --data "$work/text.txt" --out "$work/$1" --dtype "$2" --numerics exact \
    --layers 1 --channels 32 --heads 2 --context 8 --dropout 0.1 --batch 7 --steps 3 --warmup 1 --save-every 1 --keep 4 \
    --eval-samples 1 --sample 0 --no-pictures --threads 1 --quiet --hash "${@:3}"
}
declare -A reference
for dtype in f32 bf16; do
  train "one-$dtype" $dtype --micro 7
  reference[$dtype]=$(hash_of)
  [ -n "${reference[$dtype]}" ] || fail "one rank, $dtype: no hash: $err"
done

# Three in a row are one run: the first takes all three steps, the second goes on from what the first one wrote after
# step 1, the third from what the second wrote after step 2.
dtypes=(f32 bf16)
for ((i = 0; i < ${#list[@]}; ++i)); do
  folder=$((i / 3)) step=$((i % 3)) dtype=${dtypes[i / 3 % 2]}
  read -r ranks micro division <<< "${list[i]}"
  how=(-n "$ranks" --micro "$micro" --shard "${division%/*}" --reduce "$([[ $division == */each ]] && echo each || echo end)")
  if [ $step -gt 0 ]; then
    for ((later = step + 1; later <= 3; ++later)); do rm -r "$work/$folder/step-$later"; done
    how+=(--resume "$work/$folder")
  fi
  train $folder "$dtype" "${how[@]}"
  what="$dtype, $ranks ranks, micro-batch $micro, $division divided, from step $step"
  expect_rc 0 "$what"
  [ "$(hash_of)" = "${reference[$dtype]}" ] || fail "$what: '$(hash_of)' instead of '${reference[$dtype]}'"
done
echo "${#list[@]} runs"
end
