#!/usr/bin/env bash
# Trains the two reference models in accrue and in PyTorch, taking turns, and prints one line per configuration:
#   ratio <model> <dtype> <threads> <accrue tokens/s> <peer tokens/s> <accrue / peer>
#   memory <model> <dtype> <threads> <accrue MiB> <peer MiB> <accrue / peer>      (peak resident)
#   loss <model> <dtype> <threads> <accrue> <peer>                                (of the last step of both)
# and with one thread, where other work on the machine would blur the clock,
#   cpu <model> <dtype> 1 <accrue tokens/CPU s> <peer tokens/CPU s> <accrue / peer>
# Both programs stay alive and run a few steps in turn, so that a busy machine slows both alike; the figures are the
# medians over the turns, and the ratio is the median of the turns' own ratios.
#
#   benchmarks/peers/train.sh [--ours PROGRAM] [--python INTERPRETER] [--models "124M 10.8M"] [--dtypes "f32 bf16"]
#                             [--threads "1 2"] [--turns 7] [--steps N] [--compile] [--variant V]
#
# The peer runs at its best: OpenBLAS on OpenMP (Debian: libopenblas0-openmp), memory kept and on huge pages, denormals
# flushed, the fastest optimizer loop and kind of bfloat16. --python names any interpreter that has torch.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
ours=$here/../../build/release/benchmarks/train_bench
python=/usr/bin/python3
models="124M 10.8M" dtypes="f32 bf16" threads="1 2" turns=7 steps="" options=()
while [ $# -gt 0 ]; do
  case $1 in
    --compile) options+=("$1"); shift; continue ;;
  esac
  [ $# -ge 2 ] || { echo "train.sh: $1 needs a value" >&2; exit 2; }
  case $1 in
    --ours) ours=$2 ;;
    --python) python=$2 ;;
    --models) models=$2 ;;
    --dtypes) dtypes=$2 ;;
    --threads) threads=$2 ;;
    --turns) turns=$2 ;;
    --steps) steps=$2 ;;
    --variant) options+=("$1" "$2") ;;
    *) echo "train.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
[ -x "$ours" ] || { echo "train.sh: $ours is not there: build the target train_bench" >&2; exit 1; }
blas=/usr/lib/$(uname -m)-linux-gnu/openblas-openmp
[ "$python" != /usr/bin/python3 ] || [ -d "$blas" ] || {
  echo "train.sh: $blas is not there: the peer would be slow on another BLAS (Debian: apt-get install libopenblas0-openmp)" >&2
  exit 1
}
"$python" -c 'import torch' || { echo "train.sh: $python has no torch (Debian: apt-get install python3-torch)" >&2; exit 1; }

work=$(mktemp -d)
pids=()
trap 'for p in ${pids[@]+"${pids[@]}"}; do kill "$p" 2>/dev/null || true; done; rm -rf "$work"' EXIT
median() { sort -g | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'; }
rates() { # file of times (ours, peer), tokens: both rates and their ratio
  echo "$(awk -v n="$2" '$1 > 0 { print n / $1 }' "$1" | median)" \
    "$(awk -v n="$2" '$2 > 0 { print n / $2 }' "$1" | median)" \
    "$(awk '$1 > 0 { print $2 / $1 }' "$1" | median)"
}
used() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"; } # CPU time in ticks
peak() { awk '/VmHWM/ { printf "%.0f\n", $2 / 1024 }' "/proc/$1/status"; }
answer() { # file descriptor, what is awaited
  read -r reply <&"$1" || { echo "train.sh: the $2 ended early" >&2; exit 1; }
}
peer() {
  exec env LD_LIBRARY_PATH="$blas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 THP_MEM_ALLOC_ENABLE=1 MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 \
    MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=67108864 \
    "$python" "$here/train_torch.py" "$@"
}

compare() { # model, dtype, threads
  local arguments=(--model "$1" --dtype "$2" --threads "$3") batch=1024 count=${steps:-2}
  [ "$1" = 124M ] || { batch=2048 count=${steps:-4}; }
  export OMP_NUM_THREADS=$3
  rm -f "$work"/*
  mkfifo "$work/ours.in" "$work/ours.out" "$work/peer.in" "$work/peer.out"
  # The peer first and alone: it chooses its variant by timing.
  peer "${arguments[@]}" ${options[@]+"${options[@]}"} <"$work/peer.in" >"$work/peer.out" &
  local peer_pid=$!
  pids=("$peer_pid")
  exec 5>"$work/peer.in" 6<"$work/peer.out"
  answer 6 peer
  "$ours" "${arguments[@]}" <"$work/ours.in" >"$work/ours.out" 5>&- 6<&- &
  local ours_pid=$!
  pids+=("$ours_pid")
  exec 3>"$work/ours.in" 4<"$work/ours.out"
  answer 4 "program $ours"
  local turn a b loss_a loss_b ours_start ours_end peer_start
  for ((turn = 0; turn < turns; ++turn)); do
    ours_start=$(used "$ours_pid") peer_start=$(used "$peer_pid")
    echo "$count" >&3; answer 4 "program $ours"; read -r a loss_a <<<"$reply"
    ours_end=$(used "$ours_pid")
    echo "$count" >&5; answer 6 peer; read -r b loss_b <<<"$reply"
    echo "$a $b" >>"$work/times"
    echo "$((ours_end - ours_start)) $(($(used "$peer_pid") - peer_start))" >>"$work/ticks"
  done
  local ours_peak peer_peak
  ours_peak=$(peak "$ours_pid") peer_peak=$(peak "$peer_pid")
  exec 3>&- 4<&- 5>&- 6<&-
  wait "$ours_pid" "$peer_pid"
  pids=()
  local tokens=$((batch * count))
  echo "ratio $1 $2 $3 $(rates "$work/times" "$tokens")"
  [ "$3" != 1 ] || echo "cpu $1 $2 $3 $(rates "$work/ticks" "$((tokens * $(getconf CLK_TCK)))")"
  echo "memory $1 $2 $3 $ours_peak $peer_peak $(awk -v a="$ours_peak" -v b="$peer_peak" 'BEGIN { printf "%.3f", a / b }')"
  echo "loss $1 $2 $3 $loss_a $loss_b"
}

for model in $models; do
  for dtype in $dtypes; do
    for count in $threads; do
      compare "$model" "$dtype" "$count"
    done
  done
done
