#!/usr/bin/env bash
# For a machine with several NVIDIA GPUs: the tests of the NCCL communicator on them, and the bus bandwidth of
# collectives by size, as NCCL chooses its algorithm and with its ring alone.
# It has run on simulated devices only (--simulated); nobody has run it on several real GPUs yet.
#
#   benchmarks/device/nccl.sh [--build FOLDER: build/cuda] [--out FOLDER: $OUT or build/nccl-report] [--mib LARGEST: 256]
#                             [--simulated]
#
#   --simulated  the same with the simulated devices (preset sim, -DACCRUE_BENCHMARKS=ON), in small: to check this script
#
# Exit code: 0 all passed, 1 something failed, 2 bad arguments, 77 fewer than two GPUs or no NCCL.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit 1
out=${OUT:-build/nccl-report} build="" mib=256 preset=cuda
while [ $# -gt 0 ]; do
  case $1 in
    --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" && exit 0 ;;
    --simulated) preset=sim mib=1 && shift && continue ;;
    --build | --out | --mib) [ $# -ge 2 ] || { echo "nccl.sh: $1 needs a value" >&2 && exit 2; } ;;
    *) echo "nccl.sh: unknown argument $1; --help tells more" >&2 && exit 2 ;;
  esac
  case $1 in
    --build) build=$2 ;;
    --out) out=$2 ;;
    --mib) mib=$2 ;;
  esac
  shift 2
done
mkdir -p "$out" || exit 1
if [ -z "$build" ]; then
  build=build/$preset
  cmake --preset "$preset" -DACCRUE_BENCHMARKS=ON &&
    cmake --build "$build" --parallel "$(nproc)" --target nccl_bus accrue_test_dist || exit 1
fi
[ "$preset" = cuda ] || export SIM_DEVICES=2 SIM_CHECK=0

failed=0
for how in "" --ring; do
  name=$out/bus${how#-}.txt
  "$build/benchmarks/nccl_bus" --mib "$mib" $how 2>&1 | tee "$name"
  code=${PIPESTATUS[0]}
  [ "$code" != 77 ] || exit 77
  [ "$code" = 0 ] || failed=1
done
if [ "$preset" = cuda ]; then
  nvidia-smi topo -m >"$out/topology.txt" 2>&1
  timeout 300 "$build/tests/accrue_test_dist" "nccl*" 2>&1 | tee "$out/tests.txt"
  [ "${PIPESTATUS[0]}" = 0 ] || failed=1
fi
exit "$failed"
