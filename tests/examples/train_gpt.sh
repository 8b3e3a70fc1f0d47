#!/usr/bin/env bash
# train_gpt from the outside, as a person uses it: the same hash twice and for any number of threads, exact resume,
# a signal, budgets, bad arguments, damaged files. Usage: train_gpt.sh <train_gpt> <text file> <temporary folder>
source "${BASH_SOURCE[0]%/*}/train_gpt_common.sh" "$@"
head -c 30000 "$text" > "$work/text.txt"

# train <folder> <arguments...>: sets rc, out (stdout), err (stderr)
train() {
  local dir=$1
  shift
  run "$program" --data "$work/text.txt" --out "$work/$dir" --layers 2 --channels 32 --heads 2 --context 16 --dropout 0.1 \
    --steps 8 --warmup 2 --batch 10 --micro 4 --eval-every 4 --eval-samples 8 --save-every 4 --sample 20 --hash "$@"
}

train first
expect_rc 0 "a plain run"
reference=$(hash_of)
[ -n "$reference" ] || fail "no line 'weights <16 hex digits>' in: $out"
for file in log.jsonl loss.tsv memory.tsv memory.svg step-8/MANIFEST.json step-8/shard-0.safetensors step-4/MANIFEST.json; do
  [ -s "$work/first/$file" ] || fail "$file is missing or empty"
done
[ "$(wc -l < "$work/first/log.jsonl")" = 8 ] || fail "log.jsonl does not have a line per step"
grep -q '"validation":' "$work/first/log.jsonl" || fail "no validation loss in the log"
expect_text "predicted peak" "the plan is announced"
grep -qE '^peak     \[[PGOAWC.]{40}\] ' <<< "$out" || fail "no bar of the memory in: $out"
if command -v gnuplot > /dev/null; then
  grep -q '<svg' "$work/first/loss.svg" || fail "gnuplot is here, but loss.svg is not"
fi
status='loss [0-9.]+  val [0-9.]+  [0-9]+ tokens/s  ETA [0-9:]+  peak [0-9.]+ [KM]iB'
grep -qE "^step 8/8  $status\$" <<< "$out" || fail "no plain line with loss, tokens/s, ETA and peak in: $out"

# On a terminal: one line, drawn again and again, with a bar.
on_terminal=(script -qec "stty cols 120; exec '$program' --data '$work/text.txt' --out '$work/terminal' --layers 1 --channels 16 \
  --heads 2 --context 16 --steps 8 --batch 10 --micro 4 --sample 0 --eval-every 4 --save-every 0 --no-pictures" /dev/null)
if command -v script > /dev/null; then
  run "${on_terminal[@]}"
  expect_rc 0 "on a terminal"
  drawn=$(tr '\r' '\n' <<< "$out")
  grep -qE "^\[#{30}\] step 8/8  $status" <<< "$drawn" || fail "no full bar on a terminal: $out"
  grep -qE '^\[#+\.+\] step [1-7]/8  loss ' <<< "$drawn" || fail "no bar that grows on a terminal: $out"
  ! grep -qE '^step [0-9]+/8' <<< "$drawn" || fail "plain lines on a terminal: $out"
  [ ! -e "$work/terminal/loss.tsv" ] || fail "--no-pictures, and yet loss.tsv"
else
  echo "left out: the bar on a terminal; there is no script(1) here"
fi

train traced --trace "$work/trace.json"
expect_rc 0 "a traced run"
[ "$(hash_of)" = "$reference" ] || fail "a trace changes the hash"
for name in micro-batch forward backward 'optimizer step' layer_norm_backward adamw; do
  grep -q "\"name\":\"$name\"" "$work/trace.json" || fail "the trace has no '$name'"
done

train second
[ "$(hash_of)" = "$reference" ] || fail "a second run gives another hash"
for threads in 1 2 3; do
  train threads --threads $threads
  [ "$(hash_of)" = "$reference" ] || fail "$threads threads give another hash"
done
train other --seed 2
[ "$(hash_of)" != "$reference" ] || fail "another seed gives the same hash"

