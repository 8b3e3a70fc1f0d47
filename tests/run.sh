#!/usr/bin/env bash
# The whole way from a fresh Debian 12 to a tested build: installs what is missing, configures, builds into
# build/release and runs the tests. Arguments go on to ctest: tests/run.sh -R gelu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source cmake/setup.sh

install_packages "${accrue_packages[@]}"
jobs=$(build_jobs)
# The quickstart may have been here first, with less: -U gives back the default, which is every instruction set.
run cmake --preset release -UACCRUE_CPU_ISAS -DACCRUE_TESTS=ON -DACCRUE_BENCHMARKS=ON -DACCRUE_EXAMPLES=ON
run cmake --build build/release --parallel "$jobs"
# Threads that wait must sleep: the tests ask for more of them than there are processors.
export OMP_WAIT_POLICY=passive
run ctest --test-dir build/release --output-on-failure --parallel "$jobs" "$@"
