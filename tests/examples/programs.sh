#!/usr/bin/env bash
# The small programs end well and say what they should. Usage: programs.sh <embed> <own_op>
set -euo pipefail
out=$("$1")
grep -qE '^loss of the logical batch: 0\.00[0-9]+$' <<< "$out" || { echo "embed: $out"; exit 1; }
out=$("$2")
# d(x softplus(x))/dx = softplus(x) + x sigmoid(x)
grep -qF 'gradient [-0.1115  0.0443  0.6931  2.0443  3.8885]' <<< "$out" || { echo "own_op: $out"; exit 1; }