# A token file with the bytes of a text trains the same weights. Its format stands in data/token_file.h.
mix64() { # x: sets mixed; bash shifts signed numbers
  local x=$(($1 + 0x9E3779B97F4A7C15))
  x=$(((x ^ (x >> 30 & 0x3FFFFFFFF)) * 0xBF58476D1CE4E5B9))
  x=$(((x ^ (x >> 27 & 0x1FFFFFFFFF)) * 0x94D049BB133111EB))
  mixed=$((x ^ (x >> 31 & 0x1FFFFFFFF)))
}
little() { # number, bytes
  local i
  for ((i = 0; i < $2; ++i)); do printf '\\x%02x' $(($1 >> 8 * i & 255)); done
}
token_file() { # text file, token file
  local tokens=() body="" sum=0 i mixed
  mapfile -t tokens < <(od -An -v -tu1 -w1 "$1" | tr -d ' ')
  for i in "${!tokens[@]}"; do
    mix64 $((i * 0xD1342543DE82EF95 + tokens[i]))
    sum=$((sum + mixed))
    body+=$(printf '\\x%02x\\x00' "${tokens[i]}")
  done
  printf "ACCRUTOK$(little 1 4)$(little 2 4)$(little ${#tokens[@]} 8)$(little 256 8)$(little $((64 + 2 * ${#tokens[@]})) 8)" > "$2"
  printf "$(little "$sum" 8)$(little 0 16)$body" >> "$2"
}
head -c 3000 "$text" > "$work/short.txt"
token_file "$work/short.txt" "$work/short.bin"
train short --data "$work/short.txt"
expect_rc 0 "a short text"
short=$(hash_of)
train short-bin --data "$work/short.bin"
expect_rc 0 "--data with a token file"
[ "$(hash_of)" = "$short" ] || fail "a token file gives another hash than its text: $(hash_of), not $short: $err"
printf 'x' >> "$work/short.bin"
train short-bin --data "$work/short.bin"
expect_rc 78 "a damaged token file"

# Stopped after 4 of 8 steps (the later checkpoint removed), then resumed from another folder: the same weights.
cp -r "$work/first" "$work/half"
rm -r "$work/half/step-8"
run env -C / "$program" --resume "$work/half"
expect_rc 0 "resume"
[ "$(hash_of)" = "$reference" ] || fail "the resumed run gives another hash: $(hash_of), not $reference"
[ "$(wc -l < "$work/half/log.jsonl")" = 8 ] || fail "the log of the resumed run does not have a line per step"
# The split of the batch may change on resume, the recipe may not.
rm -r "$work/half/step-8"
train half --resume "$work/half" --lr 0.5
expect_rc 2 "resume with another learning rate"
expect_text "'lr' was" "resume with another learning rate"
train half --resume "$work/half" --micro 3 --threads 1
expect_rc 0 "resume with another micro-batch"
train nothing --resume "$work/empty"
expect_rc 1 "resume from nothing"
expect_text "there is no checkpoint here" "resume from nothing"

# A damaged checkpoint is passed over, said so, and set aside; the one before it leads to the same weights.
damage() { printf '\x5a' | dd of="$1" bs=1 seek=$(($(stat -c %s "$1") - 100)) conv=notrunc status=none; }
cp -r "$work/first" "$work/damaged"
damage "$work/damaged/step-8/shard-0.safetensors"
train damaged --resume "$work/damaged"
expect_rc 0 "a flipped byte"
[ "$(hash_of)" = "$reference" ] || fail "a flipped byte: another hash after going on from the checkpoint before"
expect_text "passed over $work/damaged/step-8/shard-0.safetensors: tensor" "a flipped byte"
expect_text "do not match their checksum" "a flipped byte"
[ -s "$work/damaged/earlier-1/step-8/MANIFEST.json" ] || fail "the damaged checkpoint is not set aside"
truncate -s -1 "$work/damaged/step-8/shard-0.safetensors"
damage "$work/damaged/step-4/MANIFEST.json"
train damaged --resume "$work/damaged"
expect_rc 78 "no checkpoint is whole"
expect_text "step-8/shard-0.safetensors: the file has" "no checkpoint is whole"
expect_text "step-4/MANIFEST.json: the checksum" "no checkpoint is whole"
train damaged --resume "$work/damaged/step-8"
expect_rc 78 "a damaged checkpoint by its name"

# One checkpoint by its name: later ones are of another branch, and set aside.
cp -r "$work/first" "$work/branch"
train branch --resume "$work/branch/step-4/"
expect_rc 0 "resume from a checkpoint's own folder"
[ "$(hash_of)" = "$reference" ] || fail "resume from a checkpoint's own folder: another hash"
[ -s "$work/branch/earlier-1/step-8/MANIFEST.json" ] || fail "the later checkpoint was not set aside"

# Going on in another folder touches neither the first run's checkpoints nor those of a run that is there.
cp -r "$work/other" "$work/elsewhere"
find "$work/first" "$work/elsewhere/step-4" "$work/elsewhere/step-8" -type f -exec md5sum {} + | sort -k2 > "$work/before"
train elsewhere --resume "$work/first/step-4"
expect_rc 0 "resume into another folder"
[ "$(hash_of)" = "$reference" ] || fail "resume into another folder: another hash"
expect_text "were moved to $work/elsewhere/earlier-1" "resume into another folder"
[ "$(wc -l < "$work/elsewhere/log.jsonl")" = 8 ] || fail "resume into another folder: the log has not a line per step"
(cd "$work/elsewhere" && mkdir old && mv step-8 old/ && mv earlier-1/step-4 earlier-1/step-8 .)
find "$work/first" "$work/elsewhere/step-4" "$work/elsewhere/step-8" -type f -exec md5sum {} + | sort -k2 | cmp -s - "$work/before" ||
  fail "resume into another folder changed or lost a checkpoint"

