#!/usr/bin/env bash
# From a fresh Debian 12 to a training run: installs what is missing, builds train_gpt into build/release and trains
# with a logical batch of 64 samples in a budget of memory that holds a fraction of it.
# Arguments are added to the command line of train_gpt (the last one given wins): examples/quickstart.sh --micro 4
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/setup.sh

install_packages "${accrue_packages[@]}" gnuplot-nox || {
  echo "quickstart: trying without gnuplot, the run is then not plotted" >&2
  install_packages "${accrue_packages[@]}"
}
# A build that is there is taken as it was configured, with the examples. A new one gets the kernels of this processor
# alone, and neither tests nor benchmarks: less than half of everything. tests/run.sh adds the rest.
if [ ! -f build/release/build.ninja ]; then
  isas=portable
  if grep -qw avx512vl /proc/cpuinfo 2>/dev/null && grep -qw avx512dq /proc/cpuinfo && grep -qw avx512bw /proc/cpuinfo; then
    isas=avx512
  elif grep -qw avx2 /proc/cpuinfo 2>/dev/null && grep -qw fma /proc/cpuinfo && grep -qw bmi2 /proc/cpuinfo; then
    isas=avx2
  fi
  run cmake --preset release -DACCRUE_CPU_ISAS="$isas" -DACCRUE_TESTS=OFF -DACCRUE_BENCHMARKS=OFF
elif ! grep -q '^ACCRUE_EXAMPLES:BOOL=ON' build/release/CMakeCache.txt; then
  run cmake --preset release -DACCRUE_EXAMPLES=ON
fi
run cmake --build build/release --target train_gpt --parallel "$(build_jobs)"
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"  # spinning threads starve whatever else runs here
run build/release/examples/train_gpt \
  --data examples/data/king_james.txt \
  --batch 64 --memory 48MiB --steps 80 --warmup 10 --save-every 40 --eval-every 20 \
  --dtype f32 \
  --out examples/out/quickstart \
  "$@"
