#!/usr/bin/env bash
# train_gpt on a CUDA device: the losses of the cpu, and the peak that was predicted. Where there is no device it is
# skipped (77) with the reason. Usage: train_gpt_cuda.sh <train_gpt> <text> <folder to work in>
set -euo pipefail
train_gpt=$1 text=$2 work=$3
rm -rf "$work" && mkdir -p "$work"
recipe=(--data "$text" --layers 1 --heads 1 --channels 32 --context 8 --batch 3 --micro 2 --steps 2
        --sample 4 --eval-samples 2 --eval-every 2 --dropout 0.1 --no-pictures)
for device in cuda cpu; do
  if ! "$train_gpt" "${recipe[@]}" --device $device --out "$work/$device" >"$work/$device.txt" 2>&1; then
    grep -E "no NVIDIA driver|driver is too old|no NVIDIA GPU|no CUDA back end" "$work/$device.txt" && exit 77
    cat "$work/$device.txt"
    exit 1
  fi
done
losses() { grep -oE 'loss [0-9.]+|val [0-9.]+' "$work/$1.txt"; }
if [ -z "$(losses cuda)" ] || ! diff <(losses cuda) <(losses cpu); then
  echo "the losses on cuda are not those of the cpu:" && cat "$work/cuda.txt" "$work/cpu.txt"
  exit 1
fi
predicted=$(sed -n 's/.*predicted peak //p' "$work/cuda.txt")
measured=$(sed -n 's/.* peak //p' "$work/cuda.txt" | tail -n 1)
if [ -z "$predicted" ] || [ "$predicted" != "$measured" ]; then
  echo "predicted a peak of $predicted, measured $measured:" && cat "$work/cuda.txt"
  exit 1
fi
echo "losses $(losses cuda | tr '\n' ' '), peak $measured"

# Ranks with a GPU each: exact numerics have one hash, whatever they divide. (What is set for the simulated devices
# means nothing to others.)
one=("$train_gpt" "${recipe[@]}" --numerics exact --hash --quiet)
"${one[@]}" --device cuda --out "$work/one" >"$work/one.txt" 2>&1 || { cat "$work/one.txt" && exit 1; }
want=$(grep '^weights ' "$work/one.txt")
for division in none gradients parameters; do
  mkdir -p "$work/files-$division"
  if ! SIM_DEVICES=2 SIM_NCCL_FOLDER="$work/files-$division" "${one[@]}" -n 2 --device cuda --shard $division \
    --out "$work/two-$division" >"$work/two.txt" 2>&1; then
    grep -E "has no GPU|no NCCL|no MPI|mpirun cannot be started" "$work/two.txt" && exit 0
    cat "$work/two.txt"
    exit 1
  fi
  [ "$(grep '^weights ' "$work/two.txt")" = "$want" ] || { echo "two GPUs, $division divided: not $want" && cat "$work/two.txt" && exit 1; }
done
echo "two GPUs: $want"