# Single files of earlier versions are refused.
mkdir "$work/old"
touch "$work/old/checkpoint-8.safetensors"
train old --resume "$work/old"
expect_rc 2 "a checkpoint of an earlier version"
expect_text "is of an earlier version" "a checkpoint of an earlier version"

# Beginning anew where a run was: its checkpoints are kept aside and never mistaken for the new run's.
train first --steps 4
expect_rc 0 "a new run in the same folder"
[ -s "$work/first/earlier-1/step-8/MANIFEST.json" ] || fail "the earlier run's checkpoints are lost"
[ ! -e "$work/first/step-8" ] || fail "an earlier run's checkpoint is taken for the new run's"

# Signals: the step is finished, everything saved, and going on gives the same weights. A second one changes nothing.
long=(--data "$work/text.txt" --layers 2 --channels 32 --heads 2 --context 32 --dropout 0.1 --warmup 2 --batch 40
  --micro 4 --sample 0 --eval-every 0 --schedule constant --hash)
"$program" "${long[@]}" --out "$work/straight" --steps 40 --save-every 0 > "$work/stdout" 2> "$work/stderr"
straight=$(grep -E '^weights [0-9a-f]{16}$' "$work/stdout")
lines() { wc -l 2> /dev/null < "$work/$1/log.jsonl" || echo 0; }
# start <folder> <steps in the log to wait for>: sets child
start() {
  "$program" "${long[@]}" --out "$work/$1" --steps 40 --save-every 10 > "$work/stdout" 2> "$work/stderr" &
  child=$!
  for _ in $(seq 400); do
    [ "$(lines "$1")" -ge "$2" ] && break
    sleep 0.02
  done
}
ended() {
  wait $child 2> /dev/null
  rc=$?; out=$(cat "$work/stdout"); err=$(cat "$work/stderr")
}
for signals in INT USR1 "TERM TERM USR1"; do
  dir=signal-${signals// /-}
  start "$dir" 3
  for signal in $signals; do kill -"$signal" $child; done
  ended
  expect_rc 81 "$signals"
  expect_text "--resume $work/$dir" "$signals: how to go on"
  [ -s "$work/$dir/step-$(lines "$dir")/MANIFEST.json" ] || fail "$signals: no checkpoint of the last step"
  "$program" --resume "$work/$dir" > "$work/stdout" 2> "$work/stderr"
  grep -qxF "$straight" "$work/stdout" || fail "$signals and going on: not the weights of a straight run"
done
# B64: killed anywhere, also between the micro-batches of a step, which is then done again from its beginning.
for after in 11 17 25; do
  start killed-$after $after
  kill -KILL $child
  ended
  expect_rc 137 "SIGKILL"
  "$program" --resume "$work/killed-$after" > "$work/stdout" 2> "$work/stderr"
  grep -qxF "$straight" "$work/stdout" || fail "killed and gone on: not the weights of a straight run: $(cat "$work/stderr")"
  [ "$(lines killed-$after)" = 40 ] || fail "killed and gone on: the log has not a line per step"
done

# Budgets: a hard limit with the smallest one that works, which then works, and changes nothing.
train budget --memory 100KiB --micro 0
expect_rc 77 "a budget that is too small"
expect_text "The smallest that works is" "a budget that is too small"
least=$(sed -nE 's/.*The smallest that works is ([0-9]+) bytes.*/\1/p' <<< "$err")
train budget --memory "$least" --micro 0
expect_rc 0 "the smallest budget that works ($least)"
expect_text "micro-batch 1, computed again" "the smallest budget that works"
train budget --memory $((least - 1)) --micro 0
expect_rc 77 "one byte less than the smallest budget"
train budget --memory "$least" --micro 4
expect_rc 77 "a micro-batch that does not fit"
train budget --memory 1GiB
[ "$(hash_of)" = "$reference" ] || fail "a budget changes the hash"
train budget --memory 1GiB --recompute blocks
[ "$(hash_of)" = "$reference" ] || fail "recomputed blocks change the hash"
# The announced peak is the measured one.
predicted=$(sed -nE 's/.*predicted peak (.*)$/\1/p' <<< "$out")
grep -qE "step 8/8 .* peak $predicted\$" <<< "$out" || fail "the predicted peak '$predicted' is not the measured one: $out"

# The plan is only printed; --verify runs one step both ways.
train plan --memory "$least" --micro 0 --plan
expect_rc 0 "--plan"
expect_text "Chosen: micro-batch 1" "--plan"
[ ! -e "$work/plan" ] || fail "--plan left files"
train verify --memory "$((least + 50000))" --micro 0 --verify
expect_rc 0 "--verify"
expect_text "the same step" "--verify"

# Exact numerics: one hash, whatever the micro-batch, what is computed again, its tiles, the threads and a resume.
exact=(--numerics exact --grain 2 --fixed-rows 12)
train exact "${exact[@]}"
expect_rc 0 "exact numerics"
exact_hash=$(hash_of)
train exact-again "${exact[@]}" --memory 100KiB
least_exact=$(sed -nE 's/.*The smallest that works is ([0-9]+) bytes.*/\1/p' <<< "$err")
for knobs in "--micro 1" "--micro 2" "--micro 3 --threads 3" "--micro 5 --recompute mlps" "--micro 8" "--micro 10 --recompute blocks" "--recompute blocks --offload yes" "--memory $least_exact" \
  "--loss-rows 1" "--loss-rows 16 --recompute blocks --mlp-rows 5" "--loss-rows 500 --mlp-rows 12 --recompute mlps"; do
  # shellcheck disable=SC2086
  train exact-again "${exact[@]}" $knobs
  [ "$(hash_of)" = "$exact_hash" ] || fail "exact numerics: $knobs gives another hash: $(hash_of), not $exact_hash: $err"
done
rm -r "$work/exact/step-8"
train exact "${exact[@]}" --resume "$work/exact" --micro 1
[ "$(hash_of)" = "$exact_hash" ] || fail "exact numerics: the resumed run gives another hash"
train exact-verify "${exact[@]}" --verify
expect_text "the same bits" "--verify with exact numerics"
train exact "${exact[@]}" --resume "$work/exact" --grain 1
expect_rc 2 "resume with another grain"
train exact "${exact[@]}" --resume "$work/exact" --fixed-rows 13
expect_rc 2 "resume with another size of tiles"

# The other shape, dtype, optimizer and tokenizer: threads and resume change nothing there either.
other=(--dtype bf16 --shape llama --heads 4 --kv-heads 2 --optimizer sgd --lr 0.1 --tokenizer char)
train bf16 "${other[@]}"
expect_rc 0 "bf16, llama, sgd, characters"
bf16=$(hash_of)
predicted=$(sed -nE 's/.*predicted peak (.*)$/\1/p' <<< "$out")
grep -qE "step 8/8 .* peak $predicted\$" <<< "$out" || fail "bf16: the predicted peak is not the measured one: $out"
train bf16threads "${other[@]}" --threads 3
[ "$(hash_of)" = "$bf16" ] || fail "bf16: 3 threads give another hash"
rm -r "$work/bf16/step-8"
train bf16 "${other[@]}" --resume "$work/bf16"
[ "$(hash_of)" = "$bf16" ] || fail "bf16: the resumed run gives another hash"
train bf16host "${other[@]}" --state-on-host
[ "$(hash_of)" = "$bf16" ] || fail "bf16: the state on the host gives another hash"
less=$(sed -nE 's/.*predicted peak (.*)$/\1/p' <<< "$out")
[ "$less" != "$predicted" ] || fail "bf16: the state on the host takes as much of the budget"
grep -qE "step 8/8 .* peak $less\$" <<< "$out" || fail "bf16, state on the host: the predicted peak is not the measured one: $out"

# A step whose loss was not finite stands in the log as null, which a resumed run can read.
cp -r "$work/second" "$work/null"
rm -r "$work/null/step-8"
sed -i '2s/"loss":[^,]*/"loss":null/' "$work/null/log.jsonl"
train null --resume "$work/null"
expect_rc 0 "resume with a null in the log"

train bad --batch 0
expect_rc 2 "--batch 0"
train larger --micro 11
expect_rc 0 "--micro larger than --batch"
expect_text "micro-batch 10" "--micro larger than --batch"
train bad --memory 12XB
expect_rc 2 "a size that is none"
expect_text "is not a size" "a size that is none"
train bad --no-such-flag
expect_rc 2 "an unknown flag"
train bad --device cuda:100
expect_text "cuda:100: " "--device cuda:100"
train bad --data "$work/none.txt"
expect_text "none.txt" "a missing file"
[ "$rc" != 0 ] || fail "a missing file must fail"
train bad --lr 1e6 --min-lr 1e6 --clip 0 --optimizer sgd --max-skipped 3 --warmup 0
expect_rc 79 "a run that explodes"

help=$("$program" --help)
for flag in --batch --micro --memory --threads --dtype --resume --hash --steps; do
  grep -q -- "$flag" <<< "$help" || fail "--help does not name $flag"
done
for text in 'default; --no-tied' 'at most a tenth of --steps' '130 interrupted'; do
  grep -qF -- "$text" <<< "$help" || fail "--help does not say '$text'"
done

end
