#!/usr/bin/env bash
# train_gpt in a build that has no kernels for the GPU that is there, which the simulated device plays: --device auto says
# so and trains on the cpu, --device cuda fails with the same words. Usage: train_gpt_no_kernels.sh <train_gpt> <text> <folder>
set -euo pipefail
train_gpt=$1 text=$2 work=$3
rm -rf "$work" && mkdir -p "$work"
recipe=(--data "$text" --layers 1 --heads 1 --channels 32 --context 8 --batch 2 --steps 2 --sample 0 --eval-samples 2
        --no-pictures)
words="this build has no kernel for the architecture of the GPU, sm_90; configure with CMAKE_CUDA_ARCHITECTURES naming it"
if ! SIM_KERNELS=0 "$train_gpt" "${recipe[@]}" --device auto --out "$work/auto" >"$work/auto.txt" 2>&1 ||
  ! grep -qF "device auto: cpu, since $words" "$work/auto.txt" || ! grep -qE "loss [0-9]" "$work/auto.txt"; then
  echo "--device auto does not say why and train on the cpu:" && cat "$work/auto.txt"
  exit 1
fi
if SIM_KERNELS=0 "$train_gpt" "${recipe[@]}" --device cuda --out "$work/cuda" >"$work/cuda.txt" 2>&1 ||
  ! grep -qF "cuda:0: $words; use the device cpu" "$work/cuda.txt"; then
  echo "--device cuda does not fail with the reason:" && cat "$work/cuda.txt"
  exit 1
fi
# Where there are kernels, nothing of this is said.
"$train_gpt" "${recipe[@]}" --device auto --out "$work/there" >"$work/there.txt" 2>&1 || { cat "$work/there.txt" && exit 1; }
if grep -q "device auto" "$work/there.txt"; then
  echo "--device auto does not take the device that is there:" && cat "$work/there.txt"
  exit 1
fi
