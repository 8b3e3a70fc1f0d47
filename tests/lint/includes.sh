#!/usr/bin/env bash
# Who may include whom. Usage: includes.sh <root of the tree>; prints every offending line and fails.
#   core <- kernels <- nn    kernels <- optim    core <- dist    core <- data
# Headers of CUDA only in files whose path names cuda or nccl, those of MPI where it names mpi; command line, JSON and oneDNN never in a public
# header; within a room only the spelling <accrue/room/file.h>.
set -uo pipefail
cd "$1" || exit 2
declare -A allowed=([core]="core" [kernels]="core kernels" [nn]="core kernels nn" [optim]="core kernels optim"
                    [dist]="core dist" [data]="core data")
faults=0
fault() {
  echo "$1"
  faults=$((faults + 1))
}
includes() { grep -HnE '^[[:space:]]*#[[:space:]]*include' "$@" /dev/null; }

for room in "${!allowed[@]}"; do
  [ -d "$room" ] || continue
  mapfile -t files < <(find "$room" -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
  [ ${#files[@]} -gt 0 ] || continue
  while IFS= read -r line; do
    [[ $line =~ include[[:space:]]*\"([^\"]+)\" ]] &&
      fault "$line: write <accrue/...>, not a quoted include"
    [[ $line =~ include[[:space:]]*\<accrue/([a-z_0-9]+)(\.h|/) ]] || continue
    to=${BASH_REMATCH[1]}
    [ "${BASH_REMATCH[2]}" = / ] || case $to in
      config) continue ;;
      kernels_all) to=kernels ;;
      *) fault "$line: a room includes no umbrella of the whole" && continue ;;
    esac
    [[ " ${allowed[$room]} " = *" $to "* ]] || fault "$line: $room may include ${allowed[$room]// /, } only"
  done < <(includes "${files[@]}")
  mapfile -t headers < <(find "$room" -name '*.h' -o -name '*.cu' -o -name '*.cuh')
  [ ${#headers[@]} -gt 0 ] || continue
  while IFS= read -r line; do
    fault "$line: only in .cpp files"
  done < <(includes "${headers[@]}" | grep -E '[<"](CLI/|CLI11|nlohmann/|dnnl|oneapi/)')
done

mapfile -t files < <(find core kernels nn optim dist data tests benchmarks examples \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | grep -vE 'cuda|nccl')
if [ ${#files[@]} -gt 0 ]; then
  while IFS= read -r line; do
    fault "$line: a CUDA header in a file whose path names neither cuda nor nccl"
  done < <(includes "${files[@]}" |
    grep -E '[<"](cuda|cublas|cudnn|curand|cub/|thrust/|nccl|nvtx|nvToolsExt|cooperative_groups)')
fi
# Those of MPI: only where the path names it.
mapfile -t files < <(find core kernels nn optim dist data tests benchmarks examples \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | grep -v 'mpi')
if [ ${#files[@]} -gt 0 ]; then
  while IFS= read -r line; do
    fault "$line: an MPI header in a file whose path does not name mpi"
  done < <(includes "${files[@]}" | grep -E '[<"](mpi\.h|mpi-ext\.h)')
fi
[ "$faults" -eq 0 ]
