#!/usr/bin/env bash
# Does includes.sh see what it must? Usage: includes_check.sh <empty folder>
set -euo pipefail
lint=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/includes.sh
tree=$1
# refuses <file> <include>: that one line makes the lint fail and is named; accepts: it does not.
try() {
  rm -rf "$tree"
  mkdir -p "$tree/$(dirname "$1")"
  echo "#include $2" >"$tree/$1"
  bash "$lint" "$tree"
}
refuses() {
  if out=$(try "$1" "$2"); then echo "accepted: $1 with $2" && exit 1; fi
  case $out in "$1:1:"*) ;; *) echo "not named: $1 with $2: $out" && exit 1 ;; esac
}
accepts() { try "$1" "$2" || { echo "refused: $1 with $2" && exit 1; }; }

for pair in core:kernels core:nn core:dist kernels:nn kernels:optim kernels:dist kernels:data nn:optim nn:dist \
  nn:data optim:nn optim:dist optim:data dist:kernels dist:nn dist:optim dist:data data:kernels data:dist; do
  refuses "${pair%:*}/a.cpp" "<accrue/${pair#*:}/b.h>"
done
for pair in core:core kernels:core kernels:kernels nn:core nn:kernels optim:core optim:kernels dist:core data:core; do
  accepts "${pair%:*}/a.h" "<accrue/${pair#*:}/b.h>"
done
refuses core/a.cpp '"b.h"'
refuses nn/a.h '<accrue/accrue.h>'
refuses nn/deep/a.h '<accrue/optim/b.h>'
refuses core/a.cpp '<accrue/kernels_all.h>'
accepts kernels/kernels.h '<accrue/kernels_all.h>'
accepts core/a.h '<accrue/config.h>'
refuses optim/a.h '<nlohmann/json.hpp>'
refuses nn/a.h '<CLI/CLI.hpp>'
refuses kernels/a/a_cuda.cu '<CLI/CLI.hpp>'
accepts optim/a.cpp '<nlohmann/json.hpp>'
refuses kernels/a/a.cpp '<cuda_runtime.h>'
refuses tests/a.cpp '<nccl.h>'
accepts kernels/a/a_cuda.cu '<cuda_runtime.h>'
accepts dist/nccl_comm.cpp '<nccl.h>'
refuses dist/context.cpp '<mpi.h>'
accepts dist/mpi/engine.h '<mpi.h>'
