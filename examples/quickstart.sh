#!/usr/bin/env bash
# From a fresh Debian 12 to a training run: installs what is missing, builds train_gpt into build/release and
# trains with a logical batch of 64 samples that goes through the machine 8 samples at a time.
# Arguments are added to the command line of train_gpt (the last one given wins): examples/quickstart.sh --micro 4
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/setup.sh

install_packages "${accrue_packages[@]}"
install_packages gnuplot-nox || echo "quickstart: without gnuplot the run is not plotted" >&2
run cmake --preset release
run cmake --build build/release --target train_gpt --parallel "$(build_jobs)"
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"  # spinning threads starve whatever else runs here
run build/release/examples/train_gpt \
  --data examples/data/king_james.txt \
  --batch 64 --micro 8 --steps 100 --warmup 10 --save-every 50 --eval-every 25 \
  --dtype f32 \
  --out examples/out/quickstart \
  "$@"
