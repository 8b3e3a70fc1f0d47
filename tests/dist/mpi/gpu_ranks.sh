#!/usr/bin/env bash
# Processes with a GPU each: NCCL between them, MPI beside it. On the simulated CUDA the GPUs are simulated too, and
# what they exchange are files. Usage: gpu_ranks.sh <accrue_test_gpu_ranks> <mpirun> <folder to work in>
set -uo pipefail
program=$1 mpirun=$2 work=$3
export SIM_DEVICES=3 SIM_NCCL_FOLDER=$work/files
failures=0

# expect <ranks> <scenario> <exit code> <words...>: all in what is printed
expect() {
  local ranks=$1 scenario=$2 code=$3 got=0
  shift 3
  rm -rf "$work" && mkdir -p "$work/files"
  timeout -k 5 60 "$mpirun" -n "$ranks" "$program" "$scenario" > "$work/log" 2>&1 || got=$?
  if [ "$got" != "$code" ]; then
    echo "FAILED: $scenario on $ranks ranks: exit code $got, expected $code: $(cat "$work/log")"
    failures=$((failures + 1))
  fi
  for words in "$@"; do
    grep -qF -- "$words" "$work/log" && continue
    echo "FAILED: $scenario on $ranks ranks: no '$words' in: $(cat "$work/log")"
    failures=$((failures + 1))
  done
}

rm -rf "$work" && mkdir -p "$work/files"
if ! timeout -k 5 60 "$mpirun" -n 3 "$program" > "$work/log" 2>&1 && grep -F "has no GPU: 3 ranks" "$work/log"; then
  exit 77
fi
for ranks in 1 2 3; do
  expect $ranks collectives 0 "$ranks ranks have a GPU each"
done
expect 2 throws 77 "accrue_test_gpu_ranks: the device has no more memory"
expect 2 late 75 "exit code 75" "the last one"
SIM_DEVICES=2 expect 3 collectives 2 \
  "rank 2 of 3 has no GPU: 3 ranks run on its machine, where it sees 2. Each rank takes a GPU of its own: start at most 2 ranks"
[ "$failures" = 0 ] && echo "all well"
exit $((failures > 0))
