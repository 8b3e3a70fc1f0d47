#!/usr/bin/env bash
# The real CUDA build without a GPU: every .cu file compiled by nvcc for one architecture, the kernels checked as
# check_kernels.py does, and the tests and examples linked and started. On a machine without a driver they must say so
# and still run on the cpu. Without nvcc there is nothing to check: the reason is printed and the exit code is 77.
# Usage: check_build.sh [architecture: 90a] [build folder: build/cuda-check]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source cmake/setup.sh
architecture=${1:-90a} build=${2:-build/cuda-check}

toolkit=${CUDA_HOME:-${CUDA_PATH:-/usr/local/cuda}}
nvcc=$(command -v nvcc || command -v "${CUDACXX:-nvcc}" || command -v "$toolkit/bin/nvcc" || true)
if [ -z "$nvcc" ]; then
  echo "no nvcc on this machine (looked on PATH and in $toolkit): the CUDA build is not checked"
  exit 77
fi

# The code of the cpu is that of the release build: after that one ccache has it. The host's side of .cu files is
# compiled quickly; their kernels are always optimised.
run cmake --preset cuda -B "$build" -DCMAKE_CUDA_ARCHITECTURES="$architecture-real" -DACCRUE_CPU_ISAS=portable \
  -DACCRUE_INSTALL=OFF -DCMAKE_CUDA_FLAGS=--no-compress -DCMAKE_CUDA_FLAGS_RELEASE="-O0 -DNDEBUG"
on_device=(core kernels nn optim dist)  # what makes tensors on the device that is asked for
programs=(train_gpt accrue-plan embed own_op ranks accrue-bench train_bench cuda_ceilings cuda_query nccl_bus)
for folder in "${on_device[@]}" data; do programs+=("accrue_test_$folder"); done
run cmake --build "$build" --parallel "$(build_jobs)" --target accrue_kernels "${programs[@]}"

install_packages python3
run "$nvcc" -std=c++20 --expt-relaxed-constexpr -arch="sm_$architecture" -I"$build/include" tests/cuda/shared_bytes.cu \
  -o "$build/shared_bytes"
"$build/shared_bytes" >"$build/shared_bytes.txt"
run python3 tests/cuda/check_kernels.py --complete --dynamic "$build/shared_bytes.txt" --table "$build/kernels.md" "$build/kernels"
printf '\nThe beginning of %s:\n' "$build/kernels.md"
sed -n '9,24p' "$build/kernels.md" | cut -c1-160

# says <text> <command...>: the command fails, and its words contain the text.
says() {
  local text=$1 said
  shift
  if said=$("$@" 2>&1); then
    echo "$*: expected to fail with '$text', but it ended well: $said"
    exit 1
  fi
  if ! grep -qF "$text" <<<"$said"; then
    echo "$*: expected '$text', got: $said"
    exit 1
  fi
  echo "as it should: $*: $said" | head -n 3
}
if grep -q 'ACCRUE_HAS_NCCL 1' "$build/include/accrue/config.h"; then
  ldd "$build/benchmarks/nccl_bus" | grep -F libnccl.so || { echo "nccl_bus does not find libnccl" && exit 1; }
else
  echo "no NCCL on this machine: the communicator between GPUs is not linked"
fi

export OMP_WAIT_POLICY=passive
small=(--layers 1 --heads 1 --channels 32 --context 16 --batch 2 --steps 2 --sample 0 --eval-samples 2)
if "$build/benchmarks/cuda_query"; then
  echo "there is a GPU here: benchmarks/device/run.sh checks what the programs do with it"
else
  says "no NVIDIA driver" "$build/benchmarks/cuda_query"
  says "no NVIDIA driver" "$build/benchmarks/nccl_bus"
  says "no NVIDIA driver" "$build/benchmarks/accrue-bench" run --op relu --seconds 0 --device cuda
  says "no NVIDIA driver" "$build/examples/train_gpt" "${small[@]}" --device cuda --out "$build/run-cuda"
  for folder in "${on_device[@]}"; do
    says "no NVIDIA driver" env ACCRUE_TEST_DEVICE=cuda "$build/tests/accrue_test_$folder"
  done
  out=$("$build/examples/train_gpt" "${small[@]}" --device auto --no-pictures --out "$build/run-auto" 2>&1) ||
    { echo "train_gpt --device auto: $out" && exit 1; }
  grep -qF "no NVIDIA driver" <<<"$out" || { echo "train_gpt --device auto does not warn: $out" && exit 1; }
fi
run "$build/tests/accrue_test_core"
run "$build/tests/accrue_test_kernels" "*gelu*"
# Where cuDNN is, it is loaded and asked for plans.
out=$("$build/tests/accrue_test_kernels" "[cudnn]" 2>&1) || { echo "$out" && exit 1; }
tail -n 3 <<<"$out"
libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p || true)
if grep -qF libcudnn.so.9 <<<"$libraries" && grep -F "cuDNN 9.8 or later is not installed" <<<"$out"; then
  echo "the tests of cuDNN did not find it, but it is there"
  exit 1
fi
run "$build/tests/accrue_test_nn" "*parity*"
run "$build/tests/accrue_test_optim" "LogicalStep*"
run "$build/tests/accrue_test_dist" "self*"
run "$build/tests/accrue_test_data"
for example in embed own_op ranks; do run "$build/examples/$example"; done
run "$build/examples/accrue-plan" --help >/dev/null
run "$build/benchmarks/accrue-bench" run --op attention,linear,max_pool2d --tiny --seconds 0
