#!/usr/bin/env bash
# All-reduce between processes: its bus bandwidth beside memcpy and plain MPI, and what comparing the ranks' calls
# costs. The ways take turns for several rounds; each number is the median of its rounds.
# Usage: benchmarks/dist/run.sh <mpi_bench> [rounds] [ranks...]
set -euo pipefail
bench=$1 rounds=${2:-5}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- 2 4
export OMPI_MCA_mca_base_param_files=${OMPI_MCA_mca_base_param_files:-$(dirname "$0")/../../dist/openmpi-mca.conf}
ways=(memcpy plain accrue unchecked ordered two)
times=$(mktemp)
trap 'rm -f "$times"' EXIT
printf '%6s %12s %-10s %12s %10s\n' ranks bytes way time_us bus_GB/s
for ranks in "$@"; do
  for size in 1024 1048576 33554432 104857600; do
    repetitions=$((size < 1000000 ? 200 : 9))
    : >"$times"
    for _ in $(seq "$rounds"); do
      for way in "${ways[@]}"; do
        # Plain MPI waits inside of its calls, where giving up the turn is right.
        yield=0
        [ "$way" != plain ] || yield=1
        echo "$way $(OMPI_MCA_mpi_yield_when_idle=$yield mpirun -n "$ranks" "$bench" "$way" "$size" "$repetitions")" >>"$times"
      done
    done
    for way in "${ways[@]}"; do
      sed -n "s/^$way //p" "$times" | sort -g | awk -v way="$way" -v w="$ranks" -v n="$size" '{t[NR] = $1} END {
        m = t[int((NR + 1) / 2)]
        bus = way == "memcpy" ? n / m : 2 * (w - 1) / w * n / m
        printf "%6d %12d %-10s %12.1f %10.3f\n", w, n, way, m * 1e6, bus / 1e9 }'
    done
  done
done
